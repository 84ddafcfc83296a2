"""The policy update on a batch: gradients, Fisher products, conjugate gradients and line search."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from holdfast._support.devices import row, side_by_side, spread
from holdfast.simulators.policy.networks import Categorical, Distribution, Gaussian, Policy
from holdfast.simulators.steps.descent import in_rows
from holdfast.simulators.steps.local_model import (
    LocalModel,
    PolicyStep,
    is_recoverable,
    local_model,
)
from holdfast.simulators.training.learner import Learner, Metrics, Samples, are_near, needed
from holdfast.simulators.training.settings import Plan, StaticSettings

Vector = Float[Array, " n"]

# Sign vectors for the mean diagonal of the Fisher matrix. Four give its size within a factor of about
# two, which is all that damping needs; each costs one more Fisher product.
_PROBES = 4
# Relative residual at which conjugate gradients stop. Single precision makes little progress below it.
_SOLVED = 1e-5


class Evidence(NamedTuple):
    """One signal's batch for the policy update, one row per step, episode after episode.

    Rows are used because XLA compiles products over a time and an episode axis with copies of both
    factors.

    Attributes:
        inputs: normalised inputs of the policy.
        actions: actions in the policy's units.
        log_density: log-density of these actions under the policy that took them.
        advantages: centred advantages. They are not rescaled: gradient and margin share one unit.
        weights: weights of the signal's live steps, divided by the number of episodes.
    """

    inputs: Float[Array, "rows inputs"]
    actions: Array
    log_density: Float[Array, " rows"]
    advantages: Float[Array, " rows"]
    weights: Float[Array, " rows"]


class Linearisation(NamedTuple):
    """The local model of the update and the evidence it was computed from, one per signal.

    Attributes:
        model: the local model.
        evidence: the evidence.
        visited: the part of it in whose states the KL divergence is measured.
        recoverable: whether a step in the trust region meets the constraints, and the costs are near
            enough to their limits for a linearised constraint to be trusted.
    """

    model: LocalModel
    evidence: tuple[Evidence, ...]
    visited: tuple[Evidence, ...]
    recoverable: Bool[Array, ""]


def linearise(plan: Plan, learner: Learner, samples: Samples) -> Linearisation:
    """Return g, h, H and b of equations (20) and (21), with H⁻¹ applied to the gradients.

    g comes from the batch under the reward's kernel, h_i from the batch under constraint i's own, and H
    from the batches that `Settings.trust_region_on` selects. The weights of g and H are chosen by
    `Settings.weighting`; those of h_i are its limit's, as in b_i.
    """
    settings, policy = plan.settings, learner.policy
    found = gather_evidence(plan, learner, samples)
    flat, unravel = ravel_pytree(policy)
    gradients = jnp.stack(
        [jax.grad(lambda v, e=each: surrogate(unravel(v), e))(flat) for each in found]
    )
    horizon, episodes = samples.batches.alive.shape[1:]
    apart = plan.robust and settings.trust_region_on == "all"
    visited = found if apart else found[:1]
    some = max(1, round(settings.fisher_share * episodes / len(visited))) * horizon
    inputs = jnp.concatenate([each.inputs[:some] for each in visited])
    weights = [each.weights[:some] for each in visited]
    if apart:  # every batch counts alike, whatever the weights of its signal
        weights = [each / each.sum() for each in weights]
    inputs, shares = spread((inputs, jnp.concatenate(weights)))
    product = fisher_product(policy, inputs, shares, settings.damping)
    inverses = conjugate_gradients(product, gradients, settings.cg_steps)
    needs = needed(plan, learner, samples)[: len(found) - 1]
    model = local_model(gradients, inverses, needs, learner.trust_region)
    recoverable = is_recoverable(model)
    if plan.constrained:
        recoverable &= are_near(plan, learner, samples)
    return Linearisation(model, found, visited, recoverable)


def gather_evidence(plan: Plan, learner: Learner, samples: Samples) -> tuple[Evidence, ...]:
    """Return the evidence of the reward and, if the plan is constrained, of every cost."""
    found = []
    for i in range(len(plan.discounts) if plan.constrained else 1):
        batch = row(samples.batches, min(i, len(samples.batches.alive) - 1))
        each = row(samples.estimates, i)
        inputs = in_rows(learner.sight.of_policy(batch.observations))
        actions = in_rows(batch.actions)
        found.append(evidence(learner.policy, inputs, actions, each.advantages, each.weights))
    return tuple(found)


def evidence(
    policy: Policy,
    inputs: Float[Array, "rows inputs"],
    actions: Array,
    advantages: Float[Array, "time episodes"],
    weights: Float[Array, "time episodes"],
) -> Evidence:
    """Return the evidence of one signal, with advantages centred over the live steps."""
    # 1e-9 only avoids 0/0 for a batch without a live step; weights are of order one.
    mean = (weights * advantages).sum() / jnp.maximum(weights.sum(), 1e-9)
    centred = jnp.where(weights > 0, advantages - mean, 0.0)
    log_density = policy.distribution(inputs).log_density(actions)
    each = weights / weights.shape[1]
    return Evidence(inputs, actions, log_density, in_rows(centred), in_rows(each))


def surrogate(policy: Policy, evidence: Evidence) -> Float[Array, ""]:
    """Return Σ weights·ratio·advantage, the first-order change of the signal's value."""
    log_density = policy.distribution(evidence.inputs).log_density(evidence.actions)
    ratio = jnp.exp(log_density - evidence.log_density)
    return (evidence.weights * ratio * evidence.advantages).sum()


