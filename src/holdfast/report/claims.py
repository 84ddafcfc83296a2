"""Checks the paper's claims about its experiments, and ours, against runs.

Claims about tables hold for values less their numerical error, others for confidence intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from holdfast._support.files import write_json, write_text
from holdfast.experiments.description import Experiment, TabularExperiment
from holdfast.experiments.reading import read_suite
from holdfast.experiments.results import DeepResults, Results
from holdfast.report.tables import markdown, text_columns, versions
from holdfast.simulators.certificates.intervals import Measured
from holdfast.simulators.certificates.stress_result import ACTIONS, ATTACK, Stress

if TYPE_CHECKING:
    from rich.table import Table

_TABLES, _SIMULATORS, _OURS = "paper, section 6.1", "paper, section 6.2", "ours"

# The paper says "close to", "similar" and "much higher". These are our readings of the words.
_CLOSE, _SAME, _MUCH = 0.05, 0.001, 0.1
# A baseline keeps a limit if its mean cost over the last 20 iterations exceeds it by at most 5 %: a cost
# that is held at the limit fluctuates around it.
_HELD, _LAST = 0.05, 20


class Finding(NamedTuple):
    """The result of checking a claim.

    Attributes:
        holds: whether the claim holds.
        numbers: the measured numbers that decide it, as text.
    """

    holds: bool
    numbers: str


Check = Callable[[Any], Finding]


class Claim(NamedTuple):
    """A statement about an experiment, and its check.

    Attributes:
        experiment: name of the model or simulator.
        statement: the claim.
        source: the paper's section, or "ours".
        check: function from the experiment's results to a finding.
    """

    experiment: str
    statement: str
    source: str
    check: Check


class Verdict(NamedTuple):
    """A claim with its finding.

    Attributes:
        claim: the claim.
        finding: the result of the check.
        settings: differences between the experiment and the default one, "" if there are none.
    """

    claim: Claim
    finding: Finding
    settings: str


def check_claims(results: Iterable[Results | DeepResults]) -> list[Verdict]:
    """Return a verdict on every claim about the given experiments."""
    return [
        Verdict(claim, claim.check(found), changed_settings(found.experiment))
        for found in results
        for claim in _claims_about(found)
    ]


def _claims_about(found: Results | DeepResults) -> list[Claim]:
    if isinstance(found, Results):
        return [claim for claim in CLAIMS if claim.experiment == found.environment]
    steps = found.experiment.trust_regions
    return [claim for step in steps for claim in _simulator_claims(found, step)]


def changed_settings(experiment: Experiment) -> str:
    """Return the differences between an experiment and the paper's, as text."""
    usual = read_suite("paper" if isinstance(experiment, TabularExperiment) else "point-gather")
    changes = experiment.differences(usual)
    return ", ".join(f"{name} {ran} instead of {paper}" for name, (ran, paper) in changes.items())


def ends(*, feasible: Sequence[str] = (), infeasible: Sequence[str] = ()) -> Check:
    """Return a check that every run of some algorithms ends feasible, and of others in violation."""
    return lambda results: Finding(
        all(results.feasible(name).all() for name in feasible)
        and all(results.violates(name).all() for name in infeasible),
        "; ".join(_end(results, name) for name in (*feasible, *infeasible)),
    )


def stays_feasible(algorithm: str) -> Check:
    """Return a check that every run has a feasible iterate, and only feasible ones after the first."""

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


def earns(algorithm: str, other: str, *, least: float = -np.inf, most: float = np.inf) -> Check:
    """Return a check that the relative shortfall of a mean worst-case reward is within bounds.

    The shortfall is an interval: a worst-case value is an upper bound, less its error a lower one.

    Arguments:
        algorithm: the algorithm that is compared.
        other: the algorithm it is compared with; its reward is the unit.
        least: lower bound of the shortfall.
        most: upper bound of the shortfall.
    """

    def check(results: Results) -> Finding:
        mine, theirs = results.rewards(algorithm).mean(), results.rewards(other).mean()
        mine_low = mine - results.errors(algorithm).mean()
        theirs_low = theirs - results.errors(other).mean()
        # 1e-12 avoids a division by zero.
        unit = max(abs(theirs), 1e-12)
        holds = least < (theirs_low - mine) / unit and (theirs - mine_low) / unit < most
        numbers = f"{algorithm.upper()} {mine:.4f}, {other.upper()} {theirs:.4f}"
        numbers += f", ratio {mine / theirs:.4f}" if theirs else ""
        error = max(results.errors(algorithm).max(), results.errors(other).max())
        # Smaller errors cannot change the four printed digits.
        numbers += f", numerical error up to {error:.2g}" if error >= 1e-6 else ""
        return Finding(bool(holds), numbers)

    return check


