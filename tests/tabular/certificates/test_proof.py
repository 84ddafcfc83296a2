"""Proof files: genuine ones are accepted, corrupted ones are decided as a second computation decides."""

from __future__ import annotations

import ast
import copy
import dataclasses
import io
import json
import os
import subprocess
import sys
import tokenize
from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests.tabular.certificates.proof_cases import (
    ACTIONS,
    MODELS,
    STATES,
    corrupted,
    model_with,
    proof_of,
)
from tests.tabular.certificates.proof_oracle import Oracle

import holdfast as hf
from holdfast.tabular.certificates import checker
from holdfast.tabular.certificates.checker.check_proof import check, exact
from holdfast.tabular.certificates.checker.exact_sets import log_up, root_up
from holdfast.tabular.certificates.proof import prove

CAMPAIGN = bool(os.environ.get("HOLDFAST_CAMPAIGN"))
# Corrupted files in all; they are shared out among the models below.
CORRUPTIONS = 10_010 if CAMPAIGN else 220


@pytest.mark.parametrize(("name", "lists"), MODELS)
def test_genuine_proofs_are_accepted(name, lists):
    model, proof = model_with(name, lists), proof_of(name, lists)
    found = check(proof, exact(model))
    assert found.accepted, found.reason
    assert Oracle(model).follows(proof)
    for signal in proof["signals"]:
        assert signal["upper"] - signal["lower"] <= 1e-9 * max(1, abs(signal["lower"]))
    assert proof["bounds"]


SMALL = ["river-swim", "garnet"]


@pytest.mark.parametrize("name", hf.environments.MODELS if CAMPAIGN else SMALL)
def test_the_certificates_of_the_built_in_models_are_proved(name, tmp_path):
    model = hf.environments.MODELS[name]()
    certificate = hf.certify(model, hf.solve(model, iterations=10).policy)
    path = tmp_path / "proof.json"
    certificate.save(path)
    found = hf.check_proof(path, model)
    assert found.accepted, found.reason
    proof = json.loads(path.read_text())
    assert proof["feasible"] is certificate.feasible or not certificate.feasible
    assert proof["signals"][0]["lower"] == pytest.approx(certificate.reward, rel=1e-9)
    if np.isfinite(certificate.upper_bound):
        assert proof["bounds"][0]["value"] == pytest.approx(certificate.upper_bound, rel=1e-9)


@pytest.mark.campaign
@pytest.mark.parametrize("case", range(len(MODELS)))
def test_corrupted_proofs_are_decided_as_by_a_second_computation(case):
    """`benchmarks/corrupted_proofs.py` prints the same for 10,000 files."""
    found = corrupted(case, CORRUPTIONS // len(MODELS))
    assert [each for each in found if each[1] != each[2]] == []
    assert sum(not accepted for _, accepted, _ in found) >= len(found) // 3


def test_what_is_missing_is_refused():
    model, genuine = model_with("kl", False), proof_of("kl", False)
    rational = exact(model)
    places = [
        lambda proof: proof,
        lambda proof: proof["signals"][1],
        lambda proof: proof["bounds"][0],
        lambda proof: proof["bounds"][1],
        lambda proof: proof["bounds"][1]["kernels"][0],
        lambda proof: proof["bounds"][1]["tree"],
        lambda proof: proof["bounds"][1]["tree"]["steps"][1],
    ]
    optional = {"format", "multipliers"}  # without multipliers the smallest target is the bound
    for place in places:
        for key in set(place(genuine)) - optional:
            for other in ("missing", None, [], "text", True, 1e300):
                proof = copy.deepcopy(genuine)
                if other == "missing":
                    del place(proof)[key]
                else:
                    place(proof)[key] = other
                accepted = check(proof, rational).accepted
                harmless = (key, other) in [("feasible", None), ("upper", 1e300), ("bounds", [])]
                harmless |= (key, other) in [("value", 1e300), ("feasible", True), ("moves", [])]
                assert not accepted or harmless, (key, other)


def test_a_move_from_an_entry_to_itself_is_refused():
    """It must not add mass to the row: a kernel of more mass would lower the values of a cost."""
    proof = copy.deepcopy(proof_of("kl-by-row", False))
    for record in proof["signals"]:
        record["moves"].append([0, 1, 0, 0, 0.5])  # a row of infinite radius
    found = check(proof, exact(model_with("kl-by-row", False)))
    assert found.reason == "signal 0: the kernel is not in the set at (0, 1)"


def test_a_bound_from_boxes_of_policies_is_proved():
    model = model_with("kl", False)
    policy = hf.solve(model, iterations=60).policy
    certificate = hf.certify(model, policy, nodes=None, target=1e-3, seconds=20)
    assert certificate.proof is not None
    proof = json.loads(json.dumps(prove(certificate)))
    found = check(proof, exact(model))
    assert found.accepted, found.reason
    assert "no feasible policy given as a table" in found.statements[-1]
    assert proof["bounds"][-1]["value"] == pytest.approx(certificate.upper_bound, rel=1e-9)
    assert Oracle(model).follows(proof)


def test_the_policy_that_never_incurs_a_cost_meets_a_limit_of_zero():
    """The values of states that the policy cannot reach do not matter."""
    model = hf.RobustCMDP(
        transitions=np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.1, 0.9], [0.3, 0.7]]]),
        reward=np.array([[1e9, 2e9], [0.3, 0.1]]),
        constraints=[hf.at_most(np.array([[0.0, 1.0], [1.0, 1.0]]), 0.0)],
        initial=np.array([1.0, 0.0]),
        discount=0.9,
        uncertainty=hf.KL(0.1),
    )
    policy = np.array([[1.0, 0.0], [0.5, 0.5]])
    proof = prove(hf.certify(model, policy, bound=False))
    assert proof["feasible"] is True
    assert proof["signals"][1]["margin"] == 0.0
    assert check(proof, exact(model)).accepted


