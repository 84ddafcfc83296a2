"""The MuJoCo models of the robots, and the models from which pictures are drawn.

A physics model contains only the robot and the objects that it can touch. A drawn model has the same
joints, and more to look at.
"""

from __future__ import annotations

from pathlib import Path

import gymnasium
import mujoco
import numpy as np

from holdfast.environments.gathering import APPLES, ARENA, OBJECTS
from holdfast.gym.mujoco.drawing import CAMERA

# The ant's legs reach 1 m, so its torso gets about as far as Point Gather's arena, ±6.
WALL = ARENA + 1.0
# Top speed: (4 N push − 0.4 N friction) / 0.8 N·s/m damping = 4.5 m/s, so a lap of a circle of 5 m takes
# 7 s. Top turning rate: (0.5 − 0.05) / 0.15 = 3 rad/s.
_POINT = """
<mujoco model="point">
  <option timestep="0.02" integrator="implicitfast"/>
  <default>
    <geom contype="0" conaffinity="0"/>
    <default class="arrow"><geom type="capsule" size="0.07" mass="0.05" rgba="1 0.75 0.1 1"/></default>
  </default>
  <worldbody>
    <light directional="true" pos="0 0 10" dir="0.2 0.3 -1"/>
    <geom name="floor" type="plane" size="40 40 1"/>
    <body name="point" pos="0 0 0.2">
      <joint name="x" type="slide" axis="1 0 0" damping="0.8" frictionloss="0.4"/>
      <joint name="y" type="slide" axis="0 1 0" damping="0.8" frictionloss="0.4"/>
      <joint name="heading" type="hinge" axis="0 0 1" damping="0.15" frictionloss="0.05"/>
      <geom name="disc" type="cylinder" size="0.3 0.15" mass="0.9" rgba="0 0.35 0.65 1"/>
      <geom name="arrow_left" class="arrow" fromto="0.55 0 0.2 0 0.3 0.2"/>
      <geom name="arrow_right" class="arrow" fromto="0.55 0 0.2 0 -0.3 0.2"/>
      <site name="centre"/>
    </body>
  </worldbody>
  <actuator>
    <motor name="push" site="centre" gear="4 0 0 0 0 0" ctrllimited="true" ctrlrange="-1 1"/>
    <motor name="turn" joint="heading" gear="0.5" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""
# Colours that people with a red-green deficiency can tell apart: bluish green and vermilion.
_APPLE, _BOMB = (0.0, 0.62, 0.45, 1.0), (0.84, 0.15, 0.16, 1.0)
_ALLOWED, _RING, _LIMIT = (0.3, 0.8, 0.6, 0.2), (0.1, 0.1, 0.1, 0.7), _BOMB
# Straight pieces of the circle; each turns by less than 4 degrees, which looks round.
_RING_PIECES = 96
_UNTOUCHED = {"contype": 0, "conaffinity": 0}


def point() -> mujoco.MjSpec:
    """Return a disc of 1 kg on a plane, with a motor that pushes along the heading and one that turns.

    Its joints x, y and heading have damping and dry friction, so that mass, friction, damping and gain
    all change how it moves. It slides sideways as it turns.

    Example:
        >>> model = point().compile()
        >>> model.nq, model.nu, float(model.body_mass.sum())
        (3, 2, 1.0)
    """
    return mujoco.MjSpec.from_string(_POINT)


def ant(*, walls: bool = False) -> mujoco.MjSpec:
    """Return Gymnasium's Ant, from Gymnasium's model file.

    Arguments:
        walls: whether the ant stands inside four walls.

    Example:
        >>> model = ant().compile()
        >>> model.nq, model.nu
        (15, 8)
    """
    file = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "ant.xml"
    spec = mujoco.MjSpec.from_file(str(file))
    if walls:
        _add_walls(spec, WALL, is_solid=True)
    return spec


def drawn_gather(robot: mujoco.MjSpec, *, walls_at: float | None = None) -> mujoco.MjModel:
    """Return the drawn model of a gathering task: the robot, two apples, eight bombs, and walls.

    Arguments:
        robot: the robot, to which the objects are added.
        walls_at: half the side of the square; None if the robot's model has walls already.

    Example:
        >>> model = drawn_gather(point(), walls_at=6.0)
        >>> model.nq, model.nmocap
        (3, 10)
    """
    for i in range(OBJECTS):
        body = robot.worldbody.add_body(name=f"object_{i}", mocap=True)
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=[0.35, 0, 0],
            pos=[0, 0, 0.35],
            rgba=_APPLE if i < APPLES else _BOMB,
            **_UNTOUCHED,
        )
    if walls_at is not None:
        _add_walls(robot, walls_at, is_solid=False)
    robot.worldbody.add_camera(name=CAMERA, pos=[0, -9, 20], xyaxes=[1, 0, 0, 0, 20, 9])
    return _compiled_to_draw(robot)


def drawn_circle(
    robot: mujoco.MjSpec, target: float, limit: float, *, followed: str | None = None
) -> mujoco.MjModel:
    """Return the drawn model of a circle task: the robot, the circle, and the allowed band.

    Arguments:
        robot: the robot, to which the circle is added.
        target: radius of the circle in metres.
        limit: largest allowed |x| in metres.
        followed: name of the body that the camera follows; None for a view of the whole circle.
    """

    def add(size: list[float], pos: list[float], rgba: tuple[float, ...], angle: float = 0) -> None:
        quat = [np.cos(angle / 2), 0, 0, np.sin(angle / 2)]
        box = mujoco.mjtGeom.mjGEOM_BOX
        robot.worldbody.add_geom(type=box, size=size, pos=pos, quat=quat, rgba=rgba, **_UNTOUCHED)

    # Each layer lies a little higher than the one before, or they would flicker.
    far = 2.0 * target
    add([limit, far, 0.002], [0, 0, 0.02], _ALLOWED)
    for side in (-1, 1):
        add([0.06, far, 0.004], [side * limit, 0, 0.03], _LIMIT)
    for angle in np.linspace(0, 2 * np.pi, _RING_PIECES, endpoint=False):
        place = [target * np.cos(angle), target * np.sin(angle), 0.04]
        add([0.05, np.pi * target / _RING_PIECES, 0.004], place, _RING, angle)
    if followed is None:
        place = [0, -1.5 * target, 3.2 * target]
        robot.worldbody.add_camera(name=CAMERA, pos=place, xyaxes=[1, 0, 0, 0, 3.2, 1.5])
    else:
        robot.body(followed).add_camera(
            name=CAMERA,
            mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACK,
            pos=[0, -8, 8],
            xyaxes=[1, 0, 0, 0, 0.7, 0.7],
        )
    return _compiled_to_draw(robot)


def _add_walls(spec: mujoco.MjSpec, distance: float, *, is_solid: bool) -> None:
    thickness, height = 0.2, 0.5 if is_solid else 0.2
    along, away = distance + 2 * thickness, distance + thickness
    sides = {"east": (1, 0), "north": (0, 1), "west": (-1, 0), "south": (0, -1)}
    for name, (x, y) in sides.items():
        # A body for each wall: geoms of the world body would be tested against every leg in every step.
        wall = spec.worldbody.add_body(name=f"wall_{name}", pos=[x * away, y * away, height])
        wall.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[thickness if x else along, thickness if y else along, height],
            mass=0,
            rgba=[0.4, 0.45, 0.52, 0.6],
            contype=int(is_solid),
            conaffinity=int(is_solid),
        )


def _compiled_to_draw(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compile a model with a plain floor and even light, against which the objects stand out."""
    tiles = spec.add_texture(name="plain", type=mujoco.mjtTexture.mjTEXTURE_2D, width=64, height=64)
    tiles.builtin = mujoco.mjtBuiltin.mjBUILTIN_CHECKER
    tiles.rgb1, tiles.rgb2 = [0.74, 0.77, 0.80], [0.80, 0.83, 0.86]
    material = spec.add_material(name="plain", specular=0, shininess=0, texrepeat=[40, 40])
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "plain"
    floor = spec.geom("floor")
    floor.material, floor.rgba = "plain", [1, 1, 1, 1]
    for light in spec.lights:
        light.diffuse, light.specular = [0.5, 0.5, 0.5], [0, 0, 0]
    spec.visual.headlight.ambient = [0.4, 0.4, 0.4]
    spec.visual.headlight.diffuse = [0.2, 0.2, 0.2]
    return spec.compile()
