"""`perfci history record`: reports of comparisons become a night."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfci.cli.report import read_report
from perfci.history.document import Commit, Night, Reference
from perfci.history.plan import NightPlan, described
from perfci.history.record import Comparison, NightRun, night_of
from perfci.history.store import open_store
from perfci.model.base import UsageError
from perfci.model.fingerprint import Environments
from perfci.model.report import CaseFacts, Interval, Row, Trail
from perfci.model.results import Reason, SideCode
from perfci.sources.git import Repository
from tests.history import nights
from tests.render.build import SDPA, facts, presence, report, row
from tests.sources.repo import commit, git, init


class Repo:
    """A repository with a commit for each release and each night."""

    def __init__(self, root: Path) -> None:
        self.root = init(root)
        self.commits = {name: commit(root, message=f"Title of {name}") for name in ("v1", "v2", "before", "main")}
        for name in ("v1", "v2"):
            git(root, "tag", name, self.commits[name])


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


Make = Callable[..., Comparison]


@pytest.fixture
def make(repo: Repo) -> Make:
    def compare(
        base: str | None, head: str = "main", rows: list[Row] | None = None, dirty: bool = False, **fields: Any
    ) -> Comparison:
        found = [row("sdpa/n=1")] if rows is None else rows
        code = {
            name: SideCode(commit=repo.commits.get(ref, ref), dirty=dirty and name == "head")
            for name, ref in (("base", base), ("head", head))
            if ref is not None
        }
        known: list[CaseFacts] = [facts(case, SDPA) for case in dict.fromkeys(one.case for one in found)]
        purpose = {None: "change", "before": "last"}.get(base, "seam" if head == "v2" else "reference")
        told = {"mode": "compare" if base else "run", "purpose": purpose}
        return Comparison(f"out-{base}", report(found, "said", **{"facts": known, "sides": code, **told, **fields}))

    return compare


def planned(
    repo: Repo, made: dict[str, Comparison], reference: str = "", seam: str = "", last: str = "HEAD~1"
) -> NightPlan:
    found = Repository.find(repo.root)
    assert found is not None
    reference_, seam_ = (Reference(name=it, commit=described(found, it)) if it else None for it in (reference, seam))
    last_ = described(found, last) if "last" in made and last else None
    return NightPlan(head=described(found, "HEAD"), last=last_, reference=reference_, seam=seam_)


def night(
    repo: Repo, *comparisons: Comparison, reference: str = "", seam: str = "", last: str = "HEAD~1", **asked: Any
) -> Night:
    found = Repository.find(repo.root)
    assert found is not None
    made = {"alone" if it.report.mode == "run" else it.report.purpose: it for it in comparisons}
    plan = planned(repo, made, reference, seam, last)
    return night_of(made, plan, NightRun(**{"run": "7391.h200", "attempt": 1, **asked}), found)


def test_two_comparisons_make_a_night(repo: Repo, make: Make) -> None:
    rows = [row("sdpa/n=1", "regression", ratio=1.031, reason="3.1 % slower")]
    trail = Trail(case="sdpa/n=1", device="cuda", metric="time", ratios=[1.03, 1.032, 1.031])
    found = night(repo, make("before"), make("v1", rows=rows, trails=[trail]), reference="v1")
    assert found.commit == Commit(
        sha=repo.commits["main"], date="2024-01-01T00:00:00Z", title="Title of main", author="A"
    )
    assert found.last is not None and found.last.sha == repo.commits["before"]
    assert (found.reference.name, found.reference.commit.sha) == ("v1", repo.commits["v1"])
    assert found.devices == {"cuda": "NVIDIA H200"}
    assert found.environment == {"python": "3.12.4", "torch": "2.11.0", "cuda": "13.0", "driver": "580.159"}
    (point,) = [one for one in found.points if one.metric == "time"]
    assert point.last is not None and point.last.class_ == "unchanged"
    seen = point.reference
    assert (seen.class_, seen.limit, seen.reason) == ("regression", 0.02, "3.1 % slower")
    assert (seen.ratio.ratio, seen.ratio.pairs) == (1.031, 16)
    assert (point.timing, point.value) == ("cold", pytest.approx(48.5e-6 * 1.031))
    logs = [math.log(one) for one in trail.ratios if one]
    assert point.scatter == pytest.approx(math.sqrt(sum((x - sum(logs) / 3) ** 2 for x in logs) / 2))
    others = [one for one in found.points if one.metric != "time"]
    assert {one.metric for one in others} == {"tflops", "bandwidth"}
    assert all(one.value and one.last is None and one.reference is None for one in others)


def test_the_first_night_has_the_reference_alone_or_nothing_to_compare_with(repo: Repo, make: Make) -> None:
    found = night(repo, make("v1"), reference="v1")
    assert found.last is None
    assert [one.metric for one in found.points if one.reference] == ["time"]
    alone = night(repo, make(None))
    assert alone.last is alone.reference is None
    assert all(point.last is None and point.value for point in alone.points)
    assert alone.epoch != found.epoch


def test_an_epoch_is_of_reference_devices_and_environment(repo: Repo, make: Make) -> None:
    one = night(repo, make("v1"), reference="v1").epoch
    assert one == night(repo, make("v1", rows=[]), make("before"), reference="v1", run="other").epoch
    facts = make("v1").report.fingerprint
    machines = [facts.model_copy(update=also) for also in ({"driver": "590.1"}, {"devices": {"cuda": "NVIDIA B200"}})]
    others = [
        night(repo, make("v2"), reference="v2"),
        night(repo, make("v1"), reference="v1", environment={"image": "sha256:1a"}),
        *(night(repo, make("v1", fingerprint=machine), reference="v1") for machine in machines),
    ]
    assert len({one, *(other.epoch for other in others)}) == 5


def test_a_new_reference_against_the_old_is_the_seam(repo: Repo, make: Make) -> None:
    found = night(repo, make("v2"), make("before"), make("v1", head="v2"), reference="v2", seam="v1")
    assert found.seam is not None and found.seam.before.commit.sha == repo.commits["v1"]
    assert [(one.metric, one.last is not None, one.reference) for one in found.seam.points] == [("time", True, None)]
    assert found.last is not None


def test_what_a_proof_answers_has_ratio_1_without_pairs(repo: Repo, make: Make) -> None:
    proved = row("sdpa/n=1", base=None, ratio=None, interval=None, pairs=0, proved=True, reason="proved: same files")
    (point,) = night(repo, make("before", rows=[proved])).points
    assert point.value is None
    assert point.last.ratio.model_dump() == {"ratio": 1, "low": 1, "high": 1, "level": 1, "pairs": 0}


def test_a_case_that_the_reference_lacks_or_asks_otherwise_has_no_ratio_to_it(repo: Repo, make: Make) -> None:
    added = presence("new/n=1", "added", "in head, not in base")
    changed = presence("sdpa/n=1", "changed", "parameter n")
    gone = presence("old/n=1", "missing", "in base, not in head")
    last = make("before", rows=[row("new/n=1"), row("sdpa/n=1")])
    found = night(repo, make("v1", rows=[added, changed, gone]), last, reference="v1")
    points = {point.case: point for point in found.points if point.metric == "time"}
    assert points.keys() == {"new/n=1", "sdpa/n=1"}
    assert all(point.reference is None and point.last is not None for point in points.values())


def test_failed_and_missing_cases_are_recorded_without_numbers(repo: Repo, make: Make) -> None:
    rows = [
        presence("a", "failed", "wrong result"),
        presence("b", "missing", "in base, not in head"),
        row("c", "inconclusive", ratio=1.01),
        row("d", "invalid", base=None, ratio=None, pairs=1),
        row("e", "regression", ratio=math.inf, interval=Interval(low=2.0, high=math.inf, level=0.9)),
        row("f", "regression", interval=Interval(low=0.0, high=math.inf, level=0.9)),
    ]
    found = {one.case: one for one in night(repo, make("before", rows=rows)).points if one.metric == "time"}
    told = {case: (one.last.class_, one.last.ratio is not None) for case, one in found.items() if one.last}
    assert told == {
        "a": ("failed", False), "b": ("missing", False), "c": ("inconclusive", True), "d": ("invalid", False),
        "e": ("regression", False), "f": ("regression", False),
    }  # fmt: skip


def test_the_worst_of_a_metric_s_limits_is_its_class_and_its_change_is_kept(repo: Repo, make: Make) -> None:
    rows = [row("a", "violation", kind="max", limit=1e-6, change=None, reason="over 1 µs"), row("a", ratio=1.001)]
    point = next(one for one in night(repo, make("before", rows=rows)).points if one.metric == "time")
    assert (point.last.class_, point.last.limit) == ("violation", 0.02)
    assert point.last.ratio is not None


def test_what_is_seen_once_has_a_ratio_where_it_is_exact(repo: Repo, make: Make) -> None:
    once = {"interval": None, "pairs": 0, "base": 40.0, "ratio": 1.1}
    counted = row("a", "regression", metric="registers", unit="", **once)
    rows = [counted, row("a", metric="dram_bytes", unit="B", **once)]
    found = {one.metric: one.last for one in night(repo, make("before", rows=rows)).points if one.last}
    registers, traffic = found["registers"], found["dram_bytes"]
    assert (registers.ratio.low, registers.ratio.high, registers.ratio.level) == (1.1, 1.1, 1)
    assert traffic.ratio is None
    assert "it has no interval" in traffic.reason


def test_an_error_is_recorded_as_one(repo: Repo, make: Make) -> None:
    found = night(repo, make("before", rows=[], verdict="error"), make("v1"), reference="v1")
    assert found.error == "against the commit before: said"
    assert found.points


def test_a_comparison_that_left_no_report_is_an_error_of_the_same_epoch(repo: Repo, make: Make) -> None:
    whole = night(repo, make("before"), make("v1"), reference="v1")
    found = night(repo, make("before"), reference="v1")
    assert (found.epoch, found.reference, found.error) == (whole.epoch, whole.reference, "no report: reference")
    assert any(one.last is not None for one in found.points) and not any(one.reference for one in found.points)


def test_a_file_that_does_not_import_is_no_case(repo: Repo, make: Make) -> None:
    one = make("before", rows=[row("a"), presence("kernels/b.py", "failed", "does not import")])
    one.report.facts[:] = [it for it in one.report.facts if it.case == "a"]
    assert {point.case for point in night(repo, one).points} == {"a"}


def against(base: str | None, head: str = "main", **fields: Any) -> dict[str, Any]:
    """What `make` is given."""
    return {"base": base, "head": head, **fields}


def elsewhere(**facts: Any) -> dict[str, Any]:
    return against("v1", fingerprint=report([], "").fingerprint.model_copy(update=facts))


V1, V2, SEAM = {"reference": "v1"}, {"reference": "v2"}, {"reference": "v2", "seam": "v1"}
NEITHER = {"base": SideCode(commit="a" * 40), "head": SideCode()}
OTHERS = Environments(asked=True, interpreters={})


@pytest.mark.parametrize(
    ("comparisons", "asked", "reason"),
    [
        ([against("before"), against("v1", "before")], V1, ": measure the night anew"),
        ([against("before", dirty=True)], {}, "its head has uncommitted changes: measure with --committed"),
        ([against("v1")], {}, "which is not its plan's `reference`: measure the night anew"),
        ([against("v1"), against("before")], V2, "as `reference`, which is not its plan's `reference`"),
        ([against("before")], {"last": ""}, "as `last`, which is not its plan's `last`"),
        ([against("v1", purpose="last")], {}, "as `last`, which is not its plan's `last`"),
        ([against("f" * 40, purpose="last")], {}, " with ffffffffff as `last`, which is not its plan's"),
        ([against(None, mode="compare", purpose="last")], {}, " with no base as `last`, which is not its plan's"),
        ([against("v2"), against("v1", "v2")], V2, "as `seam`, which is not its plan's `seam`"),
        ([against("v2"), against("before", "v2", purpose="seam")], SEAM, "as `seam`, which is not its plan's `seam`"),
        ([against("v2"), against("v1", purpose="seam")], SEAM, "as `seam`, which is not its plan's `seam`"),
        ([against("before", "--output=x")], {}, "out-before: its head is no full hash of a commit (--output=x)"),
        ([against("before", sides=NEITHER)], {}, "its head is no commit"),
        ([against("before", sides={}, verdict="error")], {}, "ended before it knew what it measures: said"),
        ([against("before", environments=OTHERS)], {}, "compares environments, not commits"),
        ([against("before", started="2099-01-01T00:00:00+00:00")], {}, "began on 2099-01-01, in the future: set that"),
        ([against("before", rows=[row("x" * 501)])], {}, "out-before: cannot be recorded (case: String should have"),
        ([elsewhere(driver="590.1"), against("before")], V1, "out-v1 and out-before: differ in "),
        ([elsewhere(devices={"cuda": "NVIDIA B200"}), against("before")], V1, ": record what one machine measured"),
        ([elsewhere(torch=None), against("before")], V1, ": record what one machine measured"),
    ],
)
def test_what_is_no_run_on_one_commit_is_refused(
    repo: Repo, make: Make, comparisons: list[dict[str, Any]], asked: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError) as error:
        night(repo, *(make(**one) for one in comparisons), **asked)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_has_the_comparison_that_it_is_called_by(repo: Repo, make: Make) -> None:
    """The reference may be the commit that was recorded last."""
    found = Repository.find(repo.root)
    assert found is not None
    plan = NightPlan(head=described(found, "HEAD"), last=described(found, "v1"))
    with pytest.raises(UsageError, match="as `reference`, which is not its plan's `last`"):
        night_of({"last": make("v1")}, plan, NightRun("7391.h200", 1), found)


# ---------------------------------------------------------------- the command line


def write(repo: Repo, **comparisons: Comparison) -> None:
    """Write what `perfci history measure` leaves."""
    for name, one in comparisons.items():
        (repo.root / "perfci-night" / name).mkdir(parents=True)
        (repo.root / "perfci-night" / name / "report.json").write_text(one.report.model_dump_json())
    plan = planned(repo, comparisons, reference="v1")
    (repo.root / "perfci-night" / "night.json").write_text(plan.model_dump_json())


def test_the_verb_records_once_under_the_name_of_github_s_run(repo: Repo, make: Make) -> None:
    write(repo, reference=make("v1"), last=make("before"))
    told = {
        "GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "7391", "GITHUB_RUN_ATTEMPT": "2", "GITHUB_REPOSITORY": "org/kernels",
        "GITHUB_SHA": repo.commits["main"], "GITHUB_REF": "refs/heads/main",
    }  # fmt: skip
    args = ("history", "record", "--store", "store")
    name = "nights/2026/01/20260105T101500Z-7391.nvidia-h200-2.json"
    line = f"{repo.commits['main'][:10]} Title of main: 1 case against v1 and {repo.commits['before'][:10]} · {name}\n"
    for said in ("recorded", "was recorded already:"):
        assert nights.perfci(repo.root, *args, **told) == (0, f"{said} {line}", "")
    (found,) = nights.nights_in(open_store("store", repo.root))
    assert found.url == "https://github.com/org/kernels/actions/runs/7391"
    code, _, other = nights.perfci(repo.root, *args, "--fact", "image=sha256:1a", **told)
    assert code == 2 and f"{name} is there with other content, and what is recorded is never changed" in other


def test_the_verb_says_what_makes_its_folder(repo: Repo) -> None:
    code, _, err = nights.perfci(repo.root, "history", "record", "perfci-out", "--store", "store")
    assert code == 2
    assert "night.json: cannot be read (there is no such file): `perfci history measure` makes this folder" in err


def test_the_verb_tells_of_a_night_that_starts_before_the_newest_one(repo: Repo, make: Make) -> None:
    write(repo, reference=make("v1"))
    open_store("store", repo.root).add(nights.night(0))
    args = ("history", "record", "perfci-night", "--store", "store")
    code, out, err = nights.perfci(repo.root, *args)
    assert code == 0 and out.startswith("recorded ")
    assert "started at 20260105T101500Z, before the newest night there, of 20261101T031500Z" in err
    assert len(nights.nights_in(open_store("store", repo.root))) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "is no report document of this version (run: Field required)"),
        ("[" * 100_000, "is no report document of this version"),
        (json.dumps({f"x{n}": 0 for n in range(50_000)}), "is no report document of this version (50"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(UsageError) as error:
        read_report(tmp_path / "report.json")
    assert reason in str(error.value)
    assert str(error.value).isprintable()


def skipped(device: str) -> tuple[list[Row], list[CaseFacts]]:
    """A case that is measured on the other device, and one that needs this one."""
    other = {"cpu": "cuda", "cuda": "cpu"}[device]
    gone = presence("sdpa/n=64", "skipped", device=device, reason=f"skipped: needs {device}")
    rows = [row("sdpa/n=1", device=other), gone]
    known = {"sdpa/n=1": other, "sdpa/n=64": device}
    told = [facts(case, SDPA, kind) for case, kind in known.items()]
    told[1].reasons["head"] = Reason(kind="device", text=f"needs {device}")
    return rows, told


BOTH = {"cuda": "NVIDIA H200", "cpu": "AMD EPYC 9654"}


def test_cases_that_need_the_cpu_make_no_night_of_it(repo: Repo, make: Make) -> None:
    """A GPU's nightly skips them, in the comparison with the commit before, too."""
    rows, known = skipped("cpu")
    told = make("v1").report.fingerprint
    both = told.model_copy(update={"devices": BOTH})
    last, reference = (make(base, rows=rows, facts=known, fingerprint=both) for base in ("before", "v1"))
    found = night(repo, last, reference, reference="v1")
    assert found.devices == {"cuda": "NVIDIA H200"}
    assert {one.case for one in found.points} == {"sdpa/n=1"}
    nothing = night(repo, make("v1", rows=[], facts=[], fingerprint=both), reference="v1", run="other")
    assert nothing.epoch == found.epoch, "of a night on which nothing could be measured"


