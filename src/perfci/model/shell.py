"""Command lines as people copy them: nothing in them that cannot be seen, and a shell reads the very words."""

import shlex
from collections.abc import Sequence


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
