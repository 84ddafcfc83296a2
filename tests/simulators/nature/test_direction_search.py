"""The direction search: inside its ball, drawn as it says, and pointing where the values are worst."""

import dataclasses

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import holdfast as hf
from holdfast._support.devices import row
from holdfast.environments.linear_gaussian import LinearGaussian
from holdfast.simulators.certificates.attack import FrozenPolicy, Targets, train_attackers, watch
from holdfast.simulators.environment import Discrete, Environment, GaussianNoise, Step
from holdfast.simulators.nature.adversary import kernel_name
from holdfast.simulators.nature.direction_search import DirectionSearch
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.training.learner import first_learners, sample
from holdfast.simulators.training.rollout import Signal, Situation
from holdfast.simulators.training.settings import AdversarySettings, Plan, Settings, cost_limits


class DrawnOnce(Environment):
    """The reward of the only step that counts is linear in two numbers that are drawn once."""

    name = "drawn-once"
    draws_once = True
    horizon = 2
    observation_size = feature_size = 1
    action_space = Discrete(2)
    disturbance = GaussianNoise(2, "parameters", (1.0, 1.0))
    cost_names = ("cost",)
    discount = 1.0
    slope = (0.6, -0.8)

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def listens(self, state):
        return state[0] == 0

    def features(self, state):
        return state

    def step(self, state, action, disturbance):
        reward = jnp.where(state[0] == 0, jnp.dot(jnp.asarray(self.slope), disturbance), 0.0)
        after = jnp.ones(1)
        return Step(after, after, reward, jnp.reshape(-2 * reward, (1,)), jnp.array(False))


ENV = DrawnOnce()


def created(radius, candidates=64, env=ENV):
    settings = AdversarySettings("direction-search", candidates=candidates)
    return DirectionSearch.create(jax.random.PRNGKey(0), env, jnp.asarray(radius), settings)


def situation(rows):
    return Situation(jnp.zeros((rows, 1)), jnp.zeros((rows, 0)), lambda w: w)


@pytest.mark.parametrize("candidates", [2, 3, 64])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("radius", [0.0, 0.2, 12.5])
def test_every_part_spends_the_radius_and_the_mixture_at_most_that(size, radius, candidates):
    noise = GaussianNoise(size, "parameters", (1.0,) * size)
    kind = type("Sized", (DrawnOnce,), {"disturbance": noise})
    kernel = created(radius, candidates, env=kind())
    np.testing.assert_allclose((np.asarray(kernel.shifts) ** 2).sum(-1) / 2, radius, rtol=1e-5)
    # Every axis can be moved both ways, whatever the number of candidates.
    reach = np.asarray(kernel.directions)
    assert (reach.max(0) > 0.99).all()
    assert (reach.min(0) < -0.99).all()
    if size == 2 and radius == 0.2 and candidates == 64:
        # KL of the mixture, by a sum over a fine grid.
        weights = np.random.default_rng(0).dirichlet(np.full(len(reach), 0.1))
        x = np.stack(np.meshgrid(*2 * [np.linspace(-7, 7, 281)]), -1).reshape(-1, 2)
        nominal = scipy.stats.multivariate_normal(np.zeros(2)).pdf(x)
        density = sum(
            w * scipy.stats.multivariate_normal(m).pdf(x)
            for w, m in zip(weights, np.asarray(kernel.shifts), strict=True)
        )
        kl = (density * np.log(density / nominal)).sum() * 0.05**2
        assert 0 < kl <= radius


def test_draws_follow_the_weights_and_trying_draws_all_alike():
    kernel = created(12.5, candidates=8)
    known = {"values": jnp.arange(8.0), "counts": jnp.ones(8), "temperature": jnp.asarray(0.7)}
    kernel = dataclasses.replace(kernel, **known)
    weights = np.exp(np.asarray(kernel.log_weights))
    np.testing.assert_allclose(weights, scipy.special.softmax(-np.arange(8) / 0.7), rtol=1e-5)
    for each, expected in ((kernel, weights), (kernel.trying(), np.full(8, 1 / 8))):
        drawn = np.asarray(each.draw(jax.random.PRNGKey(1), situation(8000)))
        # Five standard deviations out and 45 degrees apart, few draws are nearer to another part.
        nearest = (drawn @ np.asarray(kernel.directions).T).argmax(-1)
        found = np.bincount(nearest, minlength=8) / len(drawn)
        np.testing.assert_allclose(found, expected, atol=0.06 * expected.max())
        along = drawn[nearest == 0] @ np.asarray(kernel.directions)[0]
        assert along.mean() == pytest.approx(5.0, abs=0.2)
        assert along.std() == pytest.approx(1.0, abs=0.1)


def test_rows_are_not_in_the_order_of_the_directions():
    """The last rows may be played with other actions than the first ones."""
    drawn = np.asarray(created(12.5).trying().draw(jax.random.PRNGKey(2), situation(640)))
    angles = np.arctan2(drawn[:, 1], drawn[:, 0])
    assert np.histogram(angles[-64:], bins=8, range=(-np.pi, np.pi))[0].min() >= 2


