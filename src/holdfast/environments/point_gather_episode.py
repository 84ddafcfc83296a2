"""One episode of Point Gather as a picture, still or moving."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from holdfast._support.files import atomic_write
from holdfast.environments.gathering import APPLES, ARENA, MASS_AHEAD, OBJECTS
from holdfast.environments.point_gather import PointGather, PointGatherState
from holdfast.simulators.policy.agent import Agent

FIGURE_INCHES = (7.6, 5.6)
DOTS_PER_INCH = {".png": 150, ".gif": 80}
SECONDS_A_STEP, SECONDS_AT_THE_END = 0.4, 2.5
PUSH_MAGNIFIED = 3

_APPLE, _BOMB, _PATH, _PUSH, _QUIET = "#009e73", "#d62728", "#0072b2", "#9a3fb5", "#666666"
_SETTINGS = {"font.size": 9, "font.family": "DejaVu Sans"}


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happened in one episode of Point Gather, as plain arrays with time first.

    Steps after the episode's end are dropped when it is made.

    Arguments:
        environment: it happened in.
        states: every state, with one more row than there were steps.
        actions: taken.
        rewards: paid.
        costs: paid.
        disturbances: that nature chose, if they are to be drawn.
    """

    environment: PointGather
    states: PointGatherState
    actions: Float[np.ndarray, "steps 2"]
    rewards: Float[np.ndarray, " steps"]
    costs: Float[np.ndarray, "steps 1"]
    disturbances: Float[np.ndarray, "steps disturbance"] | None = None

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        states = jax.tree.map(np.asarray, self.states)
        steps = len(states.pose) - 1
        over = np.flatnonzero(~states.present.any(axis=1))
        end = int(over[0]) if over.size else steps
        put("states", jax.tree.map(lambda leaf: leaf[: end + 1], states))
        for name in ("actions", "rewards", "costs", "disturbances"):
            given = getattr(self, name)
            if given is None:
                continue
            if len(given) != steps:
                raise ValueError(
                    f"{name}: expected {steps} rows, one less than the states have, got {len(given)}"
                )
            put(name, np.asarray(given)[:end])

    @classmethod
    def of(cls, agent: Agent, *, seed: int = 0, deterministic: bool = False) -> Self:
        """An episode of an agent's, under the nominal noise.

        Arguments:
            agent: trained in Point Gather.
            seed: of the episode.
            deterministic: take the most likely actions, rather than draw them as in training.

        Raises:
            ValueError: the agent's simulator is not Point Gather.
        """
        env = agent.environment
        if not isinstance(env, PointGather):
            raise ValueError("agent: only episodes of point-gather can be drawn")
        generator = np.random.default_rng(seed)
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
        """How many there were."""
        return len(self.rewards)

    @property
    def path(self) -> Float[np.ndarray, "steps+1 2"]:
        """Where the centre of mass was, which is what catches."""
        x, y, heading = np.asarray(self.states.pose).T
        return np.stack([x + MASS_AHEAD * np.cos(heading), y + MASS_AHEAD * np.sin(heading)], 1)

    @property
    def caught_at(self) -> Int[np.ndarray, "10"]:
        """The step in which each object was caught, counted from 1; 0 if it never was."""
        gone = ~np.asarray(self.states.present)
        return np.where(gone.any(0), gone.argmax(0), 0)

    @property
    def pushes(self) -> Float[np.ndarray, "steps 2"] | None:
        """How far from where it would have been the disturbance put the body in each step."""
        if self.disturbances is None:
            return None
        before = jax.tree.map(lambda leaf: leaf[:-1], self.states)
        none = np.zeros_like(self.disturbances)
        undisturbed = _poses_after(self.environment, before, self.actions, none)
        return np.asarray(self.states.pose)[1:, :2] - np.asarray(undisturbed)[:, :2]


@eqx.filter_jit
def _poses_after(env: PointGather, states: Any, actions: Any, disturbances: Any) -> Any:
    """Where single steps lead, one for each row."""
    after: Any = jax.vmap(env.step)(states, actions, disturbances).state
    return after.pose


