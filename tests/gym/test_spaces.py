"""Several discrete choices at once, delays of discrete actions, and parameters set by a function."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import holdfast as hf
from holdfast.gym.hosts.wrapper import decoded


class Panel(gymnasium.Env):
    """Pays what was chosen: 100·first + 10·second + third; the observation is the last choice."""

    observation_space = spaces.Box(-10, 10, (3,))

    def __init__(self, sizes=(2, 3, 2), start=(0, 0, 0)):
        self.action_space = spaces.MultiDiscrete(sizes, start=start)
        self.gravity = 9.8

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.asarray(action, np.float32), float(action @ [100, 10, 1]), False, False, {}


def rewards(env, actions, noise=None):
    """The rewards of one episode under a sequence of action indices."""
    state, _ = env.reset_rows(jax.random.PRNGKey(0)[None])
    found = []
    for action in actions:
        w = jnp.zeros((1, env.disturbance.size)) if noise is None else jnp.asarray(noise)[None]
        step = env.step_rows(state, jnp.array([action]), w)
        state = step.state
        found.append(float(step.reward[0]))
    return found


def test_combinations_of_choices_are_counted_the_last_fastest():
    env = hf.disturb(Panel, cost={}, horizon=5)
    assert env.action_space == hf.environments.Discrete(12)
    assert rewards(env, [0, 1, 2, 11]) == [0, 1, 10, 121]
    space = spaces.MultiDiscrete([2, 3, 2], start=[5, 0, 1])
    np.testing.assert_array_equal(decoded(space, [0, 11]), [[5, 0, 1], [6, 2, 2]])
    np.testing.assert_array_equal(env.decode(3), [0, 1, 1])


def test_a_policy_of_several_choices_is_trained_saved_and_evaluated(tmp_path):
    env = hf.disturb(Panel, hf.Observations(0.1), cost={}, horizon=4)
    small = {"iterations": 1, "batch_size": 8, "hidden": (4,), "critic_minibatches": 2}
    agent = hf.train(env, "trpo", **small)
    assert env.facts.machine.actions.count == agent.policy.space.count == 12
    assert spaces.MultiDiscrete([2, 3, 2]).contains(agent.predict(np.zeros(3)))
    agent.save(tmp_path / "agent.safetensors")
    loaded = hf.load(tmp_path / "agent.safetensors", environment=env)
    assert (loaded.predict(np.zeros(3)) == agent.predict(np.zeros(3))).all()
    copy = gymnasium.wrappers.TimeLimit(Panel(), 4)
    assert np.isfinite(loaded.evaluate(copy, episodes=2).reward.mean)


def test_spaces_that_no_policy_can_use_are_named():
    with pytest.raises(
        ValueError, match="1,000,000 combinations of choices; expected at most 4,096"
    ):
        hf.disturb(lambda: Panel(sizes=(100, 100, 100)), cost={}, horizon=5)

    class Switches(Panel):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.MultiBinary(3)

    with pytest.raises(ValueError, match="expected a Box, a Discrete or a MultiDiscrete space"):
        hf.disturb(Switches, cost={}, horizon=5)


def test_a_delayed_choice_is_that_of_the_nearest_step():
    env = hf.disturb(Panel, hf.Parameters(delay=1.0), cost={}, horizon=5)
    actions = [1, 2, 3, 11]
    assert rewards(env.with_parameters(delay=1.0), actions) == [0, 1, 10, 11]
    assert rewards(env.with_parameters(delay=1.4), actions) == [0, 1, 10, 11]
    assert rewards(env.with_parameters(delay=1.6), actions) == [0, 0, 1, 10]
    # One standard deviation of the draw is one step; the sign does not count.
    assert rewards(env, actions, noise=[-1.0]) == [0, 1, 10, 11]
    # The critic and nature see the choices that are still to come.
    state, _ = env.reset(jax.random.PRNGKey(0))
    assert env.features(state).shape == (env.feature_size,) == (3 + 1 + 12 * env.remembered,)


class Weighted(Panel):
    """A panel whose reward is multiplied by gravity, in units of its nominal value."""

    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, reward * self.gravity / 9.8, *rest


def set_gravity(env, name, factor):
    if name != "gravity":
        raise ValueError("only gravity")
    env.gravity = 9.8 * factor


class WithMethod(Weighted):
    def set_parameter(self, name, factor):
        set_gravity(self, name, factor)


@pytest.mark.parametrize(
    ("make", "options"), [(Weighted, {"set_parameter": set_gravity}), (WithMethod, {})]
)
def test_a_function_sets_physics_that_is_not_mujocos(make, options):
    env = hf.disturb(make, hf.Parameters(gravity=0.5), cost={}, horizon=5, **options)
    assert rewards(env, [1, 1]) == [1, 1]
    assert rewards(env, [1, 1], noise=[1.0]) == [1.5, 1.5]
    assert rewards(env.with_parameters(gravity=2.0), [1, 1], noise=[1.0]) == [2, 2]
    # The next episode begins with nominal physics again.
    assert rewards(env, [1]) == [1]
    with pytest.raises(ValueError, match="set_parameter: it failed for 'mass': only gravity"):
        hf.disturb(make, hf.Parameters(mass=0.5), cost={}, horizon=5, **options)


def test_without_a_function_the_parameters_are_those_that_can_change():
    with pytest.raises(ValueError, match="gravity: not a parameter that Weighted can change"):
        hf.disturb(Weighted, hf.Parameters(gravity=0.5), cost={}, horizon=5)
