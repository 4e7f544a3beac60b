"""A command that is shown is there to be copied: the shell gets what was intended, in every rendering."""

import os
import re
import subprocess
import unicodedata
from html import unescape
from xml.etree import ElementTree as ET

import pytest
from cmarkgfm import github_flavored_markdown_to_html
from cmarkgfm.cmark import Options
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfci.model.report import Report
from perfci.model.text import shell
from perfci.render import comment, html, junit, markdown
from perfci.render.escape import prose
from perfci.render.terminal import print_report
from tests.render.build import report, row, unchanged
from tests.render.publications import publication
from tests.render.shown import printed

SHA = "4d5993f" + "0" * 33
WORDS = [
    "perfci", "compare", SHA, "--out", "a  folder/of mine", "-k", "k/@org/team #1 GH-7", "k/x=a|b`c``d`",
    "k/http://evil.example www.evil.example a@b.example", "k/$(id) 'quoted' \\ \"twice\"", "k/zero\u200bwidth\u202e",
    "k/new\nline\ttab", "k/bytes\udcff\udc80", "k/größer_*bold*_<b>", "",
]  # fmt: skip
"""Words of a command line: a commit, which plain Markdown breaks up, and case ids as hostile as they get."""


def read_by_a_shell(line: str) -> list[bytes]:
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, env=os.environ | {"LC_ALL": "C"}, check=True
    )
    return done.stdout.split(b"\0")[:-1]


def invisible(line: str) -> list[str]:
    return [
        c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or not c.isprintable()
    ]


def code_lines(page: str) -> list[str]:
    """Lines in `pre` and `code` of a page, each as the reader copies it."""
    found = re.findall(r"<(pre|code)\b[^>]*>(.*?)</\1>", page, re.DOTALL)
    return [line for _, inner in found for line in unescape(re.sub(r"<[^>]*>", "", inner)).splitlines()]


def copied(text: str) -> list[str]:
    """Lines of all code in Markdown, as GitHub shows them."""
    return code_lines(github_flavored_markdown_to_html(text, options=Options.CMARK_OPT_UNSAFE))


@pytest.fixture(scope="module")
def broken() -> Report:
    return report(
        unchanged(2), "The measurement failed: the GPU fell off the bus", "Fix this and run again:",
        verdict="error", command=WORDS, advised=WORDS,
    )  # fmt: skip


def test_a_shell_reads_the_very_words() -> None:
    line = shell(WORDS)
    assert invisible(line) == []
    assert read_by_a_shell(line) == [os.fsencode(word) for word in WORDS]
    assert line.startswith(f"perfci compare {SHA} --out 'a  folder/of mine' ")  # written as people write it


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=1, max_size=5),
    st.booleans(),
)
@example(["|", "0@0"], True)
@example(["|", "a@b.example", "www.evil.example", "http://evil.example"], True)
def test_whatever_the_words_are(words: list[str], spanned: bool) -> None:
    line = shell(words, spanned=spanned)
    assert invisible(line) == []
    assert read_by_a_shell(line) == [word.encode() for word in words]
    if spanned and len(line) <= 160:  # what is longer is cut, and seen to be
        assert copied(prose(f"run `{line}` again", 10_000)) in ([line], [comment.code(line)[1:-1]])


def test_report_md(broken: Report) -> None:
    text = markdown.render(broken)
    assert copied(text).count(shell(WORDS)) == 1
    assert "Fix this and run again:\n\n```" in text
    assert "\u200b" not in text and "&#8203;" not in text


def test_a_command_too_long_to_be_shown_leaves_a_whole_sentence(broken: Report) -> None:
    long = ["perfci", "x" * 2000]
    text = markdown.render(broken.model_copy(update={"advised": long, "command": long}))
    assert "\nFix this and run again.\n" in text
    assert "xxx" not in text


def test_report_html(broken: Report) -> None:
    lines = code_lines(html.render(broken))
    assert lines.count(shell(WORDS)) == 2  # beside the verdict, and at the end
    for number in range(2):
        assert shell(["perfci", "compare", SHA, "--device", "cuda", "-k", f"matmul/n={64 * (number + 1)}"]) in lines


def test_junit(broken: Report) -> None:
    error = ET.fromstring(junit.render(broken).encode()).find(".//error")
    assert error is not None and error.text is not None
    assert error.text.splitlines()[-2:] == [f"{broken.sentence} Fix this and run again:", shell(WORDS)]


@pytest.mark.parametrize("width", [0, 60])
def test_a_terminal_breaks_no_command(broken: Report, width: int) -> None:
    lines = printed(print_report, broken, width).splitlines()
    assert lines[lines.index("Fix this and run again:") + 1] == f"  {shell(WORDS)}"


def test_what_github_shows_holds_only_commands_that_perfci_made(broken: Report) -> None:
    """The report's own command comes out of an artifact, which code under test may have written."""
    names = ["k/@org www.evil.example #1", "k/a  b", "k/x=a|b`c"]
    slower = report([row(name, "regression", ratio=2.0) for name in names], "slower")
    for one in (slower, broken):
        said = publication(one)
        for text in (comment.render(said), comment.render_summary(said), comment.render_check(said).summary):
            lines = [line for line in copied(text) if line.startswith(("perfci", "git"))]
            assert lines == comment.commands(comment.PublicationVerdict(said))
            assert not any(invisible(line) for line in lines)
            assert "evil.example" not in "".join(lines) or one is slower
    assert read_by_a_shell(lines[1])[:3] == [b"perfci", b"compare", SHA.encode()]
    text = comment.render(publication(broken))
    assert "\nFix this and run again.\n" in text


def test_names_of_commands_in_sentences_are_copied_as_they_are() -> None:
    told = f"run `git fetch --depth=1 origin {SHA}`, or `perfci init`; see `a@b.example|www.evil.example #1 {SHA}`"
    assert copied(prose(told)) == [
        f"git fetch --depth=1 origin {SHA}", "perfci init", f"a@b.example|www.evil.example #1 {SHA}",
    ]  # fmt: skip
