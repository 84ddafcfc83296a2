"""Ground metrics, and the transport distance where it has to be exact or refuse."""

import jax
import numpy as np
import pytest

from holdfast.uncertainty.wasserstein import Wasserstein

EPS = np.finfo(float).eps


def line(size):
    return np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(float)


# --- metrics


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("far", "expected an .S, S. array"),
        (np.zeros((2, 3)), r"expected an .S, S. array, got shape \(2, 3\)"),
        (np.zeros((0, 0)), r"got shape \(0, 0\)"),
        (
            [[0, np.inf], [np.inf, 0]],
            "finite distance of at least 0, got inf between states 0 and 1",
        ),
        ([[0, np.nan], [1, 0]], "finite distance of at least 0, got nan between states 0 and 1"),
        ([[0, -1], [-1, 0]], "at least 0, got -1.0 between states 0 and 1"),
        ([[0, 1], [1, 2]], "distance 0 from a state to itself, got 2.0 between states 1 and 1"),
        ([[0, 1], [2, 0]], "same distance both ways, got 2.0 and 1.0 between states 1 and 0"),
        (
            [[0, 1, 3], [1, 0, 1], [3, 1, 0]],
            "triangle inequality, got 3.0 between states 0 and 2, but 2.0 by way of state 1",
        ),
    ],
)
def test_what_is_no_metric_is_refused(metric, message):
    with pytest.raises(ValueError, match=f"^metric: .*{message}"):
        Wasserstein(0.1, metric=metric)


def test_rounding_does_not_spoil_a_metric():
    points = np.linspace(0, 0.7, 40)
    metric = np.abs(points[:, None] - points)
    Wasserstein(0.1, metric=metric * (1 + 1e-11 * np.random.default_rng(0).normal(size=(40, 40))))


def test_the_metric_has_to_fit_the_model():
    ball = Wasserstein(0.1, metric=line(3))
    ball.check_fits(np.zeros((3, 2, 3)))
    ball.check_fits(np.zeros((3, 2, 1)))
    with pytest.raises(ValueError, match=r"^metric: expected shape \(4, 4\), got \(3, 3\)"):
        ball.check_fits(np.zeros((4, 2, 4)))
    with pytest.raises(ValueError, match=r"^radius: "):
        Wasserstein([[0.1, 0.2]], metric=line(3)).check_fits(np.zeros((3, 2, 3)))


def test_the_metric_is_kept_as_it_was():
    metric = line(3)
    ball = Wasserstein(np.array([[0.1, np.inf]]), metric=metric)
    metric[0, 1] = 7.0
    assert ball.metric[0, 1] == 1.0
    assert not ball.metric.flags.writeable
    header, arrays = ball.to_arrays()
    assert header == {"set": "wasserstein"}
    assert jax.tree.all(jax.tree.map(np.array_equal, Wasserstein.from_arrays(header, arrays), ball))
    # Scaling neither copies the metric nor checks it again.
    assert ball.scaled(2.0).metric is ball.metric
    rows, shared = ball.by_row()
    assert rows.metric is None
    assert shared.radius is None


# --- distances


def test_divergence_of_rows_that_are_equal_or_have_other_masses():
    ball = Wasserstein(0.1, metric=line(3))
    p = np.array([[0.2, 0.3, 0.5]] * 4)
    q = np.array([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5 + 1e-8], [0.2, 0.3, np.nan], [0.3, 0.4, 0.4]])
    np.testing.assert_array_equal(ball.divergence(p, q)[:3], [0.0, np.inf, np.inf])
    assert ball.divergence(p, p[0]).shape == (4,)
    np.testing.assert_array_equal(ball.contains(p, q), [True, False, False, False])


def test_divergence_has_all_digits_whatever_the_user_s_setting():
    """JAX would hand single precision to the host where the user has not asked for more."""
    p, q = np.array([[0.25, 0.75, 0.0]]), np.array([[0.25, 0.75 - 1e-12, 1e-12]])
    ball = Wasserstein(0.1, metric=line(3))
    exact = q[0, 2]
    assert abs(ball.divergence(p, q)[0] - exact) <= EPS
    compiled = jax.jit(lambda p, q: ball.divergence(p, q))
    single = compiled(np.float32(p), np.float32(p[:, ::-1]))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, 0.5, rtol=1e-6)
    with jax.enable_x64(True):
        several = jax.vmap(compiled, (None, 0))(p, np.stack([q, p]))
    np.testing.assert_allclose(several, [[exact], [0.0]], rtol=1e-3)
