"""The parts of an iteration that RCPO, PCPO and CPO share."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from holdfast._support.devices import side_by_side, spread
from holdfast.simulators.environment import Environment
from holdfast.simulators.nature.adversary import Nature, attack
from holdfast.simulators.nature.kernels import Nominal
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.steps.local_model import LocalModel, Step, local_model
from holdfast.simulators.steps.trust_region import (
    Evidence,
    Landing,
    conjugate_gradients,
    evidence,
    fisher_product,
    in_rows,
    line_search,
    surrogate,
)
from holdfast.simulators.training.fitting import fit_critic
from holdfast.simulators.training.learner import Learner, Plan, looked_at
from holdfast.simulators.training.rollout import (
    Batch,
    Estimate,
    Signal,
    critic_inputs,
    estimate,
    rollout,
)

Metrics = dict[str, Array]


class Samples(NamedTuple):
    """Batches and what they say, for the reward and every cost along a leading axis.

    Where all kernels are the nominal one there is one batch, and `batches` has a leading axis of one.
    """

    batches: Batch
    estimates: Estimate


class Outlook(NamedTuple):
    """The local model of the update, with the evidence that it was made of."""

    model: LocalModel
    evidence: tuple[Evidence, ...]


def worst_case(plan: Plan, env: Environment, learner: Learner) -> Learner:
    """Every signal's adversary is updated against the present policy."""
    if not plan.robust:
        return learner
    settings = plan.settings
    count = len(plan.discounts)
    key, own = jax.random.split(learner.key)

    def one(nature: Nature, signal: Signal, index: Array, key: Array) -> Nature:
        def update(nature: Nature, key: Array) -> tuple[Nature, None]:
            after = attack(
                nature,
                env,
                learner.policy,
                learner.sight,
                signal,
                index,
                key,
                settings.adversary,
                settings.critic_learning_rate,
            )
            return after, None

        return jax.lax.scan(update, nature, jax.random.split(key, settings.adversary.updates))[0]

    keys = jax.random.split(own, count)
    natures = side_by_side(one, learner.natures, plan.signals, jnp.arange(count), keys)
    return eqx.tree_at(lambda x: (x.natures, x.key), learner, (natures, key))


def sample(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Samples]:
    """A batch under each signal's kernel, or one for all where that is the nominal one."""
    count = len(plan.discounts)
    key, own = jax.random.split(learner.key)

    def one(nature: Nature, signal: Signal, index: Array, key: Array) -> Batch:
        return rollout(
            env,
            learner.policy,
            learner.sight,
            nature.kernel,
            nature.critic,
            index,
            signal.discount,
            key,
            plan.episodes(env),
        )

    distinct = count if plan.robust else 1
    every = (learner.natures, plan.signals, jnp.arange(count), jax.random.split(own, count))
    batches = side_by_side(one, *jax.tree.map(lambda leaf: leaf[:distinct], every))
    learner = eqx.tree_at(lambda x: x.key, learner, key)
    return learner, Samples(batches, estimates_of(plan, learner, batches))


def estimates_of(plan: Plan, learner: Learner, batches: Batch) -> Estimate:
    """Every signal's estimate, on its own batch or on the one that there is."""
    count = len(plan.discounts)
    indices = jnp.arange(count)
    critics = learner.natures.critic
    if len(batches.alive) == 1:
        only = jax.tree.map(lambda leaf: leaf[0], batches)
        return side_by_side(
            lambda critic, signal, i: estimate(only, critic, learner.sight, signal, i),
            critics,
            plan.signals,
            indices,
        )
    return side_by_side(
        lambda batch, critic, signal, i: estimate(batch, critic, learner.sight, signal, i),
        batches,
        critics,
        plan.signals,
        indices,
    )


def linearise(plan: Plan, learner: Learner, samples: Samples) -> Outlook:
    """g, h, H and b (equations (20), (21)), and H⁻¹ applied to the gradients.

    g comes from the reward's batch, h_i from constraint i's own, H from the reward's.
    """
    settings, policy = plan.settings, learner.policy
    signals = len(plan.discounts) if plan.constrained else 1
    seen = []
    for i in range(signals if plan.robust else 1):
        batch = jax.tree.map(lambda leaf, i=i: leaf[i], samples.batches)
        seen.append((in_rows(learner.sight.of_policy(batch.observations)), in_rows(batch.actions)))
    found = []
    for i in range(signals):
        each = jax.tree.map(lambda leaf, i=i: leaf[i], samples.estimates)
        inputs, actions = seen[i if plan.robust else 0]
        found.append(evidence(policy, inputs, actions, each.advantages, each.weights))
    flat, unravel = ravel_pytree(policy)
    gradients = jnp.stack(
        [jax.grad(lambda v, e=each: surrogate(unravel(v), e))(flat) for each in found]
    )
    horizon, episodes = samples.batches.alive.shape[1:]
    some = max(1, round(settings.fisher_share * episodes)) * horizon
    inputs, weights = spread((found[0].inputs[:some], found[0].weights[:some]))
    product = fisher_product(policy, inputs, weights, settings.damping)
    inverses = conjugate_gradients(product, gradients, settings.cg_steps)
    model = local_model(
        gradients[0],
        gradients[1:],
        inverses[0],
        inverses[1:],
        needed(plan, learner, samples)[: signals - 1],
        learner.trust_region,
    )
    return Outlook(model, tuple(found))


