"""Episodes drawn under a disturbance kernel."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, Self, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from holdfast._support.devices import device_count, spread
from holdfast.simulators.environment import Environment, GaussianNoise, Outcomes, Step
from holdfast.simulators.policy.networks import Critic, Normaliser, Policy
from holdfast.simulators.training.settings import Plan


class Signal(eqx.Module):
    """The reward or one cost, and how it is added up; with a leading axis, several signals.

    Attributes:
        index: position among the signals; 0 is the reward.
        discount: discount of a step.
        gae: λ of the generalised advantages.
        decay: ratio of the weights of consecutive steps in surrogates and in the adversary's loss; 1
            counts every step alike.
        bootstrap: whether the critic supplies the value of an episode that the horizon cuts. Without
            it the horizon terminates the episode, and the clock is part of the state.
    """

    index: Int[Array, "*signals"]
    discount: Float[Array, "*signals"]
    gae: Float[Array, "*signals"]
    decay: Float[Array, "*signals"]
    bootstrap: bool = eqx.field(static=True)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the reward and every cost of a plan, along a leading axis."""
        discounts, gaes, decays = map(jnp.asarray, (plan.discounts, plan.gaes, plan.decays))
        return cls(jnp.arange(len(discounts)), discounts, gaes, decays, plan.bootstrap)


class Situation(NamedTuple):
    """The inputs of a disturbance kernel, one row per episode.

    Attributes:
        inputs: normalised `Environment.nature_features` and the clock.
        log_nominal: log-probabilities of the outcomes; no columns if the disturbance is Gaussian.
        lookahead: function from candidate disturbances (candidates, rows, …) to the signal of the step
            plus the discounted value of the next state.
    """

    inputs: Float[Array, "rows nature"]
    log_nominal: Float[Array, "rows outcomes"]
    lookahead: Callable[[Array], Float[Array, "candidates rows"]]


class DisturbanceKernel(Protocol):
    """A distribution of the disturbance given state and action: a kernel of the simulator."""

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Array:
        """Return one disturbance per row."""


class Nominal(eqx.Module):
    """The nominal kernel: the environment's own disturbance distribution."""

    size: int = eqx.field(static=True)

    @classmethod
    def create(cls, env: Environment) -> Self:
        """Return the nominal kernel of an environment."""
        noise = env.disturbance
        return cls(noise.size if isinstance(noise, GaussianNoise) else 0)

    def draw(
        self, key: PRNGKeyArray, situation: Situation, candidates: tuple[int, ...] = ()
    ) -> Array:
        """Return standard normal vectors, or outcomes with their nominal probabilities."""
        shape = (*candidates, len(situation.log_nominal))
        if self.size == 0:
            return jax.random.categorical(key, situation.log_nominal, shape=shape)
        return jax.random.normal(key, (*shape, self.size))


class Sight(eqx.Module):
    """The normalisers of all network inputs, fixed while a batch is drawn.

    Attributes:
        observations: normaliser of the policy's inputs, or None for raw inputs.
        features: normaliser of the critics' inputs, or None.
        nature: normaliser of the adversaries' inputs, or None.
        clock: whether critics and adversaries see the time.
    """

    observations: Normaliser | None
    features: Normaliser | None
    nature: Normaliser | None
    clock: bool = eqx.field(static=True)

    def of_policy(self, observations: Float[Array, "*rows size"]) -> Float[Array, "*rows size"]:
        """Return the policy's inputs."""
        return observations if self.observations is None else self.observations(observations)

    def of_critic(
        self, features: Float[Array, "*rows size"], time: Float[Array, ""]
    ) -> Float[Array, "*rows more"]:
        """Return a critic's inputs: the features and the elapsed fraction of the horizon."""
        return self._with_clock(features, time, self.features)

    def of_nature(
        self, features: Float[Array, "*rows size"], time: Float[Array, ""]
    ) -> Float[Array, "*rows more"]:
        """Return an adversary's inputs: its features and the elapsed fraction of the horizon."""
        return self._with_clock(features, time, self.nature)

    def _with_clock(self, features: Array, time: Array, normaliser: Normaliser | None) -> Array:
        if normaliser is not None:
            features = normaliser(features)
        time = time if self.clock else jnp.zeros_like(time)
        return jnp.concatenate([features, jnp.full((*features.shape[:-1], 1), time)], axis=-1)

    def updated(self, batches: Batch) -> Self:
        """Return the normalisers updated with batches along a leading axis."""
        weight = batches.alive.astype(jnp.float32)

        def update(normaliser: Normaliser | None, rows: Array) -> Normaliser | None:
            return None if normaliser is None else normaliser.updated(rows, weight)

        return type(self)(
            update(self.observations, batches.observations),
            update(self.features, batches.features[:, :-1]),
            update(self.nature, batches.nature_features),
            self.clock,
        )


