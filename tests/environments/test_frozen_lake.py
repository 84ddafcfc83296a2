import re

import gymnasium
import numpy as np
import pytest

import holdfast as hf

PAPER_MAP = ("SFFF", "FHFH", "FFFH", "HFFG")
EIGHT = (
    "SFFFFFFF",
    "FFFFFFFF",
    "FFFHFFFF",
    "FFFFFHFF",
    "FFFHFFFF",
    "FHHFFFHF",
    "FHFFHFHF",
    "FFFHFFFG",
)
OBLONG = ("SFF", "FHG")


def ice_cells(rows):
    return [i for i, letter in enumerate("".join(rows)) if letter in "SF"]


def test_the_paper_s_numbers():
    model = hf.environments.frozen_lake()
    assert (model.states, model.actions) == (16, 4)
    assert model.discount == 0.99
    assert model.uncertainty.radius == 0.1
    assert isinstance(model.uncertainty, hf.KL)
    assert model.constraints[0].threshold == 0.7
    assert model.constraints[0].sense == "at_least"
    assert model.reward.max() == 200


@pytest.mark.parametrize("rows", [PAPER_MAP, EIGHT, OBLONG])
@pytest.mark.parametrize(("slippery", "slip"), [(True, 1 / 3), (False, 0.0)])
def test_ice_agrees_with_gymnasium_s_own_table(rows, slippery, slip):
    table = gymnasium.make("FrozenLake-v1", desc=list(rows), is_slippery=slippery).unwrapped.P
    model = hf.environments.frozen_lake(rows=rows, slip=slip, prize=1.0, utility_cells=[0])
    dense = model.transitions.dense()
    expected_reward = (model.transitions.probabilities * model.reward).sum(-1)
    for s in ice_cells(rows):
        for a in range(4):
            row, reward = np.zeros(model.states), 0.0
            for probability, successor, pay, _ in table[s][a]:
                row[successor] += probability
                reward += probability * pay
            np.testing.assert_allclose(dense[s, a], row, atol=1e-15)
            np.testing.assert_allclose(expected_reward[s, a], reward, atol=1e-15)


def test_holes_and_goal_absorb_and_pay_nothing():
    model = hf.environments.frozen_lake()
    for cell in (5, 7, 11, 12, 15):
        assert (model.transitions.dense()[cell, :, cell] == 1).all()
        assert (model.reward[cell] == 0).all()
        assert (model.constraints[0].signal[cell] == 0).all()


def test_reward_is_on_the_way_into_the_goal_only():
    model = hf.environments.frozen_lake()
    paid = np.argwhere(model.reward > 0)
    assert {int(s) for s, _, _ in paid} == {14}
    assert (model.transitions.successors[model.reward > 0] == 15).all()
    # From the cell left of the goal every action but left may go right.
    assert sorted({int(a) for _, a, _ in paid}) == [1, 2, 3]


def test_utility_is_one_in_its_cells():
    signal = hf.environments.frozen_lake().constraints[0].signal
    assert sorted({int(s) for s in np.flatnonzero(signal.any(-1))}) == [2, 6]
    assert (signal[[2, 6]] == 1).all()
    chosen = hf.environments.frozen_lake(utility_cells=[14]).constraints[0].signal
    assert np.flatnonzero(chosen.any(-1)).tolist() == [14]


def test_it_starts_uniformly_on_the_ice():
    initial = hf.environments.frozen_lake().initial
    assert np.flatnonzero(initial).tolist() == ice_cells(PAPER_MAP)
    np.testing.assert_allclose(initial[initial > 0], 1 / 11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": ()}, "rows: expected strings, one for each row of the map, got ()"),
        ({"rows": "SFFG"}, "rows: expected strings, one for each row of the map, got 'SFFG'"),
        ({"rows": ("SF", 3)}, "rows: expected strings, one for each row of the map"),
        ({"rows": ("SFF", "FG")}, "rows: row 1, 'FG', is not as long as row 0, 'SFF'"),
        ({"rows": ("SF", "XG")}, "rows: row 1, 'XG', has 'X', expected S, F, H or G"),
        ({"rows": ("SF", "FH")}, "rows: no goal G in ('SF', 'FH')"),
        ({"rows": ("HG", "GH")}, "rows: no ice S or F to start from in ('HG', 'GH')"),
        ({"slip": 0.6}, "slip: expected a number in [0, 0.5], got 0.6"),
        ({"slip": -0.1}, "slip: expected a number in [0, 0.5], got -0.1"),
        ({"utility_cells": [16]}, "utility_cells: cells are 0 to 15, got 16"),
        ({"utility_cells": [-1]}, "utility_cells: expected a whole number of at least 0, got -1"),
        ({"utility_cells": [5]}, "utility_cells: expected cells that do not absorb, got 5"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        hf.environments.frozen_lake(**arguments)
