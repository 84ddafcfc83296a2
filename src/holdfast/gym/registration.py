"""Holdfast's environments in Gymnasium's registry, as `holdfast/Name-v0`.

`import holdfast` calls `register`, since Gymnasium 1.x does not look for plugins. It imports Gymnasium
only; the rest is imported when an environment is made.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple, NoReturn

_TABLE = "holdfast.gym.as_gymnasium:TableEnv"
_SIMULATOR = "holdfast.gym.as_gymnasium:SimulatorEnv"
_TASK = "holdfast.gym.mujoco.task_env:TaskEnv"
_VELOCITY = "holdfast.gym.mujoco.velocity:make"


class EnvironmentEntry(NamedTuple):
    """Import string, arguments and time limit of a registered environment."""

    maker: str
    arguments: dict[str, str]
    steps: int


# By the part of the id after "holdfast/".
ENVIRONMENTS: dict[str, EnvironmentEntry] = {
    "Gambler": EnvironmentEntry(_TABLE, {"model": "gambler"}, 200),
    "NChain": EnvironmentEntry(_TABLE, {"model": "n-chain"}, 200),
    "FrozenLake": EnvironmentEntry(_TABLE, {"model": "frozen-lake"}, 200),
    "PointGather": EnvironmentEntry(_SIMULATOR, {"simulator": "point-gather"}, 15),
    "PointCircle": EnvironmentEntry(_TASK, {"task": "point-circle"}, 200),
    "AntCircle": EnvironmentEntry(_TASK, {"task": "ant-circle"}, 500),
    "AntGather": EnvironmentEntry(_TASK, {"task": "ant-gather"}, 500),
    **{
        f"{robot}Velocity": EnvironmentEntry(_VELOCITY, {"task": f"{robot}-v5"}, 1000)
        for robot in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Swimmer")
    },
}


def register() -> None:
    """Register the environments that are not registered yet."""
    from gymnasium.envs.registration import register, registry

    has_mujoco = importlib.util.find_spec("mujoco") is not None
    for name, entry in ENVIRONMENTS.items():
        identity = f"holdfast/{name}-v0"
        if identity not in registry:
            can_be_made = has_mujoco or entry.maker not in (_TASK, _VELOCITY)
            register(
                id=identity,
                entry_point=entry.maker if can_be_made else f"{__name__}:without_mujoco",
                kwargs=dict(entry.arguments),
                max_episode_steps=entry.steps,
            )


def without_mujoco(**arguments: Any) -> NoReturn:
    """Raise an ImportError that says how to install MuJoCo."""
    raise ImportError(
        f"task: {arguments.get('task')} needs MuJoCo, which is not installed; "
        'pip install "holdfast[mujoco]"'
    )
