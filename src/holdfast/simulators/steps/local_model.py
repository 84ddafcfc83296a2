"""The policy update of the deep part: improve, project, both at once, recover; on the local model.

Around the current parameters the reward gains gᵀx, constraint i's utility gains h_iᵀx, of which it needs
b_i = d_i − V_i, and the policy moves by KL = ½xᵀHx. Every solution is x = c_0·H⁻¹g + Σ_i c_i·H⁻¹h_i, so
all is done on the coefficients c, with the m+1 directions' products in place of the n parameters.

Each problem is solved exactly by trying every set of constraints that may hold with equality: on each
the solution is a small linear system, and the best candidate that meets what it must is the answer.
Candidates are judged as points, not by the signs of their multipliers: a set whose system is singular
(a constraint given twice) drops out, and a smaller one has the same point.

Inside, lengths are in units of the trust region's radius, √(xᵀHx/2δ), directions have length one and
constraint i is divided by its reach √(2δ·h_iᵀH⁻¹h_i), the most it can gain in the trust region. So no
threshold depends on anyone's units.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

MOST_CONSTRAINTS = 8

# Where the gradient is so small that a constraint needs this many trust regions (or that nothing in
# the trust region changes by more than the second number) it counts as zero: no step moves it.
_FARTHEST = 1e8
_LEAST_REACH = 1e-15

# GPUs multiply float32 matrices with 10 bits of mantissa unless told otherwise.
_dot = functools.partial(jnp.matmul, precision="highest")


class LocalModel(NamedTuple):
    """The reward, the constraints and the KL divergence around the current policy; see `local_model`."""

    gram: Float[Array, "k k"]
    """[[q, rᵀ], [r, S]] with q = gᵀH⁻¹g, r_i = gᵀH⁻¹h_i, S_ij = h_iᵀH⁻¹h_j; k = m + 1."""
    needed: Float[Array, " m"]
    """b_i = d_i − V_i: what constraint i must gain, positive where it is violated now."""
    delta: Float[Array, ""]
    """δ, the radius of the trust region."""
    directions: Float[Array, "k n"]
    """H⁻¹g, then H⁻¹h_i."""

    def step(self, c: Float[Array, " k"]) -> Float[Array, " n"]:
        """The change of the parameters, x = c_0·H⁻¹g + Σ_i c_i·H⁻¹h_i."""
        return _dot(c, self.directions)

    def gains(self, c: Float[Array, " k"]) -> Float[Array, " k"]:
        """What the step gains to first order: gᵀx, then each h_iᵀx."""
        return _dot(self.gram, c)

    def kl(self, c: Float[Array, " k"]) -> Float[Array, ""]:
        """½xᵀHx."""
        return _dot(c, _dot(self.gram, c)) / 2


class Step(NamedTuple):
    """The coefficients of a step, whether it meets the linearised constraints, whether it recovers."""

    coefficients: Float[Array, " k"]
    met: Bool[Array, ""]
    recovered: Bool[Array, ""]


def local_model(
    g: Float[Array, " n"],
    h: Float[Array, "m n"],
    inverse_g: Float[Array, " n"],
    inverse_h: Float[Array, "m n"],
    needed: Float[Array, " m"],
    delta: float | Float[Array, ""],
) -> LocalModel:
    """The local model from the gradients and the solutions H⁻¹g, H⁻¹h_i.

    A constraint is a utility: a step must have h_iᵀx ≥ b_i. Conjugate gradients that stop early leave
    the products slightly asymmetric; the symmetric part is taken.

    Args:
        g: gradient of the reward.
        h: gradients of the constraints' utilities, at most 8, in the unit of `needed`.
        inverse_g: H⁻¹g.
        inverse_h: H⁻¹h_i.
        needed: b_i = d_i − V_i.
        delta: radius of the trust region.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> g, h = jnp.array([1.0, 0.0]), jnp.array([[-1.0, 1.0]])
        >>> model = local_model(g, h, g, h, needed=jnp.array([0.0]), delta=0.5)  # H = I
        >>> step = jax.jit(rcpo_step)(model)
        >>> print(model.step(step.coefficients).round(3), step.met)
        [0.5 0.5] True
    """
    m = len(needed)
    if m > MOST_CONSTRAINTS:
        raise ValueError(f"at most {MOST_CONSTRAINTS} constraints are accepted, not {m}")
    directions = jnp.concatenate([inverse_g[None], inverse_h])
    gram = _dot(jnp.concatenate([g[None], h]), directions.T)
    return LocalModel((gram + gram.T) / 2, needed, jnp.asarray(delta, gram.dtype), directions)


def improve(model: LocalModel) -> Float[Array, " k"]:
    """Equation (13) by Taylor: max gᵀx subject to ½xᵀHx ≤ δ; returns c, of x = √(2δ/q)·H⁻¹g.

    Where g = 0 the step is zero.
    """
    units = _in_reach(model, model.needed)
    return units.coefficients(jnp.zeros_like(units.reach).at[0].set(1.0))


def project(model: LocalModel, c: Float[Array, " k"]) -> Step:
    """Equations (16) and (26): min ½(x − x_c)ᵀH(x − x_c) subject to h_iᵀx ≥ b_i.

    x = x_c + Σ_i ν_i·H⁻¹h_i, where ν ≥ 0 solves the quadratic program max ν·(b − hᵀx_c) − ½νᵀSν.
    x may leave the trust region: the projection has no bound on the KL divergence, and from an
    infeasible policy the way back can be longer than δ. The caller's line search shortens it.
    Where the constraints contradict each other, or h_i = 0 with b_i > 0, `met` is False and the
    step is the candidate that misses them least.
    """
    if len(model.needed) == 0:
        return Step(c, jnp.array(True), jnp.array(False))
    units = _in_reach(model, model.needed - model.gains(c)[1:])
    y, met = _shortest(units)
    return Step(c + units.coefficients(y), met, jnp.array(False))


def improve_within(model: LocalModel) -> Step:
    """Equation (8), CPO's update: max gᵀx subject to ½xᵀHx ≤ δ and h_iᵀx ≥ b_i.

    With the constraints of a set A held at equality, the shortest such step x_A has c_A = S_AA⁻¹b_A, and
    the reward's direction within them is u_A = H⁻¹g − Σ_{i∈A} (S_AA⁻¹r_A)_i·H⁻¹h_i; the candidates are
    x_A, and x_A + t·u_A as far as the trust region reaches. Where g lies in the span of the active
    constraints u_A = 0, and x_A is all there is. Where g = 0 the answer is the shortest step that meets
    the constraints. `met` is False where trust region and constraints do not meet; the step is then of
    no use, see `recover`.
    """
    if len(model.needed) == 0:
        return Step(improve(model), jnp.array(True), jnp.array(False))
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
    return Step(units.coefficients(y), met & ~units.hopeless, jnp.array(False))


def recover(model: LocalModel) -> Step:
    """Maximise the smallest violated margin, min over b_i > 0 of h_iᵀx − b_i, subject to ½xᵀHx ≤ δ.

    One violated constraint gives x = √(2δ/S)·H⁻¹h. Several: with the margins of a set A equal, the
    shortest such step has S_AA·ν = b_A + s·1 with Σν_i = 0, the direction in which they rise together
    S_AA·ν = s·1 with Σν_i = 1; the candidate goes along the second as far as the trust region reaches
    (nowhere where the h_i balance, Σν_i·h_i = 0).
    Constraints with h_i = 0 are left out, since no step helps them. Without a violated constraint the
    step is zero. Margins are compared in the constraints' own units. `met`: all constraints hold after.
    """
    units = _in_reach(model, model.needed)
    m = len(model.needed)
    if m == 0:
        return Step(jnp.zeros_like(units.reach), jnp.array(True), jnp.array(True))
    counted = units.movable & (model.needed > 0)
    reach = jnp.where(counted, units.reach[1:], jnp.inf)
    # Margins are relative to the worst one, which leaves small differences their digits.
    behind = (model.needed - jnp.max(model.needed, where=counted, initial=-jnp.inf)) / reach
    behind = jnp.where(counted, behind, 0.0)

    def on(subset: Array) -> Array:
        active = subset & counted
        share = jnp.where(active, jnp.min(reach, where=active, initial=jnp.inf) / reach, 0.0)
        # S_AA + 1·1ᵀ is regular where the h_i balance, S_AA is not.
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
    return Step(units.coefficients(y), met, jnp.array(True))


def is_recoverable(model: LocalModel) -> Bool[Array, ""]:
    """Whether a step in reach is feasible: the shortest x with h_iᵀx ≥ b_i for all i has ½xᵀHx ≤ δ."""
    if len(model.needed) == 0:
        return jnp.array(True)
    units = _in_reach(model, model.needed)
    y, met = _shortest(units)
    return met & (units.length(y[None])[0] <= 1 + _rounding(y))


def rcpo_step(model: LocalModel) -> Step:
    """Equation (26): improve, then project; recover where no step in the trust region is feasible.

    Without uncertainty this is PCPO's update. The step may leave the trust region, see `project`.
    """
    return _either(is_recoverable(model), project(model, improve(model)), recover(model))


def cpo_step(model: LocalModel) -> Step:
    """Equation (8): improve within the constraints; recover where no step in reach is feasible."""
    within = improve_within(model)
    return _either(within.met, within, recover(model))


class _Units(NamedTuple):
    """The local model with directions of length one and the trust region the unit ball.

    A direction that no step moves is replaced by one orthogonal to all, which `coefficients` drops: so
    every formula stands, and its constraint (needed: zero) is idle.
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
        """The squared length of each candidate."""
        return jnp.sum(_dot(y, self.cosines) * y, axis=1)

    def farthest(self) -> Float[Array, ""]:
        """The most that a constraint needs, at least one."""
        return jnp.maximum(1.0, self.needed.max(initial=0.0))

    def missed(self, y: Float[Array, "p k"]) -> Float[Array, " p"]:
        """How far each candidate is from the constraint that it misses most, relative to `farthest`."""
        y = y / self.farthest()
        missed = jnp.max(self.needed / self.farthest() - _dot(y, self.cosines[:, 1:]), axis=1)
        # Directions that nearly cancel (contradictory constraints) leave no digits to say so.
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
    """The shortest step that meets the constraints, the trust region apart."""

    def on(active: Array) -> Array:
        return _solve_on(active, units.cosines[1:, 1:], units.needed[:, None])[:, 0]

    y = jnp.pad(jax.vmap(on)(_subsets(len(units.needed))), ((0, 0), (1, 0)))
    y, met = _best(y, -units.length(y / units.farthest()), units.missed(y))
    return y, met & ~units.hopeless


