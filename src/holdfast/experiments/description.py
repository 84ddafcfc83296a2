"""Descriptions of experiments: TOML files of one's own, and those in the package."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast._support.arguments import meant
from holdfast.experiments.configuration import TabularExperiment
from holdfast.experiments.deep_configuration import DeepExperiment

Experiment = TabularExperiment | DeepExperiment

KINDS: dict[str, type[TabularExperiment] | type[DeepExperiment]] = {
    "tables": TabularExperiment,
    "simulators": DeepExperiment,
}
_SUITES = files("holdfast.experiments") / "suites"


def suites() -> list[str]:
    """Names of the descriptions in the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _SUITES.iterdir())


def read_suite(name: str) -> Experiment:
    """A description in the package, by its name.

    Example:
        >>> read_suite("paper").environments
        ('gambler', 'n-chain', 'frozen-lake')
    """
    if name not in suites():
        raise ValueError(f"{name}: no such experiment{meant(name, suites())}")
    return _parse((_SUITES / f"{name}.toml").read_text(), name, name)


def read_description(given: str | os.PathLike[str]) -> Experiment:
    """A description from a TOML file, or by its name in the package.

    Model files that it names are relative to it.

    Raises:
        ValueError: there is none, it is not TOML, or something in it cannot be; the message names it.
    """
    path = Path(given)
    if path.suffix != ".toml":
        return read_suite(str(given))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    experiment = _parse(text, str(path), path.stem)
    if isinstance(experiment, DeepExperiment):
        return experiment
    here = {
        name: {**table, "file": str(path.parent / table["file"])} if "file" in table else table
        for name, table in experiment.environment.items()
    }
    return dataclasses.replace(experiment, environment=here)


def experiment_from_dict(values: dict[str, Any]) -> Experiment:
    """An experiment from what its `to_dict`, or a TOML file, holds."""
    kind = values.get("kind", "tables")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind: expected {' or '.join(KINDS)}, got {kind!r}")
    return KINDS[kind].from_dict(values)


def _parse(text: str, where: str, name: str) -> Experiment:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where}: not TOML ({error})") from error
    try:
        return experiment_from_dict({"name": name, **values})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error
