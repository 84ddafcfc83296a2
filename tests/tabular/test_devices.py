"""States divided over several devices, which a CPU simulates in a process of its own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import holdfast as hf

SCRIPT = """
import json, re
import equinox as eqx
import jax, jax.numpy as jnp
import numpy as np
import holdfast as hf
from holdfast._support.devices import over_devices, whole
from holdfast.model.table import layout_of
from holdfast.tabular.evaluation import certified, columns, sparse

rng, states = np.random.default_rng(0), 1100
successors = rng.integers(0, states, (states, 2, 4))
successors[::3, :, 1] = successors[::3, :, 0]
model = hf.RobustCMDP(
    transitions=hf.Kernel(successors, rng.dirichlet(np.ones(4), (states, 2))),
    reward=rng.random((states, 2)),
    constraints=[hf.at_most(rng.random((states, 2)), 9.8)],
    discount=0.95,
    uncertainty=hf.KL(rng.choice([0.01, 0.1, 2.0], (states, 2))),
)
policy = rng.dirichlet(np.ones(2), states)
found = {}

def shown(evaluation):
    signals = (evaluation.reward, *evaluation.constraints)
    numbers = [[s.worst, s.nominal, s.error] for s in signals]
    names = ("values", "advantages", "occupancy")
    arrays = [getattr(s, name).ravel().tolist() for s in signals for name in names]
    return {"numbers": numbers, "arrays": arrays,
            "kernel": evaluation.reward.kernel.probabilities.ravel().tolist()}

def exchanged(compiled):  # kinds and shapes of what devices tell each other in a program
    kinds = "all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute"
    lines = re.findall(rf"= (.*?) ({kinds})(?:-start)?[(]", compiled.as_text())
    return [[kind, [int(n) for n in sides.split(",") if n]]
            for shapes, kind in lines for sides in re.findall(r"\\w+\\[([\\d,]*)\\]", shapes)]

for count in (1, 2):
    found[str(count)] = shown(hf.evaluate(model, policy, devices=count))

solution = hf.solve(model, "rcpo", iterations=1, initial_policy=policy, devices=2)
alone = [hf.evaluate(model, each) for each in (policy, solution.policy)]
found["solved"] = {"history": solution.history["reward"].tolist(),
                   "margins": solution.history["margins"][:, 0].tolist(),
                   "alone": [each.reward.worst for each in alone],
                   "margins_alone": [each.constraints[0].margin for each in alone]}

with jax.enable_x64(True), over_devices(2):
    layout = layout_of(model)
    one, padded = layout.table.only(0), layout.pad_policy(policy)
    quick = sparse._quick(one, padded, 1e-10)
    search = eqx.filter_jit(columns.quick_values).lower(one, padded, 1e-10).compile().compiled
    proof = eqx.filter_jit(lambda *a: certified.error_of(*a)).lower(
        one, padded, quick.values, quick.multipliers).compile().compiled
    gathering = jax.jit(whole).lower(one.probabilities).compile()
    big = {"probabilities": one.probabilities, "successors": one.successors, "signal": one.signals,
           "radius": one.uncertainty.radius, "policy": padded, "multipliers": quick.multipliers}
    found["shards"] = {name: [[list(array.shape)] + [
        [str(s.device), list(s.data.shape)] for s in array.addressable_shards]]
        for name, array in big.items()}
    found["search"], found["proof"] = exchanged(search), exchanged(proof)
    found["gathering"] = exchanged(gathering)

def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)

found["refused"] = [
    refused(lambda: hf.evaluate(model, policy, devices=3)),
    refused(lambda: hf.evaluate("gambler", np.zeros(17, int), devices=2)),
    refused(lambda: hf.solve("gambler", devices=2)),
]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def done():
    """What the process found."""
    # How programs are divided does not depend on how hard they are optimised, and that takes long.
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
    }
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_two_devices_find_what_one_does(done):
    one, two = done["1"], done["2"]
    for alone, divided in zip(one["numbers"], two["numbers"], strict=True):
        assert divided[0] == pytest.approx(alone[0], abs=alone[2] + divided[2])
        assert divided[1] == pytest.approx(alone[1], abs=1e-9)
        assert divided[2] < 1e-8
    assert len(one["arrays"]) == 6
    arrays = zip(one["arrays"], two["arrays"], strict=True)
    for alone, divided in (*arrays, (one["kernel"], two["kernel"])):
        np.testing.assert_allclose(divided, alone, atol=1e-7)


def test_an_iteration_on_two_devices_has_the_values_of_one(done):
    solved = done["solved"]
    np.testing.assert_allclose(solved["history"], solved["alone"], atol=1e-7)
    np.testing.assert_allclose(solved["margins"], solved["margins_alone"], atol=1e-7)
    assert solved["history"][1] > solved["history"][0] + 1e-3


def test_every_device_has_its_own_states(done):
    assert len(done["shards"]) == 6
    for name, (described,) in done["shards"].items():
        shape, *shards = described
        assert len({device for device, _ in shards}) == 2, name
        axis = 1 if name == "signal" else 0
        assert shape[axis] == 1280  # two times 128 states, at least 1,100
        for _, part in shards:
            assert part[axis] == 640, name
            assert np.prod(part) == np.prod(shape) / 2, name


def test_devices_exchange_values_of_states_and_nothing_larger(done):
    gathered = [np.prod(shape) for kind, shape in done["gathering"] if kind == "all-gather"]
    lists = done["shards"]["probabilities"][0][0]
    assert max(gathered) == np.prod(lists)  # lists that are brought together are seen
    assert ["all-gather", [1280]] in done["search"]  # V, once a sweep
    assert "all-reduce" in [kind for kind, _ in done["proof"]]
    assert max(np.prod(shape) for _, shape in done["search"]) == 1280
    assert max(np.prod(shape) for _, shape in done["proof"]) <= 1280


def test_what_cannot_be_divided_is_refused(done):
    assert done["refused"][0].startswith("devices: expected at most 2 (cpu), got 3;")
    for message in done["refused"][1:]:
        assert message.startswith("devices: only models without a horizon, of successor lists")
    with pytest.raises(ValueError, match=r"^devices: expected a whole number of at least 1, got 0"):
        hf.evaluate("gambler", np.zeros(17, int), devices=0)
