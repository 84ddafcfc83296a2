"""Point Gather against a plain one: objects in a list, angles by atan2, one step at a time."""

from __future__ import annotations

import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from holdfast.environments.gathering import cell_positions
from holdfast.environments.point_gather import PointGather, PointGatherState
from holdfast.simulators.environment import Box, GaussianNoise


class PlainPointGather:
    def __init__(self, state: PointGatherState, channel: str, clip: bool, **physics: float) -> None:
        self.x, self.y, self.heading = (float(v) for v in state.pose)
        self.velocity = [float(v) for v in state.velocity]
        self.objects = [
            {"kind": "apple" if i < 2 else "bomb", "x": float(x), "y": float(y), "index": i}
            for i, (x, y) in enumerate(np.asarray(state.objects))
            if state.present[i]
        ]
        self.channel, self.clip = channel, clip
        self.speed = physics.get("speed", 1.0)
        self.turn = physics.get("turn", 1.0)
        self.catch_distance = physics.get("catch_distance", 1.0)
        self.noise_scale = physics.get("noise_scale", 0.15)
        self.sensor_range = physics.get("sensor_range", 6.0)

    def centre_of_mass(self) -> tuple[float, float]:
        ahead = 0.042583
        return self.x + ahead * math.cos(self.heading), self.y + ahead * math.sin(self.heading)

    def distance(self, thing: dict) -> float:
        x, y = self.centre_of_mass()
        return math.hypot(thing["x"] - x, thing["y"] - y)

    def step(self, action, disturbance):
        a0, a1 = (float(v) for v in action)
        w = [self.noise_scale * float(v) for v in disturbance]
        if self.channel == "action":
            a0, a1, w = a0 + w[0], a1 + w[1], [0.0, 0.0, 0.0]
        if self.clip:
            a0, a1 = min(max(a0, -1), 1), min(max(a1, -0.25), 0.25)
        self.heading += self.turn * a1 + w[2]
        self.x += self.speed * a0 * math.cos(self.heading) + w[0]
        self.y += self.speed * a0 * math.sin(self.heading) + w[1]
        self.x, self.y = min(max(self.x, -6), 6), min(max(self.y, -6), 6)
        # How near this step comes to a decision that rounding could turn.
        self.slack = min(
            [abs(self.distance(thing) - self.catch_distance) for thing in self.objects], default=1.0
        )
        caught = [thing for thing in self.objects if self.distance(thing) < self.catch_distance]
        self.objects = [thing for thing in self.objects if thing not in caught]
        reward = sum(10 if thing["kind"] == "apple" else -1 for thing in caught)
        cost = float(any(thing["kind"] == "bomb" for thing in caught))
        return self.observation(), reward, cost, not self.objects

    def observation(self):
        readings = {"apple": [0.0] * 10, "bomb": [0.0] * 10}
        x, y = self.centre_of_mass()
        for thing in self.objects:
            distance = self.distance(thing)
            angle = math.atan2(thing["y"] - y, thing["x"] - x) - self.heading
            angle = (angle + math.pi) % (2 * math.pi) - math.pi
            place = (angle + math.pi / 2) / (math.pi / 10)
            self.slack = min(
                [self.slack, abs(place - round(place)), abs(distance - self.sensor_range)]
            )
            if distance > self.sensor_range or abs(angle) > math.pi / 2:
                continue
            bins = readings[thing["kind"]]
            bins[math.floor(place)] = max(bins[math.floor(place)], 1 - distance / self.sensor_range)
        pose = [self.x, self.y, self.heading]
        return [*pose, *self.velocity, x, y, 0.5, *readings["apple"], *readings["bomb"]]


@eqx.filter_jit
def play(env, states, actions, disturbances):
    """All episodes; steps on the leading axis of actions and disturbances."""

    def one(states, inputs):
        there = jax.vmap(env.step)(states, *inputs)
        return there.state, there

    return jax.lax.scan(one, states, (actions, disturbances))[1]


