"""One update of nature goes the right way, for every signal and by both gradients."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from holdfast.environments.linear_gaussian import LinearGaussian
from holdfast.simulators.nature.adversary import Nature, attack
from holdfast.simulators.nature.gaussian_mixture import GaussianMixture
from holdfast.simulators.policy.networks import MLP, Policy
from holdfast.simulators.training.rollout import Player, Sight, Signal, rollout
from holdfast.simulators.training.settings import AdversarySettings

RATE = 1e-3
DISCOUNT = 0.8
EPISODES = 400
SIGHT = Sight(None, None, None, clock=False)


def signal(index):
    return Signal(index, jnp.array(DISCOUNT), jnp.array(0.9), jnp.array(DISCOUNT), bootstrap=True)


def linear():
    env = LinearGaussian(discount=DISCOUNT, horizon=12)
    n, m = env.control.shape
    network = MLP((jnp.zeros((n, m)),), (jnp.zeros(m),))
    return env, Policy(network, jnp.zeros(m), env.action_space)


def exact_values(env, index):
    """V of the policy, affine in the state: the policy does nothing but explore."""
    signal = env.reward if index == 0 else env.cost
    sign = 1.0 if index == 0 else -1.0
    A = np.asarray(env.dynamics, float)
    return sign * np.linalg.solve(np.eye(len(A)) - DISCOUNT * A.T, np.asarray(signal.state))


def nature_of(env, index, radius, settings, key=0):
    """One whose critic is right from the start."""
    nature = Nature.create(jax.random.key(key), env, jnp.asarray(radius), settings, (), RATE)
    weights = jnp.asarray(np.append(exact_values(env, index), 0.0), jnp.float32)[:, None]
    return eqx.tree_at(lambda n: n.critic.network, nature, MLP((weights,), (jnp.zeros(1),)))


def with_radius_zero(kernel):
    return eqx.tree_at(lambda k: k.radius, kernel, jnp.zeros_like(kernel.radius))


def settings_for(env, gradient):
    return AdversarySettings(
        gradient=gradient,
        batch_size=EPISODES * env.horizon,
        hidden=(),
        learning_rate=0.03,
        components=1,
    )


@functools.partial(jax.jit, static_argnums=5)
def updated(nature, env, policy, index, key, settings):
    return attack(nature, Player(env, policy, SIGHT), signal(index), key, settings, RATE)


@jax.jit
def returns(kernel, env, policy, index, key):
    """Discounted returns of the signal without what follows the cut, which is little here."""
    batch = rollout(Player(env, policy, SIGHT), kernel, key, 4 * EPISODES)
    powers = DISCOUNT ** jnp.arange(env.horizon)[:, None]
    return (powers * batch.signals[..., index]).sum(0)


@pytest.mark.parametrize("gradient", ["score", "pathwise"])
def test_an_update_lowers_the_signal(gradient):
    """The reward, and the utility −cost: that the cost rises is the same thing."""
    env, policy = linear()
    settings = settings_for(env, gradient)
    for index in (0, 1):
        before = nature_of(env, index, 0.2, settings)
        assert isinstance(before.kernel, GaussianMixture)
        where = jnp.array(index)
        after = updated(before, env, policy, where, jax.random.key(1), settings)
        key = jax.random.key(2)
        old = np.asarray(returns(before.kernel, env, policy, where, key))
        new = np.asarray(returns(after.kernel, env, policy, where, key))
        change = new - old
        assert change.mean() < -3 * change.std() / np.sqrt(len(change))


def test_a_cost_rises_towards_its_worst_case_and_not_beyond():
    env, policy = linear()
    settings = settings_for(env, "pathwise")
    nature = nature_of(env, 1, 0.2, settings)
    for i in range(3):
        nature = updated(nature, env, policy, jnp.array(1), jax.random.key(i), settings)
    key = jax.random.key(9)
    args = (env, policy, jnp.array(1), key)
    utility = np.asarray(returns(nature.kernel, *args))
    nominal = np.asarray(returns(with_radius_zero(nature.kernel), *args))
    error = np.hypot(utility.std(), nominal.std()) / np.sqrt(len(utility))
    assert -utility.mean() > -nominal.mean() + 5 * error
    known = env.closed_form(radius=0.2, signal="cost")
    assert -utility.mean() <= known.worst + 5 * error


@pytest.mark.parametrize("gradient", ["score", "pathwise"])
def test_with_radius_zero_the_kernel_stays_nominal(gradient):
    env, policy = linear()
    settings = settings_for(env, gradient)
    nature = nature_of(env, 0, 0.0, settings)
    nature = updated(nature, env, policy, jnp.array(0), jax.random.key(1), settings)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(nature.kernel))
    inputs = np.random.default_rng(0).normal(size=(20, env.nature_feature_size + 1))
    inputs = jnp.asarray(inputs, jnp.float32)
    _, shift, log_std = eqx.filter_jit(nature.kernel.mixture)(inputs)
    assert (np.asarray(shift) == 0).all()
    assert (np.asarray(log_std) == 0).all()
