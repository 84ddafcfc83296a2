import numpy as np
import pytest

import holdfast as hf
from holdfast.tabular.algorithms import Algorithm

LEARNERS = ["rcpo", "pcpo", "cpo"]


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_an_infeasible_start_is_recovered(oracle, algorithm):
    model = oracle.random_model(11, radius=0.02)
    threshold = model.constraints[0].threshold
    best = oracle.robust_values(model, model.constraints[0].signal, None)
    harder = 0.5 * threshold + 0.5 * float(model.initial @ best)
    model = model.replace(constraints=[hf.at_least(model.constraints[0].signal, harder)])
    # The worst possible start: always the action with the least utility.
    timid = np.eye(3)[model.constraints[0].signal.argmin(-1)]
    found = hf.solve(model, algorithm, iterations=60, initial_policy=timid)
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
    assert set(found.history) == one | {"margins", "nominal_margins", "margin_errors"}
    assert all(found.history[name].shape == (rows,) for name in one)
    assert found.history["margins"].shape == found.history["nominal_margins"].shape == (rows, 2)
    assert found.history["margin_errors"].shape == (rows, 2)
    assert found.history["recovered"].dtype == bool
    assert np.all(np.diff(found.history["seconds"]) >= 0)
    # The evaluation is a fresh one: both have their errors.
    error = found.history["error"][-1] + found.evaluation.error
    assert abs(found.history["reward"][-1] - found.evaluation.reward.worst) <= error
    assert (np.abs(found.history["margins"][-1] - found.evaluation.margins) <= error).all()
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


@pytest.mark.parametrize(
    "worst_case", [pytest.param("projected-gradient", marks=pytest.mark.long), "tilted"]
)
def test_solving_with_other_evaluations_ends_alike(oracle, worst_case):
    model = oracle.random_model(4, slack=0.1)
    by_dual = hf.solve(model, iterations=1)
    other = hf.solve(model, iterations=1, worst_case=worst_case)
    assert other.evaluation.reward.worst == pytest.approx(by_dual.evaluation.reward.worst, rel=1e-3)
    assert other.status == by_dual.status == "feasible"


@pytest.mark.parametrize(("step", "accuracy"), [("exact", 1e-6), ("taylor", 0.5)])
def test_the_first_plain_update_without_constraints_uses_its_trust_region(oracle, step, accuracy):
    model = oracle.random_model(4, constraints=0)
    found = hf.solve(model, iterations=10, step=step, safeguard=None, trust_region=0.003)
    assert found.history["kl"].max() <= 0.003 * (1 + accuracy)
    assert found.history["kl"][1] == pytest.approx(0.003, rel=accuracy)


def stand_still(run):
    """An algorithm of a user: it records the initial policy again and again."""
    for _ in range(run.options.iterations):
        run.record(run.policy, trust_region=run.options.trust_region)


STAND_STILL = Algorithm("still", stand_still, accepts=("trust_region",))


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (stand_still, "stand_still"),
        (STAND_STILL, "still"),
        (f"{__name__}:stand_still", "stand_still"),
        (f"{__name__}:STAND_STILL", "still"),
    ],
)
def test_a_users_own_algorithm(oracle, algorithm, name):
    model = oracle.random_model(0)
    found = hf.solve(model, algorithm, iterations=3, trust_region=0.5, seed=5)
    assert found.algorithm == name
    np.testing.assert_array_equal(found.history["trust_region"], [0.0, 0.5, 0.5, 0.5])
    start = np.random.default_rng(5).dirichlet(np.ones(3), 5)
    np.testing.assert_allclose(found.policy, start, rtol=1e-14)


def test_a_users_record_refuses_arguments_that_it_does_not_accept(oracle):
    with pytest.raises(ValueError, match="step: 'still' does not use it, got 'taylor'"):
        hf.solve(oracle.random_model(0), STAND_STILL, step="taylor")
    with pytest.raises(ValueError, match="algorithm: expected a name, an Algorithm or a function"):
        hf.solve(oracle.random_model(0), 3)


def test_a_policy_may_be_given_as_action_indices(oracle):
    model = oracle.random_model(0)
    actions = np.array([0, 2, 1, 1, 0])
    table = np.eye(3)[actions]
    for verb in (hf.evaluate, lambda m, p: hf.certify(m, p, bound=False).evaluation):
        assert verb(model, actions).reward.worst == verb(model, table).reward.worst
    one, other = (hf.solve(model, iterations=1, initial_policy=p) for p in (actions, table))
    np.testing.assert_array_equal(one.policy, other.policy)
    with pytest.raises(ValueError, match="policy: "):
        hf.evaluate(model, np.array([0, 3, 1, 1, 0]))


def test_results_print_as_a_short_summary(oracle):
    model = oracle.random_model(0, constraints=2, slack=0.3)
    solution = hf.solve(model, iterations=2)
    lines = repr(solution).splitlines()
    assert lines[0] == "rcpo: feasible after 2 iterations"
    assert lines[1:] == repr(solution.evaluation).splitlines()
    assert lines[1] == "feasible in the worst case (numerical error below 1e-9)"
    assert lines[2] == (
        f"reward: worst case {solution.evaluation.reward.worst:.6g}, "
        f"nominal {solution.evaluation.reward.nominal:.6g}"
    )
    assert lines[4].startswith(f"{model.constraints[1]}: worst case ")
    assert str(solution) == repr(solution)


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
