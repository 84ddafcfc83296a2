"""One episode of Point Gather as a picture, still or moving."""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from holdfast._support.files import write_bytes
from holdfast.environments.gathering import APPLES, ARENA, MASS_AHEAD, OBJECTS
from holdfast.environments.point_gather import PointGather, PointGatherState
from holdfast.simulators.policy.agent import Agent

FIGURE_INCHES = (7.6, 5.6)
DOTS_PER_INCH = {".png": 150, ".gif": 80}
_MILLISECONDS_PER_STEP, _MILLISECONDS_AT_THE_END = 400, 2500
PUSH_MAGNIFIED = 3  # a push of 0.15 is otherwise too short to be seen

_APPLE, _BOMB, _PATH, _PUSH, _QUIET = "#009e73", "#d62728", "#0072b2", "#9a3fb5", "#666666"
_SETTINGS = {"font.size": 9, "font.family": "DejaVu Sans"}
_BESIDE = {"textcoords": "offset points", "va": "center", "fontsize": 8, "zorder": 6}


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """One episode of Point Gather, as arrays with time first.

    The constructor drops the steps after the episode's end.

    Arguments:
        environment: the simulator.
        states: all states, one row more than there are steps.
        actions: actions of all steps.
        rewards: rewards of all steps.
        costs: costs of all steps.
        disturbances: disturbances of all steps, or None if they are not to be drawn.
    """

    environment: PointGather
    states: PointGatherState
    actions: Float[np.ndarray, "steps 2"]
    rewards: Float[np.ndarray, " steps"]
    costs: Float[np.ndarray, "steps 1"]
    disturbances: Float[np.ndarray, "steps disturbance"] | None = None

    def __post_init__(self) -> None:
        states = jax.tree.map(np.asarray, self.states)
        steps = len(states.pose) - 1
        over = np.flatnonzero(~states.present.any(axis=1))
        end = int(over[0]) if over.size else steps
        kept: dict[str, Any] = {"states": jax.tree.map(lambda leaf: leaf[: end + 1], states)}
        for name in ("actions", "rewards", "costs", "disturbances"):
            given = getattr(self, name)
            if given is not None and len(given) != steps:
                raise ValueError(
                    f"{name}: expected {steps} rows, one less than the states have, got {len(given)}"
                )
            kept[name] = None if given is None else np.asarray(given)[:end]
        for name, value in kept.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, agent: Agent, *, seed: int = 0, deterministic: bool = False) -> Self:
        """Return an episode of an agent under the nominal noise.

        Arguments:
            agent: an agent trained in Point Gather.
            seed: seed of the episode.
            deterministic: take the most likely action instead of drawing actions as in training.

        Raises:
            ValueError: the agent's simulator is not Point Gather.
        """
        env = agent.environment
        if not isinstance(env, PointGather):
            raise ValueError("agent: only episodes of point-gather can be drawn")
        generator = np.random.default_rng(seed)
        agent.reset()
        state, observation = eqx.filter_jit(env.reset)(jax.random.PRNGKey(seed))
        step = eqx.filter_jit(lambda env, *given: env.step(*given))
        states = [state]
        records: list[tuple[Any, ...]] = []
        for _ in range(env.horizon):
            action = agent.predict(observation, deterministic, generator=generator)
            push = generator.standard_normal(env.disturbance.size).astype(np.float32)
            state, observation, reward, cost, _ = step(env, state, action, push)
            states.append(state)
            records.append((action, reward, cost, push))
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
        return cls(env, stacked, *(np.stack(kept) for kept in zip(*records, strict=True)))

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.rewards)

    @property
    def path(self) -> Float[np.ndarray, "steps+1 2"]:
        """Positions of the centre of mass, from which the catch distance is measured."""
        x, y, heading = np.asarray(self.states.pose).T
        return np.stack([x + MASS_AHEAD * np.cos(heading), y + MASS_AHEAD * np.sin(heading)], 1)

    @property
    def caught_at(self) -> Int[np.ndarray, "10"]:
        """The step in which each object was caught, counted from 1; 0 if it was not."""
        gone = ~np.asarray(self.states.present)
        return np.where(gone.any(0), gone.argmax(0), 0)

    @property
    def pushes(self) -> Float[np.ndarray, "steps 2"] | None:
        """The displacement of the body by the disturbance of each step."""
        if self.disturbances is None:
            return None
        before = jax.tree.map(lambda leaf: leaf[:-1], self.states)
        step = eqx.filter_jit(lambda env, *given: jax.vmap(env.step)(*given).state)
        undisturbed = step(self.environment, before, self.actions, 0 * self.disturbances)
        return np.asarray(self.states.pose)[1:, :2] - np.asarray(undisturbed.pose)[:, :2]


