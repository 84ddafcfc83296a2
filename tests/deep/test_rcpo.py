"""Deep RCPO where the answer is known: on a table, against tabular RCPO and exact evaluation."""

import numpy as np
import pytest

import holdfast as hf
from holdfast.deep.train import train


def table_of(agent, states):
    """The policy as a table."""
    logits = np.asarray(agent.policy.network(np.eye(states, dtype=np.float32)), float)
    policy = np.exp(logits - logits.max(1, keepdims=True))
    return policy / policy.sum(1, keepdims=True)


@pytest.mark.parametrize("seed", [0])
def test_ends_where_tabular_rcpo_does(seed):
    model = hf.environments.n_chain()
    best = hf.solve(model, "rcpo").evaluation.reward.worst
    agent = train(
        model,
        "rcpo",
        radius=0.15,
        limit_on="discounted",
        iterations=60,
        batch_size=20_000,
        trust_region=0.02,
        critic_learning_rate=0.02,
        adversary={"updates": 2, "batch_size": 10_000, "learning_rate": 0.03},
        seed=seed,
    )
    found = hf.evaluate(model, table_of(agent, model.states))
    assert found.reward.worst >= 0.97 * best
    assert found.reward.worst <= best * (1 + 1e-4)  # nothing beats it by more than it left undone
    assert found.constraints[0].margin >= 0


def test_pcpo_is_rcpo_without_an_adversary():
    assert hf_algorithm("pcpo").iterate is hf_algorithm("rcpo").iterate
    assert not hf_algorithm("pcpo").ROBUST


def hf_algorithm(name):
    from holdfast.deep.algorithms import ALGORITHMS

    return ALGORITHMS[name]


def test_an_active_constraint_is_held_in_the_worst_case():
    # Gambler's best unconstrained policies break the constraint, so here it has to bind.
    model = hf.environments.gambler()
    agent = train(
        model,
        "rcpo",
        radius=0.1,
        limit_on="discounted",
        iterations=60,
        batch_size=20_000,
        trust_region=0.02,
        critic_learning_rate=0.02,
        adversary={"updates": 2, "batch_size": 10_000, "learning_rate": 0.03},
    )
    found = hf.evaluate(model, table_of(agent, model.states))
    trusting = train(
        model,
        "pcpo",
        limit_on="discounted",
        iterations=60,
        batch_size=20_000,
        trust_region=0.02,
        critic_learning_rate=0.02,
    )
    naive = hf.evaluate(model, table_of(trusting, model.states))
    print(
        found.reward.worst,
        found.constraints[0].worst,
        naive.reward.worst,
        naive.constraints[0].worst,
    )
    assert found.constraints[0].margin >= 0
    assert found.constraints[0].margin <= 0.3 * 2.5
    assert naive.constraints[0].margin < 0
