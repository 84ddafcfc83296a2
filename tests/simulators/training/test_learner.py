"""How the inner limit follows the measured costs, recomputed from the metrics."""

import numpy as np
import pytest

import holdfast as hf


@pytest.fixture(scope="module")
def rows(chain, tiny):
    """Metrics of the first seed; a limit between the costs of the first policies, so that it binds."""
    found = []
    settings = {"radius": 0.1, "cost_limit": -6.0, "iterations": 8}
    hf.train(chain, "rcpo", callback=found.extend, **settings, **tiny)
    return [row for row in found if row["seed"] == 0]


def test_the_inner_limit_follows_the_larger_cost_of_drawn_and_most_likely_actions(rows):
    """An integral controller in plain Python, from the measured costs alone."""
    settings, limit = hf.Settings(), -6.0
    size = abs(limit)
    tightening, excess = 0.5 * size, 0.0
    moved = 0
    for row in rows:
        assert row["inner_limits"][0] == pytest.approx(limit - tightening, abs=1e-4)
        cost, likely = row["costs"][0], row["likely_costs"][0]
        excess += 0.2 * (likely - cost - excess)
        if row["recovered"]:
            continue
        larger = cost + max(excess, 0.0) + settings.limit_confidence * row["cost_errors"][0]
        over = np.clip(larger - (limit - settings.limit_margin * size), -size / 2, size / 2)
        tightening = np.clip(tightening + settings.limit_gain * over, 0, 2 * size)
        moved += 1
    assert moved > 0


def test_most_likely_actions_cost_something_else_than_drawn_ones(rows):
    assert any(row["costs"] != row["likely_costs"] for row in rows)
