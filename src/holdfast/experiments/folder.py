"""An experiment's folder: what was run, and every finished job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast._support.files import write_text
from holdfast.experiments import store
from holdfast.experiments.configuration import Job, SolveSettings, TabularExperiment, cell_name
from holdfast.experiments.description import Experiment, experiment_from_dict
from holdfast.experiments.results import Result, Results

DESCRIPTION = "experiment.json"
FORMAT = "holdfast-experiment-1"


def write_description(folder: Path, experiment: Experiment, models: dict[str, str]) -> None:
    """Writes `experiment.json`.

    Arguments:
        folder: the experiment's.
        experiment: what is run.
        models: SHA-256 of the content of every model, by its cell.
    """
    content = {
        "format": FORMAT,
        "experiment": experiment.to_dict(),
        "models": models,
        "version": __version__,
    }
    write_text(folder / DESCRIPTION, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_description(folder: Path) -> tuple[Experiment, dict[str, str]]:
    """What was run, and the digests of its models.

    Raises:
        ValueError: the folder holds no experiment, a damaged one or one of a newer version.
    """
    path = folder / DESCRIPTION
    try:
        content: Any = json.loads(path.read_text())
        form = content["format"]
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged, not the description of an experiment") from error
    if form != FORMAT:
        made = content.get("version", "another version")
        raise ValueError(f"{path}: of the format {form!r}, made by {made}; this is {__version__}")
    try:
        return experiment_from_dict(content["experiment"]), dict(content["models"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error


def read_experiment(folder: Path) -> list[Results]:
    """What an experiment on tables has given so far, for each model and radius.

    Jobs that are not there, or that cannot be read, are left out; whichever version ran them.

    Raises:
        ValueError: the folder holds no experiment on tables; the message has its path.
    """
    experiment, models = read_description(folder)
    if not isinstance(experiment, TabularExperiment):
        raise ValueError(f"{folder / DESCRIPTION}: an experiment in simulators, not on tables")

    def described(job: Job) -> Result | None:
        try:
            result = store.read(folder / job.path)[1]
        except Exception:  # a damaged archive can raise nearly anything
            return None
        return result if result.job == job else None

    return collect(experiment, models, described)


Find = Callable[[Job], Result | None]


def finder(models: Mapping[str, str], folder: Path) -> Find:
    """What gives a job's result where its file is what this version would make of this model."""

    def find(job: Job) -> Result | None:
        return store.load(folder / job.path, store.fingerprint(job, models[job.cell]))

    return find


def collect(experiment: TabularExperiment, models: Mapping[str, str], find: Find) -> list[Results]:
    """The results of the jobs that are finished, for each model and radius that has any."""
    runs: dict[str, dict[str, list[Result]]] = {}
    for job in experiment.jobs(chosen(experiment, find)):
        result = find(job)
        if result is not None:
            runs.setdefault(job.cell, {}).setdefault(job.label, []).append(result)
    return [
        Results(experiment, runs[cell], models.get(cell, ""), environment, radius)
        for environment, radius in experiment.cells()
        if (cell := cell_name(environment, radius)) in runs
    ]


def chosen(experiment: TabularExperiment, find: Find) -> dict[tuple[str, str], SolveSettings]:
    """By cell and algorithm, the settings of the best of the finished runs of the search.

    Of those that are equally good it is the first.
    """
    best: dict[tuple[str, str], Result] = {}
    for job in experiment.search_jobs():
        result = find(job)
        if result is None:
            continue
        known = best.get((job.cell, job.algorithm))
        if known is None or result.merit > known.merit:
            best[job.cell, job.algorithm] = result
    return {key: result.job.settings for key, result in best.items()}
