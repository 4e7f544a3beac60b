"""Limits on what a profiler saw once: exact comparisons, bounds, expected kernels, and never a pass without a value."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.criteria import not_asked, rows_of
from perfci.judge.headline import row_words
from perfci.judge.observed import inapplicable, observed_row
from perfci.judge.status import Context, effect_if_missing
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Fingerprint
from perfci.model.plan import Looks
from perfci.model.profile import Copy, Counters, Fault, KernelCounters, KernelUse, MemoryUse, Profile, Trace
from perfci.model.report import Row
from perfci.model.results import Case, CaseSide
from tests.judge.build import limit


def incomplete(text: str, **more: Any) -> Fault:
    return Fault(tool="nsys", part="trace", kind="incomplete", text=text, **more)


FORBIDDEN = Fault(
    tool="ncu",
    part="counters",
    kind="forbidden",
    text="counters are not permitted (ERR_NVGPUCTRPERM)",
    remedy="add SYS_ADMIN",
)


def case(base: Profile | None, head: Profile | None) -> Case:
    return Case(
        id="k", kernel="k", device="cuda", sides={"base": CaseSide(profile=base), "head": CaseSide(profile=head)}
    )


CONTEXT = Context(looks=Looks(), m=1, strict=False, compared=True, criteria={}, custom={})


def judged(base: Profile | None, head: Profile | None, asked: Criterion, origin: str = "kernel") -> Row:
    return observed_row(CONTEXT, case(base, head).model_copy(update={"origin": origin}), asked)


def of_command(profile: Profile, reports: int, asked: Criterion) -> Row:
    seen = profile.model_copy(update={"reports": reports})
    return observed_row(CONTEXT, case(seen, seen).model_copy(update={"kernel": "sparse", "origin": "command"}), asked)


def criterion(metric: str = "registers", kind: str = "regression", bound: float = 0.0, **fields: Any) -> Criterion:
    return limit("k", metric, kind, bound, **fields)


FLASH = criterion("kernels", "kernels", tier="trace", pattern="flash")


def values(**metrics: float) -> Profile:
    return Profile(metrics=metrics)


def kernels(*names: str) -> Profile:
    used = [KernelUse(name=name, count=1, seconds=1e-5, grid=(1, 1, 1), block=(32, 1, 1)) for name in names]
    return Profile(trace=Trace(source="nsys", executions=10, wall=1e-4, busy=1e-5, span=1e-5, kernels=used))


@pytest.mark.parametrize(
    ("head", "bound", "class_", "words"),
    [
        (64, 0.0, "unchanged", "64 → 64: the same"),
        (65, 0.0, "regression", "the limit is 0 %"),
        (65, 0.02, "unchanged", "within the limit of 2 %"),
        (66, 0.02, "regression", "64 → 66"),
        (48, 0.0, "improvement", "64 → 48"),
    ],
)
def test_two_observations_of_a_deterministic_quantity_are_compared_exactly(head, bound, class_, words) -> None:
    row = judged(values(registers=64), values(registers=head), criterion(bound=bound))
    assert row.class_ == class_
    assert row.effect == ("fail" if class_ == "regression" else "pass")
    assert words in row.reason


@pytest.mark.parametrize(
    ("base", "head", "class_"),
    [
        (17_039_360, 17_039_523, "unchanged"),  # matmul/n=4096 against itself on an H200
        (17_039_523, 17_039_360, "unchanged"),
        (1_000_000, 1_001_000, "unchanged"),
        (1_000_000, 1_001_001, "regression"),
        (1_000_000, 998_000, "improvement"),
        (0, 1, "regression"),
    ],
)
def test_instructions_of_loops_that_wait_are_no_change(base, head, class_) -> None:
    counted = criterion("instructions", tier="counters")
    row = judged(values(instructions=base), values(instructions=head), counted)
    assert row.class_ == class_
    assert ("differ by up to 0.1 %" in row.reason) is (class_ == "unchanged")
    high = criterion("instructions", "max", 1000, tier="counters")
    row = judged(values(instructions=base), values(instructions=head), high)
    assert row.effect == {"regression": "pass" if head <= 1000 else "fail"}.get(class_, "warn")


def test_from_nothing_to_something_is_a_regression() -> None:
    row = judged(values(spills=0), values(spills=12), criterion(metric="spills"))
    assert (row.class_, row.effect, row.change) == ("regression", "fail", None)


def test_a_bound_that_base_broke_already_warns() -> None:
    low = criterion(metric="occupancy", unit="%", better="higher", tier="counters", kind="min", bound=70)
    row = judged(values(occupancy=80), values(occupancy=60), low)
    assert (row.class_, row.effect) == ("violation", "fail")
    assert "60" in row.reason and "70" in row.reason
    row = judged(values(occupancy=65), values(occupancy=60), low)
    assert (row.class_, row.effect) == ("violation", "warn")
    assert judged(None, values(occupancy=70), low).class_ == "unchanged"


FAIL_ON = {"fail": ["broken", "missing"], "warn": ["broken"]}


@pytest.mark.parametrize("severity", ["fail", "warn"])
@pytest.mark.parametrize("profile", [None, Profile(), Profile(faults=[FORBIDDEN]), values(dram_bytes=1)])
def test_a_value_that_is_not_there_never_passes(profile, severity) -> None:
    low = criterion(metric="occupancy", tier="counters", kind="min", bound=70, fail_on=FAIL_ON[severity])
    row = judged(values(occupancy=80), profile, low)
    assert (row.class_, row.effect) == ("invalid", severity)
    if profile is not None and profile.faults:
        assert "ERR_NVGPUCTRPERM" in row.reason and "SYS_ADMIN" in row.reason


def test_a_relative_limit_without_base_says_why() -> None:
    relative = criterion(metric="instructions", tier="counters")
    assert judged(Profile(faults=[FORBIDDEN]), values(instructions=5), relative).effect == "fail"
    row = judged(Profile(), values(instructions=5), relative)
    assert (row.class_, row.effect, row.reason) == ("invalid", "fail", "not measured: it was not profiled")
    assert judged(kernels(), values(instructions=5), relative).class_ == "added"
    row = judged(kernels("gemm"), values(instructions=5), relative)
    assert (row.class_, row.reason) == ("invalid", "not measured: base has no instructions")
    added = criterion(metric="range:encode", tier="trace")
    assert judged(kernels("gemm"), values(**{"range:encode": 5}), added).class_ == "added"


def test_an_expected_kernel() -> None:
    assert judged(kernels("flash_fwd"), kernels("flash_fwd_v2"), FLASH).class_ == "unchanged"
    row = judged(kernels("flash_fwd"), kernels("softmax", "gemm"), FLASH)
    assert (row.class_, row.effect) == ("violation", "fail")
    assert "softmax" in row.reason
    assert judged(kernels("gemm"), kernels("gemm"), FLASH).effect == "warn"
    assert judged(kernels("flash_fwd"), Profile(), FLASH).class_ == "invalid"


FILL = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, 1>>(int)"
)
GEMM = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel"
)


def test_kernels_that_are_not_the_expected_one_are_named_in_short() -> None:
    row = judged(None, kernels(FILL, GEMM, "softmax", "add"), FLASH)
    assert row.reason == (
        "no kernel matches flash: `vectorized_elementwise_kernel<FillFunctor, float32>`, "
        "`sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x1…` and 2 more"
    )
    assert row_words(row) == f"`k`: {row.reason}"


def copies(*faults: Fault, kind: Any = "host to device") -> Profile:
    """A range that only copies, and of which ncu saw nothing."""
    moved = [Copy(kind=kind, source="pinned", target="device", count=1, bytes=1e6, seconds=1e-5)]
    trace = Trace(source="nsys", executions=10, wall=1e-4, busy=1e-5, span=1e-5, copies=moved)
    none = Fault(tool="ncu", part="counters", kind="empty", text="ncu saw no kernel", remedy="see ncu's log")
    return Profile(trace=trace, faults=[none, *faults])


@pytest.mark.parametrize(("metric", "tier"), [("dram_bytes", "counters"), ("registers", "static")])
def test_a_case_without_kernels_has_none_to_count(metric, tier) -> None:
    copying = copies()
    asked = criterion(metric=metric, tier=tier, kind="max", bound=70)
    row = judged(None, copying, asked)
    assert (row.class_, row.effect) == ("invalid", "fail")
    assert "head launches no kernel" in row.reason and "ncu's log" not in row.reason
    # A timeline that lost something proves nothing.
    copying.faults.append(incomplete("3 kernels have no usable values"))
    row = judged(None, copying, asked)
    assert row.class_ == "invalid" and "launches no kernel" not in row.reason


def test_a_range_that_is_gone_is_named() -> None:
    encode = criterion(metric="range:encode", unit="s", tier="trace", kind="max", bound=1e-3)
    assert judged(None, Profile(metrics={"range:encode": 5e-4}), encode).class_ == "unchanged"
    row = judged(None, kernels("a"), encode)
    assert row.class_ == "invalid" and "'encode'" in row.reason


@given(base=st.floats(0, 1e12), head=st.floats(0, 1e12), bound=st.floats(0, 10))
def test_no_worse_value_within_base_ever_breaks_a_bound(base, head, bound) -> None:
    row = judged(values(registers=base), values(registers=head), criterion(bound=bound))
    assert (row.class_ == "regression") == (head > base * (1 + bound))


def test_what_is_of_several_cases_of_a_command_is_of_none() -> None:
    flash = FLASH.model_copy(update={"fail_on": ["broken"]})
    for profile, asked in ((kernels("flash_fwd"), flash), (values(registers=64), criterion())):
        assert of_command(profile, 1, asked).class_ == "unchanged"
        row = of_command(profile, 3, asked)
        assert (row.class_, row.effect) == ("invalid", effect_if_missing(asked))
        assert "sparse as a whole, and it reports 3 cases: declare a command" in row.reason


@pytest.mark.parametrize("metric", ["device_busy", "launch_overhead"])
def test_what_is_not_told_of_a_command(metric) -> None:
    trace = Trace(source="nsys", executions=1, wall=1.0, busy=0.5, span=0.5)
    asked = criterion(metric=metric, unit="%", tier="trace", kind="max", bound=60.0)
    row = of_command(Profile(trace=trace), 1, asked)
    assert row.class_ == "invalid" and metric in row.reason and "declare a kernel" in row.reason
    looped = Profile(trace=trace.model_copy(update={"within": "step"}), metrics={metric: 50.0})
    row = of_command(looped, 1, asked)
    assert row.class_ == "unchanged" and "range: NAME" not in row.reason


def held(peak: float, *faults: Fault) -> Profile:
    trace = Trace(source="nsys", executions=1, wall=1.0, busy=0.5, span=0.5, memory=MemoryUse(peak=peak, final=0))
    return Profile(trace=trace, metrics={} if faults else {"peak_memory": peak}, faults=[*faults])


@pytest.mark.parametrize("origin", ["command", "imported"])
def test_peak_memory_of_a_command_is_the_timelines(origin) -> None:
    def whole(base: Profile, head: Profile, asked: Criterion) -> Row:
        reports = {"reports": 1 if origin == "command" else None}
        return judged(base.model_copy(update=reports), head.model_copy(update=reports), asked, origin)

    most = criterion(metric="peak_memory", unit="B", tier="static", kind="max", bound=1e9)
    assert whole(held(8e8), held(9e8), most).class_ == "unchanged"
    assert whole(held(8e8), held(2e9), most).class_ == "violation"
    grown = criterion(metric="peak_memory", unit="B", tier="static", bound=0.01)
    assert whole(held(8e8), held(9e8), grown).class_ == "regression"
    lost = incomplete("2 frees are not there", metrics=["peak_memory"])
    untraced = Profile(trace=held(1.0).trace.model_copy(update={"memory": None}))
    for asked in (most, grown):
        row = whole(held(8e8), held(9e8, lost), asked)
        assert row.class_ == "invalid" and "2 frees are not there" in row.reason
        row = whole(held(8e8), untraced, asked)
        assert row.class_ == "invalid" and "device memory is not in the timeline of head" in row.reason
    refused = lost.model_copy(update={"text": "table X has no column bytes"})
    row = whole(held(8e8), untraced.model_copy(update={"faults": [refused]}), most)
    assert row.class_ == "invalid" and "table X has no column bytes" in row.reason
    for base in (untraced, Profile(), held(8e8, lost)):
        assert whole(base, held(9e8), grown).class_ == "invalid", "nothing of base is no pass"


def test_why_nothing_is_told_of_a_range_that_was_not_seen() -> None:
    lost = Fault(tool="nsys", part="trace", kind="empty", text="no range of this name among 7 in the trace")
    asked = criterion(metric="device_busy", unit="%", tier="trace", kind="max", bound=60.0)
    row = of_command(Profile(faults=[lost]), 1, asked)
    assert row.class_ == "invalid" and "no range of this name among 7" in row.reason


def test_a_kernel_that_a_command_may_have_launched_unseen() -> None:
    """Where the timeline was cut, or only counters are there, of the kernels that ncu was asked for."""
    assert of_command(kernels("gemm"), 1, FLASH).class_ == "violation"
    lost = incomplete("recorded the first 60 s", remedy="fewer steps")
    cut = kernels("gemm").model_copy(update={"faults": [lost]})
    row = of_command(cut, 1, FLASH)
    assert row.class_ == "invalid" and "not all were: nsys: recorded the first 60 s: fewer steps" in row.reason
    seen = kernels("gemm", "flash_fwd").model_copy(update={"faults": cut.faults})
    assert of_command(seen, 1, FLASH).class_ == "unchanged"


# ---------------------------------------------------------------- values beside a fault

LOST = incomplete("nsys says: CUPTI dropped 5 records", remedy="profile fewer executions")
OWN = {"kernel_launches": "trace", "instructions": "counters", "registers": "static", "range:encode": "trace"}


def seen_by(tool: str, value: float, *faults: Fault, metric: str = "kernel_launches") -> Profile:
    """A profile with one value, that this tool told."""
    profile = kernels("gemm").model_copy(update={"metrics": {metric: value}, "faults": list(faults)})
    assert profile.trace is not None
    if tool == "ncu":
        counted = {"grid": (1, 1, 1), "block": (32, 1, 1), "values": {metric: value}}
        profile.counters = Counters(
            source="ncu", kernels=[KernelCounters(name="gemm", count=1, seconds=1e-5, **counted)]
        )
    else:
        profile.trace.source = tool  # type: ignore[assignment]
    return profile


@pytest.mark.parametrize("origin", ["kernel", "command"])
@pytest.mark.parametrize("on_missing", ["fail", "warn"])
@pytest.mark.parametrize("kind", ["max", "min", "regression"])
@pytest.mark.parametrize("value", [2.5, 5.0])
def test_a_value_beside_a_fault_neither_keeps_nor_breaks_a_limit(origin, on_missing, kind, value) -> None:
    whole, part = seen_by("nsys", 3), seen_by("nsys", value, LOST)
    bound = 0.0 if kind == "regression" else 3.0
    asked = criterion(metric="kernel_launches", tier="trace", kind=kind, bound=bound, fail_on=FAIL_ON[on_missing])
    row = judged(whole, part, asked, origin)
    assert (row.class_, row.effect, row.head) == ("invalid", on_missing, None)
    assert "nsys: nsys says: CUPTI dropped 5 records: profile fewer executions" in row.reason


def test_base_beside_a_fault_compares_with_nothing_and_excuses_nothing() -> None:
    part, head = seen_by("nsys", 9, LOST), seen_by("nsys", 5)
    row = judged(part, head, criterion(metric="kernel_launches", tier="trace"))
    assert (row.class_, row.effect) == ("invalid", "fail") and "CUPTI dropped" in row.reason
    row = judged(part, head, criterion(metric="kernel_launches", tier="trace", kind="max", bound=3))
    assert (row.class_, row.effect, row.base) == ("violation", "fail", None)


@pytest.mark.parametrize(
    ("metric", "tool", "fault", "stands"),
    [
        ("kernel_launches", "nsys", LOST.model_copy(update={"metrics": ["copy_bytes"]}), True),
        ("kernel_launches", "nsys", LOST.model_copy(update={"metrics": ["kernel_launches"]}), False),
        ("kernel_launches", "nsys", LOST.model_copy(update={"aside": True}), True),
        ("kernel_launches", "torch.profiler", LOST, True),  # nsys saw nothing, and torch's profiler told instead
        ("kernel_launches", "nsys", FORBIDDEN, True),
        ("instructions", "ncu", LOST, True),
        ("instructions", "ncu", FORBIDDEN, False),
        ("registers", "nsys", LOST, False),
        ("registers", "nsys", FORBIDDEN, True),
        ("registers", "ncu", LOST, True),
        ("registers", "ncu", FORBIDDEN, False),
        ("range:encode", "nsys", LOST.model_copy(update={"metrics": ["range:*"]}), False),
        ("range:encode", "nsys", LOST.model_copy(update={"metrics": ["range:loss"]}), True),
        ("peak_memory", "nsys", LOST, True),
    ],
)
def test_a_fault_costs_what_it_could_have_changed_and_no_more(metric, tool, fault, stands) -> None:
    asked = criterion(metric=metric, tier=OWN.get(metric, "static"), kind="max", bound=10)
    row = judged(None, seen_by(tool, 5, fault, metric=metric), asked)
    assert row.class_ == ("unchanged" if stands else "invalid")


def test_a_kernel_that_is_not_seen_beside_a_fault_may_have_been_lost() -> None:
    lost = kernels("gemm").model_copy(update={"faults": [LOST]})
    row = judged(None, lost, FLASH)
    assert (row.class_, row.effect) == ("invalid", "fail") and "not all were: nsys" in row.reason
    row = judged(lost, kernels("gemm"), FLASH)
    assert (row.class_, row.effect) == ("violation", "fail"), "base excuses by what it was seen to do"
    sets = LOST.model_copy(update={"metrics": ["device_busy"]})
    assert judged(None, kernels("gemm").model_copy(update={"faults": [sets]}), FLASH).effect == "fail"


MISSED = incomplete("3 of 9 launches have no device work in the trace")
OF_NOTHING = [("registers", "static"), ("dram_bytes", "counters"), ("copy_bandwidth_d2h", "trace")]


@pytest.mark.parametrize(("metric", "tier"), OF_NOTHING)
@pytest.mark.parametrize("kind", ["max", "regression"])
def test_a_pattern_asks_no_case_for_what_no_side_has(metric: str, tier: Any, kind: Any) -> None:
    by_pattern = criterion(metric, kind, 70, tier=tier, named=False)
    by_name = by_pattern.model_copy(update={"named": True})

    def rows(base: Profile | None, head: Profile, asked: Criterion, status: Any = "ok") -> list[Any]:
        one = case(base, head)
        one.sides["base"].status = status
        asking = replace(CONTEXT, criteria={one.key: [asked]})
        told = [row for row in rows_of(asking, [one], Fingerprint.model_construct()) if row.kind != "presence"]
        assert bool(not_asked(asking, [one])) == (not told and not asked.named)
        return told

    for base, status in ((copies(), "ok"), (None, "absent")):
        assert rows(base, copies(), by_pattern, status) == []
        # What is asked by name of what is new has a row where it is a bound; nothing is compared.
        named = rows(base, copies(), by_name, status)
        assert [row.class_ for row in named] == ["invalid"] * (status == "ok" or kind == "max")
    for base, head in ((copies(MISSED), copies()), (copies(), copies(MISSED)), (None, copies()), (copies(), Profile())):
        (row,) = rows(base, head, by_pattern)
        assert (row.class_, row.effect) == ("invalid", "fail")
    seen = kernels("gemm").model_copy(update={"metrics": {metric: 64.0}})
    for asked in (by_pattern, by_name):
        (row,) = rows(seen, copies(), asked)
        assert (row.class_, row.effect, row.base) == ("missing", "fail", 64.0) and "in base, and head" in row.reason
        assert row_words(row) == f"`k`: {metric} is missing in head"
        (row,) = rows(seen, copies(MISSED), asked)
        assert row.class_ == "invalid"
        (row,) = rows(copies(), seen, asked)
        assert row.class_ in ("added", "unchanged")


def test_a_pattern_still_asks_for_ranges_kernels_and_calls() -> None:
    """A range that no side has may be one that nobody pushes any more; and calls may not have been traced."""
    for metric in ("range:encode", "sync_count", "kernels"):
        kind: Any = "kernels" if metric == "kernels" else "max"
        pattern = {"pattern": "flash"} if metric == "kernels" else {}
        asked = criterion(metric, kind, 1.0, tier="trace", named=False, **pattern)
        assert judged(copies(), copies(), asked).class_ == "invalid"
        assert not inapplicable(case(copies(), copies()), asked)
