"""Models from logs: what is counted, what is refused, and how often the truth is inside."""

from __future__ import annotations

import collections
import os
import time
import warnings

import numpy as np
import pytest

import holdfast as hf
from holdfast.cli.main import main

STATES, ACTIONS = ("new", "worn", "broken"), ("run", "service")
TRUTH = np.array([
    [[0.7, 0.25, 0.05], [0.95, 0.05, 0.0]],
    [[0.0, 0.6, 0.4], [0.8, 0.15, 0.05]],
    [[0.0, 0.0, 1.0], [0.7, 0.0, 0.3]],
])  # fmt: skip
PROFIT = np.array([[5.0, 2.0], [3.0, 1.0], [-2.0, -4.0]])
FULL = "HOLDFAST_CAMPAIGN" in os.environ


def simulate(seed: int, rows: int, machines: int = 4) -> dict[str, list]:
    """A log whose decisions, and whose end, depend on what has happened so far."""
    rng = np.random.default_rng(seed)
    log: dict[str, list] = {k: [] for k in ("machine", "week", "s", "a", "t", "profit", "down")}
    broken = 0
    for machine in range(machines):
        s, week = 0, 0
        while len(log["s"]) < rows * (machine + 1) // machines:
            # Service more often after breakdowns: visits depend on outcomes.
            a = int(rng.random() < (0.3 + 0.4 * s / 2 + 0.2 * (broken > 5)))
            t = int(rng.choice(3, p=TRUTH[s, a]))
            broken += t == 2
            noise = rng.choice([-1.0, 1.0])
            row = (
                machine,
                week,
                STATES[s],
                ACTIONS[a],
                STATES[t],
                PROFIT[s, a] + noise,
                float(s == 2),
            )
            for values, cell in zip(log.values(), row, strict=True):
                values.append(cell)
            s, week = t, week + 1
            # Whoever stops when things look good leaves a log of its own kind.
            if week > 30 and t == 0 and rng.random() < 0.02:
                s = 1
    return log


def fit(log, **changes) -> hf.RobustCMDP:
    given = {
        "state": "s",
        "action": "a",
        "next_state": "t",
        "episode": "machine",
        "time": "week",
        "signals": {"profit": "profit", "down": "down"},
        "ranges": {"profit": (-6, 7)},
        "exact": ["down"],
        "constraints": [hf.at_most("down", 4.0)],
        "states": STATES,
        "discount": 0.9,
    }
    return hf.from_log(log, **(given | changes))


@pytest.fixture(scope="module")
def log() -> dict[str, list]:
    return simulate(0, 400)


