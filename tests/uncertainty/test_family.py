"""What every uncertainty set owes, whichever it is."""

import dataclasses
import json
import os
import warnings
from typing import NamedTuple

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from holdfast.uncertainty import KL, SETS

# One shape, and a radius for every row: then a set's methods are compiled once for nearly all tests.
SHAPE = (24, 5)
RADII = [0.0, 1e-12, 1e-4, 0.1, 1.0, 30.0, np.inf]
EPS = np.finfo(float).eps


# --- how sets are made


def intervals(radius, p):
    """Bounds around p: some that touch it, some that stay zero where it is."""
    rng = np.random.default_rng(0)
    low, high, closed = rng.random((3, *p.shape))
    lower = np.where(closed < 0.2, p, p * low)
    upper = np.where(closed > 0.7, p, p + (1 - p) * high)
    return SETS["interval"](lower, upper, radius=radius)


def transport(radius, p):
    """Outcomes on a line, further and further apart."""
    places = np.arange(p.shape[-1]) ** 1.5
    return SETS["wasserstein"](radius, metric=np.abs(places[:, None] - places))


def by_radius(make, **options):
    return lambda radius, p: make(radius, **options)


# How a set is made from a radius for rows p: by the radius alone, unless it is named here.
FROM_RADIUS = {name: by_radius(make) for name, make in SETS.items()}
FROM_RADIUS |= {"interval": intervals, "wasserstein": transport}
FROM_RADIUS = {name: make for name, make in FROM_RADIUS.items() if name in SETS}
# With an option a set is another one.
for name in ("total-variation", "contamination"):
    FROM_RADIUS[f"{name} within"] = by_radius(SETS[name], within_support=True)

every_set = pytest.mark.parametrize("make", FROM_RADIUS.values(), ids=FROM_RADIUS.keys())
searching = [name for name, make in SETS.items() if "max_steps" in make.__dataclass_fields__]


# --- rows


class Case(NamedTuple):
    """Nominal rows, some with zeros (one of them is certain), targets, some with ties, and radii."""

    p: np.ndarray
    y: np.ndarray
    radius: np.ndarray


def draw_case(seed, radii=RADII):
    rng = np.random.default_rng(seed)
    rows, width = SHAPE
    p = np.array([rng.dirichlet(np.full(width, rng.choice([0.2, 1.0, 5.0]))) for _ in range(rows)])
    p = np.where((rng.random(SHAPE) < 0.4) & (rng.random((rows, 1)) < 0.5), 0.0, p)
    p[0] = np.eye(width)[rng.integers(width)]
    p[:, 0] += p.sum(-1) == 0
    y = rng.normal(size=SHAPE)
    y = np.where(rng.random((rows, 1)) < 0.5, np.round(y), y)
    y = y * rng.choice([1e-9, 1.0, 1e9], (rows, 1))
    return Case(p / p.sum(-1, keepdims=True), y, rng.choice(radii, rows))


# Each seed gives 24 rows of different kinds.
SEEDS = range(400 if os.environ.get("HOLDFAST_CAMPAIGN") else 3)


def every_case(test):
    return pytest.mark.campaign(pytest.mark.parametrize("seed", SEEDS)(test))


def pick(seed, *options):
    """One of the options, another for each seed; every call with `options` of its own."""
    return options[seed % len(options)]


def span(y):
    return y.max(-1) - y.min(-1)


def slack(y):
    """What floating point may cost a row."""
    return 32 * EPS * np.abs(y).max(-1)


# --- worst responses


@every_set
@every_case
def test_the_response_is_a_member_and_its_value_is_bracketed(make, seed):
    case = draw_case(seed)
    p, y, radius = case
    ball = make(radius, p)
    kernel, value, lower, _ = ball.respond(p, y)
    # Nature never helps.
    assert (value <= (p * y).sum(-1) + slack(y)).all()
    assert (value >= y.min(-1) - slack(y)).all()
    # The value is that of the response, and the dual is below it and close.
    assert (np.abs((kernel * y).sum(-1) - value) <= slack(y)).all()
    assert (lower <= value + slack(y)).all()
    assert (value - lower <= 1e-9 * span(y) + slack(y)).all()
    assert (kernel >= 0).all()
    assert ball.contains(p, kernel).all()
    assert (ball.divergence(p, kernel) <= radius * (1 + 1e-8) + 1e-14).all()
    # To what certificates allow for: a row's excess is multiplied by the values it leads to.
    assert (np.abs(kernel.sum(-1) - 1) <= 16 * EPS).all()


