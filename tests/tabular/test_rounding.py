"""Certified values hold after rounding, and each signal has an error of its own."""

import math
import os

import numpy as np
import pytest
from tests.extended_precision import worst_value

import holdfast as hf
from holdfast._support.precision import float64
from holdfast.model import check_policy
from holdfast.model.table import layout_of
from holdfast.tabular.certificates.upper_bound import lagrangian_bound
from holdfast.tabular.evaluate import ConstraintEvaluation

STATES, ACTIONS = 5, 2
TINY = np.finfo(float).tiny
SEEDS = range(300 if os.environ.get("HOLDFAST_CAMPAIGN") else 6)
SETS = {
    "kl": hf.KL,
    "chi-square": hf.ChiSquare,
    "total-variation": hf.TotalVariation,
    "total-variation within": lambda radius: hf.TotalVariation(radius, within_support=True),
    "contamination": hf.Contamination,
    "contamination within": lambda radius: hf.Contamination(radius, within_support=True),
    "wasserstein": lambda radius: hf.Wasserstein(
        radius, metric=np.abs(np.subtract.outer(np.arange(STATES) ** 1.5, np.arange(STATES) ** 1.5))
    ),
}


def draw_distributions(rng, shape):
    """Rows of three kinds: dense, with zeros, and down to the smallest normal number."""
    p = rng.dirichlet(np.full(shape[-1], rng.choice([0.2, 1.0, 5.0])), shape[:-1])
    kind = rng.integers(3)
    p = np.where((kind == 1) & (rng.random(shape) < 0.5), 0.0, p)
    small = 10.0 ** rng.uniform(-307.6, 0, shape) * (rng.random(shape) > 0.3)
    p = np.where(kind == 2, small, p)
    place = rng.integers(shape[-1], size=(*shape[:-1], 1))
    np.put_along_axis(p, place, np.take_along_axis(p, place, -1) + 0.01, -1)
    p = p / p.sum(-1, keepdims=True)
    return np.where(p < 1.01 * TINY, 0.0, p)


def draw_model(rng, make):
    radius = rng.choice([0.0, 1e-20, 1e-8, 1e-3, 0.1, 0.5, 2.0, 1e3, np.inf])
    shape = (STATES, ACTIONS)
    return hf.RobustCMDP(
        transitions=draw_distributions(rng, (*shape, STATES)),
        reward=rng.normal(size=shape) * 10.0 ** rng.integers(-9, 13),
        constraints=[hf.at_least(np.round(rng.normal(size=shape)), 0.0)],
        initial=draw_distributions(rng, (STATES,)),
        discount=rng.choice([0.0, 0.5, 0.9, 0.99, 0.9999, 0.999999]),
        uncertainty=make(radius),
    )


@pytest.mark.campaign
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", SETS.values(), ids=SETS.keys())
def test_errors_contain_the_truth(make, seed):
    rng = np.random.default_rng(seed)
    model = draw_model(rng, make)
    policy = check_policy("policy", draw_distributions(rng, (STATES, ACTIONS)), STATES, ACTIONS)
    evaluation = hf.evaluate(model, policy)
    signals = [model.reward, model.constraints[0].signal]
    for found, signal in zip([evaluation.reward, *evaluation.constraints], signals, strict=True):
        truth, accuracy = worst_value(model, policy, found, signal)
        assert accuracy <= 0.1 * found.error
        assert abs(truth - found.worst) <= found.error + accuracy
        size = np.abs(found.values).max()
        assert found.error <= 1e-12 * size / (1 - model.discount)


@pytest.mark.parametrize("entries", [500, 40])
def test_the_sums_of_long_rows_are_part_of_the_error(entries):
    """Rows and an initial distribution that are off by far more than eps before normalisation."""
    p = np.full((1, 1, entries), 1 / entries) * (1 - 7.5e-14)
    kernel = hf.Kernel(np.zeros((1, 1, entries), int), p)
    model = hf.RobustCMDP(
        transitions=kernel, reward=np.ones((1, 1)), discount=0.99, uncertainty=hf.KL(0.1)
    )
    found = hf.evaluate(model, [0]).reward
    assert math.fsum(kernel.probabilities[0, 0]) == 1
    assert abs(found.worst - 1 / (1 - 0.99)) <= found.error
    assert found.error <= 16 * np.finfo(float).eps * found.worst / (1 - 0.99)
    rho = np.full(entries, 1 / entries) * (1 + 1e-13)
    assert math.fsum(check_policy("policy", rho[None], 1, entries)[0]) == 1


def model_with_cost(scale=1.0, **changes):
    """From state 0 action 0 stays, action 1 leads to states with costs; state 3 leads everywhere."""
    p = np.zeros((4, 2, 4))
    p[0, 0, 0] = p[0, 1, 1] = p[1, :, 2] = p[2, :, 2] = 1.0
    p[3] = 0.25
    cost = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    arguments = {
        "transitions": p,
        "reward": scale * np.array([[0.1, 1.0], [0.3, 0.7], [0.2, 0.9], [1.0, 1.0]]),
        "constraints": [hf.at_most(cost, 0.0), hf.at_most(cost, 5.0)],
        "initial": [1.0, 0.0, 0.0, 0.0],
        "discount": 0.99,
        "uncertainty": hf.KL(0.1),
    }
    return hf.RobustCMDP(**arguments | changes)


