"""Branch and bound over occupancies: an exact replay of its record, and independent searches for a
counter-example."""

import dataclasses
import os
from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize
from tests.tabular.certificates import proof_oracle
from tests.tabular.certificates.random_models import SETS, certified, random_model

import holdfast as hf
from holdfast.tabular.certificates.member_kernels import strict_member
from holdfast.tabular.certificates.occupancy_model import occupancy_model, rows_of
from holdfast.tabular.certificates.occupancy_program import (
    KernelCopy,
    PolicyRegion,
    occupancy_program,
)
from holdfast.tabular.certificates.occupancy_tree import distinct

CAMPAIGN = bool(os.environ.get("HOLDFAST_CAMPAIGN"))
# One shape serves all sets, since a shape is compiled anew for some of them.
SHAPE = None if CAMPAIGN else (4, 2)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(300 if CAMPAIGN else 1))
def test_no_search_finds_a_better_policy_than_the_bound_allows(seed):
    """`benchmarks/random_gaps.py` prints the gaps of the campaign's models."""
    certificate, reward = certified(seed, quick=not CAMPAIGN)
    assert certificate.feasible
    assert certificate.upper_bound >= reward - 1e-8
    assert CAMPAIGN or certificate.gap <= 0.05


# An exact replay -------------------------------------------------------------------------------------


def replayed_bound(model, proof):
    """The bound that a record proves in exact arithmetic; an AssertionError if a step proves less."""
    kernels = [proof_oracle.fractions(q) for q in proof.kernels]
    kernels = [q / q.sum(-1, keepdims=True) for q in kernels]
    program = proof_oracle.FractionProgram(
        proof_oracle.Oracle(model),
        proof.representative,
        kernels,
        Fraction(proof.cutoff),
        proof.rules,
    )
    assert Fraction(proof.visit_limit) >= 1 / (1 - Fraction(model.discount))
    assert Fraction(proof.reward_limit) >= program.limit
    nodes = [{"steps": []} for _ in proof.node_parent]
    for n, parent in list(enumerate(proof.node_parent))[1:]:
        division = {"place": proof.node_place[n], "point": proof.node_point[n]}
        side = "above" if proof.node_above[n] else "below"
        assert side not in nodes[parent]
        assert division.items() <= nodes[parent].items() or "place" not in nodes[parent]
        nodes[parent] |= division | {side: nodes[n]}
    for i, node in enumerate(proof.step_node):
        part = slice(proof.step_start[i], proof.step_start[i + 1])
        step = {"kind": proof.step_kind[i], "value": proof.step_value[i]}
        step |= {"slope": proof.step_slope[i], "rows": proof.rows[part]}
        nodes[node]["steps"].append(step | {"multipliers": proof.multipliers[part]})
    found = proof_oracle.worst_leaf(program, nodes[0], program.everything(), program.limit)
    assert found is not None
    return found


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(60 if CAMPAIGN else 1))
def test_exact_arithmetic_confirms_every_step(seed):
    model, policy = random_model(1000 + seed, SHAPE)
    solution = hf.solve(model, iterations=30, initial_policy=policy)
    certificate = hf.certify(model, solution.policy, nodes=15 if CAMPAIGN else 7, target=1e-3)
    if certificate.proof is None:
        assert certificate.regions >= 1
        return
    assert replayed_bound(model, certificate.proof) <= certificate.upper_bound


@pytest.fixture(scope="module")
def river():
    model = hf.environments.river_swim()
    return model, hf.solve(model, iterations=100).policy


def test_the_record_of_river_swim_is_confirmed_and_a_changed_one_is_not(river):
    model, policy = river
    certificate = hf.certify(model, policy, nodes=None, target=0.05)
    proof = certificate.proof
    assert replayed_bound(model, proof) <= certificate.upper_bound
    assert certificate.gap <= 0.0501
    # Half of the multipliers of a bound prove less; half of a ray would prove as much.
    number = np.flatnonzero(proof.step_kind >= -1)[-1]
    multipliers = proof.multipliers.copy()
    multipliers[proof.step_start[number] : proof.step_start[number + 1]] *= 0.5
    changed = dataclasses.replace(proof, multipliers=multipliers)
    with pytest.raises(AssertionError):
        replayed_bound(model, changed)


# Parts -----------------------------------------------------------------------------------------------


def test_equal_actions_share_a_representative():
    model = hf.environments.gambler()
    stakes = [len(set(row)) for row in occupancy_model(model).representative]
    assert stakes == [1, *(min(s, 16 - s) for s in range(1, 16)), 1]


def transport_plan(p, q, metric):
    """The cheapest plan from p to q, by a linear program."""
    n = len(p)
    leave, arrive = np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))
    found = scipy.optimize.linprog(
        metric.ravel(), A_eq=np.vstack([leave, arrive[1:]]), b_eq=np.append(p, q[1:])
    )
    return np.vectorize(Fraction)(np.maximum(found.x, 0.0).reshape(n, n))


