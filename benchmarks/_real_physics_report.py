"""The table and the figure of `real_physics.py`, from the folders of its jobs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.simulators.certificates.stress_result import DRAWN, Row, Stress

# Files of a job: how far its training is, and the test of its policy.
ROW, TEST = "row.json", "stress.json"
PARAMETERS = ("mass", "friction")
# Methods whose curves the figure shows; the others are points in its last panel.
_CURVES = ("rcpo", "pcpo", "randomised")
# Marks of a method's variants in the last panel, by words in their labels.
_MARKERS = {"1/2": "v", "1/4": "*", "margin": "D", "": "o"}
_COLOURS = {"rcpo": "#0072b2", "pcpo": "#d55e00", "randomised": "#e69f00", "cpo": "#009e73"}


@dataclasses.dataclass(frozen=True)
class Tested:
    """One trained policy and its test.

    Attributes:
        rows: the rows of its test.
        training: what `real_physics.py` wrote about its training.
    """

    rows: Sequence[Row]
    training: Mapping[str, Any]

    def of(self, parameter: str, level: float) -> tuple[float, float]:
        """Return the reward of drawn actions, and the larger cost of drawn and most likely actions."""
        found = [row for row in self.rows if (row.subject, row.level) == (parameter, level)]
        reward = next(row.reward.mean for row in found if row.actions == DRAWN)
        return reward, max(row.costs[0].mean for row in found)

    def levels(self, parameter: str) -> list[float]:
        """Return the tested levels of a parameter."""
        return sorted({row.level for row in self.rows if row.subject == parameter})

    @property
    def largest(self) -> tuple[float, str]:
        """The largest cost over all levels and both ways of acting, and its level in words."""
        tests = [
            (self.of(name, x)[1], f"{name} {x:g}") for name in PARAMETERS for x in self.levels(name)
        ]
        return max(tests)


def read(folder: Path) -> Tested | None:
    """Return the test of a job, or None if there is none yet."""
    if not (folder / TEST).is_file():
        return None
    return Tested(Stress.load(folder / TEST).rows, json.loads((folder / ROW).read_text()))


def report(task: str, limit: float, folders: Mapping[str, Sequence[Path]], out: Path) -> None:
    """Print the tables of one task, and write them with the figure.

    Arguments:
        task: name of the task.
        limit: limit of its cost.
        folders: folders of the jobs by the label of their method.
        out: folder that receives table.md and figure.png.
    """
    found = {label: [r for r in map(read, every) if r] for label, every in folders.items()}
    found = {label: every for label, every in found.items() if every}
    if not found:
        print(f"{task}: no job has a result yet")
        return
    planned = {label: len(every) for label, every in folders.items()}
    text = "\n".join([*summary(limit, found, planned), "", *by_level(limit, found)]) + "\n"
    (out / "table.md").write_text(text)
    print(f"{task}, limit {limit:g}\n\n{text}")
    draw(out / "figure.png", task, limit, found)


def summary(
    limit: float, found: Mapping[str, Sequence[Tested]], planned: Mapping[str, int]
) -> list[str]:
    """Return a table with one line per method, over its seeds."""
    lines = [
        "| method | seeds | iterations | simulator steps, millions | nominal reward | of PCPO | "
        "nominal cost | largest cost | at | seeds within the limit |",
        "|---" * 10 + "|",
    ]
    for label, count in planned.items():
        if label not in found:
            lines.append(f"| {label} | 0 of {count} |" + " not run |" + " |" * 7)
            continue
        every = found[label]
        nominal = np.array([each.of("mass", 1.0) for each in every])
        worst = [each.largest for each in every]
        of_pcpo = ""
        if "pcpo" in found:
            base = np.mean([each.of("mass", 1.0)[0] for each in found["pcpo"]])
            of_pcpo = f"{100 * nominal[:, 0].mean() / base:.0f} %"
        iterations = sorted({each.training["iteration"] for each in every})
        steps = np.mean([each.training["simulated_steps"] for each in every]) / 1e6
        cells = [
            label,
            f"{len(every)} of {count}",
            "–".join(map(str, sorted({iterations[0], iterations[-1]}))),
            f"{steps:.1f}",
            spread(nominal[:, 0]),
            of_pcpo,
            spread(nominal[:, 1]),
            spread(np.array([cost for cost, _ in worst]), limit),
            max(worst)[1],
            f"{sum(cost <= limit for cost, _ in worst)} of {len(every)}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def spread(values: np.ndarray, limit: float = np.inf) -> str:
    """Return the mean and the range of some values; bold if the largest is over the limit."""
    text = f"{values.mean():.1f}"
    if len(values) > 1:
        text += f" ({values.min():.1f} to {values.max():.1f})"
    return f"**{text}**" if values.max() > limit else text


def by_level(limit: float, found: Mapping[str, Sequence[Tested]]) -> list[str]:
    """Return a table with one line per level: mean reward, and the largest cost over seeds."""
    shown = [label for label in found if len(found[label]) > 1 or label in _CURVES]
    lines = [
        "| | " + " | ".join(f"{label}: reward | largest cost" for label in shown) + " |",
        "|---" * (1 + 2 * len(shown)) + "|",
    ]
    for name in PARAMETERS:
        for level in found[shown[0]][0].levels(name):
            cells = []
            for label in shown:
                values = np.array([each.of(name, level) for each in found[label]])
                cost = f"{values[:, 1].max():.1f}"
                cost = f"**{cost}**" if values[:, 1].max() > limit else cost
                cells.append(f"{values[:, 0].mean():.1f} | {cost}")
            lines.append(f"| {name} × {level:g} | " + " | ".join(cells) + " |")
    return lines


def draw(path: Path, task: str, limit: float, found: Mapping[str, Sequence[Tested]]) -> None:
    """Draw costs and rewards against mass and friction, and nominal reward against largest cost."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12, 6.4), layout="constrained")
    for column, name in enumerate(PARAMETERS):
        for row, what in enumerate(("reward", "cost")):
            axis = axes[row, column]
            for label in (each for each in _CURVES if each in found):
                levels = found[label][0].levels(name)
                curves = np.array([[s.of(name, x)[row] for x in levels] for s in found[label]])
                colour = _COLOURS[label]
                axis.plot(levels, curves.mean(0), "o-", ms=3, color=colour, label=label)
                axis.fill_between(levels, curves.min(0), curves.max(0), color=colour, alpha=0.15)
            axis.set_ylabel(f"{what} of an episode")
            axis.set_xlabel(f"{name}, of nominal")
        axes[1, column].axhline(limit, color="black", linewidth=0.8, linestyle=":")
    for row in axes:
        ends = np.array([axis.get_ylim() for axis in row[:2]])
        for axis in row[:2]:
            axis.set_ylim(min(0.0, ends[:, 0].min()), ends[:, 1].max())
    axes[0, 0].legend(frameon=False)
    right = axes[0, 2]
    axes[1, 2].remove()
    right.set_subplotspec(right.get_subplotspec().get_gridspec()[:, 2])
    unlimited = found.get("trpo", [])
    for label, every in found.items():
        if every is unlimited:
            continue
        points = np.array([(each.largest[0], each.of("mass", 1.0)[0]) for each in every])
        kind = next(name for name in _COLOURS if label.startswith(name))
        rest = label.removeprefix(kind)
        marker = next(mark for words, mark in _MARKERS.items() if words in rest)
        right.scatter(*points.T, color=_COLOURS[kind], marker=marker, s=32, label=label)
    right.legend(frameon=False, fontsize=8, loc="lower right")
    right.axvline(limit, color="black", linewidth=0.8, linestyle=":")
    right.set_xlabel("largest cost over masses and frictions")
    right.set_ylabel("nominal reward of an episode")
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{task}: mean and range over seeds; the dotted line is the limit")
    figure.savefig(path, dpi=120)
