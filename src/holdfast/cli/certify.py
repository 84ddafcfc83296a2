"""`holdfast certify`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli._shared import FEASIBLE, NOT_FEASIBLE, SetOptions, check_writable, option, refused


@dataclasses.dataclass(frozen=True)
class CertifyCommand:
    """Prove whether a policy keeps a model's constraints in the worst case, and by how much.

    Worst-case values are bounded from both sides, so the certificate is valid even if the search for the
    worst case stopped early. It also bounds the worst-case reward of every feasible policy, or with
    --nodes of every feasible stationary policy, and says how much larger the radii may become before a
    constraint breaks.

    Examples:
      holdfast certify gambler runs/gambler
      holdfast certify gambler runs/gambler --nodes 4000
      holdfast certify my-model.npz my-policy.npy --set total-variation --radius 0.05 --json

    Exit codes: 0 the policy is feasible, 3 it is not, 2 bad input.
    """

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """Model file, folder that solve wrote, name such as gambler, or module:NAME."""
    policy: Annotated[Positional[Path], arg(metavar="POLICY")]
    """A .npz file with the array "policy", a .npy file, or a folder that solve wrote."""
    uncertainty: OmitArgPrefixes[SetOptions] = dataclasses.field(default_factory=SetOptions)
    no_bound: bool = False
    """Skip the upper bound on the reward of feasible policies, which takes most of the time."""
    nodes: Annotated[int, arg(metavar="N")] = 0
    """Largest number of regions of policies that branch and bound examines to tighten the bound."""
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
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.report.solution import read_model, read_policy

        with refused():
            model = self.uncertainty.apply(read_model(self.model))
            policy = read_policy(self.policy)
            if policy.shape != (model.states, model.actions):
                raise ValueError(
                    f"{self.policy}: a policy of shape {policy.shape}, but {self.model} has "
                    f"{model.states} states and {model.actions} actions"
                )
            for file in filter(None, (self.out, self.proof)):
                check_writable(Path(file).parent)
        use_compilation_cache()
        with refused():
            certificate = hf.certify(model, policy, bound=not self.no_bound, nodes=self.nodes)
            if self.proof:
                certificate.save(self.proof)
        if self.out:
            write_json(Path(self.out), certificate.to_dict())
        print(to_json(certificate.to_dict()) if self.json else certificate)
        return FEASIBLE if certificate.feasible else NOT_FEASIBLE
