"""Never green on what a profiler lost: damaged reports of an H200, read as perfci reads them, judged by a real process."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perfci.model.profile import Profile
from perfci.profilers.metrics import take
from perfci.profilers.ncu import report as ncu
from tests.e2e.conftest import Repo, Run
from tests.judge import build
from tests.profilers.ncu.test_ncu import CSV, file, rows, text
from tests.profilers.test_nsys import change, profiled, unpack

RESAMPLE, MATMUL = "trajectory_resample-batch32", "matmul-n4096"
"""Five kernels in an execution; one, and a memory set."""
KERNELS, STRINGS = "CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"
HALF = f"DELETE FROM {KERNELS} WHERE rowid % 2 = 0"
INLINE = (
    "UPDATE NVTX_EVENTS SET text = (SELECT s.value FROM StringIds s WHERE s.id = textId), textId = NULL",
    "DELETE FROM StringIds",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("nsys"), "base")


def counted(path: Path, found: Profile) -> Profile:
    command = found.reports is not None
    reading = ncu.read(
        path, ranges=None if command else [RESAMPLE], whole=command, names=["dram_bytes", "instructions"]
    )
    key = "" if command else RESAMPLE
    here = [fault for fault in reading.general if "in no range" not in fault.text]  # those of the other cases
    if key in reading.seen:
        take(found, reading.seen[key], [*reading.faults.get(key, []), *here], (9, 0), True)
    return found


def damaged(source: Path, folder: Path, statements: Sequence[str]) -> Path:
    path = Path(shutil.copy(source, folder / "part.sqlite"))
    change(path, *statements)
    return path


Cases = Mapping[str, tuple[Profile, Profile]]
"""Case → what was seen of it in base, and in head."""


def report(repo: Repo, cases: Cases, limits: Mapping[str, Sequence[str]]) -> Run:
    """`perfci report` over a recorded run whose times are unchanged, by these limits; they name a command itself."""
    made = []
    for name, (base, head) in cases.items():
        made.append(build.case(name, base=build.side(profile=base), head=build.side(profile=head)))
        made[-1].origin = "command" if head.reports else "kernel"
    repo.write("perfci-out/results.json", build.results(made).model_dump_json(by_alias=True))
    asked = [(name, limit) for name in cases for limit in limits.get(name.split("-")[0], ())]
    written = "".join(f"  - {{cases: {name}, {limit}}}\n" for name, limit in asked)
    repo.write("perfci.yaml", f"version: 1\ndevices: [cuda]\nlimits:\n{written}")
    return repo.perfci("report", "perfci-out", "--policy", "perfci.yaml")


def refused(run: Run, case: str, metric: str, *words: str) -> None:
    """The row is invalid, with these words, and nothing says that it passed."""
    (row,) = [row for row in run.report["rows"] if (row["case"], row["metric"]) == (case, metric)]
    assert (row["class"], row["effect"]) == ("invalid", "fail"), row
    assert all(word in row["reason"] for word in words), row["reason"]
    assert "PASS" not in run.out and run.code == 1, run.out + run.err
    assert row["reason"][:60] in " ".join(run.out.split()), run.out


def worse(profile: Profile, metric: str) -> Profile:
    """A base that had less of it."""
    return profile.model_copy(update={"metrics": {**profile.metrics, metric: profile.metrics[metric] / 100}})


BOTH = {"case": RESAMPLE, "command": None}
LIMITS = {
    "half": ("metric: kernel_launches, max: 3", "metric: device_time, max: 1s"),
    "from": ("metric: kernel_launches, regression: 0%",),
    "nan": ("metric: dram_bytes, max: 1TB", "metric: instructions, regression: 0%"),
    "none": ("metric: kernel_launches, max: 1000", "metric: device_time, max: 1s", "expect_kernels: nvjet"),
}
"""By the first word of a case's name."""
NONE = {
    "table": (MATMUL, [f"DROP TABLE {KERNELS}"], "launches have no device work"),
    "table-command": (None, [f"DROP TABLE {KERNELS}"], "launches have no device work"),
    "rows": (MATMUL, [f"DELETE FROM {KERNELS}"], "launches have no device work"),
    "names": (MATMUL, INLINE, "no name"),
    "strings": (MATMUL, INLINE[1:], "no range of this name"),
    "strings-command": (None, INLINE[1:], "no name"),
}
"""The kernels' table is gone or empty while memory sets and copies remain; or the names are."""


