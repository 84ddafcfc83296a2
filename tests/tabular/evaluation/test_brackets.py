"""The reported bracket of a worst-case value contains the truth, on random and degenerate models."""

import os

import numpy as np
import pytest
from tests.tabular.evaluation.bracket_cases import KINDS, compared, width

CAMPAIGN = "HOLDFAST_CAMPAIGN" in os.environ
# Models of one kind of set, each with two signals, in parts that worker processes can divide. The
# campaign has 9 · 14 · 400 · 2 = 100,800 evaluations; `benchmarks/brackets.py` prints the same.
PARTS = 14 if CAMPAIGN else 1
MODELS = 400 if CAMPAIGN else 24


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_no_bracket_misses_the_truth(kind, part):
    seeds = range(part * MODELS, (part + 1) * MODELS)
    claimed, away, doubt, true, discount = compared(kind, seeds)
    missed = ~(away <= claimed + doubt)
    assert not missed.any(), [(seeds[i], j, float(true[i, j])) for i, j in np.argwhere(missed)]
    infinite = ~np.isfinite(claimed)
    assert not infinite.any(), [(seeds[i], j) for i, j in np.argwhere(infinite)]
    # The reference must be sharp enough to tell.
    assert (doubt > claimed + 1e-300).sum() <= 0.02 * 2 * MODELS
    usual = discount <= 0.99
    assert np.median(width(claimed[usual], away[usual], true[usual])) < 1e3
