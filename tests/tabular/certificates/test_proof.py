"""Proof files: genuine ones are accepted, corrupted ones are decided as a second computation decides."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests.tabular.certificates.proof_oracle import Oracle, small_tree

import holdfast as hf
from holdfast.tabular.certificates import checker
from holdfast.tabular.certificates.checker.check_proof import check, exact
from holdfast.tabular.certificates.checker.sets import log_up, root_up
from holdfast.tabular.certificates.proof import prove

CAMPAIGN = bool(os.environ.get("HOLDFAST_CAMPAIGN"))
# Corrupted files in all; they are shared out among the models below.
CORRUPTIONS = 10_000 if CAMPAIGN else 160
STATES, ACTIONS = 3, 2
LINE = np.abs(np.subtract.outer(np.arange(STATES), np.arange(STATES))).astype(float)

SETS = {
    "kl": lambda p: hf.KL(0.1),
    "kl-by-row": lambda p: hf.KL([[0.0, np.inf], [0.3, 5.0], [1e-9, 0.02]]),
    "chi-square": lambda p: hf.ChiSquare(0.2),
    "chi-square-by-row": lambda p: hf.ChiSquare([[0.0, np.inf], [0.3, 50.0], [1e-9, 0.02]]),
    "total-variation": lambda p: hf.TotalVariation(0.1),
    "total-variation-within": lambda p: hf.TotalVariation(0.1, within_support=True),
    "contamination": lambda p: hf.Contamination(0.1),
    "contamination-within": lambda p: hf.Contamination(2.0, within_support=True),
    "wasserstein": lambda p: hf.Wasserstein([[0.0, np.inf], [0.2, 0.1], [0.5, 0.3]], metric=LINE),
    "interval": lambda p: hf.Interval(p * 0.7, np.minimum(1, p * 1.2 + 0.05)),
    "interval-closed": lambda p: hf.Interval(p, p, radius=np.inf),
}
MODELS = [(name, lists) for name in SETS for lists in (False, True)]


@functools.cache
def model_with(name, lists, seed=3):
    """A random model whose constraint binds for some policies and can be met by others."""
    rng = np.random.default_rng(seed)
    shape = STATES, ACTIONS
    kernel = rng.dirichlet(np.ones(STATES), shape)
    if lists:
        kernel = hf.Kernel(rng.integers(0, STATES, (*shape, 2)), rng.dirichlet(np.ones(2), shape))
    p = kernel.probabilities if lists else kernel
    uncertainty = SETS[name](p)
    anywhere = not uncertainty.fits_lists
    return hf.RobustCMDP(
        transitions=kernel,
        reward=rng.random(shape if lists and anywhere else p.shape),
        constraints=[hf.at_most(rng.random(shape), 6.0, name="wear")],
        initial=rng.dirichlet(np.ones(STATES)),
        discount=0.9,
        uncertainty=uncertainty,
    )


@functools.cache
def proof_of(name, lists):
    """Return a proof file's content, with a small tree beside the Lagrangian bound."""
    model = model_with(name, lists)
    policy = np.random.default_rng(0).dirichlet(np.ones(ACTIONS), STATES)
    certificate = hf.certify(model, policy)
    proof = json.loads(json.dumps(prove(certificate)))
    if proof["bounds"][0]["method"] == "lagrangian":
        kernels = [signal["moves"] for signal in proof["signals"]]
        # The higher cutoff closes some nodes as empty.
        cutoff = certificate.reward + (0.3 if lists else -0.1) * abs(certificate.reward)
        proof["bounds"].append(small_tree(Oracle(model), kernels, cutoff))
    return proof


@pytest.mark.parametrize(("name", "lists"), MODELS)
def test_genuine_proofs_are_accepted(name, lists):
    model, proof = model_with(name, lists), proof_of(name, lists)
    found = check(proof, exact(model))
    assert found.accepted, found.reason
    assert Oracle(model).follows(proof)
    for signal in proof["signals"]:
        assert signal["upper"] - signal["lower"] <= 1e-9 * max(1, abs(signal["lower"]))
    assert proof["bounds"]


SMALL = ["river-swim", "machine-replacement", "garnet"]


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


def altered(value, rng):
    """Return a number changed by a relative 1e-9 to 10, in either direction."""
    size = 10.0 ** rng.uniform(-9, 1) * max(abs(value), 1e-3)
    return float(value + rng.choice([-1.0, 1.0]) * size)


def flatter(proof, rng):
    """Make one claim more flattering by a relative 1e-6 or more."""
    gain = 10.0 ** rng.uniform(-6, 0)
    signal = proof["signals"][rng.integers(len(proof["signals"]))]
    bound = proof["bounds"][rng.integers(len(proof["bounds"]))]
    choices = [(signal, "lower", 1), (signal, "upper", -1)]
    choices += [(signal, "margin", 1)] if "margin" in signal else []
    choices += [(bound, "value", -1)] if "value" in bound else []
    record, name, sign = choices[rng.integers(len(choices))]
    record[name] = record[name] + sign * gain * max(abs(record[name]), 1e-3)


def change_feasible(proof, rng):
    others = [each for each in (True, False, None) if each is not proof["feasible"]]
    proof["feasible"] = others[rng.integers(2)]


