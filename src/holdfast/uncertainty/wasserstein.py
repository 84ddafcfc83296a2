"""The Wasserstein ball: W₁(q, p) ≤ radius, the least Σ mass·distance that moves p to q."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from holdfast._support.precision import compiled_float64
from holdfast._support.roots import select_rows
from holdfast.uncertainty.responding import RespondingSet
from holdfast.uncertainty.rows import EPS, SMALLEST, Bracket, PerRow, Response, Rows, RowScale
from holdfast.uncertainty.simplex import existing
from holdfast.uncertainty.transport import checked_metric, distances

# Limit on the steps of the search. Halving the bracket in the logarithm needs about 60 steps for 1e-16.
_MAX_STEPS = 100
# The search uses cuts only for this many steps; afterwards every second step halves the bracket. Cuts
# alone end within this number on most rows.
_TRUSTED_STEPS = 8
# Ratio of the second price to a guessed first one. Between two policy updates a price changes by a few
# percent.
_BESIDE = 1.05


class Wasserstein(RespondingSet):
    """All kernels with W₁(q, p) ≤ radius around the nominal rows p, over all states.

    W₁ is the least Σ mass·distance of a plan that moves p to q. The worst response to targets y has a
    dual in one variable, the price μ ≥ 0 of transport: −μ·radius + Σ p_i min_j(y_j + μ·d_ij) is a lower
    bound for every μ. It is concave and piecewise linear, and each linear piece belongs to a plan. The
    search for its maximum moves to the intersection of the two nearest pieces. The result is the
    mixture of the two plans that meet at the maximum; its cost proves that it is a member.

    Distinct states may have distance zero. Mass moves between them at any radius.

    Arguments:
        radius: a number or an (S, A) array, in the unit of the metric; inf allows any row.
        metric: (S, S) distances between states: symmetric, zero on the diagonal, with the triangle
            inequality.
        outcomes: number of states that exist, set by tables whose rows are padded.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> line = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
        >>> ball = hf.Wasserstein(0.5, metric=line)
        >>> p, y = np.array([[0.0, 0.0, 1.0]]), np.array([[0.0, 5.0, 6.0]])
        >>> q = ball.worst_response(p, y)
        >>> print(np.round(q, 3), np.round(ball.divergence(p, q), 3))
        [[0.25 0.   0.75]] [0.5]
    """

    name: ClassVar[str] = "wasserstein"
    shared: ClassVar[tuple[str, ...]] = ("metric", "outcomes")
    # The plan's targets and its cost are two sums, and their weights are rounded.
    per_term: ClassVar[float] = 1.0
    besides: ClassVar[float] = 12.0

    metric: Any
    outcomes: Any = np.inf

    def __init__(
        self, radius: ArrayLike, *, metric: ArrayLike, outcomes: ArrayLike = np.inf
    ) -> None:
        super().__init__(radius)
        self.metric = checked_metric(metric)
        self.outcomes = np.asarray(outcomes, np.float64)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return a JSON header and named arrays, from which `from_arrays` makes the set again."""
        header, arrays = super().to_arrays()
        del arrays["outcomes"]
        return header, arrays

    def padded(self, states: int, width: int) -> Self:
        """Return the set on rows to which outcomes were added that no member may have mass on.

        In the search an added outcome has the largest target of its row and a positive distance, so
        that mass never gains by moving there.
        """
        # The rounding error of a distance is that of the largest one, and at least that of 1.
        metric = np.full((width, width), max(1.0, float(np.max(self.metric))))
        np.fill_diagonal(metric, 0.0)
        metric[:states, :states] = self.metric
        return self._with(metric=metric, outcomes=np.asarray(float(states)))

    def reach(self, p: Any) -> Any:
        """Return which outcomes some member gives mass to; a table leaves out the others."""
        return existing(p, self.outcomes)

    @property
    def keeps_support(self) -> bool:
        """Whether no member has mass where p has none: always False."""
        return False

    def check_fits(self, p: Float[np.ndarray, "S A K"]) -> None:
        """Raise a ValueError unless the set fits a model with these nominal probabilities."""
        super().check_fits(p)
        expected = (p.shape[0], p.shape[0])
        if np.shape(self.metric) != expected:
            raise ValueError(f"metric: expected shape {expected}, got {np.shape(self.metric)}")

    @compiled_float64
    def respond(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Response:
        """Return the worst response to y and the dual value that certifies it."""
        return self.respond_with_plan(p, y, guess)[0]

    @compiled_float64
    def bracket(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Bracket:
        """Return the worst response to y and bounds on the minimum that hold after rounding.

        The plan proves membership, so no linear program is solved.
        """
        response, plan = self.respond_with_plan(p, y, guess)
        kernel = response.kernel
        width = kernel.shape[-1]
        nominal = jnp.broadcast_to(jnp.asarray(p), kernel.shape)
        radius = self.row_radius(kernel)
        metric = jnp.asarray(self.metric, kernel.dtype)
        flat = nominal.reshape(-1, width), kernel.reshape(-1, width), radius.reshape(-1)
        share = plan.member_share(metric, *flat).reshape(radius.shape)
        lower = response.lower - self.lower_rounding(nominal, y, response)
        # The plan leads to the row up to the rounding of its sums.
        scale = RowScale.of(self.reach(nominal), y)
        upper = self.mixed_value(nominal, kernel, y, share) + EPS * (width + 4) * scale.span
        return Bracket(response, lower, upper)

    @compiled_float64
    def respond_with_plan(
        self, p: Rows, y: Rows, guess: PerRow | None = None
    ) -> tuple[Response, _TransportPlan]:
        """Return the worst response, and the plans that move the nominal rows there, one per row."""
        p, y = jnp.broadcast_arrays(jnp.asarray(p), jnp.asarray(y))
        rows, width = p.shape[:-1], p.shape[-1]
        metric = jnp.asarray(self.metric, p.dtype)
        radius = self.row_radius(p).reshape(-1)
        start = None if guess is None else jnp.broadcast_to(jnp.asarray(guess), rows).reshape(-1)
        exists = self.reach(p)
        y = jnp.where(exists, y, jnp.where(exists, y, -jnp.inf).max(-1, keepdims=True))
        flat = p.reshape(-1, width), y.reshape(-1, width)
        response, plan = _worst(metric, radius, *flat, start)
        kernel, *others = response
        return Response(kernel.reshape(p.shape), *(part.reshape(rows) for part in others)), plan

    @compiled_float64
    def divergence(self, p: Rows, q: Rows) -> PerRow:
        """Return W₁(q, p); infinite if the sums of the rows differ.

        This is slow: SciPy solves one linear program per row. The solver's tolerance is 1e-10 of the
        moved mass times the largest distance.
        """
        p, q = jnp.broadcast_arrays(jnp.asarray(p), jnp.asarray(q))
        metric = jnp.asarray(self.metric, p.dtype)

        def host(*bits: Array) -> np.ndarray:
            arrays = [np.ascontiguousarray(part).view(p.dtype) for part in bits]
            metric, p_rows, q_rows = (a[..., 0] if wide else a for a in arrays)
            return distances(metric, p_rows, q_rows).astype(p.dtype)[..., None].view(np.uint32)

        # Unless the user has enabled 64-bit JAX, a callback receives float64 as float32. The bits are
        # therefore passed as integers.
        wide = p.dtype.itemsize == 8
        bits = [lax.bitcast_convert_type(part, jnp.uint32) for part in (metric, p, q)]
        shape = (*p.shape[:-1], 2 if wide else 1)
        result = jax.pure_callback(
            host, jax.ShapeDtypeStruct(shape, jnp.uint32), *bits, vmap_method="sequential"
        )
        return lax.bitcast_convert_type(result if wide else result[..., 0], p.dtype)

    @property
    def rounding(self) -> Any:
        """Absolute rounding error of `divergence`: eps of mass may move across the whole space."""
        return super().rounding * jnp.maximum(1.0, self.metric.max())


class _TransportPlan(NamedTuple):
    """A mixture of two plans, each of which moves the mass of a source to one destination.

    Attributes:
        source: states in the order of the other fields.
        mass: mass of p at each source.
        far: destination in the plan that costs more.
        near: destination in the plan that costs less.
        share: weight of the far plan.
    """

    source: Int[Array, "N K"]
    mass: Float[Array, "N K"]
    far: Int[Array, "N K"]
    near: Int[Array, "N K"]
    share: Float[Array, " N"]

    def destination(self) -> Float[Array, "N K"]:
        """Return the distribution to which the plan moves the mass."""
        row = jnp.arange(len(self.mass))[:, None]
        share = self.share[:, None]
        moved = jnp.zeros_like(self.mass).at[row, self.far].add(share * self.mass)
        return moved.at[row, self.near].add((1 - share) * self.mass)

    def member_share(self, metric: Array, p: Array, q: Array, radius: Array) -> Float[Array, " N"]:
        """Return the share of the way from p to q that is proved to cost at most the radius.

        Zero if this is not a plan from p to q.
        """
        states = jnp.arange(p.shape[-1])
        weights = jnp.stack([self.share, 1 - self.share])
        ways = jnp.stack([self.far, self.near])

        def one(n: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            left, came, cost, free = sums
            source, mass = self.source[:, n], self.mass[:, n]
            left = left + jnp.where(source[:, None] == states, mass[:, None], 0.0)
            for weight, way in zip(weights, ways, strict=True):
                arrives = way[:, n][:, None] == states
                distance = jnp.where(arrives, metric[source], 0.0).sum(-1)
                came = came + jnp.where(arrives, (weight * mass)[:, None], 0.0)
                cost = cost + weight * mass * distance
                free = free & ((weight == 0) | (mass == 0) | (distance == 0))
            return left, came, cost, free

        nothing = jnp.zeros_like(p)
        count = jnp.where((self.mass != 0).any(0), states + 1, 0).max()
        start = nothing, nothing, nothing[:, 0], jnp.ones(len(p), bool)
        left, came, cost, free = lax.fori_loop(0, count, one, start)
        width = len(states)
        slack = EPS * (16 + width)
        marginals = (jnp.abs(left - p).sum(-1) <= slack) & (jnp.abs(came - q).sum(-1) <= slack)
        signs = (weights >= 0).all(0) & (self.mass >= 0).all(-1) & (q >= 0).all(-1)
        # The cost is a sum of two terms a source; each may lose the smallest number to underflow.
        cost = cost * (1 + EPS * (2 * width + 8)) + 2 * width * SMALLEST
        share = jnp.where(free, 1.0, jnp.minimum(1.0, radius / cost * (1 - 2 * EPS)))
        return jnp.where(marginals & signs, share, 0.0)


class _DualLine(NamedTuple):
    """A plan that is optimal at some price μ; there the dual is the line targets + μ·cost."""

    price: Float[Array, " N"]
    targets: Float[Array, " N"]
    cost: Float[Array, " N"]
    to: Int[Array, "N K"]


class _PriceSearch(NamedTuple):
    """State of the search for the price, and the best lower bound so far."""

    far: _DualLine  # costs more than the radius
    near: _DualLine  # costs at most the radius
    lower: Float[Array, " N"]
    multiplier: Float[Array, " N"]
    price: Float[Array, " N"]
    done: Bool[Array, " N"]
    step: Int[Array, ""]


def _worst(
    metric: Float[Array, "K K"],
    radius: Float[Array, " N"],
    p: Float[Array, "N K"],
    y: Float[Array, "N K"],
    guess: Float[Array, " N"] | None = None,
) -> tuple[Response, _TransportPlan]:
    """Return the worst response to y in every row, and the plan that moves p there."""
    low, span = y.min(-1), y.max(-1) - y.min(-1)
    scale = jnp.where(span > 0, span, 1.0)
    u = (y - low[:, None]) / scale[:, None]
    # Sources with mass come first. Most rows have few, and the loop over sources stops after them.
    source = jnp.argsort(p <= 0, axis=-1, stable=True)
    mass = jnp.take_along_axis(p, source, axis=-1)
    sources = (p > 0).sum(-1).max()
    width = p.shape[-1]
    states = jnp.arange(width)

    def line(price: Array, weight: Array) -> _DualLine:
        """Return the best plan for weight·targets + price·cost; an infinite factor takes precedence."""
        gain = jnp.where(u > 0, weight[:, None] * u, 0.0)

        def carry(n: Array, to: Array) -> Array:
            cost = metric[source[:, n]]
            total = gain + jnp.where(cost > 0, price[:, None] * cost, 0.0)
            least = total <= total.min(-1, keepdims=True)
            # The first minimum. On CPUs this takes a third of the time of `argmin`.
            return to.at[:, n].set(jnp.where(least, states, width).min(-1))

        to = lax.fori_loop(0, sources, carry, jnp.zeros(p.shape, states.dtype))
        targets = (mass * jnp.take_along_axis(u, to, axis=-1)).sum(-1)
        return _DualLine(price, targets, (mass * metric[source, to]).sum(-1), to)

    def meeting(far: _DualLine, near: _DualLine) -> Array:
        apart = far.cost - near.cost
        return (near.targets - far.targets) / jnp.where(apart > 0, apart, 1.0)

    nothing, one, most = (jnp.full_like(span, level) for level in (0.0, 1.0, jnp.inf))
    # The plans at price 0 (cheapest way to the minimum) and at price inf (moves at distance zero).
    ends = lax.map(lambda end: line(*end), (jnp.stack([one, most]), jnp.stack([most, one])))
    far, near = (jax.tree.map(lambda part, i=i: part[i], ends) for i in (0, 1))
    far = far._replace(price=nothing)
    reached = far.cost <= radius
    trivial = reached | (radius <= 0) | (span == 0)
    limit = jnp.where(trivial, 0.0, radius)
    hint = nothing if guess is None else guess / scale
    hinted = (hint > 0) & (hint < jnp.inf)

    def mixture(far: _DualLine, near: _DualLine) -> tuple[Array, Array]:
        apart = far.cost - near.cost
        share = (limit - near.cost) / jnp.where(apart > 0, apart, 1.0)
        share = jnp.where(reached, 1.0, jnp.clip(share, 0.0, 1.0))
        share = jnp.where(radius <= 0, 0.0, share)
        return share, share * far.targets + (1 - share) * near.targets

    tolerance = jnp.finfo(p.dtype).eps * (16 + width)

    def body(search: _PriceSearch) -> _PriceSearch:
        now = line(search.price, one)
        beyond = now.cost > limit
        far = select_rows(beyond & ~search.done, now, search.far)
        near = select_rows(~beyond & ~search.done, now, search.near)
        dual = now.targets + now.price * (now.cost - limit)
        better = (dual > search.lower) & ~search.done
        lower = jnp.where(better, dual, search.lower)
        proposal = meeting(far, near)
        halve = (search.step >= _TRUSTED_STEPS) & (search.step % 2 == 1) & (near.price < jnp.inf)
        middle = jnp.sqrt(jnp.maximum(far.price, near.price * 1e-3)) * jnp.sqrt(near.price)
        inside = (proposal > far.price) & (proposal < near.price) & (proposal != search.price)
        closed = mixture(far, near)[1] - lower <= tolerance
        price = jnp.where(halve, middle, proposal)
        # The answer is often near the guess, so the second price stays close to it.
        beside = jnp.clip(price, hint / _BESIDE, hint * _BESIDE)
        price = jnp.where(hinted & (search.step == 0), beside, price)
        return _PriceSearch(
            far,
            near,
            lower,
            jnp.where(better, now.price, search.multiplier),
            jnp.where(search.done, search.price, price),
            search.done | closed | ~inside,
            search.step + 1,
        )

    def unfinished(search: _PriceSearch) -> Array:
        return ~search.done.all() & (search.step < _MAX_STEPS)

    price = jnp.where(hinted, hint, meeting(far, near))
    begun = _PriceSearch(far, near, nothing, nothing, price, trivial, jnp.array(0))
    found = lax.while_loop(unfinished, body, begun)
    share, value = mixture(found.far, found.near)
    plan = _TransportPlan(source, mass, found.far.to, found.near.to, share)
    lower = jnp.where(trivial, value, jnp.minimum(found.lower, value))
    response = Response(
        kernel=plan.destination(),
        value=low + span * value,
        lower=low + span * lower,
        multiplier=jnp.where(trivial, 0.0, found.multiplier * span),
    )
    return response, plan
