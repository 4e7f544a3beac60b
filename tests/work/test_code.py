"""What compilers make of sources that differ, or only seem to: tests/data/cubins/build.py says how they were built."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.work.code import same_function, without_path
from perfci.worker.work.elf import functions

from .cubins import ARCHITECTURES, cubin, image, with_bytes, with_header, with_section

ALL = ["calls", "chooses", "looks_up", "math", "prints", "reduce", "scale", "spills", "tile"]
LINKED = ["chosen", "far", "plain", "recurses"]
BESIDE = "what else is compiled in its file differs"
CHANGED = {
    "factor": ("scale", "its machine code differs"),
    "block": ("reduce", "its machine code differs"),
    "type": ("reduce", "its machine code differs"),
    "deep": ("calls", "its machine code differs"),
    "near": ("calls", "its machine code differs"),
    "first": ("looks_up", "section .nv.constant3 differs"),
    "bias": ("looks_up", "section .nv.global.init differs"),
    "format": ("prints", "section .symtab differs"),
    "scratch": ("spills", "its machine code differs"),
    "slack": ("tile", "its shared memory differs"),
    "dynamic": ("tile", BESIDE),
    "added_before": ("scale", BESIDE),
    "added_between": ("scale", BESIDE),
    "added_after": ("scale", BESIDE),
    "swapped": ("scale", BESIDE),
    "alignment": ("reduce", "its shared memory differs"),
    "bounds": ("scale", "its resources differ"),
    "cluster": ("scale", "its resources differ"),
    "parameter": ("scale", "its resources differ"),
    "registers": ("scale", "its resources differ"),
    "fast": ("math", BESIDE),
    "debug": ("scale", "the kind of build differs"),
    "linked_added": ("plain", BESIDE),
    "linked_outer": ("far", "section .text._Z5outerf differs"),
    "linked_inner": ("far", "section .text._Z5innerf differs"),
    "linked_right": ("chosen", "section .nv.callgraph differs"),
}
OF_ONE = ["factor", "block", "type", "deep", "near", "scratch", "slack", "alignment", "bounds", "cluster", "parameter"]
"""Changes of which the other kernels know nothing."""
UNCHANGED = ["again", "elsewhere", "comments"]


def base_of(build: str) -> str:
    return "linked" if build.startswith("linked") else "base"


def builds(names):
    """With each architecture; compute capability 8.0 has no clusters."""
    return [(one, name) for one in ARCHITECTURES for name in names if (one, name) != ("sm_80", "cluster")]


@pytest.mark.parametrize(("architecture", "build"), builds(CHANGED))
def test_each_change_is_found(architecture, build):
    function, why = CHANGED[build]
    base, head = cubin(architecture, base_of(build)), cubin(architecture, build)
    assert same_function(base, head, function) == why
    assert same_function(head, base, function) == why


@pytest.mark.parametrize(("architecture", "build"), builds(OF_ONE))
def test_a_change_of_one_kernel_is_none_of_the_others(architecture, build):
    base, head = cubin(architecture, "base"), cubin(architecture, build)
    assert [one for one in ALL if same_function(base, head, one)] == [CHANGED[build][0]]


@pytest.mark.parametrize(("architecture", "build"), builds(UNCHANGED))
def test_what_does_not_execute_changes_nothing(architecture, build):
    base, head = cubin(architecture, "base"), cubin(architecture, build)
    assert {one: same_function(base, head, one) for one in ALL} == dict.fromkeys(ALL, "")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lines_of_a_build_with_them_change_nothing(architecture):
    base, head = cubin(architecture, "lines"), cubin(architecture, "comments_lines")
    assert base != head
    assert {one: same_function(base, head, one) for one in ALL} == dict.fromkeys(ALL, "")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_linked_files_are_compared_too(architecture):
    base, head = cubin(architecture, "linked"), cubin(architecture, "linked_again")
    assert {one: same_function(base, head, one) for one in LINKED} == dict.fromkeys(LINKED, "")


def both(change):
    """Base and head with the same change in their images."""
    return change(cubin("sm_90a", "base")), change(cubin("sm_90a", "factor"))


BASE, LINES = cubin("sm_90a", "base"), cubin("sm_90a", "lines")
LINKS, ADDED = cubin("sm_90a", "linked"), cubin("sm_90a", "linked_added")
NO_PROOF = [
    (LINKS, LINKS, "indirect", "indirect calls through a pointer"),
    (LINKS, ADDED, "indirect", "indirect calls through a pointer"),
    (LINKS, ADDED, "allocates", "allocates calls malloc of the driver"),
    (LINKS, LINKS, "allocates", "allocates calls malloc of the driver"),
    (BASE, cubin("sm_80", "base"), "scale", "the architecture differs"),
    # sm_90, whose instructions are those of sm_90a here
    (BASE, with_header(BASE, flags=image("sm_90a", "base").flags ^ 8), "scale", "the architecture differs"),
    (BASE, LINES, "scale", "the kind of build differs"),
    (
        *both(lambda data: with_section(data, ".rela.nv.constant4", entry_size=16)),
        "math",
        "the image cannot be read: .rela.nv.constant4 is damaged",
    ),
    (
        *both(lambda data: with_bytes(data, ".nv.callgraph", 0, struct.pack("<II", 0, 7))),
        "scale",
        "a part of .nv.callgraph is unknown",
    ),
]


@pytest.mark.parametrize(("base", "head", "function", "why"), NO_PROOF, ids=range(len(NO_PROOF)))
def test_what_cannot_be_followed_or_compared_is_no_proof(base, head, function, why):
    assert same_function(base, head, function) == why


@pytest.mark.parametrize("name", ["added", "", "deep", "table", ".text.scale", "scale\0", "sc\u00e4le", "x" * 10**6])
def test_a_function_that_is_not_there_is_not_the_same(name):
    base = cubin("sm_90a", "base")
    for head in (base, cubin("sm_90a", "comments_lines")):
        why = same_function(base, head, name)
        assert why.startswith("the image has no function")
        assert len(why) < 200


def test_a_function_that_was_added_or_renamed_is_not_the_same():
    base, head = cubin("sm_90a", "base"), cubin("sm_90a", "added_after")
    assert same_function(base, head, "added") == same_function(head, base, "added") == "the image has no function added"


def test_of_two_tables_of_symbols_a_section_has_to_name_one():
    """From compute capability 10.0 on. Of one table there is no doubt, and the driver asks for none."""
    base, head = (with_section(cubin("sm_100a", build), ".nv.info", link=4) for build in ("base", "factor"))
    assert same_function(base, head, "math") == "the image cannot be read: it names a symbol that it does not have"
    base, head = (with_section(cubin("sm_90a", build), ".nv.info", link=4) for build in ("base", "factor"))
    assert same_function(base, head, "math") == ""


@pytest.mark.parametrize("place", [".debug_frame", ".text.scale"])
def test_what_is_not_compared_is_nothing_that_code_refers_to(place):
    """An address, put among those that kernels read, of a section whose content is not compared."""
    built = []
    for build in ("base", "factor"):
        found = image("sm_90a", build)
        number = [one.name for one in found.symbols[found.named[".symtab"]]].index(place)
        built.append(with_bytes(cubin("sm_90a", build), ".rela.nv.constant4", 12, struct.pack("<I", number)))
    assert same_function(*built, "math") == f"section .rela.nv.constant4 refers to {place}"


def test_a_function_is_where_its_symbol_is():
    """A symbol that leads to another kernel's instructions, beside instructions that no symbol leads to."""
    found = image("sm_90a", "base")
    scale = [one.name for one in found.symbols[found.named[".symtab"]]].index("scale")
    base, head = (
        with_bytes(cubin("sm_90a", build), ".symtab", 24 * scale + 6, struct.pack("<H", found.named[".text.math"]))
        for build in ("base", "bounds")
    )
    assert same_function(base, head, "scale") == "the image has no function scale"


