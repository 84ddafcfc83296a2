"""The verb `disturb`: a Gymnasium environment, and where the world may differ from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast._arguments import check_whole_number
from holdfast.deep.channels import (
    DELAY,
    Channel,
    Force,
    Machine,
    States,
    channel_from,
    channels_of,
)
from holdfast.deep.environment import Box, Discrete
from holdfast.deep.gymnasium_bridge import Facts, Hosted
from holdfast.deep.hosts.costs import Costs, GivenCost
from holdfast.deep.hosts.layout import Layout

if TYPE_CHECKING:
    import gymnasium

    from holdfast.environments.mujoco.task import Task

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
        >>> from holdfast.deep.channels import Actions, Parameters
        >>> env = disturb("CartPole-v1", Parameters(delay=1.0), cost=lambda step: 0.0)
        Traceback (most recent call last):
            ...
        ValueError: delay: cannot be changed in CartPole-v1, where one can change nothing
        >>> env = disturb("Pendulum-v1", Actions(0.2), cost=lambda t: abs(t.next_observation[2]) > 4)
        >>> env.disturbance.size, env.horizon, env.action_space.high
        (1, 200, (2.0,))
    """
    import gymnasium

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
    make, spec = _maker(environment, options)
    probe = make()
    try:
        name = _name(probe, spec)
        steps = horizon or _time_limit(probe)
        if steps is None:
            raise ValueError(f"horizon: {name} has no time limit of its own; pass horizon=")
        found = None if backend in ("sync", "async") else _task(probe)
        if found is None and backend == "threads":
            raise ValueError(f"backend: {name} is not a task that MuJoCo's threads can step")
        costs = Costs.resolve(cost, name)
        if found is not None:
            host, machine, layout, limits = _threaded(found, name, channels, cost, costs, workers)
        else:
            several = backend == "async" or (backend == "auto" and workers is not None)
            host, machine, layout = _pooled(
                make, probe, name, channels, costs, workers if several else 0, several
            )
            limits = None
        if discount is None:
            discount = _DISCOUNT if found is None else found.discount
        discount = float(discount)
        space = probe.observation_space
    finally:
        probe.close()

    def encode(observation: Any) -> np.ndarray:
        return np.asarray(gymnasium.spaces.flatten(space, observation), np.float32)

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
            recipe=_recipe(spec, costs, int(steps), discount),
            encode=encode,
            view=view,
        )
    )


def is_gymnasium(given: object) -> bool:
    """Whether it is an environment of Gymnasium's, its registered id, or a function: for `disturb`."""
    try:
        import gymnasium
    except ImportError:
        return False
    if not isinstance(given, str):
        return isinstance(given, gymnasium.Env)
    try:
        gymnasium.spec(given)
    except gymnasium.error.Error:
        return False
    return True


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
            **recipe["options"],
        )
        env = env.with_parameters(**description["fixed"])
    except (TypeError, ValueError, KeyError, ImportError):
        return None
    return env if json.loads(json.dumps(env.description())) == dict(description) else None


def _maker(
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
        environment, options = environment.spec.id, {**made, **options}
    if isinstance(environment, str):
        try:
            spec = gymnasium.spec(environment)
        except gymnasium.error.Error as error:
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


def _name(env: gymnasium.Env, spec: dict[str, Any] | None) -> str:
    if spec is not None:
        return str(spec["id"])
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _time_limit(env: gymnasium.Env) -> int | None:
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return int(env.spec.max_episode_steps)
    found = getattr(env, "_max_episode_steps", None)
    return None if found is None else int(found)


def _task(env: gymnasium.Env) -> Task | None:
    """The task of an environment that MuJoCo's threads can step."""
    try:
        import mujoco  # noqa: F401
    except ImportError:
        return None
    from holdfast.environments.mujoco.locomotion import task_of
    from holdfast.environments.mujoco.task_env import TaskEnv

    if isinstance(env.unwrapped, TaskEnv):
        return env.unwrapped.task
    return task_of(env)


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
) -> tuple[Any, Machine, Layout, tuple[float, ...] | None]:
    from holdfast.deep.hosts.physics import Physics, body_names
    from holdfast.deep.hosts.threads import ThreadHost

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
        host.step(first.place, quiet, nominal, np.zeros(1, bool))
    return host, machine, layout, task.cost_limits if own else None


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
    make: Callable[[], gymnasium.Env],
    probe: gymnasium.Env,
    name: str,
    channels: tuple[Channel, ...],
    costs: Costs,
    workers: int | None,
    several: bool,
) -> tuple[Any, Machine, Layout]:
    from holdfast.deep.hosts.pool_host import PoolHost
    from holdfast.deep.hosts.pools import AsyncPool, SyncPool
    from holdfast.deep.hosts.wrapper import Disturbed, Untimed

    machine = _machine(Disturbed(probe, Layout(), costs), name)
    layout = _layout(machine, channels)
    one = Disturbed(probe, layout, costs)
    one.reset(seed=0)
    one.action_space.seed(0)
    one.step(one.action_space.sample())  # a cost that is not there is noticed here

    bare = Untimed(make)

    def open_pool() -> Any:
        if several:
            count = workers or os.cpu_count() or 1
            return AsyncPool(bare, layout, costs, workers=count, name=name)
        return SyncPool(bare, layout, costs, name=name)

    host = PoolHost(open_pool, name, machine.observations, costs.names)
    return host, machine, layout


def _recipe(
    spec: dict[str, Any] | None, costs: Costs, horizon: int, discount: float
) -> dict[str, Any]:
    """What makes the same environment again; or as much of it as can be written down."""
    found = {"cost": costs.describe(), "horizon": horizon, "discount": discount}
    if spec is None or not costs.is_rebuildable:
        return {**found, "id": None if spec is None else spec["id"], "rebuildable": False}
    try:
        json.dumps(spec["options"], allow_nan=False)
    except (TypeError, ValueError):
        return {**found, "id": spec["id"], "rebuildable": False}
    return {**found, **spec, "rebuildable": True}
