"""Statistics against rliable's, the reference implementation of its paper, and against SciPy's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from holdfast.experiments.statistics import (
    bootstrap,
    interquartile_mean,
    probability_of_improvement,
    stratified_bootstrap,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what rliable imports
    from rliable import library, metrics

SCORES = np.random.default_rng(0).gamma(2.0, size=(10, 4))  # runs, tasks
OTHERS = np.random.default_rng(1).gamma(2.2, size=(8, 4))
numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(numbers)
def test_the_interquartile_mean_is_rliables_and_scipys(values):
    values = np.array(values)
    ours = interquartile_mean(values)
    assert ours == pytest.approx(metrics.aggregate_iqm(values[:, None]), abs=1e-6)
    assert ours == pytest.approx(scipy.stats.trim_mean(values, 0.25), abs=1e-6)


@given(numbers, numbers)
def test_the_probability_of_improvement_is_rliables(mine, theirs):
    mine, theirs = np.array(mine), np.array(theirs)
    ours = probability_of_improvement(mine, theirs)
    reference = metrics.probability_of_improvement(mine[:, None], theirs[:, None])
    assert ours == pytest.approx(reference, abs=1e-12)
    assert ours + probability_of_improvement(theirs, mine) == pytest.approx(1.0)


def test_bootstrap_intervals_are_rliables():
    np.random.seed(0)
    points, intervals = library.get_interval_estimates(
        {"ours": SCORES}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=20_000
    )
    tasks = [SCORES[:, task] for task in range(SCORES.shape[1])]
    found = stratified_bootstrap(
        tasks,
        lambda groups: interquartile_mean(np.concatenate(groups, axis=-1)),
        resamples=20_000,
    )
    assert found.value == pytest.approx(points["ours"][0], abs=1e-12)
    assert [found.low, found.high] == pytest.approx(intervals["ours"][:, 0], abs=0.02)


def test_intervals_of_the_probability_of_improvement_are_rliables():
    np.random.seed(0)
    points, intervals = library.get_interval_estimates(
        {"pair": (SCORES, OTHERS)},
        lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
        reps=800,
    )
    groups = [group for task in range(4) for group in (SCORES[:, task], OTHERS[:, task])]

    def average(drawn):
        pairs = zip(drawn[::2], drawn[1::2], strict=True)
        return np.mean([probability_of_improvement(*pair) for pair in pairs], axis=0)

    found = stratified_bootstrap(groups, average, resamples=20_000)
    assert found.value == pytest.approx(points["pair"][0], abs=1e-12)
    assert [found.low, found.high] == pytest.approx(intervals["pair"][:, 0], abs=0.03)


def test_the_interval_of_a_mean_is_scipys():
    values = SCORES[:, 0]
    found = bootstrap(values, resamples=20_000)
    reference = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", random_state=0
    ).confidence_interval
    assert found.value == pytest.approx(values.mean())
    assert [found.low, found.high] == pytest.approx(list(reference), abs=0.03)


def test_intervals_cover_the_true_mean_about_as_often_as_they_say():
    rng = np.random.default_rng(3)
    intervals = [bootstrap(rng.normal(size=30), resamples=500, seed=i) for i in range(300)]
    covered = np.mean([each.low <= 0 <= each.high for each in intervals])
    assert 0.88 <= covered <= 0.98


def test_equal_runs_give_equal_intervals():
    assert bootstrap(SCORES[:, 0]) == bootstrap(SCORES[:, 0])
    wide, narrow = (bootstrap(SCORES[:, 0], confidence=c) for c in (0.99, 0.5))
    assert wide.low < narrow.low <= narrow.high < wide.high
