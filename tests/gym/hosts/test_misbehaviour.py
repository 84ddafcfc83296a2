"""Environments that break their interface or never return: a sentence in every host, and no process."""

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import holdfast as hf
from holdfast.gym.costs import Costs
from holdfast.gym.hosts.checks import ProtocolError, check_observation
from holdfast.gym.hosts.pools import AsyncHost, HostError, SyncHost
from holdfast.gym.hosts.watching import Deadline, HangError, WatchedThread
from holdfast.gym.hosts.wrapper import DisturbedEnv

from .test_pools import is_running

FREE = Costs.resolve({})


class Odd(gymnasium.Env):
    """Well-behaved, unless its seed is 7."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, found=None, first=None):
        self.found, self.first, self.odd = found, first, False

    def reset(self, *, seed=None, options=None):
        self.odd = seed == 7
        observation = np.zeros(3, np.float32)
        return (observation, {}) if self.first is None or not self.odd else self.first

    def step(self, action):
        found = [np.zeros(3, np.float32), 1.0, False, False, {}]
        if self.odd and callable(self.found):
            return self.found()
        if self.odd and isinstance(self.found, dict):
            for place, value in self.found.items():
                found[place] = value
        return tuple(found)


def own_hosts(make, timeout=None):
    probe = DisturbedEnv(Odd(), costs=FREE, name="Odd")
    return SyncHost(make, probe, timeout), AsyncHost(make, probe, 1, timeout)


def one_step(host, seeds=(1, 7)):
    first = host.reset(np.array(seeds, np.uint32))
    rows = len(seeds)
    return host.step(first.place, np.zeros(rows, int), np.zeros((rows, 0)), np.zeros(rows, bool))


WRONG = {
    "short": ({0: np.zeros(1, np.float32)}, r"the observation has shape \(1,\), expected \(3,\)"),
    "scalar": ({0: 0.5}, r"the observation has shape \(\), expected \(3,\)"),
    "row": ({0: np.zeros((1, 3), np.float32)}, r"shape \(1, 3\), expected \(3,\)"),
    "text": ({0: np.array(["1", "2", "3"])}, "expected numbers"),
    "outside": ({0: np.float32([0, 5, 0])}, r"is 5 at \[1\], outside its bounds \[-1, 1\]"),
    "complex": ({0: np.zeros(3, complex)}, "expected numbers"),
    "reward-text": ({1: "12"}, "the reward is '12', expected one number"),
    "reward-none": ({1: None}, "the reward is None, expected one number"),
    "reward-two": ({1: np.ones(2)}, r"the reward is an array .* expected one number"),
    "done-text": ({2: "False"}, "terminated is 'False', expected True or False"),
    "done-two": ({3: 2}, "truncated is 2, expected True or False"),
    "info": ({4: None}, "step returned the info None, expected a dict"),
    "four": (lambda: (np.zeros(3, np.float32), 1.0, False, {}), "step returned a tuple of 4"),
    "nothing": (lambda: None, "step returned None, expected"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_breaks_the_interface_is_refused_in_one_sentence(case):
    found, words = WRONG[case]
    host, _ = own_hosts(lambda: Odd(found))
    with pytest.raises(HostError, match=rf"^Odd: copy 1: .*{words}") as caught:
        one_step(host)
    assert "Traceback" not in str(caught.value)


def test_a_worker_tells_the_same_sentence():
    for case in ("short", "reward-text"):
        found, words = WRONG[case]
        _, host = own_hosts(lambda found=found: Odd(found))
        with pytest.raises(HostError, match=rf"^Odd: copy 1 in worker 0: .*{words}"):
            one_step(host)


@pytest.mark.parametrize("first", [np.zeros(3), (np.zeros(3), {}, 1), (np.zeros(2), {})])
def test_a_reset_of_another_form_is_refused(first):
    host, _ = own_hosts(lambda: Odd(first=first))
    with pytest.raises(
        HostError, match=r"^Odd: copy 1: (reset returned|the first observation has)"
    ):
        one_step(host)


def test_later_steps_are_checked_by_size():
    class Shrinking(Odd):
        def step(self, action):
            self.steps = getattr(self, "steps", 0) + 1
            return np.zeros(3 - (self.steps > 2), np.float32), 0.0, False, False, {}

    host = SyncHost(Shrinking, DisturbedEnv(Odd(), costs=FREE, name="Odd"))
    reply = host.reset(np.zeros(1, np.uint32))
    given = np.zeros(1, int), np.zeros((1, 0)), np.zeros(1, bool)
    for _ in range(2):
        reply = host.step(reply.place, *given)
    with pytest.raises(HostError, match=r"shape \(2,\), expected \(3,\)"):
        host.step(reply.place, *given)


def test_what_is_unambiguous_is_accepted():
    fine = {0: [0.0, 0.5, 1.0], 1: np.array([2]), 2: np.array(False), 3: 0}
    host, _ = own_hosts(lambda: Odd(fine))
    np.testing.assert_array_equal(one_step(host).rewards, [1, 2])


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Dict(a=spaces.Discrete(2)), {"b": 0}, "has no entry 'a'"),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": 3}, r"x\['a'\] is 3, not in Discrete"),
        (spaces.Tuple([spaces.Box(0, 1, (2,))]), (np.zeros(1),), r"x\[0\] has shape \(1,\)"),
        (spaces.Box(0, 9, (1,), np.int64), np.array([0.5]), "has type float64, expected int64"),
    ],
)
def test_spaces_are_compared_to_their_parts(space, value, words):
    with pytest.raises(ProtocolError, match=words):
        check_observation(space, value, "x")


def test_train_and_check_environment_refuse_a_wrong_shape_before_any_work():
    make = lambda: Odd({0: np.zeros(1, np.float32)})  # noqa: E731

    class Always(Odd):
        def step(self, action):
            return np.zeros(1, np.float32), 1.0, False, False, {}

    with pytest.raises(ValueError, match=r"^environment: Always: the observation has shape \(1,\)"):
        hf.disturb(Always, cost={}, horizon=5)
    hf.check_environment(hf.disturb(make, cost={}, horizon=5))

    class Random(Odd):
        def reset(self, *, seed=None, options=None):
            return np.random.default_rng().random(3, np.float32), {}

    with pytest.raises(ValueError, match="two resets with the same seed give different"):
        hf.check_environment(hf.disturb(Random, cost={}, horizon=5))

    class Broken(Odd):
        def reset(self, *, seed=None, options=None):
            raise OSError("no robot")

    with pytest.raises(ValueError, match=r"^environment: Broken raised OSError .*: no robot"):
        hf.disturb(Broken, cost={}, horizon=5)


def sleeping():
    time.sleep(1000)


def holding_the_interpreter():
    ctypes.PyDLL(None).sleep(1000)


def test_a_step_that_does_not_return_is_named_in_every_host():
    for host in own_hosts(lambda: Odd(sleeping), 1.0):
        with pytest.raises(HostError, match=r"did not return from step within 1 s \(step_timeout"):
            one_step(host)
        np.testing.assert_array_equal(one_step(host, (1, 2)).rewards, 1)  # new copies
        host.close()


def test_a_first_step_that_does_not_return_is_named():
    class Asleep(Odd):
        def reset(self, **_):
            time.sleep(1000)

    with pytest.raises(ValueError, match=r"^environment: Asleep did not return from its first"):
        hf.disturb(Asleep, cost={}, horizon=5, step_timeout=0.2)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (lambda step: time.sleep(1000), r"a cost function did not return within 0.5 s"),
        (lambda step: "12", r"^cost: .* is '12', not one number"),
        (lambda step: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_cost_function_in_the_threads_host_is_watched_too(cost, words):
    with pytest.raises(ValueError, match=words):
        hf.disturb("Hopper-v5", cost=cost, backend="threads", step_timeout=0.5)


def test_slow_copies_that_make_progress_are_not_stopped():
    def slow():
        time.sleep(0.3)
        return np.zeros(3, np.float32), 1.0, False, False, {}

    for host in own_hosts(lambda: Odd(slow), 0.8):
        np.testing.assert_array_equal(one_step(host, (7,) * 4).rewards, 1)
        host.close()


def test_a_deadline_is_extended_by_progress():
    done = []
    deadline = Deadline(0.05, lambda: len(done))
    deadline.check()
    time.sleep(0.06)
    done.append(1)
    deadline.check()
    time.sleep(0.06)
    with pytest.raises(HangError):
        deadline.check()
    with pytest.raises(ZeroDivisionError):
        WatchedThread().call(lambda: 1 / 0, Deadline(None, lambda: 0))


SCRIPT = """
import ctypes, os, sys, time
import equinox as eqx, gymnasium, jax, jax.numpy as jnp
import holdfast as hf
from holdfast.simulators.failures import host_failures

