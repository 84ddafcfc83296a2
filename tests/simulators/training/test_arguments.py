"""Warm starts, callbacks that see the agents and stop, and rows sent to Weights & Biases."""

import json
import sys
import types

import jax
import numpy as np
import pytest

import holdfast as hf
from holdfast.simulators.train import prepare


@pytest.fixture(scope="module")
def agents(chain, tiny):
    return hf.train(chain, "trpo", iterations=1, **tiny)


def test_a_run_starts_from_the_policies_of_agents(chain, tiny, agents):
    for start, expected in ((agents, agents), (agents[1], [agents[1]] * 2)):
        learners = prepare(chain, "pcpo", start=start, cost_limit=-3.0, **tiny).first()
        policies = jax.tree.map(lambda *leaves: np.stack(leaves), *[a.policy for a in expected])
        jax.tree.map(np.testing.assert_array_equal, learners.policy, policies)
    fresh = prepare(chain, "pcpo", **tiny).first().policy.network.weights[0]
    assert np.abs(fresh - learners.policy.network.weights[0]).max() > 0.01


def test_the_normaliser_of_observations_comes_along():
    system = hf.environments.LinearGaussian()
    small = {"iterations": 1, "batch_size": 100, "hidden": (4,), "cost_limit": 1.0}
    agent = hf.train(system, "trpo", **small)
    run = prepare(system, "trpo", start=agent, **{**small, "iterations": 2})
    assert run.settings.hidden == (4,)
    first = run.first().sight.observations
    np.testing.assert_array_equal(first.mean[0], agent.observations.mean)
    assert first.count[0] == agent.observations.count > 0
    with pytest.raises(ValueError, match=r"start: trpo-0 has hidden layers \(4,\), got \(5,\)"):
        prepare(system, "trpo", start=agent, **{**small, "hidden": (5,)})
    with pytest.raises(ValueError, match="start: trpo-0 was trained with normalise=True"):
        prepare(system, "trpo", start=agent, normalise=False, **small)


def test_a_start_that_does_not_fit_is_refused(chain, tiny, agents):
    longer = hf.environments.TableSimulator(hf.environments.n_chain(nodes=6), name="longer")
    for env, start, message in (
        (longer, agents, "start: longer has 6 observations"),
        (chain, agents[:1], "start: expected one agent or one for each of 2 seeds"),
        (chain, ["agent.safetensors"] * 2, "start: expected an Agent, got 'agent"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare(env, "trpo", start=start, **tiny)


def test_a_run_remembers_its_start(chain, tiny, agents, tmp_path):
    hf.train(chain, "trpo", start=agents, iterations=1, out=tmp_path, **tiny)
    assert len(json.loads((tmp_path / "run.json").read_text())["start"]) == 2
    with pytest.raises(ValueError, match="contains a run with start"):
        hf.train(chain, "trpo", start=agents[0], iterations=1, out=tmp_path, **tiny)
    with pytest.raises(ValueError, match="contains a run with start"):
        hf.train(chain, "trpo", iterations=1, out=tmp_path, **tiny)


@pytest.mark.parametrize("folder", [False, True])
def test_a_callback_sees_the_agents_and_stops_the_run(chain, tiny, tmp_path, folder):
    seen = []

    def stop(rows, agents):
        seen.append((rows[-1]["iteration"], [agent.seed for agent in agents]))
        return rows[-1]["iteration"] == 1

    out = {"out": tmp_path} if folder else {}
    stopped = hf.train(chain, "trpo", iterations=4, callback=stop, **out, **tiny)
    assert seen == [(0, [0, 1]), (1, [0, 1])]
    straight = hf.train(chain, "trpo", iterations=2, **tiny)
    for mine, other in zip(stopped, straight, strict=True):
        assert mine.settings.iterations == 2
        np.testing.assert_array_equal(
            mine.policy.network.weights[0], other.policy.network.weights[0]
        )
    if folder:
        with pytest.raises(ValueError, match="not finished, 2 of 4"):
            hf.load(tmp_path)
        more = hf.train(chain, "trpo", iterations=4, **out, **tiny)
        assert more[0].settings.iterations == 4


def test_only_true_stops(chain, tiny):
    rows = []
    hf.train(chain, "trpo", iterations=2, callback=lambda new: rows.extend(new) or 1, **tiny)
    assert len(rows) == 4


class FakeRun:
    def __init__(self, options, fails):
        self.options, self.rows, self.fails, self.finished = options, [], fails, False

    def log(self, values, step):
        if self.fails:
            raise OSError("no network")
        self.rows.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    """A module in place of the real one, with the runs that were started."""
    fake = types.SimpleNamespace(runs=[], fails=False)

    def init(**options):
        fake.runs.append(FakeRun(options, fake.fails))
        return fake.runs[-1]

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_weights_and_biases_gets_every_row_once(chain, tiny, tmp_path, wandb):
    for iterations in (1, 2):
        hf.train(chain, "trpo", iterations=iterations, out=tmp_path, wandb="chains", **tiny)
    assert [len(run.rows) for run in wandb.runs] == [1, 1, 1, 1]
    assert [run.rows[0][0] for run in wandb.runs] == [0, 0, 1, 1]
    assert all(run.finished and "nominal/reward" in run.rows[0][1] for run in wandb.runs)
    first, second, again, _ = (run.options for run in wandb.runs)
    assert first["project"] == "chains"
    assert first["id"] == again["id"] != second["id"]
    assert first["config"]["algorithm"] == "trpo"


def test_a_log_that_fails_stops_nothing(chain, tiny, wandb):
    wandb.fails = True
    with pytest.warns(UserWarning, match="receives no more rows: no network"):
        hf.train(chain, "trpo", iterations=1, wandb="chains", **tiny)
    assert all(run.finished for run in wandb.runs)


def test_without_the_package_it_is_refused(chain, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="wandb: it is not installed"):
        hf.train(chain, "trpo", iterations=1, wandb="chains", **tiny)
