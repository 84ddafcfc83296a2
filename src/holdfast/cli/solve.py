"""`holdfast solve`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli._shared import (
    FEASIBLE,
    NOT_FEASIBLE,
    SetOptions,
    check_writable,
    console,
    refused,
)
from holdfast.experiments import Job, SolveSettings


@dataclasses.dataclass(frozen=True)
class Solve:
    """Search for a policy that keeps a model's constraints in the worst case."""

    about: ClassVar[str] = """Searches for the best policy that keeps a model's constraints in the \
worst case.

Prints what was found and writes a folder: policy.npz, model.npz, history.csv (every iterate),
solution.json and, with --certify, certificate.json. `holdfast certify` reads that folder.
RobustCMDP.save writes a model file.

Examples:
  holdfast solve gambler --out runs/gambler
  holdfast solve my-model.npz --set kl --radius 0.1 --certify
  holdfast solve my-model.npz --iterations 500 --trust-region 0.005
  holdfast solve river-swim --algorithm rpd --settings dual_step=0.05 policy_step=1

Exit codes: 0 the policy is feasible, 3 it is not, 2 bad input, 130 interrupted."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A .npz file, a folder that solve wrote, or a name such as gambler."""
    algorithm: Annotated[str, arg(metavar="NAME")] = "rcpo"
    """One of rcpo, pcpo, cpo, rvi, lp, rpd, rcpg, r3c, cup, crpo, epirc-pgs, rnpg."""
    settings: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE")] = ()
    """Of the algorithm, where it has any: for rpd, dual_step=0.05 policy_step=1."""
    iterations: Annotated[int, arg(metavar="N")] = SolveSettings.iterations
    """Number of policy updates."""
    trust_region: Annotated[float, arg(metavar="DELTA")] = SolveSettings.trust_region
    """Largest expected KL divergence of one update."""
    step: Annotated[str, arg(metavar="exact|taylor")] = SolveSettings.step
    """Solve each update exactly, or its second-order expansion."""
    safeguard: Annotated[str, arg(metavar="project|none")] = "project"
    """"project" keeps a feasible policy feasible; "none" is the paper's plain update."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Draws the initial policy."""
    uncertainty: OmitArgPrefixes[SetOptions] = dataclasses.field(default_factory=SetOptions)
    certify: bool = False
    """Search from the problem's corners too, keep the best feasible policy, and certify it."""
    nodes: Annotated[int, arg(metavar="N")] = 0
    """Regions that branch and bound may judge to tighten the certificate's upper bound."""
    out: Annotated[
        str, arg(metavar="DIR", help_behavior_hint="(default: runs/solve/MODEL-ALGORITHM-seed-N)")
    ] = ""
    """Folder for what is written."""

    def run(self) -> int:
        """Solves, prints a table and writes the folder."""
        with refused():
            job = Job(
                environment=Path(self.model).name,
                algorithm=self.algorithm,
                seed=self.seed,
                settings=SolveSettings(
                    iterations=self.iterations,
                    trust_region=self.trust_region,
                    step=self.step,
                    safeguard=self.safeguard,
                    settings=read_settings(self.settings),
                ),
            )
        folder = f"{Path(self.model).stem}-{self.algorithm}-seed-{self.seed}"
        out = Path(self.out or Path("runs/solve") / folder)
        import holdfast as hf
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.experiments.progress import iterations_on
        from holdfast.report.solution import read_model, solution_table, write_solution

        with refused():
            check_writable(out)
            model = self.uncertainty.apply(read_model(self.model))
        use_compilation_cache()
        with refused(), iterations_on(sys.stderr, str(job), self.iterations) as told:
            solution = hf.solve(
                model,
                job.algorithm,
                seed=job.seed,
                callback=told,
                certify=self.certify,
                nodes=self.nodes,
                **job.settings.arguments(),
            )
        settings = {
            "environment": job.environment,
            "algorithm": job.algorithm,
            "seed": job.seed,
            **job.settings.arguments(),
            "uncertainty": self.uncertainty.to_dict(),
            "nodes": self.nodes,
        }
        write_solution(out, model, solution, settings)
        if solution.certificate is not None:
            print(f"{solution.algorithm.upper()}: {solution.certificate}")
        else:
            console().print(solution_table(model, solution))
        if solution.certificate is None and solution.attainable is not None:
            best = ", ".join(f"{value:.6g}" for value in solution.attainable)
            print(f"each constraint on its own could reach, in the worst case: {best}")
        print(f"written to {out}")
        return FEASIBLE if solution.status == "feasible" else NOT_FEASIBLE


def read_settings(given: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE pairs as a mapping; a value is a number, true or false where it reads as one."""
    settings: dict[str, Any] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise ValueError(f"settings: expected KEY=VALUE, got {pair!r}")
        if key in settings:
            raise ValueError(f"settings: {key} is given twice")
        settings[key] = _value(value)
    return settings


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
