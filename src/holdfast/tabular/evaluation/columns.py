"""Quick values of large models by sweeps over successor lists.

On a CPU the lists are held in columns: one array over all states for each place of a list. Arithmetic on
rows is then elementwise, and compiled code uses vector instructions. On an accelerator the lists stay in
rows, as in the table, and a sweep is one kernel (`fused`). The values found here are proposals. They
prove nothing: `certified` has a pass of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.devices import in_parts
from holdfast.model.table import Table
from holdfast.tabular.evaluation import fused
from holdfast.tabular.evaluation.iterative import FixedPoint, fixed_point
from holdfast.tabular.evaluation.values import until_stop
from holdfast.uncertainty import UncertaintySet

# Lists of more successors than this have no quick values: their rows are unrolled in the program.
WIDEST = 16
# States in one block of a sweep on a CPU: its temporaries, some 100 numbers a state, stay in the second
# cache of a core.
_BLOCK = 1 << 11
# Values under a kernel that is not yet the worst one are found to this share of the current residual, in
# single precision. A smaller share spends sweeps on values that the next round replaces.
_SHARE = 3e-3
# The residual of single-precision values cannot be smaller than this many rounding errors.
_LEAST = 16
# Rounds end when the residual is below this many rounding errors of V, or after this many consecutive
# rounds without halving the smallest residual: single precision is then too coarse for a discount this
# close to one. With a wide ball nature's policy iteration has some such rounds at the start.
_FLOOR, _PROGRESS, _MISSES = 64, 0.5, 8
# Sweeps that update only the multipliers: before the first round if there is no guess, and after a
# round that did not halve the residual. In a wide ball multipliers change a lot with V, and need
# several steps.
_REFINING = 6


class Lists(eqx.Module):
    """The lists of a table with one signal, and a policy, in columns or in rows.

    Shapes are given for rows. In columns the order of the axes is reversed.

    Attributes:
        probabilities: nominal kernel.
        successors: next states.
        signal: the signal; J is K, or 1 if it does not depend on the next state.
        policy: π.
        uncertainty: the set; None if nature keeps the nominal kernel. Its arrays over entries have the
            outcomes first, in columns and in rows.
        discount: γ.
        in_columns: whether the arrays are in columns.
    """

    probabilities: Float[Array, "S A K"]
    successors: Int[Array, "S A K"]
    signal: Float[Array, "S A J"]
    policy: Float[Array, "S A"]
    uncertainty: UncertaintySet | None
    discount: Float[Array, ""]
    in_columns: bool = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        table: Table,
        policy: Float[Array, "S A"],
        *,
        robust: bool = True,
        in_columns: bool | None = None,
    ) -> Lists:
        """Return the lists of a table with one signal, in the layout that suits the device."""
        if in_columns is None:
            in_columns = jax.default_backend() == "cpu"
        lists = table.probabilities, table.successors, table.signals[0], until_stop(table, policy)
        ball = table.uncertainty if robust else None
        if in_columns:
            lists, ball = jax.tree.map(jnp.transpose, (lists, ball))
        elif ball is not None:
            ball = jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0) if a.ndim == 3 else a, ball)
        return cls(*lists, ball, table.discount, in_columns)  # type: ignore[arg-type]

    def entries(self, array: Array) -> list[Array]:
        """Return one array over all rows for each place of a list."""
        if self.in_columns:
            return list(array)
        return [array[..., k] for k in range(array.shape[-1])]

    def joined(self, entries: list[Array]) -> Array:
        """Return the array with these entries."""
        return jnp.stack(entries, 0 if self.in_columns else -1)

    def state_axes(self) -> Lists:
        """Return the lists with every array replaced by the axis of its states, or by None."""

        def axis(array: Array) -> int | None:
            return None if not array.ndim else -1 if self.in_columns else 0

        axes = jax.tree.map(axis, self)
        if self.in_columns or self.uncertainty is None:
            return axes
        entries_first = jax.tree.map(lambda a: -2 if a.ndim == 3 else axis(a), self.uncertainty)
        return dataclasses.replace(axes, uncertainty=entries_first)

    def block(self, start: Array, size: int) -> Lists:
        """Return the lists, in columns, of `size` states."""
        return jax.tree.map(lambda a: _cut(a, start, size) if a.ndim else a, self)


def _cut(array: Array, start: Array, size: int) -> Array:
    return lax.dynamic_slice_in_dim(array, start, size, axis=-1)


class Swept(NamedTuple):
    """One robust sweep.

    Attributes:
        values: approximation of the robust Bellman operator at V.
        multipliers: nature's dual variables, in single precision and in the layout of the policy.
        flow: π(a|s)·q(s, a, k) of nature's response, likewise.
    """

    values: Float[Array, " S"]
    multipliers: Float[Array, "S A"]
    flow: Float[Array, "S A K"]


def swept(lists: Lists, values: Float[Array, " S"], multipliers: Float[Array, "S A"]) -> Swept:
    """Return one robust sweep over the states of some lists.

    Arguments:
        lists: the lists.
        values: V of all states.
        multipliers: dual variables from which the search starts.
    """
    p, policy = lists.entries(lists.probabilities), lists.policy
    signal = lists.entries(lists.signal)
    following = lists.entries(values[lists.successors])
    y = [signal[k % len(signal)] + lists.discount * v for k, v in enumerate(following)]
    if lists.uncertainty is None:
        kernel: Sequence[Array] = p
        value = sum(q * each for q, each in zip(p, y, strict=True))
    else:
        guess = multipliers.astype(policy.dtype)
        kernel, value, found = lists.uncertainty.propose(p, y, guess)
        multipliers = found.astype(multipliers.dtype)
    flow = lists.joined([(policy * q).astype(jnp.float32) for q in kernel])
    total = (policy * value).sum(0 if lists.in_columns else -1)
    return Swept(total, multipliers, flow)


def sweep(lists: Lists, values: Float[Array, " S"], multipliers: Float[Array, "S A"]) -> Swept:
    """Return one robust sweep over all states; on several devices, each sweeps its own."""
    axis = -1 if lists.in_columns else 0
    divided, axes = (lists, multipliers), (lists.state_axes(), axis)

    def own_sweep(own: tuple[Lists, Array], values: Array) -> Swept:
        return _own_sweep(own[0], values, own[1])

    return in_parts(own_sweep, divided, axes, values, result_axis=axis)


def _own_sweep(
    lists: Lists, values: Float[Array, " all"], multipliers: Float[Array, "S A"]
) -> Swept:
    """Return one robust sweep over the states of some lists, block by block."""
    states = lists.policy.shape[-1 if lists.in_columns else 0]
    if fused.serves(lists.uncertainty, states) and not lists.in_columns:
        return Swept(*fused.sweep(lists, values, multipliers))
    if not lists.in_columns or states <= _BLOCK:
        return swept(lists, values, multipliers)

    def body(i: Array, done: Swept) -> Swept:
        # The start of the last block is moved back where it would end beyond the last state.
        start = jnp.minimum(i * _BLOCK, states - _BLOCK)
        found = swept(lists.block(start, _BLOCK), values, _cut(multipliers, start, _BLOCK))
        return jax.tree.map(
            lambda a, b: lax.dynamic_update_slice_in_dim(a, b, start, axis=-1), done, found
        )

    flow = jnp.zeros(lists.probabilities.shape, jnp.float32)
    start = Swept(jnp.zeros(states, values.dtype), jnp.zeros_like(multipliers), flow)
    return lax.fori_loop(0, -(-states // _BLOCK), body, start)


def fixed_sweep(
    lists: Lists, flow: Float[Array, "S A K"], x: Float[Array, " S"]
) -> Float[Array, " S"]:
    """Return γP_π·x under a fixed kernel, in the precision of x."""
    discount = lists.discount.astype(x.dtype)

    def own_sweep(rows: tuple[Array, Array], x: Array, discount: Array) -> Array:
        flow, successors = rows
        if not lists.in_columns:
            return discount * (flow * x[successors]).sum((1, 2))
        # One sum of products: a reduction over the leading axes would not be vectorised.
        states = flow.shape[-1]
        pairs = zip(flow.reshape(-1, states), successors.reshape(-1, states), strict=True)
        return discount * sum(weight * x[following] for weight, following in pairs)

    axis = -1 if lists.in_columns else 0
    return in_parts(
        own_sweep, (flow, lists.successors), (axis, axis), x, discount, result_axis=axis
    )


class Quick(NamedTuple):
    """Values that were found quickly.

    Attributes:
        values: V.
        multipliers: nature's dual variables, in single precision.
        settled: whether the residual is as small as the tolerance asks for.
        rounds: number of robust sweeps.
        sweeps: number of sweeps under a fixed kernel.
    """

    values: Float[Array, " S"]
    multipliers: Float[Array, "S A"]
    settled: Bool[Array, ""]
    rounds: Int[Array, ""]
    sweeps: Int[Array, ""]


class _QuickRound(NamedTuple):
    values: Array
    multipliers: Array
    best: Array
    misses: Array
    settled: Array
    done: Array
    rounds: Array
    sweeps: Array


def quick_values(
    table: Table,
    policy: Float[Array, "S A"],
    tolerance: Any,
    start: Float[Array, " S"] | None = None,
    guess: Float[Array, "S A"] | None = None,
    *,
    robust: bool = True,
) -> Quick:
    """Return approximate worst-case values of a table's only signal, or approximate nominal values.

    Nature's policy iteration, with values under each kernel by sweeps in single precision: each round
    solves for the change of V that removes the current residual, which is computed in double precision.

    Arguments:
        table: the model with one signal.
        policy: (S, A).
        tolerance: error to reach, relative to max(1, largest |V|).
        start: first guess of V, (S,); default: zero.
        guess: first guess of nature's dual variables, (S, A); default: none.
        robust: whether nature chooses kernels from the set.
    """
    lists = Lists.of(table, policy, robust=robust)
    pays = 0.0 if table.boundary is None else table.boundary.pays

    def body(now: _QuickRound) -> _QuickRound:
        def refined(_: int, multipliers: Array) -> Array:
            return sweep(lists, now.values, multipliers).multipliers

        more = jnp.where(now.misses > 0, _REFINING, 0) if robust else 0
        found = sweep(lists, now.values, lax.fori_loop(0, more, refined, now.multipliers))
        residual = found.values + pays - now.values
        size = jnp.abs(residual).max()
        enough = tolerance * (1 - table.discount) / 4 * jnp.maximum(1.0, jnp.abs(now.values).max())
        # A residual of NaN is a miss.
        misses = jnp.where(size <= _PROGRESS * now.best, 0, now.misses + 1)
        floor = _FLOOR * jnp.finfo(size.dtype).eps * jnp.abs(now.values).max()
        settled = size <= enough
        done = settled | (size <= floor) | (misses >= _MISSES)

        def advance() -> tuple[Array, Array]:
            move = _solved(lists, found.flow, (residual / size).astype(jnp.float32))
            return now.values + size * move.x.astype(size.dtype), move.sweeps

        values, sweeps = lax.cond(done, lambda: (now.values, jnp.array(0)), advance)
        return _QuickRound(
            values=values,
            multipliers=found.multipliers,
            best=jnp.minimum(size, now.best),
            misses=misses,
            settled=settled,
            done=done,
            rounds=now.rounds + 1,
            sweeps=now.sweeps + sweeps,
        )

    if start is None:
        start = jnp.zeros(table.states)
    if guess is None:
        guess = jnp.zeros(policy.shape)
    guess = guess.astype(jnp.float32)
    zero, no = jnp.array(0), jnp.array(False)
    first = _QuickRound(
        values=start,
        multipliers=guess.T if lists.in_columns else guess,
        best=jnp.array(jnp.inf),
        misses=jnp.where((guess > 0).any(), 0, 1),
        settled=no,
        done=no,
        rounds=zero,
        sweeps=zero,
    )
    last = lax.while_loop(lambda now: ~now.done, body, first)
    multipliers = last.multipliers.T if lists.in_columns else last.multipliers
    return Quick(last.values, multipliers, last.settled, last.rounds, last.sweeps)


def _solved(lists: Lists, flow: Array, constant: Array) -> FixedPoint:
    """Return x with x = constant + γP_π·x, to a share of the constant, in single precision."""
    discount = lists.discount.astype(constant.dtype)
    least = _LEAST * jnp.finfo(constant.dtype).eps / (1 - discount)
    return fixed_point(
        lambda x: fixed_sweep(lists, flow, x),
        constant,
        constant,
        # Constants are eigenvectors of a chain. Padded states are chains of their own, without residual.
        slow=jnp.where(constant == 0, 0.0, jnp.ones_like(constant)),
        contraction=discount,
        norm=lambda residual: jnp.abs(residual).max(),
        target=lambda _: jnp.maximum(_SHARE, least),
    )