def _end(results: Results, algorithm: str) -> str:
    feasible, margins = results.feasible(algorithm), results.margins(algorithm)
    low, high = f"{margins.min():+.3g}", f"{margins.max():+.3g}"
    spread = low if low == high else f"{low} to {high}"
    count = f"{feasible.sum()} of {feasible.size} seeds"
    return f"{algorithm.upper()} feasible on {count}, margin {spread}"


# The claims about tables: statement, source and check, by model.
_TABLE_CLAIMS: dict[str, dict[str, tuple[str, Check]]] = {
    "gambler": {
        "RCPO meets its constraint, worst-case utility at least 2.5, at the end of every run.": (
            _TABLES,
            ends(feasible=["rcpo"]),
        ),
        "RCPO always satisfies the constraint during training, once an iterate has met it.": (
            _TABLES,
            stays_feasible("rcpo"),
        ),
        "PCPO violates the constraint.": (_TABLES, ends(infeasible=["pcpo"])),
        "RVI violates the constraint.": (_TABLES, ends(infeasible=["rvi"])),
        "CPO violates the constraint.": (_OURS, ends(infeasible=["cpo"])),
        "RCPO's worst-case reward is above PCPO's.": (_OURS, earns("rcpo", "pcpo", most=0.0)),
        "RCPO's worst-case reward is close to RVI's, which we take as within 5 %.": (
            _TABLES,
            earns("rcpo", "rvi", least=-_CLOSE, most=_CLOSE),
        ),
    },
    "n-chain": {
        "RCPO, PCPO and RVI all satisfy the constraint, worst-case utility at least 6.": (
            _TABLES,
            ends(feasible=["rcpo", "pcpo", "rvi"]),
        ),
        "RCPO reaches RVI's worst-case reward, which we take as within 0.1 %.": (
            _TABLES,
            earns("rcpo", "rvi", least=-_SAME, most=_SAME),
        ),
        "PCPO ends sub-optimal: its worst-case reward is more than 0.1 % below RVI's.": (
            _TABLES,
            earns("pcpo", "rvi", least=_SAME),
        ),
    },
    "frozen-lake": {
        "Only RCPO satisfies the constraint, worst-case utility at least 0.7: RCPO in every run, "
        "PCPO and RVI in none.": (_TABLES, ends(feasible=["rcpo"], infeasible=["pcpo", "rvi"])),
        "CPO violates the constraint.": (_OURS, ends(infeasible=["cpo"])),
        "RCPO's worst-case reward is above PCPO's.": (_TABLES, earns("rcpo", "pcpo", most=0.0)),
    },
}
CLAIMS = tuple(
    Claim(model, statement, *rest)
    for model, claims in _TABLE_CLAIMS.items()
    for statement, rest in claims.items()
)


def _simulator_claims(results: DeepResults, step: float) -> list[Claim]:
    """Return the claims about an experiment in a simulator, for one step size."""
    attack = f"the strongest attack found at radius {results.experiment.radius:g}"
    claims: dict[str, tuple[str, Callable[..., Finding]]] = {
        f"RCPO's cost is within the limit under {attack}, by its confidence interval": (
            _OURS,
            _within,
        ),
        "PCPO's and CPO's are not": (_OURS, _beyond),
        "RCPO's reward under Gaussian noise is much higher than PCPO's and CPO's": (
            _SIMULATORS,
            partial(_higher, kind=ACTIONS, by=_MUCH),
        ),
        "RCPO satisfies the constraint under Gaussian noise": (_SIMULATORS, _holds_under_noise),
        f"RCPO's reward is higher than PCPO's and CPO's under {attack}": (
            _OURS,
            partial(_higher, kind=ATTACK, by=0.0),
        ),
        "without disturbance PCPO and CPO hold the limit while the reward rises": (
            _OURS,
            _baselines,
        ),
    }
    return [
        Claim(results.environment, f"Step {step:g}: {statement}", source, partial(check, step=step))
        for statement, (source, check) in claims.items()
    ]


def _stressed(results: DeepResults, algorithm: str, step: float) -> Stress:
    found = results.of(algorithm, step).stress
    assert found is not None, algorithm
    return found


def _attacked(results: DeepResults, algorithm: str, step: float) -> Measured:
    found = _stressed(results, algorithm, step)
    return dict(found.curve(found.cost_names[0]))[results.experiment.radius]


