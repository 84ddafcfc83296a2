"""The record of a branch and bound in a proof file.

The search proves its steps for kernels in double precision. Here they are proved again for kernels that
are exactly in the set, with shorter multipliers, and their values are rounded up.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Float

from holdfast.tabular.certificates.checker.model import ExactModel
from holdfast.tabular.certificates.checker.occupancies import (
    EMPTY,
    NARROWED,
    ExactProgram,
    ProofNode,
    ProofStep,
    replay,
)
from holdfast.tabular.certificates.checker.record import read_kernel
from holdfast.tabular.certificates.occupancy_proof import OccupancyProof
from holdfast.tabular.certificates.proof_kernels import kernel_moves, matching_moves

# Bits of a multiplier relative to the largest of its step. The bound changes by about 1e-12, relative.
_BITS = 48


def tree_record(exact: ExactModel, proof: OccupancyProof) -> dict[str, Any]:
    """Return claim and evidence of a bound from boxes of policies.

    Raises:
        ValueError: a node that the search found to be empty is not empty in exact arithmetic.
    """
    kernels = [kernel_moves(exact, matching_moves(exact, q)) for q in proof.kernels]
    chosen = proof.representative
    pairs = [(int(s), int(a)) for s, a in np.ndindex(*chosen.shape) if chosen[s, a] == a]
    members = [read_kernel(exact, {"moves": moves}, "the prover") for moves in kernels]
    program = ExactProgram(
        exact,
        pairs,
        [[kernel[s][a] for s, a in pairs] for kernel in members],
        Fraction(proof.cutoff),
    )
    nodes = [
        ProofNode(int(parent), int(pair), Fraction(float(point)), bool(above))
        for parent, pair, point, above in zip(
            proof.node_parent, proof.node_pair, proof.node_point, proof.node_above, strict=True
        )
    ]
    steps: list[list[ProofStep]] = [[] for _ in nodes]
    for i, (node, kind) in enumerate(zip(proof.step_node, proof.step_kind, strict=True)):
        part = slice(proof.step_start[i], proof.step_start[i + 1])
        rows, values = proof.rows[part].tolist(), _shortened(proof.multipliers[part])
        used = [(row, Fraction(value)) for row, value in zip(rows, values, strict=True) if value]
        steps[node].append(ProofStep(int(kind), used, None))

    proved_values: dict[tuple[int, int], float] = {}

    def settle(n: int, i: int, proved: Fraction) -> Fraction:
        if steps[n][i].kind == EMPTY:
            if proved >= 0:
                raise ValueError(
                    f"upper_bound: node {n} of the tree could not be proved to be empty"
                )
            return proved
        proved_values[n, i] = up(proved)
        return Fraction(proved_values[n, i])

    regions = replay(program, nodes, steps, settle)
    parents = {node.parent for node in nodes}
    leaves = [r for n, r in enumerate(regions) if n not in parents and not r.empty]
    bounds = [leaf.bound for leaf in leaves if leaf.bound is not None]
    if len(bounds) < len(leaves):
        raise ValueError("upper_bound: the search ended before it had a bound")
    return {
        "method": "occupancies",
        "value": up(max([Fraction(proof.cutoff), *bounds])),
        "cutoff": proof.cutoff,
        "representative": chosen.tolist(),
        "kernels": [{"moves": moves} for moves in kernels],
        "nodes": [
            {
                "parent": node.parent,
                "pair": node.pair,
                "point": float(node.point),
                "above": node.above,
            }
            for node in nodes[1:]
        ],
        "steps": [
            {
                "node": n,
                "kind": step.kind,
                "value": proved_values.get((n, i)),
                "rows": [row for row, _ in step.multipliers],
                "multipliers": [float(value) for _, value in step.multipliers],
            }
            for n, of_node in enumerate(steps)
            for i, step in enumerate(of_node)
            if (n, i) in proved_values or step.kind in (EMPTY, NARROWED)
        ],
    }


def _shortened(multipliers: Float[np.ndarray, " y"]) -> list[float]:
    """Return multipliers rounded to multiples of 2⁻⁴⁸ of the largest one's power of two."""
    if not len(multipliers):
        return []
    unit = 2.0 ** (math.frexp(float(np.abs(multipliers).max()))[1] - _BITS)
    return (np.round(multipliers / unit) * unit).tolist()


def up(number: Fraction) -> float:
    """Return the least double that is not below a number."""
    near = float(number)
    return near if Fraction(near) >= number else math.nextafter(near, math.inf)