def test_few_noisy_episodes_at_a_time_reveal_the_worst_direction():
    kernel, key = created(12.5), jax.random.PRNGKey(3)
    slope = np.asarray(ENV.slope)
    for _ in range(5):
        key, draw, noise = jax.random.split(key, 3)
        w = kernel.trying().draw(draw, situation(10))
        values = w @ jnp.asarray(slope) + 3.0 * jax.random.normal(noise, (10,))
        kernel = kernel.forgetting(1.0).observed(w, values)
    mean = np.exp(np.asarray(kernel.log_weights)) @ np.asarray(kernel.directions)
    assert mean @ -slope >= 0.7  # −slope is the unit vector of the worst direction


def test_it_finds_the_worst_case_of_parameters_that_act_linearly():
    policy = Policy.create(jax.random.PRNGKey(0), 1, (), ENV.action_space)
    both = jnp.full(2, 1.0)
    signals = Signal(jnp.arange(2), both, both, both, bootstrap=False)
    frozen = FrozenPolicy(ENV, policy, None, signals, ENV.horizon, (), 1e-3)
    key, radius = jax.random.PRNGKey(1), 2.0
    settings = AdversarySettings("direction-search", updates=20, batch_size=400, minibatches=1)
    targets = Targets(
        jnp.arange(2), jnp.full(2, radius), jnp.zeros(2, bool), jax.random.split(key, 2)
    )
    natures, _ = train_attackers(frozen, watch(frozen, key), targets, settings, 100)
    for signal, slope in enumerate((np.asarray(ENV.slope), 2 * np.asarray(ENV.slope))):
        kernel = jax.tree.map(lambda leaf, i=signal: leaf[i], natures.kernel)
        found = np.exp(np.asarray(kernel.log_weights)) @ np.asarray(kernel.shifts) @ slope
        assert 0.98 <= found / -(np.sqrt(2 * radius) * np.linalg.norm(slope)) <= 1 + 1e-6


def test_the_density_is_that_of_the_mixture():
    kernel = created(0.7, candidates=8)
    kernel = dataclasses.replace(kernel, values=jnp.arange(8.0), counts=jnp.ones(8))
    draws = np.random.default_rng(0).normal(size=(20, 2))
    parts = [scipy.stats.multivariate_normal(mean).logpdf(draws) for mean in kernel.shifts]
    weights = scipy.special.softmax(-np.arange(8))
    expected = scipy.special.logsumexp(np.array(parts).T, b=weights, axis=1)
    nominal = scipy.stats.multivariate_normal(np.zeros(2)).logpdf(draws)
    found = np.asarray(kernel.log_density(jnp.asarray(draws)))
    np.testing.assert_allclose(found - 0.7, expected - nominal, atol=1e-5)


@pytest.mark.parametrize("noise", [0.5, 30.0])
def test_directions_that_noise_cannot_tell_apart_are_used_alike(noise):
    kernel, rng = created(12.5, candidates=8), np.random.default_rng(0)
    w = kernel.trying().draw(jax.random.PRNGKey(3), situation(400))
    values = w @ jnp.asarray(ENV.slope) + noise * rng.normal(size=400)
    kernel = kernel.observed(w, values)
    # Each of eight directions has fifty episodes; few shares are neither 0 nor 1.
    error = noise / np.sqrt(50)
    spread = np.ptp(np.asarray(kernel.values))
    assert float(kernel.temperature) == pytest.approx(max(0.1 * spread, error), rel=0.3)
    assert float(kernel.temperature) >= 0.1 * spread * (1 - 1e-5)


def test_directions_without_a_trial_have_no_value_and_count_as_the_worst():
    """Episodes at (5, 0) and (0, 5): the share of (−5, 0) in them is e^−50, whose square is zero."""
    kernel = created(12.5, candidates=4)
    w = jnp.array([[5.0, 0.0], [0.0, 5.0]])
    kernel = kernel.observed(w, jnp.array([2.0, 3.0]))
    assert np.isfinite(jax.flatten_util.ravel_pytree(kernel)[0]).all()
    assert list(kernel.tried) == [True, True, False, False]
    np.testing.assert_allclose(kernel.values, [2.0, 3.0, 0.0, 0.0], atol=1e-5)
    weights = np.exp(np.asarray(kernel.log_weights))
    np.testing.assert_allclose(weights[[2, 3]], weights[0], rtol=1e-5)  # as the worst, 2
    assert weights[1] < weights[0]


