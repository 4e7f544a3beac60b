"""Text that people or shells read, and policies' patterns."""

import functools
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any


def one_line(text: object, limit: int = 160) -> str:
    """Return `text` with single spaces, without lone surrogates, cut to `limit`."""
    return shorten(" ".join(str(text).encode("utf-8", "replace").decode("utf-8").split()), limit)


def escaped(text: object, limit: int | None = None) -> str:
    """Return `text` with what does not print as escapes."""
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return plain if limit is None else shorten(plain, limit)


def printable(text: str) -> str:
    """Replace each character that does not print by a space."""
    return "".join(c if c.isprintable() else " " for c in text)


def shorten(text: str, limit: int, middle: bool = False) -> str:
    """Cut `text` to `limit` characters with `…`, at the end or in the middle."""
    if len(text) <= limit:
        return text
    if not middle:
        return text[: limit - 1] + "…"
    head = (limit - 1) // 2
    return text[:head] + "…" + text[len(text) - (limit - 1 - head) :]


def listed(names: Iterable[str], most: int = 3, mark: str = "") -> str:
    """Return `a, b, c and 2 more`, each name between two of `mark`."""
    marked = [f"{mark}{name}{mark}" for name in names]
    more = f" and {len(marked) - most} more" if len(marked) > most else ""
    return ", ".join(marked[:most]) + more


def plural(number: float, noun: str) -> str:
    """Return a regular `noun` behind `number`: `case`, `cases`, `launches`."""
    return noun if number == 1 else f"{noun}{'es' if noun.endswith('ch') else 's'}"


def count(number: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number} {plural(number, noun)}"


def short(commit: str) -> str:
    """Return a commit's hash as people are told it."""
    return commit[:10]


def version_numbers(version: str) -> tuple[int, ...]:
    """`2025.1.1.65`, or a folder's name that holds one, → (2025, 1, 1, 65)."""
    return tuple(map(int, re.findall(r"\d+", version)))


def did_you_mean(name: str, known: Iterable[str], other: str = "", least: float = 0.6) -> str:
    """Return `did you mean 'time'?`; `other` where no known name is near."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1, least)
    return f"did you mean {close[0]!r}?" if close else other


def chosen(cases: Iterable[str]) -> list[str]:
    """Return the words of a command line that name cases."""
    return [word for case in cases for word in ("-k", case)]


def shell(words: Sequence[str], *, spanned: bool = False) -> str:
    """Return the words as one line for a shell.

    What does not print (a newline, bytes that are no UTF-8) is written as bash, zsh and ksh read it, `$'a\\012b'`.
    `spanned`: backticks and runs of spaces, too, for a line between backticks.
    """
    return " ".join(_quoted(word, spanned) for word in words)


def _quoted(word: str, spanned: bool) -> str:
    kept = not spanned or ("`" not in word and word == " ".join(word.split()))
    if word.isprintable() and kept:
        return shlex.quote(word)
    return f"$'{''.join(_written(character, '` ' if spanned else '') for character in word)}'"


def _written(character: str, hidden: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable() and character not in hidden:
        return character
    try:
        data = character.encode("utf-8", "surrogateescape")  # a byte of the command line that is no UTF-8 is itself
    except UnicodeEncodeError:
        data = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in data)


def hides_failures(line: str) -> bool:
    """Tell whether a command line has a pipe: the shell tells the last exit code alone."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quotation that does not end, which the shell will refuse
        return False
    return "pipefail" not in line and ("|" in words or "|&" in words)


@functools.lru_cache(maxsize=256)  # each is held against every name
def compiled(text: str) -> Any:
    """Compile for a search in linear time (RE2). Raises ValueError."""
    import re2  # not for all: beside its library the one of ncu_report crashes (2025.3, Python 3.12)

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise ValueError(f"{text!r} is no regular expression of RE2: {said}") from None


def finds(pattern: str, text: str) -> bool:
    """Search for `pattern`. Raises ValueError as compiled() does."""
    return compiled(pattern).search(text) is not None
