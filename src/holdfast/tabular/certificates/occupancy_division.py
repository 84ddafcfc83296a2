"""Where branch and bound divides a region of policies: at a probability, or at a ratio of visits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast.tabular.certificates.occupancy_program import OccupancyProgram, PolicyRegion

if TYPE_CHECKING:
    from holdfast.tabular.certificates.occupancy_solver import Basis, OccupancySolver

# Bilinear residuals below this, relative to all visits, count as zero: branching would not change them.
NO_SLACK = 1e-7
# Probabilities, and logarithms of ratios, known to this width are not divided further.
_WIDTH = 1e-5
# Points of division and ratios are multiples of this, so that sums of probabilities are exact.
GRID = 2.0**-20
# The point of division: the solution's, moved by this share towards the middle, and at least this share
# of the width away from the ends. Ratios are divided in logarithms, within this factor of their value.
_TO_MIDDLE, _FROM_ENDS, _NEAR = 0.3, 0.15, 16.0
# Divisions that are compared, those with the most slack and at least this share of the largest slack,
# and the number of trials after which their gains are estimated and not computed.
_CANDIDATES, _LEAST_SHARE, _RELIABLE = 6, 0.05, 8
# Least gain in a product of two gains, as a share of the distance from the cutoff.
_LEAST_GAIN = 1e-4


class OpenNode(NamedTuple):
    """An open node: its number, bound, region, the solution of its program, and its basis."""

    number: int
    bound: float
    region: PolicyRegion
    point: Float[np.ndarray, " columns"]
    basis: Basis | None


@dataclasses.dataclass
class DivisionGains:
    """Pseudo-costs: average gains of earlier branchings, from which the next ones are chosen.

    Attributes:
        gains: sums of what the lower and the upper parts of each division gained, by slack, (2, places).
        tries: numbers of their trials, (places,).
    """

    gains: Float[np.ndarray, "2 places"]
    tries: Float[np.ndarray, " places"]

    @classmethod
    def none(cls) -> DivisionGains:
        """Return the state before the first division."""
        return cls(np.zeros((2, 0)), np.zeros(0))

    def extend(self, places: int) -> None:
        """Make room for the places of further kernels."""
        new = places - len(self.tries)
        self.gains = np.pad(self.gains, ((0, 0), (0, new)))
        self.tries = np.pad(self.tries, (0, new))

    def choose(self, solver: OccupancySolver, node: OpenNode, cutoff: float) -> tuple[int, float]:
        """Return the variable to branch on and the branching point, or −1 if every width is small.

        Variable j < n is the probability of pair j, and n + f is the ratio of cone f. Of the variables
        with the largest bilinear residuals, it is the one whose children have the lowest bounds. They
        are computed for variables that were rarely branched on, and estimated from earlier branchings
        for others.
        """
        program, region = solver.shared, node.region
        slack = program.slack(node.point)
        # The slack of a state counts as that of a pair if it is shared by two pairs.
        slack = np.append(slack.sum(0) / 2, 2 * slack_by_state(program, slack[1:])) + NO_SLACK
        with np.errstate(divide="ignore"):
            ratios = np.log(region.most) - np.log(np.maximum(region.least, GRID))
        visited = np.isfinite(visit_ratios(program, node.point))
        width = np.append(region.upper - region.lower, np.where(visited, ratios, 0.0))
        slack = np.where(width > _WIDTH, slack, -1.0)
        best, chosen = -1.0, (-1, 0.0)
        for place in np.argsort(-slack)[:_CANDIDATES].tolist():
            if slack[place] < max(0.0, _LEAST_SHARE * slack.max()):
                break
            point = _point(program, node, place)
            gains = self.gains[:, place] / np.maximum(self.tries[place], 1) * slack[place]
            if self.tries[place] < _RELIABLE:
                gains = _try(solver, node, place, point, cutoff)
                self.gains[:, place] += gains / slack[place]
                self.tries[place] += 1
            score = float(np.maximum(gains, _LEAST_GAIN * (node.bound - cutoff)).prod())
            if score > best:
                best, chosen = score, (place, point)
        return chosen


def _point(program: OccupancyProgram, node: OpenNode, place: int) -> float:
    region = node.region
    if place < program.pairs:
        lower, upper = region.lower[place], region.upper[place]
        point = program.policy(node.point)[place]
    else:
        f = place - program.pairs
        ratio = max(visit_ratios(program, node.point)[f], GRID)
        lower = np.log(np.clip(region.least[f], ratio / _NEAR, ratio))
        upper = np.log(np.clip(region.most[f], ratio, ratio * _NEAR))
        point = np.log(ratio)
    point = (1 - _TO_MIDDLE) * point + _TO_MIDDLE * (lower + upper) / 2
    margin = _FROM_ENDS * (upper - lower)
    point = np.clip(point, lower + margin, upper - margin)
    point = point if place < program.pairs else np.exp(point)
    return float(np.round(point / GRID) * GRID)


def _try(
    solver: OccupancySolver, node: OpenNode, place: int, point: float, cutoff: float
) -> Float[np.ndarray, " 2"]:
    """Return by how much the bounds of both parts are below the node's."""
    gains, reward = [], np.eye(1, solver.shared.width)[0]
    for above in (False, True):
        part = divided(solver.shared, node.region, place, point, above)
        solver.load(part, node.basis)
        bound = min(max(solver.maximise(reward).value, cutoff), node.bound)
        gains.append(node.bound - bound)
    return np.array(gains)


def divided(
    program: OccupancyProgram, region: PolicyRegion, place: int, point: float, above: bool
) -> PolicyRegion:
    """Return the part of a region in which a probability, or a ratio, is above or below a point.

    Arguments:
        program: the program.
        region: the region.
        place: the pair, or n + f for the cone f.
        point: where to divide.
        above: whether to return the part above the point.
    """
    if place >= program.pairs:
        ends = ("least", "least_slack") if above else ("most", "most_slack")
        chosen = np.arange(program.cones) == place - program.pairs
        new = {
            name: np.where(chosen, value, getattr(region, name))
            for name, value in zip(ends, (point, 0.0), strict=True)
        }
        return region._replace(**new)
    lower, upper = region.lower.copy(), region.upper.copy()
    (lower if above else upper)[place] = point
    own = program.pair_states == program.pair_states[place]
    low, high = lower[own], upper[own]
    # The sum of one bounds each probability by the others.
    lower[own] = np.maximum(low, 1 - (high.sum() - high))
    upper[own] = np.minimum(high, 1 - (low.sum() - low))
    return region._replace(lower=lower, upper=upper)


def visit_ratios(program: OccupancyProgram, point: np.ndarray) -> Float[np.ndarray, " cones"]:
    """Return X_k(s)/X_0(s) of a point; inf or NaN where the reference is zero."""
    visits = np.maximum(program.visits(point), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (visits[1:] / visits[0]).ravel()


def slack_by_state(program: OccupancyProgram, slack: np.ndarray) -> Float[np.ndarray, " cones"]:
    """Return the sums of the slack of further kernels over the pairs of each state."""
    sums = np.zeros((len(slack), program.states))
    np.add.at(sums.T, program.pair_states, slack.T)
    return sums.ravel()