def unmeasured(folder: Path, lost: str) -> Path:
    """ncu's page with nan in the third of five launches: of two metrics, or of all, as where a kernel failed under it."""
    table = rows(CSV["base"])
    for metric in (
        "dram__bytes.sum",
        "smsp__inst_executed.sum",
        *(["gpu__time_duration.sum"] if lost == "all" else []),
    ):
        table[6][table[0].index(metric)] = "nan"
    return file(folder, text(table), f"{lost}.csv")


def test_what_was_lost_is_neither_within_a_limit_nor_beyond(repo: Repo, whole: Path, tmp_path: Path) -> None:
    cases: dict[str, tuple[Profile, Profile]] = {}
    for kind, name in BOTH.items():
        full, half = profiled(whole, name), profiled(damaged(whole, tmp_path, [HALF]), name)
        cases[f"half-{kind}"], cases[f"from-{kind}"] = (full, half), (half, full)
        page = counted(file(tmp_path, CSV["base"]), profiled(whole, name))
        for lost in ("some", "all"):
            cases[f"nan-{lost}-{kind}"] = page, counted(unmeasured(tmp_path, lost), profiled(whole, name))
    for kind, (name, statements, _) in NONE.items():
        cases[f"none-{kind}"] = profiled(whole, name), profiled(damaged(whole, tmp_path, statements), name)
    run = report(repo, cases, LIMITS)
    for kind in BOTH:
        lost = "launches have no device work in the trace"
        refused(run, f"half-{kind}", "kernel_launches", "nsys: ", lost)
        refused(run, f"half-{kind}", "device_time", "nsys: ", lost)
        refused(run, f"from-{kind}", "kernel_launches", "nsys: ", lost)
        for what in ("some", "all"):
            for metric in ("dram_bytes", "instructions"):
                words = "ncu: ", "the first is launch ", "void at::index_elementwise_kernel"
                refused(run, f"nan-{what}-{kind}", metric, *words)
    for kind, (_, _, words) in NONE.items():
        for metric in ("kernel_launches", "device_time", "kernels"):
            refused(run, f"none-{kind}", metric, "nsys: ", words)
    assert {row["class"] for row in run.report["rows"]} == {"invalid"}


def test_the_same_files_whole_pass_and_break_limits_as_they_should(repo: Repo, whole: Path, tmp_path: Path) -> None:
    full = {kind: counted(file(tmp_path, CSV["base"]), profiled(whole, name)) for kind, name in BOTH.items()}
    cases = {f"{group}-{kind}": (one, one) for kind, one in full.items() for group in ("from", "nan", "none")}
    run = report(repo, cases, {**LIMITS, "none": LIMITS["none"][:2]})
    assert run.code == 0 and "PASS" in run.out, run.out + run.err
    assert {row["class"] for row in run.report["rows"]} == {"unchanged"}
    run = report(repo, {f"half-{kind}": (worse(one, "kernel_launches"), one) for kind, one in full.items()}, LIMITS)
    told = {row["case"]: (row["class"], row["reason"]) for row in run.report["rows"] if row["effect"] == "fail"}
    assert run.code == 1 and "PASS" not in run.out, run.out
    assert told == {
        "half-case": ("violation", "5 is above the limit of 3"),
        "half-command": ("violation", "70 is above the limit of 3"),
    }


def test_a_limit_that_only_warns_of_what_is_missing_is_undecided(repo: Repo, whole: Path, tmp_path: Path) -> None:
    part = profiled(damaged(whole, tmp_path, [HALF]), RESAMPLE)
    run = report(repo, {"app": (part, part)}, {"app": ["metric: kernel_launches, max: 3, fail_on: broken"]})
    assert "PASS" not in run.out and "have no device work in the trace" in run.out, run.out
    assert (run.code, run.report["verdict"]) == (0, "undecided"), run.out + run.err


def test_what_was_judged_before_is_still_to_be_seen_beside_its_faults(whole: Path, tmp_path: Path) -> None:
    half = profiled(damaged(whole, tmp_path, [HALF]), RESAMPLE)
    assert half.trace is not None and 2 < sum(kernel.count for kernel in half.trace.kernels) < 3
    none = profiled(damaged(whole, tmp_path, INLINE), MATMUL)
    assert none.trace is not None and none.trace.kernels == []
