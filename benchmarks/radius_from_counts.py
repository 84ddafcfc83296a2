"""Size of the sets from counts, beside the size that would have been enough.

    python benchmarks/radius_from_counts.py [--repetitions 200] [--out FILE]

A hundred pairs with four successors each are visited n times, in many repetitions. The figure shows the
radius at 95 % confidence over all pairs, and the 95 % quantile over the repetitions of the distance of
the true rows from the nominal rows in the worst pair: the radius that hindsight would choose. The table
shows the share of repetitions in which the set contained the true kernel, for both kinds of sampling.
A second table shows the price of adaptive sampling, whose sets hold for all n at once: its size divided
by the size for fixed n.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.stats import chi2

import holdfast as hf

CONFIDENCE, PAIRS = 0.95, 100
SAMPLING = ("fixed", "adaptive")
TRUE = np.array([0.6, 0.3, 0.09, 0.01])
VISITS = np.unique(np.round(np.logspace(0.5, 6, 12)).astype(int))
OUT = Path(__file__).parents[1] / "docs" / "images" / "radius-against-counts.png"
# Okabe and Ito's palette, told apart with any common colour blindness.
SET_COLOUR, SEEN_COLOUR, NAIVE_COLOUR, ADAPTIVE_COLOUR = "#0072b2", "#d55e00", "#4d4d4d", "#009e73"


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return KL(p‖q); all of p is positive here."""
    with np.errstate(divide="ignore"):
        return (p * np.log(p / q)).sum(-1)


def one_repetition(n: int, rng: np.random.Generator) -> dict[str, tuple[float, float, bool]]:
    """Return the mean size of the set, the size that was needed, and whether it held the truth."""
    counts = rng.multinomial(n, TRUE, (PAIRS, 1))
    found = {}
    for sampling in SAMPLING:
        for name, values in sizes(counts, sampling).items():
            found[f"{name}, {sampling}"] = values
    # What Wilks' theorem says of one pair, for large n, with the two arguments the other way round.
    naive = chi2.ppf(CONFIDENCE, TRUE.size - 1) / (2 * n)
    distance = divergence(TRUE, counts / n)
    found["naive"] = (naive, distance.max(), (distance <= naive).all())
    return found


def sizes(counts: np.ndarray, sampling: str) -> dict[str, tuple[float, float, bool]]:
    """Return the mean size, the size that was needed, and the coverage, for the three sets."""
    lists = np.broadcast_to(np.arange(TRUE.size), counts.shape)
    options = {"confidence": CONFIDENCE, "successors": lists, "sampling": sampling}
    kernel, ball = hf.KL.from_counts(counts, **options)
    radius = ball.radius
    distance = divergence(TRUE, kernel.probabilities)
    found = {"kl": (radius.mean(), distance.max(), (distance <= radius).all())}
    kernel, ball = hf.TotalVariation.from_counts(counts, **options)
    radius = ball.radius
    distance = np.abs(TRUE - kernel.probabilities).sum(-1) / 2
    found["tv"] = (radius.mean(), distance.max(), (distance <= radius).all())
    kernel, box = hf.Interval.from_counts(counts, **options)
    lower, upper = box.lower, box.upper
    error = TRUE - kernel.probabilities
    inside = ((lower <= TRUE) & (upper >= TRUE)).all()
    # What each entry would have needed: room for its largest error upwards, and for that downwards.
    needed = (error.max((0, 1)) - error.min((0, 1))).mean()
    found["interval"] = ((upper - lower).mean(), needed, inside)
    return found


def measure(repetitions: int) -> dict[str, np.ndarray]:
    """Return the size, the needed size and the coverage, for each set and each n."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for n in VISITS:
        found = [one_repetition(int(n), rng) for _ in range(repetitions)]
        for name in found[0]:
            size, needed, inside = (
                np.array(x) for x in zip(*(f[name] for f in found), strict=True)
            )
            quantile = float(np.quantile(needed, CONFIDENCE, method="higher"))
            rows.setdefault(name, []).append((size.mean(), quantile, inside.mean()))
    return {name: np.array(values) for name, values in rows.items()}


def draw(measured: dict[str, np.ndarray], out: Path) -> None:
    mpl.use("agg")
    from matplotlib import pyplot as plt

    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#666666",
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
    }
    titles = {
        "kl": ("Kullback–Leibler", "radius"),
        "tv": ("Total variation", "radius"),
        "interval": ("Interval", "mean width of an entry"),
    }
    with plt.rc_context(style):
        figure, panels = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
        for panel, (name, (title, label)) in zip(panels, titles.items(), strict=True):
            size, needed, _ = measured[f"{name}, fixed"].T
            panel.loglog(
                VISITS, size, color=SET_COLOUR, lw=2.2, label="from counts, 95 % over 100 pairs"
            )
            panel.loglog(
                VISITS,
                measured[f"{name}, adaptive"][:, 0],
                color=ADAPTIVE_COLOUR,
                lw=1.6,
                ls=(0, (6, 1, 1, 1)),
                label="adaptive sampling",
            )
            panel.loglog(
                VISITS,
                needed,
                color=SEEN_COLOUR,
                lw=1.6,
                ls=(0, (4, 1.5)),
                marker="o",
                ms=3.5,
                label="needed in hindsight (95 % quantile)",
            )
            if name == "kl":
                panel.loglog(
                    VISITS,
                    measured["naive"][:, 0],
                    color=NAIVE_COLOUR,
                    lw=1.8,
                    ls=(0, (1, 1.2)),
                    label="naive and wrong: χ² quantile / 2n",
                )
            panel.set(title=title, xlabel="visits n of each pair", ylabel=label)
            panel.grid(color="#dddddd", lw=0.6)
            panel.set_axisbelow(True)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(out, dpi=160)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    measured = measure(arguments.repetitions)
    draw(measured, arguments.out)
    print("| n | set | size | needed | ratio | whole kernel inside |")
    print("|---|---|---|---|---|---|")
    for i, n in enumerate(VISITS):
        for name, values in measured.items():
            size, needed, inside = values[i]
            print(
                f"| {n} | {name} | {size:.3g} | {needed:.3g} | {size / needed:.2f} | {inside:.3f} |"
            )
    print("\nThe price of adaptive sampling:\n\n| n | kl | tv | interval |\n|---|---|---|---|")
    for i, n in enumerate(VISITS):
        sets = ("kl", "tv", "interval")
        price = [measured[f"{s}, adaptive"][i, 0] / measured[f"{s}, fixed"][i, 0] for s in sets]
        print(f"| {n} | " + " | ".join(f"{x:.2f}" for x in price) + " |")


if __name__ == "__main__":
    main()
