"""A benchmark script as a policy names it, and the runs that it asks for."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .calls import Scalar, Words, free, same


class Unlisted(ValueError):
    """Why a script's calls are not cases, as one line."""


class Unsupported(Unlisted):
    """Why a script has no case here, in its own words."""


@dataclass(frozen=True)
class Line:
    """The arguments of one run."""

    args: Sequence[str]
    words: Words
    """What they say, where a script is run with several lines."""
    number: int = 0
    """In the file that holds it."""


def kernel_names(files: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the names of scripts' kernels: those of the files, with folders where several are called alike. `known`:
    base's, which head keeps."""
    alike: dict[str, dict[str, tuple[str, ...]]] = {}
    for file in files:
        alike.setdefault(Path(file).stem, {})[file] = Path(file).with_suffix("").parts
    names: dict[str, str] = {}
    for some in alike.values():
        lengths = range(1, 1 + max(map(len, some.values())))
        told = next((n for n in lengths if len({one[-n:] for one in some.values()}) == len(some)), lengths[-1])
        for file, parts in some.items():
            name = re.sub(r"\W", "_", "_".join(parts[-told:]))
            names[file] = known.get(file, name if not name[:1].isdigit() else f"_{name}")
    return names


@dataclass(frozen=True)
class Script:
    """How a policy names one."""

    file: str
    """Relative to the tree."""
    kernel: str
    """The name of its kernel."""
    args: Sequence[str]
    device: str
    select: Mapping[str, Sequence[Scalar]]
    """Name → values of the calls that are cases; empty: all."""
    reference: Mapping[str, Scalar]
    """Name → value: the call that differs in these alone says what is right."""
    rtol: float
    atol: float
    timers: Mapping[str, str]
    base: Mapping[str, Any] = field(default_factory=dict)
    """File → `names` and `stable` of base's entry."""
    each: str = ""
    """The file of the tree whose lines are arguments of a run each."""
    tests: bool = False
    """pytest runs it."""
    chosen: bool = False
    """The policy names no device: this is what there is."""

    def lines(self, tree: str) -> list[Line]:
        """Return the arguments of each run. Raises Unlisted."""
        if not self.each:
            return [Line(self.args, {})]
        try:
            with open(os.path.join(tree, self.each), encoding="utf-8-sig") as file:
                texts = file.read().splitlines()
        except (OSError, ValueError) as error:
            raise Unlisted(f"each: {self.each}: {' '.join(str(error).split())}") from None
        lines: list[Line] = []
        for number, text in enumerate(texts, 1):
            try:
                own = _arguments(text)
            except ValueError as error:
                raise Unlisted(f"each: {self.each}:{number}: {error}") from None
            args, words = [*self.args, *own], said(own)
            twin = next((line for line in lines if same(line.words, words)), None)
            if twin is not None and sorted(twin.args) != sorted(args):
                raise Unlisted(f"each: {self.each}:{number}: says what line {twin.number} says: remove one of them")
            if own and twin is None:
                lines.append(Line(args, words, number))
        if not lines:
            raise Unlisted(f"each: {self.each}: holds no line of arguments")
        return lines


def _arguments(text: str) -> list[str]:
    for mark in re.finditer(r"(?:^|\s)#", text):
        with contextlib.suppress(ValueError):  # within quotes
            return shlex.split(text[: mark.start()])
    return shlex.split(text)


OPTION = re.compile(r"--?[A-Za-z][\w.-]*")


REST = "args"


def said(args: Sequence[str]) -> Words:
    """Return what arguments say: option → its value, several joined by spaces, True without one; others under REST."""
    values: dict[str, list[str]] = {}
    name = REST
    for arg in args:
        option, equals, value = arg.partition("=")
        if OPTION.fullmatch(option):
            name = free(option.lstrip("-").replace("-", "_"))
            values.setdefault(name, []).extend([value] if equals else [])
        else:
            values.setdefault(name, []).append(arg)
    return {name: _value(" ".join(own)) if own else True for name, own in values.items()}


def _value(text: str) -> Scalar:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if str(number) == text and math.isfinite(number):
            return number
    return text
