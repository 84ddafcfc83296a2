"""A short version of `make attack`, with other seeds than its own."""

from __future__ import annotations

import pytest
from tests.attack import endurance, fuzz, kills, zoo


def test_damaged_files_are_read_or_refused(tmp_path):
    outcomes, findings = fuzz.attack(tmp_path, 300, seed=11)
    assert not findings
    assert sum(n for name, n in outcomes.items() if name.endswith(": refused")) > 100


@pytest.mark.parametrize("kind", ["none", "short observation", "text reward", "hangs"])
def test_a_misbehaving_environment_is_refused_and_a_harmless_one_is_trained(kind, caplog):
    assert not zoo.attack(("sync",), [kind])
    assert "Traceback" not in caplog.text


def test_a_killed_command_is_finished_by_the_next(tmp_path):
    assert not kills.attack(tmp_path, 2, seed=3, names=("bench inline",))


@pytest.mark.long
def test_a_training_does_not_leak():
    found = endurance.leak(2_000)
    assert found.low <= 0 or found.day < 1024, found
