"""Every channel of the wrapper reaches the physics; without disturbance a step is the environment's."""

import gymnasium
import mujoco
import numpy as np
import pytest

from holdfast.gym.costs import Costs
from holdfast.gym.hosts.host import PARAMETERS
from holdfast.gym.hosts.host import DisturbanceLayout as Layout
from holdfast.gym.hosts.wrapper import DisturbedEnv

FREE = Costs.resolve({})


def disturbed(name, layout=None, costs=FREE):
    return DisturbedEnv(gymnasium.make(name, max_episode_steps=-1), layout, costs)


def command(layout, state=0.0, forces=0.0, factors=1.0):
    numbers = np.zeros(layout.size, np.float32)
    numbers[layout.of_state] = state
    numbers[layout.of_forces] = forces
    numbers[layout.of_parameters] = factors
    return numbers


def actions_of(env, steps, seed=0):
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(steps)]


def episode(env, actions, commands, seed=3):
    """Observations and rewards; a command of None is a plain step."""
    seen = [np.append(np.float64(env.reset(seed=seed)[0]), 0.0)]
    for action, numbers in zip(actions, commands, strict=True):
        found = env.step(action) if numbers is None else env.step_under(action, numbers)
        seen.append(np.append(np.float64(found[0]), found[1]))
    return np.array(seen)


def everything(name):
    env = disturbed(name)
    return Layout(env.state_size, env.body_names[:2], env.parameters)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Hopper-v5", "Ant-v5", "InvertedPendulum-v5"])
def test_a_nominal_command_is_the_environment_s_own_step_to_the_bit(name):
    layout = everything(name)
    assert "mass" in layout.parameters
    assert len(layout.bodies) > 0
    bare = gymnasium.make(name, max_episode_steps=-1)
    env = disturbed(name, layout)
    actions = actions_of(bare, 25)
    observation, _ = bare.reset(seed=3)
    expected = [np.append(np.float64(np.float32(observation)), 0.0)]
    for action in actions:
        observation, reward, *_ = bare.step(action)
        expected.append(np.append(np.float64(np.float32(observation)), reward))
    nominal = command(layout)
    np.testing.assert_array_equal(episode(env, actions, [nominal] * 25), expected)
    np.testing.assert_array_equal(episode(env, actions, [None] * 25), expected)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "CartPole-v1"])
def test_after_a_disturbed_step_a_nominal_one_is_nominal_again(name):
    layout = everything(name)
    env, fresh = disturbed(name, layout), disturbed(name, layout)
    actions = actions_of(env, 8)
    strong = command(layout, state=0.02, forces=20.0, factors=1.4)
    env.reset(seed=3)
    fresh.reset(seed=3)
    env.step_under(actions[0], strong)
    if env.physics is not None:
        data, there = env.unwrapped.data, fresh.unwrapped.data
        there.qpos[:], there.qvel[:] = data.qpos, data.qvel
        there.qacc_warmstart[:] = data.qacc_warmstart
        assert not data.xfrc_applied.any()
    else:
        fresh.unwrapped.state = env.unwrapped.state
    for action in actions[1:]:
        expected = fresh.env.step(action)
        found = env.step(action)
        np.testing.assert_array_equal(found[0], np.float32(expected[0]))
        assert found[1] == expected[1]
    # And so is the next episode.
    calm = [command(layout)] * 8
    env.step_under(actions[0], strong)
    np.testing.assert_array_equal(episode(env, actions, calm), episode(fresh, actions, calm))


