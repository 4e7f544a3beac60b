"""The NVBench example: what its README promises is there, and on a GPU its states are cases."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfci.measure.commands.readers.nvbench import read_nvbench
from perfci.model.policy_text import parse_policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvbench"
CASES = ["norms/rmsnorm_bf16/rows=1024", "norms/rmsnorm_bf16/rows=8192"]


def test_policy_and_readme_fit_the_program():
    (command,) = parse_policy((EXAMPLE / "perfci.yaml").read_text()).commands
    assert (command.name, command.reads, command.device) == ("norms", "nvbench", "cuda")
    program = (EXAMPLE / "bench.py").read_text()
    assert "register(rmsnorm_bf16).add_int64_axis" in program and "[1024, 8192]" in program
    readme = (EXAMPLE / "README.md").read_text()
    assert all(f"`{case}`" in readme for case in CASES)
    old, file = re.search(r"sed -i 's/(.*)/.*/' (\S+)", readme).groups()
    assert old in (EXAMPLE / file).read_text()


@pytest.fixture
def program(tmp_path):
    probe = "import sys, torch, cuda.bench; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode:
        pytest.skip("needs cuda-bench and an NVIDIA GPU")  # NVBench starts on no other device
    return shutil.copytree(EXAMPLE, tmp_path / "example")


def measure(folder):
    out = folder / "out.json"
    command = [sys.executable, "bench.py", "--timeout", "0.3", "--jsonbin", str(out)]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return read_nvbench(out, "norms")


@pytest.mark.gpu
def test_its_states_are_cases_with_samples_and_work(program):
    found = measure(program)
    assert sorted(found) == CASES
    for ident, rows in zip(CASES, (1024, 8192), strict=True):
        assert found[ident].reason is None
        assert len(found[ident].values["time"]) >= 10
        assert found[ident].work.items == rows
        assert found[ident].work.read == 2 * rows * 4096 * 2 + 4096 * 2


@pytest.mark.gpu
def test_a_wrong_kernel_is_no_measurement(program):
    """NVBench checks nothing by itself; the program does."""
    kernel = program / "rmsnorm.py"
    kernel.write_text(kernel.read_text().replace("/ hidden + epsilon", "/ hidden * 1.05 + epsilon"))
    assert {reported.reason.kind for reported in measure(program).values()} == {"exception"}
