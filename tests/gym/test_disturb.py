"""Gymnasium environments behind the deep protocol: equal to themselves, and disturbed as asked."""

import gc
import json
import re

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.gym.channels import KINDS, channel_from, from_text
from holdfast.gym.hosted import HostedEnvironment
from holdfast.gym.hosts.callback import handle_of
from holdfast.simulators.environment import GaussianNoise
from holdfast.verbs import simulator_from

ROBOT = "Hopper-v5"  # its file warns of nothing


def spinning(step):
    return float(abs(step.next_observation[2]) > 4)


def pendulum(channel=None, **options):
    return hf.disturb("Pendulum-v1", channel, spinning, horizon=30, **options)


def robot(channel=None, **options):
    return hf.disturb(ROBOT, channel, hf.speed_limit(0.5), horizon=40, **options)


@eqx.filter_jit
def run(env, actions, disturbances):
    keys = jax.random.split(jax.random.PRNGKey(0), actions.shape[1])
    states, first = env.reset_rows(keys)

    def step(states, at):
        there = env.step_rows(states, *at)
        return there.state, there[1:]

    _, found = jax.lax.scan(step, states, (actions, disturbances))
    return first, found


def play(env, actions, disturbances):
    """Return observations, rewards, costs and ends of copies under given actions and disturbances."""
    first, found = run(env, jnp.asarray(actions), jnp.asarray(disturbances, jnp.float32))
    return np.asarray(first), *(np.asarray(each) for each in found)


def quiet(env, steps, rows=2):
    return np.zeros((steps, rows, env.disturbance.size), np.float32)


def some_actions(env, steps, rows=2, seed=0):
    low, high = np.array(env.action_space.low), np.array(env.action_space.high)
    drawn = np.random.default_rng(seed).uniform(low, high, (steps, rows, len(low)))
    return drawn.astype(np.float32)


def seeds_of(rows=2, seed=0):
    keys = jax.random.split(jax.random.PRNGKey(seed), rows)
    return [int(jax.random.bits(key, (), jnp.uint32)) for key in keys]


@pytest.mark.parametrize("make", [robot, pendulum], ids=["threads", "pool"])
def test_undisturbed_it_is_the_environment_itself(make):
    env = make()
    actions = some_actions(env, 12)
    first, seen, rewards, costs, ends = play(env, actions, quiet(env, 12))
    for row, seed in enumerate(seeds_of()):
        own = gymnasium.make(env.name)
        observation, _ = own.reset(seed=seed)
        np.testing.assert_allclose(first[row], observation, rtol=1e-6, atol=1e-6)
        for t in range(12):
            observation, reward, terminated, _, info = own.step(actions[t, row])
            np.testing.assert_allclose(seen[t, row], observation, rtol=1e-4, atol=1e-5)
            assert rewards[t, row] == pytest.approx(reward, rel=1e-4, abs=1e-4)
            step = hf.Transition(None, None, None, observation, None, info)
            cost = spinning(step) if make is pendulum else float(info["x_velocity"] > 0.5)
            assert costs[t, row, 0] == cost
            assert ends[t, row] == terminated
            if terminated:
                break


CHANNELS = {
    "actions": hf.Actions(0.3),
    "state": hf.States(position=0.01, velocity=0.1),
    "force": hf.Force("torso", 30.0),
    "mass": hf.Parameters(mass=0.3),
    "friction": hf.Parameters(friction=0.5),
    "damping": hf.Parameters(damping=0.5),
    "gravity": hf.Parameters(gravity=0.3),
    "gain": hf.Parameters(gain=0.3),
    "delay": hf.Parameters(delay=0.02),
    "mass, every step": hf.Parameters(mass=0.3, per="step"),
}


@pytest.fixture(scope="module")
def undisturbed():
    env = robot()
    actions = 0.2 * some_actions(env, 25)
    return actions, play(env, actions, quiet(env, 25))[1]


@pytest.mark.parametrize("name", CHANNELS)
def test_every_channel_reaches_the_physics(name, undisturbed):
    """Zero is nominal; anything else changes where the robot goes."""
    env = robot(CHANNELS[name])
    steps = 25 if name == "friction" else 6  # it has to land first
    actions = undisturbed[0][:steps]
    calm, pushed = (play(env, actions, quiet(env, steps) + w)[1] for w in (0, 1))
    np.testing.assert_allclose(calm, undisturbed[1][:steps], rtol=1e-4, atol=1e-5)
    assert np.abs(pushed - calm).max() > 1e-3


