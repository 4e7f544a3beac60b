"""The site in Chromium: it fits, draws, reads out every night by keyboard, and nothing in its data runs."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright import sync_api

from perfci.render.html.history import page_name
from tests.history.test_site import HOSTILE, RUN, history, pages

CHROMIUM = os.environ.get("PERFCI_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    # The machine at hand may have no browser; CI does, and passes --must-run=browser.
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the package chromium"),
]
CASE = "sdpa/n=128"


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        # As root, as in a container, Chromium cannot make a sandbox of its own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "cases").mkdir()
    for name, text in pages(history([CASE, *HOSTILE], url=RUN)).items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def opened(browser, folder):
    """Opens pages, and in the end nobody may have complained, nor asked for anything else."""
    tabs, complaints, asked = [], [], set()

    def open_(name, width=1400, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tabs.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.add(request.url.split(":")[0]))
        page.goto((folder / name).as_uri())
        page.wait_for_load_state()
        return page

    yield open_
    for page in tabs:
        assert page.evaluate("window.hit") is None
        page.close()
    assert complaints == []
    assert asked <= {"file", "data"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 900, 1400])
@pytest.mark.parametrize("name", ["index.html", f"cases/{page_name(CASE)}"], ids=["overview", "case"])
def test_pages_fit_and_are_accessible(opened, name, width, scheme):
    page = opened(name, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    violations = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == []


def test_every_night_is_read_out_by_keyboard_and_leads_to_commit_and_run(opened):
    page = opened(f"cases/{page_name(CASE)}")
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


def test_the_overview_filters(opened):
    page = opened("index.html")
    page.get_by_label("Filter").fill("sdpa n=128")
    assert page.locator("tbody tr:visible").count() == 1
    page.get_by_label("Filter").fill("")
    page.get_by_label("with a change").check()
    assert page.locator("tbody tr:visible").count() == len(HOSTILE) + 1


def test_names_that_are_code_run_nowhere(opened):
    opened("index.html")
    for case in HOSTILE:
        assert opened(f"cases/{page_name(case)}").locator("h1").count() == 1
