"""The state of training, the steps of an iteration that read and update it, and the compiled loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from holdfast._support.compilation import compiled_simulation
from holdfast._support.devices import row, side_by_side, whole
from holdfast.registry import SIMULATOR_ALGORITHMS, Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.nature.adversary import Nature, attack, fit_critic
from holdfast.simulators.nature.direction_search import DirectionSearch
from holdfast.simulators.policy.memory import remembering
from holdfast.simulators.policy.networks import Critic, Normaliser, Policy, layers
from holdfast.simulators.steps.descent import Passes
from holdfast.simulators.training import checkpoint, runs
from holdfast.simulators.training.estimates import (
    SignalEstimate,
    critic_inputs,
    episode_returns,
    estimate,
)
from holdfast.simulators.training.inner_limits import InnerLimits
from holdfast.simulators.training.rollout import (
    Batch,
    Nominal,
    Player,
    Sight,
    Signal,
    TwoWays,
    rollout,
)
from holdfast.simulators.training.settings import Plan, Settings, cost_limits

Metrics = dict[str, Array]

# Radius, limits and trust region: runs that differ only in them share a compiled program.
RunNumbers = tuple[Float[Array, ""], Float[Array, " costs"], Float[Array, ""]]


class Learner(eqx.Module):
    """The whole state of training one policy.

    Attributes:
        policy: current policy.
        sight: normalisers of the inputs of policy, critics and adversaries.
        natures: kernel and critic of the reward and of every cost, along a leading axis. The kernels
            hold the radius.
        inner: limits of the costs, and the inner limits at which the updates aim.
        trust_region: δ.
        key: random key of the following iterations.
        iteration: number of updates made.
        own: the algorithm's own state, such as multipliers; None if it has none.
    """

    policy: Policy
    sight: Sight
    natures: Nature
    inner: InnerLimits
    trust_region: Float[Array, ""]
    key: PRNGKeyArray
    iteration: Int[Array, ""]
    own: Any = None

    @classmethod
    def create(cls, plan: Plan, env: Environment, numbers: RunNumbers, key: PRNGKeyArray) -> Self:
        """Return the initial state: a policy that ignores the state, and kernels close to nominal."""
        settings = plan.settings
        policy_key, nature_key, key = jax.random.split(key, 3)
        hidden = layers(env, settings.hidden)
        sizes, std = (env.observation_size, hidden), settings.initial_std
        policy = Policy.create(policy_key, *sizes, env.action_space, std)
        radius, limits, trust_region = numbers

        def nature(key: Array) -> Nature:
            ball, rate = radius if plan.robust else None, settings.critic_learning_rate
            return Nature.create(key, env, ball, settings.adversary, settings.hidden, rate)

        natures = jax.vmap(nature)(jax.random.split(nature_key, len(plan.discounts)))
        normalise = settings.normalise and not env.is_one_hot
        sight = Sight(
            Normaliser.create(env.observation_size) if normalise else None,
            Normaliser.create(env.feature_size) if normalise else None,
            Normaliser.create(env.nature_feature_size) if normalise and plan.robust else None,
            clock=settings.limit_on == "episode",
        )
        own = None if plan.first_state is None else plan.first_state(plan, policy)
        # An algorithm with multipliers of its own does not move the inner limit.
        inner = InnerLimits.create(limits, moving=settings.limit_gain > 0 and own is None)
        return cls(policy, sight, natures, inner, trust_region, key, jnp.array(0), own)

    def player(
        self, env: Environment, deterministic: bool | Bool[Array, " rows"] = False
    ) -> Player:
        """Return the current policy in a simulator."""
        return Player(env, self.policy, self.sight, deterministic)

    def split_key(self) -> tuple[Self, PRNGKeyArray]:
        """Return the state with a new key, and a key to use now."""
        key, own = jax.random.split(self.key)
        return dataclasses.replace(self, key=key), own


class Samples(NamedTuple):
    """A batch under every signal's kernel and the estimates from it, along a leading axis.

    If all kernels are nominal, or if episodes count for every kernel with a likelihood ratio, the
    signals share one batch and `batches` has a leading axis of one.

    Attributes:
        batches: episodes with drawn actions.
        estimates: values, advantages and weights from them.
        likely: episodes with most likely actions; none if there is no cost to measure.
    """

    batches: Batch
    estimates: SignalEstimate
    likely: Batch


def worst_case_kernels(plan: Plan, env: Environment, learner: Learner) -> Learner:
    """Return the state with every signal's adversary updated against the current policy.

    This is the inner loop of Algorithm 1, (22) for the reward and (24) for each cost. The adversaries
    continue from the previous iteration.
    """
    settings = plan.settings
    learner, own = learner.split_key()

    def one(nature: Nature, signal: Signal, key: Array) -> Nature:
        def update(nature: Nature, key: Array) -> tuple[Nature, None]:
            player, rate = learner.player(env), settings.critic_learning_rate
            return attack(nature, player, signal, key, settings.adversary, rate), None

        return lax.scan(update, nature, jax.random.split(key, settings.adversary.updates))[0]

    keys = jax.random.split(own, len(plan.discounts))
    natures = side_by_side(one, learner.natures, Signal.of(plan), keys)
    return dataclasses.replace(learner, natures=natures)


def sample(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Samples]:
    """Return a batch under each signal's kernel, with values, advantages and weights of its steps.

    The same rollout also contains episodes with most likely actions, for the costs that `measure`
    returns.
    """
    learner, own = learner.split_key()
    measured = plan.episodes(env, plan.settings.evaluation_share) if len(plan.discounts) > 1 else 0
    ways = TwoWays.on_devices(plan.episodes(env), measured)
    player, episodes = learner.player(env, ways.deterministic), sum(ways)

    def one(nature: Nature, signal: Signal, key: Array) -> tuple[Batch, Batch]:
        kernel, critic = nature.kernel, nature.critic
        batch = rollout(player, kernel, key, episodes, critic=critic, signal=signal)
        return ways.separated(batch)

    keys = jax.random.split(own, len(plan.discounts))
    distinct = len(keys) if plan.robust else 1
    each = (learner.natures, Signal.of(plan), keys)
    drawn, likely = side_by_side(one, *jax.tree.map(lambda leaf: leaf[:distinct], each))
    samples = Samples(drawn, _estimates(plan, learner, drawn), likely)
    if plan.robust and isinstance(learner.natures.kernel, DirectionSearch):
        return _shared(plan, learner, samples)
    return learner, samples


def _shared(plan: Plan, learner: Learner, samples: Samples) -> tuple[Learner, Samples]:
    """Return one batch of all kernels' episodes, for every signal, and kernels that observed it.

    The likelihood ratio of an episode's one draw makes it count for the signal's own kernel. Values and
    their errors stay those under the signal's own kernel.
    """
    kernels: Any = learner.natures.kernel
    batch = jax.tree.map(_side_by_side_episodes, samples.batches)
    draws = batch.disturbances[0]
    densities = jax.vmap(lambda kernel: kernel.log_density(draws))(kernels)
    # Episodes are draws from the mean of the kernels, as there are equally many of each.
    mixture = jax.scipy.special.logsumexp(densities, axis=0) - jnp.log(len(densities))
    batches = jax.tree.map(lambda leaf: leaf[None], batch)
    found = _estimates(plan, learner, batches)
    found = found._replace(
        value=samples.estimates.value,
        error=samples.estimates.error,
        weights=found.weights * jnp.exp(densities - mixture)[:, None, :],
    )

    def observed(kernel: DirectionSearch, critic: Critic, signal: Signal) -> DirectionSearch:
        last = critic(critic_inputs(batch, learner.sight)[-1])
        return kernel.observed(draws, episode_returns(batch, signal, last))

    natures = learner.natures
    kernels = side_by_side(observed, kernels, natures.critic, Signal.of(plan))
    natures = dataclasses.replace(natures, kernel=kernels)
    learner = dataclasses.replace(learner, natures=natures)
    return learner, Samples(batches, found, samples.likely)


def _side_by_side_episodes(leaf: Array) -> Array:
    """Return (kernel, time, episode, …) as (time, episode, …), the kernels in turn."""
    kernels, times, episodes, *more = leaf.shape
    return jnp.moveaxis(leaf, 0, 2).reshape(times, episodes * kernels, *more)


def _estimates(plan: Plan, learner: Learner, batches: Batch) -> SignalEstimate:
    return _per_signal(
        lambda batch, critic, signal: estimate(batch, critic, learner.sight, signal),
        batches,
        learner.natures.critic,
        Signal.of(plan),
    )


def _per_signal(function: Callable[..., Any], batches: Batch, *rows: Any) -> Any:
    """Return function(batch, *row) of every signal, with its own batch or the common one."""
    if len(batches.alive) == 1:
        common = row(batches, 0)
        return side_by_side(lambda *each: function(common, *each), *rows)
    return side_by_side(function, batches, *rows)


def measure(
    plan: Plan, env: Environment, learner: Learner, samples: Samples
) -> tuple[Learner, Metrics]:
    """Return the metrics of the current policy, under each signal's kernel and the nominal one."""
    found = nominal = samples.estimates
    steps = samples.batches.alive.sum() + samples.likely.alive.sum()
    if plan.robust:
        learner, own = learner.split_key()
        episodes = plan.episodes(env, plan.settings.evaluation_share)
        batch = rollout(learner.player(env), Nominal.create(env), own, episodes)
        nominal = _estimates(plan, learner, jax.tree.map(lambda leaf: leaf[None], batch))
        steps += batch.alive.sum()
    likely = jnp.zeros(0)
    if len(plan.discounts) > 1:
        likely = -_estimates(plan, learner, samples.likely).value[1:]
    inner = learner.inner
    # PPO- and TRPO-Lagrangian, as published, constrain the cost of drawn actions only.
    if learner.own is None:
        inner = inner.seen(-found.value[1:], likely)
    return dataclasses.replace(learner, inner=inner), {
        "reward": found.value[0],
        "reward_error": found.error[0],
        "costs": -found.value[1:],
        "cost_errors": found.error[1:],
        "likely_costs": likely,
        "nominal_reward": nominal.value[0],
        "nominal_costs": -nominal.value[1:],
        "inner_limits": learner.inner.values,
        "steps": steps,
        "bad_step": jax.vmap(Batch.first_bad_step)(samples.batches).max(),
    }


