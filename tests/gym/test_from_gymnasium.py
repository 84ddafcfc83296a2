import re

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf


class Toy(gymnasium.Env):
    """An environment that is nothing but its table."""

    def __init__(self, table, initial=None):
        self.P = table
        if initial is not None:
            self.initial_state_distrib = initial


def newest(name):
    """The latest version of an environment; older ones are withdrawn as Gymnasium moves on."""
    return max(
        (spec for spec in gymnasium.registry.values() if spec.name == name and not spec.namespace),
        key=lambda spec: spec.version,
    ).id


def episode_values(table, policy, discount, signal=None):
    """Values by sweeps over the table itself; an episode ends where the table says so.

    `signal` replaces the table's own rewards; it has entries [s][a].
    """
    rows = [
        (s, policy[s, a] * p, n, r if signal is None else signal[s][a], 0.0 if end else discount)
        for s in range(len(table))
        for a in range(len(table[s]))
        for p, n, r, end in table[s][a]
    ]
    state, weight, successor, reward, go_on = map(np.array, zip(*rows, strict=True))
    values = np.zeros(len(table))
    for _ in range(int(np.ceil(np.log(1e-14) / np.log(discount)))):
        swept = np.zeros(len(table))
        np.add.at(swept, state, weight * (reward + go_on * values[successor.astype(int)]))
        values = swept
    return values


def random_policy(states, actions, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(actions), states)