class Hanging(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 2:
            print("hangs", os.getpid(), flush=True, file=sys.stderr)
            time.sleep(1000) if sys.argv[1] == "sync" else ctypes.PyDLL(None).sleep(1000)
        return self.env.step(action)

make = lambda: Hanging(gymnasium.make("CartPole-v1"))
env = hf.disturb(make, cost={}, horizon=10, backend=sys.argv[1], workers=1)
step = eqx.filter_jit(lambda env, state: env.step_rows(state, jnp.zeros(2, int), jnp.zeros((2, 1))))
with host_failures(env):
    state, _ = eqx.filter_jit(env.reset_rows)(jax.random.split(jax.random.PRNGKey(0)))
    while True:
        state = jax.block_until_ready(step(env, state)).state
"""


@pytest.mark.parametrize(
    ("backend", "number"),
    [("sync", signal.SIGINT), ("async", signal.SIGINT), ("async", signal.SIGKILL)],
)
def test_a_signal_ends_a_program_whatever_a_step_does(tmp_path, backend, number):
    """The worker holds Python's lock for ever, so no thread of its own can end it."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, script, backend]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        line = next(line for line in process.stderr if line.startswith("hangs"))
        began = time.monotonic()
        process.send_signal(number)
        process.wait(60)
    assert time.monotonic() - began < 30  # a second or two on a machine that is not busy
    assert process.returncode == -number
    stepping = int(line.split()[1])
    while is_running(stepping) and stepping != process.pid:
        assert time.monotonic() - began < 30
        time.sleep(0.05)
