"""Text from code and tools made harmless for where it lands.

`limit`: *visible* characters, cut before escaping, so that no escape is torn.
"""

import re
import unicodedata

from perfci.model.text import shorten

_ACTIVE = str.maketrans(
    {character: f"\\{character}" for character in "*_[]~#"}
    # Entities where a backslash escape means different things to tables, code and mathematics.
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "\\": "&#92;", "`": "&#96;", "$": "&#36;"}
)
_BREAK = "&#8203;"
"""A zero-width space: keeps GitHub from making links and mentions."""
_LINKS = re.compile(r"@(?=\S)|\\#(?=\d)|GH-(?=\d)|:(?=//)|www(?=\.)|(?:mailto|xmpp):", re.IGNORECASE)
_LINKS_IN_TAGS = re.compile(r"(?<=[\w.+-]@)(?=[\w.-])|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
"""Where GitHub makes links within the tags of code, where it mentions nobody."""
NOTHING = "<!-- -->"
"""No link reaches across a comment of HTML, neither shown nor copied."""
_COMMITS = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{7,40}(?![0-9A-Za-z])", re.IGNORECASE)
_LEADING = re.compile(r"(?:[-+](?=\s|$)|[-=](?=[-=\s]|$)|:(?=-)|\d{1,9}(?=[.)](?:\s|$)))")
_URL = re.compile(r"(https?://[A-Za-z0-9.-]+(?::\d+)?)/[A-Za-z0-9._~:/?#&=%+,-]*")
_SHORT = 16
"""Room for a name beside a column of numbers on a telephone."""
_FORMULA = "=+-@\t\r＝＋－＠"
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


class Safe(str):
    """Text already escaped."""

    __slots__ = ()


def visible(text: str) -> str:
    """Return `text` on one line with nothing hidden in it.

    White space becomes single spaces; control characters, bidirectional overrides, zero-width characters, lone
    surrogates and noncharacters are written as `\\u202e`.
    """
    return _shown(" ".join(text.split()))


def _shown(text: str) -> str:
    return text if text.isprintable() else "".join(map(_seen, text))


def _seen(character: str) -> str:
    point = ord(character)
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") or point & 0xFFFE == 0xFFFE
    if not (hidden or 0xFDD0 <= point <= 0xFDEF):
        return character
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def markdown(text: str, limit: int = 300) -> Safe:
    """Escape plain text for a sentence, list item or table cell of GitHub's Markdown.

    Nothing in it is active: emphasis, link, mention, reference (`#1`, `GH-1`, a commit), HTML, mathematics, list or
    heading.
    """
    return _inactive(shorten(visible(text), limit))


def _inactive(text: str, begins: bool = True) -> Safe:
    escaped = _LINKS.sub(lambda match: match[0] + _BREAK, text.translate(_ACTIVE))
    escaped = _COMMITS.sub(lambda match: _BREAK.join(re.findall(".{1,6}", match[0])), escaped)
    leading = _LEADING.match(escaped) if begins else None
    if leading:
        # `-`, `+` and `=` themselves, or the `.` and `)` behind a number
        at = leading.end() if leading[0][0].isdigit() else 0
        escaped = f"{escaped[:at]}\\{escaped[at:]}"
    return Safe(escaped)


def code(text: str, limit: int = 160) -> Safe:
    """Return `text` as code, in table cells too; long names are cut in the middle.

    People copy it: nothing unseen is put into it.
    """
    shown = shorten(visible(text), limit, middle=True)
    if not shown:
        return Safe("–")
    if "|" in shown:
        # In a code span a pipe ends a table cell unless it is escaped; outside a table that escape would be
        # seen.
        parts = (part.translate(_ACTIVE) for part in _LINKS_IN_TAGS.split(shown))
        return Safe(f"<code>{NOTHING.join(parts)}</code>")
    if "`" in shown:
        mark = "`" * (1 + max(map(len, re.findall("`+", shown))))
        edge = " " if "`" in (shown[0], shown[-1]) else ""
        return Safe(f"{mark}{edge}{shown}{edge}{mark}")
    return Safe(f"`{shown}`")


def name(text: str) -> Safe:
    """Return an id or path as code that breaks behind slashes.

    No more is copied with it than with code.
    """
    shown = shorten(visible(text), 160, middle=True)
    *parts, last = re.findall("[^/]*/+|[^/]+$", shown) or [""]
    if len(shown) <= _SHORT or not parts:
        return code(text)
    inside = (NOTHING.join(piece.translate(_ACTIVE) for piece in _LINKS_IN_TAGS.split(part)) for part in (*parts, last))
    return Safe(f"<code>{'<wbr>'.join(inside)}</code>")


def cell(text: str, limit: int = 300) -> Safe:
    """Return a table cell; `–` for no text."""
    return markdown(text, limit) or Safe("–")


def prose(text: str, limit: int = 300) -> Safe:
    """Return a sentence whose backticks become code."""
    parts = spans(shorten(visible(text), limit))
    return Safe("".join(code(part) if index % 2 else _inactive(part, index == 0) for index, part in enumerate(parts)))


def spans(text: str) -> list[str]:
    """Split into plain text and names between backticks in turns, plain text first."""
    return _SPAN.split(text)


def csv_field(text: str, limit: int = 2000) -> str:
    """Return a text field that no spreadsheet takes for a formula (OWASP, "CSV Injection")."""
    shown = shorten(visible(text), limit)
    return f"'{shown}" if shown[:1] and shown[0] in _FORMULA else shown


def xml(text: str, limit: int = 2000) -> str:
    """Drop characters that XML 1.0 forbids."""
    return shorten(visible(text), limit)


def link(text: str, url: str, near: str) -> Safe:
    """Return `[text](url)` where `url` lies on the site of the address `near`; else the text."""
    there, here = _URL.fullmatch(url), _URL.fullmatch(near)
    shown = markdown(text, 100)
    return Safe(f"[{shown}]({url})") if there and here and there[1] == here[1] and shown else shown


def fence(*lines: str) -> Safe:
    """Return a code block of command lines that nothing inside can close; spaces stay."""
    shown = "\n".join(map(_shown, lines))
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    mark = "`" * max(3, longest + 1)
    return Safe(f"{mark}sh\n{shown}\n{mark}")
