"""A folder that `holdfast solve` wrote, as a section."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from holdfast.experiments.results import ConstraintThreshold
from holdfast.model import Kernel, RobustCMDP, check_policy
from holdfast.report.figures import iteration_ticks
from holdfast.report.page.certificate import certificate_card, evaluation_card
from holdfast.report.page.content import (
    Axis,
    Block,
    Cell,
    Details,
    Grid,
    Kernels,
    Limit,
    Lines,
    Section,
    Series,
    View,
    flat_entries,
    kept_rows,
    numbers,
)
from holdfast.report.page.grid import grid_block, map_of, signal_names
from holdfast.report.page.kernels import MOST_STATES, kernel_block
from holdfast.report.page.looks import label_of, looks_of
from holdfast.report.page.versions import check_not_newer
from holdfast.report.solution import MODEL_FILE, POLICY_FILE, read_policy

SOLUTION = "solution.json"
_HISTORY, _CERTIFICATE = "history.csv", "certificate.json"


def solution_section(folder: Path) -> Section:
    """Everything about a solved model.

    Raises:
        ValueError: the folder is damaged, or was written by a newer version; the message says where.
    """
    record = _json(folder / SOLUTION)
    check_not_newer(record["versions"])
    model = RobustCMDP.load(folder / MODEL_FILE)
    policy = check_policy(
        POLICY_FILE, read_policy(folder / POLICY_FILE), model.states, model.actions
    )
    settings = record["settings"]
    about_set = uncertainty_in_words(model)
    certified = (folder / _CERTIFICATE).is_file()
    blocks: list[Block] = [
        certificate_card(_json(folder / _CERTIFICATE), about_set)
        if certified
        else evaluation_card(record, about_set),
        *_curves(_history(folder / _HISTORY), settings["algorithm"], ConstraintThreshold.of(model)),
        *kernel_blocks(model, policy),
        Details("settings", "Configuration", flat_entries(settings)),
        Details("versions", "Versions", flat_entries(record["versions"])),
    ]
    feasible = record["status"] == "feasible"
    facts = [
        Cell(record["status"], "good" if feasible else "bad"),
        Cell(f"{model.states} states, {model.actions} actions"),
        Cell(about_set),
        Cell("certified" if certified else "not certified"),
    ]
    title = f"{settings['environment']}, {label_of(settings['algorithm'])}"
    return Section(f"solution {folder}", title, [str(folder)], facts, blocks)


def kernel_blocks(
    model: RobustCMDP, policy: Float[np.ndarray, "S A"], whose: str = ""
) -> list[Block]:
    """What nature does to the kernel: heat maps, and on grid worlds the map; none for large models.

    Arguments:
        model: the model.
        policy: that acts.
        whose: the policy is, for the titles.
    """
    import holdfast as hf

    if model.states > MOST_STATES:
        return []
    evaluation = hf.evaluate(model, policy)
    worst: dict[str, np.ndarray | Kernel] = {"reward": evaluation.reward.kernel}
    for name, found in zip(signal_names(model), evaluation.constraints, strict=True):
        worst[name] = found.kernel
    where = map_of(model)
    blocks: list[Grid | Kernels] = [kernel_block(model, policy, worst)]
    if where is not None:
        blocks.insert(0, grid_block(where, model, policy, worst))
    if not whose:
        return list(blocks)
    return [dataclasses.replace(block, title=f"{block.title}: {whose}") for block in blocks]


def uncertainty_in_words(model: RobustCMDP) -> str:
    """The uncertainty set of a model.

    Example:
        >>> import holdfast as hf
        >>> uncertainty_in_words(hf.environments.gambler())
        'the KL ball of radius 0.1'
    """
    from holdfast.uncertainty import SETS

    found = model.uncertainty
    if found is None:
        return "the nominal kernel alone"
    name = next(name for name, kind in SETS.items() if type(found) is kind)
    if name == "interval":
        return "the given intervals"
    words = {"kl": "KL"}.get(name, name.replace("-", " "))
    low, high = float(np.min(found.radius)), float(np.max(found.radius))
    radius = f"radius {low:g}" if low == high else f"radii from {low:g} to {high:g}"
    return f"the {words} ball of {radius}"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: damaged, not a record")
    return found


def _history(path: Path) -> dict[str, np.ndarray]:
    """The columns that are numbers."""
    try:
        with path.open(newline="") as file:
            head, *rows = list(csv.reader(file))
        columns = dict(zip(head, zip(*rows, strict=True), strict=True))
        return {
            name: np.array(values, float)
            for name, values in columns.items()
            if not set(values) <= {"True", "False"}
        }
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error


def _curves(
    history: Mapping[str, np.ndarray], algorithm: str, bounds: tuple[ConstraintThreshold, ...]
) -> list[Block]:
    """Reward and constraints against iterations, worst case and nominal."""
    look = looks_of([algorithm])[0]
    kept = kept_rows(len(history["iteration"]))
    iterations = history["iteration"]
    axis = Axis("iteration (square-root scale)", "sqrt", iteration_ticks(int(iterations[-1]) or 1))

    def both(column: str) -> list[Series]:
        pairs = (("worst case", column, look.dash), ("nominal", f"nominal_{column}", "dotted"))
        return [
            Series(
                label,
                look.colour,
                dash,
                numbers(iterations[kept]),
                numbers(history[each][kept]),
            )
            for label, each, dash in pairs
        ]

    blocks: list[Block] = [
        Lines(
            "reward",
            "Reward",
            "Discounted reward of every iterate.",
            [View("reward", axis, "reward", both("reward"))],
        )
    ]
    suffixes = [""] if len(bounds) == 1 else [f"_{i}" for i in range(len(bounds))]
    views = [
        View(name, axis, name, both(f"{bound.kind}{suffix}"), [limit_of(bound)])
        for bound, suffix in zip(bounds, suffixes, strict=True)
        for name in [f"{bound.name or bound.kind}{suffix.replace('_', ' ')}"]
    ]
    if views:
        blocks.append(
            Lines(
                "constraints",
                "Constraint" if len(views) == 1 else "Constraints",
                "The shaded side of the threshold is violated.",
                views,
            )
        )
    return blocks


def limit_of(bound: ConstraintThreshold) -> Limit:
    """The threshold of a constraint as a line."""
    utility = bound.kind == "utility"
    relation = "≥" if utility else "≤"
    return Limit(
        bound.threshold,
        f"{bound.name or bound.kind} {relation} {bound.threshold:g}",
        "below" if utility else "above",
    )
