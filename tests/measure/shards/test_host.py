"""Several GPUs of one host: whatever is dealt and whichever processes die, rows are those of one machine or undecided;
and all wait for each other, and for nobody who is gone."""

import json
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.judge.judge import judge
from perfci.measure import place
from perfci.measure.budget import Budget
from perfci.measure.request import WRITTEN, PairProgress, Question, Request, What
from perfci.measure.run import Measurement
from perfci.measure.shards import host
from perfci.measure.shards.document import PlannedCase, SharedPlan
from perfci.measure.shards.host import Member, measure_together
from perfci.measure.shards.merge import merge
from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.model.claims import Claim
from perfci.model.results import Results
from tests.e2e.conftest import Repo, adding

from ..driven import SILENT
from .build import shared_plan
from .replay import Killed, Series, judged, measure, planned, series
from .steps import STEPS, step


def shared(made: Results, numbers: Sequence[int], commands: Sequence[str]) -> SharedPlan:
    used = sorted(set(numbers))
    cases = [
        PlannedCase(key=case.key, command=command, seconds=1.0, shard=used.index(number) + 1)
        for case, number, command in zip(made.cases, numbers, commands, strict=True)
    ]
    return shared_plan(cases, made)


def begun(made: Results, request: Request) -> Results:
    """The results of a process before its first pair."""
    planned = request.planned
    assert planned is not None
    own = [case.model_copy(deep=True) for case in made.cases if case.key in planned.proofs]
    return made.model_copy(update={"cases": own, "plan": planned.plan, "part": planned.part}, deep=True)


class Host:
    """Stands in for the processes: replays pairs under the real loop and journal. `lives`: pairs after which the
    processes die, in the order in which they are started; None of one that does not."""

    def __init__(self, made: Results, source: Series, lives: Sequence[int | None]) -> None:
        self.made, self.source, self.lives = made, source, list(lives)
        self.taken: list[tuple[str, str]] = []
        """(case key, member) of each process that took pairs of a case."""
        self.died = False

    def together(self, asked: Sequence[tuple[Member, Request]], progress: object) -> list[str | None]:
        return [self.one(member, request) for member, request in asked]

    def one(self, member: Member, request: Request) -> str | None:
        life = self.lives.pop(0) if self.lives else None
        results = begun(self.made, request)
        request.where.out.mkdir(parents=True, exist_ok=True)
        (request.where.out / "results.json").write_text(results.model_dump_json())
        try:
            measure(results, self.source, request.where.out, most=float("inf") if life is None else life)
        except Killed:
            self.taken += [(case.key, member.name) for case in results.cases if case.pairs]
            self.died = True
            return "killed by SIGKILL"
        self.taken += [(case.key, member.name) for case in results.cases if case.pairs]
        (request.where.out / "results.json").write_text(results.model_dump_json())
        return None


def run(made: Results, plan: SharedPlan, on: Host, gpus: int, out: Path) -> Results:
    request = Request.of("compare", out, out)
    members = [Member(f"GPU {number}", {}) for number in range(gpus)]
    with patch.object(host, "measure_together", on.together):
        folders, _ = host._measure_parts(request, members, plan, SILENT)
    found = [(str(one), Results.model_validate_json((one / "results.json").read_bytes())) for one in folders]
    return merge(found)


@given(
    seed=st.integers(0, 2**16),
    numbers=st.sampled_from([1, 3, 6]).flatmap(lambda n: st.lists(st.integers(1, 4), min_size=n, max_size=n)),
    lives=st.lists(st.none() | st.just(0) | st.integers(0, 60), max_size=6),
    factors=st.dictionaries(st.integers(0, 7), st.sampled_from([0.9, 1.01, 1.02, 1.03, 1.2]), max_size=3),
    spare=st.integers(0, 2),
)
@settings(max_examples=30, deadline=None)
def test_any_deal_gives_the_rows_of_one_machine_and_any_loss_an_error(seed, numbers, lives, factors, spare):
    source = series(seed, len(numbers), factors)
    made, alone = planned(source), planned(source)
    measure(alone, source)
    plan = shared(made, numbers, [""] * len(numbers))
    on = Host(made, source, lives)
    with tempfile.TemporaryDirectory() as folder:
        try:
            whole = run(made, plan, on, plan.shards + spare, Path(folder))
        except MachineError as error:
            assert re.fullmatch(
                r"GPU \d: its measuring process ended: killed by SIGKILL: go on with --resume", str(error)
            )
            assert on.died
            return
    assert not on.died
    assert [case.key for case in whole.cases] == [case.key for case in alone.cases]
    assert whole.plan == alone.plan
    assert whole.error is None and judged(judge(whole)) == judged(judge(alone))