def test_equal_environments_share_a_program_and_each_steps_its_own_host(monkeypatch):
    """The program is traced once; the costs and the physics are those of each environment's own host."""
    traces = []
    step_rows = HostedEnvironment.step_rows

    def counted(self, *arguments):
        traces.append(self.name)
        return step_rows(self, *arguments)

    monkeypatch.setattr(HostedEnvironment, "step_rows", counted)
    for make, options in ((robot, {}), (pendulum, {}), (pendulum, {"workers": 1})):
        first, second = (make(hf.Actions(0.15), **options) for _ in range(2))
        assert first.facts == second.facts
        assert first.host_number != second.host_number
        actions = some_actions(first, 3, rows=3)
        disturbances = quiet(first, 3, rows=3)
        found = play(first, actions, disturbances)
        once = len(traces)
        for one, other in zip(found, play(second, actions, disturbances), strict=True):
            np.testing.assert_array_equal(one, other)
        assert len(traces) == once
        first.close()
        second.close()
    costs = [2.0, 5.0]
    envs = [hf.disturb("Pendulum-v1", None, lambda step, c=c: c, horizon=30) for c in costs]
    traces.clear()
    found = [play(env, actions[:, :, :1], quiet(env, 3, rows=3))[3] for env in envs]
    assert [float(each.max()) for each in found] == [float(each.min()) for each in found] == costs
    assert len(traces) == 1


def test_a_deleted_environment_is_reported():
    env = pendulum()
    number = int(env.host_number)
    assert handle_of(number).host is env._alive.host
    del env
    gc.collect()
    with pytest.raises(
        RuntimeError, match=r"^environment: it was deleted while a compiled program"
    ):
        handle_of(number)


def test_forces_and_states_may_come_in_any_order():
    channels = [hf.States(position=0.01, velocity=0.1), hf.Force("torso", 30.0)]
    first, second = robot(channels), robot(channels[::-1])
    size = first.disturbance.size
    draws = np.random.default_rng(0).normal(size=(4, 2, size)).astype(np.float32)
    turned = np.concatenate([draws[..., size - 3 :], draws[..., : size - 3]], axis=2)
    actions = 0.2 * some_actions(first, 4)
    np.testing.assert_array_equal(play(first, actions, draws)[1], play(second, actions, turned)[1])


def test_a_channel_does_the_same_in_both_ways_of_stepping():
    channels = [CHANNELS[name] for name in ("actions", "state", "force")]
    channels.append(hf.Parameters(mass=0.3, friction=0.2, damping=0.2, gravity=0.1, gain=0.1))
    ways = [robot(channels, backend=backend) for backend in ("threads", "sync")]
    actions = 0.2 * some_actions(ways[0], 4)
    first, second = (play(env, actions, quiet(env, 4) + 0.5)[1] for env in ways)
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4)


def test_noise_on_observations_is_seen_and_does_nothing():
    env = robot(hf.Observations(0.5))
    actions = some_actions(env, 5)
    calm, noisy = (play(env, actions, quiet(env, 5) + w) for w in (0, 1))
    np.testing.assert_allclose(noisy[1], calm[1] + 0.5, atol=1e-6)
    np.testing.assert_array_equal(noisy[2], calm[2])


def test_a_parameter_of_the_episode_is_drawn_once_and_one_of_the_step_every_time():
    for per, changes in (("episode", False), ("step", True)):
        env = robot(hf.Parameters(mass=0.3, per=per))
        actions = some_actions(env, 5)
        draws = quiet(env, 5)
        later = draws.copy()
        later[2:] = 1.5
        same = np.array_equal(play(env, actions, draws)[1], play(env, actions, later)[1])
        assert same != changes
        first = draws.copy()
        first[0] = 1.5
        assert not np.array_equal(play(env, actions, draws)[1], play(env, actions, first)[1])


def test_nature_is_heard_only_where_a_step_depends_on_it():
    key = jax.random.PRNGKey(0)
    for channel, heard in (
        (None, [False, False]),
        (hf.Parameters(mass=0.3), [True, False]),
        (hf.Parameters(mass=0.3, per="step"), [True, True]),
        ([hf.Parameters(mass=0.3), hf.Actions(0.1)], [True, True]),
    ):
        env = robot(channel)
        state, _ = env.reset(key)
        zero = jnp.zeros(env.disturbance.size)
        after = env.step(state, jnp.zeros(env.action_space.size), zero).state
        assert [bool(env.listens(state)), bool(env.listens(after))] == heard


