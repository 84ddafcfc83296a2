"""What every uncertainty set owes, whichever it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.uncertainty import KL, SETS

# How a set is made from a radius: by itself, unless it is named here.
FROM_RADIUS = {**SETS}
SHAPE = (6, 5)
RADII = [0.0, 1e-12, 1e-4, 0.1, 1.0, 30.0, np.inf]
EPS = np.finfo(float).eps

every_set = pytest.mark.parametrize("make", FROM_RADIUS.values(), ids=FROM_RADIUS.keys())
# Nothing is gained by shrinking a seed.
light = settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])


@st.composite
def rows(draw):
    """Nominal rows, some with zeros (one of them is certain), and targets, some with ties."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p = rng.dirichlet(np.full(SHAPE[1], draw(st.sampled_from([0.2, 1.0, 5.0]))), SHAPE[0])
    if draw(st.booleans()):
        p = np.where(rng.random(SHAPE) < 0.4, 0.0, p)
        p[0] = np.eye(SHAPE[1])[rng.integers(SHAPE[1])]
    p[:, 0] += p.sum(-1) == 0
    y = rng.normal(size=SHAPE)
    if draw(st.booleans()):
        y = np.round(y)
    return p / p.sum(-1, keepdims=True), y * draw(st.sampled_from([1e-9, 1.0, 1e9]))


def span(y):
    return y.max(-1) - y.min(-1)


def slack(y):
    """What floating point may cost a row."""
    return 32 * EPS * np.abs(y).max(-1)


@every_set
@given(data=rows(), radius=st.sampled_from(RADII))
@light
def test_nature_never_helps(make, data, radius):
    p, y = data
    response = make(radius).respond(p, y)
    assert (response.value <= (p * y).sum(-1) + slack(y)).all()
    assert (response.value >= y.min(-1) - slack(y)).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII))
@light
def test_the_dual_is_below_and_close(make, data, radius):
    p, y = data
    response = make(radius).respond(p, y)
    assert (response.lower <= response.value + slack(y)).all()
    assert (response.value - response.lower <= 1e-9 * span(y) + slack(y)).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII))
@light
def test_the_value_is_that_of_the_response(make, data, radius):
    p, y = data
    response = make(radius).respond(p, y)
    assert (np.abs((response.kernel * y).sum(-1) - response.value) <= slack(y)).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII))
@light
def test_the_response_is_a_member(make, data, radius):
    p, y = data
    ball = make(radius)
    q = ball.worst_response(p, y)
    assert ball.contains(p, q).all()
    assert (ball.divergence(p, q) <= radius * (1 + 1e-8) + 1e-14).all()
    assert (q >= 0).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII))
@light
def test_the_response_sums_to_one(make, data, radius):
    """To what certificates allow for: a row's excess is multiplied by the values it leads to."""
    p, y = data
    assert (np.abs(make(radius).worst_response(p, y).sum(-1) - 1) <= 16 * EPS).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII))
@light
def test_the_short_forms_are_parts_of_the_response(make, data, radius):
    p, y = data
    ball = make(radius)
    response = ball.respond(p, y)
    np.testing.assert_array_equal(ball.worst_response(p, y), response.kernel)
    np.testing.assert_array_equal(ball.dual_value(p, y), response.lower)


@every_set
@given(data=rows())
@light
def test_a_larger_radius_is_worse(make, data):
    p, y = data
    values = np.array([make(radius).respond(p, y).value for radius in RADII])
    assert (np.diff(values, axis=0) <= 1e-9 * span(y) + slack(y)).all()


@every_set
@given(data=rows())
@light
def test_radius_zero_leaves_nature_no_choice(make, data):
    p, y = data
    ball = make(0.0)
    np.testing.assert_allclose(ball.worst_response(p, y), p, rtol=4 * EPS)
    for value in (ball.respond(p, y).value, ball.dual_value(p, y)):
        assert (np.abs(value - (p * y).sum(-1)) <= slack(y)).all()
    assert ball.contains(p, p).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII), level=st.sampled_from([0.0, -3.5, 1e12]))
@light
def test_constant_targets_leave_nature_indifferent(make, data, radius, level):
    p, _ = data
    response = make(radius).respond(p, np.full_like(p, level))
    np.testing.assert_allclose(response.value, level, rtol=8 * EPS)
    np.testing.assert_allclose(response.lower, level, rtol=8 * EPS)
    assert make(radius).contains(p, response.kernel).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII), shift=st.sampled_from([-7.0, 1e6]))
