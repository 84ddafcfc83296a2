"""Files of other tools: round trips, Storm's own files, and damaged files without a traceback."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

import holdfast as hf

FULL = "HOLDFAST_CAMPAIGN" in os.environ
PROGRAM = """mdp
module machine
  s : [0..2] init 0;
  [run] s=0 -> 0.9:(s'=0) + 0.1:(s'=1);
  [fix] s=0 -> 1:(s'=0);
  [run] s=1 -> 0.5:(s'=1) + 0.5:(s'=2);
  [fix] s=1 -> 0.8:(s'=0) + 0.2:(s'=1);
  [fix] s=2 -> 0.3:(s'=0) + 0.7:(s'=2);
endmodule
label "broken" = s=2;
rewards "profit"
  [run] true : 3;
  s=0 : 1;
endrewards
rewards "down"
  s=2 : 1;
endrewards
"""
KERNEL = [
    [[0.9, 0.1, 0.0], [1.0, 0.0, 0.0]],
    [[0.0, 0.5, 0.5], [0.8, 0.2, 0.0]],
    [
        [0.3, 0.0, 0.7],
        [0.3, 0.0, 0.7],
    ],  # the missing choice is not allowed: a copy of the first one
]
PROFIT, DOWN = [[4.0, 1.0], [3.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
TRA = """3 5 9
0 0 0 0.9 run
0 0 1 0.1 run
0 1 0 1 fix
1 0 1 0.5 run
1 0 2 0.5 run
1 1 0 0.8 fix
1 1 1 0.2 fix
2 0 0 0.3 fix
2 0 2 0.7 fix
"""
LAB = '0="init" 1="deadlock" 2="broken"\n0: 0\n2: 2\n'


@pytest.fixture(scope="module")
def storm(tmp_path_factory) -> Path:
    """Storm's own files of the program: machine.drn and machine.umb."""
    stormpy = pytest.importorskip("stormpy")
    folder = tmp_path_factory.mktemp("storm")
    (folder / "machine.prism").write_text(PROGRAM)
    options = stormpy.BuilderOptions(build_full=True)
    options.set_build_choice_labels(True)
    program = stormpy.parse_prism_program(str(folder / "machine.prism"))
    model = stormpy.build_model(program, options=options)
    stormpy.io.export_to_drn(model, str(folder / "machine.drn"))
    stormpy.io.export_to_umb(model, str(folder / "machine.umb"))
    return folder


def prism(folder: Path, tra: str = TRA, lab: str | None = LAB) -> Path:
    (folder / "m.tra").write_text(tra)
    if lab is not None:
        (folder / "m.lab").write_text(lab)
    (folder / "m1.srew").write_text('# Reward structure "profit"\n# State rewards\n3 1\n0 1\n')
    (folder / "m1.trew").write_text(
        '# Reward structure "profit"\n3 5 4\n0 0 0 3\n0 0 1 3\n1 0 1 3\n1 0 2 3\n'
    )
    (folder / "m2.srew").write_text('# Reward structure "down"\n3 1\n2 1\n')
    return folder / "m.tra"


def check_machine(model: hf.RobustCMDP) -> None:
    assert model.action_names == ("run", "fix")
    np.testing.assert_allclose(model.transitions.dense(), KERNEL, atol=1e-15)
    np.testing.assert_array_equal(model.reward, PROFIT)
    np.testing.assert_array_equal(model.constraints[0].signal, DOWN)
    assert str(model.constraints[0]) == "down ≤ 2"
    assert model.labels["broken"] == (2,)
    np.testing.assert_array_equal(model.initial, [1, 0, 0])
    np.testing.assert_array_equal(model.allowed, [[True, True], [True, True], [False, True]])
    assert model.discount == 0.9


RULES = {"discount": 0.9, "reward": "profit", "constraints": [hf.at_most("down", 2.0)]}


@pytest.mark.parametrize("name", ["machine.drn", "machine.umb"])
def test_a_file_that_storm_wrote(storm, name):
    check_machine(hf.RobustCMDP.load(storm / name, **RULES))


def test_prism_files(tmp_path):
    check_machine(hf.RobustCMDP.load(prism(tmp_path), **RULES))
    chain = tmp_path / "chain.tra"
    chain.write_text("2 3\n0 0 0.25\n0 1 0.75\n1 1 1\n")
    model = hf.RobustCMDP.load(chain)
    assert (model.states, model.actions, model.action_names, model.discount) == (2, 1, None, 0.99)
    np.testing.assert_allclose(model.transitions.dense()[:, 0], [[0.25, 0.75], [0, 1]])


def test_intervals_of_every_format_become_an_interval_set(tmp_path):
    tra = TRA.replace("0.9 run", "[0.8,0.95] run").replace("0 0 1 0.1", "0 0 1 [0.05,0.2]")
    found = {"tra": hf.RobustCMDP.load(prism(tmp_path, tra), **RULES)}
    drn = tmp_path / "m.drn"
    drn.write_text(
        "@type: MDP\n@value_type: double-interval\n@parameters\n\n@reward_models\nprofit down\n"
        "@nr_states\n3\n@model\n"
        "state 0 [1, 0] init\n\taction run [[3, 3], [0, 0]]\n\t\t0 : [0.8, 0.95]\n\t\t1 : [0.05, 0.2]\n"
        "\taction fix\n\t\t0 : [1, 1]\n"
        "state 1\n\taction run [3, 0]\n\t\t1 : 1/2\n\t\t2 : 0.5\n"
        "\taction fix\n\t\t0 : 0.8\n\t\t1 : 0.2\n"
        "state 2 [0, 1] broken\n\taction fix [0, 0]\n\t\t0 : 0.3\n\t\t2 : 0.7\n"
    )
    found["drn"] = hf.RobustCMDP.load(drn, **RULES)
    found["tra"].save(tmp_path / "again.umb")
    found["umb"] = hf.RobustCMDP.load(
        tmp_path / "again.umb", discount=0.9, constraints=[hf.at_most("down", 2.0)]
    )
    expected = found["tra"]
    np.testing.assert_allclose(expected.uncertainty.lower[0, 0], [0.8, 0.05])
    np.testing.assert_allclose(expected.uncertainty.upper[0, 0], [0.95, 0.2])
    np.testing.assert_allclose(expected.nominal[0, 0], [0.8 + 0.15 * 0.5, 0.05 + 0.15 * 0.5])
    policy = {0: "run", 1: "fix", 2: "fix"}
    worst = hf.evaluate(expected, policy)
    for model in found.values():
        np.testing.assert_array_equal(model.reward, PROFIT)
        again = hf.evaluate(model, policy)
        assert again.reward.worst == pytest.approx(worst.reward.worst, abs=1e-9)
        assert again.constraints[0].worst == pytest.approx(worst.constraints[0].worst, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_model_survives_a_umb_file(seed, tmp_path, oracle):
    lists, by_next = bool(seed % 2), seed >= 2
    model = oracle.random_model(seed, lists=lists, next_state_signals=by_next)
    model = model.replace(
        uncertainty=None, initial=None, action_names=["x", "y", "z"], labels={"odd": [1, 3]}
    )
    model.save(tmp_path / "m.umb")
    again = hf.RobustCMDP.load(
        tmp_path / "m.umb", discount=0.9, constraints=[hf.at_least("constraint 0", 1.0)]
    )
    assert (again.action_names, again.labels) == (model.action_names, model.labels)
    np.testing.assert_array_equal(again.initial, model.initial)
    given = model.transitions.dense() if lists else model.transitions
    np.testing.assert_allclose(again.transitions.dense(), given, atol=1e-15)
    policy = oracle.random_policy(model, np.random.default_rng(seed))
    for mine, theirs in [
        (model.reward, again.reward),
        (model.constraints[0].signal, again.constraints[0].signal),
    ]:
        values = [
            oracle.values_under(m, m.transitions, signal, policy)
            for m, signal in ((model, mine), (again, theirs))
        ]
        np.testing.assert_allclose(*values, atol=1e-12)


def test_storm_reads_what_we_write(tmp_path):
    stormpy = pytest.importorskip("stormpy")
    model = hf.RobustCMDP.load(prism(tmp_path), **RULES)
    model.save(tmp_path / "out.umb")
    found = stormpy.build_model_from_umb(str(tmp_path / "out.umb"))
    assert (found.nr_states, found.nr_choices) == (3, 5)
    assert set(found.reward_models) == {"reward", "down"}
    rows = found.transition_matrix
    dense = np.zeros((5, 3))
    for i in range(5):
        for entry in rows.get_row(i):
            dense[i, entry.column] = entry.value
    np.testing.assert_allclose(dense, np.reshape(KERNEL, (6, 3))[:5], atol=1e-15)


def test_what_a_umb_file_cannot_say_is_refused(tmp_path):
    model = hf.environments.n_chain(nodes=3)
    with pytest.raises(ValueError, match=r"uncertainty: UMB files have intervals or no set at all"):
        model.save(tmp_path / "m.umb")
    with pytest.raises(ValueError, match="horizon: UMB files have none"):
        model.replace(horizon=3).save(tmp_path / "m.umb")
    odd = model.replace(uncertainty=None, initial=[0.5, 0.3, 0.2])
    with pytest.raises(ValueError, match="initial: UMB files have initial states without"):
        odd.save(tmp_path / "m.umb")
    assert not list(tmp_path.iterdir())


def test_a_deadlock_stays_where_it_is(tmp_path):
    drn = tmp_path / "m.drn"
    drn.write_text(
        "@type: MDP\n@reward_models\nr\n@model\nstate 0 [5]\nstate 1 [1] init\n\taction 0\n\t\t0 : 1\n"
    )
    model = hf.RobustCMDP.load(drn)
    np.testing.assert_array_equal(model.transitions.dense()[:, 0], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(model.reward[:, 0], [0, 1])  # a loop that was added pays nothing
    np.testing.assert_array_equal(model.initial, [0, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("3 5 9", "3 5 8"), "m.tra: the first line says 8 transitions, got 9"),
        (("3 5 9", "4 5 9"), "m.tra: state 3 has no transition"),
        (("0 0 1 0.1", "0 0 7 0.1"), "state 0 leads to state 7, which does not exist"),
        (("0 0 1 0.1", "0 0 1 0.2"), "a choice of state 0 sums to 1.1, not 1"),
        (("0 0 1 0.1", "0 0 1 -0.1"), r"state 0 has the probability \[-0.1, -0.1\], outside"),
        (("0 0 1 0.1", "0 0 1 x"), "m.tra, line 3: could not convert string to float: 'x'"),
        (("0 0 1 0.1 run", "0 0"), "m.tra, line 3: list index out of range"),
        (("3 5 9", "three"), "m.tra: expected numbers in the first line, got 'three'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, change, message):
    path = tmp_path / "m.tra"
    path.write_text(TRA.replace(*change))
    with pytest.raises(ValueError, match=f"m.tra: not a .tra model that can be read: {message}"):
        hf.RobustCMDP.load(path)


def test_rewards_that_are_not_there_and_rules_for_our_own_files(tmp_path):
    path = prism(tmp_path)
    with pytest.raises(
        ValueError, match="reward: the file has no reward 'proft'; did you mean profit"
    ):
        hf.RobustCMDP.load(path, reward="proft")
    hf.environments.n_chain(nodes=3).save(tmp_path / "m.npz")
    with pytest.raises(ValueError, match="horizon, reward and constraints are for files of other"):
        hf.RobustCMDP.load(tmp_path / "m.npz", discount=0.5)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        (
            "log.csv",
            b"state,action,next\na,b,c\n",
            "a log; `holdfast fit` or hf.from_log makes a model",
        ),
        ("log.txt", b"state,action,next\na,b,c\n", "a log; `holdfast fit`"),
        ("log.parquet", b"PAR1", "a log; `holdfast fit`"),
        ("plot.png", b"\x89PNG\r\n", "a picture"),
        ("m.lab", b'0="init"\n', "the labels of a PRISM model; load its .tra file"),
    ],
)
def test_a_file_that_is_no_model_is_called_what_it_is(tmp_path, name, content, kind):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"not a Holdfast model: it looks like {kind}"):
        hf.solve(tmp_path / name)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """A file with bytes changed, removed, repeated or cut off."""
    data = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(data))) if data else 0
        kind = rng.integers(4)
        if kind == 0:
            data[at : at + 1] = bytes([int(rng.integers(256))])
        elif kind == 1:
            data[at : at + int(rng.integers(1, 30))] = b""
        elif kind == 2:
            data[at:at] = bytes(
                rng.choice(list(b'0123456789.-[]:, \n@e"\x00'), int(rng.integers(1, 12))).tolist()
            )
        else:
            data = data[:at]
    return bytes(data)


