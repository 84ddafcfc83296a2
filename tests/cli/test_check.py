"""`holdfast check`, and the proof that `holdfast certify` writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import holdfast as hf
from holdfast.cli import main as cli


@pytest.fixture
def main(monkeypatch, tmp_path):
    """The command line in a folder with a model, a policy and its proof."""
    monkeypatch.chdir(tmp_path)
    hf.environments.river_swim().save("model.npz")
    np.save("policy.npy", np.eye(2)[np.zeros(6, int)])
    code = cli.main(["certify", "model.npz", "policy.npy", "--no-bound", "--proof", "proof.json"])
    assert code == 0
    return lambda command: cli.main(command.split())


def test_a_proof_is_accepted_for_the_file_and_for_the_name(main, capsys):
    capsys.readouterr()
    for model in ("model.npz", "river-swim"):
        assert main(f"check proof.json {model}") == 0
        text = capsys.readouterr().out
        assert text.startswith("accepted: every claim was verified in exact arithmetic\n")
        assert "every constraint holds in the worst case" in text


def test_a_flattering_proof_is_refused(main, capsys, tmp_path):
    proof = json.loads((tmp_path / "proof.json").read_text())
    proof["signals"][0]["lower"] *= 1 + 1e-6
    (tmp_path / "proof.json").write_text(json.dumps(proof))
    capsys.readouterr()
    assert main("check proof.json model.npz") == 1
    assert capsys.readouterr().out.startswith("refused: signal 0: lower is claimed as")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("check model.npz model.npz", "model.npz: not a proof file"),
        ("check proof.json policy.npy", "policy.npy"),
        ("check nowhere.json model.npz", "nowhere.json"),
        ("check proof.json nowhere.npz", "nowhere.npz"),
    ],
)
def test_bad_input_is_named(main, capsys, command, message):
    assert main(command) == 2
    assert message in capsys.readouterr().err
