"""Models from the literature on robust constrained problems, against their numbers by hand."""

import numpy as np
import pytest
import scipy.stats

import holdfast as hf


def test_river_swim_by_hand():
    model = hf.environments.river_swim(states=3)
    left, right = model.transitions.dense().transpose(1, 0, 2)
    np.testing.assert_allclose(left, [[0.9, 0.1, 0], [0.3, 0.6, 0.1], [0, 0.3, 0.7]], atol=1e-15)
    np.testing.assert_allclose(right, [[0.7, 0.3, 0], [0.1, 0.6, 0.3], [0, 0.1, 0.9]], atol=1e-15)
    assert model.reward.tolist() == [[0.1, 0], [0, 0], [0, 1]]
    assert model.constraints[0].signal.tolist() == [[0, 0], [0.05, 0.05], [0.1, 0.1]]
    assert model.constraints[0].sense == "at_most"
    assert model.initial.tolist() == [1, 0, 0]


def test_a_garnet_is_its_seed_s():
    one, same, other = (hf.environments.garnet(seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.transitions, same.transitions)
    assert (one.transitions != other.transitions).any()
    assert [c.threshold for c in one.constraints] == [c.threshold for c in same.constraints]
    assert (one.states, one.actions, len(one.constraints), one.discount) == (5, 3, 4, 0.99)


def test_a_garnet_s_costs_are_as_many_as_asked_for():
    model = hf.environments.garnet(
        states=30, actions=10, constraints=2, cost_share=0.7, threshold=9
    )
    costs = np.stack([c.signal for c in model.constraints])
    assert set(np.unique(costs)) == {0, 1}
    assert costs.mean() == pytest.approx(0.7, abs=0.05)
    assert [c.name for c in model.constraints] == ["cost 1", "cost 2"]
    assert hf.environments.garnet(constraints=0).constraints == ()


@pytest.mark.parametrize("seed", range(2))
def test_the_policy_behind_a_garnet_s_limits_is_feasible(seed):
    model = hf.environments.garnet(seed=seed)
    rng = np.random.default_rng(seed)
    rng.dirichlet(np.full(5, 0.1), (5, 3)), rng.random((4, 5, 3)), rng.random((5, 3))
    rng.dirichlet(np.full(5, 0.5))
    policy = rng.dirichlet(np.ones(3), 5)
    evaluation = hf.evaluate(model, policy)
    assert evaluation.feasible
    np.testing.assert_allclose(evaluation.margins, 0, atol=1e-8)


@pytest.mark.parametrize("name", ["slippery-lake", "garbage-collector", "safe-navigation"])
def test_moves_on_a_grid(name):
    model = hf.environments.MODELS[name]()
    success = 0.8 if name == "safe-navigation" else 0.5
    size = 5 if name == "safe-navigation" else 4
    other = (1 - success) / 3
    kernel = model.transitions.dense()
    # Left in the first cell: the wall to the left and above holds.
    row = np.zeros(size * size)
    row[[0, 1, size]] = success + other, other, other
    np.testing.assert_allclose(kernel[0, 0], row)
    # Up in an inner cell.
    row = np.zeros(size * size)
    inner = size + 1
    row[[inner - size, inner - 1, inner + 1, inner + size]] = success, other, other, other
    np.testing.assert_allclose(kernel[inner, 3], row)
    np.testing.assert_allclose(kernel[-1, :, -1], 1)


def test_what_the_grids_pay():
    lake = hf.environments.slippery_lake()
    assert lake.constraints[0].signal.sum(0).tolist() == [4] * 4
    # From the cell left of the goal, right enters it with one half; nothing is paid in the goal.
    expected = (lake.transitions.probabilities * lake.reward).sum(-1)
    assert expected[14, 2] == pytest.approx(5.0)
    assert expected[15].tolist() == [0] * 4
    bin_ = hf.environments.garbage_collector()
    assert bin_.reward[:, 0].tolist() == [0.001] * 15 + [1.0]
    assert np.flatnonzero(bin_.constraints[0].signal[:, 0] == 1).tolist() == [6, 9, 14]
    walk = hf.environments.safe_navigation()
    assert walk.reward[:, 2].tolist() == [-1] * 24 + [0]
    assert np.flatnonzero(walk.constraints[0].signal[:, 0]).tolist() == [
        6,
        7,
        8,
        11,
        12,
        13,
        16,
        17,
        18,
    ]


def test_the_inventory_s_demand_and_one_row_by_hand():
    model = hf.environments.inventory(capacity=3, mean_demand=2.0)
    chance = model.transitions.probabilities[0, 0]
    np.testing.assert_allclose(chance[:6], scipy.stats.poisson(2.0).pmf(np.arange(6)))
    assert chance[6] == pytest.approx(scipy.stats.poisson(2.0).sf(5))
    # Two in stock, one ordered; demand 0 to 6.
    assert model.transitions.successors[2, 1].tolist() == [3, 2, 1, 0, 0, 0, 0]
    np.testing.assert_allclose(model.reward[2, 1], [-2.9, 0.4, 3.7, 7, 7, 7, 7])
    assert model.constraints[0].signal[2, 1].tolist() == [0, 0, 0, 0, 1, 2, 3]
    # More than fits is not ordered.
    np.testing.assert_array_equal(model.reward[2, 1], model.reward[2, 3])


def test_machine_replacement_by_hand():
    model = hf.environments.machine_replacement(ages=2)
    wait, repair = model.transitions.dense().transpose(1, 0, 2)
    np.testing.assert_allclose(
        wait, [[0.2, 0.8, 0, 0], [0, 1, 0, 0], [0.8, 0, 0.2, 0], [0, 0, 0, 1]]
    )
    np.testing.assert_allclose(
        repair, [[0, 0.3, 0.6, 0.1], [0, 0.3, 0.6, 0.1], [0, 0, 1, 0], [0, 0, 0.6, 0.4]]
    )
    assert model.reward.tolist() == [[0, 0], [-20, -20], [-2, -2], [-10, -10]]
    assert model.constraints[0].signal[:, 0].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("river-swim", "states", 1),
        ("garnet", "seed", -1),
        ("garnet", "states", 0),
        ("garnet", "actions", 1.5),
        ("garnet", "constraints", -1),
        ("garnet", "cost_share", 1.5),
        ("slippery-lake", "size", 1),
        ("slippery-lake", "success", -0.1),
        ("slippery-lake", "thin_ice", (16,)),
        ("slippery-lake", "thin_ice", (15,)),
        ("garbage-collector", "delicate", (-1,)),
        ("garbage-collector", "size", 0),
        ("safe-navigation", "hazards", (24,)),
        ("safe-navigation", "success", 1.1),
        ("inventory", "capacity", 0),
        ("inventory", "mean_demand", 0.0),
        ("machine-replacement", "ages", 1),
        ("machine-replacement", "wear", 1.1),
    ],
)
def test_bad_arguments(name, argument, value):
    with pytest.raises(ValueError, match=f"^{argument}: "):
        hf.environments.MODELS[name](**{argument: value})
