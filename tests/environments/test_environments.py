"""What every model in the registry must do."""

import numpy as np
import pytest

import holdfast as hf

every_model = pytest.mark.parametrize("name", sorted(hf.environments.MODELS))


@every_model
def test_the_constraint_has_a_name_and_can_be_met_nominally(name):
    model = hf.environments.MODELS[name]()
    (constraint,) = model.constraints
    assert constraint.name == "utility"
    kernel, values = model.transitions.dense(), np.zeros(model.states)
    for _ in range(2000):
        values = (constraint.utility + model.discount * kernel @ values).max(-1)
    assert model.initial @ values > constraint.utility_threshold


@every_model
def test_arguments_reach_the_model(name):
    model = hf.environments.MODELS[name](radius=0.3, threshold=0.5, discount=0.8)
    assert model.uncertainty.radius == 0.3
    assert model.constraints[0].threshold == 0.5
    assert model.discount == 0.8


@every_model
@pytest.mark.parametrize(
    ("argument", "value"),
    [("radius", -0.1), ("threshold", np.nan), ("discount", 1.0), ("discount", -0.5)],
)
def test_bad_arguments_that_all_share(name, argument, value):
    with pytest.raises(ValueError, match=f"^{argument}: .*{value}"):
        hf.environments.MODELS[name](**{argument: value})


@every_model
def test_a_radius_for_each_pair(name):
    model = hf.environments.MODELS[name]()
    radius = np.full((model.states, model.actions), 0.2)
    assert hf.environments.MODELS[name](radius=radius).uncertainty.radius.shape == radius.shape
    with pytest.raises(ValueError, match="radius: expected a number or shape"):
        hf.environments.MODELS[name](radius=radius[1:])
