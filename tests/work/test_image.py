"""Files that are no cubin, are cut off, or were made to keep a reader busy."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.work.image import ABSOLUTE, RELOCATIONS, Image, Unreadable

from .cubins import SECTION, cubin, image, with_bytes, with_header, with_section

BASE = cubin("sm_90a", "base")


def refused(data):
    with pytest.raises(Unreadable) as why:
        found = Image(data)
        assert found.symbols
    text = str(why.value)
    assert text.startswith("the image cannot be read: ")
    assert "\n" not in text
    assert len(text) < 250
    return text.removeprefix("the image cannot be read: ")


def made(sections, names=b"\0"):
    """A cubin of so many sections, given as (name, kind, offset, size, link, entry size); the first has the names."""
    body = names
    table = 64 + len(body)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01\x41\x08", 2, 190, 1, 0, 0, table, 0, 64, 0, 0, 64, len(sections) + 1, 0,
    )  # fmt: skip
    headers = [(0, 3, 0, 0, 64, len(names), 0, 0, 0, 0)]
    headers += [(name, kind, 0, 0, at, size, link, 0, 1, entry) for name, kind, at, size, link, entry in sections]
    return head + body + b"".join(SECTION.pack(*one) for one in headers)


def test_sections_symbols_and_relocations_are_read():
    found = image("sm_90a", "base")
    text = found.sections[found.named[".text.scale"]]
    assert (text.kind, text.size, text.alignment) == (1, 512, 128)
    assert len(found.content(text)) == 512
    assert found.content(found.sections[found.named[".nv.global"]]) == b""
    (symbols,) = found.symbols.values()
    (scale,) = (one for one in symbols if one.name == "scale")
    assert (scale.section, scale.value, scale.size) == (found.named[".text.scale"], 0, 512)
    moved = found.relocated(found.sections[found.named[".rela.nv.constant4"]])
    assert {one.name for one in moved} == {"bias", "counter", "$str", "vprintf"}


def test_two_sections_of_the_same_bytes_are_as_compilers_write_them():
    found = image("sm_100a", "base")
    first, second = (found.sections[found.named[name]] for name in (".nv.constant3", ".nv.merc.nv.constant.user"))
    assert first.offset == second.offset
    assert len(found.symbols) == 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is no ELF file"),
        (b"\x7fELF", "it is truncated"),
        (BASE[:63], "it is truncated"),
        (BASE[:64], "its segments reach beyond its end"),
        (BASE[:-1], "its segments reach beyond its end"),
        (b"\x7fELF\x01" + BASE[5:], "it is no 64-bit ELF file, little-endian"),
        (with_header(BASE, machine=62), "it holds no machine code for NVIDIA's GPUs"),
        (with_header(BASE, type=1), "it is not linked"),
        (with_header(BASE, count=0), "its header is damaged"),
        (with_header(BASE, count=65535), "the table of its sections reaches beyond its end"),
        (with_header(BASE, table=2**64 - 1), "the table of its sections reaches beyond its end"),
        (with_section(BASE, ".text.scale", flags=1 << 11), "section 38 is compressed"),
        (with_section(BASE, ".text.scale", offset=2**63), "section 38 reaches beyond its end"),
        (with_section(BASE, ".text.scale", size=2**64 - 1), "section 38 reaches beyond its end"),
        (with_section(BASE, ".text.scale", size=600), "its sections overlap"),
        (with_section(BASE, ".text.scale", name=2**32 - 1), "a name in it has no end"),
        (with_section(BASE, ".symtab", link=2**32 - 1), ".symtab has no names"),
        (with_section(BASE, ".symtab", entry_size=0), ".symtab is damaged"),
        (with_section(BASE, ".symtab", size=1247), ".symtab ends within an entry"),
    ],
    ids=range(19),
)
def test_what_is_no_whole_cubin_is_refused_with_its_reason(data, why):
    assert refused(data) == why


def test_names_are_text_and_one_of_a_kind():
    names = image("sm_90a", "base").content(image("sm_90a", "base").sections[1])
    scale = names.index(b".text.scale\0")
    assert refused(with_bytes(BASE, ".shstrtab", scale + 6, b"\xff")) == "a name in it is no text"
    assert refused(with_bytes(BASE, ".shstrtab", scale + 6, b"\n")) == "a name in it does not print"
    tile = image("sm_90a", "base").sections[image("sm_90a", "base").named[".text.tile"]]
    at = names.index(b".text.tile\0")
    assert tile.size
    twice = with_section(BASE, ".text.scale", name=at)
    assert refused(twice) == "two sections or symbols in it are called .text.tile"
    (symbols,) = image("sm_90a", "base").symbols.values()
    table = image("sm_90a", "base").content(image("sm_90a", "base").sections[3])
    first, second = ([one.name for one in symbols].index(name) for name in ("scale", "tile"))
    twice = with_bytes(BASE, ".symtab", first * 24, table[second * 24 : second * 24 + 4])
    assert refused(twice) == "two sections or symbols in it are called tile"


def test_a_symbol_lies_in_a_section():
    assert refused(with_bytes(BASE, ".symtab", 42 * 24 + 6, b"\xff\xff")).endswith("lies in no section")
    found = Image(with_bytes(BASE, ".symtab", 42 * 24 + 6, struct.pack("<H", ABSOLUTE)))
    assert found.symbols


def test_a_name_that_thousands_share_is_read_within_bounds():
    long = b"x" * 60_000
    names = b"\0" + long + b"\0"
    assert refused(made([(one, 1, 0, 0, 0, 0) for one in range(1, 9_000)], names)) == "its names are too long"


def test_bytes_that_hundreds_of_sections_share_are_refused():
    names = b"\0" + b"".join(b"%04d\0" % one for one in range(300))
    assert refused(made([(1 + 5 * one, 1, 64, 100, 0, 0) for one in range(300)], names)) == "its sections overlap"
    assert refused(made([(1 + 5 * one, 1, 64 + one, 100, 0, 0) for one in range(300)], names)) == "its sections overlap"


def test_an_image_without_sections_has_no_symbols():
    found = Image(made([]))
    assert found.symbols == {}


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data):
    refused(data)
    refused(BASE[:64] + data)


@settings(max_examples=300)
@given(
    at=st.integers(0, len(BASE) - 1),
    new=st.binary(min_size=1, max_size=8),
    end=st.one_of(st.none(), st.integers(0, len(BASE))),
)
def test_damage_is_refused_or_read(at, new, end):
    data = (BASE[:at] + new + BASE[at + len(new) :])[:end]
    try:
        found = Image(data)
        for section in found.sections:
            found.content(section)
            if section.kind in RELOCATIONS:
                list(map(found.place, found.relocated(section)))
        assert found.symbols is not None
    except Unreadable as why:
        assert str(why)
