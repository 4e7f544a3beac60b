"""The Markdown that a reviewer reads: one golden file per state, and what must hold for every report."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from perfci.model.report import Report
from perfci.model.results import Check, SideCode, Work
from perfci.render import docs, markdown, render_all
from perfci.render.escape import NOTHING
from tests.render.build import facts, presence, reports, row, unchanged, unimported
from tests.render.build import report as build
from tests.render.shown import golden

GOLDEN = Path(__file__).with_name("golden")
REPORTS = reports()
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.mark.parametrize("state", REPORTS)
def test_golden(state):
    text = markdown.render(REPORTS[state], 12_000 if state == "truncated" else markdown.LIMIT)
    assert text == golden(GOLDEN / f"{state}.md", text)


def test_no_golden_file_without_a_state():
    files = {file.stem for file in GOLDEN.glob("*.md") if not file.stem.startswith(("calibration-", "comment-"))}
    assert files == set(REPORTS)


def test_a_case_that_was_not_checked_is_not_called_unreferenced():
    """Skipped cases have no checks: saying that they lack a reference would be untrue."""
    skipped = facts("upload/mib=64", Work(), checks={"base": Check(), "head": Check()})
    without = facts("add/n=64", Work(), compared=0)
    text = markdown.render(build([*unchanged(1)], "x", facts=[skipped, without]))
    line = next(line for line in text.splitlines() if line.startswith("Without a reference"))
    assert "add/n=64" in line
    assert "upload/mib=64" not in line


def test_a_tolerance_for_each_output_is_shown_whatever_its_name():
    hostile = "y|<b>*"
    check = Check(shapes=1, compared=1, worst=0.3, rtol={"y": 1e-5, hostile: 0.0}, atol={"*": 1e-6})
    shown = facts("norm/n=64", Work(), checks={"base": check, "head": check})
    text = markdown.render(build([*unchanged(1)], "x", facts=[shown]))
    line = next(line for line in text.splitlines() if line.startswith("| `norm/n=64`"))
    assert "y: 1e-05" in line and "`*: 1e-06`" in line
    assert "<b>" not in line
    whole(text)


KINDS = {"text", "text_special", "code_inline", "html_inline", "strong", "softbreak", "link"}


def whole(text: str) -> None:
    """Assert that Markdown is well formed: tables complete, folds closed, nothing active but what perfci wrote."""
    tokens = PARSER.parse(text)
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h3"]
    html = "".join(token.content for token in tokens if token.type == "html_block")
    assert re.fullmatch(r"(<details><summary>[\w :,]+</summary>\n|</details>\n)*", html), html
    assert html.count("<details>") == html.count("</details>")
    columns = 0
    for line in text.splitlines():
        bars = line.count("|") if line.startswith("|") else 0
        assert not (columns and bars) or columns == bars, line
        columns = bars
    children = [child for token in tokens for child in token.children or ()]
    assert {child.type.removesuffix("_open").removesuffix("_close") for child in children} <= KINDS
    assert all(c.attrs["href"].startswith(docs.link("undecided.md")) for c in children if c.type == "link_open")
    assert {c.content for c in children if c.type == "html_inline"} <= {"<code>", "</code>", "<br>", "<wbr>", NOTHING}
    broken = [line for line in text.splitlines() if "<br>" in line]
    assert all(re.match(r"\| [❌🟡⚠✅]", line) and line.count("<br>") <= 3 for line in broken), "in rows alone"


@pytest.mark.parametrize("state", REPORTS)
def test_every_state_is_whole_markdown_within_its_limit(state):
    for limit in (10_000, 12_000, 20_000, 60_000):
        text = markdown.render(REPORTS[state], limit)
        whole(text)
        assert len(text) <= limit


def test_rows_give_way_when_they_alone_are_too_long():
    rows = [row(f"k/{'@|' * 100}{i}", "regression", ratio=2.0, reason="|@" * 150) for i in range(50)]
    text = markdown.render(build(rows, "@|" * 200, "|@" * 200, notes=["|@" * 200] * 30), 10_000)
    whole(text)
    assert len(text) <= 10_000
    assert "more rows that fail" in text and "**50 regressions**" in text


def test_a_limit_that_nothing_fits_into_is_refused():
    with pytest.raises(ValueError, match="at least 10000"):
        markdown.render(REPORTS["pass"], 500)


def test_a_file_that_has_a_row_is_not_told_twice():
    file = presence("kernels/a.py", "failed", "does not import in head: SyntaxError", file="kernels/a.py")
    text = markdown.render(build([file], "x", files=[unimported(f"kernels/{name}.py", "SyntaxError") for name in "ab"]))
    assert "Does not import: kernels/b.py" in text and "Does not import: kernels/a.py" not in text


@pytest.mark.parametrize(
    ("sentence", "heading"),
    [
        ("sdpa/seq=512 is 3.1× slower", "`sdpa/seq=512` is 3.1× slower"),
        ("Undecided: sdpa/seq=512: wrong", "Undecided: `sdpa/seq=512`: wrong"),
        ("`sdpa/seq=512` is slower", "`sdpa/seq=512` is slower"),
        ("sdpa/seq=5120 is slower", "sdpa/seq=5120 is slower"),
    ],
)
def test_the_heading_names_the_case_as_code(sentence, heading):
    rows = [row("sdpa/seq=512", "regression", ratio=2.0), row("sdpa/seq=51")]
    assert markdown.render(build(rows, sentence)).startswith(f"### ❌ {heading}\n")


def test_same_report_same_bytes():
    for report in REPORTS.values():
        again = Report.model_validate_json(report.model_dump_json())
        assert render_all(report) == render_all(again)


nasty = st.text(st.sampled_from("|`<>@#*_[]\n\\$~&!-=+1.:/ aµ\u202e\x00"), max_size=40)


@settings(max_examples=60, deadline=None)
@given(nasty, nasty, nasty, nasty)
def test_any_text_anywhere_leaves_the_markdown_whole(case, reason, sentence, other):
    slower = row(f"k{case}", "regression", ratio=2.0, reason=reason, metric=other or "time", file=other)
    told = {"notes": [other, case], "files": [unimported(reason, sentence)], "command": ["perfci", case, other]}
    report = build([slower, *unchanged(2)], sentence or "x", reason, **told)
    report.sides["head"].subject = case
    report.sides["base"] = SideCode(ref=other)
    report.fingerprint.devices["cuda"] = reason
    report.fingerprint.imported[case] = other
    report.facts[0].timing.settings[case] = sentence
    whole(markdown.render(report))
