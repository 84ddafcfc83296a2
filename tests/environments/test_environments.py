"""What every model in the registry must do."""

import numpy as np
import pytest

import holdfast as hf
from holdfast.registry import ENVIRONMENTS

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


@pytest.mark.parametrize("name", ["gambler", "frozen-lake", *ADDED])
def test_the_constraint_binds_in_the_worst_case(name):
    """The best policies for the reward violate it, also with a small weight on keeping it."""
    model = hf.environments.MODELS[name]()
    utility = sum(constraint.utility for constraint in model.constraints)
    aligned = utility if utility.ndim == model.reward.ndim else utility[..., None]
    small = 1e-4 * np.abs(model.reward).max() / np.abs(utility).max()
    greedy = hf.solve(model.replace(reward=model.reward + small * aligned), "rvi", iterations=1)
    limits = [abs(constraint.threshold) for constraint in model.constraints]
    assert greedy.evaluation.margins.min() < -0.01 * max(limits)


@every_model
def test_the_first_constraint_has_a_name_and_can_be_met_in_the_worst_case(name):
    """All of a garnet's constraints are met together by construction, which its own test checks."""
    model = hf.environments.MODELS[name]()
    constraint = model.constraints[0]
    assert constraint.name
    cautious = model.replace(reward=constraint.utility, constraints=())
    best = hf.solve(cautious, "rvi", iterations=1).evaluation.reward.worst
    assert best > constraint.utility_threshold


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


def test_the_registry_holds_the_models_and_the_simulators():
    assert set(ENVIRONMENTS) >= {*hf.environments.MODELS, "point-gather", "linear-gaussian"}
    for name, make in hf.environments.MODELS.items():
        assert ENVIRONMENTS[name] is make


def test_a_name_registered_later_is_a_simulator(monkeypatch):
    def corridor(*, nodes: int = 3) -> hf.RobustCMDP:
        return hf.environments.n_chain(nodes=nodes)

    def room(*, horizon: int = 7) -> hf.environments.PointGather:
        return hf.environments.PointGather(horizon=horizon)

    registered = {**ENVIRONMENTS.targets, "corridor": corridor, "room": room, "nothing": lambda: 3}
    monkeypatch.setattr(ENVIRONMENTS, "targets", registered)
    simulators = hf.environments.SIMULATORS
    assert {"corridor", "room"} < set(simulators)
    assert len(simulators) == len(registered)
    table = simulators["corridor"](nodes=4, horizon=9)
    assert (table.name, table.observation_size, table.horizon) == ("corridor", 4, 9)
    assert simulators["room"](horizon=8).horizon == 8
    with pytest.raises(TypeError, match=r"^wind: room has no such argument, got 2"):
        simulators["room"](wind=2)
    with pytest.raises(TypeError, match=r"^environment: expected 'nothing' to return a RobustCMDP"):
        simulators["nothing"]()
    with pytest.raises(KeyError):
        _ = simulators["casino"]


@pytest.mark.parametrize("name", ["n-chain", "point-gather", "linear-gaussian"])
def test_an_environment_prints_as_one_line(name):
    env = hf.environments.SIMULATORS[name]()
    assert str(env).startswith(f"<{name}: {env.observation_size} observations, ")
    assert "\n" not in str(env)
