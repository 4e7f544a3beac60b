"""Checks of several kernels at once: the same answers as one after the other, and each alone where memory is short."""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.agreement import Quiet
from perfci.measure import checker, checks
from perfci.measure.bench import Bench, CheckReply
from perfci.measure.cases import Declarations
from perfci.measure.checker import Checker
from perfci.measure.checks import _forget_tuning, lanes, longer_hosts, settle_all, settle_hosts
from perfci.measure.costs import Costs
from perfci.measure.request import Request
from perfci.measure.run import Measurement
from perfci.measure.timing import Probe, Setup
from perfci.model.base import SIDES
from perfci.model.fingerprint import GpuFacts
from perfci.model.results import Case, CaseSide, Check, Reason, Results
from perfci.model.timing import Timing
from perfci.system import facts
from perfci.system.child import Died
from perfci.system.starter import Worker
from perfci.worker.checks import redraw
from tests.e2e.conftest import Repo
from tests.judge.build import limit

SUITE = """
import os
import perfci

NOTES = {notes!r}
open(os.path.join(NOTES, str(os.getpid())), "w").close()


def alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def work(number, bench):
    values = [bench.random.random() for _ in range(2000)]
    bench.reference(lambda: sum(values))

    def run():
        if number == 3 and len([pid for pid in os.listdir(NOTES) if alive(pid)]) > 4:  # more than in a round
            open(NOTES + ".short", "w").close()
            raise RuntimeError("CUDA out of memory")
        return sum(values) + (number == 2)

    return run

{kernels}
"""
KERNEL = """
@perfci.kernel(devices=["cpu"])
def kernel_{number}(bench):
    return work({number}, bench)
"""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite of five kernels: 2 is wrong, 3 has no memory beside many others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # no run beside this one holds its lease
    repo, notes = Repo(tmp_path / "repo", dict(os.environ)), tmp_path / "notes"
    notes.mkdir()
    kernels = "".join(KERNEL.format(number=number) for number in range(5))
    repo.write("kernels/k.py", SUITE.format(notes=str(notes), kernels=kernels))
    repo.policy()
    repo.commit()
    return repo.root


def case(kernel: str, number: int) -> Case:
    return Case(id=f"{kernel}/n={number}", kernel=kernel, device="cuda", sides={})


def test_cases_of_a_kernel_stay_together_and_none_is_lost():
    cases = [
        case(kernel, number) for kernel, many in (("a", 5), ("b", 1), ("c", 2), ("d", 2)) for number in range(many)
    ]
    for most in (1, 2, 3, 9):
        dealt = lanes(cases, most)
        assert len(dealt) == min(most, 4)
        assert sorted(one.id for lane in dealt for one in lane) == sorted(one.id for one in cases)
        homes = [{number for number, lane in enumerate(dealt) for one in lane if one.kernel == name} for name in "abcd"]
        assert all(len(home) == 1 for home in homes)
        firsts = [[one.id.endswith("/n=0") for one in lane] for lane in dealt]
        assert all(each == sorted(each, reverse=True) for each in firsts), "what compiles lies beside what compiles"
        assert max(map(sum, firsts)) - min(map(sum, firsts)) <= 1
    assert lanes([], 4) == [[]]


@pytest.mark.parametrize(
    ("device", "cores", "quota", "lanes"),
    [("cpu", 64, None, 1), ("cuda", 1, None, 1), ("cuda", 16, None, 4), ("cuda", 128, None, 4), ("cuda", 128, 8.5, 2)],
)
def test_as_many_check_at_once_as_cores_allow(monkeypatch, device, cores, quota, lanes):
    monkeypatch.setattr(facts, "usable_cores", lambda: cores)
    monkeypatch.setattr(facts, "cpu_quota", lambda: quota)
    assert checks.most_lanes(device) == lanes


def test_what_tuners_chose_beside_others_is_forgotten(tmp_path):
    cache, elsewhere = tmp_path / "inductor", tmp_path / "elsewhere"
    (cache / "ab").mkdir(parents=True)
    elsewhere.mkdir()
    for path in (cache / "ab/k.best_config", cache / "ab/k.py", elsewhere / "k.best_config"):
        path.write_text("{}")
    (cache / "link").symlink_to(elsewhere)
    _forget_tuning(str(cache))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert left == {"inductor/ab/k.py", "elsewhere/k.best_config"}
    for nothing in ("", str(tmp_path / "nowhere"), str(cache / "link")):
        _forget_tuning(nothing)
    assert (elsewhere / "k.best_config").exists()


