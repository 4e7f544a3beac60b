"""The ELF file of a cubin, machine code that a driver loads: its sections, symbols and relocations, within bounds.

Fields are those of the System V ABI's 64-bit ELF, little-endian ("Sections", "Symbol Table", "Relocation"). A file
comes from the code under test: what is not as compilers write it is refused. Segments, which repeat what sections say,
are not read.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from perfci.worker.work.elf import HEADER, SECTION, SYMBOL, SYMTAB

LARGEST, LARGEST_TABLE, LARGEST_TEXTS = 2**28, 2**22, 2**24
"""Bytes at most of an image, of what in it is read entry by entry, and of names: some seconds."""
LONGEST_NAME = 2**16
"""Bytes; templates of CUTLASS have names of 10 000."""

CUDA = 190
"""`EM_CUDA`."""
EXECUTABLE = 2
"""`ET_EXEC`: linked; what the driver loads."""
STRTAB, NOBITS = 3, 8
SYMBOLS = (SYMTAB, 0x7000_0085)
"""Kinds of tables of symbols; the second is NVIDIA's own, in images for compute capability 10.0 and later."""
RELOCATIONS = {4: 24, 9: 16, 0x7000_0082: 24}
"""Kinds of tables of relocations, likewise, with the bytes of an entry."""
ALLOCATED, EXECUTED, COMPRESSED = 2, 4, 1 << 11
ABSOLUTE, COMMON = 0xFFF1, 0xFFF2
"""Indices of sections that name none."""

_OF_PATH = re.compile(r"(_INTERNAL_|_GLOBAL__N__|__nv_static_[0-9]+__)[0-9a-f]{8}(?=_[0-9]+_)")
"""The digest of a file's path that nvcc puts into names that are internal to it."""


class Unreadable(Exception):
    """An image that cannot be read, and why."""

    def __str__(self) -> str:
        return f"the image cannot be read: {self.args[0]}"


def without_path(name: str) -> str:
    """Return a symbol's name with zeros for what hangs on the folder that its file was compiled in: base and head are
    compiled in two."""
    return _OF_PATH.sub(r"\g<1>00000000", name)


