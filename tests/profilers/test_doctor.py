"""The doctor's view of profilers: what is there, whether it fits and may count, and which tiers follow."""

import os
import sys
from pathlib import Path

import pytest

from perfci.doctor import profilers as doctor
from perfci.doctor.survey import diagnose
from perfci.doctor.tiers import tiers
from perfci.profilers.ncu import module as ncu_module
from perfci.profilers.nsys import privacy as nsys_privacy
from tests.system.machines import (
    CONTAINER,
    DOCKERS,
    FIRST,
    FORBIDDEN,
    H200,
    PROFILED,
    RAW,
    Nvml,
    alone,
    machine,
    ncu,
    nsys,
    program,
    says,
    write,
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch):
    alone(monkeypatch)


def only(check, found):
    (line,) = check(found)
    return line


def with_ncu(folder: Path, *, cuda: int = 13000, namespaces=FIRST, caps: str = DOCKERS, admin_only: int = 1, **tool):
    found = machine(folder, told=H200, nvml=Nvml(cuda), admin_only=admin_only, namespaces=namespaces, caps=caps)
    ncu(folder / "bin", **tool)
    return found


# ---------------------------------------------------------------- nsys


def test_nsys_is_told_where_it_is_missing_broken_or_too_old(tmp_path):
    assert list(doctor.check_nsys(machine(tmp_path / "a"))) == []
    assert only(doctor.check_nsys, machine(tmp_path / "b", nvml=Nvml())).status == "warn"
    nsys(tmp_path / "c" / "bin")
    assert list(doctor.check_nsys(machine(tmp_path / "c"))) == []
    assert "it may lose events" in only(doctor.check_nsys, with_gpu_and_nsys(tmp_path / "d")).found
    program(tmp_path / "c" / "bin", "nsys", says("", 127, "nsys: error while loading shared libraries: libssl.so.3\n"))
    line = only(doctor.check_nsys, machine(tmp_path / "e", env={"PATH": str(tmp_path / "c" / "bin")}))
    assert line.status == "warn" and "libssl.so.3" in line.found


def with_gpu_and_nsys(folder: Path):
    nsys(folder / "bin")
    return machine(folder, nvml=Nvml())


def test_nsys_that_cannot_be_kept_to_itself_has_a_remedy_for_where_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_privacy, "isolation", lambda user: nsys_privacy.Isolation((), False, "nsys sees much"))
    for folder, namespaces, words in (("host", FIRST, "sysctl"), ("docker", CONTAINER, "--cap-add SYS_ADMIN")):
        found = machine(tmp_path / folder, namespaces=namespaces)
        write(found.root / ".dockerenv", "")
        nsys(tmp_path / folder / "bin")
        kept = only(doctor.check_nsys, found)
        assert kept.status == "warn" and words in kept.remedy


@pytest.mark.parametrize(("package", "lost"), [("0.2.11", 0), ("0.2.12", 1), ("0.2.17", 1), ("0.2.18", 0), (None, 0)])
def test_lost_nvtx_ranges(tmp_path, package, lost):
    found = machine(tmp_path, told=H200 | {"nvtx": {"version": package}})
    nsys(tmp_path / "bin")
    lines = list(doctor.check_nsys(found))
    assert len(lines) == lost and all(f"nvtx {package}" in line.found for line in lines)


# ---------------------------------------------------------------- ncu and counters


def test_ncu_and_the_driver(tmp_path):
    assert list(doctor.check_ncu(machine(tmp_path / "a"))) == []
    assert only(doctor.check_ncu, machine(tmp_path / "b", nvml=Nvml())).status == "warn"
    assert list(doctor.check_ncu(with_ncu(tmp_path / "c"))) == []
    line = only(doctor.check_ncu, with_ncu(tmp_path / "d", cuda=12080))
    assert line.status == "warn" and "CUDA 12.8" in line.found and "2025.2" in line.remedy
    assert list(doctor.check_ncu(with_ncu(tmp_path / "e", cuda=12080, version="2024.1.1.0"))) == []


def test_a_home_or_a_lock_that_keeps_ncu_from_working(tmp_path):
    found = with_ncu(tmp_path)
    found.env = {**found.env, "HOME": "/proc"}
    assert "sections" in only(doctor.check_ncu, found).found
    found = with_ncu(tmp_path / "b")
    write(tmp_path / "b" / "tmp" / "nsight-compute-lock", "")
    assert len(list(doctor.check_ncu(found))) == (os.geteuid() != 0)
    found.euid = os.geteuid() + 1
    line = only(doctor.check_ncu, found)
    assert line.status == "warn" and "nsight-compute-lock" in line.remedy


BARE = RAW.replace("1433.27", "nan")


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"log": FORBIDDEN, "code": 1}, "ERR_NVGPUCTRPERM"),
        ({"log": PROFILED, "raw": BARE}, "no finite sm__cycles_active.avg"),
        ({"log": PROFILED, "raw": ""}, "no finite sm__cycles_active.avg"),
        ({"log": "==WARNING== No kernels were profiled.\n", "raw": ""}, "no kernel"),
        ({"log": "==ERROR== Profiling failed because a driver resource was unavailable.\n", "code": 9}, "dcgmi profile --pause"),
        ({"log": "==ERROR== Cuda driver is not compatible with Nsight Compute.\n", "code": 1}, "does not fit the driver"),
        ({"log": "", "code": 139}, "status 139"),
    ],
)  # fmt: skip
def test_counting_is_tried_where_it_can_be(tmp_path, tool, words):
    line = only(doctor.check_counters, with_ncu(tmp_path, **tool))
    assert line.values["tried"] is True
    assert line.status == "warn" and words in f"{line.found} {line.remedy}"


