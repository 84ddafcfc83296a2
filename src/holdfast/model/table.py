"""The padded arrays of a model, and the conversion of results back to the user's own layout."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from holdfast._support.devices import device_count, padded_for_devices, placed
from holdfast._support.mappings import make_room
from holdfast._support.precision import float64
from holdfast.model.allowed import only_allowed
from holdfast.model.boundaries import Boundaries
from holdfast.model.by_step import over_steps, step_counts
from holdfast.model.checks import SMALLEST, normalised
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.entries import (
    SMALL,
    compact_rows,
    entries_of,
    in_rows,
    padded_actions,
    padded_shape,
)
from holdfast.model.entries import padded_size as padded_size
from holdfast.model.kernel import Kernel
from holdfast.model.rules import Reach
from holdfast.uncertainty import UncertaintySet

# Lists of more states than this are evaluated by sweeps; up to it, dense factors are faster.
DENSE_STATES = 1024
# Dense models of at least this many states are evaluated by quick sweeps over their rows. Below, an
# evaluation takes a few milliseconds, and a second program would take longer to compile.
WIDE_STATES = 256


class Table(eqx.Module):
    """The padded arrays of a model on the device, with every constraint as a utility.

    Padded states lead to themselves, have zero signals and are never reached. Padded actions are copies
    of the first one, and no policy takes them. Padded successors have probability zero.

    With a horizon nothing is padded, and the steps of policies and values are further rows: a policy
    has the shape (H·S, A). The kernel, the set and the signals have a leading axis of steps if they
    differ by step.

    Attributes:
        probabilities: nominal kernel.
        successors: next state of every entry, or None for a dense kernel, whose entry k is state k.
        signals: reward, then utilities; J is K, or 1 if no signal depends on the next state.
        thresholds: least worst-case value of each utility.
        initial: initial distribution ρ.
        discount: γ.
        uncertainty: the uncertainty set, in the layout of the table.
        step_share: 1/Σ_t γ^t, the weight of the first step: 1−γ without a horizon.
        boundaries: boundary values of the signals, or None if no rule has one.
        horizon: number of steps H, or None.
    """

    probabilities: Float[Array, "*H S A K"]
    successors: Int[Array, "*H S A K"] | None
    signals: Float[Array, "n *steps S A J"]
    thresholds: Float[Array, " m"]
    initial: Float[Array, " S"]
    discount: Float[Array, ""]
    uncertainty: UncertaintySet
    step_share: Float[Array, ""]
    boundaries: Boundaries | None = None
    horizon: int | None = eqx.field(static=True, default=None)

    @property
    def states(self) -> int:
        """Number of states, padding included."""
        return self.probabilities.shape[-3]

    @property
    def rows(self) -> int:
        """Number of rows of a policy: a row for each state, and for each step of a horizon."""
        return self.states * (self.horizon or 1)

    @property
    def is_large(self) -> bool:
        """Whether the model is evaluated by sweeps over its successor lists."""
        return self.successors is not None and self.states > DENSE_STATES

    @property
    def is_wide(self) -> bool:
        """Whether the model is evaluated by quick sweeps over dense rows."""
        dense = self.successors is None and self.horizon is None
        return dense and self.states >= WIDE_STATES

    def following(self, values: Float[Array, " S *rest"]) -> Float[Array, "..."]:
        """Return a function of the next state, in a shape that broadcasts to the probabilities."""
        return values if self.successors is None else values[self.successors]

    def with_signals(
        self, signals: Float[Array, "n *steps S A J"], boundaries: Boundaries | None = None
    ) -> Table:
        """Return the table with other signals and their boundary values, and no thresholds."""
        return dataclasses.replace(
            self, signals=signals, boundaries=boundaries, thresholds=_no_thresholds()
        )

    def only(self, index: int) -> Table:
        """Return the table with one of its signals."""
        one = slice(index, index + 1)
        boundaries = jax.tree.map(lambda leaf: leaf[one], self.boundaries)
        return self.with_signals(self.signals[one], boundaries)

    @property
    def boundary(self) -> Boundaries | None:
        """The boundary values of a table's only signal, (S,), or None."""
        return jax.tree.map(lambda leaf: leaf[0], self.boundaries)

    def negated(self) -> Table:
        """Return the table with the signs of all signals changed."""
        return self.with_signals(-self.signals, self.boundaries and self.boundaries.negated())

    def with_uncertainty(self, uncertainty: UncertaintySet) -> Table:
        """Return the table with another uncertainty set in its layout."""
        return dataclasses.replace(self, uncertainty=jax.tree.map(jnp.asarray, uncertainty))

    def at_step(self, step: Int[Array, ""]) -> Table:
        """Return the table with the kernel and the set of one step of the horizon."""
        if self.probabilities.ndim == 3:
            return self
        own, shared = self.uncertainty.by_row()
        return dataclasses.replace(
            self,
            probabilities=self.probabilities[step],
            successors=None if self.successors is None else self.successors[step],
            uncertainty=eqx.combine(jax.tree.map(lambda a: a[step], own), shared),
        )


