"""Chromium without a window, by playwright, and axe-core for what assistive tools need.

Debian's package `chromium` is enough; PERFCI_TEST_CHROMIUM names another.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright import sync_api

CHROMIUM = os.environ.get("PERFCI_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
MARKS = [
    pytest.mark.browser,
    pytest.mark.slow,
    # The machine at hand may have no browser; CI does, and passes --must-run=browser.
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the package chromium"),
]
SCREENS = [(390, "light"), (390, "dark"), (900, "light"), (1400, "dark")]
"""Widths with a layout of their own, and colours: a layout has no colours, and a telephone's has all of them."""


@pytest.fixture(scope="module", name="browser")
def a_browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        # As root, as in a container, Chromium cannot make a sandbox of its own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page in a tab of its own, and what the browser complained of."""

    def __init__(self, browser: sync_api.Browser, path: Path, width: int = 1400, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.requested: list[str] = []
        self.url = path.as_uri()
        self.open()

    def open(self, place: str = "") -> None:
        self.page.goto(self.url + place)
        self.page.wait_for_load_state()

    def turn(self, path: Path) -> None:
        """Another page in the same tab: a new tab for each takes three times as long."""
        self.check()
        self.requested.clear()
        self.url = path.as_uri()
        self.open()

    def check(self) -> None:
        """Nobody has complained, nor asked for anything but the page; no code out of its data has run."""
        assert self.complaints == []
        assert {url.split("#")[0] for url in self.requested} <= {self.url, "data:,"}
        assert self.page.evaluate("window.hit") is None

    def drawn(self) -> int:
        """Plots with something painted on them."""
        return self.page.evaluate(
            """[...document.querySelectorAll("main:not([hidden]) canvas")].filter((canvas) => {
                 const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                 return pixels.some((value) => value);
               }).length"""
        )

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def violations(self) -> list[tuple[str, list[str]]]:
        """What axe finds: its rule, and the elements."""
        found = Axe().run(self.page).response["violations"]
        return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]


@pytest.fixture(name="tab")
def tabs(browser: sync_api.Browser, files: dict[str, Path]) -> Iterator[Callable[..., Tab]]:
    """Opens tabs on the module's `files`, and in the end nobody may have complained, nor asked for anything else."""
    opened: list[Tab] = []

    def open_(name: str, *more: object) -> Tab:
        opened.append(Tab(browser, files[name], *more))
        return opened[-1]

    yield open_
    for one in opened:
        one.check()
        one.page.close()