def test_nothing_of_an_earlier_run_is_taken_for_this_one(tmp_path: Path) -> None:
    """Where a process dies before it has written anything there is nothing to merge."""
    source = series(1, 2, {})
    made = planned(source)
    plan = shared(made, [1, 2], ["", ""])
    run(made, plan, Host(made, source, []), 2, tmp_path)

    class Late(Host):
        def together(self, asked: Sequence[tuple[Member, Request]], progress: object) -> list[str | None]:
            return [*super().together(asked[:1], progress), "killed by SIGKILL"]

    with pytest.raises(MachineError, match="GPU 1: its measuring process ended: killed by SIGKILL: go on with"):
        run(made, plan, Late(made, source, []), 2, tmp_path)
    assert (tmp_path / "shards" / "shard-2" / "journal.previous.jsonl").exists()


def test_a_run_goes_on_on_the_gpus_that_it_was_begun_on(tmp_path: Path) -> None:
    made = planned(series(1, 3, {}))
    (tmp_path / "shards").mkdir()
    plan = shared(made, [1, 2, 3], [""] * 3)
    (tmp_path / "shards" / "plan.json").write_text(plan.model_dump_json())
    request = Request.of("compare", tmp_path, tmp_path, resume=True)
    two = [Member("GPU 0", {}), Member("GPU 1", {})]
    with pytest.raises(UsageError, match="begun on 3 GPUs"):
        host.plan_host(request, two, tmp_path / "sides", SILENT)
    others = {
        "base": "v1", "pull_request": True, "committed": True, "cases": ["a"], "devices": ["cpu"], "python": "py",
        "base_python": "py", "env": {"head": {"A": "1"}}, "quick": True, "seed": 3, "purpose": "seam",
        "measure_all": not plan.what.measure_all, "exact_pairs": 9, "comparisons": 2, "models": 2, "suite": "5" * 40,
        "commits": ("1" * 40, "2" * 40), "question": Question(metric="time"), "only": ["src/**"],
        "claims": [Claim.parse("*: 10%")], "attempt": 2, "described": "a 1%", "head": "main", "limit": "version: 1",
    }  # fmt: skip
    assert others.keys() == What.model_fields.keys() - {"mode"}
    for name, value in others.items():
        other = request.but(**{name: value})
        with pytest.raises(
            UsageError, match=f"--resume: {WRITTEN.get(name, name)} is not that of the run before.*: give the same"
        ):
            host.plan_host(other, [*two, Member("GPU 2", {})], tmp_path / "sides", SILENT)


# ---------------------------------------------------------------- processes in step


def test_a_run_waits_before_and_behind_all_that_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    repo = Repo(tmp_path / "repo", env)
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write("kernels/adding.py", adding(n=4000))
    repo.commit("base")
    repo.write("kernels/adding.py", adding(n=4000) + "# more\n")
    repo.commit("change")
    out = repo.root / "perfci-out"
    met: list[tuple[bool, int, int]] = []
    said: list[str] = []

    def barrier() -> None:
        records = [json.loads(line)["kind"] for line in (out / "journal.jsonl").read_text().splitlines()]
        met.append(("measuring what the machine can do" in said, records.count("checked"), records.count("pair")))

    silent = {"note": lambda text: None, "pair": lambda standing: None, "decided": lambda results: None}
    progress: Any = SimpleNamespace(stage=said.append, **silent)
    request = Request.of(
        "compare", repo.root, out, base="main~1", committed=True, exact_pairs=2, measure_all=True,
        quick=True,
    )  # fmt: skip
    Measurement(request, progress, barrier=barrier).measure()
    assert met == [(False, 0, 0), (True, 0, 0), (True, 2, 0), (True, 2, 2)]