@every_set
@every_case
def test_the_short_forms_are_parts_of_the_response(make, seed):
    case = draw_case(seed)
    p, y, radius = case
    ball = make(radius, p)
    response = ball.respond(p, y)
    np.testing.assert_array_equal(ball.worst_response(p, y), response.kernel)
    np.testing.assert_array_equal(ball.dual_value(p, y), response.lower)
    again, lower, upper = ball.bracket(p, y)
    np.testing.assert_array_equal(again.kernel, response.kernel)
    assert (lower <= upper).all()
    assert (upper - lower <= 1e-9 * span(y) + 2 * slack(y)).all()


@every_set
@every_case
def test_a_larger_radius_is_worse(make, seed):
    case = draw_case(seed)
    p, y, _ = case
    values = np.array([make(np.full(len(p), r), p).respond(p, y).value for r in RADII])
    assert (np.diff(values, axis=0) <= 1e-9 * span(y) + slack(y)).all()


@every_set
@every_case
def test_radius_zero_leaves_nature_no_choice(make, seed):
    case = draw_case(seed)
    p, y, _ = case
    ball = make(np.zeros(len(p)), p)
    response = ball.respond(p, y)
    np.testing.assert_allclose(response.kernel, p, rtol=4 * EPS)
    for value in (response.value, response.lower):
        assert (np.abs(value - (p * y).sum(-1)) <= slack(y)).all()
    assert ball.contains(p, p).all()


@every_set
@every_case
def test_constant_targets_leave_nature_indifferent(make, seed):
    case, level = draw_case(seed), pick(seed, 0.0, -3.5, 1e12)
    p, _, radius = case
    ball = make(radius, p)
    response = ball.respond(p, np.full_like(p, level))
    np.testing.assert_allclose(response.value, level, rtol=8 * EPS)
    np.testing.assert_allclose(response.lower, level, rtol=8 * EPS)
    assert ball.contains(p, response.kernel).all()


@every_set
@every_case
def test_values_move_with_the_targets(make, seed):
    case, shift = draw_case(seed), pick(seed, -7.0, 1e6)
    p, y, radius = case
    ball = make(radius, p)
    moved = ball.respond(p, 2 * y + shift).value
    expected = 2 * ball.respond(p, y).value + shift
    assert (np.abs(moved - expected) <= 1e-9 * span(y) + slack(2 * y + shift)).all()


@every_set
@every_case
def test_tiny_nominal_probabilities_close_the_gap(make, seed):
    """Beyond a convex solver's range: our own primal–dual gap is at most 1e-9 of the span."""
    case, smallest = draw_case(seed), pick(seed, 1e-12, 1e-50, 1e-300)
    _, y, radius = case
    rng = np.random.default_rng([seed, 1])  # not the draws of the case
    p = 10.0 ** rng.uniform(np.log10(smallest), 0, SHAPE)
    p[np.arange(len(p)), rng.integers(SHAPE[1], size=len(p))] = 1.0
    p = p / p.sum(-1, keepdims=True)
    radius = np.where(rng.random(len(p)) < 0.5, radius, 10.0 ** rng.uniform(-12, 3, len(p)))
    ball = make(radius, p)
    response = ball.respond(p, y)
    gap = response.value - response.lower
    assert (gap <= 1e-9 * span(y) + slack(y)).all()
    assert (gap >= -slack(y)).all()
    assert ball.contains(p, response.kernel).all()
    assert ball.contains(p, ball.project(p, rng.normal(size=SHAPE))).all()


@every_set
@every_case
def test_support_is_kept_where_the_set_says_so(make, seed):
    case = draw_case(seed)
    p, y, radius = case
    ball = make(radius, p)
    assert ball.fits_lists or not ball.keeps_support
    outside = np.roll(p, 1, axis=-1)
    beyond = ((outside > 0) & (p == 0)).any(-1)
    if ball.keeps_support:
        assert (ball.worst_response(p, y)[p == 0] == 0).all()
        assert (ball.project(p, np.full_like(p, 1 / p.shape[-1]))[p == 0] == 0).all()
        assert not ball.contains(p, outside)[beyond].any()
    reached = ball.reach(p)
    assert reached[p > 0].all()
    assert (ball.worst_response(p, y)[~reached] == 0).all()


