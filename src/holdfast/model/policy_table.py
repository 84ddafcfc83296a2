"""A policy as a table for people: states and actions by name, small probabilities left out."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast._support.files import write_text
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.names import action_label, state_label

# Smaller probabilities are left out of the table.
_LEAST_SHOWN = 1e-3


class PolicyRow(NamedTuple):
    """One action in one state.

    Attributes:
        steps: the steps at which the row holds, counted from 1, such as "1–12"; empty without a horizon.
        state: name of the state.
        action: name of the action.
        probability: probability of the action.
    """

    steps: str
    state: str
    action: str
    probability: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PolicyTable:
    """A policy as rows (state, action, probability), made by `Solution.table`.

    Actions with a probability below 0.1 % are left out. If every state has a single action left, the
    text forms have no column of probabilities.

    Attributes:
        rows: the rows, by state, the most likely action first.
        deterministic: whether every state has a single action.

    Example:
        >>> import holdfast as hf
        >>> model = hf.RobustCMDP(
        ...     transitions=[[[1, 0], [0, 1]], [[0, 1], [1, 0]]], reward=[[1, 0], [0, 0]], discount=0.9,
        ...     state_names=["new", "worn"], action_names=["run", "service"])
        >>> print(policy_table(model, [[1.0, 0.0], [0.25, 0.75]]))
        state  action   probability
        new    run          100.0 %
        worn   service       75.0 %
        worn   run           25.0 %
        >>> print(policy_table(model, [[1.0, 0.0], [1e-12, 1.0]]).to_markdown())
        | state | action |
        | --- | --- |
        | new | run |
        | worn | service |
    """

    rows: tuple[PolicyRow, ...]
    deterministic: bool

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows to a CSV file, probabilities with all digits."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        head, cells = self._cells("{!r}")
        writer.writerows([head, *cells])
        write_text(path, file.getvalue())

    def to_markdown(self) -> str:
        """Return the rows as a Markdown table."""
        head, cells = self._cells("{:.1%}")
        lines = [head, ["---"] * len(head), *cells]
        # A pipe inside a name would end its cell.
        return "\n".join(
            f"| {' | '.join(c.replace('|', chr(92) + '|') for c in x)} |" for x in lines
        )

    def to_cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the heading and the rows as text."""
        return self._cells("{:.1%}")

    def __str__(self) -> str:
        head, cells = self.to_cells()
        lines = [head, *cells]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        numeric = len(head) - 1 if "probability" in head else len(head)
        padded = [
            [
                c.rjust(w) if i == numeric else c.ljust(w)
                for i, (c, w) in enumerate(zip(x, widths, strict=True))
            ]
            for x in lines
        ]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    __repr__ = __str__

    def _cells(self, number: str) -> tuple[list[str], list[list[str]]]:
        with_steps = any(row.steps for row in self.rows)
        head = ["steps"] * with_steps + ["state", "action"]
        head += ["probability"] * (not self.deterministic)
        cells = []
        for row in self.rows:
            # A space before the per cent sign, as everywhere else.
            shown = number.format(row.probability).replace("%", " %")
            line = [row.steps] * with_steps + [row.state, row.action]
            cells.append([*line, shown] if not self.deterministic else line)
        return head, cells


def policy_table(model: RobustCMDP, policy: Float[np.ndarray, "*H S A"]) -> PolicyTable:
    """Return the table of a policy, (S, A), or (H, S, A) where it depends on the step.

    Consecutive steps with the same row, as shown, are one row.
    """
    array = np.asarray(policy)
    rounded = np.round(np.where(array < _LEAST_SHOWN, 0.0, array), 3)
    steps = array if array.ndim == 3 else array[None]
    shown = rounded if array.ndim == 3 else rounded[None]
    rows: list[PolicyRow] = []
    single = True
    for s in range(model.states):
        start = 0
        for end in range(1, len(steps) + 1):
            if end < len(steps) and np.array_equal(shown[end, s], shown[start, s]):
                continue
            label = "" if array.ndim == 2 else f"{start + 1}" + f"–{end}" * (end > start + 1)
            kept = [
                a for a in np.argsort(-steps[start, s], kind="stable") if shown[start, s, a] > 0
            ]
            single &= len(kept) == 1
            rows += [
                PolicyRow(
                    label, state_label(model, s), action_label(model, a), float(steps[start, s, a])
                )
                for a in map(int, kept)
            ]
            start = end
    return PolicyTable(tuple(rows), single)
