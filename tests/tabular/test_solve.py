import numpy as np
import pytest

import holdfast as hf

PAPER = ["gambler", "n-chain", "frozen-lake"]
LEARNERS = ["rcpo", "pcpo", "cpo"]


def feasible_rows(solution):
    history = solution.history
    return (history["margins"] - history["error"][:, None] >= 0).all(-1)


def best_feasible_reward(solution):
    rows = feasible_rows(solution)
    return solution.history["reward"][rows].max() if rows.any() else -np.inf


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("seed", range(2))
def test_the_safeguard_keeps_feasible_and_costs_no_reward(name, seed):
    model = hf.environments.MODELS[name]()
    kept = hf.solve(model, "rcpo", iterations=150, seed=seed)
    rows = feasible_rows(kept)
    assert rows.any()
    assert rows[rows.argmax() :].all()
    plain = hf.solve(model, "rcpo", iterations=150, seed=seed, safeguard=None)
    reachable = best_feasible_reward(plain)
    assert kept.history["reward"][-1] >= reachable - 0.005 * abs(reachable)


@pytest.mark.parametrize("step", ["exact", "taylor"])
@pytest.mark.parametrize("seed", range(4))
def test_the_safeguard_on_random_models(oracle, seed, step):
    model = oracle.random_model(seed, constraints=1 + seed % 2, slack=0.02 * (seed % 3))
    kept = hf.solve(model, "rcpo", iterations=80, seed=seed, step=step)
    rows = feasible_rows(kept)
    assert rows[rows.argmax() :].all() or not rows.any()
    after = kept.history["reward"][rows.argmax() :]
    assert np.all(np.diff(after) >= -2 * kept.history["error"].max())
    plain = hf.solve(model, "rcpo", iterations=80, seed=seed, step=step, safeguard=None)
    reachable = best_feasible_reward(plain)
    if np.isfinite(reachable):
        assert kept.status == "feasible"
        assert kept.history["reward"][-1] >= reachable - 0.005 * abs(reachable)


def test_the_plain_update_overshoots_where_the_safeguarded_one_does_not():
    """Why there is a safeguard: the linearised projection ends under the threshold."""
    model = hf.environments.gambler()
    plain = hf.solve(model, "rcpo", iterations=60, safeguard=None)
    rows = feasible_rows(plain)
    assert rows.any()
    assert not rows[rows.argmax() :].all()


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_an_infeasible_start_is_recovered(oracle, algorithm):
    model = oracle.random_model(11, radius=0.02)
    threshold = model.constraints[0].threshold
    best = oracle.robust_values(model, model.constraints[0].signal, None)
    harder = 0.5 * threshold + 0.5 * float(model.initial @ best)
    model = model.replace(constraints=[hf.at_least(model.constraints[0].signal, harder)])
    # The worst possible start: always the action with the least utility.
    timid = np.eye(3)[model.constraints[0].signal.argmin(-1)]
    found = hf.solve(model, algorithm, iterations=150, initial_policy=timid)
    margin = "margins" if algorithm == "rcpo" else "nominal_margins"
    assert found.history[margin][0, 0] < 0
    assert found.history[margin][-1, 0] >= 0


def test_cpo_takes_recovery_steps_where_trust_region_and_constraints_do_not_meet():
    model = hf.environments.gambler(threshold=6.0)
    bold = np.eye(8)[np.full(17, 7)]
    found = hf.solve(model, "cpo", iterations=100, initial_policy=bold)
    recovered = found.history["recovered"]
    assert recovered[1:4].all()
    margins = found.history["nominal_margins"][:, 0]
    assert np.all(np.diff(margins[: recovered.sum()]) > 0)
    assert margins[-1] >= 0
    assert not recovered[-1]


def test_a_model_that_no_policy_satisfies_is_told_with_the_best_that_can_be_had(oracle):
    model = oracle.random_model(3)
    signal = model.constraints[0].signal
    best = float(model.initial @ oracle.robust_values(model, signal, None))
    found = hf.solve(model.replace(constraints=[hf.at_least(signal, best + 0.1)]), iterations=150)
    assert found.status == "infeasible"
    assert found.attainable[0] == pytest.approx(best, abs=1e-6)
    # Recovery brings the policy close to that best value.
    assert found.evaluation.constraints[0].worst == pytest.approx(best, rel=0.01)
    cost = model.replace(constraints=[hf.at_most(-signal, -best - 0.1)])
    told = hf.solve(cost, iterations=5)
    assert told.status == "infeasible"
    assert told.attainable[0] == pytest.approx(-best, abs=1e-6)