@every_set
@every_case
def test_scaling_scales_the_radius(make, seed):
    case, factor = draw_case(seed), pick(seed, 0.0, 0.5, 3.0)
    p, y, radius = case
    radius = np.minimum(radius, 5.0)
    ball = make(radius, p)
    scaled = ball.scaled(factor)
    assert type(scaled) is type(ball)
    expected = make(factor * radius, p).respond(p, y).value
    np.testing.assert_array_equal(scaled.respond(p, y).value, expected)
    np.testing.assert_array_equal(ball.scaled(1.0).radius, ball.radius)


@every_set
def test_a_radius_for_every_row_equals_one_for_all(make):
    p, y, radii = draw_case(0)
    together = make(radii, p).respond(p, y)
    for radius in RADII:
        alone = make(np.full(len(p), radius), p).respond(p, y)
        for part, other in zip(together, alone, strict=True):
            for i in np.flatnonzero(radii == radius):
                np.testing.assert_allclose(part[i], other[i], rtol=1e-12, atol=1e-12 * span(y)[i])


@every_set
@every_case
def test_a_guess_changes_the_time_and_not_the_answer(make, seed):
    case, start = draw_case(seed), np.random.default_rng([seed, 1]).uniform(-20, 20)
    p, y, radius = case
    ball = make(radius, p)
    guess = np.full(len(p), 10.0**start)
    helped, plain = ball.respond(p, y, guess), ball.respond(p, y)
    assert (np.abs(helped.value - plain.value) <= 1e-9 * span(y) + slack(y)).all()
    assert (helped.value - helped.lower <= 1e-9 * span(y) + slack(y)).all()
    assert ball.contains(p, helped.kernel).all()


@pytest.mark.parametrize("name", searching)
@pytest.mark.parametrize("max_steps", [1, 3])
@every_case
def test_a_search_that_is_stopped_early_is_still_a_certificate(name, max_steps, seed):
    case = draw_case(seed)
    p, y, radius = case
    ball = FROM_RADIUS[name](radius, p)
    truth = ball.respond(p, y)
    early = dataclasses.replace(ball, max_steps=max_steps).respond(p, y)
    assert (early.lower <= truth.value + slack(y)).all()
    assert (early.value >= truth.lower - slack(y)).all()
    assert ball.contains(p, early.kernel).all()
    assert (np.abs((early.kernel * y).sum(-1) - early.value) <= slack(y)).all()


# --- projections


def geometries(ball):
    """The ways in which a set can project: the Euclidean one, and its own where it has one."""
    yield ball.project
    if isinstance(ball, KL):
        yield lambda p, q: ball.project(p, q, geometry="kl")


@every_set
@every_case
def test_projections_are_members_and_their_own_projections(make, seed):
    case = draw_case(seed)
    p, _, radius = case
    ball = make(radius, p)
    q = np.random.default_rng([seed, 1]).dirichlet(np.full(p.shape[-1], 0.5), len(p))
    for project in geometries(ball):
        nearest = project(p, q)
        assert ball.contains(p, nearest).all()
        assert (np.abs(nearest.sum(-1) - 1) <= 1e-12).all()
        np.testing.assert_allclose(project(p, nearest), nearest, atol=1e-7)


@every_set
@every_case
def test_any_vector_can_be_projected(make, seed):
    case, far = draw_case(seed), pick(seed, 1.0, 1e9, 1e40, 1e3)
    p, _, radius = case
    ball = make(radius, p)
    vector = far * np.random.default_rng([seed, 1]).normal(size=p.shape)
    assert ball.contains(p, ball.project(p, vector)).all()


@every_set
@every_case
def test_members_are_their_own_projections(make, seed):
    """Members of all kinds: from the nominal row to the edge of the set."""
    case, inside = draw_case(seed), pick(seed, 0.5, 0.0, 1.0)
    p, y, radius = case
    ball = make(radius, p)
    member = p + inside * (ball.worst_response(p, y) - p)
    for project in geometries(ball):
        np.testing.assert_allclose(project(p, member), member, atol=1e-7)


# --- a convex solver


def by_transport(ball, p, q):
    plan = cp.Variable((len(p), len(p)), nonneg=True)
    cost = cp.sum(cp.multiply(np.asarray(ball.metric), plan))
    return [cp.sum(plan, axis=1) == p, cp.sum(plan, axis=0) == q, cost <= ball.radius]


