"""Small models of all sets, their proofs, and ways to corrupt a proof.

The tests and `benchmarks/corrupted_proofs.py` share them.
"""

import copy
import functools
import json

import numpy as np
from tests.tabular.certificates.proof_oracle import Oracle, small_tree

import holdfast as hf
from holdfast.tabular.certificates.checker.check_proof import check, exact
from holdfast.tabular.certificates.proof import prove

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
    steps = [step for node in tree_nodes(proof) for step in node["steps"] if step["multipliers"]]
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


def tree_nodes(proof):
    """The nodes of the tree in a proof, the root first."""
    found = [bound["tree"] for bound in proof["bounds"] if bound["method"] == "occupancies"]
    for node in found:  # grows while it is read
        found += [node[side] for side in ("below", "above") if side in node]
    return found


def change_tree(proof, rng):
    """Drop a part, a step or a multiplier, or change a division, an end, a value or the cutoff."""
    nodes = tree_nodes(proof)
    if not nodes:
        return flatter(proof, rng)
    inner = [node for node in nodes if "place" in node] or nodes
    node = inner[rng.integers(len(inner))]
    steps = [(each, i) for each in nodes for i in range(len(each["steps"]))]
    owner, i = steps[rng.integers(len(steps))]
    step, grid = owner["steps"][i], float(rng.integers(2**20)) / 2**20
    tree, way = proof["bounds"][-1], rng.integers(9)
    if way == 0:
        node.pop(["below", "above"][rng.integers(2)], None)
    elif way == 1:
        del owner["steps"][i]
    elif way == 2 and "place" in node:
        node["point"] = grid * (1 if rng.random() < 0.5 else 4)
    elif way == 3 and "below" in node and "above" in node:
        node["below"], node["above"] = node["above"], node["below"]
    elif way == 4 and "value" in step:
        step["value"] = altered(step["value"], rng)
    elif way == 5 and "slope" in step:
        step["slope"] = max(0.0, step["slope"] + float(rng.choice([-1, 1])) * grid**4)
        step["slope"] = round(step["slope"] * 2**20) / 2**20
    elif way == 6 and "place" in node:
        node["place"] = int(rng.integers(STATES * ACTIONS + STATES))
    elif way == 7:
        tree["representative"][rng.integers(STATES)] = [0, 0]
    else:
        tree["cutoff"] = altered(tree["cutoff"], rng)
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


def corrupted(case, count, seed=0):
    """Return for each corrupted proof of a model: the change, whether it is accepted, and should be.

    A change that makes a claim more flattering must be refused whatever else is true.
    """
    model, genuine = model_with(*MODELS[case]), proof_of(*MODELS[case])
    oracle, rational = Oracle(model), exact(model)
    rng = np.random.default_rng([case, seed])
    found = []
    for _ in range(count):
        proof = copy.deepcopy(genuine)
        change = CHANGES[rng.integers(len(CHANGES))]
        change(proof, rng)
        flattering = change is flatter and proof != genuine
        follows = oracle.follows(proof) and not flattering
        found.append((change.__name__, check(proof, rational).accepted, follows))
    return found