# Which of its states absorb in the model, and how many the model has.
ENVIRONMENTS = {
    "FrozenLake": ([5, 7, 11, 12, 15], 16, {}),
    "CliffWalking": ([47], 48, {}),
    "CliffWalking, slippery": ([47], 48, {"is_slippery": True}),
    # States in which nobody has to be carried go on into the four in which an episode ends.
    "Taxi": ([], 501, {}),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_values_are_those_of_following_the_table(name, nominal_values):
    absorbing, states, options = ENVIRONMENTS[name]
    env = gymnasium.make(newest(name.split(",")[0]), **options)
    table, initial = env.unwrapped.P, env.unwrapped.initial_state_distrib
    own_states, actions = len(table), len(table[0])
    cost = np.random.default_rng(1).uniform(size=(own_states, actions))
    model = hf.from_gymnasium(env, discount=0.9, constraints=[hf.at_most(cost, 1.0)])
    assert (model.states, model.actions) == (states, actions)
    np.testing.assert_allclose(model.initial[:own_states], initial)

    policy = random_policy(states, actions)
    for signal, own in ((model.reward, None), (model.constraints[0].signal, cost)):
        expected = episode_values(table, policy, 0.9, own)
        expected[absorbing] = 0.0
        values = nominal_values(model, policy, signal)
        np.testing.assert_allclose(values[:own_states], expected, atol=1e-11)


def test_frozen_lake_is_the_paper_s_lake_up_to_its_prize():
    read = hf.from_gymnasium("FrozenLake-v1", discount=0.99)
    ours = hf.environments.frozen_lake(prize=1.0)
    np.testing.assert_allclose(read.transitions.dense(), ours.transitions.dense(), atol=1e-15)
    np.testing.assert_array_equal(read.reward, ours.reward)


def test_the_uncertainty_and_the_user_s_initial_distribution_are_kept():
    initial = np.eye(16)[6]
    model = hf.from_gymnasium(
        "FrozenLake-v1", discount=0.9, initial=initial, uncertainty=hf.KL(0.2)
    )
    assert model.uncertainty.radius == 0.2
    np.testing.assert_array_equal(model.initial, initial)


@pytest.mark.parametrize("ended", [False, True])
def test_an_ending_is_made_absorbing_in_place(ended):
    """The table pays 5 a step for staying at the end and even leaves it; neither counts."""
    table = {
        0: {0: [(0.5, 1, 2.0, True), (0.5, 0, 1.0, False)]},
        1: {0: [(0.5, 1, 5.0, True), (0.5, 0, 5.0, ended)]},
    }
    model = hf.from_gymnasium(
        Toy(table, [1.0, 0.0]), discount=0.9, constraints=[hf.at_least([[1.0], [1.0]], 0.5)]
    )
    np.testing.assert_allclose(model.transitions.dense()[:, 0], [[0.5, 0.5], [0, 1]])
    assert model.reward.tolist() == [[[2, 1]], [[0, 0]]]
    assert model.constraints[0].signal.tolist() == [[1], [0]]


def passed_through():
    """Episodes end in 1 and 2; state 1 is also passed through on the way to 2."""
    return {
        0: {0: [(0.5, 1, 4.0, True), (0.5, 1, 4.0, False)]},
        1: {0: [(1.0, 2, 3.0, True)]},
        2: {0: [(1.0, 2, 9.0, False)]},
    }


def test_an_ending_in_a_state_that_is_passed_through_gets_a_state_of_its_own():
    utility = hf.at_least([[1.0], [2.0], [3.0]], 0.5, name="u")
    by_outcome = hf.at_most([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]], 7.0)
    model = hf.from_gymnasium(
        Toy(passed_through(), [1.0, 0.0, 0.0]),
        discount=0.9,
        constraints=[utility, by_outcome],
        uncertainty=hf.KL(np.array([[0.1], [0.2], [0.3]])),
    )
    np.testing.assert_allclose(
        model.transitions.dense()[:, 0],
        [[0, 0.5, 0, 0.5], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
    )
    # Each pair pays the same whatever comes of it, so the reward is by pair.
    assert model.reward.tolist() == [[4], [3], [0], [0]]
    assert model.constraints[0].signal.tolist() == [[1], [2], [0], [0]]
    assert model.constraints[0].name == "u"
    assert model.constraints[1].signal.tolist() == [[[1, 2]], [[3, 4]], [[0, 0]], [[0, 0]]]
    assert (model.constraints[1].sense, model.constraints[1].threshold) == ("at_most", 7.0)
    assert model.initial.tolist() == [1, 0, 0, 0]
    assert model.uncertainty.radius.tolist() == [[0.1], [0.2], [0.3], [0]]


def test_an_ending_in_a_state_with_initial_mass_gets_a_state_of_its_own():
    table = {0: {0: [(1.0, 1, 0.0, True)]}, 1: {0: [(1.0, 0, 1.0, False)]}}
    model = hf.from_gymnasium(Toy(table), discount=0.9, initial=[0.5, 0.5])
    assert model.transitions.successors[:, 0, 0].tolist() == [2, 0, 2]


def test_a_state_that_stays_alive_keeps_alive_what_it_enters():
    """Episodes end in 1 and 2; starting in 1 is possible, and 1 goes on into 2."""
    table = {
        0: {0: [(0.5, 1, 0.0, True), (0.5, 2, 0.0, True)]},
        1: {0: [(1.0, 2, 0.0, False)]},
        2: {0: [(1.0, 0, 1.0, False)]},
    }
    kept = hf.from_gymnasium(Toy(table), discount=0.9, initial=[1.0, 0.0, 0.0])
    assert kept.transitions.successors[:, 0].tolist() == [[1, 2], [1, 1], [2, 2]]
    alive = hf.from_gymnasium(Toy(table), discount=0.9, initial=[0.5, 0.5, 0.0])
    assert alive.transitions.successors[:, 0].tolist() == [[3, 3], [2, 2], [0, 0], [3, 3]]


def test_an_ending_of_probability_zero_ends_nothing():
    table = {
        0: {0: [(1.0, 1, 0.0, False), (0.0, 1, 7.0, True)]},
        1: {0: [(1.0, 0, 1.0, False)]},
    }
    model = hf.from_gymnasium(Toy(table, [1.0, 0.0]), discount=0.9)
    assert model.transitions.dense()[:, 0].tolist() == [[0, 1], [1, 0]]
    assert model.reward.tolist() == [[0], [1]]


def test_lists_of_unequal_length_are_filled_up():
    table = {
        0: {0: [(0.25, 0, 1.0, False), (0.75, 1, 2.0, False)], 1: [(1.0, 1, 3.0, False)]},
        1: {0: [(1.0, 0, 4.0, False)], 1: [(1.0, 1, 5.0, False)]},
    }
    model = hf.from_gymnasium(Toy(table, [1.0, 0.0]), discount=0.9)
    assert model.transitions.probabilities.tolist() == [[[0.25, 0.75], [1, 0]], [[1, 0], [1, 0]]]
    assert model.transitions.successors.tolist() == [[[0, 1], [1, 1]], [[0, 0], [1, 1]]]
    assert model.reward.tolist() == [[[1, 2], [3, 3]], [[4, 4], [5, 5]]]


@st.composite
def toys(draw):
    states, actions = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    weights = st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any)
    outcome = st.tuples(st.integers(0, states - 1), st.integers(-3, 3), st.booleans())

    def outcomes():
        chosen = draw(weights)
        return [(weight / sum(chosen), *draw(outcome)) for weight in chosen]

    table = {s: {a: outcomes() for a in range(actions)} for s in range(states)}
    start = draw(st.lists(st.integers(0, 1), min_size=states, max_size=states).filter(any))
    return Toy(table, np.array(start) / sum(start))


