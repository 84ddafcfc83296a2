"""The local model of the policy update: improve, project, both at once, recover.

Around the current parameters the reward gains gᵀx, the utility of constraint i gains h_iᵀx and needs
b_i = d_i − V_i, and the policy moves by KL = ½xᵀHx. Every solution has the form
x = c_0·H⁻¹g + Σ_i c_i·H⁻¹h_i, so that the problems are solved for the m+1 coefficients c in place of the
n parameters.

Each problem is solved exactly by enumerating the sets of constraints that may hold with equality. On
each set the solution is a small linear system; the best candidate that satisfies its conditions is the
solution. Candidates are compared as points, not by the signs of their multipliers: a set with a singular
system (a constraint given twice) drops out, and a smaller set has the same point.

Internally lengths are in units of the trust region's radius, √(xᵀHx/2δ), directions have length one, and
constraint i is divided by its reach √(2δ·h_iᵀH⁻¹h_i), the most it can gain in the trust region. No
tolerance therefore depends on a user's units.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# 2⁸ sets of constraints are enumerated for every policy update.
MOST_CONSTRAINTS = 8

# The gradient of a constraint counts as zero if the constraint needs more than 1e8 trust regions, ten
# times the inverse of float32's precision, or if its reach is below 1e-15, whose square still has all
# its digits in float32 (smallest number 1e-38).
_FARTHEST = 1e8
_LEAST_REACH = 1e-15

# By default GPUs multiply float32 matrices with 10 bits of mantissa.
_dot = functools.partial(jnp.matmul, precision="highest")


class LocalModel(NamedTuple):
    """The reward, the constraints and the KL divergence around the current policy; see `local_model`."""

    gram: Float[Array, "k k"]
    """[[q, rᵀ], [r, S]] with q = gᵀH⁻¹g, r_i = gᵀH⁻¹h_i, S_ij = h_iᵀH⁻¹h_j; k = m + 1."""
    needed: Float[Array, " m"]
    """b_i = d_i − V_i, the gain that constraint i needs; positive if it is violated now."""
    delta: Float[Array, ""]
    """δ, the radius of the trust region."""
    directions: Float[Array, "k n"]
    """H⁻¹g, then H⁻¹h_i."""

    def step(self, c: Float[Array, " k"]) -> Float[Array, " n"]:
        """Return the change of the parameters, x = c_0·H⁻¹g + Σ_i c_i·H⁻¹h_i."""
        return _dot(c, self.directions)

    def gains(self, c: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return the first-order gains of the step: gᵀx, then each h_iᵀx."""
        return _dot(self.gram, c)

    def kl(self, c: Float[Array, " k"]) -> Float[Array, ""]:
        """Return ½xᵀHx."""
        return _dot(c, _dot(self.gram, c)) / 2


class PolicyStep(NamedTuple):
    """A step of the policy.

    Attributes:
        coefficients: c, the coefficients of the local model's directions.
        met: whether the step satisfies the linearised constraints.
        recovered: whether it is a recovery step.
    """

    coefficients: Float[Array, " k"]
    met: Bool[Array, ""]
    recovered: Bool[Array, ""]


def local_model(
    gradients: Float[Array, "k n"],
    inverses: Float[Array, "k n"],
    needed: Float[Array, " m"],
    delta: float | Float[Array, ""],
) -> LocalModel:
    """Return the local model from the gradients and the solutions H⁻¹g, H⁻¹h_i.

    A constraint is a utility: a step needs h_iᵀx ≥ b_i. Conjugate gradients that stop early leave the
    products slightly asymmetric; the symmetric part is used.

    Arguments:
        gradients: gradient g of the reward, then the gradients h_i of the constraints' utilities, at
            most 8, in the units of `needed`.
        inverses: H⁻¹g, then H⁻¹h_i.
        needed: b_i = d_i − V_i.
        delta: radius of the trust region.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> gradients = jnp.array([[1.0, 0.0], [-1.0, 1.0]])
        >>> model = local_model(gradients, gradients, needed=jnp.array([0.0]), delta=0.5)  # H = I
        >>> step = project(model, improve(model))
        >>> print(model.step(step.coefficients).round(3), step.met)
        [0.5 0.5] True
    """
    m = len(needed)
    if m > MOST_CONSTRAINTS:
        raise ValueError(f"needed: expected at most {MOST_CONSTRAINTS} constraints, got {m}")
    gram = _dot(gradients, inverses.T)
    return LocalModel((gram + gram.T) / 2, needed, jnp.asarray(delta, gram.dtype), inverses)


