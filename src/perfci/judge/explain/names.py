"""Short names: templates of C++ fill lines, and their arguments tell kernels apart."""

import re
from collections import Counter
from collections.abc import Callable, Iterable

from perfci.model.kernels import LAUNCHERS, computed, identify, parts, spaced
from perfci.model.text import shorten

SHORT, LONGER, BRIEF = 64, 120, 52
"""Characters of a name, of one not unique so, and in a sentence."""

_SPELT_OUT = 40
"""Characters from which a name without a template has its settings spelt out."""
_CAST = re.compile(r"\((?:unsigned )?(?:bool|char|short|int|long|long long)\)(?=-?\d)")
_WORD = re.compile(r"[^\W\d]")
_SCOPE = re.compile(r"\b\w+::(?=\w)")


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Name → short name.

    Different names get different short ones, in one line, not empty or longer than the name, but for a number.
    """
    given = left = list(dict.fromkeys(names))
    found: dict[str, str] = {}
    for form in (_labelled, _telling, _with_arguments):
        made = {name: _fitting(name, form) for name in left}
        used = Counter([*found.values(), *made.values()])
        found |= {name: short for name, short in made.items() if used[short] == 1}
        left = [name for name in left if name not in found]
    taken = set(found.values())
    last: Counter[str] = Counter()
    for name in left:
        short = _fitting(name, _telling)
        last[short] += 1
        while (numbered := f"{short} #{last[short]}") in taken:
            last[short] += 1
        found[name] = numbered
        taken.add(numbered)
    return {name: found[name] for name in given}


def brief_names(names: Iterable[str]) -> list[str]:
    """Shorten names for a sentence, each once."""
    given = list(dict.fromkeys(names))
    short = {name: _fitting(name, _telling) for name in given}
    bare = {name: _fitting(name, lambda one: shorten(parts(one)[1], BRIEF)) for name in given}
    return list(dict.fromkeys(short[name] if len(short[name]) <= BRIEF else bare[name] for name in given))


def _fitting(name: str, form: Callable[[str], str]) -> str:
    whole = spaced(name)
    spelt = form(name)
    return (min(spelt, whole, key=len) if _WORD.search(spelt) else whole or "?").replace("`", "'")


def _labelled(name: str) -> str:
    _, function, arguments = parts(name)
    spelt_out = len(function) > _SPELT_OUT and not arguments.startswith("<") and function not in LAUNCHERS
    label = identify(name).label
    return label if spelt_out and " " in label and len(label) < len(function) else _telling(name)


def _telling(name: str) -> str:
    _, function, arguments = parts(name)
    if function in LAUNCHERS and (spelt := computed(arguments)[0]):
        return shorten(f"{function}<{', '.join([spelt, *identify(name).types])}>", SHORT)
    return shorten(function + _template(arguments), SHORT)


def _with_arguments(name: str) -> str:
    _, function, arguments = parts(name)
    return shorten(function + _template(arguments), LONGER)


def _template(arguments: str) -> str:
    depth = 0
    for at, character in enumerate(arguments):
        if character in "<([{":
            depth += 1
        elif character in ">)]}" and arguments[at - 1] != "-":
            depth -= 1
        if not depth:
            first = arguments[: at + 1]
            return _SCOPE.sub("", _CAST.sub("", first)) if first.startswith("<") else ""
    return _SCOPE.sub("", _CAST.sub("", arguments))
