"""What a worker knows of machine code without a GPU: the names in images, and how parameters' padding is found."""

import ctypes
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.worker.maps import Piece
from perfci.worker.work.captures import Capture, Values, drawing_again, filled, padding_of, why_unsteady
from perfci.worker.work.elf import demangled, functions, variables
from perfci.worker.work.memory import HEAP, Destination, Memory, _bounds
from tests.work.recorded import documents

IMAGES = [bytes.fromhex(held) for held in documents()["images"].values()]


def test_names_of_kernels_and_variables_are_those_of_the_image() -> None:
    names = [functions(image) for image in IMAGES]
    assert all(names)
    assert frozenset({"_scaled"}) in names
    assert any({"_Z19work_another_behindPKfPfif", "_Z4lastPf"} == set(one) for one in names)
    tables = {name: variables(image) for image in IMAGES for name in functions(image)}
    assert tables["_Z17work_device_tablePKfPfif"] == ["table"]
    assert tables["_Z20work_constant_memoryPKfPfif"] == ["table"]
    assert tables["_scaled"] == []


@given(st.sampled_from(IMAGES), st.data())
def test_damaged_images_name_something_or_nothing(image: bytes, data: st.DataObject) -> None:
    damaged = bytearray(image[: data.draw(st.integers(0, len(image)))])
    for _ in range(data.draw(st.integers(0, 20)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(functions(bytes(damaged)), frozenset)
    assert isinstance(variables(bytes(damaged)), list)


TENSOR = 1 << 40


def unsteady(*launches: Values | None) -> str:
    """The first two times over: as what finds no memory in its place."""
    return why_unsteady([Capture([one], [0]) for one in (*launches[:1], *launches)])


def values(held: str, *addresses: int, function: str = "f") -> Values:
    return Values(function, [bytes.fromhex(held)], [dict.fromkeys(addresses, Destination(False, TENSOR))])


ADDRESS, NUMBER = "00" * 8, "11" * 8


def stirred(*launches: Values | None, fills: Sequence[int | None] = (None, 0xA1, 0xB2, None)) -> list[Capture]:
    return [Capture([one], [], fill) for one, fill in zip(launches, fills, strict=True)]


@pytest.mark.parametrize(
    ("launches", "padding"),
    [
        ([values(one) for one in ("001122", "00a122", "00b222", "003322")], [(set(), {1})]),
        # Somebody computes it, or writes one of the bytes that filled the stack.
        ([values(one) for one in ("001122", "00a122", "003322", "004422")], [(set(), set())]),
        ([values(one) for one in ("00a122", "00a122", "00a122", "00a122")], [(set(), set())]),
        # Always an address: data, wherever it leads to.
        ([values(ADDRESS, 0)] * 4, [(set(), set())]),
        # An address in some, and none in the others.
        ([values(ADDRESS, 0), values("a1" * 8), values("b2" * 8), values(NUMBER)], [({0}, set(range(8)))]),
        ([values(ADDRESS + ADDRESS, 0, 8), *[values(ADDRESS + ADDRESS, 0)] * 3], [({8}, set())]),
        # Another launch, or one of the side's own.
        ([*[values("001122")] * 3, values("00ff22", function="g")], None),
        ([*[values("001122")] * 3, values("00ff2233")], None),
        ([*[values("001122")] * 3, None], None),
        ([*[values("001122")] * 3, values("001122")._replace(own=True)], None),
        ([None] * 4, None),
    ],
)
def test_padding_is_what_holds_the_byte_that_filled_the_stack(launches: list, padding: list | None) -> None:
    assert padding_of(stirred(*launches)) == [padding]


def test_padding_of_ones_own_structures_that_is_filled_differs_from_nothing() -> None:
    held = [values(one)._replace(own=True) for one in ("0011", "0011", "a111", "b211", "0011")]
    fills = (None, None, 0xA1, 0xB2, None)
    assert why_unsteady(stirred(*held, fills=fills)) == ""
    held[-1] = values("0111")._replace(own=True)
    assert "its parameter 0 differs from capture to capture" in why_unsteady(stirred(*held, fills=fills))


def test_captures_that_launch_more_or_less_tell_of_no_padding() -> None:
    """Which launch is which is not known: what differs may be data of two."""
    several = stirred(*[values("00")] * 4)
    assert padding_of([*several[:-1], Capture([values("00"), values("01")], [])]) == []
    assert padding_of([]) == padding_of(several[:2]) == [], "a byte of one capture may be a number"


def launched(held: str, *addresses: int, own: bool = True, grid: int = 1, function: str = "f") -> Values:
    launch = ((grid, 1, 1), (128, 1, 1), 0)
    return values(held, *addresses, function=function)._replace(own=own, launch=launch)


@pytest.mark.parametrize(
    ("captures", "why"),
    [
        ([launched("0011"), launched("0011")], ""),
        ([launched("0011"), launched("0022")], "kernel f: its parameter 0 differs from capture to capture"),
        # What a library leaves unwritten, and where tensors lie, may differ.
        ([launched("0011", own=False), launched("0022", own=False)], ""),
        ([launched(ADDRESS, 0), launched(NUMBER, 0)], ""),
        ([launched(ADDRESS, 0), launched(NUMBER)], "kernel f: its parameter 0 differs from capture to capture"),
        ([launched("00", own=False), launched("00", own=False, grid=2)], "kernel f: its launch differs from"),
        ([launched("00"), launched("00", function="g")], "kernel f: its launch differs from"),
        ([launched("00"), launched("0000")], "kernel f: its launch differs from"),
        ([launched("00"), None], ""),
    ],
)
def test_executions_that_launch_something_else_each_time_are_not_compared(captures: list, why: str) -> None:
    said = unsteady(*captures)
    assert said.startswith(why) and bool(said) == bool(why)


def pointing(address: int, *, own: bool = True, graph: bool = False) -> Values:
    return Values("f", [bytes(8)], [{0: Destination(graph, address)}], own, ((1, 1, 1), (32, 1, 1), 0))


@pytest.mark.parametrize("own", [False, True])
def test_executions_that_read_other_memory_at_times_are_not_compared(own: bool) -> None:
    here, there, graph = pointing(TENSOR, own=own), pointing(TENSOR + 512, own=own), pointing(0, own=own, graph=True)
    said = "kernel f: its parameter 0 leads elsewhere from capture to capture"
    assert unsteady(here, here) == unsteady(graph, graph) == ""
    assert unsteady(here, there) == unsteady(here, graph) == said
    assert unsteady(pointing(512, own=own, graph=True), graph) == said


def test_the_first_capture_may_have_its_own_memory_elsewhere_and_nothing_else() -> None:
    def captured(offset: int, *, inside: bool = True, beside: int = 0) -> Capture:
        return Capture([pointing(offset, graph=inside)], [beside, Destination(inside, offset)])

    steady = [captured(0)] * 3
    assert why_unsteady([captured(512), *steady]) == ""
    assert why_unsteady([*steady, captured(512)]) == "what it gives the GPU differs from capture to capture"
    assert why_unsteady([captured(0, inside=False), *steady]) == why_unsteady([captured(0, beside=1), *steady]) != ""


def test_executions_that_do_more_at_times_are_not_compared() -> None:
    one = launched("00")
    several = [Capture([one], [0, 1]), Capture([one], [0])]
    assert why_unsteady(several) == "what it gives the GPU differs from capture to capture"
    assert why_unsteady(several[:1]) == why_unsteady([*several[:1] * 3]) == ""


@pytest.mark.torch
def test_what_a_capture_draws_on_the_host_is_drawn_again_by_the_next() -> None:
    """Else it would differ from capture to capture, as what nobody writes does."""
    torch = pytest.importorskip("torch")
    again = drawing_again(torch)

    def draw() -> tuple[float, float, float]:
        return random.random(), float(torch.rand(())), float(numpy.random.rand())

    first = draw()
    assert draw() != first
    again()
    assert draw() == first
    again()
    assert draw() == first


def test_names_of_cpp_are_written_for_people() -> None:
    pytest.importorskip("torch")  # which needs the library that knows them
    assert demangled("_Z9work_gridPKfPfif") == "work_grid(float const*, float*, int, float)"
    assert [demangled(name) for name in ("_scaled", "_Z", "", "_Z\udc80")] == ["_scaled", "_Z", "", "_Z\udc80"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_bytes_that_nobody_writes_hold_what_fills_the_stack(tmp_path: Path) -> None:
    """As an operator's structures do: a function's variables, and no other call between."""
    path = tmp_path / "left.so"
    code = '#include <string.h>\nvoid left(char *out) { char some[2048]; __asm__("" : "=m"(some)); memcpy(out, some, 2048); }'
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=code, text=True, check=True)
    left = ctypes.CDLL(str(path)).left

    def called() -> bytes:
        out = ctypes.create_string_buffer(2048)
        left(out)
        return out.raw

    plain = called()
    for fill in (0x5A, 0xC3):
        with filled(None, fill):
            held = called()
        assert held.count(fill) > 1500
        assert plain.count(fill) < 500
    assert sys.gettrace() is None or "coverage" in sys.modules


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc's heap")
def test_forks_allocate_in_the_same_ways_at_other_places() -> None:
    """So that numbers which malloc leaves on the stack are the same in each, and addresses are not."""
    code = """
import ctypes, os, random, sys
from perfci.worker.work.captures import _allocated, displace_heap
libc = ctypes.CDLL(None)
kept = [_allocated(random.randrange(16, 3000)) for _ in range(4000)]
for chunk in random.sample(kept, 2000):
    libc.free(ctypes.c_void_p(chunk))
for _ in range(8):
    if os.fork() == 0:
        displace_heap()
        print(*(_allocated(size) for size in (24, 184, 600, 1000, 5000, 40000) for _ in range(3)), flush=True)
        os._exit(0)
    os.wait()
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    places = [[int(address) for address in line.split()] for line in told]
    assert len(places) == 8 and len({one[0] for one in places}) > 4
    assert len({tuple(address - one[0] for address in one) for one in places}) == 1


@pytest.mark.torch
@pytest.mark.parametrize("before", range(0, 24, 4))
@pytest.mark.parametrize("behind", [0, 2, 4])
def test_memory_that_holds_an_address_at_a_multiple_of_4_bytes_says_so(before: int, behind: int) -> None:
    memory = Memory.__new__(Memory)
    memory.torch = pytest.importorskip("torch")
    known = TENSOR + (5 << 30)
    memory.driver = SimpleNamespace(memory=lambda address: "device" if address == known else None)
    memory.bounds = [1 << 12, 1 << 20, TENSOR, TENSOR + (6 << 30)]

    def names(address: int) -> bool:
        return memory._held(bytes(before) + address.to_bytes(8, "little") + bytes(behind)).endswith("addresses")

    assert names(known)
    assert not names(known + 1) and not names(known + (1 << 34))


def test_an_address_of_the_host_leads_to_a_place_in_a_file_or_to_memory() -> None:
    high = 0x7F12 << 32
    memory = Memory.__new__(Memory)
    memory.mapped = [
        Piece(1 << 22, 1 << 23, "r-xp", "/usr/bin/python3"),  # not position-independent
        Piece(1 << 23, 1 << 24, "rw-p", HEAP),
        Piece(high, high + (1 << 30), "rw-p", ""),
        Piece(high + (1 << 30), high + (2 << 30), "r-xp", "/lib/torch.so", 4096),
    ]
    for number in (0, 5_000_000, 1 << 22, high - 1, high + (2 << 30), (1 << 63) + 5):
        assert memory.of_host(number) is None
    assert memory.of_host((1 << 23) + 64) == memory.of_host(high + (1 << 29)) == ("", 0)
    assert memory.of_host(high + (1 << 30) + 7) == ("/lib/torch.so", 4096 + 7)


def test_mappings_are_bounded_with_small_gaps_left_out() -> None:
    ends = [(1 << 40, (1 << 40) + 4096), ((1 << 40) + 8192, (1 << 40) + 12288), (1 << 46, (1 << 46) + 4096)]
    assert _bounds(ends) == [1 << 40, (1 << 40) + 12288, 1 << 46, (1 << 46) + 4096]
    assert _bounds([((1 << 64) - 8192, (1 << 64) - 4096)]) == []
