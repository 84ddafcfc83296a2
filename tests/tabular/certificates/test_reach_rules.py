"""Branch and bound and proof files for models with `reach` rules.

Policies are evaluated many at once by backward induction or value iteration in NumPy, for contamination
sets, whose worst response is (1 − R)·q + R at the smallest target.
"""

import copy
import dataclasses
import itertools
import json
import os

import numpy as np
import pytest
from tests.tabular.certificates import proof_cases
from tests.tabular.certificates.proof_oracle import Oracle
from tests.tabular.certificates.test_occupancy_tree import replayed_bound

import holdfast as hf
from holdfast.model import Reach
from holdfast.tabular.certificates.checker.check_proof import check, exact
from holdfast.tabular.certificates.proof import prove

CAMPAIGN = bool(os.environ.get("HOLDFAST_CAMPAIGN"))
STATES, ACTIONS, HORIZON = 3, 2, 3
RADIUS = 0.05


def worst_values(model, policies, constraint=None):
    """The worst-case utility of one constraint, or the reward, of many policies (P, *H, S, A)."""
    rule = constraint if isinstance(constraint, Reach) else None
    signal = model.reward if constraint is None else constraint.utility
    steps = model.horizon or 250  # 0.9^250 is below 1e-11
    discount = 1.0 if rule is not None and model.horizon else model.discount
    stops = np.zeros(model.states, bool) if rule is None else rule.stops
    pays = np.zeros(model.states) if rule is None else rule.pays
    values = np.broadcast_to(pays, (len(policies), model.states))
    for t in reversed(range(steps)):
        following = discount * values
        least = following.min(-1)[:, None, None]
        mean = np.einsum("sat,pt->psa", model.transitions, following)
        action_values = signal + (1 - RADIUS) * mean + RADIUS * least
        policy = policies[:, t] if model.horizon else policies
        values = np.where(stops, pays, (policy * action_values).sum(-1))
    return values @ model.initial


def best_feasible(model, policies):
    """The best worst-case reward of the policies that keep all constraints."""
    holds = [
        worst_values(model, policies, c) >= c.utility_threshold - 1e-12 for c in model.constraints
    ]
    return np.where(np.all(holds, axis=0), worst_values(model, policies), -np.inf).max()


def ruled_model(seed, horizon):
    """A random model with one to three constraints, at least one of them a rule, and a policy.

    The thresholds are what the policy attains, less a little; a rule to avoid states is among them.
    """
    rng = np.random.default_rng([23, seed])
    shape, places = (STATES, ACTIONS), rng.permutation(STATES)
    rules = [
        hf.reach(places[:1], at_most=0.5, avoid=places[2:] if seed % 2 else ()),
        hf.reach(places[1:2], at_least=0.5, avoid=places[:1] if seed % 4 == 0 else ()),
        hf.at_most(rng.random(shape), 1.0, per="step" if seed % 3 else "total"),
    ]
    model = hf.RobustCMDP(
        transitions=rng.dirichlet(np.full(STATES, 0.6), shape),
        reward=rng.normal(size=shape),
        constraints=rules[seed % 3 :] if seed % 3 < 2 else rules[:1],
        initial=rng.dirichlet(np.ones(STATES)),
        discount=[1.0, 0.8][seed % 2] if horizon else 0.9,
        horizon=horizon,
        uncertainty=hf.Contamination(RADIUS),
    )
    policy = rng.dirichlet(np.ones(ACTIONS), (horizon, STATES) if horizon else STATES)
    limits = []
    for c in model.constraints:
        value = c.shown(worst_values(model, policy[None], c)[0]) - 0.01 * c.sign
        limits.append(dataclasses.replace(c, threshold=float(np.clip(value, 0, 9))))
    return model.replace(constraints=limits), policy


# The Lagrangian bound of several rules takes half a minute without a horizon.
FEW = {None: [2], HORIZON: range(4)}


@pytest.mark.campaign
@pytest.mark.parametrize("horizon", [pytest.param(None, marks=pytest.mark.long), HORIZON])
def test_no_policy_is_better_than_the_bound(horizon):
    """All deterministic policies and random ones, near the certified policy and far from it."""
    gaps = []
    for seed in range(40) if CAMPAIGN else FEW[horizon]:
        model, policy = ruled_model(seed, horizon)
        policy = hf.solve(model, iterations=40, initial_policy=policy).policy
        plain = hf.certify(model, policy)
        certificate = hf.certify(model, policy, nodes=40, target=0.01)
        rng = np.random.default_rng(seed)
        rows = policy.reshape(-1, ACTIONS)
        actions = itertools.product(range(ACTIONS), repeat=len(rows))
        others = rng.dirichlet(np.full(ACTIONS, 0.4), (400, len(rows)))
        near = rows + rng.choice([0.01, 0.1, 0.3], (400, 1, 1)) * (others - rows)
        every = np.concatenate([np.eye(ACTIONS)[np.array([*actions])], others, near, rows[None]])
        best = best_feasible(model, every.reshape(-1, *policy.shape))
        assert certificate.reward - 1e-9 <= best <= certificate.upper_bound + 1e-9
        assert certificate.upper_bound <= plain.upper_bound
        gaps.append((plain.gap, certificate.gap))
    # The Lagrangian bound, which covers policies with a memory, is far away in some models.
    assert max(plain for plain, _ in gaps) > 0.05
    assert np.median([gap for _, gap in gaps]) <= 0.011


