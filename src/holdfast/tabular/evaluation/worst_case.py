"""The worst case of a policy over the uncertainty set: by the dual, by projected gradient, by tilting.

Whatever the method, what it found is certified from both sides. Above: the value under a kernel that
is a member of the set. Below: V − max(0, max_s(V − T̲V))/(1−γ), where T̲ is built from the set's dual
value and so is a lower bound on the robust Bellman operator at any multiplier. The error that is
reported is the distance between the two.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation import sparse
from holdfast.tabular.evaluation.policy_iteration import by_dual
from holdfast.tabular.evaluation.projected_gradient import by_projected_gradient
from holdfast.tabular.evaluation.tilted_kernel import by_tilting
from holdfast.tabular.evaluation.values import Outlook, kernels_of, outlook_dense, outlook_nominal
from holdfast.uncertainty import KL

_MAX_FEATURE_ENTRIES = 1 << 26
# The certified error to reach by dense factors where none is asked for, relative to max(1, largest |V|).
_TOLERANCE = 1e-11


@dataclasses.dataclass(frozen=True)
class Dual:
    """Nature's policy iteration with exact worst responses: the default.

    Evaluate the policy under the current kernel by a linear solve, take the worst response to its
    values in every row, repeat. It is monotone and needs a handful of rounds.

    Arguments:
        tolerance: the certified error to reach, relative to max(1, largest |V|). If left out: 1e-11, or
            1e-10 for lists of over 1,024 states, whose linear systems are solved by sweeps.
        max_rounds: a bound that is not met in practice; the error says so if it is.
    """

    tolerance: float | None = None
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
    if sparse.is_sparse(table) and not isinstance(method, Dual):
        raise ValueError(
            f"worst_case: lists of over {sparse.DENSE_STATES} states are evaluated by 'dual' only"
        )
    is_kl = isinstance(table.uncertainty, KL)
    if isinstance(method, ProjectedGradient) and method.geometry == "kl" and not is_kl:
        raise ValueError("worst_case: the geometry 'kl' is for KL sets; use ProjectedGradient()")
    if not isinstance(method, Tilted):
        return
    if not is_kl:
        raise ValueError(
            "worst_case: 'tilted' describes KL sets only; use 'dual' or 'projected-gradient'"
        )
    width = table.states if method.features is None else np.shape(method.features)[-1]
    if table.probabilities.size * width > _MAX_FEATURE_ENTRIES:
        raise ValueError(
            f"worst_case: 'tilted' with {width} features is too large for this model; "
            "pass Tilted(features=…) with fewer, or use 'dual'"
        )


def nominal_outlook(
    table: Table, policy: Float[Array, "S A"], start: Outlook | None = None
) -> Outlook:
    """The policy's values under the nominal kernel; an earlier outlook to start from saves time."""
    if sparse.is_sparse(table):
        return sparse.outlook_nominal(table, policy, start)
    return outlook_nominal(table, policy)


def outlook_under(table: Table, policy: Float[Array, "S A"], other: Outlook) -> Outlook:
    """The policy's outlook under the kernels of another outlook: no worst case of its own."""
    kernels = kernels_of(table, other)
    if sparse.is_sparse(table):
        return sparse.outlook_under(table, policy, kernels, other)
    return outlook_dense(table, policy, kernels)


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
    if isinstance(method, Dual) and sparse.is_sparse(table):
        occupancy = (
            jnp.broadcast_to(table.initial, values.shape) if start is None else start.occupancy
        )
        tolerance = sparse.TOLERANCE if method.tolerance is None else method.tolerance
        return sparse.by_dual(
            table, policy, values, multipliers, occupancy, tolerance, method.max_rounds
        )
    if isinstance(method, Dual):
        tolerance = _TOLERANCE if method.tolerance is None else method.tolerance
        return by_dual(table, policy, values, multipliers, tolerance, method.max_rounds)
    if isinstance(method, ProjectedGradient):
        return by_projected_gradient(
            table,
            policy,
            geometry=method.geometry,
            step_size=method.step_size,
            growth=method.growth,
            scaled=method.scaled,
            tolerance=method.tolerance,
            max_iterations=method.max_iterations,
        )
    features = None if method.features is None else jnp.asarray(method.features, jnp.float64)
    return by_tilting(table, policy, features, method.tolerance, method.max_iterations)