@eqx.filter_jit
def step(env, state, action, disturbance=np.zeros(3, np.float32)):  # noqa: B008
    return env.step(state, action, disturbance)


EPISODES, STEPS, COMPARED = 16_000, 15, 80


@pytest.fixture(scope="module")
def start():
    """The beginnings of all episodes; one shape everywhere, so that nothing is compiled twice."""
    reset = jax.jit(jax.vmap(PointGather().reset))
    return jax.tree.map(np.asarray, reset(jax.random.split(jax.random.key(3), EPISODES)))


PHYSICS = {
    "speed": 1.5,
    "turn": 0.7,
    "catch_distance": 1.7,
    "noise_scale": 0.4,
    "sensor_range": 4.0,
}


@pytest.mark.parametrize(
    ("channel", "clip", "physics"),
    [("state", True, PHYSICS), ("state", False, {}), ("action", True, {})],
)
def test_every_step_is_the_plain_one_s(start, channel, clip, physics):
    env = PointGather(channel=channel, clip_actions=clip).with_parameters(**physics)
    states, _ = start
    rng = np.random.default_rng(0)
    actions = rng.normal(0.6, 1.0, (STEPS, EPISODES, 2)).astype(np.float32)
    noise = rng.normal(size=(STEPS, EPISODES, env.disturbance.size)).astype(np.float32)
    there = jax.tree.map(np.asarray, play(env, states, actions, noise))
    catches = compared = 0
    for episode in range(COMPARED):
        plain = PlainPointGather(
            jax.tree.map(lambda leaf, e=episode: leaf[e], states), channel, clip, **physics
        )
        for t in range(STEPS):
            observation, reward, cost, done = plain.step(actions[t, episode], noise[t, episode])
            if plain.slack < 1e-4:
                break
            np.testing.assert_allclose(
                there.observation[t, episode], observation, rtol=2e-5, atol=2e-5
            )
            assert there.reward[t, episode] == reward
            assert there.costs[t, episode].tolist() == [cost]
            assert there.terminated[t, episode] == done
            left = [thing["index"] for thing in plain.objects]
            assert np.flatnonzero(there.state.present[t, episode]).tolist() == left
            catches += reward != 0
            compared += 1
    assert compared > 900
    assert catches > 20


def test_the_beginning_is_the_plain_one_s(start):
    states, observations = start
    compared = 0
    for episode in range(COMPARED):
        state = jax.tree.map(lambda leaf, e=episode: leaf[e], states)
        plain = PlainPointGather(state, "state", True)
        plain.slack = 1.0
        expected = plain.observation()
        if plain.slack <= 1e-4:  # too close to a ray between sectors for single precision
            continue
        np.testing.assert_allclose(observations[episode], expected, atol=2e-6)
        compared += 1
    assert compared > 0.8 * COMPARED


def standing(objects, present, pose=(0.0, 0.0, 0.0)):
    return PointGatherState(
        pose=jnp.array(pose, jnp.float32),
        velocity=jnp.zeros(3),
        objects=jnp.array(objects, jnp.float32),
        present=jnp.array(present),
        clock=None,
    )


FAR = [(-6.0, -6.0)] * 10


AHEAD = np.array([1.0, 0.0], np.float32)
STILL = np.zeros(2, np.float32)


def test_two_bombs_in_one_step_pay_twice_and_cost_once():
    objects = [*FAR[:2], (1.5, 0.3), (1.5, -0.3), *FAR[4:]]
    there = step(PointGather(), standing(objects, [True] * 10), AHEAD)
    assert float(there.reward) == -2.0
    assert there.costs.tolist() == [1.0]
    assert there.state.present.tolist() == [True, True, False, False, *[True] * 6]


def test_the_last_catch_ends_the_episode_and_nothing_is_paid_after_it():
    env = PointGather()
    last = step(env, standing([(1.5, 0.0), *FAR[1:]], [True, *[False] * 9]), AHEAD)
    assert bool(last.terminated)
    assert float(last.reward) == 10.0
    after = step(env, last.state, STILL)
    assert (float(after.reward), after.costs.tolist(), bool(after.terminated)) == (0.0, [0.0], True)


