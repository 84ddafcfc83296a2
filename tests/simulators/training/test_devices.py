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
import equinox as eqx
import jax
import holdfast as hf
from holdfast._support.devices import on_devices, over_devices, whole
from holdfast.simulators.training.learner import iterations, sample
from holdfast.simulators.train import prepare
from holdfast.environments import TableSimulator

folder = Path(sys.argv[1])
env = TableSimulator(hf.environments.n_chain(nodes=5), name="chain", horizon=5)
# Batches of 40 and 32 episodes in 4 minibatches: two devices divide each minibatch.
settings = dict(radius=0.1, limit_on="discounted", batch_size=200, evaluation_share=1.0, seeds=2,
                critic_minibatches=4, adversary={"batch_size": 160, "updates": 1})
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

# What becomes of a batch: seeds in turn, as `train` does on a CPU, and at once, as on accelerators.
run = prepare(env, "rcpo", devices=2, iterations=1, **settings)
learners = on_devices(run.first(), 2)
function = run.algorithm.function

def exchanges(text):  # kinds and shapes of what devices tell each other in a compiled program
    found = re.findall(r"= \\S*\\[([\\d,]*)\\]\\S* (all-gather|all-reduce)(?:-start)?[(]", text)
    return [(kind, [int(n) for n in sides.split(",") if n]) for sides, kind in found]

def work(learner):
    return sample(run.plan, env, learner)[1].batches, function(run.plan, env, learner)[1]["reward"]

with over_devices(2):
    in_turn = eqx.filter_jit(iterations.__wrapped__).lower(
        run.algorithm, run.plan, 1, env, learners, jax.numpy.asarray(1)
    ).compile().compiled
    at_once = jax.jit(jax.vmap(work)).lower(learners).compile()
    batches, rewards = at_once(learners)
    # A program that does bring a batch together, to show that one would be seen.
    gathering = jax.jit(whole).lower(batches.observations).compile()
found = {"again": again, "rewards": rewards.tolist(),
         "shards": [list(shard.data.shape) for shard in batches.observations.addressable_shards],
         "in_turn": exchanges(in_turn.as_text()), "at_once": exchanges(at_once.as_text()),
         "gathering": exchanges(gathering.as_text())}
try:
    hf.train(env, "rcpo", devices=3, iterations=1, **settings)
except ValueError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What the process found, and the folder of its runs."""
    folder = tmp_path_factory.mktemp("devices")
    # How programs are divided does not depend on how hard they are optimised, and that takes long.
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
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
        for name in ("reward", "costs", "likely_costs", "nominal_reward", "reward_error", "kl"):
            np.testing.assert_allclose(shared[name], alone[name], rtol=0.02, err_msg=name)
    # The first iteration, before differences of rounding have grown.
    for name in ("reward", "costs", "likely_costs", "nominal_reward", "reward_error"):
        np.testing.assert_allclose(two[0][name], one[0][name], rtol=1e-5, err_msg=name)


def test_the_batch_lies_on_both_devices(done):
    found, folder = done
    # Seeds, kernels, steps, episodes, observations: 40 episodes, 20 on each.
    assert found["shards"] == [[2, 2, 5, 20, 5]] * 2
    first = [row["reward"] for row in rows_of(folder / "one")[:2]]
    np.testing.assert_allclose(found["rewards"], first, rtol=1e-4)


def test_devices_tell_each_other_sums_and_never_a_batch(done):
    found, _ = done
    batch = 5 * 40  # steps of all episodes
    gathered = [shape for kind, shape in found["gathering"] if kind == "all-gather"]
    assert max(map(np.prod, gathered)) >= batch  # a batch that is brought together is seen
    for way in ("in_turn", "at_once"):
        assert "all-reduce" in [kind for kind, _ in found[way]]
        sizes = [np.prod(shape) for kind, shape in found[way] if kind == "all-gather"]
        assert max(sizes, default=0) < batch


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
