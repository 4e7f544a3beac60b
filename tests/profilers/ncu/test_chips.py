"""Every metric that is asked of ncu exists on the chip it is asked on, by NVIDIA's own lists of names."""

import lzma
import re
from pathlib import Path

import pytest

from perfci.model.base import UsageError
from perfci.model.metrics import FAMILIES
from perfci.profilers.ncu import chips

KNOWN = Path(__file__).parent.parent.parent / "data" / "ncu" / "known_metrics.txt.xz"
SUFFIX = {
    "c": r"\.(sum|avg|min|max)(\.per_second|\.per_cycle_active|\.pct_of_peak_sustained_(active|elapsed))?",
    "r": r"\.(ratio|pct)",
    "t": r"\.(sum|avg|min|max)\.pct_of_peak_sustained_(active|elapsed)",
    "a": "",
}


@pytest.fixture(scope="module")
def known():
    """(base name, kind) → the chips that have it; and the chips."""
    lines = lzma.decompress(KNOWN.read_bytes()).decode().splitlines()
    listed = lines[0].split(": ")[1].split()
    table = {}
    for line in lines[2:]:
        name, kind, where = line.split()
        table[name, kind] = {chip for chip, bit in zip(listed, where, strict=True) if bit == "1"}
    return table, listed


def exists(table, metric, chip):
    return any(
        re.fullmatch(re.escape(base) + SUFFIX[kind], metric) and chip in where
        for (base, kind), where in table.items()
        if metric.startswith(base)
    )


def test_every_metric_exists_on_every_chip_it_is_asked_on(known):
    table, listed = known
    assert {chips.family(chip) for chip in listed} == set(FAMILIES)
    for chip in listed:
        for metric in chips.metrics_for("deep", chip):
            assert exists(table, metric, chip), (chip, metric)


def test_what_is_called_unavailable_is(known):
    table, listed = known
    for chip in listed:
        for name, why in chips.unavailable("deep", chip).items():
            assert why
            for source in chips.COUNTED[name].ncu:
                assert not all(exists(table, metric, chip) for metric in source.metrics), (chip, name)


def test_the_list_tells_typos_apart(known):
    table, _ = known
    assert exists(table, "dram__bytes_op_read.sum", "gb202") and not exists(table, "dram__bytes_read.sum", "gb202")
    assert not exists(table, "l1tex__t_sector_miss_rate.pct", "gh100")
    assert not exists(table, "dram__byte.sum", "gh100") and not exists(table, "dram__bytes", "gh100")
    assert not exists(table, "l1tex__t_sector_hit_rate.sum", "gh100")


def test_sources_differ_by_chip():
    assert chips.metrics_for("dram_read", "GH100") == ["gpu__time_duration.sum", "dram__bytes_read.sum"]
    assert chips.metrics_for("dram_read", "gb203") == ["gpu__time_duration.sum", "dram__bytes_op_read.sum"]
    packed = chips.source("fp32_flops", "gb110")
    assert packed is not None
    assert packed.metrics["smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum"] == 4
    assert "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum" not in chips.metrics_for("fp32_flops", "gh100")


def test_at_most_one_source_fits_a_chip():
    for quantity in chips.COUNTED.values():
        families = [family for source in quantity.ncu for family in source.families]
        assert len(families) == len(set(families)), quantity.name
        assert set(families) <= set(FAMILIES)
        assert set(families) == set(FAMILIES) or quantity.lacking, quantity.name


def test_a_chip_that_is_not_known_is_asked_for_what_all_have():
    assert chips.family("gx100") is None and chips.chip_of(99, 0) is None
    assert "dram__bytes.sum" not in chips.metrics_for("default", "gx100")
    assert "sm__warps_active.avg.pct_of_peak_sustained_active" in chips.metrics_for("default", "gx100")
    assert "does not know gx100" in chips.unavailable("default", "gx100")["dram_bytes"]
    assert "integrated" in chips.unavailable("dram_bytes", "gb20b")["dram_bytes"]
    assert chips.unavailable("deep", "gh100") == {}


def test_an_unknown_name_is_an_error_in_one_line():
    with pytest.raises(UsageError, match=r"^'ocupancy' is no counter: did you mean 'occupancy'\?$"):
        chips.metrics_for(["ocupancy"], "gh100")
    with pytest.raises(UsageError, match=r"^'local_memory' is no counter: "):  # of a timeline only
        chips.expand("local_memory")