def test_counters_that_can_be_read_have_no_line_and_are_given(tmp_path):
    found = with_ncu(tmp_path)
    assert list(doctor.check_counters(found)) == []
    assert doctor.counters(found) == ("ncu 2025.3.1", "")


def test_an_ncu_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_TIME", 0.3)
    found = with_ncu(tmp_path)
    version = says("Version 2025.3.1.0 (build 1)\n")
    program(tmp_path / "bin", "ncu", f'if [ "$1" = --version ]; then {version}; fi\nsleep 60')
    line = only(doctor.check_counters, found)
    assert line.status == "warn" and "did not end in time" in line.found


FORBIDS = {"log": FORBIDDEN, "code": 1}


def test_machine_code_is_wanted_where_counters_are_forbidden(tmp_path):
    assert list(doctor.check_code(machine(tmp_path / "a"))) == [], "no GPU"
    assert list(doctor.check_code(with_ncu(tmp_path / "b"))) == [], "counters can be read"
    refused = with_ncu(tmp_path / "c", **FORBIDS)
    line = only(doctor.check_code, refused)
    assert line.status == "warn" and "tensor cores" in line.found
    assert line.remedy == f"{refused.python} -m pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    program(tmp_path / "c" / "bin", "cuobjdump", "")
    assert only(doctor.check_code, refused).status == "warn", "nvdisasm is missing"
    program(tmp_path / "c" / "bin", "nvdisasm", "")
    assert list(doctor.check_code(refused)) == []


def test_machine_code_is_read_by_what_wheels_of_the_interpreter_under_test_bring(tmp_path):
    found = with_ncu(tmp_path, **FORBIDS)
    home = tmp_path / "site-packages" / "triton/backends/nvidia/bin"
    for name in ("cuobjdump", "nvdisasm"):
        program(home, name, "")
    found.python = program(tmp_path / "bin", "python", says(f'["", "{tmp_path / "site-packages"}"]\n'))
    assert list(doctor.check_code(found)) == []


def test_trying_leaves_nothing_behind(tmp_path):
    """Above all no lock of root's, which keeps every other user's ncu from starting."""
    found = with_ncu(tmp_path)
    body = (tmp_path / "bin" / "ncu").read_text().replace("cat >", 'touch "$TMPDIR/nsight-compute-lock"; cat >', 1)
    (tmp_path / "bin" / "ncu").write_text(body)
    assert doctor.permission(found) == (None, True)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"admin_only": 0}, True),
        ({"admin_only": 1, "namespaces": FIRST | {"user": 4026532001}}, False),
        ({"admin_only": None}, True),
    ],
)
def test_permission_is_predicted_where_it_cannot_be_tried(tmp_path, fields, given):
    lines = list(doctor.check_counters(machine(tmp_path, told=H200, nvml=Nvml(), **fields)))
    assert (lines == []) is given
    assert all("predicted, not tried" in line.found and line.values == {"tried": False} for line in lines)


def test_the_report_module(tmp_path, monkeypatch):
    found = with_ncu(tmp_path)
    line = only(doctor.check_report_module, found)
    assert "there is none" in line.found and line.remedy == f"{sys.executable} -m pip install --upgrade ncu-report"
    older = ncu_module.Module(tmp_path, "2025.2.0")
    monkeypatch.setattr(ncu_module, "modules", lambda root: [older, *ncu_module.copies(root)])
    assert "there is ncu_report 2025.2.0" in only(doctor.check_report_module, found).found
    write(found.root / "opt/nvidia/nsight-compute/2025.3.1/extras/python/ncu_report.py", "")
    assert list(doctor.check_report_module(found)) == []


# ---------------------------------------------------------------- tiers


def test_without_profilers_static_is_given_in_part(tmp_path):
    told = H200 | {"torch": H200["torch"] | {"profiler": False}}
    states = {state.tier: state for state in tiers(machine(tmp_path, told=told, nvml=Nvml()))}
    assert not states["trace"].given and not states["counters"].given
    assert states["static"].given and "peak_memory alone" in states["static"].why


def test_an_interpreter_that_does_not_run_gives_nothing(tmp_path):
    found = machine(tmp_path, nvml=Nvml())
    found.python = "/no/such/python"
    assert {state.tier for state in tiers(found) if state.given} == {"reported"}


def test_a_broken_fact_is_a_line_and_a_tier_that_is_not_known(tmp_path, monkeypatch):
    board = Nvml()
    board.nvmlDeviceGetCount = lambda: 1 / 0
    found = diagnose(machine(tmp_path, nvml=board))
    assert found.exit_code == 3
    assert any(one.name == "gpu" and "ZeroDivisionError" in one.found for one in found.findings)
    assert all("not known" in state.why for state in found.tiers if state.tier in ("trace", "counters"))
