import numpy as np
import pytest

import holdfast as hf


def outcomes(model, balance, stake):
    """What the model says of one bet, as {next balance: (probability, reward)}."""
    kernel = model.transitions
    row = (balance, stake - 1)
    return {
        int(successor): (probability, reward)
        for successor, probability, reward in zip(
            kernel.successors[row], kernel.probabilities[row], model.reward[row], strict=True
        )
    }


def test_the_paper_s_numbers():
    model = hf.environments.gambler()
    assert (model.states, model.actions) == (17, 8)
    assert model.discount == 0.95
    assert model.uncertainty.radius == 0.1
    assert isinstance(model.uncertainty, hf.KL)
    assert model.constraints[0].threshold == 2.5
    assert model.constraints[0].sense == "at_least"


@pytest.mark.parametrize(
    ("balance", "stake", "expected"),
    [
        (5, 3, {8: (0.6, 0), 2: (0.4, 0)}),
        (8, 8, {16: (0.6, 10), 0: (0.4, 0)}),
        (3, 8, {6: (0.6, 0), 0: (0.4, 0)}),  # cut to the balance
        (14, 5, {16: (0.6, 10), 12: (0.4, 0)}),  # cut to what is missing
        (1, 1, {2: (0.6, 0), 0: (0.4, 0)}),
        (15, 1, {16: (0.6, 10), 14: (0.4, 0)}),
    ],
)
def test_bets_by_hand(balance, stake, expected):
    assert outcomes(hf.environments.gambler(), balance, stake) == expected


@pytest.mark.parametrize("balance", [0, 16])
def test_ruin_and_goal_absorb_and_pay_nothing(balance):
    model = hf.environments.gambler()
    assert (model.transitions.dense()[balance, :, balance] == 1).all()
    assert (model.reward[balance] == 0).all()
    assert (model.constraints[0].signal[balance] == 0).all()


@pytest.mark.parametrize(
    ("balance", "modest_stakes"),
    [(1, 0), (2, 1), (3, 1), (7, 3), (12, 8), (13, 8), (15, 8)],
)
def test_utility_is_for_stakes_of_at_most_half_the_balance(balance, modest_stakes):
    """With a balance over 11 every stake is cut to less than half of it, so all eight count."""
    utility = hf.environments.gambler().constraints[0].signal[balance]
    assert utility.tolist() == [1.0] * modest_stakes + [0.0] * (8 - modest_stakes)


def test_it_starts_uniformly_between_ruin_and_goal():
    initial = hf.environments.gambler().initial
    np.testing.assert_allclose(initial, [0, *[1 / 15] * 15, 0], rtol=1e-15)


@pytest.mark.parametrize("heads", [0.3, 0.5, 0.6])
def test_unit_stakes_have_the_closed_form_of_the_gambler_s_ruin(heads, nominal_values):
    """E[γ^T; goal] is (λ₁^s − λ₂^s)/(λ₁^N − λ₂^N) with λ the roots of γpλ² − λ + γ(1−p) = 0."""
    model = hf.environments.gambler(heads=heads)
    policy = np.zeros((17, 8))
    policy[:, 0] = 1.0
    one, two = np.roots([0.95 * heads, -1, 0.95 * (1 - heads)])
    balance = np.arange(17)
    arrival = (one**balance - two**balance) / (one**16 - two**16)
    # The prize is paid by the transition that enters the goal, a step before it is there.
    expected = np.where(balance < 16, 10 * arrival / 0.95, 0.0)
    np.testing.assert_allclose(nominal_values(model, policy, model.reward), expected, atol=1e-12)


@pytest.mark.parametrize(("goal", "shape"), [(2, (3, 1)), (7, (8, 3)), (np.int64(10), (11, 5))])
def test_other_goals(goal, shape):
    model = hf.environments.gambler(goal=goal, prize=3.0)
    assert (model.states, model.actions) == shape
    assert outcomes(model, int(goal) - 1, 1)[goal] == (0.6, 3.0)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("goal", 1),
        ("goal", 16.0),
        ("goal", "16"),
        ("heads", -0.1),
        ("heads", 1.5),
        ("heads", np.nan),
        ("heads", None),
    ],
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}: .*{value}"):
        hf.environments.gambler(**{argument: value})
