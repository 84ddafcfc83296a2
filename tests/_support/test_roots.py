"""The root finder on functions whose roots are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._support.roots import increasing_root

ROWS = 32
TOLERANCE = 1e-13
ROUNDING = 16 * np.finfo(float).eps


def with_slope(function):
    return function, jax.vmap(jax.grad(function))


LINEAR = {
    "identity": (with_slope(lambda x: x), lambda t: t, 1e12),
    "log1p": (with_slope(lambda x: jnp.log1p(x)), np.expm1, 600.0),
    "expm1": (with_slope(lambda x: jnp.expm1(x)), np.log1p, 1e12),
    "bounded": (with_slope(lambda x: x / (1 + x)), lambda t: t / (1 - t), 0.999),
}
QUADRATIC = {
    "square": (with_slope(lambda x: x * x), np.sqrt, 1e12),
    "bounded": (
        with_slope(lambda x: x * x / (1 + x * x)),
        lambda t: np.sqrt(t / (1 - t)),
        0.999,
    ),
    "then linear": (
        with_slope(lambda x: x * x / (1 + x)),
        lambda t: (t + np.sqrt(t * t + 4 * t)) / 2,
        1e12,
    ),
}
CASES = [
    *(pytest.param(*case, False, id=f"linear {name}") for name, case in LINEAR.items()),
    *(pytest.param(*case, True, id=f"quadratic {name}") for name, case in QUADRATIC.items()),
]
BOUNDED = [case for case in CASES if case.id.endswith("bounded")]
powers_of_ten = st.floats(-30, 30).map(lambda exponent: 10.0**exponent)


def find(
    pair,
    target,
    guess,
    scale=1.0,
    *,
    tolerance=0.0,
    absolute=0.0,
    limit=np.inf,
    max_steps=200,
    quadratic,
):
    """The root of f(x/scale) = target, found as the library finds it: compiled, in float64."""
    with jax.enable_x64(True):
        rows = [jnp.asarray(np.broadcast_to(a, ROWS), float) for a in (target, guess, scale)]
        bounds = jnp.asarray(float(absolute)), jnp.asarray(float(limit))
        root = _compiled(pair, quadratic, tolerance, max_steps, *rows, *bounds)
        return jax.tree.map(np.asarray, root)


@eqx.filter_jit
def _compiled(pair, quadratic, tolerance, max_steps, target, guess, scale, absolute, limit):
    value, slope = pair

    def function(x):
        return value(x / scale), slope(x / scale) / scale, {"twice": 2 * x, "row": x[:, None]}

    return increasing_root(
        function,
        target,
        guess,
        quadratic=quadratic,
        tolerance=tolerance,
        absolute=absolute,
        limit=limit,
        max_steps=max_steps,
    )


def value_at(pair, x):
    with jax.enable_x64(True):
        return np.asarray(pair[0](jnp.asarray(x)))


def rounding_at(pair, x):
    """How much f changes between x and its neighbouring floats."""
    with jax.enable_x64(True):
        return ROUNDING * (value_at(pair, x) + x * np.asarray(pair[1](jnp.asarray(x))))


def some_targets(seed, largest):
    rng = np.random.default_rng(seed)
    return 10.0 ** rng.uniform(-12, np.log10(largest), ROWS)


@pytest.mark.parametrize(("pair", "inverse", "largest", "quadratic"), CASES)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), scale=powers_of_ten, off=powers_of_ten)
def test_roots_of_all_sizes_from_guesses_of_all_sizes(
    pair, inverse, largest, quadratic, seed, scale, off
):
    target = some_targets(seed, largest)
    expected = inverse(target)
    root = find(pair, target, off * expected * scale, scale, quadratic=quadratic)
    assert root.converged.all()
    np.testing.assert_allclose(root.x, expected * scale, rtol=1e-11)


@pytest.mark.parametrize(("pair", "inverse", "largest", "quadratic"), BOUNDED)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), off=powers_of_ten)
def test_the_tolerance_is_met(pair, inverse, largest, quadratic, seed, off):
    """|f(x) − target| ≤ tolerance·x, whatever x is: it is a primal–dual gap."""
    target = some_targets(seed, largest)
    root = find(pair, target, off * inverse(target), quadratic=quadratic, tolerance=TOLERANCE)
    missed = np.abs(value_at(pair, root.x) - target)
    assert root.converged.all()
    assert (missed <= TOLERANCE * root.x + rounding_at(pair, root.x)).all()


@pytest.mark.parametrize(("pair", "inverse", "largest", "quadratic"), BOUNDED)
def test_the_absolute_tolerance_is_met(pair, inverse, largest, quadratic):
    target = some_targets(0, largest)
    options = {"quadratic": quadratic, "absolute": 1e-6}
    root = find(pair, target, inverse(target) * 7, **options)
    assert root.converged.all()
    assert (np.abs(value_at(pair, root.x) - target) <= 1e-6 + rounding_at(pair, root.x)).all()
    exact = find(pair, target, inverse(target) * 7, **options | {"absolute": 0.0})
    assert root.steps <= exact.steps


@pytest.mark.parametrize("quadratic", [False, True])
def test_newton_s_method_is_not_slowed_down(quadratic):
    pair, inverse, _ = (QUADRATIC if quadratic else LINEAR)["square" if quadratic else "identity"]
    target = np.logspace(-6, 6, ROWS)
    root = find(pair, target, inverse(target) * 3, quadratic=quadratic, tolerance=TOLERANCE)
    assert root.steps <= 3


@pytest.mark.parametrize(("pair", "inverse", "largest", "quadratic"), BOUNDED)
def test_a_slope_that_says_nothing_leaves_bisection(pair, inverse, largest, quadratic):
    target = some_targets(1, largest)
    flat = (pair[0], jnp.zeros_like)
    root = find(flat, target, np.ones(ROWS), quadratic=quadratic)
    assert root.converged.all()
    missed = np.abs(value_at(pair, root.x) - target)
    assert (missed <= 1e-10 * target).all()


@pytest.mark.parametrize("quadratic", [False, True])
def test_a_kink_at_the_root(quadratic):
    def kinked(x):
        return jnp.where(x < 1, x * x if quadratic else x, 1 + 1e9 * (x - 1))

    target = np.linspace(1 - 1e-6, 1 + 1e-6, ROWS)
    root = find(with_slope(kinked), target, np.full(ROWS, 1e-3), quadratic=quadratic)
    np.testing.assert_allclose(value_at((kinked,), root.x), target, atol=1e-6)
    np.testing.assert_allclose(root.x, 1.0, atol=1e-6)


@pytest.mark.parametrize("quadratic", [False, True])
def test_x_stops_at_the_limit_where_f_has_not_reached_the_target(quadratic):
    pair, inverse, _ = (QUADRATIC if quadratic else LINEAR)["bounded"]
    target = np.r_[np.full(ROWS // 2, 2.0), np.full(ROWS // 2, 0.5)]
    for guess in (1e-9, 3.0, 1e12):
        root = find(pair, target, guess, quadratic=quadratic, limit=1e9)
        assert (root.x[: ROWS // 2] == 1e9).all()
        np.testing.assert_allclose(root.x[ROWS // 2 :], inverse(0.5), rtol=1e-11)
        assert root.steps < 200


@pytest.mark.parametrize("quadratic", [False, True])
def test_a_limit_below_the_root_is_the_answer(quadratic):
    pair = (QUADRATIC if quadratic else LINEAR)["square" if quadratic else "identity"][0]
    root = find(pair, 1e6, 1.0, quadratic=quadratic, limit=10.0)
    assert (root.x == 10.0).all()


@pytest.mark.parametrize("quadratic", [False, True])
def test_rows_that_are_marked_as_done_are_left_alone(quadratic):
    pair, inverse, _ = (QUADRATIC if quadratic else LINEAR)["bounded"]
    guess = np.r_[np.zeros(ROWS // 2), np.ones(ROWS // 2)]
    target = np.r_[np.full(ROWS // 2, np.nan), np.full(ROWS // 2, 0.5)]
    root = find(pair, target, guess, quadratic=quadratic)
    assert root.converged.all()
    assert (root.x[: ROWS // 2] == 0).all()
    assert (root.aux["twice"][: ROWS // 2] == 0).all()
    np.testing.assert_allclose(root.x[ROWS // 2 :], inverse(0.5), rtol=1e-11)


def test_nothing_to_do_takes_no_step():
    root = find(LINEAR["identity"][0], 1.0, 0.0, quadratic=False)
    assert root.steps == 0
    assert root.converged.all()
    assert (root.aux["row"] == 0).all()


@pytest.mark.parametrize("max_steps", [1, 2, 5])
def test_an_early_stop_is_reported(max_steps):
    pair = LINEAR["expm1"][0]
    guess = np.r_[np.full(ROWS - 1, 1e-20), np.log1p(1e3)]
    root = find(pair, 1e3, guess, quadratic=False, tolerance=TOLERANCE, max_steps=max_steps)
    assert root.steps == max_steps
    assert not root.converged[:-1].any()
    assert root.converged[-1]


@pytest.mark.parametrize("max_steps", [1, 3, 200])
def test_what_else_the_function_says_belongs_to_the_x_that_is_returned(max_steps):
    target = some_targets(2, 1e6)
    root = find(LINEAR["expm1"][0], target, 1.0, quadratic=False, max_steps=max_steps)
    np.testing.assert_array_equal(root.aux["twice"], 2 * root.x)
    np.testing.assert_array_equal(root.aux["row"], root.x[:, None])


def test_rows_do_not_disturb_each_other():
    pair, _, largest = QUADRATIC["then linear"]
    target = some_targets(3, largest)
    together = find(pair, target, 1.0, quadratic=True).x
    for row in (0, ROWS // 2, ROWS - 1):
        alone = find(pair, target[row], 1.0, quadratic=True).x
        np.testing.assert_array_equal(alone, np.full(ROWS, together[row]))
