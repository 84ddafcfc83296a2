"""Types and helpers shared by all sets: rows, responses, brackets, rounding errors, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from holdfast._support.arguments import first_place, numbers_of

# Rows with the outcomes on the last axis, and one number per row.
Rows: TypeAlias = Float[Array, "*rows K"]
PerRow: TypeAlias = Float[Array, "*rows"]
# Rows in columns: for each outcome one array over all rows.
Columns: TypeAlias = Sequence[Float[Array, "*rows"]]

EPS = float(np.finfo(np.float64).eps)
# The smallest normal number. Compiled code replaces smaller ones by zero.
SMALLEST = float(np.finfo(np.float64).tiny)


class Response(NamedTuple):
    """The worst response to targets y in each row, with its certificate.

    Attributes:
        kernel: q, a member of the set.
        value: q·y, an upper bound on the minimum over the set.
        lower: the dual value, a lower bound on that minimum.
        multiplier: the dual variable, a starting point for the next search; zero if there is none.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> response = hf.KL(0.1).respond(np.array([[0.5, 0.5]]), np.array([[0.0, 1.0]]))
        >>> print(response.kernel.round(3), response.value.round(3), response.lower.round(3))
        [[0.72 0.28]] [0.28] [0.28]
    """

    kernel: Rows
    value: PerRow
    lower: PerRow
    multiplier: PerRow


class Proposal(NamedTuple):
    """A quick worst response, in columns. It proves nothing.

    Attributes:
        kernel: q, one array over all rows for each outcome.
        value: the minimum of q·y, or a number close to it.
        multiplier: the dual variable, a starting point for the next search; zero if there is none.
    """

    kernel: Columns
    value: PerRow
    multiplier: PerRow


class RowProposal(NamedTuple):
    """A quick worst response, in rows. It proves nothing.

    Attributes:
        kernel: q, on the outcomes of the last axis.
        value: the minimum of q·y, or a number close to it.
        multiplier: the dual variable, as in `Proposal`.
    """

    kernel: Rows
    value: PerRow
    multiplier: PerRow


class Bracket(NamedTuple):
    """The worst response to targets y in each row, with bounds that hold after rounding.

    Attributes:
        response: the worst response.
        lower: lower bound on the minimum over the set, rounding included.
        upper: value of a proved member of the set, an upper bound on the minimum, rounding included.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> p, y = np.array([[0.25, 0.75]]), np.array([[0.0, 1.0]])
        >>> _, lower, upper = hf.KL(0.0).bracket(p, y)
        >>> print(lower < 0.75, 0.75 < upper, upper - lower < 1e-14)
        [ True] [ True] [ True]
    """

    response: Response
    lower: PerRow
    upper: PerRow


class RowScale(NamedTuple):
    """Quantities that rounding errors of a row are proportional to.

    Attributes:
        terms: number of outcomes that members may have mass on.
        low: the smallest target of these outcomes.
        span: the largest target minus the smallest.
        size: the largest absolute value of a target.
    """

    terms: PerRow
    low: PerRow
    span: PerRow
    size: PerRow

    @classmethod
    def of(cls, reached: Bool[Array, "*rows K"], y: Rows) -> RowScale:
        """Return the scale of rows of targets."""
        low = jnp.where(reached, y, jnp.inf).min(-1)
        high = jnp.where(reached, y, -jnp.inf).max(-1)
        return cls(reached.sum(-1), low, high - low, jnp.maximum(jnp.abs(low), jnp.abs(high)))


def non_negative(name: str, value: ArrayLike, most: float = np.inf) -> Float[np.ndarray, "..."]:
    """Return a read-only array of numbers in [0, most], or raise a ValueError that names it."""
    array = numbers_of(name, value)
    wrong = ~((array >= 0) & (array <= most))
    if wrong.any():
        index, where = first_place(wrong)
        expected = "at least 0" if most == np.inf else f"numbers in [0, {most:g}]"
        where = f" at {where}" if where.startswith("(") else ""
        raise ValueError(f"{name}: expected {expected}, got {array[index]}{where}")
    subnormal = (array > 0) & (array < SMALLEST)
    if subnormal.any():
        index, where = first_place(subnormal)
        where = f" at {where}" if where.startswith("(") else ""
        raise ValueError(
            f"{name}: expected 0 or at least the smallest normal number {SMALLEST:.2g}, "
            f"got {array[index]}{where}"
        )
    array.flags.writeable = False
    return array
