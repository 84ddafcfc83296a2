"""`holdfast sweep`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli._rules import ModelOptions
from holdfast.cli._shared import check_writable, option, refused


@dataclasses.dataclass(frozen=True)
class SweepCommand:
    """Solve a model for several limits of one constraint, or for several sizes of its set.

    Prints for each value the worst-case reward that was reached, and an upper bound for all policies.
    Writes sweep.csv, and the same as a figure, sweep.png and sweep.svg.

    Examples:
      holdfast sweep gambler --limit utility=1,2,3,4 --out runs/sweep
      holdfast sweep model.npz --radius 0 0.5 1 2

    Exit codes: 0 done, 2 bad input, 130 interrupted.
    """

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """Model file, folder that solve wrote, name such as gambler, or module:NAME."""
    limit: Annotated[str, option("NAME=A,B,...", "none")] = ""
    """Constraint and its limits."""
    radius: Annotated[tuple[float, ...], option("FACTOR ...", "none")] = ()
    """Factors on the radii."""
    rules: OmitArgPrefixes[ModelOptions] = dataclasses.field(default_factory=ModelOptions)
    iterations: Annotated[int, arg(metavar="N")] = 200
    """Number of policy updates of each solve."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs/sweep")
    """Folder for the table and the figure."""

    def run(self) -> int:
        """Solve the models, print the table and write the folder."""
        import holdfast as hf
        from holdfast.experiments.progress import iterations_on
        from holdfast.report.sweep import write_sweep

        with refused():
            check_writable(self.out)
            limit = {}
            if self.limit:
                name, _, values = self.limit.rpartition("=")
                limit = {name: _numbers(values, self.limit)}
            model = self.rules.read(self.model)
            count = len(self.radius) or len(next(iter(limit.values()), ()))
            with iterations_on(sys.stderr, "sweep", count) as callback:
                found = hf.sweep(
                    model,
                    limit=limit or None,
                    radius=self.radius or None,
                    iterations=self.iterations,
                    callback=callback,
                )
        write_sweep(self.out, found)
        print(found)
        print(f"written to {self.out}")
        return 0


def _numbers(text: str, given: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"limit: expected NAME=NUMBER,NUMBER,…, got {given!r}") from None
