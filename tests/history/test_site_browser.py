"""The site in Chromium: it fits, draws, reads out every night by keyboard, and nothing in its data runs."""

import re
from pathlib import Path

import pytest
from playwright import sync_api

from perfci.render.html.history import page_name
from tests.history.test_site import HOSTILE, RUN, history, pages
from tests.render.chromium import MARKS, SCREENS, a_browser, tabs  # noqa: F401  # fixtures

pytestmark = MARKS
CASE = "sdpa/n=128"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """Pages by name."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "cases").mkdir()
    made = pages(history([CASE, *HOSTILE], url=RUN))
    for name, text in made.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in made}


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", ["index.html", f"cases/{page_name(CASE)}"], ids=["overview", "case"])
def test_pages_fit_and_are_accessible(tab, name, width, scheme):
    one = tab(name, width, scheme)
    assert one.overflow() <= 0
    assert one.violations() == []


def test_every_night_is_read_out_by_keyboard_and_leads_to_commit_and_run(tab):
    page = tab(f"cases/{page_name(CASE)}").page
    slider = page.get_by_role("slider", name="Night")
    slider.focus()
    last = page.locator(".readout").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".readout").inner_text() != last
    assert page.locator(".readout a").nth(1).get_attribute("href") == RUN
    assert "/org/lib/commit/" in page.locator(".readout a").first.get_attribute("href")
    page.get_by_text("Nights as a table").click()
    sync_api.expect(page.locator(".values tbody tr")).to_have_count(40)  # drawn as the table opens
    drawn = page.evaluate(
        """[...document.querySelectorAll("canvas")].every((canvas) =>
             canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value))"""
    )
    assert drawn


def test_a_case_begins_with_its_first_bad_night_and_what_to_copy(tab):
    page = tab(f"cases/{page_name(CASE)}", 390, "light").page
    told = page.locator(".change").first
    text = " ".join(told.locator("p").inner_text().split())
    assert re.fullmatch(
        r"\+3\.02 % \(±0\.\d+\), for the worse since 2026-11-27, the first bad night: between [0-9a-f]{10} and [0-9a-f]{10}, "
        r"Change 26 \(Ada <b>\)\. Proposed 2026-\d\d-\d\d; to decide:", text,
    ), text  # fmt: skip
    assert re.fullmatch(
        rf"perfci bisect [0-9a-f]{{12}} [0-9a-f]{{12}} -k {CASE} --device cpu", told.locator("pre").inner_text()
    )
    assert told.bounding_box()["y"] < page.locator(".plot").first.bounding_box()["y"]
    told.get_by_role("button").click()
    sync_api.expect(told.get_by_role("button")).to_have_text(re.compile("Copied|Selected"))


def test_the_overview_filters(tab):
    page = tab("index.html").page
    page.get_by_label("Filter").fill("sdpa n=128")
    assert page.locator("tbody tr:visible").count() == 1
    page.get_by_label("Filter").fill("")
    page.get_by_label("with a change").check()
    assert page.locator("tbody tr:visible").count() == len(HOSTILE) + 1


def test_names_that_are_code_run_nowhere(tab, files):
    one = tab("index.html")
    for case in HOSTILE:
        one.turn(files[f"cases/{page_name(case)}"])
        assert one.page.locator("h1").count() == 1