# ---------------------------------------------------------------- damage


COMPARED = [".text.{}", ".nv.info.{}", ".nv.constant0.{}", ".nv.constant3", ".nv.constant4", ".nv.global.init"]
COMPARED += [".nv.compat", ".nv.capmerc.text.{}", ".nv.merc.nv.info.{}", ".nv.merc.rela.text.{}", ".rela.text.{}"]
COMPARED += [".rela.nv.constant4", ".rela.nv.global.init", ".nv.merc.nv.constant.user", ".nv.constant2.{}"]


def compared(architecture, build, function):
    """Where in the file what is compared of a function lies."""
    found = image(architecture, build)
    names = [name.format(function) for name in COMPARED]
    sections = [found.sections[found.named[name]] for name in names if name in found.named]
    return [at for section in sections for at in range(section.offset, section.offset + len(found.content(section)))]


CASES = [
    ("sm_80", "base", "chooses"),
    ("sm_90a", "base", "scale"),
    ("sm_90a", "linked", "far"),
    ("sm_100a", "base", "calls"),
    ("sm_100a", "linked", "chosen"),
]


@settings(max_examples=300)
@given(case=st.sampled_from(CASES), data=st.data())
def test_no_bit_of_what_is_compared_may_change(case, data):
    architecture, build, function = case
    base = cubin(architecture, build)
    head = bytearray(base)
    head[data.draw(st.sampled_from(compared(*case)))] ^= 1 << data.draw(st.integers(0, 7))
    assert same_function(base, bytes(head), function)
    assert same_function(bytes(head), base, function)


