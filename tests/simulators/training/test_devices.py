"""Episodes divided over several devices, which a CPU simulates in a process of its own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import holdfast as hf

SCRIPT = """
import json, re, sys
from pathlib import Path
import jax
import holdfast as hf
from holdfast._support.devices import on_devices, over_devices, side_by_side
from holdfast.registry import SIMULATOR_ALGORITHMS as ALGORITHMS
from holdfast.simulators.training.learner import sample
from holdfast.simulators.train import prepare
from holdfast.environments import TableSimulator

folder = Path(sys.argv[1])
env = TableSimulator(hf.environments.n_chain(nodes=5), name="chain", horizon=5)
settings = dict(radius=0.1, limit_on="discounted", batch_size=200, evaluation_share=1.0, seeds=2,
                adversary={"batch_size": 160, "updates": 1})
compiled = []
def listen(event, seconds, **_):
    if event.endswith("backend_compile_duration"):
        compiled.append(event)

jax.monitoring.register_event_duration_secs_listener(listen)

def train(out, devices, iterations):
    compiled.clear()
    hf.train(env, "rcpo", out=folder / out, devices=devices, iterations=iterations, **settings)
    return len(compiled)

train("one", 1, 3)
train("two", 2, 2)
again = train("again", 2, 3)
train("two", 2, 3)
train("mixed", 1, 2)
train("mixed", 2, 3)

# What becomes of the batch, seeds in turn as on a CPU, and seeds at once as on accelerators.
run = prepare(env, "rcpo", devices=2, iterations=1, **settings)
learners = on_devices(run.first(), 2)

def work(learner):
    batches = sample(run.plan, env, learner)[1].batches
    return batches, ALGORITHMS["rcpo"].function(run.plan, env, learner)[1]["reward"]

def both(mapped):
    with over_devices(2):
        program = jax.jit(lambda each: mapped(work, each)).lower(learners).compile()
        batches, rewards = program(learners)
    shards = [list(shard.data.shape) for shard in batches.observations.addressable_shards]
    text = program.as_text()
    gathered = re.findall(r"= \\S*\\[([\\d,]*)\\]\\S* all-gather(?:-start)?[(]", text)
    return {"shards": shards, "rewards": rewards.tolist(),
            "all_reduces": len(re.findall(r" all-reduce(?:-start)?[(]", text)),
            "gathered": [[int(n) for n in sides.split(",") if n] for sides in gathered]}

found = {"again": again, "in_turn": both(side_by_side),
         "at_once": both(lambda function, each: jax.vmap(function)(each))}
try:
    hf.train(env, "rcpo", devices=3, iterations=1, **settings)
except ValueError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory, compiled):
    """What the process found, and the folder of its runs."""
    folder = tmp_path_factory.mktemp("devices")
    # How programs are divided does not depend on how hard they are optimised, and that takes long.
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
    }
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1]), folder


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_devices_find_what_one_does(done):
    _, folder = done
    one, two = rows_of(folder / "one"), rows_of(folder / "two")
    assert len(one) == len(two) == 6
    for alone, shared in zip(one, two, strict=True):
        for name in ("reward", "costs", "nominal_reward", "reward_error", "kl"):
            np.testing.assert_allclose(shared[name], alone[name], rtol=0.02, err_msg=name)
    # The first iteration, before differences of rounding have grown.
    for name in ("reward", "costs", "nominal_reward", "reward_error"):
        np.testing.assert_allclose(two[0][name], one[0][name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("way", ["in_turn", "at_once"])
def test_the_batch_lies_on_both_devices(done, way):
    found, folder = done
    # Seeds, kernels, steps, episodes, observations: 40 episodes, 20 on each.
    assert found[way]["shards"] == [[2, 2, 5, 20, 5]] * 2
    assert found[way]["all_reduces"] > 0
    # Nothing of the size of a batch is brought together.
    assert all(np.prod(shape) < 5 * 40 for shape in found[way]["gathered"])
    first = [row["reward"] for row in rows_of(folder / "one")[:2]]
    np.testing.assert_allclose(found[way]["rewards"], first, rtol=1e-4)


def test_a_run_goes_on_bit_for_bit_with_as_many_devices(done):
    found, folder = done
    for name in ("metrics.jsonl", "checkpoint.safetensors", "run.json"):
        assert (folder / "two" / name).read_bytes() == (folder / "again" / name).read_bytes()
    assert found["again"] == 0  # compiled by the run before


def test_a_run_goes_on_with_another_number_and_says_so(done):
    _, folder = done
    made = json.loads((folder / "mixed/run.json").read_text())["made_with"]
    assert made["devices"] == 2
    assert [(each["until_iteration"], each["devices"]) for each in made["before"]] == [(2, 1)]
    mixed, one = rows_of(folder / "mixed"), rows_of(folder / "one")
    assert mixed[:4] == one[:4]
    np.testing.assert_allclose(mixed[4]["reward"], one[4]["reward"], rtol=0.02)


def test_what_cannot_be_is_refused(done):
    found, _ = done
    assert found["refused"].startswith("devices: expected at most 2 (cpu), got 3;")
    with pytest.raises(ValueError, match=r"^devices: expected a whole number of at least 1, got 0"):
        hf.train("n-chain", devices=0)
    with pytest.raises(ValueError, match=r"^devices: .*CartPole-v1 runs outside JAX"):
        hf.train(hf.disturb("CartPole-v1", cost=lambda *_: 0.0), cost_limit=1.0, devices=2)
