"""The schedule of a worker pair, and what becomes of its samples."""

import math
import os
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.measure import rounds as measure_rounds
from perfci.measure.costs import Costs
from perfci.measure.rounds import _Taking, _turns, launch_gap_notes, run_round, together, worker_value
from perfci.measure.timing import Setup
from perfci.model.base import SIDES, Side
from perfci.model.results import Case, CaseSide, Reason
from perfci.system.child import Died
from perfci.system.starter import Worker
from tests.measure.driven import Clock


@given(st.integers(1, 20), st.integers())
def test_turns_mirror_each_other(couples: int, seed: int) -> None:
    """Each side gets every block, and a drift that is linear in time cancels within each couple."""
    turns = _turns(2 * couples, ["base", "head"], random.Random(seed))
    assert turns.count("base") == turns.count("head") == 2 * couples
    for start in range(0, len(turns), 4):
        couple = turns[start : start + 4]
        assert couple == couple[::-1]
        assert couple.count("base") == 2


UNSOUND = [[[1e-3] * 20, [1e-3, bad, *[1e-3] * 18]] for bad in (math.nan, math.inf, 0.0, -1e-3)]


@pytest.mark.parametrize("samples", [*UNSOUND, [], [[1e-3], []]])
def test_an_unsound_sample_is_never_averaged_away_and_none_are_no_value(samples: list[list[float]]) -> None:
    assert math.isnan(worker_value(samples))


def test_an_outlier_is_trimmed() -> None:
    assert worker_value([[1e-3] * 9 + [5e-2]]) == pytest.approx(1e-3)


def test_a_case_that_starves_the_gpu_is_named() -> None:
    """In more than half of its blocks the GPU waited: its times hold launch gaps, and the report must say so."""
    from perfci.model.plan import Plan
    from perfci.model.results import Pair

    plan = Plan(seed=0, sides=["base", "head"])

    def case(name: str, gaps: int) -> Case:
        pairs = [
            Pair(index=i, values={"head": {"time": 1.0}}, blocks=4, gaps={"base": 0, "head": gaps}) for i in range(8)
        ]
        return Case(id=name, kernel=name, device="cuda", sides={"head": CaseSide()}, pairs=pairs)

    assert launch_gap_notes([case("queued", 0), case("now_and_then", 2)], plan) == []
    (note,) = launch_gap_notes([case("queued", 0), case("synchronises", 4)], plan)
    assert "times of synchronises:" in note


REPLIES: dict[str, dict[str, object]] = {
    "open": {"warm": 0.0},
    "block": {"times": [1e-3], "hertz": None, "drained": False},
    "warm": {},
    "host": {"times": [3e-6, 1e-6, 2e-6], "waits": False},
    "close": {"ok": True, "tuner": "", "chosen": []},
}


class Told(Worker):
    """In the place of a worker: writes down what it is asked and when its answer is waited for."""

    def __init__(self, name: str, said: list[str], dies_at: str = "") -> None:
        self.name, self.said, self.dies_at, self.log = name, said, dies_at, Path(f"{name}.log")
        self.pid = os.getpid()

    def begin(self, op: str, **fields: object) -> None:
        self.op = op
        self.said.append(f"{op} {self.name}")

    def answer(self, timeout: float) -> dict[str, object]:
        self.said.append(f"- {self.name}")
        if self.op == self.dies_at:
            raise Died(Reason(kind="crash", text="gone"))
        return REPLIES[self.op]


def taken(mode: str, tuner: str | None, dies_at: str = "", **more: Any) -> tuple[list[str], _Taking]:
    """What the workers of one pair are asked, of one placement with two blocks a side, where `more` says no other."""
    sides = {name: CaseSide(tuner=tuner) for name in SIDES}
    case = Case(id="a", kernel="a", device="cuda", sides=sides)
    setup = replace(Setup(mode, batch=1, samples=1, placements=1, blocks=2, seconds=0.1), **more)
    bench: Any = SimpleNamespace(setups={case.key: setup}, costs=Costs(), timeout=1.0)
    said: list[str] = []
    workers: Any = {"base": Told("base", said, dies_at), "head": Told("head", said)}
    taking = _Taking(bench, case, list(SIDES), verify=False)
    taking.take(workers, together(setup, taking.names, random.Random(1)))
    return said, taking