def test_all_bytes_of_a_kernel_count():
    base = cubin("sm_90a", "base")
    section = image("sm_90a", "base").sections[image("sm_90a", "base").named[".text.scale"]]
    code = base
    for at in range(section.offset, section.offset + section.size, 3):  # of 16 bytes, each instruction's other ones
        head = bytearray(base)
        head[at] ^= 1 << at % 8
        assert same_function(code, bytes(head), "scale") == "its machine code differs"


@settings(max_examples=300)
@given(case=st.sampled_from(CASES), data=st.data())
def test_damage_is_never_an_error_and_never_hides_a_change(case, data):
    """Some bytes anywhere, most of them in headers and tables, in an image whose kernel differs."""
    architecture, build, function = case
    base = cubin(architecture, build)
    kernel = image(architecture, build).sections[image(architecture, build).named[f".text.{function}"]]
    head = bytearray(base)
    table = struct.unpack_from("<Q", base, 40)[0]
    places = st.one_of(st.integers(0, 63), st.integers(table, len(base) - 1), st.integers(0, len(base) - 1))
    for _ in range(data.draw(st.integers(0, 6))):
        head[data.draw(places)] = data.draw(st.integers(0, 255))
    same_function(base, bytes(head), function)
    if data.draw(st.booleans()):
        head = head[: data.draw(st.integers(0, len(head)))]
    same_function(base, bytes(head), function)
    head[kernel.offset : kernel.offset + 1] = bytes([base[kernel.offset] ^ 1])
    assert same_function(base, bytes(head), function)


@settings(max_examples=100)
@given(case=st.sampled_from(CASES), data=st.data())
def test_sections_that_trade_places_are_not_the_same(case, data):
    architecture, build, function = case
    base = cubin(architecture, build)
    found = image(architecture, build)
    first, second = data.draw(
        st.lists(st.sampled_from([one for one in found.sections if one.size]), min_size=2, max_size=2, unique=True)
    )
    head = with_section(base, first.name, offset=second.offset, size=second.size)
    head = with_section_of(head, found, second.name, offset=first.offset, size=first.size)
    why = same_function(base, head, function)
    if {first.name, second.name} & {name.format(function) for name in COMPARED}:
        assert why or found.content(first) == found.content(second)


def with_section_of(data, found, section, **fields):
    """As with_section, of an image whose sections overlap until this is done."""
    offset = struct.unpack_from("<Q", data, 40)[0] + 64 * found.named[section]
    changed = bytearray(data)
    struct.pack_into("<QQ", changed, offset + 24, fields["offset"], fields["size"])
    return bytes(changed)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_images_by_an_older_compiler_are_compared_too(architecture):
    """Of CUDA 12.8, as Triton 3.5 bundles it."""
    base = cubin(architecture, "old")
    found = {build: cubin(architecture, build) for build in ("old_factor", "old_registers", "base")}
    assert [one for one in ALL if same_function(base, found["old_factor"], one)] == ["scale"]
    assert same_function(base, found["old_registers"], "scale") == "its resources differ"
    assert all(same_function(base, found["base"], one) for one in ALL)


