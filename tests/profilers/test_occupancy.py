"""Occupancy from a launch configuration, against NVIDIA's calculator and against ncu on an H200."""

import csv
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.profilers.occupancy import CHIPS, occupancy

DATA = Path(__file__).parents[1] / "data" / "occupancy"
ORACLE = lzma.decompress((DATA / "oracle.txt.xz").read_bytes()).decode().splitlines()[1:]
NCU = list(csv.DictReader((DATA / "ncu_h200.csv").open()))
UNLIMITED = 2**31 - 1
"""The calculator's limit where a kernel uses none of a resource."""


@pytest.mark.parametrize("row", NCU, ids=lambda row: f"{row['side']}-{row['kernel'][:30]}")
def test_every_kernel_that_ncu_saw_on_an_h200(row):
    major, minor = row["capability"].split(".")
    found = occupancy((int(major), int(minor)), int(row["threads"]), int(row["registers"]), int(row["shared"]))
    assert found is not None
    assert found.percent == float(row["percent"])
    for name in ("registers", "blocks", "warps"):
        assert found.limits[name] == int(row[f"limit_{name}"])
    assert found.limits["shared memory"] >= int(row["limit_shared"])  # ncu's is that of the launch's carve-out
    assert found.blocks == min(int(row[f"limit_{name}"]) for name in ("registers", "shared", "blocks", "warps"))


def test_nvidias_calculator_agrees_for_every_capability():
    """4800 random configurations that cuda_occupancy.h judged, with the SM sizes of CCCL's arch_traits.h."""
    seen = set()
    for line in ORACLE:
        capability, threads, registers, shared, blocks, *limits = map(int, line.split())
        seen.add(divmod(capability, 10))
        found = occupancy(divmod(capability, 10), threads, registers, shared)
        if not blocks:
            assert found is None, line
            continue
        assert found is not None and found.blocks == blocks, line
        for name, limit in zip(("registers", "shared memory", "blocks", "warps"), limits, strict=True):
            assert limit == UNLIMITED or found.limits[name] == limit, (name, line)
    assert seen == set(CHIPS)


def test_what_limits_is_named_by_what_a_kernel_author_can_change():
    assert occupancy((9, 0), 128, 255, 49152).limiter == "registers"  # flash attention
    assert occupancy((9, 0), 128, 32, 49152).limiter == "shared memory"
    assert occupancy((9, 0), 32, 32, 0).limiter == "blocks"
    full = occupancy((9, 0), 1024, 32, 0)
    assert (full.percent, full.limiter, full.blocks) == (100.0, "warps", 2)
    uneven = occupancy((9, 0), 384, 32, 0)  # registers would allow no more either
    assert (uneven.percent, uneven.limiter, uneven.blocks) == (93.75, "warps", 5)


def test_an_unknown_chip_is_no_guess():
    assert occupancy((6, 1), 128, 32, 0) is None
    assert occupancy((10, 7), 128, 32, 0) is None
    assert occupancy((13, 0), 128, 32, 0) is None


def test_what_cannot_be_launched_has_no_occupancy():
    for threads, registers, shared in ((0, 32, 0), (1025, 32, 0), (128, 256, 0), (1024, 65, 0), (128, 32, 228 * 1024), (128, -1, 0), (128, 32, -1)):  # fmt: skip
        assert occupancy((9, 0), threads, registers, shared) is None


@given(st.sampled_from(sorted(CHIPS)), st.integers(-5, 1100), st.integers(-5, 300), st.integers(-5, 300_000))
def test_occupancy_is_none_or_a_percentage_and_never_rises_with_what_is_used(capability, threads, registers, shared):
    found = occupancy(capability, threads, registers, shared)
    if found is None:
        return
    assert 0 < found.percent <= 100 and found.blocks >= 1 and found.limits[found.limiter] == found.blocks
    for more in (
        occupancy(capability, threads, registers + 1, shared),
        occupancy(capability, threads, registers, shared + 1),
    ):
        assert more is None or more.percent <= found.percent