def test_a_push_can_make_the_catch_and_the_walls_hold():
    env = PointGather()
    state = standing([*FAR[:2], (2.1, 0.0), *FAR[3:]], [True] * 10)
    assert step(env, state, AHEAD).costs.tolist() == [0.0]
    pushed = np.array([1.0, 0.0, 0.0], np.float32)
    assert step(env, state, AHEAD, pushed).costs.tolist() == [1.0]
    hurled = np.array([100.0, -100.0, 0.0], np.float32)
    assert step(env, state, AHEAD, hurled).state.pose.tolist() == [6.0, -6.0, 0.0]


@pytest.mark.parametrize(
    ("clip", "published_return", "published_cost"), [(False, 1.13, 0.73), (True, 0.61, 0.43)]
)
def test_the_published_figures_of_random_actions(start, clip, published_return, published_cost):
    env = PointGather(clip_actions=clip)
    actions = np.random.default_rng(2).normal(size=(STEPS, EPISODES, 2)).astype(np.float32)
    there = play(env, start[0], actions, np.zeros((STEPS, EPISODES, 3), np.float32))
    for per_step, published in (
        (there.reward, published_return),
        (there.costs[..., 0], published_cost),
    ):
        per_episode = np.asarray(per_step).sum(0)
        # The figures are given to two digits, and were sampled too.
        error = 4 * per_episode.std() / np.sqrt(EPISODES) + 0.015
        assert abs(per_episode.mean() - published) < error


def test_cells_are_distinct_and_every_ordered_choice_is_as_likely(start):
    column, row = ((start[0].objects + 6) / 2).astype(int).transpose(2, 0, 1)
    cells = 6 * column + row
    assert (cells != 21).all()
    cells -= cells > 21
    draws = len(cells)
    assert (np.diff(np.sort(cells, 1), axis=1) > 0).all()
    # Each place alone, and the pairs first–second, first–last and second-last–last.
    for i in range(10):
        counts = np.bincount(cells[:, i], minlength=35)
        assert chi_square(counts, draws / 35) < 80
    for i, j in ((0, 1), (0, 9), (8, 9)):
        counts = np.bincount(35 * cells[:, i] + cells[:, j], minlength=35**2).reshape(35, 35)
        counts = counts[~np.eye(35, dtype=bool)]
        assert chi_square(counts, draws / (35 * 34)) < 1189 + 5 * math.sqrt(2 * 1189)


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


def test_cells_are_the_even_grid_without_the_origin():
    expected = {(x, y) for x in range(-6, 5, 2) for y in range(-6, 5, 2)} - {(0, 0)}
    positions = np.asarray(cell_positions(jnp.arange(35)))
    assert {tuple(row) for row in positions.tolist()} == expected


def test_the_beginning_has_the_published_spread(start):
    states, _ = start
    np.testing.assert_allclose(np.std(states.pose, 0), 0.01, rtol=0.03)
    np.testing.assert_allclose(np.std(states.velocity, 0), 0.1, rtol=0.03)
    np.testing.assert_allclose(np.mean(states.pose, 0), 0.0, atol=3e-4)


def test_features_are_the_objects_by_distance_in_the_body_frame():
    env = PointGather()
    heading = math.pi / 2
    objects = [(2.0, 2.0), (0.0, 1.5), (0.0, 4.0), (1.1, 0.0), *FAR[4:]]
    present = [True, True, True, True, *[False] * 6]
    state = standing(objects, present, (0.0, 0.0, heading))
    features = np.asarray(eqx.filter_jit(env.features)(state))
    assert features.shape == (env.feature_size,)
    np.testing.assert_allclose(features[:4], [0, 0, 0, 1], atol=1e-6)
    rows = features[4:].reshape(10, 4)
    ahead = 1.5 - 0.042583
    np.testing.assert_allclose(
        rows[0], [math.tanh(ahead / 2), 0, math.tanh(ahead - 1), 1], atol=1e-6
    )
    distance = math.hypot(2 - 0.042583, 2)
    squash = math.tanh(distance / 2) / distance
    np.testing.assert_allclose(
        rows[1],
        [squash * (2 - 0.042583), -2 * squash, math.tanh(distance - 1), 1],
        atol=1e-6,
    )
    # The bomb on the right, 1.1 away, comes before the one 4 ahead; those caught come last.
    assert rows[2, 1] < -0.4
    assert rows[3, 0] > 0.9
    np.testing.assert_array_equal(rows[4:], [[0, 0, 1, 0]] * 6)


