"""The page in a real browser: what a reader sees and does."""

from __future__ import annotations

import re
import threading
from xml.etree import ElementTree

import pytest

from holdfast.report.page.serve import Server
from holdfast.simulators.training import runs

from .conftest import ODD_NAME, metrics, train_folder

SEEN = (
    "() => [...document.querySelectorAll('.chart')].every((box) => box.querySelector('svg path'))"
)
TIP = ".chart .tip"
PCPO = "#d55e00"


@pytest.fixture(scope="module")
def page(open_page, report_file):
    """Shared by the tests that leave it as they found it, or do not mind how they find it."""
    return open_page(report_file.as_uri(), color_scheme="light")


def figure(page, title):
    return page.locator("figure", has=page.get_by_role("heading", name=title, exact=True)).first


def block(page, title):
    return page.locator(".block", has=page.get_by_role("heading", name=title)).first


def drawn_paths(chart, colour):
    return chart.locator(
        f".chart svg path[stroke='{colour}'], .chart svg path[fill='{colour}']"
    ).count()


def ground(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_it_draws_everything_from_disk_without_an_error(page, report_file):
    page.wait_for_function(SEEN)
    assert page.errors == []
    assert page.fetched == [report_file.as_uri()]
    titles = page.locator(".run h2").all_inner_texts()
    assert sorted(titles) == ["frozen-lake", *["frozen-lake, RCPO"] * 2, "point-gather"]
    assert page.locator("nav a").count() == page.locator("section.run").count() == 4
    assert report_file.stat().st_size < 6_000_000


def test_what_was_skipped_is_named_with_the_reason(page):
    text = page.locator(".skipped").inner_text()
    assert re.search(r"damaged: run\.json: damaged", text)
    assert re.search(r"newer: written by Holdfast 99\.0\.0, which is newer", text)


def test_names_are_shown_as_they_are_written(page):
    assert page.get_by_text(ODD_NAME).first.is_visible()
    assert page.locator("main b", has_text="x&y").count() == 0


def test_hovering_a_chart_shows_the_numbers(page):
    chart = figure(page, "Margin in the worst case")
    chart.locator(".chart").hover()
    text = chart.locator(".tip").inner_text()
    assert re.search(r"iteration \d+", text)
    assert re.search(r"RCPO: .*−?\d.* \(.* to .*\)", text)
    assert "PCPO" in text


def test_a_scatter_says_whether_a_point_is_feasible(page):
    chart = figure(page, "Worst-case reward against margin")
    chart.locator(".chart").focus()
    page.keyboard.press("ArrowRight")
    assert "✓ feasible" in chart.locator(".tip").inner_text()


def test_the_legend_hides_and_shows_a_series_by_mouse_and_by_key(page):
    chart = figure(page, "Margin in the worst case")
    button = chart.get_by_role("button", name="PCPO", exact=True)
    page.mouse.move(0, 0)
    before = drawn_paths(chart, PCPO)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert before == 2  # the line and its band
    assert drawn_paths(chart, PCPO) == 0
    chart.locator(".chart").hover()
    assert "PCPO" not in chart.locator(".tip").inner_text()
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert drawn_paths(chart, PCPO) == before


def test_the_label_of_a_limit_is_outside_the_frame(page):
    chart = figure(page, "Margin in the worst case")
    label = chart.locator(".chart text", has_text="margin ≥ 0").bounding_box()
    curves = [box.bounding_box() for box in chart.locator(".chart path[stroke-width='2.2']").all()]
    assert len(curves) == 2
    assert all(label["x"] >= curve["x"] + curve["width"] for curve in curves)


def test_views_of_stress_show_other_tests_with_the_limit_drawn(page):
    chart = figure(page, "Under stress: bombs")
    assert chart.locator(".chart text", has_text="bombs ≤ 0.1").count()
    assert chart.locator(".chart text", has_text="radius of the attack").count()
    chart.get_by_role("button", name="speed").click()
    assert chart.locator(".chart text", has_text="speed (nominal: 1)").count()
    assert chart.locator(".chart text", has_text="bombs ≤ 0.1").count()


def test_keys_read_a_chart_point_by_point(page):
    chart = figure(page, "Cost of an episode: bombs")
    chart.locator(".chart").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert "iteration 2" in chart.locator(".tip").inner_text()
    page.keyboard.press("ArrowLeft")
    assert "iteration 1" in chart.locator(".tip").inner_text()


def test_the_certificate_can_be_read(page):
    card = block(page, "Certificate")
    assert "constraint" in card.locator(".verdict").inner_text()
    assert "the KL ball of radius 0.1" in card.inner_text()
    assert card.locator("td", has_text="≥ 0.7").count() == 1


def test_the_worst_case_kernel_stands_beside_the_nominal_one(page):
    kernels = block(page, "Nominal and worst-case kernel")
    assert kernels.locator(".chart svg").count() == 2
    kernels.locator("select").select_option(label="worst case for utility, less nominal")
    kernels.locator(".chart").last.hover()
    assert re.search(r"from state \d+ to \d+", kernels.locator(TIP).last.inner_text())


@pytest.mark.parametrize("title", ["The policy and nature on the map", "Episodes on the map"])
def test_playback_plays_steps_and_is_scrubbed(page, title):
    stage = block(page, title)
    player = stage.locator(".player")
    stage.locator("input[type=range]").fill("0")
    assert player.get_attribute("data-step") == "0"
    first = stage.locator(".stage > svg").inner_html()
    stage.get_by_role("button", name="One step forward").click()
    assert player.get_attribute("data-step") == "1"
    assert stage.locator(".stage > svg").inner_html() != first
    stage.get_by_role("button", name="One step back").click()
    stage.get_by_role("button", name="Play").click()
    page.wait_for_function("(node) => Number(node.dataset.step) >= 2", arg=player.element_handle())
    stage.get_by_role("button", name="Pause").click()
    assert stage.get_by_role("button", name="Play").is_visible()


def test_nature_pushes_the_point_where_there_are_adversaries(page):
    stage = block(page, "Episodes on the map")
    names = stage.locator("select").first.locator("option").all_inner_texts()
    assert names[0] == "nominal noise, episode 1"
    assert "adversary of reward, episode 1" in names
    assert "adversary of bombs, episode 3" in names


def test_the_theme_follows_the_system_is_switched_and_remembered(open_page, report_file):
    page = open_page(report_file.as_uri(), color_scheme="dark")
    dark = ground(page)
    series = (
        "document.querySelector('.chart svg path[stroke-width=\"2.2\"]').getAttribute('stroke')"
    )
    line = page.evaluate(series)
    page.get_by_role("button", name="Light theme").click()
    light = ground(page)
    assert light != dark
    assert page.evaluate(series) != line
    page.reload()
    assert ground(page) == light
    assert page.get_by_role("button", name="Dark theme").is_visible()
    assert page.errors == []


def test_nothing_is_clipped_on_a_phone_or_on_a_desktop(open_page, report_file):
    page = open_page(report_file.as_uri(), width=1400, height=780, has_touch=True)
    page.wait_for_function(SEEN)
    clipped = (
        "() => [...document.querySelectorAll('.scroll')]"
        ".filter((box) => box.scrollWidth > box.clientWidth).length"
    )
    for width in (1400, 768, 360):
        page.set_viewport_size({"width": width, "height": 780})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(clipped) == 0
    link = page.locator("nav a").last
    assert not link.is_visible()
    page.locator("nav summary").click()
    link.click()
    assert not link.is_visible()
    page.wait_for_function("() => window.scrollY > 500")


def test_every_control_has_a_name_and_is_reached_by_tab(page):
    page.evaluate("document.activeElement.blur()")
    page.evaluate("scrollTo(0, 0)")
    nameless = page.evaluate(
        "() => [...document.querySelectorAll('button, select, input')].filter((node) => "
        "!node.textContent.trim() && !node.ariaLabel && !node.labels?.length).length"
    )
    assert nameless == 0
    assert page.locator("[tabindex]:not([tabindex='0']):not(main)").count() == 0
    labels = page.locator(".chart").evaluate_all("boxes => boxes.map((box) => box.ariaLabel)")
    assert all(labels)


@pytest.mark.parametrize(
    ("title", "kind", "start"),
    [
        ("Margin in the worst case", "SVG", b"<svg"),
        ("Margin in the worst case", "PNG", b"\x89PNG"),
        ("The policy and nature on the map", "PNG", b"\x89PNG"),
        ("The policy and nature on the map", "SVG", b"<svg"),
    ],
)
def test_figures_are_saved(page, title, kind, start, tmp_path):
    with page.expect_download() as waiting:
        page.get_by_role("button", name=f"Save {title} as {kind}", exact=True).first.click()
    saved = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(saved)
    assert saved.suffix == f".{kind.lower()}"
    assert saved.read_bytes().startswith(start)
    if kind == "SVG":
        words = list(ElementTree.parse(saved).getroot().itertext())
        assert ("PCPO" if "Margin" in title else "goal") in words  # the legend is in the file
    assert page.errors == []


def test_a_served_page_follows_a_run_without_a_reload(open_page, gather_run, tmp_path):
    folder = train_folder(tmp_path / "run", gather_run, 2)
    with Server([tmp_path], every=0.2) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = open_page(server.address)
        page.evaluate("window.stayed = true")
        assert page.get_by_text("2 of 6 iterations").is_visible()
        rows = [metrics(2, seed) for seed in (0, 1)]
        runs.append_lines(folder / runs.METRICS, rows)
        with (folder / runs.METRICS).open("a") as file:
            file.write('{"iteration": 3, "seed"')  # a line that is being written
        page.get_by_text("3 of 6 iterations").first.wait_for()
        chart = figure(page, "Reward of an episode")
        chart.locator(".chart").focus()
        for _ in range(9):
            page.keyboard.press("ArrowRight")
        assert "iteration 3" in chart.locator(".tip").inner_text()
        train_folder(tmp_path / "another", gather_run, 6)
        page.get_by_text("2 runs").first.wait_for()
        assert page.evaluate("window.stayed")
        assert page.errors == []
        assert all(url.startswith(server.address) for url in page.fetched)
        server.shutdown()
