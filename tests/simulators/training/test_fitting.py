"""Gradient steps on parts of a batch."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from holdfast.simulators.policy.networks import MLP, Critic, Normaliser
from holdfast.simulators.training.fitting import fit_critic, over_minibatches


@pytest.mark.parametrize(("episodes", "parts", "used"), [(6, 3, 6), (7, 3, 6), (2, 8, 2)])
def test_parts_cover_the_episodes(episodes, parts, used):
    """Those left over by the division are not used; but something always is."""
    data = jnp.arange(1.0, 3 * episodes + 1).reshape(3, episodes)
    total = over_minibatches(
        jnp.array(0.0), data, lambda sum, part: sum + part.sum(), epochs=2, minibatches=parts
    )
    assert total == 2 * np.asarray(data)[:, :used].sum()


def test_a_critic_learns_what_is_linear_and_ignores_what_is_over():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(5, 40, 2)).astype(np.float32)
    targets = (100 + 30 * inputs @ [1.0, -2.0]).astype(np.float32)
    alive = rng.random((5, 40)) < 0.7
    targets = np.where(alive, targets, 1e6)
    network = MLP((jnp.zeros((2, 1)),), (jnp.zeros(1),))
    critic = Critic(network, Normaliser.create(1))
    adam = optax.adam(0.05)
    fitted, _ = fit_critic(
        critic, adam, adam.init(network), inputs, targets, alive, epochs=100, minibatches=4
    )
    np.testing.assert_allclose(fitted(inputs)[alive], targets[alive], atol=1.0)
    np.testing.assert_allclose(fitted.returns.mean, targets[alive].mean(), rtol=1e-4)
