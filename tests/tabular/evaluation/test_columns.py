"""Quick sweeps propose; they agree with the sets' own responses, and no certificate depends on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast._support.precision import float64
from holdfast.model import table as table_module
from holdfast.model.table import layout_of
from holdfast.tabular.evaluation import columns, fused, sparse

WIDTH = 4
SETS = {
    "kl": hf.KL(0.05),
    "kl-zero": hf.KL(0.0),
    "kl-all": hf.KL(np.inf),
    "total-variation": hf.TotalVariation(0.2, within_support=True),
    "chi-square": hf.ChiSquare(0.3),
    "contamination": hf.Contamination(0.1, within_support=True),
    "interval": hf.Interval(0.0, 1.0, radius=0.3),
}


def hard_rows(seed=0):
    """Rows with zero probabilities, point masses, equal targets and targets of many sizes."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(WIDTH), 60)
    p[:10, 1] = 0.0
    p[10:15] = np.eye(WIDTH)[rng.integers(0, WIDTH, 5)]
    p[15:20] = [1e-12, 0.5, 0.25, 0.25]
    p /= p.sum(-1, keepdims=True)
    y = rng.standard_normal((60, WIDTH)) * 10.0 ** rng.integers(-6, 7, (60, 1))
    y[20:25] = 3.0
    y[25:30, 1:3] = y[25:30, :1]
    return p, y


@pytest.mark.parametrize("name", SETS)
def test_a_proposal_converges_to_the_response(name):
    ball = SETS[name]
    p, y = hard_rows()
    if name == "interval":
        ball = hf.Interval(np.maximum(p - 0.2, 0), np.minimum(p + 0.3, 1), radius=0.5)
    expected = ball.respond(p, y)

    @float64
    def proposed():
        columns_of = jax.tree.map(lambda a: jnp.asarray(a).T if np.ndim(a) == 2 else a, ball)

        @jax.jit
        def iterated(p, y):
            def again(_, guess):
                return columns_of.propose(list(p), list(y), guess).multiplier

            guess = jax.lax.fori_loop(0, 25, again, jnp.zeros(p.shape[1]))
            return columns_of.propose(list(p), list(y), guess)

        return jax.tree.map(np.asarray, iterated(jnp.asarray(p).T, jnp.asarray(y).T))

    found = proposed()
    size = np.abs(y).max(-1)
    np.testing.assert_array_less(np.abs(found.value - expected.value), 1e-12 * size + 1e-300)
    kernel = np.stack(found.kernel, -1)
    np.testing.assert_allclose(kernel.sum(-1), 1, atol=1e-12)
    assert ((kernel > 0) <= (p > 0)).all() or name == "interval"
    # The kernel attains the value: the next V is computed under it.
    np.testing.assert_array_less(
        np.abs((kernel * y).sum(-1) - expected.value), 1e-9 * size + 1e-300
    )


@pytest.fixture(scope="module")
def small():
    """Lists of a small model, a policy and V; the number of states is no multiple of a block."""
    rng = np.random.default_rng(1)
    states, actions = 300, 2
    model = hf.RobustCMDP(
        transitions=hf.Kernel(
            rng.integers(0, states, (states, actions, WIDTH)),
            rng.dirichlet(np.ones(WIDTH), (states, actions)),
        ),
        reward=rng.random((states, actions)),
        discount=0.95,
        uncertainty=hf.KL(0.05),
    )
    layout = layout_of(model)
    with jax.enable_x64(True):
        policy = layout.pad_policy(rng.dirichlet(np.ones(actions), states))
        values = jnp.asarray(10 * rng.random(layout.table.states))
    return layout.table.only(0), policy, values


@float64
def test_a_sweep_is_the_same_in_columns_in_rows_and_in_the_kernel_of_a_gpu(small, monkeypatch):
    table, policy, values = small
    in_columns = columns.Lists.of(table, policy, in_columns=True)
    in_rows = columns.Lists.of(table, policy, in_columns=False)
    guess = jnp.zeros(policy.shape, jnp.float32)
    expected = columns.swept(in_columns, values, guess.T)
    monkeypatch.setattr(columns, "_BLOCK", 160)
    blocked = columns.sweep(in_columns, values, guess.T)
    by_rows = columns.sweep(in_rows, values, guess)
    kernel = fused.sweep(in_rows, values, guess, interpret=True)
    for found, transposed in ((blocked, False), (by_rows, True), (kernel, True)):
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other.T if transposed else other, one, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(found[0], expected.values, rtol=1e-14)
    np.testing.assert_allclose(
        columns.fixed_sweep(in_rows, by_rows.flow, values),
        columns.fixed_sweep(in_columns, expected.flow, values),
        rtol=1e-12,
    )


@float64
def test_the_kernel_of_a_gpu_is_lowered_without_one(small):
    table, policy, values = small
    lists = columns.Lists.of(table, policy, in_columns=False)
    guess = jnp.zeros(policy.shape, jnp.float32)
    lowered = jax.jit(fused.sweep).trace(lists, values, guess).lower(lowering_platforms=("cuda",))
    assert "robust_sweep" in lowered.as_text()


@pytest.mark.parametrize("wrong", [7.0, np.nan])
def test_a_wrong_proposal_changes_neither_values_nor_certificates(wrong, monkeypatch):
    def worst_proposal(table, policy, *_, **__):
        values, multipliers = jnp.full(table.states, wrong), jnp.ones(policy.shape, jnp.float32)
        return columns.Quick(values, multipliers, jnp.array(False), jnp.array(1), jnp.array(1))

    model = hf.environments.gambler()
    policy = np.zeros(model.states, int)
    expected = hf.evaluate(model, policy)
    monkeypatch.setattr(table_module, "DENSE_STATES", 0)
    monkeypatch.setattr(sparse, "_quick", worst_proposal)
    found = hf.evaluate(model.replace(), policy)
    assert found.error < 1e-8
    assert found.reward.worst == pytest.approx(expected.reward.worst, abs=1e-8)
    assert found.reward.nominal == pytest.approx(expected.reward.nominal, abs=1e-8)
    np.testing.assert_allclose(found.reward.occupancy, expected.reward.occupancy, atol=1e-7)
