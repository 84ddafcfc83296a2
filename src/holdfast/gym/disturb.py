"""The verb `disturb`: a Gymnasium environment, and where the world may differ from it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast._support.arguments import check_whole_number
from holdfast.gym.bridge import Facts, Hosted
from holdfast.gym.channels import (
    DELAY,
    Channel,
    Force,
    Machine,
    States,
    channel_from,
    channels_of,
)
from holdfast.gym.hosts.costs import Costs, GivenCost
from holdfast.gym.hosts.layout import Layout
from holdfast.gym.hosts.making import made, maker, name_of, own_facts, spec_of, task_of, time_limit
from holdfast.simulators.environment import Box, Discrete

if TYPE_CHECKING:
    import gymnasium

    from holdfast.gym.mujoco.task import Task

BACKENDS = ("auto", "threads", "sync", "async")
# More copies of a robot side by side gain nothing: they only need memory.
_COPIES = 256
_DISCOUNT = 0.99


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
    **options: Any,
) -> Hosted:
    """A Gymnasium environment with a disturbance: something to `train` on and to `stress`.

    The channel says where the world may differ from the simulator, and by how much of a physical
    quantity: that is the nominal noise, and adversaries move it within their radius.

    MuJoCo's tasks (HalfCheetah, Hopper, Walker2d and Swimmer of version 5, Ant without contact forces,
    and Holdfast's own) are stepped by MuJoCo's threads, all copies at once. Any other environment is
    stepped through its own `step`, here or in worker processes.

    Arguments:
        environment: an id such as "HalfCheetah-v5", an environment that was made from one, or a
            function that makes one; Safety-Gymnasium's six-value `step` is fine.
        channel: `Actions`, `Observations`, `States`, `Force`, `Parameters`, or several of them; None
            where nothing is disturbed.
        cost: a key of `info`; a function of a `Transition`, such as `speed_limit(2.0)`; several of them
            by name; {} for none. Left out, the cost of a six-value step or `info["cost"]`.
        horizon: steps after which an episode is cut; the environment's own limit if left out.
        discount: of the reward; the task's own if left out, or 0.99 where it has none.
        backend: "threads", MuJoCo's; "sync", in this process; "async", in worker processes; "auto" takes
            threads where they can be had, otherwise workers where their number is given.
        workers: threads or processes; as many as there are processors if left out.
        copies: environments side by side at most; 256 if left out.
        **options: for `gymnasium.make`, with an id.

    Raises:
        ValueError: there is no cost, no horizon, or no such environment; a channel does not fit; the
            action space is neither a box nor discrete. The message says which.

    Example:
        >>> from holdfast.gym.channels import Actions, Parameters
        >>> env = disturb("CartPole-v1", Parameters(delay=1.0), cost=lambda step: 0.0)
        Traceback (most recent call last):
            ...
        ValueError: delay: cannot be changed in CartPole-v1, where one can change nothing
        >>> env = disturb("Pendulum-v1", Actions(0.2), cost=lambda t: abs(t.next_observation[2]) > 4)
        >>> env.disturbance.size, env.horizon, env.action_space.high
        (1, 200, (2.0,))
    """
    import gymnasium

    from holdfast.gym.hosts.wrapper import Untimed

    channels = channels_of(channel)
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if horizon is not None:
        check_whole_number("horizon", horizon, least=1)
    if workers is not None:
        check_whole_number("workers", workers, least=1)
    if copies is not None:
        check_whole_number("copies", copies, least=1)
    if discount is not None and not 0 <= discount < 1:
        raise ValueError(f"discount: expected a number in [0, 1), got {discount!r}")
    make, spec = maker(environment, options)
    probe = made(make, environment, options)
    try:
        name = name_of(probe, spec)
        steps = horizon or time_limit(probe)
        if steps is None:
            raise ValueError(f"horizon: {name} has no time limit of its own; pass horizon=")
        task, own = task_of(probe), own_facts(probe)
        if task is None and backend == "threads":
            raise ValueError(f"backend: {name} is not a task that MuJoCo's threads can step")
        costs = Costs.resolve(cost, name)
        if cost is None and own is not None and len(own.cost_names) == 1:
            costs = dataclasses.replace(costs, sources={own.cost_names[0]: "cost"})
        if task is not None and backend in ("auto", "threads"):
            host, machine, layout = _threaded(task, name, channels, cost, costs, workers)
        else:
            several = backend == "async" or (backend == "auto" and workers is not None)
            host, machine, layout = _pooled(
                Untimed(make, int(steps)), name, channels, costs, workers if several else 0, several
            )
        given = own if cost is None else None
        limits = None if given is None else given.cost_limits
        if discount is None:
            discount = None if own is None else own.discount
        discount = _DISCOUNT if discount is None else float(discount)
        space, actions = probe.observation_space, probe.action_space
    finally:
        probe.close()

    def encode(observation: Any) -> np.ndarray:
        return np.asarray(gymnasium.spaces.flatten(space, observation), np.float32)

    def decode(action: np.ndarray) -> np.ndarray:
        if isinstance(actions, gymnasium.spaces.Discrete):
            return action + actions.start
        if np.issubdtype(actions.dtype, np.integer):
            action = np.rint(action)
        return action.reshape(*action.shape[:-1], *actions.shape).astype(actions.dtype)

    def view(render_mode: str) -> gymnasium.Env:
        if spec is None:
            raise ValueError(f"environment: pictures of {name} need an id rather than a function")
        return gymnasium.make(spec["id"], **{**spec["options"], "render_mode": render_mode})

    return Hosted(
        Facts(
            host=host,
            machine=machine,
            channels=channels,
            layout=layout,
            horizon=int(steps),
            discount=discount,
            cost_limits=limits,
            most_copies=copies or _COPIES,
            recipe=_recipe(spec, costs, int(steps), discount, copies or _COPIES),
            encode=encode,
            decode=decode,
            view=view,
        )
    )


def is_gymnasium(given: object) -> bool:
    """Whether it is an environment of Gymnasium's or a registered id."""
    try:
        import gymnasium
    except ImportError:
        return False
    if not isinstance(given, str):
        return isinstance(given, gymnasium.Env)
    try:
        spec_of(given)
    except (gymnasium.error.Error, ImportError):
        return False
    return True


