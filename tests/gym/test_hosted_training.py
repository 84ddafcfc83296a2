"""Training, stress and resumption with an environment outside JAX."""

import contextlib
import os
import re
import signal
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.gym.hosted import HostedEnvironment
from holdfast.simulators.nature.tilted import TiltedKernel
from holdfast.simulators.policy.memory import Remembering
from holdfast.simulators.policy.networks import Critic, Policy
from holdfast.simulators.training.rollout import Nominal, Player, Sight, Signal, rollout

QUICK = {"cost_limit": 5.0, "batch_size": 120, "hidden": (8,), "limit_confidence": 0.0}
ROBUST = {"radius": 0.2, "adversary": {"batch_size": 60, "updates": 1, "hidden": (8,)}}


def spinning(step):
    return float(abs(step.next_observation[2]) > 4)


class Failing(gymnasium.Wrapper):
    """Raises, or dies, at every fortieth step, as long as a file says so."""

    def __init__(self, env, flag):
        super().__init__(env)
        self.flag, self.steps = flag, 0

    def step(self, action):
        self.steps += 1
        if self.steps % 40 == 0 and self.flag.exists():
            if self.flag.read_text() == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("the motor is on fire")
        return self.env.step(action)


def pendulum(**options):
    return hf.disturb("Pendulum-v1", hf.Actions(0.2), spinning, horizon=30, **options)


def children():
    """Processes that this one has started and that still run."""
    own = str(os.getpid())
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, _, rest = stat.read_text().rpartition(")")
            state, parent, *_ = rest.split()
            if parent == own and state != "Z" and "hosts.worker" in _command(stat):
                found.append(stat)
    return found


def _command(stat):
    return (stat.parent / "cmdline").read_text()


def parameters(agent):
    return np.concatenate([np.ravel(leaf) for leaf in agent.policy.network.weights])


@pytest.fixture(scope="module")
def env():
    return pendulum()


@pytest.fixture(scope="module")
def trained(env):
    return hf.train(env, "rcpo", iterations=2, **QUICK, **ROBUST)


def test_a_seed_repeats_a_run_and_worker_processes_change_nothing(trained, env, monkeypatch):
    step_rows = HostedEnvironment.step_rows

    def checked(self, states, actions, disturbances):
        # Checking an environment traces one row.
        assert len(actions) == 1, "an equal environment was compiled again"
        return step_rows(self, states, actions, disturbances)

    with monkeypatch.context() as patch:
        patch.setattr(HostedEnvironment, "step_rows", checked)
        again = hf.train(pendulum(workers=2), "rcpo", iterations=2, **QUICK, **ROBUST)
    np.testing.assert_array_equal(parameters(trained), parameters(again))
    assert not children()  # training ends the workers
    other = hf.train(env, "rcpo", iterations=2, seed=1, **QUICK, **ROBUST)
    assert not np.array_equal(parameters(trained), parameters(other))


def test_stress_outside_jax_is_short_unless_asked(trained):
    found = hf.stress(trained, episodes=4, delay=[0.0, 2.0], deterministic=False)
    assert [row.label for row in found.rows] == ["nominal", "delay = 0", "delay = 2"]
    with pytest.raises(ValueError, match="delay: expected a number of at least 0, got -1"):
        hf.stress(trained, delay=[-1.0])
    kind = hf.AdversarySettings("mean-shift", updates=1, batch_size=60)
    attacked = hf.stress(trained, episodes=4, noise=None, action_noise=None, kernels=kind)
    assert [row.kind for row in attacked.rows] == 2 * ["nominal", "attack", "attack"]
    assert [row.level for row in attacked.rows] == 2 * [0.0, 0.2, 0.2]