def divergence(
    policy: Policy,
    old: Gaussian | Categorical,
    inputs: Float[Array, "*rows inputs"],
    weights: Float[Array, "*rows"],
) -> Float[Array, ""]:
    """Return E_{d^r}[KL(π‖π_k)] over the steps of a batch, from the action distributions of π_k."""
    now: Distribution = policy.distribution(inputs)
    return (weights * now.divergence(old)).sum() / weights.sum()


def fisher_product(
    policy: Policy,
    inputs: Float[Array, "*rows inputs"],
    weights: Float[Array, "*rows"],
    damping: float,
) -> Callable[[Vector], Vector]:
    """Return v ↦ (H + damping·h̄·I)v, with H the Hessian of E_{d^r}[KL(π‖π_k)] at π_k (equation (21)).

    H = JᵀFJ, where J is the Jacobian of the distribution's parameters and F their Fisher matrix. The
    network is linearised once for all products. h̄ is the mean of H's diagonal, estimated from a few
    fixed sign vectors; it makes damping free of units, since the curvatures of a table and of a network
    differ by orders of magnitude. Without damping a step follows the noise of the batch in directions
    about which the batch has little information.
    """
    flat, unravel = ravel_pytree(policy)
    share = weights / weights.sum()
    at, forward = jax.linearize(lambda vector: unravel(vector).distribution(inputs), flat)
    backward = jax.linear_transpose(forward, flat)

    def undamped(vector: Vector) -> Vector:
        curved = at.metric(forward(vector))
        curved = jax.tree.map(lambda leaf: share[..., None] * leaf, curved)
        return backward(curved)[0]

    signs = jax.random.rademacher(jax.random.PRNGKey(0), (_PROBES, flat.size), flat.dtype)
    mean = (signs * side_by_side(undamped, signs)).sum() / signs.size
    return lambda vector: undamped(vector) + damping * mean * vector


def conjugate_gradients(
    product: Callable[[Vector], Vector], right: Float[Array, "k n"], steps: int
) -> Float[Array, "k n"]:
    """Return the solutions of Hx = b for several b, after at most `steps` steps from zero.

    Iteration of a system stops when it is solved or when rounding makes its curvature non-positive.
    `jax.scipy.sparse.linalg.cg` has no such test; with it, repeated runs differed, and some rejected
    every step.
    """

    def step(_: int, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, residual, direction, square = carry
        curved = side_by_side(product, direction)
        curvature = (direction * curved).sum(-1)
        going = (square > _SOLVED**2 * scale) & (curvature > 0)
        length = jnp.where(going, square / jnp.where(going, curvature, 1.0), 0.0)[:, None]
        x = x + length * direction
        residual = residual - length * curved
        after = (residual * residual).sum(-1)
        kept = jnp.where(going, after / jnp.where(going, square, 1.0), 0.0)[:, None]
        return x, residual, residual + kept * direction, jnp.where(going, after, square)

    scale = (right * right).sum(-1)
    start = (jnp.zeros_like(right), right, right, scale)
    return lax.fori_loop(0, steps, step, start)[0]


def line_search(
    policy: Policy,
    local: Linearisation,
    step: PolicyStep,
    settings: StaticSettings,
    serves: Callable[[Float[Array, " signals"]], Array] | None = None,
) -> tuple[Policy, Metrics]:
    """Take the longest step decay^k·x that satisfies the trust region and the acceptance test.

    An accepted step has a KL divergence of at most δ in the states of every visited batch. It leaves
    every linearised constraint satisfied, or no worse if it is violated now, and raises the reward's
    surrogate unless a constraint is violated now. If none of the tries is accepted, the policy stays
    unchanged.

    Arguments:
        policy: the policy that drew the batches.
        local: the linearisation around it.
        step: the step x, as coefficients of the local model's directions.
        settings: the decay and the number of tries.
        serves: acceptance test of the surrogate gains of the reward and of every constraint, in place of
            the one above.

    Returns:
        The new policy, and the metrics of the update. `kl` is E_d[KL(π‖π_k)] of the accepted step, with
        d = d^r or, with `trust_region_on="all"`, the d that makes it largest; `backtracks` counts how
        often the step was shortened.
    """
    flat, unravel = ravel_pytree(policy)
    model, decay, tries = local.model, settings.line_search_decay, settings.line_search_tries
    x = model.step(step.coefficients)
    before = [policy.distribution(each.inputs) for each in local.visited]
    recovering = jnp.any(model.needed > 0)

    def keeps_limits(gains: Array) -> Array:
        kept = jnp.all(gains[1:] >= jnp.minimum(model.needed, 0.0))
        return kept & (recovering | (gains[0] > 0))

    serves = serves or keeps_limits

    def look(k: Array) -> tuple[Array, Array]:
        candidate = unravel(flat + decay**k * x)
        kl = jnp.stack(
            [
                divergence(candidate, old, each.inputs, each.weights)
                for old, each in zip(before, local.visited, strict=True)
            ]
        ).max()
        gains = jnp.stack([surrogate(candidate, each) for each in local.evidence])
        finite = jnp.isfinite(kl) & jnp.isfinite(gains).all()
        return finite & (kl <= model.delta) & serves(gains), kl

    def body(carry: tuple) -> tuple:
        k, *_ = carry
        return (k + 1, *look(k + 1))

    def searching(carry: tuple) -> Array:
        k, good, *_ = carry
        return ~good & (k + 1 < tries)

    zero = jnp.array(0)
    k, good, kl = lax.while_loop(searching, body, (zero, *look(zero)))
    landed = jax.tree.map(
        lambda new, old: jnp.where(good, new, old), unravel(flat + decay**k * x), policy
    )
    return landed, {
        "kl": jnp.where(good, kl, 0.0),
        "accepted": good,
        "backtracks": k,
        "recovered": step.recovered,
        "met": step.met,
    }
