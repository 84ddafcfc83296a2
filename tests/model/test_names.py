"""Names of states and actions: in the model, its file, messages, policies and tables."""

from __future__ import annotations

import csv
import itertools

import numpy as np
import pytest

import holdfast as hf
from holdfast.model.names import index_of, states_of
from holdfast.model.policy_table import policy_table
from holdfast.model.table import layout_of
from holdfast.tabular import deterministic
from holdfast.tabular.evaluation.worst_case import worst_case_method


def machine(**changes) -> hf.RobustCMDP:
    """Three states of a machine; running earns, and wears it out."""
    given = {
        "transitions": [
            [[0.8, 0.2, 0.0], [1.0, 0.0, 0.0]],
            [[0.0, 0.7, 0.3], [0.9, 0.1, 0.0]],
            [[0.0, 0.0, 1.0], [0.6, 0.0, 0.4]],
        ],
        "reward": [[5.0, 2.0], [4.0, 1.0], [0.0, -3.0]],
        "constraints": [hf.at_most([[0, 0], [0, 0], [1.0, 1.0]], 1.0, name="broken")],
        "discount": 0.9,
        "uncertainty": hf.KL(0.02),
        "state_names": ["new", "worn", "broken"],
        "action_names": ["run", "service"],
        "labels": {"old": ["worn", 2], "none": []},
    }
    return hf.RobustCMDP(**(given | changes))


def test_names_survive_the_file_and_stay_out_of_the_counts(tmp_path):
    model = machine()
    model.save(tmp_path / "m.npz")
    again = hf.RobustCMDP.load(tmp_path / "m.npz")
    assert again.state_names == ("new", "worn", "broken")
    assert again.action_names == ("run", "service")
    assert again.labels == {"old": (1, 2), "none": ()}
    assert (again.states, again.actions) == (3, 2)
    assert machine(state_names=None, labels=None).state_names is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state_names": ["a", "b"], "labels": None}, "state_names: expected 3 names, got 2"),
        ({"state_names": ["a", "b", "a"], "labels": None}, "state_names: 'a' is duplicated"),
        ({"action_names": "xy"}, "action_names: expected a sequence of names, got 'xy'"),
        ({"action_names": ["x", 1]}, "action_names: expected a string for every name, got 1"),
        ({"labels": {"old": ["wron"]}}, r"labels\['old'\]: there is no state 'wron'; did you mean"),
        ({"labels": ["worn"]}, "labels: expected a mapping from names to states"),
        (
            {"reward": [[1.0, 2.0], [np.nan, 0.0], [0.0, 0.0]]},
            r"reward: \(state 1 'worn', action 0 'run'\) is nan, not a finite number",
        ),
        (
            {"uncertainty": hf.KL([[0.1, 0.1, 0.1]] * 2)},
            "radius: ",
        ),
    ],
)
def test_bad_names_are_refused_and_good_ones_are_in_messages(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        machine(**changes)


def test_a_policy_may_be_given_by_names():
    model = machine()
    by_name = {"new": "run", "worn": {"run": 0.25, "service": 0.75}, "broken": "service"}
    table = [[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]]
    expected = hf.evaluate(model, table)
    assert hf.evaluate(model, by_name).reward.worst == expected.reward.worst
    assert hf.certify(model, by_name, bound=False).reward == expected.reward.worst
    named = hf.evaluate(model, ["run", "service", "service"]).reward.worst
    assert named == hf.evaluate(model, [0, 1, 1]).reward.worst
    assert named == hf.evaluate(model, {0: 0, 1: 1, 2: "service"}).reward.worst


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"new": "run", "worn": "run"}, "policy: no action for broken"),
        ({"new": "runn", "worn": "run", "broken": "run"}, "policy: there is no action 'runn'; did"),
        ({"nwe": "run"}, "policy: there is no state 'nwe'; did you mean new?"),
        ({"new": "run", 0: "run"}, "policy: new is duplicated"),
        (
            {"new": {"run": 0.5}, "worn": "run", "broken": "run"},
            r"policy: state 0 'new' sums to 0.5, not 1",
        ),
        ({"new": 2, "worn": 0, "broken": 0}, "policy: there is no action 2; actions are 0 to 1"),
    ],
)
def test_a_policy_with_a_wrong_name_is_refused(policy, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        hf.evaluate(machine(), policy)


def test_one_function_resolves_states_labels_and_indices():
    names, labels = ["new", "worn", "broken"], {"old": (1, 2), "new": (2,)}
    assert states_of("reach", "old", names, 3, labels) == (1, 2)
    assert states_of("reach", ["new", "worn"], names, 3, labels) == (0, 1)  # a state comes first
    assert states_of("reach", [True, False, True], names, 3) == (0, 2)
    assert states_of("reach", 2, None, 3) == (2,)
    with pytest.raises(ValueError, match="reach: there is no state 'odl'; did you mean old"):
        states_of("reach", "odl", names, 3, labels)
    with pytest.raises(ValueError, match="reach: the states have no names, so 'new' cannot be"):
        states_of("reach", "new", None, 3)
    with pytest.raises(ValueError, match="x: there is no state 3; states are 0 to 2"):
        index_of("x", 3, names, 3)
    with pytest.raises(ValueError, match="reach: expected at least one state"):
        states_of("reach", [], names, 3)


def test_a_table_hides_rounding_and_has_one_column_if_deterministic(tmp_path):
    model = machine()
    mixed = policy_table(model, np.array([[1 - 1e-12, 1e-12], [0.3, 0.7], [0.0, 1.0]]))
    shown = [row[1:] for row in mixed.rows]
    assert shown == [
        ("new", "run", 1 - 1e-12),
        ("worn", "service", 0.7),
        ("worn", "run", 0.3),
        ("broken", "service", 1.0),
    ]
    assert not mixed.deterministic
    mixed.to_csv(tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["probability"]) for line in lines] == [row.probability for row in mixed.rows]
    plain = policy_table(model, np.array([[1, 0], [1e-5, 1 - 1e-5], [0, 1.0]]))
    assert plain.deterministic
    assert "probability" not in str(plain)
    assert plain.to_markdown().splitlines()[2] == "| new | run |"


