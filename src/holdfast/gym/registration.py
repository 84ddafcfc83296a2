"""Holdfast's environments in Gymnasium's registry, as `holdfast/Name-v0`.

`import holdfast` calls `register`: Gymnasium 1.x looks for no plugins by itself. Nothing heavier than
Gymnasium is imported before an environment is made.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple, NoReturn

_TABLE = "holdfast.gym.as_gymnasium:TableEnv"
_SIMULATOR = "holdfast.gym.as_gymnasium:SimulatorEnv"
_TASK = "holdfast.gym.mujoco.task_env:TaskEnv"
_VELOCITY = "holdfast.gym.mujoco.velocity:make"


class Entry(NamedTuple):
    """How an environment is made.

    Attributes:
        maker: what makes it.
        arguments: for it.
        steps: after which an episode is cut.
    """

    maker: str
    arguments: dict[str, str]
    steps: int

    @property
    def needs_mujoco(self) -> bool:
        """Whether its physics is MuJoCo's."""
        return self.maker in (_TASK, _VELOCITY)


# By what follows "holdfast/".
ENVIRONMENTS: dict[str, Entry] = {
    "Gambler": Entry(_TABLE, {"model": "gambler"}, 200),
    "NChain": Entry(_TABLE, {"model": "n-chain"}, 200),
    "FrozenLake": Entry(_TABLE, {"model": "frozen-lake"}, 200),
    "PointGather": Entry(_SIMULATOR, {"simulator": "point-gather"}, 15),
    "PointCircle": Entry(_TASK, {"task": "point-circle"}, 200),
    "AntCircle": Entry(_TASK, {"task": "ant-circle"}, 500),
    "AntGather": Entry(_TASK, {"task": "ant-gather"}, 500),
    **{
        f"{robot}Velocity": Entry(_VELOCITY, {"task": f"{robot}-v5"}, 1000)
        for robot in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Swimmer")
    },
}


def register() -> None:
    """Adds what is not there yet."""
    from gymnasium.envs.registration import register, registry

    has_mujoco = importlib.util.find_spec("mujoco") is not None
    for name, entry in ENVIRONMENTS.items():
        identity = f"holdfast/{name}-v0"
        if identity not in registry:
            can_be_made = has_mujoco or not entry.needs_mujoco
            register(
                id=identity,
                entry_point=entry.maker if can_be_made else f"{__name__}:without_mujoco",
                kwargs=dict(entry.arguments),
                max_episode_steps=entry.steps,
            )


def without_mujoco(**arguments: Any) -> NoReturn:
    """Stands for what cannot be made.

    Raises:
        ImportError: always.
    """
    raise ImportError(
        f"task: {arguments.get('task', 'this')} needs MuJoCo, which is not installed; "
        "pip install holdfast[mujoco]"
    )
