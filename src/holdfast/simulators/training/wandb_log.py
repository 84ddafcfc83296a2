"""Metrics of a training run in Weights & Biases, if the user names a project."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.simulators.training import runs
from holdfast.simulators.training.runs import Row
from holdfast.simulators.training.tensorboard import scalars

RowLog = Callable[[Iterable[Row]], None]


@contextlib.contextmanager
def wandb_log(
    project: str | None, folder: Path | None, description: Mapping[str, Any]
) -> Iterator[RowLog]:
    """Yield a function that sends rows to a project, one run of Weights & Biases for each seed.

    Without a project the function does nothing. A run in a folder that resumes continues its runs there:
    their ids are made of the description and the seed. A failure while training stops no run.

    Raises:
        ValueError: the package `wandb` is not installed.
    """
    if project is None:
        yield lambda _: None
        return
    sent = {seed: _started(project, folder, description, seed) for seed in description["seeds"]}

    def log(rows: Iterable[Row]) -> None:
        try:
            for row in rows if sent else ():
                values = {tag: float(value) for tag, value in scalars(row, description)}
                sent[row["seed"]].log(values, step=row["iteration"])
        except Exception as error:
            warnings.warn(f"Weights & Biases receives no more rows: {error}", stacklevel=2)
            close()

    def close() -> None:
        for run in sent.values():
            with contextlib.suppress(Exception):
                run.finish()
        sent.clear()

    try:
        yield log
    finally:
        close()


def _started(project: str, folder: Path | None, description: Mapping[str, Any], seed: int) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ValueError('wandb: it is not installed; pip install "holdfast[wandb]"') from error
    name = f"{description['environment']['name']}-{description['algorithm']}-seed-{seed}"
    again: dict[str, Any] = {}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        again = {"id": f"{runs.fingerprint(description)[:24]}-{seed}", "resume": "allow"}
        again |= {"dir": str(folder)}
    return wandb.init(
        project=project, name=name, config=dict(description), reinit="create_new", **again
    )
