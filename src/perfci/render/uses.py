"""What a case used beside its kernels."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from perfci.model.base import Side
from perfci.model.report import CaseProfile, Use, UseRow
from perfci.model.units import show, show_share
from perfci.render.words import times


class Column(NamedTuple):
    """A value of each side."""

    name: str
    beside: str
    """The heading where there are two sides, `{}` being the side's name."""
    cell: Callable[[UseRow, Side], str]


def _rate(row: UseRow, side: Side) -> str:
    seconds = row.seconds.get(side)
    return show(row.bytes[side] / seconds if seconds else None, "B/s")


CALLS = Column("calls", "{}", lambda row, side: times(row.count.get(side)))
TIME = Column("time", "{} time", lambda row, side: show(row.seconds.get(side), "s"))
SHARE = Column("share", "share", lambda row, side: show_share(row.share.get(side)))
LAUNCHING = Column("launching", "launching", lambda row, side: show(row.launching.get(side), "s"))
BYTES = Column("bytes", "{}", lambda row, side: show(row.bytes.get(side), "B"))
RATE = Column("rate", "{} rate", _rate)


class UseTable(NamedTuple):
    """The uses of one kind of one case."""

    kind: Use
    title: str
    columns: list[Column]
    rows: list[UseRow]
    below: str
    """The line under the table; empty for none."""


_TABLES: dict[Use, tuple[str, list[Column]]] = {
    "call": ("CUDA API", [CALLS, TIME._replace(name="time of the host"), SHARE]),
    "copy": ("copies", [BYTES, RATE]),
    "os_call": ("OS runtime, all threads", [CALLS, TIME, SHARE]),
    "memory": ("device memory", [BYTES]),
}


def tables(profile: CaseProfile) -> Iterator[UseTable]:
    """Yield the tables of a case."""
    for kind, (title, columns) in _TABLES.items():
        if not (rows := [row for row in profile.uses if row.kind == kind]):
            continue
        launching = any(row.launching for row in rows)
        below = os_runtime(launching=launching) if kind == "os_call" else ""
        yield UseTable(kind, title, columns + [LAUNCHING] * launching, rows, below)


def os_runtime(*, launching: bool) -> str:
    """Return the line below the calls of the OS runtime."""
    text = "Times are sums over all threads, those that wait idly too, and shares are of all of it"
    return text + ("; launching is the part on threads that launch work of the GPU." if launching else ".")
