"""What the page says about tables, against what the library says."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import holdfast as hf
from holdfast import registry
from holdfast.experiments.results import ConstraintThreshold
from holdfast.experiments.store import model_digest
from holdfast.report.page.certificate import values_card
from holdfast.report.page.content import (
    Card,
    Details,
    Grid,
    HeatMaps,
    Lines,
    PageTable,
    Scatter,
)
from holdfast.report.page.data import data_blocks
from holdfast.report.page.grid import grid_block, map_of, under_policy
from holdfast.report.page.kernels import MOST_COLUMNS, MOST_ROWS, kernel_block
from holdfast.report.page.models import (
    comparison_section,
    solution_sections,
    uncertainty_in_words,
)

from .conftest import compared


def only(section, kind):
    (found,) = (block for block in section.blocks if isinstance(block, kind))
    return found


@pytest.fixture(scope="module")
def lake(all_runs):
    return solution_sections(all_runs / "lake")[0]


@pytest.fixture(scope="module")
def evaluated(all_runs):
    model = hf.RobustCMDP.load(all_runs / "lake" / "model.npz")
    with np.load(all_runs / "lake" / "policy.npz") as file:
        policy = file["policy"]
    return model, policy, hf.evaluate(model, policy)


def test_a_solved_model_has_every_part(lake):
    kinds = [type(block) for block in lake.blocks]
    assert kinds == [Card, PageTable, Lines, Lines, Grid, HeatMaps, Details, Details]
    constraint = lake.blocks[3].views[0]
    assert constraint.limits[0].value == 0.7
    assert constraint.limits[0].violated == "below"
    assert len(constraint.series[0].y) == 4


def test_the_worst_case_kernel_is_the_evaluations_own(lake, evaluated):
    model, policy, evaluation = evaluated
    kernels = only(lake, HeatMaps)
    nominal = np.einsum("sa,sat->st", policy, model.transitions.dense())
    np.testing.assert_allclose(kernels.nominal.values, nominal, atol=1e-5)
    others = {matrix.name: np.array(matrix.values) for matrix in kernels.others}
    worst = np.einsum("sa,sat->st", policy, evaluation.reward.kernel.dense())
    np.testing.assert_allclose(others["worst case for reward"], worst, atol=1e-5)
    difference = others["worst case for utility, less nominal"]
    np.testing.assert_allclose(difference.sum(1), 0, atol=1e-4)
    assert np.abs(difference).max() > 0.05


def test_pushes_are_the_shift_of_the_mean_next_cell(lake, evaluated):
    model, policy, evaluation = evaluated
    grid = only(lake, Grid)
    cell = 14
    expected = np.zeros(2)
    for sign, kernel in ((1, evaluation.reward.kernel), (-1, model.transitions)):
        for action in range(4):
            for successor, p in zip(
                kernel.successors[cell, action], kernel.probabilities[cell, action], strict=True
            ):
                place = np.array([successor % 4, successor // 4])
                expected += sign * policy[cell, action] * p * place
    np.testing.assert_allclose(grid.pushes[0].arrows[cell], expected, atol=1e-5)


def test_the_map_is_read_off_the_table(lake):
    grid = only(lake, Grid)
    ice = [row.replace("S", "F") for row in grid.letters]
    assert ice == ["FFFF", "FHFH", "FFFH", "HFFG"]
    assert grid.marked == [2, 6]
    assert grid.moves.tolist() == [[-1, 0], [0, 1], [1, 0], [0, -1]]


def test_walks_go_from_cell_to_neighbour_and_end_where_it_absorbs(lake):
    grid = only(lake, Grid)
    letters = "".join(grid.letters)
    for walk in grid.walks:
        assert len(walk.actions) == len(walk.cells) - 1
        for here, there in zip(walk.cells, walk.cells[1:], strict=False):
            assert abs(here % 4 - there % 4) + abs(here // 4 - there // 4) <= 1
        assert all(letters[cell] == "S" for cell in walk.cells[:-1])
        paid = 200.0 if letters[walk.cells[-1]] == "G" else 0.0
        assert walk.totals["reward"][-1] == paid
        assert walk.totals["utility"][-1] == sum(cell in (2, 6) for cell in walk.cells[:-1])


def test_maps_of_other_sizes_are_read_and_other_tables_are_not():
    square = map_of(hf.environments.frozen_lake(rows=("SFH", "FFF", "HFG"), utility_cells=[1]))
    assert [len(row) for row in square] == [3, 3, 3]
    lake = hf.environments.frozen_lake(rows=("SFFG", "FHFF"), utility_cells=[1])
    dense = hf.RobustCMDP(
        transitions=lake.transitions.dense(), reward=np.zeros((8, 4)), discount=0.9
    )
    assert map_of(dense) == ("SSSH", "SHSS")
    rng = np.random.default_rng(0)
    random = rng.dirichlet(np.ones(8), (8, 4))
    assert map_of(dense.replace(transitions=random)) is None
    assert map_of(hf.environments.n_chain()) is None


def test_a_map_without_a_constraint_can_be_drawn():
    lake = hf.environments.frozen_lake(rows=("SG", "FH"), utility_cells=[]).replace(constraints=())
    grid = grid_block(map_of(lake), lake, np.full((4, 4), 0.25), {"reward": lake.transitions})
    assert grid.marked == []
    np.testing.assert_allclose(grid.pushes[0].arrows, 0, atol=1e-12)


def test_of_a_large_model_the_states_that_change_most_are_shown():
    rng = np.random.default_rng(1)
    states = 100
    nominal = rng.dirichlet(np.ones(states), (states, 1))
    worst = nominal.copy()
    changed = rng.choice(states, 30, replace=False)
    worst[changed] = np.eye(states)[rng.integers(0, states, 30)][:, None]
    model = hf.RobustCMDP(transitions=nominal, reward=np.zeros((states, 1)), discount=0.9)
    block = kernel_block(model, np.ones((states, 1)), {"reward": worst})
    assert (len(block.rows), len(block.columns)) == (MOST_ROWS, MOST_COLUMNS)
    assert set(changed.tolist()) <= set(block.rows)
    assert "Of 100 states these are the 40" in block.about
    table = under_policy(worst, np.ones((states, 1)))[np.ix_(block.rows, block.columns)]
    np.testing.assert_allclose(block.others[0].values, table, atol=1e-5)


def card(**changes):
    return values_card(
        {
            "feasible": True,
            "reward": {"worst": 1.0, "nominal": 2.0},
            "constraints": [
                {
                    "constraint": "total cost ≤ 3",
                    "threshold": 3.0,
                    "worst": 2.5,
                    "nominal": 1.0,
                    "margin": 0.5,
                    "holds": True,
                    "critical_factor": "inf",
                }
            ],
            "error": 1e-9,
            "upper_bound": 2.0,
            "gap": 0.5,
            "critical_factor": 1.5,
            **changes,
        },
        "the set",
    )


def test_a_certificate_says_what_is_proved():
    found = card()
    text = " ".join(found.statements)
    assert found.verdict.tone == "good"
    assert "above 2: gap 50\u00a0%." in text
    assert "gap below 1e-6\u00a0%." in " ".join(card(gap=9.4e-13).statements)
    assert "for radii up to 1.5 times the given ones" in text
    row = [cell.text for cell in found.table.rows[1]]
    assert row == ["total cost", "≤ 3", "2.5", "1", "+0.5", "never"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"upper_bound": "-inf", "gap": None}, "No policy satisfies these constraints"),
        ({"upper_bound": 4.0, "gap": None}, "worst-case reward above 4."),
        ({"critical_factor": None}, "not hold even under the nominal kernel"),
        ({"critical_factor": "inf"}, "for arbitrarily large radii"),
        ({"error": "inf"}, "exact to inf"),
    ],
)
def test_a_certificate_says_what_is_not(changes, said):
    found = card(feasible=False, **changes)
    assert found.verdict.tone == "bad"
    assert said in " ".join(found.statements)


def test_without_a_certificate_the_card_says_so(all_runs):
    record = json.loads((all_runs / "lake" / "solution.json").read_text())
    found = values_card(record, "the set")
    assert found.title == "Evaluation, not certified"
    assert "--certify" in " ".join(found.statements)


def test_sets_in_words():
    model = hf.environments.n_chain()
    radii = np.linspace(0.1, 0.2, 2 * model.states).reshape(model.states, 2)
    for uncertainty, words in (
        (hf.TotalVariation(0.2), "the total variation ball of radius 0.2"),
        (hf.KL(radii), "the KL ball of radii from 0.1 to 0.2"),
    ):
        assert uncertainty_in_words(model.replace(uncertainty=uncertainty)) == words


def test_registered_names_are_shown_as_they_are(monkeypatch):
    class Pool(hf.KL):
        """A set of another package."""

    lake = hf.environments.frozen_lake().replace(uncertainty=Pool(0.2))
    monkeypatch.setitem(registry.ENVIRONMENTS.targets, "my-lake", lambda: lake)
    monkeypatch.setitem(registry.ALGORITHMS.targets, "my-search", "my_package:SEARCH")
    monkeypatch.setitem(registry.UNCERTAINTY.targets, "pool", Pool)
    found = compared(seeds=1)
    found = dataclasses.replace(
        found,
        environment="my-lake",
        runs={"my-search": found.runs["rcpo"]},
        model=model_digest(lake),
    )
    section = comparison_section("folder", found, "0.1.0")
    assert section.title == "my-lake"
    assert only(section, PageTable).rows[0][0].text == "my-search"
    assert only(section, Grid).title.endswith("my-search, seed 0")
    assert uncertainty_in_words(lake) == "the pool ball of radius 0.2"


def test_a_comparison_has_curves_ends_and_the_kernel_of_rcpo():
    section = comparison_section("folder", compared(seeds=3), "0.1.0")
    reward, margins = (block for block in section.blocks if isinstance(block, Lines))
    series = {each.name: each for each in margins.views[0].series}
    assert series["RCPO"].y[-1] == pytest.approx(0.21)
    assert (series["RCPO"].low[-1], series["RCPO"].high[-1]) == pytest.approx((0.2, 0.22))
    assert margins.views[0].limits[0].value == 0
    assert [view.name for view in reward.views] == ["worst-case reward", "nominal reward"]
    scatter = only(section, Scatter)
    feasible = {cloud.name: {p.feasible for p in cloud.points} for cloud in scatter.plane.clouds}
    assert feasible == {"RCPO": {True}, "PCPO": {False}}
    table = only(section, PageTable)
    assert [cell.text for cell in table.rows[0]] == [
        "RCPO",
        "2.1",
        "3",
        "+0.2",
        "3 of 3",
        "< 1e-6 %",
    ]
    assert [cell.text for cell in table.rows[1]][-2] == "0 of 3"
    assert only(section, Grid).title.endswith("RCPO, seed 0")


def test_a_comparison_on_a_model_that_is_not_at_hand_has_no_kernel():
    section = comparison_section("folder", compared(seeds=1, model="unknown"), "0.1.0")
    assert not any(isinstance(block, HeatMaps) for block in section.blocks)
    assert section.blocks[0].views[0].series[0].low is None


def test_several_constraints_have_a_view_of_their_margin_each(fabricate):
    bounds = (ConstraintThreshold("utility", 2.0, "thrift"), ConstraintThreshold("cost", 1.5))
    found = fabricate("gambler", seeds=1, bounds=bounds, rcpo=(1.0, [[0.1, 0.2], [-0.3, 0.1]]))
    _, margins = (
        block
        for block in comparison_section("folder", found, "0.1.0").blocks
        if isinstance(block, Lines)
    )
    assert {view.name: view.series[0].y.tolist() for view in margins.views} == {
        "smallest margin": [0.1, -0.3],
        "margin of thrift 1": [0.1, -0.3],
        "margin of cost 2": [0.2, 0.1],
    }


def test_a_model_from_a_log_shows_its_data_and_names():
    log = {
        "s": ["a", "b", "a"] * 5,
        "do": ["x", "x", "y"] * 5,
        "t": ["b", "a", "a"] * 5,
        "r": [1, 0, 2] * 5,
    }
    model = hf.from_log(log, state="s", action="do", next_state="t", signals={"gain": "r"})
    card, pairs = data_blocks(model)
    assert card.verdict.text == "1 of 4 pairs were never visited."
    assert "never visited: b / y" in card.statements[0]
    assert [[cell.text for cell in row[:3]] for row in pairs.rows] == [
        ["a", "x", "5"], ["a", "y", "5"], ["b", "x", "5"], ["b", "y", "0"],
    ]  # fmt: skip
    assert pairs.rows[3][3].text == "1 [0, 2]"
    assert data_blocks(hf.environments.n_chain(nodes=3)) == []
    worst = {"reward": model.transitions}
    assert kernel_block(model, np.full((2, 2), 0.5), worst).rows == ["a", "b"]