class Player(eqx.Module):
    """A policy in a simulator.

    Attributes:
        env: the simulator.
        policy: the policy.
        sight: normalisers of its inputs and of nature's.
        deterministic: whether the policy takes its most likely action, in all episodes or in each.
    """

    env: Environment
    policy: Policy
    sight: Sight
    deterministic: bool | Bool[Array, "*rows"] = False


class Batch(NamedTuple):
    """Episodes side by side, time first.

    Attributes:
        observations: raw observations.
        actions: actions in the policy's units.
        features: raw features, with one more row than there are steps.
        nature_features: raw features of nature; no columns under the nominal kernel.
        log_nominal: log-probabilities of the outcomes; no columns if the disturbance is Gaussian.
        disturbances: the disturbances drawn.
        signals: the reward, then every cost as the utility −cost.
        alive: whether the step began before the end of the episode.
        terminated: whether the step ended the episode.
        heard: whether the step depended on its disturbance.
        states: the state before each step, if requested.
    """

    observations: Float[Array, "time episodes observation"]
    actions: Array
    features: Float[Array, "time+1 episodes features"]
    nature_features: Float[Array, "time episodes nature"]
    log_nominal: Float[Array, "time episodes outcomes"]
    disturbances: Array
    signals: Float[Array, "time episodes signals"]
    alive: Bool[Array, "time episodes"]
    terminated: Bool[Array, "time episodes"]
    heard: Bool[Array, "time episodes"]
    states: PyTree[Array] | None

    def first_bad_step(self) -> Int[Array, ""]:
        """Return the first step at which a live episode has a value that is not finite, or −1."""
        finite = jnp.isfinite(self.signals).all(-1) & jnp.isfinite(self.observations).all(-1)
        finite &= jnp.isfinite(self.features[1:]).all(-1)
        bad = (self.alive & ~finite).any(1)
        return jnp.where(bad.any(), jnp.argmax(bad), -1)


