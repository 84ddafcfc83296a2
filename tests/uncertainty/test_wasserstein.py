"""The Wasserstein ball against linear programs, against closed forms, and against itself."""

import warnings

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse.csgraph
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.uncertainty.wasserstein import Wasserstein, _TransportPlan

SHAPE = (6, 5)
EPS = np.finfo(float).eps
RADII = [0.0, 1e-12, 1e-4, 0.1, 1.0, 30.0, np.inf]

# Nothing is gained by shrinking a seed.
light = settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.generate])
seeds = st.integers(0, 2**32 - 1)


# --- metrics


def plane(rng, size):
    """Points in the plane."""
    points = rng.normal(size=(size, 2))
    return np.linalg.norm(points[:, None] - points, axis=-1)


def roads(rng, size):
    """Shortest paths between towns."""
    lengths = np.triu(rng.uniform(0.1, 2.0, (size, size)), 1)
    paths = scipy.sparse.csgraph.shortest_path(lengths, directed=False)
    return np.minimum(paths, paths.T)


def line(rng, size):
    """Neighbours on a line, with many equal distances."""
    return np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(float)


def discrete(rng, size):
    return 1 - np.eye(size)


def twins(rng, size):
    """The last state is at distance zero from the first."""
    metric = plane(rng, size)
    metric[-1], metric[:, -1] = metric[0], metric[:, 0]
    metric[-1, -1] = 0
    return metric


METRICS = [plane, roads, line, discrete, twins]


@st.composite
def problems(draw, shape=SHAPE, metrics=METRICS):
    """Nominal rows, some with zeros, targets, some with ties, a metric, and a radius for each row."""
    rng = np.random.default_rng(draw(seeds))
    p = rng.dirichlet(np.full(shape[1], draw(st.sampled_from([0.2, 1.0, 5.0]))), shape[0])
    if draw(st.booleans()):
        p = np.where(rng.random(shape) < 0.4, 0.0, p)
        p[:, 0] += p.sum(-1) == 0
    y = rng.normal(size=shape)
    if draw(st.booleans()):
        y = np.round(y)
    metric = draw(st.sampled_from(metrics))(rng, shape[1])
    radius = np.where(
        rng.random(shape[0]) < 0.4,
        rng.choice(RADII, shape[0]),
        10 ** rng.uniform(-3, 0.5, shape[0]),
    )
    return p / p.sum(-1, keepdims=True), y, metric, radius


# --- oracles


def leaving(size):
    """Σ_j T_ij for a plan T, as a matrix."""
    return np.kron(np.eye(size), np.ones(size))


def least(p, y, metric, radius):
    """min q·y over all plans from p, by HiGHS."""
    size = len(p)
    bound = {"A_ub": metric.reshape(1, -1), "b_ub": [radius]} if np.isfinite(radius) else {}
    found = scipy.optimize.linprog(np.tile(y, size), A_eq=leaving(size), b_eq=p, **bound)
    assert found.status == 0
    return found.fun


def transport(p, q, metric):
    """W₁ with every plan from p to q allowed, by HiGHS."""
    size = len(p)
    arriving = np.kron(np.ones(size), np.eye(size))
    found = scipy.optimize.linprog(
        metric.ravel(), A_eq=np.r_[leaving(size), arriving][:-1], b_eq=np.r_[p, q][:-1]
    )
    assert found.status == 0
    return found.fun


def nearest_distance(p, z, metric, radius):
    """min ‖q − z‖² over the ball by Clarabel, or None where it does not say optimal."""
    plan = cp.Variable(metric.shape, nonneg=True)
    constraints = [cp.sum(plan, axis=1) == p]
    if np.isfinite(radius):
        constraints.append(cp.sum(cp.multiply(metric, plan)) <= radius)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(cp.sum(plan, axis=0) - z)), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cp.CLARABEL)
    return problem.value if problem.status == cp.OPTIMAL else None


def span(y):
    return np.ptp(y, axis=-1)


def slack(y):
    return 32 * EPS * np.abs(y).max(-1)


# --- worst responses


