from __future__ import annotations

import dataclasses
import io
import json
import struct
import zipfile

import numpy as np
import pytest

import holdfast as hf
import holdfast.experiments.store as store
from holdfast._support import files as _files
from holdfast.environments import MODELS
from holdfast.experiments import SolveSettings, TabularExperiment, read_description
from holdfast.experiments.progress import iterations_on
from holdfast.experiments.results import ConstraintThreshold, columns
from holdfast.experiments.runner import run
from holdfast.experiments.store import read_experiment
from holdfast.report.tables import write_chosen

EXPERIMENT = TabularExperiment(
    environments=("gambler",),
    algorithms=("rcpo", "rvi"),
    seeds=2,
    settings=SolveSettings(iterations=3),
)
JOBS = [("rcpo", 0), ("rcpo", 1), ("rvi", 0), ("rvi", 1)]


def run_quietly(experiment, out):
    return run(experiment, out, engine="inline", stream=io.StringIO()).results[0]


def job_files(out):
    return sorted(path.name for path in (out / "gambler" / "jobs").iterdir())


def test_every_job_is_run_and_kept(tmp_path, solve):
    results = run_quietly(EXPERIMENT, tmp_path)
    assert solve.calls == JOBS
    assert job_files(tmp_path) == [f"{a}-seed-{s}.npz" for a, s in JOBS]
    assert {name: len(runs) for name, runs in results.runs.items()} == {"rcpo": 2, "rvi": 2}


def test_a_second_run_runs_nothing_and_gives_the_same(tmp_path, solve):
    first = run_quietly(EXPERIMENT, tmp_path)
    solve.calls.clear()
    second = run_quietly(EXPERIMENT, tmp_path)
    assert solve.calls == []
    for before, after in zip(first, second, strict=True):
        assert (before.job, before.status, before.bounds) == (after.job, after.status, after.bounds)
        np.testing.assert_array_equal(before.policy, after.policy)
        assert before.history.keys() == after.history.keys()
        for name, values in before.history.items():
            np.testing.assert_array_equal(values, after.history[name])
            assert values.dtype == after.history[name].dtype


def test_more_seeds_run_only_the_new_ones(tmp_path, solve):
    run_quietly(EXPERIMENT, tmp_path)
    solve.calls.clear()
    run_quietly(dataclasses.replace(EXPERIMENT, seeds=3), tmp_path)
    assert solve.calls == [("rcpo", 2), ("rvi", 2)]


def test_a_deleted_file_is_run_again(tmp_path, solve):
    run_quietly(EXPERIMENT, tmp_path)
    solve.calls.clear()
    (tmp_path / "gambler" / "jobs" / "rcpo-seed-1.npz").unlink()
    run_quietly(EXPERIMENT, tmp_path)
    assert solve.calls == [("rcpo", 1)]


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path):
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("history_reward.npy")
    data = bytearray(path.read_bytes())
    name_and_extra = struct.unpack_from("<HH", data, member.header_offset + 26)
    content = member.header_offset + 30 + sum(name_and_extra)
    data[content + member.compress_size // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def _empty(path):
    path.write_bytes(b"")


def _foreign(path):
    np.savez(path, anything=np.arange(3))


def _without_reward(path):
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "history_reward"}
    np.savez(path, **arrays)


def _pickled(path):
    np.savez(path, header=np.array({"an": "object"}, dtype=object))


@pytest.mark.parametrize("damage", [_cut, _flip, _empty, _foreign, _without_reward, _pickled])
def test_a_damaged_or_foreign_file_is_run_again(tmp_path, solve, damage):
    first = run_quietly(EXPERIMENT, tmp_path)
    solve.calls.clear()
    damage(tmp_path / "gambler" / "jobs" / "rvi-seed-0.npz")
    second = run_quietly(EXPERIMENT, tmp_path)
    assert solve.calls == [("rvi", 0)]
    np.testing.assert_array_equal(
        first.runs["rvi"][0].history["reward"], second.runs["rvi"][0].history["reward"]
    )