def tiny_model(horizon):
    """Two decisions: a risky action pays more and reaches state 2 more often."""
    kernel = np.zeros((STATES, ACTIONS, STATES))
    kernel[0] = [[0.55, 0.4, 0.05], [0.5, 0.2, 0.3]]
    kernel[1] = [[0.7, 0.27, 0.03], [0.2, 0.6, 0.2]]
    kernel[2, :, 0] = 1.0
    model = hf.RobustCMDP(
        transitions=kernel,
        reward=np.array([[0.2, 1.0], [0.0, 0.9], [0.3, 0.3]]),
        constraints=[hf.reach([2], at_most=0.9)],
        initial=np.array([0.6, 0.3, 0.1]),
        discount=0.9,
        horizon=horizon,
        uncertainty=hf.Contamination(RADIUS),
    )
    ends = [worst_values(model, all_actions(a, horizon), model.constraints[0])[0] for a in (0, 1)]
    limit = -0.7 * ends[0] - 0.3 * ends[1]
    return model.replace(constraints=[hf.reach([2], at_most=float(limit))])


def all_actions(action, horizon):
    return np.tile(np.eye(ACTIONS)[action], (1, *([horizon] if horizon else []), STATES, 1))


@pytest.fixture(scope="module", params=[None, 2])
def bounded(request):
    model = tiny_model(request.param)
    policy = hf.solve(model, iterations=60).policy
    target = 1e-2 if request.param else 1e-3
    return model, request.param, hf.certify(model, policy, nodes=None, target=target)


def test_the_bound_is_the_optimum_of_a_fine_grid(bounded):
    model, horizon, certificate = bounded
    # Probabilities of the risky action in the states 0 and 1, at every step.
    free = 2 * (horizon or 1)
    share = np.linspace(0, 1, 21 if horizon else 121)
    chosen = np.stack([each.ravel() for each in np.meshgrid(*[share] * free)], axis=-1)
    policies = np.zeros((len(chosen), horizon or 1, STATES, ACTIONS))
    policies[:, :, :2, 1] = chosen.reshape(-1, horizon or 1, 2)
    policies[..., 0] = 1 - policies[..., 1]
    best = best_feasible(model, policies if horizon else policies[:, 0])
    # The target, and what the grid misses.
    distance = 3e-2 if horizon else 1e-2
    assert best - 1e-9 <= certificate.upper_bound <= best + distance * abs(best)
    assert set(certificate.proof.rules) == {0, 1}
    if horizon is None:
        assert replayed_bound(model, certificate.proof) <= certificate.upper_bound


def test_only_the_bound_of_a_memory_mentions_it():
    model, policy = ruled_model(0, HORIZON)
    policy = hf.solve(model, iterations=40, initial_policy=policy).policy
    for nodes in (0, 1):
        shown = str(hf.certify(model, policy, nodes=nodes))
        assert "no feasible policy given as a table has a worst-case reward above" in shown
        assert "tables do not remember which events have happened; policies that do may be" in shown


# Proof files -----------------------------------------------------------------------------------------


def proof_model():
    """Two rules of different events, a sum, and initial mass in a state to reach."""
    model = proof_cases.model_with("kl", False)
    cost = model.constraints[0].signal
    return model.replace(
        constraints=[
            hf.reach(["b"], at_most=0.95, avoid=["home"]),
            hf.at_most(cost, 6.0, name="wear"),
            hf.reach([2], at_least=0.3),
        ],
        state_names=["a", "b", "c"],
        labels={"home": [0]},
    )


@pytest.fixture(scope="module")
def proved():
    """A model, a proof with a Lagrangian bound and a tree with stopped copies, and its certificate."""
    model = proof_model()
    policy = np.random.default_rng(0).dirichlet(np.ones(ACTIONS), STATES)
    worst = hf.evaluate(model, policy).constraints
    tight = [
        dataclasses.replace(c, threshold=w.worst + 1e-3 * c.sign * -1)
        for c, w in zip(model.constraints, worst, strict=True)
    ]
    model = model.replace(constraints=tight)
    found = hf.solve(model, iterations=20, initial_policy=policy).policy
    certificate = hf.certify(model, found, nodes=3, target=1e-3)
    return model, certificate, json.loads(json.dumps(prove(certificate)))


