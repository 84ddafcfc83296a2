"""Videos: read back, they hold what was played."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import gymnasium
import imageio_ffmpeg
import jax
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import holdfast as hf
from holdfast.environments import LinearGaussian, PointGather, TableSimulator
from holdfast.report.video import check_picture, record, write_video
from holdfast.simulators.environment import Discrete
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.training.settings import Settings

SIZE = (33, 47)  # odd, which video codecs do not take


def frames(count, size=SIZE):
    """A white bar that moves to the right, under a sky of red."""
    for i in range(count):
        picture = np.zeros((*size, 3), np.uint8)
        picture[:, 3 * i : 3 * i + 6] = 255
        picture[: size[0] // 2] = (255, 0, 0)
        yield picture


def agent_in(env):
    policy = Policy.create(jax.random.PRNGKey(0), env.observation_size, (4,), env.action_space)
    description = env.description()
    return Agent(policy, None, "pcpo", Settings(), env.cost_limits or (), 0, env, description)


def read(path):
    if path.suffix == ".gif":
        with Image.open(path) as image:
            durations, pictures = [], []
            for i in range(image.n_frames):
                image.seek(i)
                durations.append(image.info["duration"])
                pictures.append(np.asarray(image.convert("RGB")))
        return pictures, 1000 / np.mean(durations)
    taken = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)]
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    found = subprocess.run([*taken, *raw], capture_output=True, check=True)
    size = re.search(r"Video: h264.*, (\d+)x(\d+)[, ].* ([\d.]+) fps", found.stderr.decode())
    width, height, fps = map(float, size.groups())
    pixels = np.frombuffer(found.stdout, np.uint8)
    return list(pixels.reshape(-1, int(height), int(width), 3)), fps


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_a_video_holds_the_pictures_it_was_made_of(suffix, tmp_path):
    path = tmp_path / "new" / f"bar.{suffix}"
    write_video(path, frames(8), fps=10)
    found, fps = read(path)
    assert len(found) == 8
    assert fps == pytest.approx(10)
    height, width = SIZE if suffix == "gif" else (34, 48)
    for picture, wanted in zip(found, frames(8), strict=True):
        assert picture.shape == (height, width, 3)
        assert np.abs(picture[:33, :47].astype(int) - wanted).mean() < 9
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_fast_gif_keeps_its_time(tmp_path):
    write_video(tmp_path / "fast.gif", frames(12), fps=125)
    found, fps = read(tmp_path / "fast.gif")
    assert len(found) == 4
    assert fps == pytest.approx(125 / 3, rel=0.25)  # a GIF counts hundredths of a second
    np.testing.assert_array_equal(found[1], list(frames(4))[3])


def test_what_cannot_be_a_video_is_refused_and_leaves_nothing(tmp_path):
    bad = {
        "video: expected a name that ends in .mp4 or .gif, got 'a.avi'": ("a.avi", frames(2), 10),
        "frames: expected at least one picture": ("a.gif", [], 10),
        "frames: expected one size": ("a.mp4", [*frames(1), *frames(1, (10, 10))], 10),
        "frames: expected (height, width, 3) arrays of uint8": ("a.gif", [np.zeros((4, 4))], 10),
        "fps: expected a number over 0, got 0": ("a.gif", frames(2), 0),
    }
    for sentence, (name, given, fps) in bad.items():
        with pytest.raises(ValueError, match=r"^[a-z]+: ") as refused:
            write_video(tmp_path / name, given, fps)
        assert str(refused.value).startswith(sentence)
    assert not list(tmp_path.iterdir())


def test_without_imageio_the_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r'pip install "holdfast\[video\]", or ask for a .gif$'):
        write_video(tmp_path / "a.mp4", frames(2), 10)
    write_video(tmp_path / "a.gif", frames(2), 10)
    assert [each.name for each in tmp_path.iterdir()] == ["a.gif"]


def test_an_episode_of_point_gather_is_filmed(tmp_path):
    record(agent_in(PointGather(horizon=3)), tmp_path / "episode.mp4")
    found, fps = read(tmp_path / "episode.mp4")
    assert len(found) == 4
    assert fps == 10
    assert min(found[0].shape[:2]) > 200
    assert np.abs(found[0].astype(int) - found[-1]).max() > 50


@pytest.mark.parametrize("model", ["gambler", "frozen-lake"])  # lists, and next-state rewards
def test_an_episode_of_a_table_is_filmed(model, tmp_path):
    agent = agent_in(TableSimulator(hf.environments.MODELS[model](), name="mine", horizon=4))
    record(agent, tmp_path / "a.gif", seed=2)
    record(agent, tmp_path / "b.gif", seed=2)
    found, _ = read(tmp_path / "a.gif")
    assert 2 <= len(found) <= 5
    assert not np.array_equal(found[0], found[1])
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()


class Counter(gymnasium.Env):
    """Counts its steps in grey, and ends after five."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode, self.closed = render_mode, False
        self.observation_space = spaces.Box(-1, 1, (3,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), 0.0, self.steps == 5, False, {}

    def render(self):
        return np.full((16, 16, 3), 40 * self.steps, np.uint8)

    def close(self):
        self.closed = True


class Viewable(LinearGaussian):
    """A simulator that knows its own picture."""

    def viewable(self, render_mode):
        VIEWS.append(Counter(render_mode))
        return VIEWS[-1]


VIEWS: list[Counter] = []


def three_to_two():
    policy = Policy.create(jax.random.PRNGKey(0), 3, (), Discrete(2))
    return Agent(policy, None, "pcpo", Settings(), (), 0, None, {"name": "mine", "horizon": 9})


def test_an_environment_that_is_given_is_filmed_and_left_open(tmp_path):
    env = Counter("rgb_array")
    record(three_to_two(), tmp_path / "a.gif", env=env)
    found, fps = read(tmp_path / "a.gif")
    assert [int(picture[0, 0, 0]) for picture in found] == [0, 40, 80, 120, 160, 200]
    assert fps == pytest.approx(20)
    assert not env.closed
    with pytest.raises(ValueError, match=r"^env: expected render_mode='rgb_array', got None"):
        record(three_to_two(), tmp_path / "b.gif", env=Counter())
    with pytest.raises(ValueError, match=r"^agent: it was saved without mine; pass env="):
        record(three_to_two(), tmp_path / "b.gif")
    assert not (tmp_path / "b.gif").exists()


def test_a_simulator_that_knows_its_picture_is_asked_for_it(tmp_path):
    agent = dataclasses.replace(three_to_two(), environment=Viewable())
    record(agent, tmp_path / "a.gif")
    assert len(read(tmp_path / "a.gif")[0]) == 6
    assert VIEWS[-1].closed
    check_picture(Viewable())
    assert VIEWS[-1].closed
    record(dataclasses.replace(agent, environment=Viewable(horizon=3)), tmp_path / "short.gif")
    assert len(read(tmp_path / "short.gif")[0]) == 4


def test_what_has_no_picture_is_refused(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"^environment: linear-gaussian has no picture"):
        record(agent_in(LinearGaussian()), tmp_path / "a.gif")
    with pytest.raises(ValueError, match=r"^environment: linear-gaussian has no picture"):
        check_picture(LinearGaussian())

    def broken(env):
        raise RuntimeError("no device")

    monkeypatch.setattr(Counter, "render", broken)
    with pytest.raises(ValueError, match=r"^video: .* cannot be drawn here \(no device\)$"):
        check_picture(Viewable())
    with pytest.raises(RuntimeError, match="no device"):
        record(dataclasses.replace(three_to_two(), environment=Viewable()), tmp_path / "a.gif")
    assert VIEWS[-1].closed
    assert not list(tmp_path.iterdir())
