"""Training from its first iteration to its last, whatever comes in between."""

import dataclasses
import json
import math
import random
import shutil
import signal
import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.environments import Discrete, Outcomes, Step, TableSimulator
from holdfast.registry import Algorithm
from holdfast.simulators import train as verb
from holdfast.simulators.train import prepare
from holdfast.simulators.training import checkpoint, runs
from holdfast.simulators.training.learner import learn, measure, sample

TINY = {"limit_on": "discounted", "batch_size": 300}
FILES = ("run.json", "metrics.jsonl", "checkpoint.safetensors")


@pytest.fixture(scope="session")
def env(chain):
    return chain


@pytest.fixture(scope="module")
def train(env):
    """Two seeds of PCPO, always the same compiled program."""

    def train(out=None, iterations=3, **changes):
        settings = {"environment": env, "algorithm": "pcpo", "seeds": 2, **TINY, **changes}
        return hf.train(out=out, iterations=iterations, **settings)

    return train


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def contents(folder):
    """Everything that does not depend on the clock."""
    names = [*FILES, *(path.name for path in folder.glob("agent-*"))]
    return {name: (folder / name).read_bytes() for name in sorted(names)}


def everything(folder):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_writes_what_it_was_and_what_it_measured(whole):
    description = json.loads((whole / "run.json").read_text())
    assert description["algorithm"] == "pcpo"
    assert description["seeds"] == [0, 1]
    assert description["settings"]["batch_size"] == 300
    assert description["environment"]["name"] == "chain"
    rows = rows_of(whole)
    assert [(row["iteration"], row["seed"]) for row in rows] == [
        (i, seed) for i in range(3) for seed in (0, 1)
    ]
    assert all(0 < row["reward"] < 200 and row["costs"][0] < 0 for row in rows)
    assert len((whole / "timings.jsonl").read_text().splitlines()) == 3


def test_the_policy_changes_and_seeds_differ(whole):
    agents = [hf.load(whole / f"agent-{seed}.safetensors") for seed in (0, 1)]
    weights = [np.asarray(agent.policy.network.weights[0]) for agent in agents]
    assert not np.array_equal(*weights)
    assert all(row["accepted"] and 0 < row["kl"] <= 0.011 for row in rows_of(whole))


def test_a_finished_run_gives_its_agents_without_any_work(whole, train, monkeypatch):
    before = everything(whole)
    monkeypatch.setattr(verb, "iterations", forbidden)
    agents = train(whole, callback=forbidden)
    assert everything(whole) == before
    for agent in agents:
        stored = hf.load(whole / f"agent-{agent.seed}.safetensors")
        assert stored.to_bytes() == agent.to_bytes()


