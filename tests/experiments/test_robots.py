"""Experiments on robots: what is described, what is run, and the table beside published values."""

import dataclasses
import json

import pytest

from holdfast.experiments import RobotExperiment, read_suite
from holdfast.experiments.robot_runs import RobotPlan, train_robot
from holdfast.experiments.robots import published_values
from holdfast.report.robots import robot_markdown


def small(**changes):
    fields = {"environments": ["SwimmerVelocity-v0"], "algorithms": ["cpo"], "seeds": 1}
    return RobotExperiment(**{**fields, "steps": 3_000, **changes})


def test_every_value_of_the_published_table_has_its_algorithm_and_robot():
    experiment = read_suite("velocity")
    source, values = published_values(experiment.published)
    assert "OmniSafe" in source
    assert set(values) == set(experiment.environments)
    for row in values.values():
        assert set(row) == {"cpo", "pcpo", "ppo-lag", "trpo-lag"} < set(experiment.algorithms)
        assert all(len(value) == 3 for value in row.values())


def test_only_algorithms_that_need_an_adversary_have_a_radius():
    jobs = {job.algorithm: job for job in read_suite("velocity").jobs()}
    radii = {name: job.train_arguments()["radius"] for name, job in jobs.items()}
    assert radii == {"cpo": 0, "pcpo": 0, "trpo-lag": 0, "ppo-lag": 0, "rcpo": 0.5}
    with pytest.raises(ValueError, match="channel: expected the disturbance"):
        small(radii=[0.5])


def test_a_part_can_be_selected():
    experiment = read_suite("velocity").selected(
        environments=["HopperVelocity-v0"], algorithms=["cpo", "rcpo"]
    )
    assert {job.label for job in experiment.jobs()} == {"cpo", "rcpo"}
    assert len(experiment.jobs()) == 6
    with pytest.raises(ValueError, match=r"algorithms.cop: no such key; did you mean cpo"):
        experiment.selected(algorithms=["cop"])
    table = read_suite("tabular").selected(algorithms=["rcpo"], environments=["gambler"])
    assert set(table.search) == {"rcpo"}
    assert not table.algorithm
    ablation = read_suite("velocity-ablation")
    assert "cpo std-1" in {job.label for job in ablation.jobs()}
    with pytest.raises(ValueError, match="iterations: these runs end by steps"):
        ablation.with_iterations(3)


def test_the_table_shows_the_worst_seed_the_adversaries_share_and_the_published_value():
    experiment = dataclasses.replace(read_suite("velocity"), seeds=2, steps=100)
    common = {"environment": "HopperVelocity-v0", "variant": "", "curve": [], "seconds": 1.0}
    rows = [
        {**common, "algorithm": "rcpo", "seed": 0, "steps": 100, "policy_steps": 60}
        | {"reward": 900.0, "cost": 10.0, "likely_reward": 910.0, "likely_cost": 30.0},
        {**common, "algorithm": "rcpo", "seed": 1, "steps": 100, "policy_steps": 60}
        | {"reward": 1100.0, "cost": 26.0, "likely_reward": 930.0, "likely_cost": 20.0},
        {**common, "algorithm": "cpo", "seed": 0, "steps": 40, "policy_steps": 40}
        | {"reward": 5.0, "cost": 1.0},
    ]
    text = robot_markdown(experiment, rows)
    assert (
        "| HopperVelocity-v0 | rcpo | 2 | 100 | 40% | 1,000 ± 100 | 18.0 (26.0) | 920 / 25.0 |  |"
        in text
    )
    assert "| cpo | 1 | 40 so far |  | 5 ± 0 | 1.0 (1.0) |  | 1,714 ± 18 / 13.4 |" in text


@pytest.mark.long
def test_a_run_stops_by_steps_continues_and_counts_all_of_them(tmp_path):
    settings = {"batch_size": 1_000, "critic_epochs": 1, "critic_minibatches": 4}
    first = small(steps=2_000, settings=settings)
    row = train_robot(first.jobs()[0], tmp_path)
    assert (row["steps"], len(row["curve"])) == (2_000, 1)  # a batch has at least two episodes
    assert RobotPlan(first, tmp_path).find(first.jobs()[0]) is not None
    longer = dataclasses.replace(first, steps=8_000)
    assert RobotPlan(longer, tmp_path).find(longer.jobs()[0]) is None
    row = train_robot(longer.jobs()[0], tmp_path)
    stored = json.loads((tmp_path / longer.jobs()[0].path / "row.json").read_text())
    assert stored == row
    assert [each["steps"] for each in row["curve"]] == [2_000, 4_000, 6_000, 8_000]
