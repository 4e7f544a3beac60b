"""Limits on what a profiler saw once: exact comparisons, bounds, expected kernels, and never a pass without a value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.gates import gate_row
from perfci.judge.rows import Context
from perfci.model.evidence import Evidence, Fault, KernelUse, Trace
from perfci.model.plan import Gate, Looks
from perfci.model.results import Case, CaseArm

FORBIDDEN = Fault(
    tool="ncu", kind="forbidden", text="counters are not permitted (ERR_NVGPUCTRPERM)", remedy="add SYS_ADMIN"
)


def case(base: Evidence | None, head: Evidence | None) -> Case:
    return Case(
        id="k", kernel="k", device="cuda", arms={"base": CaseArm(evidence=base), "head": CaseArm(evidence=head)}
    )


def context(strict: bool = False) -> Context:
    return Context(looks=Looks(), m=1, strict=strict, compared=True, asked={}, gates={}, custom={})


def gate(**fields: object) -> Gate:
    made = {"metric": "registers", "unit": "", "better": "lower", "tier": "static", "kind": "regression", "bound": 0.0}
    return Gate.model_validate({"case": "k", "device": "cuda", **made, **fields})


def values(**metrics: float) -> Evidence:
    return Evidence(metrics=metrics)


def kernels(*names: str) -> Evidence:
    used = [KernelUse(name=name, count=1, seconds=1e-5, grid=(1, 1, 1), block=(32, 1, 1)) for name in names]
    return Evidence(trace=Trace(source="nsys", executions=10, wall=1e-4, busy=1e-5, span=1e-5, kernels=used))


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
    row = gate_row(context(), case(values(registers=64), values(registers=head)), gate(bound=bound))
    assert row.class_ == class_
    assert row.effect == ("fail" if class_ == "regression" else "pass")
    assert words in row.reason


def test_from_nothing_to_something_is_a_regression() -> None:
    row = gate_row(context(), case(values(spills=0), values(spills=12)), gate(metric="spills"))
    assert (row.class_, row.effect, row.change) == ("regression", "fail", None)


def test_a_bound_that_base_broke_already_warns() -> None:
    low = gate(metric="occupancy", unit="%", better="higher", tier="counters", kind="min", bound=70)
    row = gate_row(context(), case(values(occupancy=80), values(occupancy=60)), low)
    assert (row.class_, row.effect) == ("violation", "fail")
    assert "60" in row.reason and "70" in row.reason
    row = gate_row(context(), case(values(occupancy=65), values(occupancy=60)), low)
    assert (row.class_, row.effect) == ("violation", "warn")
    assert gate_row(context(), case(None, values(occupancy=70)), low).class_ == "unchanged"


@pytest.mark.parametrize("severity", ["fail", "warn"])
@pytest.mark.parametrize("evidence", [None, Evidence(), Evidence(faults=[FORBIDDEN]), values(dram_bytes=1)])
def test_a_value_that_is_not_there_never_passes(evidence, severity) -> None:
    low = gate(metric="occupancy", tier="counters", kind="min", bound=70, on_missing=severity)
    row = gate_row(context(), case(values(occupancy=80), evidence), low)
    assert (row.class_, row.effect) == ("invalid", severity)
    if evidence is not None and evidence.faults:
        assert "ERR_NVGPUCTRPERM" in row.reason and "SYS_ADMIN" in row.reason


def test_a_relative_limit_without_base_says_why() -> None:
    relative = gate(metric="instructions", tier="counters")
    blind = case(Evidence(faults=[FORBIDDEN]), values(instructions=5))
    assert gate_row(context(), blind, relative).effect == "fail"
    assert gate_row(context(), case(Evidence(), values(instructions=5)), relative).class_ == "added"


def test_an_expected_kernel() -> None:
    flash = gate(metric="kernels", tier="trace", kind="kernels", pattern="flash")
    assert gate_row(context(), case(kernels("flash_fwd"), kernels("flash_fwd_v2")), flash).class_ == "unchanged"
    row = gate_row(context(), case(kernels("flash_fwd"), kernels("softmax", "gemm")), flash)
    assert (row.class_, row.effect) == ("violation", "fail")
    assert "softmax" in row.reason
    assert gate_row(context(), case(kernels("gemm"), kernels("gemm")), flash).effect == "warn"
    assert gate_row(context(), case(kernels("flash_fwd"), Evidence()), flash).class_ == "invalid"


def test_a_range_that_is_gone_is_named() -> None:
    encode = gate(metric="range:encode", unit="s", tier="trace", kind="max", bound=1e-3)
    assert gate_row(context(), case(None, Evidence(metrics={"range:encode": 5e-4})), encode).class_ == "unchanged"
    row = gate_row(context(), case(None, kernels("a")), encode)
    assert row.class_ == "invalid" and "'encode'" in row.reason


@given(base=st.floats(0, 1e12), head=st.floats(0, 1e12), bound=st.floats(0, 10))
def test_no_worse_value_within_base_is_ever_convicted(base, head, bound) -> None:
    row = gate_row(context(), case(values(registers=base), values(registers=head)), gate(bound=bound))
    assert (row.class_ == "regression") == (head > base * (1 + bound))