def test_proofs_of_rules_follow(proved, tmp_path):
    model, certificate, proof = proved
    found = check(proof, exact(model))
    assert found.accepted, found.reason
    assert Oracle(model).follows(proof)
    lagrangian, tree = proof["bounds"]
    sets = 4  # of two events
    assert len(lagrangian["values"]) == sets * STATES
    assert any("rule" in kernel for kernel in tree["kernels"])
    assert tree["value"] == pytest.approx(certificate.upper_bound, rel=1e-6)
    for record, shown, c in zip(
        proof["signals"][1:], certificate.evaluation.constraints, model.constraints, strict=True
    ):
        assert record["lower"] <= c.sign * shown.worst + 1e-12
        assert record["upper"] >= c.sign * shown.worst - 1e-12
        assert record["upper"] - record["lower"] <= 1e-9
    certificate.save(tmp_path / "proof.json")
    model.save(tmp_path / "model.npz")
    found = hf.check_proof(tmp_path / "proof.json", tmp_path / "model.npz")
    assert found.accepted
    assert found.statements[2].startswith("reach ['b'] ≤ ")
    other = model.replace(labels={"home": [2]})
    assert not hf.check_proof(tmp_path / "proof.json", other).accepted


def change_rule(proof, rng):
    """Let the visits of a copy end with another rule, or with none."""
    kernels = proof["bounds"][1]["kernels"]
    kernels[rng.integers(len(kernels))]["rule"] = int(rng.integers(5))


@pytest.mark.campaign
def test_corrupted_proofs_of_rules_are_decided_as_by_a_second_computation(proved):
    model, _, genuine = proved
    oracle, rational = Oracle(model), exact(model)
    rng, refused = np.random.default_rng(0), 0
    changes = [*proof_cases.CHANGES, change_rule, change_rule]
    count = 600 if CAMPAIGN else 30
    for _ in range(count):
        proof = copy.deepcopy(genuine)
        change = changes[rng.integers(len(changes))]
        change(proof, rng)
        flattering = change is proof_cases.flatter and proof != genuine
        accepted = check(proof, rational).accepted
        assert accepted == (oracle.follows(proof) and not flattering), change.__name__
        refused += not accepted
    assert refused >= count // 3


def test_bounds_that_do_not_follow_are_refused(proved):
    model, _, genuine = proved
    rational = exact(model)
    for change in (
        lambda bounds: bounds[0].update(value=bounds[0]["value"] - 1e-6),
        lambda bounds: bounds[1].update(value=bounds[1]["value"] - 1e-6),
        lambda bounds: bounds[0].update(values=bounds[0]["values"][:STATES]),
        lambda bounds: [kernel.update(rule=0) for kernel in bounds[1]["kernels"]],
        lambda bounds: bounds[1]["kernels"][-1].update(rule=4),
    ):
        proof = copy.deepcopy(genuine)
        change(proof["bounds"])
        assert not check(proof, rational).accepted


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_proofs_of_rules_with_a_horizon_are_accepted(discount):
    """Values of all signals by backward induction lie between the proved ends."""
    model, policy = ruled_model(4, HORIZON)
    model = model.replace(discount=discount)
    certificate = hf.certify(model, policy, nodes=3)
    proof = json.loads(json.dumps(prove(certificate)))
    found = check(proof, exact(model))
    assert found.accepted, found.reason
    for record, c in zip(proof["signals"], (None, *model.constraints), strict=True):
        unit = 1.0 if c is None else c.steps
        true = worst_values(model, policy[None], c)[0] / unit
        assert record["lower"] - 1e-12 <= true <= record["upper"] + 1e-12
        assert record["upper"] - record["lower"] <= 1e-9
    if certificate.feasible:
        assert proof["bounds"][0]["value"] == pytest.approx(hf.certify(model, policy).upper_bound)
    proof["bounds"][0]["value"] -= 1e-6
    assert not check(proof, exact(model)).accepted


def test_a_rule_that_no_policy_keeps_is_proved_impossible(tmp_path):
    model = proof_model().replace(constraints=[hf.reach([1], at_most=0.01)])
    certificate = hf.certify(model, np.full((STATES, ACTIONS), 0.5))
    assert certificate.upper_bound == -np.inf
    certificate.save(tmp_path / "proof.json")
    found = hf.check_proof(tmp_path / "proof.json", model)
    shown = "no policy given as a table satisfies the constraints in the worst case"
    assert found.statements[-1] == shown
