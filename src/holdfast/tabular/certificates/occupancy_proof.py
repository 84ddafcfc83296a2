"""The record of a branch and bound over occupancies, from which anyone can check its bound.

The record holds the tree of boxes and, for every number that was proved, the multipliers that prove it.
A checker needs the model, this record, and the program of `occupancy_program`; it needs no solver. All
numbers are floats and stand for themselves exactly. A row of a kernel stands for the row divided by its
exact sum; so does the initial distribution.

A node has a box l ≤ π ≤ u over the pairs, and cones a·X_0 − α ≤ X_k ≤ b·X_0 + β, numbered
f = (k − 1)·S + s. The root has l = 0 and u = 1 (l = 1 in a state with one pair), a = α = β = 0 and
b = inf. A child takes over what its parent has after the parent's last step. Then, for a place j < n,
u_j, or l_j if the child is *above*, becomes `node_point`, and in that state all at once

    l_b = max(l_b, 1 − Σ_{c≠b} u_c),   u_b = min(u_b, 1 − Σ_{c≠b} l_c).

For a place n + f, b of the cone f, or a if the child is above, becomes `node_point`, and its slack 0.
Points are multiples of 2⁻²⁰, so that floats do this exactly. The children of a node come in twos, which
differ in *above* only.

A step of a node has an objective c and multipliers y, and B(c, y) is the bound of weak duality in
`occupancy_program`, in the node's program at that moment:

| kind | objective | what is proved | what changes |
|---|---|---|---|
| 2f + 1 | X_k − slope·X_0 | B ≤ value | b, β of f will be slope, value |
| 2f | slope·X_0 − X_k | B ≤ value | a, α of f will be slope, value |
| −1 | t | B ≤ value | the bound of the node is at most value |
| −2 | 0 | B < 0 | the node is empty: its bound is −inf |
| −3 | none | nothing | the moved ends take effect |

Slopes are multiples of 2⁻²⁰. Ends that steps move take effect together, at the next step of kind −3 of
the same node; ends moved after the last such step never do.

A child's bound is at most its parent's, and the root starts with inf. The bound of the tree is the
larger of the cutoff and the bounds of all nodes without children.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

# Kinds of steps that do not move an end of an interval.
REWARD, EMPTY, NARROWED = -1, -2, -3


@dataclasses.dataclass(frozen=True, eq=False)
class OccupancyProof:
    """A proof that no feasible policy given as a table has a worst-case reward above `value`.

    Attributes:
        value: the bound.
        representative: the action that stands for each action, (S, A); the states are those of all steps
            of a horizon.
        kernels: members of the set, (K, S, A, J).
        successors: next states of the entries, (S, A, J); None if entry s' is state s'.
        rules: number of the `reach` rule that each kernel is for, among the constraints from 1; 0 for
            the reward and all sums, (K,).
        cutoff: lower bound of t: policies with less reward need no bound.
        reward_limit: upper bound of t, at least the largest mean reward times `visit_limit`.
        visit_limit: upper bound of visits: at least Σ_t γ^t, or the number of steps with a horizon
            and rules.
        node_parent: number of the parent, smaller than the node's own; −1 for the root, node 0.
        node_place: the pair j, or n + f for the cone f, that divides the parent.
        node_point: where it is divided.
        node_above: whether the node is the part with the larger probabilities or ratios.
        step_node: node of each step.
        step_kind: what the step proves; see the module.
        step_value: the number that it proves.
        step_slope: the slope of the end that it moves; 0 for other steps.
        step_start: position of the first multiplier of each step, and the end of the last.
        rows: row of each multiplier; other rows have multiplier zero.
        multipliers: the multipliers.
    """

    value: float
    representative: Int[np.ndarray, "S A"]
    kernels: Float[np.ndarray, "K S A J"]
    successors: Int[np.ndarray, "S A J"] | None
    rules: Int[np.ndarray, " K"]
    cutoff: float
    reward_limit: float
    visit_limit: float
    node_parent: Int[np.ndarray, " N"]
    node_place: Int[np.ndarray, " N"]
    node_point: Float[np.ndarray, " N"]
    node_above: Bool[np.ndarray, " N"]
    step_node: Int[np.ndarray, " M"]
    step_kind: Int[np.ndarray, " M"]
    step_value: Float[np.ndarray, " M"]
    step_slope: Float[np.ndarray, " M"]
    step_start: Int[np.ndarray, " M_and_one"]
    rows: Int[np.ndarray, " Y"]
    multipliers: Float[np.ndarray, " Y"]


class ProofRecorder:
    """Collects nodes and steps while the search runs."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int, float, bool]] = [(-1, -1, 0.0, False)]
        self._steps: list[tuple[int, int, float, float]] = []
        self._rows: list[np.ndarray] = []
        self._multipliers: list[np.ndarray] = []

    @property
    def nodes(self) -> int:
        """Number of nodes so far."""
        return len(self._nodes)

    def divide(self, parent: int, place: int, point: float) -> tuple[int, int]:
        """Record the two children of a node, and return their numbers: below, then above."""
        self._nodes += [(parent, place, point, False), (parent, place, point, True)]
        return len(self._nodes) - 2, len(self._nodes) - 1

    def step(
        self, node: int, kind: int, value: float, multipliers: np.ndarray, slope: float = 0.0
    ) -> None:
        """Record what multipliers prove about a node."""
        rows = np.flatnonzero(multipliers)
        self._steps.append((node, kind, value, slope))
        self._rows.append(rows.astype(np.int32))
        self._multipliers.append(multipliers[rows])

    def columns(self) -> dict[str, np.ndarray]:
        """Return the arrays of an `OccupancyProof` for the nodes and steps."""
        parent, place, point, above = map(np.array, zip(*self._nodes, strict=True))
        steps = np.array(self._steps, float).reshape(-1, 4)
        return {
            "node_parent": parent,
            "node_place": place,
            "node_point": point,
            "node_above": above,
            "step_node": steps[:, 0].astype(int),
            "step_kind": steps[:, 1].astype(int),
            "step_value": steps[:, 2],
            "step_slope": steps[:, 3],
            "step_start": np.cumsum([0, *(len(r) for r in self._rows)]),
            "rows": np.concatenate([np.zeros(0, np.int32), *self._rows]),
            "multipliers": np.concatenate([np.zeros(0), *self._multipliers]),
        }