@pytest.mark.slow
def test_kernels_that_are_checked_at_once_are_answered_as_one_by_one(repo, tmp_path, monkeypatch):
    def measured(lanes: int, out: Path) -> Results:
        monkeypatch.setattr(checks, "most_lanes", lambda device: lanes)
        request = Request.of("compare", repo, out, base="HEAD", exact_pairs=1, measure_all=True)
        return Measurement(request, Quiet()).measure()

    found = [measured(lanes, tmp_path / str(lanes)) for lanes in (3, 1)]
    assert (tmp_path / "notes.short").exists(), "workers did check at once"
    for results in found:
        kinds = {one.id: [side.reason and side.reason.kind for side in one.sides.values()] for one in results.cases}
        assert kinds == {f"kernel_{number}": ["wrong"] * 2 if number == 2 else [None] * 2 for number in range(5)}
    for several, one in zip(found[0].cases, found[1].cases, strict=True):
        assert [side.check for side in several.sides.values()] == [side.check for side in one.sides.values()]


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 3])
def test_memory_that_is_short_behind_a_check_may_do_alone(repo, tmp_path, monkeypatch, lanes):
    found, short = checker._found, []

    def scarce(bench, worker, name, case, *more):
        if case.id == "kernel_1" and name == "head" and len(short) < 1:
            short.append(name)
            raise Died(Reason(kind="exception", text="CUDA out of memory"))
        return found(bench, worker, name, case, *more)

    monkeypatch.setattr(checker, "_found", scarce)
    monkeypatch.setattr(checks, "most_lanes", lambda device: lanes)
    request = Request.of("compare", repo, tmp_path / "out", base="HEAD", exact_pairs=1, measure_all=True)
    results = Measurement(request, Quiet()).measure()
    assert short == ["head"]
    (one,) = [case for case in results.cases if case.id == "kernel_1"]
    assert [side.status for side in one.sides.values()] == ["ok", "ok"] and len(one.pairs) == 1


@pytest.mark.slow
def test_a_run_that_is_killed_amid_checks_keeps_those_that_are_written_down(repo, tmp_path, monkeypatch):
    out, settled = tmp_path / "out", []
    monkeypatch.setattr(checks, "STRETCH", 0.0)
    settle = checker.Checker._settle

    def killed(self, case, *more):
        if len(settled) == 4:
            raise KeyboardInterrupt
        settled.append((self.name, case.id))
        return settle(self, case, *more)

    monkeypatch.setattr(checker.Checker, "_settle", killed)
    request = Request.of("compare", repo, out, base="HEAD", exact_pairs=1, measure_all=True)
    with pytest.raises(KeyboardInterrupt):
        Measurement(request, Quiet()).measure()
    written = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert [(one["side"], one["key"].split("@")[0]) for one in written if one["kind"] == "checked"] == settled
    settled.clear()
    monkeypatch.setattr(checker.Checker, "_settle", settle)
    again = Request.of("compare", repo, out, base="HEAD", exact_pairs=1, measure_all=True, resume=True)
    results = Measurement(again, Quiet()).measure()
    assert all(side.status == "ok" for case in results.cases for side in case.sides.values() if case.id != "kernel_2")


def test_what_others_disturbed_in_base_is_not_asked_of_a_head_that_lacks_it():
    class Side:
        """A checker without a worker."""

        def __init__(self, name: str, wants: bool) -> None:
            self.name, self.wanted, self.wait, self.asked = name, wants, None, []

        def wants(self, case: Case) -> bool:
            return self.wanted

        def start(self) -> None: ...

        def begin(self, case: Case) -> None:
            if self.wants(case):
                self.asked.append(case.id)

        def keep(self, *, beside: bool) -> bool:
            return self.name != "base" or not beside

        repeat = checker.Checker.repeat

    base, head = Side("base", True), Side("head", False)
    lane = checks._Lane([base, head], [case("a", 0)], beside=True)
    lane.begin()
    assert lane.over and [(one.id, side.name) for one, side in lane.again] == [("a/n=0", "base"), ("a/n=0", "head")]
    for one, side in lane.again:
        side.repeat(one)
    assert (base.asked, head.asked) == (["a/n=0"] * 2, [])


