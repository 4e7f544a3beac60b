"""Files that are no cubin, are cut off, or were made to keep a reader busy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.work.code import same_function
from perfci.worker.work.elf import RELOCATIONS, BadImage, Image

from .cubins import cubin, image, with_header, with_section

BASE = cubin("sm_90a", "base")


def refused(data):
    with pytest.raises(BadImage) as why:
        found = Image(data)
        assert found.symbols
        assert [found.content(section) for section in found.sections]
    text = str(why.value)
    assert text.startswith("the image cannot be read: ")
    assert "\n" not in text
    assert len(text) < 250
    return text.removeprefix("the image cannot be read: ")


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
        (b"", "it is damaged"),
        (BASE[:63], "it is damaged"),
        (BASE[:64], "it is damaged"),
        (b"\x7fELF\x01" + BASE[5:], "it is no ELF file of 64 bits"),
        (with_header(BASE, count=0), "it is damaged"),
        (with_header(BASE, count=65535), "it is damaged"),
        (with_header(BASE, table=2**64 - 1), "it is damaged"),
        (with_section(BASE, ".text.scale", offset=2**63), ".text.scale reaches beyond its end"),
        (with_section(BASE, ".text.scale", name=2**32 - 1), "it is damaged"),
        (with_section(BASE, ".symtab", link=2**32 - 1), "its symbols are damaged"),
        (with_section(BASE, ".symtab", size=1247), "its symbols are damaged"),
    ],
    ids=range(11),
)
def test_what_is_no_whole_cubin_is_refused_with_its_reason(data, why):
    assert refused(data) == why


def test_code_for_something_else_and_code_that_is_not_linked_are_no_proof():
    for other in (with_header(BASE, machine=62), with_header(BASE, type=1)):
        assert same_function(other, other, "scale").endswith("it is no linked machine code for NVIDIA's GPUs")


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
    except BadImage as why:
        assert str(why)