def draw_episode(path: str | os.PathLike[str], episode: Episode, *, title: str = "") -> None:
    """Writes an episode as a picture (`.png`) or as a moving one (`.gif`), whole or not at all.

    The arena is seen from above. The path is a line with an arrow for the heading after each step.
    Around every object lies the circle within which it is caught; those caught are crossed out and
    say in which step. Nature's pushes are small arrows that end where the body ended up, magnified.

    Arguments:
        path: where to; its suffix says which of the two.
        episode: what to draw.
        title: what to say before the return and the cost.

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
    from matplotlib import style

    path = Path(path)
    if path.suffix not in DOTS_PER_INCH:
        raise ValueError(f"path: expected a name that ends in .png or .gif, got {path.name!r}")
    image = io.BytesIO()
    pushes = episode.pushes
    # Nothing of the reader's own settings may show.
    with style.context(_SETTINGS, after_reset=True):
        if path.suffix == ".png":
            figure = _figure(episode, pushes, title, episode.steps)
            figure.savefig(image, format="png", dpi=DOTS_PER_INCH[".png"])
        else:
            first, *others = _frames(episode, pushes, title)
            durations = [SECONDS_A_STEP] * len(others) + [SECONDS_AT_THE_END]
            first.save(
                image,
                format="GIF",
                save_all=True,
                append_images=others,
                duration=[round(1000 * seconds) for seconds in durations],
                loop=0,
            )
    with atomic_write(path) as file:
        file.write(image.getvalue())


def picture(episode: Episode) -> np.ndarray:
    """An episode up to now as an array of pixels, (height, width, 3)."""
    return _pixels(_figure(episode, None, "", episode.steps, DOTS_PER_INCH[".gif"]))


def _pixels(figure: Any) -> np.ndarray:
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def _frames(episode: Episode, pushes: np.ndarray | None, title: str) -> Iterator[Any]:
    """The picture after every step, in one palette, so that colours do not flicker."""
    from PIL import Image

    images, dots = [], DOTS_PER_INCH[".gif"]
    for step in range(episode.steps + 1):
        images.append(Image.fromarray(_pixels(_figure(episode, pushes, title, step, dots))))
    palette = images[-1].quantize(colors=128)
    for image in images:
        yield image.quantize(palette=palette, dither=Image.Dither.NONE)


def _figure(
    episode: Episode, pushes: np.ndarray | None, title: str, step: int, dpi: float = 100.0
) -> Any:
    """The picture after a number of steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=FIGURE_INCHES, dpi=dpi)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.03, 0.05, 0.69, 0.87))
    _arena(axes)
    _objects(axes, episode, step)
    if pushes is not None:
        _pushes(axes, episode.path[1 : step + 1], pushes[:step])
    _path(axes, episode, pushes, step)
    earned = float(episode.rewards[:step].sum())
    cost = float(episode.costs[:step].sum())
    heading = f"{title}: " if title else ""
    axes.set_title(
        f"{heading}step {step} of {episode.steps},  return {earned:g},  cost {cost:g}",
        fontsize=10.5,
        loc="left",
    )
    _legend(axes, pushes is not None)
    return figure


