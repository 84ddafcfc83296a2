"""The paper's claims about its experiments, each checked against runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from holdfast.experiments.description import TabularExperiment
from holdfast.experiments.reading import read_suite
from holdfast.experiments.results import Results

_TABULAR = "paper, section 6.1"
_OURS = "ours"

# The paper says "close to" and "similar"; these are the numbers that we take it to mean.
_CLOSE = 0.05
_SAME = 0.001


@dataclasses.dataclass(frozen=True)
class Finding:
    """What runs say about a claim.

    Arguments:
        holds: whether it holds.
        numbers: the measured numbers that decide it, in words.
    """

    holds: bool
    numbers: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence about an experiment and how to check it.

    Arguments:
        experiment: the model that it is about.
        statement: the claim.
        source: who makes it.
        check: decides it from the experiment's results.
    """

    experiment: str
    statement: str
    source: str
    check: Callable[[Any], Finding]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A claim with its finding.

    Arguments:
        claim: the claim.
        finding: what the runs say.
        settings: how the experiment that was run differs from the default, "" if it does not.
    """

    claim: Claim
    finding: Finding
    settings: str


def check_claims(results: Iterable[Results]) -> list[Verdict]:
    """Checks every claim about the experiments that were run."""
    by_name = {found.environment: found for found in results}
    return [
        Verdict(claim, claim.check(found), changed_settings(found.experiment))
        for name, found in by_name.items()
        for claim in CLAIMS
        if claim.experiment == name
    ]


def changed_settings(experiment: TabularExperiment) -> str:
    """How an experiment differs from the paper's, in words."""
    paper = read_suite("paper")
    assert isinstance(paper, TabularExperiment)
    changes = experiment.differences(paper)
    return ", ".join(f"{name} {ran} instead of {usual}" for name, (ran, usual) in changes.items())


def satisfies(*algorithms: str) -> Callable[[Results], Finding]:
    """Every seed of each algorithm ends feasible."""

    def check(results: Results) -> Finding:
        return Finding(
            all(results.feasible(algorithm).all() for algorithm in algorithms),
            "; ".join(_ends(results, algorithm) for algorithm in algorithms),
        )

    return check


def violates(*algorithms: str) -> Callable[[Results], Finding]:
    """Every seed of each algorithm ends in violation."""

    def check(results: Results) -> Finding:
        return Finding(
            all(results.violates(algorithm).all() for algorithm in algorithms),
            "; ".join(_ends(results, algorithm) for algorithm in algorithms),
        )

    return check


def both(
    first: Callable[[Results], Finding], second: Callable[[Results], Finding]
) -> Callable[[Results], Finding]:
    """Two checks at once."""

    def check(results: Results) -> Finding:
        one, other = first(results), second(results)
        return Finding(one.holds and other.holds, f"{one.numbers}; {other.numbers}")

    return check


def stays_feasible(algorithm: str) -> Callable[[Results], Finding]:
    """On every seed some iterate is feasible, and all that follow the first such one are."""

    def check(results: Results) -> Finding:
        runs = results.runs[algorithm]
        reached = sum(run.feasible_from is not None for run in runs)
        starts = sum(run.feasible_from == 0 for run in runs)
        after = np.concatenate([run.feasible_after_first for run in runs])
        lost = int(np.sum(~after))
        return Finding(
            reached == len(runs) and lost == 0,
            f"{lost} of {after.size} iterates after the first feasible one infeasible; "
            f"{reached} of {len(runs)} seeds become feasible; "
            f"{len(runs) - starts} of {len(runs)} random starts are infeasible",
        )

    return check


def earns_more(algorithm: str, other: str) -> Callable[[Results], Finding]:
    """The mean worst-case reward of one algorithm is above another's."""

    def check(results: Results) -> Finding:
        _, most = _shortfall(results, algorithm, other)
        return Finding(most < 0, _rewards(results, algorithm, other))

    return check


def earns_as_much(algorithm: str, other: str, within: float) -> Callable[[Results], Finding]:
    """The mean worst-case reward of one algorithm is another's up to a share."""

    def check(results: Results) -> Finding:
        least, most = _shortfall(results, algorithm, other)
        return Finding(-within <= least and most <= within, _rewards(results, algorithm, other))

    return check