def test_a_cost_that_never_occurs_is_exactly_zero():
    model = model_with_cost(1e9)
    evaluation = hf.evaluate(model, [0, 0, 0, 0])
    never, _ = evaluation.constraints
    assert (never.worst, never.error, never.margin) == (0, 0, 0)
    assert never.holds
    assert evaluation.feasible
    assert evaluation.error == evaluation.reward.error > 0
    certificate = hf.certify(model, [0, 0, 0, 0], bound=False)
    assert certificate.feasible
    assert certificate.critical_factors[0] == np.inf
    assert not hf.evaluate(model, [1, 0, 0, 0]).feasible


def test_the_unit_of_the_reward_changes_no_constraint():
    policy = np.array([[0.97, 0.03], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    plain = hf.evaluate(model_with_cost(), policy)
    large = hf.evaluate(model_with_cost(1e9), policy)
    assert [c.error for c in large.constraints] == [c.error for c in plain.constraints]
    assert large.feasible == plain.feasible
    assert large.reward.error > 1e6 * max(c.error for c in large.constraints)


@pytest.mark.parametrize("seed", range(4))
def test_the_status_is_that_of_a_fresh_evaluation(oracle, seed):
    solution = hf.solve(oracle.random_model(seed, states=6, radius=0.1), iterations=15)
    model = oracle.random_model(seed, states=6, radius=0.1)
    fresh = hf.evaluate(model, solution.policy)
    assert (solution.status == "feasible") == fresh.feasible
    assert fresh.reward.worst == solution.evaluation.reward.worst
    np.testing.assert_array_equal(fresh.margins, solution.evaluation.margins)


def test_what_is_not_a_number_is_not_proved():
    shape = (2, 2)
    fields = {"worst": math.nan, "nominal": 0.0, "name": "utility"}
    fields |= {"constraint": hf.at_least(np.zeros(shape), 0.0)}
    fields |= {"_make_array": lambda _: np.zeros(2), "_make_kernel": lambda: None}
    for margin, error in [(math.nan, 0.0), (0.0, math.nan), (1.0, math.inf)]:
        found = ConstraintEvaluation(**fields, error=error, margin=margin, nominal_margin=0.0)
        assert not found.holds
    # Values that overflow: the error is infinite, and so is the bound.
    p = np.full((2, 2, 2), 0.5)
    model = hf.RobustCMDP(
        transitions=p,
        reward=np.array([[1e308, -1e308], [1e308, 1e308]]),
        constraints=[hf.at_least(np.full(shape, 1e308), 0.0)],
        discount=0.999,
        uncertainty=hf.KL(0.1),
    )
    evaluation = hf.evaluate(model, np.full(shape, 0.5))
    assert evaluation.error == math.inf
    assert not evaluation.feasible
    certificate = hf.certify(model, np.full(shape, 0.5))
    assert not certificate.feasible
    assert certificate.upper_bound == math.inf


def test_small_probabilities_are_refused_or_dropped():
    p = np.array([[[1.0, 1e-310], [0.5, 0.5]], [[0.0, 1.0], [1.0, 0.0]]])
    arguments = {"reward": np.eye(2), "discount": 0.9, "uncertainty": hf.KL(0.1)}
    message = (
        r"transitions: \(state 0, action 0, entry 1\) has probability 1e-310, below the smallest"
    )
    with pytest.raises(ValueError, match=message):
        hf.RobustCMDP(transitions=p, **arguments)
    lists = hf.Kernel(np.broadcast_to(np.arange(2), p.shape), p)
    with pytest.raises(ValueError, match=message):
        hf.RobustCMDP(transitions=lists, **arguments)
    for transitions in (p, lists):
        dropped = hf.RobustCMDP(transitions=transitions, drop_below=1e-300, **arguments)
        assert dropped.nominal[0, 0].tolist() == [1.0, 0.0]
        assert dropped.replace(discount=0.5).nominal[0, 0].tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"drop_below: every successor of \(state 0, action 1\)"):
        hf.RobustCMDP(transitions=p, drop_below=0.6, **arguments)
    with pytest.raises(ValueError, match="drop_below: expected a number"):
        hf.RobustCMDP(transitions=p, drop_below=-1, **arguments)
    dropped = hf.RobustCMDP(transitions=p, drop_below=1e-300, **arguments)
    with pytest.raises(ValueError, match=r"policy: .* has probability 1e-310"):
        hf.evaluate(dropped, [[1.0, 1e-310], [1.0, 0.0]])
    with pytest.raises(ValueError, match=r"initial: .* has probability 1e-310"):
        dropped.replace(initial=[1.0, 1e-310])
    with pytest.raises(ValueError, match=r"reward: .* has value 1e-310"):
        dropped.replace(reward=np.full((2, 2), 1e-310))


def test_the_lagrangian_bound_covers_the_best_policy():
    """γ = 0.999999: the bound is above the reward of the policy that attains it, by rounding only."""
    model = model_with_cost(discount=0.999999, constraints=[])
    bound = float64(lagrangian_bound)(layout_of(model).table, model.actions)
    best = hf.evaluate(model, [1, 1, 1, 1]).reward
    assert best.worst - best.error <= bound.value
    assert bound.value - best.worst <= 1e-6 * best.worst