def test_runs_that_differ_in_numbers_only_share_their_programs(env):
    compiled, policies = [], []

    def listen(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    adversary = {"batch_size": 150, "updates": 1, "learning_rate": 0.1}
    static = {"limit_on": "discounted", "batch_size": 150, "adversary": adversary}
    numbers = {"radius": 0.1, "trust_region": 0.01, "cost_limit": -4.0, **static}

    def one(**numbers):
        agent = hf.train(env, iterations=1, **numbers)
        policies.append(np.asarray(agent.policy.network.weights[0]))

    one(**numbers)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        # Every number reaches the program: each changes the policy, and none is compiled into it.
        for change in ({"radius": 1e-4}, {"trust_region": 0.02}, {"cost_limit": -40.0}):
            one(**{**numbers, **change})
        hf.train(env, iterations=2, seed=5, **numbers)
        assert not compiled
        jax.jit(lambda x: 5 * x - 3)(0.5)
        assert compiled  # the listener hears
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert [np.array_equal(each, policies[0]) for each in policies] == [True, False, False, False]


def forbidden(*arguments):
    raise AssertionError("nothing was to be done")


def test_more_iterations_carry_a_run_further(whole, copy, train, tmp_path):
    straight = tmp_path / "straight"
    told = []
    train(straight, 5)
    train(copy, 5, callback=told.extend)
    assert contents(copy) == contents(straight)
    assert [row["iteration"] for row in told] == [3, 3, 4, 4]
    assert told == rows_of(copy)[6:]
    with pytest.raises(ValueError, match=r"^iterations: .*/run contains a run of 5, more than 3"):
        train(copy, 3)
    assert contents(copy) == contents(straight)


def test_a_seed_is_the_same_alone_and_among_others(whole, train, env):
    alone = hf.train(env, "pcpo", seed=1, iterations=3, **TINY)
    assert alone.to_bytes() == (whole / "agent-1.safetensors").read_bytes()
    chosen = train(iterations=3, seeds=[7, 1])
    assert [agent.seed for agent in chosen] == [7, 1]
    assert chosen[1].to_bytes() == alone.to_bytes()


class Killed(BaseException):
    """Stands for the end of the process."""


def crash_points():
    """Every place in which a process may die, as (name, how it is brought about)."""

    def instead(module, name, *, nth, partly=None):
        def arm(monkeypatch):
            real, calls = getattr(module, name), []

            def wrapped(*arguments, **settings):
                calls.append(1)
                if len(calls) == nth:
                    if partly is not None:
                        partly(*arguments)
                    raise Killed
                return real(*arguments, **settings)

            monkeypatch.setattr(module, name, wrapped)

        return arm

    def half_a_line(path, rows):
        with path.open("a") as file:
            file.write('{"iteration": ')

    def all_but_the_end(path, rows):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        with path.open("a") as file:
            file.write(text[:-20])

    def half_a_file(path, *_):
        (path.parent / f".{path.name}.killed.unfinished").write_bytes(b"half")

    return {
        "before run.json": instead(runs, "write_description", nth=1),
        "before the first checkpoint": instead(checkpoint, "save", nth=1),
        "in the first checkpoint": instead(checkpoint, "save", nth=1, partly=half_a_file),
        "before the first row": instead(runs, "append_lines", nth=1),
        "between timings and metrics": instead(runs, "append_lines", nth=4),
        "in a row": instead(runs, "append_lines", nth=4, partly=half_a_line),
        "in the second of two rows": instead(runs, "append_lines", nth=4, partly=all_but_the_end),
        "between rows and checkpoint": instead(checkpoint, "save", nth=3),
        "before the first agent": instead(runs, "write_bytes", nth=1),
        "between two agents": instead(runs, "write_bytes", nth=2),
        "in an agent": instead(runs, "write_bytes", nth=2, partly=half_a_file),
    }


@pytest.mark.parametrize("point", crash_points())
def test_a_kill_at_any_point_loses_and_repeats_nothing(point, train, whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as armed:
        crash_points()[point](armed)
        with pytest.raises(Killed):
            train(folder)
    train(folder)
    assert contents(folder) == contents(whole)
    assert not list(folder.glob(".*"))
    assert len((folder / "timings.jsonl").read_text().splitlines()) == 3


def test_an_interrupt_leaves_a_run_that_goes_on(train, whole, tmp_path):
    def stop(rows):
        if rows[0]["iteration"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", callback=stop)
    with pytest.raises(ValueError, match=r"run: not finished, 2 of 3 iterations"):
        hf.load(tmp_path / "run")
    train(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole)


def test_agents_of_a_shorter_run_are_not_taken_for_those_of_the_longer(copy, train):
    def stop(rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(copy, 5, callback=stop)
    with pytest.raises(ValueError, match="not finished, 4 of 5"):
        runs.agent_files(copy)


SCRIPT = f"""
import sys
import jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
import holdfast as hf
from holdfast.environments import TableSimulator
env = TableSimulator(hf.environments.n_chain(nodes=5), name="chain", horizon=15)
hf.train(env, "pcpo", seeds=2, iterations=60, out=sys.argv[1], **{TINY})
"""


@pytest.mark.long
def test_a_run_that_is_killed_again_and_again_equals_one_that_was_not(train, tmp_path):
    def start(folder):
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])

    def lines(folder):
        path = folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, 60)
    delay = random.Random(time.time_ns())
    for kill in range(2):
        process = start(broken)
        before = lines(broken)
        while process.poll() is None and lines(broken) <= max(before, 2) + 10 * kill:
            time.sleep(0.001)
        time.sleep(delay.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
        assert lines(broken) < 120
    assert start(broken).wait() == 0
    assert contents(broken) == contents(whole)
    assert len(contents(whole)) == 5


def test_a_folder_with_another_run_is_refused_by_what_differs(copy, train, env):
    before = everything(copy)
    changed = eqx.tree_at(lambda e: e.reward, env, 2 * env.reward)
    other = TableSimulator(hf.environments.n_chain(nodes=5, bonus=3.0), name="chain", horizon=15)
    for changes, named in [
        ({"batch_size": 301}, "settings.batch_size 300, not 301"),
        ({"trust_region": 0.5}, "settings.trust_region 0.01, not 0.5"),
        ({"weighting": "discounted"}, 'settings.weighting "steps", not "discounted"'),
        ({"adversary": {"updates": 9}}, "settings.adversary.updates 2, not 9"),
        ({"cost_limit": 1}, r"limits \[-6.0\], not \[1.0\]"),
        ({"algorithm": "cpo"}, 'algorithm "pcpo", not "cpo"'),
        ({"seeds": 3}, r"seeds \[0, 1\], not \[0, 1, 2\]"),
        ({"environment": other}, "environment.sha256"),
        ({"environment": "n-chain"}, "environment.horizon 15, not 90|environment.cost"),
    ]:
        with pytest.raises(ValueError, match=f"/run: contains a run with {named}"):
            train(copy, **changes)
        assert everything(copy) == before
    assert changed.description() == env.description()  # not seen, and said so in the documentation


def test_a_run_without_a_weighting_has_the_older_one(copy, train):
    description = json.loads((copy / "run.json").read_text())
    same = {**description["settings"], "weighting": "discounted"}
    del description["settings"]["weighting"]
    runs.write_description(copy, description)
    with pytest.raises(ValueError, match=r'settings\.weighting "discounted", not "steps"'):
        train(copy)
    newer = {**description, "settings": same}
    runs.check_same(copy, newer)
    assert runs.fingerprint(newer) == runs.fingerprint(description)


def test_the_same_settings_in_other_types_are_the_same_run(copy, train):
    before = everything(copy)
    train(
        copy,
        np.int64(3),
        batch_size=np.int32(300),
        hidden=[64, 32],
        cost_limit=None,
        radius=0,
        adversary=hf.AdversarySettings(),
        seeds=np.int64(2),
    )
    assert everything(copy) == before


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "run.json", "metrics.jsonl"])
def test_a_damaged_file_is_refused_with_its_path_and_left_alone(name, copy, train):
    path = copy / name
    data = path.read_bytes()
    middle = len(data) // 2
    broken = {
        "truncated": data[:middle],
        "foreign": b"something else\n",
        "flipped": data[:40] + bytes([data[40] ^ 0x10]) + data[41:],
    }
    if name == "checkpoint.safetensors":
        broken["flipped in the data"] = data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
    if name == "metrics.jsonl":
        broken.pop("flipped")  # a digit may become another
    for how, bad in broken.items():
        path.write_bytes(bad)
        before = everything(copy)
        with pytest.raises(ValueError, match=f"{path}|/run: contains a run with"):
            train(copy, 5)
        assert everything(copy) == before, how