def gymnasium_ids() -> list[str]:
    """Return the registered Gymnasium ids, or an empty list if Gymnasium is not installed."""
    try:
        from gymnasium.envs.registration import registry
    except ImportError:
        return []
    return list(registry)


def from_recipe(description: Mapping[str, Any]) -> Hosted | None:
    """The environment that `Hosted.description` is of; None where it cannot be made again."""
    recipe = description["gymnasium"]
    if not recipe.get("rebuildable"):
        return None
    try:
        costs = Costs.from_description(recipe["cost"])
        env = disturb(
            recipe["id"],
            [channel_from(each) for each in description["channels"]],
            None if costs.is_default else dict(costs.sources),
            horizon=recipe["horizon"],
            discount=recipe["discount"],
            copies=recipe["copies"],
            **recipe["options"],
        )
        env = env.with_parameters(**description["fixed"])
    except (TypeError, ValueError, KeyError, ImportError):
        return None
    return env if json.loads(json.dumps(env.description())) == dict(description) else None


def _layout(machine: Machine, channels: tuple[Channel, ...]) -> Layout:
    for channel in channels:
        channel.scales(machine)
    return Layout(
        state=machine.states if any(isinstance(c, States) for c in channels) else 0,
        bodies=tuple(c.body for c in channels if isinstance(c, Force)),
        parameters=tuple(name for name in machine.parameters if name != DELAY),
    )


