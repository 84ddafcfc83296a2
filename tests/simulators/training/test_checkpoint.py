"""Files that a run is picked up from: whole, or refused with their path."""

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from holdfast._support.files import locked
from holdfast.simulators.training import checkpoint, runs

HEADER = {"kind": "checkpoint", "iteration": 3, "rate": 0.1}


def tree():
    return {
        "weights": (jnp.arange(6, dtype=jnp.float32).reshape(2, 3), jnp.ones(3)),
        "key": jax.random.PRNGKey(7),
        "count": jnp.array(4),
        "none": None,
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.safetensors"
    checkpoint.save(path, HEADER, tree())
    return path


def test_what_was_saved_comes_back_bit_for_bit(path):
    header, found = checkpoint.load(path, "checkpoint", jax.eval_shape(tree))
    assert HEADER.items() <= header.items()
    assert jax.tree.structure(found) == jax.tree.structure(tree())
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(tree()), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


def test_equal_contents_are_equal_bytes(path):
    assert checkpoint.encode(HEADER, tree()) == path.read_bytes()


def test_every_single_flipped_bit_is_noticed(path, tmp_path):
    data, bad = path.read_bytes(), tmp_path / "flipped.safetensors"
    like = jax.eval_shape(tree)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        bad.write_bytes(bytes(flipped))
        with pytest.raises(ValueError, match=str(bad)):
            checkpoint.load(bad, "checkpoint", like)


def test_a_truncated_file_is_refused_wherever_it_ends(path, tmp_path):
    data, bad = path.read_bytes(), tmp_path / "short.safetensors"
    for length in [*range(0, 24), *range(24, len(data), 17), len(data) - 1]:
        bad.write_bytes(data[:length])
        with pytest.raises(ValueError, match=str(bad)):
            checkpoint.load(bad, "checkpoint", jax.eval_shape(tree))
    bad.write_bytes(data + b"more")
    with pytest.raises(ValueError, match=str(bad)):
        checkpoint.load(bad, "checkpoint", jax.eval_shape(tree))


class Trap:
    """Says so when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("something in a foreign file was executed",))


def test_a_foreign_file_is_refused_and_nothing_in_it_is_executed(tmp_path):
    from safetensors.numpy import save_file

    pickled, text, npz = (tmp_path / name for name in ("a.pt", "b.txt", "c.npz"))
    pickled.write_bytes(pickle.dumps(Trap()))
    text.write_text("not a checkpoint")
    with npz.open("wb") as file:
        np.savez(file, weights=np.ones(3))
    others = tmp_path / "others.safetensors"
    save_file({"weights": np.ones(3, np.float32)}, others)
    odd = tmp_path / "odd.safetensors"
    save_file({"weights": np.ones(3, np.float32)}, odd, metadata={"holdfast": json.dumps([1])})
    for path in (pickled, text, npz, others, odd, tmp_path, tmp_path / "missing"):
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(ValueError, match=f"^{path}: "):
            checkpoint.load(path, "checkpoint", jax.eval_shape(tree))
        assert before is None or path.read_bytes() == before


def test_what_does_not_fit_is_named(path):
    def load(**changes):
        return checkpoint.load(path, "checkpoint", jax.eval_shape(lambda: tree() | changes))

    with pytest.raises(
        ValueError, match=r"file.safetensors: .*'count'.* is int32\[\], expected int32\[2\]"
    ):
        load(count=jnp.zeros(2, int))
    with pytest.raises(ValueError, match=r"'count'.* expected float32\[\]"):
        load(count=jnp.zeros(()))
    with pytest.raises(ValueError, match=r"'more'.* is nothing, expected float32"):
        load(more=jnp.zeros(()))
    with pytest.raises(ValueError, match=r"'count'.* is int32\[\], expected nothing"):
        load(count=None)
    with pytest.raises(ValueError, match="contains one checkpoint, expected one agent"):
        checkpoint.read_header(path, "agent")


def test_a_later_format_is_refused_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_FORMAT", "holdfast-deep-9")
    checkpoint.save(tmp_path / "new", HEADER, tree())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 'holdfast-deep-9'"):
        checkpoint.read_header(tmp_path / "new", "checkpoint")


def test_a_run_that_resumes_drops_rows_after_the_checkpoint_and_half_a_line(tmp_path):
    metrics, timings = tmp_path / "metrics.jsonl", tmp_path / "timings.jsonl"
    description = {"format": runs.FORMAT, "seeds": [0, 1], "made_with": {"jax": "1"}}
    rows = [{"iteration": i, "seed": s, "value": 0.1 + i} for i in range(4) for s in (0, 1)]
    for i in range(4):
        runs.append_rows(tmp_path, rows[2 * i : 2 * i + 2], seconds=0.5)
    whole = metrics.read_bytes()
    with metrics.open("ab") as file:
        file.write(b'{"iteration": 4, "se')
    assert runs.read_lines(metrics) == rows
    assert runs.read_lines(timings) == [{"iteration": i, "seconds": 0.5} for i in range(4)]
    runs.truncate(tmp_path, 4, description)
    assert metrics.read_bytes() == whole
    runs.truncate(tmp_path, 3, description)
    assert runs.read_lines(metrics) == rows[:6]
    assert len(runs.read_lines(timings)) == 3
    with pytest.raises(ValueError, match=r"metrics.jsonl: has 6 of the 8 rows"):
        runs.truncate(tmp_path, 4, description)
    metrics.write_text('{"iteration": 0}\n{"iteration": \n{"iteration": 2}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl: damaged in line 2"):
        runs.truncate(tmp_path, 2, description)


def test_numbers_that_are_not_finite_do_not_reach_the_disk(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        runs.append_lines(tmp_path / "metrics.jsonl", [{"iteration": 0, "value": float("nan")}])
    assert not (tmp_path / "metrics.jsonl").exists()


def test_one_process_at_a_time_trains_into_a_folder(tmp_path):
    with (
        locked(tmp_path, "training"),
        pytest.raises(ValueError, match="another process is training there"),
        locked(tmp_path, "training"),
    ):
        pass
    with locked(tmp_path, "training"):
        pass