@given(data=problems())
@settings(light, max_examples=30)
def test_worst_response_equals_a_linear_program(data):
    p, y, metric, radius = data
    response = Wasserstein(radius, metric=metric).respond(p, y)
    solved = np.array([least(a, b, metric, r) for a, b, r in zip(p, y, radius, strict=True)])
    assert (np.abs(response.value - solved) <= 1e-6 * np.maximum(1, span(y))).all()


@given(
    data=problems(), scale=st.sampled_from([1e-9, 1.0, 1e9]), unit=st.sampled_from([1e-6, 1, 1e6])
)
@settings(light, max_examples=40)
def test_the_gap_is_closed_and_the_plan_proves_membership(data, scale, unit):
    p, y, metric, radius = data
    y = y * scale
    response, lower, upper = Wasserstein(radius * unit, metric=metric * unit).bracket(p, y)
    assert (upper - lower <= 1e-12 * span(y) + 2 * slack(y)).all()
    gap = response.value - response.lower
    assert (gap >= 0).all()
    assert (gap <= 1e-12 * span(y) + slack(y)).all()
    assert (np.abs((response.kernel * y).sum(-1) - response.value) <= slack(y)).all()
    assert (np.abs(response.kernel.sum(-1) - 1) <= 16 * EPS).all()
    assert (response.kernel >= 0).all()


@given(data=problems())
@light
def test_responses_and_their_proofs_agree_with_the_linear_program(data):
    p, y, metric, radius = data
    ball = Wasserstein(radius, metric=metric)
    q = ball.worst_response(p, y)
    assert ball.contains(p, q).all()
    assert not Wasserstein(0.0, metric=metric).contains(p, q)[(ball.divergence(p, q) > 1e-9)].any()


@given(data=problems(metrics=[plane, roads]), start=st.floats(-20, 20))
@light
def test_a_guess_changes_the_time_and_not_the_answer(data, start):
    p, y, metric, radius = data
    ball = Wasserstein(radius, metric=metric)
    plain = ball.respond(p, y)
    for guess in (np.full(len(p), 10.0**start), plain.multiplier):
        helped = ball.respond(p, y, guess)
        assert (np.abs(helped.value - plain.value) <= 1e-12 * span(y)).all()
        assert (helped.value - helped.lower <= 1e-12 * span(y)).all()


@given(data=problems((6, 2)), distance=st.sampled_from([1e-3, 1.0, 50.0]))
@light
def test_two_states_have_a_closed_form(data, distance):
    p, y, _, radius = data
    response = Wasserstein(radius, metric=distance * (1 - np.eye(2))).respond(p, y)
    low = y.argmin(-1)
    there = np.take_along_axis(p, low[:, None], axis=-1)[:, 0]
    there = np.minimum(there + np.where(span(y) > 0, radius / distance, 0.0), 1.0)
    np.testing.assert_allclose(response.value, y.min(-1) + (1 - there) * span(y), atol=1e-14)


def total_variation_minimum(p, y, radius):
    """Move the radius from the largest targets to the smallest."""
    q, room = p.copy(), min(radius, 1.0)
    for i in np.argsort(-y):
        moved = min(q[i], room)
        q[i] -= moved
        room -= moved
    q[y.argmin()] += 1 - q.sum()
    return q @ y


@given(data=problems(metrics=[discrete]))
@light
def test_the_discrete_metric_is_total_variation(data):
    p, y, metric, radius = data
    ball = Wasserstein(radius, metric=metric)
    expected = [total_variation_minimum(*row) for row in zip(p, y, radius, strict=True)]
    np.testing.assert_allclose(ball.respond(p, y).value, expected, atol=1e-14)
    q = p[::-1]
    np.testing.assert_allclose(ball.divergence(p, q), np.abs(p - q).sum(-1) / 2, atol=1e-15)


@pytest.mark.parametrize("radius", [np.inf, 1e3])
def test_a_radius_beyond_all_distances_reaches_the_minimum(radius):
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(5), 6), rng.normal(size=SHAPE)
    response = Wasserstein(np.full(6, radius), metric=plane(rng, 5)).respond(p, y)
    np.testing.assert_allclose(response.kernel, np.eye(5)[y.argmin(-1)], rtol=4 * EPS)
    np.testing.assert_array_equal(response.value, y.min(-1))
    np.testing.assert_array_equal(response.lower, y.min(-1))


