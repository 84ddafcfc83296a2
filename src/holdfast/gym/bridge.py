"""Environments that are stepped outside JAX, behind the same protocol as those inside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

from holdfast.gym.channels import DELAY, Actions, Channel, Machine, Observations, Parameters
from holdfast.gym.hosts.asking import ask
from holdfast.gym.hosts.host import Host, Reply
from holdfast.gym.hosts.layout import Layout
from holdfast.simulators.environment import (
    Action,
    Box,
    Discrete,
    Disturbance,
    Environment,
    GaussianNoise,
    State,
    Step,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What an environment outside JAX is, apart from its present parameters.

    Attributes:
        host: steps the copies.
        machine: what can be disturbed.
        channels: what is.
        layout: of the commands to the host.
        horizon: steps after which an episode is cut.
        discount: of the reward.
        cost_limits: that belong to the environment, if it has any.
        most_copies: side by side; None for any number.
        recipe: what makes the same environment again, as JSON can hold it; None where nothing does.
        encode: an observation as the environment gives it, as the policy sees it.
        decode: an action of the policy, as the environment takes it.
        view: makes a plain Gymnasium environment with pictures.
        failures: what the host raised; a program says only that something did.
    """

    host: Host
    machine: Machine
    channels: tuple[Channel, ...]
    layout: Layout
    horizon: int
    discount: float
    cost_limits: tuple[float, ...] | None
    most_copies: int | None
    recipe: dict[str, Any]
    encode: Callable[[Any], np.ndarray]
    decode: Callable[[np.ndarray], np.ndarray]
    view: Callable[[str], Any]
    failures: list[BaseException] = dataclasses.field(default_factory=list)

    @property
    def scales(self) -> tuple[float, ...]:
        """Of all numbers of the disturbance, channel after channel."""
        return tuple(s for channel in self.channels for s in channel.scales(self.machine))

    @property
    def parts(self) -> tuple[tuple[Channel, slice], ...]:
        """The channels, and which numbers of the disturbance are theirs."""
        found, start = [], 0
        for channel in self.channels:
            size = len(channel.scales(self.machine))
            found.append((channel, slice(start, start + size)))
            start += size
        return tuple(found)

    @property
    def drawn(self) -> dict[str, float]:
        """Parameters that are drawn, and their scales."""
        return next((c.drawn for c in self.channels if isinstance(c, Parameters)), {})

    @property
    def keeps_draw(self) -> bool:
        """Whether parameters stay as they were drawn with the first step."""
        return any(isinstance(c, Parameters) and c.per == "episode" for c in self.channels)

    def remembered(self, delay: float) -> int:
        """How many past actions are kept for a delay that is drawn or, if longer, set."""
        longest = max(4 * self.drawn.get(DELAY, 0.0), delay)
        return math.ceil(longest / (self.machine.dt or 1.0)) + 2 if longest > 0 else 0


class HostedState(NamedTuple):
    """Where one copy is.

    Attributes:
        place: in the host's own numbers.
        features: what critics and adversaries see of it.
        over: whether its episode has ended.
        begun: whether it has made a step.
        drawn: the numbers that the episode's parameters were made of.
        past: actions, the latest first; none where there is no delay.
    """

    place: UInt32[Array, " place"]
    features: Float[Array, " features"]
    over: Bool[Array, ""]
    begun: Bool[Array, ""]
    drawn: Float[Array, " parameters"]
    past: Float[Array, "remembered action"]