def names(said: list[str], op: str) -> list[str]:
    return [line.removeprefix(f"{op} ") for line in said if line.startswith(f"{op} ")]


@pytest.mark.parametrize(("mode", "tuner"), [("rotating", ""), ("hot", "")])
def test_opening_and_closing_is_done_side_by_side_and_timing_never(mode: str, tuner: str) -> None:
    said, taking = taken(mode, tuner)
    first, second = names(said, "open")
    assert said[:4] == [f"open {first}", f"open {second}", f"- {first}", f"- {second}"]
    for start in range(4, 12, 2):
        op, name = said[start].split()
        assert op == "block" and said[start + 1] == f"- {name}", "one at a time"
    assert said[12:] == [f"close {first}", f"close {second}", f"- {first}", f"- {second}"]
    assert taking.failures == {} and taking.outcome().pair is not None


@pytest.mark.parametrize(("mode", "tuner"), [("rotating", "Triton's"), ("rotating", None), ("cold", ""), ("cpu", "")])
def test_a_case_that_may_tune_or_learns_as_it_warms_is_opened_in_turns(mode: str, tuner: str | None) -> None:
    said, _ = taken(mode, tuner)
    first, second = names(said, "open")
    assert said[:4] == [f"open {first}", f"- {first}", f"open {second}", f"- {second}"]


@pytest.mark.parametrize(("mode", "read"), [("cpu", {*SIDES}), ("rotating", set()), ("cold", set())])
def test_blocks_of_both_sides_are_read_by_the_second_clock_on_a_cpu(mode: str, read: set[Side]) -> None:
    said, taking = taken(mode, "", placements=2, blocks=4)
    asked = [line for line in said if not line.startswith("- ")]
    warm = [at for at, line in enumerate(asked) if line.startswith("warm")]
    assert [asked[at + 1] for at in warm] == [asked[at].replace("warm", "block") for at in warm]
    assert len(warm) == (16 if read else 0)
    made = taking.outcome().pair
    assert made is not None and set(made.spent) == read and set(made.spent.values()) <= {1.0}


def test_a_worker_that_the_second_clock_contradicts_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfci.measure.second_clock.contradiction", lambda pairs, side: f"{side}: {len(pairs)} pairs")
    made = taken("cpu", "")[1].outcome()
    assert {name: one.text for name, one in made.failures.items()} == {name: f"{name}: 1 pairs" for name in SIDES}
    assert {one.kind for one in made.failures.values()} == {"invalid"}


@pytest.mark.parametrize("placements", [1, 3])
def test_host_times_are_taken_in_turns_behind_the_last_blocks(placements: int) -> None:
    said, taking = taken("rotating", "", placements=placements, host=8, hold=1e-4)
    asked = [line for line in said if not line.startswith("- ")]
    (first, second, *rest) = names(said, "host")
    assert rest == [second, first] and first != second
    assert asked.index(f"host {first}") == len(asked) - 6, "before the last closing, once all is timed"
    pair = taking.outcome().pair
    assert pair is not None and pair.seconds["host"] >= 0
    assert pair.values == {name: {"time": 1e-3, "host_time": 2e-6} for name in SIDES}, "their median"


def test_where_the_work_is_proved_host_times_alone_are_taken() -> None:
    said, taking = taken(tuner="", **vars(Setup("rotating", 1, 1, 8, 2, host=8).of_host()))
    assert {line.split()[0] for line in said} == {"open", "-", "host", "close"}
    pair = taking.outcome().pair
    assert pair is not None and pair.values == {name: {"host_time": 2e-6} for name in SIDES}


def test_a_host_time_that_is_none_leaves_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for times in ([], [1e-6, math.nan], [1e-6, -1e-6]):
        monkeypatch.setitem(REPLIES, "host", {"times": times, "waits": False})
        pair = taken("rotating", "", host=1)[1].outcome().pair
        assert pair is not None and all(math.isnan(values["host_time"]) for values in pair.values.values())