def test_features_do_not_depend_on_the_order_of_the_objects(start):
    states, _ = start
    env = PointGather()
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(2), 2 + rng.permutation(8)])
    mixed = states._replace(objects=states.objects[:, order], present=states.present[:, order])
    features = jax.jit(jax.vmap(env.features))
    np.testing.assert_allclose(features(states), features(mixed), atol=1e-6)


def test_nature_sees_which_side_of_a_catch_the_step_will_end_on():
    env = PointGather(clip_actions=False)
    state = standing([*FAR[:2], (2.1, 0.0), *FAR[3:]], [True] * 10)
    for distance, caught in ((1.0, False), (1.1, True)):
        action = np.array([distance, 0.0], np.float32)
        seen = eqx.filter_jit(env.nature_features)(state, action)
        assert seen.shape == (env.nature_feature_size,)
        clearance = float(seen[4 + 4 * 2 + 2])
        assert clearance == pytest.approx(math.tanh(2.1 - distance - 0.042583 - 1), abs=1e-5)
        assert (clearance < 0) == caught
        assert step(env, state, action).costs.tolist() == [float(caught)]
        np.testing.assert_array_equal(seen[-2:], action)


def test_the_clock_is_in_the_state_only_where_it_was_asked_for(start):
    env = PointGather(clock=True, horizon=4)
    state, observation = jax.eval_shape(env.reset, jax.random.key(0))
    assert state.clock.dtype == jnp.int32
    assert observation.shape == (env.observation_size,) == (30,)
    state = standing(FAR, [True] * 10)._replace(clock=jnp.array(0, jnp.int32))
    for t in range(1, 3):
        state, observation, *_ = step(env, state, STILL)
        assert float(observation[-1]) == t / 4
    assert start[0].clock is None


def test_what_it_says_of_itself():
    env = PointGather()
    assert env.action_space == Box((-1.0, -0.25), (1.0, 0.25))
    assert PointGather(clip_actions=False).action_space == Box((-np.inf,) * 2, (np.inf,) * 2)
    assert env.disturbance == GaussianNoise(3, "state", (float(np.float32(0.15)),) * 3)
    assert PointGather(channel="action").disturbance.size == 2
    assert (env.horizon, env.discount, env.cost_limits) == (15, 0.995, (0.1,))
    assert env.cost_names == ("bombs",)
    changed = env.with_parameters(noise_scale=0.5)
    assert changed.disturbance.scale == (0.5, 0.5, 0.5)
    assert json.loads(json.dumps(changed.description()))["parameters"]["noise_scale"] == 0.5
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(env))


def test_other_physics_are_another_argument_of_the_same_program():
    traces = []

    @eqx.filter_jit
    def move(env):
        traces.append(env.disturbance.size)
        return env.step(standing(FAR, [True] * 10), AHEAD, jnp.zeros(3)).state.pose

    env = PointGather()
    assert float(move(env)[0]) == 1.0
    assert float(move(env.with_parameters(speed=0.5))[0]) == 0.5
    assert traces == [3]


@pytest.mark.parametrize(("argument", "value"), [("channel", "physics"), ("horizon", 0)])
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}: .*{value}"):
        PointGather(**{argument: value})


def test_an_unknown_parameter_is_refused():
    with pytest.raises(ValueError, match="mass: not a parameter of point-gather"):
        PointGather().with_parameters(mass=2.0)
