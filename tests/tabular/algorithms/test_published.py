"""The published algorithms: each one's update by hand, its guarantee, and what all of them share."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize

import holdfast as hf
from holdfast.tabular.algorithms import ALGORITHMS, CRPO, CUP, R3C, RCPG, RNPG, RPD, EpiRCPGS
from holdfast.tabular.algorithms.crpo import signal_to_improve

PUBLISHED = [name for name, algorithm in ALGORITHMS.items() if algorithm.settings is not None]
every_algorithm = pytest.mark.parametrize("algorithm", PUBLISHED)
# The same code runs for all of them, so that make test has two and make campaign all.
some_algorithms = pytest.mark.parametrize(
    "algorithm",
    [*PUBLISHED[:2], *(pytest.param(name, marks=pytest.mark.long) for name in PUBLISHED[2:])],
)
STATES, ACTIONS, DISCOUNT, SHARE = 3, 2, 0.8, 0.1


def small_model(thresholds: tuple[float, ...], seed: int = 0) -> hf.RobustCMDP:
    """Three states, two actions, a contamination set: nature sends a tenth to the worst state."""
    rng = np.random.default_rng(seed)
    signals = rng.random((3, STATES, ACTIONS))
    return hf.RobustCMDP(
        transitions=rng.dirichlet(np.ones(STATES), (STATES, ACTIONS)),
        reward=2 * signals[0],
        constraints=[hf.at_least(u, d) for u, d in zip(signals[1:], thresholds, strict=False)],
        initial=np.array([0.5, 0.3, 0.2]),
        discount=DISCOUNT,
        uncertainty=hf.Contamination(SHARE),
    )


def signals_of(model):
    return [model.reward, *(c.utility for c in model.constraints)]


def under(model, kernel, signal, policy):
    """Value, advantages and occupancy under one kernel, by linear solves."""
    chain = np.einsum("sa,sat->st", policy, kernel)
    inverse = np.linalg.inv(np.eye(STATES) - DISCOUNT * chain)
    values = inverse @ (policy * signal).sum(-1)
    advantages = signal + DISCOUNT * kernel @ values - values[:, None]
    return SimpleNamespace(
        value=model.initial @ values,
        advantages=advantages,
        occupancy=(1 - DISCOUNT) * model.initial @ inverse,
        kernel=kernel,
    )


def worst(model, signal, policy):
    """The same in the worst case: the worst state of the robust values has the tenth."""
    values = np.zeros(STATES)
    for _ in range(300):
        following = (1 - SHARE) * model.transitions @ values + SHARE * values.min()
        values = (policy * (signal + DISCOUNT * following)).sum(-1)
    kernel = (1 - SHARE) * model.transitions
    kernel[:, :, values.argmin()] += SHARE
    return under(model, kernel, signal, policy)


def by_hand(model, policy):
    return [worst(model, signal, policy) for signal in signals_of(model)]


def units(model):
    """One over the range of each signal's nominal value, over all deterministic policies."""
    made = []
    for signal in signals_of(model):
        values = [
            under(model, model.transitions, signal, np.eye(ACTIONS)[list(actions)]).value
            for actions in itertools.product(range(ACTIONS), repeat=STATES)
        ]
        made.append(1 / (max(values) - min(values)))
    return np.array(made)


def margins(model, seen):
    thresholds = [c.utility_threshold for c in model.constraints]
    return units(model)[1:] * ([each.value for each in seen[1:]] - np.array(thresholds))


def natural(model, seen, weights, policy):
    scaled = units(model) * weights / (1 - DISCOUNT)
    tilted = policy * np.exp(sum(w * each.advantages for w, each in zip(scaled, seen, strict=True)))
    return tilted / tilted.sum(-1, keepdims=True)


def gradient(model, seen, weights):
    scaled = units(model) * weights / (1 - DISCOUNT)
    return sum(
        w * each.occupancy[:, None] * each.advantages for w, each in zip(scaled, seen, strict=True)
    )


def projected(policy):
    """Of two actions: half the sum's distance from one goes to each, then cut."""
    first = np.clip((policy[:, 0] - policy[:, 1] + 1) / 2, 0, 1)
    return np.stack([first, 1 - first], -1)


def check_row(model, found, row, policy):
    """A row of the history is what the policy that was made by hand is worth."""
    seen = by_hand(model, policy)
    assert found.history["reward"][row] == pytest.approx(seen[0].value, abs=1e-9)
    thresholds = [c.utility_threshold for c in model.constraints]
    expected = np.array([each.value for each in seen[1:]]) - thresholds
    np.testing.assert_allclose(found.history["margins"][row], expected, atol=1e-9)


