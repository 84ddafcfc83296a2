"""The robots' MuJoCo models, what is drawn around them, and pictures of them without a display.

Physics has only the robot and what it can touch; a drawn model has the same joints and more to look at.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import mujoco
import numpy as np
from jaxtyping import Bool, Float

from holdfast.environments.gathering import APPLES, ARENA, OBJECTS

# The ant's torso may not get nearer to a wall than its legs reach, about 1.
WALL = ARENA + 1.0
# Speed along a line: (4 − 0.4) N / 0.8 N·s/m = 4.5 m/s. Turning: (0.5 − 0.05) / 0.15 = 3 rad/s.
_POINT = """
<mujoco model="point">
  <option timestep="0.02" integrator="implicitfast"/>
  <worldbody>
    <light directional="true" pos="0 0 10" dir="0.2 0.3 -1"/>
    <geom name="floor" type="plane" size="40 40 1" contype="0" conaffinity="0"/>
    <body name="point" pos="0 0 0.2">
      <joint name="x" type="slide" axis="1 0 0" damping="0.8" frictionloss="0.4"/>
      <joint name="y" type="slide" axis="0 1 0" damping="0.8" frictionloss="0.4"/>
      <joint name="heading" type="hinge" axis="0 0 1" damping="0.15" frictionloss="0.05"/>
      <geom name="disc" type="cylinder" size="0.3 0.15" mass="0.9" rgba="0 0.35 0.65 1"
            contype="0" conaffinity="0"/>
      <geom name="arrow_left" type="capsule" fromto="0.55 0 0.2 0 0.3 0.2" size="0.07" mass="0.05"
            rgba="1 0.75 0.1 1" contype="0" conaffinity="0"/>
      <geom name="arrow_right" type="capsule" fromto="0.55 0 0.2 0 -0.3 0.2" size="0.07" mass="0.05"
            rgba="1 0.75 0.1 1" contype="0" conaffinity="0"/>
      <site name="centre"/>
    </body>
  </worldbody>
  <actuator>
    <motor name="push" site="centre" gear="4 0 0 0 0 0" ctrllimited="true" ctrlrange="-1 1"/>
    <motor name="turn" joint="heading" gear="0.5" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""
_APPLE, _BOMB = (0.0, 0.62, 0.45, 1.0), (0.84, 0.15, 0.16, 1.0)
_SAFE, _RING, _EDGE = (0.3, 0.8, 0.6, 0.2), (0.1, 0.1, 0.1, 0.7), (0.84, 0.15, 0.16, 1.0)
_RING_PARTS = 96
_CAMERA = "picture"
_PICTURE_SIDE = 480


def point() -> mujoco.MjSpec:
    """A disc of 1 kg on a plane: one motor pushes it along its heading, up to 4 N, the other turns it.

    Its joints x, y and heading have damping and dry friction, so that mass, friction, damping and the
    motors' gain all change how it moves. It slides sideways as it turns.

    Example:
        >>> model = point().compile()
        >>> model.nq, model.nu, float(model.body_mass.sum())
        (3, 2, 1.0)
    """
    return mujoco.MjSpec.from_string(_POINT)


def ant(*, walls: bool = False) -> mujoco.MjSpec:
    """Gymnasium's Ant, from the file that Gymnasium brings.

    Arguments:
        walls: whether it stands in a square whose walls it cannot pass.

    Example:
        >>> model = ant().compile()
        >>> model.nq, model.nu
        (15, 8)
    """
    gymnasium = importlib.util.find_spec("gymnasium")
    assert gymnasium is not None
    assert gymnasium.origin is not None
    file = Path(gymnasium.origin).parent / "envs" / "mujoco" / "assets" / "ant.xml"
    spec = mujoco.MjSpec.from_file(str(file))
    if walls:
        _add_walls(spec, WALL, touched=True)
    return spec


