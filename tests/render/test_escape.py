"""Text from code and tools must never become Markdown, HTML, a formula, a link or an invisible character."""

import re
import unicodedata
from html import unescape
from xml.etree import ElementTree as ET

import pytest
from cmarkgfm import github_flavored_markdown_to_html
from cmarkgfm.cmark import Options
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from perfci.model.text import shorten
from perfci.render import escape

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
NASTY = [
    "|", "`", "``", "<b>", "</details>", "<!--", "-->", "@org/team", "#1", "GH-7", "a/b#2", "*", "**", "_", "__", "~~", "[x](y)",
    "![", "]", "\n", "\r\n", "\t", "- ", "+ ", "* ", "1. ", "1) ", "> ", "# ", "---", "===", ":--", "~~~", "```", "\\", "\\|", "&amp;",
    "&#64;", "http://e.example", "https://", "www.e.example", "mailto:a@b.c", "$x$", "\x00", "\x1b[31m", "\u202e", "\u2066", "\u200b",
    "\u2028", "\ufeff", "\ud800", "\ufffe", "\U000e0041", "=1+1", "+1", "-1", "@SUM(A1)", "＝1", "é", "µ", " ", "a",
]  # fmt: skip
texts = st.lists(st.sampled_from(NASTY) | st.characters(exclude_categories=()), max_size=12).map("".join)
quick = settings(max_examples=300, deadline=None)


def paragraph(markdown: str) -> str:
    """The HTML that GitHub's own parser makes of a paragraph, or of the last cell of a table."""
    page = github_flavored_markdown_to_html(markdown, options=Options.CMARK_OPT_UNSAFE)
    return re.findall(r"<(?:p|td)[^>]*>(.*?)</(?:p|td)>", page, re.DOTALL)[-1]


def inline(markdown: str) -> str:
    """The text of Markdown that must be one plain paragraph without any active part."""
    tokens = PARSER.parse(markdown)
    if not markdown:
        return ""
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"], markdown
    return plain(tokens[1].children)


def plain(children) -> str:
    assert {child.type for child in children} <= {"text", "text_special"}, children
    return "".join(child.content for child in children)


def in_table(content: str):
    """The inline parts of `content` as the first of two cells."""
    tokens = PARSER.parse(f"| a | b |\n|---|---|\n| {content} | end |\n")
    cells = [token for token in tokens if token.type == "inline"]
    assert [token.content for token in (cells[0], cells[1], cells[3])] == ["a", "b", "end"]
    assert len(cells) == 4
    return cells[2].children


def unbroken(text: str) -> str:
    return text.replace("\u200b", "")


@quick
@given(texts)
def test_markdown_shows_exactly_the_text_and_nothing_is_active(text):
    escaped = escape.markdown(text)
    shown = inline(escaped)
    assert unbroken(shown) == escape.visible(text)
    assert unbroken(plain(in_table(escaped or "x"))) == (escape.visible(text) or "x")
    assert not re.search(r"@\w|#\d|gh-\d|://|www\.|mailto:\w", shown, re.IGNORECASE)
    assert "$" not in escaped
    assert not re.search(r"&(?!amp;|lt;|gt;|#\d+;)", escaped)


@quick
@given(texts)
def test_markdown_stays_plain_behind_other_text_and_in_a_list(text):
    escaped = escape.markdown(text)
    assert unbroken(inline(f"before {escaped}".strip())) == f"before {escape.visible(text)}".strip()
    tokens = PARSER.parse(f"- {escaped}x")
    assert [token.type for token in tokens if token.type.endswith("_open")] == [
        "bullet_list_open",
        "list_item_open",
        "paragraph_open",
    ]


paths = st.lists(texts, max_size=4).map("/".join)


@pytest.mark.parametrize("written", [escape.code, escape.name])
@quick
@given(text=texts | paths)
def test_code_is_one_code_span_in_text_and_in_a_table(written, text):
    shown = shorten(escape.visible(text), 160, middle=True)
    span = written(text)
    for children in (PARSER.parse(f"a {span} b")[1].children, in_table(span)):
        inner = [child for child in children if child.content.strip() not in ("", "a", "b")]
        if not shown:
            assert span == "–"
        elif span.startswith("`"):
            assert [child.content for child in children if child.type == "code_inline"] == [shown]
        else:
            assert {child.type for child in inner} <= {"html_inline", "text", "text_special"}
            tags = [child.content for child in inner if child.type == "html_inline"]
            assert [tag for tag in tags if tag not in (escape.NOTHING, "<wbr>")] == ["<code>", "</code>"]
            contents = [child.content for child in children]
            first, last = contents.index("<code>"), contents.index("</code>")
            assert "".join(c.content for c in children[first:last] if c.type != "html_inline") == shown