def draw_episode(path: str | os.PathLike[str], episode: Episode, *, title: str = "") -> None:
    """Write an episode as a picture (`.png`) or an animation (`.gif`), complete or not at all.

    The arena is seen from above. The path is a line with an arrow for the heading after each step. A
    circle around every object shows its catch distance. Caught objects are crossed out and labelled
    with the step. Small arrows show nature's pushes, magnified; they end at the body's position.

    Arguments:
        path: path of the file; its suffix selects the format.
        episode: the episode.
        title: text before the return and the cost.

    Raises:
        ValueError: the suffix is neither `.png` nor `.gif`.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from holdfast.environments.point_gather import PointGather, PointGatherState
        >>> states = PointGatherState(
        ...     pose=np.array([[0, 0, 0], [1, 0, 0.0]]), velocity=np.zeros((2, 3)),
        ...     objects=np.tile([[2.0, 0.0]] + [[-4.0, 2.0]] * 9, (2, 1, 1)),
        ...     present=np.array([[True] * 10, [False] + [True] * 9]), clock=None)
        >>> episode = Episode(PointGather(), states, actions=np.array([[1.0, 0.0]]),
        ...                   rewards=np.array([10.0]), costs=np.array([[0.0]]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     draw_episode(pathlib.Path(folder) / "episode.png", episode)
        ...     [file.name for file in pathlib.Path(folder).iterdir()]
        ['episode.png']
    """
    from PIL import Image

    path = Path(path)
    if path.suffix not in DOTS_PER_INCH:
        raise ValueError(f"path: expected a name that ends in .png or .gif, got {path.name!r}")
    pushes, dots = episode.pushes, DOTS_PER_INCH[path.suffix]
    steps = range(episode.steps + 1) if path.suffix == ".gif" else [episode.steps]
    *others, last = (Image.fromarray(_pixels(episode, pushes, title, step, dots)) for step in steps)
    file = io.BytesIO()
    if path.suffix == ".png":
        last.save(file, format="PNG", dpi=(dots, dots))
    else:
        # One palette of 128 colours for all frames, so that colours do not flicker.
        palette = last.quantize(colors=128)
        first, *rest = (
            image.quantize(palette=palette, dither=Image.Dither.NONE) for image in (*others, last)
        )
        milliseconds = [_MILLISECONDS_PER_STEP] * len(rest) + [_MILLISECONDS_AT_THE_END]
        first.save(
            file, format="GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0
        )
    write_bytes(path, file.getvalue())


def picture(episode: Episode) -> np.ndarray:
    """Return an episode as pixels, of shape (height, width, 3)."""
    return _pixels(episode, None, "", episode.steps, DOTS_PER_INCH[".gif"])