def _solve_on(
    active: Bool[Array, " m"], matrix: Float[Array, "m m"], right: Float[Array, "m p"]
) -> Float[Array, "m p"]:
    """The system of the active rows and columns; zero elsewhere, not finite where it is singular."""
    system = jnp.where(
        active[:, None] & active[None, :], matrix, jnp.eye(len(matrix), dtype=matrix.dtype)
    )
    factor = jnp.linalg.cholesky(system, symmetrize_input=False)
    return jax.scipy.linalg.cho_solve((factor, True), jnp.where(active[:, None], right, 0.0))


def _to_the_edge(
    units: _Units, start: Float[Array, " k"], along: Float[Array, " k"]
) -> Float[Array, "2 k"]:
    """The start, and where a line from it, at right angles to it, leaves the trust region."""
    length = units.length(along[None])[0]
    # A shorter direction is what rounding left of zero.
    is_direction = length > 64 * _epsilon(units.reach)
    left = jnp.maximum(1 - units.length(start[None])[0], 0.0)
    way = jnp.where(is_direction, jnp.sqrt(left / jnp.where(is_direction, length, 1.0)), 0.0)
    return jnp.stack([start, start + way * along])


def _best(
    y: Float[Array, "p k"], objective: Float[Array, " p"], missed: Float[Array, " p"]
) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
    """The best candidate among those that miss nothing; where all do, the one that misses least."""
    missed = jnp.where(jnp.all(jnp.isfinite(y), axis=1) & jnp.isfinite(missed), missed, jnp.inf)
    valid = missed <= _rounding(y)
    # Of equals the smallest set: its system is the better conditioned.
    equals = 16 * _epsilon(objective) * jnp.count_nonzero(y, axis=1)
    score = jnp.where(valid.any(), jnp.where(valid, objective - equals, -jnp.inf), -missed)
    return y[jnp.argmax(score)], valid.any()


def _either(first: Bool[Array, ""], a: Step, b: Step) -> Step:
    return jax.tree.map(lambda x, y: jnp.where(first, x, y), a, b)


def _epsilon(x: Array) -> float:
    return float(jnp.finfo(x.dtype).eps)


def _rounding(x: Array) -> float:
    """What rounding may leave of a constraint: 2e-5 of its reach in float32, 4e-11 in float64."""
    return _epsilon(x) ** (2 / 3)


def _subsets(m: int) -> Bool[Array, "p m"]:
    """All sets of m constraints, the smallest first."""
    return jnp.array(sorted(itertools.product([False, True], repeat=m), key=np.sum))
