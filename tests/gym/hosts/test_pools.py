"""Hosts of Gymnasium environments: the same results in every process, and clear reports of failures."""

import gc
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

from holdfast.gym.costs import Costs, speed_limit
from holdfast.gym.hosts.host import DisturbanceLayout
from holdfast.gym.hosts.pools import AsyncHost, HostError, SyncHost
from holdfast.gym.hosts.wrapper import DisturbedEnv

FREE = Costs.resolve({})


def cheetah():
    return gymnasium.make("HalfCheetah-v5", max_episode_steps=-1)


def cart_pole():
    return gymnasium.make("CartPole-v1", max_episode_steps=-1)


class Room(gymnasium.Env):
    """A dict to see, six values a step, and whatever else a test asks for."""

    observation_space = spaces.Dict(
        place=spaces.Box(-99, 99, (2,), np.float64), door=spaces.Discrete(2)
    )
    action_space = spaces.Discrete(3, start=-1)

    def __init__(self, accident=None):
        self.accident = accident

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.seed, self.time = seed, 0
        self.place = self.np_random.random(2)
        return {"place": self.place, "door": 0}, {}

    def step(self, action):
        print("an environment may print")
        self.time += 1
        if self.accident == "raise" and self.seed == 7:
            raise OSError("the roof came down")
        if self.accident == "exit" and self.seed == 7:
            os._exit(3)
        if self.accident == "hang" and self.seed == 7:
            time.sleep(1000)
        self.place = self.place + action
        observation = {"place": self.place, "door": self.time % 2}
        truncated = self.accident == "cut" and self.time == self.seed
        return observation, float(self.place[0]), 0.5 * self.time, False, truncated, {}


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def probe_of(make, layout=None, costs=FREE, name=None):
    return DisturbedEnv(make(), layout, costs, name)


def hosts(make, layout=None, costs=FREE, name=None, workers=2):
    probe = probe_of(make, layout, costs, name)
    return SyncHost(make, probe), AsyncHost(make, probe, workers)


def step(host, reply, actions, over=None, commands=None):
    rows = len(reply.rewards)
    over = np.zeros(rows, bool) if over is None else over
    commands = np.zeros((rows, 0)) if commands is None else commands
    return host.step(reply.place, np.asarray(actions), commands, over)


def reset(host, *seeds):
    return host.reset(np.array(seeds, np.uint32))


def played(host, seeds, actions, commands):
    """Return all replies; a copy is over from the step on after which it is terminated."""
    reply = host.reset(seeds)
    seen, over = [reply.observations], np.zeros(len(seeds), bool)
    for action, command in zip(actions, commands, strict=True):
        reply = step(host, reply, action, over, command)
        seen += [reply.observations, reply.rewards, reply.costs, reply.terminated]
        over = over | reply.terminated
    return seen