@pytest.mark.parametrize("kind", SETS)
def test_kernels_that_serve_in_a_proof_are_members_beyond_rounding(kind):
    """Membership in exact arithmetic of every row, divided by its exact sum; and that it is tight."""
    model, policy = random_model(SETS.index(kind) + 600, SHAPE)
    worst, oracle = hf.evaluate(model, policy).reward.kernel, proof_oracle.Oracle(model)

    def members(kernel):
        for s, a in np.ndindex(kernel.shape[:2]):
            q, plan = proof_oracle.fractions(kernel[s, a]), None
            if kind == "wasserstein" and kernel[s, a].min() >= 0:
                plan = transport_plan(model.nominal[s, a], kernel[s, a], model.uncertainty.metric)
            yield bool(oracle.inside(s, a, q / q.sum(), plan))

    kernel = strict_member(model, worst)
    assert abs(kernel - worst).max() <= 2e-6
    assert all(members(kernel))
    assert not all(members(model.nominal + 1.01 * (worst - model.nominal)))


def test_nan_proves_nothing():
    model, policy = random_model(0, SHAPE)
    kernel = hf.evaluate(model, policy).reward.kernel
    program = occupancy_program(occupancy_model(model), [KernelCopy(kernel)], 0.0)
    numbers = program.at(program.everything())
    objective = np.eye(program.width)[0]
    multipliers = np.full(program.rows, np.nan)
    assert program.proved_bound(numbers, objective, multipliers) == np.inf


def test_a_policy_satisfies_every_row_of_its_program():
    """Visits of a policy under the kernels, by linear solves, against all rows of a box around it."""
    model, policy = random_model(7, SHAPE)
    evaluation = hf.evaluate(model, policy)
    kernels = [evaluation.reward.kernel, evaluation.constraints[0].kernel]
    copies = [KernelCopy(kernel) for kernel in kernels]
    program = occupancy_program(occupancy_model(model), copies, -100.0)
    states, actions = program.pair_states, program.pair_actions
    pi, point, visits = policy[states, actions], [-100.0], []
    for kernel in kernels:
        chain = np.einsum("sa,sat->st", policy, rows_of(kernel)[1])
        system = np.eye(model.states) - model.discount * chain.T
        visits.append(np.linalg.solve(system, model.initial))
        point += [*(pi * visits[-1][states]), *visits[-1]]
    point, ratio = np.array(point), visits[1] / visits[0]
    np.testing.assert_allclose(program.policy(point), pi, atol=1e-9)
    whole = program.everything()
    around = whole._replace(lower=np.maximum(pi - 0.5, 0.0), upper=np.minimum(pi + 0.1, 1.0))
    nothing = np.zeros(len(ratio))
    narrow = PolicyRegion(around.lower, around.upper, ratio * 0.9, nothing, ratio * 1.2, nothing)
    shifted = narrow._replace(
        least=ratio * 1.5, least_slack=0.6 * visits[1], most=ratio * 0.5, most_slack=visits[1]
    )
    assert not np.array_equal(ratio, nothing + 1)
    for region in (whole, around, narrow, shifted):
        numbers = program.at(region)
        rows = np.bincount(program.row_of, numbers.entries * point[program.columns], program.rows)
        assert (rows <= numbers.right + 1e-9).all()
        assert (np.abs(rows - numbers.right)[program.is_equation] <= 1e-9).all()
    wrong = narrow._replace(most=ratio * 0.99)
    numbers = program.at(wrong)
    rows = np.bincount(program.row_of, numbers.entries * point[program.columns], program.rows)
    assert (rows > numbers.right + 1e-9).any()


def test_an_interrupt_returns_the_bound_reached_so_far(river):
    model, policy = river
    seen = []

    def interrupt(progress):
        seen.append(progress)
        if len(seen) == 3:
            raise KeyboardInterrupt

    certificate = hf.certify(model, policy, nodes=None, progress=interrupt)
    assert certificate.regions == seen[-1].nodes
    assert certificate.upper_bound == seen[-1].bound
    assert certificate.gap == seen[-1].gap > 0.01
    assert str(seen[-1]).startswith(f"{certificate.upper_bound:.6g}, gap ")
    assert replayed_bound(model, certificate.proof) <= certificate.upper_bound
    whole = hf.certify(model, policy, nodes=None)
    assert whole.gap <= 0.01 + 1e-12
    assert whole.upper_bound <= certificate.upper_bound
    assert "no feasible policy given as a table has" in str(whole)


def test_without_time_the_lagrangian_bound_stands(river):
    model, policy = river
    plain = hf.certify(model, policy)
    hurried = hf.certify(model, policy, nodes=None, seconds=0.0)
    assert hurried.upper_bound <= plain.upper_bound
    assert plain.proof is None


def test_kernels_that_differ_little_are_one():
    first = np.full((1, 1, 2), 0.5)
    other = first + 1e-8 * np.array([1, -1])
    copies = [KernelCopy(kernel) for kernel in (first, other, np.array([[[0.4, 0.6]]]))]
    assert len(distinct([], copies)) == 2
    assert len(distinct(copies[:1], [KernelCopy(first, rule=1), *copies])) == 3
