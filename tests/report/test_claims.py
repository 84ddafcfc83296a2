from __future__ import annotations

import dataclasses
import json

import pytest

from holdfast.experiments import SolveSettings, read_suite
from holdfast.report.claims import (
    CLAIMS,
    changed_settings,
    check_claims,
    claims_markdown,
    claims_table,
    write_claims,
)

PAPER = read_suite("paper")

# Reward and margins of the iterates, such that every claim holds.
HOLDING = {
    "gambler": {
        "rcpo": (9.8, [-1, 0.2, 0.1]),
        "pcpo": (9.0, [-1, -1, -1]),
        "cpo": (9.0, [-1, -1, -1]),
        "rvi": (10.0, [-1, -2, -2]),
    },
    "n-chain": {
        "rcpo": (36.0, [1, 1, 1]),
        "pcpo": (31.0, [1, 1, 1]),
        "cpo": (31.0, [1, 1, 1]),
        "rvi": (36.0, [1, 1, 1]),
    },
    "frozen-lake": {
        "rcpo": (12.6, [-1, 0.2, 0.1]),
        "pcpo": (12.0, [-1, -1, -1]),
        "cpo": (12.0, [-1, -1, -1]),
        "rvi": (13.0, [-1, -2, -2]),
    },
}

# What breaks a claim: experiment, a piece of its statement, what is otherwise.
BREAKING = [
    ("gambler", "at the end of every run", {"rcpo": (9.8, [-1, -1, -0.01])}),
    ("gambler", "always satisfies", {"rcpo": (9.8, [0.1, -0.01, 0.1])}),
    ("gambler", "always satisfies", {"rcpo": (9.8, [-1, -1, -1])}),
    ("gambler", "PCPO violates", {"pcpo": (9.0, [-1, -1, 0.0])}),
    ("gambler", "RVI violates", {"rvi": (10.0, [-1, -1, 0.0])}),
    ("gambler", "CPO violates", {"cpo": (9.0, [-1, -1, 0.0])}),
    ("gambler", "above PCPO's", {"pcpo": (9.9, [-1, -1, -1])}),
    ("gambler", "close to RVI's", {"rvi": (10.6, [-1, -2, -2])}),
    ("n-chain", "all satisfy", {"rcpo": (36.0, [1, 1, -1])}),
    ("n-chain", "all satisfy", {"pcpo": (31.0, [1, 1, -1])}),
    ("n-chain", "all satisfy", {"rvi": (36.0, [1, 1, -1])}),
    ("n-chain", "reaches RVI's", {"rcpo": (35.9, [1, 1, 1])}),
    ("n-chain", "ends sub-optimal", {"pcpo": (35.99, [1, 1, 1])}),
    ("frozen-lake", "Only RCPO", {"rcpo": (12.6, [-1, -1, -1])}),
    ("frozen-lake", "Only RCPO", {"pcpo": (12.0, [-1, -1, 0.0])}),
    ("frozen-lake", "Only RCPO", {"rvi": (13.0, [-1, -1, 0.0])}),
    ("frozen-lake", "CPO violates", {"cpo": (12.0, [-1, -1, 0.0])}),
    ("frozen-lake", "above PCPO's", {"pcpo": (12.6, [-1, -1, -1])}),
]


def the_claim(experiment, piece):
    # "CPO violates" is also a piece of what is said of PCPO, so the shortest statement is meant.
    found = [c for c in CLAIMS if c.experiment == experiment and piece in c.statement]
    return min(found, key=lambda claim: len(claim.statement))


@pytest.mark.parametrize("experiment", PAPER.environments)
def test_every_claim_can_hold(fabricate, experiment):
    verdicts = check_claims([fabricate(experiment, **HOLDING[experiment])])
    assert [v.claim for v in verdicts] == [c for c in CLAIMS if c.experiment == experiment]
    assert all(verdict.finding.holds for verdict in verdicts)


@pytest.mark.parametrize(("experiment", "piece", "change"), BREAKING)
def test_every_claim_can_fail(fabricate, experiment, piece, change):
    claim = the_claim(experiment, piece)
    assert not claim.check(fabricate(experiment, **HOLDING[experiment] | change)).holds


