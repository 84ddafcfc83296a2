"""The documentation shows code that runs, output that comes out, and names that exist."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import main as command_line
from holdfast.experiments import read_description

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    if page.name != "CHANGELOG.md"
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")

# Code outside JAX cannot be kept in the cache of compiled programs: an adversary on top takes a minute.
# `tests/gym` trains with one; here the page's training runs without.
CHEAPER = {
    '"rcpo",\n    radius=0.2,\n    cost_limit=20': '"pcpo",\n    cost_limit=20',
    '    adversary={"updates": 1, "batch_size": 1_000, "hidden": (16,)},\n': "",
}

# Scripts that write the files a page starts from.
PREPARED = {"docs/tutorials/maintenance.md": "examples/maintenance_log.py"}


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page as pairs of language and body."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def same(shown: str, printed: str) -> bool:
    """Compare two outputs: equal words, and numbers equal to 0.1 % or both below 1e-6."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(float(a) == pytest.approx(float(b), rel=1e-3, abs=1e-6) for a, b in pairs)


def with_code() -> list[str]:
    return [page for page in PAGES if any(language == "python" for language, _ in blocks(page))]


def test_tutorials_and_guides_show_code():
    pages = with_code()
    assert "README.md" in pages
    assert {page for page in PAGES if page.startswith("docs/tutorials/")} <= set(pages)


@pytest.mark.parametrize("page", with_code())
def test_the_code_on_a_page_runs_and_prints_what_the_page_shows(
    page, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if page in PREPARED:
        shutil.copy(ROOT / PREPARED[page], tmp_path)
        runpy.run_path(str(ROOT / PREPARED[page]), run_name="__main__")
        monkeypatch.syspath_prepend(tmp_path)
        capsys.readouterr()
    scope: dict[str, object] = {"__name__": "__main__"}
    for language, body in blocks(page):
        if language == "python":
            for shown, cheaper in CHEAPER.items():
                body = body.replace(shown, cheaper)
            exec(compile(body, page, "exec"), scope)
        elif language == "text":
            printed = capsys.readouterr().out
            assert same(body.strip(), printed.strip()), printed


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/")])
def test_links_of_pages_outside_the_site_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        if not target.startswith("https://"):
            assert (ROOT / target).exists(), target


def shell_commands(page: str) -> list[list[str]]:
    """Return the `holdfast` commands of a page, as lists of arguments without the program."""
    found = []
    for language, body in blocks(page):
        lines = body.replace("\\\n", " ").splitlines() if language == "sh" else []
        for line in lines:
            words = shlex.split(line, comments=True)
            if words[:1] == ["holdfast"]:
                found.append([word for word in words[1:] if word != "&"])
    return found


def test_shell_commands_on_the_pages_are_accepted(monkeypatch):
    for command in command_line.COMMANDS.values():
        monkeypatch.setattr(command, "run", lambda _: 0)
    commands = [command for page in PAGES for command in shell_commands(page)]
    assert {command[0] for command in commands} == set(command_line.COMMANDS)
    for command in commands:
        assert command_line.main(command) == 0, command


def test_the_planners_problem_takes_fifteen_lines_or_three_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ((page, script),) = PREPARED.items()
    code = next(body for language, body in blocks(page) if "from_log" in body)
    assert len(code.split("\n\n", 1)[1].splitlines()) + 1 <= 15
    runpy.run_path(str(ROOT / script), run_name="__main__")
    commands = shell_commands(page)
    assert [command[0] for command in commands] == ["fit", "solve", "report"]
    for command in commands:
        assert command_line.main(command) == 0
    printed = capsys.readouterr().out
    assert "RobustCMDP(states=4, actions=3, constraints=[downtime per step ≤ 1, " in printed
    assert "feasible in the worst case" in printed
    assert "≤ 5 %" in (tmp_path / "report.html").read_text()
    table = (tmp_path / "runs/maintenance/policy.csv").read_text()
    assert "1–48,worn,service,0.9999" in table
    assert "critical,run" not in table


@pytest.mark.parametrize("page", PAGES)
def test_files_and_targets_that_are_shown_exist(page):
    text = (ROOT / page).read_text()
    files = re.findall(r"((?:benchmarks|docs|examples|src|tests)/[\w/]+\.(?:py|ipynb))", text)
    for file in files:
        assert (ROOT / file).exists() or "NAME" in file, file
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target


def test_the_experiments_on_the_page_can_be_read(tmp_path):
    texts = [body for language, body in blocks("docs/how-to/compare.md") if language == "toml"]
    path = tmp_path / "mine.toml"
    jobs = []
    for text in texts:
        path.write_text(text)
        experiment = read_description(path)
        jobs.append((len(experiment.search_jobs()), len(experiment.jobs())))
    assert jobs == [(0, 3 * 3 * 3 * 2 * 5), (2 * 3, 2 * 5)]


@pytest.mark.parametrize(
    "module", ["", ".environments", ".uncertainty", ".experiments", ".tabular.algorithms"]
)
def test_the_reference_has_every_public_name(module):
    text = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    for name in importlib.import_module(f"holdfast{module}").__all__:
        public = [f"hf{module}.{name}", f"holdfast{module}.{name}", f"hf.{name}"]
        assert any(re.search(rf"{re.escape(each)}\b", text) for each in public), name


def test_the_diagram_of_the_layers_is_the_import_contract():
    import tomllib

    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [layer.split(" | ") for layer in contract["contracts"][0]["layers"]]
    drawn = re.findall(r'data-layer="([\w ]+)"', (DOCS / "images/layers.svg").read_text())
    assert [name for layer in layers for name in layer] == drawn


PAPER = (DOCS / "paper.md").read_text()
CODE = sorted(set(re.findall(r"`(holdfast[\w.]*:[\w.]+)`", PAPER)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAPER)))


def test_the_map_of_the_paper_is_complete():
    numbers = re.findall(r"^\| \((\d+)\)", PAPER, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 50)]
    assert len(CODE) > 30
    assert len(TESTS) > 30


@pytest.mark.parametrize("entry", CODE)
def test_code_that_the_map_of_the_paper_names_exists(entry):
    module, _, qualified = entry.partition(":")
    found = importlib.import_module(module)
    for name in qualified.split("."):
        found = getattr(found, name)


def test_tests_that_the_map_of_the_paper_names_exist():
    missing = [
        f"{path}::{name}"
        for path, name in TESTS
        if not (ROOT / path).is_file()
        or not re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_the_version_to_cite_is_the_package_s():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"version: {holdfast.__version__}\n" in text
