"""Text that people or shells read, and the patterns of policies that are held against it."""

import functools
import shlex
from collections.abc import Sequence
from typing import Any

import re2


def shell(words: Sequence[str], *, spanned: bool = False) -> str:
    """The words as one line for a shell.

    A word that holds what does not print (a newline, a zero-width space, bytes that are no UTF-8) is written as bash,
    zsh and ksh read it, `$'a\\012b'`; all others as every shell does. `spanned`: backticks and spaces beyond one are
    written so too, for a line that stands between backticks in a sentence.
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
    """Whether a command line has a pipe, of which a shell tells the exit code of the last program alone."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quotation that does not end, which the shell will refuse
        return False
    return "pipefail" not in line and ("|" in words or "|&" in words)


@functools.lru_cache(maxsize=256)  # each is held against every name
def compiled(text: str) -> Any:
    """`text` for a search in time linear in the name (RE2). Raises ValueError for what is no such expression."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise ValueError(f"{text!r} is no regular expression of RE2: {said}") from None


def finds(pattern: str, text: str) -> bool:
    """Whether `pattern` matches somewhere in `text`. Raises ValueError as compiled() does."""
    return compiled(pattern).search(text) is not None
