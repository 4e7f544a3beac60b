"""The build of the CUDA C++ kernel: what the compiler reports reaches the gate, and what is missing is said."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfci.measure.commands.readers.lines import read_perfci_lines
from perfci.model.limits import Subject, criteria
from perfci.model.policy_text import parse_policy
from perfci.worker.discover import discover

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "kernels" / "build_bsr.py"
SOURCE = ROOT / "kernels" / "sparse_bsr_gemm.cu"
POLICY = parse_policy((ROOT / "perfci.yaml").read_text())

needs_nvcc = pytest.mark.skipif(
    not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()), reason="needs nvcc"
)

spec = importlib.util.spec_from_file_location("build_bsr", SCRIPT)
build_bsr = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build_bsr)


def run(site, *args, script=SCRIPT, **env):
    return subprocess.run(
        [sys.executable, str(script), *args],
        env={**os.environ, "PERFCI_SITE": str(site), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def reported(site):
    lines = site / "lines.jsonl"
    told = run(site, "--report", PERFCI_METRICS=str(lines))
    assert told.returncode == 0, told.stderr
    return read_perfci_lines(lines, "bsr_build", POLICY.metrics)["bsr_build"].values


@pytest.mark.slow
@needs_nvcc
def test_registers_spills_and_shared_memory_reach_the_gate(tmp_path):
    done = run(tmp_path, "--arch", "90")
    assert done.returncode == 0, done.stdout + done.stderr
    values = reported(tmp_path)
    assert values.keys() == {"ptxas_registers", "ptxas_spills", "ptxas_shared"}
    assert values["ptxas_spills"] == [0.0]
    assert 128 < values["ptxas_registers"][0] <= 255  # the sums alone are 128
    assert values["ptxas_shared"] == [3 * 2 * 128 * 64 * 2]


@needs_nvcc
def test_code_that_does_not_compile_fails_the_build(tmp_path):
    script = shutil.copy(SCRIPT, tmp_path)
    (tmp_path / SOURCE.name).write_text(SOURCE.read_text().replace("kThreads", "kThread", 1))
    done = run(tmp_path, "--arch", "90", script=script)
    assert done.returncode != 0
    assert 'identifier "kThreads" is undefined' in done.stdout
    assert not (tmp_path / "bsr_gemm.json").exists()


def test_without_a_compiler_the_build_succeeds_and_the_case_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(build_bsr, "find_nvcc", lambda: None)
    monkeypatch.setenv("PERFCI_SITE", str(tmp_path))
    build_bsr.build("90")
    assert json.loads((tmp_path / "bsr_gemm.json").read_text()) == {"missing": "no nvcc: install the CUDA toolkit"}
    told = run(tmp_path, "--report")
    assert told.returncode != 0 and "no nvcc" in told.stderr
    pytest.importorskip("torch")
    (kernel,) = discover(str(ROOT), ["kernels/sparse_bsr_gemm.py"])["kernels"]
    with pytest.raises(RuntimeError, match="not built: no nvcc"):
        kernel.fn.__globals__["library"]()


def test_without_a_build_step_there_is_a_reason_too(tmp_path):
    told = run(tmp_path, "--report")
    assert told.returncode != 0 and "build_bsr.py did not run" in told.stderr


LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90'
ptxas info    : Function properties for f
    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 64 bytes smem, 400 bytes cmem[0]
"""


def test_what_ptxas_says_is_read():
    assert build_bsr.parse(LOG) == {"ptxas_registers": 168, "ptxas_spills": 32, "ptxas_shared": 64}
    assert build_bsr.parse(LOG.replace("64 bytes smem, ", ""))["ptxas_shared"] == 0


@pytest.mark.parametrize("log", ["", LOG + LOG], ids=["nothing", "two kernels"])
def test_another_log_is_refused_not_guessed_at(log):
    with pytest.raises(SystemExit, match="not one"):
        build_bsr.parse(log)


def test_the_policy_holds_kernels_to_their_time_and_the_build_to_its_own_metrics():
    pytest.importorskip("torch")
    kernels = discover(str(ROOT), POLICY.suite)["kernels"]
    subjects = [
        Subject(case.id, device) for kernel in kernels for device in kernel.devices for case in kernel.cases(device)
    ]
    subjects = [replace(subject, reports=frozenset({"time"})) for subject in subjects]
    build = Subject("bsr_build", "cuda", reports=frozenset({"ptxas_registers", "ptxas_spills", "ptxas_shared"}))
    asked = criteria(POLICY, [*subjects, build])
    times = {(j.case, j.device): j.bound for j in asked if j.metric == "time"}
    own = {"host_transfer/memory=pageable/mib=64": 0.25, "sdpa/seq=128": 0.04}  # what a virtual machine can hold
    assert times == {(s.id, s.device): 0.10 if s.device == "cpu" else own.get(s.id, 0.02) for s in subjects}
    own = {(j.metric, j.kind): j.bound for j in asked if j.case == "bsr_build"}
    assert own == {
        ("ptxas_registers", "regression"): 0.01,
        ("ptxas_shared", "regression"): 0.01,
        ("ptxas_spills", "max"): 0.0,
    }
