"""The report in a real browser."""

import re
from pathlib import Path

import pytest
from playwright import sync_api

from docs.pictures.take import comment_page
from perfci.judge.judge import judge
from perfci.render import html
from tests.render import generated
from tests.render.build import HOSTILE, reports
from tests.render.chromium import MARKS, SCREENS, Tab, a_browser, tabs  # noqa: F401  # fixtures

pytestmark = MARKS
STYLE = Path(__file__).parents[2] / "node_modules/github-markdown-css/github-markdown.css"
WIDTHS = (390, 1400)
"""On either side of where the layout changes; between them only what lies on `SCREENS`."""
ATTACKS = [
    *HOSTILE,
    "x/</script><script>window.hit=1</script>",
    "x/<img src=x onerror=window.hit=1>",
    "x/</template><svg onload=window.hit=1>",
    'x/" onmouseover="window.hit=1" autofocus onfocus="window.hit=1',
    "x/javascript:window.hit=1",
    "x/__proto__",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """Pages by name."""
    folder = tmp_path_factory.mktemp("pages")
    runs = {
        "small": generated.recorded(),
        "hostile": generated.recorded(cases=len(ATTACKS), names=ATTACKS, seen=False),
        "big": generated.recorded(cases=200),
    }
    pages = {name: html.render(judge(run.results), run) for name, run in runs.items() if run.results}
    pages |= {f"state-{state}": html.render(report) for state, report in reports().items()}
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_every_page_fits_and_draws(tab, width, scheme):
    small = tab("small", width, scheme)
    assert small.overflow() <= 0 and small.drawn() == 1
    for number, plots in ((0, 5), (1, 4)):
        small.open(f"#case-{number}")
        assert small.overflow() <= 0
        small.page.wait_for_selector("#case canvas")
        assert small.drawn() == small.page.locator("#case figure").count() == plots
    paper = small.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper.removeprefix("rgb(").rstrip(")").split(","))) < 200) == (scheme == "dark")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_state_fits(tab, files, width):
    states = [name for name in files if name.startswith("state-")]
    page = tab(states[0], width)
    for name in states:
        page.turn(files[name])
        assert page.overflow() <= 0, name
        for number in range(min(3, page.page.locator("template").count())):
            page.open(f"#case-{number}")
            assert page.overflow() <= 0, (name, number)


UNFOLD = """new Promise((done) => {
    for (const summary of document.querySelectorAll("main:not([hidden]) details > summary"))
        if (summary.checkVisibility()) summary.click();
    requestAnimationFrame(() => setTimeout(done)); // what is behind a plot is made as it opens
})"""


@pytest.mark.parametrize("place", ["", "#case-0"])
def test_axe_finds_nothing(tab, place):
    for screen in SCREENS:
        small = tab("small", *screen)
        small.page.evaluate(f"location.hash = {place!r}")
        small.page.wait_for_selector("#case h1" if place else "#overview canvas")
        small.page.evaluate(UNFOLD)
        assert small.page.locator("main:not([hidden]) details[open]").count() >= (10 if place else 2)
        assert small.violations() == [], screen


def visible_cases(page) -> list[str]:
    return page.evaluate(
        """[...document.querySelectorAll("#cases tbody tr")].filter((row) => row.offsetParent !== null)
             .map((row) => row.querySelector("td.case a").textContent)"""
    )


def test_the_table_sorts(tab):
    page = tab("small").page
    worst_first = visible_cases(page)
    page.get_by_role("button", name="case and metric").click()
    assert visible_cases(page) == sorted(
        worst_first, key=lambda case: [int(n) for n in case.split("=")[1].split("/")[:1]]
    )
    assert page.locator("th.case").get_attribute("aria-sort") == "ascending"
    change = page.get_by_role("button", name="change", exact=True)
    change.focus()
    page.keyboard.press("Enter")
    keys = page.eval_on_selector_all("#cases td.change", "cells => cells.map((cell) => Number(cell.dataset.key))")
    assert keys == sorted(keys, reverse=True) and len(keys) == 8
    page.keyboard.press("Enter")
    keys = page.eval_on_selector_all("#cases td.change", "cells => cells.map((cell) => Number(cell.dataset.key))")
    assert keys == sorted(keys)


def test_the_table_filters(tab):
    page = tab("small").page
    everything = visible_cases(page)
    page.get_by_label("Filter", exact=True).fill("m=448 TIME")
    assert visible_cases(page) == ["matmul/m=448/n=64"]
    assert page.get_by_role("status").inner_text() == f"1 of {len(everything)} rows"
    page.get_by_label("Filter", exact=True).fill("")
    page.get_by_role("button", name="1 improvement").click()
    assert visible_cases(page) == ["matmul/m=320/n=64"]
    page.get_by_role("button", name="1 improvement").click()
    assert visible_cases(page) == everything


