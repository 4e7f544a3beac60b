"""Which calls of timers a script makes, and what tells them apart."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Callable, Optional, Union

from ..checks.plain import is_array
from .stale import stale

Scalar = Union[str, int, float, bool]
Words = dict[str, Scalar]
LONGEST = 80
"""Characters of text that can tell calls apart."""
MOST_PARTS = 8
"""Of a shape, or of what a function takes."""
ADDRESS = re.compile(r""" at 0x[0-9a-f]+|(?<=['"])/""")
"""Of objects, and paths: other in each process."""
FUNCTION, ORDINAL = "in", "nth"
"""Words of a call besides its variables': the function that calls, and which of equal calls it is."""


def line_of(frame: FrameType, file: str) -> int:
    """Return the line of a file at which a call stands, from a timer's caller outwards; 1 where it is in none."""
    return next((outer.f_lineno for outer in _frames(frame) if outer.f_code.co_filename == file), 1)


def words_of(frame: FrameType, folder: str) -> Words:
    """Return the scalars that stand in the frames of code below `folder`, from a timer's caller outwards: of one name
    the innermost; behind them all, shapes.

    Fields of dataclasses and named tuples count as their own names. Paths, text in several lines and what a loop has
    kept from its turn before are left out.
    """
    words: Words = {FUNCTION: frame.f_code.co_name}
    own = [outer for outer in _frames(frame) if outer.f_code.co_filename.startswith(folder)]
    for told in (scalar, shape):
        for outer in own:
            for name, value in _variables(outer, told):
                words.setdefault(name, value)
    return words


def _frames(frame: Any) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _variables(frame: FrameType, told: Callable[[Any], Optional[Scalar]]) -> Iterator[tuple[str, Scalar]]:
    kept = stale(frame)
    for name, value in list(frame.f_locals.items()):
        if name.startswith("_") or name in (FUNCTION, ORDINAL) or name in kept:
            continue
        fields = _fields(value)
        if fields is None and frame.f_code.co_name != "<module>":  # whose dicts are a library's settings as well
            fields = _items(value)
        for field, own in fields.items() if fields is not None else [(name, value)]:
            text = told(own)
            if text is not None:
                yield field, text


def _fields(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def _items(value: Any) -> Any:
    if type(value) is dict and 0 < len(value) <= MOST_PARTS and all(type(key) is str for key in value):
        return {key: part for key, part in value.items() if key.isidentifier() and free(key) == key}
    return None


def free(name: str, *taken: str) -> str:
    """Return a name that stands for nothing else."""
    return f"{name}_" if name in (FUNCTION, ORDINAL, *taken) else name


def scalar(value: Any) -> Any:
    """Return a value that can tell calls apart, or None."""
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.dtype:
        return str(value).rpartition(".")[2]
    if type(value) is float:
        return value if math.isfinite(value) else None
    if type(value) is str:
        plain = len(value) <= LONGEST and value.isprintable() and not os.path.isabs(value)
        return value if plain else None
    return value if type(value) in (int, bool) else None


def shape(value: Any) -> Optional[str]:
    """Return `64x128` of a tensor or of whole numbers, and `64x128,64` of what a function takes, or None."""
    text = _dims(value)
    if text is None and isinstance(value, (tuple, list)) and _has_array(value):
        text = ",".join(_part(part) for part in value)
    return text if text is not None and len(text) <= LONGEST else None


def _dims(value: Any) -> Optional[str]:
    if is_array(value):
        return "x".join(map(str, value.shape)) or "scalar"
    whole = isinstance(value, (tuple, list)) and 0 < len(value) <= MOST_PARTS
    return "x".join(map(str, value)) if whole and all(type(part) is int for part in value) else None


def _has_array(value: Any) -> bool:
    several = isinstance(value, (tuple, list)) and len(value) <= MOST_PARTS
    return is_array(value) or (several and any(_has_array(part) for part in value))


def _part(value: Any) -> str:
    own = _dims(value)
    if own is None and isinstance(value, (tuple, list)):
        return f"({','.join(_part(part) for part in value[:MOST_PARTS])})"
    return own if own is not None else str(scalar(value))


def label(value: Any) -> Optional[Scalar]:
    """Return a word for a test's parameter, the same in every process, or None."""
    told: Optional[Scalar] = scalar(value)
    told = told if told is not None else shape(value)
    if told is not None:
        return told
    if isinstance(value, enum.Enum):
        text = f"{type(value).__name__}.{value.name}"
    elif isinstance(value, (str, os.PathLike)):
        text = os.path.basename(os.fspath(value)) if os.path.isabs(value) else str(value)
    elif isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        text = value.__qualname__
    else:
        text = repr(value)
        if ADDRESS.search(text):
            return None
    if len(text) > LONGEST or not text.isprintable():
        text = f"{text[:20]}_{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"
    return text


def stable(first: Sequence[Words], second: Sequence[Words]) -> list[str]:
    """Return the names with the same values in two runs of a script whose timers returned other times.

    Raises ValueError where the runs made other calls.
    """
    if len(first) != len(second):
        raise ValueError(
            f"makes {len(first)} calls of its timer, and {len(second)} in a second run, where that returns other "
            "times: it picks by time, or keeps what it did"
        )
    names = dict.fromkeys(name for words in first for name in words)
    return [name for name in names if all(_key(a, [name]) == _key(b, [name]) for a, b in zip(first, second))]


def telling(calls: Sequence[Words], names: Sequence[str], base: Sequence[str] = ()) -> list[str]:
    """Return those of `names` that tell calls apart, each more than those before it.

    `base`: those that tell base's calls apart: they come first, so that a call has one name in both.
    """
    chosen = [name for name in base if name in names]
    parts = len({_key(words, chosen) for words in calls})
    for name in [one for one in names if one != FUNCTION] + [FUNCTION]:
        finer = len({_key(words, [*chosen, name]) for words in calls})
        if finer > parts:
            chosen.append(name)
            parts = finer
    return chosen


def same(one: Mapping[str, Scalar], other: Mapping[str, Scalar]) -> bool:
    """Tell whether two calls have one name: 1 is neither 1.0 nor True."""
    return one.keys() == other.keys() and _key(one, list(one)) == _key(other, list(one))


def _key(words: Mapping[str, Scalar], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(repr(words.get(name)) for name in names)


class Counter:
    """Names calls in their order: the telling words of each, and an ordinal from the second of equals on."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.counts: dict[tuple[Any, ...], int] = {}

    def name(self, words: Words) -> Words:
        """Return the parameters of the next call."""
        key = _key(words, self.names)
        self.counts[key] = count = self.counts.get(key, 0) + 1
        params = {name: words[name] for name in self.names if name in words}
        return {**params, ORDINAL: count} if count > 1 else params
