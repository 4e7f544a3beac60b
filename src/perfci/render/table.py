"""Tables of a terminal: columns that fit its width."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from perfci.model.text import shorten

CASE_WIDTH = 20
"""Left to case ids before another column is given up."""
_LEAST_CASE = 12
_GAP = 2
_PIECE = re.compile(r"[^/ ]*[/ ]|[^/ ]+")


@dataclass(frozen=True)
class Table:
    """A heading that begins with `>` stands over numbers. A cell may have two lines."""

    head: list[str]
    cells: list[list[str]]
    styles: list[str] = field(default_factory=list)
    """Of the first cell of each row."""
    below: list[Text | None] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The headings as they are shown."""
        return [name.removeprefix(">") for name in self.head]

    @property
    def widths(self) -> list[int]:
        """Where nothing is broken."""
        columns = zip(self.names, *self.cells, strict=True)
        return [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]

    def fits(self, width: int) -> bool:
        """Tell whether it fits with case ids broken to `CASE_WIDTH`."""
        widths = [
            min(own, CASE_WIDTH) if name == "case" else own for name, own in zip(self.names, self.widths, strict=True)
        ]
        return _whole(widths) <= width

    def last(self, width: int) -> int:
        """Return the width left to the last column."""
        return width - _whole(self.widths[:-1]) - _GAP

    def fitted(self, width: int) -> "Table":
        """Return it with its last column cut."""
        room = self.last(width)
        return replace(self, cells=[[*line[:-1], _cut(line[-1], room)] for line in self.cells])

    def lines(self, console: Console) -> Iterable[Text]:
        """Return the lines: within a terminal's width; for a log everything."""
        return self.drawn(console) if console.is_terminal else self.plain()

    def plain(self) -> list[Text]:
        """Return a line for each row, padded to columns of any width."""
        lines = [self.names, *self.cells]
        return [Text(_padded(line, self.widths, [False] * len(line))) for line in lines]

    def drawn(self, console: Console) -> Iterator[Text]:
        """Yield lines within the terminal.

        An id is broken behind `/`; one with too wide a part stands above its row's values.
        """
        width, widths = console.width, self.widths
        case = self.names.index("case") if "case" in self.names else 0
        least = cell_len(self.names[case])
        room = width - _whole(widths) + widths[case]
        if widths[case] > room:
            widths[case] = room if room >= _LEAST_CASE else least
        inside = [_broken(cells[case], widths[case]) for cells in self.cells]
        used = [cell_len(part) for parts in inside for part in parts or ()]
        widths[case] = max([least, *used])
        right = [name.startswith(">") for name in self.head]
        indent = sum(widths[:case]) + _GAP * case
        yield Text(_padded(self.names, widths, right), "bold")
        yield Text("─" * min(_whole(widths), width), "dim")
        for number, (cells, parts) in enumerate(zip(self.cells, inside, strict=True)):
            style = self.styles[number] if self.styles else ""
            before, after = cells[:case], cells[case + 1 :]
            if parts is None:
                whole = "\n".join(_broken(cells[case], width - indent) or [cells[case]])
                yield from _styled(_lines([*before, whole]), [*widths[:case], 0], right, style)
                if any(cell not in ("", "–") for cell in after):
                    yield from _styled(_lines([*[""] * (case + 1), *after]), widths, right, "")
            else:
                yield from _styled(_lines([*before, "\n".join(parts), *after]), widths, right, style)
            if self.below and (text := self.below[number]) is not None:
                inset = widths[0] + 2 * _GAP
                for line in text.wrap(console, width - inset):
                    line.rstrip()
                    line.pad_left(inset)
                    yield line


def put(console: Console, text: str | Text, style: str = "") -> None:
    """Print a line, however long where there is no terminal; `style`: of words on one."""
    rich = console.is_terminal
    line = Text(text, style if rich else "") if isinstance(text, str) else text
    console.print(line, soft_wrap=not rich, highlight=False)


def _cut(text: str, room: int) -> str:
    while cell_len(text) > room > 0:  # some characters take two columns
        text = shorten(text, len(text) - max(1, (cell_len(text) - room) // 2))
    return text


def _whole(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _broken(text: str, width: int) -> list[str] | None:
    lines = [""]
    for piece in _PIECE.findall(text):
        if cell_len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    lines = [line.rstrip() for line in lines if line.strip()]
    return lines if all(cell_len(line) <= width for line in lines) else None


def _lines(cells: Sequence[str]) -> list[list[str]]:
    parts = [cell.split("\n") for cell in cells]
    return [[part[at] if at < len(part) else "" for part in parts] for at in range(max(map(len, parts)))]


def _styled(lines: Iterable[Sequence[str]], widths: Sequence[int], right: Sequence[bool], style: str) -> Iterator[Text]:
    for at, line in enumerate(lines):
        text = Text(_padded(line, widths, right))
        if style and not at:
            text.stylize(style, 0, widths[0])
        yield text


def _padded(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, numbers in zip(line, widths, right, strict=False):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if numbers else cell + space)
    return (" " * _GAP).join(padded).rstrip()
