from __future__ import annotations

import hashlib
import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from holdfast.report import page
from holdfast.report.charts import Axis, Chart, Series
from holdfast.report.page.collect import Collection
from holdfast.report.page.content import Lines, Section, json_for_script
from holdfast.report.page.render import page_data, render, script_names

ASSETS = Path(str(resources.files("holdfast.report.page"))) / "assets"


def test_the_charting_library_is_the_one_that_its_table_names():
    digest = hashlib.sha256((ASSETS / "echarts" / "echarts.min.js").read_bytes()).hexdigest()
    assert digest in (ASSETS / "echarts" / "README.md").read_text()
    for name in ("LICENSE", "NOTICE", "licenses/LICENSE-d3"):
        assert (ASSETS / "echarts" / name).is_file()


def test_every_script_is_in_the_page():
    names = script_names()
    assert len(names) == 11
    assert names[-1] == "main.js"
    text = render(page_data(Collection()))
    assert not re.search(r"\{\{ \w+ \}\}", text)
    assert all((ASSETS / "js" / name).read_text() in text for name in names)


def test_the_page_asks_for_nothing():
    own = [ASSETS / "page.html", ASSETS / "page.css", *(ASSETS / "js").iterdir()]
    for path in own:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE).replace("path://", "")
        assert len(text.splitlines()) <= 400


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "\u2028\u2029", "a&b\"'\\"])
def test_no_string_leaves_the_script_that_it_is_in(text):
    written = json_for_script({"name": text})
    assert "<" not in written
    assert not {"\u2028", "\u2029"} & set(written)
    assert json.loads(written) == {"name": text}


def test_a_page_that_would_be_too_large_has_fewer_points_or_is_refused(monkeypatch):
    curve = Series("RCPO", "#0072b2", "solid", *[np.arange(400)] * 4)
    lines = Lines("reward", "Reward", "", [Chart("reward", Axis("x"), "y", [curve] * 100)])
    found = Collection(sections=[Section("key", "title", [], [], [lines])])
    whole = len(render(page_data(found)))
    monkeypatch.setattr(page, "MOST_BYTES", whole - 100_000)
    text = page._small_enough(found)
    assert len(text) < whole - 100_000
    monkeypatch.setattr(page, "MOST_BYTES", 1_000)
    with pytest.raises(ValueError, match=r"RUNS: the page would have \d.* MB, more than 0.001"):
        page._small_enough(found)
