"""Audits: verdicts on planted policies, resumed folders, the page and the command line."""

import json

import gymnasium
import numpy as np
import pytest
from tests.simulators.certificates.known_simulators import DrawnMass

import holdfast as hf
from holdfast.cli.main import main
from holdfast.environments import TableSimulator
from holdfast.report.page import write_page

LIMIT, RADIUS = 0.05, 0.1
SMALL = {
    "attack_options": {
        "episodes": 200,
        "updates": 1,
        "restarts": 1,
        "kernels": "auto",
        "noise": None,
    },
    "proof_options": {"episodes": 6_000, "most_cost": 1},
}


def careless(observation):
    return 0


def careful(observation):
    return 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audit")


@pytest.mark.parametrize(("policy", "verdict"), [(careless, "broken"), (careful, "holds")])
def test_planted_policies(policy, verdict, folder):
    """The careless policy keeps the limit nominally, at a mass of 1.1^w; nature draws light masses."""
    out = folder / verdict
    found = hf.audit(policy, DrawnMass(), radius=RADIUS, cost_limit=LIMIT, out=out, **SMALL)
    assert found.stress.rows[0].costs[0].mean < LIMIT
    assert found.verdict == verdict
    (proof,) = found.certificates  # a function has one way to act
    assert proof.costs[0].holds == (verdict == "holds")
    assert proof.confidence == 0.95
    assert "actions" not in proof.setup
    assert json.loads((out / "audit.json").read_text())["verdict"] == verdict
    words = "over its limit" if verdict == "broken" else "under its limit"
    assert words in str(found)


class Bold:
    """A model in the form of Stable-Baselines3's whose most likely actions are careless."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def predict(self, observation, deterministic):
        return np.full(len(observation), int(not deterministic)), None


def test_both_ways_to_act_are_bounded(folder):
    out = folder / "bold"
    found = hf.audit(Bold(), DrawnMass(), radius=RADIUS, cost_limit=LIMIT, out=out, **SMALL)
    drawn, likely = found.certificates
    assert [proof.setup["actions"] for proof in found.certificates] == ["drawn", "most likely"]
    assert drawn.costs[0].holds
    assert likely.costs[0].broken
    assert found.verdict == "broken"
    assert "with most likely actions, over its limit" in found.reasons[0]
    assert drawn.confidence == likely.confidence == pytest.approx(0.975)
    assert "Actions are drawn, as in training." in drawn.assumptions
    write_page([out], folder / "bold.html")
    page = (folder / "bold.html").read_text()
    assert "cost, most likely actions" in page
    assert "This page shows 1 audit of a policy and 1 stress test." in page
    options = {**SMALL["proof_options"], "deterministic": False}
    one = hf.audit(
        Bold(),
        DrawnMass(),
        radius=RADIUS,
        cost_limit=LIMIT,
        attack_options={**SMALL["attack_options"], "deterministic": False},
        proof_options=options,
    )
    assert one.verdict == "holds"
    assert "within radius 0.1 with drawn actions, under its limit" in one.reasons[0]
    assert [proof.confidence for proof in one.certificates] == [0.95]


def test_an_audit_goes_on_where_it_stopped(folder):
    out = folder / "holds"
    before = (out / "stress.json").stat().st_mtime_ns
    (out / "proof.json").unlink()
    arguments = {"radius": RADIUS, "cost_limit": LIMIT, "out": out, **SMALL}
    assert hf.audit(careful, DrawnMass(), **arguments).verdict == "holds"
    assert (out / "stress.json").stat().st_mtime_ns == before
    assert (out / "proof.json").exists()
    with pytest.raises(ValueError, match=r"out: .* holds an audit with other arguments"):
        hf.audit(careful, DrawnMass(), **{**arguments, "radius": 0.2})


def test_the_page_shows_audits(folder):
    write_page([folder], folder / "report.html")
    text = (folder / "report.html").read_text()
    assert "Audit of careful in drawn-mass" in text
    assert "Audit of careless in drawn-mass" in text


def test_an_open_verdict_says_what_would_decide_it():
    env = DrawnMass()
    options = {**SMALL, "proof_options": {"episodes": 100, "most_cost": 1}}
    found = hf.audit(careful, env, radius=RADIUS, cost_limit=LIMIT, **options)
    assert found.verdict == "undecided"
    assert "More episodes or updates, a smaller radius or a smaller most_cost" in found.reasons[0]


def simulator():
    return DrawnMass()


def test_the_command_line(folder, capsys):
    command = ["audit", "tests.test_auditing:careful", "--env", "tests.test_auditing:simulator"]
    command += ["--cost-limit", str(LIMIT), "--radius", str(RADIUS), "--json"]
    command += [
        "--episodes",
        "6000",
        "--updates",
        "1",
        "--most-cost",
        "1",
        "--out",
        str(folder / "command"),
    ]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "holds"
    assert main([*command, "--confidence", "0.9"]) == 2
    assert "holds an audit with other arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--channel", "actions 0.1"], "--channel: point-gather has its own"),
        (["--radius", "-1"], "radius"),
        (["--parameters", "speed"], "--parameters: expected NAME=VALUE"),
    ],
)
def test_the_command_line_refuses_bad_input(more, message, capsys, tmp_path):
    command = ["audit", "tests.test_auditing:careful", "--env", "point-gather", "--radius", "0.1"]
    assert main([*command, "--out", str(tmp_path / "out"), *more]) == 2
    assert message in capsys.readouterr().err


def test_a_table_is_audited_as_a_simulator():
    env = TableSimulator(hf.environments.n_chain(nodes=3), horizon=3)
    with pytest.raises(ValueError, match="cost_limit: table has 1 cost"):
        hf.audit(careful, env, radius=0.1, cost_limit=(1, 2))