def drawn_gather(robot: mujoco.MjSpec, *, walls_at: float | None = None) -> mujoco.MjModel:
    """What a gathering task is drawn with: the robot, two apples and eight bombs, and walls.

    Arguments:
        robot: whose joints the picture's positions are of.
        walls_at: half the side of the square; None where the robot has walls already.

    Example:
        >>> model = drawn_gather(point(), walls_at=6.0)
        >>> model.nq, model.nmocap
        (3, 10)
    """
    for i in range(OBJECTS):
        body = robot.worldbody.add_body(name=f"object_{i}", mocap=True)
        body.add_geom(
            name=f"object_{i}",
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=[0.35, 0, 0],
            pos=[0, 0, 0.35],
            rgba=_APPLE if i < APPLES else _BOMB,
            contype=0,
            conaffinity=0,
        )
    if walls_at is not None:
        _add_walls(robot, walls_at, touched=False)
    robot.worldbody.add_camera(name=_CAMERA, pos=[0, -9, 20], xyaxes=[1, 0, 0, 0, 20, 9])
    return _compiled_to_draw(robot)


def drawn_circle(
    robot: mujoco.MjSpec, target: float, limit: float, *, followed: str | None = None
) -> mujoco.MjModel:
    """What a circle task is drawn with: the circle, and between two lines where one may be.

    Arguments:
        robot: whose joints the picture's positions are of.
        target: radius of the circle.
        limit: of |x|.
        followed: the body that the camera follows; None for a view of the whole circle.
    """
    add = robot.worldbody.add_geom
    flat = {"type": mujoco.mjtGeom.mjGEOM_BOX, "contype": 0, "conaffinity": 0}
    far = 2.0 * target
    add(name="allowed", size=[limit, far, 0.002], pos=[0, 0, 0.02], rgba=_SAFE, **flat)
    for side, name in ((-1, "left"), (1, "right")):
        place = [side * limit, 0, 0.03]
        add(name=f"limit_{name}", size=[0.06, far, 0.004], pos=place, rgba=_EDGE, **flat)
    angles = np.linspace(0, 2 * np.pi, _RING_PARTS, endpoint=False)
    length = np.pi * target / _RING_PARTS
    for i, angle in enumerate(angles):
        add(
            name=f"circle_{i}",
            size=[0.05, length, 0.004],
            pos=[target * np.cos(angle), target * np.sin(angle), 0.04],
            quat=[np.cos(angle / 2), 0, 0, np.sin(angle / 2)],
            rgba=_RING,
            **flat,
        )
    if followed is None:
        place = [0, -1.5 * target, 3.2 * target]
        robot.worldbody.add_camera(name=_CAMERA, pos=place, xyaxes=[1, 0, 0, 0, 3.2, 1.5])
    else:
        robot.body(followed).add_camera(
            name=_CAMERA,
            mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACK,
            pos=[0, -8, 8],
            xyaxes=[1, 0, 0, 0, 0.7, 0.7],
        )
    return _compiled_to_draw(robot)


def _add_walls(spec: mujoco.MjSpec, distance: float, *, touched: bool) -> None:
    thickness, height = 0.2, 0.5 if touched else 0.2
    for name, (x, y) in {
        "east": (1, 0),
        "north": (0, 1),
        "west": (-1, 0),
        "south": (0, -1),
    }.items():
        along, away = distance + 2 * thickness, distance + thickness
        # A body for each: geoms of the world itself would be tried against every leg in every step.
        wall = spec.worldbody.add_body(name=f"wall_{name}", pos=[x * away, y * away, height])
        wall.add_geom(
            name=f"wall_{name}",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[thickness if x else along, thickness if y else along, height],
            mass=0,
            rgba=[0.4, 0.45, 0.52, 0.6],
            contype=int(touched),
            conaffinity=int(touched),
        )