def improve(model: LocalModel) -> Float[Array, " k"]:
    """Return the coefficients of x = √(2δ/q)·H⁻¹g: max gᵀx subject to ½xᵀHx ≤ δ.

    This is the improvement (13) by Taylor expansion, equation (23). If g = 0, the step is zero.
    """
    units = _in_reach(model, model.needed)
    return units.coefficients(jnp.zeros_like(units.reach).at[0].set(1.0))


def improve_along(model: LocalModel, shares: Float[Array, " k"]) -> PolicyStep:
    """Return the longest step in the trust region along Σ_i shares_i·H⁻¹g_i, over all k gradients.

    It maximises the gain of that sum of signals. Constraints do not restrict it.
    """
    length = _dot(shares, _dot(model.gram, shares))
    moves = length > 0
    scale = jnp.where(moves, jnp.sqrt(2 * model.delta / jnp.where(moves, length, 1.0)), 0.0)
    return PolicyStep(scale * shares, jnp.array(True), jnp.array(False))


def project(model: LocalModel, c: Float[Array, " k"]) -> PolicyStep:
    """Return the projection of x_c: min ½(x − x_c)ᵀH(x − x_c) subject to h_iᵀx ≥ b_i.

    This is the projection (16) by Taylor expansion, equation (25); with x_c from `improve` it gives the
    update rule (26). x = x_c + Σ_i ν_i·H⁻¹h_i, where
    ν ≥ 0 solves the quadratic program max ν·(b − hᵀx_c) − ½νᵀSν. x may leave the trust region: the
    projection has no bound on the KL divergence, and from an infeasible policy the way back can be
    longer than δ. The line search shortens it. If the constraints contradict each other, or h_i = 0
    with b_i > 0, `met` is False and the step is the candidate with the smallest violation.
    """
    if len(model.needed) == 0:
        return PolicyStep(c, jnp.array(True), jnp.array(False))
    units = _in_reach(model, model.needed - model.gains(c)[1:])
    y, met = _shortest(units)
    return PolicyStep(c + units.coefficients(y), met, jnp.array(False))


def improve_within(model: LocalModel) -> PolicyStep:
    """Return CPO's update: equation (8), max gᵀx subject to ½xᵀHx ≤ δ and h_iᵀx ≥ b_i.

    If the constraints of a set A hold with equality, the shortest such step x_A has c_A = S_AA⁻¹b_A, and
    the reward's direction within them is u_A = H⁻¹g − Σ_{i∈A} (S_AA⁻¹r_A)_i·H⁻¹h_i. The candidates are
    x_A and x_A + t·u_A on the boundary of the trust region. If g lies in the span of the active
    constraints, u_A = 0 and x_A is the only candidate. If g = 0, the solution is the shortest step that
    satisfies the constraints. `met` is False if no step in the trust region is feasible; use `recover`
    then.
    """
    if len(model.needed) == 0:
        return PolicyStep(improve(model), jnp.array(True), jnp.array(False))
    units = _in_reach(model, model.needed)
    toward = units.cosines[1:, 0]

    def on(active: Array) -> Array:
        right = jnp.stack([units.needed, toward], axis=1)
        shortest, spent = _solve_on(active, units.cosines[1:, 1:], right).T
        along = jnp.concatenate([jnp.ones(1, spent.dtype), -spent])
        return _to_the_edge(units, jnp.pad(shortest, (1, 0)), along)

    y = jax.vmap(on)(_subsets(len(model.needed))).reshape(-1, len(units.reach))
    missed = jnp.maximum(units.missed(y), units.length(y) - 1)
    y, met = _best(y, _dot(y, units.cosines[0]), missed)
    return PolicyStep(units.coefficients(y), met & ~units.hopeless, jnp.array(False))