# What a solver has to be told about a row q besides that it is a distribution.
DESCRIBED = {
    "kl": lambda ball, p, q: [cp.sum(cp.rel_entr(q[p > 0], p[p > 0])) <= ball.radius],
    "total-variation": lambda ball, p, q: [cp.norm1(q - p) / 2 <= ball.radius],
    "chi-square": lambda ball, p, q: [
        cp.sum_squares(cp.multiply((q - p)[p > 0], p[p > 0] ** -0.5)) <= ball.radius
    ],
    "contamination": lambda ball, p, q: [q >= (1 - min(ball.radius, 1.0)) * p],
    "interval": lambda ball, p, q: [
        q >= p - ball.radius * (p - ball.lower),
        q <= p + ball.radius * (ball.upper - p),
    ],
    "wasserstein": by_transport,
}


def solve(ball, p, objective):
    """The least objective over a row's set, or None where the solver does not say optimal."""
    q = cp.Variable(len(p), nonneg=True)
    constraints = [cp.sum(q) == 1, *DESCRIBED[ball.name](ball, p, q)]
    if ball.keeps_support and (p == 0).any():
        constraints.append(q[p == 0] == 0)
    problem = cp.Problem(cp.Minimize(objective(q)), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cp.CLARABEL)
    return problem.value if problem.status == cp.OPTIMAL else None


def a_row(ball, i):
    own, shared = ball.by_row()
    return eqx.combine(jax.tree.map(lambda leaf: leaf[i], own), shared)


@every_set
def test_worst_responses_and_projections_equal_a_convex_solver(make):
    """In the sense of the design: objectives agree, and what is ours is a member."""
    rng = np.random.default_rng(0)
    p, y, _ = draw_case(0)
    p = np.where(p > 1e-6, p, 0.0)
    p, y = p / p.sum(-1, keepdims=True), y / np.abs(y).max(-1, keepdims=True).clip(1e-12)
    z = p + rng.normal(size=SHAPE) * rng.choice([0.03, 0.3, 1.0], (len(p), 1))
    ball = make(10.0 ** rng.uniform(-3, 0.5, len(p)), p)
    response, nearest = ball.respond(p, y), ball.project(p, z)
    distance = ((nearest - z) ** 2).sum(-1)
    assert (ball.divergence(p, response.kernel) <= ball.radius + 1e-8).all()
    assert (ball.divergence(p, nearest) <= ball.radius + 1e-8).all()
    unsolved = 0
    for i in range(0, len(p), 2):
        row = a_row(ball, i)
        for ours, objective in (
            (response.value[i], lambda q, i=i: q @ y[i]),
            (distance[i], lambda q, i=i: cp.sum_squares(q - z[i])),
        ):
            found = solve(row, p[i], objective)
            unsolved += found is None
            assert found is None or abs(ours - found) <= 1e-6 * max(1.0, span(y)[i])
    assert unsolved <= 2


# --- at the door


@every_set
def test_what_is_not_a_distribution_is_not_a_member(make):
    p = np.full(SHAPE, 1 / SHAPE[1])
    ball = make(np.ones(len(p)), p)
    for q in ([0.2, 0.2, 0.2, 0.2, 0.1], [0.2, 0.2, 0.2, 0.2, 0.3], [0.4, 0.5, 0.1, 0.1, -0.1]):
        assert not ball.contains(p, np.broadcast_to(q, SHAPE)).any()
    assert ball.contains(p, p).all()


@every_set
@pytest.mark.parametrize("dtype", [np.float32, "jax"])
def test_results_are_float64_numpy_and_the_setting_outside_is_untouched(make, dtype):
    assert not jax.config.jax_enable_x64
    p, y = np.full(SHAPE, 1 / 8), np.tile([0.5, 2.0, 3.0, -1.0, 0.0], (SHAPE[0], 1))
    p[:, 0] = 1 / 2
    arrays = (
        (jnp.asarray(p), jnp.asarray(y)) if dtype == "jax" else (p.astype(dtype), y.astype(dtype))
    )
    ball = make(np.full(len(p), 0.1), p)
    response = ball.respond(*arrays)
    results = (*response, ball.divergence(*arrays), ball.project(*arrays), ball.dual_value(*arrays))
    for result in results:
        assert type(result) is np.ndarray
        assert result.dtype == np.float64
    assert ball.contains(p, response.kernel).dtype == bool
    np.testing.assert_allclose(response.value, ball.respond(p, y).value, rtol=1e-15)
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32


