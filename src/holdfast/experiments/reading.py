"""Descriptions of experiments in TOML files: the user's own, and those in the package."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from importlib.resources import files
from pathlib import Path

from holdfast._support.arguments import meant
from holdfast.experiments import robots  # noqa: F401  its kind of description
from holdfast.experiments.description import Experiment, TabularExperiment

_SUITES = files("holdfast.experiments") / "suites"


def suites() -> list[str]:
    """Return the names of the descriptions in the package.

    Example:
        >>> suites()
        ['paper', 'point-gather', 'radii', 'tabular', 'velocity', 'velocity-ablation']
    """
    return sorted(entry.name.removesuffix(".toml") for entry in _SUITES.iterdir())


def read_suite(name: str) -> Experiment:
    """Return a description in the package by its name.

    Example:
        >>> read_suite("paper").environments
        ('gambler', 'n-chain', 'frozen-lake')
    """
    if name not in suites():
        raise ValueError(f"{name}: no such experiment{meant(name, suites())}")
    return _parse((_SUITES / f"{name}.toml").read_text(), name, name)


def read_description(given: str | os.PathLike[str]) -> Experiment:
    """Return the description in a TOML file, or the one in the package with that name.

    Paths of model files in the description are relative to the TOML file.

    Raises:
        ValueError: the file does not exist, is not TOML, or has a key or value that is not allowed.

    Example:
        >>> read_description("point-gather").kind
        'simulators'
    """
    path = Path(given)
    if path.suffix != ".toml":
        return read_suite(str(given))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    experiment = _parse(text, str(path), path.stem)
    if not isinstance(experiment, TabularExperiment):
        return experiment
    located = {
        name: {**table, "file": str(path.parent / table["file"])} if "file" in table else table
        for name, table in experiment.environment.items()
    }
    return dataclasses.replace(experiment, environment=located)


def _parse(text: str, where: str, name: str) -> Experiment:
    try:
        return Experiment.from_dict({"name": name, **tomllib.loads(text)})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where}: not TOML ({error})") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error
