"""Values of a policy under the nominal kernel, under given kernels, and in the worst case over the set.

The worst case of every signal is found by nature's policy iteration (`Dual`, the default), by the
paper's projected gradient descent (`projected_gradient`) or within its parametric family
(`tilted_kernel`). The result of each method is certified from both sides. For any V, with T̄ built
from members of the set and T̲ from the set's dual value,

    V − max(0, max_s(V − T̲V))/(1−γ) ≤ min over the set of V_p ≤ V + max(0, max_s(T̄V − V))/(1−γ),

and the reported error is the larger of the two distances. T̄V and T̲V include what rounding may have
added. The maxima run over the states that the policy can reach under some kernel of the set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.compilation import compiled
from holdfast.model.table import DENSE_STATES, Table
from holdfast.tabular.evaluation import backward, dense, sparse
from holdfast.tabular.evaluation.projected_gradient import (
    ProjectedGradient,
    by_projected_gradient,
)
from holdfast.tabular.evaluation.rounding import (
    certified_error,
    initial_value,
    is_silent,
    reached_states,
)
from holdfast.tabular.evaluation.tilted_kernel import Tilted, by_tilting
from holdfast.tabular.evaluation.values import (
    Factors,
    PolicyValues,
    WorstResponse,
    factorise,
    next_values,
    occupancy,
    per_signal,
    signal_values,
    state_values,
    until_stop,
    worst_response,
)
from holdfast.uncertainty import KL

# Relative error that `Dual` reaches by dense factors. Rounds also end when the remaining error is below
# the allowance for rounding, some 1e-14/(1−γ), or when the values stop changing.
_TOLERANCE = 1e-11
# Largest array of features for `Tilted`: 2²⁶ doubles are 512 MiB.
_MAX_FEATURE_ENTRIES = 1 << 26


@dataclasses.dataclass(frozen=True)
class Dual:
    """Nature's policy iteration with exact worst responses, the default method.

    Each round evaluates the policy under the current kernel by a linear solve and takes the worst
    response to its values in every row. The values only fall, and a handful of rounds suffices. The
    kernel found attains the paper's minima (10) and (15).

    Arguments:
        tolerance: certified error to reach, relative to the largest |V|. Default: 1e-11. For successor
            lists of more than 1,024 states, whose linear systems are solved by sweeps, it is relative
            to max(1, largest |V|), and 1e-10 by default.
        max_rounds: limit on the number of rounds. If it is reached, the error may exceed `tolerance`.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> model = hf.environments.gambler()
        >>> quick = hf.evaluate(model, np.zeros(17, int), worst_case=hf.Dual(tolerance=1e-6))
        >>> quick.error < 1e-5
        True
    """

    tolerance: float | None = None
    max_rounds: int = 100


WorstCase = Dual | ProjectedGradient | Tilted
_METHODS: dict[str, type[WorstCase]] = {
    "dual": Dual,
    "projected-gradient": ProjectedGradient,
    "tilted": Tilted,
}


def worst_case_method(worst_case: str | WorstCase) -> WorstCase:
    """Return the method with this name, or the given method.

    Raises:
        ValueError: there is no method with this name.
    """
    if isinstance(worst_case, WorstCase):
        return worst_case
    if worst_case not in _METHODS:
        names = ", ".join(repr(name) for name in _METHODS)
        raise ValueError(f"worst_case: unknown method {worst_case!r}; there are {names}")
    return _METHODS[worst_case]()


def check_method(method: WorstCase, table: Table) -> None:
    """Raise a ValueError if a method does not support the model."""
    if table.horizon is not None and not isinstance(method, Dual):
        raise ValueError(
            "worst_case: models with a horizon support 'dual' only (one exact backward pass)"
        )
    if table.is_large and not isinstance(method, Dual):
        raise ValueError(f"worst_case: only 'dual' supports lists of over {DENSE_STATES} states")
    is_kl = isinstance(table.uncertainty, KL)
    if isinstance(method, ProjectedGradient) and method.geometry == "kl" and not is_kl:
        raise ValueError("worst_case: geometry 'kl' is for KL sets; use ProjectedGradient()")
    if not isinstance(method, Tilted):
        return
    if not is_kl:
        raise ValueError(
            "worst_case: 'tilted' supports KL sets only; use 'dual' or 'projected-gradient'"
        )
    width = table.states if method.features is None else np.shape(method.features)[-1]
    if table.probabilities.size * width > _MAX_FEATURE_ENTRIES:
        raise ValueError(
            f"worst_case: 'tilted' with {width} features is too large for this model; "
            "pass Tilted(features=…) with fewer features, or use 'dual'"
        )


def tolerance_of(method: Dual, table: Table) -> float:
    """Return the relative error that the method is to reach in a table."""
    if method.tolerance is not None:
        return method.tolerance
    return sparse.TOLERANCE if table.is_large else _TOLERANCE


def limits_of(method: Dual, table: Table) -> tuple[np.float64, np.int64]:
    """Return the limits of `by_policy_iteration`. They are traced, so that all share one program."""
    return np.float64(tolerance_of(method, table)), np.int64(method.max_rounds)


def nominal_values(
    table: Table, policy: Float[Array, "S A"], start: PolicyValues | None = None
) -> PolicyValues:
    """Return the values of a policy under the nominal kernel.

    Arguments:
        table: the model.
        policy: (S, A).
        start: values of a similar policy. Large models start their sweeps from it.
    """
    p = table.probabilities
    if table.horizon is None and table.is_large:
        return sparse.values_under(table, policy, [p] * len(table.signals), start)
    under = signal_values if table.horizon is None else backward.values_under
    return per_signal(lambda one: under(one, policy, p), table)


def values_under(
    table: Table,
    policy: Float[Array, "rows A"],
    kernels: Sequence[Float[Array, "*kernel A K"]] | Float[Array, "n *kernel A K"],
    start: PolicyValues | None,
) -> PolicyValues:
    """Return the values of a policy with each signal under its own given kernel.

    Arguments:
        table: the model.
        policy: (S, A).
        kernels: one kernel for each signal, n of shape (S, A, K); with a horizon, one for all steps or
            (H·S, A, K).
        start: values of a similar policy. Large models start their sweeps from it.
    """
    if table.horizon is None and table.is_large:
        return sparse.values_under(table, policy, kernels, start)
    under = signal_values if table.horizon is None else backward.values_under
    return per_signal(lambda one, p: under(one, policy, p), table, jnp.asarray(kernels))


def worst_case(
    table: Table,
    policy: Float[Array, "S A"],
    method: WorstCase,
    start: PolicyValues | None = None,
) -> PolicyValues:
    """Return the values of a policy in the worst case: (1) for the reward, (4) for each constraint.

    Every signal has its own worst-case kernel, p_k^r or p_k^c in the paper.

    Arguments:
        table: the model.
        policy: (S, A).
        method: how to find the worst case.
        start: values of a similar policy, to start the search from. They change the time taken and not
            the result.
    """
    if table.horizon is not None:
        guess = None if start is None else start.multipliers
        if guess is None:
            guess = jnp.zeros((len(table.signals), *policy.shape))
        return per_signal(lambda one, g: backward.worst_values(one, policy, g), table, guess)
    if isinstance(method, ProjectedGradient):
        return per_signal(lambda one: by_projected_gradient(one, policy, method), table)
    if isinstance(method, Tilted):
        features = None if method.features is None else jnp.asarray(method.features, jnp.float64)
        most = method.max_iterations
        return per_signal(
            lambda one: by_tilting(one, policy, features, method.tolerance, most), table
        )
    count, states, actions, _ = table.signals.shape
    if start is None:
        values = jnp.zeros((count, states))
        visits = jnp.broadcast_to(table.initial, values.shape)
    else:
        values, visits = start.values, start.occupancy
    multipliers = None if start is None else start.multipliers
    if multipliers is None:
        multipliers = jnp.zeros((count, states, actions))
    if table.is_large:
        return sparse.by_policy_iteration(
            table,
            policy,
            values,
            multipliers,
            visits,
            tolerance_of(method, table),
            method.max_rounds,
        )
    limits = limits_of(method, table)

    def search(one: Table, values: Array, multipliers: Array) -> PolicyValues:
        if table.is_wide:
            guess = None if start is None else values
            quick = dense.quick_values(one, policy, limits[0], guess, multipliers)
            values, multipliers = quick.values, quick.multipliers
        return by_policy_iteration(one, policy, values, multipliers, limits)

    return per_signal(search, table, values, multipliers)


class _Round(NamedTuple):
    """One round of nature's policy iteration: V under a kernel, and the worst response to V."""

    values: Float[Array, " S"]
    source: Float[Array, " S"]  # the values that the kernel responds to
    factors: Factors
    above: Float[Array, " S"]
    action_values: Float[Array, "S A"]
    multipliers: Float[Array, "S A"]
    kernel: Float[Array, "S A K"] | None
    error: Float[Array, ""]
    done: Bool[Array, ""]
    rounds: Int[Array, ""]


