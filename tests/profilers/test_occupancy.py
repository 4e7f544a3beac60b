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


@pytest.mark.parametrize("row", NCU, ids=lambda row: f"{row['side']}-{row['kernel'][:30]}")
def test_every_kernel_that_ncu_saw_on_an_h200(row):
    major, minor = row["capability"].split(".")
    found = occupancy((int(major), int(minor)), int(row["threads"]), int(row["registers"]), int(row["shared"]))
    assert found == float(row["percent"])


def test_nvidias_calculator_agrees_for_every_capability():
    """4800 random configurations that cuda_occupancy.h judged, with the SM sizes of CCCL's arch_traits.h."""
    seen = set()
    for line in ORACLE:
        number, threads, registers, shared, blocks, *_ = map(int, line.split())
        capability = divmod(number, 10)
        seen.add(capability)
        resident = 100.0 * blocks * -(-threads // 32) / CHIPS[capability].warps
        assert occupancy(capability, threads, registers, shared) == (resident or None), line
    assert seen == set(CHIPS)


def test_an_unknown_chip_is_no_guess_and_what_cannot_be_launched_has_no_occupancy():
    assert [occupancy(chip, 128, 32, 0) for chip in ((6, 1), (10, 7), (13, 0))] == [None] * 3
    for launch in ((0, 32, 0), (1025, 32, 0), (128, 256, 0), (1024, 65, 0), (128, 32, 228 * 1024), (128, -1, 0), (128, 32, -1)):  # fmt: skip
        assert occupancy((9, 0), *launch) is None


@given(st.sampled_from(sorted(CHIPS)), st.integers(-5, 1100), st.integers(-5, 300), st.integers(-5, 300_000))
def test_occupancy_is_none_or_a_percentage_and_never_rises_with_what_is_used(capability, threads, registers, shared):
    found = occupancy(capability, threads, registers, shared)
    if found is None:
        return
    assert 0 < found <= 100
    for more in (
        occupancy(capability, threads, registers + 1, shared),
        occupancy(capability, threads, registers, shared + 1),
    ):
        assert more is None or more <= found
