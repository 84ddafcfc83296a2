"""Algorithms against optima that are known: linear programs, enumeration, and the paper's comparison."""

import os

import numpy as np
import pytest

import holdfast as hf

CAMPAIGN = bool(os.environ.get("HOLDFAST_CAMPAIGN"))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(20 if CAMPAIGN else 1))
def test_at_radius_zero_rcpo_pcpo_and_the_linear_program_agree(oracle, seed):
    model = oracle.random_model(seed, constraints=1 + seed % 3, radius=0.0, states=6)
    optimum = hf.solve(model, "lp").evaluation
    assert optimum.margins.min() >= -1e-7
    for algorithm in ("rcpo", "pcpo"):
        found = hf.solve(model, algorithm, iterations=300, seed=seed).evaluation
        scale = max(1.0, abs(optimum.reward.worst))
        assert abs(found.reward.worst - optimum.reward.worst) / scale <= 1e-3
        assert found.margins.min() >= -1e-6


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(10 if CAMPAIGN else 1))
def test_cpo_reaches_the_linear_program_too(oracle, seed):
    model = oracle.random_model(seed, constraints=1 + seed % 2, radius=0.0, states=6)
    optimum = hf.solve(model, "lp").evaluation.reward.worst
    found = hf.solve(model, "cpo", iterations=300, seed=seed).evaluation
    assert found.reward.worst == pytest.approx(optimum, rel=1e-3)
    assert found.margins.min() >= -1e-6


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5 if CAMPAIGN else 1))
def test_the_papers_comparison_gambler(seed):
    model = hf.environments.gambler()
    found = {a: hf.solve(model, a, seed=seed) for a in ("rcpo", "pcpo", "rvi")}
    assert found["rcpo"].status == "feasible"
    assert found["pcpo"].evaluation.margins[0] < 0
    assert found["rvi"].evaluation.margins[0] < 0
    assert found["rcpo"].evaluation.reward.worst > found["pcpo"].evaluation.reward.worst


def test_random_starts_end_at_the_same_gambler_value():
    values = [
        hf.solve(hf.environments.gambler(), seed=seed, iterations=120).evaluation.reward.worst
        for seed in range(3)
    ]
    assert np.ptp(values) <= 1e-3 * max(values)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5 if CAMPAIGN else 1))
def test_the_papers_comparison_n_chain(seed):
    model = hf.environments.n_chain()
    found = {a: hf.solve(model, a, seed=seed, iterations=60) for a in ("rcpo", "pcpo", "rvi")}
    assert all(solution.status == "feasible" for solution in found.values())
    best = found["rvi"].evaluation.reward.worst
    assert found["rcpo"].evaluation.reward.worst == pytest.approx(best, rel=1e-3)
    assert found["pcpo"].evaluation.reward.worst < best * (1 - 1e-3)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5 if CAMPAIGN else 1))
def test_the_papers_comparison_frozen_lake(seed):
    model = hf.environments.frozen_lake()
    found = {a: hf.solve(model, a, seed=seed) for a in ("rcpo", "pcpo", "rvi")}
    assert found["rcpo"].status == "feasible"
    assert found["pcpo"].evaluation.margins[0] < 0
    assert found["rvi"].evaluation.margins[0] < 0
    assert found["rcpo"].evaluation.reward.worst > found["pcpo"].evaluation.reward.worst


@pytest.mark.parametrize("seed", range(2))
def test_robust_value_iteration_is_optimal(oracle, seed):
    model = oracle.random_model(seed, discount=0.8, constraints=0)
    best = float(model.initial @ oracle.robust_values(model, model.reward, None))
    for iterations in (1, 7):  # it never stops on a count
        found = hf.solve(model, "rvi", iterations=iterations)
        assert found.evaluation.reward.worst == pytest.approx(best, abs=1e-7)
        assert len(found.history["reward"]) == iterations + 1
    assert hf.solve(model, "rcpo", iterations=60).evaluation.reward.worst <= best + 1e-7


def test_the_linear_program_equals_enumeration(oracle):
    """Without constraints the optimum is the best of all deterministic policies."""
    model = oracle.random_model(1, states=3, actions=2, constraints=0, radius=0.0)
    best = max(
        hf.evaluate(model, np.eye(2)[list(actions)]).reward.nominal
        for actions in np.ndindex(2, 2, 2)
    )
    assert hf.solve(model, "lp").evaluation.reward.nominal == pytest.approx(best, abs=1e-9)


def test_the_linear_program_of_an_infeasible_model_maximises_the_margin(oracle):
    model = oracle.random_model(2, radius=0.0)
    signal = model.constraints[0].signal
    best = float(model.initial @ oracle.robust_values(model, signal, None))
    impossible = model.replace(constraints=[hf.at_least(signal, best + 1)])
    found = hf.solve(impossible, "lp")
    assert found.status == "infeasible"
    assert found.evaluation.constraints[0].nominal == pytest.approx(best, abs=1e-7)
