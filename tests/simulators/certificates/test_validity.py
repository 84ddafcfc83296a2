"""The bounds from above against worst cases that are known."""

import os

import numpy as np
import pytest
from scipy.stats import binom
from tests.simulators.certificates.validity_cases import NAMES, RISK, bounds, case

FULL = os.environ.get("HOLDFAST_CAMPAIGN") == "1"
REPETITIONS, EPISODES = (1000, 400) if FULL else (50, 200)
QUICK = ("once-drawn", "rare-heavy")


def check(name):
    """Fail if more bounds are below the truth than the risk allows; return their mean and the truth."""
    known = case(name)
    found = bounds(known, REPETITIONS, EPISODES)
    below = sum(bound < known.truth - 1e-6 for bound in found)
    assert below <= binom.ppf(0.999, len(found), RISK)
    return float(np.mean(found)), known.truth


@pytest.mark.campaign
@pytest.mark.parametrize("name", QUICK)
def test_bounds_are_seldom_below_the_truth(name):
    mean, truth = check(name)
    if name == "once-drawn":
        assert mean < 1.5 * truth


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in QUICK])
def test_bounds_of_the_other_systems_are_seldom_below_the_truth(name):
    check(name)


def test_the_worst_case_of_the_clipped_system_does_not_depend_on_the_grid():
    known = case("clipped-linear")
    assert known.truth == pytest.approx(known.env.worst(known.radius, grid=801), abs=1e-3)