def test_a_parameter_that_is_set_is_no_longer_drawn():
    env = robot(hf.Parameters(mass=0.3, friction=0.3))
    actions = some_actions(env, 5)
    heavy = env.with_parameters(mass=1.4)
    assert heavy.parameters["mass"] == pytest.approx(1.4)
    mass_drawn = quiet(env, 5) + np.float32([1, 0])
    calm, drawn = (play(heavy, actions, w)[1] for w in (quiet(env, 5), mass_drawn))
    np.testing.assert_array_equal(calm, drawn)
    assert not np.allclose(calm, play(env, actions, quiet(env, 5))[1])
    with pytest.raises(ValueError, match=f"weight: not a parameter of {ROBOT}, which has mass"):
        env.with_parameters(weight=2.0)


def test_a_mass_of_one_deviation_up_is_that_much_heavier():
    """By its own words: (1 + 0.3)^w, the same as setting the factor."""
    env = robot(hf.Parameters(mass=0.3))
    actions = some_actions(env, 4)
    drawn = play(env, actions, quiet(env, 4) + 2)[1]
    set_ = play(env.with_parameters(mass=1.69), actions, quiet(env, 4))[1]
    np.testing.assert_allclose(drawn, set_, rtol=1e-4, atol=1e-5)


def test_a_delay_of_one_step_is_the_action_of_one_step_ago():
    env = robot()
    late = env.with_parameters(delay=env.facts.machine.dt)
    half = env.with_parameters(delay=env.facts.machine.dt / 2)
    actions = some_actions(env, 6)
    before = np.concatenate([np.zeros_like(actions[:1]), actions[:-1]])
    zero = quiet(env, 6)
    np.testing.assert_allclose(
        play(late, actions, zero)[1], play(env, before, zero)[1], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        play(half, actions, zero)[1],
        play(env, (actions + before) / 2, zero)[1],
        rtol=1e-4,
        atol=1e-5,
    )


def test_channels_can_be_written_down_and_read_back():
    for channel in CHANNELS.values():
        assert channel_from(json.loads(json.dumps(channel.describe()))) == channel
    assert set(KINDS) == {"Actions", "Observations", "States", "Force", "Parameters"}
    texts = ["parameters mass=0.3 per=step", "actions 0.1", "force torso 20", "force leg std=2"]
    assert from_text(texts) == (
        hf.Parameters(mass=0.3, per="step"),
        hf.Actions(0.1),
        hf.Force("torso", 20),
        hf.Force("leg", 2),
    )


def test_an_environment_can_be_made_again_from_its_description():
    env = robot([hf.Parameters(mass=0.3), hf.Force("leg", 5)], discount=0.97).with_parameters(
        gain=0.9
    )
    text = json.dumps(env.description())
    again = simulator_from(json.loads(text))
    assert json.dumps(again.description()) == text
    own_cost = pendulum()
    assert simulator_from(json.loads(json.dumps(own_cost.description()))) is None


def test_few_copies_are_played_in_rounds():
    from holdfast.simulators.policy.networks import Policy
    from holdfast.simulators.training.rollout import Nominal, Player, Sight, rollout

    env = pendulum(hf.Actions(0.1), copies=2)
    key = jax.random.PRNGKey(0)
    policy = Policy.create(key, 3, (), env.action_space)

    @jax.jit
    def sample(key):
        player = Player(env, policy, Sight(None, None, None, True))
        return rollout(player, Nominal.create(env), key, 5)

    batch = sample(key)
    assert batch.observations.shape == (30, 5, 3)
    assert len({tuple(row) for row in np.asarray(batch.observations[0]).tolist()}) == 5
    # Each episode is one: the next observation follows from this one by the environment's own step.
    cos, sin = np.asarray(batch.observations[..., 0]), np.asarray(batch.observations[..., 1])
    np.testing.assert_allclose(cos**2 + sin**2, 1, atol=1e-4)
    turn = np.abs(np.angle(np.exp(1j * np.diff(np.arctan2(sin, cos), axis=0))))
    speed = np.asarray(batch.observations[1:, :, 2])
    np.testing.assert_allclose(turn, np.abs(speed) * 0.05, atol=1e-3)


def test_a_long_delay_is_as_long_as_it_says():
    env = robot()
    dt = env.facts.machine.dt
    actions = some_actions(env, 14)
    zero = quiet(env, 14)
    late = play(env.with_parameters(delay=10 * dt), actions, zero)[1]
    before = np.concatenate([np.zeros_like(actions[:10]), actions[:4]])
    np.testing.assert_allclose(late, play(env, before, zero)[1], rtol=1e-3, atol=1e-4)


