"""`holdfast check`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli._shared import refused

ACCEPTED, REFUSED = 0, 1


@dataclasses.dataclass(frozen=True)
class CheckCommand:
    """Check the proof of a certificate in exact arithmetic.

    The proof file contains what certifies a policy: vectors of values, dual variables, kernels and, for
    some bounds, a tree. The check decides every claim in it again, in rational arithmetic. With a model
    file it needs neither JAX nor a solver.

    Examples:
      holdfast certify gambler runs/gambler --proof proof.json
      holdfast check proof.json gambler
      holdfast check proof.json model.npz

    Exit codes: 0 the proof is accepted, 1 it is refused, 2 bad input.
    """

    proof: Annotated[Positional[Path], arg(metavar="PROOF")]
    """File that `holdfast certify --proof` or `Certificate.save` wrote."""
    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """Model file (.npz), folder that solve wrote, name such as gambler, or module:NAME."""

    def run(self) -> int:
        """Check the proof and print what was verified, or the first claim that does not follow."""
        from holdfast import check_proof

        with refused():
            if self.model.endswith(".npz"):
                found = check_proof(self.proof, self.model)
            else:
                from holdfast.report.solution import read_model

                found = check_proof(self.proof, read_model(self.model))
        print(found)
        return ACCEPTED if found.accepted else REFUSED