@compiled
def by_policy_iteration(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
    limits: tuple[Any, Any],
) -> PolicyValues:
    """Return the worst case of a table's only signal by nature's policy iteration.

    Arguments:
        table: the model with one signal.
        policy: (S, A).
        values: first guess of V, (S,).
        multipliers: first guess of nature's dual variables, (S, A).
        limits: relative error to reach, and largest number of rounds.
    """
    tolerance, max_rounds = limits
    eps = jnp.finfo(table.initial.dtype).eps
    signal = table.signals[0]
    reached = reached_states(table, policy)
    # Rounding in the linear solve would leave traces where the values are exactly zero.
    zero_here = reached & is_silent(table, signal, policy, reached)
    # A quick search that met an overflow proposes nothing.
    values = jnp.where(jnp.isfinite(values).all(), values, 0.0)
    keep_kernel = not table.is_wide  # writing it would take longer than the response

    def body(last: _Round) -> _Round:
        response = worst_response(
            table, signal, policy, last.values, last.multipliers, keep_kernel=keep_kernel
        )
        size = jnp.where(reached, jnp.abs(last.values), 0.0).max()
        below = last.values - response.lower
        error = certified_error(table, reached, last.values, last.above, below)
        left = jnp.maximum(last.above, below - response.rounding)
        left = jnp.where(reached, left, 0.0).max()
        enough = jnp.maximum(
            tolerance * (1 - table.discount) * size,
            jnp.where(reached, response.rounding, 0.0).max(),
        )
        # Values that differ by a few rounding errors only would not change any more.
        stalled = jnp.abs(last.source - last.values).max() <= 4 * eps * size
        # Round 0 has no kernel yet: V is only a guess.
        done = (last.rounds > 0) & ((left <= enough) | stalled | (last.rounds >= max_rounds))
        certified = last._replace(
            action_values=response.action_values,
            multipliers=response.multipliers,
            error=error,
            done=done,
        )
        return lax.cond(done, lambda: certified, lambda: advance(last, response))

    def advance(last: _Round, response: WorstResponse) -> _Round:
        factors = factorise(table, response.chain)
        values = jnp.where(zero_here, 0.0, state_values(factors, response.reward))
        swept = response.reward + table.discount * next_values(table, response.chain, values)
        return last._replace(
            values=values,
            source=last.values,
            factors=factors,
            above=swept - values,
            multipliers=response.multipliers,
            kernel=response.kernel,
            rounds=last.rounds + 1,
        )

    start = _Round(
        values=values,
        source=values,
        factors=Factors(jnp.eye(table.states), jnp.arange(table.states, dtype=jnp.int32)),
        above=jnp.zeros_like(values),
        action_values=jnp.zeros_like(policy),
        multipliers=multipliers,
        kernel=table.probabilities if keep_kernel else None,
        error=jnp.array(0.0),
        done=jnp.array(False),
        rounds=jnp.array(0),
    )
    last = lax.while_loop(lambda state: ~state.done, body, start)
    return PolicyValues(
        value=initial_value(table, last.values),
        values=last.values,
        advantages=until_stop(table, last.action_values - last.values[:, None]),
        occupancy=until_stop(table, occupancy(table, last.factors)),
        error=last.error,
        kernel=last.kernel,
        multipliers=last.multipliers,
    )


