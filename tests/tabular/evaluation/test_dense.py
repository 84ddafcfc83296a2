"""Quick sweeps over dense rows propose; the answers are those of policy iteration with factors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast._support.precision import float64
from holdfast.model import table as table_module
from holdfast.model.table import layout_of
from holdfast.tabular.evaluation import dense
from holdfast.tabular.evaluation.worst_case import worst_case

STATES, ACTIONS = 250, 2


def wide_model(uncertainty=None, discount=0.95, next_state=False, **arguments):
    """A dense model with some absorbing states, some sparse rows, a reward and a cost."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(STATES), (STATES, ACTIONS))
    p[:20] = rng.dirichlet(np.full(STATES, 0.01), (20, ACTIONS))
    p[20:24] = np.eye(STATES)[20:24, None]
    p = np.where(p < 1e-200, 0.0, p)
    reward = rng.random((STATES, ACTIONS, STATES) if next_state else (STATES, ACTIONS))
    return hf.RobustCMDP(
        transitions=p / p.sum(-1, keepdims=True),
        reward=reward,
        constraints=[hf.at_most(rng.random((STATES, ACTIONS)), 1e4)],
        discount=discount,
        uncertainty=hf.KL(0.1) if uncertainty is None else uncertainty,
        **arguments,
    )


def radii():
    """Radii of every kind: none, small, one that reaches the minimum of a sparse row, and any."""
    return np.random.default_rng(1).choice([0.0, 1e-6, 0.1, 3.0, np.inf], (STATES, ACTIONS))


def ring():
    """A model whose chain mixes so slowly that sweeps are slower than factors."""
    model = wide_model(discount=0.999)
    near = np.arange(STATES)[:, None] - np.arange(STATES)
    p = np.where(np.isin(near % STATES, [0, 1, STATES - 1]), 1.0, 1e-6)
    p = np.broadcast_to((p / p.sum(-1, keepdims=True))[:, None], model.transitions.shape)
    return model.replace(transitions=np.array(p), uncertainty=hf.KL(1e-3))


CASES = {
    "kl": wide_model,
    "radii": lambda: wide_model(hf.KL(radii())),
    "next-state": lambda: wide_model(next_state=True),
    "slow": ring,
    "chi-square": lambda: wide_model(hf.ChiSquare(0.1)),
    "reach": lambda: wide_model().replace(constraints=[hf.reach([7], at_most=0.9, avoid=[9])]),
    "silent": lambda: wide_model().replace(reward=np.zeros((STATES, ACTIONS))),
}


@pytest.mark.parametrize("name", CASES)
def test_quick_sweeps_find_what_policy_iteration_finds(oracle, name, monkeypatch):
    model = CASES[name]()
    policy = oracle.random_policy(model, np.random.default_rng(2))
    assert layout_of(model).table.is_wide
    searches = []
    iterate = dense.quick_values
    monkeypatch.setattr(
        dense, "quick_values", lambda *a: searches.append(iterate(*a)) or searches[-1]
    )
    found = hf.evaluate(model, policy)
    assert len(searches) == 2
    monkeypatch.setattr(table_module, "WIDE_STATES", 10_000)
    expected = hf.evaluate(model.replace(), policy)
    for one, other in zip(
        (found.reward, *found.constraints), (expected.reward, *expected.constraints), strict=True
    ):
        size = max(np.abs(other.values).max(), 1.0)
        assert one.worst == pytest.approx(other.worst, abs=one.error + other.error)
        assert one.nominal == pytest.approx(other.nominal, abs=1e-11 * size)
        assert one.error <= max(2 * other.error, 1e-11 * size)
        np.testing.assert_allclose(one.values, other.values, atol=1e-8 * size)
        np.testing.assert_allclose(one.advantages, other.advantages, atol=1e-8 * size)
        np.testing.assert_allclose(one.occupancy, other.occupancy, atol=1e-6)
        np.testing.assert_allclose(one.kernel, other.kernel, atol=1e-6)
    if name == "silent":
        assert found.reward.worst == 0
        assert found.reward.error == 0


def test_policies_are_improved_alike(oracle, monkeypatch):
    model = wide_model()
    start = oracle.random_policy(model, np.random.default_rng(2))
    found = hf.solve(model, iterations=2, initial_policy=start)
    monkeypatch.setattr(table_module, "WIDE_STATES", 10_000)
    expected = hf.solve(model.replace(), iterations=2, initial_policy=start)
    np.testing.assert_allclose(found.history["reward"], expected.history["reward"], atol=1e-8)
    assert found.evaluation.error < 1e-9


@float64
def test_a_good_start_saves_rounds(oracle):
    layout = layout_of(wide_model())
    policy = layout.pad_policy(oracle.random_policy(layout.model, np.random.default_rng(2)))
    one = layout.table.only(0)
    first = dense.quick_values(one, policy, 1e-11)
    again = dense.quick_values(one, policy, 1e-11, first.values, first.multipliers)
    assert int(again.rounds) == 1 < int(first.rounds) <= 8
    np.testing.assert_allclose(again.values, first.values, rtol=1e-12)
    values = worst_case(layout.table, policy, hf.Dual()).values
    np.testing.assert_allclose(values[0], first.values, rtol=1e-11)


@pytest.mark.parametrize("wrong", [7.0, np.nan, np.inf])
def test_a_wrong_proposal_changes_neither_values_nor_certificates(oracle, wrong, monkeypatch):
    model = wide_model()
    policy = oracle.random_policy(model, np.random.default_rng(2))
    expected = hf.evaluate(model, policy)
    quick = dense.quick_values

    def worst_proposal(table, policy, *arguments):
        found = quick(table, policy, *arguments)
        return found._replace(values=jnp.full(table.states, wrong))

    monkeypatch.setattr(dense, "quick_values", worst_proposal)
    found = hf.evaluate(model, policy)
    assert found.error < 1e-9
    assert found.reward.worst == pytest.approx(expected.reward.worst, abs=1e-9)


def test_proposals_in_rows_converge_to_the_response():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(6), 40)
    p[:10, 1] = 0.0
    p[10:15] = np.eye(6)[:5]
    p /= p.sum(-1, keepdims=True)
    y = rng.standard_normal((40, 6)) * 10.0 ** rng.integers(-6, 7, (40, 1))
    y[20:25] = 3.0
    ball = hf.KL(rng.choice([0.0, 1e-6, 0.1, 2.0, np.inf], 40))
    expected = ball.respond(p, y)

    @float64
    def proposed():
        guess = jnp.zeros(40)
        for _ in range(25):
            found = ball.propose_rows(jnp.asarray(p), jnp.asarray(y), guess)
            guess = found.multiplier
        return jax.tree.map(np.asarray, found)

    found = proposed()
    size = np.abs(y).max(-1)
    np.testing.assert_array_less(np.abs(found.value - expected.value), 1e-12 * size)
    reached = (found.kernel * y).sum(-1)
    np.testing.assert_array_less(np.abs(reached - expected.value), 1e-9 * size)