@pytest.mark.parametrize(
    ("name", "layout", "disturbance"),
    [
        ("HalfCheetah-v5", Layout(state=18), {"state": 0.01}),
        ("Hopper-v5", Layout(state=12), {"state": 0.01}),
        ("CartPole-v1", Layout(state=4), {"state": 0.01}),
        ("HalfCheetah-v5", Layout(bodies=("torso",)), {"forces": (30.0, 0.0, 0.0)}),
        *(("HalfCheetah-v5", Layout(parameters=(name,)), {"factors": 1.3}) for name in PARAMETERS),
        *(("Hopper-v5", Layout(parameters=(name,)), {"factors": 0.7}) for name in PARAMETERS),
    ],
)
def test_every_channel_changes_the_trajectory(name, layout, disturbance):
    env = disturbed(name, layout)
    actions = actions_of(env, 40 if "Cheetah" in name else 10)
    calm = episode(env, actions, [command(layout)] * len(actions))
    rough = episode(env, actions, [command(layout, **disturbance)] * len(actions))
    np.testing.assert_array_equal(calm[0], rough[0])
    assert np.abs(calm[-1] - rough[-1]).max() > 1e-3


def test_a_push_moves_positions_and_velocities_by_so_much():
    layout = Layout(state=4)
    env = disturbed("InvertedPendulum-v5", layout)
    env.reset(seed=0)
    before = np.r_[env.unwrapped.data.qpos, env.unwrapped.data.qvel]
    numbers = np.array([0.1, -0.05, 0.2, 0.3], np.float32)
    env._push(numbers)
    after = np.r_[env.unwrapped.data.qpos, env.unwrapped.data.qvel]
    np.testing.assert_allclose(after - before, numbers, atol=1e-12)
    # The environment that is set there by its own means takes the same step.
    other = disturbed("InvertedPendulum-v5")
    other.reset(seed=0)
    other.unwrapped.set_state(after[:2], after[2:])
    np.testing.assert_array_equal(other.step([0.5])[0], env.step([0.5])[0])


def test_what_is_seen_before_the_step_is_where_the_push_led():
    """Ant reads the torso's place off the kinematics before it steps: a push is not a speed."""
    env = disturbed("Ant-v5", Layout(state=28))
    env.reset(seed=0)
    push = np.zeros(28, np.float32)
    push[0] = 5.0
    _, _, _, _, info = env.step_under(np.zeros(8), push)
    assert info["x_position"] > 4.5
    assert abs(info["x_velocity"]) < 5.0


def test_a_push_leaves_the_solver_s_first_guess_alone():
    env = disturbed("HalfCheetah-v5", Layout(state=18))
    env.reset(seed=0)
    for _ in range(20):
        env.step(np.zeros(6))
    data = env.unwrapped.data
    guess = data.qacc_warmstart.copy()
    assert data.ncon > 0
    env._push(np.full(18, 0.01))
    np.testing.assert_array_equal(data.qacc_warmstart, guess)


def test_an_episode_begins_under_nominal_physics():
    """Humanoid shows the inertia of its bodies from the first observation on."""
    layout = Layout(parameters=("mass",))
    env = disturbed("Humanoid-v5", layout)
    first, _ = env.reset(seed=0)
    heavy = env.step_under(np.zeros(17), command(layout, factors=2.0))[0]
    assert np.abs(heavy - first).max() > 1
    np.testing.assert_array_equal(env.reset(seed=0)[0], first)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_force_pushes_its_way_as_newton_says(axis):
    """In free fall without damping: m·Δv = F·Δt, for the centre of mass of the whole machine."""
    layout = Layout(bodies=("torso",), parameters=("gravity",))
    env = disturbed("Ant-v5", layout)
    force = np.zeros(3)
    force[axis] = 40.0

    def momentum(forces):
        env.reset(seed=0)
        model, data = env.unwrapped.model, env.unwrapped.data
        data.qpos[2] += 5.0
        mujoco.mj_forward(model, data)
        env.step_under(np.zeros(8), command(layout, forces=forces, factors=0.0))
        mujoco.mj_subtreeVel(model, data)
        mujoco.mj_forward(model, data)
        mujoco.mj_subtreeVel(model, data)
        return model.body_subtreemass[0] * data.subtree_linvel[0]

    np.testing.assert_allclose(momentum(force) - momentum(0.0), force * env.unwrapped.dt, atol=0.05)