def earns_less(algorithm: str, other: str, by: float) -> Callable[[Results], Finding]:
    """The mean worst-case reward of one algorithm is below another's by more than a share."""

    def check(results: Results) -> Finding:
        least, _ = _shortfall(results, algorithm, other)
        return Finding(least > by, _rewards(results, algorithm, other))

    return check


def _shortfall(results: Results, algorithm: str, other: str) -> tuple[float, float]:
    """How far one mean reward is below another, as a share of it: the least and the most it can be.

    A worst-case value is an upper bound and less its numerical error a lower one.
    """
    mine, theirs = results.rewards(algorithm).mean(), results.rewards(other).mean()
    mine_low = mine - results.errors(algorithm).mean()
    theirs_low = theirs - results.errors(other).mean()
    unit = max(abs(theirs), 1e-12)
    return float((theirs_low - mine) / unit), float((theirs - mine_low) / unit)


def _rewards(results: Results, algorithm: str, other: str) -> str:
    mine, theirs = results.rewards(algorithm).mean(), results.rewards(other).mean()
    numbers = f"{algorithm.upper()} {mine:.4f}, {other.upper()} {theirs:.4f}"
    if theirs != 0:
        numbers += f", ratio {mine / theirs:.4f}"
    error = max(results.errors(algorithm).max(), results.errors(other).max())
    return numbers if error < 1e-6 else f"{numbers}, numerical error up to {error:.2g}"


def _ends(results: Results, algorithm: str) -> str:
    feasible, margins = results.feasible(algorithm), results.margins(algorithm)
    low, high = f"{margins.min():+.3g}", f"{margins.max():+.3g}"
    spread = low if low == high else f"{low} to {high}"
    count = f"{feasible.sum()} of {feasible.size} seeds"
    return f"{algorithm.upper()} feasible on {count}, margin {spread}"


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "gambler",
        "RCPO meets its constraint, worst-case utility at least 2.5, at the end of every run.",
        _TABULAR,
        satisfies("rcpo"),
    ),
    Claim(
        "gambler",
        "RCPO always satisfies the constraint during training, once an iterate has met it.",
        _TABULAR,
        stays_feasible("rcpo"),
    ),
    Claim("gambler", "PCPO violates the constraint.", _TABULAR, violates("pcpo")),
    Claim("gambler", "RVI violates the constraint.", _TABULAR, violates("rvi")),
    Claim("gambler", "CPO violates the constraint.", _OURS, violates("cpo")),
    Claim(
        "gambler", "RCPO's worst-case reward is above PCPO's.", _OURS, earns_more("rcpo", "pcpo")
    ),
    Claim(
        "gambler",
        "RCPO's worst-case reward is close to RVI's, which we take as within 5 %.",
        _TABULAR,
        earns_as_much("rcpo", "rvi", within=_CLOSE),
    ),
    Claim(
        "n-chain",
        "RCPO, PCPO and RVI all satisfy the constraint, worst-case utility at least 6.",
        _TABULAR,
        satisfies("rcpo", "pcpo", "rvi"),
    ),
    Claim(
        "n-chain",
        "RCPO reaches RVI's worst-case reward, which we take as within 0.1 %.",
        _TABULAR,
        earns_as_much("rcpo", "rvi", within=_SAME),
    ),
    Claim(
        "n-chain",
        "PCPO ends sub-optimal: its worst-case reward is more than 0.1 % below RVI's.",
        _TABULAR,
        earns_less("pcpo", "rvi", by=_SAME),
    ),
    Claim(
        "frozen-lake",
        "Only RCPO satisfies the constraint, worst-case utility at least 0.7: RCPO in every run, "
        "PCPO and RVI in none.",
        _TABULAR,
        both(satisfies("rcpo"), violates("pcpo", "rvi")),
    ),
    Claim("frozen-lake", "CPO violates the constraint.", _OURS, violates("cpo")),
    Claim(
        "frozen-lake",
        "RCPO's worst-case reward is above PCPO's.",
        _TABULAR,
        earns_more("rcpo", "pcpo"),
    ),
)
