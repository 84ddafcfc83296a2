"""Where a cost may come from, and what is said where it does not."""

import functools
import json

import numpy as np
import pytest

from holdfast.gym.costs import Costs, Transition, cost_from, speed_limit


def transition(**info):
    return Transition(np.zeros(2), np.ones(1), 1.5, np.full(2, 3.0), False, info)


def far(step):
    return float(step.next_observation[0] > 2)


@pytest.mark.parametrize(
    ("cost", "names", "expected"),
    [
        (None, ("cost",), [2.0]),
        ("cost_sum", ("cost_sum",), [4.0]),
        (far, ("far",), [1.0]),
        (lambda step: step.reward, ("cost",), [1.5]),
        (functools.partial(lambda k, step: k * step.reward, 2), ("cost",), [3.0]),
        (speed_limit(1.0), ("speed",), [1.0]),
        ({"a": "cost_sum", "b": far, "c": speed_limit(5.0)}, ("a", "b", "c"), [4.0, 1.0, 0.0]),
        ({}, (), []),
    ],
)
def test_costs_come_from_info_and_functions(cost, names, expected):
    costs = Costs.resolve(cost)
    found = costs.of(transition(cost=2.0, cost_sum=np.array([4]), x_velocity=1.2))
    assert costs.names == names
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("limit", "info", "expected"),
    [
        (speed_limit(1.0), {"x_velocity": [-3, 0.9, 1.1]}, [0, 0, 1]),
        (speed_limit(1.0), {"x_velocity": [-3, 0.8, 0.7], "y_velocity": [0, 0, 0.8]}, [1, 0, 1]),
        (
            speed_limit(1.0, planar=False),
            {"x_velocity": [-3, 2.0], "y_velocity": [9, 0]},
            [0, 1],
        ),
        (speed_limit(1.0, key="v"), {"v": [0.5, 1.5], "x_velocity": [9, 9]}, [0, 1]),
        (speed_limit(1.0, key=("a", "b")), {"a": [0.8, 0.7], "b": [0.5, 0.8]}, [0, 1]),
        (speed_limit(1.0, key=("a",)), {"a": [-2.0, -0.5]}, [1, 0]),
    ],
)
def test_a_speed_limit_says_the_same_of_one_step_and_of_many(limit, info, expected):
    np.testing.assert_array_equal(limit.of_info(info), expected)
    for i, cost in enumerate(expected):
        assert limit(transition(**{key: entry[i] for key, entry in info.items()})) == cost


def test_rows_cost_what_each_step_costs():
    rng = np.random.default_rng(0)
    costs = Costs.resolve(
        {"a": "c", "b": speed_limit(0.8), "d": lambda s: s.action[0] + s.info["c"]}
    )
    info = {"c": rng.random(5), "x_velocity": rng.random(5)}
    many = Transition(*rng.random((2, 5, 3)), rng.random(5), rng.random((5, 3)), np.zeros(5), info)
    found = costs.of_rows(many)
    for row in range(5):
        one = Transition(
            *(field[row] for field in many[:-1]), {key: entry[row] for key, entry in info.items()}
        )
        np.testing.assert_array_equal(found[row], costs.of(one))
    assert 0 < found[:, 1].sum() < 5


@pytest.mark.parametrize(
    ("cost", "info", "message"),
    [
        (None, {}, r"^cost: the info of CartPole-v1 has no 'cost' \(it has none\); pass cost="),
        ("sum", {"a": 1, "b": 2}, r"^cost: .* has no 'sum' \(it has a, b\); pass cost="),
        (speed_limit(1), {"a": 1}, r"^cost: .* has no 'x_velocity' \(it has a\); name the entry"),
        ("a", {"a": [1, 2]}, r"^cost: 'a' of CartPole-v1 is an array of shape \(2,\)"),
    ],
)
def test_where_there_is_no_cost_a_sentence_says_what_there_is(cost, info, message):
    with pytest.raises(ValueError, match=message):
        Costs.resolve(cost, "CartPole-v1").of(transition(**info))


@pytest.mark.parametrize("cost", [3, {"a": 3}, {3: "a"}, ["cost"]])
def test_what_is_no_cost_is_refused(cost):
    with pytest.raises(TypeError, match=r"^cost: expected a key of info, a function"):
        Costs.resolve(cost)


@pytest.mark.parametrize("arguments", [{"limit": np.nan}, {"limit": "2"}])
def test_a_speed_limit_is_a_number(arguments):
    with pytest.raises(ValueError, match=r"^limit: expected a finite number"):
        speed_limit(**arguments)


def test_a_speed_limit_is_told_once_what_counts():
    with pytest.raises(ValueError, match=r"^planar: "):
        speed_limit(1.0, key="v", planar=True)


@pytest.mark.parametrize(
    "cost",
    [
        None,
        "cost_sum",
        {},
        speed_limit(2.0),
        {"a": speed_limit(1.0, key=("u", "v")), "b": "c", "c": speed_limit(3.0, planar=False)},
    ],
)
def test_a_description_is_enough_to_make_them_again(cost):
    costs = Costs.resolve(cost, "here")
    assert costs.is_rebuildable
    again = cost_from(json.loads(json.dumps(costs.describe())))
    assert Costs.resolve(again, "here") == costs


def test_a_user_s_function_is_described_by_its_name_and_has_to_be_passed_again():
    costs = Costs.resolve({"a": "c", "b": far})
    assert not costs.is_rebuildable
    assert costs.describe()["b"] == {"kind": "function", "name": f"{__name__}.far"}
    with pytest.raises(ValueError, match=r"^cost: 'b' is the function .*far; pass it again"):
        cost_from(costs.describe())