def worst_kernels(table: Table, worst: PolicyValues) -> Float[Array, "n S A K"]:
    """Return the worst-case kernel of every signal.

    Large models do not store their kernels. There nature's worst response to V is recomputed; under
    it the policy has these values up to their error.

    Raises:
        ValueError: the values are not those of a worst case.
    """
    if worst.kernel is not None:
        return worst.kernel
    if worst.multipliers is None:
        raise ValueError("values under a given kernel have no worst-case kernel")
    respond = response_kernel if table.horizon is None else backward.worst_kernel
    return per_signal(respond, table, worst.values, worst.multipliers)


def worst_kernel(table: Table, worst: PolicyValues, index: int) -> Float[Array, "S A K"]:
    """Return the worst-case kernel of one signal; see `worst_kernels`."""
    alone = jax.tree.map(lambda leaf: leaf[index : index + 1], worst)
    return worst_kernels(table.only(index), alone)[0]


@compiled
def response_kernel(
    table: Table, values: Float[Array, " S"], multipliers: Float[Array, "S A"]
) -> Float[Array, "S A K"]:
    """Return nature's worst response to V, for a table's only signal."""
    # The response does not depend on the policy.
    nobody = jnp.zeros_like(multipliers)
    response = worst_response(
        table, table.signals[0], nobody, values, multipliers, keep_kernel=True
    )
    assert response.kernel is not None
    return response.kernel
