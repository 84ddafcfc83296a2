"""What theory promises of a step is never broken, on random models and pairs of policies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.model.table import layout_of
from holdfast.tabular.certificates.step_bounds import (
    occupancy_ratio,
    performance_difference_bound,
    step_bounds,
)
from holdfast.tabular.evaluation.worst_case import Dual, values_under, worst_case, worst_kernels


def bounds_of(model, before, after, delta=0.01):
    with jax.enable_x64(True):
        layout = layout_of(model)
        pi, new = layout.pad_policy(before), layout.pad_policy(after)
        table = layout.table
        looks = [worst_case(table, policy, Dual()) for policy in (pi, new)]
        return step_bounds(table, pi, new, *looks, delta, model.states)


@pytest.mark.parametrize("seed", range(30))
def test_the_lemma_and_the_corrected_bounds_hold_for_any_two_policies(oracle, seed):
    rng = np.random.default_rng(seed)
    model = oracle.random_model(
        seed, discount=(0.5, 0.8, 0.95)[seed % 3], radius=(0.01, 0.1, 1.0)[seed // 3 % 3]
    )
    before = oracle.random_policy(model, rng)
    share = (0.01, 0.3, 1.0)[seed % 3]
    after = (1 - share) * before + share * oracle.random_policy(model, rng)
    bounds = bounds_of(model, before, after)
    old, new = hf.evaluate(model, before), hf.evaluate(model, after)
    error = old.error + new.error
    change = new.reward.worst - old.reward.worst
    assert bounds["reward_change"] == pytest.approx(change, abs=error)
    assert change >= bounds["lemma_bound"] - error
    assert change >= bounds["reward_bound"] - error
    if bounds["linearised_margins"][0] >= 0:
        assert new.margins[0] >= bounds["margin_bounds"][0] - error


@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_the_lemma_is_the_papers_for_every_signal(oracle, radius):
    """(6) for the reward, (41) for a utility, (28) and (29) at radius 0: the formula in NumPy.

    The two inequalities of its proof, (31), hold with the performance difference under the worst-case
    kernel of π' between them.
    """
    model = oracle.random_model(4, radius=radius)
    rng = np.random.default_rng(4)
    before = oracle.random_policy(model, rng)
    after = 0.9 * before + 0.1 * oracle.random_policy(model, rng)
    old, new = hf.evaluate(model, before), hf.evaluate(model, after)
    gamma, kl = model.discount, (after * np.log(after / before)).sum(-1)
    with jax.enable_x64(True):
        layout = layout_of(model)
        pi, later = layout.pad_policy(before), layout.pad_policy(after)
        worst = worst_case(layout.table, later, Dual())
        kernels = worst_kernels(layout.table, worst)
        crossed = values_under(layout.table, pi, kernels, worst)
        padded = jnp.zeros(len(pi)).at[: model.states].set(kl)
        bounds = [
            float(performance_difference_bound(later, crossed, padded, jnp.asarray(gamma), signal))
            for signal in (0, 1)
        ]
    signals = model.reward, model.constraints[0].signal
    pairs = [(old.reward, new.reward), (old.constraints[0], new.constraints[0])]
    for signal, (one, other), bound in zip(signals, pairs, bounds, strict=True):
        kernel = other.kernel
        values = oracle.values_under(model, kernel, signal, before)
        gain = (after * (signal + gamma * kernel @ values)).sum(-1) - values
        chain = np.einsum("sa,sat->st", before, kernel)
        visits = np.linalg.solve(np.eye(model.states) - gamma * chain.T, model.initial)
        penalty = 2 * gamma * np.abs(gain).max() / (1 - gamma) * np.sqrt(kl / 2)
        assert bound == pytest.approx(visits @ (gain - penalty), abs=1e-7)
        under = model.initial @ (oracle.values_under(model, kernel, signal, after) - values)
        error = old.error + new.error
        assert other.worst - one.worst >= under - error
        assert under >= bound - error


def test_the_bounds_are_tight_where_nothing_changes(oracle):
    model = oracle.random_model(0)
    policy = oracle.random_policy(model, np.random.default_rng(0))
    bounds = bounds_of(model, policy, policy)
    for name in ("reward_change", "lemma_bound", "reward_bound", "margin_bounds"):
        # A KL of 1e-17, which is rounding, is 1e-8 under the bounds' root.
        np.testing.assert_allclose(bounds[name], 0, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("safeguard", ["project", None])
def test_histories_never_break_them(oracle, seed, safeguard):
    model = oracle.random_model(seed, slack=0.05)
    history = hf.solve(model, iterations=8, seed=seed, bounds=True, safeguard=safeguard).history
    change, error = history["reward_change"][1:], 2 * history["error"].max()
    np.testing.assert_allclose(change, np.diff(history["reward"]), atol=1e-12)
    assert np.all(change >= history["lemma_bound"][1:] - error)
    assert np.all(change >= history["reward_bound"][1:] - error)
    # Loose as they are, the paper's own bounds cannot fail either; what fails is their proof.
    assert np.all(change >= history["paper_reward_bound"][1:] - error)
    met = history["linearised_margins"][1:] >= 0
    assert np.all((history["margins"][1:] >= history["margin_bounds"][1:] - error) | ~met)
    assert np.isnan(history["reward_change"][0])


def test_the_linearised_margin_is_the_projections_own(oracle):
    """With the factor 1/(1−γ): after an unsafeguarded projection it is met exactly."""
    model = oracle.random_model(2)
    history = hf.solve(model, iterations=6, bounds=True, safeguard=None).history
    active = history["margins"][:-1, 0] < 0.05
    met = history["linearised_margins"][1:, 0][active & ~history["recovered"][1:]]
    assert met.size > 0
    np.testing.assert_allclose(met, 0, atol=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_the_occupancy_ratio_bounds_every_kernel_of_the_set(oracle, seed):
    model = oracle.random_model(seed, states=4, radius=0.05)
    rng = np.random.default_rng(seed)
    policy = oracle.random_policy(model, rng)
    with jax.enable_x64(True):
        layout = layout_of(model)
        ratio = occupancy_ratio(layout.table, layout.pad_policy(policy), model.states)
    nominal = model.transitions
    occupancies = []
    for _ in range(300):
        direction = rng.normal(size=nominal.shape) * rng.choice([0.5, 5.0])
        kernel = model.uncertainty.tilt(nominal, direction)
        chain = np.einsum("sa,sat->st", policy, kernel)
        occupancies.append(np.linalg.solve(np.eye(4) - model.discount * chain.T, model.initial))
    sampled = np.array(occupancies)
    largest = (sampled.max(0) / sampled.min(0)).max()
    assert largest <= ratio
    assert ratio <= 25 * largest


def test_a_state_that_some_kernels_avoid_makes_the_ratio_infinite():
    """A radius that lets nature leave out a successor altogether."""
    transitions = np.array([[[0.0, 0.5, 0.5]], [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]])
    model = hf.RobustCMDP(
        transitions=transitions,
        reward=np.zeros((3, 1)),
        initial=np.array([1.0, 0.0, 0.0]),
        discount=0.9,
        uncertainty=hf.KL(1.0),
    )
    with jax.enable_x64(True):
        layout = layout_of(model)
        policy = layout.pad_policy(np.ones((3, 1)))
        assert occupancy_ratio(layout.table, policy, 3) == np.inf
