"""The inner layout changes nothing: padding, merging and compacting leave every value alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.model.table import layout_of, padded_size


def split_entries(rng, kernel):
    """The same kernel with every entry split in two and some of probability zero, shuffled."""
    successors, p = kernel.successors, kernel.probabilities
    part = rng.random(p.shape)
    nothing = np.zeros((*p.shape[:2], 1))
    anywhere = rng.integers(0, kernel.states, nothing.shape)
    twice = np.concatenate([successors, successors, anywhere], -1)
    parts = np.concatenate([p * part, p * (1 - part), nothing], -1)
    order = rng.permuted(np.broadcast_to(np.arange(parts.shape[-1]), parts.shape), axis=-1)
    return hf.Kernel(
        np.take_along_axis(twice, order, -1), np.take_along_axis(parts, order, -1)
    ), order


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), radius=st.sampled_from([0.0, 0.05, 0.5, np.inf]))
def test_lists_dense_and_split_entries_are_the_same_model(oracle, seed, radius):
    rng = np.random.default_rng(seed)
    lists = oracle.random_model(seed, lists=True, radius=radius, discount=0.85)
    dense = lists.replace(transitions=lists.transitions.dense())
    split = lists.replace(transitions=split_entries(rng, lists.transitions)[0])
    policy = oracle.random_policy(lists, rng)
    found = [hf.evaluate(model, policy) for model in (lists, dense, split)]
    for other in found[1:]:
        assert other.reward.worst == pytest.approx(found[0].reward.worst, abs=1e-8)
        np.testing.assert_allclose(other.margins, found[0].margins, atol=1e-8)
        np.testing.assert_allclose(other.reward.occupancy, found[0].reward.occupancy, atol=1e-6)
    # Each kernel comes back in the form in which it was given, and they are the same.
    kernels = [found[0].reward.kernel.dense(), found[1].reward.kernel]
    kernels.append(found[2].reward.kernel.dense())
    for other in kernels[1:]:
        np.testing.assert_allclose(other, kernels[0], atol=1e-6)
    np.testing.assert_array_equal(found[2].reward.kernel.successors, split.transitions.successors)


def test_repeated_successors_are_merged_only_where_every_signal_agrees():
    kernel = hf.Kernel(np.zeros((1, 1, 3), int), np.array([[[0.2, 0.3, 0.5]]]))
    merged = hf.RobustCMDP(transitions=kernel, reward=np.ones((1, 1)), discount=0.5)
    assert (np.asarray(layout_of(merged).table.probabilities[0, 0]) > 0).sum() == 1
    outcomes = hf.RobustCMDP(
        transitions=kernel,
        reward=np.array([[[1.0, 1.0, 0.0]]]),
        discount=0.5,
        uncertainty=hf.KL(0.1),
    )
    assert (np.asarray(layout_of(outcomes).table.probabilities[0, 0]) > 0).sum() == 2
    # The set is over outcomes: nature favours the one that pays nothing.
    worst = hf.evaluate(outcomes, np.ones((1, 1))).reward
    assert worst.worst < worst.nominal
    np.testing.assert_allclose(
        worst.kernel.probabilities[0, 0, :2] / [0.2, 0.3], worst.kernel.probabilities[0, 0, 0] / 0.2
    )


def test_per_pair_radii_act_where_they_are(oracle):
    model = oracle.random_model(0, constraints=0)
    policy = oracle.random_policy(model, np.random.default_rng(0))
    radius = np.zeros((5, 3))
    radius[2, 1] = 0.4
    found = hf.evaluate(model.replace(uncertainty=hf.KL(radius)), policy).reward
    changed = np.abs(found.kernel - model.transitions).max(-1) > 1e-9
    assert changed[2, 1]
    assert changed.sum() == 1


@pytest.mark.parametrize(
    ("n", "padded"), [(1, 1), (2, 2), (3, 4), (100, 128), (128, 128), (129, 256), (1000, 1024)]
)
def test_sizes_are_rounded_up(n, padded):
    assert padded_size(n) == padded


def test_models_of_similar_size_share_a_shape(oracle):
    shapes = {
        layout_of(hf.environments.MODELS[name]()).table.probabilities.shape
        for name in ("gambler", "n-chain", "frozen-lake")
    }
    assert len(shapes) == 1


def test_the_table_is_made_once(oracle):
    model = oracle.random_model(0)
    assert layout_of(model) is layout_of(model)
    assert layout_of(model.replace(discount=0.5)) is not layout_of(model)


@pytest.mark.parametrize(("states", "actions"), [(128, 2), (256, 2)])
def test_a_dense_model_that_needs_no_padding_is_laid_out(states, actions):
    """Its arrays are the model's own, which are read-only."""
    rng = np.random.default_rng(0)
    model = hf.RobustCMDP(
        transitions=rng.dirichlet(np.ones(states), (states, actions)),
        reward=rng.random((states, actions)),
        initial=np.full(states, 1 / states),
        discount=0.9,
        uncertainty=hf.KL(0.1),
    )
    table = layout_of(model).table
    np.testing.assert_array_equal(table.probabilities, model.nominal)
