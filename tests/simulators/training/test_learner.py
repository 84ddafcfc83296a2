"""How the inner limit follows the measured costs, recomputed from the metrics."""

import numpy as np
import pytest

import holdfast as hf

LIMIT = -14.0


def first_seed(chain, tiny, limit):
    """Metrics of the first seed, whose costs fall from −13 to −35."""
    found = []
    hf.train(
        chain, "rcpo", callback=found.extend, radius=0.1, cost_limit=limit, iterations=8, **tiny
    )
    return [row for row in found if row["seed"] == 0]


@pytest.fixture(scope="module")
def rows(chain, tiny):
    """The first inner limit is out of reach in two steps."""
    return first_seed(chain, tiny, LIMIT)


def test_an_inner_limit_out_of_reach_opens(chain, tiny):
    """Otherwise a policy recovers for ever, far inside its limit."""
    rows = first_seed(chain, tiny, -25.0)
    assert all(row["recovered"] for row in rows)
    inner = [row["inner_limits"][0] for row in rows]
    assert inner[0] == inner[4] == -37.5  # while the cost is over the limit
    assert inner[4] < inner[5] < inner[6] < inner[7]


def test_the_inner_limit_follows_the_larger_cost_of_drawn_and_most_likely_actions(rows):
    """An integral controller in plain Python, from the measured costs alone."""
    settings, limit = hf.Settings(), LIMIT
    size = abs(limit)
    tightening, excess = 0.5 * size, 0.0
    for row in rows:
        assert row["inner_limits"][0] == pytest.approx(limit - tightening, abs=1e-4)
        cost, likely = row["costs"][0], row["likely_costs"][0]
        excess += 0.2 * (likely - cost - excess)
        larger = cost + max(excess, 0.0) + settings.limit_confidence * row["cost_errors"][0]
        over = np.clip(larger - (limit - settings.limit_margin * size), -size / 2, size / 2)
        moved = np.clip(tightening + settings.limit_gain * over, 0, 2 * size)
        # A recovery step may open the inner limit, and does not tighten it.
        tightening = min(tightening, moved) if row["recovered"] else moved
    assert [row["recovered"] for row in rows].count(True) == 2


def test_most_likely_actions_cost_something_else_than_drawn_ones(rows):
    assert any(row["costs"] != row["likely_costs"] for row in rows)
