"""The mean shift: exactly its radius everywhere, its density, and a direction that can reverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import holdfast as hf
from holdfast.environments import TableSimulator
from holdfast.simulators.nature.mean_shift import MeanShift
from holdfast.simulators.policy.networks import MLP
from holdfast.simulators.training.rollout import Situation
from holdfast.simulators.training.settings import AdversarySettings

ROWS, SIZE = 64, 3


def passing(radius, size=SIZE):
    """A kernel whose network passes its inputs on."""
    return MeanShift(MLP((jnp.eye(size),), (jnp.zeros(size),)), jnp.asarray(radius, float))


@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.2, 3.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_every_row_spends_the_whole_radius_in_the_direction_of_the_output(radius, scale):
    outputs = (scale * np.random.default_rng(0).normal(size=(ROWS, SIZE))).astype(np.float32)
    shift = np.asarray(passing(radius).shift(outputs), float)
    np.testing.assert_allclose((shift**2).sum(-1) / 2, radius, rtol=1e-4, atol=1e-12)
    unit = outputs / np.linalg.norm(outputs, axis=-1, keepdims=True)
    np.testing.assert_allclose(shift, np.sqrt(2 * radius) * unit, rtol=1e-4, atol=1e-6)


def test_an_output_of_zero_has_no_direction_and_stays_inside():
    assert (np.asarray(passing(0.2).shift(jnp.zeros((1, SIZE)))) == 0).all()


def test_density_and_draws_are_those_of_a_moved_normal_distribution():
    kernel, rows = passing(0.3), 20_000
    output = jnp.array([1.0, -2.0, 0.5])
    shift = np.asarray(kernel.shift(output), float)
    inputs = jnp.broadcast_to(output, (rows, SIZE))
    situation = Situation(inputs, jnp.zeros((rows, 0)), lambda w: w)
    drawn = np.asarray(kernel.draw(jax.random.PRNGKey(0), situation), float)
    np.testing.assert_allclose(drawn.mean(0), shift, atol=5 / np.sqrt(rows))
    np.testing.assert_allclose(np.cov(drawn.T), np.eye(SIZE), atol=5 * np.sqrt(2 / rows))
    some = drawn[:50]
    expected = scipy.stats.multivariate_normal(shift).logpdf(some)
    found = kernel.score(inputs[:50], None, jnp.asarray(some, jnp.float32))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_one_dimensional_noise_can_be_turned_around():
    """Gradient descent on E[w] from the wrong side; the gradient along the sphere would be zero."""
    kernel = passing(0.2, size=1)
    output, key = jnp.array([0.5]), jax.random.PRNGKey(0)
    slope = jax.jit(jax.grad(lambda x: kernel.expectation(key, x, None, lambda w: w.sum())))
    for _ in range(20):
        output = output - 0.1 * slope(output)
    assert float(kernel.shift(output)[0]) == pytest.approx(-np.sqrt(0.4), rel=1e-5)


def test_outcomes_are_refused():
    env = TableSimulator(hf.environments.n_chain(nodes=5), name="chain")
    with pytest.raises(ValueError, match="kernel: a mean shift needs Gaussian noise, and chain"):
        MeanShift.create(jax.random.PRNGKey(0), env, jnp.asarray(0.1), AdversarySettings())
