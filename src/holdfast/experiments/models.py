"""The models that an experiment names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import holdfast as hf
from holdfast._support.arguments import meant
from holdfast.experiments._reading import check_keys
from holdfast.experiments.configuration import TabularExperiment
from holdfast.model import RobustCMDP

Cell = tuple[str, float | None]


def models_of(experiment: TabularExperiment) -> dict[Cell, RobustCMDP]:
    """Every model with every radius.

    Raises:
        ValueError: there is no such model, or it cannot be made so; the message names it.
    """
    found: dict[Cell, RobustCMDP] = {}
    for name, radius in experiment.cells():
        model = _model(name, experiment.environment.get(name))
        if radius is not None:
            if model.uncertainty is None:
                raise ValueError(f"radii: {name} has no uncertainty set")
            model = model.replace(uncertainty=model.uncertainty.with_radius(radius))
        found[name, radius] = model
    return found


def _model(name: str, described: Mapping[str, Any] | None) -> RobustCMDP:
    models = hf.environments.MODELS
    if described is None:
        if name not in models:
            raise ValueError(f"environments: there is no model {name!r}{meant(name, models)}")
        return models[name]()
    arguments = dict(described)
    if "file" in arguments:
        check_keys(arguments, ["file"], f"environment.{name}")
        return RobustCMDP.load(arguments["file"])
    made_of = arguments.pop("model", name)
    if made_of not in models:
        raise ValueError(
            f"environment.{name}.model: there is no {made_of!r}{meant(made_of, models)}"
        )
    try:
        return models[made_of](**arguments)
    except TypeError as error:
        raise ValueError(f"environment.{name}: {error}") from error
