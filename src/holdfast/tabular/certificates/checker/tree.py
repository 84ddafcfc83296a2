"""The bound on stationary policies: reading the tree of a proof file, and what follows from it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from holdfast.tabular.certificates.checker.model import ExactModel
from holdfast.tabular.certificates.checker.occupancies import (
    BOX_BITS,
    EMPTY,
    NARROWED,
    ExactProgram,
    ProofNode,
    ProofStep,
    replay,
)
from holdfast.tabular.certificates.checker.record import (
    RefusedError,
    check_claim,
    number,
    numbers,
    read_kernel,
    read_list,
    records,
    whole,
)


def check_tree(model: ExactModel, record: dict[str, Any]) -> str:
    """Check a bound on stationary policies by branch and bound; return it in words."""
    where = "bound 'occupancies'"
    pairs = _pairs(model, record, where)
    kernels = [
        [kernel[s][a] for s, a in pairs]
        for kernel in (read_kernel(model, each, where) for each in records(record, "kernels"))
    ]
    if not kernels:
        raise RefusedError(f"{where}: there is no kernel")
    cutoff = number(record.get("cutoff"), f"{where}: cutoff")
    program = ExactProgram(model, pairs, kernels, cutoff)
    nodes, steps = _nodes(program, record, where), _steps(program, record, where)

    def settle(n: int, i: int, proved: Fraction) -> Fraction:
        kind, _, claimed = steps[n][i]
        if kind == EMPTY:
            if proved >= 0:
                raise RefusedError(f"{where}: node {n}, step {i}: policies may be left")
            return proved
        if claimed is None or claimed < proved:
            raise RefusedError(f"{where}: node {n}, step {i}: proved is only {float(proved)!r}")
        return claimed

    regions = replay(program, nodes, steps, settle)
    parents = {node.parent for node in nodes}
    worst = cutoff
    for n, region in enumerate(regions):
        if n in parents or region.empty:
            continue
        if region.bound is None:
            raise RefusedError(f"{where}: node {n} has no bound")
        worst = max(worst, region.bound)
    check_claim(record, "value", where, worst, at_most=False)
    return f"no feasible stationary policy has a worst-case reward above {record['value']!r}"


def _pairs(model: ExactModel, record: dict[str, Any], where: str) -> list[tuple[int, int]]:
    """Return the pairs that stand for all: the others have the same row, set and signals."""
    shape = len(model.rows), len(model.rows[0])
    table = numbers(record, "representative", shape, where)
    pairs = []
    for s, rows in enumerate(model.rows):
        stands = [whole(int(a), shape[1], f"{where}: representative") for a in table[s]]
        for a, b in enumerate(stands):
            same = all(signal[s][a] == signal[s][b] for signal in model.signals)
            if stands[a] != table[s][a] or stands[b] != b or rows[a] != rows[b] or not same:
                raise RefusedError(f"{where}: action {b} cannot stand for {a} in state {s}")
        pairs += [(s, a) for a, b in enumerate(stands) if a == b]
    return pairs


def _nodes(program: ExactProgram, record: dict[str, Any], where: str) -> list[ProofNode]:
    """Return the nodes. A node that is divided has two children, one on each side of a point."""
    nodes = [ProofNode(-1, 0, Fraction(), False)]
    for n, each in enumerate(records(record, "nodes"), start=1):
        parent = whole(each.get("parent"), n, f"{where}: nodes")
        pair = whole(each.get("pair"), len(program.pairs), f"{where}: nodes")
        point = number(each.get("point"), f"{where}: nodes")
        if not 0 <= point <= 1 or (point * (1 << BOX_BITS)).denominator > 1:
            raise RefusedError(
                f"{where}: the point of node {n} is not a multiple of 2⁻²⁰ in [0, 1]"
            )
        if not isinstance(each.get("above"), bool):
            raise RefusedError(f"{where}: nodes: above is neither true nor false")
        nodes.append(ProofNode(parent, pair, point, each["above"]))
    children: dict[int, list[ProofNode]] = {}
    for node in nodes[1:]:
        children.setdefault(node.parent, []).append(node)
    for n, of_node in children.items():
        sides = [node.above for node in of_node]
        if sorted(sides) != [False, True] or len({node[:3] for node in of_node}) != 1:
            raise RefusedError(f"{where}: the children of node {n} do not cover its policies")
    return nodes


def _steps(program: ExactProgram, record: dict[str, Any], where: str) -> list[list[ProofStep]]:
    """Return the steps of every node."""
    size, ends = len(program.rows), 2 * program.kernels * len(program.of_state)
    steps: list[list[ProofStep]] = [[] for _ in range(1 + len(records(record, "nodes")))]
    for each in records(record, "steps"):
        node = whole(each.get("node"), len(steps), f"{where}: steps")
        kind = whole(each.get("kind"), ends, f"{where}: kind", least=NARROWED)
        rows = [whole(row, size, f"{where}: rows") for row in read_list(each, "rows", where)]
        values = numbers(each, "multipliers", (len(rows),), where)
        multipliers = list(zip(rows, values, strict=True))
        if any(y < 0 and not program.equation[row] for row, y in multipliers):
            raise RefusedError(f"{where}: the multiplier of an inequality is negative")
        claimed = each.get("value")
        steps[node].append(
            ProofStep(
                kind,
                multipliers,
                None if claimed is None else number(claimed, f"{where}: value"),
            )
        )
    return steps