def needed(plan: Plan, learner: Learner, samples: Samples) -> Float[Array, " costs"]:
    """Return b_i = d_i − V_i, with the inner limit as the threshold."""
    return learner.inner.needed(_drawn_costs(plan, samples))


def are_near(plan: Plan, learner: Learner, samples: Samples) -> Bool[Array, ""]:
    """Return whether every cost is close enough to its limit to trust a linearised constraint."""
    return learner.inner.are_near(_drawn_costs(plan, samples), plan.settings.limit_gain)


def excess(plan: Plan, learner: Learner, samples: Samples) -> Float[Array, " costs"]:
    """Return the distance of each measured cost from (1 − limit_margin)·limit."""
    return learner.inner.excess(_drawn_costs(plan, samples), plan.settings.limit_margin)


def _drawn_costs(plan: Plan, samples: Samples) -> Float[Array, " costs"]:
    """Return the costs of drawn actions, plus some standard errors."""
    found = samples.estimates
    return -found.value[1:] + plan.settings.limit_confidence * found.error[1:]


def learn(
    plan: Plan,
    learner: Learner,
    samples: Samples,
    policy: Policy,
    keep_limits: bool | Bool[Array, ""] = False,
) -> Learner:
    """Return the next state: the new policy, fitted critics, moved inner limits, new normalisers.

    Arguments:
        plan: the static part of the run.
        learner: the state that the samples were drawn from.
        samples: the samples of this iteration.
        policy: the new policy.
        keep_limits: True if the inner limits may open but not tighten: after a recovery step, and for
            an algorithm whose multipliers follow the limits.
    """
    settings = plan.settings

    passes = Passes(
        settings.critic_learning_rate, settings.critic_epochs, settings.critic_minibatches
    )

    def fitted(batch: Batch, nature: Nature, targets: Array) -> Nature:
        inputs = critic_inputs(batch, learner.sight)[:-1]
        return fit_critic(nature, inputs, targets, batch.alive, passes)

    natures = _per_signal(fitted, samples.batches, learner.natures, samples.estimates.targets)
    # A recovery step says nothing about the bias of the linearisation, since a cost is far from its
    # limit. The inner limits therefore do not tighten. They may open: if no step can meet an inner
    # limit, every later step would be a recovery step too.
    inner = learner.inner.moved(excess(plan, learner, samples), settings.limit_gain, keep_limits)
    sight = learner.sight.updated(samples.batches)
    if learner.sight.observations is not None and sight.observations is not None:
        policy = policy.rebased(learner.sight.observations, sight.observations)
    return dataclasses.replace(
        learner,
        policy=policy,
        sight=sight,
        natures=natures,
        inner=inner,
        iteration=learner.iteration + 1,
    )


