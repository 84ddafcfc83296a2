"""Pictures of the uncertainty sets: rows of three probabilities in a triangle.

    python benchmarks/draw_sets.py [--out FILE]

A point of the triangle is a row q over three states; at a corner, all mass is on one state. Each panel
shows one set around the same nominal row at three radii, with nature's worst response to the same
values. The dashed line joins the rows with the same q·y as the last response; it touches the set.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

import holdfast as hf

NOMINAL = np.array([0.5, 0.3, 0.2])
VALUES = np.array([1.0, 0.2, 0.0])
LINE = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
LOWER, UPPER = np.array([0.36, 0.2, 0.16]), np.array([0.58, 0.45, 0.34])
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
OUT = Path(__file__).parents[1] / "docs" / "images" / "sets.png"
STEPS = 240

# Okabe and Ito's palette, told apart with any common colour blindness; shades by lightness.
SHADES = ("#0072b2", "#6fb1d9", "#cfe4f2")
ANSWER, INK, FAINT = "#d55e00", "#222222", "#8a8a8a"

PANELS = [
    (hf.KL(0.0), (0.02, 0.1, 0.3), "Kullback–Leibler", "KL(q‖p) ≤ R"),
    (hf.ChiSquare(0.0), (0.04, 0.2, 0.6), "Chi-square", "Σ (q − p)²/p ≤ R"),
    (hf.TotalVariation(0.0), (0.05, 0.12, 0.25), "Total variation", "½‖q − p‖₁ ≤ R"),
    (hf.Contamination(0.0), (0.1, 0.2, 0.4), "Contamination", "q = (1 − R)·p + R·u"),
    (
        hf.Wasserstein(0.0, metric=LINE),
        (0.1, 0.2, 0.4),
        "Wasserstein",
        "W₁(q, p) ≤ R, states on a line",
    ),
    (hf.Interval(LOWER, UPPER), (0.5, 1.0, 1.5), "Interval", "lower ≤ q ≤ upper at R = 1"),
]


def divergence(ball: hf.UncertaintySet, q: np.ndarray) -> np.ndarray:
    """Return the distance of rows from the nominal row, in the set's own measure.

    W₁ on a line is the sum of |differences| of the distribution functions; the set's general method
    would solve a linear program for every row.
    """
    if isinstance(ball, hf.Wasserstein):
        return np.abs(np.cumsum(q - NOMINAL, axis=-1)).sum(-1)
    return np.asarray(ball.divergence(np.broadcast_to(NOMINAL, q.shape), q))


def answers(ball: hf.UncertaintySet, radii: np.ndarray) -> np.ndarray:
    """Return the worst response at each radius."""
    p, y = (np.tile(row, (len(radii), 1)) for row in (NOMINAL, VALUES))
    return np.asarray(ball.with_radius(radii).worst_response(p, y))


def grid() -> np.ndarray:
    """Return rows from the whole simplex."""
    i, j = np.meshgrid(np.arange(STEPS + 1), np.arange(STEPS + 1), indexing="ij")
    inside = i + j <= STEPS
    first, second = i[inside] / STEPS, j[inside] / STEPS
    return np.stack([first, second, np.maximum(1 - first - second, 0.0)], axis=-1)


def level_line(level: float) -> np.ndarray:
    """Return the two ends, on the edges of the triangle, of the rows with q·y at this level."""
    ends = []
    for i, j in ((0, 1), (1, 2), (2, 0)):
        share = (level - VALUES[j]) / (VALUES[i] - VALUES[j])
        if 0 <= share <= 1:
            ends.append(share * CORNERS[i] + (1 - share) * CORNERS[j])
    return np.array(ends[:2])


def draw(out: Path) -> None:
    mpl.use("agg")
    from matplotlib import pyplot as plt

    rows = grid()
    x, y = (rows @ CORNERS).T
    figure, panels = plt.subplots(2, 3, figsize=(11, 7.4), layout="constrained")
    for panel, (ball, radii, title, inequality) in zip(panels.flat, PANELS, strict=True):
        far = np.minimum(divergence(ball, rows), 10 * radii[-1])
        panel.tricontourf(x, y, far, levels=[-1.0, *radii], colors=SHADES)
        panel.tricontour(x, y, far, levels=radii, colors="white", linewidths=0.8)
        panel.plot(*np.vstack([CORNERS, CORNERS[:1]]).T, color=INK, lw=1.1)
        worst = answers(ball, np.array(radii))
        line = level_line(float(worst[-1] @ VALUES))
        panel.plot(*line.T, color=FAINT, lw=1.0, ls=(0, (4, 3)))
        path = answers(ball, np.linspace(0, radii[-1], 41)) @ CORNERS
        panel.plot(*path.T, color=ANSWER, lw=1.8)
        panel.plot(*(worst @ CORNERS).T, "o", color=ANSWER, ms=5.5, mec="white", mew=0.9)
        panel.plot(*path[0], "o", color=INK, ms=6, mec="white", mew=0.9)
        for k, (corner, align) in enumerate(zip(CORNERS, ("left", "right", "center"), strict=True)):
            below = k < 2
            panel.text(
                corner[0] + (-0.06, 0.06, 0.0)[k],
                corner[1] + (-0.035 if below else 0.03),
                f"state {k}, y = {VALUES[k]:g}",
                ha=align,
                va="top" if below else "bottom",
                fontsize=9.5,
                color=INK,
            )
        shown = ", ".join(f"{r:g}" for r in radii)
        panel.set_title(title, fontsize=12.5, fontweight="bold", color=INK, pad=18)
        panel.text(
            0.5, 1.01, f"{inequality};  R = {shown}", transform=panel.transAxes, ha="center",
            va="bottom", fontsize=9.5, color=INK,
        )  # fmt: skip
        panel.set(xlim=(-0.08, 1.08), ylim=(-0.12, 0.98), aspect="equal")
        panel.axis("off")
    handles = [
        plt.Line2D([], [], ls="", marker="o", color=INK, label="nominal row p"),
        plt.Line2D([], [], marker="o", color=ANSWER, label="worst response to y, at each R"),
        plt.Line2D([], [], color=FAINT, ls=(0, (4, 3)), label="rows with the same q·y"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(out, dpi=150, bbox_inches="tight", pad_inches=0.15)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()
