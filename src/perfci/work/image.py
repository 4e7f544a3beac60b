"""The ELF file of a cubin, machine code that a driver loads: its sections and symbols.

Fields are those of the System V ABI's 64-bit ELF, little-endian ("Sections", "Symbol Table", "Relocation"). Segments,
which repeat what sections say, are not read. A file comes from the code under test: whoever reads it does so within
bounds (`perfci.work.files`).
"""

import re
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from perfci.model.text import escaped
from perfci.worker.work.elf import HEADER, SECTION, SYMBOL, SYMTAB

LARGEST_TABLE = 2**22
"""Bytes at most of what is read entry by entry: some seconds."""
_BEGIN = b"\x7fELF\x02\x01\x01"
"""64 bits, little-endian."""
CUDA = 190
"""`EM_CUDA`."""
EXECUTABLE = 2
"""`ET_EXEC`: linked; what the driver loads."""
STRTAB, NOBITS = 3, 8
SYMBOLS = (SYMTAB, 0x7000_0085)
"""Kinds of tables of symbols; the second is NVIDIA's own, in images for compute capability 10.0 and later."""
RELOCATIONS = {4: 24, 9: 16, 0x7000_0082: 24}
"""Kinds of tables of relocations, likewise, with the bytes of an entry."""
ALLOCATED, EXECUTED = 2, 4

_OF_PATH = re.compile(r"(_INTERNAL_|_GLOBAL__N__|__nv_static_[0-9]+__)[0-9a-f]{8}(?=_[0-9]+_)")
"""The digest of a file's path that nvcc puts into names that are internal to it."""


class Unreadable(Exception):
    """An image that cannot be read, and why."""

    def __str__(self) -> str:
        return f"the image cannot be read: {escaped(self.args[0])}"


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
        self.data = data
        try:
            identity, kind, machine, toolkit, entry, _, table, self.flags, *_, count, names = HEADER.unpack_from(data)
            if not identity.startswith(_BEGIN) or machine != CUDA or kind != EXECUTABLE:
                raise Unreadable("it is no linked machine code for NVIDIA's GPUs")
            raw = [SECTION.unpack_from(data, table + number * SECTION.size) for number in range(count)]
            texts = data[raw[names][4] : raw[names][4] + raw[names][5]]
            self.sections = tuple(Section(_text(texts, name), *rest) for name, *rest in raw)
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise Unreadable("it is damaged") from error
        self.header = (identity[7:], toolkit, entry)
        """ABI with its version, `e_version` (of ABI 7 the toolkit) and `e_entry`."""

    def content(self, section: Section) -> bytes:
        """Return the bytes of a section; none where the file holds none of it (`NOBITS`)."""
        if section.kind == NOBITS:
            return b""
        if section.offset + section.size > len(self.data):
            raise Unreadable(f"{section.name[:100]} reaches beyond its end")
        return self.data[section.offset : section.offset + section.size]

    def table(self, section: Section) -> bytes:
        """Return the bytes of a section that is read entry by entry."""
        if section.size > LARGEST_TABLE:
            raise Unreadable(f"{section.name[:100]} is over {LARGEST_TABLE >> 20} MiB")
        return self.content(section)

    @cached_property
    def symbols(self) -> dict[int, tuple[Symbol, ...]]:
        """The symbols of each table, by the index of its section."""
        try:
            tables = [number for number, section in enumerate(self.sections) if section.kind in SYMBOLS]
            return {number: self._symbols(self.sections[number]) for number in tables}
        except (struct.error, IndexError, ValueError) as error:
            raise Unreadable("its symbols are damaged") from error

    def _symbols(self, table: Section) -> tuple[Symbol, ...]:
        texts = self.content(self.sections[table.link])
        return tuple(Symbol(_text(texts, name), *rest) for name, *rest in SYMBOL.iter_unpack(self.table(table)))

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


def _text(texts: bytes, at: int) -> str:
    return without_path(texts[at : texts.index(0, at)].decode())