def test_the_heavier_accelerates_less_under_the_same_force():
    layout = Layout(bodies=("cart",), parameters=("mass",))
    env = disturbed("InvertedPendulum-v5", layout)

    def speed(mass):
        env.reset(seed=0)
        env.unwrapped.set_state(np.zeros(2), np.zeros(2))
        env.step_under([0.0], command(layout, forces=(10.0, 0.0, 0.0), factors=mass))
        return env.unwrapped.data.qvel[0]

    light, nominal, heavy = speed(0.5), speed(1.0), speed(2.0)
    assert light > nominal > heavy > 0
    assert light > 1.5 * nominal


def test_without_gravity_the_hopper_floats_and_with_more_it_falls_faster():
    layout = Layout(parameters=("gravity",))
    env = disturbed("Hopper-v5", layout)

    def fall(gravity):
        env.reset(seed=0)
        qpos = env.unwrapped.init_qpos.copy()
        qpos[1] += 3.0
        env.unwrapped.set_state(qpos, np.zeros(6))
        for _ in range(5):
            env.step_under(np.zeros(3), command(layout, factors=gravity))
        return qpos[1] - env.unwrapped.data.qpos[1]

    seconds = 5 * env.unwrapped.dt
    assert fall(0.0) == pytest.approx(0, abs=1e-9)
    assert fall(1.0) == pytest.approx(9.81 * seconds**2 / 2, rel=0.1)
    assert fall(2.0) == pytest.approx(2 * fall(1.0), rel=1e-6)


def test_without_gain_nothing_moves_and_with_more_it_moves_further():
    layout = Layout(parameters=("gain", "gravity"))
    env = disturbed("InvertedPendulum-v5", layout)

    def place(gain):
        env.reset(seed=0)
        env.unwrapped.set_state(np.zeros(2), np.zeros(2))
        for _ in range(3):
            env.step_under([1.0], command(layout, factors=(gain, 0.0)))
        return env.unwrapped.data.qpos[0]

    assert place(0.0) == 0
    assert place(1.5) > 1.2 * place(1.0) > 0


def test_damping_brakes():
    layout = Layout(parameters=("damping", "gravity"))
    env = disturbed("InvertedPendulum-v5", layout)

    def speed(damping):
        env.reset(seed=0)
        env.unwrapped.set_state(np.zeros(2), np.array([1.0, 0.0]))
        for _ in range(5):
            env.step_under([0.0], command(layout, factors=(damping, 0.0)))
        return env.unwrapped.data.qvel[0]

    assert speed(0.0) == pytest.approx(1, abs=1e-9)
    assert speed(0.0) > speed(1.0) > speed(2.0) > 0


def test_friction_stops_a_sliding_cheetah():
    layout = Layout(parameters=("friction",))
    env = disturbed("HalfCheetah-v5", layout)

    def speed(friction):
        env.reset(seed=0)
        data = env.unwrapped.data
        for _ in range(20):
            env.step(np.zeros(6))
        data.qvel[:] = 0
        data.qvel[0] = 2.0
        for _ in range(10):
            env.step_under(np.zeros(6), command(layout, factors=friction))
        return data.qvel[0]

    assert speed(0.1) > speed(0.5) + 0.2
    assert speed(0.5) > speed(1.0) + 0.2


def test_a_world_that_is_built_anew_is_disturbed_all_the_same():
    class Rebuilt(gymnasium.Wrapper):
        def reset(self, **arguments):
            inner = self.unwrapped
            inner.model, inner.data = inner._initialize_simulation()
            return self.env.reset(**arguments)

    layout = Layout(parameters=("gain",))
    env = DisturbedEnv(Rebuilt(gymnasium.make("InvertedPendulum-v5")), layout, FREE)
    calm = episode(env, [[2.0]] * 3, [command(layout)] * 3)
    assert not np.array_equal(calm, episode(env, [[2.0]] * 3, [command(layout, factors=0.0)] * 3))
