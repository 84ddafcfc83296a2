"""Quick values of large models: sweeps over successor lists in columns.

A column has one number for each state: the probability or the successor at one place of a list. In
columns all arithmetic on rows is elementwise, so that compiled code is one pass over memory. The values
found here are proposals. They prove nothing: `sparse` certifies them in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast.model.table import Table
from holdfast.tabular.evaluation import fused
from holdfast.tabular.evaluation.iterative import fixed_point
from holdfast.tabular.evaluation.values import until_stop
from holdfast.uncertainty import UncertaintySet

# Lists of more successors than this have no quick values: their rows are unrolled in the program.
WIDEST = 16
# States in one block of a sweep on a CPU: its temporaries, some 100 numbers a state, stay in the cache.
_BLOCK = 1 << 13
# Values under a kernel that is not yet the worst one are found to this share of the current residual, in
# single precision. A smaller share spends sweeps on values that the next round replaces.
_SHARE = 3e-3
# The residual of single-precision values cannot be smaller than this many rounding errors.
_LEAST = 16
# Rounds end after two in a row that did not halve the smallest residual: the rest is rounding, or single
# precision is too coarse for a discount this close to one. One such round is common at the start.
_PROGRESS, _MISSES = 0.5, 2


class Columns(NamedTuple):
    """The lists of a table with one signal in columns, and a policy.

    Attributes:
        probabilities: nominal kernel.
        successors: next states.
        signal: the signal; J is K, or 1 if it does not depend on the next state.
        policy: π.
        uncertainty: the set, its arrays in columns; None if nature keeps the nominal kernel.
        discount: γ.
    """

    probabilities: Float[Array, "K A S"]
    successors: Int[Array, "K A S"]
    signal: Float[Array, "J A S"]
    policy: Float[Array, "A S"]
    uncertainty: UncertaintySet | None
    discount: Float[Array, ""]

    @classmethod
    def of(cls, table: Table, policy: Float[Array, "S A"], *, robust: bool) -> Columns:
        """Return the columns of a table with one signal."""
        lists = table.probabilities, table.successors, table.signals[0], until_stop(table, policy)
        ball = jax.tree.map(jnp.transpose, table.uncertainty) if robust else None
        return cls(*(array.T for array in lists), ball, table.discount)  # type: ignore[union-attr]

    def some(self, take: Callable[[Array], Array]) -> Columns:
        """Return the columns of some states.

        Arguments:
            take: function that returns some entries of the last axis of an array.
        """
        ball = self.uncertainty
        if ball is not None:
            own, shared = ball.by_row()
            ball = eqx.combine(jax.tree.map(lambda a: take(a) if a.ndim else a, own), shared)
        lists = self.probabilities, self.successors, self.signal, self.policy
        return Columns(*map(take, lists), ball, self.discount)


class Swept(NamedTuple):
    """One robust sweep.

    Attributes:
        values: nearly the robust Bellman operator at V.
        multipliers: nature's dual variables.
        flow: π(a|s)·q(s, a, k) of nature's response, in single precision.
    """

    values: Float[Array, " S"]
    multipliers: Float[Array, "A S"]
    flow: Float[Array, "K A S"]


def swept(
    columns: Columns, following: Float[Array, "K A S"], multipliers: Float[Array, "A S"]
) -> Swept:
    """Return one robust sweep.

    Arguments:
        columns: the lists.
        following: V of every successor.
        multipliers: dual variables from which the search starts.
    """
    p, policy = columns.probabilities, columns.policy
    signal = jnp.broadcast_to(columns.signal, p.shape)
    y = [c + columns.discount * v for c, v in zip(signal, following, strict=True)]
    if columns.uncertainty is None:
        kernel, value = list(p), sum(q * each for q, each in zip(p, y, strict=True))
    else:
        kernel, value, multipliers = columns.uncertainty.propose(list(p), y, multipliers)
    flow = jnp.stack([(policy * q).astype(jnp.float32) for q in kernel])
    return Swept((policy * value).sum(0), multipliers, flow)


def sweep(columns: Columns, values: Float[Array, " S"], multipliers: Float[Array, "A S"]) -> Swept:
    """Return one robust sweep over all states."""
    states = len(values)
    if fused.serves(columns.uncertainty, states):
        return Swept(*fused.sweep(columns, values, multipliers))
    if jax.default_backend() != "cpu" or states <= _BLOCK:
        return swept(columns, values[columns.successors], multipliers)

    def body(i: Array, done: Swept) -> Swept:
        # The start of the last block is moved back where it would end beyond the last state.
        start = jnp.minimum(i * _BLOCK, states - _BLOCK)
        block = columns.some(lambda a: lax.dynamic_slice_in_dim(a, start, _BLOCK, axis=-1))
        guess = lax.dynamic_slice_in_dim(multipliers, start, _BLOCK, axis=-1)
        found = swept(block, values[block.successors], guess)
        return jax.tree.map(
            lambda a, b: lax.dynamic_update_slice_in_dim(a, b, start, axis=-1), done, found
        )

    flow = jnp.zeros(columns.probabilities.shape, jnp.float32)
    start = Swept(jnp.zeros_like(values), jnp.zeros_like(multipliers), flow)
    return lax.fori_loop(0, -(-states // _BLOCK), body, start)


class Quick(NamedTuple):
    """Values that were found quickly.

    Attributes:
        values: V.
        multipliers: nature's dual variables.
        settled: whether the residual is as small as the tolerance asks for.
        rounds: number of robust sweeps.
        sweeps: number of sweeps under a fixed kernel.
    """

    values: Float[Array, " S"]
    multipliers: Float[Array, "S A"]
    settled: Bool[Array, ""]
    rounds: Int[Array, ""]
    sweeps: Int[Array, ""]


class _Round(NamedTuple):
    values: Array
    found: Swept
    best: Array
    misses: Array
    settled: Array
    done: Array
    rounds: Array
    sweeps: Array


def quick_values(
    table: Table,
    policy: Float[Array, "S A"],
    start: Float[Array, " S"],
    guess: Float[Array, "S A"],
    tolerance: Any,
    *,
    robust: bool = True,
) -> Quick:
    """Return nearly the worst-case values of a table's only signal, or nearly its nominal values.

    Nature's policy iteration, with values under each kernel by sweeps in single precision: each round
    solves for the change of V that removes the current residual, which is computed in double precision.

    Arguments:
        table: the model with one signal.
        policy: (S, A).
        start: first guess of V, (S,).
        guess: first guess of nature's dual variables, (S, A).
        tolerance: error to reach, relative to max(1, largest |V|).
        robust: whether nature chooses kernels from the set.
    """
    columns = Columns.of(table, policy, robust=robust)
    pays = 0.0 if table.boundary is None else table.boundary.pays

    def body(now: _Round) -> _Round:
        found = sweep(columns, now.values, now.found.multipliers)
        residual = found.values + pays - now.values
        size = jnp.abs(residual).max()
        enough = tolerance * (1 - table.discount) / 4 * jnp.maximum(1.0, jnp.abs(now.values).max())
        # A residual that is not a number is a miss.
        misses = jnp.where(size <= _PROGRESS * now.best, 0, now.misses + 1)
        settled = size <= enough
        done = settled | (misses >= _MISSES)

        def advance() -> tuple[Array, Array]:
            move = _solved(columns, found.flow, residual / size)
            return now.values + size * move.x.astype(size.dtype), move.sweeps

        values, sweeps = lax.cond(done, lambda: (now.values, jnp.array(0)), advance)
        return _Round(
            values=values,
            found=found,
            best=jnp.minimum(size, now.best),
            misses=misses,
            settled=settled,
            done=done,
            rounds=now.rounds + 1,
            sweeps=now.sweeps + sweeps,
        )

    nothing = Swept(start, guess.T, jnp.zeros(columns.probabilities.shape, jnp.float32))
    zero, no = jnp.array(0), jnp.array(False)
    first = _Round(start, nothing, jnp.array(jnp.inf), zero, no, no, zero, zero)
    last = lax.while_loop(lambda now: ~now.done, body, first)
    return Quick(last.values, last.found.multipliers.T, last.settled, last.rounds, last.sweeps)


def _solved(columns: Columns, flow: Array, constant: Array) -> Any:
    """Return x with x = constant + γP_π·x, to a share of the constant, in single precision."""
    constant = constant.astype(jnp.float32)
    discount = columns.discount.astype(jnp.float32)
    eps = jnp.finfo(jnp.float32).eps

    share = jnp.maximum(_SHARE, _LEAST * eps / (1 - discount))
    return fixed_point(
        lambda x: fixed_sweep(columns, flow, x),
        constant,
        constant,
        slow=jnp.ones_like(constant),  # constants are eigenvectors of a chain
        contraction=discount,
        norm=lambda residual: jnp.abs(residual).max(),
        target=lambda _: share,
    )


def fixed_sweep(
    columns: Columns, flow: Float[Array, "K A S"], x: Float[Array, " S"]
) -> Float[Array, " S"]:
    """Return γP_π·x under a fixed kernel, in the precision of x."""
    rows = zip(flow.reshape(-1, len(x)), columns.successors.reshape(-1, len(x)), strict=True)
    return columns.discount.astype(x.dtype) * sum(
        weight * x[following] for weight, following in rows
    )