@pytest.mark.parametrize(
    "change", [{"iterations": 4}, {"trust_region": 0.02}, {"step": "taylor"}, {"safeguard": "none"}]
)
def test_changed_settings_are_run_again(tmp_path, solve, change):
    run_quietly(EXPERIMENT, tmp_path)
    solve.calls.clear()
    changed = dataclasses.replace(EXPERIMENT.settings, **change)
    run_quietly(dataclasses.replace(EXPERIMENT, settings=changed), tmp_path)
    assert solve.calls == JOBS


def test_a_changed_model_is_run_again(tmp_path, solve):
    run_quietly(EXPERIMENT, tmp_path)
    solve.calls.clear()
    changed = dataclasses.replace(EXPERIMENT, environment={"gambler": {"radius": 0.2}})
    run_quietly(changed, tmp_path)
    assert solve.calls == JOBS


def test_another_version_is_run_again(tmp_path, solve, monkeypatch):
    run_quietly(EXPERIMENT, tmp_path)
    solve.calls.clear()
    monkeypatch.setattr(store, "__version__", "another")
    # What another version made can be read all the same.
    assert len(list(read_experiment(tmp_path)[0])) == len(JOBS)
    run_quietly(EXPERIMENT, tmp_path)
    assert solve.calls == JOBS


def test_an_interrupt_keeps_what_is_finished_and_the_same_call_goes_on(tmp_path, solve):
    solve.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        run_quietly(EXPERIMENT, tmp_path)
    assert job_files(tmp_path) == ["rcpo-seed-0.npz", "rcpo-seed-1.npz"]
    solve.interrupt_at = None
    solve.calls.clear()
    run_quietly(EXPERIMENT, tmp_path)
    assert solve.calls == JOBS[2:]
    assert len(job_files(tmp_path)) == 4