def test_the_steps_of_a_policy_with_a_horizon_are_grouped():
    late = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    early = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    table = policy_table(machine(), np.stack([early, early, early, late]))
    assert [row[:3] for row in table.rows] == [
        ("1–4", "new", "run"),
        ("1–3", "worn", "service"),
        ("4", "worn", "run"),
        ("1–4", "broken", "service"),
    ]


def test_the_best_deterministic_policy_is_found_and_its_price_is_said(monkeypatch):
    """Enumeration is the oracle. The limit is such that randomising pays."""
    model = machine(initial=[1.0, 0.0, 0.0], reward=[[5.0, 2.0], [9.0, -6.0], [0.0, 1.0]])
    every = [np.eye(2)[list(each)] for each in itertools.product(range(2), repeat=3)]
    values = [hf.evaluate(model, each) for each in every]
    dearest = max(values, key=lambda v: v.reward.worst).constraints[0].worst
    limit = 0.9 * dearest
    model = model.replace(constraints=[hf.at_most(model.constraints[0].signal, limit)])
    values = [hf.evaluate(model, each) for each in every]
    best = max(v.reward.worst for v in values if v.feasible)

    found = hf.solve(model, iterations=60, deterministic=True)
    assert found.status == "feasible"
    assert found.evaluation.reward.worst == pytest.approx(best, abs=1e-9)
    assert found.table().deterministic
    assert found.price == found.stochastic.reward.worst - found.evaluation.reward.worst
    assert found.price > 0
    assert f"deterministic: costs {found.price:.4g} of the worst-case reward" in repr(found)

    # Larger models change one state at a time. Here that finds the same policy.
    monkeypatch.setattr(deterministic, "_MOST_TO_ENUMERATE", 1)
    layout, method = layout_of(model), worst_case_method("dual")
    climbed = deterministic.best_deterministic(layout, found.policy, method)
    assert hf.evaluate(model, climbed).reward.worst == pytest.approx(best, abs=1e-9)
    infeasible = deterministic.best_deterministic(layout, every[0], method)
    assert hf.evaluate(model, infeasible).feasible