def write_csv(path, log, delimiter=",") -> str:
    lines = [delimiter.join(log)]
    lines += [
        delimiter.join("" if c is None else str(c) for c in row)
        for row in zip(*log.values(), strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_transitions_and_signals_are_counted(log):
    """Plain Python is the oracle."""
    model = fit(log)
    assert (model.state_names, model.action_names) == (STATES, ACTIONS)
    counted = collections.Counter(zip(log["s"], log["a"], log["t"], strict=True))
    for s, state in enumerate(STATES):
        for a, action in enumerate(ACTIONS):
            n = sum(counted[state, action, t] for t in STATES)
            assert model.data.visits[s][a] == n
            shares = [counted[state, action, t] / n for t in STATES]
            np.testing.assert_allclose(model.transitions[s, a], shares, atol=1e-12)
            seen = [
                p
                for p, *pair in zip(log["profit"], log["s"], log["a"], strict=True)
                if pair == [state, action]
            ]
            profit = model.data.signals["profit"]
            assert profit.mean[s][a] == pytest.approx(np.mean(seen))
            assert profit.lower[s][a] < np.mean(seen) < profit.upper[s][a]
    # The reward is the lower limit; an exact cost is the value itself; limits are read with their sense.
    np.testing.assert_array_equal(model.reward, profit.lower)
    np.testing.assert_array_equal(model.constraints[0].signal, [[0, 0], [0, 0], [1, 1]])
    assert str(model.constraints[0]) == "down ≤ 4"
    np.testing.assert_array_equal(model.initial, [1, 0, 0])
    upper = fit(log, constraints=[hf.at_most("profit", 9.0), hf.at_least("profit", 1.0)])
    np.testing.assert_array_equal(upper.constraints[0].signal, profit.upper)
    np.testing.assert_array_equal(upper.constraints[1].signal, profit.lower)


def test_the_risk_is_divided_as_documented(log):
    data = fit(log).data
    assert (data.kernel_risk, data.signal_risk) == (pytest.approx(0.025), pytest.approx(0.025))
    counts = np.array(data.visits)[..., None] * fit(log).transitions
    _, expected = hf.Interval.from_counts(counts.round(), confidence=0.975, sampling="adaptive")
    np.testing.assert_array_equal(fit(log).uncertainty.upper, expected.upper)
    alone = fit(log, signals={}, exact=[], ranges={}, constraints=[]).data
    assert (alone.kernel_risk, alone.signal_risk) == (pytest.approx(0.05), 0.0)


def test_every_kind_of_table_gives_the_same_model(log, tmp_path):
    import pandas
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(log)
    parquet.write_table(table, tmp_path / "log.parquet")
    sources = [
        write_csv(tmp_path / "log.csv", log),
        write_csv(tmp_path / "semicolons.csv", log, ";"),
        tmp_path / "log.parquet",
        pandas.DataFrame(log),
        table,
    ]
    expected = fit(log)
    for source in sources:
        model = fit(source)
        assert model.state_names == expected.state_names
        np.testing.assert_array_equal(model.uncertainty.lower, expected.uncertainty.lower)
        np.testing.assert_array_equal(model.reward, expected.reward)


def test_consecutive_rows_are_transitions_except_across_gaps_and_episodes():
    log = {
        "day": ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-07", "2024-01-08", "2024-01-02"],
        "machine": ["A", "A", "A", "A", "A", "B"],
        "s": ["new", "new", "worn", "new", "worn", "new"],
        "a": ["run"] * 6,
    }
    model = hf.from_log(log, state="s", action="a", time="day", episode="machine", discount=0.9)
    assert model.data.visits == [[3], [0]]
    assert model.data.left_out == {
        "last row of an episode": 2,
        "gap in time before the next row": 1,
    }
    assert model.data.never_visited == [("worn", "run")]
    assert "worn / run. Every possible next state is allowed there" in str(model.data)
    # Nature is free where there was no visit.
    np.testing.assert_array_equal(model.uncertainty.lower[1, 0], [0, 0])
    np.testing.assert_array_equal(model.uncertainty.upper[1, 0], [1, 1])
    np.testing.assert_allclose(model.transitions[0, 0], [1 / 3, 2 / 3])
    # Rows in another order are the same log.
    shuffled = {name: [cells[i] for i in (3, 5, 0, 4, 2, 1)] for name, cells in log.items()}
    again = hf.from_log(
        shuffled, state="s", action="a", time="day", episode="machine", discount=0.9
    )
    assert again.data.visits == model.data.visits
    # With a step of four days only the gap is a transition.
    wide = {"state": "s", "action": "a", "time": "day", "episode": "machine", "discount": 0.9}
    assert hf.from_log(log, step=4 * 86400, **wide).data.visits == [[0], [1]]


def test_an_episode_that_ends_pays_nothing_afterwards():
    log = {
        "s": ["a", "b"] * 3,
        "a": ["go"] * 6,
        "t": ["b", None] * 3,
        "end": ["no", "yes"] * 3,
        "r": [1.0] * 6,
    }
    model = hf.from_log(
        log, state="s", action="a", next_state="t", terminated="end", signals={"r": "r"}, exact=["r"],
        discount=0.5,
    )  # fmt: skip
    assert model.state_names == ("a", "b", "(end)")
    np.testing.assert_array_equal(model.transitions[1, 0], [0, 0, 1])
    np.testing.assert_array_equal(model.transitions[2, 0], [0, 0, 1])
    np.testing.assert_array_equal(model.uncertainty.upper[2, 0], [0, 0, 1])
    np.testing.assert_array_equal(model.reward[:, 0], [1, 1, 0])
    np.testing.assert_array_equal(model.initial, [0.5, 0.5, 0])


def test_states_of_several_columns_and_bins():
    log = {
        "kind": ["x", "x", "y", "y"],
        "load": [10, 95, 50, 80],
        "a": [1, 1.0, 2, 2],
        "kind2": ["x", "y", "y", "x"],
        "load2": [95, 50, 79, 10],
    }
    model = hf.from_log(
        log, state=["kind", "load"], action="a", next_state=["kind2", "load2"],
        bins={"load": [50, 80]}, discount=0.9,
    )  # fmt: skip
    assert model.state_names == (
        "x, load < 50", "x, load ≥ 80", "y, 50 ≤ load < 80", "y, load ≥ 80",
    )  # fmt: skip
    assert model.action_names == ("1", "2")
    assert model.transitions[2, 1, 2] == 1
    equal = hf.from_log(
        log, state="load", action="a", next_state="load2", bins={"load": 2}, discount=0.9
    )
    assert equal.state_names == ("load < 52.5", "load ≥ 52.5")
    assert "the bins of load would be the same for other data" in equal.data.assumptions


def test_possible_transitions_make_the_set_smaller(log):
    known = {("new", "service"): ["new", "worn"], "broken": ["new", "broken"]}
    model = fit(log, possible=known)
    assert model.uncertainty.upper[0, 1, 2] == 0
    assert model.uncertainty.upper[2, 1, 1] == 0
    assert (model.uncertainty.upper <= fit(log).uncertainty.upper + 1e-12).all()


def test_numbers_and_texts_and_declared_names_that_never_occur():
    mixed = {"s": [1, "1", 1.0, "two"], "a": ["go"] * 4, "t": ["two", "1", 1, 1]}
    model = hf.from_log(
        mixed, state="s", action="a", next_state="t", actions=["go", "stop"], discount=0.9
    )
    assert model.state_names == ("1", "two")
    assert model.data.visits == [[3, 0], [1, 0]]
    assert model.data.never_visited == [("1", "stop"), ("two", "stop")]
    numbers = {"s": ["10", "9"], "a": ["go"] * 2, "t": ["9", "10.0"]}
    found = hf.from_log(numbers, state="s", action="a", next_state="t", discount=0.9)
    assert found.state_names == ("9", "10")  # by size, not by the alphabet


def test_missing_cells_are_left_out_and_counted(log):
    holes = {name: list(cells) for name, cells in log.items()}
    holes["s"][3], holes["a"][5], holes["t"][7], holes["profit"][9] = None, float("nan"), "", "NA"
    model = fit(holes)
    assert model.data.left_out == {"no state": 1, "no action": 1, "no next state": 1}
    assert model.data.transitions == 397
    assert "rows are not missing because of what happened in them" in model.data.assumptions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": "wek"}, "state: the log has no column 'wek'; did you mean week?"),
        ({"next_state": ["t", "s"]}, "next_state: expected as many columns as for the state, 1, got 2"),
        ({"signals": {"profit": "s", "down": "down"}}, "signals.*: row 1 of 's' has 'new', not a"),
        ({"reward": "proft"}, "reward: there is no signal 'proft'; did you mean profit?"),
        ({"constraints": [hf.at_most("dwn", 1.0)]}, "constraints: there is no signal 'dwn'; did you"),
        ({"exact": ["profit"]}, r"exact: 'profit' has the values \S+ and \S+ in \("),
        ({"ranges": {"profit": (0, 1)}}, r"ranges\['profit'\]: the log has -5, outside \(0, 1\)"),
        ({"states": ["new", "wron", "broken"]}, "states: row .* has 'worn'; did you mean wron?"),
        ({"initial": "nwe"}, "initial: there is no state 'nwe'; did you mean new?"),
        ({"confidence": 1.0}, r"confidence: expected a number in \(0, 1\), got 1.0"),
        ({"sampling": "lucky"}, "sampling: expected one of 'fixed', 'adaptive', got 'lucky'"),
        ({"uncertainty": "wasserstein"}, "uncertainty: expected a set that can be made from counts"),
        ({"possible": {"new": ["new"]}}, "possible: the log has .* from 'new' with 'run' to"),
        ({"bins": {"s": 3}}, "bins: column 's' contains 'new', not a number"),
        ({"bins": {"x": 3}}, "bins: 'x' is no column of the state or the action"),
        ({"time": "s"}, "time: row 1 of 's' has 'new', expected a number or an ISO date"),
        ({"time": "machine"}, "time: rows 1 and 2 of 0 have the same time; expected one row a step"),
        ({"terminated": "profit"}, "terminated: row 1 of 'profit' has .*, expected yes or no"),
        ({"colour": 1}, "RobustCMDP.*colour"),
    ],
)  # fmt: skip
def test_a_log_that_cannot_be_used_is_a_sentence(log, changes, message):
    with pytest.raises(
        (ValueError, TypeError), match=f"^{message}" if "Robust" not in message else message
    ):
        fit(log, **changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no column 's'"),
        (b"s,a,t\n", "there are no rows"),
        (b"s,a,t\n1,2\n", "not a CSV file that can be read: row 1 has 2 fields, expected 3"),
        (b"s,s,t\n1,2,3\n", "the column 's' is duplicated"),
        (b"\x89PNG\r\n\xff\xfe", "not a CSV file that can be read"),
        (b"s,a,t\n,,\n", "state: every cell"),
        (b"s,a,t\nx,1,\n", r"log: no row is a transition \(1 with no next state\)"),
    ],
)
def test_a_file_that_is_no_log_is_a_sentence(tmp_path, content, message):
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        hf.from_log(tmp_path / "log.csv", state="s", action="a", next_state="t")