@functools.cache
@float64
def _no_thresholds() -> Float[Array, " m"]:
    return jnp.zeros(0)


@dataclasses.dataclass(frozen=True, eq=False)
class TableLayout:
    """A model, its `Table`, and the correspondence between their entries.

    Attributes:
        model: the user's model.
        table: its padded arrays.
        place: for each entry of the user's kernel, its position in the table's row, or −1 if it was
            dropped; None for a dense table.
        share: for each entry of the user's kernel, its share of the probability at that position.
    """

    model: RobustCMDP
    table: Table
    place: Int[np.ndarray, "S A K"] | None
    share: Float[np.ndarray, "S A K"] | None

    def pad_policy(self, policy: Float[np.ndarray, "*H S A"]) -> Float[Array, "rows padded_A"]:
        """Return a policy with uniform rows in the padded states and no mass on the padded actions.

        The steps of a horizon are further rows.
        """
        if self.table.horizon is not None:
            return jnp.asarray(policy.reshape(self.table.rows, -1))
        states, actions = policy.shape
        padded = np.zeros(self.table.probabilities.shape[:2])
        padded[:, :actions] = 1 / actions
        padded[:states, :actions] = policy
        return placed(padded)

    def unpad_policy(self, policy: Array) -> Float[np.ndarray, "*H S A"]:
        """Return a policy of the table as a policy of the model, on its allowed actions."""
        rows = np.array(self.unpad_states(policy))
        rows[..., 0] += rows[..., self.model.actions :].sum(-1)
        rows = rows[..., : self.model.actions]
        if self.model.allowed is not None:  # the others are copies of an allowed action
            allowed = np.asarray(self.model.allowed)
            outside = np.where(allowed, 0.0, rows)
            moved = np.arange(self.model.actions) == allowed.argmax(-1)[..., None]
            rows = rows - outside + moved * outside.sum(-1, keepdims=True)
        return normalised(np.where(rows < SMALLEST, 0.0, rows))

    def unpad_states(self, array: Any) -> np.ndarray:
        """Return an array over the table's rows as one over states, or over steps and states."""
        array = np.asarray(array)
        if self.table.horizon is not None:
            return array.reshape(self.table.horizon, self.model.states, *array.shape[1:])
        return array[: self.model.states]

    def unpad(self, array: Any) -> np.ndarray:
        """Return an array over rows, or over rows and actions, without the padding."""
        rows = self.unpad_states(array)
        return rows[..., : self.model.actions] if np.ndim(array) > 1 else rows

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Return an array of the user's kernel layout, with any further axes, in the table's layout."""
        table_shape = self.table.probabilities.shape
        rows = np.zeros((*table_shape, *array.shape[3:]))
        own = in_rows(self.place, array, table_shape[-1])
        rows[: self.model.states] = own[:, padded_actions(self.model.actions, table_shape[1])]
        return rows

    def kernel(self, probabilities: Any) -> np.ndarray | Kernel:
        """Return a kernel of the table in the form of the user's own.

        Actions that are not allowed have their nominal rows.
        """
        model, states = self.model, self.model.states
        rows = self.unpad_states(probabilities)[..., : model.actions, :]
        if self.place is None:
            rows = rows[..., :states]
        else:
            assert self.share is not None
            place = self.place.reshape(-1, states, *self.place.shape[1:])
            share = self.share.reshape(place.shape)
            if model.horizon is None:
                place, share = place[0], share[0]
            place = np.broadcast_to(place, (*rows.shape[:-1], place.shape[-1]))
            kept = place >= 0
            taken = np.take_along_axis(rows, np.where(kept, place, 0), axis=-1)
            rows = np.where(kept, taken * share, 0.0)
        rows = normalised(rows)
        lists = model.transitions if isinstance(model.transitions, Kernel) else None
        if model.allowed is not None:
            nominal = model.nominal if lists is None or self.place is not None else lists.dense()
            rows = np.where(np.asarray(model.allowed)[..., None], rows, nominal)
        if lists is None:
            return rows
        if self.place is None:  # the set may reach any state, so the lists contain all of them
            every = np.broadcast_to(np.arange(states), (states, model.actions, states))
            return Kernel(every, rows)
        return Kernel(lists.successors, rows)


def layout_of(model: RobustCMDP) -> TableLayout:
    """Return the layout of a model, which is made once and kept with the model.

    On several devices every one has its own states.
    """
    kept = model.__dict__.setdefault("_table_layouts", {})
    count = device_count()
    if count not in kept:
        kept[count] = _lay_out(model) if model.horizon is None else _lay_out_steps(model)
    return kept[count]


@float64
def _lay_out(model: RobustCMDP) -> TableLayout:
    user, model = model, only_allowed(model)
    uncertainty = cast(UncertaintySet, model.uncertainty)
    signals = [model.reward, *(c.utility for c in model.constraints)]
    telling = [signal for signal in signals if signal.ndim == 3]
    successors, probabilities, place, share = compact_rows(
        *entries_of(model), uncertainty, telling, model.states
    )
    states, actions, width = probabilities.shape
    dense = successors is None
    shape = states, actions, width
    larger = padded_shape(states, actions, width, dense)
    if device_count() > 1:
        larger = (padded_for_devices(larger[0]), *larger[1:])
    confined = uncertainty.padded(states, larger[-1])
    if confined is not None:
        shape, uncertainty = larger, confined
    make_room((shape, dense, type(uncertainty), len(model.constraints)))
    copies = padded_actions(actions, shape[1])
    extra = np.arange(states, shape[0])

    def padded_entries(rows: np.ndarray) -> np.ndarray:
        if rows.shape == shape:
            return rows
        laid_out = np.zeros(shape, rows.dtype)
        laid_out[:states, :, :width] = rows if actions == shape[1] else rows[:, copies]
        return laid_out

    p = padded_entries(probabilities)
    lists = None
    if dense:
        if extra.size:  # otherwise these are the model's own read-only arrays
            p[extra, :, extra] = 1.0
    else:
        lists = padded_entries(successors)
        if extra.size:
            p[extra, :, 0] = 1.0
            lists[extra, :, 0] = extra[:, None]

    def pairs(array: np.ndarray) -> np.ndarray:
        if not array.ndim and lists is not None and states > DENSE_STATES:
            return array  # one number for all rows, to save memory
        laid_out = np.zeros(shape[:2])
        if array.ndim and actions != shape[1]:
            array = array[:, copies]
        laid_out[:states] = array
        return laid_out

    def entries(array: np.ndarray) -> np.ndarray:
        if array.ndim == 0:
            array = np.broadcast_to(array, model.nominal.shape)
        laid_out = np.zeros(shape)
        laid_out[:states, :, :width] = in_rows(place, array, width)[:, copies]
        return laid_out

    if p.size > SMALL and all(signal.ndim == 2 for signal in signals):
        stacked = np.stack([pairs(signal)[..., None] for signal in signals])
    else:
        stacked = np.zeros((len(signals), *shape))
        for i, signal in enumerate(signals):
            stacked[i] = entries(signal)
    initial = np.zeros(shape[0])
    initial[:states] = model.initial
    table = Table(
        probabilities=placed(p),
        successors=None if lists is None else placed(lists),
        signals=placed(stacked, 1),
        thresholds=jnp.asarray([c.utility_threshold for c in model.constraints], jnp.float64),
        initial=placed(initial),
        discount=jnp.asarray(model.discount, jnp.float64),
        uncertainty=jax.tree.map(
            lambda a: placed(a) if np.ndim(a) > 1 else jnp.asarray(a),
            uncertainty.laid_out(pairs, entries),
        ),
        step_share=jnp.asarray(1 - model.discount, jnp.float64),
        boundaries=_boundaries(model, shape[0]),
    )
    return TableLayout(user, jax.block_until_ready(table), place, share)


@float64
def _lay_out_steps(model: RobustCMDP) -> TableLayout:
    """Return the layout of a model with a horizon, without padding."""
    user, model = model, only_allowed(model)
    given = cast(UncertaintySet, model.uncertainty)
    horizon, states, actions = cast(int, model.horizon), model.states, model.actions
    signals = [model.reward, *(c.utility for c in model.constraints)]
    telling = [signal for signal in signals if model.by_next_state(signal)]
    varies = step_counts(given) or any(a.ndim == 4 for a in (model.nominal, *telling))
    count = horizon if varies else 1

    def rows(array: np.ndarray) -> np.ndarray:
        """Return an array over steps, states and actions with the steps as further rows."""
        full = np.broadcast_to(array, (count, *array.shape[-3:]))
        return full.reshape(-1, *array.shape[-2:])

    successors, probabilities = entries_of(model)
    successors = None if successors is None else rows(successors)
    uncertainty = over_steps(given, count, model.nominal.shape[-3:])
    successors, probabilities, place, share = compact_rows(
        successors, rows(probabilities), uncertainty, [rows(s) for s in telling], states
    )
    shape = states, actions, probabilities.shape[-1]
    lead = (horizon,) if varies else ()

    def entries(array: np.ndarray) -> np.ndarray:
        array = np.broadcast_to(array, rows(model.nominal).shape) if array.ndim == 0 else array
        return in_rows(place, array, shape[-1])

    laid_out = uncertainty.laid_out(
        lambda array: np.broadcast_to(array, (count * states, actions)), entries
    ).map_rows(lambda array, _: array.reshape(*lead, states, *array.shape[1:]))
    by_step = bool(varies) or any(s.ndim > 2 for s in signals if not model.by_next_state(s))
    steps = (horizon,) if by_step else ()
    stacked = np.zeros((len(signals), *steps, states, actions, shape[-1] if telling else 1))
    for i, signal in enumerate(signals):
        if model.by_next_state(signal):
            stacked[i] = entries(rows(signal)).reshape(-1, *shape) if lead else entries(signal)
        else:
            stacked[i] = signal[..., None]
    table = Table(
        probabilities=jnp.asarray(probabilities.reshape(*lead, *shape)),
        successors=None if successors is None else jnp.asarray(successors.reshape(*lead, *shape)),
        signals=jnp.asarray(stacked),
        thresholds=jnp.asarray([c.utility_threshold for c in model.constraints], jnp.float64),
        initial=jnp.asarray(model.initial),
        discount=jnp.asarray(model.discount, jnp.float64),
        uncertainty=jax.tree.map(jnp.asarray, laid_out),
        step_share=jnp.asarray(1 / model.total_weight, jnp.float64),
        boundaries=_boundaries(model, states),
        horizon=horizon,
    )
    return TableLayout(user, jax.block_until_ready(table), place, share)


def _boundaries(model: RobustCMDP, padded_states: int) -> Boundaries | None:
    """Return the boundary values of all signals, or None if no constraint is a `reach` rule."""
    if not any(isinstance(c, Reach) for c in model.constraints):
        return None
    stops = np.zeros((1 + len(model.constraints), padded_states), bool)
    pays = np.zeros(stops.shape)
    for i, rule in enumerate(model.constraints, start=1):
        if isinstance(rule, Reach):
            stops[i, : model.states], pays[i, : model.states] = rule.stops, rule.pays
    return Boundaries(placed(stops, 1), placed(pays, 1))
