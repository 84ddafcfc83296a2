"""The search for a training limit that survives an attack."""

import pytest
from benchmarks._tightening import survivor, tighten


def test_it_finds_the_loosest_limit_that_survives():
    # The attack triples the cost that a policy was trained for: a third of the limit survives.
    found = tighten(lambda limit: 3 * limit, 24.0, tries=12)
    assert [each.limit for each in found[:3]] == [24, 12, 6]
    best = survivor(found, 24.0)
    assert best.limit == pytest.approx(8.0, rel=0.01)
    assert best.attacked <= 24


def test_without_an_effect_of_the_attack_the_limit_stays():
    assert tighten(lambda limit: limit, 24.0) == [(24.0, 24.0)]


def test_a_limit_that_never_survives_is_said_so():
    found = tighten(lambda limit: 25.0, 24.0, tries=4)
    assert [each.limit for each in found] == [24, 12, 6, 3]
    assert survivor(found, 24.0) is None
