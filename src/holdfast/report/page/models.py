"""Sections about tables: solved models, and comparisons of algorithms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import registry
from holdfast._support.files import read_json
from holdfast.experiments.results import ConstraintThreshold, Results, smallest_margins
from holdfast.experiments.store import model_digest
from holdfast.model import RobustCMDP, policy_of
from holdfast.model.policy_table import policy_table
from holdfast.report import charts
from holdfast.report.charts import Chart, Limit, Series, label_of, styles_of
from holdfast.report.comparison import algorithm_rows
from holdfast.report.page.certificate import margin_text, value_text, values_card
from holdfast.report.page.content import Block, Cell, Lines, PageTable, Scatter, Section, details
from holdfast.report.page.data import data_blocks
from holdfast.report.page.kernels import kernel_blocks
from holdfast.report.records import check_not_newer
from holdfast.report.solution import (
    CERTIFICATE_FILE,
    MODEL_FILE,
    POLICY_FILE,
    SOLUTION_FILE,
    read_policy,
)
from holdfast.tabular.certify import gap_text

# The kernels of a comparison are shown for a run of this algorithm, if there is one.
_PREFERRED = "rcpo"
# Policies of larger models are not listed on the page; `policy.csv` has them.
_MOST_STATES_LISTED = 200


def solution_sections(folder: Path) -> list[Section]:
    """Return the only section of a folder that `holdfast solve` wrote.

    Raises:
        ValueError: a file is damaged or was written by a newer version; the message names the file.
    """
    solution = read_json(folder / SOLUTION_FILE, "a solution")
    check_not_newer(solution["versions"])
    status, settings = solution["status"], solution["settings"]
    model = RobustCMDP.load(folder / MODEL_FILE)
    policy = policy_of(model, read_policy(folder), POLICY_FILE)
    history = _read_columns(folder / "history.csv")
    certificate = folder / CERTIFICATE_FILE
    certified = certificate.is_file()
    about_set = uncertainty_in_words(model)
    blocks: list[Block] = [
        values_card(read_json(certificate, "a certificate") if certified else solution, about_set),
        *_policy_blocks(model, policy),
        *data_blocks(model),
        *_history_blocks(history, settings["algorithm"], ConstraintThreshold.of(model)),
        *kernel_blocks(model, policy),
        details("settings", "Configuration", settings),
        details("versions", "Versions", solution["versions"]),
    ]
    facts = [
        Cell(status, "good" if status == "feasible" else "bad"),
        Cell(f"{model.states} states, {model.actions} actions"),
        Cell(about_set),
        Cell("certified" if certified else "not certified"),
    ]
    title = f"{settings['environment']}, {label_of(settings['algorithm'])}"
    return [Section(f"solution {folder}", title, [str(folder)], facts, blocks)]


def _policy_blocks(model: RobustCMDP, policy: np.ndarray) -> list[Block]:
    """Return the policy as a table with names; nothing for models with more than 200 states."""
    if model.states > _MOST_STATES_LISTED:
        return []
    table = policy_table(model, policy)
    head, rows = table.to_cells()
    title = "Policy" if not table.deterministic else "Policy, one action in each state"
    words = [i for i, name in enumerate(head) if name != "probability"]
    return [PageTable("policy", title, head, [[*map(Cell, row)] for row in rows], words)]


def _read_columns(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a CSV file; text becomes NaN."""
    try:
        table = np.atleast_1d(np.genfromtxt(path, delimiter=",", names=True))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error
    return {name: table[name] for name in table.dtype.names or ()}


def uncertainty_in_words(model: RobustCMDP) -> str:
    """Return the uncertainty set of a model, as text.

    Example:
        >>> import holdfast as hf
        >>> uncertainty_in_words(hf.environments.gambler())
        'the KL ball of radius 0.1'
    """
    found = model.uncertainty
    if found is None:
        return "the nominal kernel alone"
    names = [name for name in registry.UNCERTAINTY if registry.UNCERTAINTY[name] is type(found)]
    name = names[0] if names else type(found).__name__
    radius = getattr(found, "radius", None)
    if name == "interval" or radius is None:
        return "the given intervals" if name == "interval" else f"the set {name}"
    words = {"kl": "KL"}.get(name, name.replace("-", " "))
    low, high = float(np.min(radius)), float(np.max(radius))
    size = f"radius {low:g}" if low == high else f"radii from {low:g} to {high:g}"
    return f"the {words} ball of {size}"


