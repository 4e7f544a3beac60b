"""The sections that NVIDIA's compilers put into an ELF file, with names in the place of indices.

NVIDIA publishes no description. Sections, attributes and entries are as ptxas and nvlink of CUDA 12.8 to 13.5 write
them, and as `cuobjdump -elf` of these prints them; all others are refused, since an index in them would pass for a
number, and the same index names another function where one was added.
"""

import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from perfci.model.text import shorten
from perfci.work.image import (
    ALLOCATED,
    EXECUTED,
    LARGEST_TABLE,
    MERCURY_RELA,
    MERCURY_SYMTAB,
    NOBITS,
    PROGBITS,
    REL,
    RELA,
    STRTAB,
    SYMTAB,
    Image,
    Section,
    Unreadable,
)

LEFT_OUT = re.compile(r"(\.nv\.merc(\.rela?)?|\.rela?)?\.(debug|nv_debug)(_.*)?|\.(note|comment)(\..*)?")
"""Lines, paths and the compiler's command line, and what relocates them."""
STRUCTURE = {"": 0, ".shstrtab": STRTAB, ".strtab": STRTAB, ".symtab": SYMTAB, ".nv.merc.symtab": MERCURY_SYMTAB}
"""Sections, with their kind, in which is read what others name."""
TEXT, CAPSULE = ".text", ".nv.capmerc.text"
"""Instructions; and, from 10.0 on, what a driver makes those of a similar chip from."""
OF_FUNCTION = {
    TEXT: PROGBITS,
    ".nv.info": 0x7000_0000,
    ".nv.constant#": PROGBITS,
    ".nv.shared": NOBITS,
    ".nv.local": NOBITS,
    CAPSULE: 0x7000_0016,
    ".nv.merc.nv.info": 0x7000_0083,
    ".nv.merc.nv.constant.optimizer": 0x7000_0084,
}
"""Sections of one function, whose name follows theirs, with their kind; `#` is a number."""
OF_IMAGE = {
    ".nv.compat": 0x7000_0086,
    ".nv.rel.action": 0x7000_000B,
    ".nv.global": NOBITS,
    ".nv.global.init": PROGBITS,
    ".nv.constant#": PROGBITS,
    ".nv.shared.reserved.#": NOBITS,
    ".nv.merc.nv.global.init": 0x7000_0008,
    ".nv.merc.nv.constant.user": 0x7000_007C,
    ".nv.merc.nv.constant.pic": 0x7000_007D,
    ".nv.merc.nv.shared.reserved.#": 0x7000_0015,
}
"""Sections of data that any function may read."""
ATTRIBUTES = {".nv.info": 0x7000_0000, ".nv.merc.nv.info": 0x7000_0083}
CALLS = {".nv.callgraph": 0x7000_0001, ".nv.merc.nv.callgraph": 0x7000_008A}
PROTOTYPES = {".nv.prototype": 0x7000_0002, ".nv.merc.nv.prototype": 0x7000_008B}
"""Tables of the image whose entries belong to functions."""
_RELOCATIONS = re.compile(r"(\.nv\.merc)?\.rela?(\..*)")
_STEMS = "|".join(re.escape(stem).replace(r"\#", "[0-9]+") for stem in OF_FUNCTION)
_OF_FUNCTION = re.compile(rf"({_STEMS})\.(.+)")

NO_VALUE, BYTE, HALF, SIZED = 1, 2, 3, 4
"""Formats of attributes."""
OF_SYMBOL = frozenset({0x11, 0x12, 0x23, 0x26, 0x2F, 0x3B})
"""Attributes of the symbol in their first word: FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE, LOAD_CACHE_REQUEST,
REGCOUNT, SAM_REGION_STACK_SIZE."""
PARAM_CBANK, EXTERNS = 0x0A, 0x0F
"""A symbol in the first word; nothing but symbols."""
PLAIN = frozenset(
    {0x01, 0x04, 0x05, 0x10, 0x17, 0x19, 0x1B, 0x1C, 0x1D, 0x1E, 0x21, 0x25, 0x27, 0x28, 0x29, 0x2A, 0x2B, 0x2D, 0x2E}
    | {0x30, 0x31, 0x32, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3D, 0x3E, 0x3F, 0x40, 0x41, 0x42, 0x44, 0x45, 0x46}
    | {0x47, 0x4A, 0x4C, 0x4D, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x57, 0x59, 0x5A, 0x5B, 0x62, 0x64, 0x65, 0x66}
    | {0x6B, 0x6C, 0x6D}
    | {0x5F}  # in every image by CUDA 13, a number of two bytes; no tool names it
)
"""Attributes of sizes, offsets into the function, registers and flags."""

