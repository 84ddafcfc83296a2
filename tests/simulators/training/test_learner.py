"""How the inner limit follows the measured costs, recomputed from the metrics."""

import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.simulators.training.inner_limits import InnerLimits

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
    tightening, usual = 0.5 * size, np.zeros(2)
    for k, row in enumerate(rows):
        assert row["inner_limits"][0] == pytest.approx(limit - tightening, abs=1e-4)
        cost, likely = row["costs"][0], row["likely_costs"][0]
        usual += max(0.2, 1 / (k + 1)) * (np.array([cost, likely]) - usual)
        larger = cost + max(usual[1] - usual[0], 0.0)
        larger += settings.limit_confidence * row["cost_errors"][0]
        over = np.clip(larger - (limit - settings.limit_margin * size), -size / 2, size / 2)
        moved = np.clip(tightening + settings.limit_gain * over, 0, 2 * size)
        # A recovery step may open the inner limit, and does not tighten it.
        tightening = min(tightening, moved) if row["recovered"] else moved
    assert [row["recovered"] for row in rows].count(True) == 2


def test_a_limit_on_most_likely_actions_can_always_be_met():
    """HalfCheetah: drawn actions cost 33 and most likely ones 87, with a limit of 25.

    With the difference added, drawn actions would need a negative cost.
    """
    inner = InnerLimits.create(jnp.array([25.0]), moving=False)
    for _ in range(60):
        inner = inner.seen(jnp.array([33.0]), jnp.array([87.0]))
    met = 25 * 33 / 87
    assert met > 0
    assert inner.needed(jnp.array([met]))[0] == pytest.approx(0, abs=1e-3)
    assert inner.needed(jnp.array([33.0]))[0] == pytest.approx(33 - met, abs=1e-3)
    assert inner.excess(jnp.array([33.0]), margin=0.1)[0] == pytest.approx(87 - 22.5, abs=1e-3)


def test_drawn_actions_that_cost_more_are_limited_themselves():
    inner = InnerLimits.create(jnp.array([25.0]), moving=True).seen(
        jnp.array([30.0]), jnp.array([10.0])
    )
    assert inner.values[0] == 12.5
    assert inner.needed(jnp.array([20.0]))[0] == pytest.approx(7.5)


def test_linearised_constraints_are_trusted_up_to_half_above_the_limit():
    inner = InnerLimits.create(jnp.array([20.0, -10.0]), moving=True)
    assert inner.are_near(jnp.array([30.0, -5.0]), gain=0.2)
    assert not inner.are_near(jnp.array([30.1, -5.0]), gain=0.2)
    assert not inner.are_near(jnp.array([30.0, -4.9]), gain=0.2)
    assert inner.are_near(jnp.array([500.0, 0.0]), gain=0.0)  # the paper's plain update
    inner = inner.seen(jnp.array([10.0, -10.0]), jnp.array([20.0, -10.0]))
    assert inner.are_near(jnp.array([19.9, -5.0]), gain=0.2)  # most likely actions cost 10 more
    assert not inner.are_near(jnp.array([20.1, -5.0]), gain=0.2)
    never = InnerLimits.create(jnp.array([0.0]), moving=True)
    assert never.are_near(jnp.array([1e-3]), gain=0.2)


def test_costs_that_are_not_positive_are_limited_by_their_difference():
    inner = InnerLimits.create(jnp.array([-1.0, 2.0]), moving=False)
    inner = inner.seen(jnp.array([0.1, -3.0]), jnp.array([1.0, -2.0]))
    needed = inner.needed(jnp.array([-0.2, 1.5]))
    np.testing.assert_allclose(needed, [-0.2 + 1 + 0.9, 1.5 - 2 + 1.0], atol=1e-6)


@pytest.mark.parametrize("algorithm", ["rcpo", "pcpo", "cpo"])
def test_a_cost_far_above_its_limit_is_only_lowered(chain, tiny, algorithm):
    """However near the linearised constraint says that the limit is."""
    # Every linearised constraint can be met in one step of this trust region.
    settings = {"cost_limit": -30.0, "iterations": 1, "trust_region": 10.0, **tiny}
    if algorithm == "rcpo":
        settings["radius"] = 0.1
    # Without inner limits the linearised constraint is trusted: one algorithm shows it.
    for gain in (0.2, 0.0) if algorithm == "pcpo" else (0.2,):
        rows = []
        hf.train(chain, algorithm, callback=rows.extend, limit_gain=gain, **settings)
        assert min(row["costs"][0] for row in rows) > -15
        assert [row["recovered"] for row in rows] == [gain > 0] * len(rows)


def test_most_likely_actions_cost_something_else_than_drawn_ones(rows):
    assert any(row["costs"] != row["likely_costs"] for row in rows)