START = np.array([[0.6, 0.4], [0.3, 0.7], [0.5, 0.5]])
# The first is met by the start, the second is not.
MIXED = (1.0, 3.5)
EASY = (0.5, 0.5)


def test_what_the_start_of_these_tests_is():
    strict, easy = small_model(MIXED), small_model(EASY)
    assert (
        margins(strict, by_hand(strict, START))[0] > 0 > margins(strict, by_hand(strict, START))[1]
    )
    assert margins(easy, by_hand(easy, START)).min() > 0


def test_rpd_ascends_the_policy_and_descends_the_multipliers():
    model, s = small_model(MIXED), RPD(policy_step=0.05, dual_step=0.5, regularisation=0.2)
    found = hf.solve(model, "rpd", iterations=2, initial_policy=START, settings=s)
    policy, multipliers = START, np.zeros(2)
    for t in range(2):
        seen = by_hand(model, policy)
        multipliers = multipliers - 0.5 * (
            margins(model, seen) + 0.2 * (t + 1) ** -0.25 * multipliers
        )
        multipliers = np.clip(multipliers, 0, 100)
        policy = projected(policy + 0.05 * gradient(model, seen, np.r_[1, multipliers]))
        check_row(model, found, t + 1, policy)
    assert multipliers[0] == 0 < multipliers[1]
    np.testing.assert_allclose(found.policy, policy, atol=1e-9)


@pytest.mark.parametrize("against", ["reward", "lagrangian"])
def test_rcpg_follows_the_gradient_of_the_logits_under_one_kernel(against):
    model = small_model(MIXED)
    s = RCPG(policy_step=0.3, dual_step=0.5, policy_decay=0.1, dual_decay=0.6, against=against)
    found = hf.solve(model, "rcpg", iterations=2, initial_policy=START, settings=s)
    policy, multipliers = START, np.zeros(2)
    for t in range(2):
        signal = model.reward
        if against == "lagrangian":
            weights = units(model) * np.r_[1, multipliers]
            signal = sum(w * each for w, each in zip(weights, signals_of(model), strict=True))
        kernel = worst(model, signal, policy).kernel
        seen = [under(model, kernel, each, policy) for each in signals_of(model)]
        multipliers = np.maximum(multipliers - 0.5 * (t + 1) ** -0.6 * margins(model, seen), 0)
        weights = 0.3 * (t + 1) ** -0.1 * np.r_[1, multipliers]
        policy = policy * np.exp(policy * gradient(model, seen, weights))
        policy = policy / policy.sum(-1, keepdims=True)
        check_row(model, found, t + 1, policy)
    np.testing.assert_allclose(found.policy, policy, atol=1e-9)


def test_r3c_improves_the_penalised_critic_within_the_trust_region():
    model, s = small_model(MIXED), R3C(dual_step=0.5, first_multiplier=0.7)
    found = hf.solve(
        model, "r3c", iterations=2, initial_policy=START, settings=s, trust_region=0.02
    )
    policy, multipliers = START, np.full(2, 0.7)
    for t in range(2):
        seen = by_hand(model, policy)
        weights = units(model) * np.r_[1, multipliers]
        critic = sum(w * each.advantages for w, each in zip(weights, seen, strict=True))

        def improved(x, critic=critic, before=policy):
            tilted = before * np.exp(x * critic)
            return tilted / tilted.sum(-1, keepdims=True)

        def excess(x, before=policy, improved=improved, d=seen[0].occupancy):
            new = improved(x)
            return d @ (new * np.log(new / before)).sum(-1) - 0.02

        policy = improved(scipy.optimize.brentq(excess, 1e-3, 1e3, xtol=1e-14))
        check_row(model, found, t + 1, policy)
        multipliers = np.maximum(multipliers - 0.5 * margins(model, by_hand(model, policy)), 0)


@pytest.mark.parametrize("robust", [False, True])
def test_cup_learns_the_multiplier_of_its_projection(robust):
    model, s = small_model(MIXED), CUP(policy_step=0.1, dual_step=0.5, robust=robust)
    found = hf.solve(model, "cup", iterations=2, initial_policy=START, settings=s)
    policy, nu = START, np.zeros(2)
    for t in range(2):
        seen = by_hand(model, policy)
        if not robust:
            seen = [under(model, model.transitions, each, policy) for each in signals_of(model)]
        nu = np.clip(nu - 0.5 * margins(model, seen), 0, 100)
        policy = natural(model, seen, 0.1 * np.r_[1, nu], policy)
        check_row(model, found, t + 1, policy)


