"""Compares the machine code that a kernel executes in two images (cubins), which differ from build to build by paths
and lines.

They are compared section by section, byte by byte, without those and other kernels' sections. Sections and symbols must
stand in the same order: an index then means the same in both, and NVIDIA's unpublished formats need not be known.
"""

import re
import struct
from collections.abc import Collection, Iterator

from perfci.model.text import escaped, shorten
from perfci.worker.work.elf import (
    ALLOCATED,
    ENTRY,
    EXECUTED,
    FUNCTION,
    RELOCATIONS,
    STRTAB,
    SYMBOLS,
    BadImage,
    Image,
    Section,
)

_OF_PATH = re.compile(r"(_INTERNAL_|_GLOBAL__N__|__nv_static_[0-9]+__)[0-9a-f]{8}(?=_[0-9]+_)")
"""nvcc's digest of a file's path in internal names."""
LEFT_OUT = re.compile(r"(\.nv\.merc(\.rela?)?|\.rela?)?\.(debug|nv_debug)(_.*)?|\.(note|comment)(\..*)?")
"""Sections of lines, paths and the compiler's command line, and their relocations."""
_OF_FUNCTION = re.compile(
    r"(?:\.nv\.merc)?(?:\.rela?)?(\.text|\.nv\.info|\.nv\.constant[0-9]+|\.nv\.shared|\.nv\.local|\.nv\.capmerc\.text"
    r"|\.nv\.constant\.optimizer)\.(.+)"
)
_ATTRIBUTES = (".nv.info", ".nv.merc.nv.info")
_CALLS = (".nv.callgraph", ".nv.merc.nv.callgraph")
"""Tables of the image with entries of functions."""
_SIZED = 4
"""Format of an attribute whose size follows."""
_OF_SYMBOL = frozenset({0x11, 0x12, 0x23, 0x26, 0x2F, 0x3B})
"""Attributes whose first word is the symbol: FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE, LOAD_CACHE_REQUEST, REGCOUNT,
SAM_REGION_STACK_SIZE."""
_DIRECT, _ADDRESS_TAKEN, _INDIRECT, _TAKES = 0xFFFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFD, 0xFFFF_FFFC
"""Heads of parts of the call graph: caller, callee; function with address taken, prototype; caller through a pointer,
prototype; function, another whose address it takes."""
_HARMLESS = ("vprintf", "__assertfail")
"""Functions of the driver that change nothing that a kernel reads."""
_BESIDE = "what else is compiled in its file"
_WHOLE = ("the architecture", "the kind of build", "the ABI", _BESIDE)
_WORDS = {".text": "its machine code", ".nv.info": "its resources", ".nv.shared": "its shared memory"}


def without_path(name: str) -> str:
    """Return a symbol's name without the folder it was compiled in."""
    return _OF_PATH.sub(r"\g<1>00000000", name)


class Unknown(Exception):
    """Why what a function executes is unknown."""


def same_function(base: bytes, head: bytes, name: str) -> str:
    """Return why kernel `name` (mangled) is not shown to execute the same in two cubins, as a clause, or empty. Never
    raises.

    Equal images, too, fail where a function calls what the image does not hold.
    """
    try:
        ours = _executed(base, without_path(name))
        theirs = ours if base == head else _executed(head, without_path(name))
    except (BadImage, Unknown) as why:
        return escaped(why, 300)
    if ours == theirs:
        return ""
    parts = zip(ours, theirs, strict=False)
    different = [what for (what, content), other in parts if (what, content) != other] or [_BESIDE]
    # What indices hang on is named first, then what the function itself consists of.
    order = [*_WHOLE, *_WORDS.values()]
    what = min(different, key=lambda what: order.index(what) if what in order else len(order))
    return f"{what} differ{'' if what.endswith('s') else 's'}"