def test_checkpoints_of_other_runs_or_none_are_refused(copy, train, tmp_path):
    train(tmp_path / "other", 3, trust_region=0.02)
    mine = (copy / "checkpoint.safetensors").read_bytes()
    shutil.copy(tmp_path / "other" / "checkpoint.safetensors", copy)
    with pytest.raises(ValueError, match=r"checkpoint.safetensors: belongs to another run"):
        train(copy)
    shutil.copy(copy / "agent-0.safetensors", copy / "checkpoint.safetensors")
    with pytest.raises(ValueError, match=r"checkpoint.safetensors: contains one agent"):
        train(copy)
    (copy / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match=r"checkpoint.safetensors: is missing"):
        train(copy)
    (copy / "checkpoint.safetensors").write_bytes(mine)
    (copy / "run.json").unlink()
    with pytest.raises(ValueError, match=r"/run: contains metrics.jsonl but no run.json"):
        train(copy)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"^out: .*file is not a folder"):
        train(tmp_path / "file")


def test_a_damaged_agent_is_made_again_from_the_checkpoint(copy, whole, train):
    (copy / "agent-0.safetensors").write_bytes(b"gone")
    (copy / "agent-1.safetensors").unlink()
    train(copy)
    assert contents(copy) == contents(whole)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_stop_training_and_the_checkpoint_stands(
    value, copy, whole, train, env
):
    # The digest does not see it, so that it is the same run on a simulator that has gone bad.
    bad = eqx.tree_at(lambda e: e.reward, env, env.reward.at[3].set(value))
    with pytest.raises(hf.TrainingError) as stopped:
        train(copy, 5, environment=bad)
    message = str(stopped.value)
    assert "chain returned a value that is not finite at step " in message
    assert "in iteration 3 of seed 0" in message
    assert f"the checkpoint of iteration 3 in {copy} stays valid" in message
    assert (copy / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    same = "checkpoint.safetensors"
    assert (copy / same).read_bytes() == (whole / same).read_bytes()
    assert len(train(copy, 5)) == 2
    with pytest.raises(hf.TrainingError, match=r"in iteration 0 of seed 0$"):
        train(environment=bad)


def test_training_that_diverges_by_itself_is_stopped_too(train, tmp_path, monkeypatch):
    real = verb.iterations

    def spoiled(*arguments):
        learners, metrics = real(*arguments)
        nan = learners.inner.tightening * jnp.nan
        return eqx.tree_at(lambda x: x.inner.tightening, learners, nan), metrics

    monkeypatch.setattr(verb, "iterations", spoiled)
    with pytest.raises(hf.TrainingError, match=r"chain diverged: inner\.tightening is not finite"):
        train(tmp_path / "run")
    assert runs.read_lines(tmp_path / "run/metrics.jsonl") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithm": "ppo"}, "algorithm: there is no 'ppo'; did you mean pcpo"),
        ({"environment": "atari"}, "environment: there is no 'atari'"),
        ({"radius": 0.1}, "radius: pcpo uses the nominal kernel"),
        ({"radius": -1.0}, "radius: expected a finite number"),
        ({"radius": math.nan}, "radius: expected a finite number"),
        ({"cost_limit": [1, 2]}, r"cost_limit: chain has 1 cost\(s\) \(minus utility\), got 2"),
        ({"cost_limit": math.inf}, "cost_limit: expected finite numbers"),
        ({"iterations": 0}, "iterations: expected a whole number of at least 1"),
        ({"iterations": 2, "steps": 600}, "steps: give either steps or iterations"),
        ({"batchsize": 3}, "batchsize: not a training setting"),
        ({"adversary": {"update": 3}}, "update: not a training setting"),
        ({"adversary": 3}, "adversary: expected AdversarySettings or a mapping, got 3"),
        ({"limit_on": "week"}, "limit_on: expected one of episode, discounted"),
        ({"weighting": "days"}, "weighting: expected one of steps, discounted, got 'days'"),
        ({"seeds": 0}, "seeds: expected a whole number of at least 1"),
        ({"seeds": []}, "seeds: expected at least one, all different"),
        ({"seeds": [1, 1]}, "seeds: expected at least one, all different"),
        ({"seeds": "12"}, "seeds: expected a whole number or a list"),
        ({"seeds": 1.5}, "seeds: expected a whole number or a list"),
        ({"seeds": [2**32]}, r"seed: expected a whole number under 2\*\*32"),
        ({"seeds": None, "seed": -1}, "seed: expected a whole number of at least 0"),
        ({"seeds": 2, "seed": 3}, "seed: give either seed or seeds"),
    ],
)
def test_arguments_that_cannot_be_used_are_named_before_any_work(arguments, message, env, tmp_path):
    given = {"environment": env, "algorithm": "pcpo", "seeds": 2, **TINY, **arguments}
    with pytest.raises(ValueError, match=f"^{message}"):
        hf.train(**given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_no_environment_is_a_type_error():
    with pytest.raises(TypeError, match="environment: expected a name, a RobustCMDP, an Env"):
        hf.train(3)


def test_steps_are_iterations_of_a_batch(env):
    run = prepare(env, "pcpo", steps=1000, **TINY)
    assert run.settings.iterations == 4


class Coin(hf.environments.Environment):
    """A user's own simulator; `flaw` says what is wrong with it."""

    name = "coin"
    horizon = 3
    observation_size = 1
    feature_size = 1
    action_space = Discrete(2)
    disturbance = Outcomes(2)
    cost_names = ("tails",)
    cost_limits = (1.0,)
    discount = 0.9
    flaw: str = eqx.field(static=True, default="")

    def reset(self, key):
        del key
        return jnp.zeros(()), jnp.zeros(2 if self.flaw == "reset" else 1)

    def step(self, state, action, disturbance):
        costs = disturbance.astype(jnp.float32)
        return Step(
            state=jnp.array(1) if self.flaw == "state" else state + 1.0,
            observation=state[None],
            reward=action.astype(jnp.float32),
            costs=costs if self.flaw == "costs" else costs[None],
            terminated=jnp.array(0 if self.flaw == "terminated" else False),
        )

    def features(self, state):
        return state if self.flaw == "features" else state[None]

    def outcome_probabilities(self, state, action):
        del state, action
        return jnp.full(3 if self.flaw == "outcomes" else 2, 0.5)

    def description(self):
        more = {"array": np.zeros(2)} if self.flaw == "description" else {}
        return super().description() | more


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("reset", r"coin: reset gives an observation of shape \(2,\), expected \(1,\)"),
        ("features", r"coin: features of shape \(\), expected \(1,\)"),
        ("costs", r"coin: step gives costs of shape \(\), expected \(1,\)"),
        ("state", r"coin: step changes the form of the state, from the state float32\[\] to"),
        ("terminated", "coin: terminated is int32, expected bool"),
        ("outcomes", r"coin: outcome_probabilities of shape \(3,\), expected \(2,\)"),
        ("description", "the description of coin cannot be written as JSON"),
    ],
)
def test_a_simulator_that_breaks_the_protocol_is_refused_before_any_work(flaw, message):
    with pytest.raises(ValueError, match=f"^environment: {message}"):
        prepare(Coin(flaw=flaw), "rcpo", radius=0.1)
    prepare(Coin(), "rcpo", radius=0.1)