def recover(model: LocalModel) -> PolicyStep:
    """Return the step that maximises the smallest violated margin, min over b_i > 0 of h_iᵀx − b_i.

    The step satisfies ½xᵀHx ≤ δ. One violated constraint gives x = √(2δ/S)·H⁻¹h. With several, let the
    margins of a set A be equal: the shortest such step solves S_AA·ν = b_A + s·1 with Σν_i = 0, and the
    direction in which they rise together S_AA·ν = s·1 with Σν_i = 1. The candidate follows that
    direction to the boundary of the trust region, or stays if Σν_i·h_i = 0. Constraints with h_i = 0
    are left out, since no step improves them. Without a violated constraint the step is zero. Margins
    are compared in the constraints' own units. `met` is True if all constraints hold after the step.
    """
    units = _in_reach(model, model.needed)
    m = len(model.needed)
    if m == 0:
        return PolicyStep(jnp.zeros_like(units.reach), jnp.array(True), jnp.array(True))
    counted = units.movable & (model.needed > 0)
    reach = jnp.where(counted, units.reach[1:], jnp.inf)
    # Margins relative to the largest violation: small differences keep their digits.
    behind = (model.needed - jnp.max(model.needed, where=counted, initial=-jnp.inf)) / reach
    behind = jnp.where(counted, behind, 0.0)

    def on(subset: Array) -> Array:
        active = subset & counted
        share = jnp.where(active, jnp.min(reach, where=active, initial=jnp.inf) / reach, 0.0)
        # If the h_i balance, S_AA is singular and S_AA + 1·1ᵀ is not.
        matrix = units.cosines[1:, 1:] + share[:, None] * share[None, :]
        one, rising = _solve_on(active, matrix, jnp.stack([behind, share], axis=1)).T
        total = _dot(share, rising)
        rising = rising / jnp.where(total == 0, 1.0, total)
        equal = one - _dot(share, one) * rising
        return _to_the_edge(units, jnp.pad(equal, (1, 0)), jnp.pad(rising, (1, 0)))

    y = jax.vmap(on)(_subsets(m)).reshape(-1, m + 1)
    size = jnp.max(units.reach[1:], where=counted, initial=0.0)
    scale = jnp.where(counted, units.reach[1:] / jnp.where(size > 0, size, 1.0), 0.0)
    margins = scale * (_dot(y, units.cosines[:, 1:]) - behind)
    worst = jnp.min(margins, axis=1, where=counted, initial=jnp.inf)
    y, _ = _best(y, worst, units.length(y) - 1)
    met = (units.missed(y[None])[0] <= _rounding(y)) & ~units.hopeless
    return PolicyStep(units.coefficients(y), met, jnp.array(True))


def is_recoverable(model: LocalModel) -> Bool[Array, ""]:
    """Return whether some step with ½xᵀHx ≤ δ has h_iᵀx ≥ b_i for all i."""
    if len(model.needed) == 0:
        return jnp.array(True)
    units = _in_reach(model, model.needed)
    y, met = _shortest(units)
    return met & (units.length(y[None])[0] <= 1 + _rounding(y))


def recover_unless(feasible: Bool[Array, ""], model: LocalModel, step: PolicyStep) -> PolicyStep:
    """Return the step if the constraints can be met in the trust region, otherwise `recover`."""
    return jax.tree.map(lambda x, y: jnp.where(feasible, x, y), step, recover(model))


class _Units(NamedTuple):
    """The local model with directions of length one and the unit ball as trust region.

    A direction with zero gradient is replaced by one orthogonal to all others, which `coefficients`
    drops. All formulas stay valid, and its constraint (needed: zero) is inactive.
    """

    cosines: Float[Array, "k k"]
    reach: Float[Array, " k"]
    needed: Float[Array, " m"]
    movable: Bool[Array, " m"]
    hopeless: Bool[Array, ""]
    scale: Float[Array, " k"]

    def coefficients(self, y: Float[Array, " k"]) -> Float[Array, " k"]:
        return self.scale * y

    def length(self, y: Float[Array, "p k"]) -> Float[Array, " p"]:
        """Return the squared length of each candidate."""
        return jnp.sum(_dot(y, self.cosines) * y, axis=1)

    def farthest(self) -> Float[Array, ""]:
        """Return the largest gain that a constraint needs, at least one."""
        return jnp.maximum(1.0, self.needed.max(initial=0.0))

    def missed(self, y: Float[Array, "p k"]) -> Float[Array, " p"]:
        """Return the largest violation of each candidate, relative to `farthest`."""
        y = y / self.farthest()
        missed = jnp.max(self.needed / self.farthest() - _dot(y, self.cosines[:, 1:]), axis=1)
        # Contradictory constraints give huge coefficients of directions that nearly cancel. Beyond
        # 1/(4√eps) half the digits of the violation are lost, and the candidate is rejected.
        return jnp.where(jnp.max(jnp.abs(y), axis=1) < _epsilon(y) ** -0.5 / 4, missed, jnp.inf)