def _history_blocks(
    history: Mapping[str, np.ndarray], algorithm: str, bounds: Sequence[ConstraintThreshold]
) -> list[Block]:
    """Return reward and constraints against iterations, worst case and nominal."""
    style = styles_of([algorithm])[algorithm]
    axis = charts.iteration_axis(int(history["iteration"][-1]))

    def chart(name: str, column: str, limits: Sequence[Limit] = ()) -> Chart:
        x = history["iteration"]
        worst = Series("worst case", *style, x, history[column])
        nominal = Series("nominal", style.colour, "dotted", x, history[f"nominal_{column}"])
        return Chart(name, axis, name, [worst, nominal], limits)

    reward = chart("reward", "reward")
    blocks: list[Block] = [
        Lines("reward", "Reward", "Discounted reward of every iterate.", [reward])
    ]
    suffixes = [""] if len(bounds) == 1 else [f"_{i}" for i in range(len(bounds))]
    views = [
        chart(
            f"{bound.name or bound.kind}{suffix.replace('_', ' ')}",
            f"{bound.kind}{suffix}",
            [Limit.of(bound)],
        )
        for bound, suffix in zip(bounds, suffixes, strict=True)
    ]
    if views:
        title = "Constraint" if len(views) == 1 else "Constraints"
        about = "The constraint is violated on the shaded side of the threshold."
        blocks.append(Lines("constraints", title, about, views))
    return blocks


def comparison_section(folder: str, results: Results, version: str) -> Section:
    """Return the section of an experiment on one model with one radius.

    Arguments:
        folder: folder of the experiment.
        results: results of all algorithms.
        version: version of Holdfast that ran the experiment.
    """
    radius = "" if results.radius is None else f", radius {results.radius:g}"
    seeds = max(map(len, results.runs.values()))
    facts = [
        Cell(f"{len(results.runs)} algorithms"),
        Cell(f"{seeds} {'seed' if seeds == 1 else 'seeds'}"),
        *(Cell(Limit.of(bound).label) for bound in results.bounds),
    ]
    about = "A square is the start of a run, a disc or a cross its end."
    blocks: list[Block] = [
        *_curves(results),
        Scatter("against", "Worst-case reward against margin", about, charts.margin_plane(results)),
        _ends(results),
        *_kernels(results),
        details("settings", "Configuration", results.experiment.to_dict()),
        details("versions", "Versions", {"holdfast": version, "model_sha256": results.model}),
    ]
    title = f"{results.environment}{radius}"
    return Section(f"experiment {folder} {title}", title, [folder], facts, blocks)


def _curves(results: Results) -> list[Block]:
    about = "Mean over seeds; the band reaches from the lowest to the highest seed."
    rewards = [
        charts.iterate_chart(results, "worst-case reward", lambda run: run.history["reward"]),
        charts.iterate_chart(results, "nominal reward", lambda run: run.history["nominal_reward"]),
    ]
    blocks: list[Block] = [Lines("reward", "Reward", about, rewards)]
    zero = [Limit(0.0, "margin ≥ 0", "below")]
    margins: dict[str, Any] = {"smallest margin": lambda run: smallest_margins(run.history)}
    for i, bound in enumerate(results.bounds if len(results.bounds) > 1 else ()):
        name = f"margin of {bound.name or bound.kind} {i + 1}"
        margins[name] = lambda run, i=i: run.history["margins"][:, i]
    if results.bounds:
        about += " A constraint is violated below zero."
        views = [charts.iterate_chart(results, name, of, zero) for name, of in margins.items()]
        blocks.append(Lines("margin", "Margin in the worst case", about, views))
    return blocks


def _ends(results: Results) -> PageTable:
    head = ["", "worst-case reward", "nominal reward", "smallest margin", "feasible"]
    rows = []
    found = algorithm_rows([results])
    certified = not all(math.isnan(row.gap) for row in found)
    for row in found:
        feasible = round(row.feasible * row.runs)
        cells = [
            Cell(label_of(row.algorithm)),
            Cell(value_text(row.reward.value)),
            Cell(value_text(row.nominal_reward)),
            Cell(margin_text(row.margin), "good" if feasible == row.runs else "bad"),
            Cell(f"{feasible} of {row.runs}"),
        ]
        rows.append([*cells, Cell(gap_text(row.gap) or "–")] if certified else cells)
    head += ["certified gap"] * certified
    return PageTable("ends", "Last iterates, mean over seeds", head, rows)


def _kernels(results: Results) -> list[Block]:
    """Return the worst-case kernels of one run, if the model can be made here."""
    if results.environment not in registry.ENVIRONMENTS:
        return []
    model = registry.ENVIRONMENTS.find(results.environment)()
    if not isinstance(model, RobustCMDP):
        return []
    if results.radius is not None and model.uncertainty is not None:
        model = model.replace(uncertainty=model.uncertainty.with_radius(results.radius))
    if model_digest(model) != results.model:
        return []
    names = list(results.runs)
    algorithm = next((name for name in names if name.split()[0] == _PREFERRED), names[0])
    ended = results.runs[algorithm][0]
    return kernel_blocks(model, ended.policy, f"{label_of(algorithm)}, seed {ended.job.seed}")
