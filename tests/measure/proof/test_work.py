"""Recording in the time that a budget leaves: what was recorded in it is compared."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfci.measure.proof import work
from perfci.system.users import SAME
from perfci.work.files import WorkAnswer, refused

NAMES = [f"case/n={number}" for number in range(8)]


class Clock:
    """Recording one case, in however many processes at once, takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def compared(
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float,
    exclusive: bool = False,
    roomy: bool = True,
    lanes: int = 1,
    fair: bool = True,
) -> tuple[set[str], dict[str, WorkAnswer]]:
    """Return the cases whose lists of four processes were compared, and all answers."""
    clock = Clock()
    read: set[str] = set()

    class Recorder:
        def __init__(self, place: Any, name: str, process: int, draws: Any) -> None:
            self.name, self.process, self.workers = name, process, []

        def record(self, case: Any, target: Path, until: float) -> Iterator[Any]:
            (target / "list").write_text(case.id)
            yield object()
            clock.now += (1.0 if exclusive else 0.25 if roomy else 0.5) / lanes
            return "it is broken" if case.id == "broken" else ""

    def reads(
        function: Any, bounds: Any, folder: Path, account: Any, cases: dict[str, Any], draws: int
    ) -> dict[str, WorkAnswer]:
        for name, sides in cases.items():
            assert {side: len(folders) for side, folders in sides.items()} == {"base": 2, "head": 2}
            assert {(one / "list").read_text() for folders in sides.values() for one in folders} == {name}
            read.add(name)
        return {name: refused("compared") for name in cases}

    monkeypatch.setattr(work, "time", clock)
    monkeypatch.setattr(work, "_Recorder", Recorder)
    monkeypatch.setattr(work, "call", reads)
    monkeypatch.setattr(work, "wait_first", lambda waits: waits[0] if fair else random.choice(waits))
    monkeypatch.setattr(work, "most_lanes", lambda device: lanes)
    ok = SimpleNamespace(status="ok", reason=None, tuner="")
    cases = [
        SimpleNamespace(id=name, key=name, kernel=name, sides={"base": ok, "head": ok}) for name in ["broken", *NAMES]
    ]
    bench = SimpleNamespace(setups={name: replace(work._ONE, pairs=2 * lanes * roomy) for name in ["broken", *NAMES]})
    place = SimpleNamespace(
        benches={"cuda": bench},
        sides=("base", "head"),
        parent=SimpleNamespace(account=SAME),
        exclusive=lambda device: exclusive,
    )
    found = work.compare_work(cases, place, lambda _: None, end=seconds)  # type: ignore[arg-type]  # what it reads
    return read, found


LIVES = [
    {"exclusive": False},
    {"exclusive": False, "lanes": 3},
    {"exclusive": False, "roomy": False},
    {"exclusive": True},
]


@pytest.mark.parametrize("how", LIVES)
def test_with_time_for_all_every_case_is_compared_but_what_cannot_be_recorded(monkeypatch, how):
    read, found = compared(monkeypatch, seconds=1000.0, fair=False, **how)
    assert read == set(NAMES)
    assert found["broken"].why_not in ("base: it is broken", "head: it is broken")


@pytest.mark.parametrize(("how", "seconds"), list(zip(LIVES, (4.5, 1.5, 9.0, 18.0), strict=True)))
def test_what_was_recorded_in_time_is_compared(monkeypatch, how, seconds):
    """Not all by the first process of each side, and none by the second."""
    read, found = compared(monkeypatch, seconds=seconds, **how)
    assert len(read) >= 4
    assert read < set(NAMES)
    late = set(NAMES) - read
    assert {found[name].why_not for name in late} == {"the budget is needed for pairs"}