def change_kernel(proof, rng):
    """Change, add, redirect or drop a move of probability."""
    records = [*proof["signals"], *(b for b in proof["bounds"] if "moves" in b)]
    records += [k for b in proof["bounds"] for k in b.get("kernels", [])]
    moves = records[rng.integers(len(records))]["moves"]
    way = rng.integers(4) if moves else 0
    place = int(rng.integers(max(1, len(moves))))
    if way == 0:
        entry = [rng.integers(STATES), rng.integers(ACTIONS), rng.integers(4), rng.integers(4)]
        moves.append([*map(int, entry), float(10.0 ** rng.uniform(-12, 0))])
    elif way == 1:
        moves[place] = [*moves[place][:4], altered(moves[place][4], rng)]
    elif way == 2:
        moves[place] = [*moves[place][:3], int(rng.integers(3)), moves[place][4]]
    else:
        del moves[place]


def change_multiplier(proof, rng):
    tables = [s["multipliers"] for s in proof["signals"] if s["multipliers"]]
    steps = [step for b in proof["bounds"] for step in b.get("steps", []) if step["multipliers"]]
    weights = [b["weights"] for b in proof["bounds"] if b.get("weights")]
    row = [*(row for table in tables for row in table), *weights]
    row += [step["multipliers"] for step in steps]
    chosen = row[rng.integers(len(row))]
    place = rng.integers(len(chosen))
    chosen[place] = None if chosen[place] is None else altered(chosen[place], rng)


def change_vector(proof, rng):
    rows = [s[name] for s in proof["signals"] for name in ("lower_values", "upper_values")]
    rows += [bound["values"] for bound in proof["bounds"] if "values" in bound]
    row = rows[rng.integers(len(rows))]
    place = rng.integers(len(row))
    row[place] = altered(row[place], rng)


def change_policy(proof, rng):
    row = proof["policy"][rng.integers(STATES)]
    shift = float(10.0 ** rng.uniform(-9, 0) * rng.choice([-1, 1]))
    row[0], row[1] = row[0] + shift, row[1] - shift


def change_tree(proof, rng):
    """Drop a leaf or a step, or change a division, a value, the cutoff or the bound."""
    trees = [bound for bound in proof["bounds"] if bound["method"] == "occupancies"]
    if not trees or not trees[0]["nodes"]:
        return flatter(proof, rng)
    tree, way = trees[0], rng.integers(7)
    node = tree["nodes"][rng.integers(len(tree["nodes"]))]
    step = tree["steps"][rng.integers(len(tree["steps"]))]
    if way == 0:
        del tree["nodes"][-1]
        tree["steps"] = [s for s in tree["steps"] if s["node"] <= len(tree["nodes"])]
    elif way == 1:
        tree["steps"].remove(step)
    elif way == 2:
        node["point"] = float(rng.integers(2**20)) / 2**20
    elif way == 3:
        node["above"] = not node["above"]
    elif way == 4 and step["value"] is not None:
        step["value"] = altered(step["value"], rng)
    elif way == 5:
        tree["cutoff"] = altered(tree["cutoff"], rng)
    else:
        tree["representative"][rng.integers(STATES)] = [0, 0]
    return None


CHANGES = [
    flatter,
    change_feasible,
    change_kernel,
    change_multiplier,
    change_vector,
    change_policy,
    change_tree,
]


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "lists"), MODELS)
def test_corrupted_proofs_are_decided_as_by_a_second_computation(name, lists):
    model, genuine = model_with(name, lists), proof_of(name, lists)
    oracle, rational = Oracle(model), exact(model)
    seed = MODELS.index((name, lists))
    rng = np.random.default_rng(seed)
    refused = 0
    count = -(-CORRUPTIONS // len(MODELS))
    for _ in range(count):
        proof = copy.deepcopy(genuine)
        change = CHANGES[rng.integers(len(CHANGES))]
        change(proof, rng)
        found = check(proof, rational)
        assert found.accepted == oracle.follows(proof), (change.__name__, found)
        if change is flatter and proof != genuine:
            assert not found.accepted, found
        refused += not found.accepted
    assert refused >= count // 3


def test_what_is_missing_is_refused():
    model, genuine = model_with("kl", False), proof_of("kl", False)
    rational = exact(model)
    places = [
        lambda proof: proof,
        lambda proof: proof["signals"][1],
        lambda proof: proof["bounds"][0],
        lambda proof: proof["bounds"][1],
        lambda proof: proof["bounds"][1]["kernels"][0],
        lambda proof: proof["bounds"][1]["nodes"][0],
        lambda proof: proof["bounds"][1]["steps"][0],
    ]
    optional = {"format", "multipliers"}  # without multipliers the smallest target is the bound
    for place in places:
        for key in set(place(genuine)) - optional:
            for other in ("missing", None, [], "text", True, {}, [[]], 1e300):
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
    assert found.reason == "signal 0: the kernel is not in the set at state 0, action 1"


def test_a_bound_from_boxes_of_policies_is_proved():
    model = model_with("kl", False)
    policy = hf.solve(model, iterations=60).policy
    certificate = hf.certify(model, policy, nodes=None, target=1e-3, seconds=20)
    assert certificate.proof is not None
    proof = json.loads(json.dumps(prove(certificate)))
    found = check(proof, exact(model))
    assert found.accepted, found.reason
    assert "no feasible stationary policy" in found.statements[-1]
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
        ('{"format": NaN}', "NaN is not JSON"),
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


def test_the_checker_imports_the_standard_library_and_numpy_only():
    own = checker.__name__
    imported = set()
    for path in Path(checker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith(own)} == {"numpy"}


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
