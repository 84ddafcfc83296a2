"""An episode as a moving picture: GIF by Pillow, MP4 by the ffmpeg that imageio-ffmpeg brings."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import tempfile
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

SUFFIXES = (".mp4", ".gif")
# Of a GIF: most viewers slow down what is faster.
_MOST_FRAMES_A_SECOND = 50
_FRAMES_A_SECOND = 30

Frame = UInt8[np.ndarray, "height width 3"]


def check_video(path: str | os.PathLike[str]) -> Path:
    """Refuses a file that could not be written for its name or for want of a library.

    Raises:
        ValueError: the name ends in neither `.mp4` nor `.gif`.
        ImportError: an MP4 is asked for, and what writes it is not installed.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"video: expected a name that ends in .mp4 or .gif, got {path.name!r}")
    if path.suffix == ".mp4":
        _ffmpeg()
    return path


def _ffmpeg() -> str:
    """The program that writes an MP4."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError(
            "video: what writes .mp4 is not installed; pip install holdfast[video], or ask for a .gif"
        ) from error
    return imageio_ffmpeg.get_ffmpeg_exe()


def write_video(
    path: str | os.PathLike[str], frames: Iterable[Frame], fps: float = _FRAMES_A_SECOND
) -> None:
    """Writes pictures one after the other as a video, whole or not at all.

    An MP4 has an even number of rows and columns: where one is missing the last is repeated. A GIF has
    at most 50 pictures a second: of more, some are left out, and time passes as it should.

    Arguments:
        path: where to; its suffix, `.mp4` or `.gif`, says which.
        frames: the pictures, all of one size; they may be made while they are written.
        fps: pictures a second.

    Raises:
        ValueError: an argument cannot be used; the message names it.
        ImportError: an MP4 is asked for, and what writes it is not installed.

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
    checked = _checked(frames)
    first = next(checked, None)
    if first is None:
        raise ValueError("frames: expected at least one picture, got none")
    every = itertools.chain([first], checked)
    if path.suffix == ".gif":
        _write_gif(path, every, fps)
    else:
        _write_mp4(path, first, every, fps)


def _checked(frames: Iterable[Frame]) -> Iterator[Frame]:
    size = None
    for i, frame in enumerate(frames):
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(
                f"frames: expected (height, width, 3) arrays of uint8, got {frame.dtype} of shape "
                f"{frame.shape} for picture {i}"
            )
        size = frame.shape if size is None else size
        if frame.shape != size:
            raise ValueError(
                f"frames: expected one size, got {size[:2]} and then {frame.shape[:2]} for picture {i}"
            )
        yield frame


def _write_gif(path: Path, frames: Iterable[Frame], fps: float) -> None:
    from PIL import Image

    every = math.ceil(fps / _MOST_FRAMES_A_SECOND)
    images = (
        Image.fromarray(frame).quantize(colors=256, dither=Image.Dither.NONE)
        for frame in itertools.islice(frames, 0, None, every)
    )
    first = next(images)
    with atomic_write(path) as file:
        first.save(
            file,
            format="GIF",
            save_all=True,
            append_images=images,
            duration=1000 * every / fps,
            loop=0,
        )


def _write_mp4(path: Path, first: Frame, frames: Iterable[Frame], fps: float) -> None:
    def even(frame: Frame) -> Frame:
        rows, columns, _ = frame.shape
        return np.pad(frame, [(0, rows % 2), (0, columns % 2), (0, 0)], mode="edge")

    height, width, _ = even(first).shape
    taken = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps} -i -"
    given = "-c:v libx264 -pix_fmt yuv420p -movflags +faststart"
    # ffmpeg goes by names, and knows no unfinished files: the whole one is moved to its place. Its own
    # process is begun here and not by imageio, which would fork one that holds threads of JAX.
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        made = Path(folder) / "video.mp4"
        command = [_ffmpeg(), "-loglevel", "error", *taken.split(), *given.split(), str(made)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log) as process:
            assert process.stdin is not None
            try:
                for frame in frames:
                    process.stdin.write(even(frame).tobytes())
            except BrokenPipeError:
                pass  # it has said why
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            log.seek(0)
            raise OSError(f"video: ffmpeg could not write it ({log.read().decode().strip()})")
        write_bytes(path, made.read_bytes())


def record(
    agent: Agent,
    path: str | os.PathLike[str],
    seed: int = 0,
    env: gymnasium.Env | None = None,
) -> None:
    """Writes one episode of the deterministic policy as a video, whole or not at all.

    Arguments:
        agent: who plays.
        path: where to; its suffix, `.mp4` or `.gif`, says which.
        seed: of the episode.
        env: a Gymnasium environment with render_mode="rgb_array"; the picture of the agent's own
            simulator if left out.

    Raises:
        ValueError: there is no picture, or an argument cannot be used; the message says which.
        ImportError: an MP4 is asked for, and what writes it is not installed.

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
    from holdfast.simulators.policy.gymnasium_player import Player

    path = check_video(path)
    if env is not None and env.render_mode != "rgb_array":
        raise ValueError(f"env: expected render_mode='rgb_array', got {env.render_mode!r}")
    if env is not None:
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
            over = player.step().over
            yield shown.render()

    try:
        player = Player(agent, shown, steps=steps)
        write_video(path, frames(), shown.metadata.get("render_fps") or _FRAMES_A_SECOND)
    finally:
        if env is None:
            shown.close()


def draw_without_display() -> None:
    """Lets MuJoCo draw where there is no display, if it is called before MuJoCo is imported."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def pictured(environment: Environment) -> gymnasium.Env:
    """A simulator as a Gymnasium environment that draws itself.

    Raises:
        ValueError: it has no picture.
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
    """Draws one picture, to see whether that can be done here.

    Raises:
        ValueError: it cannot.
    """
    try:
        env = pictured(environment)
        try:
            env.reset(seed=0)
            picture: Any = env.render()
        finally:
            env.close()
    except ValueError:
        raise
    # Whatever a graphics library throws when there is no device for it.
    except Exception as error:
        raise ValueError(f"video: {environment.name} cannot be drawn here ({error})") from error
    if np.ndim(picture) != 3:
        raise ValueError(f"video: {environment.name} has no picture")


def _model(table: TableSimulator) -> RobustCMDP:
    """The table of a simulator, which has it in single precision."""
    from holdfast.model import Kernel, RobustCMDP, at_most

    def doubles(array: Any) -> np.ndarray:
        return np.asarray(array, float)

    p = doubles(table.probabilities)
    p /= p.sum(-1, keepdims=True)
    initial = np.diff(np.minimum(doubles(table.cumulative_initial), 1.0), prepend=0.0)
    return RobustCMDP(
        transitions=p if table.successors is None else Kernel(np.asarray(table.successors), p),
        reward=doubles(table.reward),
        constraints=[
            at_most(doubles(cost), limit)
            for cost, limit in zip(table.costs, table.cost_limits, strict=True)
        ],
        initial=np.maximum(initial, 0.0),
        discount=table.discount,
    )
