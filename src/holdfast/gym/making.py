"""Making Gymnasium environments, and the facts that an environment declares about itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium

from holdfast._support.arguments import meant

if TYPE_CHECKING:
    from holdfast.gym.mujoco.task import RobotTask
    from holdfast.simulators.environment import Environment

T = TypeVar("T")


def maker(
    environment: Any, options: dict[str, Any]
) -> tuple[Callable[[], gymnasium.Env], dict[str, Any] | None]:
    """Return a function that makes copies, and the id with its options if there is an id.

    Arguments:
        environment: an id, an environment that was made from one, or a function that makes one.
        options: arguments of `gymnasium.make`.

    Raises:
        ValueError: there is no such id, or the environment cannot be copied.
        TypeError: the argument is none of these.
    """
    if isinstance(environment, gymnasium.Env):
        spec = environment.spec
        if spec is None or spec.additional_wrappers:
            reason = "not made by gymnasium.make" if spec is None else "wrapped"
            raise ValueError(
                f"environment: training needs copies, and this one is {reason}; pass a function that "
                "makes it"
            )
        own = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
        if spec.max_episode_steps is not None:
            own["max_episode_steps"] = spec.max_episode_steps
        environment, options = spec.id, {**own, **options}
    if isinstance(environment, str):
        spec = spec_of(environment)

        # From the specification, since a worker process may not have registered the id.
        def make() -> gymnasium.Env:
            return gymnasium.make(spec, disable_env_checker=True, **options)

        return make, {"id": environment, "options": dict(options)}
    if not callable(environment):
        raise TypeError(
            "environment: expected an id, a Gymnasium environment or a function that makes one, "
            f"got {type(environment).__name__}"
        )
    if options:
        raise ValueError(f"{next(iter(options))}: options belong to an id, not to a function")
    return environment, None


def spec_of(identity: str) -> Any:
    """Return Gymnasium's specification of an id, which may be "module:id".

    Raises:
        ValueError: there is no such id; the message suggests a similar one.
    """
    module, _, name = identity.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name)
    except ImportError as error:
        raise ValueError(f"environment: {module} cannot be imported ({error})") from error
    except gymnasium.error.Error as error:
        suggestion = meant(name, gymnasium.registry, most=20)
        raise ValueError(f"environment: there is no {identity!r}{suggestion}") from error


def made(make: Callable[[], gymnasium.Env], given: Any, options: dict[str, Any]) -> gymnasium.Env:
    """Return one environment.

    Raises:
        ValueError: it cannot be made.
    """
    try:
        return make()
    except (gymnasium.error.Error, ImportError) as error:
        hint = '; pip install "holdfast[mujoco]"' if "mujoco" in str(error).lower() else ""
        raise ValueError(f"environment: {given} cannot be made ({error}){hint}") from error
    except TypeError as error:
        if not options:
            raise
        raise ValueError(
            f"{next(iter(options))}: {given} cannot be made with {options} ({error})"
        ) from error


def found_by_name(
    argument: str, given: T | str, known: Mapping[str, Callable[..., T]], **options: Any
) -> T:
    """Return the object that a name stands for, made with options; return any other object as it is.

    Raises:
        ValueError: there is no such name.
    """
    if not isinstance(given, str):
        return given
    if given not in known:
        raise ValueError(f"{argument}: expected one of {', '.join(known)}, got {given!r}")
    return known[given](**options)


def time_limit(env: gymnasium.Env) -> int | None:
    """Return the number of steps after which Gymnasium truncates an episode, or None."""
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return int(env.spec.max_episode_steps)
    if env.has_wrapper_attr("_max_episode_steps"):  # An inner wrapper is a TimeLimit.
        return int(env.get_wrapper_attr("_max_episode_steps"))
    return None


def task_of(env: gymnasium.Env) -> RobotTask | None:
    """Return the task of an environment that MuJoCo's threads can step, or None."""
    if importlib.util.find_spec("mujoco") is None:
        return None
    from holdfast.gym.mujoco import task_env

    return task_env.task_of(env)


def declared_facts(env: gymnasium.Env) -> RobotTask | Environment | None:
    """Return the costs, limits and discount of one of Holdfast's environments, or None."""
    from holdfast.gym.as_gymnasium import SimulatorEnv, TableEnv

    inner = env.unwrapped
    return inner.simulator if isinstance(inner, SimulatorEnv | TableEnv) else task_of(env)
