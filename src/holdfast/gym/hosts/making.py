"""Making Gymnasium environments, and what is known of them beforehand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import gymnasium

    from holdfast.gym.mujoco.task import Task


def maker(
    environment: Any, options: dict[str, Any]
) -> tuple[Callable[[], gymnasium.Env], dict[str, Any] | None]:
    """What makes copies; and the id and options where there are any."""
    import gymnasium

    if isinstance(environment, gymnasium.Env):
        if environment.spec is None:
            raise ValueError(
                "environment: copies are needed, and this one was not made by gymnasium.make; pass a "
                "function that makes it"
            )
        wrappers = getattr(environment.spec, "additional_wrappers", ())
        if wrappers:
            raise ValueError(
                "environment: copies are needed, and this one is wrapped; pass a function that makes "
                "and wraps it"
            )
        made = dict(environment.spec.kwargs)
        made.pop("render_mode", None)
        if environment.spec.max_episode_steps is not None:
            made["max_episode_steps"] = environment.spec.max_episode_steps
        environment, options = environment.spec.id, {**made, **options}
    if isinstance(environment, str):
        try:
            spec = spec_of(environment)
        except (gymnasium.error.Error, ImportError) as error:
            raise ValueError(f"environment: {error}") from error

        # By its entry rather than its id: a worker process may not have registered it.
        def make() -> gymnasium.Env:
            return gymnasium.make(spec, disable_env_checker=True, **options)

        return make, {"id": environment, "options": dict(options)}
    if not callable(environment):
        raise TypeError(
            "environment: expected an id, a Gymnasium environment or a function that makes one, "
            f"got {type(environment).__name__}"
        )
    if options:
        raise ValueError(f"{next(iter(options))}: options are for an id, not for a function")
    return environment, None


def spec_of(identity: str) -> Any:
    """What Gymnasium knows of an id, which may be "module:id"."""
    import gymnasium

    module, _, rest = identity.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(rest)


def made(make: Callable[[], gymnasium.Env], given: Any, options: dict[str, Any]) -> gymnasium.Env:
    """One environment; or a sentence where it cannot be had."""
    import gymnasium

    try:
        return make()
    except (gymnasium.error.Error, ImportError) as error:
        hint = "; pip install holdfast[mujoco]" if "mujoco" in str(error).lower() else ""
        raise ValueError(f"environment: {given} cannot be made ({error}){hint}") from error
    except TypeError as error:
        if not options:
            raise
        raise ValueError(
            f"{next(iter(options))}: {given} cannot be made with {options} ({error})"
        ) from error


def name_of(env: gymnasium.Env, spec: dict[str, Any] | None) -> str:
    """What messages call it: its id, or its class."""
    if spec is not None:
        return str(spec["id"])
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def time_limit(env: gymnasium.Env) -> int | None:
    """Steps after which Gymnasium cuts its episodes; None for never."""
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return int(env.spec.max_episode_steps)
    if env.has_wrapper_attr("_max_episode_steps"):  # of a TimeLimit somewhere around it
        return int(env.get_wrapper_attr("_max_episode_steps"))
    return None


def task_of(env: gymnasium.Env) -> Task | None:
    """The task of an environment that MuJoCo's threads can step."""
    try:
        import mujoco  # noqa: F401
    except ImportError:
        return None
    from holdfast.gym.mujoco import locomotion
    from holdfast.gym.mujoco.task_env import TaskEnv

    if isinstance(env.unwrapped, TaskEnv):
        return env.unwrapped.task if _is_bare(env) else None
    return locomotion.task_of(env)


def _is_bare(env: gymnasium.Env) -> bool:
    """Whether nothing is around it but what `gymnasium.make` puts there."""
    from gymnasium import wrappers

    usual = (wrappers.OrderEnforcing, wrappers.PassiveEnvChecker, wrappers.TimeLimit)
    while isinstance(env, usual):
        env = env.env
    return env is env.unwrapped


class OwnFacts(Protocol):
    """What Holdfast's own environments say of themselves, a `Task` or an `Environment`."""

    @property
    def cost_names(self) -> tuple[str, ...]:
        """Its costs."""

    @property
    def cost_limits(self) -> tuple[float, ...] | None:
        """Their limits."""

    @property
    def discount(self) -> float | None:
        """Its discount."""


def own_facts(env: gymnasium.Env) -> OwnFacts | None:
    """The discount, costs and limits that belong to an environment of Holdfast's."""
    from holdfast.environments.table_simulator import TableSimulator
    from holdfast.gym.as_gymnasium import SimulatorEnv, TableEnv

    inner = env.unwrapped
    if isinstance(inner, SimulatorEnv):
        return inner.simulator
    if isinstance(inner, TableEnv):
        return TableSimulator(inner.model)
    return task_of(env)
