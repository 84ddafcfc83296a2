"""Models of similar size share compiled programs with every set, and padding changes no result."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import holdfast as hf
from holdfast._support import mappings
from holdfast.model.table import layout_of


def line(states):
    return np.abs(np.subtract.outer(np.arange(states), np.arange(states))).astype(float)


OPEN = {
    "total-variation": lambda states: hf.TotalVariation(0.2),
    "contamination": lambda states: hf.Contamination(0.2),
    "wasserstein": lambda states: hf.Wasserstein(0.4, metric=line(states)),
    "wasserstein without distances": lambda states: hf.Wasserstein(0.4, metric=0 * line(states)),
}


def random_model(states, actions, uncertainty, seed):
    rng = np.random.default_rng(seed)
    return hf.RobustCMDP(
        transitions=rng.dirichlet(np.ones(states), (states, actions)),
        reward=rng.normal(size=(states, actions)),
        constraints=[hf.at_least(rng.random((states, actions)), 1.0)],
        initial=np.full(states, 1 / states),
        discount=0.9,
        uncertainty=uncertainty,
    )


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("targets", ["normal", "equal", "low padding"])
def test_a_padded_row_has_the_worst_case_of_the_row_itself(name, targets):
    rng, states, width = np.random.default_rng(0), 5, 8
    plain = OPEN[name](states)
    confined = plain.padded(states, width)
    p = rng.dirichlet(np.full(states, 0.5), 20)
    y = np.ones((20, states)) if targets == "equal" else rng.normal(size=(20, states))
    below = -100.0 if targets == "low padding" else 0.0
    padded_p = np.pad(p, ((0, 0), (0, width - states)))
    padded_y = np.pad(y, ((0, 0), (0, width - states)), constant_values=below)
    own, found = plain.bracket(p, y), confined.bracket(padded_p, padded_y)
    kernel = np.asarray(found.response.kernel)
    assert (kernel[:, states:] == 0).all()
    np.testing.assert_allclose(kernel[:, :states], own.response.kernel, atol=1e-12)
    np.testing.assert_allclose(found.lower, own.lower, atol=1e-13)
    np.testing.assert_allclose(found.upper, own.upper, atol=1e-13)
    # The row of a state that does not exist stays where it is.
    alone = np.eye(width)[-1:]
    radius = np.zeros(1)
    stays = confined._with(radius=radius).worst_response(alone, padded_y[:1])
    if name != "wasserstein without distances":
        np.testing.assert_array_equal(stays, alone)


@pytest.mark.parametrize("name", OPEN)
def test_a_set_is_saved_without_its_padding(name):
    header, arrays = OPEN[name](5).padded(5, 8).to_arrays()
    assert "outcomes" not in {**header, **arrays}
    assert OPEN[name](5).with_radius(0.1).outcomes == np.inf


def test_models_of_many_sizes_and_sets_share_programs():
    """Every new shape took hundreds of mappings, and about 120 shapes ended the process."""
    makers = [OPEN[name] for name in ("total-variation", "contamination", "wasserstein")]
    before = None
    for seed in range(24):
        states = 3 + seed
        model = random_model(states, 2 + seed % 5, makers[seed % 3](states), seed)
        assert layout_of(model).table.probabilities.shape == (64, 8, 64)
        found = hf.evaluate(model, [0] * states)
        assert found.reward.worst <= found.reward.nominal + found.error
        kernel = np.asarray(found.reward.kernel)
        np.testing.assert_allclose(kernel.sum(-1), 1, atol=1e-12)
        if seed == 2:
            before = mappings.mappings()
    assert mappings.mappings() - before < 100


def test_programs_are_dropped_with_a_warning_before_the_mappings_run_out(monkeypatch):
    dropped = []
    monkeypatch.setattr(jax, "clear_caches", lambda: dropped.append(1))
    monkeypatch.setattr(mappings, "_shapes", set())
    monkeypatch.setattr(mappings, "most_mappings", lambda: 10**9)
    mappings.make_room("first")
    monkeypatch.setattr(mappings, "most_mappings", lambda: 100)
    mappings.make_room("first")
    assert not dropped
    with pytest.warns(UserWarning, match=r"of 100 memory mappings are in use"):
        mappings.make_room("second")
    assert dropped
