"""The members of Kineto's Chrome JSON as a stream: a trace may be larger than memory."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, cast

from perfci.model.profile import FaultKind

CHUNK = 2**20
LONGEST_VALUE = 4 * 2**20
"""Characters: Kineto's have some hundred."""
MOST_RATIO, LEAST_UNPACKED = 100, 64 * 2**20
"""Characters of a packed trace for each byte, and those always allowed: Kineto's shrink to a tenth."""
_SPACE = re.compile(r"[ \t\n\r]*")
FOREIGN = "no trace of torch.profiler: it has no traceEvents"
REMEDY = "profile the case again; where it stays so, install nsys"


class Bad(Exception):
    """Why a trace cannot be used; `remedy` is empty for recording again."""

    def __init__(self, kind: FaultKind, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.remedy = kind, text, remedy


class _Json:
    def __init__(self, text: TextIOWrapper, most: int) -> None:
        self._text, self._most, self._read = text, most, 0
        self._buffer, self._at, self._ended = "", 0, False
        self._decode = json.JSONDecoder(parse_float=Decimal, parse_constant=float).raw_decode

    def _fill(self) -> bool:
        if self._ended:
            return False
        more = self._text.read(CHUNK)
        self._read += len(more)
        if self._read > self._most:
            raise Bad("unreadable", f"unpacks to more than {self._most >> 20} MiB")
        self._ended = not more
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
        return bool(more)

    def peek(self) -> str:
        while True:
            space = _SPACE.match(self._buffer, self._at)
            self._at = self._at if space is None else space.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._fill():
                return ""

    def take(self, wanted: str) -> str:
        found = self.peek()
        if not found:
            raise Bad("unreadable", "the file ends in the middle")
        if found not in wanted:
            raise Bad("unreadable", "no JSON as torch.profiler writes it")
        self._at += 1
        return found

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
                if end < len(self._buffer) or not self._fill():  # else a number may go on in the next chunk
                    self._at = end
                    return value
            except json.JSONDecodeError:
                if len(self._buffer) - self._at > LONGEST_VALUE:
                    raise Bad("unreadable", "no JSON as torch.profiler writes it") from None
                if not self._fill():
                    raise Bad("unreadable", "the file ends in the middle, or is no JSON") from None
            except (ValueError, ArithmeticError, RecursionError):  # a number or a nesting beyond all reason
                raise Bad("unreadable", "no JSON as torch.profiler writes it") from None

    def members(self) -> Iterator[tuple[str, Any]]:
        self.take("{")
        if self.peek() == "}":
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise Bad("unreadable", "no JSON as torch.profiler writes it")
            self.take(":")
            if key == "traceEvents":
                yield key, None  # there is such an array, be it empty
                self.take("[")
                if self.peek() == "]":
                    self.take("]")
                else:
                    yield key, self.value()
                    while self.take(",]") == ",":
                        yield key, self.value()
            else:
                yield key, self.value()
            if self.take(",}") == "}":
                return


def _open(path: Path) -> TextIOWrapper:
    raw = path.open("rb")
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    binary = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
    return TextIOWrapper(binary, encoding="utf-8", errors="replace")


def members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of the object in a plain or gzip file; each trace event by itself. Raises Bad."""
    try:
        with _open(path) as text:
            yield from _Json(text, max(LEAST_UNPACKED, MOST_RATIO * path.stat().st_size)).members()
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or "it is truncated or damaged"
        raise Bad("unreadable", f"cannot be read: {why}") from None
