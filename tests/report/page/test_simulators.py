from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.report.page.collect import collect
from holdfast.report.page.content import Arena, Lines, PageTable, Scatter, to_plain
from holdfast.report.page.simulators import stress_section, training_sections
from holdfast.report.records import read_training
from holdfast.simulators.training import runs

from .conftest import metrics, prepared, stressed, train_folder


def blocks(section, kind):
    return [block for block in section.blocks if isinstance(block, kind)]


def titled(section, title):
    return next(block for block in section.blocks if getattr(block, "title", "") == title)


def test_only_iterations_that_all_seeds_have_done_count(gather_run, tmp_path):
    folder = train_folder(tmp_path / "run", gather_run, 3)
    runs.append_lines(folder / runs.METRICS, [metrics(3, 0)])
    with (folder / runs.METRICS).open("a") as file:
        file.write('{"iteration": 3, "se')
    run = read_training(folder)
    assert run.done == 3
    assert not run.finished
    assert run.curve("costs", 0).shape == (2, 3)
    np.testing.assert_allclose(run.curve("reward")[1], [1.1, 2.1, 3.1])


def test_a_run_that_has_only_begun_is_shown(gather_run, tmp_path):
    section = training_sections([read_training(train_folder(tmp_path / "run", gather_run, 0))])[0]
    assert [cell.text for cell in section.facts][-1] == "0 of 6 iterations"
    drawn = to_plain(titled(section, "Reward of an episode"))
    assert drawn["views"][0]["series"][0]["y"] == []


def test_the_band_is_the_range_over_seeds_or_two_errors_of_one(gather_run, tmp_path):
    several = read_training(train_folder(tmp_path / "two", gather_run, 2))
    one = read_training(train_folder(tmp_path / "one", prepared("pcpo", seeds=1), 2))
    reward = titled(training_sections([several])[0], "Reward of an episode").views[0].series[0]
    np.testing.assert_allclose(
        [reward.y, reward.low, reward.high], [[1.05, 2.05], [1.0, 2.0], [1.1, 2.1]]
    )
    worst, nominal = titled(training_sections([one])[0], "Reward of an episode").views
    np.testing.assert_allclose(
        [worst.series[0].low, worst.series[0].high], [[0.6, 1.6], [1.4, 2.4]]
    )
    assert nominal.series[0].low is None


def test_runs_of_one_simulator_are_side_by_side_and_told_apart(gather_run, tmp_path):
    made = {
        "a": gather_run,
        "b": prepared("pcpo"),
        "c": prepared(trust_region=0.02),
        "d": gather_run,
    }
    found = [read_training(train_folder(tmp_path / k, run, 6)) for k, run in made.items()]
    other = read_training(train_folder(tmp_path / "e", prepared(cost_limit=0.5), 1))
    sections = training_sections([*found, other])
    assert [each.title for each in sections] == [
        "point-gather, limits 0.1",
        "point-gather, limits 0.5",
    ]
    series = titled(sections[0], "Reward of an episode").views[0].series
    names = [each.name for each in series]
    assert names[1] == "PCPO"
    assert names[2] == "RCPO, radius 0.2, trust_region 0.02"
    assert {names[0], names[3]} == {
        "RCPO, radius 0.2, trust_region 0.01 (a)",
        "RCPO, radius 0.2, trust_region 0.01 (d)",
    }
    assert len({(each.colour, each.dash) for each in series}) == 4
    assert len({each.colour for each in series}) == 2
    table = blocks(sections[0], PageTable)[0]
    assert [row[0].text for row in table.rows] == names


def test_reward_against_cost_marks_the_seeds_over_their_limit(tmp_path):
    run = prepared(iterations=30)
    section = training_sections([read_training(train_folder(tmp_path / "run", run, 5))])[0]
    (scatter,) = blocks(section, Scatter)
    assert [point.feasible for point in scatter.plane.clouds[0].points] == [True, False]
    assert scatter.plane.limits[0].value == 0.1
    assert scatter.plane.limits[0].axis == "x"
    table = blocks(section, PageTable)[0]
    rows = {row[0].text: row[1] for row in table.rows}
    assert rows["iterations"].text == "5 of 30"
    assert rows["seeds within limits"].text == "1 of 2"
    assert rows["margin"].tone == "bad"
    # Costs 0.10 and 0.11 with drawn actions, 0.02 less with most likely ones.
    assert rows["most likely actions"].text == "0.085"
    views = titled(section, "Cost of an episode: bombs").views
    assert [view.name for view in views] == ["worst case", "nominal", "most likely actions"]
    np.testing.assert_allclose(views[2].series[0].y[-1], 0.085)


def test_most_likely_actions_over_a_limit_are_over_it(gather_run, tmp_path):
    folder = train_folder(tmp_path / "run", gather_run, 6)
    rows = read_training(folder).rows
    changed = [{**row, "likely_costs": [0.2]} if row["seed"] == 1 else row for row in rows]
    (folder / runs.METRICS).write_text("".join(json.dumps(row) + "\n" for row in changed))
    assert read_training(folder).over_limits == ["seed 1"]
    # Version 0.1.0 did not measure them.
    for row in changed:
        del row["likely_costs"]
    (folder / runs.METRICS).write_text("".join(json.dumps(row) + "\n" for row in changed))
    old = read_training(folder)
    assert old.over_limits == []
    views = titled(training_sections([old])[0], "Cost of an episode: bombs").views
    assert len(views) == 2


def test_stress_is_drawn_with_its_limit_and_its_critical_radius(gather_run, tmp_path):
    folder = train_folder(tmp_path / "run", gather_run, 6)
    section = training_sections([read_training(folder, stressed())])[0]
    figure = titled(section, "Under stress: bombs")
    attack, noise, speed = figure.views
    assert (attack.x.scale, list(attack.x.ticks)) == ("sqrt", [0.0, 0.1, 0.4])
    np.testing.assert_allclose(attack.series[0].y, [0.05, 0.08, 0.17])
    np.testing.assert_allclose(attack.series[0].high, [0.07, 0.1, 0.19])
    assert (noise.name, speed.name) == ("more noise", "speed")
    assert attack.limits[0].value == 0.1
    rows = {row[0].text: row[1].text for row in blocks(section, PageTable)[0].rows}
    assert rows["critical radius"] == f"{stressed().critical_radius:.3g}"


@pytest.mark.parametrize(("slope", "words"), [(0.0, "≥ 0.4"), (0.3, "0.1"), (5.0, "0.0")], ids=str)
def test_a_stress_of_its_own_says_its_critical_radius(slope, words):
    section = stress_section("folder", stressed(slope=slope))
    assert section.facts[-1].text.startswith(f"critical radius {words}")
    assert section.title == "point-gather, stress of rcpo-0"
    assert blocks(section, Lines)[0].views[0].series[0].colour == "#0072b2"


def test_episodes_are_played_only_when_the_run_is_finished(
    all_runs, page_kept, gather_run, tmp_path
):
    unfinished = read_training(train_folder(tmp_path / "run", gather_run, 5))
    assert unfinished.agent_files() == []
    (run,) = collect([all_runs / "gather" / "rcpo"], page_kept).trainings
    arena = run.arena
    assert isinstance(arena, Arena)
    assert len(arena.drives) == 9
    for drive in arena.drives:
        steps = len(drive.path) - 1
        assert len(drive.pushes) == steps
        assert len(drive.totals["return"]) == len(drive.headings) == steps + 1
        caught = [step for step in drive.caught_at[2:] if step]
        assert drive.totals["bombs"][-1] == len(set(caught))
