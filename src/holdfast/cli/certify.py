"""`holdfast certify`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli._rules import ModelOptions
from holdfast.cli._shared import FEASIBLE, NOT_FEASIBLE, SetOptions, check_writable, option, refused


@dataclasses.dataclass(frozen=True)
class CertifyCommand:
    """Prove whether a policy keeps a model's constraints in the worst case, and by how much.

    Worst-case values are bounded from both sides, so the certificate is valid even if the search for the
    worst case stopped early. It also bounds the worst-case reward of every feasible policy, or with
    --target of every feasible policy given as a table, and says how much larger the radii may become
    before a constraint breaks. Ctrl-C stops --target early, and the bound reached so far is shown.

    Examples:
      holdfast certify gambler runs/gambler
      holdfast certify frozen-lake runs/frozen-lake --target 0.01 --seconds 60
      holdfast certify my-model.npz my-policy.npy --set total-variation --radius 0.05 --json

    Exit codes: 0 the policy is feasible, 3 it is not, 2 bad input, 4 a file could not be written.
    """

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """Model file, folder that solve wrote, name such as gambler, or module:NAME."""
    policy: Annotated[Positional[Path], arg(metavar="POLICY")]
    """A .npz file with the array "policy", a .npy file, or a folder that solve wrote."""
    uncertainty: OmitArgPrefixes[SetOptions] = dataclasses.field(default_factory=SetOptions)
    rules: OmitArgPrefixes[ModelOptions] = dataclasses.field(default_factory=ModelOptions)
    no_bound: bool = False
    """Skip the upper bound on the reward of feasible policies, which takes most of the time."""
    target: Annotated[float | None, option("GAP", "the Lagrangian bound alone")] = None
    """Tighten the bound by branch and bound until the gap is at most this, such as 0.01."""
    seconds: Annotated[float, arg(metavar="S")] = 60.0
    """Time after which branch and bound stops."""
    nodes: Annotated[int | None, option("N", "no limit with --target, otherwise 0")] = None
    """Largest number of nodes of branch and bound."""
    json: bool = False
    """Print the certificate as JSON."""
    out: Annotated[str, option("FILE", "none")] = ""
    """File that also receives the JSON."""
    proof: Annotated[str, option("FILE", "none")] = ""
    """File that receives an exact proof of the certificate, for holdfast check."""

    def run(self) -> int:
        """Certify the policy and print the certificate."""
        import holdfast as hf
        from holdfast._support.files import to_json, write_json
        from holdfast.experiments.progress import iterations_on
        from holdfast.report.solution import read_policy

        with refused():
            model = self.uncertainty.apply(self.rules.read(self.model))
            policy = read_policy(self.policy)
            expected = () if model.horizon is None else (model.horizon,)
            if policy.shape != (*expected, model.states, model.actions):
                steps = "" if model.horizon is None else f"a horizon of {model.horizon}, "
                raise ValueError(
                    f"{self.policy}: a policy of shape {policy.shape}, but {self.model} has {steps}"
                    f"{model.states} states and {model.actions} actions"
                )
            for file in filter(None, (self.out, self.proof)):
                check_writable(Path(file).parent)
        with refused():
            plain = self.nodes is None and self.target is None
            with iterations_on(sys.stderr, "upper bound", round(self.seconds)) as callback:
                certificate = hf.certify(
                    model,
                    policy,
                    bound=not self.no_bound,
                    nodes=0 if plain else self.nodes,
                    target=0.01 if self.target is None else self.target,
                    seconds=self.seconds,
                    progress=callback and (lambda t: callback(int(t.seconds), str(t))),
                )
            if self.proof:
                certificate.save(self.proof)
        if self.out:
            write_json(Path(self.out), certificate.to_dict())
        print(to_json(certificate.to_dict()) if self.json else certificate)
        return FEASIBLE if certificate.feasible else NOT_FEASIBLE