def _pixels(
    episode: Episode, pushes: np.ndarray | None, title: str, step: int, dots: int
) -> np.ndarray:
    from matplotlib import style

    # The user's own settings must not change the picture.
    with style.context(_SETTINGS, after_reset=True):
        figure = _figure(episode, pushes, title, step, dots)
        figure.canvas.draw()
        return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def _figure(
    episode: Episode, pushes: np.ndarray | None, title: str, step: int, dots: float = 100.0
) -> Any:
    """Return the figure after a number of steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=FIGURE_INCHES, dpi=dots)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.03, 0.05, 0.69, 0.87))
    axes.set(xlim=(-ARENA - 1.3, ARENA + 1.3), ylim=(-ARENA - 1.3, ARENA + 1.3), aspect="equal")
    axes.set(xticks=range(-6, 7, 2), yticks=range(-6, 7, 2))
    axes.tick_params(length=0, labelcolor=_QUIET)
    axes.spines[:].set_visible(False)
    corners = ARENA * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    axes.fill(*corners.T, fc="#f7f7f5", ec="#888888", lw=1.2)
    _objects(axes, episode, step)
    _path(axes, episode, step)
    if pushes is not None:
        arrows = PUSH_MAGNIFIED * pushes[:step]
        _arrows(axes, episode.path[1 : step + 1] - arrows, arrows, color=_PUSH, zorder=5)
    earned, cost = float(episode.rewards[:step].sum()), float(episode.costs[:step].sum())
    heading = f"{title}: " if title else ""
    axes.set_title(
        f"{heading}step {step} of {episode.steps},  return {earned:g},  cost {cost:g}",
        fontsize=10.5,
        loc="left",
    )
    _legend(axes, pushes is not None)
    return figure


def _objects(axes: Any, episode: Episode, step: int) -> None:
    from matplotlib.patches import Circle

    reach = float(episode.environment.catch_distance)
    for i, place in enumerate(np.asarray(episode.states.objects[0])):
        colour, marker, pays = (_APPLE, "o", "+10") if i < APPLES else (_BOMB, "D", "−1")
        caught_at = int(episode.caught_at[i])
        caught = 0 < caught_at <= step
        axes.add_patch(Circle(place, reach, fc=colour, alpha=0.07 if caught else 0.14, lw=0))
        axes.add_patch(Circle(place, reach, fill=False, ec=colour, lw=0.8, ls=(0, (3, 2))))
        if not caught:
            axes.plot(*place, marker, ms=7.5, color=colour)
            continue
        catcher = episode.path[caught_at]
        axes.plot(*np.stack([place, catcher]).T, ":", color=colour, lw=1.3)
        axes.plot(*place, "x", color=colour, ms=10, mew=2)
        # On the side away from the path, where the label covers nothing.
        away = 10 * np.sign(place - catcher)
        side = "left" if away[0] >= 0 else "right"
        _label(axes, f"{pays} in step {caught_at}", place, away, colour, ha=side, weight="bold")


def _path(axes: Any, episode: Episode, step: int) -> None:
    path, headings = episode.path[: step + 1], np.asarray(episode.states.pose)[: step + 1, 2]
    ahead = np.stack([np.cos(headings), np.sin(headings)], 1)
    axes.plot(*path.T, "-", color=_PATH, lw=1.6, zorder=3)
    axes.plot(*path[0], "o", ms=8, mfc="white", mec=_PATH, mew=1.8, zorder=4)
    _arrows(axes, path[1:], ahead[1:] / 3, color=_PATH, zorder=4)
    axes.plot(*path[1:].T, "o", color=_PATH, ms=3.2, zorder=4)
    numbered = path[0]
    for t in range(1, step + 1):
        # Numbers closer than 0.8 would overlap; the last one is always shown.
        if t == step or np.linalg.norm(path[t] - numbered) > 0.8:
            numbered = path[t]
            beside = 9 * np.array([ahead[t, 1], -ahead[t, 0]])
            _label(axes, str(t), path[t], beside, _PATH, ha="center")


def _arrows(axes: Any, tails: np.ndarray, vectors: np.ndarray, **look: Any) -> None:
    scale = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.0035}
    axes.quiver(
        *tails.T, *vectors.T, **scale, headwidth=5, headlength=5.5, headaxislength=5, **look
    )


def _label(
    axes: Any, text: str, place: np.ndarray, offset: np.ndarray, colour: str, **look: Any
) -> None:
    """Write text beside a place, with a white rim that keeps it readable on any background."""
    from matplotlib.patheffects import withStroke

    rim = [withStroke(linewidth=2.5, foreground="white")]
    axes.annotate(text, place, xytext=offset, color=colour, path_effects=rim, **_BESIDE, **look)


def _legend(axes: Any, pushes: bool) -> None:
    def entry(label: str, **look: Any) -> None:
        axes.plot([], [], label=label, **{"linestyle": "none", **look})

    entry("start", marker="o", ms=8, mfc="white", mec=_PATH, mew=1.8)
    entry("path, numbered by step,\narrows: heading", color=_PATH, linestyle="-", marker=">")
    entry(f"apple, pays +10 ({APPLES})", marker="o", ms=8, color=_APPLE)
    entry(f"bomb, pays −1, costs 1 ({OBJECTS - APPLES})", marker="D", ms=7, color=_BOMB)
    entry("catch distance", marker="o", ms=14, mfc="none", mec=_QUIET, mew=0.8)
    entry("caught, and gone", marker="x", ms=10, mew=1.6, color=_QUIET)
    if pushes:
        label = f"nature's push\n(drawn {PUSH_MAGNIFIED}× as long)"
        entry(label, marker=r"$\rightarrow$", ms=15, color=_PUSH)
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 0.97), "borderaxespad": 0}
    axes.legend(frameon=False, labelspacing=1.1, fontsize=8.5, **place)