def _threaded(
    task: Task,
    name: str,
    channels: tuple[Channel, ...],
    cost: GivenCost,
    costs: Costs,
    workers: int | None,
) -> tuple[Any, Machine, Layout]:
    from holdfast.gym.hosts.physics import Physics, body_names
    from holdfast.gym.hosts.threads import ThreadHost

    model = task.model
    low, high = (tuple(map(float, model.actuator_ctrlrange[:, i])) for i in (0, 1))
    machine = Machine(
        name=name,
        actions=Box(low, high),
        observations=task.observation_size,
        states=2 * model.nv,
        is_mujoco=True,
        bodies=body_names(model),
        parameters=(*Physics(model, name).adjustable, DELAY),
        dt=task.dt,
    )
    layout = _layout(machine, channels)
    own = cost is None and bool(task.cost_names)
    host = ThreadHost(task, layout, None if own else costs, workers)
    if not own:
        # A step in which everything is asked for once, before any work.
        first = host.reset(np.zeros(1, np.uint32))
        quiet = np.zeros((1, model.nu), np.float32)
        nominal = np.zeros((1, layout.size), np.float32)
        nominal[:, layout.of_parameters] = 1
        tried = host.step(first.place, quiet, nominal, np.zeros(1, bool))
        _check_finite(name, tried.observations, tried.rewards, tried.costs)
    return host, machine, layout


def _check_finite(name: str, observation: Any, reward: Any, costs: Any) -> None:
    for what, value in (("observation", observation), ("reward", reward), ("cost", costs)):
        if not np.isfinite(value).all():
            raise ValueError(f"environment: the first {what} of {name} is not finite: {value}")


def _machine(env: Any, name: str) -> Machine:
    """What of a wrapped environment can be disturbed."""
    env.reset(seed=0)
    kind = env.action_kind
    box = hasattr(kind, "low")
    is_mujoco = env.physics is not None
    return Machine(
        name=name,
        actions=Box(kind.low, kind.high) if box else Discrete(kind.choices),
        observations=env.observation_size,
        states=env.state_size,
        is_mujoco=is_mujoco,
        bodies=env.body_names,
        parameters=(*env.parameters, DELAY) if box else env.parameters,
        dt=float(env.unwrapped.dt) if is_mujoco and hasattr(env.unwrapped, "dt") else None,
    )


def _pooled(
    bare: Callable[[], gymnasium.Env],
    name: str,
    channels: tuple[Channel, ...],
    costs: Costs,
    workers: int | None,
    several: bool,
) -> tuple[Any, Machine, Layout]:
    from holdfast.gym.hosts.pool_host import PoolHost
    from holdfast.gym.hosts.pools import AsyncPool, SyncPool
    from holdfast.gym.hosts.wrapper import Disturbed

    env = bare()
    machine = _machine(Disturbed(env, Layout(), costs), name)
    layout = _layout(machine, channels)
    one = Disturbed(env, layout, costs)
    one.reset(seed=0)
    first: Any = 0
    if isinstance(machine.actions, Box):
        low, high = np.array(machine.actions.low), np.array(machine.actions.high)
        first = np.clip(np.zeros_like(low), low, high)
    # A cost that is not there is noticed here.
    seen, reward, _, _, info = one.step(first)
    one.close()
    _check_finite(name, seen, reward, info["costs"])

    def open_pool() -> Any:
        if several:
            count = workers or os.cpu_count() or 1
            return AsyncPool(bare, layout, costs, workers=count, name=name)
        return SyncPool(bare, layout, costs, name=name)

    host = PoolHost(open_pool, name, machine.observations, costs.names)
    return host, machine, layout


def _recipe(
    spec: dict[str, Any] | None, costs: Costs, horizon: int, discount: float, copies: int
) -> dict[str, Any]:
    """What makes the same environment again; or as much of it as can be written down."""
    found = {"cost": costs.describe(), "horizon": horizon, "discount": discount, "copies": copies}
    if spec is None:
        return {**found, "id": None, "rebuildable": False}
    try:
        json.dumps(spec["options"], allow_nan=False)
    except (TypeError, ValueError):
        options = {name: repr(value) for name, value in spec["options"].items()}
        return {**found, "id": spec["id"], "options": options, "rebuildable": False}
    return {**found, **spec, "rebuildable": costs.is_rebuildable}
