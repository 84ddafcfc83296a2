"""The folder of a solved model: `holdfast solve` writes it, and `holdfast certify` reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast import registry
from holdfast._support.archives import is_array, read_array, read_arrays
from holdfast._support.files import atomic_write, write_json
from holdfast.experiments.results import ConstraintThreshold, columns
from holdfast.experiments.store import model_digest
from holdfast.model import RobustCMDP
from holdfast.report.tables import versions, write_csv
from holdfast.verbs import as_model

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.tabular.solve import Solution

POLICY_FILE = "policy.npz"
MODEL_FILE = "model.npz"
SOLUTION_FILE = "solution.json"
CERTIFICATE_FILE = "certificate.json"


def write_solution(
    folder: Path, model: RobustCMDP, solution: Solution, settings: Mapping[str, Any]
) -> None:
    """Write the files of a solved model into a folder.

    They are `policy.npz`, `policy.csv` (with names, for people), `model.npz`, `history.csv`,
    `solution.json` and, if any, `certificate.json`.

    Arguments:
        folder: the folder, created if necessary.
        model: the solved model.
        solution: the result of `solve`.
        settings: the arguments of `solve`, with the names "environment" and "algorithm".

    Example:
        >>> import pathlib, tempfile
        >>> import holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> settings = {"environment": "n-chain", "algorithm": "rcpo"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_solution(pathlib.Path(folder), model, hf.solve(model, iterations=2), settings)
        ...     sorted(path.name for path in pathlib.Path(folder).iterdir())
        ['history.csv', 'model.npz', 'policy.csv', 'policy.npz', 'solution.json']
    """
    model.save(folder / MODEL_FILE)
    with atomic_write(folder / POLICY_FILE) as file:
        np.savez_compressed(file, policy=solution.policy)
    solution.table().to_csv(folder / "policy.csv")
    table = columns(solution.history, ConstraintThreshold.of(model))
    write_csv(folder / "history.csv", list(table), zip(*table.values(), strict=True))
    evaluation = solution.evaluation
    reward = evaluation.reward
    write_json(
        folder / SOLUTION_FILE,
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
            "price_of_determinism": None if solution.stochastic is None else solution.price,
            "model_sha256": model_digest(model),
            "versions": versions(),
        },
    )
    if solution.certificate is not None:
        write_json(folder / CERTIFICATE_FILE, solution.certificate.to_dict())


def read_model(given: str) -> RobustCMDP:
    """Return a model by its registered name, from a model file, or from the folder of a run.

    A registered name takes precedence: for a file called gambler write `./gambler`.

    Raises:
        ValueError: there is no such model.

    Example:
        >>> read_model("n-chain").states
        40
    """
    is_folder = given not in registry.ENVIRONMENTS and Path(given).is_dir()
    return as_model(Path(given) / MODEL_FILE if is_folder else given)


def read_policy(path: str | os.PathLike[str]) -> np.ndarray:
    """Return a policy from a `.npz` file with the array "policy", a `.npy` file, or a run folder.

    Raises:
        ValueError: the file does not exist or has no policy; the message names its path.
    """
    file = Path(path) / POLICY_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    try:
        if is_array(file):
            return read_array(file)
        found = read_arrays(file, lambda name: name in ("policy", "header"))
        if "policy" not in found:
            hint = "; it is a model" if "header" in found else ""
            raise ValueError(f'it has no array "policy"{hint}')
        return found["policy"]
    except (ValueError, OSError) as error:
        raise ValueError(f"{file}: not a policy: {error}") from error


def solution_table(model: RobustCMDP, solution: Solution) -> Table:
    """Return the solution as a table for a terminal."""
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
    for bound, found in zip(ConstraintThreshold.of(model), evaluation.constraints, strict=True):
        kept = found.margin - found.error >= 0
        table.add_row(
            bound.name or bound.kind,
            f"{'≥' if bound.kind == 'utility' else '≤'} {bound.threshold:g}",
            f"{found.worst:.6g}",
            f"{found.nominal:.6g}",
            Text(f"{found.margin:+.3g}", "green" if kept else "bold red"),
        )
    return table
