"""A CUDA image, machine code that the driver loads: an ELF file of 64 bits, little-endian; and names in it.

Fields are those of the System V ABI ("Sections", "Symbol Table", "Relocation"). Segments repeat what sections say.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_BEGIN = b"\x7fELF\x02"
_CUDA, _EXECUTABLE = 190, 2
"""`EM_CUDA`; `ET_EXEC`: linked, what the driver loads."""
_SYMTAB = 2
STRTAB, NOBITS = 3, 8
SYMBOLS = (_SYMTAB, 0x7000_0085)
"""The second is NVIDIA's, from compute capability 10.0 on."""
RELOCATIONS = {4: 24, 9: 16, 0x7000_0082: 24}
"""Likewise → bytes of an entry."""
ALLOCATED, EXECUTED = 2, 4
OBJECT, FUNCTION = 1, 2
ENTRY = 0x10
"""Of st_other: the symbol is a kernel (STO_CUDA_ENTRY)."""


class BadImage(Exception):
    """Why an image cannot be read."""

    def __str__(self) -> str:
        return f"the image cannot be read: {self.args[0]}"


class Section(NamedTuple):
    """A section's header."""

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
    """An entry of a symbol table."""

    name: str
    info: int
    """Binding in the upper four bits, type in the lower."""
    other: int
    section: int
    """0 for an undefined symbol."""
    value: int
    size: int


class Image:
    """The sections and symbols of an image. Raises BadImage, as its methods do."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            identity, kind, machine, toolkit, entry, _, table, self.flags, *sizes = HEADER.unpack_from(data)
            if not identity.startswith(_BEGIN):
                raise BadImage("it is no ELF file of 64 bits")
            size, _, _, section, count, names = sizes
            if (size, section) != (HEADER.size, _SECTION.size):
                raise BadImage("its header is damaged")
            raw = [_SECTION.unpack_from(data, table + number * _SECTION.size) for number in range(count)]
            texts = data[raw[names][4] : raw[names][4] + raw[names][5]]
            self.sections = tuple(Section(_text(texts, name), *rest) for name, *rest in raw)
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise BadImage("it is damaged") from error
        self.linked = machine == _CUDA and kind == _EXECUTABLE
        self.header = (identity[5:], toolkit, entry)
        """Order of bytes, ABI with its version, `e_version` (of ABI 7 the toolkit) and `e_entry`."""

    def content(self, section: Section) -> bytes:
        """Return the bytes of a section."""
        if section.kind == NOBITS:
            return b""
        if section.offset + section.size > len(self.data):
            raise BadImage(f"{section.name} reaches beyond its end")
        return self.data[section.offset : section.offset + section.size]

    @cached_property
    def symbols(self) -> dict[int, tuple[Symbol, ...]]:
        """Symbols of each table, by the index of its section."""
        try:
            tables = [number for number, section in enumerate(self.sections) if section.kind in SYMBOLS]
            return {number: self._symbols(self.sections[number]) for number in tables}
        except (struct.error, IndexError, ValueError, BadImage) as error:
            raise BadImage("its symbols are damaged") from error

    def _symbols(self, table: Section) -> tuple[Symbol, ...]:
        texts = self.content(self.sections[table.link])
        return tuple(Symbol(_text(texts, name), *rest) for name, *rest in _SYMBOL.iter_unpack(self.content(table)))

    def symbol(self, section: Section, number: int) -> Symbol:
        """Return symbol `number` of a section's table. Images of cuBLAS with a single table may not name it."""
        tables = self.symbols
        table = next(iter(tables)) if len(tables) == 1 and section.link not in tables else section.link
        if table not in tables or number >= len(tables[table]):
            raise BadImage("it names a symbol that it does not have")
        return tables[table][number]

    def relocated(self, section: Section) -> Iterator[Symbol]:
        """Yield the symbols whose addresses a relocation table puts into another section."""
        size = RELOCATIONS[section.kind]
        if section.entry_size != size or section.size % size:
            raise BadImage(f"{section.name} is damaged")
        content = self.content(section)
        for at in range(0, len(content), size):
            yield self.symbol(section, int.from_bytes(content[at + 12 : at + 16], "little"))

    def place(self, symbol: Symbol) -> str:
        """Return the name of a symbol's section, or empty."""
        return self.sections[symbol.section].name if symbol.section < len(self.sections) else ""


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(0, at)].decode("utf-8", "surrogateescape")


def extent(header: bytes) -> int:
    """Return the bytes of an image, which ends with a table of headers; 0 for no image."""
    try:
        if not header.startswith(_BEGIN):
            return 0
        *_, segments, sections, _, _, segment, count, each, number, _ = HEADER.unpack_from(header)
    except struct.error:
        return 0
    return int(max(segments + segment * count, sections + each * number))


def functions(image: bytes) -> frozenset[str]:
    """Return the names of the kernels; none for what is no image."""
    return frozenset(one.name for one in _placed(image) if one.info & 15 == FUNCTION and one.other & ENTRY)


def variables(image: bytes) -> list[str]:
    """Return the names of the variables in device memory, in order."""
    return sorted({one.name for one in _placed(image) if one.info & 15 == OBJECT and one.size})


def _placed(data: bytes) -> list[Symbol]:
    try:
        image = Image(data)
        tables = [table for number, table in image.symbols.items() if image.sections[number].kind == _SYMTAB]
    except BadImage:
        return []
    return [one for table in tables for one in table if one.section]


@lru_cache(maxsize=1)
def _demangler() -> Any:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    return function


def demangled(name: str) -> str:
    """Return a C++ name as people write it (`__cxa_demangle` of the Itanium C++ ABI), and any other unchanged."""
    demangle = _demangler()
    text = demangle(name.encode("utf-8", "replace"), None, None, ctypes.byref(ctypes.c_int())) if demangle else None
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))