def test_waiting_does_not_use_up_the_budget() -> None:
    budget = Budget(100.0, time.monotonic())
    end = budget.end
    budget.outside(lambda: time.sleep(0.05))
    assert budget.end >= end + 0.05


def test_how_far_all_have_come_is_told_as_one_and_what_it_takes_once_each_has_a_pair() -> None:
    first = PairProgress(pairs=8, open=3, decided=1, cases=5, seconds=20.0, budget=60.0, expected=30.0)
    second = PairProgress(pairs=9, open=0, decided=2, cases=2, seconds=21.0, budget=60.0, expected=0.0)
    both = PairProgress(pairs=9, open=3, decided=3, cases=7, seconds=21.0, budget=60.0, expected=30.0)
    assert host._overall([first, second]) == both
    assert host._overall([first, second, None]) == both._replace(expected=None)
    assert host._overall([first._replace(expected=None), second]).expected is None


def steps(tmp_path: Path, *members: Member) -> list[str | None]:
    request = Request.of("compare", tmp_path, tmp_path)
    with patch.object(host, "_measure", step):
        return measure_together([(one, request) for one in members], SILENT)


def moments(tmp_path: Path, kind: str) -> dict[int, list[float]]:
    """Step → when it began, or ended."""
    found: dict[int, list[float]] = {}
    for path in tmp_path.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if kind in record:
                found.setdefault(record["step"], []).append(record[kind])
    return found


@pytest.mark.parametrize("dies", [None, 1, pytest.param(3, marks=pytest.mark.slow)])
def test_no_step_begins_before_all_have_ended_the_one_before(tmp_path: Path, dies: int | None) -> None:
    env = {} if dies is None else {"DIES": str(dies)}
    exits = steps(tmp_path, Member("a", {}), Member("b", env), Member("c", {}))
    assert exits[::2] == [None, None]
    assert (exits[1] is None) == (dies is None)
    assert exits[1] is None or exits[1].startswith("killed by SIGKILL")
    begins, ends = moments(tmp_path, "begins"), moments(tmp_path, "ends")
    for number in range(1, STEPS):
        assert max(ends[number - 1]) <= min(begins[number])
    assert len(ends[STEPS - 1]) == (3 if dies is None else 2)


def test_where_all_die_nobody_waits(tmp_path: Path) -> None:
    exits = steps(tmp_path, Member("a", {"DIES": "1"}), Member("b", {"DIES": "0"}))
    assert all(one is not None and one.startswith("killed by SIGKILL") for one in exits)


def test_one_that_refuses_ends_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is not to be"):
        steps(tmp_path, Member("a", {}), Member("b", {"REFUSES": "1"}))
    assert STEPS - 1 not in moments(tmp_path, "ends")


@pytest.mark.parametrize(
    ("uuid", "gpu", "said"),
    [
        ("9999-a", True, "head sees GPU 9999-a, and is to be measured on GPU-1234-a"),
        (None, True, "torch 2.9 tells no UUID"),
        (None, False, "can use no GPU here"),
    ],
)
def test_a_process_that_sees_another_gpu_measures_nothing(uuid: str | None, gpu: bool, said: str) -> None:
    """As where the policy sets CUDA_VISIBLE_DEVICES: all would measure on the same one."""
    seen: Any = SimpleNamespace(uuid=uuid, gpu=object() if gpu else None, torch="2.9")
    with pytest.raises(PerfciError, match=said):
        place._require_gpu("GPU-1234-a", "head", seen)
    place._require_gpu(None, "head", seen)
    place._require_gpu("GPU-9999-a", "head", SimpleNamespace(uuid="9999-a", gpu=object()))  # type: ignore[arg-type]


def test_the_environment_of_a_member_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with host.seeing(Member("GPU 0", {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert "CUDA_DEVICE_ORDER" not in os.environ