@light
def test_values_move_with_the_targets(make, data, radius, shift):
    p, y = data
    ball = make(radius)
    moved = ball.respond(p, 2 * y + shift).value
    expected = 2 * ball.respond(p, y).value + shift
    assert (np.abs(moved - expected) <= 1e-9 * span(y) + slack(2 * y + shift)).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII))
@light
def test_support_is_kept_where_the_set_says_so(make, data, radius):
    p, y = data
    ball = make(radius)
    if ball.keeps_support:
        assert (ball.worst_response(p, y)[p == 0] == 0).all()
        assert (ball.project(p, np.full_like(p, 1 / p.shape[-1]))[p == 0] == 0).all()


@every_set
@pytest.mark.parametrize("radius", [0.0, 0.1, 100.0, np.inf])
def test_mass_outside_the_support_is_no_member_where_support_is_kept(make, radius):
    ball = make(radius)
    p, q = np.array([[0.0, 0.3, 0.7]]), np.array([[0.1, 0.2, 0.7]])
    if ball.keeps_support:
        assert not ball.contains(p, q).any()


@every_set
@given(data=rows(), radius=st.sampled_from([0.0, 1e-4, 0.3, 5.0]))
@light
def test_scaling_scales_the_radius(make, data, radius):
    p, y = data
    ball = make(radius)
    for factor in (0.0, 0.5, 3.0):
        scaled = ball.scaled(factor)
        assert type(scaled) is type(ball)
        np.testing.assert_array_equal(
            scaled.respond(p, y).value, make(factor * radius).respond(p, y).value
        )
    np.testing.assert_array_equal(ball.scaled(1.0).radius, ball.radius)


@every_set
@given(data=rows(), seed=st.integers(0, 2**32 - 1))
@light
def test_a_radius_for_every_row_equals_row_by_row_calls(make, data, seed):
    p, y = data
    radii = np.random.default_rng(seed).choice([0.0, 1e-6, 0.05, 0.5, 3.0, np.inf], len(p))
    together = make(radii).respond(p, y)
    for i, radius in enumerate(radii):
        # The whole batch again with one radius, so that every call has the same shape.
        alone = make(np.full(len(p), radius)).respond(p, y)
        for part, other in zip(together, alone, strict=True):
            np.testing.assert_allclose(part[i], other[i], rtol=1e-12, atol=1e-12 * span(y)[i])


@every_set
@given(data=rows(), seed=st.integers(0, 2**32 - 1))
@light
def test_rows_may_have_any_number_of_axes(make, data, seed):
    p, y = data
    radii = np.random.default_rng(seed).choice([0.0, 0.05, 3.0], len(p))
    flat = make(radii).respond(p, y)
    folded = make(radii[None]).respond(p[None], y[None])
    for part, other in zip(folded, flat, strict=True):
        np.testing.assert_allclose(part[0], other, rtol=1e-12, atol=1e-12 * span(y).max())


@every_set
@given(data=rows(), radius=st.sampled_from([1e-6, 0.1, 3.0]), start=st.floats(-20, 20))
@light
def test_a_guess_changes_the_time_and_not_the_answer(make, data, radius, start):
    p, y = data
    ball = make(radius)
    guess = np.full(len(p), 10.0**start)
    helped, plain = ball.respond(p, y, guess), ball.respond(p, y)
    assert (np.abs(helped.value - plain.value) <= 1e-9 * span(y) + slack(y)).all()
    assert (helped.value - helped.lower <= 1e-9 * span(y) + slack(y)).all()
    assert ball.contains(p, helped.kernel).all()


@pytest.mark.parametrize("max_steps", [1, 3])
@given(data=rows(), radius=st.sampled_from([1e-6, 0.1, 1.0]))
@light
def test_a_search_that_is_stopped_early_is_still_a_certificate(max_steps, data, radius):
    p, y = data
    truth = KL(radius).respond(p, y)
    early = KL(radius, max_steps=max_steps).respond(p, y)
    assert (early.lower <= truth.value + slack(y)).all()
    assert (early.value >= truth.lower - slack(y)).all()
    assert KL(radius).contains(p, early.kernel).all()
    assert (np.abs((early.kernel * y).sum(-1) - early.value) <= slack(y)).all()


def geometries(ball):
    """The ways in which a set can project: the Euclidean one, and its own where it has one."""
    yield ball.project
    if isinstance(ball, KL):
        yield lambda p, q: ball.project(p, q, geometry="kl")


@every_set
@given(data=rows(), radius=st.sampled_from(RADII), seed=st.integers(0, 2**32 - 1))
@light
def test_projections_are_members(make, data, radius, seed):
    p, _ = data
    ball = make(radius)
    q = np.random.default_rng(seed).dirichlet(np.full(p.shape[-1], 0.5), len(p))
    for project in geometries(ball):
        nearest = project(p, q)
        assert ball.contains(p, nearest).all()
        assert (np.abs(nearest.sum(-1) - 1) <= 1e-12).all()


