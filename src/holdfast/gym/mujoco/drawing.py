"""Pictures of MuJoCo models, with or without a display."""

from __future__ import annotations

import os
import sys
from typing import Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
from jaxtyping import Bool, Float

# Name of the camera from which pictures are taken, if a model has it.
CAMERA = "picture"


def use_egl_without_display() -> bool:
    """Select EGL for pictures on Linux without a display, and return whether there is no display.

    Does not change the variable MUJOCO_GL if it is set. Gymnasium reads it when it makes its first
    picture; without it, Gymnasium tries GLFW first, which prints warnings.
    """
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    is_headless = sys.platform == "linux" and not any(map(os.environ.get, displays))
    if is_headless:
        os.environ.setdefault("MUJOCO_GL", "egl")
    return is_headless


class Drawing:
    """Pictures of a model.

    Arguments:
        model: the model to draw. Its mocap bodies are objects to gather.
        width: width of a picture in pixels.
        height: height of a picture in pixels.

    Raises:
        RuntimeError: no graphics library works here.

    Example:
        >>> from holdfast.gym.mujoco import models
        >>> drawing = Drawing(models.drawn_gather(models.point(), walls_at=6.0), width=64, height=48)
        >>> drawing.show([0.0, 0.0, 0.0]).shape
        (48, 64, 3)
        >>> drawing.close()
    """

    def __init__(self, model: mujoco.MjModel, *, width: int = 480, height: int = 480) -> None:
        use_egl_without_display()
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        self._model, self._data = model, mujoco.MjData(model)
        try:
            self._viewer = OffScreenViewer(model, self._data, width, height)
        except Exception as problem:
            raise RuntimeError(
                "render_mode: MuJoCo cannot draw here; set the variable MUJOCO_GL to egl or osmesa, "
                f"whichever is installed, before Python starts ({problem})"
            ) from problem
        self._viewer.scn.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._camera: int | None = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, CAMERA)
        if self._camera < 0:
            # Follow the first body from a distance at which a robot of 1 m fills the picture.
            self._camera, camera = None, self._viewer.cam
            camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
            camera.distance, camera.azimuth, camera.elevation = 4.0, 90.0, -20.0

    def show(
        self,
        qpos: Any,
        objects: Float[np.ndarray, "objects 2"] | None = None,
        present: Bool[np.ndarray, " objects"] | None = None,
    ) -> np.ndarray:
        """Return a picture, height × width × 3.

        Arguments:
            qpos: positions of the robot.
            objects: x and y of each object.
            present: whether each object is still there; the others are invisible.
        """
        self._data.qpos[:] = qpos
        if objects is not None:
            self._data.mocap_pos[:, :2] = objects
        if present is not None:
            is_object = self._model.body_mocapid[self._model.geom_bodyid] >= 0
            self._model.geom_rgba[is_object, 3] = present
        mujoco.mj_forward(self._model, self._data)
        self._viewer.make_context_current()
        return np.ascontiguousarray(self._viewer.render("rgb_array", camera_id=self._camera))

    def close(self) -> None:
        """Release the graphics; nothing can be drawn afterwards."""
        self._viewer.close()
