"""The record of a branch and bound in a proof file.

The search proves its steps for kernels in double precision. Here they are proved again for kernels that
are exactly in the set, with shorter multipliers, and their values are rounded up.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int

from holdfast.tabular.certificates.checker.evidence import (
    EMPTY,
    NARROWED,
    Copy,
    ExactProgram,
    read_kernel,
    replay,
)
from holdfast.tabular.certificates.checker.exact_model import ExactModel, Record
from holdfast.tabular.certificates.occupancy_proof import OccupancyProof
from holdfast.tabular.certificates.proof_kernels import kernel_moves, matching_moves

# Bits of a multiplier relative to the largest of its step. The bound changes by about 1e-12, relative.
_BITS = 48


def tree_record(exact: ExactModel, proof: OccupancyProof) -> Record:
    """Return claim and evidence of a bound from regions of policies.

    The claim is what is proved in exact arithmetic. It may be larger than the bound of the search by
    rounding, or by more if a region that the search found to be empty could not be proved to be.
    """
    kernels = [kernel_moves(exact, matching_moves(exact, q)) for q in proof.kernels]
    chosen = proof.representative
    pairs = [(int(s), int(a)) for s, a in np.ndindex(*chosen.shape) if chosen[s, a] == a]
    members = [read_kernel(exact, {"moves": moves}, "the prover") for moves in kernels]
    rules = [int(rule) for rule in proof.rules]
    rows = [[kernel[s][a] for s, a in pairs] for kernel in members]
    copies: list[Copy] = list(zip(rows, rules, strict=True))
    program = ExactProgram(exact, pairs, copies, Fraction(proof.cutoff))
    nodes: list[Record] = [{"steps": []} for _ in proof.node_parent]
    for n, parent in enumerate(proof.node_parent):
        if n:
            side = "above" if proof.node_above[n] else "below"
            place, point = int(proof.node_place[n]), float(proof.node_point[n])
            nodes[parent] |= {"place": place, "point": point, side: nodes[n]}
    for i, (n, kind) in enumerate(zip(proof.step_node, proof.step_kind, strict=True)):
        part = slice(proof.step_start[i], proof.step_start[i + 1])
        step = {"kind": int(kind), "rows": [], "multipliers": []}
        if kind != NARROWED:
            step |= _shortened(proof.rows[part], proof.multipliers[part])
        nodes[n]["steps"].append(
            step | ({"slope": float(proof.step_slope[i])} if kind >= 0 else {})
        )

    def settle(step: Record, proved: Fraction, where: str) -> Fraction:
        del where
        step["value"] = up(proved)
        return Fraction(step["value"])

    value = replay(program, program.root(), nodes[0], settle, "tree")
    for node in nodes:
        node["steps"] = [step for step in node["steps"] if _proves(step)]
    return {
        "method": "occupancies",
        "value": up(value),
        "cutoff": proof.cutoff,
        "representative": chosen.tolist(),
        "kernels": [
            {"moves": moves} | ({"rule": rule} if rule else {})
            for moves, rule in zip(kernels, rules, strict=True)
        ],
        "tree": nodes[0],
    }


def _proves(step: Record) -> bool:
    """Whether a step was used, and is not a failed proof that a region is empty."""
    if step["kind"] == EMPTY:
        return bool(step.pop("value", 0.0) < 0)
    return "value" in step or step["kind"] == NARROWED


def _shortened(rows: Int[np.ndarray, " y"], multipliers: Float[np.ndarray, " y"]) -> Record:
    """Return rows and multipliers, rounded to multiples of 2⁻⁴⁸ of the largest one's power of two."""
    unit = 2.0 ** (math.frexp(float(np.abs(multipliers).max(initial=0.0)))[1] - _BITS)
    short = np.round(multipliers / unit) * unit
    return {"rows": rows[short != 0].tolist(), "multipliers": short[short != 0].tolist()}


def up(number: Fraction) -> float:
    """Return the least double that is not below a number."""
    near = float(number)
    return near if Fraction(near) >= number else math.nextafter(near, math.inf)
