from __future__ import annotations

import numpy as np
import pytest

import holdfast as hf
from holdfast.report.solution import read_model, read_policy

POLICY = np.full((17, 8), 1 / 8)


def test_a_policy_is_read_from_each_of_its_forms(tmp_path):
    np.save(tmp_path / "policy.npy", POLICY)
    np.savez(tmp_path / "policy.npz", policy=POLICY)
    for path in (tmp_path / "policy.npy", tmp_path / "policy.npz", tmp_path):
        np.testing.assert_array_equal(read_policy(path), POLICY)


def _no_such_array(path):
    np.savez(path, something=POLICY)


def _cut(path):
    np.savez(path, policy=POLICY)
    path.write_bytes(path.read_bytes()[:200])


def _text(path):
    path.write_text("no array at all")


def _pickled(path):
    np.savez(path, policy=np.array([{}], dtype=object))


@pytest.mark.parametrize("write", [_no_such_array, _cut, _text, _pickled])
def test_what_is_not_a_policy_is_refused_by_its_path(tmp_path, write):
    path = tmp_path / "policy.npz"
    write(path)
    with pytest.raises(ValueError, match=r"policy\.npz: not a policy: "):
        read_policy(path)


def test_a_missing_policy_is_refused_by_its_path(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.npy: no such file"):
        read_policy(tmp_path / "nothing.npy")
    with pytest.raises(ValueError, match=r"policy\.npz: no such file"):
        read_policy(tmp_path)


def test_a_model_is_found_by_name_by_file_and_by_folder(tmp_path):
    hf.environments.gambler(radius=0.3).save(tmp_path / "model.npz")
    assert read_model("gambler").uncertainty.radius == 0.1
    assert read_model(str(tmp_path / "model.npz")).uncertainty.radius == 0.3
    assert read_model(str(tmp_path)).uncertainty.radius == 0.3


def test_an_unknown_model_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"there is no model or file 'casino'"):
        read_model("casino")