def _arena(axes: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.set_aspect("equal")
    axes.set(xlim=(-ARENA - 1.3, ARENA + 1.3), ylim=(-ARENA - 1.3, ARENA + 1.3))
    axes.set_xticks(range(-6, 7, 2))
    axes.set_yticks(range(-6, 7, 2))
    axes.tick_params(length=0, labelcolor=_QUIET)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.add_patch(
        Rectangle((-ARENA, -ARENA), 2 * ARENA, 2 * ARENA, fc="#f7f7f5", ec="#888888", lw=1.2)
    )


def _objects(axes: Any, episode: Episode, step: int) -> None:
    from matplotlib.patches import Circle

    reach = float(episode.environment.catch_distance)
    for i, (x, y) in enumerate(np.asarray(episode.states.objects[0])):
        colour, marker = (_APPLE, "o") if i < APPLES else (_BOMB, "D")
        caught = 0 < episode.caught_at[i] <= step
        axes.add_patch(
            Circle((x, y), reach, fc=colour, ec=colour, alpha=0.07 if caught else 0.14, lw=0)
        )
        axes.add_patch(Circle((x, y), reach, fill=False, ec=colour, lw=0.8, ls=(0, (3, 2))))
        if caught:
            _catch(axes, episode, i, colour)
        else:
            axes.plot(x, y, marker, ms=8 if marker == "o" else 7, color=colour)


def _catch(axes: Any, episode: Episode, index: int, colour: str) -> None:
    """A cross for the object, a line to who caught it, and on the other side what it paid when."""
    step = int(episode.caught_at[index])
    place, catcher = np.asarray(episode.states.objects[0, index]), episode.path[step]
    axes.plot(*np.stack([place, catcher]).T, ":", color=colour, lw=1.3)
    axes.plot(*place, "x", color=colour, ms=10, mew=2)
    axes.annotate(
        f"{'+10' if index < APPLES else '−1'} in step {step}",
        place,
        textcoords="offset points",
        **_roomiest_side(place, episode.path),
        fontsize=8.5,
        color=colour,
        weight="bold",
        zorder=6,
        path_effects=_halo(),
    )


def _roomiest_side(place: np.ndarray, path: np.ndarray) -> dict[str, Any]:
    """Where beside a place a label is farthest from the path."""
    sides = {
        (1.7, 0.0): {"xytext": (9, 0), "ha": "left", "va": "center"},
        (-1.7, 0.0): {"xytext": (-9, 0), "ha": "right", "va": "center"},
        (0.0, 0.6): {"xytext": (0, 9), "ha": "center", "va": "bottom"},
        (0.0, -0.6): {"xytext": (0, -9), "ha": "center", "va": "top"},
    }
    # The end of each step and the way there.
    points = np.concatenate([path, (path[1:] + path[:-1]) / 2])
    inside = [side for side in sides if abs(place[0] + 2 * side[0]) <= ARENA + 1.5] or list(sides)
    return sides[max(inside, key=lambda side: np.linalg.norm(points - place - side, axis=1).min())]


def _halo() -> list[Any]:
    """A white rim, so that letters can be read wherever they lie."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def _pushes(axes: Any, ends: np.ndarray, pushes: np.ndarray) -> None:
    for end, push in zip(ends, pushes, strict=True):
        axes.annotate(
            "",
            xy=end,
            xytext=end - PUSH_MAGNIFIED * push,
            zorder=5,
            arrowprops={
                "arrowstyle": "-|>",
                "color": _PUSH,
                "lw": 1.1,
                "mutation_scale": 7,
                "shrinkA": 0,
                "shrinkB": 2,
            },
        )


def _path(axes: Any, episode: Episode, pushes: np.ndarray | None, step: int) -> None:
    path, headings = episode.path[: step + 1], np.asarray(episode.states.pose)[: step + 1, 2]
    axes.plot(*path.T, "-", color=_PATH, lw=1.6, zorder=3)
    axes.plot(*path[0], "o", ms=8, mfc="white", mec=_PATH, mew=1.8, zorder=4)
    axes.quiver(
        *path[1:].T,
        np.cos(headings[1:]),
        np.sin(headings[1:]),
        color=_PATH,
        angles="xy",
        scale_units="xy",
        scale=3.0,
        width=0.0035,
        headwidth=5,
        headlength=5.5,
        headaxislength=5,
        pivot="tail",
        zorder=4,
    )
    axes.plot(*path[1:].T, "o", color=_PATH, ms=3.2, zorder=4)
    # A number where the path has moved on far enough from the last one to leave room for it.
    numbered = path[0]
    for t in range(1, step + 1):
        if t == step or np.linalg.norm(path[t] - numbered) > 0.8:
            numbered = path[t]
            beside = np.array([np.sin(headings[t]), -np.cos(headings[t])])
            if pushes is not None and pushes[t - 1] @ beside < 0:  # not where its arrow comes from
                beside = -beside
            axes.annotate(
                str(t),
                path[t],
                xytext=9 * beside,
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=7.5,
                color=_PATH,
                zorder=6,
                path_effects=_halo(),
            )


def _legend(axes: Any, pushes: bool) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, **look: Any) -> Any:
        return Line2D([], [], **{"linestyle": "none", **look}, label=label)

    handles = [
        entry("start", marker="o", ms=8, mfc="white", mec=_PATH, mew=1.8),
        entry("path, numbered by step,\narrows: heading", color=_PATH, linestyle="-", marker=">"),
        entry(f"apple, pays +10 ({APPLES})", marker="o", ms=8, color=_APPLE),
        entry(f"bomb, pays −1, costs 1 ({OBJECTS - APPLES})", marker="D", ms=7, color=_BOMB),
        entry("caught within this circle", marker="o", ms=14, mfc="none", mec=_QUIET, mew=0.8),
        entry("caught, and gone", marker="x", ms=10, mew=1.6, color=_QUIET),
    ]
    if pushes:
        label = f"nature's push\n(drawn {PUSH_MAGNIFIED}× as long)"
        handles.append(entry(label, marker=r"$\rightarrow$", ms=15, color=_PUSH))
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.01, 0.97),
        frameon=False,
        borderaxespad=0,
        labelspacing=1.1,
        fontsize=8.5,
    )