def test_registers_in_the_header_of_a_section_count():
    """Up to ABI 7 they stand above the symbol's index."""
    base = cubin("sm_80", "old")
    assert image("sm_80", "old").header[0][3] == 7
    info = image("sm_80", "old").sections[image("sm_80", "old").named[".text.scale"]].info
    assert info >> 24
    assert same_function(base, with_section(base, ".text.scale", info=info + (1 << 24)), "scale") == (
        "its machine code differs"
    )


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("link", [0, 5])
def test_attributes_that_name_no_table_of_symbols_are_of_the_only_one(architecture, link):
    """As images of cuBLAS are written: those of its `cutlass_80_simt_sgemm` name a section that is no such table."""
    written = cubin(architecture, "base")
    bare = with_section(written, ".nv.info", link=link)
    assert image(architecture, "base").sections[link].name != ".symtab"
    for name in ("scale", "chooses"):
        assert same_function(bare, bare, name) == same_function(written, written, name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_folder_that_a_file_is_compiled_in_changes_nothing(architecture):
    """Its digest is in the name of whatever is internal to the file: base and head are compiled in two."""
    base = cubin(architecture, "internal")
    kernels = {name.split("internal_cu_")[-1]: name for name in functions(base)}
    assert len(kernels) == 3
    moved = cubin(architecture, "internal_elsewhere")
    assert functions(base) != functions(moved)
    assert {same_function(base, moved, name) for name in kernels.values()} == {""}
    factor = {name: same_function(base, cubin(architecture, "internal_factor"), name) for name in kernels.values()}
    assert [name for name, why in factor.items() if why] == [name for name in kernels.values() if "shaped" in name]
    first = cubin(architecture, "internal_first")
    assert {same_function(base, first, name) for name in kernels.values()} == {"section .nv.global.init differs"}


def test_two_files_of_one_name_are_not_taken_for_each_other():
    """Names that differ in that digest alone, in one image."""
    base = cubin("sm_90a", "internal")
    (hidden,) = (name for name in functions(base) if "hidden" in name)
    (shaped,) = (name for name in functions(base) if "shaped" in name)
    digest = hidden.split("_GLOBAL__N__")[1][:8]
    other = base.replace(b"6shapedIfEEvPT_\0", b"6hiddenEPf\0IfEE\0").replace(
        f"_ZN44_GLOBAL__N__{digest}_11_internal_cu_d589cb606hiddenEPf\0IfEE".encode(),
        f"_ZN44_GLOBAL__N__{'0' * 8}_11_internal_cu_d589cb606hiddenEPf\0IfEE".encode(),
    )
    assert other != base
    assert shaped not in functions(other)
    assert "two functions in the image are called" in same_function(other, other, hidden)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("_ZN37_INTERNAL_7cba65fd_7_cuda_cu_012c2c224cuda3std3__45__cpo4nextE", "_ZN37_INTERNAL_00000000_7_cuda_cu_"),
        ("_ZN32_GLOBAL__N__b702ff5c_4_k_cu_open6hiddenEPf", "_ZN32_GLOBAL__N__00000000_4_k_cu_open6hiddenEPf"),
        ("__nv_static_21__b702ff5c_4_k_cu_open_table", "__nv_static_21__00000000_4_k_cu_open_table"),
        ("_ZN12_GLOBAL__N_16hiddenEPf", "_ZN12_GLOBAL__N_16hiddenEPf"),
        ("_Z18_INTERNAL_deadbeefv", "_Z18_INTERNAL_deadbeefv"),
    ],
)
def test_names_without_the_path_of_their_file(name, known):
    assert without_path(name).startswith(known)
    assert len(without_path(name)) == len(name)