@settings(deadline=None)
@given(env=toys(), seed=st.integers(0, 99))
def test_any_table_keeps_its_values(env, seed):
    states, actions = len(env.P), len(env.P[0])
    utility = np.random.default_rng(seed).normal(size=(states, actions))
    model = hf.from_gymnasium(env, discount=0.7, constraints=[hf.at_least(utility, 0.0)])
    assert model.states in (states, states + 1)
    policy = random_policy(model.states, actions, seed)
    kernel = model.transitions.dense()
    chain = np.einsum("sa,sat->st", policy, kernel)
    for signal, own in ((model.reward, None), (model.constraints[0].signal, utility)):
        if signal.ndim == 3:
            signal = (model.transitions.probabilities * signal).sum(-1)
        values = np.linalg.solve(np.eye(model.states) - 0.7 * chain, (policy * signal).sum(-1))
        expected = episode_values(env.P, policy, 0.7, own)
        start = env.initial_state_distrib
        np.testing.assert_allclose(model.initial @ values, start @ expected, atol=1e-11)


@pytest.mark.parametrize(
    ("env", "arguments", "message"),
    [
        ("Blackjack-v1", {}, "env: Blackjack-v1 has no transition table P"),
        (
            Toy(passed_through()),
            {},
            "initial: Toy has no initial_state_distrib; pass initial=",
        ),
        (Toy(passed_through()), {"initial": [0.5, 0.5]}, "initial: expected shape (3,), got (2,)"),
        ("FrozenLake-v1", {"discount": 1.0}, "discount: expected a number in [0, 1), got 1.0"),
        (
            "FrozenLake-v1",
            {"constraints": [hf.at_least(np.ones((16, 4, 16)), 1.0)]},
            "constraints[0]: expected shape (16, 4), or (16, 4, 3) where it depends",
        ),
        (
            Toy({0: {0: [(1.0, 0, 0.0, False)]}, 1: {}}, [1.0, 0.0]),
            {},
            "env: Toy: at (state 1, action 0) the table P has no list of (probability, next state, "
            "reward, terminated): 0 actions, but 1 in state 0",
        ),
        (
            Toy({0: {0: [(1.0, 0, 0.0, False)], 1: []}}, [1.0]),
            {},
            "env: Toy: at (state 0, action 1) the table P has no list of (probability, next state, "
            "reward, terminated): got []",
        ),
        (
            Toy({0: {0: [(1.0, 0, 0.0)]}}, [1.0]),
            {},
            "env: Toy: at (state 0, action 0) the table P has no list of",
        ),
        (
            Toy({0: {0: [(1.0, 0, 0.0, False)]}, 2: {0: [(1.0, 0, 0.0, False)]}}, [1.0, 0.0]),
            {},
            "env: Toy: at (state 1, action 0) the table P has no list of",
        ),
        (
            Toy({0: {0: [(0.7, 0, 0.0, False)]}}, [1.0]),
            {},
            "probabilities: (state 0, action 0) sums to 0.7, not 1",
        ),
        (
            Toy({0: {0: [(1.0, 1, 0.0, False)]}}, [1.0]),
            {},
            "successors: (state 0, action 0, entry 0) is 1, but states are 0 to 0",
        ),
    ],
)
def test_bad_input(env, arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        hf.from_gymnasium(env, **{"discount": 0.9} | arguments)
