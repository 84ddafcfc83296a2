"""PPO- and TRPO-Lagrangian where the constrained optimum is known: a linear program on a table."""

import json

import numpy as np
import pytest
import scipy.optimize
import scipy.special

import holdfast as hf
from holdfast.simulators.algorithms.ppo_lag import PPOLag
from holdfast.simulators.algorithms.trpo_lag import TRPOLag

STATES, LIMIT = 4, 1.0
OWN = {
    "ppo-lag": PPOLag(learning_rate=0.003, minibatches=8, multiplier=1.0),
    "trpo-lag": TRPOLag(multiplier=1.0),
}


@pytest.fixture(scope="module")
def model():
    """A table on which the better action of every state costs more, by another ratio in each."""
    rng = np.random.default_rng(3)
    reward, cost = np.zeros((2, STATES, 2))
    reward[:, 1], cost[:, 1] = [1.0, 0.8, 0.6, 0.4], [0.2, 0.5, 0.8, 1.0]
    return hf.RobustCMDP(
        transitions=rng.dirichlet(np.ones(STATES), (STATES, 2)),
        reward=reward,
        constraints=[hf.at_most(cost, LIMIT)],
        initial=np.full(STATES, 1 / STATES),
        discount=0.7,
        uncertainty=hf.KL(0.0),
    )


def best_reward(model, limit):
    """The largest reward of any policy whose cost is at most the limit: a linear program."""
    flow = np.eye(STATES)[:, None, :] - model.discount * model.nominal
    return -scipy.optimize.linprog(
        -model.reward.ravel(),
        A_ub=-model.constraints[0].utility.reshape(1, -1),
        b_ub=[limit],
        A_eq=flow.reshape(-1, STATES).T,
        b_eq=model.initial,
    ).fun


@pytest.mark.parametrize("algorithm", OWN)
def test_it_converges_to_policies_that_no_policy_dominates(algorithm, model):
    """Multipliers swing about their best values, and the cost about its limit; see the docstrings.

    From iteration 50 on, every policy has to be the best one at its own cost, whatever that cost is.
    """
    free = hf.solve(model, "rvi").evaluation
    assert free.constraints[0].nominal > 1.5 * LIMIT
    assert free.reward.nominal > 1.1 * best_reward(model, LIMIT)
    policies = []

    def keep(rows, agents):
        if rows[-1]["iteration"] >= 50:
            logits = np.asarray(agents[0].policy.network(np.eye(STATES, dtype=np.float32)))
            policies.append(scipy.special.softmax(logits.astype(float), axis=-1))

    hf.train(
        hf.environments.TableSimulator(model, name="four", horizon=20),
        algorithm,
        limit_on="discounted",
        iterations=120,
        batch_size=2_000,
        trust_region=0.001,
        critic_learning_rate=0.02,
        limit_margin=0.0,
        limit_confidence=0.0,
        algorithm_settings=OWN[algorithm],
        callback=keep,
    )
    found = [hf.evaluate(model, policy) for policy in policies]
    costs = np.array([each.constraints[0].nominal for each in found])
    rewards = np.array([each.reward.nominal for each in found])
    shares = rewards / [best_reward(model, cost) for cost in costs]
    assert costs.min() < LIMIT < costs.max()
    # Measured: 0.984 to 0.996 for the worst of seventy, 0.997 for the median.
    assert shares.min() >= 0.98
    assert np.median(shares) >= 0.995
    assert shares.max() <= 1 + 1e-6


@pytest.mark.parametrize("algorithm", ["ppo-lag", pytest.param("trpo-lag", marks=pytest.mark.long)])
def test_with_a_radius_every_signal_has_its_own_adversary(algorithm, chain, tiny, tmp_path):
    rows = {}
    for radius in (0.0, 0.2):
        rows[radius] = []
        hf.train(
            chain,
            algorithm,
            radius=radius,
            iterations=1,
            out=tmp_path / str(radius),
            callback=rows[radius].extend,
            **tiny,
        )
        description = json.loads((tmp_path / str(radius) / "run.json").read_text())
        assert description["robust"] is (radius > 0)
    # 300 steps and 60 of most likely actions under each of two kernels, and 60 under the nominal one.
    assert [rows[radius][0]["steps"] for radius in rows] == [360, 780]
    assert rows[0.0][0]["reward"] == rows[0.0][0]["nominal_reward"]
    assert rows[0.2][0]["reward"] != rows[0.2][0]["nominal_reward"]
    assert len(rows[0.2][0]["multipliers"]) == 1