def test_a_user_s_wrapper_is_not_dropped_for_speed():
    def make():
        env = gymnasium.make("holdfast/PointCircle-v0")
        return gymnasium.wrappers.TransformReward(env, lambda reward: reward + 7)

    env = hf.disturb(make)
    rewards = play(env, some_actions(env, 2), quiet(env, 2))[2]
    assert (rewards > 6).all()
    assert env.most_copies == 256
    assert not env.is_replayable
    assert hf.disturb("holdfast/PointCircle-v0").is_replayable


@pytest.mark.parametrize("backend", ["threads", "sync"])
def test_physics_that_goes_astray_shows(backend, tmp_path, monkeypatch):
    """MuJoCo would begin again in its first pose, as if nothing had been."""
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes what it thinks of that
    env = hf.disturb(ROBOT, hf.Force("torso", 1e12), {}, horizon=10, backend=backend)
    found = play(env, some_actions(env, 8), quiet(env, 8) + 1)
    assert not np.isfinite(found[1]).all() or found[4].any()


def test_what_belongs_to_our_environments_belongs_to_them_however_they_are_stepped():
    for name, costs, limits, discount in (
        ("holdfast/PointCircle-v0", ("outside",), (20.0,), 0.995),
        ("holdfast/HopperVelocity-v0", ("speed",), (25.0,), 0.99),
        ("holdfast/PointGather-v0", ("bombs",), (0.1,), 0.995),
    ):
        for backend in ("auto", "sync"):
            env = hf.disturb(name, backend=backend)
            assert (env.cost_names, env.cost_limits) == (costs, limits)
            assert env.discount == pytest.approx(discount)


def test_a_time_limit_is_taken_from_wherever_it_is():
    made = gymnasium.make("Pendulum-v1", max_episode_steps=50)
    assert hf.disturb(made, cost={}).horizon == 50
    inner = gymnasium.make("Pendulum-v1").unwrapped.__class__

    def wrapped():
        limited = gymnasium.wrappers.TimeLimit(inner(), 7)
        return gymnasium.wrappers.TransformReward(limited, lambda reward: -reward)

    assert hf.disturb(wrapped, cost={}).horizon == 7
    assert hf.disturb("holdfast:holdfast/PointCircle-v0").horizon == 200