def test_a_damaged_parquet_file_and_an_object_are_sentences(tmp_path):
    (tmp_path / "log.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(ValueError, match="not a Parquet file that can be read"):
        hf.from_log(tmp_path / "log.parquet", state="s", action="a")
    with pytest.raises(ValueError, match="log: expected a CSV or Parquet file"):
        hf.from_log(3, state="s", action="a")
    with pytest.raises(ValueError, match=r"no-such\.csv: no such file"):
        hf.from_log("no-such.csv", state="s", action="a")


def test_a_signal_without_a_name_in_a_log_is_refused_elsewhere():
    with pytest.raises(
        ValueError, match=r"constraints\[0\]: the signal 'down' is known by name only"
    ):
        hf.environments.n_chain(nodes=3).replace(constraints=[hf.at_most("down", 1.0)])


def test_a_minari_dataset_with_discrete_spaces(tmp_path, monkeypatch):
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("FrozenLake-v1")
    counted = collections.Counter()
    rng = np.random.default_rng(0)
    buffers = []
    for seed in range(10):
        state, _ = env.reset(seed=seed)
        lists = ("actions", "rewards", "terminations", "truncations")
        buffer = EpisodeBuffer(id=seed, observations=[state], **{name: [] for name in lists})
        done = False
        while not done:
            action = int(rng.integers(4))
            following, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            counted[state, action] += 1
            state = following
            for name, value in {
                "observations": state, "actions": action, "rewards": reward,
                "terminations": terminated, "truncations": truncated,
            }.items():  # fmt: skip
                getattr(buffer, name).append(value)
        buffers.append(buffer)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    about = {
        "algorithm_name": "random",
        "author": "",
        "author_email": "",
        "description": "",
        "code_permalink": "-",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for an evaluation environment and a licence
        minari.create_dataset_from_buffers("lake/random-v0", buffers, **spaces, **about)
    model = hf.from_log("lake/random-v0", signals={"reward": "reward"}, discount=0.9)
    assert model.data.transitions == sum(counted.values())
    named = {
        (int(state), int(action)): n
        for state, row in zip(model.state_names, model.data.visits, strict=True)
        for action, n in zip(model.action_names, row, strict=True)
        if n
    }
    assert named == counted
    with pytest.raises(
        ValueError, match="log: there is no file or local Minari dataset 'lake/rndom-v0'"
    ):
        hf.from_log("lake/rndom-v0")


def test_the_command_writes_a_model_that_other_commands_read(log, tmp_path, capsys):
    path = write_csv(tmp_path / "log.csv", log)
    out = str(tmp_path / "model.npz")
    options = [
        "--state",
        "s",
        "--action",
        "a",
        "--next",
        "t",
        "--episode",
        "machine",
        "--time",
        "week",
    ]
    options += [
        "--signal",
        "profit=profit",
        "down=down",
        "--exact",
        "down",
        "--range",
        "profit=-6,7",
    ]
    options += [
        "--possible",
        "broken=new,broken",
        "--at-most",
        "down=4",
        "--discount",
        "0.9",
        "--out",
        out,
        "--states",
        *STATES,
    ]
    assert main(["fit", path, *options]) == 0
    printed = capsys.readouterr().out
    assert "transitions               400 in 4 episodes" in printed
    model = hf.RobustCMDP.load(out)
    np.testing.assert_array_equal(
        model.uncertainty.upper, fit(log, possible={"broken": ["new", "broken"]}).uncertainty.upper
    )
    assert str(model.data).splitlines()[1:] == str(fit(log).data).splitlines()[1:]
    assert main(["fit", path, "--state", "s", "--action", "act", "--next", "t", "--out", out]) == 2
    assert "--action: " in capsys.readouterr().err
    assert (
        main(["fit", path, "--state", "s", "--action", "a", "--signal", "profit", "--out", out])
        == 2
    )
    assert "--signals: expected NAME=VALUE, got 'profit'" in capsys.readouterr().err


@pytest.mark.campaign
def test_a_long_log_is_read_in_seconds(tmp_path):
    rows = 1_000_000 if FULL else 50_000
    log = simulate(1, 1_000)
    many = {name: cells * (rows // 1_000) for name, cells in log.items()}
    path = write_csv(tmp_path / "log.csv", many)
    start = time.process_time()
    model = fit(path, episode=None, time=None)
    assert model.data.transitions == rows
    assert time.process_time() - start < 10


@pytest.mark.campaign
def test_the_truth_is_inside_as_often_as_stated(record_property):
    """Simulated logs whose decisions depend on outcomes: kernel and means, all at once."""
    repetitions = 1_000 if FULL else 40
    inside = 0
    for seed in range(repetitions):
        model = fit(simulate(seed, 60), confidence=0.8)
        box, profit = model.uncertainty, model.data.signals["profit"]
        kernel = (box.lower <= TRUTH + 1e-12).all() and (box.upper + 1e-12 >= TRUTH).all()
        means = (np.array(profit.lower) <= PROFIT).all() and (
            np.array(profit.upper) >= PROFIT
        ).all()
        inside += bool(kernel and means)
    record_property("share of logs whose set contains the truth", inside / repetitions)
    # 0.8 of the repetitions, less three standard errors.
    assert inside / repetitions >= 0.8 - 3 * np.sqrt(0.16 / repetitions)
