"""Is the machine code that a kernel executes the same in two images?

An image (a cubin) differs from build to build by paths, lines and what else stands in it. What a function executes does
not: its instructions, the resources that it asks for, its constants, and the same of each function that it calls. Both
sides' are written down with the names of functions, symbols and sections in the place of indices, which another
function in the image moves, and compared. Nothing here runs or disassembles code.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property

from perfci.work.cubin import CAPSULE, INDIRECT, LEFT_OUT, TEXT, Cubin, Named, Unknown, brief, whose
from perfci.work.image import FUNCTION, SECTION, Section, Unreadable, without_path

SYMBOL_TABLES = ("", ".symtab", ".nv.merc.symtab")
"""Sections that others may be linked to."""
HARMLESS = ("vprintf", "__assertfail")
"""Functions of the driver that change nothing that a kernel reads."""

Key = tuple[str, str]
"""A function's name, empty for the image, and what of it is compared, in words."""
Content = tuple[object, ...]


def same_function(base: bytes, head: bytes, name: str) -> str:
    """Return why it is not shown that function `name` (mangled) executes the same in two cubins, as a clause.

    The empty string where it is shown. It never raises. Of equal images, too, it tells where a function calls what the
    image does not hold.
    """
    try:
        ours = Code(base)
        return _same(ours, ours if base == head else Code(head), without_path(name))
    except (Unreadable, Unknown) as why:
        return str(why)


def _same(base: "Code", head: "Code", name: str) -> str:
    ours, theirs = base.executed(name), head.executed(name)
    absent = object()
    different = [key for key in {**ours, **theirs} if ours.get(key, absent) != theirs.get(key, absent)]
    if not different:
        return ""
    function, what = min(different, key=lambda key: (key[0] != name, not key[0], "machine code" not in key[1]))
    if function and function != name:
        return f"its callee {brief(function)} differs"
    verb = "differ" if what.endswith("s") else "differs"
    return f"its {what} {verb}" if function else f"{what} {verb}"