def played_by_hand(make, layout, costs, seeds, actions, commands):
    environments = [DisturbedEnv(make(), layout, costs) for _ in seeds]
    pairs = zip(environments, seeds, strict=True)
    last = np.stack([env.reset(seed=int(seed))[0] for env, seed in pairs])
    seen, over = [last], np.zeros(len(seeds), bool)
    for action, command in zip(actions, commands, strict=True):
        rewards, charged = np.zeros(len(seeds)), np.zeros((len(seeds), len(costs.names)))
        last, over = last.copy(), over.copy()
        for i, env in enumerate(environments):
            if not over[i]:
                found = env.step_under(action[i], command[i])
                last[i], rewards[i], charged[i] = found[0], found[1], found[4]["costs"]
                over[i] = found[2] or found[3]
        seen += [last, np.float32(rewards), np.float32(charged), over]
    return seen


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", ["cheetah", "cart-pole", "room"])
def test_hosts_and_a_plain_loop_give_equal_results_while_the_number_of_copies_changes(case):
    rng = np.random.default_rng(0)
    make, layout, costs = {
        "cheetah": (
            cheetah,
            DisturbanceLayout(18, ("torso",), ("mass", "friction")),
            Costs.resolve({"speed": speed_limit(0.1), "control": "reward_ctrl"}),
        ),
        "cart-pole": (cart_pole, DisturbanceLayout(4), FREE),
        "room": (lambda: Room("cut"), DisturbanceLayout(), Costs.resolve(None)),
    }[case]
    sync, workers = hosts(make, layout, costs)
    for copies, steps in ((3, 12), (7, 25), (1, 5), (5, 12)):
        seeds = rng.integers(0, 20, copies).astype(np.uint32)
        size = (steps, copies)
        if case == "cheetah":
            actions = rng.uniform(-1, 1, (*size, 6)).astype(np.float32)
        else:
            actions = rng.integers(0, 2, size)
        commands = rng.normal(0, 0.02, (*size, layout.size)).astype(np.float32)
        commands[..., layout.of_parameters] += 1
        expected = played_by_hand(make, layout, costs, seeds, actions, commands)
        assert_same(played(sync, seeds, actions, commands), expected)
        assert_same(played(workers, seeds, actions, commands), expected)
        if copies == 7:
            # Some episodes end before the others; a cheetah never terminates.
            assert expected[-1].any() == (case != "cheetah")
            assert not expected[4].all()
    sync.close()
    workers.close()


@pytest.fixture(scope="module")
def cart_poles():
    """A host of each kind, which the tests reset."""
    both = hosts(cart_pole)
    yield both
    for host in both:
        host.close()


def test_a_copy_whose_episode_is_over_stays_where_it_is(cart_poles):
    for host in cart_poles:
        first = reset(host, 0, 1, 2, 3)
        over = np.array([False, True, False, True])
        found = step(host, first, [1, 1, 0, 0], over)
        np.testing.assert_array_equal(found.rewards, ~over)
        np.testing.assert_array_equal((found.observations != first.observations).any(1), ~over)
        assert not found.terminated.any()
        later = step(host, found, [1, 1, 0, 0], ~over)
        np.testing.assert_array_equal(later.observations[0], found.observations[0])
        assert (later.observations[1] != first.observations[1]).any()


def test_a_terminated_episode_stays_terminated_until_the_next_reset():
    everybody = np.ones(2, bool)
    for host in hosts(lambda: Room("cut"), costs=Costs.resolve(None)):
        first = step(host, reset(host, 1, 5), [0, 0])
        np.testing.assert_array_equal(first.terminated, [True, False])
        np.testing.assert_array_equal(step(host, first, [0, 0], everybody).terminated, [1, 0])
        assert not step(host, reset(host, 1, 5), [0, 0], everybody).terminated.any()
        host.close()


def test_replies_are_not_overwritten_by_later_steps(cart_poles):
    for host in cart_poles:
        first = reset(host, 0, 1)
        kept = first.observations.copy()
        found = step(host, first, [1, 1])
        again = found.observations.copy()
        step(host, found, [1, 1])
        np.testing.assert_array_equal(first.observations, kept)
        np.testing.assert_array_equal(found.observations, again)


def test_a_step_from_an_earlier_place_is_refused():
    host = SyncHost(cart_pole, probe_of(cart_pole))
    first = reset(host, 0, 1)
    step(host, first, [0, 0])
    with pytest.raises(RuntimeError, match=r"^CartPole-v1: a step from an earlier state"):
        step(host, first, [0, 0])


def test_an_environment_that_raises_is_reported_with_its_traceback_and_can_be_reset():
    costs = Costs.resolve(None)
    for host in hosts(lambda: Room("raise"), costs=costs, name="Room-v0"):
        first = reset(host, 1, 2, 3, 7)
        processes = getattr(host, "processes", ())
        with pytest.raises(HostError, match=r"^Room-v0: copy 3( in worker 1)? raised") as caught:
            step(host, first, [0] * 4)
        assert "OSError: the roof came down" in str(caught.value)
        assert 'raise OSError("the roof' in str(caught.value)
        assert not any(map(is_running, processes))
        np.testing.assert_array_equal(step(host, reset(host, 1, 2), [0, 0]).costs, 0.5)
        host.close()