def test_a_memory_works_outside_jax(env):
    remembering = Remembering(env, 1)
    assert remembering.observation_size == 3 + 3 + 1
    policy = Policy.create(jax.random.PRNGKey(0), 7, (), env.action_space)
    player = Player(remembering, policy, Sight(None, None, None, clock=False))
    batch = jax.jit(lambda: rollout(player, Nominal.create(env), jax.random.PRNGKey(1), 2))()
    seen = np.asarray(batch.observations)
    assert (seen[0, :, 3:] == 0).all()
    np.testing.assert_array_equal(seen[1:, :, 3:6], seen[:-1, :, :3])
    # The torque of a pendulum is within ±2, and an action is remembered in units of its bound.
    taken = np.clip(np.asarray(batch.actions), -1, 1)
    np.testing.assert_allclose(seen[1:, :, 6:], taken[:-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("how", "options", "words"),
    [
        ("raise", {}, "the motor is on fire"),
        ("raise", {"workers": 2}, "the motor is on fire"),
        ("die", {"workers": 2}, "Pendulum-v1: worker 0 .* was killed by signal 9"),
    ],
)
def test_a_failure_is_told_whole_and_the_run_goes_on_from_its_checkpoint(
    tmp_path, how, options, words
):
    flag = tmp_path / "flag"

    def make():
        return Failing(gymnasium.make("Pendulum-v1"), flag)

    env = hf.disturb(make, hf.Actions(0.2), spinning, horizon=30, **options)

    def train(out):
        return hf.train(env, "trpo", iterations=2, out=out, **QUICK)

    whole = train(tmp_path / "whole")
    flag.write_text(how)
    with pytest.raises(hf.TrainingError) as caught:
        train(tmp_path / "broken")
    message = str(caught.value)
    assert re.search(words, message)
    assert f"the checkpoint of iteration 1 in {tmp_path / 'broken'} stays valid" in message
    if how == "raise":
        assert "in step" in message  # the traceback, down to the line
    flag.unlink()
    np.testing.assert_array_equal(parameters(train(tmp_path / "broken")), parameters(whole))


def test_a_robot_comes_back_from_disk_with_its_physics(tmp_path):
    env = hf.disturb("Hopper-v5", hf.Parameters(mass=0.3), hf.speed_limit(0.5), horizon=20)
    agent = hf.train(env, "trpo", iterations=1, out=tmp_path, **QUICK)
    again = hf.load(tmp_path)
    assert again.environment.description() == env.description()
    found = hf.stress(again, mass=[0.7, 1.3], episodes=3, deterministic=False)
    assert [row.label for row in found.rows] == ["nominal", "mass = 0.7", "mass = 1.3"]
    observation, _ = gymnasium.make("Hopper-v5").reset(seed=0)
    np.testing.assert_allclose(agent.predict(observation), again.predict(observation))


def test_nature_can_look_ahead_in_mujoco():
    """Candidates are stepped from a saved state, and those with low reward are preferred."""
    env = hf.disturb("Hopper-v5", hf.Force("torso", 200.0), hf.speed_limit(0.5), horizon=10)
    key = jax.random.PRNGKey(0)
    player = Player(
        env, Policy.create(key, 11, (), env.action_space), Sight(None, None, None, True)
    )
    critic = Critic.create(key, env.feature_size + 1, ())
    myopic = Signal(jnp.asarray(0), *[jnp.asarray(0.0)] * 3, True)

    @jax.jit
    def rewards(radius):
        kernel = TiltedKernel.create(key, env, radius, hf.AdversarySettings(candidates=8))
        batch = rollout(player, kernel, key, 24, critic=critic, signal=myopic)
        return batch.signals[..., 0]

    nominal, worst = (np.asarray(rewards(jnp.asarray(radius))) for radius in (0.0, 1.5))
    error = nominal.std() / np.sqrt(nominal.size)
    assert worst.mean() < nominal.mean() - 5 * error


def test_an_environment_s_options_are_part_of_its_run(tmp_path):
    def train(gravity):
        return hf.train(pendulum(g=gravity), "trpo", iterations=1, out=tmp_path, **QUICK)

    train(9.0)
    with pytest.raises(ValueError, match=r"environment\.gymnasium\.options\.g 9\.0"):
        train(1.0)


def test_discrete_actions_and_dictionaries_without_a_channel():
    class Both(gymnasium.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = gymnasium.spaces.Dict(
                {"cart": env.observation_space, "side": gymnasium.spaces.Discrete(2)}
            )

        def observation(self, observation):
            return {"cart": observation, "side": int(observation[0] > 0)}

    def make():
        return Both(gymnasium.make("CartPole-v1"))

    env = hf.disturb(make, cost=lambda step: float(step.terminated), horizon=30)
    assert env.observation_size == 6
    agent = hf.train(env, "trpo", iterations=1, **QUICK)
    seen, _ = make().reset(seed=0)
    assert agent.predict(seen) in (0, 1)
    with pytest.raises(ValueError, match="radius: CartPole-v1 has no disturbance"):
        hf.stress(agent, radii=[0.1], episodes=2)
