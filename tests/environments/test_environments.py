"""What every model in the registry must do."""

import numpy as np
import pytest

import holdfast as hf

ADDED = [
    "river-swim",
    "garnet",
    "slippery-lake",
    "garbage-collector",
    "inventory",
    "machine-replacement",
    "safe-navigation",
]
every_model = pytest.mark.parametrize("name", sorted(hf.environments.MODELS))


@every_model
def test_every_constraint_has_a_name_and_can_be_met_nominally(name):
    model = hf.environments.MODELS[name]()
    kernel = model.transitions
    successors, p = (
        (kernel.successors, kernel.probabilities)
        if isinstance(kernel, hf.Kernel)
        else (np.broadcast_to(np.arange(model.states), kernel.shape), kernel)
    )
    for constraint in model.constraints:
        assert constraint.name
        utility = constraint.utility
        utility = utility if utility.ndim == 3 else utility[..., None]
        values = np.zeros(model.states)
        for _ in range(2000):
            values = (p * (utility + model.discount * values[successors])).sum(-1).max(-1)
        assert model.initial @ values > constraint.utility_threshold


@pytest.mark.parametrize("name", ["gambler", "frozen-lake", *ADDED])
def test_the_constraint_binds_in_the_worst_case_and_can_be_met(name):
    """The best policy for the reward alone violates it; some policy keeps all of them."""
    model = hf.environments.MODELS[name]()
    greedy = hf.solve(model, "rvi", iterations=1).evaluation
    assert greedy.margins.min() < -0.01 * max(abs(c.threshold) for c in model.constraints)
    found = hf.solve(model, "crpo", iterations=300)
    assert found.status == "feasible"
    # Not only by another of the best policies: keeping them costs reward.
    assert found.evaluation.reward.worst < greedy.reward.worst - 1e-3 * abs(greedy.reward.worst)


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
