"""The scripts and notebooks in `examples/` run, and print what they announce."""

from __future__ import annotations

import runpy
from pathlib import Path

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
# A word or number that the output of each script contains.
PRINTED = {
    "compare_algorithms.py": "rcpo              3.276        0.000  True",
    "gymnasium_pendulum.py": "limit on the cost of an episode (5.0,)",
    "own_uncertainty_set.py": "RCPO: feasible",
    "solve_and_certify.py": "feasible in the worst case",
    "stress_a_policy.py": "nominal",
}


def test_every_script_is_run_here():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(PRINTED)
    assert len(NOTEBOOKS) >= 2


def test_every_file_is_described():
    text = (EXAMPLES / "README.md").read_text()
    for name in [*PRINTED, *NOTEBOOKS]:
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("script", PRINTED)
def test_a_script_runs(script, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert PRINTED[script] in capsys.readouterr().out


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, tmp_path):
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs
    assert all(output.output_type != "error" for output in outputs)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_output(name):
    text = (EXAMPLES / name).read_text()
    cells = [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    assert "/home/" not in text
