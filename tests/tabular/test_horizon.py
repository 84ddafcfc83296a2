"""Models with a horizon and with rules, against oracles that share no code with them."""

import copy
import dataclasses
import importlib.util
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.tabular.certificates.proof_cases import change_vector, flatter
from tests.tabular.certificates.proof_oracle import Oracle

import holdfast as hf
from holdfast._support.precision import float64
from holdfast.model import Reach
from holdfast.model.table import layout_of
from holdfast.registry import ALGORITHMS
from holdfast.tabular import deterministic
from holdfast.tabular.certificates.checker.check_proof import check, exact
from holdfast.tabular.certificates.checker.exact_model import read_model
from holdfast.tabular.certificates.proof import prove
from holdfast.tabular.evaluation.optimum import best_of
from holdfast.tabular.evaluation.worst_case import Dual
from holdfast.tabular.memory import with_memory
from holdfast.uncertainty import SETS


def _module(name):
    path = Path(__file__).parents[1] / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


extended, storm = _module("extended_precision"), _module("storm_models")
CAMPAIGN = bool(os.environ.get("HOLDFAST_CAMPAIGN"))
# The campaign has 2,016 models: 336 for each of the six sets.
MODELS = 336 if CAMPAIGN else 6
STATES, ACTIONS, HORIZON = 4, 2, 3
LINE = np.abs(np.subtract.outer(np.arange(STATES), np.arange(STATES))).astype(float)
LONG = np.longdouble


def made(name, p, rng):
    if name == "interval":
        low, high = rng.uniform(0.3, 1, p.shape), rng.uniform(1, 2, p.shape)
        return hf.Interval(p * low, np.minimum(p * high + 0.05, 1.0))
    if name == "wasserstein":
        return hf.Wasserstein(rng.choice([0.0, 0.2, 1.0]), metric=LINE)
    return SETS[name](rng.choice([0.0, 0.01, 0.1, 0.5]))


def random_model(name, seed, *, by_step=False):
    """A sum, a mean of a step and a reach rule on a dense model of four states."""
    rng = np.random.default_rng([len(name), seed])
    steps = (HORIZON,) if by_step else ()
    p = rng.dirichlet(np.ones(STATES), (*steps, STATES, ACTIONS))
    shape = (*steps, STATES, ACTIONS)
    places = rng.permutation(STATES)
    return hf.RobustCMDP(
        transitions=p,
        reward=rng.normal(size=shape),
        constraints=[
            hf.at_most(rng.normal(size=shape), 1.0, per="step"),
            hf.reach(places[:1], at_most=0.5, avoid=places[3:]),
            hf.reach(places[:2], at_least=0.5),
        ],
        initial=rng.dirichlet(np.ones(STATES)),
        discount=rng.choice([1.0, 0.9, 0.3]),
        horizon=HORIZON,
        uncertainty=made(name, p, rng),
    ), rng.dirichlet(np.ones(ACTIONS), (HORIZON, STATES))


def induction(model, signal, discount, policy=None, boundary=None):
    """Backward induction in extended precision; the best allowed policy where none is given."""
    allowed = True if model.allowed is None else model.allowed
    allowed = np.broadcast_to(allowed, (HORIZON, STATES, ACTIONS))
    stops, pays = boundary or (np.zeros(STATES, bool), np.zeros(STATES))
    values = np.where(stops, pays, 0).astype(LONG)
    nominal = np.broadcast_to(model.nominal, (HORIZON, *model.nominal.shape[-3:]))
    signal = np.broadcast_to(signal, (HORIZON, *model.nominal.shape[-3:-1]))
    radius = np.broadcast_to(model.uncertainty.radius, (HORIZON, STATES, ACTIONS))
    for t in reversed(range(HORIZON)):
        q = np.zeros((STATES, ACTIONS), LONG)
        for s, a in np.ndindex(STATES, ACTIONS):
            y = LONG(signal[t, s, a]) + LONG(discount) * values
            place = (t, s, a) if model.nominal.ndim == 4 else (s, a)
            q[s, a] = extended.least_row_value(
                model.uncertainty, nominal[t, s, a], y, radius[t, s, a], place
            )
        chosen = np.where(allowed[t], q, -np.inf).max(-1)
        best = chosen if policy is None else (policy[t] * q).sum(-1)
        values = np.where(stops, pays, best)
    return float(np.asarray(model.initial) @ values)


