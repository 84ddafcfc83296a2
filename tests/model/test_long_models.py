"""Long arrays are checked and laid out in blocks, with the results and messages of short ones."""

import numpy as np
import pytest

import holdfast as hf
from holdfast._support import archives, blocks
from holdfast.model import npz
from holdfast.model.table import layout_of


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "_ENTRIES", 64)


def lists(states=60, seed=0):
    """Lists with repeated successors, zero probabilities and rows that are off by rounding."""
    rng = np.random.default_rng(seed)
    successors = rng.integers(0, states, (states, 2, 4))
    successors[::3, :, 1] = successors[::3, :, 0]
    probabilities = rng.dirichlet(np.ones(4), (states, 2))
    probabilities[::5, 0] = [0.25, 0.5, 0.25, 0.0]
    return successors, probabilities * (1 + 1e-11)


def model_of(successors, probabilities):
    rng = np.random.default_rng(1)
    return hf.RobustCMDP(
        transitions=hf.Kernel(successors, probabilities),
        reward=rng.random(successors.shape),
        discount=0.9,
        uncertainty=hf.KL(0.1),
    )


def test_blocks_change_nothing(monkeypatch):
    whole = model_of(*lists())
    monkeypatch.setattr(blocks, "_ENTRIES", 64)
    divided = model_of(*lists())
    np.testing.assert_array_equal(divided.nominal, whole.nominal)
    np.testing.assert_array_equal(divided.transitions.successors, whole.transitions.successors)
    layout = layout_of(divided)
    back = layout.kernel(layout.table.probabilities)
    np.testing.assert_allclose(back.probabilities, whole.nominal, atol=1e-16)
    policy = np.full((60, 2), 0.5)
    one, other = hf.evaluate(whole, policy).reward, hf.evaluate(divided, policy).reward
    assert one.worst == pytest.approx(other.worst, abs=1e-12)
    np.testing.assert_allclose(one.kernel.probabilities, other.kernel.probabilities, atol=1e-9)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        ((40, 1), [0.5, 0.5, 0.5, 0.0], r"probabilities: \(state 40, action 1\) sums to 1.5"),
        ((41, 0), [-0.5, 0.5, 0.5, 0.5], r"\(state 41, action 0, entry 0\) has probability -0.5"),
        ((41, 0), [np.nan, 0.5, 0.5, 0.0], r"\(state 41, action 0, entry 0\) has probability nan"),
    ],
)
def test_the_first_bad_row_of_a_long_array_is_named(short_blocks, index, value, message):
    successors, probabilities = lists()
    probabilities[index] = value
    with pytest.raises(ValueError, match=message):
        hf.Kernel(successors, probabilities)


def test_a_successor_that_does_not_exist_is_named(short_blocks):
    successors, probabilities = lists()
    successors[50, 1, 2] = 60
    with pytest.raises(ValueError, match=r"\(state 50, action 1, entry 2\) is 60"):
        hf.Kernel(successors, probabilities)


def test_arrays_mapped_from_files_are_not_copied(short_blocks, tmp_path):
    kernel = hf.Kernel(*lists())
    np.save(tmp_path / "p.npy", kernel.probabilities)
    np.save(tmp_path / "s.npy", kernel.successors)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "sp"]
    again = hf.Kernel(*mapped)
    assert np.shares_memory(again.successors, mapped[0])
    assert np.shares_memory(again.probabilities, mapped[1])
    np.testing.assert_array_equal(again.probabilities, kernel.probabilities)


def test_a_function_makes_the_lists_block_by_block():
    successors, probabilities = lists()
    made = hf.Kernel.from_blocks(
        lambda first, last: (successors[first:last], probabilities[first:last]),
        (60, 2, 4),
        block=16,
    )
    expected = hf.Kernel(successors, probabilities)
    np.testing.assert_array_equal(made.successors, expected.successors)
    np.testing.assert_array_equal(made.probabilities, expected.probabilities)
    with pytest.raises(ValueError, match="two arrays of shape"):
        hf.Kernel.from_blocks(lambda first, last: (successors, probabilities), (60, 2, 4), block=16)
    probabilities[40] = 0.5
    with pytest.raises(ValueError, match="sums to 2, not 1, counted from state 32"):
        hf.Kernel.from_blocks(
            lambda first, last: (successors[first:last], probabilities[first:last]), (60, 2, 4), 16
        )


def test_a_large_model_is_mapped_when_it_is_loaded(short_blocks, monkeypatch, tmp_path):
    monkeypatch.setattr(npz, "_LARGEST_COMPRESSED", 0)
    monkeypatch.setattr(archives, "_LEAST_MAPPED", 256)
    model = model_of(*lists())
    model.save(tmp_path / "model.npz")
    loaded = hf.RobustCMDP.load(tmp_path / "model.npz")
    assert isinstance(loaded.nominal, np.memmap)
    assert isinstance(loaded.transitions.successors, np.memmap)
    np.testing.assert_array_equal(loaded.nominal, model.nominal)
    np.testing.assert_array_equal(loaded.reward, model.reward)
    np.testing.assert_array_equal(
        layout_of(loaded).table.probabilities, layout_of(model).table.probabilities
    )
