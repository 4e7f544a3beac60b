"""The names in a CUDA image: an ELF file of 64 bits, little endian (ELF specification; `e_machine` 190)."""

from __future__ import annotations

import struct

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
SYMTAB = 2
OBJECT, FUNCTION = 1, 2
"""Types of symbols."""
ENTRY = 0x10
"""Of st_other: the symbol is a kernel (STO_CUDA_ENTRY)."""


def extent(header: bytes) -> int:
    """Return the bytes of an image by its header, which both of its tables of headers end; 0 where it is none."""
    try:
        if header[:5] != b"\x7fELF\x02":
            return 0
        *_, segments, sections, _, _, segment, count, each, number, _ = HEADER.unpack_from(header)
    except struct.error:
        return 0
    return int(max(segments + segment * count, sections + each * number))


def functions(image: bytes) -> frozenset[str]:
    """Return the names of the kernels; none of what is no such file."""
    return frozenset(name for name, kind, other, _ in _symbols(image) if kind == FUNCTION and other & ENTRY)


def variables(image: bytes) -> list[str]:
    """Return the names of the variables that lie in memory of the device, in order."""
    return sorted({name for name, kind, _, size in _symbols(image) if kind == OBJECT and size})


def _symbols(image: bytes) -> list[tuple[str, int, int, int]]:
    """Return name, type, st_other and size of all symbols that have a place."""
    try:
        if image[:5] != b"\x7fELF\x02":
            return []
        header = HEADER.unpack_from(image)
        begin, each, count = header[6], header[11], header[12]
        sections = [SECTION.unpack_from(image, begin + at * each) for at in range(count)]
        found = []
        for section in sections:
            if section[1] != SYMTAB:
                continue
            strings = sections[section[6]]
            text = image[strings[4] : strings[4] + strings[5]]
            for at in range(section[4], section[4] + section[5], SYMBOL.size):
                name, info, other, place, _, size = SYMBOL.unpack_from(image, at)
                if place:
                    words = text[name : text.index(b"\0", name)].decode("utf-8", "surrogateescape")
                    found.append((words, info & 15, other, size))
        return found
    except (struct.error, IndexError, ValueError, OverflowError):
        return []