class Section(NamedTuple):
    """The header of a section."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    """Bytes."""
    link: int
    info: int
    alignment: int
    entry_size: int


class Symbol(NamedTuple):
    """An entry of a table of symbols."""

    name: str
    info: int
    """Binding in the upper four bits, type in the lower."""
    other: int
    section: int
    """Index of the section that it lies in; 0 where the image does not define it."""
    value: int
    size: int


class Image:
    """The sections and symbols of a cubin. Raises Unreadable, as its methods do."""

    def __init__(self, data: bytes) -> None:
        if len(data) > LARGEST:
            raise Unreadable(f"it is over {LARGEST >> 20} MiB")
        if data[:4] != b"\x7fELF":
            raise Unreadable("it is no ELF file")
        if len(data) < HEADER.size:
            raise Unreadable("it is truncated")
        identity, kind, machine, toolkit, entry, segments, table, flags, *sizes = HEADER.unpack_from(data)
        header_size, segment_size, segment_count, section_size, count, names = sizes
        if identity[4:7] != b"\x02\x01\x01":
            raise Unreadable("it is no 64-bit ELF file, little-endian")
        if machine != CUDA:
            raise Unreadable("it holds no machine code for NVIDIA's GPUs")
        if kind != EXECUTABLE:
            raise Unreadable("it is not linked")
        if header_size != HEADER.size or section_size != SECTION.size or not count or names >= count:
            raise Unreadable("its header is damaged")
        if segments + segment_size * segment_count > len(data):
            raise Unreadable("its segments reach beyond its end")
        self.data = data
        self.header = (identity[7:], toolkit, entry)
        """ABI with its version, `e_version` (of ABI 7 the toolkit) and `e_entry`."""
        self.flags = flags
        """`e_flags`: the architecture, and of what kind the code is."""
        raw = list(self._records(SECTION, "the table of its sections", table, count * SECTION.size))
        for number, (_, kind, bits, _, offset, size, *_) in enumerate(raw):
            if kind != NOBITS and offset + size > len(data):
                raise Unreadable(f"section {number} reaches beyond its end")
            if bits & COMPRESSED:
                raise Unreadable(f"section {number} is compressed")
        _refuse_overlaps(
            [(0, HEADER.size), (table, count * SECTION.size), (segments, segment_count * segment_size)],
            [(offset, size) for _, kind, _, _, offset, size, *_ in raw if kind != NOBITS],
        )
        texts = _Texts(data, raw[names][4], raw[names][5])
        self.sections = tuple(Section(texts.at(name), *rest) for name, *rest in raw)
        self.named = _unique((section.name, number) for number, section in enumerate(self.sections))
        """Index of each section by its name."""

    def _records(self, record: struct.Struct, what: str, offset: int, size: int) -> Iterator[tuple[int, ...]]:
        if offset + size > len(self.data):
            raise Unreadable(f"{what} reaches beyond its end")
        if size > LARGEST_TABLE:
            raise Unreadable(f"{what} is over {LARGEST_TABLE >> 20} MiB")
        if size % record.size:
            raise Unreadable(f"{what} ends within an entry")
        return record.iter_unpack(memoryview(self.data)[offset : offset + size])

    def content(self, section: Section) -> bytes:
        """Return the bytes of a section; none where the file holds none of it (`NOBITS`)."""
        return b"" if section.kind == NOBITS else self.data[section.offset : section.offset + section.size]

    def table(self, section: Section) -> bytes:
        """Return the bytes of a section that is read entry by entry."""
        if section.size > LARGEST_TABLE:
            raise Unreadable(f"{section.name[:100]} is over {LARGEST_TABLE >> 20} MiB")
        return self.content(section)

    @cached_property
    def symbols(self) -> dict[int, tuple[Symbol, ...]]:
        """The symbols of each table, by the index of its section."""
        tables = [n for n, section in enumerate(self.sections) if section.kind in SYMBOLS]
        if len(tables) > 2:
            raise Unreadable("it has too many tables of symbols")
        return {number: self._symbols(self.sections[number]) for number in tables}

    def _symbols(self, table: Section) -> tuple[Symbol, ...]:
        if table.entry_size != SYMBOL.size:
            raise Unreadable(f"{table.name} is damaged")
        if table.link >= len(self.sections) or self.sections[table.link].kind != STRTAB:
            raise Unreadable(f"{table.name} has no names")
        strings = self.sections[table.link]
        texts = _Texts(self.data, strings.offset, strings.size)
        records = self._records(SYMBOL, table.name, table.offset, table.size)
        found = tuple(Symbol(texts.at(name), *rest) for name, *rest in records)
        for symbol in found:
            if symbol.section >= len(self.sections) and symbol.section not in (ABSOLUTE, COMMON):
                raise Unreadable(f"symbol {symbol.name[:100]} lies in no section")
        _unique((symbol.name, number) for number, symbol in enumerate(found))
        return found

    def symbol(self, section: Section, number: int) -> Symbol:
        """Return symbol `number` of the table that a section names. Images of cuBLAS name none, or a section that is no
        such table, where there is only one."""
        tables = self.symbols
        table = next(iter(tables)) if len(tables) == 1 and section.link not in tables else section.link
        if table not in tables or number >= len(tables[table]):
            raise Unreadable("it names a symbol that it does not have")
        return tables[table][number]

    def relocated(self, section: Section) -> Iterator[Symbol]:
        """Give the symbols whose addresses a table of relocations puts into another section."""
        size = RELOCATIONS[section.kind]
        if section.entry_size != size or section.size % size:
            raise Unreadable(f"{section.name[:100]} is damaged")
        content = self.table(section)
        for at in range(0, len(content), size):
            yield self.symbol(section, int.from_bytes(content[at + 12 : at + 16], "little"))

    def place(self, symbol: Symbol) -> str:
        """Return the name of the section that a symbol lies in; empty where the image does not define it."""
        return self.sections[symbol.section].name if symbol.section < len(self.sections) else ""


class _Texts:
    """Texts that a zero ends each; in all, what is read of them is bounded by their size."""

    def __init__(self, data: bytes, offset: int, size: int) -> None:
        if offset + size > len(data):
            raise Unreadable("its names reach beyond its end")
        if size > LARGEST_TEXTS:
            raise Unreadable(f"its names are over {LARGEST_TEXTS >> 20} MiB")
        self.data, self.start, self.end = data, offset, offset + size
        self.left = 2 * size + LONGEST_NAME
        """Bytes: linkers let names share their ends, a forger lets thousands share one."""
        self.known: dict[int, str] = {}

    def at(self, offset: int) -> str:
        if offset in self.known:
            return self.known[offset]
        start = self.start + offset
        stop = self.data.find(0, start, min(self.end, start + LONGEST_NAME)) if start < self.end else -1
        if stop < 0:
            raise Unreadable("a name in it has no end")
        self.left -= stop - start
        if self.left < 0:
            raise Unreadable("its names are too long")
        try:
            text = self.data[start:stop].decode()
        except UnicodeDecodeError:
            raise Unreadable("a name in it is no text") from None
        if not text.isprintable():
            raise Unreadable("a name in it does not print")
        # Two names that are one then are refused, as any that stands twice.
        self.known[offset] = without_path(text)
        return self.known[offset]


def _refuse_overlaps(headers: Iterable[tuple[int, int]], sections: Sequence[tuple[int, int]]) -> None:
    """Refuse bytes that two hold, but where two sections are all the same bytes, as in images for 10.0."""
    twice: dict[tuple[int, int], int] = {}
    for span in sections:
        twice[span] = twice.get(span, 0) + 1
    end = 0
    for offset, size in sorted([*headers, *twice]):
        if size and (offset < end or twice.get((offset, size), 0) > 2):
            raise Unreadable("its sections overlap")
        end = max(end, offset + size)


def _unique(names: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the index of each that has a name."""
    found: dict[str, int] = {}
    for name, number in names:
        if name in found:
            raise Unreadable(f"two sections or symbols in it are called {name[:100]}")
        if name:
            found[name] = number
    return found