@pytest.mark.parametrize("op", ["open", "close"])
def test_where_one_side_dies_the_other_s_answer_is_read_all_the_same(op: str) -> None:
    """An answer that is left would be taken for that to the next question."""
    said, taking = taken("rotating", "", dies_at=op)
    assert said[-4:-2] == [f"{op} {name}" for name in names(said, op)]
    assert sorted(said[-2:]) == ["- base", "- head"]
    assert list(taking.failures) == ["base"] and taking.failures["base"].log == "logs/base.log"
    assert taking.outcome().pair is None


def verified(pairs: int, seed: int, *, alternating: bool) -> list[int]:
    """The pairs of a case whose results both sides were asked to check after timing."""
    case = Case(id="a", kernel="a", device="cuda", sides={name: CaseSide(tuner="") for name in SIDES})
    setup = Setup("rotating", batch=1, samples=1, placements=2, blocks=2, seconds=0.1, alternating=alternating)
    asked = list[tuple[int, Side]]()

    class Asked(Told):
        alive = True

        def begin(self, op: str, **fields: object) -> None:
            super().begin(op, **fields)
            if fields.get("verify"):
                asked.append((len(case.pairs), self.name))

        def dismiss(self) -> None: ...

        def close(self) -> None: ...

    bench: Any = SimpleNamespace(
        setups={case.key: setup}, costs=Costs(), timeout=1.0, lot=str(seed), sides=dict.fromkeys(SIDES), spare={},
        loaded=lambda worker: worker,
        begin=lambda name, beside=False, seed=0: Asked(name, []), worker=lambda name, seed=0: Asked(name, []),
    )  # fmt: skip
    for index in range(pairs):
        run_round(bench, [case], index, lambda outcome: case.pairs.append(outcome.pair))
    found = sorted({pair for pair, _ in asked})
    assert sorted(asked) == [(pair, name) for pair in found for name in SIDES], "once in each side"
    return found


@pytest.mark.parametrize("alternating", [False, True])
def test_no_seed_tells_which_pairs_are_checked_once_more(alternating: bool) -> None:
    """Head's code knows the seed, and could be right in those alone."""
    one, other = (verified(150, 0, alternating=alternating) for _ in range(2))
    assert one != other
    for found in (one, other):
        assert found[0] == 0 and 0.05 < len(found) / 150 < 0.6


def test_what_the_first_case_of_a_worker_loads_for_all_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that each worker loads at its first use, by whichever case comes first; `a` compiles besides."""
    clock = Clock()
    monkeypatch.setattr(measure_rounds, "time", clock)
    cases = {
        name: Case(id=name, kernel=name, device="cuda", sides={s: CaseSide(tuner="") for s in SIDES}) for name in "ab"
    }
    setup = Setup("rotating", batch=1, samples=1, placements=3, blocks=2, seconds=0.1)
    first = list[str]()

    class Loads(Told):
        alive = True

        def begin(self, op: str, **fields: Any) -> None:
            super().begin(op, **fields)
            opened = self.said.count("opened") > 0
            if op == "open":
                first.extend([] if opened else [fields["kernel"]])
                clock.now += 1 + 20 * (not opened) + 3 * (fields["kernel"] == "a" and "a" not in self.said)
                self.said += ["opened", fields["kernel"]]

        def dismiss(self) -> None: ...

        def close(self) -> None: ...

    bench: Any = SimpleNamespace(
        setups={case.key: setup for case in cases.values()}, costs=Costs(), timeout=1.0, lot="1", spare={},
        sides=dict.fromkeys(SIDES), loaded=lambda worker: worker,
        begin=lambda name, beside=False, seed=0: Loads(name, []),
    )  # fmt: skip
    for index in range(12):
        run_round(bench, [*cases.values()], index, lambda made: made.case.pairs.append(made.pair))
    assert {*first} == {"a", "b"}
    assert {pair.seconds["first"] for pair in cases["b"].pairs} == {2.0}
    own = [pair.seconds["first"] for pair in cases["a"].pairs]
    assert {*own} <= {2.0, 8.0} and sorted(own) == own, "known from the first pair that others precede"
    assert own[-1] == 8.0
