"""What the documentation shows is what comes out."""

import re
from pathlib import Path

import pytest

from holdfast.experiments import read_description

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "docs/guide.md",
    "docs/simulators.md",
    "docs/gymnasium.md",
    "docs/sets.md",
    "docs/certificates.md",
    "docs/report.md",
]
ALL_PAGES = ["README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


# What takes minutes as it stands on a page is run here in small; everything else of it stays.
IN_SMALL = {
    "steps=2_000_000)": "steps=2_000, batch_size=2_000, adversary={'batch_size': 2_000})",
    "hf.stress(agent, mass": "hf.stress(agent, episodes=2, mass",
}


def blocks(page: str) -> list[tuple[str, str]]:
    text = (ROOT / page).read_text()
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def same(shown: str, printed: str) -> bool:
    """The same words, and the same numbers to a thousandth; what is tiny is only tiny."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(float(a) == pytest.approx(float(b), rel=1e-3, abs=1e-6) for a, b in pairs)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_on_a_page_runs_and_prints_what_the_page_shows(
    page, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    ran = 0
    for language, body in blocks(page):
        if language == "python":
            for long, short in IN_SMALL.items():
                body = body.replace(long, short)
            exec(body, scope)
            ran += 1
        elif language == "text":
            printed = capsys.readouterr().out
            assert same(body.strip(), printed.strip()), printed
    assert ran


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("https://"):
            assert ((ROOT / page).parent / target).exists(), target


def test_the_experiments_on_the_page_can_be_read(tmp_path):
    texts = [body for language, body in blocks("docs/comparing.md") if language == "toml"]
    path = tmp_path / "mine.toml"
    jobs = []
    for text in texts:
        path.write_text(text)
        experiment = read_description(path)
        jobs.append((len(experiment.search_jobs()), len(experiment.jobs())))
    assert jobs == [(0, 3 * 3 * 3 * 2 * 5), (2 * 3, 2 * 5)]


@pytest.mark.parametrize("page", ALL_PAGES)
def test_commands_that_are_shown_exist(page):
    text = (ROOT / page).read_text()
    for script in re.findall(r"python ((?:benchmarks|docs)/\w+\.py)", text):
        assert (ROOT / script).exists(), script
    for target in re.findall(r"`make (\w+)`", text):
        assert f"\n{target}:" in "\n" + (ROOT / "Makefile").read_text(), target
