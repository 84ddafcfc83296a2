"""Large lists are evaluated with sparse factors; the answers are those of the dense ones."""

import numpy as np
import pytest

import holdfast as hf
from holdfast.tabular import sparse


@pytest.fixture
def always_sparse(monkeypatch):
    monkeypatch.setattr(sparse, "DENSE_STATES", 0)


def copy_of(model):
    """A model that shares no cached table with the first."""
    return model.replace()


@pytest.mark.parametrize("name", ["gambler", "n-chain", "frozen-lake"])
def test_sparse_and_dense_evaluations_agree(oracle, name, monkeypatch):
    model = hf.environments.MODELS[name]()
    policy = oracle.random_policy(model, np.random.default_rng(0))
    dense = hf.evaluate(model, policy)
    monkeypatch.setattr(sparse, "DENSE_STATES", 0)
    found = hf.evaluate(copy_of(model), policy)
    assert found.error < 1e-8
    for one, other in zip(
        (dense.reward, *dense.constraints), (found.reward, *found.constraints), strict=True
    ):
        assert one.worst == pytest.approx(other.worst, abs=1e-8)
        assert one.nominal == pytest.approx(other.nominal, abs=1e-10)
        np.testing.assert_allclose(one.values, other.values, atol=1e-7)
        np.testing.assert_allclose(one.advantages, other.advantages, atol=1e-7)
        assert other.occupancy.sum() == pytest.approx(1, abs=1e-9)
    # A constraint's worst case may be tied between kernels; the reward's is not here.
    np.testing.assert_allclose(dense.reward.occupancy, found.reward.occupancy, atol=1e-7)


def test_solving_takes_the_same_way(oracle, always_sparse, monkeypatch):
    model = hf.environments.gambler()
    found = hf.solve(model, iterations=12)
    monkeypatch.setattr(sparse, "DENSE_STATES", 10_000)
    dense = hf.solve(copy_of(model), iterations=12)
    np.testing.assert_allclose(found.history["reward"], dense.history["reward"], atol=1e-5)
    np.testing.assert_allclose(found.history["margins"], dense.history["margins"], atol=1e-5)


def test_thousands_of_states(oracle):
    model = hf.environments.n_chain(nodes=3000)
    policy = oracle.random_policy(model, np.random.default_rng(0))
    found = hf.evaluate(model, policy)
    assert found.error < 1e-9
    # The chain is local: far from its end the nodes behave as in a shorter one.
    shorter = hf.environments.n_chain(nodes=1000)
    near = hf.evaluate(shorter, policy[:1000])
    np.testing.assert_allclose(found.reward.values[:300], near.reward.values[:300], atol=1e-8)
    solution = hf.solve(model, iterations=2)
    assert np.diff(solution.history["reward"]).min() > 0


def test_what_would_take_too_long_is_refused(oracle):
    model = hf.environments.n_chain(nodes=3000)
    policy = np.full((3000, 2), 0.5)
    with pytest.raises(
        ValueError, match="worst_case: lists of over 1024 states are evaluated by 'dual' only"
    ):
        hf.evaluate(model, policy, worst_case="tilted")
    with pytest.raises(ValueError, match="bounds: they take 2S robust evaluations"):
        hf.solve(model, bounds=True)