def test_on_a_phone_the_table_sorts_by_a_menu(tab):
    page = tab("small", 390).page
    page.get_by_label("Sort by").select_option("change")
    assert visible_cases(page)[0] == "matmul/m=448/n=64"


def test_a_case_opens_by_click_and_by_keyboard_and_closes(tab):
    one = tab("small")
    page = one.page
    page.get_by_role("link", name="matmul/m=448/n=64").click()
    page.wait_for_selector("#case h1")
    assert page.title().startswith("matmul/m=448/n=64")
    assert page.locator("#overview").is_hidden() and one.drawn() == 5
    assert "left flash attention" in page.locator("#case").inner_text()
    page.get_by_role("link", name="Next").click()
    # Not wait_for_function, which evaluates text anew each time: the page's policy forbids that.
    sync_api.expect(page).not_to_have_title(re.compile("^matmul/m=448"))
    page.go_back()
    sync_api.expect(page).to_have_title(re.compile("^matmul/m=448"))
    page.get_by_role("link", name="All cases").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#cases tbody")
    assert page.locator("#case").is_hidden() and one.drawn() == 1


def test_behind_every_plot_stands_a_table(tab):
    page = tab("small").page
    page.evaluate("location.hash = '#case-0'")
    page.wait_for_selector("#case figure")
    for figure in page.locator("#case figure").all():
        figure.locator("summary").click()
        figure.locator("table tbody tr").nth(1).wait_for()  # it is made as it opens
    assert "NaN" not in page.locator("#case").inner_text() and "undefined" not in page.locator("#case").inner_text()


def test_pointing_at_a_plot_reads_it_out(tab):
    page = tab("small").page
    page.evaluate("location.hash = '#case-0'")
    page.wait_for_selector("#case canvas")
    for plot, says in (("workers", "pair "), ("ratios", "pair "), ("clock", " min"), ("timeline", "head: ")):
        over = page.locator(f"#case figure[data-plot={plot}] .u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.75)
        assert says in page.locator(f"#case figure[data-plot={plot}] .readout").text_content(), plot


def test_a_point_of_the_overview_opens_its_case(tab):
    page = tab("small").page
    over = page.locator("#overview .u-over")
    box = over.bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + 30)
    page.wait_for_selector("#case h1")
    assert page.locator("#case h1").inner_text().startswith("matmul/m=448/n=64")  # the slowest comes first


def test_hostile_names_are_text(tab):
    for width in WIDTHS:
        hostile = tab("hostile", width)
        assert len(visible_cases(hostile.page)) == len(ATTACKS) and hostile.overflow() <= 0
        for number in range(len(ATTACKS)):
            hostile.open(f"#case-{number}")
            hostile.page.locator("#case summary").first.click()
            hostile.page.hover("#case h1")
            assert hostile.overflow() <= 0 and hostile.drawn() == 4
        assert hostile.page.evaluate("document.querySelectorAll('img, b, svg[onload]').length") == 0


def test_what_got_past_the_escaping_would_not_run(browser, files, tmp_path):
    """The policy in the page stands behind the escaping: injected code is refused."""
    text = files["small"].read_text(encoding="utf-8")
    evil = '<script>window.hit=1</script><img src="https://evil.example/x" onerror="window.hit=1"><p style="color:red">'
    path = tmp_path / "evil.html"
    path.write_text(text.replace("<header", evil + "<header", 1), encoding="utf-8")
    one = Tab(browser, path)
    assert one.page.evaluate("window.hit") is None
    refused = [complaint for complaint in one.complaints if "Content Security Policy" in complaint]
    for what in ("inline script", "event handler", "inline style", "https://evil.example/x"):
        assert any(what in complaint for complaint in refused), what
    one.page.close()


def test_of_two_hundred_cases_one_chart_is_drawn(browser, files):
    """A chart that nobody opens costs nothing: so a large report opens as fast as a small one."""
    one = Tab(browser, files["big"])
    one.page.wait_for_selector("#overview canvas")
    one.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    assert one.drawn() == 1 and len(visible_cases(one.page)) == 200
    one.page.close()


@pytest.mark.node
@pytest.mark.skipif(not STYLE.exists(), reason="no node_modules here: install Node.js with npm")
@pytest.mark.parametrize("width", [390, 780])
@pytest.mark.parametrize("state", ["mixed", "many", "wrong"])
def test_a_comments_rows_need_no_scrolling_on_a_telephone(browser, tmp_path, state, width):
    """GitHub's tables are as wide as their longest words, and scroll where that is more than the comment."""
    text = (Path(__file__).with_name("golden") / f"comment-{state}.md").read_text()
    (tmp_path / "comment.html").write_text(comment_page(text, STYLE.read_text(), width))
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "comment.html").as_uri())
    tables = page.locator("table:visible")
    wider = "all => all.map(one => [one.scrollWidth, one.clientWidth]).filter(([all, seen]) => all > seen)"
    assert tables.count() and tables.evaluate_all(wider) == []
    page.close()
