"""Simulators that a host steps outside JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from typing import Any, NamedTuple, Self

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

from holdfast._support.arguments import check_number
from holdfast._support.fields import plain_or_traced
from holdfast.gym.channels import DELAY, Actions, Channel, Force, Machine, Observations, Parameters
from holdfast.gym.hosts.callback import HostHandle, call_host, handle_of
from holdfast.gym.hosts.host import DisturbanceLayout, ReplySizes
from holdfast.gym.hosts.watching import interrupts_seen
from holdfast.gym.hosts.wrapper import decoded
from holdfast.gym.slow_steps import settings_for_slow_steps
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


@dataclasses.dataclass(frozen=True)
class HostedFacts:
    """The static description of an environment outside JAX.

    Facts are compared by value: environments with equal facts share their compiled programs.

    Attributes:
        machine: the quantities that can be disturbed.
        channels: the channels of the disturbance.
        layout: layout of the commands to the host.
        sizes: shapes of the host's replies.
        horizon: number of steps of an episode.
        discount: discount of the reward.
        cost_names: names of the costs.
        cost_limits: limits that belong to the environment, or None.
        most_copies: largest number of copies side by side, or None.
    """

    machine: Machine
    channels: tuple[Channel, ...]
    layout: DisturbanceLayout
    sizes: ReplySizes
    horizon: int
    discount: float
    cost_names: tuple[str, ...]
    cost_limits: tuple[float, ...] | None
    most_copies: int | None

    @property
    def parts(self) -> tuple[tuple[Channel, slice], ...]:
        """The channels, each with the position of its numbers in the disturbance."""
        found, start = [], 0
        for channel in self.channels:
            size = len(channel.scales(self.machine))
            found.append((channel, slice(start, start + size)))
            start += size
        return tuple(found)

    @property
    def drawn(self) -> dict[str, float]:
        """The scales of the parameters that are drawn."""
        return next((c.drawn for c in self.channels if isinstance(c, Parameters)), {})

    @property
    def keeps_draw(self) -> bool:
        """Whether parameters are drawn once for each episode."""
        return any(isinstance(c, Parameters) and c.per == "episode" for c in self.channels)

    def remembered(self, delay: float) -> int:
        """Return the number of past actions to keep for the fixed delay and for drawn delays.

        Drawn delays are cut at four standard deviations, which one draw in 16,000 exceeds.
        """
        longest = max(4 * self.drawn.get(DELAY, 0.0), delay)
        return math.ceil(longest / (self.machine.dt or 1.0)) + 2 if longest > 0 else 0


class HostedState(NamedTuple):
    """The state of one copy.

    Attributes:
        place: the state in the host's own encoding.
        features: the host's input of critics and adversaries.
        over: whether the episode has ended.
        begun: whether a step has been taken.
        drawn: the numbers from which the parameters of the episode are computed.
        past: past actions, the latest first; empty without delay.
    """

    place: UInt32[Array, " place"]
    features: Float[Array, " features"]
    over: Bool[Array, ""]
    begun: Bool[Array, ""]
    drawn: Float[Array, " parameters"]
    past: Float[Array, "remembered action"]


def _fact(path: str, doc: str) -> Any:
    """Return a property that reads a fact."""
    read = operator.attrgetter(f"facts.{path}")
    return property(lambda self: read(self), doc=doc)


class HostedEnvironment(Environment):
    """An environment outside JAX, the result of `disturb`.

    The noise is computed here, and the host receives an action and a command for each copy. Training
    keeps the time limit. A parameter that `with_parameters` sets is fixed: it is no longer drawn.
    """

    values: dict[str, Float[Array, ""]]
    fixed: dict[str, Float[Array, ""]]
    host_number: UInt32[Array, ""]
    facts: HostedFacts = eqx.field(static=True)
    remembered: int = eqx.field(static=True)
    _alive: HostHandle = eqx.field(static=True)

    name = _fact("machine.name", "Name of the environment.")
    horizon = _fact("horizon", "Number of steps of an episode.")
    observation_size = _fact("machine.observations", "Length of a flat observation.")
    action_space = _fact("machine.actions", "The action space.")
    cost_names = _fact("cost_names", "Names of the costs.")
    cost_limits = _fact("cost_limits", "Limits that belong to the environment, or None.")
    discount = _fact("discount", "Discount of the reward.")
    most_copies = _fact("most_copies", "Largest number of copies side by side, or None.")
    is_hosted = True
    is_replayable = _fact("sizes.is_replayable", "Whether the host can step from an earlier state.")

    def __init__(self, facts: HostedFacts, handle: HostHandle, **changes: Any) -> None:
        nominal = {name: 0.0 if name == DELAY else 1.0 for name in facts.machine.parameters}
        self.facts = facts
        self.values = {k: jnp.asarray(changes.get(k, v), jnp.float32) for k, v in nominal.items()}
        self.fixed = {name: jnp.asarray(float(name in changes)) for name in nominal}
        self.remembered = facts.remembered(float(changes.get(DELAY, 0.0)))
        self.host_number = jnp.asarray(handle.number, jnp.uint32)
        self._alive = handle

    @property
    def _handle(self) -> HostHandle:
        # By number: all handles are equal, so a compiled program may return a pytree with another one.
        return handle_of(self.host_number)

    @property
    def feature_size(self) -> int:
        """Length of the features: the host's, the parameters of the episode, and delayed actions."""
        kept = len(self.facts.drawn) if self.facts.keeps_draw else 0
        return self.facts.sizes.features + kept + self._action_at_rest.size

    @property
    def nature_feature_size(self) -> int:
        """Length of the features and the action."""
        space = self.action_space
        return self.feature_size + (space.size if isinstance(space, Box) else space.count)

    @property
    def disturbance(self) -> GaussianNoise:
        """The numbers of all channels; without channels one number that has no effect."""
        facts = self.facts
        scales = tuple(s for channel in facts.channels for s in channel.scales(facts.machine))
        if not scales:
            return GaussianNoise(1, "none", (0.0,))
        names = [type(channel).__name__.lower() for channel in facts.channels]
        return GaussianNoise(len(scales), " and ".join(names), scales)

    @property
    def training_settings(self) -> dict[str, Any]:
        """Settings for slow steps and long episodes."""
        return settings_for_slow_steps(self.action_space)

    @property
    def draws_once(self) -> bool:
        """Whether all channels draw once an episode."""
        return self.facts.keeps_draw and len(self.facts.channels) == 1

    @property
    def failure(self) -> BaseException | None:
        """The last exception of the host, or None."""
        failures = self._handle.failures
        return failures[-1] if failures else None

    @property
    def simulated_steps(self) -> int:
        """Number of steps that the host has simulated for all copies whose episode was not over."""
        return self._handle.calls["steps"]

    def forget_failure(self) -> None:
        """Discard the exceptions of the host."""
        self._handle.failures.clear()

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters, as factors on the values of the model; the delay in seconds."""
        return {name: plain_or_traced(value) for name, value in self.values.items()}

    def with_parameters(self, **changes: float) -> Self:
        """Return the environment with other parameters, which are then fixed and no longer drawn.

        Raises:
            ValueError: there is no such parameter, or it cannot have that value.
        """
        for name in changes:
            if name not in self.values:
                known = ", ".join(self.values) or "none"
                raise ValueError(f"{name}: not a parameter of {self.name}, which has {known}")
            least = -math.inf if name == "gravity" else 0.0
            check_number(name, float(changes[name]), least=least, above=name == "mass")
        return type(self)(self.facts, self._handle, **{**self._fixed_values, **changes})

    @property
    def _fixed_values(self) -> dict[str, float]:
        return {name: float(self.values[name]) for name, v in self.fixed.items() if float(v)}

    def description(self) -> dict[str, Any]:
        """Return everything that defines the environment, as JSON values."""
        return {
            **super().description(),
            "channels": [channel.describe() for channel in self.facts.channels],
            "fixed": self._fixed_values,
            "gymnasium": self._handle.recipe,
        }

    def encode(self, observation: Any) -> np.ndarray:
        """Return an observation of the Gymnasium environment as a flat vector."""
        flat = spaces.flatten(self._handle.observation_space, observation)
        return np.asarray(flat, np.float32)

    def decode(self, action: np.ndarray) -> np.ndarray:
        """Return actions of the policy in the form that the Gymnasium environment expects."""
        return decoded(self._handle.action_space, action)

    def native_observations(self, rows: Float[np.ndarray, "rows n"]) -> Any:
        """Return flat observations in the form of the Gymnasium environment, parts stacked by rows."""
        space = self._handle.observation_space
        if isinstance(space, spaces.Box):
            return rows.reshape(len(rows), *space.shape).astype(space.dtype)
        each = [spaces.unflatten(space, row) for row in rows]
        return jax.tree.map(lambda *parts: np.stack(parts), *each)

    def encode_actions(self, actions: np.ndarray) -> np.ndarray:
        """Return actions of the Gymnasium environment as the policy's: indices count from 0."""
        return actions - getattr(self._handle.action_space, "start", 0)

    def close(self) -> None:
        """End worker processes; the next episode starts new ones."""
        if not self.is_replayable:
            self._handle.host.close()

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which an interrupt also ends a step that does not return."""
        return interrupts_seen()

    def viewable(self, render_mode: str) -> Any:
        """Return a Gymnasium environment of the same kind that draws pictures."""
        spec = self._handle.spec
        if spec is None:
            raise ValueError("environment: pictures need an id instead of a function")
        return gymnasium.make(spec["id"], **{**spec["options"], "render_mode": render_mode})

    def reset(self, key: PRNGKeyArray) -> tuple[State, Float[Array, " observation"]]:
        """Start an episode."""
        return jax.tree.map(lambda leaf: leaf[0], self.reset_rows(key[None]))

    def step(self, state: State, action: Action, disturbance: Disturbance) -> Step:
        """Step one copy."""
        rows = jax.tree.map(lambda leaf: leaf[None], (state, action, disturbance))
        return jax.tree.map(lambda leaf: leaf[0], self.step_rows(*rows))

    def reset_rows(
        self, keys: PRNGKeyArray
    ) -> tuple[HostedState, Float[Array, "rows observation"]]:
        """Start one episode for each key, from which the seed of the environment is drawn."""
        seeds = jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(keys)
        reply = call_host("reset", self.facts.sizes, self.host_number, seeds)
        rows, rest = len(keys), self._action_at_rest
        state = HostedState(
            reply.place,
            reply.features,
            over=jnp.zeros(rows, bool),
            begun=jnp.zeros(rows, bool),
            drawn=jnp.zeros((rows, len(self.facts.drawn))),
            past=jnp.broadcast_to(rest, (rows, *rest.shape)),
        )
        return state, reply.observations

    @property
    def _action_at_rest(self) -> Float[np.ndarray, "remembered action"]:
        """The actions before the first step: the middle of the space, or 0; one-hot if discrete."""
        space, count = self.action_space, self.remembered
        if not count:
            return np.zeros((0, 0), np.float32)
        if isinstance(space, Discrete):
            return np.tile(np.eye(1, space.count, dtype=np.float32), (count, 1))
        middle = np.add(space.low, space.high) / 2 if space.is_bounded else np.zeros(space.size)
        return np.tile(middle.astype(np.float32), (count, 1))

    def step_rows(self, states: HostedState, actions: Array, disturbances: Array) -> Step:
        """Step every copy under its disturbance."""
        facts = self.facts
        noise, drawn = jnp.zeros(()), states.drawn
        pushes: list[Array] = []
        forces: list[Array] = []
        for channel, part in facts.parts:
            w = disturbances[:, part]
            scaled = w * jnp.asarray(channel.scales(facts.machine))
            if isinstance(channel, Actions):
                actions = actions + scaled
            elif isinstance(channel, Observations):
                noise = scaled
            elif isinstance(channel, Parameters):
                fresh = ~states.begun[:, None] | (channel.per == "step")
                drawn = jnp.where(fresh, w, drawn)
            else:
                (forces if isinstance(channel, Force) else pushes).append(scaled)
        space, past = self.action_space, states.past
        if isinstance(space, Box):
            actions = jnp.clip(actions, jnp.asarray(space.low), jnp.asarray(space.high))
        if self.remembered:
            now = actions if isinstance(space, Box) else jax.nn.one_hot(actions, space.count)
            past = jnp.concatenate([now[:, None], past[:, :-1]], axis=1)
            actions = self._delayed(past, drawn)
        commands = jnp.concatenate([*pushes, *forces, self._factors(drawn)], axis=1)
        given = (states.place, actions, commands, states.over)
        reply = call_host("step", facts.sizes, self.host_number, *given)
        after = HostedState(
            reply.place,
            reply.features,
            over=states.over | reply.terminated,
            begun=jnp.ones_like(states.begun),
            drawn=drawn,
            past=past,
        )
        return Step(after, reply.observations + noise, reply.rewards, reply.costs, reply.terminated)

    def _noise(self, name: str, drawn: Float[Array, "rows parameters"]) -> Float[Array, " rows"]:
        """Return the draws of a parameter; 0 if it is fixed or not drawn."""
        if name not in self.facts.drawn:
            return jnp.zeros(len(drawn))
        return drawn[:, list(self.facts.drawn).index(name)] * (1 - self.fixed[name])

    def _factors(self, drawn: Float[Array, "rows parameters"]) -> Float[Array, "rows factors"]:
        """Return the factors on the physical parameters, in the order of the layout."""
        scales = self.facts.drawn
        each = [
            self.values[name] * (1 + scales.get(name, 0.0)) ** self._noise(name, drawn)
            for name in self.facts.layout.parameters
        ]
        return jnp.stack(each, axis=1) if each else jnp.zeros((len(drawn), 0))

    def _delayed(self, past: Float[Array, "rows remembered action"], drawn: Array) -> Array:
        """Return the delayed actions: interpolated between two steps, or if discrete of the nearest."""
        scale = self.facts.drawn.get(DELAY, 0.0)
        delay = self.values[DELAY] + scale * jnp.abs(self._noise(DELAY, drawn))
        steps = jnp.clip(delay / (self.facts.machine.dt or 1.0), 0.0, past.shape[1] - 1)
        rows = jnp.arange(len(past))
        if isinstance(self.action_space, Discrete):
            return past[rows, jnp.round(steps).astype(jnp.int32)].argmax(-1)
        before = jnp.minimum(steps.astype(jnp.int32), past.shape[1] - 2)
        share = (steps - before)[:, None]
        return (1 - share) * past[rows, before] + share * past[rows, before + 1]

    def listens(self, state: HostedState) -> Bool[Array, ""]:
        """Return whether the next step depends on its disturbance.

        It never does without a channel, and only the first step does if all channels draw once.
        """
        if not self.facts.channels:
            return jnp.array(False)
        return ~state.begun if self.draws_once else jnp.array(True)

    def features(self, state: HostedState) -> Float[Array, " features"]:
        """Return the host's features, the parameters of the episode, and the delayed actions."""
        kept = state.drawn if self.facts.keeps_draw else state.drawn[:0]
        return jnp.concatenate([state.features, kept, state.past.ravel()])

    def nature_features(self, state: HostedState, action: Action) -> Float[Array, " nature"]:
        """Return the features and the action."""
        space = self.action_space
        if isinstance(space, Discrete):
            action = jax.nn.one_hot(action, space.count)
        return jnp.concatenate([self.features(state), action])
