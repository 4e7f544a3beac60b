"""What a recorder writes of each draw, by a driver that tells what one would."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfci.work.lists import WorkList
from perfci.work.same import Recorded, why_not_same
from perfci.worker.gpu import WARM_CALLS
from perfci.worker.work import record
from perfci.worker.work.driver import KERNEL
from perfci.worker.work.memory import Destination

IMAGE = "ab" * 32
TENSOR = 1 << 40
TEXTURE = 77
LEFT_OVER = 0x7F12_3456_7890


class Launch(SimpleNamespace):
    """A launch of one capture: its grid and its number of 8 bytes behind an address."""


class Driver:
    """Hands out one capture after the other."""

    def __init__(self) -> None:
        self.captures: list[list[Launch]] = []
        self.attributes_now = {"registers": 16}
        self.managed = False
        self.shift = 0

    def primary(self) -> int:
        return 1

    def nodes(self, graph: int) -> list[tuple[int, int]]:
        return [(graph, number) for number in range(len(self.captures[graph]))]

    def edges(self, graph: int) -> list[Any]:
        return []

    def kind(self, handle: Any) -> int:
        return KERNEL

    def kernel(self, handle: tuple[int, int]) -> Any:
        launch = self.captures[handle[0]][handle[1]]
        launch.shift = self.shift
        return SimpleNamespace(
            func=7, kern=0, context=1, grid=[launch.grid, 1, 1], block=[32, 1, 1], shared=0, of=launch
        )

    def parameters(self, params: Any) -> list[tuple[int, bytes]]:
        words = TENSOR, params.of.number
        return [(0, bytes(params.of.shift) + b"".join(word.to_bytes(8, "little") for word in words))]

    def function(self, function: int) -> tuple[str, int]:
        return "kernel", 3

    def is_texture(self, handle: int) -> bool:
        return handle == TEXTURE

    def attributes(self, function: int) -> dict[str, int]:
        return dict(self.attributes_now)

    def launch_attributes(self, handle: Any) -> dict[str, str]:
        return {}

    def loaded_from(self, kernel: int) -> int:
        return 0

    def symbol(self, module: int, name: str) -> tuple[int, int]:
        return TENSOR + 4096, 16

    def memory(self, address: int) -> tuple[str, int, int]:
        return "managed" if self.managed else "device", address, address + 16

    def context(self) -> dict[str, int]:
        return {}


class Memory:
    shared = False

    def __init__(self, *parts: Any, **more: Any) -> None:
        self.listed: list[dict[str, Any]] = []

    def is_known(self, address: int) -> bool:
        return address == TENSOR

    def destination(self, address: int) -> Destination:
        return Destination(False, address)

    def find(self, address: int) -> tuple[int, int, int] | None:
        if address != TENSOR:
            return None
        self.listed = [{"kind": "tensor", "bytes": 64, "digest": "d"}]
        return 0, 0, 512

    def of_host(self, address: int) -> tuple[str, int] | None:
        return ("/lib/torch.so", 7) if address == LEFT_OVER else None

    def digest(self, begin: int, size: int) -> str:
        return "d"


class Sampler:
    def __init__(self, fns: Any) -> None:
        self.rig = SimpleNamespace(
            synchronize=lambda: EVENTS.append("synchronize"), forget_pool=lambda: None, torch=None, pool=(0, 1)
        )


EVENTS: list[str] = []


FILLS: list[int] = []


@contextmanager
def filled(torch: Any, fill: int) -> Iterator[None]:
    FILLS.append(fill)
    yield
    FILLS.clear()


@contextmanager
def listened() -> Iterator[None]:
    EVENTS.append("listen")
    yield
    EVENTS.append("no longer")


class Captured:
    """The captures of a process: of each draw, five of the first one, of which the third and fourth fill the stack."""

    def __init__(self, folder: Path, *, own: bool = False) -> None:
        self.folder, self.driver = folder, Driver()
        images: Any = SimpleNamespace(
            listened=listened,
            held={IMAGE: b"code"},
            of=lambda *asked: IMAGE,
            is_own=lambda *asked: own,
            variables=lambda image: ["table"],
        )
        folder.mkdir()
        self.record = record.Record(images, folder, ["/side/lib"])
        self.record.driver = self.driver  # type: ignore[assignment]

    def draw(self, *captures: tuple[int, int | None], last: bool = False) -> Recorded:
        """`captures`: grid and number of each; None where nobody writes it."""
        self.left = [[Launch(grid=grid, number=number)] for grid, number in captures]
        number = self.record.number
        self.record.add([lambda: EVENTS.append("call")], 1, last=last)
        assert not self.left
        written = json.loads((self.folder / record.FILE.format(number)).read_text())
        return Recorded(WorkList.model_validate(written), {IMAGE: b"code"})


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "Driver", Driver)
    monkeypatch.setattr(record, "Memory", Memory)
    monkeypatch.setattr(record, "GraphSampler", Sampler)
    monkeypatch.setattr(record, "drawing_again", lambda torch: lambda: None)
    monkeypatch.setattr(record, "filled", filled)
    monkeypatch.setattr(record.Record, "_settings", lambda self: {})


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[Captured] = []

    def begin(**more: Any) -> Captured:
        made.append(Captured(tmp_path / str(len(made)), **more))
        return made[-1]

    def captured(sampler: Any, batch: int) -> int:
        of = next(one for one in made if getattr(one, "left", None))
        launches = of.left.pop(0)
        for launch in launches:
            launch.number = (
                int.from_bytes(bytes(FILLS or [0]) * 8, "little") if launch.number is None else launch.number
            )
        of.driver.captures.append(launches)
        return len(of.driver.captures) - 1

    monkeypatch.setattr(record, "_captured", captured)
    return begin


STEADY = [(1, 100)] * 5


def compared(process: Any, base: list[list[tuple[int, int]]], head: list[list[tuple[int, int]]], **more: Any) -> str:
    """Why a draw of theirs is not known to be the same, two processes a side."""
    sides = []
    for draws in (base, head):
        lists = [[one.draw(*draw) for draw in draws] for one in (process(**more), process(**more))]
        sides.append(list(zip(*lists, strict=True)))
    return next(
        (why for ours, theirs in zip(*sides, strict=True) if (why := why_not_same(ours, theirs, lambda *code: ""))), ""
    )


def test_the_same_work_is_the_same_in_every_draw(process: Any) -> None:
    assert compared(process, [STEADY, [(1, 100)]], [STEADY, [(1, 100)]]) == ""
    assert compared(process, [STEADY, [(1, 100)]], [STEADY, [(1, 100)]], own=True) == ""


def test_draws_are_warmed_as_placements_are_and_only_what_the_case_waits_for_is_its_own(process: Any) -> None:
    of = process()
    EVENTS.clear()
    of.draw(*STEADY)
    of.draw((1, 100))
    first = ["listen", *["call"] * (WARM_CALLS + 1), "no longer", "synchronize"]
    assert [*first, "listen", "call", "no longer", "synchronize"] == EVENTS


def test_a_librarys_number_counts_in_every_draw(process: Any) -> None:
    """A scale that head keeps from its first set-up."""
    assert "bytes from 8" in compared(process, [STEADY, [(1, 101)]], [STEADY, [(1, 100)]])


def test_what_each_process_leaves_unwritten_is_no_number_in_any_draw(process: Any) -> None:
    left = [(1, 99), (1, 100), (1, None), (1, None), (1, 103)]
    assert compared(process, [left, [(1, 7)]], [left, [(1, 9)]]) == ""
    assert "bytes from 8" in compared(process, [left, [(1, 7)]], [STEADY, [(1, 9)]]), "head writes it"


@pytest.mark.parametrize("own", [False, True])
def test_a_path_that_only_some_executions_take_is_no_known_work(process: Any, own: bool) -> None:
    second = [(1 + n % 2, 100) for n in range(5)]
    assert "its launch differs from capture to capture" in compared(
        process, [[(2, 100), *STEADY[1:]]], [STEADY], own=own
    )
    assert "its launch differs from capture to capture" in compared(process, [STEADY], [second], own=own)


def test_own_numbers_that_change_from_call_to_call_are_no_known_work(process: Any) -> None:
    counting = [(1, 100 + n) for n in range(5)]
    assert "its parameter 0 differs from capture to capture" in compared(process, [counting], [counting], own=True)


def test_attributes_are_asked_again_in_each_draw(process: Any) -> None:
    of = process()
    first = of.draw(*STEADY)
    of.driver.attributes_now = {"registers": 32}
    second = of.draw((1, 100), last=True)
    assert [one.work.nodes[0].attributes for one in (first, second)] == [{"registers": 16}, {"registers": 32}]


def test_a_managed_variable_is_not_compared(process: Any) -> None:
    of = process()
    of.driver.managed = True
    assert of.draw(*STEADY).work.unread == ["variable table: it lies in managed memory, which moves"]


def test_what_lies_behind_a_texture_is_not_compared(process: Any) -> None:
    unread = process().draw(*[(1, TEXTURE)] * 5).work.unread
    assert unread == ["kernel kernel: it reads a texture or a surface, whose contents are not compared"]


@pytest.mark.parametrize("own", [False, True])
def test_an_address_in_a_packed_structure_of_ones_own_is_not_compared(process: Any, own: bool) -> None:
    of = process(own=own)
    of.driver.shift = 4
    unread = of.draw(*STEADY).work.unread
    assert unread == (["kernel kernel: an address stands where compilers put none"] if own else [])


def test_what_leads_into_a_file_is_its_place_there_unless_a_part_is_left_over(process: Any) -> None:
    def parameter(*captures: int | None) -> Any:
        return process().draw(*((1, number) for number in captures)).work.nodes[0].parameters[0]

    still = parameter(*[LEFT_OVER] * 5)
    assert still.host == [] and still.bytes[16:] not in ("00" * 8, LEFT_OVER.to_bytes(8, "little").hex())
    left = parameter(LEFT_OVER, LEFT_OVER, None, None, LEFT_OVER)
    assert left.host == [] and left.unwritten == [*range(8, 16)]


def test_padding_of_a_draw_is_none_of_one_that_launches_another_grid(process: Any) -> None:
    left = [(1, 99), (1, 100), (1, None), (1, None), (1, 103)]
    assert "bytes from 8" in compared(process, [left, [(2, 7)]], [left, [(2, 9)]])