# --- an algorithm of one's own


@dataclasses.dataclass(frozen=True)
class ShiftSettings:
    size: float = 0.1


def shift(plan, env, learner):
    """Adds its setting to every parameter of the policy."""
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    policy = jax.tree.map(lambda leaf: leaf + plan.algorithm_settings.size, learner.policy)
    return learn(plan, learner, samples, policy, jnp.array(False)), metrics


SHIFT = Algorithm("shift", shift, settings=ShiftSettings, robust=False)


def test_an_algorithm_of_ones_own_gets_its_settings_and_its_agent_can_be_loaded(
    train, env, tmp_path
):
    folder = tmp_path / "run"
    own = {"algorithm": SHIFT, "algorithm_settings": {"size": 0.5}, "iterations": 2}
    agents = train(folder, **own)
    first = prepare(env, SHIFT, seeds=2, **TINY).first().policy.network.weights[0]
    moved = [np.asarray(agent.policy.network.weights[0]) for agent in agents]
    np.testing.assert_allclose(np.stack(moved), first + 2 * 0.5, rtol=1e-5)
    assert json.loads((folder / "run.json").read_text())["algorithm_settings"] == {"size": 0.5}
    with pytest.raises(ValueError, match=r"/run: contains a run with algorithm_settings.size 0.5"):
        train(folder, **{**own, "algorithm_settings": ShiftSettings(0.25)})
    # The name is not registered, and an agent does not need it.
    loaded = hf.load(folder / "agent-1.safetensors")
    assert loaded.algorithm == "shift"
    np.testing.assert_array_equal(loaded.predict(np.eye(5)), agents[1].predict(np.eye(5)))


