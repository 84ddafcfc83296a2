"""Pools of environments: the same to the bit wherever they are stepped, and clear about accidents."""

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

from holdfast.gym.hosts.costs import Costs, speed_limit
from holdfast.gym.hosts.layout import Layout
from holdfast.gym.hosts.pools import AsyncPool, HostError, SyncPool
from holdfast.gym.hosts.wrapper import Disturbed

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


def pools(make, layout=None, costs=FREE, workers=2, **arguments):
    layout = Layout() if layout is None else layout
    return (
        SyncPool(make, layout, costs, **arguments),
        AsyncPool(make, layout, costs, workers=workers, **arguments),
    )


def played(pool, seeds, actions, commands):
    """All that a pool says, with a copy dead from the step on after which it is terminated."""
    seen = [pool.reset(seeds)]
    alive = np.ones(len(seeds), bool)
    for action, command in zip(actions, commands, strict=True):
        found = pool.step(action, command, alive)
        seen.extend(found)
        alive = alive & ~found.terminated
    return seen


def played_by_hand(make, layout, costs, seeds, actions, commands):
    environments = [Disturbed(make(), layout, costs) for _ in seeds]
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
def test_pools_and_a_plain_loop_say_the_same_to_the_bit_while_copies_come_and_go(case):
    rng = np.random.default_rng(0)
    make, layout, costs = {
        "cheetah": (
            cheetah,
            Layout(18, ("torso",), ("mass", "friction")),
            Costs.resolve({"speed": speed_limit(0.1), "control": "reward_ctrl"}),
        ),
        "cart-pole": (cart_pole, Layout(4), FREE),
        "room": (lambda: Room("cut"), Layout(), Costs.resolve(None)),
    }[case]
    sync, workers = pools(make, layout, costs, copies=3)
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
        if copies == 7 and case != "cheetah":
            # Some episodes were over before the others.
            assert expected[-1].any()
            assert not expected[4].all()
    sync.close()
    workers.close()


def test_a_copy_that_is_not_alive_is_left_as_it_is():
    for pool in pools(cart_pole):
        first = pool.reset(np.arange(4, dtype=np.uint32))
        alive = np.array([True, False, True, False])
        found = pool.step([1, 1, 0, 0], np.zeros((4, 0)), alive)
        np.testing.assert_array_equal(found.rewards, alive)
        np.testing.assert_array_equal((found.observations != first).any(1), alive)
        assert not found.terminated.any()
        # It goes on from where it was.
        later = pool.step([1, 1, 0, 0], np.zeros((4, 0)), ~alive)
        np.testing.assert_array_equal(later.observations[0], found.observations[0])
        assert (later.observations[1] != first[1]).any()
        pool.close()


def test_an_episode_that_is_over_stays_so_until_the_next_begins():
    nobody = np.zeros(2, bool)
    for pool in pools(lambda: Room("cut"), costs=Costs.resolve(None)):
        pool.reset(np.array([1, 5], np.uint32))
        pool.step([0, 0], np.zeros((2, 0)), ~nobody)
        found = pool.step([0, 0], np.zeros((2, 0)), nobody)
        np.testing.assert_array_equal(found.terminated, [True, False])
        pool.reset(np.array([1, 5], np.uint32))
        assert not pool.step([0, 0], np.zeros((2, 0)), nobody).terminated.any()
        pool.close()


def test_what_a_pool_gave_is_not_written_over():
    for pool in pools(cart_pole):
        first = pool.reset(np.arange(2, dtype=np.uint32))
        kept = first.copy()
        found = pool.step([1, 1], np.zeros((2, 0)), np.ones(2, bool))
        again = found.observations.copy()
        pool.step([1, 1], np.zeros((2, 0)), np.ones(2, bool))
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(found.observations, again)
        pool.close()


def test_as_many_copies_are_stepped_as_were_reset():
    pool = SyncPool(cart_pole, Layout(), FREE)
    pool.reset(np.arange(2))
    with pytest.raises(ValueError, match=r"^alive: the last reset was of 2 copies, got 3"):
        pool.step([0, 0, 0], np.zeros((3, 0)), np.ones(3, bool))


def test_an_environment_that_raises_is_reported_with_its_traceback():
    for pool in pools(lambda: Room("raise"), costs=Costs.resolve(None), name="Room-v0"):
        processes = getattr(pool, "processes", ())
        pool.reset(np.array([1, 2, 3, 7], np.uint32))
        with pytest.raises(HostError, match=r"^Room-v0: copy 3( in worker 1)? raised") as caught:
            pool.step([0] * 4, np.zeros((4, 0)), np.ones(4, bool))
        assert "OSError: the roof came down" in str(caught.value)
        assert 'raise OSError("the roof' in str(caught.value)
        assert not any(map(is_running, processes))
        with pytest.raises(HostError, match=r"^Room-v0: its environments are closed"):
            pool.reset(np.arange(2))
        pool.close()


