from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import holdfast as hf


class FakeSolve:
    """Stands in for `holdfast.solve`: counts its calls, and can be interrupted in one of them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.interrupt_at: int | None = None

    def __call__(
        self, model: Any, algorithm: str, *, seed: int, iterations: int, **rest: Any
    ) -> Any:
        if self.interrupt_at == len(self.calls) + 1:
            raise KeyboardInterrupt
        self.calls.append((algorithm, seed))
        rows = iterations + 1
        salt = int(1000 * rest["trust_region"]) + len(rest["step"])
        rng = np.random.default_rng([seed, len(algorithm), salt])
        margins = rng.normal(size=(rows, len(model.constraints)))
        history = {
            "reward": rng.normal(size=rows),
            "margins": margins,
            "nominal_reward": rng.normal(size=rows),
            "nominal_margins": margins + 1,
            "kl": np.full(rows, rest["trust_region"]),
            "recovered": np.zeros(rows, bool),
            "error": np.full(rows, 1e-12),
            "seconds": np.arange(rows) / 10,
        }
        policy = np.full((model.states, model.actions), 1 / model.actions)
        return SimpleNamespace(status="feasible", policy=policy, history=history)


@pytest.fixture
def solve(monkeypatch: pytest.MonkeyPatch) -> FakeSolve:
    fake = FakeSolve()
    monkeypatch.setattr(hf, "solve", fake)
    return fake
