"""Adam steps on minibatches of whole episodes, and the critics fitted by them."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from holdfast.simulators.nature.adversary import Nature, fit_critic
from holdfast.simulators.policy.networks import MLP, Critic, Normaliser
from holdfast.simulators.steps.descent import Passes, by_episodes, descend
from holdfast.simulators.training.rollout import Nominal


@pytest.mark.parametrize(("episodes", "minibatches", "used"), [(6, 3, 6), (7, 3, 6), (2, 8, 2)])
def test_minibatches_cover_the_episodes(episodes, minibatches, used):
    """Episodes left over by the division are not used, and at least one always is."""
    data = jnp.arange(1.0, 3 * episodes + 1).reshape(3, episodes)
    adam, network = optax.adam(1.0), jnp.array(0.0)
    seen = []

    def loss(network, part):
        seen.append(part.shape)
        return network * part.sum()

    start = (network, adam.init(network))
    _, state = descend(start, loss, by_episodes(data, minibatches), Passes(1.0, 1, minibatches))
    size = used // min(minibatches, episodes)
    assert set(seen) == {(3 * size,)}
    decay = 0.9 ** np.arange(used // size)[::-1]
    parts = np.asarray(data)[:, :used].reshape(3, size, -1).sum((0, 1))
    np.testing.assert_allclose(state[0].mu, 0.1 * decay @ parts, rtol=1e-5)


def test_a_critic_learns_a_linear_function_and_ignores_steps_after_the_end():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(5, 40, 2)).astype(np.float32)
    targets = (100 + 30 * inputs @ [1.0, -2.0]).astype(np.float32)
    alive = rng.random((5, 40)) < 0.7
    targets = np.where(alive, targets, 1e6)
    network = MLP((jnp.zeros((2, 1)),), (jnp.zeros(1),))
    critic = Critic(network, Normaliser.create(1))
    nature = Nature(Nominal(1), critic, None, optax.adam(0.05).init(network))
    fitted = fit_critic(nature, inputs, targets, jnp.asarray(alive), Passes(0.05, 100, 4)).critic
    np.testing.assert_allclose(fitted(inputs)[alive], targets[alive], atol=1.0)
    np.testing.assert_allclose(fitted.returns.mean, targets[alive].mean(), rtol=1e-4)