@every_set
@given(
    data=rows(),
    radius=st.sampled_from(RADII),
    far=st.sampled_from([1.0, 1e3, 1e9]),
    seed=st.integers(0, 2**32 - 1),
)
@light
def test_any_vector_can_be_projected(make, data, radius, far, seed):
    p, _ = data
    ball = make(radius)
    vector = far * np.random.default_rng(seed).normal(size=p.shape)
    assert ball.contains(p, ball.project(p, vector)).all()


@every_set
@given(data=rows(), radius=st.sampled_from(RADII), inside=st.floats(0, 1))
@light
def test_members_are_their_own_projections(make, data, radius, inside):
    """Members of all kinds: from the nominal row to the edge of the set."""
    p, y = data
    ball = make(radius)
    member = p + inside * (ball.worst_response(p, y) - p)
    for project in geometries(ball):
        np.testing.assert_allclose(project(p, member), member, atol=1e-7)


@every_set
@given(data=rows(), radius=st.sampled_from(RADII), seed=st.integers(0, 2**32 - 1))
@light
def test_projecting_twice_changes_nothing(make, data, radius, seed):
    p, _ = data
    ball = make(radius)
    q = np.random.default_rng(seed).dirichlet(np.full(p.shape[-1], 0.5), len(p))
    for project in geometries(ball):
        once = project(p, q)
        np.testing.assert_allclose(project(p, once), once, atol=1e-7)


@every_set
def test_what_is_not_a_distribution_is_not_a_member(make):
    p = np.array([[0.5, 0.5]])
    ball = make(1.0)
    for q in ([[0.5, 0.4]], [[0.5, 0.6]], [[1.1, -0.1]]):
        assert not ball.contains(p, np.array(q)).any()
    assert ball.contains(p, p).all()


@every_set
@pytest.mark.parametrize("dtype", [np.float32, np.float64, "jax"])
def test_results_are_float64_numpy_and_the_setting_outside_is_untouched(make, dtype):
    assert not jax.config.jax_enable_x64
    p, y = np.array([[0.25, 0.75]]), np.array([[0.5, 2.0]])
    arrays = (
        (jnp.asarray(p), jnp.asarray(y)) if dtype == "jax" else (p.astype(dtype), y.astype(dtype))
    )
    ball = make(0.1)
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
@pytest.mark.parametrize("x64", [False, True])
def test_sets_can_be_used_inside_a_user_s_own_jit(make, x64):
    p, y = np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([[0.5, 2.0], [3.0, 1.0]])
    ball = make(np.array([0.1, 0.2]))
    expected = ball.respond(p, y)

    @jax.jit
    def traced(p, y):
        return ball.respond(p, y), ball.contains(p, ball.project(p, y))

    @jax.jit
    def nominal_is_closed_over(y):
        return ball.dual_value(p, y)

    @jax.jit
    def set_is_an_argument(ball, p, y):
        return ball.worst_response(p, y)

    with jax.enable_x64(x64):
        response, member = traced(p, y)
        lower = nominal_is_closed_over(y)
        kernel = set_is_an_argument(ball, p, y)
    accuracy = 1e-12 if x64 else 1e-5
    for part, other in zip(response, expected, strict=True):
        np.testing.assert_allclose(part, other, rtol=accuracy)
    assert member.all() or not x64
    np.testing.assert_allclose(lower, expected.lower, rtol=accuracy)
    np.testing.assert_allclose(kernel, expected.kernel, rtol=accuracy)


@every_set
def test_constants_inside_a_user_s_jit(make):
    p, y = np.array([[0.25, 0.75]]), np.array([[0.5, 2.0]])
    ball = make(0.1)

    @jax.jit
    def shifted(x):
        return x + ball.dual_value(p, y)

    np.testing.assert_allclose(shifted(1.0), 1 + ball.dual_value(p, y), rtol=1e-5)


@every_set
@pytest.mark.parametrize("radius", [-1e-9, np.nan, "wide", [[0.1], [0.2, 0.3]]])
def test_a_radius_that_makes_no_sense_is_refused(make, radius):
    with pytest.raises(ValueError, match=r"^radius: expected"):
        make(radius)


@every_set
def test_a_set_survives_being_stored(make):
    ball = make(np.array([[0.1, np.inf], [0.0, 2.0]]))
    header, arrays = ball.to_arrays()
    again = type(ball).from_arrays(header, arrays)
    assert header["set"] == ball.name
    assert SETS[header["set"]] is type(ball)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, ball))
