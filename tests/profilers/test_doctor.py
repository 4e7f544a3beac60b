"""The doctor's view of profilers: what is there, whether it fits and may count, and which tiers follow."""

import os
from pathlib import Path

import pytest

from perfci.doctor import profilers as doctor
from perfci.model.metrics import CATALOGUE
from perfci.profilers.nsys import privacy as nsys_privacy
from tests.system.machines import (
    CONTAINER,
    DOCKERS,
    FIRST,
    FORBIDDEN,
    GVISOR,
    H200,
    MACHINES,
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
    (one,) = check(found)
    return one


def with_ncu(folder: Path, *, cuda: int = 13000, namespaces=FIRST, caps: str = DOCKERS, admin_only: int = 1, **tool):
    found = machine(folder, told=H200, nvml=Nvml(cuda), admin_only=admin_only, namespaces=namespaces, caps=caps)
    ncu(folder / "bin", **tool)
    return found


# ---------------------------------------------------------------- nsys


def test_nsys_that_is_there_or_not(tmp_path):
    assert only(doctor.check_nsys, machine(tmp_path / "a")).status == "ok"
    assert only(doctor.check_nsys, machine(tmp_path / "b", nvml=Nvml())).status == "warn"
    found = machine(tmp_path / "c")
    nsys(tmp_path / "c" / "bin")
    line, kept = doctor.check_nsys(found)
    assert line.status == kept.status == "ok"
    assert "nsys 2023.4.4.54" in line.found and "CPU sampling (not used): OK" in line.found
    program(tmp_path / "c" / "bin", "nsys", says("", 127, "nsys: error while loading shared libraries: libssl.so.3\n"))
    line = only(doctor.check_nsys, machine(tmp_path / "d", env={"PATH": str(tmp_path / "c" / "bin")}))
    assert line.status == "warn" and "libssl.so.3" in line.found


def test_nsys_that_cannot_be_kept_to_itself_has_a_remedy_for_where_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_privacy, "isolation", lambda user: nsys_privacy.Isolation((), False, "nsys sees much"))
    for folder, namespaces, words in (("host", FIRST, "sysctl"), ("docker", CONTAINER, "--cap-add SYS_ADMIN")):
        found = machine(tmp_path / folder, namespaces=namespaces)
        write(found.root / ".dockerenv", "")
        nsys(tmp_path / folder / "bin")
        kept = list(doctor.check_nsys(found))[1]
        assert kept.status == "warn" and words in kept.remedy


@pytest.mark.parametrize(("package", "status"), [("0.2.11", "ok"), ("0.2.12", "warn"), ("0.2.17", "warn"), ("0.2.18", "ok"), (None, "ok")])  # fmt: skip
def test_lost_nvtx_ranges(tmp_path, package, status):
    found = machine(tmp_path, told=H200 | {"nvtx": {"version": package, "there": bool(package), "error": ""}})
    nsys(tmp_path / "bin")
    line = next(iter(doctor.check_nsys(found)))
    assert line.status == status and (status == "ok" or f"nvtx {package}" in line.found)


# ---------------------------------------------------------------- ncu and counters


def test_ncu_and_the_driver(tmp_path):
    assert only(doctor.check_ncu, machine(tmp_path / "a")).status == "ok"
    assert only(doctor.check_ncu, machine(tmp_path / "b", nvml=Nvml())).status == "warn"
    line = only(doctor.check_ncu, with_ncu(tmp_path / "c"))
    assert line.status == "ok" and "fits CUDA 13.0" in line.found
    line = only(doctor.check_ncu, with_ncu(tmp_path / "d", cuda=12080))
    assert line.status == "warn" and "CUDA 12.8" in line.found and "2025.2" in line.remedy
    assert only(doctor.check_ncu, with_ncu(tmp_path / "e", cuda=12080, version="2024.1.1.0")).status == "ok"


