"""NVBench's files and nvbench-compare-robust's tables, as cuda-bench 0.3.0 writes and prints them."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.sensitivity import nvbench

PRINTED = """\
# gemm/1

## [0] GPU

|            Ref [Lo | Ce | Hi] |            Cmp [Lo | Ce | Hi] | Ref Noise | Cmp Noise | Reason | Change | Status |
|-------------------------------|-------------------------------|-----------|-----------|--------|--------|--------|
| [51.232 | 52.704 | 53.472] us | [50.816 | 52.416 | 52.960] us |     2.67% |     1.95% | centers-far |  |  🤷 AMBG  |

# gemm/2

## [0] GPU

|    Ref [Lo | Ce | Hi] |    Cmp [Lo | Ce | Hi] | Ref Noise | Cmp Noise | Reason | Change | Status |
|-----------------------|-----------------------|-----------|-----------|--------|--------|--------|
| [1.0 | 1.1 | 1.2] us | [1.5 | 1.6 | 1.7] us | 2.67% | 1.95% | clear-gap | 45.4% [36, 54] |  🔴 SLOW  |

# Summary

- Total Matches: 2
"""


def test_verdicts_are_read_off_the_tables():
    assert nvbench.parse(PRINTED.splitlines()) == {"gemm/1": ("AMBG", "centers-far"), "gemm/2": ("SLOW", "clear-gap")}


def test_a_table_of_another_version_is_an_error_not_a_pass():
    with pytest.raises(RuntimeError, match="its table has changed"):
        nvbench.parse(PRINTED.replace("| Status |", "| Verdict |").splitlines())
    with pytest.raises(RuntimeError, match="no verdict"):
        nvbench.parse(PRINTED.replace("SLOW", "SLUGGISH").splitlines())


def test_samples_and_clocks_come_back_from_a_file(tmp_path: Path):
    times, clocks = np.linspace(1e-6, 2e-6, 30), np.full(30, 1.9e9)
    nvbench.write(tmp_path / "a.json", {"one": (times, clocks), "two": (times, None)})
    found = nvbench.read(tmp_path / "a.json")
    assert found["one", ""][0] == pytest.approx(times, rel=1e-6)
    assert found["one", ""][1] == pytest.approx(clocks)
    assert found["two", ""][1] is None


def test_a_file_without_samples_says_what_to_do(tmp_path: Path):
    recorded = Path(__file__).parents[1] / "data" / "nvbench" / "matmul.json"
    with pytest.raises(ValueError, match="--jsonbin"):
        nvbench.read(recorded)


@pytest.mark.skipif(nvbench.find_tool() is None, reason=f"{nvbench.TOOL} is not installed (cuda-bench[compare])")
def test_the_tool_itself_finds_what_is_plain(tmp_path: Path):
    """Far slower is SLOW, itself is SAME: the files are understood."""
    rng = np.random.default_rng(0)
    times, clocks = 1e-4 * (1 + 0.002 * rng.standard_normal(400)), np.full(400, 1.9e9)
    nvbench.write(tmp_path / "base.json", {"same": (times, clocks), "slow": (times, clocks)})
    nvbench.write(tmp_path / "head.json", {"same": (times, clocks), "slow": (1.3 * times, clocks)})
    found = nvbench.compare(tmp_path / "base.json", tmp_path / "head.json")
    assert {name: verdict for name, (verdict, _) in found.items()} == {"same": "SAME", "slow": "SLOW"}
