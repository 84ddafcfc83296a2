"""Writes an episode as a video: GIF with Pillow, MP4 with imageio-ffmpeg."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

from holdfast._support.files import atomic_write, write_bytes
from holdfast.environments.table_simulator import TableSimulator

if TYPE_CHECKING:
    import gymnasium

    from holdfast.model import RobustCMDP
    from holdfast.simulators.environment import Environment
    from holdfast.simulators.policy.agent import Agent

# Most viewers slow a faster GIF down.
_MOST_GIF_FPS = 50
_DEFAULT_FPS = 30

Frame = UInt8[np.ndarray, "height width 3"]


def check_video(path: str | os.PathLike[str]) -> Path:
    """Return the path of a video that can be written here.

    Raises:
        ValueError: the name ends in neither `.mp4` nor `.gif`.
        ImportError: the file is an MP4 and imageio-ffmpeg is not installed.
    """
    path = Path(path)
    if path.suffix not in (".mp4", ".gif"):
        raise ValueError(f"video: expected a name that ends in .mp4 or .gif, got {path.name!r}")
    if path.suffix == ".mp4":
        try:
            import imageio_ffmpeg  # noqa: F401
        except ImportError as error:
            raise ImportError(
                'video: .mp4 needs imageio-ffmpeg; pip install "holdfast[video]", or ask for a .gif'
            ) from error
    return path


def write_video(
    path: str | os.PathLike[str], frames: Iterable[Frame], fps: float = _DEFAULT_FPS
) -> None:
    """Write frames as a video; an error leaves no file behind.

    An MP4 needs an even number of rows and columns: an odd last row or column is repeated. A GIF has at
    most 50 frames per second: for a higher rate frames are dropped, and the duration stays the same.

    Arguments:
        path: the file; its suffix, `.mp4` or `.gif`, selects the format.
        frames: (height, width, 3) arrays of uint8, all of one size; an iterator is consumed lazily.
        fps: frames per second.

    Raises:
        ValueError: an argument is not valid; the message names it.
        ImportError: the file is an MP4 and imageio-ffmpeg is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> frames = [np.full((20, 30, 3), shade, np.uint8) for shade in (0, 100, 200)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_video(pathlib.Path(folder) / "shades.gif", frames, fps=10)
        ...     [file.name for file in pathlib.Path(folder).iterdir()]
        ['shades.gif']
    """
    path = check_video(path)
    if not 0 < fps < math.inf:
        raise ValueError(f"fps: expected a number over 0, got {fps!r}")
    (_write_gif if path.suffix == ".gif" else _write_mp4)(path, _checked(frames), fps)


def _checked(frames: Iterable[Frame]) -> Iterator[Frame]:
    size = None
    for i, frame in enumerate(frames):
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            found = f"{frame.dtype} of shape {frame.shape} for picture {i}"
            raise ValueError(f"frames: expected (height, width, 3) arrays of uint8, got {found}")
        size = size or frame.shape
        if frame.shape != size:
            found = f"{size[:2]} and then {frame.shape[:2]} for picture {i}"
            raise ValueError(f"frames: expected one size, got {found}")
        yield frame
    if size is None:
        raise ValueError("frames: expected at least one picture, got none")


def _write_gif(path: Path, frames: Iterator[Frame], fps: float) -> None:
    from PIL import Image

    every = math.ceil(fps / _MOST_GIF_FPS)
    images = (
        Image.fromarray(frame).quantize(dither=Image.Dither.NONE)
        for frame in itertools.islice(frames, 0, None, every)
    )
    first, duration = next(images), 1000 * every / fps
    with atomic_write(path) as file:
        first.save(file, "GIF", save_all=True, append_images=images, loop=0, duration=duration)


def _write_mp4(path: Path, frames: Iterator[Frame], fps: float) -> None:
    import imageio_ffmpeg

    # ffmpeg writes to a name, not to an open file, so the finished file is copied.
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "video.mp4"
        first = next(frames)
        rows, columns, _ = first.shape
        odd = [(0, rows % 2), (0, columns % 2), (0, 0)]
        writer = imageio_ffmpeg.write_frames(
            str(made),
            (columns + columns % 2, rows + rows % 2),
            fps=fps,
            codec="libx264",
            macro_block_size=2,
            ffmpeg_log_level="error",
            output_params=["-movflags", "+faststart"],
        )
        # imageio-ffmpeg forks, and JAX warns about every fork. The child only starts ffmpeg.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork")
            writer.send(None)
        for frame in itertools.chain([first], frames):
            writer.send(np.ascontiguousarray(np.pad(frame, odd, mode="edge")))
        writer.close()
        write_bytes(path, made.read_bytes())


def record(
    agent: Agent,
    path: str | os.PathLike[str],
    seed: int = 0,
    env: gymnasium.Env | None = None,
) -> None:
    """Write one episode of the deterministic policy as a video; an error leaves no file behind.

    Arguments:
        agent: the agent.
        path: the file; its suffix, `.mp4` or `.gif`, selects the format.
        seed: seed of the episode.
        env: a Gymnasium environment with render_mode="rgb_array"; by default the agent's own simulator.

    Raises:
        ValueError: the simulator cannot be drawn, or an argument is not valid.
        ImportError: the file is an MP4 and imageio-ffmpeg is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> import holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record(agent, pathlib.Path(folder) / "episode.gif")
        ...     [file.name for file in pathlib.Path(folder).iterdir()]
        ['episode.gif']
    """
    from holdfast.simulators.policy.evaluation import GymnasiumPlayer

    path = check_video(path)
    if env is not None:
        if env.render_mode != "rgb_array":
            raise ValueError(f"env: expected render_mode='rgb_array', got {env.render_mode!r}")
        shown, steps = env, None
    elif agent.environment is not None:
        shown, steps = pictured(agent.environment), agent.environment.horizon
    else:
        name = agent.description.get("name", "its simulator")
        raise ValueError(f"agent: it was saved without {name}; pass env=")

    def frames() -> Iterator[Any]:
        player.start(seed)
        yield shown.render()
        over = False
        while not over:
            _, _, over = player.step()
            yield shown.render()

    try:
        player = GymnasiumPlayer(agent, shown, steps=steps)
        write_video(path, frames(), shown.metadata.get("render_fps") or _DEFAULT_FPS)
    finally:
        if env is None:
            shown.close()


def draw_without_display() -> None:
    """Select EGL for MuJoCo on a machine without a display; call it before MuJoCo is imported."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def pictured(environment: Environment) -> gymnasium.Env:
    """Return a simulator as a Gymnasium environment that renders itself.

    Raises:
        ValueError: the simulator has no picture.
    """
    draw_without_display()
    from holdfast.environments.point_gather import PointGather
    from holdfast.gym.as_gymnasium import SimulatorEnv, TableEnv

    viewable = getattr(environment, "viewable", None)
    if viewable is not None:
        return viewable("rgb_array")
    if isinstance(environment, PointGather):
        return SimulatorEnv(environment, render_mode="rgb_array")
    if isinstance(environment, TableSimulator):
        return TableEnv(_model(environment), render_mode="rgb_array")
    raise ValueError(f"environment: {environment.name} has no picture")


def check_picture(environment: Environment) -> None:
    """Raise a ValueError if a simulator cannot be drawn on this machine; draws one picture."""
    try:
        with contextlib.closing(pictured(environment)) as env:
            env.reset(seed=0)
            picture: Any = env.render()
    except ValueError:
        raise
    # A graphics library without a device can raise nearly any error.
    except Exception as error:
        raise ValueError(f"video: {environment.name} cannot be drawn here ({error})") from error
    if np.ndim(picture) != 3:
        raise ValueError(f"video: {environment.name} has no picture")


def _model(table: TableSimulator) -> RobustCMDP:
    """Return the model of a table that runs as a simulator, in double precision."""
    from holdfast.model import Kernel, RobustCMDP, at_most

    p = np.asarray(table.probabilities, float)
    p /= p.sum(-1, keepdims=True)
    cumulative = np.minimum(np.asarray(table.cumulative_initial, float), 1.0)
    constraints = map(at_most, table.costs, table.cost_limits)
    return RobustCMDP(
        transitions=p if table.successors is None else Kernel(np.asarray(table.successors), p),
        reward=np.asarray(table.reward),
        constraints=list(constraints),
        initial=np.maximum(np.diff(cumulative, prepend=0.0), 0.0),
        discount=table.discount,
    )