def test_a_home_or_a_lock_that_keeps_ncu_from_working(tmp_path):
    found = with_ncu(tmp_path)
    found.env = {**found.env, "HOME": "/proc"}
    assert "sections" in only(doctor.check_ncu, found).found
    found = with_ncu(tmp_path / "b")
    write(tmp_path / "b" / "tmp" / "nsight-compute-lock", "")
    assert only(doctor.check_ncu, found).status == ("ok" if os.geteuid() == 0 else "warn")
    found.euid = os.geteuid() + 1
    line = only(doctor.check_ncu, found)
    assert line.status == "warn" and "nsight-compute-lock" in line.remedy


BARE = RAW.replace("1433.27", "nan")


@pytest.mark.parametrize(
    ("tool", "status", "words"),
    [
        ({}, "ok", "can be read (tried with one kernel)"),
        ({"log": FORBIDDEN, "code": 1}, "warn", "ERR_NVGPUCTRPERM"),
        ({"log": PROFILED, "raw": BARE}, "warn", "no finite sm__cycles_active.avg"),
        ({"log": PROFILED, "raw": ""}, "warn", "no finite sm__cycles_active.avg"),
        ({"log": "==WARNING== No kernels were profiled.\n", "raw": ""}, "warn", "no kernel"),
        ({"log": "==ERROR== Profiling failed because a driver resource was unavailable.\n", "code": 9}, "warn", "dcgmi profile --pause"),
        ({"log": "==ERROR== Cuda driver is not compatible with Nsight Compute.\n", "code": 1}, "warn", "does not fit the driver"),
        ({"log": "", "code": 139}, "warn", "status 139"),
    ],
)  # fmt: skip
def test_counting_is_tried_where_it_can_be(tmp_path, tool, status, words):
    line = only(doctor.check_counters, with_ncu(tmp_path, **tool))
    assert line.values["probed"] is True
    assert line.status == status and words in f"{line.found} {line.remedy}"


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
    line = only(doctor.check_code, with_ncu(tmp_path / "b"))
    assert (
        line.status == "ok" and line.found == "there is no cuobjdump with its nvdisasm; with counters it is not needed"
    )
    refused = with_ncu(tmp_path / "c", **FORBIDS)
    line = only(doctor.check_code, refused)
    assert line.status == "warn" and "tensor cores" in line.found
    assert line.remedy == f"{refused.python} -m pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    program(tmp_path / "c" / "bin", "cuobjdump", "")
    assert only(doctor.check_code, refused).status == "warn", "nvdisasm is missing"
    program(tmp_path / "c" / "bin", "nvdisasm", "")
    line = only(doctor.check_code, refused)
    assert (line.status, line.values["path"]) == ("ok", str(tmp_path / "c" / "bin" / "cuobjdump"))


def test_machine_code_is_read_by_what_wheels_of_the_interpreter_under_test_bring(tmp_path):
    found = with_ncu(tmp_path, **FORBIDS)
    home = tmp_path / "site-packages" / "triton/backends/nvidia/bin"
    for name in ("cuobjdump", "nvdisasm"):
        program(home, name, "")
    tells = program(tmp_path / "bin", "python", says(f'["", "{tmp_path / "site-packages"}"]\n'))
    found.python = tells
    line = only(doctor.check_code, found)
    assert (line.status, line.values["path"]) == ("ok", str(home / "cuobjdump"))


def test_trying_leaves_nothing_behind(tmp_path):
    """Above all no lock of root's, which keeps every other user's ncu from starting."""
    found = with_ncu(tmp_path)
    body = (tmp_path / "bin" / "ncu").read_text().replace("cat >", 'touch "$TMPDIR/nsight-compute-lock"; cat >', 1)
    (tmp_path / "bin" / "ncu").write_text(body)
    assert only(doctor.check_counters, found).values["probed"] is True
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"admin_only": 0}, True),
        ({"admin_only": 1, "caps": DOCKERS}, False),
        ({"admin_only": 1}, True),
        ({"admin_only": 1, "namespaces": FIRST | {"user": 4026532001}}, False),
        ({"admin_only": 0, "version": GVISOR}, False),
        ({"admin_only": None}, True),
    ],
)
def test_permission_is_predicted_where_it_cannot_be_tried(tmp_path, fields, given):
    line = only(doctor.check_counters, machine(tmp_path, told=H200, nvml=Nvml(), **fields))
    assert line.values == {"given": given, "probed": False, "predicted": given}
    assert "predicted, not tried" in line.found


