"""Sampling under a kernel, and what is read off a batch: returns and advantages."""

from __future__ import annotations

from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from holdfast._support.devices import device_count, spread
from holdfast.simulators.environment import Environment, Outcomes
from holdfast.simulators.nature.kernels import Kernel, Nominal, Situation
from holdfast.simulators.policy.networks import Critic, Normaliser, Policy


class Signal(eqx.Module):
    """How one signal is added up: the reward's, or a cost's; with a leading axis, how each of them is.

    Attributes:
        discount: of a step.
        gae: λ of its advantages.
        bootstrap: whether an episode that is cut goes on in the critic. Where it does not, the horizon
            is an end like any other, and the clock is part of the state.
    """

    discount: Float[Array, "*signals"]
    gae: Float[Array, "*signals"]
    bootstrap: bool = eqx.field(static=True)


class Sight(eqx.Module):
    """What turns states into inputs: the normalisers, frozen while a batch is drawn.

    `features` serves critics, `nature` adversaries, `observations` the policy; each is None where inputs
    are taken as they come.
    """

    observations: Normaliser | None
    features: Normaliser | None
    nature: Normaliser | None
    clock: bool = eqx.field(static=True)

    def of_policy(self, observations: Float[Array, "*rows size"]) -> Float[Array, "*rows size"]:
        """The policy's inputs."""
        return observations if self.observations is None else self.observations(observations)

    def of_critic(
        self, features: Float[Array, "*rows size"], time: Float[Array, ""]
    ) -> Float[Array, "*rows more"]:
        """A critic's inputs: the features and the share of the episode that is over."""
        return self._with_clock(features, time, self.features)

    def of_nature(
        self, features: Float[Array, "*rows size"], time: Float[Array, ""]
    ) -> Float[Array, "*rows more"]:
        """An adversary's inputs."""
        return self._with_clock(features, time, self.nature)

    def _with_clock(self, features: Array, time: Array, normaliser: Normaliser | None) -> Array:
        if normaliser is not None:
            features = normaliser(features)
        time = time if self.clock else jnp.zeros_like(time)
        return jnp.concatenate([features, jnp.full((*features.shape[:-1], 1), time)], axis=-1)