def _executed(data: bytes, name: str) -> list[tuple[str, object]]:
    """Parts with words for people. Raises BadImage, Unknown."""
    image = Image(data)
    if not image.linked:
        raise BadImage("it is no linked machine code for NVIDIA's GPUs")
    image.sections = tuple(one._replace(name=without_path(one.name)) for one in image.sections)
    image.symbols = {
        number: tuple(one._replace(name=without_path(one.name)) for one in table)
        for number, table in image.symbols.items()
    }
    functions = [one for table in image.symbols.values() for one in table if one.info & 15 == FUNCTION]
    if not any(one.name == name and image.place(one) == f".text.{name}" and not one.value for one in functions):
        raise Unknown(f"the image has no function {_brief(name)}")
    if any(sum(one.name == name for one in table) > 1 for table in image.symbols.values()):
        raise Unknown(f"two functions in the image are called {_brief(name)}")
    others = {one.name for one in functions if one.other & ENTRY and one.name != name}
    found: list[tuple[str, object]] = [
        ("the architecture", image.flags & 0xFF_FFFF),
        ("the kind of build", image.flags),
        ("the ABI", image.header),
        # All names of the file, in their order: another kernel that was added, renamed or moved is seen.
        (_BESIDE, [(section.name, _names(image, section)) for section in image.sections]),
    ]
    for section in image.sections:
        left_out = LEFT_OUT.fullmatch(section.name) and not section.flags & (ALLOCATED | EXECUTED)
        if not left_out and section.kind != STRTAB and _whose(section.name) not in others:
            found.append((_words(section.name, name), (section._replace(offset=0), _content(image, section, others))))
    return found


def _names(image: Image, section: Section) -> str:
    return without_path(image.content(section).decode("latin-1")) if section.kind == STRTAB else ""


def _words(section: str, function: str) -> str:
    own = section.endswith(f".{function}") and _WORDS.get(section.removesuffix(f".{function}"))
    return own or f"section {_brief(section)}"


def _whose(section: str) -> str:
    of_function = _OF_FUNCTION.fullmatch(section)
    return of_function[2] if of_function else ""


def _content(image: Image, section: Section, others: Collection[str]) -> object:
    """Raises as `_executed` does."""
    if section.kind in SYMBOLS:
        # Of what lies in others only the place counts: other sizes, and labels that have moved.
        return [
            one._replace(value=0, size=0) if _whose(image.place(one)) in others else one
            for one in image.symbols[image.sections.index(section)]
        ]
    if section.name.startswith((".rel", ".nv.merc.rel")) and section.kind not in RELOCATIONS:
        raise Unknown(f"section {_brief(section.name)} is of an unknown kind")
    if section.kind in RELOCATIONS:
        for symbol in image.relocated(section):
            if (place := image.place(symbol)) and (LEFT_OUT.fullmatch(place) or _whose(place) in others):
                raise Unknown(f"section {_brief(section.name)} refers to {_brief(place)}")
    if section.name in _CALLS:
        _refuse_unfollowed(image, section, others)
    if section.name in _ATTRIBUTES:
        return list(_attributes(image, section, others))
    return image.content(section)


def _attributes(image: Image, section: Section, others: Collection[str]) -> Iterator[bytes]:
    """An entry of `.nv.info`: a byte of format, one of kind, two of the value or its size."""
    content, at = image.content(section), 0
    while at < len(content):
        if at + 4 > len(content):
            raise BadImage(f"{_brief(section.name)} ends within an entry")
        form, number, value = struct.unpack_from("<BBH", content, at)
        entry = content[at : at + 4 + (value if form == _SIZED else 0)]
        at += len(entry)
        place = ""
        if number in _OF_SYMBOL and form == _SIZED and len(entry) >= 8:
            place = image.place(image.symbol(section, int.from_bytes(entry[4:8], "little")))
        if _whose(place) not in others:
            yield entry


def _refuse_unfollowed(image: Image, section: Section, others: Collection[str]) -> None:
    """Device malloc, device launches and pointers are unresolved. Callers count, but for `others`: all may call
    functions that are no kernels."""
    content, part = image.content(section), 0
    if len(content) % 8:
        raise BadImage(f"{section.name} ends within an entry")
    for first, second in struct.iter_unpack("<II", content):
        if not first:
            part = second
        if part not in (_DIRECT, _ADDRESS_TAKEN, _INDIRECT, _TAKES):
            raise Unknown(f"a part of {section.name} is unknown")
        if not first or (caller := image.symbol(section, first).name) in others:
            continue
        if part == _INDIRECT:
            raise Unknown(f"{_brief(caller)} calls through a pointer")
        if part in (_DIRECT, _TAKES) and _whose(image.place(image.symbol(section, second))) in others:
            raise Unknown(f"{_brief(caller)} calls another kernel")
        if part == _DIRECT and not (callee := image.symbol(section, second)).section and callee.name not in _HARMLESS:
            raise Unknown(f"{_brief(caller)} calls {_brief(callee.name)} of the driver")


def _brief(name: str) -> str:
    return shorten(escaped(name), 100, middle=True)