def test_states_at_distance_zero_are_one_to_nature():
    metric = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    p, y = np.array([[0.5, 0.0, 0.5]]), np.array([[1.0, 0.0, 3.0]])
    ball = Wasserstein(0.0, metric=metric)
    response, lower, upper = ball.bracket(p, y)
    np.testing.assert_array_equal(response.kernel, [[0.0, 0.5, 0.5]])
    np.testing.assert_array_equal(response.lower, response.value)
    assert upper - lower <= 1e-13
    assert ball.contains(p, response.kernel).all()
    np.testing.assert_allclose(ball.scaled(3).respond(p, y).value, 1.5)


def test_many_states():
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.full(80, 0.3), 5), rng.normal(size=(5, 80))
    metric = plane(rng, 80)
    radius = np.array([0.0, 1e-3, 0.05, 0.4, 3.0])
    response, lower, upper = Wasserstein(radius, metric=metric).bracket(p, y)
    assert (upper - lower <= 1e-12).all()
    assert (response.value - response.lower <= 1e-12).all()
    solved = [least(a, b, metric, r) for a, b, r in zip(p, y, radius, strict=True)]
    np.testing.assert_allclose(response.value, solved, atol=1e-6)


def test_a_plan_proves_nothing_but_what_it_carries():
    metric = np.array([[0.0, 2.0], [2.0, 0.0]])
    p, q = np.array([[0.4, 0.6]]), np.array([[0.7, 0.3]])
    # Everything from state 1 goes to state 0, with a share of one half: a cost of 0.6.
    plan = _TransportPlan(
        source=np.array([[0, 1]]),
        mass=p,
        far=np.array([[0, 0]]),
        near=np.array([[0, 1]]),
        share=np.array([0.5]),
    )
    radius = np.array([0.6])
    with jax.enable_x64(True):
        plan = jax.tree.map(jax.numpy.asarray, plan)
        share = jax.jit(lambda plan, *rest: plan.member_share(jax.numpy.asarray(metric), *rest))
        assert 1 - 1e-14 < share(plan, p, q, radius) <= 1
        assert share(plan, p, q, radius * 1.001) == 1
        np.testing.assert_allclose(share(plan, p, q, radius / 2), 0.5)
        assert share(plan, p, q, radius / 2) < 0.5
        assert share(plan, q, q, radius) == 0
        assert share(plan, p, p, radius) == 0
        assert share(plan._replace(share=plan.share * 3), p, q, radius * 9) == 0
        assert share(plan._replace(mass=plan.mass / 2), p, q, radius) == 0


# --- divergence


@given(data=problems(), seed=seeds, step=st.sampled_from([1e-9, 1e-3, 1.0]))
@light
def test_divergence_equals_the_whole_linear_program(data, seed, step):
    p, _, metric, radius = data
    q = np.random.default_rng(seed).dirichlet(np.full(5, 0.5), 6)
    ball = Wasserstein(radius, metric=metric)
    whole = np.array([transport(a, b, metric) for a, b in zip(p, q, strict=True)])
    # W₁ is a norm of q − p, so short steps cost in proportion.
    found = ball.divergence(p, p + step * (q - p))
    np.testing.assert_allclose(found, step * whole, atol=1e-7 * step + 1e-14)
    np.testing.assert_allclose(ball.divergence(q, p), whole, atol=1e-7)


@given(data=problems(metrics=[line]), seed=seeds)
@light
def test_on_a_line_it_is_the_area_between_the_distribution_functions(data, seed):
    p, _, metric, radius = data
    q = np.random.default_rng(seed).dirichlet(np.full(5, 0.5), 6)
    area = np.abs(np.cumsum(q - p, axis=-1)).sum(-1)
    np.testing.assert_allclose(
        Wasserstein(radius, metric=metric).divergence(p, q), area, atol=1e-14
    )


# --- projection


