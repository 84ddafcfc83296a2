"""Large lists are evaluated by sweeps, with no matrix; the answers are those of dense factors."""

import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.model import table as table_module
from holdfast.model.table import layout_of
from holdfast.tabular.evaluation.iterative import fixed_point
from holdfast.tabular.evaluation.worst_case import Dual, worst_case


@pytest.fixture
def always_sparse(monkeypatch):
    monkeypatch.setattr(table_module, "DENSE_STATES", 0)


def copy_of(model):
    """A model that shares no cached table with the first."""
    return model.replace()


def random_lists(states, seed=0, discount=0.99, uncertainty=None, absorbing=False):
    """Random lists with a reward, a utility and a cost; every third list repeats a successor."""
    rng = np.random.default_rng(seed)
    successors = rng.integers(0, states, (states, 2, 4))
    successors[::3, :, 1] = successors[::3, :, 0]
    probabilities = rng.dirichlet(np.ones(4), (states, 2))
    reward, utility, cost = rng.random((3, states, 2))
    if absorbing:  # two of them, one of which pays for ever
        successors[:2], reward[0], utility[0] = np.arange(2)[:, None, None], 0.0, 0.0
    return hf.RobustCMDP(
        transitions=hf.Kernel(successors, probabilities),
        reward=reward,
        constraints=[hf.at_least(utility, 0.0), hf.at_most(cost, 1e4)],
        initial=rng.dirichlet(np.ones(states)),
        discount=discount,
        uncertainty=hf.KL(0.05) if uncertainty is None else uncertainty,
    )


@pytest.mark.parametrize("name", ["gambler", "n-chain", "frozen-lake"])
def test_sparse_and_dense_evaluations_agree(oracle, name, monkeypatch):
    model = hf.environments.MODELS[name]()
    policy = oracle.random_policy(model, np.random.default_rng(0))
    dense = hf.evaluate(model, policy)
    monkeypatch.setattr(table_module, "DENSE_STATES", 0)
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
    monkeypatch.setattr(table_module, "DENSE_STATES", 10_000)
    dense = hf.solve(copy_of(model), iterations=12)
    np.testing.assert_allclose(found.history["reward"], dense.history["reward"], atol=1e-5)
    np.testing.assert_allclose(found.history["margins"], dense.history["margins"], atol=1e-5)


@pytest.mark.long
def test_thousands_of_states(oracle):
    model = hf.environments.n_chain(nodes=3000)
    policy = oracle.random_policy(model, np.random.default_rng(0))
    found = hf.evaluate(model, policy)
    assert found.error < 1e-8
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
        ValueError, match="worst_case: only 'dual' supports lists of over 1024 states"
    ):
        hf.evaluate(model, policy, worst_case="tilted")
    with pytest.raises(ValueError, match="bounds: 2S robust evaluations"):
        hf.solve(model, bounds=True)


@pytest.mark.parametrize("discount", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("absorbing", [False, True])
def test_sweeps_agree_with_factors_on_random_lists(oracle, monkeypatch, discount, absorbing):
    model = random_lists(300, discount=discount, absorbing=absorbing)
    policy = oracle.random_policy(model, np.random.default_rng(1))
    dense = hf.evaluate(model, policy)
    monkeypatch.setattr(table_module, "DENSE_STATES", 0)
    found = hf.evaluate(copy_of(model), policy)
    largest = max(1.0, np.abs(dense.reward.values).max(), np.abs(dense.constraints[1].values).max())
    assert found.error <= 1e-10 * largest
    for one, other in zip(
        (dense.reward, *dense.constraints), (found.reward, *found.constraints), strict=True
    ):
        assert abs(one.worst - other.worst) <= one.error + other.error
        assert abs(one.nominal - other.nominal) <= 1e-10 * largest
        np.testing.assert_allclose(one.values, other.values, atol=1e-9 * largest)
        # Values are flat where the kernel is worst, so kernels agree to half as many digits.
        np.testing.assert_allclose(one.occupancy, other.occupancy, atol=1e-6)
        assert other.occupancy.sum() == pytest.approx(1, abs=1e-12)
        assert (other.occupancy >= 0).all()


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_the_error_asked_for_is_met_and_holds(oracle, monkeypatch, tolerance):
    model = random_lists(300)
    policy = oracle.random_policy(model, np.random.default_rng(1))
    exact = hf.evaluate(model, policy)
    monkeypatch.setattr(table_module, "DENSE_STATES", 0)
    found = hf.evaluate(copy_of(model), policy, worst_case=hf.Dual(tolerance=tolerance))
    for one, other in zip(
        (exact.reward, *exact.constraints), (found.reward, *found.constraints), strict=True
    ):
        assert other.error <= tolerance * max(1.0, np.abs(other.values).max())
        assert abs(one.worst - other.worst) <= one.error + other.error


@pytest.mark.parametrize("radius", [0.0, 1e-12, 1.0, np.inf])
def test_extreme_radii(oracle, monkeypatch, radius):
    model = random_lists(300, uncertainty=hf.KL(radius))
    policy = oracle.random_policy(model, np.random.default_rng(1))
    dense = hf.evaluate(model, policy)
    monkeypatch.setattr(table_module, "DENSE_STATES", 0)
    found = hf.evaluate(copy_of(model), policy)
    assert found.error < 1e-8
    assert dense.reward.worst == pytest.approx(found.reward.worst, abs=found.error + dense.error)


def test_where_it_starts_changes_nothing_but_the_time(oracle, always_sparse):
    model = random_lists(300)
    layout = layout_of(model)
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        one, other = (layout.pad_policy(oracle.random_policy(model, rng)) for _ in range(2))
        plain = worst_case(layout.table, one, Dual())
        warm = worst_case(layout.table, one, Dual(), worst_case(layout.table, other, Dual()))
    for name in ("value", "values", "advantages", "occupancy"):
        np.testing.assert_allclose(getattr(plain, name), getattr(warm, name), atol=1e-7)


def test_sweeps_combined_are_never_slower_than_plain_ones():
    # Round a circle, what is missing travels and hardly shrinks: the worst case of such methods.
    with jax.enable_x64(True):
        constant = jnp.zeros(64).at[0].set(1.0)
        solved = fixed_point(
            lambda x: 0.9 * jnp.roll(x, 1),
            constant,
            jnp.zeros(64),
            slow=jnp.ones(64),
            contraction=jnp.array(0.9),
            norm=lambda x: jnp.abs(x).max(),
            target=lambda missing: 1e-10 * missing,
        )
        plain = np.ceil(np.log(1e-10) / np.log(0.9))
        assert int(solved.sweeps) <= plain + 2
        missing = constant + 0.9 * jnp.roll(solved.x, 1) - solved.x
        assert float(jnp.abs(missing).max()) <= 1.01e-10


def test_no_array_of_all_pairs_of_states(oracle):
    # A matrix of all pairs would take 20 GB; of the lists there are 3 MB.
    model = random_lists(50_000)
    policy = np.full((50_000, 2), 0.5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = hf.evaluate(model, policy)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert found.error <= 1e-8
    assert after - before < 1e6  # kilobytes