def _within(results: DeepResults, step: float) -> Finding:
    cost, limit = _attacked(results, "rcpo", step), results.experiment.cost_limit
    seeds = sum(agent.high <= limit for agent in cost.agents)
    numbers = f"{_text(cost)}, limit {limit:g}; {seeds} of {len(cost.agents)} seeds by their own"
    return Finding(cost.high <= limit, f"{numbers} intervals")


def _beyond(results: DeepResults, step: float) -> Finding:
    limit = results.experiment.cost_limit
    costs = {name: _attacked(results, name, step) for name in ("pcpo", "cpo")}
    numbers = ", ".join(f"{name.upper()} {_text(cost)}" for name, cost in costs.items())
    return Finding(all(cost.low > limit for cost in costs.values()), numbers)


def _higher(results: DeepResults, step: float, kind: str, by: float) -> Finding:
    """Check that RCPO's reward is above the others' by a fraction, at every level of a test."""
    rcpo, pcpo, cpo = (
        dict(_stressed(results, name, step).curve("reward", kind))
        for name in ("rcpo", "pcpo", "cpo")
    )
    radius = results.experiment.radius
    levels = [radius] if kind == ATTACK else [level for level in rcpo if level > 0]
    rivals = {level: max(pcpo[level].mean, cpo[level].mean) for level in levels}
    return Finding(
        all(rcpo[level].mean >= (1 + by) * rival for level, rival in rivals.items()),
        "; ".join(f"{x:g}: {rcpo[x].mean:.2f} against {rival:.2f}" for x, rival in rivals.items()),
    )


def _holds_under_noise(results: DeepResults, step: float) -> Finding:
    found, limit = _stressed(results, "rcpo", step), results.experiment.cost_limit
    points = found.curve(found.cost_names[0], ACTIONS)
    numbers = "; ".join(f"{level:g}: {_text(cost)}" for level, cost in points if level > 0)
    return Finding(all(cost.high <= limit for _, cost in points), numbers)


def _baselines(results: DeepResults, step: float) -> Finding:
    limit = results.experiment.cost_limit
    holds, numbers = [], []
    for name in ("pcpo", "cpo", "trpo"):
        trained = results.of(name, step, noise=False)
        costs, rewards = trained.curve("nominal_costs", 0), trained.curve("nominal_reward")
        half = rewards.shape[1] // 2
        cost, late = costs[:, -_LAST:].mean(), rewards[:, -_LAST:].mean()
        if name == "trpo":
            numbers.append(f"without the limit cost {cost:.3f}, reward {late:.2f}")
        else:
            early = rewards[:, max(0, half - _LAST) : half + 1].mean()
            holds.append(bool(cost <= (1 + _HELD) * limit and late > early))
            numbers.append(f"{name.upper()} cost {cost:.3f}, reward {early:.2f} → {late:.2f}")
    return Finding(all(holds), "; ".join(numbers))


def _text(value: Measured) -> str:
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"


_LEGEND = (
    "In tables, feasible means that the worst-case margin less the numerical error is at least zero, "
    "and rewards are worst-case discounted rewards of the last iterates, averaged over the seeds. In "
    "simulators, costs and rewards are means over episodes and seeds, with 95 % confidence intervals "
    "in brackets."
)


def write_claims(out: Path, verdicts: Sequence[Verdict]) -> None:
    """Write `claims.md` and `claims.json`."""
    write_text(out / "claims.md", claims_markdown(verdicts))
    records = [
        {
            "experiment": claim.experiment,
            "statement": claim.statement,
            "source": claim.source,
            **finding._asdict(),
            "changed_settings": settings,
        }
        for claim, finding, settings in verdicts
    ]
    write_json(out / "claims.json", {"claims": records, "versions": versions()})


def claims_markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the claims as a Markdown table, followed by the settings that differ from the default."""
    rows = [
        (*claim[:3], numbers, "holds" if holds else "**does not hold**")
        for claim, (holds, numbers), _ in verdicts
    ]
    table = markdown(rows, text_columns("experiment", "claim", "source", "measured", "verdict"))
    parts = ["# The paper's claims, measured", table.rstrip(), _LEGEND, *notes(verdicts)]
    return "\n\n".join(parts) + "\n"


def notes(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a sentence for each experiment whose settings differ from the default."""
    changed = {each.claim.experiment: each.settings for each in verdicts if each.settings}
    return [f"{name} was run with other settings: {text}." for name, text in changed.items()]


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """Return the claims as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table("experiment", "claim", "measured", "verdict", show_lines=True)
    for claim, (holds, numbers), _ in verdicts:
        verdict = Text("holds", "green") if holds else Text("does not hold", "bold red")
        ours = " (ours)" if claim.source == _OURS else ""
        table.add_row(claim.experiment, Text(claim.statement + ours), Text(numbers), verdict)
    return table