def test_what_is_not_decided_is_not_claimed(oracle):
    model = oracle.random_model(3)
    # RVI ignores a constraint that other policies meet.
    ignored = hf.solve(hf.environments.gambler(), "rvi", iterations=3)
    assert ignored.evaluation.margins[0] < 0
    assert ignored.status == "not-found"
    signal = model.constraints[0].signal
    best = float(model.initial @ oracle.robust_values(model, signal, None))
    both = [hf.at_least(signal, best - 1e-3), hf.at_most(signal, 0.5 * best)]
    conflicting = hf.solve(model.replace(constraints=both), iterations=30)
    assert conflicting.status == "not-found"
    assert conflicting.attainable.shape == (2,)


@pytest.mark.parametrize("algorithm", ["rcpo", "pcpo", "cpo", "rvi", "lp"])
def test_every_algorithm_writes_the_same_history(oracle, algorithm):
    model = oracle.random_model(0, constraints=2)
    seen = []
    found = hf.solve(model, algorithm, iterations=4, callback=seen.append)
    rows = 2 if algorithm == "lp" else 5
    assert seen == list(range(1, rows))
    one = {"reward", "nominal_reward", "kl", "recovered", "seconds", "error", "trust_region"}
    assert set(found.history) == one | {"margins", "nominal_margins"}
    assert all(found.history[name].shape == (rows,) for name in one)
    assert found.history["margins"].shape == found.history["nominal_margins"].shape == (rows, 2)
    assert found.history["recovered"].dtype == bool
    assert np.all(np.diff(found.history["seconds"]) >= 0)
    assert found.history["reward"][-1] == found.evaluation.reward.worst
    np.testing.assert_array_equal(found.history["margins"][-1], found.evaluation.margins)
    np.testing.assert_allclose(found.policy.sum(-1), 1, atol=1e-12)
    assert found.policy.shape == (5, 3)
    again = hf.evaluate(model, found.policy)
    assert again.reward.worst == pytest.approx(found.evaluation.reward.worst, abs=1e-8)


def test_the_seed_draws_the_start_and_nothing_else_is_random(oracle):
    model = oracle.random_model(0)
    rng = np.random.default_rng(5)
    start = rng.dirichlet(np.ones(3), 5)
    by_seed = hf.solve(model, iterations=5, seed=5)
    given = hf.solve(model, iterations=5, seed=99, initial_policy=start)
    np.testing.assert_array_equal(by_seed.policy, given.policy)
    assert by_seed.history["reward"][0] == pytest.approx(hf.evaluate(model, start).reward.worst)
    assert not np.array_equal(by_seed.policy, hf.solve(model, iterations=5, seed=6).policy)


def test_zeros_of_an_initial_policy_come_back(oracle):
    model = oracle.random_model(0, constraints=0)
    best = hf.solve(model, "rvi").evaluation.reward.worst
    wrong = np.eye(3)[hf.solve(model.replace(reward=-model.reward), "rvi").policy.argmax(-1)]
    found = hf.solve(model, iterations=200, initial_policy=wrong)
    assert found.evaluation.reward.worst == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("worst_case", ["projected-gradient", "tilted"])
def test_solving_with_other_evaluations_ends_alike(oracle, worst_case):
    model = oracle.random_model(4, slack=0.1)
    by_dual = hf.solve(model, iterations=3)
    other = hf.solve(model, iterations=3, worst_case=worst_case)
    assert other.evaluation.reward.worst == pytest.approx(by_dual.evaluation.reward.worst, rel=1e-3)
    assert other.status == by_dual.status == "feasible"


@pytest.mark.parametrize("step", ["exact", "taylor"])
def test_no_step_of_a_plain_update_without_constraints_exceeds_the_trust_region(oracle, step):
    model = oracle.random_model(4, constraints=0)
    found = hf.solve(model, iterations=10, step=step, safeguard=None, trust_region=0.003)
    limit = 0.003 * (1 + 1e-6) if step == "exact" else 0.006
    assert found.history["kl"].max() <= limit
    if step == "exact":
        assert found.history["kl"][1] == pytest.approx(0.003, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithm": "ppo"}, "algorithm: there is no 'ppo'; did you mean"),
        ({"iterations": 0}, "iterations: expected a whole number of at least 1, got 0"),
        ({"iterations": 2.5}, "iterations: expected a whole number"),
        ({"trust_region": 0.0}, "trust_region: expected a number over 0, got 0.0"),
        ({"trust_region": float("nan")}, "trust_region: expected a number over 0, got nan"),
        ({"step": "euler"}, "step: expected one of 'exact', 'taylor', got 'euler'"),
        ({"safeguard": "halve"}, "safeguard: expected one of 'project', None, got 'halve'"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"worst_case": "sampled"}, "worst_case: unknown method 'sampled'"),
        ({"initial_policy": np.ones((5, 3))}, "initial_policy: state 0 sums to 3, not 1"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(oracle, arguments, message):
    with pytest.raises(ValueError, match=message):
        hf.solve(oracle.random_model(0), **arguments)
