"""`holdfast certify`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli._shared import (
    FEASIBLE,
    NOT_FEASIBLE,
    SetOptions,
    check_writable,
    refused,
)


@dataclasses.dataclass(frozen=True)
class Certify:
    """Prove whether a policy keeps a model's constraints in the worst case."""

    about: ClassVar[
        str
    ] = """Proves whether a policy keeps a model's constraints in the worst case, \
and by how much.

The worst-case values are bracketed from both sides, so the answer does not rest on the search for
the worst case having gone well. It also says how good any policy could be, and how much larger the
radii may get before a constraint breaks.

Examples:
  holdfast certify gambler runs/gambler
  holdfast certify gambler runs/gambler --nodes 4000
  holdfast certify my-model.npz my-policy.npy --set total-variation --radius 0.05 --json

Exit codes: 0 the policy is feasible, 3 it is not, 2 bad input."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A .npz file, a folder that solve wrote, or a name such as gambler."""
    policy: Annotated[Positional[Path], arg(metavar="POLICY")]
    """A .npz file with the array "policy", a .npy file, or a folder that solve wrote."""
    uncertainty: OmitArgPrefixes[SetOptions] = dataclasses.field(default_factory=SetOptions)
    bound: bool = True
    """Bound what any policy could have."""
    nodes: Annotated[int, arg(metavar="N")] = 0
    """Regions that branch and bound may judge to tighten that bound."""
    json: bool = False
    """Print JSON."""
    out: Annotated[str, arg(metavar="FILE", help_behavior_hint="(default: none)")] = ""
    """Also write the JSON there."""

    def run(self) -> int:
        """Certifies and prints the certificate."""
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
            if self.out:
                check_writable(Path(self.out).parent)
        use_compilation_cache()
        with refused():
            certificate = hf.certify(model, policy, bound=self.bound, nodes=self.nodes)
        if self.out:
            write_json(Path(self.out), certificate.to_dict())
        print(to_json(certificate.to_dict()) if self.json else certificate)
        return FEASIBLE if certificate.feasible else NOT_FEASIBLE