def _in_reach(model: LocalModel, needed: Float[Array, " m"]) -> _Units:
    reach = jnp.sqrt(2 * model.delta * jnp.maximum(jnp.diag(model.gram), 0.0))
    needs = jnp.concatenate([jnp.zeros(1, needed.dtype), needed])
    moved = (reach > _LEAST_REACH) & (_FARTHEST * reach > jnp.abs(needs))
    safe = jnp.where(moved, reach, 1.0)
    cosines = 2 * model.delta * (model.gram / safe[:, None] / safe[None, :])
    cosines = jnp.where(
        moved[:, None] & moved[None, :], cosines, jnp.eye(len(reach), dtype=reach.dtype)
    )
    return _Units(
        cosines,
        jnp.where(moved, reach, 0.0),
        jnp.where(moved[1:], needed / safe[1:], 0.0),
        moved[1:],
        jnp.any(~moved[1:] & ~(needed <= 0)),
        jnp.where(moved, 2 * model.delta / safe, 0.0),
    )


def _shortest(units: _Units) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
    """Return the shortest step that satisfies the constraints, in or outside the trust region."""

    def on(active: Array) -> Array:
        return _solve_on(active, units.cosines[1:, 1:], units.needed[:, None])[:, 0]

    y = jnp.pad(jax.vmap(on)(_subsets(len(units.needed))), ((0, 0), (1, 0)))
    y, met = _best(y, -units.length(y / units.farthest()), units.missed(y))
    return y, met & ~units.hopeless


def _solve_on(
    active: Bool[Array, " m"], matrix: Float[Array, "m m"], right: Float[Array, "m p"]
) -> Float[Array, "m p"]:
    """Return the solution on the active rows and columns, zero elsewhere; not finite if singular."""
    system = jnp.where(
        active[:, None] & active[None, :], matrix, jnp.eye(len(matrix), dtype=matrix.dtype)
    )
    factor = jnp.linalg.cholesky(system, symmetrize_input=False)
    return jax.scipy.linalg.cho_solve((factor, True), jnp.where(active[:, None], right, 0.0))


def _to_the_edge(
    units: _Units, start: Float[Array, " k"], along: Float[Array, " k"]
) -> Float[Array, "2 k"]:
    """Return the start, and the point at which a line orthogonal to it leaves the trust region."""
    length = units.length(along[None])[0]
    # A squared length below 64·eps is rounding error: it is the sum of a few products of unit vectors.
    is_direction = length > 64 * _epsilon(units.reach)
    left = jnp.maximum(1 - units.length(start[None])[0], 0.0)
    way = jnp.where(is_direction, jnp.sqrt(left / jnp.where(is_direction, length, 1.0)), 0.0)
    return jnp.stack([start, start + way * along])


def _best(
    y: Float[Array, "p k"], objective: Float[Array, " p"], missed: Float[Array, " p"]
) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
    """Return the best feasible candidate, or the one with the smallest violation if none is."""
    missed = jnp.where(jnp.all(jnp.isfinite(y), axis=1) & jnp.isfinite(missed), missed, jnp.inf)
    valid = missed <= _rounding(y)
    # Prefer the smallest set among equals: its system is better conditioned. 16·eps per active
    # constraint exceeds the rounding error of the objective.
    equals = 16 * _epsilon(objective) * jnp.count_nonzero(y, axis=1)
    score = jnp.where(valid.any(), jnp.where(valid, objective - equals, -jnp.inf), -missed)
    return y[jnp.argmax(score)], valid.any()


def _epsilon(x: Array) -> float:
    return float(jnp.finfo(x.dtype).eps)


def _rounding(x: Array) -> float:
    """Return the tolerance of a constraint, eps^⅔: 2e-5 of its reach in float32, 4e-11 in float64."""
    return _epsilon(x) ** (2 / 3)


def _subsets(m: int) -> Bool[Array, "p m"]:
    """Return all subsets of m constraints, the smallest first."""
    return jnp.array(sorted(itertools.product([False, True], repeat=m), key=np.sum))