def damaged_archive(data: bytes, rng: np.random.Generator) -> bytes:
    """A UMB file in which one member is damaged, so that the archive itself can be read."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as source:
        files = [member for member in source if member.isfile()]
        members = {member.name: source.extractfile(member).read() for member in files}
    chosen = str(rng.choice(sorted(members)))
    members[chosen] = damaged(members[chosen], rng)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["tra", "lab", "srew", "drn", "umb", "umb inside"])
def test_damaged_files_give_a_model_or_a_sentence(kind, tmp_path, storm):
    rng = np.random.default_rng(0)
    tra = prism(tmp_path)
    file = {"tra": tra, "lab": tmp_path / "m.lab", "srew": tmp_path / "m1.srew"}.get(kind)
    if file is None:
        file = storm / f"machine.{kind.split()[0]}"
    whole, target = (
        file.read_bytes(),
        tmp_path / ("m" + file.suffix if kind != "srew" else "m1.srew"),
    )
    loaded = target if kind.split()[0] in ("drn", "umb") else tra
    messages = []
    for _ in range(10_000 // 6 + 1 if FULL else 30):
        target.write_bytes((damaged_archive if kind == "umb inside" else damaged)(whole, rng))
        try:
            hf.RobustCMDP.load(loaded)
        except ValueError as error:
            messages.append(str(error))
    assert messages
    assert all(text.startswith(f"{loaded}: not a ") and "\n" not in text for text in messages)


def test_arrays_of_mdp_toolbox():
    example = pytest.importorskip("mdptoolbox.example")
    from scipy import sparse

    transitions, reward = example.forest(S=4)
    model = hf.from_mdptoolbox(transitions, reward, 0.9)
    for action in range(2):
        np.testing.assert_allclose(model.transitions[:, action], transitions[action])
    np.testing.assert_array_equal(model.reward, reward)
    matrices = [sparse.csr_matrix(each) for each in transitions]
    by_next = np.arange(32.0).reshape(2, 4, 4)
    again = hf.from_mdptoolbox(matrices, by_next, 0.9)
    np.testing.assert_array_equal(again.transitions, model.transitions)
    assert again.reward[1, 0, 2] == by_next[0, 1, 2]
    flat = hf.from_mdptoolbox(transitions, [1.0, 2.0, 3.0, 4.0], 0.9)
    np.testing.assert_array_equal(flat.reward, [[1, 1], [2, 2], [3, 3], [4, 4]])
    with pytest.raises(ValueError, match=r"reward: expected shape \(4,\), \(4, 2\) or \(2, 4, 4\)"):
        hf.from_mdptoolbox(transitions, np.zeros((3, 2)), 0.9)
    with pytest.raises(
        ValueError, match=r"transitions: expected shape \(actions, states, states\)"
    ):
        hf.from_mdptoolbox(np.zeros((2, 3)), np.zeros(3), 0.9)