def rollout(
    player: Player,
    kernel: DisturbanceKernel,
    key: PRNGKeyArray,
    episodes: int,
    *,
    critic: Critic | None = None,
    signal: Signal | None = None,
    keep_states: bool = False,
) -> Batch:
    """Return whole episodes under a kernel.

    Episodes run in one scan, or in several if `env.most_copies` allows fewer side by side. Within
    `over_devices` they are divided over the devices, and their number is rounded up.

    Arguments:
        player: the policy in its simulator.
        kernel: the kernel that draws the disturbances.
        key: random key of everything that is drawn.
        episodes: number of episodes.
        critic: critic of the signal that the kernel works against; only a kernel that looks ahead
            needs it.
        signal: that signal.
        keep_states: whether the batch contains the states.
    """
    env, policy, sight = player.env, player.policy, player.sight
    devices = device_count()
    episodes = -(-episodes // devices) * devices
    if env.most_copies is not None and episodes > env.most_copies:
        few = functools.partial(rollout, critic=critic, signal=signal, keep_states=keep_states)
        return _in_rounds(lambda each, *how: few(each, kernel, *how), player, key, episodes)
    nominal = type(kernel) is Nominal
    start_key, key = jax.random.split(key)
    keys = spread(jax.random.split(start_key, episodes))
    states, observations = spread(env.reset_rows(keys))
    nothing = jnp.zeros((episodes, 0))

    def step(carry: tuple, when: tuple) -> tuple[tuple, tuple]:
        states, observations, alive = carry
        t, key = when
        act_key, nature_key = jax.random.split(key)
        actions = policy.act(sight.of_policy(observations), act_key, t, player.deterministic)
        taken = policy.to_environment(actions)
        log_nominal = nothing
        if isinstance(env.disturbance, Outcomes):
            log_nominal = jnp.log(jax.vmap(env.outcome_probabilities)(states, taken))
        seen = nothing if nominal else jax.vmap(env.nature_features)(states, taken)

        def lookahead(candidates: Array) -> Array:
            assert critic is not None
            assert signal is not None

            def ahead(disturbances: Array) -> Array:
                there = env.step_rows(states, taken, disturbances)
                features, time = jax.vmap(env.features)(there.state), (t + 1) / env.horizon
                return worth(there, sight.of_critic(features, time), time, critic, sight, signal)

            return lax.map(ahead, candidates)

        inputs = seen if nominal else sight.of_nature(seen, t / env.horizon)
        disturbances = kernel.draw(nature_key, Situation(inputs, log_nominal, lookahead))
        there = env.step_rows(states, taken, disturbances)
        record = Batch(
            observations=observations,
            actions=actions,
            features=jax.vmap(env.features)(states),
            nature_features=seen,
            log_nominal=log_nominal,
            disturbances=disturbances,
            signals=jnp.where(alive[:, None], _signals(there), 0.0),
            alive=alive,
            terminated=there.terminated & alive,
            heard=jax.vmap(env.listens)(states),
            states=states if keep_states else None,
        )
        return (there.state, there.observation, alive & ~there.terminated), record

    start = (states, observations, jnp.ones(episodes, bool))
    times = (jnp.arange(env.horizon), jax.random.split(key, env.horizon))
    (states, _, _), records = lax.scan(step, start, times)
    batch = cast(Batch, records)
    last = jax.vmap(env.features)(states)[None]
    batch = batch._replace(features=jnp.concatenate([batch.features, last]))
    return cast(Batch, spread(batch, axis=1))


def _in_rounds(
    some: Callable[[Player, PRNGKeyArray, int], Batch],
    player: Player,
    key: PRNGKeyArray,
    episodes: int,
) -> Batch:
    """Return episodes that were drawn one part after the other, each of at most `most_copies`."""
    assert player.env.most_copies is not None
    rounds = -(-episodes // player.env.most_copies)
    at_once = -(-episodes // rounds)
    # If the last part is not full, further episodes fill it, act like the first ones and are cut off
    # below.
    ways = jnp.resize(jnp.asarray(player.deterministic), (rounds, at_once))

    def joined(leaf: Array) -> Array:
        leaf = jnp.moveaxis(leaf, 0, 1)
        return leaf.reshape(leaf.shape[0], rounds * at_once, *leaf.shape[3:])[:, :episodes]

    def part(key_and_way: tuple[PRNGKeyArray, Array]) -> Batch:
        key, way = key_and_way
        return some(dataclasses.replace(player, deterministic=way), key, at_once)

    return jax.tree.map(joined, lax.map(part, (jax.random.split(key, rounds), ways)))


class TwoWays(NamedTuple):
    """Numbers of episodes with drawn actions and with most likely ones, played side by side.

    Where a few more copies do not slow down a step, one rollout of both takes hardly longer than one of
    drawn actions.

    Attributes:
        drawn: episodes with drawn actions.
        likely: episodes with most likely actions.
    """

    drawn: int
    likely: int

    @classmethod
    def on_devices(cls, drawn: int, likely: int) -> Self:
        """Return the numbers rounded up, so that every device has as many of each kind."""
        devices = device_count()
        return cls(*(-(-count // devices) * devices for count in (drawn, likely)))

    @property
    def _repeats(self) -> int:
        # The two kinds alternate in equal groups, so that every device has its part of both. If both
        # numbers are multiples of the devices, an episode has the random numbers that it has on one.
        return math.gcd(self.drawn, self.likely)

    @property
    def deterministic(self) -> Bool[Array, " rows"]:
        """Whether each episode takes the most likely action."""
        each = jnp.arange((self.drawn + self.likely) // self._repeats)
        return jnp.tile(each >= self.drawn // self._repeats, self._repeats)

    def separated(self, batch: Batch) -> tuple[Batch, Batch]:
        """Return the episodes with drawn actions, and those with most likely ones."""
        groups = self._repeats
        of_drawn, of_likely = self.drawn // groups, self.likely // groups

        def part(leaf: Array, start: int, count: int) -> Array:
            time, _, *more = leaf.shape
            grouped = leaf.reshape(time, groups, of_drawn + of_likely, *more)
            return grouped[:, :, start : start + count].reshape(time, groups * count, *more)

        drawn = jax.tree.map(lambda leaf: part(leaf, 0, of_drawn), batch)
        return drawn, jax.tree.map(lambda leaf: part(leaf, of_drawn, of_likely), batch)


def _signals(there: Step) -> Array:
    """Return the reward and the utilities −cost. Costs change their sign here and nowhere else."""
    return jnp.concatenate([there.reward[..., None], -there.costs], axis=-1)


def worth(
    there: Step, inputs: Array, time: Array, critic: Critic, sight: Sight, signal: Signal
) -> Float[Array, "*rows"]:
    """Return signal + γV(s') of a step, from the critic's inputs and the clock after it."""
    # With the clock in the state, the horizon is a terminal state.
    over = there.terminated | (sight.clock & (time >= 1))
    value = jnp.where(over, 0.0, signal.discount * critic(inputs))
    return _signals(there)[..., signal.index] + value