class Counting(gymnasium.Env):
    """Shows how many steps there were, in one and the same array; cuts itself after five."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,))
    action_space = gymnasium.spaces.Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = np.zeros(1, np.float32)
        return self.seen, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.seen += 1
        return self.seen, float(action), False, bool(self.seen[0] == 5), {}


def grown(step):
    return float(step.next_observation[0] - step.observation[0])


def test_whole_numbers_that_begin_at_one_and_observations_that_change_under_one_s_hands():
    env = hf.disturb(Counting, cost=grown, horizon=8)
    actions = np.tile(np.int32([0, 2]), (4, 1))
    _, seen, rewards, costs, ends = play(env, actions, quiet(env, 4))
    np.testing.assert_array_equal(rewards, np.tile([1.0, 3.0], (4, 1)))
    np.testing.assert_array_equal(seen[:, 0, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(costs, 1)
    assert not ends.any()
    np.testing.assert_array_equal(env.decode(np.array([0, 2])), [1, 3])


@pytest.mark.parametrize(("horizon", "end"), [(5, False), (8, True)])
def test_what_an_environment_cuts_at_the_horizon_is_cut_and_before_it_is_an_end(horizon, end):
    env = hf.disturb(Counting, cost={}, horizon=horizon)
    ends = play(env, np.zeros((5, 2), np.int32), quiet(env, 5))[4]
    np.testing.assert_array_equal(ends, [[False, False]] * 4 + [[end, end]])


def test_a_state_that_is_there_only_after_a_reset_can_be_pushed():
    env = pendulum(hf.States(0.1))
    calm, pushed = (play(env, some_actions(env, 3), quiet(env, 3) + w)[1] for w in (0, 1))
    assert np.abs(calm - pushed).max() > 0.01


def refused(error, words, make):
    with pytest.raises(error, match=words):
        make()


def test_wrong_use_gets_a_sentence():
    class Odd(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.MultiBinary(3)

    class Seeing(gymnasium.Env):
        spec = gymnasium.envs.registration.EnvSpec("Odd")
        observation_space = gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

    known = re.escape("torso, thigh, leg, foot")
    for words, make in {
        r"cost: the info of CartPole-v1 has no 'cost' \(it has none\)": lambda: hf.disturb(
            "CartPole-v1"
        ),
        r"cost: the info of Hopper-v5 has no 'cost' \(it has x_": lambda: hf.disturb(ROBOT),
        f"body: Hopper-v5 has no 'arm'; it has {known}": lambda: robot(hf.Force("arm", 1.0)),
        "mass: not a parameter that Pendulum-v1 can change; it can change: delay": lambda: pendulum(
            hf.Parameters(mass=0.3)
        ),
        "channel: CartPole-v1 has discrete actions": lambda: hf.disturb(
            "CartPole-v1", hf.Actions(0.1), {}
        ),
        "channel: Pendulum-v1 does not use MuJoCo, which a force needs": lambda: pendulum(
            hf.Force("rod", 1.0)
        ),
        "horizon: expected a whole number of at least 1, got 0": lambda: hf.disturb(
            ROBOT, horizon=0
        ),
        "horizon: Odd has no time limit; pass horizon=": lambda: hf.disturb(Odd),
        "action space: ": lambda: hf.disturb(Odd, horizon=10, cost={}),
        "environment: there is no 'Hoper-v5'; did you mean Hopper-v5": lambda: hf.disturb(
            "Hoper-v5"
        ),
        r"observation space: Odd observes images of shape \(4, 4, 3\)": lambda: hf.disturb(
            Seeing, horizon=10, cost={}
        ),
        "backend: Pendulum-v1 is not a task": lambda: pendulum(backend="threads"),
        "backend: expected one of auto, threads, sync, async": lambda: pendulum(backend="fast"),
        "discount: expected a number in": lambda: pendulum(discount=1.0),
        "std: expected a finite number of at least 0, got -1": lambda: hf.Actions(-1),
        "std: an action of Pendulum-v1 has 1 numbers, got 2 scales": lambda: pendulum(
            hf.Actions((0.1, 0.1))
        ),
        "channel: Actions is given twice": lambda: pendulum([hf.Actions(0.1), hf.Actions(0.2)]),
        "channel: expected a scale over 0 for one of mass, friction": hf.Parameters,
        "wheight: not a physical parameter; there are mass, friction": lambda: hf.Parameters(
            wheight=0.3
        ),
        "mass: expected a number over 0, got 0": lambda: robot().with_parameters(mass=0),
        "delay: expected a number of at least 0, got -1": lambda: robot().with_parameters(delay=-1),
        "gravity: not a parameter that holdfast/PointCircle-v0 can change": lambda: hf.disturb(
            "holdfast/PointCircle-v0", hf.Parameters(gravity=0.3)
        ),
        "chanel: Pendulum-v1 cannot be made with": lambda: pendulum(chanel=3),
        "cost: 'two' of Hopper-v5 is .*, not one number": lambda: hf.disturb(
            ROBOT, cost={"two": lambda step: np.zeros(2)}
        ),
        "environment: the first cost of Pendulum-v1 is not finite": lambda: hf.disturb(
            "Pendulum-v1", cost=lambda step: float("nan")
        ),
        "per: expected one of 'episode', 'step', got 'day'": lambda: hf.Parameters(
            mass=1, per="day"
        ),
        "channel: expected one of actions, .* first, got 'wind 3'": lambda: from_text(["wind 3"]),
        "channel: 'force torso' does not fit force, which takes body, std": lambda: from_text(
            ["force torso"]
        ),
    }.items():
        refused(ValueError, words, make)
    refused(TypeError, "channel: expected one of hf.Actions", lambda: pendulum([0.3]))
    refused(TypeError, "environment: expected an id", lambda: hf.disturb(3))


def test_what_cannot_be_done_outside_jax_is_refused_before_any_work():
    env = pendulum(hf.Actions(0.1))
    quick = {"cost_limit": 1.0, "iterations": 1, "batch_size": 60}

    def asked(env, algorithm="rcpo", **settings):
        return lambda: hf.train(env, algorithm, **{**quick, **settings})

    refused(ValueError, "radius: Pendulum-v1 has no disturbance", asked(pendulum(), radius=0.1))
    for adversary, words in (
        ({"kernel": "tilted"}, "kernel: a tilted one looks ahead, and Pendulum-v1 cannot"),
        ({"gradient": "pathwise"}, "gradient: Pendulum-v1 runs outside JAX"),
    ):
        refused(ValueError, words, asked(env, radius=0.1, adversary=adversary))
    refused(
        ValueError, "environment: there is no 'Hoper-v5'; did you mean Hopper", asked("Hoper-v5")
    )


def test_the_noise_that_there_is_is_said():
    env = robot([hf.Parameters(mass=0.3, friction=0.2), hf.Force("torso", 9.0)])
    assert env.disturbance == GaussianNoise(5, "parameters and force", (0.3, 0.2, 9.0, 9.0, 9.0))
    assert env.description()["gymnasium"]["cost"]["speed"]["limit"] == 0.5
