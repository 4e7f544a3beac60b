"""Takes the pictures of README.md and docs/tour.md: the comment and the HTML report of a run on an NVIDIA H200.

`tests/render/h200.py` says what was recorded there, and what is made up around it.

`make pictures` runs it. It needs Chromium, and npm for the style sheet that GitHub shows comments with; on Debian the
packages chromium, npm and fonts-noto-color-emoji.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal, get_args

import cmarkgfm
from cmarkgfm.cmark import Options
from playwright import sync_api

from perfci.judge.judge import judge
from perfci.render import comment, html
from perfci.render.html.recorded import Recorded
from tests.render import h200

HERE = Path(__file__).parent
Scheme = Literal["light", "dark"]
LARGEST = 300 * 1024
"""Bytes of a picture."""
CASE = "scale"

FRAME = """<!doctype html><meta charset="utf-8"><style>{style}
body {{ margin: 0; background: var(--bgColor-default); }}
article {{ box-sizing: border-box; width: {width}px; padding: 12px; }}
.frame {{ border: 1px solid var(--borderColor-default); border-radius: 6px; overflow: hidden; }}
.frame > p {{ margin: 0; padding: 8px 16px; font: 14px/1.5 "Noto Sans", Helvetica, Arial, sans-serif;
  color: var(--fgColor-muted); background: var(--bgColor-muted); border-bottom: 1px solid var(--borderColor-default); }}
.frame > p b {{ color: var(--fgColor-default); }}
.frame > div {{ padding: 16px; font-size: 14px; }}
</style><article class="markdown-body"><section class="frame">
<p><b>github-actions</b> bot</p><div>{body}</div>
</section></article>
"""


def comment_page(text: str, style: str, width: int = 1024) -> str:
    """A comment as GitHub shows it, in as many pixels."""
    body = cmarkgfm.github_flavored_markdown_to_html(text, options=Options.CMARK_OPT_UNSAFE)
    return FRAME.format(style=style, body=body, width=width)


def take(browser: sync_api.Browser, pages: dict[str, str], scheme: Scheme, folder: Path) -> None:
    """Write `NAME-SCHEME.png` of the comment, the report's overview and one of its cases."""
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    page = browser.new_page(viewport={"width": 1240, "height": 1192}, color_scheme=scheme, device_scale_factor=1.25)
    page.goto((folder / "comment.html").as_uri())
    page.locator("article").screenshot(path=HERE / f"comment-{scheme}.png")
    page.goto((folder / "report.html").as_uri())
    page.wait_for_selector("#overview canvas")
    page.screenshot(path=HERE / f"report-{scheme}.png")
    page.get_by_role("link", name=CASE).first.click()
    page.wait_for_selector("#case canvas")
    page.set_viewport_size({"width": 1240, "height": 1032})
    page.screenshot(path=HERE / f"case-{scheme}.png")
    page.close()


def main() -> None:
    """Take them all; ends with 1 where a picture is larger than a page should load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("style", type=Path, help="github-markdown.css of the package github-markdown-css")
    style = parser.parse_args().style.read_text(encoding="utf-8")
    chromium = os.environ.get("PERFCI_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("take.py: there is no Chromium: install the package chromium, or name one in PERFCI_TEST_CHROMIUM")
    results = h200.results(h200.PICTURED)
    report = judge(results)
    pages = {
        "comment.html": comment_page(comment.render(h200.publication(report)), style),
        "report.html": html.render(report, Recorded(results)),
    }
    with sync_api.sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        # As root, as in a container, Chromium cannot make a sandbox of its own.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--hide-scrollbars"])
        for scheme in get_args(Scheme):
            take(browser, pages, scheme, Path(folder))
        browser.close()
    large = [path.name for path in sorted(HERE.glob("*.png")) if path.stat().st_size > LARGEST]
    if large:
        sys.exit(f"take.py: larger than {LARGEST >> 10} KiB: {', '.join(large)}")


if __name__ == "__main__":
    main()