@pytest.mark.parametrize(("thresholds", "improved"), [(EASY, 0), (MIXED, 2)])
def test_crpo_improves_the_reward_or_what_is_violated_most(thresholds, improved):
    model, s = small_model(thresholds), CRPO(policy_step=0.1, decay=0.3)
    found = hf.solve(model, "crpo", iterations=2, initial_policy=START, settings=s)
    seen = by_hand(model, START)
    check_row(model, found, 1, natural(model, seen, 0.1 * np.eye(3)[improved], START))


def test_crpo_s_switching_rule():
    assert signal_to_improve(np.zeros(0), 0.0) == 0
    assert signal_to_improve(np.array([0.0, 0.2]), 0.0) == 0
    assert signal_to_improve(np.array([-0.1, -0.3, 0.2]), 0.0) == 2
    assert signal_to_improve(np.array([-0.1, -0.3, 0.2]), 0.3) == 0


def test_rnpg_improves_the_largest_term_and_returns_the_smallest_maximum():
    model, s = small_model(EASY), RNPG(penalty=20.0, slack=0.01, policy_step=0.1, decay=0.3)
    best = hf.solve(model, "rvi", iterations=1).evaluation.reward.worst

    def terms(reward, margins):
        return np.r_[units(model)[0] * (best - reward) / 20, 0.01 - units(model)[1:] * margins]

    found = hf.solve(model, "rnpg", iterations=40, initial_policy=START, settings=s)
    seen = by_hand(model, START)
    first = terms(seen[0].value, np.array([each.value - 0.5 for each in seen[1:]])).argmax()
    assert first == 0
    check_row(model, found, 1, natural(model, seen, 0.1 * np.eye(3)[first], START))
    history = found.history
    largest = [
        terms(r, m).max() for r, m in zip(history["reward"], history["margins"], strict=True)
    ]
    assert largest[-1] == pytest.approx(min(largest), abs=1e-9)


@pytest.mark.parametrize(("thresholds", "improved", "proves"), [(EASY, 0, True), (MIXED, 2, False)])
def test_epirc_pgs_lowers_the_largest_violation_by_a_projected_step(thresholds, improved, proves):
    model, s = small_model(thresholds), EpiRCPGS(policy_step=0.05, bisections=1)
    found = hf.solve(model, "epirc-pgs", iterations=3, initial_policy=START, settings=s)
    seen = by_hand(model, START)
    best = hf.solve(model, "rvi", iterations=1).evaluation.reward.worst

    def terms(low):
        reached = units(model)[0] * (0.5 * (low + best) - seen[0].value)
        return np.r_[reached, -margins(model, seen)]

    # A start that proves the first level raises the bracket to its own reward.
    low = seen[0].value if proves else float(model.reward.min()) / (1 - DISCOUNT)
    assert (terms(float(model.reward.min()) / (1 - DISCOUNT)).max() <= 0) == proves
    assert terms(low).argmax() == improved
    moved = projected(START + 0.05 * gradient(model, seen, np.eye(3)[improved]))
    check_row(model, found, 1, moved)


def feasible_rows(solution):
    history = solution.history
    return (history["margins"] >= 0).all(-1)


@pytest.mark.parametrize("seed", range(2))
def test_epirc_pgs_returns_the_feasible_policy_that_proves_its_bracket(oracle, seed):
    model = oracle.random_model(seed, constraints=2, slack=0.05)
    found = hf.solve(model, "epirc-pgs", iterations=60, seed=seed)
    rows = feasible_rows(found)
    assert rows.any()
    assert rows[-1]
    assert found.history["reward"][-1] == pytest.approx(found.history["reward"][rows].max())


@pytest.mark.parametrize("seed", range(2))
def test_crpo_returns_the_best_iterate_within_its_tolerance(oracle, seed):
    model = oracle.random_model(seed, constraints=2, slack=0.05)
    found = hf.solve(model, "crpo", iterations=60, seed=seed)
    rows = feasible_rows(found)
    assert rows[-1]
    assert found.history["reward"][-1] == pytest.approx(found.history["reward"][rows].max())
    loose = hf.solve(model, "crpo", iterations=60, seed=seed, settings=CRPO(tolerance=0.1))
    assert loose.history["reward"][-1] >= found.history["reward"][-1] - 1e-9


@every_algorithm
def test_no_feasible_iterate_is_over_the_certified_bound(oracle, algorithm):
    model = oracle.random_model(4, constraints=2, slack=0.05)
    seen = {"robust": True, "dual_step": 1.0} if algorithm == "cup" else None
    found = hf.solve(model, algorithm, iterations=60, settings=seen)
    rows = feasible_rows(found)
    bound = hf.certify(model, found.policy).upper_bound
    assert rows.any()
    assert found.history["reward"][rows].max() <= bound + 1e-7


