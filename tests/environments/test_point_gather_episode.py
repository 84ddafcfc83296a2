"""The picture of an episode: what it is drawn from, and that it is written whole."""

from __future__ import annotations

import equinox as eqx
import jax
import matplotlib.figure
import numpy as np
import pytest
from PIL import Image

from holdfast.environments import point_gather_episode as drawing
from holdfast.environments.linear_gaussian import LinearGaussian
from holdfast.environments.point_gather import PointGather, PointGatherState
from holdfast.environments.point_gather_episode import Episode, draw_episode
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.training.settings import Settings


@pytest.fixture
def straight_on() -> Episode:
    """Three steps to the right: a bomb in the first, the last apple in the second, then nothing."""
    present = np.zeros((4, 10), bool)
    present[0, [0, 2]] = True
    present[1, 0] = True
    objects = np.tile([[2.0, 0.0]] * 10, (4, 1, 1))
    objects[:, 0] = [2.5, 0.5]
    states = PointGatherState(
        pose=np.array([[0, 0, 0], [1.2, 0, 0], [2.2, 0.1, 0], [3.2, 0, 0]], np.float32),
        velocity=np.zeros((4, 3), np.float32),
        objects=objects.astype(np.float32),
        present=present,
        clock=None,
    )
    return Episode(
        PointGather(),
        states,
        actions=np.array([[1.0, 0.0]] * 3, np.float32),
        rewards=np.array([-1.0, 10.0, 0.0]),
        costs=np.array([[1.0], [0.0], [0.0]]),
        disturbances=np.array([[4 / 3, 0, 0], [0, 2 / 3, 0], [0, 0, 0]], np.float32),
    )


def test_what_it_is_drawn_from(straight_on):
    assert straight_on.steps == 2
    assert straight_on.caught_at.tolist() == [2, 0, 1, *[0] * 7]
    np.testing.assert_allclose(straight_on.pushes, [[0.2, 0], [0, 0.1]], atol=1e-6)
    np.testing.assert_allclose(straight_on.path[1], [1.2 + 0.042583, 0], atol=1e-6)


def test_the_picture_says_what_was_earned_and_caught_and_when(straight_on):
    figure = drawing._figure(straight_on, straight_on.pushes, "A test", straight_on.steps)
    assert isinstance(figure, matplotlib.figure.Figure)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "A test: step 2 of 2,  return 9,  cost 1"
    written = [text.get_text() for text in axes.texts]
    assert "−1 in step 1" in written
    assert "+10 in step 2" in written
    legend = " ".join(text.get_text() for text in axes.get_legend().get_texts())
    for word in ("start", "apple", "bomb", "push"):
        assert word in legend


def test_after_one_step_the_second_has_not_happened(straight_on):
    axes = drawing._figure(straight_on, None, "", 1).axes[0]
    assert axes.get_title(loc="left") == "step 1 of 2,  return -1,  cost 1"
    assert [text.get_text() for text in axes.texts if "in step" in text.get_text()] == [
        "−1 in step 1"
    ]


def test_still_and_moving(straight_on, tmp_path):
    draw_episode(tmp_path / "episode.png", straight_on)
    with Image.open(tmp_path / "episode.png") as still:
        assert min(still.size) > 500
    draw_episode(tmp_path / "sub" / "episode.gif", straight_on)
    with Image.open(tmp_path / "sub" / "episode.gif") as moving:
        assert moving.n_frames == 3
        moving.seek(2)
        assert moving.info["duration"] == 2500
    assert sorted(file.name for file in tmp_path.iterdir()) == ["episode.png", "sub"]


def test_an_unknown_kind_of_picture_is_refused_before_anything_is_written(straight_on, tmp_path):
    with pytest.raises(ValueError, match=r"^path: .*'episode\.mp4'"):
        draw_episode(tmp_path / "episode.mp4", straight_on)
    assert not list(tmp_path.iterdir())


def test_rows_that_do_not_fit_are_refused(straight_on):
    with pytest.raises(ValueError, match=r"^rewards: expected 2 rows, .* got 5"):
        Episode(
            straight_on.environment,
            straight_on.states,
            straight_on.actions,
            np.zeros(5),
            straight_on.costs,
        )


def untrained(env):
    policy = Policy.create(jax.random.PRNGKey(0), env.observation_size, (8,), env.action_space)
    return Agent(policy, None, "trpo", Settings(), (0.1,), 0, env, env.description())


def test_an_agents_episode_is_what_the_simulator_gives():
    env = PointGather()
    episode = Episode.of(untrained(env), seed=3)
    step = eqx.filter_jit(lambda *given: env.step(*given))
    for t in range(episode.steps):
        before = jax.tree.map(lambda leaf, t=t: leaf[t], episode.states)
        after = step(before, episode.actions[t], episode.disturbances[t])
        np.testing.assert_allclose(after.state.pose, episode.states.pose[t + 1], atol=1e-5)
        assert float(after.reward) == episode.rewards[t]


def test_only_point_gather_can_be_drawn():
    with pytest.raises(ValueError, match="point-gather"):
        Episode.of(untrained(LinearGaussian()))