def needed(plan: Plan, learner: Learner, samples: Samples) -> Float[Array, " costs"]:
    """b_i = d_i − V_i, with the limit tightened by what earlier measurements taught."""
    return _measured(plan, samples) - (learner.limits - learner.tightening)


def _measured(plan: Plan, samples: Samples) -> Float[Array, " costs"]:
    """The costs, with as much of their standard errors on top as the settings ask for."""
    found = samples.estimates
    return -found.value[1:] + plan.settings.limit_confidence * found.error[1:]


def land(plan: Plan, learner: Learner, outlook: Outlook, step: Step) -> Landing:
    """The line search along the step."""
    settings, model = plan.settings, outlook.model
    return line_search(
        learner.policy,
        model.step(step.coefficients),
        outlook.evidence,
        model.needed,
        learner.trust_region,
        recovering=jnp.any(model.needed > 0),
        decay=settings.line_search_decay,
        tries=settings.line_search_tries,
    )


def learn(plan: Plan, learner: Learner, samples: Samples, policy: Policy, step: Step) -> Learner:
    """The new policy, critics fitted, inner limits moved, normalisers updated."""
    settings = plan.settings

    def fitted(nature: Nature, batch: Batch, targets: Array) -> Nature:
        critic, optimiser = fit_critic(
            nature.critic,
            optax.adam(settings.critic_learning_rate),
            nature.critic_optimiser,
            critic_inputs(batch, learner.sight)[:-1],
            targets,
            batch.alive,
            epochs=settings.critic_epochs,
            minibatches=settings.critic_minibatches,
        )
        return Nature(nature.kernel, critic, nature.kernel_optimiser, optimiser)

    targets = samples.estimates.targets
    if len(samples.batches.alive) == 1:
        only = jax.tree.map(lambda leaf: leaf[0], samples.batches)
        natures = side_by_side(
            lambda nature, targets: fitted(nature, only, targets), learner.natures, targets
        )
    else:
        natures = side_by_side(fitted, learner.natures, samples.batches, targets)
    tightening = jnp.where(step.recovered, learner.tightening, _tightened(plan, learner, samples))
    sight = looked_at(learner.sight, samples.batches)
    if learner.sight.observations is not None and sight.observations is not None:
        policy = policy.rebased(learner.sight.observations, sight.observations)
    return Learner(
        policy,
        sight,
        natures,
        tightening,
        learner.limits,
        learner.trust_region,
        learner.key,
        learner.iteration + 1,
    )


def _tightened(plan: Plan, learner: Learner, samples: Samples) -> Float[Array, " costs"]:
    """The inner limit follows what is measured: a linearised constraint settles above its limit.

    Each iteration it moves by the gain times the distance of the measured cost from a little under the
    limit. It stays between −limit and limit, and no single measurement moves it far. While a cost is so
    far off that the policy does nothing but recover, there is no bias to learn.
    """
    settings = plan.settings
    if not plan.limits or settings.limit_gain == 0:
        return learner.tightening
    limits = learner.limits
    size = jnp.abs(limits)
    excess = _measured(plan, samples) - (limits - settings.limit_margin * size)
    excess = jnp.clip(excess, -size / 2, size / 2)
    return jnp.clip(learner.tightening + settings.limit_gain * excess, 0.0, 2 * size)


def measure(
    plan: Plan, env: Environment, learner: Learner, samples: Samples
) -> tuple[Learner, Metrics]:
    """What the present policy gets: under each signal's kernel, and under the nominal one."""
    found = samples.estimates
    bad = jax.vmap(Batch.first_bad_step)(samples.batches).max()
    nominal = found
    if plan.robust:
        key, own = jax.random.split(learner.key)
        learner = eqx.tree_at(lambda x: x.key, learner, key)
        batch = rollout(
            env,
            learner.policy,
            learner.sight,
            Nominal.create(env),
            jax.tree.map(lambda leaf: leaf[0], learner.natures.critic),
            0,
            plan.discounts[0],
            own,
            plan.episodes(env, plan.settings.evaluation_share),
        )
        nominal = estimates_of(plan, learner, jax.tree.map(lambda leaf: leaf[None], batch))
    return learner, {
        "reward": found.value[0],
        "reward_error": found.error[0],
        "costs": -found.value[1:],
        "cost_errors": found.error[1:],
        "nominal_reward": nominal.value[0],
        "nominal_costs": -nominal.value[1:],
        "inner_limits": learner.limits - learner.tightening,
        "bad_step": bad,
    }


def summarise(landing: Landing, step: Step) -> Metrics:
    """What the update did."""
    return {
        "kl": landing.kl,
        "accepted": landing.accepted,
        "backtracks": landing.backtracks,
        "recovered": step.recovered,
        "met": step.met,
    }