def first_learners(
    plan: Plan,
    env: Environment,
    settings: Settings,
    limits: tuple[float, ...],
    seeds: Sequence[int],
) -> Learner:
    """Return the initial state of every seed, along a leading axis."""
    keys = jnp.stack([jax.random.PRNGKey(seed) for seed in seeds])
    radius, trust_region = jnp.float32(settings.radius), jnp.float32(settings.trust_region)
    return _created(plan, env, (radius, jnp.asarray(limits, jnp.float32), trust_region), keys)


@compiled_simulation
def _created(plan: Plan, env: Environment, numbers: RunNumbers, keys: Array) -> Learner:
    learners = side_by_side(lambda key: Learner.create(plan, env, numbers, key), keys)
    # Strong types, as in a checkpoint that was read back: both use one compiled program.
    return jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), learners)


def read_learners(folder: Path, env: Environment) -> Learner:
    """Return the states in a run's folder, along a leading axis of seeds.

    Raises:
        ValueError: there is no run, or its checkpoint cannot be used; the message names the file.
    """
    description = runs.read_description(folder)
    if description is None:
        raise ValueError(f"{folder}: contains no training run")
    settings = Settings.from_record(description["settings"])
    robust, constrained = description["robust"], description["constrained"]
    env = remembering(env, settings.memory)
    plan = Plan.create(env, settings, robust=robust, constrained=constrained)
    if description["algorithm"] in SIMULATOR_ALGORITHMS:
        algorithm = SIMULATOR_ALGORITHMS[description["algorithm"]]
        own = algorithm.read_settings(description.get("algorithm_settings"))
        plan = dataclasses.replace(plan, algorithm_settings=own, first_state=algorithm.first_state)
    limits, seeds = cost_limits(env, settings), description["seeds"]
    shapes = eqx.filter_eval_shape(first_learners, plan, env, settings, limits, seeds)
    return checkpoint.load_learners(folder, description, shapes)[0]