HELD = """
import os
import time
import perfci

BASE = {base}


@perfci.kernel(devices=["cpu"], fuzz={{"n": [7]}}, params={{"n": [2000]}})
def total(bench, n):
    values = [bench.random.random() for _ in range(n)]

    def reference():
        if BASE:
            while not os.path.exists({note!r}):  # head's check has begun
                time.sleep(0.01)
        else:
            with open({note!r}, "a") as note:
                note.write(f"{{n}} ")
        return sum(values)

    bench.reference(reference, rtol={rtol})
    return lambda: sum(values) * {factor}
"""


@pytest.mark.parametrize(("rtol", "factor", "status"), [(0.5, 1.1, "failed"), (0.5, 1.0, "ok"), (1e-6, 1.1, "failed")])
def test_head_is_held_to_tolerances_of_base_that_were_not_known_when_it_was_checked(
    tmp_path, monkeypatch, rtol, factor, status
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # no run beside this one holds its lease
    repo, note = Repo(tmp_path / "repo", dict(os.environ)), tmp_path / "note"
    repo.policy()
    for base in (True, False):
        words = {"rtol": 1e-6, "factor": 1.0} if base else {"rtol": rtol, "factor": factor}
        repo.write("kernels/k.py", HELD.format(base=base, note=str(note), **words))
        repo.commit()
    asked: list[bool] = []
    begin = Worker.begin

    def noted(self, op, **fields):
        asked.extend([fields["anew"]] if op == "check" and self.log.name == "head.log" else [])
        begin(self, op, **fields)

    monkeypatch.setattr(Worker, "begin", noted)
    request = Request.of("compare", repo.root, tmp_path / "out", base="HEAD~1", exact_pairs=1, measure_all=True)
    (case,) = Measurement(request, Quiet()).measure().cases
    assert {name: side.status for name, side in case.sides.items()} == {"base": "ok", "head": status}
    assert asked == [False, True][: 1 + (rtol != 1e-6)]
    if status == "ok":
        assert case.sides["head"].check.shapes == 2, "fuzzed shapes, too"
    else:
        assert case.sides["head"].reason.kind == "wrong"


def held(base: CaseSide, **said: Any) -> tuple[Checker, Case]:
    """A checker of head that checked a case by its own tolerances, while base's were not known."""
    head, one = Checker.__new__(Checker), case("a", 0)
    one.sides = {"base": base, "head": CaseSide(status="ok")}
    reply = CheckReply.model_construct(**{"ok": True, "kind": None, "rtol": 1e-6, "atol": None} | said)
    head.name, head.base, head._unsettled, head._given = "head", head, [(one, reply)], {one.key: (None, None)}
    return head, one


def test_a_head_whose_base_is_checked_again_is_checked_again_behind_it():
    head, one = held(CaseSide(status="ok"))
    assert head.hold([], beside=True) == [] and head._unsettled, "base has no reference"
    assert head.hold([one], beside=True) == [one] and not head._unsettled


def test_a_head_whose_base_the_budget_did_not_reach_is_not_checked_either():
    head, one = held(CaseSide(status="skipped", reason=checker.LATE))
    assert head.hold([], beside=True) == [] and not head._unsettled, "nothing is written down"
    assert one.sides["head"].reason == checker.LATE


def test_memory_that_is_short_for_drawing_anew_may_be_there_alone():
    head, _ = held(CaseSide(status="ok"))
    assert checker.NO_ROOM == redraw.NO_ROOM
    assert head._disturbed(CheckReply.model_construct(ok=True, unredrawn=redraw.NO_ROOM))
    assert not head._disturbed(CheckReply.model_construct(ok=True, unredrawn=checks.NOTHING_DRAWN))


def test_a_verdict_that_does_not_hang_on_tolerances_stays():
    head, one = held(CaseSide(status="ok", check=Check(rtol=1e-3)), ok=False, kind="invalid", rtol=None)
    assert head.hold([one], beside=True) == [] and head._unsettled


class Idle:
    """A worker that does nothing."""

    alive = True

    def dismiss(self) -> None:
        self.alive = False

    close = dismiss


@pytest.mark.parametrize("refused", ["it synchronises", ""])
def test_a_capture_that_fails_in_base_is_not_tried_in_head_and_costs_one_wait_for_all(monkeypatch, refused):
    started, settled = [], []
    journal = SimpleNamespace(probes=[], checked={}, add_check=lambda *check: None)

    def begin(self, name, *, beside):
        started.append((name, Idle()))
        return started[-1][1]

    def found(bench, worker, name, case, reply, asked):
        assert worker.alive
        settled.append((name, len(started), asked))
        worker.alive = asked == "cold" or not refused
        return Probe(1e-5, {}, refused=refused if asked == "auto" else "")

    monkeypatch.setattr(Bench, "begin", begin)
    monkeypatch.setattr(Bench, "loaded", lambda self, worker, waited=None: worker)
    monkeypatch.setattr(checker, "_found", found)
    bench = Bench(None, {}, 0, 1, [], 60.0, [], Path(), Costs(), context=True)
    budget = SimpleNamespace(patience=lambda seconds: seconds, left=60.0)
    cases = [case("k", number) for number in range(4)]
    sides = []
    for name in SIDES:
        sides.append(Checker(bench, name, None, journal, budget, False, print, {}, sides[0] if sides else None))
        for one in cases:
            one.sides[name] = CaseSide()
        sides[-1]._unsettled = [(one, CheckReply.model_construct(ok=True)) for one in cases]
        assert sides[-1].settle(beside=True) == []
    modes = {name: {asked for side, _, asked in settled if side == name} for name in SIDES}
    assert modes == {"base": {"auto"}, "head": {"cold" if refused else "auto"}}
    # The first shows that captures fail; then one for each case left is started at once. Head's serves all.
    assert [workers for _, workers, _ in settled] == ([1, 4, 4, 4] if refused else [1] * 4) + [len(started)] * 4
    assert len(started) == (5 if refused else 2)


def test_what_base_could_not_capture_stays_cold_once_base_has_failed() -> None:
    one = case("k", 0)
    one.sides = {"base": CaseSide(status="failed"), "head": CaseSide()}
    probes = {one.key: {"base": Probe(1e-5, {}, refused="it synchronises"), "head": Probe(1e-5, {}, footprint=1 << 20)}}
    gpu = GpuFacts(
        multiprocessors=132, capability="9.0", l2_bytes=1 << 25, memory_bytes=1 << 37, empty_pair_seconds=1e-6
    )
    bench = Bench(None, {}, 0, 1, [], 60.0, [], Path(), Costs())
    place = SimpleNamespace(
        benches={"cuda": bench}, facts=SimpleNamespace(gpu=gpu, ceilings={}), limits=SimpleNamespace(timing="auto")
    )
    found = {name: Declarations(cases={one.key: {"timing": None}}) for name in SIDES}
    settle_all([one], place, found, probes)
    assert bench.setups[one.key].mode == "cold"


def hosted(base: float | None, head: float | None, ident: str = "k") -> Case:
    sides = {
        name: CaseSide(timing=Timing(mode="rotating"), host=host)
        for name, host in zip(SIDES, (base, head), strict=True)
    }
    return Case(id=ident, kernel=ident, device="cuda", sides=sides)


@pytest.mark.parametrize("waits", [None, "base", "head"])
def test_a_case_that_waits_for_the_gpu_in_either_side_has_no_host_time(waits: str | None) -> None:
    case = hosted(10e-6, 10e-6)
    other = hosted(10e-6, 10e-6, "other")
    setups = {one.key: Setup("rotating", 1, 1, 1, 1) for one in (case, other)}
    probes = {
        one.key: {name: Probe(1e-5, {}, host=1e-5, host_waits=name == waits) for name in SIDES} for one in (case, other)
    }
    place: Any = SimpleNamespace(benches={"cuda": SimpleNamespace(setups=setups)})
    settle_hosts([case, other], place, [limit("k", "host_time")], probes)
    assert (setups[case.key].host > 0) == (waits is None) and setups[other.key].host == 0, "asked of one alone"
    for side in case.sides.values():
        assert side.timing is not None and (side.timing.host or "").startswith("host and GPU" if waits else "")
    assert all(side.timing is not None and side.timing.host is None for side in other.sides.values())


@pytest.mark.parametrize(
    ("base", "head", "told"),
    [
        (10e-6, 340e-6, True),
        (10e-6, 29e-6, False),
        (100e-6, 190e-6, False),
        (100e-6, 210e-6, True),
        (None, 1.0, False),
        (1e-5, None, False),
    ],
)
def test_a_much_longer_host_time_is_told_where_no_limit_asks(
    base: float | None, head: float | None, told: bool
) -> None:
    case = hosted(base, head)
    notes = longer_hosts([case, hosted(1e-5, 1e-5, "other")], [limit("other", "host_time")])
    assert bool(notes) == told
    assert longer_hosts([case], [limit("k", "host_time")]) == []
    if told:
        assert "no limit asks: k (" in notes[0] and " → " in notes[0]