class Batch(NamedTuple):
    """Episodes side by side, time first.

    Attributes:
        observations: raw, as the environment gave them.
        actions: in the policy's units.
        features: raw, one more row than there are steps.
        nature_features: raw; without columns where no adversary asks.
        log_nominal: of the outcomes; without columns where the disturbance is Gaussian.
        disturbances: as drawn.
        signals: the reward and the costs turned into utilities, last axis.
        alive: whether the step was begun before the episode's end.
        terminated: whether the step ended it.
        heard: whether the step depended on its disturbance.
        states: before each step, where they were asked for.
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
        """The first step at which a live episode showed something that is not finite, or -1."""
        finite = jnp.isfinite(self.signals).all(-1) & jnp.isfinite(self.observations).all(-1)
        finite &= jnp.isfinite(self.features[1:]).all(-1)
        bad = (self.alive & ~finite).any(1)
        return jnp.where(bad.any(), jnp.argmax(bad), -1)


def rollout(
    env: Environment,
    policy: Policy,
    sight: Sight,
    kernel: Kernel,
    critic: Critic,
    signal: Int[Array, ""] | int,
    discount: Float[Array, ""] | float,
    key: PRNGKeyArray,
    episodes: int,
    *,
    deterministic: bool = False,
    keep_states: bool = False,
) -> Batch:
    """Whole episodes under a kernel, in one scan, or in several where copies of `env` are few.

    Within `over_devices` they are divided over the devices, rounded up to as many on each.

    Arguments:
        env: the simulator.
        policy: that acts.
        sight: what it and nature see.
        kernel: that draws the disturbances.
        critic: of the signal that the kernel works against, for its lookahead.
        signal: the index of that signal: 0 is the reward.
        discount: of that signal.
        key: decides everything that is drawn.
        episodes: how many.
        deterministic: take the policy's most likely action.
        keep_states: return the states too.
    """
    devices = device_count()
    episodes = -(-episodes // devices) * devices
    most = env.most_copies
    rounds = 1 if most is None else -(-episodes // most)
    at_once = -(-episodes // rounds)

    def some(key: PRNGKeyArray) -> Batch:
        return _at_once(
            env,
            policy,
            sight,
            kernel,
            critic,
            signal,
            discount,
            key,
            at_once,
            deterministic=deterministic,
            keep_states=keep_states,
        )

    if rounds == 1:
        return some(key)

    def joined(leaf: Array) -> Array:
        leaf = jnp.moveaxis(leaf, 0, 1)
        return leaf.reshape(leaf.shape[0], rounds * at_once, *leaf.shape[3:])[:, :episodes]

    return jax.tree.map(joined, lax.map(some, jax.random.split(key, rounds)))


def _at_once(
    env: Environment,
    policy: Policy,
    sight: Sight,
    kernel: Kernel,
    critic: Critic,
    signal: Int[Array, ""] | int,
    discount: Float[Array, ""] | float,
    key: PRNGKeyArray,
    episodes: int,
    *,
    deterministic: bool,
    keep_states: bool,
) -> Batch:
    outcomes = isinstance(env.disturbance, Outcomes)
    nominal = isinstance(kernel, Nominal)
    start_key, key = jax.random.split(key)
    keys = spread(jax.random.split(start_key, episodes))
    states, observations = spread(env.reset_rows(keys))

    def step(carry: tuple, when: tuple) -> tuple[tuple, tuple]:
        states, observations, alive = carry
        t, key = when
        act_key, nature_key = jax.random.split(key)
        distribution = policy.distribution(sight.of_policy(observations))
        if deterministic:
            actions = distribution.mode()
        else:
            actions = distribution.draw(policy.noise(act_key, episodes))
        taken = policy.to_environment(actions)
        log_nominal = jnp.zeros((episodes, 0))
        if outcomes:
            log_nominal = jnp.log(jax.vmap(env.outcome_probabilities)(states, taken))
        seen = jnp.zeros((episodes, 0)) if nominal else jax.vmap(env.nature_features)(states, taken)
        time = t / env.horizon
        after = (t + 1) / env.horizon

        def lookahead(candidates: Array) -> Array:
            def ahead(disturbances: Array) -> Array:
                there = env.step_rows(states, taken, disturbances)
                features = sight.of_critic(jax.vmap(env.features)(there.state), after)
                worth = _signals(there.reward, there.costs)[:, signal]
                # Where the clock is part of the state, the horizon is an end like any other.
                over = there.terminated | (sight.clock & (t + 1 == env.horizon))
                return worth + jnp.where(over, 0.0, discount * critic(features))

            return lax.map(ahead, candidates)

        inputs = seen if nominal else sight.of_nature(seen, time)
        disturbances = kernel.draw(nature_key, Situation(inputs, log_nominal, lookahead))
        there = env.step_rows(states, taken, disturbances)
        record = Batch(
            observations=observations,
            actions=actions,
            features=jax.vmap(env.features)(states),
            nature_features=seen,
            log_nominal=log_nominal,
            disturbances=disturbances,
            signals=jnp.where(alive[:, None], _signals(there.reward, there.costs), 0.0),
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


def _signals(reward: Array, costs: Array) -> Array:
    """The reward and the utilities −cost: costs are turned here and nowhere else."""
    return jnp.concatenate([reward[:, None], -costs], axis=1)


class Estimate(NamedTuple):
    """What a batch says about one signal under its kernel.

    Attributes:
        value: mean return of an episode, as `episode_returns` counts it.
        error: standard error of that mean.
        advantages: of every step, zero after the end.
        weights: discount^t where the step was taken: Σ weights·ratio·advantages over episodes is the
            change of the discounted return, to first order.
        targets: λ-returns for the critic.
    """

    value: Float[Array, ""]
    error: Float[Array, ""]
    advantages: Float[Array, "time episodes"]
    weights: Float[Array, "time episodes"]
    targets: Float[Array, "time episodes"]


def critic_inputs(batch: Batch, sight: Sight) -> Float[Array, "time+1 episodes inputs"]:
    """The features of every step as a critic sees them."""
    horizon = len(batch.alive)
    times = jnp.arange(horizon + 1) / horizon
    return jax.vmap(sight.of_critic)(batch.features, times)


def episode_returns(
    batch: Batch,
    signal: Signal,
    index: Int[Array, ""] | int,
    last_values: Float[Array, " episodes"],
) -> Float[Array, " episodes"]:
    """What each episode paid: a plain sum where the horizon ends it, otherwise discounted."""
    paid = batch.signals[..., index]
    if not signal.bootstrap:
        return paid.sum(0)
    powers = signal.discount ** jnp.arange(len(paid))[:, None]
    cut = batch.alive[-1] & ~batch.terminated[-1]
    return (powers * paid).sum(0) + jnp.where(cut, signal.discount ** len(paid) * last_values, 0.0)


def estimate(
    batch: Batch, critic: Critic, sight: Sight, signal: Signal, index: Int[Array, ""]
) -> Estimate:
    """Returns and generalised advantages of one signal on a batch drawn under its kernel."""
    values = critic(critic_inputs(batch, sight))
    paid = batch.signals[..., index]
    going_on = batch.alive & ~batch.terminated
    # The step after which the horizon cuts the episode.
    cut = jnp.zeros_like(batch.alive).at[-1].set(True)
    bootstrapped = going_on & (~cut | signal.bootstrap)
    ahead = jnp.where(bootstrapped, signal.discount * values[1:], 0.0)
    residuals = paid + ahead - values[:-1]
    residuals = jnp.where(batch.alive, residuals, 0.0)

    def back(advantage: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        residual, on = at
        advantage = residual + signal.discount * signal.gae * on * advantage
        return advantage, advantage

    zero = jnp.zeros(paid.shape[1])
    _, advantages = lax.scan(back, zero, (residuals, going_on & ~cut), reverse=True)
    advantages = jnp.where(batch.alive, advantages, 0.0)
    powers = signal.discount ** jnp.arange(len(paid))[:, None]
    returns = episode_returns(batch, signal, index, values[-1])
    return Estimate(
        value=returns.mean(),
        error=returns.std() / jnp.sqrt(len(returns)),
        advantages=advantages,
        weights=powers * batch.alive,
        targets=advantages + values[:-1],
    )