class Code:
    """The functions of one image. Raises Unreadable and Unknown, as its methods do."""

    def __init__(self, data: bytes) -> None:
        self.cubin = Cubin(data)
        self.image = self.cubin.image
        self.asked: dict[str, list[object]] = defaultdict(list)
        """Attributes of each function in the image's `.nv.info`; those of the image under the empty name."""
        for function, attribute in self.cubin.of_functions():
            self.asked[function].append(attribute)
        self.calls: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
        """Of each function in the call graph: part, name of the symbol, and the other's or the prototype."""
        self.callees: dict[str, set[str]] = defaultdict(set)
        self.unfollowed: dict[str, str] = {}
        """Functions that go where the image does not tell of, and how: device malloc, device launches, pointers."""
        for part, caller, other in self.cubin.calls():
            function = whose(caller.place)[1]
            if not function:
                raise Unknown(f"{brief(caller.name)} calls, and is no function of the image")
            self.calls[function].append((part, caller.name, repr(other)))
            if isinstance(other, Named):
                self.callees[function].add(whose(other.place)[1])
                if not other.place and other.name not in HARMLESS:
                    self.unfollowed[function] = f"{brief(other.name)} of the driver"
            if part == INDIRECT:
                self.unfollowed[function] = "through a pointer"
        self.inside: dict[str, list[Named]] = defaultdict(list)
        """Symbols within each function's sections."""
        for table, symbols in self.image.symbols.items():
            for number, symbol in enumerate(symbols):
                one = self.cubin.named(table, number)
                if symbol.info & 15 != SECTION and (function := whose(one.place)[1]):
                    self.inside[function].append(one)

    def executed(self, name: str) -> Mapping[Key, object]:
        """Return all that function `name` executes and is given: equal for two images where it is the same."""
        if not any(
            one.name == name and one.place == f"{TEXT}.{name}" and one.info & 15 == FUNCTION and not one.value
            for one in self.inside.get(name, [])
        ):
            raise Unknown(f"the image has no function {brief(name)}")
        common, referred = self._common
        found, referred = dict(common), list(referred)
        done = {""}
        waiting = [name]
        before = 0
        while waiting:
            function = waiting.pop(0)
            if function in done:
                continue
            done.add(function)
            found |= {(function, what): value for what, value in self._function(function, referred)}
            waiting += sorted({*self.callees[function], *(whose(one.place)[1] for one in referred[before:])} - done)
            before = len(referred)
        return found

    @cached_property
    def _common(self) -> tuple[dict[Key, object], list[Named]]:
        """All that functions of the image share, and the symbols that it refers to."""
        referred: list[Named] = []
        found: dict[Key, object] = {
            ("", "the architecture"): self.image.flags & 0xFF_FFFF,
            ("", "the kind of build"): self.image.flags,
            ("", "the ABI"): self.image.header,
            ("", "the image's resources"): sorted(self.asked[""], key=repr),
        }
        for number in self.cubin.common:
            section = self.image.sections[number]
            bank = section.name.removeprefix(".nv.constant")
            what = f"constant bank {bank}" if bank.isdigit() else f"section {section.name}"
            found["", what] = self._content(number, section, referred)
        return found, referred

    def _function(self, name: str, referred: list[Named]) -> Iterator[tuple[str, object]]:
        """Give what is compared of a function; add to `referred` the symbols that this refers to."""
        if name in self.unfollowed:
            raise Unknown(f"{brief(name)} calls {self.unfollowed[name]}")
        for number in self.cubin.parts[name]:
            section = self.image.sections[number]
            stem = section.name.removesuffix(f".{name}")
            bank = stem.removeprefix(".nv.constant")
            what = {TEXT: "machine code", ".nv.info": "resources", ".nv.shared": "shared memory"}.get(stem)
            yield (
                what or (f"constant bank {bank}" if bank.isdigit() else f"section {stem}"),
                self._content(number, section, referred),
            )
        yield "registers or stack", sorted(self.asked[name], key=repr)
        yield "symbols", sorted(self.inside[name])
        yield "calls", sorted(self.calls[name])

    def _content(self, number: int, section: Section, referred: list[Named]) -> Content:
        """Return a section with names in the place of indices; add the symbols that it refers to to `referred`."""
        stem, function = whose(section.name)
        named: list[Named] = []
        table = self.cubin.symbols_of(section)
        if table >= len(self.image.sections) or self.image.sections[table].name not in SYMBOL_TABLES:
            raise Unknown(f"section {brief(section.name)} is linked to another")
        linked: list[object] = []
        if stem in (TEXT, CAPSULE):
            named.append(self.cubin.named(table, section.info & 0xFF_FFFF))
            linked = [section.info >> 24, named[-1]]
        elif section.info:
            if not function or section.info >= len(self.image.sections):
                raise Unknown(f"section {brief(section.name)} is linked to another")
            linked = [self.image.sections[section.info].name]
        content: object = self.image.content(section)
        if stem.endswith(".nv.info"):
            content = list(self.cubin.attributes(section))
        elif stem == CAPSULE:
            content = self._capsule(section, function)
        moves = []
        for moving in self.cubin.relocating.get(number, []):
            linked += [moving.name, moving.kind, moving.flags, moving.alignment]
            for offset, kind, symbol, addend in self.image.relocations(moving):
                named.append(self.cubin.named(self.cubin.symbols_of(moving), symbol))
                moves.append((offset, kind, addend, named[-1]))
        if out := next((one.place for one in named if LEFT_OUT.fullmatch(one.place)), ""):
            raise Unknown(f"section {brief(section.name)} refers to {brief(out)}")
        referred += named
        fixed = (section.kind, section.flags, section.address, section.size, section.alignment, section.entry_size)
        return *fixed, linked, content, moves

    def _capsule(self, section: Section, function: str) -> bytes:
        """Return what follows the first word, which is the index of the section of the function's instructions."""
        content = self.image.content(section)
        if content[:4] != self.image.named[f"{TEXT}.{function}"].to_bytes(4, "little"):
            raise Unknown(f"section {brief(section.name)} is of an unknown form")
        return content[4:]
