"""Kernels of a simulator: inside their radius, all of it used, and gradients against arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.simulators.nature.categorical import CategoricalKernel, _kl
from holdfast.simulators.nature.gaussian_mixture import GaussianMixture
from holdfast.simulators.nature.tilted import TiltedKernel
from holdfast.simulators.policy.networks import MLP
from holdfast.simulators.training.rollout import Nominal, Situation
from holdfast.uncertainty import KL

ROWS, COMPONENTS, SIZE = 64, 2, 3
DRAWS = 20_000
RADII = [1e-3, 0.01, 0.1, 1.0]
SCALES = [0.01, 0.1, 1.0, 10.0, 100.0]
# What single precision may add to a divergence.
ROUNDING = 3e-7

# Nothing is gained by shrinking a seed.
light = settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.generate])
seeds = st.integers(0, 2**32 - 1)


# --- kernels whose network passes its inputs on, so that a test can say what it put out


def passing(size):
    return MLP((jnp.eye(size),), (jnp.zeros(size),))


def gaussian(radius, components=COMPONENTS, size=SIZE):
    return GaussianMixture(
        passing(components * (1 + 2 * size)), jnp.asarray(radius, float), components
    )


def categorical(radius, count):
    return CategoricalKernel(passing(count), jnp.asarray(radius, float))


def raw_mixture(inputs, components=COMPONENTS):
    """φ, μ and log σ as the network gave them, in double precision."""
    inputs = np.asarray(inputs, float)
    logits, rest = inputs[..., :components], inputs[..., components:]
    rest = rest.reshape(*rest.shape[:-1], components, 2, -1)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights, rest[..., 0, :], 3 * np.tanh(rest[..., 1, :] / 3)


def bound(weights, shift, log_std):
    """Σφ_i KL(N(μ_i, σ_i²)‖N(0, I)) in double precision."""
    weights, shift, log_std = (np.asarray(x, float) for x in (weights, shift, log_std))
    each = 0.5 * (np.expm1(2 * log_std) - 2 * log_std + shift**2).sum(-1)
    return (weights * each).sum(-1)


def divergence(q, p):
    """KL(q‖p) of rows in double precision, both normalised."""
    q, p = (np.asarray(x, float) for x in (q, p))
    q, p = q / q.sum(-1, keepdims=True), p / p.sum(-1, keepdims=True)
    ratio = np.where(q > 0, q, 1.0) / np.where(q > 0, p, 1.0)
    return np.where(q > 0, q * np.log(ratio), 0.0).sum(-1)


@jax.jit
def drawn_by(kernel, inputs, log_nominal, key):
    """Draws in one and the same situation."""
    rows = (jnp.broadcast_to(row, (DRAWS, len(row))) for row in (inputs, log_nominal))
    return kernel.draw(key, Situation(*rows, lambda w: w))


mixture = jax.jit(lambda radius, inputs: gaussian(radius).mixture(inputs))


def outputs(seed, scale):
    rng = np.random.default_rng(seed)
    inputs = scale * rng.normal(size=(ROWS, COMPONENTS * (1 + 2 * SIZE)))
    inputs[:, :COMPONENTS] = rng.normal(size=(ROWS, COMPONENTS))
    return inputs.astype(np.float32)


# --- Gaussian mixture


@given(seed=seeds, radius=st.sampled_from(RADII), scale=st.sampled_from(SCALES))
@settings(light, max_examples=25)
def test_mixture_uses_its_radius_and_no_more(seed, radius, scale):
    inputs = outputs(seed, scale)
    weights, shift, log_std = raw_mixture(inputs)
    raw = bound(weights, shift, log_std)
    log_weights, *rest = mixture(radius, inputs)
    np.testing.assert_allclose(np.exp(log_weights), weights, rtol=1e-5, atol=1e-7)
    found = bound(weights, *rest)
    assert (found <= radius * (1 + 1e-5)).all()
    over = raw > radius * (1 + 1e-5)
    np.testing.assert_allclose(found[over], radius, rtol=1e-4)
    under = raw < radius * (1 - 1e-5)
    for mine, theirs in zip(rest, (shift, log_std), strict=True):
        np.testing.assert_allclose(mine[under], theirs[under], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 0.1, 10.0])
def test_radius_zero_is_exactly_nominal(scale):
    _, shift, log_std = mixture(0.0, outputs(0, scale))
    assert (np.asarray(shift) == 0).all()
    assert (np.asarray(log_std) == 0).all()


@jax.jit
@jax.grad
def slope_of_squares(inputs, radius):
    return sum((leaf**2).sum() for leaf in gaussian(radius).mixture(inputs))


@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.1])
@pytest.mark.parametrize("scale", [0.0, 1e-5, 1e-3, 1.0, 100.0])
def test_gradients_of_a_mixture_are_finite(radius, scale):
    assert np.isfinite(slope_of_squares(scale * outputs(0, 1.0), radius)).all()


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_gradient_of_the_excess_equals_finite_differences(scale):
    with jax.enable_x64(True):
        inputs = np.asarray(outputs(1, scale), float)[:8]
        rng = np.random.default_rng(2)
        by = rng.normal(size=8)

        @jax.jit
        @jax.value_and_grad
        def total(inputs):
            return (by * gaussian(0.1).excess(inputs, None)).sum()

        slope = np.asarray(total(inputs)[1])
        for _ in range(4):
            direction = rng.normal(size=inputs.shape)
            step = 1e-5 * direction
            change = (total(inputs + step)[0] - total(inputs - step)[0]) / 2e-5
            np.testing.assert_allclose((slope * direction).sum(), change, rtol=1e-5, atol=1e-7)


@jax.jit
def density_and_bound(radius, inputs, grid):
    kernel = gaussian(radius, size=1)
    logs = kernel.score(inputs[:, None], None, grid[None, :, None])[0]
    log_weights, shift, log_std = kernel.mixture(inputs)
    each = 0.5 * (jnp.exp(2 * log_std) - 1 - 2 * log_std + shift**2).sum(-1)
    return logs, (jnp.exp(log_weights) * each).sum(-1)


@pytest.mark.parametrize("radius", [0.05, 1.0])
def test_density_of_a_mixture_and_the_bound_on_its_divergence(radius):
    """By quadrature in one dimension; components far apart make the bound a real one."""
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        inputs = np.concatenate(
            [rng.normal(size=(16, COMPONENTS)), 3 * rng.normal(size=(16, 2 * COMPONENTS))], axis=1
        )
        grid = np.linspace(-40, 40, 8001)
        logs, claimed = map(np.asarray, density_and_bound(radius, inputs, grid))
    density = np.exp(logs)
    np.testing.assert_allclose(np.trapezoid(density, grid), 1.0, atol=1e-9)
    true = np.trapezoid(density * (logs - scipy.stats.norm.logpdf(grid)), grid)
    assert (true <= claimed + 1e-9).all()
    assert (claimed <= radius * (1 + 1e-6)).all()
    assert (claimed >= true).all()
    assert (true > 0).all()


def test_draws_of_a_mixture_follow_its_density():
    kernel = gaussian(0.5, size=1)
    row = jnp.array([0.3, -0.4, 1.5, -0.6, -0.8, 0.4])
    drawn = np.asarray(drawn_by(kernel, row, jnp.zeros(0), jax.random.key(0)))[:, 0]
    log_weights, shift, log_std = jax.jit(lambda row: kernel.mixture(row))(row)
    weights, mean, std = np.exp(log_weights), np.asarray(shift)[:, 0], np.exp(log_std)[:, 0]
    centre = weights @ mean
    variance = weights @ (std**2 + mean**2) - centre**2
    assert abs(drawn.mean() - centre) <= 5 * np.sqrt(variance / len(drawn))
    fourth = ((drawn - centre) ** 4).mean()
    assert abs(drawn.var() - variance) <= 5 * np.sqrt((fourth - variance**2) / len(drawn))

    def cumulative(x):
        return weights @ scipy.stats.norm.cdf((x - mean[:, None]) / std[:, None])

    assert scipy.stats.kstest(drawn, cumulative).pvalue > 1e-4


# --- categorical


def nominal_rows(rng, shape):
    """Some outcomes cannot happen; the others have probabilities of all sizes."""
    p = rng.dirichlet(np.full(shape[1], 0.5), shape[0])
    p[:, 0] *= rng.random(shape[0]) < 0.5
    return (p / p.sum(-1, keepdims=True)).astype(np.float32)


@jax.jit
def tilted_rows(radius, p, logits):
    return jnp.exp(categorical(radius, logits.shape[-1]).log_probabilities(logits, jnp.log(p)))


@given(
    seed=seeds,
    radius=st.sampled_from([0.0, *RADII]),
    scale=st.sampled_from([0.1, 1.0, 10.0, 1000.0]),
    count=st.sampled_from([2, 5]),
)
@settings(light, max_examples=40)
def test_categorical_kernel_uses_its_radius_and_no_more(seed, radius, scale, count):
    rng = np.random.default_rng(seed)
    p = nominal_rows(rng, (ROWS, count))
    logits = (scale * rng.normal(size=p.shape)).astype(np.float32)
    q = np.asarray(tilted_rows(radius, p, logits))
    assert np.isfinite(q).all()
    assert (q[p == 0] == 0).all()
    found = divergence(q, p)
    assert (found <= radius * (1 + 1e-5) + ROUNDING).all()
    with np.errstate(divide="ignore"):
        untouched = np.log(p.astype(float)) + logits
    untouched = np.exp(untouched - untouched.max(-1, keepdims=True))
    raw = divergence(untouched, p)
    assert (found >= 0.99 * np.minimum(raw, radius) - ROUNDING).all()
    under = raw < radius * (1 - 1e-3) - ROUNDING
    untouched /= untouched.sum(-1, keepdims=True)
    np.testing.assert_allclose(q[under], untouched[under], rtol=1e-3, atol=1e-6)


@jax.jit
@jax.value_and_grad
def density_and_divergence(logits, p, radius):
    kernel = categorical(radius, 3)
    density = kernel.score(logits, jnp.log(p), jnp.array([1, 0, 2]))[0]
    return (density + _kl(kernel.log_probabilities(logits, jnp.log(p)), jnp.log(p))).sum()


@pytest.mark.parametrize("radius", [0.0, 0.01, 0.3, 5.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
def test_gradients_are_finite_where_outcomes_cannot_happen(radius, scale):
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    logits = scale * np.array([[1.0, -1.0, 3.0], [0.5, 2.0, -2.0], [0.3, 0.1, -0.7]])
    value, slope = density_and_divergence(logits, p, radius)
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("radius", [0.02, 50.0])
def test_gradient_of_the_excess_over_outcomes_equals_finite_differences(radius):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        p = np.asarray(nominal_rows(rng, (6, 5)), float)
        logits, by = rng.normal(size=(6, 5)), rng.normal(size=6)

        @jax.jit
        @jax.value_and_grad
        def total(logits):
            return (by * categorical(radius, 5).excess(logits, jnp.log(p))).sum()

        slope = np.asarray(total(logits)[1])
        change = np.zeros_like(slope)
        # The tilt is found to 1e-5, so that differences have to be well above that.
        for i in np.ndindex(slope.shape):
            step = np.zeros_like(logits)
            step[i] = 1e-2
            change[i] = (total(logits + step)[0] - total(logits - step)[0]) / 2e-2
    np.testing.assert_allclose(slope, change, atol=5e-3 * np.abs(change).max() + 1e-6)
    if radius > 1:
        assert (slope == 0).all()  # nothing is beyond so large a ball


def test_nature_can_turn_round_on_the_edge_of_the_ball():
    """Between two outcomes there is one way to go, and the way back must not be lost."""
    kernel, p = categorical(0.1, 2), jnp.array([0.6, 0.4])

    def log_density(logits):
        return kernel.score(logits, jnp.log(p), jnp.array(1))[0]

    slope = jax.grad(log_density)(jnp.array([3.0, -3.0]))
    assert slope[1] > 0 > slope[0]
    pull = jax.grad(lambda logits: kernel.excess(logits, jnp.log(p)))(jnp.array([3.0, -3.0]))
    assert pull[0] > 0 > pull[1]  # down this gradient the logits come back to the ball


def test_outcomes_are_drawn_as_often_as_they_should_be():
    kernel = categorical(0.2, 4)
    p, logits = jnp.array([0.4, 0.0, 0.5, 0.1]), jnp.array([2.0, 5.0, -1.0, 0.5])
    drawn = drawn_by(kernel, logits, jnp.log(p), jax.random.key(1))
    q = np.asarray(tilted_rows(0.2, p[None], logits[None]))[0]
    frequency = np.bincount(drawn, minlength=4) / DRAWS
    assert (np.abs(frequency - q) <= 5 * np.sqrt(q * (1 - q) / DRAWS)).all()


# --- expectations


def worth(w):
    return jnp.sin(w).sum() + 0.3 * (w**2).sum()


def test_expectation_under_a_mixture_and_its_gradient():
    """Against draws, and against the score function with a baseline."""
    kernel = gaussian(0.4, size=1)
    row = jnp.array([0.5, -0.2, 1.0, -0.5, -0.7, 0.6])

    @jax.jit
    def pathwise(kernel, row, key):
        keys = jax.random.split(key, DRAWS)
        both = jax.value_and_grad(lambda x, key: kernel.expectation(key, x, None, worth))
        return jax.vmap(both, in_axes=(None, 0))(row, keys)

    @jax.jit
    def by_score(kernel, row, key):
        drawn = drawn_by(kernel, row, jnp.zeros(0), key)
        values = jax.vmap(worth)(drawn)
        score = jax.grad(lambda x, w: kernel.score(x, None, w)[0])
        scores = jax.vmap(score, in_axes=(None, 0))(row, drawn)
        return values, (values - values.mean())[:, None] * scores

    both_ways = (pathwise(kernel, row, jax.random.key(0)), by_score(kernel, row, jax.random.key(1)))
    for one, other in zip(*both_ways, strict=True):
        one, other = np.asarray(one, float), np.asarray(other, float)
        error = np.sqrt((one.var(0) + other.var(0)) / DRAWS)
        assert (np.abs(one.mean(0) - other.mean(0)) <= 5 * error + 1e-6).all()


def test_expectation_over_outcomes_and_its_gradient():
    kernel = categorical(0.2, 4)
    p, logits = jnp.array([0.4, 0.0, 0.5, 0.1]), jnp.array([2.0, 5.0, -1.0, 0.5])
    values = jnp.array([1.0, 7.0, -2.0, 3.0])

    @jax.jit
    @jax.value_and_grad
    def expected(logits):
        return kernel.expectation(jax.random.key(0), logits, jnp.log(p), lambda k: values[k])

    possible = np.array([0, 2, 3])

    @jax.jit
    def scores(logits):
        each = jax.value_and_grad(lambda x, k: kernel.score(x, jnp.log(p), k)[0])
        return jax.vmap(each, in_axes=(None, 0))(logits, possible)

    value, slope = expected(logits)
    q = np.asarray(tilted_rows(0.2, p[None], logits[None]))[0]
    np.testing.assert_allclose(value, q @ values, rtol=1e-6)
    logs, slopes = scores(logits)
    np.testing.assert_allclose(np.exp(logs), q[possible], rtol=1e-6)
    exact = (q * np.asarray(values))[possible] @ slopes
    np.testing.assert_allclose(slope, exact, rtol=1e-3, atol=1e-5)


# --- tilted


@jax.jit
def weights_of(radius, lookahead):
    return jnp.exp(TiltedKernel(radius, 1, lookahead.shape[-1]).log_weights(lookahead))


def lookaheads(seed, kind):
    y = np.random.default_rng(seed).normal(size=(ROWS, 64))
    if kind == "ties":
        y = np.round(y)
    if kind == "heavy":
        y = y**7
    if kind == "two levels":
        y = np.where(y > 0.5, 1.0, 0.0)
    return y.astype(np.float32)


@given(
    seed=seeds,
    radius=st.sampled_from([*RADII, 3.0, 5.0]),
    kind=st.sampled_from(["normal", "ties", "heavy", "two levels"]),
)
@settings(light, max_examples=24)
def test_tilted_weights_are_the_worst_of_the_ball(seed, radius, kind):
    y = lookaheads(seed, kind)
    q, uniform = np.asarray(weights_of(radius, y)), np.full(y.shape, 1 / 64)
    y = y.astype(float)
    found = divergence(q, uniform)
    assert (found <= radius * (1 + 1e-5) + ROUNDING).all()
    # Either the whole radius is used or only what ties with the worst is left; heavy tails leave
    # candidates within 1e-4 of the spread, which counts as a tie.
    worst = y <= y.min(-1, keepdims=True) + 1e-3 * np.ptp(y, axis=-1, keepdims=True)
    left_over = np.where(worst, 0.0, q).sum(-1)
    assert ((found >= 0.99 * radius) | (left_over <= 1e-3)).all()
    best = KL(radius).worst_response(uniform, y)
    assert (np.abs(((q - best) * y).sum(-1)) <= 1e-3 * np.ptp(y, axis=-1)).all()


def test_tilted_weights_do_not_depend_on_scale_and_offset():
    y = lookaheads(0, "normal")
    q = np.asarray(weights_of(0.3, y))
    for scale in (1e-30, 1e-6, 1e6, 1e30):
        np.testing.assert_allclose(weights_of(0.3, np.float32(scale) * y), q, rtol=1e-3)
    # An offset costs the digits that it takes from the lookahead itself.
    np.testing.assert_allclose(weights_of(0.3, y + 100), q, rtol=1e-3)


def test_nothing_to_choose_between_leaves_the_weights_uniform():
    y = lookaheads(0, "normal")
    np.testing.assert_allclose(weights_of(0.0, y), 1 / 64, rtol=1e-6)
    for value in (0.0, 7.0, -1e9):
        np.testing.assert_allclose(weights_of(0.5, np.full_like(y, value)), 1 / 64, rtol=1e-6)


def test_tilted_draws_are_the_nominal_noise_moved_against_the_lookahead():
    """With lookahead v·w, standard normal w and many candidates: the mean moves by −√(2R)·v/‖v‖."""
    v, rows, radius = np.array([0.6, -0.8]), 8_000, 0.1

    @jax.jit
    def draw(key, v):
        situation = Situation(jnp.zeros((rows, 1)), jnp.zeros((rows, 0)), lambda w: (w * v).sum(-1))
        return TiltedKernel(jnp.asarray(radius), 2, 64).draw(key, situation)

    drawn = np.asarray(draw(jax.random.key(0), v))
    shift = drawn.mean(0)
    reach = np.sqrt(2 * radius)
    # 64 candidates have no tail, which costs a little.
    assert 0.9 * reach <= -shift @ v <= reach + 5 / np.sqrt(rows)
    across = np.array([0.8, 0.6])
    assert abs(shift @ across) <= 5 / np.sqrt(rows)
    assert abs((drawn @ across).var() - 1) <= 5 * np.sqrt(2 / rows)


def test_nominal_draws():
    rows = 20_000
    normal = Situation(jnp.zeros((rows, 1)), jnp.zeros((rows, 0)), lambda w: w)
    drawn = np.asarray(Nominal(2).draw(jax.random.key(0), normal))
    assert (np.abs(drawn.mean(0)) <= 5 / np.sqrt(rows)).all()
    assert (np.abs(drawn.var(0) - 1) <= 5 * np.sqrt(2 / rows)).all()
    p = jnp.array([0.2, 0.0, 0.8])
    outcomes = normal._replace(log_nominal=jnp.broadcast_to(jnp.log(p), (rows, 3)))
    counts = np.bincount(Nominal(0).draw(jax.random.key(0), outcomes), minlength=3)
    assert counts[1] == 0
    assert abs(counts[0] / rows - 0.2) <= 5 * np.sqrt(0.16 / rows)
