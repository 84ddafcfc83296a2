"""The worst case of a policy over the uncertainty set: by the dual, by projected gradient, by tilting.

Whatever the method, what it found is certified from both sides. Above: the value under a kernel that
is a member of the set. Below: V − max(0, max_s(V − T̲V))/(1−γ), where T̲ is built from the set's dual
value and so is a lower bound on the robust Bellman operator at any multiplier. The error that is
reported is the distance between the two.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast.tabular.table import Table
from holdfast.tabular.values import (
    Factors,
    Outlook,
    Reply,
    chain_under,
    factorise,
    kernels_of,
    mean_signal,
    occupancy_of,
    per_signal,
    reply,
    rounding,
    targets,
    values_of,
)
from holdfast.uncertainty import KL

_MAX_FEATURE_ENTRIES = 1 << 26


@dataclasses.dataclass(frozen=True)
class Dual:
    """Nature's policy iteration with exact worst responses: the default.

    Evaluate the policy under the current kernel by a linear solve, take the worst response to its
    values in every row, repeat. It is monotone and needs a handful of rounds.

    Arguments:
        tolerance: the certified error to reach, relative to max(1, largest |V|).
        max_rounds: a bound that is not met in practice; the error says so if it is.
    """

    tolerance: float = 1e-10
    max_rounds: int = 100


@dataclasses.dataclass(frozen=True)
class ProjectedGradient:
    """The paper's Algorithm 1: p ← Proj(p − β_t ∇_p V), row by row.

    The gradient at (s, a) is d(s)π(a|s)/(1−γ) times the targets y. Projection is row by row, so a
    row's step may have its own length: with `scaled` the factor d(s)π(a|s)/(1−γ), which hardly
    moves rarely visited rows, is left out. In either form no step can raise the value, since the
    projection lowers q·y in every row; so the step length only has to grow.

    Arguments:
        geometry: "euclidean", or "kl" for the mirror step q̂ ∝ p·exp(−β∇V) with KL projection.
        step_size: β_0, in units of one over the largest span of the targets.
        growth: β_{t+1}/β_t.
        scaled: whether rows step alike.
        tolerance: the certified error to reach, relative to max(1, largest |V|).
        max_iterations: stop after so many; the error then says how far it got.
    """

    geometry: Literal["euclidean", "kl"] = "euclidean"
    step_size: float = 1.0
    growth: float = 2.0
    scaled: bool = True
    tolerance: float = 1e-9
    max_iterations: int = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Tilted:
    """The paper's parametric kernel p·exp(ηᵀφ/λ(s, a)), for KL sets.

    η moves by natural gradient steps (a least-squares fit of the targets by the features, shortened
    until the value falls); λ(s, a) puts each row on the ball's surface. With features of the next
    state alone the family holds the worst case only where the signal depends on (s, a) or on s' alone;
    with features of (s, a, s') always. Where it does not, the certified error says by how much.

    Arguments:
        features: (S, m) features of the next state, or in the kernel's own layout with a last axis
            m. If left out: an indicator for every next state, and the signal itself where it depends
            on the next state, which always holds the worst case.
        tolerance: the certified error to reach, relative to max(1, largest |V|).
        max_iterations: stop after so many; the error then says how far it got.
    """

    features: Any = None
    tolerance: float = 1e-9
    max_iterations: int = 100


WorstCase = Dual | ProjectedGradient | Tilted
_METHODS: dict[str, type[WorstCase]] = {
    "dual": Dual,
    "projected-gradient": ProjectedGradient,
    "tilted": Tilted,
}


def worst_case_method(worst_case: str | WorstCase) -> WorstCase:
    """A method by its name or as it is."""
    if isinstance(worst_case, WorstCase):
        return worst_case
    if worst_case not in _METHODS:
        names = ", ".join(repr(name) for name in _METHODS)
        raise ValueError(f"worst_case: unknown method {worst_case!r}; there are {names}")
    return _METHODS[worst_case]()


def check_method(method: WorstCase, table: Table) -> None:
    """Raises a ValueError where the method cannot serve the model, before any work."""
    if not isinstance(method, Tilted):
        return
    if not isinstance(table.uncertainty, KL):
        raise ValueError(
            "worst_case: 'tilted' describes KL sets only; use 'dual' or 'projected-gradient'"
        )
    width = table.states if method.features is None else np.shape(method.features)[-1]
    if table.probabilities.size * width > _MAX_FEATURE_ENTRIES:
        raise ValueError(
            f"worst_case: 'tilted' with {width} features is too large for this model; "
            "pass Tilted(features=…) with fewer, or use 'dual'"
        )


def worst_outlook(
    table: Table,
    policy: Float[Array, "S A"],
    method: WorstCase,
    start: Outlook | None = None,
) -> Outlook:
    """The policy's values in the worst case, each signal under a kernel of its own.

    Arguments:
        table: the model.
        policy: (S, A).
        method: how the worst case is found.
        start: an earlier outlook to start from; it changes the time taken, not the answer.
    """
    if start is None:
        count, states, actions, _ = table.signals.shape
        values = jnp.zeros((count, states))
        multipliers = jnp.zeros((count, states, actions))
    else:
        values, multipliers = start.values, start.multipliers
    if isinstance(method, Dual):
        return _by_dual(table, policy, method, values, multipliers)
    if isinstance(method, ProjectedGradient):
        return _by_projected_gradient(table, policy, method)
    features = None if method.features is None else jnp.asarray(method.features, jnp.float64)
    return _by_tilting(table, policy, features, method.tolerance, method.max_iterations)


def outlook_under(table: Table, policy: Float[Array, "S A"], other: Outlook) -> Outlook:
    """The policy's outlook under the kernels of another outlook: no worst case of its own."""
    return _under_kernels(table, policy, kernels_of(table, other))


@eqx.filter_jit
def _under_kernels(table: Table, policy: Array, kernels: Float[Array, "n S A K"]) -> Outlook:
    def evaluate_signal(signal: Array, kernel: Array) -> Outlook:
        return _under_kernel(table, signal, policy, kernel, jnp.zeros_like(policy), certify=False)

    return per_signal(evaluate_signal, table, kernels)


class _Round(NamedTuple):
    """One round of nature's policy iteration: V under a kernel, and the response to V.

    The kernel is the response to `source`, its search started from `guess`.
    """

    values: Float[Array, " S"]
    source: Float[Array, " S"]
    guess: Float[Array, "S A"]
    factors: Factors
    residual: Float[Array, ""]
    action_values: Float[Array, "S A"]
    multipliers: Float[Array, "S A"]
    error: Float[Array, ""]
    done: Bool[Array, ""]
    rounds: Int[Array, ""]


@eqx.filter_jit
def _by_dual(
    table: Table, policy: Array, method: Dual, values: Array, multipliers: Array
) -> Outlook:
    eps = jnp.finfo(table.initial.dtype).eps

    def evaluate_signal(signal: Array, values: Array, multipliers: Array) -> Outlook:
        def body(last: _Round) -> _Round:
            answer = reply(table, signal, policy, last.values, last.multipliers)
            size = jnp.abs(last.values).max()
            below = jnp.maximum((last.values - answer.lower).max(), 0.0)
            error = (last.residual + below) / (1 - table.discount)
            error = error + rounding(table, signal, last.values)
            stalled = jnp.abs(last.source - last.values).max() <= 4 * eps * size
            # In the first round V is no more than a guess: nothing is known of it yet.
            done = (last.rounds > 0) & (
                (error <= method.tolerance * jnp.maximum(1.0, size))
                | stalled
                | (last.rounds >= method.max_rounds)
            )
            certified = last._replace(
                action_values=answer.action_values,
                multipliers=answer.multipliers,
                error=error,
                done=done,
            )
            return lax.cond(done, lambda: certified, lambda: advance(last, answer))

        def advance(last: _Round, answer: Reply) -> _Round:
            factors = factorise(table, answer.transition)
            values = values_of(factors, answer.reward)
            residual = answer.reward + table.discount * answer.transition @ values - values
            return last._replace(
                values=values,
                source=last.values,
                guess=last.multipliers,
                factors=factors,
                residual=jnp.maximum(residual.max(), 0.0),
                multipliers=answer.multipliers,
                rounds=last.rounds + 1,
            )

        zero = jnp.array(0.0)
        start = _Round(
            values=values,
            source=values,
            guess=multipliers,
            factors=Factors(jnp.eye(table.states), jnp.arange(table.states, dtype=jnp.int32)),
            residual=zero,
            action_values=jnp.zeros_like(policy),
            multipliers=multipliers,
            error=zero,
            done=jnp.array(False),
            rounds=jnp.array(0),
        )
        last = lax.while_loop(lambda state: ~state.done, body, start)
        return Outlook(
            value=table.initial @ last.values,
            values=last.values,
            advantages=last.action_values - last.values[:, None],
            occupancy=occupancy_of(table, last.factors),
            error=last.error,
            source=last.source,
            guess=last.guess,
            multipliers=last.multipliers,
        )

    return per_signal(evaluate_signal, table, values, multipliers)


def _under_kernel(
    table: Table,
    signal: Array,
    policy: Array,
    kernel: Array,
    multipliers: Array,
    *,
    certify: bool = True,
) -> Outlook:
    """The outlook under a given member of the set, and how far that is from the worst case."""
    transition = chain_under(table, policy, kernel)
    reward = mean_signal(signal, policy, kernel)
    factors = factorise(table, transition)
    values = values_of(factors, reward)
    above = jnp.maximum((reward + table.discount * transition @ values - values).max(), 0.0)
    below = jnp.array(0.0)
    if certify:
        answer = reply(table, signal, policy, values, multipliers)
        below = jnp.maximum((values - answer.lower).max(), 0.0)
        multipliers = answer.multipliers
    action_values = (kernel * targets(table, signal, values)).sum(-1)
    return Outlook(
        value=table.initial @ values,
        values=values,
        advantages=action_values - values[:, None],
        occupancy=occupancy_of(table, factors),
        error=(above + below) / (1 - table.discount) + rounding(table, signal, values),
        source=values,
        guess=multipliers,
        multipliers=multipliers,
        kernel=kernel,
    )


@eqx.filter_jit
def _by_projected_gradient(table: Table, policy: Array, method: ProjectedGradient) -> Outlook:
    p, uncertainty = table.probabilities, table.uncertainty

    def step(outlook: Outlook, signal: Array, length: Array) -> Array:
        y = targets(table, signal, outlook.values)
        y = y - y.min(-1, keepdims=True)
        gradient = y / jnp.maximum(y.max(), jnp.finfo(y.dtype).tiny)
        if not method.scaled:
            visits = outlook.occupancy[:, None] * policy / (1 - table.discount)
            gradient = visits[..., None] * gradient
        assert outlook.kernel is not None
        if method.geometry == "euclidean":
            return uncertainty.project(p, outlook.kernel - length * gradient)
        # In logarithms, since q̂ ∝ q·exp(−β∇V) itself would underflow as the steps grow.
        drift = jnp.log(jnp.maximum(outlook.kernel, 1e-300) / jnp.where(p > 0, p, 1.0))
        return uncertainty.tilt(p, drift - length * gradient)  # type: ignore[attr-defined]

    def evaluate_signal(signal: Array) -> Outlook:
        def body(state: tuple[Outlook, Array, Array]) -> tuple[Outlook, Array, Array]:
            outlook, length, count = state
            kernel = step(outlook, signal, length)
            moved = _under_kernel(table, signal, policy, kernel, outlook.multipliers)
            return moved, jnp.minimum(length * method.growth, 1e12), count + 1

        def unfinished(state: tuple[Outlook, Array, Array]) -> Array:
            outlook, _, count = state
            accepted = method.tolerance * jnp.maximum(1.0, jnp.abs(outlook.values).max())
            return (outlook.error > accepted) & (count < method.max_iterations)

        nominal = _under_kernel(table, signal, policy, p, jnp.zeros_like(policy))
        start = (nominal, jnp.asarray(method.step_size, p.dtype), jnp.array(0))
        return lax.while_loop(unfinished, body, start)[0]

    return per_signal(evaluate_signal, table)


@eqx.filter_jit
def _by_tilting(
    table: Table, policy: Array, features: Array | None, tolerance: float, max_iterations: int
) -> Outlook:
    p, uncertainty = table.probabilities, table.uncertainty

    def evaluate_signal(signal: Array) -> Outlook:
        phi = _features(table, signal, features)

        def tilt(eta: Array) -> Array:
            return uncertainty.respond(p, phi @ -eta).kernel

        def natural_gradient(outlook: Outlook) -> Array:
            """η whose tilt −ηᵀφ is the best fit of y, each row's mean left out of both."""
            assert outlook.kernel is not None
            q = outlook.kernel
            y = targets(table, signal, outlook.values)
            # Rows that are hardly visited count a little too: their tilt matters to the certificate.
            visits = outlook.occupancy[:, None] * policy + 1e-3 / policy.size
            weight = (visits[..., None] * q).reshape(-1)
            flat = (phi - (q[..., None] * phi).sum(-2, keepdims=True)).reshape(-1, phi.shape[-1])
            centred = (y - (q * y).sum(-1, keepdims=True)).reshape(-1)
            gram = flat.T @ (weight[:, None] * flat)
            return -jnp.linalg.pinv(gram, rtol=1e-12, hermitian=True) @ (
                flat.T @ (weight * centred)
            )

        def body(state: tuple[Array, Outlook, Array, Array]) -> tuple[Array, Outlook, Array, Array]:
            eta, outlook, share, count = state
            proposal = eta + share * (natural_gradient(outlook) - eta)
            moved = _under_kernel(table, signal, policy, tilt(proposal), outlook.multipliers)
            better = moved.value <= outlook.value
            keep = lambda new, old: jnp.where(better, new, old)  # noqa: E731
            outlook = Outlook(
                *(
                    keep(getattr(moved, f.name), getattr(outlook, f.name))
                    for f in dataclasses.fields(Outlook)
                )
            )
            share = jnp.where(better, jnp.minimum(1.0, 2 * share), share / 4)
            return keep(proposal, eta), outlook, share, count + 1

        def unfinished(state: tuple[Array, Outlook, Array, Array]) -> Array:
            _, outlook, share, count = state
            accepted = tolerance * jnp.maximum(1.0, jnp.abs(outlook.values).max())
            return (outlook.error > accepted) & (share > 1e-6) & (count < max_iterations)

        nominal = _under_kernel(table, signal, policy, p, jnp.zeros_like(policy))
        start = (jnp.zeros(phi.shape[-1]), nominal, jnp.array(1.0), jnp.array(0))
        return lax.while_loop(unfinished, body, start)[1]

    return per_signal(evaluate_signal, table)


def _features(table: Table, signal: Array, features: Array | None) -> Float[Array, "S A K m"]:
    shape = table.probabilities.shape
    if features is None:
        indicator = jnp.broadcast_to(table.following(jnp.eye(table.states)), (*shape, table.states))
        if signal.shape[-1] == 1:
            return indicator
        own = signal / jnp.maximum(jnp.abs(signal).max(), jnp.finfo(signal.dtype).tiny)
        return jnp.concatenate([indicator, own[..., None]], axis=-1)
    if features.ndim == 2:
        padded = jnp.zeros((table.states, features.shape[-1])).at[: len(features)].set(features)
        return jnp.broadcast_to(table.following(padded), (*shape, features.shape[-1]))
    return features