def _compiled_to_draw(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """With a quiet floor and even light: objects are what is to be seen."""
    tiles = spec.add_texture(name="quiet", type=mujoco.mjtTexture.mjTEXTURE_2D, width=64, height=64)
    tiles.builtin = mujoco.mjtBuiltin.mjBUILTIN_CHECKER
    tiles.rgb1, tiles.rgb2 = [0.74, 0.77, 0.80], [0.80, 0.83, 0.86]
    material = spec.add_material(name="quiet", specular=0, shininess=0, texrepeat=[40, 40])
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "quiet"
    floor = spec.geom("floor")
    floor.material, floor.rgba = "quiet", [1, 1, 1, 1]
    for light in spec.lights:
        light.diffuse, light.specular = [0.5, 0.5, 0.5], [0, 0, 0]
    spec.visual.headlight.ambient = [0.4, 0.4, 0.4]
    spec.visual.headlight.diffuse = [0.2, 0.2, 0.2]
    return spec.compile()


@runtime_checkable
class Drawn(Protocol):
    """A task that says what it is drawn with."""

    def drawn_model(self) -> mujoco.MjModel:
        """A model with the joints of the task's own, and what else is to be seen."""

    def objects(
        self, memory: Float[np.ndarray, " memory"]
    ) -> tuple[Float[np.ndarray, "objects 2"], Bool[np.ndarray, " objects"]] | None:
        """Where objects lie and which are still there; None where the task has none."""


class Drawing:
    """Pictures of a model, with or without a display.

    On Linux without a display they are drawn by EGL, unless the variable MUJOCO_GL says otherwise.
    (MuJoCo itself looks only at that variable, and only when it is imported.)

    Arguments:
        model: what is drawn. Objects to gather are its mocap bodies.
        width: of a picture.
        height: of a picture.

    Example:
        >>> drawing = Drawing(drawn_gather(point(), walls_at=6.0), width=64, height=48)
        >>> drawing.show([0.0, 0.0, 0.0]).shape
        (48, 64, 3)
        >>> drawing.close()
    """

    def __init__(
        self, model: mujoco.MjModel, *, width: int = _PICTURE_SIDE, height: int = _PICTURE_SIDE
    ) -> None:
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        self._model, self._data = model, mujoco.MjData(model)
        self._size = (height, width)
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._camera = _camera(model)
        try:
            self._window = _window()(width, height)
            self._window.make_current()
        except Exception as problem:
            raise RuntimeError(
                "render_mode: MuJoCo cannot draw here; set the variable MUJOCO_GL to egl or osmesa, "
                f"whichever is installed, before Python starts ({problem})"
            ) from problem
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._release = weakref.finalize(self, _free, self._window, self._context)
        # At exit the window's own library has closed before.
        self._release.atexit = False

    def show(
        self,
        qpos: Any,
        objects: Float[np.ndarray, "objects 2"] | None = None,
        present: Bool[np.ndarray, " objects"] | None = None,
    ) -> np.ndarray:
        """A picture, height × width × 3.

        Arguments:
            qpos: of the robot.
            objects: x and y of each.
            present: whether it is still there; what is not is invisible.
        """
        self._data.qpos[:] = qpos
        if objects is not None:
            self._data.mocap_pos[:, :2] = objects
        if present is not None:
            is_object = self._model.body_mocapid[self._model.geom_bodyid] >= 0
            self._model.geom_rgba[is_object, 3] = present
        mujoco.mj_forward(self._model, self._data)
        self._window.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL
        seen = (self._option, self._perturb, self._camera, everything, self._scene)
        mujoco.mjv_updateScene(self._model, self._data, *seen)
        area = mujoco.MjrRect(0, 0, self._size[1], self._size[0])
        mujoco.mjr_render(area, self._scene, self._context)
        picture = np.empty((*self._size, 3), np.uint8)
        mujoco.mjr_readPixels(picture, None, area, self._context)
        return np.ascontiguousarray(picture[::-1])

    def close(self) -> None:
        """Gives back what the graphics hold; nothing can be drawn afterwards."""
        self._release()


def _camera(model: mujoco.MjModel) -> mujoco.MjvCamera:
    """The one made for pictures, or else one that follows the first body."""
    camera = mujoco.MjvCamera()
    fixed = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, _CAMERA)
    if fixed >= 0:
        camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, fixed
    else:
        camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
        camera.distance, camera.azimuth, camera.elevation = 4.0, 90.0, -20.0
    return camera


def _window() -> Callable[[int, int], Any]:
    """What MUJOCO_GL asks for now: MuJoCo's own choice was made when it was imported."""
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    headless = sys.platform == "linux" and not has_display
    asked = os.environ.get("MUJOCO_GL", "").strip().lower() or ("egl" if headless else "")
    if asked in ("egl", "osmesa"):
        return importlib.import_module(f"mujoco.{asked}").GLContext
    return mujoco.GLContext


def _free(window: Any, context: mujoco.MjrContext) -> None:
    window.make_current()
    context.free()
    window.free()