class Hosted(Environment):
    """An environment outside JAX: what `disturb` gives.

    Noise is made here; the host gets an action and a command for every copy. Time limits are kept by
    whoever samples, so `horizon` is the environment's own.

    A parameter that `with_parameters` sets is fixed there: its noise is off.
    """

    values: dict[str, Float[Array, ""]]
    fixed: dict[str, Float[Array, ""]]
    facts: Facts = eqx.field(static=True)
    remembered: int = eqx.field(static=True)

    def __init__(self, facts: Facts, **changes: Float[Array, ""]) -> None:
        nominal = {name: 0.0 if name == DELAY else 1.0 for name in facts.machine.parameters}
        self.facts = facts
        self.values = {k: jnp.asarray(changes.get(k, v)) for k, v in nominal.items()}
        self.fixed = {name: jnp.asarray(float(name in changes)) for name in nominal}
        self.remembered = facts.remembered(float(changes.get(DELAY, 0.0)))

    @property
    def name(self) -> str:
        """The environment's own."""
        return self.facts.machine.name

    @property
    def horizon(self) -> int:
        """The environment's own time limit."""
        return self.facts.horizon

    @property
    def observation_size(self) -> int:
        """All numbers of an observation, one after the other."""
        return self.facts.machine.observations

    @property
    def feature_size(self) -> int:
        """What the host shows, what was drawn for the episode, and what is still on its way."""
        return self.facts.host.feature_size + self._kept + self._on_its_way

    @property
    def nature_feature_size(self) -> int:
        """The features and the action."""
        space = self.action_space
        return self.feature_size + (space.size if isinstance(space, Box) else space.count)

    @property
    def _kept(self) -> int:
        return len(self.facts.drawn) if self.facts.keeps_draw else 0

    @property
    def _on_its_way(self) -> int:
        space = self.action_space
        return self.remembered * space.size if isinstance(space, Box) else 0

    @property
    def action_space(self) -> Box | Discrete:
        """The environment's own."""
        return self.facts.machine.actions

    @property
    def disturbance(self) -> GaussianNoise:
        """The numbers of all channels; where there is none, one that nothing depends on."""
        scales = self.facts.scales
        if not scales:
            return GaussianNoise(1, "none", (0.0,))
        names = [type(channel).__name__.lower() for channel in self.facts.channels]
        return GaussianNoise(len(scales), " and ".join(names), scales)

    @property
    def cost_names(self) -> tuple[str, ...]:
        """As the environment or the user named them."""
        return self.facts.host.cost_names

    @property
    def cost_limits(self) -> tuple[float, ...] | None:
        """The environment's own."""
        return self.facts.cost_limits

    @property
    def discount(self) -> float:
        """As it was given."""
        return self.facts.discount

    @property
    def is_hosted(self) -> bool:
        """Always."""
        return True

    @property
    def is_replayable(self) -> bool:
        """Whether the host can go back."""
        return self.facts.host.is_replayable

    @property
    def failure(self) -> BaseException | None:
        """What the host raised last."""
        return self.facts.failures[-1] if self.facts.failures else None

    @property
    def most_copies(self) -> int | None:
        """As it was given."""
        return self.facts.most_copies

    @property
    def parameters(self) -> dict[str, float]:
        """Factors on the model's own values; the delay in seconds."""
        return {
            name: v if isinstance(v, jax.core.Tracer) else float(v)
            for name, v in self.values.items()
        }

    def with_parameters(self, **changes: float) -> Self:
        """The same environment with other physics; what is set is no longer drawn.

        Raises:
            ValueError: there is no parameter of that name, or it cannot have that value.
        """
        for name in changes:
            if name not in self.values:
                known = ", ".join(self.values) or "none"
                raise ValueError(f"{name}: not a parameter of {self.name}, which has {known}")
            _check_value(name, changes[name])
        before = {name: self.values[name] for name in self.values if float(self.fixed[name])}
        after = {name: jnp.asarray(value, jnp.float32) for name, value in changes.items()}
        return type(self)(self.facts, **{**before, **after})

    def description(self) -> dict[str, Any]:
        """All that defines it, as values that JSON can hold."""
        fixed = {name: float(self.values[name]) for name, v in self.fixed.items() if float(v)}
        return {
            **super().description(),
            "channels": [channel.describe() for channel in self.facts.channels],
            "fixed": fixed,
            "gymnasium": self.facts.recipe,
        }

    def encode(self, observation: Any) -> np.ndarray:
        """An observation as the environment gives it, as the policy sees it."""
        return self.facts.encode(observation)

    def forget_failure(self) -> None:
        """What went wrong has been told."""
        self.facts.failures.clear()

    def decode(self, action: np.ndarray) -> np.ndarray:
        """Actions of the policy in the form in which the environment takes them."""
        return self.facts.decode(action)

    def close(self) -> None:
        """Ends worker processes; they are started again when they are needed."""
        if not self.facts.host.is_replayable:
            self.facts.host.close()

    def viewable(self, render_mode: str) -> Any:
        """A plain Gymnasium environment of the same kind, with pictures."""
        return self.facts.view(render_mode)

    def reset(self, key: PRNGKeyArray) -> tuple[State, Float[Array, " observation"]]:
        """The beginning of an episode."""
        return jax.tree.map(lambda leaf: leaf[0], self.reset_rows(key[None]))

    def step(self, state: State, action: Action, disturbance: Disturbance) -> Step:
        """One step of one copy."""
        rows = jax.tree.map(lambda leaf: leaf[None], (state, action, disturbance))
        return jax.tree.map(lambda leaf: leaf[0], self.step_rows(*rows))

    def reset_rows(
        self, keys: PRNGKeyArray
    ) -> tuple[HostedState, Float[Array, "rows observation"]]:
        """As many beginnings as keys: the keys are where the environments' seeds come from."""
        seeds = jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(keys)
        reply = self._ask(self.facts.host.reset, seeds)
        rows = len(keys)
        state = HostedState(
            reply.place,
            reply.features,
            over=jnp.zeros(rows, bool),
            begun=jnp.zeros(rows, bool),
            drawn=jnp.zeros((rows, len(self.facts.drawn))),
            past=jnp.broadcast_to(self._at_rest, (rows, *self._at_rest.shape)),
        )
        return state, reply.observations

    @property
    def _at_rest(self) -> Float[Array, "remembered action"]:
        """What was done before the first step: the middle of the action space, or nothing."""
        space, count = self.action_space, self.remembered
        if not isinstance(space, Box) or not count:
            return jnp.zeros((0, 0))
        low, high = np.asarray(space.low), np.asarray(space.high)
        middle = (low + high) / 2 if space.is_bounded else np.zeros(space.size)
        return jnp.broadcast_to(jnp.asarray(middle, jnp.float32), (count, space.size))

    def step_rows(self, states: HostedState, actions: Array, disturbances: Array) -> Step:
        """A step of every copy under its disturbance."""
        facts = self.facts
        blur, pushes, drawn = jnp.zeros(()), [], states.drawn
        for channel, part in facts.parts:
            w = disturbances[:, part]
            scaled = w * jnp.asarray(channel.scales(facts.machine))
            if isinstance(channel, Actions):
                actions = actions + scaled
            elif isinstance(channel, Observations):
                blur = scaled
            elif isinstance(channel, Parameters):
                fresh = ~states.begun[:, None] | (channel.per == "step")
                drawn = jnp.where(fresh, w, drawn)
            else:
                pushes.append(scaled)
        space = self.action_space
        past = states.past
        if isinstance(space, Box):
            actions = jnp.clip(actions, jnp.asarray(space.low), jnp.asarray(space.high))
            if self.remembered:
                past = jnp.concatenate([actions[:, None], past[:, :-1]], axis=1)
                actions = self._delayed(past, drawn)
        commands = jnp.concatenate([*pushes, self._factors(drawn)], axis=1)
        reply = self._ask(facts.host.step, states.place, actions, commands, states.over)
        after = HostedState(
            reply.place,
            reply.features,
            over=states.over | reply.terminated,
            begun=jnp.ones_like(states.begun),
            drawn=drawn,
            past=past,
        )
        return Step(after, reply.observations + blur, reply.rewards, reply.costs, reply.terminated)

    def _noise(self, name: str, drawn: Float[Array, "rows parameters"]) -> Float[Array, " rows"]:
        """The number that a parameter is made of, zero where it is fixed or not drawn."""
        if name not in self.facts.drawn:
            return jnp.zeros(len(drawn))
        return drawn[:, list(self.facts.drawn).index(name)] * (1 - self.fixed[name])

    def _factors(self, drawn: Float[Array, "rows parameters"]) -> Float[Array, "rows factors"]:
        """On the parameters of the physics, as the layout has them."""
        scales = self.facts.drawn
        each = [
            self.values[name] * (1 + scales.get(name, 0.0)) ** self._noise(name, drawn)
            for name in self.facts.layout.parameters
        ]
        return jnp.stack(each, axis=1) if each else jnp.zeros((len(drawn), 0))

    def _delayed(
        self, past: Float[Array, "rows remembered action"], drawn: Array
    ) -> Float[Array, "rows action"]:
        """The action of so long ago, between two of them where it lies between."""
        scale = self.facts.drawn.get(DELAY, 0.0)
        late = self.values[DELAY] + scale * jnp.abs(self._noise(DELAY, drawn))
        late = jnp.clip(late / (self.facts.machine.dt or 1.0), 0.0, past.shape[1] - 1)
        before = jnp.minimum(late.astype(jnp.int32), past.shape[1] - 2)
        share = (late - before)[:, None]
        rows = jnp.arange(len(past))
        return (1 - share) * past[rows, before] + share * past[rows, before + 1]

    def listens(self, state: HostedState) -> Bool[Array, ""]:
        """Not at all without a channel; only at first where all that is drawn is drawn once."""
        if not self.facts.channels:
            return jnp.array(False)
        if self.facts.keeps_draw and len(self.facts.channels) == 1:
            return ~state.begun
        return jnp.array(True)

    def features(self, state: HostedState) -> Float[Array, " features"]:
        """What the host shows, what was drawn for the episode, and what is still on its way."""
        parts = [state.features]
        if self._kept:
            parts.append(state.drawn)
        if self._on_its_way:
            parts.append(state.past.ravel())
        return jnp.concatenate(parts)

    def nature_features(self, state: HostedState, action: Action) -> Float[Array, " nature"]:
        """The features and the action."""
        space = self.action_space
        if isinstance(space, Discrete):
            action = jax.nn.one_hot(action, space.count)
        return jnp.concatenate([self.features(state), action])

    def _ask(self, function: Callable[..., Reply], *arrays: Array) -> Any:
        facts = self.facts
        return ask(facts.host, function, facts.failures, self.observation_size, *arrays)


def _check_value(name: str, value: float) -> None:
    """Refuses what no machine has."""
    least = {"gravity": -math.inf}.get(name, 0.0)
    if not (math.isfinite(value) and value >= least) or (name == "mass" and value == 0):
        wanted = "over 0" if name == "mass" else "of at least 0" if least == 0 else "that is finite"
        raise ValueError(f"{name}: expected a number {wanted}, got {value!r}")