@every_set
def test_sets_can_be_used_inside_a_user_s_own_jit(make):
    rng = np.random.default_rng(0)
    p, signal = rng.dirichlet(np.full(SHAPE[1], 5.0), SHAPE[0]), rng.normal(size=SHAPE[0])
    values = rng.normal(size=SHAPE[1])
    y = signal[:, None] + 0.9 * values
    ball, same = make(0.1, p), make(np.full(len(p), 0.1), p)
    expected = same.respond(p, y)

    @jax.jit
    def set_is_an_argument(ball, p, signal, values):
        # Targets that are made here may be made twice and rounded differently: none may rely on it.
        y = jnp.broadcast_to(signal[:, None] + 0.9 * values, p.shape)
        return ball.bracket(p, y)

    @jax.jit
    def set_and_rows_are_closed_over(y):
        return ball.respond(p, y)

    @jax.jit
    def all_are_constants(x):
        return x + same.dual_value(p.copy(), y.copy())

    with jax.enable_x64(True):
        found = set_is_an_argument(ball, p, signal, values)
        of_more = set_is_an_argument(ball.scaled(20.0), p, signal, values)
    response, lower, upper = jax.tree.map(np.asarray, found)
    _, lower_of_more, upper_of_more = jax.tree.map(np.asarray, of_more)
    assert (upper - lower <= 1e-12).all()
    assert (upper_of_more - lower_of_more <= 1e-12).all()
    assert (lower_of_more <= upper).all()
    for part, other in zip(response, expected, strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-11, atol=1e-12)
    for part, other in zip(set_and_rows_are_closed_over(y), expected, strict=True):
        assert part.dtype == np.float32
        np.testing.assert_allclose(part, other, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(all_are_constants(1.0), 1 + expected.lower, rtol=1e-5)


@every_set
@pytest.mark.parametrize("radius", [-1e-9, np.nan, "wide", [[0.1], [0.2, 0.3]]])
def test_a_radius_that_makes_no_sense_is_refused(make, radius):
    with pytest.raises(ValueError, match=r"^radius: expected"):
        make(radius, np.full((1, 2), 0.5))


@every_set
def test_a_radius_of_another_shape_than_the_model_is_refused(make):
    p = np.full((2, 3, 2), 0.5)
    make(0.1, p).check_fits(p)
    make(np.full((2, 3), 0.1), p).check_fits(p)
    with pytest.raises(
        ValueError, match=r"^radius: expected a number or shape \(2, 3\), got \(3,\)"
    ):
        make(np.full(3, 0.1), p).check_fits(p)


@every_set
def test_a_set_survives_being_stored(make):
    p = np.full((2, 2, 3), 1 / 3)
    ball = make(np.array([[0.1, np.inf], [0.0, 2.0]]), p)
    header, arrays = ball.to_arrays()
    again = type(ball).from_arrays(json.loads(json.dumps(header)), arrays)
    assert header["set"] == ball.name
    assert SETS[header["set"]] is type(ball)
    assert jax.tree.structure(again) == jax.tree.structure(ball)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, ball))


@every_set
def test_a_set_can_be_laid_out_with_more_rows_and_entries_than_a_model_has(make):
    """As tables do: what is added has radius zero, bounds zero and no probability."""
    p, y, radius = draw_case(1)
    plain = make(radius, p).respond(p, y)
    p, y, radius = (part.reshape(4, 6, *part.shape[1:]) for part in (p, y, radius))
    ball = make(radius, p)
    added = 3 if ball.fits_lists else 0
    rows, entries = [(0, 2), (0, 0)], [(0, 2), (0, 0), (0, added)]
    laid_out = ball.laid_out(lambda x: np.pad(x, rows), lambda x: np.pad(x, entries))
    wide_p, wide_y = np.pad(p, entries), np.pad(y, entries, constant_values=-1e10)
    wide_p[4:, :, 0] = 1.0
    wide = laid_out.respond(wide_p, wide_y)
    for ours, other in ((wide.value, plain.value), (wide.lower, plain.lower)):
        away = np.abs(ours[:4] - other.reshape(4, 6))
        assert (away <= 1e-9 * span(y) + slack(y)).all()
    assert (wide.kernel[:4, :, SHAPE[1] :] == 0).all()
    np.testing.assert_array_equal(wide.kernel[4:], wide_p[4:])