def test_no_claim_was_left_out_above():
    assert {the_claim(name, piece) for name, piece, _ in BREAKING} == set(CLAIMS)


@pytest.mark.parametrize(("seed", "holds"), [(0, False), (1, False), (None, True)])
def test_one_infeasible_seed_is_enough(fabricate, seed, holds):
    results = fabricate("gambler", **HOLDING["gambler"])
    if seed is not None:
        results.runs["rcpo"][seed].history["margins"][-1] = -1e-9
    assert the_claim("gambler", "at the end of every run").check(results).holds is holds


def test_what_is_not_certain_does_not_count(fabricate):
    # With an error this large no margin is proved, no reward is told from another, and still no
    # violation is taken back: a margin that is negative under some kernel of the set is negative.
    results = fabricate("gambler", error=100.0, **HOLDING["gambler"])
    for verdict in check_claims([results]):
        assert verdict.finding.holds == ("violates" in verdict.claim.statement)
    rewards = the_claim("gambler", "close to RVI's").check(results)
    assert "numerical error up to 1e+02" in rewards.numbers


def test_an_infinite_error_proves_nothing(fabricate):
    results = fabricate("n-chain", error=float("inf"), **HOLDING["n-chain"])
    assert not any(verdict.finding.holds for verdict in check_claims([results]))


def test_the_numbers_are_the_measured_ones(fabricate):
    results = fabricate("gambler", **HOLDING["gambler"])
    assert (
        the_claim("gambler", "close to RVI's").check(results).numbers
        == "RCPO 9.8050, RVI 10.0050, ratio 0.9800"
    )
    assert the_claim("gambler", "always satisfies").check(results).numbers == (
        "0 of 2 iterates after the first feasible one infeasible; 2 of 2 seeds become feasible; "
        "2 of 2 random starts are infeasible"
    )
    assert (
        the_claim("gambler", "PCPO violates").check(results).numbers
        == "PCPO feasible on 0 of 2 seeds, margin -1"
    )


def test_the_statements_name_the_models_own_thresholds():
    from holdfast.environments import MODELS

    for name, make in ((name, MODELS[name]) for name in PAPER.environments):
        threshold = f"utility at least {make().constraints[0].threshold:g}"
        assert any(threshold in c.statement for c in CLAIMS if c.experiment == name)


def test_other_settings_are_said(fabricate):
    assert changed_settings(PAPER) == ""
    assert changed_settings(dataclasses.replace(PAPER, environments=("gambler",))) == ""
    short = dataclasses.replace(PAPER, seeds=1, settings=SolveSettings(iterations=3))
    assert changed_settings(short) == "seeds 1 instead of 5, iterations 3 instead of 200"
    text = claims_markdown(check_claims([fabricate("gambler", **HOLDING["gambler"])]))
    assert "seeds 2 instead of 5" in text


def test_the_default_experiment_has_no_note(fabricate):
    results = fabricate("gambler", **HOLDING["gambler"])
    verdicts = check_claims([dataclasses.replace(results, experiment=PAPER)])
    assert "instead of" not in claims_markdown(verdicts)


def test_only_what_was_run_is_judged_and_written(fabricate, tmp_path):
    broken = HOLDING["frozen-lake"] | {"pcpo": (12.6, [-1, -1, -1])}
    results = [fabricate("gambler", **HOLDING["gambler"]), fabricate("frozen-lake", **broken)]
    verdicts = check_claims(results)
    write_claims(tmp_path, verdicts)
    records = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert {record["experiment"] for record in records} == {"gambler", "frozen-lake"}
    assert [r["statement"] for r in records if not r["holds"]] == [
        "RCPO's worst-case reward is above PCPO's."
    ]
    table = (tmp_path / "claims.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(records) == claims_table(verdicts).row_count
    assert [row.endswith("**does not hold** |") for row in rows].count(True) == 1
    assert all(row.count("|") == 6 for row in rows)