def test_no_half_written_file_is_ever_visible(tmp_path, solve, monkeypatch):
    path = tmp_path / "gambler" / "jobs" / "rcpo-seed-0.npz"
    seen = []

    def interrupted_half_way(handle):
        seen.append(path.exists())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "fsync", interrupted_half_way)
        # The description is whole before any job is begun.
        patch.setattr(store, "write_record", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            run_quietly(EXPERIMENT, tmp_path)
    assert seen == [False]
    assert job_files(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environments": ("casino",)}, "environments: there is no model or file 'casino'"),
        ({"environments": ("gamblr",)}, "did you mean gambler?"),
        ({"algorithms": ("rcpo", "magic")}, "algorithm: there is no 'magic'"),
        ({"environment": {"gambler": {"gold": 3}}}, "environment.gambler: .*gold"),
        ({"algorithm": {"rcpo": {"settings": {"a": 1}}}}, "settings: 'rcpo' has no settings"),
        (
            {"algorithms": ("rpd",), "search": {"rpd": {"settings": {"dual_stp": [1.0]}}}},
            "did you mean dual_step",
        ),
        (
            {"algorithms": ("rpd",), "algorithm": {"rpd": {"trust_region": 0.1}}},
            "algorithm.rpd.trust_region: rpd does not use it",
        ),
        (
            {"environment": {"gambler": {"model": "x"}}},
            "environment.gambler: there is no model or file 'x'",
        ),
        ({"environment": {"gambler": {"file": "no.npz"}}}, "there is no model or file .no.npz"),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_work(tmp_path, solve, change, message):
    with pytest.raises((ValueError, OSError), match=message):
        run_quietly(dataclasses.replace(EXPERIMENT, **change), tmp_path)
    assert solve.calls == []
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_engine_is_refused(tmp_path):
    with pytest.raises(ValueError, match="engine: expected one of processes, ray, inline"):
        run(EXPERIMENT, tmp_path, engine="steam")


def test_models_radii_and_variants_are_all_crossed(tmp_path, solve):
    experiment = dataclasses.replace(
        EXPERIMENT,
        radii=(0.05, 0.2),
        environments=("gambler", "small"),
        environment={"small": {"model": "gambler", "goal": 4}},
        variants={"long": {"iterations": 5}, "plain": {"safeguard": "none"}},
    )
    found = run(experiment, tmp_path, engine="inline", stream=io.StringIO()).results
    assert [each.cell for each in found] == [
        "gambler-radius-0.05",
        "gambler-radius-0.2",
        "small-radius-0.05",
        "small-radius-0.2",
    ]
    for each in found:
        assert list(each.runs) == ["rcpo long", "rcpo plain", "rvi long", "rvi plain"]
        assert all(len(runs) == 2 for runs in each.runs.values())
    assert found[2].runs["rcpo long"][0].policy.shape == (5, 2)
    assert len(found[0].runs["rcpo long"][0].history["reward"]) == 6
    assert [each.cell for each in read_experiment(tmp_path)] == [each.cell for each in found]
    assert len({each.model for each in found}) == 4


SEARCHED = dataclasses.replace(
    EXPERIMENT, search={"rcpo": {"trust_region": [0.1, 0.2], "step": ["exact", "taylor"]}}
)


def test_a_search_tries_all_with_a_seed_of_its_own_and_runs_the_best(tmp_path, solve):
    found = run_quietly(SEARCHED, tmp_path)
    assert solve.calls == [*[("rcpo", 2)] * 4, *JOBS]
    tried = sorted((tmp_path / "gambler" / "search").iterdir())
    merits = {(r := store.read(path)[1]).merit: r.job.settings for path in tried}
    assert len(merits) == 4
    for result in found.runs["rcpo"]:
        assert result.job.settings == merits[max(merits)]
    assert found.runs["rvi"][0].job.settings == EXPERIMENT.settings
    solve.calls.clear()
    assert run_quietly(SEARCHED, tmp_path).runs.keys() == found.runs.keys()
    assert solve.calls == []
    (again,) = read_experiment(tmp_path)
    assert again.runs["rcpo"][0].job == found.runs["rcpo"][0].job
    best = again.runs["rcpo"][0].job.settings
    write_chosen(tmp_path, [again])
    text = (tmp_path / "chosen.md").read_text()
    assert f"| gambler | rcpo | trust_region {best.trust_region:g}, step {best.step} |" in text
    assert "trust_region 0.1, 0.2; step exact, taylor" in text


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"magic": {}}, r"search\.magic: no such key"),
        ({"rcpo": {"trust_region": 0.1}}, r"search\.rcpo\.trust_region: expected a list"),
        ({"rcpo": {"trust": [0.1]}}, r"search\.rcpo\.trust: .*trust_region"),
        ({"rcpo": {"settings": [1]}}, r"search\.rcpo\.settings: expected a table"),
        ({"rcpo": {"iterations": [0]}}, r"search\.rcpo\.iterations: expected a whole"),
    ],
)
def test_a_search_that_cannot_be_is_refused(search, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(EXPERIMENT, search=search)


def test_a_model_file_of_ones_own(tmp_path, solve):
    MODELS["gambler"](goal=4).save(tmp_path / "mine.npz")
    (tmp_path / "mine.toml").write_text(
        'environments = ["mine"]\nalgorithms = ["rcpo"]\nseeds = 1\n'
        '[environment.mine]\nfile = "mine.npz"\n'
    )
    experiment = read_description(tmp_path / "mine.toml")
    found = run_quietly(experiment, tmp_path / "out")
    assert found.runs["rcpo"][0].policy.shape == (5, 2)


def test_a_job_that_fails_is_told_while_the_others_go_on(tmp_path, solve, monkeypatch):
    monkeypatch.setattr(
        hf,
        "solve",
        lambda *given, **rest: solve(*given, **rest) if given[1] == "rcpo" else 1 / 0,
    )
    stream = io.StringIO()
    outcome = run(EXPERIMENT, tmp_path, engine="inline", stream=stream)
    assert [len(runs) for runs in outcome.results[0].runs.values()] == [2]
    assert [failure.attempts for failure in outcome.failures] == [3]
    assert "ZeroDivisionError" in outcome.failures[0].traceback
    assert stream.getvalue().count("is tried again") == 2
    assert "gambler rvi failed for good: ZeroDivisionError" in stream.getvalue()


def test_a_job_file_says_what_it_is_without_pickle(tmp_path, solve):
    run_quietly(EXPERIMENT, tmp_path)
    with np.load(tmp_path / "gambler" / "jobs" / "rcpo-seed-1.npz", allow_pickle=False) as file:
        header = json.loads(str(file["header"]))
        assert file["policy"].shape == (17, 8)
        assert file["history_margins"].shape == (4, 1)
    assert header["job"] == EXPERIMENT.jobs()[1].to_dict()
    assert len(header["fingerprint"]) == 64
    assert header["status"] == "feasible"


def test_the_digest_sees_everything_in_a_model():
    gambler = MODELS["gambler"]
    models = [
        gambler(),
        gambler(heads=0.61),
        gambler(prize=11),
        gambler(radius=0.2),
        gambler(threshold=2.6),
        gambler(discount=0.9),
        gambler().replace(constraints=()),
        gambler().replace(initial=None),
        MODELS["n-chain"](),
    ]
    digests = [store.model_digest(model) for model in models]
    assert len(set(digests)) == len(models)
    assert store.model_digest(gambler()) == digests[0]


def test_elsewhere_than_on_a_terminal_each_finished_job_is_a_line(tmp_path, solve):
    stream = io.StringIO()
    run(EXPERIMENT, tmp_path, engine="inline", stream=stream)
    lines = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"[{i}/4] gambler {algorithm} seed {seed}"
        for i, (algorithm, seed) in enumerate(JOBS, start=1)
    ]
    (tmp_path / "gambler" / "jobs" / "rvi-seed-1.npz").unlink()
    stream = io.StringIO()
    run(EXPERIMENT, tmp_path, engine="inline", stream=stream)
    kept, done = stream.getvalue().splitlines()
    assert kept == "[3/4] 3 kept from an earlier run"
    assert done.startswith("[4/4] gambler rvi seed 1: feasible")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_there_is_a_bar(tmp_path, solve, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    run(EXPERIMENT, tmp_path, engine="inline", stream=terminal)
    assert "4/4" in terminal.getvalue()
    terminal = Terminal()
    with iterations_on(terminal, "gambler rcpo", 5) as told:
        told(5, "3.4, gap 2 %")
    assert "gambler rcpo 3.4, gap 2 %" in terminal.getvalue()
    with iterations_on(io.StringIO(), "gambler rcpo", 5) as told:
        assert told is None


def test_columns_show_every_constraint_in_its_own_sense():
    history = {
        "reward": np.array([1.0, 2.0]),
        "margins": np.array([[0.5, 0.25], [-1.0, -2.0]]),
        "nominal_reward": np.array([3.0, 4.0]),
        "nominal_margins": np.array([[1.0, 1.0], [1.0, 1.0]]),
        "kl": np.zeros(2),
        "recovered": np.array([False, True]),
        "error": np.zeros(2),
        "seconds": np.arange(2.0),
        "multipliers": np.zeros((2, 2)),
    }
    table = columns(
        history, [ConstraintThreshold("utility", 2.0), ConstraintThreshold("cost", 5.0)]
    )
    np.testing.assert_array_equal(table["utility_0"], [2.5, 1.0])
    np.testing.assert_array_equal(table["cost_1"], [4.75, 7.0])
    np.testing.assert_array_equal(table["nominal_cost_1"], [4.0, 4.0])
    assert list(table)[-1] == "seconds"
    assert all(np.shape(column) == (2,) for column in table.values())