def test_dcgm_is_told_where_it_runs(tmp_path):
    found = machine(tmp_path, nvml=Nvml())
    assert only(doctor.check_dcgm, found).status == "ok"
    write(found.root / "proc/77/comm", "dcgm-exporter\n")
    line = only(doctor.check_dcgm, found)
    assert line.status == "warn" and "dcgmi profile --pause" in line.remedy


def test_the_report_module(tmp_path):
    found = with_ncu(tmp_path)
    assert only(doctor.check_report_module, found).status == "warn"
    found.own = program(tmp_path / "bin", "own", says("2025.3.1 /site/ncu_report/__init__.py\n"))
    assert only(doctor.check_report_module, found).status == "ok"
    found.own = program(tmp_path / "bin", "own", says("2025.2.0 /site/ncu_report/__init__.py\n"))
    assert "older than ncu" in only(doctor.check_report_module, found).found
    found.own = program(tmp_path / "bin", "own", says("", 1, "ImportError: /site/_ncu_report.so: no GLIBC_2.34\n"))
    assert "GLIBC_2.34" in only(doctor.check_report_module, found).found
    found.own = program(tmp_path / "bin", "own", says("", 1, "ModuleNotFoundError: No module named 'ncu_report'\n"))
    write(found.root / "opt/nvidia/nsight-compute/2025.3.1/extras/python/ncu_report.py", "")
    assert "own copy" in only(doctor.check_report_module, found).found


# ---------------------------------------------------------------- tiers


GIVEN = {
    "no-gpu": {"timing", "reported"},
    "h200": {"timing", "trace", "counters", "static", "reported"},
    "h200-container": {"timing", "trace", "static", "reported"},
    "ncu-too-new": {"timing", "trace", "static", "reported"},
    "gvisor": {"timing", "trace", "static", "reported"},
    "token": {"timing", "reported"},
}


@pytest.mark.parametrize("name", MACHINES)
def test_tiers(tmp_path, name):
    states = doctor.tiers(MACHINES[name](tmp_path))
    assert {state.tier for state in states if state.given} == GIVEN[name]
    assert all(state.why for state in states if not state.given)
    assert sorted(name for state in states for name in state.metrics) == sorted(CATALOGUE)


def test_without_profilers_static_is_given_in_part(tmp_path):
    told = H200 | {"torch": H200["torch"] | {"profiler": False}}
    states = {state.tier: state for state in doctor.tiers(machine(tmp_path, told=told, nvml=Nvml()))}
    assert not states["trace"].given and not states["counters"].given
    assert states["static"].given and "peak_memory alone" in states["static"].why


def test_an_interpreter_that_does_not_run_gives_nothing(tmp_path):
    found = machine(tmp_path, nvml=Nvml())
    found.python = "/no/such/python"
    assert {state.tier for state in doctor.tiers(found) if state.given} == {"reported"}


def test_a_broken_fact_is_a_line_and_a_tier_that_is_not_known(tmp_path, monkeypatch):
    board = Nvml()
    board.nvmlDeviceGetCount = lambda: 1 / 0
    found = doctor.diagnose(machine(tmp_path, nvml=board))
    assert found.exit_code == 3
    assert any(one.name == "gpu" and "ZeroDivisionError" in one.found for one in found.findings)
    assert all("not known" in state.why for state in found.tiers if state.tier in ("trace", "counters"))


def test_exit_code_follows_the_worst_line(tmp_path):
    assert doctor.diagnose(MACHINES["no-gpu"](tmp_path / "a")).exit_code == 0
    found = doctor.diagnose(MACHINES["token"](tmp_path / "b"))
    assert found.exit_code == 3
    assert [one.status for one in found.findings] == sorted(
        (one.status for one in found.findings), key=["fail", "warn", "ok"].index
    )