def signals_of(model):
    """Signal, discount and boundary of every constraint, as utilities."""
    for c in model.constraints:
        if isinstance(c, Reach):
            yield 0.0, 1.0, (c.stops, c.pays)
        else:
            yield c.utility, model.discount, None


def close(found, true, error):
    # Rows of the long-double policy do not sum to one exactly.
    assert abs(found - true) <= error + 1e-13 * max(1.0, abs(true))
    assert error < 1e-10


@pytest.mark.campaign
@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_values_equal_a_backward_induction_in_long_double(name, by_step):
    for seed in range(MODELS // 2):
        model, policy = random_model(name, seed, by_step=by_step)
        found = hf.evaluate(model, policy)
        true = induction(model, model.reward, model.discount, policy)
        close(found.reward.worst, true, found.reward.error)
        each = zip(model.constraints, found.constraints, signals_of(model), strict=True)
        for constraint, value, (signal, discount, boundary) in each:
            true = constraint.shown(induction(model, signal, discount, policy, boundary))
            close(value.worst, true, value.error)
            assert constraint.sign * (value.worst - value.nominal) <= 1e-12


@float64
def optimum(model, index):
    return best_of(layout_of(model).table, index)


@pytest.mark.parametrize("name", SETS)
def test_the_best_policy_equals_a_backward_induction(name):
    for seed in range(2):
        model, _ = random_model(name, seed)
        found = [(model.reward, model.discount, None), *signals_of(model)]
        for i, (signal, discount, boundary) in enumerate(found):
            best = optimum(model, i)
            true = induction(model, signal, discount, None, boundary)
            assert best.lower - 1e-13 <= true <= best.upper + 1e-13
            assert best.upper - best.lower < 1e-10


def test_actions_may_be_allowed_by_step(tmp_path):
    model, policy = random_model("kl", 1, by_step=True)
    mask = np.ones((HORIZON, STATES, ACTIONS), bool)
    mask[1, 2, 0] = mask[2, 3, 1] = mask[0, 0, 0] = False
    model = model.replace(allowed=mask)
    with pytest.raises(ValueError, match="policy: state 0 takes action 0, which is not allowed"):
        hf.evaluate(model, policy)
    best = optimum(model, 0)
    assert best.lower - 1e-13 <= induction(model, model.reward, model.discount) <= best.upper
    found = layout_of(model).unpad_policy(best.policy)
    assert (found[~mask] == 0).all()
    assert hf.evaluate(model, found).reward.worst == pytest.approx(best.upper, abs=1e-10)
    # A limit below what the best policy costs, and a target that only branch and bound may reach.
    limit = 0.97 * hf.evaluate(model, found).constraints[0].worst
    limited = model.replace(
        constraints=[dataclasses.replace(model.constraints[0], threshold=limit)]
    )
    solution = hf.solve(limited, iterations=60, certify=True)
    assert solution.status == "feasible"
    divided = hf.certify(limited, solution.policy, nodes=5, target=1e-14)
    assert divided.regions > 1
    assert divided.reward <= divided.upper_bound <= solution.certificate.upper_bound
    with pytest.raises(ValueError, match="a proof file needs the same allowed actions at every"):
        solution.certificate.save(tmp_path / "proof.json")
    model.save(tmp_path / "m.npz")
    np.testing.assert_array_equal(hf.RobustCMDP.load(tmp_path / "m.npz").allowed, mask)
    lists = hf.Kernel(np.broadcast_to(np.arange(STATES), (STATES, ACTIONS, STATES)), model.nominal)
    with pytest.raises(ValueError, match=r"allowed: an \(H, S, A\) array needs dense transitions"):
        model.replace(transitions=lists)


def unrolled(model):
    """The explicit model on (H + 1)·S states, which ends in a state that pays nothing."""
    S, H = model.states, model.horizon
    kernel = np.zeros((H * S + 1, model.actions, H * S + 1))
    kernel[-1, :, -1] = 1
    for t in range(H):
        rows = slice(t * S, (t + 1) * S)
        if t + 1 < H:
            kernel[rows, :, (t + 1) * S : (t + 2) * S] = model.nominal
        else:
            kernel[rows, :, -1] = 1

    def repeated(signal):
        return np.concatenate([*[signal] * H, np.zeros((1, model.actions))])

    return hf.RobustCMDP(
        transitions=kernel,
        reward=repeated(model.reward),
        constraints=[dataclasses.replace(c, signal=repeated(c.signal)) for c in model.constraints],
        initial=np.r_[model.initial, np.zeros((H - 1) * S + 1)],
        discount=model.discount,
        uncertainty=model.uncertainty,
    )


@pytest.fixture(scope="module")
def sums():
    """A model with two sums, a horizon and a discount, and a policy that keeps both."""
    rng = np.random.default_rng(3)
    shape = STATES, ACTIONS
    cost = rng.random(shape)
    return hf.RobustCMDP(
        transitions=rng.dirichlet(np.ones(STATES), shape),
        reward=rng.random(shape) + cost,
        constraints=[hf.at_most(cost, 1.2), hf.at_least(rng.random(shape), 0.8)],
        initial=np.full(STATES, 0.25),
        discount=0.9,
        horizon=HORIZON,
        uncertainty=hf.KL(0.05),
    )


@pytest.fixture(scope="module")
def solved(sums):
    return hf.solve(sums, iterations=60)


@pytest.mark.campaign
def test_it_equals_the_explicit_model(sums):
    rng = np.random.default_rng(0)
    for seed in range(200 if CAMPAIGN else 3):
        rng = np.random.default_rng(seed)
        model = sums.replace(
            transitions=rng.dirichlet(np.ones(STATES), (STATES, ACTIONS)), reward=rng.random((4, 2))
        )
        explicit = unrolled(model)
        policy = rng.dirichlet(np.ones(ACTIONS), (HORIZON, STATES))
        rows = np.concatenate([policy.reshape(-1, ACTIONS), [[1.0, 0.0]]])
        one, other = hf.evaluate(model, policy), hf.evaluate(explicit, rows)
        for a, b in zip(
            (one.reward, *one.constraints), (other.reward, *other.constraints), strict=True
        ):
            assert a.worst == pytest.approx(b.worst, abs=1e-11)
            assert a.nominal == pytest.approx(b.nominal, abs=1e-11)
            shape = HORIZON, STATES
            # Σ γ^t is 1/(1−γ) there, which the last state takes up.
            scale = (1 - 0.9) * sum(0.9**t for t in range(HORIZON))
            visits = b.occupancy[:-1].reshape(shape)
            np.testing.assert_allclose(a.occupancy * scale, visits, atol=1e-10)
            np.testing.assert_allclose(a.values, b.values[:-1].reshape(shape), atol=1e-10)


def test_programs_and_bounds_equal_those_of_the_explicit_model(sums, solved):
    explicit = unrolled(sums)
    program, other = hf.solve(sums, "lp"), hf.solve(explicit, "lp")
    assert program.evaluation.reward.nominal == pytest.approx(
        other.evaluation.reward.nominal, abs=1e-8
    )
    policy = solved.policy
    assert solved.status == "feasible"
    assert policy.shape == (HORIZON, STATES, ACTIONS)
    certificate = hf.certify(sums, policy)
    rows = np.concatenate([policy.reshape(-1, ACTIONS), [[1.0, 0.0]]])
    same = hf.certify(explicit, rows)
    assert certificate.feasible
    assert certificate.reward <= certificate.upper_bound
    assert certificate.upper_bound == pytest.approx(same.upper_bound, rel=1e-6)
    np.testing.assert_allclose(certificate.critical_factors, same.critical_factors, rtol=1e-6)
    divided = hf.certify(sums, policy, nodes=None, target=1e-3)
    assert divided.gap <= 0.001 < 0.02 < certificate.gap
    assert divided.relaxed_policies[0].shape == policy.shape
    assert hf.certify(explicit, rows, nodes=None, target=1e-3).upper_bound == pytest.approx(
        divided.upper_bound, rel=2e-3
    )


def explicit_proof(model, proof):
    """The proof of a model with a horizon as a proof of its explicit model, without the tree."""
    S, last = model.states, (model.horizon - 1) * model.states
    proof = copy.deepcopy(proof)
    proof["policy"].append([1.0, *[0.0] * (model.actions - 1)])
    proof["bounds"] = proof["bounds"][:1]
    for record in (*proof["signals"], *proof["bounds"]):
        for name in record.keys() & {"lower_values", "upper_values", "values"}:
            record[name].append(0.0)
        if record.get("multipliers"):
            record["multipliers"].append([None] * model.actions)
        moves = [move for move in record["moves"] if move[0] < last]  # the last rows have one entry
        record["moves"] = [
            [s, a, i + (s // S + 1) * S, j + (s // S + 1) * S, mass] for s, a, i, j, mass in moves
        ]
    return proof


def test_proofs_of_horizons_follow_in_the_explicit_model(sums, solved):
    """Decided by the exact oracle of the explicit model, which knows no horizon."""
    certificate = hf.certify(sums, solved.policy, nodes=None, target=0.01)
    proof = json.loads(json.dumps(prove(certificate)))
    rational, oracle = exact(sums), Oracle(unrolled(sums))
    assert check(proof, rational).accepted
    assert proof["bounds"][1]["value"] == pytest.approx(certificate.upper_bound, rel=1e-9)
    assert oracle.follows(explicit_proof(sums, proof))
    rng = np.random.default_rng(0)
    for change in (flatter, change_vector) * 6:
        changed = copy.deepcopy(proof | {"bounds": proof["bounds"][:1]})
        change(changed, rng)
        accepted = check(changed, rational).accepted
        assert accepted == oracle.follows(explicit_proof(sums, changed))
    changed = copy.deepcopy(proof)
    changed["bounds"][1]["value"] *= 0.999
    assert not check(changed, rational).accepted


@pytest.mark.parametrize("name", SETS if CAMPAIGN else ["kl", "interval", "wasserstein"])
def test_means_of_a_step_and_allowed_actions_are_proved(name):
    """Brackets in exact arithmetic contain the values in long double; every step has its own rows."""
    model, policy = random_model(name, 1, by_step=True)
    model = model.replace(constraints=model.constraints[:1], allowed={0: [1]})
    policy[:, 0] = [0.0, 1.0]
    proof = json.loads(json.dumps(prove(hf.certify(model, policy, bound=name == "kl"))))
    found = check(proof, exact(model))
    assert found.accepted, found.reason
    limit = model.constraints[0]
    signals = (model.reward, 1.0), (limit.utility, limit.steps)
    for record, (signal, steps) in zip(proof["signals"], signals, strict=True):
        true = induction(model, signal, model.discount, policy) / steps
        assert record["lower"] - 1e-13 <= true <= record["upper"] + 1e-13
        assert record["upper"] - record["lower"] <= 1e-9
    proof["policy"][0] = [0.5, 0.5]
    assert check(proof, exact(model)).reason == "the policy takes an action that is not allowed"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_a_horizon_rules_and_allowed_actions(name, ruled):
    found = hf.solve(ruled, name, iterations=4)
    assert found.policy.shape == (HORIZON, STATES, ACTIONS)
    assert (found.policy[:, 1, 0] == 0).all()
    np.testing.assert_allclose(found.policy.sum(-1), 1.0)
    assert found.evaluation.error < 1e-10
    shown = found.history["margins"][-1]
    np.testing.assert_allclose(shown, found.evaluation.margins, atol=1e-9)


@pytest.fixture(scope="module")
def ruled(sums):
    """A model with a mean of a step, a probability and an action that is not allowed."""
    mean = dataclasses.replace(sums.constraints[0], threshold=0.8, per="step", name="wear")
    return sums.replace(
        constraints=[mean, hf.reach([3], at_most=0.9)], allowed={1: [1]}, discount=1.0
    )


def test_a_rule_speaks_in_its_own_words_and_units(ruled):
    solution = hf.solve(ruled, iterations=40)
    assert solution.status == "feasible"
    wear, event = solution.evaluation.constraints
    assert str(wear).startswith("wear per step ≤ 0.8: worst case 0.")
    assert str(event).startswith("reach [3] within 3 steps: at worst ")
    assert str(event).endswith(" %, limit 90 %")
    total = hf.evaluate(
        ruled.replace(
            constraints=[hf.at_most(ruled.constraints[0].signal, 9.0), ruled.constraints[1]]
        ),
        solution.policy,
    )
    assert total.constraints[0].worst == pytest.approx(3 * wear.worst)
    certificate = hf.certify(ruled, solution.policy)
    assert certificate.reward <= certificate.upper_bound
    assert "reach [3] within 3 steps ≤ 90 %" in str(certificate)
    assert "policies that do may be better" in str(certificate)


@pytest.mark.parametrize(("name", "by_step"), [("kl", False), ("interval", True)])
def test_what_nature_gains_in_pairs_is_the_whole_loss(name, by_step):
    model, policy = random_model(name, 0, by_step=by_step)
    found = hf.sensitivity(model, policy, factors=[1.0])
    (evaluation,) = found.evaluations
    distances = [abs(v.nominal - v.worst) for v in (evaluation.reward, *evaluation.constraints)]
    np.testing.assert_allclose(sum(p.losses for p in found.pairs), distances, atol=1e-12)
    assert min(distances) > 1e-3
    assert all((pair.losses >= -1e-12).all() for pair in found.pairs)


def test_the_best_deterministic_policy_of_all_steps_is_found(ruled, monkeypatch):
    """Enumeration is the oracle. The limit is such that randomising pays."""
    model = ruled.replace(allowed={0: [0], 1: [1]})
    every = [np.zeros((HORIZON, STATES), int) for _ in range(64)]
    for policy, each in zip(every, itertools.product(range(2), repeat=6), strict=True):
        policy[:, 1], policy[:, 2:] = 1, np.reshape(each, (3, 2))
    values = [hf.evaluate(model, policy) for policy in every]
    costs = sorted(value.constraints[0].worst for value in values)
    most = costs[20] + 1e-6
    limit = dataclasses.replace(model.constraints[0], threshold=most)
    model = model.replace(constraints=[limit, model.constraints[1]])
    kept = [v for v in values if v.constraints[0].worst <= most and v.constraints[1].holds]
    best = max(value.reward.worst for value in kept)

    found = hf.solve(model, iterations=4, deterministic=True)
    assert found.evaluation.reward.worst == pytest.approx(best, abs=1e-9)
    assert found.table().deterministic
    monkeypatch.setattr(deterministic, "_MOST_TO_ENUMERATE", 1)
    climbed = deterministic.best_deterministic(layout_of(model), found.policy, Dual())
    assert hf.evaluate(model, climbed).reward.worst == pytest.approx(best, abs=1e-9)
    assert (climbed[:, [0, 1], [0, 1]] == 1).all()


@pytest.mark.long
def test_memory_gains_what_the_bound_allows():
    """Reward comes from the state to be avoided: once there, there is no reason to leave it."""
    kernel = np.zeros((3, 2, 3))
    kernel[0, 0] = [0.7, 0.0, 0.3]
    kernel[0, 1] = [0.2, 0.8, 0.0]
    kernel[1:, 0] = [1.0, 0.0, 0.0]
    kernel[1, 1] = [0.0, 0.0, 1.0]
    kernel[2, 1] = [0.5, 0.5, 0.0]
    model = hf.RobustCMDP(
        transitions=kernel,
        reward=np.array([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]]),
        constraints=[hf.reach([2], at_most=0.4)],
        initial=np.eye(3)[0],
        discount=1.0,
        horizon=6,
        uncertainty=hf.KL(0.02),
    )
    solution = hf.solve(model, iterations=60, remember=True)
    memory = solution.remembered
    assert solution.status == memory.status == "feasible"
    assert memory.policy.shape == (6, 6, 2)
    gained = memory.evaluation.reward.worst - solution.evaluation.reward.worst
    assert gained > 0.01
    assert f"(gains {gained:.3g})" in str(solution)
    # The Lagrangian bound includes policies with memory, of this model and of the one with flags.
    bound = hf.certify(model, solution.policy).upper_bound
    explicit = hf.certify(with_memory(model), memory.policy).upper_bound
    assert memory.evaluation.reward.worst <= bound == pytest.approx(explicit, rel=1e-4)
    # A policy that ignores its memory has the same values with it and without.
    rows = np.concatenate([solution.policy] * 2, axis=1)
    again = hf.evaluate(with_memory(model), rows)
    assert again.reward.worst == pytest.approx(solution.evaluation.reward.worst, abs=1e-9)
    assert again.margins == pytest.approx(solution.evaluation.margins, abs=1e-9)


def test_without_a_horizon_it_is_the_probability_before_a_geometric_end(sums):
    """An explicit model with a state for the end, in long double sweeps."""
    rule = hf.reach([2], at_most=0.9, avoid=[0])
    model = sums.replace(horizon=None, discount=0.5, constraints=[rule])
    policy = np.random.default_rng(1).dirichlet(np.ones(ACTIONS), STATES)
    found = hf.evaluate(model, policy).constraints[0]
    values, radius = np.zeros(STATES, LONG), 0.05
    for _ in range(40):
        q = [
            [extended.least_value("kl", row, -0.5 * values, radius) for row in rows]
            for rows in model.nominal
        ]
        values = -(policy * np.array(q)).sum(-1)
        values[2], values[0] = 1.0, 0.0
    assert found.worst == pytest.approx(float(model.initial @ values), abs=1e-10)
    assert "before an end with probability 0.5 a step" in str(found)
    lists = hf.Kernel(np.broadcast_to(np.arange(STATES), (4, 2, 4)), model.nominal)
    far = model.replace(
        transitions=hf.Kernel(
            np.pad(lists.successors, ((0, 1196), (0, 0), (0, 0))),
            np.pad(model.nominal, ((0, 1196), (0, 0), (0, 0)), mode="edge"),
        ),
        reward=np.zeros((1200, 2)),
        initial=np.r_[model.initial, np.zeros(1196)],
    )
    swept = hf.evaluate(far, np.pad(policy, ((0, 1196), (0, 0)), mode="edge")).constraints[0]
    assert swept.worst == pytest.approx(found.worst, abs=1e-9)
    limited = model.replace(constraints=[hf.reach([2], at_most=0.7)])
    certificate = hf.certify(limited, hf.solve(limited, iterations=40).policy)
    assert certificate.reward - certificate.error <= certificate.upper_bound < np.inf


QUESTIONS = [
    ('Pmax=? [F<=8 "goal"]', "at_least", ()),
    ('Pmin=? [F<=8 "goal"]', "at_most", ()),
    ('Pmax=? [!"hole" U<=8 "goal"]', "at_least", (7,)),
    ('Pmin=? [!"hole" U<=8 "goal"]', "at_most", (7,)),
]


@pytest.mark.parametrize("seed", range(3))
def test_interval_models_equal_storm(seed):
    model = storm.interval_model(seed, 20)
    built = storm.storm_model(model, [3, 4], [7])
    for question, sense, avoid in QUESTIONS:
        rule = hf.reach([3, 4], avoid=avoid, **{sense: 0.5})
        best = optimum(model.replace(constraints=[rule]), 1)
        assert abs(best.lower) == pytest.approx(storm.storm_value(built, question), abs=1e-6)


def test_model_files_keep_horizon_rules_and_allowed_actions(ruled, tmp_path):
    path = tmp_path / "model.npz"
    by_step = ruled.replace(
        transitions=np.stack([ruled.nominal] * HORIZON), uncertainty=hf.KL(np.full((3, 4, 2), 0.05))
    )
    for model in (ruled, by_step):
        model.save(path)
        again = hf.RobustCMDP.load(path)
        assert str(again) == str(model)
        np.testing.assert_array_equal(again.allowed, model.allowed)
        policy = np.full((STATES, ACTIONS), 0.5)
        policy[1] = [0, 1]
        one, other = hf.evaluate(model, policy), hf.evaluate(again, policy)
        assert str(one) == str(other)
        rule = read_model(path).signals[2]
        assert rule.ends == {3, 7, 11}
        assert rule.name == "reach [3] ≤ 0.9"


def test_kernels_of_every_step_come_in_the_form_of_the_model(ruled):
    policy = hf.solve(ruled, "rvi").policy
    found = hf.evaluate(ruled, policy).reward.kernel
    assert found.shape == (HORIZON, STATES, ACTIONS, STATES)
    np.testing.assert_array_equal(found[:, 1, 0], np.broadcast_to(ruled.nominal[1, 0], (3, 4)))
    inside = ruled.uncertainty.divergence(np.broadcast_to(ruled.nominal, found.shape), found)
    assert inside.max() <= 0.05 + 1e-9
    lists = hf.Kernel(np.broadcast_to(np.arange(STATES), (4, 2, 4)), ruled.nominal)
    again = hf.evaluate(ruled.replace(transitions=lists), policy).reward.kernel
    assert again.probabilities.shape == found.shape
    np.testing.assert_allclose(again.probabilities, found, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon: expected a whole number of at least 1, got 0"),
        (
            {"horizon": None},
            r"discount: expected a number in \[0, 1\), got 1.0; a sum over a number",
        ),
        ({"discount": 1.5}, r"discount: expected a number in \[0, 1\], got 1.5"),
        ({"transitions": np.full((2, 4, 2, 4), 0.25)}, "transitions: expected 3 steps, got 2"),
        (
            {"reward": np.zeros((2, 4, 2))},
            r"reward: expected shape \(4, 2\), .* 3 steps or without",
        ),
        ({"uncertainty": hf.KL(np.ones((2, 4, 2)))}, "uncertainty: expected 3 steps, got 2"),
        (
            {"constraints": [hf.reach([4], at_most=0.1)]},
            r"constraints\[0\]: there is no state 4; st",
        ),
        (
            {"constraints": [hf.reach(["new"], at_most=0.1)]},
            r"constraints\[0\]: the states have no names, so 'n",
        ),
        (
            {"constraints": [hf.reach([1, 2], at_most=0.1, avoid=[2])]},
            r"constraints\[0\]: state 2 is both to be reached and to be avoided",
        ),
        ({"allowed": {2: []}}, "allowed: state 2 has no allowed action"),
        ({"allowed": {2: [5]}}, "allowed: there is no action 5; actions are 0 to 1"),
        ({"allowed": np.ones((4, 2))}, "allowed: expected booleans of shape"),
    ],
)
def test_bad_rules_are_refused_in_words(ruled, change, message):
    with pytest.raises(ValueError, match=message):
        ruled.replace(**change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hf.reach([1]), "reach: expected either at_most or at_least"),
        (lambda: hf.reach([1], at_most=1.5), r"at_most: expected a number in \[0, 1\], got 1.5"),
        (lambda: hf.reach([], at_most=0.5), "states: expected at least one state"),
        (lambda: hf.reach([0.5], at_most=0.5), "states: expected names or indices of states"),
        (lambda: hf.at_most([[1.0]], 1.0, per="week"), "per: expected one of 'total', 'step'"),
    ],
)
def test_rules_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_verbs_refuse_in_words(ruled):
    with pytest.raises(ValueError, match="policy: state 1 takes action 0, which is not allowed"):
        hf.evaluate(ruled, np.full((4, 2), 0.5))
    with pytest.raises(ValueError, match="worst_case: models with a horizon support 'dual' only"):
        hf.solve(ruled, worst_case="tilted")
    with pytest.raises(ValueError, match="bounds: they are for models without a horizon"):
        hf.solve(ruled, bounds=True)
    with pytest.raises(ValueError, match="model: a table with a horizon, a reach rule"):
        hf.train(ruled, "trpo", iterations=1)
    with pytest.raises(ValueError, match="remember: this contamination set may lead to any state"):
        hf.solve(ruled.replace(uncertainty=hf.Contamination(0.1)), remember=True)