@pytest.mark.parametrize("written", [escape.code, escape.name])
@quick
@given(text=texts | paths)
def test_code_has_exactly_the_text_and_no_link_for_githubs_own_parser(written, text):
    """The copied text is what was written, with nothing invisible put in between."""
    shown = shorten(escape.visible(text), 160, middle=True) or "–"
    for markdown in (f"a {written(text)} b", f"| a |\n|---|\n| a {written(text)} b |\n"):
        told = paragraph(markdown)
        assert not re.search(r"<a\b", told)
        assert unescape(re.sub(r"<[^>]*>", "", told)) == f"a {shown} b"


@quick
@given(texts)
def test_prose_makes_code_of_names_and_nothing_else(text):
    for around in (text, f"`{text}` is slower", f"see `{text}`"):
        tokens = PARSER.parse(escape.prose(around, 2000))
        assert [token.type for token in tokens] in (["paragraph_open", "inline", "paragraph_close"], [])
        for token in tokens:
            inside = False  # code, in which GitHub mentions nobody, be it written with tags or with backticks
            for child in token.children or ():
                assert child.type in ("text", "text_special", "code_inline", "html_inline")
                tag = child.type == "html_inline" and not (inside and child.content == escape.NOTHING)
                assert not tag or child.content == ("</code>" if inside else "<code>")
                inside ^= tag
                assert inside or child.type == "code_inline" or not re.search(r"@\w|#\d|://", child.content)
            assert not inside


@quick
@given(texts)
def test_nothing_invisible_survives(text):
    shown = escape.visible(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")]
    assert shown == shown.strip()
    shown.encode("utf-8")


@quick
@given(texts, st.integers(2, 40), st.booleans())
def test_length_is_bounded_by_the_argument(text, limit, middle):
    assert len(shorten(text, limit, middle)) <= limit
    assert len(unbroken(inline(escape.markdown(text, limit)))) <= limit
    assert len(escape.markdown(text, limit)) <= limit * 8


@quick
@given(texts)
def test_csv_fields_never_begin_a_formula(text):
    assert escape.csv_field(text)[:1] not in tuple("=+-@\t\r＝＋－＠")


@quick
@given(texts)
def test_xml_takes_every_text(text):
    element = ET.Element("a", b=escape.xml(text))
    element.text = escape.xml(text)
    read = ET.fromstring(ET.tostring(element))
    assert read.get("b") == escape.visible(text)
    assert (read.text or "") == escape.visible(text)


@quick
@given(texts)
def test_fence_holds_the_whole_command(text):
    tokens = PARSER.parse(escape.fence(text))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("48.5 µs", "48.5 µs"),
        ("+2.1 %", "+2.1 %"),
        ("-33.0 %", "-33.0 %"),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("softmax_bf16", r"softmax\_bf16"),
        ("@org", "@&#8203;org"),
        ("#12", r"\#&#8203;12"),
        ("a|b", "a&#124;b"),
        ("a\n\n# b", r"a \# b"),
    ],
)
def test_markdown_stays_readable(text, escaped):
    """People read the source too: ordinary numbers and names are left as they are."""
    assert escape.markdown(text) == escaped


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sdpa/seq=512", "`sdpa/seq=512`"),
        ("norms", "`norms`"),
        ("a_name_that_has_no_slash", "`a_name_that_has_no_slash`"),
        ("/usr//share/kernels.py:7", "<code>/<wbr>usr//<wbr>share/<wbr>kernels.py:7</code>"),
        ("a_kernel/dtype=bf16/n=512/", "<code>a\\_kernel/<wbr>dtype=bf16/<wbr>n=512/</code>"),
        ("x/http://evil.example/y", "<code>x/<wbr>http:<!-- -->//<wbr>evil.example/<wbr>y</code>"),
    ],
)
def test_a_long_name_can_go_on_behind_its_slashes(name, shown):
    assert escape.name(name) == shown


def test_names_are_cut_in_the_middle():
    assert escape.code("a" * 100 + "/n=1", 20) == "`" + "a" * 9 + "…" + "aaaaaa/n=1" + "`"
