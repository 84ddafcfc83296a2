"""`holdfast solve`."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli import _shared
from holdfast.cli._rules import ModelOptions
from holdfast.cli._shared import FEASIBLE, NOT_FEASIBLE, SetOptions, check_writable, option, refused
from holdfast.experiments import SolveSettings

# A policy of more states is written to policy.csv, and not printed.
_MOST_ROWS_PRINTED = 40


@dataclasses.dataclass(frozen=True)
class SolveCommand:
    """Search for the policy with the best worst-case reward that keeps a model's constraints.

    Prints the solution and writes a folder with policy.npz, policy.csv (with names), model.npz,
    history.csv (every iterate), solution.json and, with --certify, certificate.json.
    `holdfast certify` reads this folder. `RobustCMDP.save` writes model files.

    Examples:
      holdfast solve gambler --out runs/gambler
      holdfast solve my-model.npz --set kl --radius 0.1 --certify
      holdfast solve my_package.models:plant --iterations 500 --trust-region 0.005
      holdfast solve storm.drn --reward profit --reach-at-most failed=0.05 --horizon 52 --discount 1
      holdfast solve river-swim --algorithm rpd --settings dual_step=0.05 policy_step=1

    Exit codes: 0 the policy is feasible, 3 it is not, 2 bad input, 4 a file could not be written, 130
    interrupted.
    """

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """Model file, folder that solve wrote, name such as gambler, or module:NAME."""
    algorithm: Annotated[str, arg(metavar="NAME")] = "rcpo"
    """One of rcpo, pcpo, cpo, rvi, lp, rpd, rcpg, r3c, cup, crpo, epirc-pgs, rnpg, or module:NAME."""
    settings: Annotated[tuple[str, ...], option("KEY=VALUE ...", "its own")] = ()
    """Hyper-parameters of the algorithm, for rpd for example dual_step=0.05 policy_step=1."""
    iterations: Annotated[int, arg(metavar="N")] = SolveSettings.iterations
    """Number of policy updates."""
    trust_region: Annotated[float, arg(metavar="DELTA")] = SolveSettings.trust_region
    """Largest expected KL divergence of one update, in nats."""
    step: Annotated[str, arg(metavar="exact|taylor")] = SolveSettings.step
    """Solve each update exactly, or by its second-order expansion."""
    safeguard: Annotated[str, arg(metavar="project|none")] = SolveSettings.safeguard
    """"project" keeps a feasible policy feasible; "none" is the paper's plain update."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the initial policy."""
    uncertainty: OmitArgPrefixes[SetOptions] = dataclasses.field(default_factory=SetOptions)
    rules: OmitArgPrefixes[ModelOptions] = dataclasses.field(default_factory=ModelOptions)
    certify: bool = False
    """Also search from extreme policies, keep the best feasible policy, and certify it."""
    nodes: Annotated[int, arg(metavar="N")] = 0
    """Largest number of nodes of branch and bound in the certificate."""
    deterministic: bool = False
    """Return a policy with one action in every state, and say what that costs."""
    devices: Annotated[int, arg(metavar="N")] = 1
    """Number of devices that share the states of a large model of successor lists."""
    out: Annotated[str, option("DIR", "runs/solve/MODEL-ALGORITHM-seed-N")] = ""
    """Folder for the results."""

    def run(self) -> int:
        """Solve the model, print a table and write the folder."""
        with refused():
            names = ("iterations", "trust_region", "step", "safeguard")
            shared = {name: getattr(self, name) for name in names}
            settings = SolveSettings(**shared, settings=read_settings(self.settings))
        name = Path(self.model).name
        stem = Path(name.rpartition(":")[2]).stem
        out = Path(self.out or f"runs/solve/{stem}-{self.algorithm}-seed-{self.seed}")
        import holdfast as hf
        from holdfast.experiments.progress import iterations_on
        from holdfast.report.solution import solution_table, write_solution
        from holdfast.tabular.solve import price_in_words

        with refused():
            check_writable(out)
            model = self.uncertainty.apply(self.rules.read(self.model))
        label = f"{name} {self.algorithm} seed {self.seed}"
        with refused(), iterations_on(sys.stderr, label, self.iterations) as callback:
            arguments = {"seed": self.seed, **settings.arguments(), "nodes": self.nodes}
            arguments["deterministic"] = self.deterministic
            search = {**arguments, "certify": self.certify, "callback": callback}
            search["devices"] = self.devices
            solution = hf.solve(model, self.algorithm, **search)
        record = {"environment": name, "algorithm": self.algorithm, **arguments}
        record["uncertainty"] = self.uncertainty.to_dict()
        record["rules"] = self.rules.to_dict()
        write_solution(out, model, solution, record)
        if solution.certificate is not None:
            print(f"{solution.algorithm.upper()}: {solution.certificate}")
        else:
            _shared.console().print(solution_table(model, solution))
        if solution.stochastic is not None:
            print(price_in_words(solution.stochastic, solution.evaluation))
        if model.state_names and model.states <= _MOST_ROWS_PRINTED:
            print(solution.table())
        if solution.certificate is None and solution.attainable is not None:
            best = ", ".join(f"{value:.6g}" for value in solution.attainable)
            print(f"each constraint on its own could reach, in the worst case: {best}")
        print(f"written to {out}")
        return FEASIBLE if solution.status == "feasible" else NOT_FEASIBLE


def read_settings(given: Sequence[str]) -> dict[str, Any]:
    """Return KEY=VALUE pairs as a mapping; a value that is not a TOML value is a string.

    Example:
        >>> read_settings(["robust=true", "step=0.5", "count=7", "mode=fast"])
        {'robust': True, 'step': 0.5, 'count': 7, 'mode': 'fast'}
    """
    settings: dict[str, Any] = {}
    for pair in given:
        key, _, value = pair.partition("=")
        if not (key and value):
            raise ValueError(f"settings: expected KEY=VALUE, got {pair!r}")
        if key in settings:
            raise ValueError(f"settings: {key} is given twice")
        try:
            settings[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = value
    return settings