@some_algorithms
def test_certify_keeps_the_best_feasible_policy_of_all_starts(oracle, algorithm):
    model = oracle.random_model(4, constraints=2, slack=0.05)
    found = hf.solve(model, algorithm, iterations=8, certify=True)
    assert found.status == "feasible"
    assert found.certificate.feasible
    assert found.algorithm == algorithm
    alone = hf.solve(model, algorithm, iterations=8)
    rewards = alone.history["reward"][feasible_rows(alone)]
    assert found.certificate.reward >= rewards.max(initial=-np.inf) - 1e-7


@every_algorithm
def test_without_constraints_each_is_a_robust_policy_gradient(oracle, algorithm):
    model = oracle.random_model(4, constraints=0)
    best = hf.solve(model, "rvi", iterations=1).evaluation.reward.worst
    found = hf.solve(model, algorithm, iterations=60)
    assert found.history["reward"].shape == (61,)
    assert found.history["margins"].shape == (61, 0)
    gained = found.history["reward"][-1] - found.history["reward"][0]
    assert 0.3 * (best - found.history["reward"][0]) <= gained
    assert found.history["reward"][-1] <= best + 1e-7


@pytest.mark.parametrize(
    "algorithm",
    ["crpo", *(pytest.param(name, marks=pytest.mark.long) for name in ("rnpg", "epirc-pgs"))],
)
def test_at_radius_zero_it_reaches_the_linear_program(oracle, algorithm):
    model = oracle.random_model(1, constraints=2, radius=0.0)
    optimum = hf.solve(model, "lp").evaluation.reward.worst
    found = hf.solve(model, algorithm, iterations=800)
    assert found.status == "feasible"
    assert 0.99 * optimum <= found.evaluation.reward.worst <= optimum + 1e-7


def test_at_radius_zero_rpd_s_best_feasible_iterate_does(oracle):
    model = oracle.random_model(1, constraints=2, radius=0.0)
    optimum = hf.solve(model, "lp").evaluation.reward.worst
    found = hf.solve(model, "rpd", iterations=800)
    best = found.history["reward"][feasible_rows(found)].max()
    assert 0.99 * optimum <= best <= optimum + 1e-7


def test_a_mapping_and_the_record_mean_the_same():
    model = small_model(MIXED)
    one = hf.solve(model, "rpd", iterations=3, settings={"dual_step": 0.05})
    other = hf.solve(model, "rpd", iterations=3, settings=RPD(dual_step=0.05))
    neither = hf.solve(model, "rpd", iterations=3)
    np.testing.assert_array_equal(one.policy, other.policy)
    assert (one.policy != neither.policy).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"settings": {"dual_stpe": 0.1}},
            "settings: 'rpd' has no 'dual_stpe'; did you mean dual_step",
        ),
        ({"settings": CRPO()}, r"settings: 'rpd' takes a mapping or RPD\(…\), got CRPO"),
        ({"settings": 0.1}, r"settings: 'rpd' takes a mapping or RPD\(…\), got 0.1"),
        ({"step": "taylor"}, "step: 'rpd' does not use it, got 'taylor'; see RPD"),
        ({"safeguard": None}, "safeguard: 'rpd' does not use it, got None"),
        ({"trust_region": 0.1}, "trust_region: 'rpd' does not use it, got 0.1"),
        ({"bounds": True}, "bounds: 'rpd' does not use it, got True"),
    ],
)
def test_arguments_that_it_cannot_use_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        hf.solve(small_model(MIXED), "rpd", **arguments)


@pytest.mark.parametrize("algorithm", ["rcpo", "pcpo", "cpo", "rvi", "lp"])
def test_settings_for_an_algorithm_without_any_are_refused(algorithm):
    with pytest.raises(ValueError, match=f"settings: '{algorithm}' has no settings"):
        hf.solve(small_model(MIXED), algorithm, settings={})


@every_algorithm
def test_every_setting_is_checked_by_name(algorithm):
    kind = ALGORITHMS[algorithm].settings
    for field in dataclasses.fields(kind):
        for bad in (-1.0, float("nan"), "much", None):
            with pytest.raises(ValueError, match=f"^{field.name}: expected .*{bad}"):
                kind(**{field.name: bad})
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(kind(), field.name, getattr(kind(), field.name))


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (RPD, "policy_step", 0.0),
        (RCPG, "dual_decay", 1.5),
        (RCPG, "against", "nature"),
        (CUP, "robust", 1),
        (CRPO, "decay", 2.0),
        (EpiRCPGS, "bisections", 0),
        (EpiRCPGS, "bisections", 2.5),
        (RNPG, "penalty", float("inf")),
        (R3C, "dual_step", True),
    ],
)
def test_bad_settings(kind, field, value):
    with pytest.raises(ValueError, match=f"^{field}: expected .*{value}"):
        kind(**{field: value})
