"""The table of metrics: what is no entry is an error."""

from pathlib import Path

import pytest

from perfci.cli.report import read_results
from perfci.model.base import UsageError
from perfci.model.metrics import CATALOGUE, COUNTERS, TABLE, Quantity, combined, following, table
from perfci.model.profile import Counters, KernelCounters, Profile

from ..judge.build import case, results, side


def test_every_counter_says_how_kernels_aggregate() -> None:
    assert {name for name, one in TABLE.items() if one.ncu} == COUNTERS.keys() - {"local_memory"}  # a timeline's alone
    with pytest.raises(ValueError, match="ipc: say how the values of kernels aggregate"):
        Quantity("ipc", "", "", tier="counters", sources=("counters",), ncu=TABLE["instructions"].ncu)
    with pytest.raises(ValueError, match="ipc: say what ncu counts for it"):
        Quantity("ipc", "", "", tier="counters", sources=("counters",), aggregate="mean")


def test_a_name_stands_once() -> None:
    with pytest.raises(ValueError, match="two entries are called waves"):
        table(TABLE["waves"], TABLE["spills"], TABLE["waves"])


@pytest.mark.parametrize(
    ("name", "near"),
    [("dram_byte", "dram_bytes"), ("time", "waves"), ("stall_bariers", "stall_barrier"), ("", "waves")],
)
def test_what_is_no_counter_is_never_averaged(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"^{name!r} is no counter: (did you mean|known are) .*{near}") as error:
        combined(name, [(1.0, 1.0)])
    assert "\n" not in str(error.value)


def test_every_timeline_metric_says_what_spoils_it() -> None:
    """Else a fault of the timeline would leave it standing."""
    for name, one in CATALOGUE.items():
        assert bool(one.spoiled_by) == ("trace" in one.sources), name
    assert following("sets") == ("device_busy", "launch_overhead", "range:*")
    assert "range:*" not in following("calls")


def test_a_document_with_an_unknown_name_is_refused_in_one_line(tmp_path: Path) -> None:
    kernel = KernelCounters(name="k", count=1, seconds=1e-5, grid=(1, 1, 1), block=(1, 1, 1), values={"waves": 1.0})
    profile = Profile(
        counters=Counters(source="ncu", kernels=[kernel]), metrics={"instructions": 1.0, "range:encode": 1e-3}
    )
    given = results([case(head=side(profile=profile))]).model_dump_json()
    path = tmp_path / "results.json"
    path.write_text(given)
    read_results(path)
    wrong = {"wawes": "waves", "waves": "instructions", "range:": "range:encode", "w" * 10**6: "waves"}
    for name, known in wrong.items():
        path.write_text(given.replace(f'"{known}"', f'"{name}"'))
        with pytest.raises(UsageError, match=rf"(values|metrics): .*'{name[:80]}' is no (counter|metric): ") as error:
            read_results(path)
        assert "\n" not in str(error.value) and len(str(error.value)) < 2000
