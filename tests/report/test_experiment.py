"""Tables, figures and claims of an experiment in a simulator, from invented measurements."""

import dataclasses

import pytest

from holdfast.experiments import DeepExperiment
from holdfast.experiments.results import DeepResults, Trained
from holdfast.report.claims import check_claims
from holdfast.report.comparison import simulator_rows
from holdfast.report.experiment import write_simulator_experiment
from holdfast.simulators.certificates.intervals import ConfidenceInterval, Measured
from holdfast.simulators.certificates.stress_result import Row, Stress

EXPERIMENT = DeepExperiment(trust_regions=(0.01,), seeds=2, iterations=3, attacks=(0.2,))


def measured(value):
    each = ConfidenceInterval(value, value - 0.005, value + 0.005)
    return Measured(*each, 0.0, (each, each))


def stressed(attacked_cost, reward):
    def row(kind, level, subject, cost, reward):
        return Row(kind, level, subject, measured(reward), (measured(cost),), ())

    rows = [row("nominal", 0.0, "", 0.05, reward)]
    rows += [row("attack", 0.2, "reward", 0.05, reward - 2)]
    rows += [row("attack", 0.2, "bombs", attacked_cost, reward)]
    rows += [row("action noise", s, "", 0.06, reward - s) for s in EXPERIMENT.action_noise]
    environment = {"name": "point-gather", "parameters": {}}
    setup = {"episodes": 100, "confidence": 0.95}
    return Stress(("a", "b"), ("bombs",), (0.1,), tuple(rows), environment, setup)


def results(robust_cost, robust_reward=5.0):
    runs = {}
    for job in EXPERIMENT.jobs():
        rows = [
            {
                "seed": seed,
                "iteration": i,
                "reward": float(i),
                "costs": [0.09],
                "nominal_reward": float(i),
                "nominal_costs": [0.09],
                "inner_limits": [0.1],
                "kl": 0.01,
            }
            for i in range(3)
            for seed in range(2)
        ]
        found = None
        if job.stress is not None:
            robust = job.algorithm == "rcpo"
            found = stressed(robust_cost if robust else 0.2, robust_reward if robust else 4.0)
        runs[job] = Trained(job, rows, found)
    return DeepResults(EXPERIMENT, "point-gather", runs)


@pytest.mark.parametrize(("cost", "holds"), [(0.09, True), (0.097, False), (0.2, False)])
def test_a_limit_is_held_only_where_the_whole_interval_is_within(cost, holds):
    verdicts = check_claims([results(cost)])
    assert verdicts[0].finding.holds is holds
    assert verdicts[1].finding.holds  # the others are over it either way
    assert "seeds 2 instead of 5" in verdicts[0].settings


@pytest.mark.parametrize(("reward", "holds"), [(5.0, True), (4.1, False), (3.0, False)])
def test_much_higher_means_by_a_tenth_at_every_noise(reward, holds):
    claim = next(v for v in check_claims([results(0.09, reward)]) if "much" in v.claim.statement)
    assert claim.finding.holds is holds


def test_everything_is_written(tmp_path):
    found = results(0.09)
    write_simulator_experiment(tmp_path, found)
    names = {file.name for file in tmp_path.iterdir()}
    assert names >= {"figure.png", "figure.svg", "undisturbed.png", "table.md", "table.csv"}
    assert [line.algorithm for line in simulator_rows(found)] == ["rcpo", "pcpo", "cpo"]
    assert "| RCPO | 0.01 | 5 [5, 5] |" in (tmp_path / "table.md").read_text()
    rows = (tmp_path / "learning.csv").read_text().splitlines()
    assert len(rows) == 1 + len(EXPERIMENT.jobs()) * 6
    changed = dataclasses.replace(EXPERIMENT, radii=(0.3,))
    with pytest.raises(KeyError):
        simulator_rows(
            DeepResults(changed, "point-gather", found.runs)
        )  # nothing was measured there