@given(data=problems(), seed=seeds, far=st.sampled_from([0.0, 1.0]))
@settings(light, max_examples=25)
def test_projection_equals_a_convex_solver(data, seed, far):
    p, _, metric, radius = data
    rng = np.random.default_rng(seed)
    z = rng.dirichlet(np.ones(5), 6) + far * rng.normal(size=SHAPE)
    ball = Wasserstein(radius, metric=metric)
    nearest = ball.project(p, z)
    assert ball.contains(p, nearest).all()
    for i in range(len(p)):
        found = nearest_distance(p[i], z[i], metric, radius[i])
        if found is not None:
            distance = ((nearest[i] - z[i]) ** 2).sum()
            assert abs(distance - found) <= 1e-6 * max(1.0, np.ptp(z[i]))


@given(data=problems(), seed=seeds, far=st.sampled_from([1e-6, 1e-2, 1.0, 1e3, 1e9]))
@settings(light, max_examples=60)
def test_no_member_is_nearer_than_the_projection(data, seed, far):
    """(q − z)·m ≥ (q − z)·q for every member m, and the dual bounds the left from below."""
    p, _, metric, radius = data
    z = p + far * np.random.default_rng(seed).normal(size=SHAPE)
    ball = Wasserstein(radius, metric=metric)
    nearest = ball.project(p, z)
    away = nearest - z
    away = away - away.mean(-1, keepdims=True)
    gap = (away * nearest).sum(-1) - ball.dual_value(p, away)
    assert (gap <= 1e-13 * span(away) + 1e-14).all()
    assert (np.abs(nearest.sum(-1) - 1) <= 16 * EPS).all()
    assert (nearest >= 0).all()


@given(data=problems(), seed=seeds, inside=st.sampled_from([0.0, 0.5, 1.0]))
@light
def test_members_are_their_own_projections(data, seed, inside):
    """Mixtures of several worst responses: on faces of the ball, not only at its corners."""
    p, _, metric, radius = data
    ball = Wasserstein(radius, metric=metric)
    targets = np.random.default_rng(seed).normal(size=(3, *SHAPE))
    edge = np.mean([ball.worst_response(p, y) for y in targets], axis=0)
    member = p + inside * (edge - p)
    np.testing.assert_allclose(ball.project(p, member), member, atol=1e-8)


def test_projection_in_many_dimensions_and_in_blocks(monkeypatch):
    monkeypatch.setattr("holdfast.uncertainty.protocol._BLOCK_ENTRIES", 2 * 21**2)
    rng = np.random.default_rng(0)
    p, z = rng.dirichlet(np.ones(20), 6), rng.dirichlet(np.ones(20), 6)
    ball = Wasserstein(np.array([0.0, 1e-3, 0.05, 0.1, 0.3, 1.0]), metric=plane(rng, 20))
    nearest = ball.project(p, z)
    away = nearest - z
    assert ((away * nearest).sum(-1) - ball.dual_value(p, away) <= 1e-13).all()
    assert ball.contains(p, nearest).all()


# --- in a model


def robust_values(model, metric, radius, policy):
    """Robust value iteration with a linear program for every row."""
    values = np.zeros(model.states)
    for _ in range(200):
        y = model.discount * values
        worst = np.array([[least(p, y, metric, radius) for p in row] for row in model.transitions])
        new = (policy * (model.reward + worst)).sum(-1)
        if np.abs(new - values).max() <= 1e-10:
            break
        values = new
    return new


def test_a_model_is_evaluated_over_the_whole_space():
    rng = np.random.default_rng(0)
    kernel = np.zeros((4, 2, 4))
    kernel[np.arange(3), :, np.arange(1, 4)] = 1.0
    kernel[3, :, 3] = 1.0
    metric = line(None, 4)
    model = hf.RobustCMDP(
        transitions=kernel,
        reward=rng.random((4, 2)),
        initial=np.full(4, 0.25),
        discount=0.8,
        uncertainty=Wasserstein(0.3, metric=metric),
    )
    policy = rng.dirichlet(np.ones(2), 4)
    evaluation = hf.evaluate(model, policy)
    assert evaluation.error <= 1e-9
    truth = robust_values(model, metric, 0.3, policy)
    np.testing.assert_allclose(evaluation.reward.values, truth, atol=1e-7)