def test_an_environment_that_cannot_be_made_is_reported_with_its_traceback():
    def broken():
        raise OSError("no such machine")

    probe = probe_of(cart_pole, name="Machine")
    for host in (SyncHost(broken, probe), AsyncHost(broken, probe, 1)):
        with pytest.raises(
            HostError, match=r"(?s)^Machine: copy 0.* raised.*OSError: no such mach"
        ):
            reset(host, 0)


def test_a_worker_that_exits_is_noticed():
    _, host = hosts(lambda: Room("exit"), name="Room-v0")
    first = reset(host, 7, 1)
    processes = host.processes
    with pytest.raises(HostError, match=r"^Room-v0: worker 0 \(process \d+\) exited with status 3"):
        step(host, first, [0, 0])
    assert not any(map(is_running, processes))


def test_a_worker_that_is_killed_is_noticed_at_once_and_leaves_no_process():
    _, host = hosts(cart_pole, name="CartPole-v1")
    first = reset(host, 0, 1, 2, 3)
    processes = host.processes
    os.kill(processes[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(HostError, match=r"^CartPole-v1: worker 1 .* was killed by signal 9"):
        step(host, first, [0] * 4)
    assert time.monotonic() - began < 3
    assert not any(map(is_running, processes))


def test_a_worker_that_hangs_is_killed_when_the_host_closes(monkeypatch):
    monkeypatch.setattr("holdfast.gym.hosts.pools._PATIENCE", 0.2)
    _, host = hosts(lambda: Room("hang"), name="Room-v0")
    first = reset(host, 1, 7)
    processes = host.processes
    os.kill(processes[0], signal.SIGKILL)
    with pytest.raises(HostError, match="worker 0"):
        step(host, first, [0, 0])
    assert not any(map(is_running, processes))


def test_workers_ignore_an_interrupt_and_end_with_their_host():
    _, host = hosts(cart_pole, workers=1)
    first = reset(host, 0, 1)
    processes = host.processes
    os.kill(processes[0], signal.SIGINT)
    np.testing.assert_array_equal(step(host, first, [0, 0]).rewards, 1)
    assert all(map(is_running, processes))
    del host
    gc.collect()
    assert not any(map(is_running, processes))


SCRIPT = """
import os, signal, sys
import gymnasium, numpy as np
import rooms
from holdfast.gym.costs import Costs
from holdfast.gym.hosts.pools import AsyncHost
from holdfast.gym.hosts.wrapper import DisturbedEnv

print("begun")

class Own(gymnasium.Wrapper):
    def step(self, action):
        found = self.env.step(action)
        return (*found[:4], {"cost": 3.0 + ("jax" in sys.modules)})

make = lambda: Own(rooms.make())
host = AsyncHost(make, DisturbedEnv(make(), costs=Costs.resolve(None)), workers=2)
first = host.reset(np.arange(2))
over = np.zeros(2, bool)
print(host.step(first.place, np.array([0, 1]), np.zeros((2, 0)), over).costs.tolist())
print(*host.processes, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["ended", "killed"])
def test_a_script_needs_no_guard_and_leaves_no_process_behind(tmp_path, end):
    """Workers import modules beside the script, though the script runs in another folder."""
    (tmp_path / "rooms.py").write_text(
        "import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1').unwrapped\n"
    )
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "elsewhere").mkdir()
    found = subprocess.run(
        [sys.executable, script, end],
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert found.returncode == (0 if end == "ended" else -signal.SIGKILL), found.stderr
    lines = found.stdout.splitlines()
    # The script ran once. A worker with JAX would cost 4, and seconds and hundreds of megabytes.
    assert lines[:2] == ["begun", "[[3.0], [3.0]]"]
    processes = lines[2].split()
    patience = time.monotonic() + 5
    while any(is_running(int(process)) for process in processes):
        assert time.monotonic() < patience
        time.sleep(0.05)
