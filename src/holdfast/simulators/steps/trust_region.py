"""The policy's step on a batch: gradients, Fisher-vector products, conjugate gradients, line search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Shaped

from holdfast._support.devices import side_by_side
from holdfast.simulators.policy.networks import Categorical, Distribution, Gaussian, Policy

Vector = Float[Array, " n"]

_PROBES = 4


class Evidence(NamedTuple):
    """What one signal's batch holds for the policy's step, step by step, an episode after the other.

    In rows, since products over a time and an episode axis are compiled with copies of their factors.

    Attributes:
        inputs: of the policy, normalised.
        actions: in the policy's units.
        log_density: of those actions under the policy that took them.
        advantages: of the signal; centred, never rescaled, or gradient and margin lose their unit.
        weights: discount^t of the steps taken, over the number of episodes.
    """

    inputs: Float[Array, "rows inputs"]
    actions: Array
    log_density: Float[Array, " rows"]
    advantages: Float[Array, " rows"]
    weights: Float[Array, " rows"]


def in_rows(leaf: Shaped[Array, "time episodes *more"]) -> Shaped[Array, "..."]:
    """Step by step, an episode after the other."""
    return jnp.moveaxis(leaf, 1, 0).reshape(-1, *leaf.shape[2:])


def evidence(
    policy: Policy,
    inputs: Float[Array, "rows inputs"],
    actions: Array,
    advantages: Float[Array, "time episodes"],
    weights: Float[Array, "time episodes"],
) -> Evidence:
    """Advantages centred over the steps that count; the policy's own density beside them.

    Inputs and actions are in rows already, so that signals with one batch between them share theirs.
    """
    mean = (weights * advantages).sum() / jnp.maximum(weights.sum(), 1e-9)
    centred = jnp.where(weights > 0, advantages - mean, 0.0)
    log_density = policy.distribution(inputs).log_density(actions)
    each = weights / weights.shape[1]
    return Evidence(inputs, actions, log_density, in_rows(centred), in_rows(each))


def surrogate(policy: Policy, evidence: Evidence) -> Float[Array, ""]:
    """First-order change of the signal's value, an episode: Σ weights·ratio·advantage."""
    log_density = policy.distribution(evidence.inputs).log_density(evidence.actions)
    ratio = jnp.exp(log_density - evidence.log_density)
    return (evidence.weights * ratio * evidence.advantages).sum()


def divergence(
    policy: Policy,
    old: Gaussian | Categorical,
    inputs: Float[Array, "*rows inputs"],
    weights: Float[Array, "*rows"],
) -> Float[Array, ""]:
    """E_{d^r}[KL(π‖π_k)] on the steps of a batch, given what π_k does there."""
    now: Distribution = policy.distribution(inputs)
    each = now.divergence(old)
    return (weights * each).sum() / weights.sum()


def fisher_product(
    policy: Policy,
    inputs: Float[Array, "*rows inputs"],
    weights: Float[Array, "*rows"],
    damping: float,
) -> Callable[[Vector], Vector]:
    """V → (H + damping·h̄·I)v, with H the Hessian of E_{d^r}[KL(π‖π_k)] at π_k (equation (21)).

    H is JᵀFJ, with J the derivative of the distribution's parameters and F their Fisher matrix. The
    pass through the network is linearised once, for all products. h̄ is the mean of H's diagonal,
    estimated from a few fixed sign vectors, so that damping has no unit: the curvature of a table and
    that of a network differ by orders of magnitude. In directions that a batch says little
    about, a step without damping follows the batch's noise.
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
    product: Callable[[Vector], Vector],
    right: Float[Array, "k n"],
    steps: int,
    tolerance: float = 1e-10,
) -> Float[Array, "k n"]:
    """Solves Hx = b for several b side by side, in so many steps from zero; done early, it rests."""

    def step(_: int, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, residual, direction, square = carry
        curved = side_by_side(product, direction)
        bend = (direction * curved).sum(-1)
        going = (square > tolerance * scale) & (bend > 0)
        length = jnp.where(going, square / jnp.where(going, bend, 1.0), 0.0)[:, None]
        x = x + length * direction
        residual = residual - length * curved
        after = (residual * residual).sum(-1)
        kept = jnp.where(going, after / jnp.where(going, square, 1.0), 0.0)[:, None]
        return x, residual, residual + kept * direction, jnp.where(going, after, square)

    scale = (right * right).sum(-1)
    start = (jnp.zeros_like(right), right, right, scale)
    return lax.fori_loop(0, steps, step, start)[0]


class Landing(NamedTuple):
    """Where the line search ended.

    Attributes:
        policy: the new one; the old one where no step was good.
        accepted: whether a step was taken.
        backtracks: how often it was shortened.
        kl: E_{d^r}[KL(π‖π_k)] of the step taken.
        gains: surrogate changes of the reward and of every constraint.
    """

    policy: Policy
    accepted: Bool[Array, ""]
    backtracks: Int[Array, ""]
    kl: Float[Array, ""]
    gains: Float[Array, " signals"]


def line_search(
    policy: Policy,
    step: Vector,
    batches: Sequence[Evidence],
    needed: Float[Array, " m"],
    delta: Float[Array, ""],
    *,
    recovering: Bool[Array, ""],
    decay: float,
    tries: int,
) -> Landing:
    """The longest step decay^k·x that keeps to the trust region and does what it was taken for.

    It must stay within δ, not lower the reward's surrogate unless a constraint is being recovered, and
    leave every linearised constraint met, or no worse where it cannot be met yet. Where none of the
    tries does, the policy stays as it is.

    Arguments:
        policy: the one that drew the batches.
        step: the change of its parameters.
        batches: the reward's evidence and that of each constraint.
        needed: b_i, what each constraint's value has to gain; negative where there is room.
        delta: δ.
        recovering: whether some constraint is violated now, so that the reward may have to give.
        decay: factor on the step from one try to the next.
        tries: how many.
    """
    flat, unravel = ravel_pytree(policy)
    reward = batches[0]
    old = policy.distribution(reward.inputs)

    def look(k: Array) -> tuple[Array, Array, Array]:
        candidate = unravel(flat + decay**k * step)
        kl = divergence(candidate, old, reward.inputs, reward.weights)
        gains = jnp.stack([surrogate(candidate, each) for each in batches])
        # Met, or where it is not met yet, not worse than it was.
        kept = jnp.all(gains[1:] >= jnp.minimum(needed, 0.0))
        better = recovering | (gains[0] > 0)
        good = jnp.isfinite(kl) & jnp.isfinite(gains).all() & (kl <= delta) & kept & better
        return good, kl, gains

    def body(carry: tuple) -> tuple:
        k, *_ = carry
        return (k + 1, *look(k + 1))

    def searching(carry: tuple) -> Array:
        k, good, *_ = carry
        return ~good & (k + 1 < tries)

    zero = jnp.array(0)
    k, good, kl, gains = lax.while_loop(searching, body, (zero, *look(zero)))
    landed = jax.tree.map(
        lambda new, old: jnp.where(good, new, old), unravel(flat + decay**k * step), policy
    )
    return Landing(
        landed, good, k, jnp.where(good, kl, 0.0), jnp.where(good, gains, jnp.zeros_like(gains))
    )