DIRECT, ADDRESS_TAKEN, INDIRECT, TAKES = 0xFFFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFD, 0xFFFF_FFFC
"""Heads of the parts of the call graph: caller with callee; function whose address is taken with its prototype; caller
through a pointer with the prototype; function with one whose address it takes."""


class Unknown(Exception):
    """Why what a function executes is not known: one clause."""


class Named(NamedTuple):
    """A symbol with names in the place of indices."""

    name: str
    info: int
    other: int
    place: str
    """Name of the section that it lies in; empty where the image does not define it."""
    value: int
    size: int
    prototype: str
    """Of a function, in nvlink's own notation."""


class Attribute(NamedTuple):
    """An entry of `.nv.info`."""

    form: int
    number: int
    symbols: tuple[Named, ...]
    rest: bytes


class Cubin:
    """The sections of an image by whose they are. Raises Unreadable, and Unknown where there is one that is not known,
    as its methods do."""

    def __init__(self, data: bytes) -> None:
        self.image = Image(data)
        self.parts: dict[str, list[int]] = defaultdict(list)
        """Indices of the sections of each function."""
        self.common: list[int] = []
        """Of those that any function may read."""
        self.relocating: dict[int, list[Section]] = defaultdict(list)
        """The relocations of each section, by its index."""
        read = 0
        for number, section in enumerate(self.image.sections):
            if not _left_out(section):
                read += 0 if section.kind in (0, PROGBITS, STRTAB, NOBITS) else section.size
                self._sort(number, section)
        if read > LARGEST_TABLE:
            raise Unreadable(f"its tables are over {LARGEST_TABLE >> 20} MiB")
        for function in self.parts:
            if f"{TEXT}.{function}" not in self.image.named:
                raise Unknown(f"function {brief(function)} has no instructions")
        self.prototypes: dict[tuple[int, int], str] = {}
        for section in self._tables(PROTOTYPES):
            for symbol, offset in self._pairs(section):
                self.named(section.link, symbol)
                if (section.link, symbol) in self.prototypes:
                    raise Unreadable(f"{section.name} has two prototypes of one symbol")
                self.prototypes[section.link, symbol] = self._prototype(section, offset)

    def _sort(self, number: int, section: Section) -> None:
        name, kind = section.name, section.kind
        stem, function = whose(name)
        if moved := _RELOCATIONS.fullmatch(name):
            sections = self.image.sections
            target = sections[section.info].name if section.info < len(sections) else ""
            if kind not in (REL, RELA, MERCURY_RELA) or target not in (
                (moved[1] or "") + moved[2],
                ".nv.capmerc" + moved[2],
            ):
                raise Unknown(f"section {brief(name)} is unknown")
            self.relocating[section.info].append(section)
        elif function and kind == OF_FUNCTION[stem]:
            self.parts[function].append(number)
        elif kind == OF_IMAGE.get(stem) and not function:
            self.common.append(number)
        elif kind not in (table.get(name) for table in (STRUCTURE, ATTRIBUTES, CALLS, PROTOTYPES)):
            raise Unknown(f"section {brief(name)} is unknown")

    def _tables(self, names: dict[str, int]) -> list[Section]:
        """Return the tables of the image that have these names, which nothing relocates."""
        found = [self.image.named[name] for name in names if name in self.image.named]
        if any(number in self.relocating or self.image.sections[number].info for number in found):
            raise Unknown("a table of the image is relocated")
        return [self.image.sections[number] for number in found]

    def symbols_of(self, section: Section) -> int:
        """Return the index of the table of symbols that a section names. Images of cuBLAS name none, or a section that
        is no such table, where there is only one."""
        tables = self.image.symbols
        return next(iter(tables)) if len(tables) == 1 and section.link not in tables else section.link

    def named(self, table: int, number: int) -> Named:
        """Return symbol `number` of the table that is section `table`."""
        name, info, other, section, value, size = self.image.symbol(table, number)
        sections = self.image.sections
        place = sections[section].name if section < len(sections) else f"#{section:x}"
        return Named(name, info, other, place, value, size, self.prototypes.get((table, number), ""))

    def attributes(self, section: Section) -> Iterator[Attribute]:
        """Read `.nv.info`: a byte of format, one that says of what, and two of the value or of its size in bytes."""
        content = self.image.content(section)
        table = self.symbols_of(section)
        at = 0
        while at < len(content):
            if at + 4 > len(content):
                raise Unreadable(f"{brief(section.name)} ends within an entry")
            form, number, value = struct.unpack_from("<BBH", content, at)
            rest = content[at + 2 : at + 4]
            at += 4
            if form == SIZED:
                rest = content[at : at + value]
                at += value
                if at > len(content):
                    raise Unreadable(f"{brief(section.name)} ends within an entry")
            words = len(rest) // 4 if number == EXTERNS else int(number in OF_SYMBOL or number == PARAM_CBANK)
            if form not in (NO_VALUE, BYTE, HALF, SIZED) or not (words or number in PLAIN or number == EXTERNS):
                raise Unknown(f"attribute 0x{number:02x} of {brief(section.name)} is unknown")
            if (words or number == EXTERNS) and (form != SIZED or len(rest) < 4 * words or len(rest) % 4):
                raise Unknown(f"attribute 0x{number:02x} of {brief(section.name)} is of an unknown form")
            symbols = tuple(self.named(table, index) for index in struct.unpack_from(f"<{words}I", rest))
            yield Attribute(form, number, symbols, rest[4 * words :])

    def of_functions(self) -> Iterator[tuple[str, Attribute]]:
        """Give the attributes that stand in the image's own `.nv.info`, each with its function; empty for the image."""
        for section in self._tables(ATTRIBUTES):
            for one in self.attributes(section):
                yield (whose(one.symbols[0].place)[1] if one.number in OF_SYMBOL else ""), one

    def calls(self) -> Iterator[tuple[int, Named, Named | str]]:
        """Give the entries of the call graph: its part, and a function with another, or with a prototype."""
        for section in self._tables(CALLS):
            part = 0
            for first, second in self._pairs(section):
                if first and part:
                    by_name = part in (DIRECT, TAKES)
                    caller = self.named(self.symbols_of(section), first)
                    yield (
                        part,
                        caller,
                        (self.named(self.symbols_of(section), second) if by_name else self._prototype(section, second)),
                    )
                elif not first and second in (DIRECT, ADDRESS_TAKEN, INDIRECT, TAKES):
                    part = second
                else:
                    raise Unknown(f"a part of {section.name} is unknown")

    def _pairs(self, section: Section) -> Iterator[tuple[int, int]]:
        content = self.image.content(section)
        if len(content) % 8 or section.entry_size != 8:
            raise Unreadable(f"{section.name} ends within an entry")
        return struct.iter_unpack("<II", content)

    def _prototype(self, section: Section, offset: int) -> str:
        """Return the text of a prototype, which lies among the names of the symbols that `section` refers to."""
        if section.link not in self.image.symbols:
            raise Unreadable(f"{section.name} has no symbols")
        return self.image.texts(self.image.sections[section.link]).at(offset)


def whose(section: str) -> tuple[str, str]:
    """Return the name of a section with `#` for its number and without that of its function, and the function's."""
    stem = re.sub("[0-9]+$", "#", section)
    if stem not in OF_IMAGE and (found := _OF_FUNCTION.fullmatch(section)):
        return re.sub("[0-9]+$", "#", found[1]), found[2]
    return stem, ""


def brief(name: str) -> str:
    """Return a name as reasons give it: that of a template may have thousands of characters."""
    return shorten(name, 100, middle=True)


def _left_out(section: Section) -> bool:
    return bool(LEFT_OUT.fullmatch(section.name)) and not section.flags & (ALLOCATED | EXECUTED)