def test_an_environment_that_cannot_be_made_is_reported_with_its_traceback():
    def broken():
        raise OSError("no such machine")

    for kind in (SyncPool, AsyncPool):
        with pytest.raises(
            HostError, match=r"(?s)^Machine: copy 0.* raised.*OSError: no such mach"
        ):
            kind(broken, Layout(), FREE, name="Machine")


def test_a_worker_that_ends_by_itself_is_noticed():
    pool = AsyncPool(lambda: Room("exit"), Layout(), FREE, workers=2, name="Room-v0")
    pool.reset(np.array([7, 1], np.uint32))
    with pytest.raises(HostError, match=r"^Room-v0: worker 0 \(process \d+\) ended with status 3"):
        pool.step([0, 0], np.zeros((2, 0)), np.ones(2, bool))
    assert not any(map(is_running, pool.processes))


def test_a_worker_that_is_killed_is_noticed_at_once_and_leaves_nothing_behind():
    pool = AsyncPool(cart_pole, Layout(), FREE, workers=2, name="CartPole-v1")
    pool.reset(np.arange(4, dtype=np.uint32))
    os.kill(pool.processes[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(HostError, match=r"^CartPole-v1: worker 1 .* was ended by signal 9"):
        pool.step([0] * 4, np.zeros((4, 0)), np.ones(4, bool))
    assert time.monotonic() - began < 3
    assert not any(map(is_running, pool.processes))


def test_a_worker_that_hangs_is_ended_with_the_pool(monkeypatch):
    monkeypatch.setattr("holdfast.gym.hosts.pools._PATIENCE", 0.2)
    pool = AsyncPool(lambda: Room("hang"), Layout(), FREE, workers=2, name="Room-v0")
    pool.reset(np.array([1, 7], np.uint32))
    os.kill(pool.processes[0], signal.SIGKILL)
    with pytest.raises(HostError, match="worker 0"):
        pool.step([0, 0], np.zeros((2, 0)), np.ones(2, bool))
    assert not any(map(is_running, pool.processes))


def test_workers_do_not_mind_an_interrupt():
    pool = AsyncPool(cart_pole, Layout(), FREE, workers=1)
    pool.reset(np.arange(2, dtype=np.uint32))
    os.kill(pool.processes[0], signal.SIGINT)
    found = pool.step([0, 0], np.zeros((2, 0)), np.ones(2, bool))
    np.testing.assert_array_equal(found.rewards, 1)
    pool.close()


def test_a_pool_that_nobody_holds_is_closed():
    pool = AsyncPool(cart_pole, Layout(), FREE, workers=1)
    processes = pool.processes
    assert all(map(is_running, processes))
    del pool
    gc.collect()
    assert not any(map(is_running, processes))


SCRIPT = """
import os, signal, sys
import gymnasium, numpy as np
from holdfast.gym.hosts.costs import Costs
from holdfast.gym.hosts.layout import Layout
from holdfast.gym.hosts.pools import AsyncPool

print("begun")

class Own(gymnasium.Wrapper):
    def step(self, action):
        found = self.env.step(action)
        return (*found[:4], {"cost": 3.0 + ("jax" in sys.modules)})

pool = AsyncPool(lambda: Own(gymnasium.make("CartPole-v1")), Layout(), Costs.resolve(None), workers=2)
pool.reset(np.arange(2))
print(pool.step([0, 1], np.zeros((2, 0)), np.ones(2, bool)).costs.tolist())
print(*pool.processes, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["ended", "killed"])
def test_a_script_needs_no_guard_and_leaves_no_process_behind(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    found = subprocess.run(
        [sys.executable, script, end],
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


def test_there_is_at_least_one_worker():
    with pytest.raises(ValueError, match=r"^workers: expected at least 1, got 0"):
        AsyncPool(cart_pole, Layout(), FREE, workers=0)


def test_workers_find_modules_beside_the_users_script(tmp_path):
    (tmp_path / "rooms.py").write_text(
        "import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1').unwrapped\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import rooms
            from holdfast.gym.hosts.costs import Costs
            from holdfast.gym.hosts.layout import Layout
            from holdfast.gym.hosts.pools import AsyncPool

            pool = AsyncPool(rooms.make, Layout(), Costs.resolve({}), workers=1)
            print(len(pool.processes))
            pool.close()
            """
        )
    )
    (tmp_path / "elsewhere").mkdir()
    found = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip() == "1", found.stderr
