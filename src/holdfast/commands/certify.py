"""`holdfast certify`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from holdfast.commands._shared import FEASIBLE, NOT_FEASIBLE, refused


@dataclasses.dataclass(frozen=True)
class Certify:
    """Prove whether a policy keeps a model's constraints in the worst case."""

    about: ClassVar[
        str
    ] = """Proves whether a policy keeps a model's constraints in the worst case, \
and by how much.

The worst-case values are bracketed from both sides, so the answer does not rest on the search for
the worst case having gone well.

Examples:
  holdfast certify gambler runs/gambler
  holdfast certify my-model.npz my-policy.npy --json

Exit codes: 0 the policy is feasible, 3 it is not, 2 bad input."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A .npz file, a folder that solve wrote, or a name such as gambler."""
    policy: Annotated[Positional[Path], arg(metavar="POLICY")]
    """A .npz file with the array "policy", a .npy file, or a folder that solve wrote."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Certifies and prints the certificate."""
        import holdfast as hf
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.report.solution import read_model, read_policy
        from holdfast.report.tables import to_json

        use_compilation_cache()
        with refused():
            certificate = hf.certify(read_model(self.model), read_policy(self.policy))
        print(to_json(certificate.to_dict()) if self.json else certificate)
        return FEASIBLE if certificate.feasible else NOT_FEASIBLE