def test_a_function_is_an_algorithm_without_settings(train):
    seen = []

    def still(plan, env, learner):
        seen.append((plan.algorithm_settings, plan.robust, plan.constrained))
        learner, samples = sample(plan, env, learner)
        return learner, measure(plan, env, learner, samples)[1]

    (agent, _) = train(algorithm=still, iterations=1)
    assert agent.algorithm == "still"
    assert set(seen) == {(None, True, True)}
    with pytest.raises(ValueError, match="algorithm_settings: 'still' has no settings, got"):
        train(algorithm=still, algorithm_settings={"size": 1.0})
    with pytest.raises(ValueError, match="'shift' has no 'sise'; did you mean size"):
        train(algorithm=SHIFT, algorithm_settings={"sise": 1.0})
    with pytest.raises(ValueError, match="algorithm: expected a name, an Algorithm or a function"):
        train(algorithm=3)


# --- TensorBoard


def test_tensorboard_has_every_step_once_after_a_resume(train, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    def stop(rows):
        if rows[0]["iteration"] == 1:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(folder, callback=stop)
    train(folder)
    for seed in (0, 1):
        (file,) = (folder / "tensorboard" / f"seed-{seed}").iterdir()
        events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
        shown = [(event.step, value) for event in events for value in event.summary.value]
        rewards = [step for step, value in shown if value.tag == "nominal/reward"]
        assert rewards == [0, 1, 2]
        tags = {value.tag: float(make_ndarray(value.tensor)) for step, value in shown if step == 2}
        (row,) = [r for r in rows_of(folder) if (r["iteration"], r["seed"]) == (2, seed)]
        assert tags["nominal/reward"] == pytest.approx(row["reward"])
        assert tags["margin/minus_utility"] == pytest.approx(-6.0 - row["costs"][0])
        assert tags["update/kl"] == pytest.approx(row["kl"])


def test_without_tensorboard_training_goes_its_way(train, whole, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    train(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole)
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_tensorboard_that_fails_stops_nothing(train, whole, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.summary.writer import event_file_writer

    real, calls = event_file_writer.EventFileWriter.flush, []

    def broken(writer):
        calls.append(writer)
        if len(calls) > 4:
            raise OSError("no space left on device")
        real(writer)

    monkeypatch.setattr(event_file_writer.EventFileWriter, "flush", broken)
    with pytest.warns(UserWarning, match="TensorBoard receives no more events: no space left"):
        train(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole)