def test_that_no_policy_is_feasible_is_proved(tmp_path):
    model = model_with("kl", False)
    hopeless = model.replace(constraints=[hf.at_most(model.constraints[0].signal, 0.1)])
    certificate = hf.certify(hopeless, np.full((STATES, ACTIONS), 0.5))
    certificate.save(tmp_path / "proof.json")
    found = hf.check_proof(tmp_path / "proof.json", hopeless)
    assert found.statements[-1] == "no policy satisfies the constraints in the worst case"
    assert "a constraint is violated in the worst case" in found.statements
    easier = model.replace(constraints=[hf.at_most(model.constraints[0].signal, 20.0)])
    assert not hf.check_proof(tmp_path / "proof.json", easier).accepted


class Halfway(hf.uncertainty.UncertaintySet):
    """A user's set: (1 − radius)·p + radius·u, u on the support of p."""

    def worst_response(self, p, y):
        lowest = jnp.where(p > 0, y, jnp.inf).argmin(-1)
        radius = self.row_radius(p)[..., None]
        return (1 - radius) * p + radius * (jnp.arange(p.shape[-1]) == lowest[..., None])

    def dual_value(self, p, y):
        radius = self.row_radius(p)
        return (1 - radius) * (p * y).sum(-1) + radius * jnp.where(p > 0, y, jnp.inf).min(-1)

    def divergence(self, p, q):
        return jnp.where(p > 0, 1 - q / jnp.where(p > 0, p, 1), 0).max(-1)


def test_user_defined_sets_are_refused_in_a_sentence(tmp_path):
    model = model_with("kl", False).replace(uncertainty=Halfway(0.1))
    certificate = hf.certify(model_with("kl", False), np.full((STATES, ACTIONS), 0.5), bound=False)
    certificate = dataclasses.replace(certificate, model=model)
    with pytest.raises(ValueError, match="proof files exist for the six built-in sets"):
        certificate.save(tmp_path / "proof.json")
    assert not (tmp_path / "proof.json").exists()
    (tmp_path / "proof.json").write_text(json.dumps(proof_of("kl", False)))
    with pytest.raises(ValueError, match="the checker knows the sets kl, chi-square"):
        hf.check_proof(tmp_path / "proof.json", model)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not a proof file: Expecting property name"),
        ("[1, 2]", "its format is not 'holdfast-proof-1'"),
        ('{"format": "holdfast-proof-9"}', "its format is not 'holdfast-proof-1'"),
        ('{"format": NaN}', "its format is not 'holdfast-proof-1'"),
        ("[" * 100_000, "not a proof file"),
    ],
)
def test_a_file_that_is_no_proof_is_named(tmp_path, text, reason):
    path = tmp_path / "proof.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        hf.check_proof(path, model_with("kl", False))
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_model_is_named(tmp_path):
    proof = tmp_path / "proof.json"
    proof.write_text(json.dumps(proof_of("kl", False)))
    (tmp_path / "model.npz").write_bytes(b"PK nonsense")
    with pytest.raises(ValueError, match=r"model\.npz: not a model that can be checked"):
        hf.check_proof(proof, tmp_path / "model.npz")
    with pytest.raises(FileNotFoundError):
        hf.check_proof(proof, tmp_path / "nowhere.npz")


def test_a_proof_of_another_model_is_refused():
    proof = proof_of("kl", False)
    assert not check(proof, exact(model_with("kl", True))).accepted
    assert not check(proof, exact(hf.environments.river_swim())).accepted
    model = model_with("kl", False)
    assert not check(proof, exact(model.replace(discount=0.9001))).accepted
    assert not check(proof, exact(model.replace(uncertainty=hf.KL(0.1001)))).accepted


def test_the_checker_works_where_jax_is_not_installed(tmp_path):
    model_with("kl", True).save(tmp_path / "model.npz")
    (tmp_path / "proof.json").write_text(json.dumps(proof_of("kl", True)))
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "equinox", "scipy", "jaxtyping", "optax"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import holdfast as hf
print(hf.check_proof(sys.argv[1], sys.argv[2]).accepted)
from holdfast.cli.main import main
print(main(["check", *sys.argv[1:]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "proof.json", tmp_path / "model.npz"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.split("\n")[:-1]
    assert (first, last) == ("True", "0")


def test_the_checker_is_small_and_imports_the_standard_library_and_numpy_only():
    own = checker.__name__
    imported, lines = set(), 0
    for path in Path(checker.__file__).parent.glob("*.py"):
        text = path.read_text()
        lines += code_lines(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    assert 100 < lines <= 650
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith(own)} == {"numpy"}


def code_lines(text):
    """Number of lines with code: neither empty, nor only comments, nor part of a docstring."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout | {tokenize.ENDMARKER}:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_logarithms_and_roots_are_rounded_up():
    """A root by its square, a logarithm by that of the inverse: both are rounded up."""
    numbers = [Fraction(1, 3), Fraction(2), Fraction(10**40 + 1, 10**40), Fraction(5e-324)]
    for number in numbers:
        root = root_up(number)
        assert number < root**2 < number * (1 + Fraction(1, 10**50))
        assert log_up(number) + log_up(1 / number) > 0
        assert log_up(number) + log_up(1 / number) < Fraction(1, 10**50)
    assert log_up(Fraction(1)) == 0
    assert float(log_up(Fraction(2))) == pytest.approx(np.log(2))
