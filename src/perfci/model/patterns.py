"""Regular expressions of policies, held against names that code under test may have made."""

import functools
from typing import Any

import re2


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