def test_a_gpu_that_has_gone_is_no_quiet_night_of_the_cpu(repo: Repo, make: Make) -> None:
    rows, known = skipped("cuda")
    told = make("v1").report.fingerprint
    cpu = told.model_copy(update={"devices": {"cpu": "AMD EPYC 9654"}})
    left = {"rows": rows, "facts": known, "fingerprint": cpu}
    asked = ["perfci", "compare", "--base", "v1", "--device", "cpu"]
    for others, command in (([], []), ([make("before")], []), ([], [*asked, "--device", "cuda"])):
        with pytest.raises(UsageError, match="out-v1: skipped sdpa/n=64, as the machine had no GPU"):
            night(repo, *others, make("v1", command=command, **left), reference="v1")
    found = night(repo, make("v1", command=asked, **left), reference="v1")
    assert (found.devices, {one.case for one in found.points}) == ({"cpu": "AMD EPYC 9654"}, {"sdpa/n=1"})


def test_what_a_benchmark_skips_for_itself_is_of_its_device(repo: Repo, make: Make) -> None:
    """Else the other device's nights of that machine would be of another epoch."""
    rows, known = skipped("cuda")
    rows[1] = presence("sdpa/n=64", "skipped", device="cuda", reason="skipped: needs cuda 13")
    known[1].reasons["head"] = Reason(kind="skipped", text="needs cuda 13")
    both = make("v1").report.fingerprint.model_copy(update={"devices": BOTH})
    found = night(repo, make("v1", rows=rows, facts=known, fingerprint=both), reference="v1")
    assert found.devices == BOTH
