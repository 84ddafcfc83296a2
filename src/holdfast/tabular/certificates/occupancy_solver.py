"""Linear programs of one node, solved by HiGHS from the last basis and proved from their multipliers."""

from __future__ import annotations

from typing import NamedTuple

import highspy
import numpy as np
from jaxtyping import Float

from holdfast.tabular.certificates.occupancy_program import OccupancyProgram, PolicyRegion

# Tolerances of the solver. They affect how tight the proved bounds are, and not whether they hold.
_TOLERANCE = 1e-8
# Limit on the simplex iterations of one program, some ten times what the largest built-in model needs.
_MAX_ITERATIONS = 20_000

# HiGHS's numbers of the dual and the primal simplex method.
_DUAL, _PRIMAL = 1, 4


class ProvedBound(NamedTuple):
    """An upper bound on an objective, and what it was found from.

    Attributes:
        value: the bound; −inf if the program was proved to be empty, inf if nothing was proved.
        multipliers: the multipliers that prove it, or None.
        point: the solver's optimum, or None.
    """

    value: float
    multipliers: Float[np.ndarray, " rows"] | None
    point: Float[np.ndarray, " columns"] | None


class Basis(NamedTuple):
    """The states of all columns and rows; rows that were left out are basic."""

    columns: list[highspy.HighsBasisStatus]
    rows: list[highspy.HighsBasisStatus]


class OccupancySolver:
    """HiGHS with the program of one node loaded."""

    def __init__(self, program: OccupancyProgram) -> None:
        self.shared = program
        self.solved = 0
        self._highs = highspy.Highs()
        options: dict[str, bool | int | float | str] = {
            "output_flag": False,
            "threads": 1,
            "presolve": "off",  # a basis is at hand nearly always
            "primal_feasibility_tolerance": _TOLERANCE,
            "dual_feasibility_tolerance": _TOLERANCE,
            "simplex_iteration_limit": _MAX_ITERATIONS,
        }
        for name, value in options.items():
            self._highs.setOptionValue(name, value)

    def load(self, region: PolicyRegion, basis: Basis | None = None) -> None:
        """Load a node's program, and the basis of a similar one with the same kernels."""
        shared = self.shared
        self.program = program = shared.at(region)
        self._kept = kept = shared.needed(region)
        used = kept[shared.row_of]
        lp = highspy.HighsLp()
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.num_col_, lp.num_row_ = shared.width, int(kept.sum())
        lp.col_cost_ = np.zeros(shared.width)
        lp.col_lower_, lp.col_upper_ = program.lower, program.upper
        lp.row_lower_ = np.where(shared.is_equation, program.right, -highspy.kHighsInf)[kept]
        lp.row_upper_ = program.right[kept]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lengths = np.diff(shared.starts)[kept]
        lp.a_matrix_.start_ = np.append(0, np.cumsum(lengths)).astype(np.int32)
        lp.a_matrix_.index_ = shared.columns[used]
        lp.a_matrix_.value_ = program.entries[used]
        self._highs.passModel(lp)
        self._feasible = False
        if basis is not None:
            given = highspy.HighsBasis()
            given.col_status = basis.columns
            given.row_status = [basis.rows[i] for i in np.flatnonzero(kept)]
            given.valid = True
            given.alien = True  # rows that are left out may have been part of it
            self._highs.setBasis(given)

    def basis(self) -> Basis:
        """Return the basis of the last optimum, from which a similar program may start."""
        found = self._highs.getBasis()
        rows = [highspy.HighsBasisStatus.kBasic] * self.shared.rows
        for i, status in zip(np.flatnonzero(self._kept), found.row_status, strict=True):
            rows[i] = status
        return Basis(found.col_status, rows)

    def maximise(self, objective: Float[np.ndarray, " columns"]) -> ProvedBound:
        """Return a proved upper bound on an objective over the loaded program."""
        shared, highs = self.shared, self._highs
        # The last basis is feasible for another objective, and dual feasible for another region.
        highs.setOptionValue("simplex_strategy", _PRIMAL if self._feasible else _DUAL)
        highs.changeColsCost(shared.width, np.arange(shared.width, dtype=np.int32), objective)
        highs.run()
        self.solved += 1
        status = highs.getModelStatus()
        self._feasible = status == highspy.HighsModelStatus.kOptimal
        if status == highspy.HighsModelStatus.kInfeasible:
            return self._empty()
        solution = highs.getSolution()
        if not solution.dual_valid:
            return ProvedBound(np.inf, None, None)
        multipliers = self._signed(solution.row_dual)
        bound = shared.proved_bound(self.program, objective, multipliers)
        optimal = status == highspy.HighsModelStatus.kOptimal
        return ProvedBound(bound, multipliers, np.array(solution.col_value) if optimal else None)

    def _empty(self) -> ProvedBound:
        """Return −inf if the solver's ray proves that the program has no point."""
        found = self._highs.getDualRay()  # type: ignore[attr-defined]  # not in its stubs
        if not found[1]:
            return ProvedBound(np.inf, None, None)
        nothing = np.zeros(self.shared.width)
        for sign in (1.0, -1.0):
            multipliers = self._signed(sign * np.array(found[2]))
            if self.shared.proved_bound(self.program, nothing, multipliers) < 0:
                return ProvedBound(-np.inf, multipliers, None)
        return ProvedBound(np.inf, None, None)

    def _signed(self, duals: object) -> Float[np.ndarray, " rows"]:
        """Return multipliers of all rows, without negative ones on the inequalities."""
        multipliers = np.zeros(self.shared.rows)
        multipliers[self._kept] = np.asarray(duals)
        return np.where(self.shared.is_equation, multipliers, np.maximum(multipliers, 0.0))