@compiled_simulation
def iterations(
    algorithm: Algorithm, plan: Plan, most: int, env: Environment, learners: Learner, count: Array
) -> tuple[Learner, Metrics]:
    """Return the states of all seeds after `count` iterations, and the metrics of each iteration.

    Arguments:
        algorithm: the algorithm, whose function performs one iteration of one seed.
        plan: the static part of the run.
        most: rows of the metrics; at least `count`. It is static, and `count` is traced.
        env: the simulator.
        learners: the states, along a leading axis of seeds.
        count: number of iterations.
    """

    def one(learners: Learner) -> tuple[Learner, Metrics]:
        return side_by_side(lambda learner: algorithm.function(plan, env, learner), learners)

    # Conjugate gradients need more mantissa bits than the tensor cores' default products have.
    with jax.default_matmul_precision("float32"):
        shapes = jax.eval_shape(one, learners)[1]
        rows = jax.tree.map(lambda s: jnp.zeros((most, *s.shape), s.dtype), shapes)

        def body(i: Array, carry: tuple[Learner, Any]) -> tuple[Learner, Any]:
            learners, rows = carry
            learners, new = one(learners)
            return learners, jax.tree.map(lambda all_, each: all_.at[i].set(each), rows, new)

        return whole(lax.fori_loop(0, count, body, (learners, rows)))
