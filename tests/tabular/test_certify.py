import itertools
import json

import numpy as np
import pytest

import holdfast as hf


def test_a_certificate_says_what_the_evaluation_found(oracle):
    model = oracle.random_model(0, constraints=2, slack=0.3)
    policy = hf.solve(model, iterations=30).policy
    certificate = hf.certify(model, policy)
    evaluation = hf.evaluate(model, policy)
    assert certificate.feasible
    assert certificate.reward == evaluation.reward.worst
    np.testing.assert_array_equal(certificate.margins, evaluation.margins)
    assert certificate.error == evaluation.error
    tighter = model.replace(
        constraints=[
            hf.at_least(model.constraints[0].signal, evaluation.constraints[0].worst + 1e-6),
            model.constraints[1],
        ]
    )
    refused = hf.certify(tighter, policy)
    assert not refused.feasible
    assert refused.margins[0] == pytest.approx(-1e-6, abs=1e-9)


def test_a_margin_within_the_numerical_error_is_not_feasible(oracle):
    model = oracle.random_model(0, constraints=1)
    policy = oracle.random_policy(model, np.random.default_rng(3))
    worst = hf.evaluate(model, policy).constraints[0].worst
    on_the_edge = model.replace(constraints=[hf.at_least(model.constraints[0].signal, worst)])
    certificate = hf.certify(on_the_edge, policy)
    assert abs(certificate.margins[0]) <= certificate.error
    assert certificate.feasible == (certificate.margins[0] - certificate.error >= 0)


def test_without_constraints_every_policy_is_feasible(oracle):
    model = oracle.random_model(0, constraints=0)
    certificate = hf.certify(model, oracle.random_policy(model, np.random.default_rng(0)))
    assert certificate.feasible
    assert certificate.margins.shape == (0,)
    assert "reward" in str(certificate)


def test_branch_and_bound_divides_policies_on_the_allowed_actions(tmp_path):
    """No deterministic policy on the allowed actions passes the bound."""
    model = hf.environments.river_swim().replace(allowed={5: [1]})
    policy = hf.solve(model, iterations=100).policy
    certificate = hf.certify(model, policy, nodes=None)
    assert certificate.feasible
    assert certificate.gap <= 0.0101
    for actions in itertools.product(range(2), repeat=5):
        found = hf.evaluate(model, np.array([*actions, 1]))
        assert not found.feasible or found.reward.worst <= certificate.upper_bound
    certificate.save(tmp_path / "proof.json")
    model.save(tmp_path / "model.npz")
    assert hf.check_proof(tmp_path / "proof.json", tmp_path / "model.npz").accepted


def test_it_reads_as_a_table_and_as_json():
    model = hf.environments.gambler()
    bold = np.eye(8)[np.full(17, 7)]
    certificate = hf.certify(model, bold)
    lines = str(certificate).splitlines()
    assert lines[0].startswith("NOT feasible in the worst case (numerical error ")
    assert lines[1].split() == ["worst", "case", "nominal", "margin", "breaks", "at"]
    assert lines[3].startswith("utility ≥ 2.5")
    assert lines[3].endswith("violated")
    numbers = json.loads(json.dumps(certificate.to_dict()))
    assert numbers["constraints"][0]["margin"] == certificate.margins[0]
    assert numbers["reward"]["worst"] == certificate.reward
