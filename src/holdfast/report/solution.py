"""A solved model: the folder that `holdfast solve` writes and `holdfast certify` reads."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast._support.files import atomic_write, write_json
from holdfast.experiments.results import ConstraintThreshold, columns
from holdfast.experiments.store import model_digest
from holdfast.model import RobustCMDP
from holdfast.report.tables import versions, write_csv

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.tabular.solve import Solution

POLICY_FILE = "policy.npz"
MODEL_FILE = "model.npz"


def write_solution(
    folder: Path, model: RobustCMDP, solution: Solution, settings: Mapping[str, Any]
) -> None:
    """Writes `policy.npz`, `model.npz`, `history.csv`, `solution.json`, and `certificate.json` if any.

    Arguments:
        folder: made if it is not there.
        model: what was solved.
        solution: what came out.
        settings: what `solve` was called with.
    """
    model.save(folder / MODEL_FILE)
    with atomic_write(folder / POLICY_FILE) as file:
        np.savez_compressed(file, policy=solution.policy)
    table = columns(solution.history, ConstraintThreshold.of(model))
    write_csv(folder / "history.csv", list(table), zip(*table.values(), strict=True))
    evaluation = solution.evaluation
    reward = evaluation.reward
    write_json(
        folder / "solution.json",
        {
            "status": solution.status,
            "settings": settings,
            "reward": {"worst": reward.worst, "nominal": reward.nominal, "error": reward.error},
            "constraints": [
                {
                    "constraint": str(constraint),
                    "sense": constraint.sense,
                    "threshold": constraint.threshold,
                    "worst": found.worst,
                    "nominal": found.nominal,
                    "margin": found.margin,
                    "error": found.error,
                }
                for constraint, found in zip(model.constraints, evaluation.constraints, strict=True)
            ],
            "attainable": solution.attainable,
            "model_sha256": model_digest(model),
            "versions": versions(),
        },
    )
    if solution.certificate is not None:
        write_json(folder / "certificate.json", solution.certificate.to_dict())


def read_model(given: str) -> RobustCMDP:
    """A model by name, from a file that `RobustCMDP.save` wrote, or from the folder of a run.

    A name goes first: a file called gambler is `./gambler`.

    Raises:
        ValueError: there is no such model; the message names it.
    """
    from holdfast.environments import MODELS

    if given in MODELS:
        return MODELS[given]()
    path = Path(given) / MODEL_FILE if Path(given).is_dir() else Path(given)
    if not path.is_file():
        raise ValueError(f"{given}: neither a file nor one of the models {', '.join(MODELS)}")
    return RobustCMDP.load(path)


def read_policy(path: str | os.PathLike[str]) -> np.ndarray:
    """A policy from a `.npz` file with the array "policy", a `.npy` file, or a folder of a run.

    Raises:
        ValueError: there is no policy there; the message names the path.
    """
    file = Path(path) / POLICY_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    try:
        # Opened here, since np.load leaves a file that it cannot read open.
        with file.open("rb") as opened:
            loaded = np.load(opened, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            if "policy" not in loaded:
                raise ValueError('it has no array "policy"')
            return loaded["policy"]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file}: not a policy: {error}") from error


def solution_table(model: RobustCMDP, solution: Solution) -> Table:
    """The solution as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    evaluation = solution.evaluation
    table = Table(
        "", title=f"{solution.algorithm.upper()}: {solution.status}", title_justify="left"
    )
    for heading in ("threshold", "worst case", "nominal", "margin"):
        table.add_column(heading, justify="right")
    reward = evaluation.reward
    table.add_row("reward", "", f"{reward.worst:.6g}", f"{reward.nominal:.6g}", "")
    for constraint, found in zip(model.constraints, evaluation.constraints, strict=True):
        kept = found.margin - found.error >= 0
        table.add_row(
            constraint.name or ("utility" if constraint.sense == "at_least" else "cost"),
            f"{'≥' if constraint.sense == 'at_least' else '≤'} {constraint.threshold:g}",
            f"{found.worst:.6g}",
            f"{found.nominal:.6g}",
            Text(f"{found.margin:+.3g}", "green" if kept else "bold red"),
        )
    return table
