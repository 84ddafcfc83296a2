import numpy as np
import pytest

import holdfast as hf

LEFT, RIGHT = 0, 1


def always(action, nodes=40):
    return np.eye(2)[np.full(nodes, action)]


def test_the_paper_s_numbers():
    model = hf.environments.n_chain()
    assert (model.states, model.actions) == (40, 2)
    assert model.discount == 0.95
    assert model.uncertainty.radius == 0.15
    assert isinstance(model.uncertainty, hf.KL)
    assert model.constraints[0].threshold == 6.0
    assert model.constraints[0].sense == "at_least"
    np.testing.assert_allclose(model.initial, 1 / 40)


def test_three_nodes_by_hand():
    model = hf.environments.n_chain(nodes=3)
    left, right = model.transitions.dense().transpose(1, 0, 2)
    np.testing.assert_allclose(left, [[0.9, 0.1, 0], [0.9, 0, 0.1], [0, 0.9, 0.1]])
    np.testing.assert_allclose(right, [[0.1, 0.9, 0], [0.1, 0, 0.9], [0, 0.1, 0.9]])
    assert model.reward.tolist() == [[1, 0], [1, 0], [11, 10]]
    assert model.constraints[0].signal.tolist() == [[0, 2], [0, 2], [0, 2]]


def test_a_slip_is_the_other_move():
    seldom = hf.environments.n_chain(slip=0.1).transitions.dense()
    often = hf.environments.n_chain(slip=0.9).transitions.dense()
    np.testing.assert_allclose(seldom[:, LEFT], often[:, RIGHT], atol=1e-15)
    np.testing.assert_allclose(seldom[:, RIGHT], often[:, LEFT], atol=1e-15)


def test_going_right_for_ever_earns_two_each_step(nominal_values):
    model = hf.environments.n_chain()
    values = nominal_values(model, always(RIGHT), model.constraints[0].signal)
    np.testing.assert_allclose(values, 2 / (1 - 0.95))


def test_without_slips_the_bonus_comes_as_late_as_the_walk_is_long(nominal_values):
    model = hf.environments.n_chain(slip=0.0, bonus=7.0)
    values = nominal_values(model, always(RIGHT), model.reward)
    np.testing.assert_allclose(values, 7.0 * 0.95 ** np.arange(39, -1, -1) / (1 - 0.95))


@pytest.mark.parametrize(
    ("argument", "value"),
    [("nodes", 1), ("nodes", 40.0), ("slip", -0.1), ("slip", 1.1), ("slip", np.nan)],
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}: .*{value}"):
        hf.environments.n_chain(**{argument: value})
