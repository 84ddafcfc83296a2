"""The verb `disturb`: a Gymnasium environment, and the channels through which it is disturbed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from holdfast._support.arguments import check_number, check_whole_number
from holdfast.gym.channels import DELAY, Channel, Machine, Parameters, channel_from, channels_of
from holdfast.gym.costs import CostError, Costs, GivenCost, cost_from
from holdfast.gym.hosted import HostedEnvironment, HostedFacts
from holdfast.gym.hosts.callback import HostHandle
from holdfast.gym.hosts.checks import ProtocolError
from holdfast.gym.hosts.hooks import HookedParameters, ParameterHook, SetParameter
from holdfast.gym.hosts.pools import AsyncHost, HostError, SyncHost
from holdfast.gym.hosts.watching import Deadline, HangError, WatchedThread
from holdfast.gym.hosts.worker import MakeEnv
from holdfast.gym.hosts.wrapper import DisturbedEnv, UnlimitedEnv, action_count, name_of
from holdfast.gym.making import declared_facts, made, maker, spec_of, task_of, time_limit
from holdfast.simulators.environment import Box, Discrete

if TYPE_CHECKING:
    from holdfast.gym.hosts.threads import ThreadHost
    from holdfast.gym.mujoco.task import RobotTask

BACKENDS = ("auto", "threads", "sync", "async")
# A policy step for 256 copies costs little more than for one; more copies need memory and gain nothing.
_COPIES = 256
_DISCOUNT = 0.99
# No simulator of a step that is worth training on takes minutes; the slowest known ones, of fluids,
# take seconds.
STEP_TIMEOUT = 300.0

T = TypeVar("T")


class NotFiniteError(ValueError):
    """The first step of an environment returned a number that is not finite."""


def disturb(
    environment: str | gymnasium.Env | Callable[[], gymnasium.Env],
    channel: Channel | Sequence[Channel] | None = None,
    cost: GivenCost = None,
    *,
    horizon: int | None = None,
    discount: float | None = None,
    backend: str = "auto",
    workers: int | None = None,
    copies: int | None = None,
    step_timeout: float | None = STEP_TIMEOUT,
    set_parameter: SetParameter | None = None,
    **options: Any,
) -> HostedEnvironment:
    """Return a Gymnasium environment with a disturbance, for `train` and `stress`.

    A channel says where the real world may differ from the simulator, and the standard deviation of the
    difference. This is the nominal noise; adversaries change its distribution within their radius.

    MuJoCo's threads step all copies of a MuJoCo task at once: HalfCheetah, Hopper, Walker2d and
    Swimmer of version 5, Ant without contact forces, and Holdfast's own tasks. Any other environment
    is stepped through its own `step`, in this process or in worker processes.

    Environments with equal arguments share their compiled programs.

    Arguments:
        environment: an id such as "HalfCheetah-v5", an environment that was made from one, or a function
            that makes one. Steps may return six values, as in Safety-Gymnasium.
        channel: `Actions`, `Observations`, `States`, `Force`, `Parameters`, or several of them; None for
            no disturbance.
        cost: a key of `info`; a function of a `Transition`, such as `speed_limit(2.0)`; a mapping from
            names to these; {} for no cost. By default the cost of a six-value step, or `info["cost"]`.
        horizon: number of steps of an episode; by default the time limit of the environment.
        discount: discount of the reward; by default that of the task, or 0.99.
        backend: "threads" (MuJoCo's), "sync" (this process), "async" (worker processes), or "auto":
            threads if possible, otherwise workers if their number is given, otherwise this process.
        workers: number of threads or processes; by default the number of processors.
        copies: largest number of environments side by side; by default 256.
        step_timeout: seconds that a reset or a step of one copy may take before training stops with a
            message; None for no limit, for example when a debugger is attached.
        set_parameter: function of the unwrapped environment, the name of a parameter such as "mass" and
            the factor on its nominal value, which `Parameters` then varies. An environment with a method
            `set_parameter(name, factor)` needs none; MuJoCo's physics is known.
        **options: arguments of `gymnasium.make`, for an id.

    Raises:
        ValueError: the environment does not exist or has no cost or horizon; a channel does not fit; the
            observations are images; the action space is neither a box nor discrete;
            `set_parameter` fails for a parameter that varies.

    Example:
        >>> import holdfast as hf
        >>> def spins(step):
        ...     return abs(step.next_observation[2]) > 4
        >>> env = hf.disturb("Pendulum-v1", hf.Actions(0.2), spins)
        >>> env.disturbance.size, env.horizon, env.action_space.high
        (1, 200, (2.0,))
        >>> hf.disturb("Pendulm-v1")
        Traceback (most recent call last):
            ...
        ValueError: environment: there is no 'Pendulm-v1'; did you mean Pendulum-v1?
    """
    channels = channels_of(channel)
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    for argument, value in (("horizon", horizon), ("workers", workers), ("copies", copies)):
        if value is not None:
            check_whole_number(argument, value, least=1)
    if step_timeout is not None:
        check_number("step_timeout", step_timeout, above=True)
    if discount is not None and not 0 <= discount < 1:
        raise ValueError(f"discount: expected a number in [0, 1), got {discount!r}")
    make, spec = maker(environment, options)
    if set_parameter is not None:
        make, spec = _hooked(make, set_parameter), None
    probe = made(make, environment, options)
    try:
        name = name_of(probe) if spec is None else str(spec["id"])
        hook = HookedParameters.of(probe)
        if hook is not None:
            for each in (c for c in channels if isinstance(c, Parameters)):
                for parameter in each.drawn.keys() - {DELAY}:
                    hook.check(parameter)
        steps = horizon or time_limit(probe)
        if steps is None:
            raise ValueError(f"horizon: {name} has no time limit; pass horizon=")
        # MuJoCo's threads have their own physics, which no function of an environment reaches.
        task = None if hook else task_of(probe)
        declared = declared_facts(probe)
        if task is None and backend == "threads":
            raise ValueError(f"backend: {name} is not a task that MuJoCo's threads can step")
        costs = Costs.resolve(cost, name)
        if cost is None and declared is not None and len(declared.cost_names) == 1:
            costs = dataclasses.replace(costs, sources={declared.cost_names[0]: "cost"})
        bare = DisturbedEnv(probe, costs=costs, name=name)
        machine = _tried(name, partial(_machine, bare), step_timeout)
        env = DisturbedEnv(probe, machine.layout(channels), costs, name)
        if task is not None and backend in ("auto", "threads"):
            own = cost is None and bool(task.cost_names)
            host: SyncHost | ThreadHost = _thread_host(task, env, own, workers, step_timeout)
        else:
            is_async = backend == "async" or (backend == "auto" and workers is not None)
            _tried(name, partial(_try_step, env), step_timeout)
            make_copy = _without_time_limit(make, steps)
            host = SyncHost(make_copy, env, step_timeout)
            if is_async:
                host = AsyncHost(make_copy, env, workers, step_timeout)
        limits = declared.cost_limits if cost is None and declared is not None else None
        if discount is None:
            discount = None if declared is None else declared.discount
    finally:
        probe.close()
    facts = HostedFacts(
        machine=machine,
        channels=channels,
        layout=env.layout,
        sizes=host.sizes,
        horizon=int(steps),
        discount=_DISCOUNT if discount is None else float(discount),
        cost_names=host.cost_names,
        cost_limits=limits,
        most_copies=copies or _COPIES,
    )
    recipe = _recipe(spec, costs, facts)
    handle = HostHandle(host, recipe, probe.observation_space, probe.action_space, spec)
    return HostedEnvironment(facts, handle)


def is_gymnasium(given: object) -> bool:
    """Return whether the argument is a Gymnasium environment or a registered id."""
    try:
        return isinstance(given, gymnasium.Env) or (isinstance(given, str) and bool(spec_of(given)))
    except ValueError:
        return False


def from_recipe(description: Mapping[str, Any]) -> HostedEnvironment:
    """Return the environment with this `description`.

    Raises:
        ValueError: the description is not enough to make the environment again.
    """
    recipe = description["gymnasium"]
    if not recipe.get("rebuildable"):
        raise ValueError("environment: a function made it or its costs; pass the environment again")
    module = str(recipe["id"]).rpartition(":")[0]
    if module and module not in sys.modules:  # a file must not choose which code runs
        raise ValueError(f"environment: {recipe['id']} needs {module}; import it first")
    env = disturb(
        recipe["id"],
        [channel_from(each) for each in description["channels"]],
        cost_from(recipe["cost"]),
        horizon=recipe["horizon"],
        discount=recipe["discount"],
        copies=recipe["copies"],
        **recipe["options"],
    )
    return env.with_parameters(**description["fixed"])


def _machine(env: DisturbedEnv) -> Machine:
    """Return the quantities of an environment that can be disturbed."""
    space: Any = env.action_space
    actions: Box | Discrete
    if isinstance(space, spaces.Box):
        low, high = (np.asarray(b, float).ravel().tolist() for b in (space.low, space.high))
        actions = Box(tuple(low), tuple(high))
    else:
        actions = Discrete(action_count(space, env.name) or 0)
    is_mujoco = env.physics is not None
    return Machine(
        name=env.name,
        actions=actions,
        observations=env.observation_size,
        states=env.state_size,
        is_mujoco=is_mujoco,
        bodies=env.body_names,
        parameters=(*env.parameters, DELAY),
        dt=float(env.unwrapped.dt) if is_mujoco and hasattr(env.unwrapped, "dt") else None,
    )


def _thread_host(
    task: RobotTask,
    env: DisturbedEnv,
    has_own_costs: bool,
    threads: int | None,
    step_timeout: float | None,
) -> ThreadHost:
    from holdfast.gym.hosts.threads import ThreadHost

    costs = None if has_own_costs else env.costs
    host = ThreadHost(task, env.layout, costs, threads, step_timeout)
    if not has_own_costs:
        first = host.reset(np.zeros(1, np.uint32))
        action, over = np.zeros((1, task.model.nu), np.float32), np.zeros(1, bool)
        try:
            tried = host.step(first.place, action, env.layout.nominal[None], over)
        except HostError as error:
            if isinstance(error.__cause__, CostError):
                raise error.__cause__ from None
            raise ValueError(f"environment: {error}") from error
        _check_finite(env.name, tried.observations, tried.rewards, tried.costs)
    return host


def _hooked(make: Callable[[], gymnasium.Env], function: SetParameter) -> Callable[[], Any]:
    return lambda: ParameterHook(make(), function)


def _without_time_limit(make: Callable[[], gymnasium.Env], horizon: int) -> MakeEnv:
    return lambda: UnlimitedEnv(make(), horizon)


def _try_step(env: DisturbedEnv) -> None:
    """Take one step, which finds a missing cost and a broken interface before any work."""
    env.reset(seed=0)
    action: Any = 0
    if isinstance(env.action_space, spaces.Box):
        action = np.clip(0.0, env.action_space.low, env.action_space.high).ravel()
    observation, reward, _, _, info = env.step(action)
    _check_finite(env.name, observation, reward, info["costs"])


def _tried(name: str, function: Callable[[], T], step_timeout: float | None) -> T:
    """Return the result of a function that resets or steps an environment for the first time.

    Raises:
        ValueError: the environment raised, did not return, or returned something that is not allowed.
    """
    try:
        if step_timeout is None:
            return function()
        return WatchedThread().call(function, Deadline(step_timeout, lambda: 0))
    except HangError:
        raise ValueError(
            f"environment: {name} did not return from its first reset or step within "
            f"{step_timeout:g} s (step_timeout)"
        ) from None
    except ProtocolError as error:
        raise ValueError(f"environment: {name}: {error}") from error
    except (CostError, NotFiniteError):
        raise
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(
            f"environment: {name} raised {kind} in its first reset or step: {error}"
        ) from error


def _check_finite(name: str, observation: Any, reward: Any, costs: Any) -> None:
    for what, value in (("observation", observation), ("reward", reward), ("cost", costs)):
        if not np.isfinite(value).all():
            raise NotFiniteError(f"environment: the first {what} of {name} is not finite: {value}")


def _recipe(spec: dict[str, Any] | None, costs: Costs, facts: HostedFacts) -> dict[str, Any]:
    """Return the arguments of `disturb` as JSON values, and whether they can rebuild the environment."""
    found = {
        "cost": costs.describe(),
        "horizon": facts.horizon,
        "discount": facts.discount,
        "copies": facts.most_copies,
    }
    if spec is None:
        return {**found, "id": None, "rebuildable": False}
    try:
        json.dumps(spec["options"], allow_nan=False)
    except (TypeError, ValueError):
        options = {name: repr(value) for name, value in spec["options"].items()}
        return {**found, "id": spec["id"], "options": options, "rebuildable": False}
    return {**found, **spec, "rebuildable": costs.is_rebuildable}