def test_exact_values_of_a_linear_signal_give_a_known_share_of_the_worst_shift():
    kernel = created(2.0)
    values = kernel.directions @ jnp.asarray(ENV.slope)
    known = {"values": values, "counts": jnp.full(64, 100.0), "temperature": jnp.asarray(0.2)}
    kernel = dataclasses.replace(kernel, **known)  # a tenth of the range from −1 to 1
    mean = np.exp(np.asarray(kernel.log_weights)) @ np.asarray(kernel.directions)
    expected = scipy.special.iv(1, 5) / scipy.special.iv(0, 5)
    assert mean @ -np.asarray(ENV.slope) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("size", "gradient", "kernel"),
    [
        (1, "score", "direction-search"),
        (2, "score", "direction-search"),
        (2, "pathwise", "gaussian-mixture"),
        (3, "score", "gaussian-mixture"),
    ],
)
def test_it_is_the_default_for_one_or_two_parameters(size, gradient, kernel):
    noise = GaussianNoise(size, "parameters", (1.0,) * size)
    env = type("Sized", (DrawnOnce,), {"disturbance": noise})()
    assert kernel_name(env, AdversarySettings(gradient=gradient)) == kernel


def known_kernels(learner):
    """The learner with a kernel of the reward that shifts along +u, and one of the cost along +u + v."""
    kernel = learner.natures.kernel
    values = -kernel.directions @ jnp.array([[1.0, 1.0], [0.0, 1.0]])
    values = jnp.stack([values[0, :, 0], values[1, :, 1]])
    counts = jnp.full_like(kernel.counts, 100.0)
    known = dataclasses.replace(kernel, values=values, counts=counts)
    return dataclasses.replace(learner, natures=dataclasses.replace(learner.natures, kernel=known))


def test_every_episode_counts_for_every_signal_with_its_likelihood_ratio():
    settings = Settings(
        radius=0.5,
        cost_limit=(1.0,),
        batch_size=20_000,
        evaluation_share=0.01,
        adversary=AdversarySettings("direction-search"),
    )
    plan = Plan.create(ENV, settings, robust=True, constrained=True)
    first = first_learners(plan, ENV, settings, cost_limits(ENV, settings), [0])
    learner = known_kernels(row(first, 0))
    after, samples = jax.jit(lambda learner: sample(plan, ENV, learner))(learner)
    episodes = samples.batches.alive.shape[2]
    assert samples.batches.alive.shape[0] == 1
    assert samples.estimates.weights.shape[::2] == (2, episodes)
    returns = np.asarray(samples.batches.signals[0].sum(0))
    for i, slope in enumerate((np.asarray(ENV.slope), 2 * np.asarray(ENV.slope))):
        kernel = jax.tree.map(lambda leaf, i=i: leaf[i], learner.natures.kernel)
        exact = np.exp(np.asarray(kernel.log_weights)) @ np.asarray(kernel.shifts) @ slope
        ratios = np.asarray(samples.estimates.weights[i, 0])
        assert ratios.max() <= 2 + 1e-5
        assert ratios.mean() == pytest.approx(1.0, abs=0.03)
        error = np.std(ratios * returns[:, i]) / np.sqrt(episodes)
        assert np.mean(ratios * returns[:, i]) == pytest.approx(exact, abs=5 * error)
        own = float(samples.estimates.error[i])
        assert float(samples.estimates.value[i]) == pytest.approx(exact, abs=5 * own)
        count = float(after.natures.kernel.counts[i].sum() - kernel.counts.sum())
        assert count == pytest.approx(episodes, rel=0.1)


def test_training_uses_it_and_a_checkpoint_keeps_it(tmp_path):
    settings = {
        "radius": 2.0,
        "cost_limit": 1.0,
        "batch_size": 40,
        "hidden": (4,),
        "adversary": {"kernel": "direction-search", "batch_size": 40, "updates": 1},
    }
    whole = hf.train(ENV, "rcpo", iterations=3, out=tmp_path / "whole", **settings)
    hf.train(ENV, "rcpo", iterations=2, out=tmp_path / "parts", **settings)
    parts = hf.train(ENV, "rcpo", iterations=3, out=tmp_path / "parts", **settings)
    for one, other in zip(*map(jax.tree.leaves, (whole.policy, parts.policy)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_noise_of_every_step_is_refused():
    with pytest.raises(ValueError, match="kernel: a direction search needs Gaussian parameters"):
        created(0.2, env=LinearGaussian())
    settings = {"radius": 0.1, "cost_limit": 1.0, "adversary": {"kernel": "direction-search"}}
    with pytest.raises(ValueError, match="linear-gaussian has none; use 'mean-shift' or 'auto'"):
        hf.train(LinearGaussian(), "rcpo", iterations=1, **settings)


def test_stress_tries_it_wherever_parameters_are_drawn_once():
    few = {"noise": None, "episodes": 20, "updates": 2, "restarts": 1}
    policy = hf.as_agent(lambda observation: 0, ENV, cost_limit=1.0)
    found = hf.stress(policy, radii=None, **few)
    assert "direction-search" in [kind["kernel"] for kind in found.setup["kernels"]]
    found = hf.stress(policy, radii=[0.5], kernels="direction-search", **few)
    attacked = [row.kernels for row in found.rows if row.kind == "attack"]
    # Of the reward and of the cost. A function acts in one way, and is tested once.
    assert attacked == [("direction-search",)] * 2
