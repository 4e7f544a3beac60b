"""The tool: found, predicted, called, and its failures told apart."""

from pathlib import Path

import pytest

from perfci.model.policy import Command
from perfci.model.profile import Fault
from perfci.profilers.base import ProfilerRequest
from perfci.profilers.ncu import chips
from perfci.profilers.ncu import command as ncu_command
from perfci.profilers.ncu.command import InstalledNcu, classify, command, find, may_count, unfit_driver
from perfci.profilers.ncu.profiler import Ncu
from tests.system.machines import program


def says(version: str) -> str:
    return f"echo 'NVIDIA (R) Nsight Compute Command Line Profiler'\necho 'Version {version}.0 (build 1) (public-release)'\n"


# ---------------------------------------------------------------- where it is


def test_the_first_ncu_that_fits_the_driver_is_taken(tmp_path):
    program(tmp_path / "bin", "ncu", says("2026.1.1"))
    old, new = (
        Path(program(tmp_path / "opt/nvidia/nsight-compute" / version, "ncu", says(version)))
        for version in ("2024.3.2", "2025.3.1")
    )
    path = str(tmp_path / "bin")
    assert find("13.2", path=path, root=tmp_path) == InstalledNcu(tmp_path / "bin/ncu", "2026.1.1")
    assert find("", path="", root=tmp_path) == InstalledNcu(new, "2025.3.1")
    assert find("12.8", path=path, root=tmp_path) == InstalledNcu(old, "2024.3.2")
    assert ncu_command.candidates(path, tmp_path) == [tmp_path / "bin/ncu", new, old]


@pytest.mark.parametrize(
    ("text", "driver", "kind", "says"),
    [
        ("", "", "absent", "not installed"),
        ("echo broken; exit 1\n", "", "absent", "(broken)"),
        ("exec sleep 30\n", "", "timeout", ""),
        (says("2025.3.1"), "12.8", "incompatible", "2025.3.1"),
    ],
)
def test_why_there_is_none(tmp_path, text, driver, kind, says):
    if text:
        program(tmp_path / "usr/local/cuda/bin", "ncu", text)
    fault = find(driver, path="", root=tmp_path, timeout=0.2 if kind == "timeout" else 20)
    assert isinstance(fault, Fault) and fault.kind == kind and says in fault.text


# ---------------------------------------------------------------- whether it fits and may count


@pytest.mark.parametrize(
    ("ncu", "driver", "fits"),
    [
        *((ncu, driver, False) for ncu, driver in (
            ("2025.3.1", "12.8"), ("2025.3.1", "12.9"), ("2025.4.1", "12.0"), ("2027.1.0", "12.9"), ("2022.4.1", "11.8"),
        )),
        *((ncu, driver, True) for ncu, driver in (
            ("2025.2.1", "12.9"), ("2024.1.1", "12.8"), ("2023.3.0", "12.3"), ("2022.4.1", "12.0"), ("2026.2.1", "13.1"),
            ("2025.3.1", "13.0"), ("2021.1.0", "11.2"), ("2025.3.1", ""), ("2030.1", "14.0"),
        )),
    ],
)  # fmt: skip
def test_pairs_that_were_seen_to_fail_and_those_that_work_or_are_not_known(ncu, driver, fits):
    fault = unfit_driver(driver, ncu)
    assert (fault is None) == fits
    if fault is not None:
        assert fault.kind == "incompatible" and driver in fault.text and "install ncu 20" in fault.remedy


def machine(root: Path, *, restricted="1", effective=0, uid=0, kernel="Linux version 6.8.0-40-generic (buildd) #40"):
    for path, text in {
        "proc/version": kernel,
        "proc/driver/nvidia/params": f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {restricted}\n",
        "proc/self/status": f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{effective:016x}\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_who_may_count(tmp_path):
    docker = 0x00000000A80425FB  # what Docker leaves root by default: no CAP_SYS_ADMIN
    root = may_count(machine(tmp_path, effective=docker))
    assert root is not None and root.kind == "forbidden" and "root without CAP_PERFMON" in root.text
    user = may_count(machine(tmp_path, uid=1000))
    assert user is not None and "a user without" in user.text and "NVreg_RestrictProfilingToAdminUsers=0" in user.remedy
    assert may_count(machine(tmp_path, effective=docker | 1 << 21)) is None
    assert may_count(machine(tmp_path, uid=1000, effective=1 << 38)) is None
    assert may_count(machine(tmp_path, uid=1000, restricted="0")) is None


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.57.01  Thu Oct 10 12:29:05 UTC 2024", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", False),
        ("NVRM version: told otherwise", True),
    ],
)
def test_perfmon_alone_counts_from_driver_565_on(tmp_path, line, counts):
    root = machine(tmp_path, uid=1000, effective=1 << 38)
    (root / "proc/driver/nvidia/version").write_text(line + "\n")
    assert (may_count(root) is None) == counts


def test_sandboxes(tmp_path):
    gvisor = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"
    refused = may_count(machine(tmp_path, restricted="0", effective=2**41 - 1, kernel=gvisor))
    assert refused is not None and "gVisor" in refused.text
    assert may_count(machine(tmp_path, restricted="0", kernel="Linux version 4.4.0-210-generic (buildd@lgw)")) is None
    assert may_count(machine(tmp_path, kernel="Linux version 5.15.153.1-microsoft-standard-WSL2 (root)")) is None
    assert may_count(tmp_path / "without a proc") is None


# ---------------------------------------------------------------- command lines


def line(tmp_path, target=("python3", "w.py", "-k"), **options):
    given = {
        "report": tmp_path / "100%.ncu-rep", "log": tmp_path / "log",
        "metrics": chips.metrics_for("default", "gh100"), "launches": 40,
    }  # fmt: skip
    return command(Path("/opt/ncu"), target, **(given | options))


def after(words, option):
    return words[words.index(option) + 1]


def test_a_captured_run(tmp_path):
    words = line(tmp_path)
    assert words[0] == "/opt/ncu" and words[-3:] == ["python3", "w.py", "-k"]
    assert "--" not in words  # ncu takes it for an ambiguous option
    for option, value in {
        "--clock-control": "none", "--cache-control": "all", "--profile-from-start": "off", "--target-processes": "all",
        "--graph-profiling": "node", "--launch-count": "40", "--log-file": str(tmp_path / "log"),
        "--export": f"{tmp_path}/100%%.ncu-rep", "--config-file": "off",
    }.items():  # fmt: skip
        assert after(words, option) == value
    assert "--nvtx" in words and "--force-overwrite" in words and "--kernel-name" not in words
    assert after(words, "--metrics").split(",") == chips.metrics_for("default", "gh100")
    assert [words[i + 1] for i, word in enumerate(words) if word == "--section"] == ["LaunchStats", "Occupancy"]


def test_ncus_full_set_and_sections_of_the_policy(tmp_path, monkeypatch):
    monkeypatch.setattr(ncu_command, "find", lambda driver: InstalledNcu(Path("/opt/ncu"), "2025.3.1"))
    monkeypatch.setattr("perfci.profilers.ncu.profiler.may_count", lambda: None)

    def asked(counters):
        found = Ncu.find(
            ProfilerRequest(60.0, gpu=True, capability=(9, 0), counters=counters, metrics=("sm_throughput",))
        )
        assert isinstance(found, Ncu), found
        words = found.asking(["smsp__inst_executed.avg"]).under(tmp_path / "r.report").command(["python3"])
        return found, words, set(after(words, "--metrics").split(","))

    full, words, metrics = asked("full")
    assert after(words, "--set") == "full" and "--section" not in words
    assert metrics == {*chips.metrics_for("deep", "gh100"), "smsp__inst_executed.avg"}
    some, words, metrics = asked(["MemoryWorkloadAnalysis", "Occupancy"])
    sections = [words[at + 1] for at, word in enumerate(words) if word == "--section"]
    assert sections == ["LaunchStats", "Occupancy", "MemoryWorkloadAnalysis"]
    assert "--set" not in words and "sm__throughput.avg.pct_of_peak_sustained_elapsed" in metrics
    default, words, metrics = asked("default")
    assert "--set" not in words and "smsp__inst_executed.avg" in metrics
    assert full.seconds == some.seconds == 4 * default.seconds == 2400, "so many more replays"
    assert full.for_command("cuda", 5.0, Command(name="a", run="b")).seconds == 200


def test_a_command_of_the_users(tmp_path):
    words = line(tmp_path, kernels="^gemm", capture=False)
    assert after(words, "--kernel-name") == "regex:^gemm"
    assert "--profile-from-start" not in words


@pytest.mark.parametrize("options", [{"target": ()}, {"target": ("--mode=attach",)}, {"launches": 0}])
def test_what_cannot_be_profiled(tmp_path, options):
    with pytest.raises(ValueError):
        line(tmp_path, **options)


# ---------------------------------------------------------------- failures

ENDED = "==ERROR== The application returned an error code (11).\n==WARNING== No kernels were profiled.\n"


@pytest.mark.parametrize(
    ("code", "log", "kind", "told"),
    [
        (1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters "
            "on the target device 0.\n==WARNING== No kernels were profiled.\n", "forbidden", "SYS_ADMIN"),
        (1, "==ERROR== An error was reported by the driver:\n==ERROR== Cuda driver is not compatible with Nsight "
            "Compute.\n==PROF== Connected to process 7\n" + ENDED, "incompatible", "major version"),
        (9, "==PROF== Connected to process 1\n==ERROR== LibraryNotLoaded\n", "incompatible", "gVisor"),
        (1, "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like "
            "DCGM) is concurrently collecting profiling data.\n" + ENDED, "busy", "dcgmi profile --pause"),
        (1, "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).\n" + ENDED,
            "incompatible", "LD_LIBRARY_PATH"),
        (1, "==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please check that this process has "
            "write permissions on this file.\n" + ENDED, "forbidden", "TMPDIR"),
        (1, "==ERROR== Failed to access the following metrics. When profiling on a MIG instance, it is not possible to "
            "collect metrics from GPU units that are shared with other MIG instances.\n==ERROR== dram__bytes.sum\n"
            "==ERROR== lts__t_sector_hit_rate.pct\n", "incompatible", "MIG"),
        (11, ENDED, "crash", "without ncu"),
        (0, "==PROF== Connected to process 5 (/usr/bin/python3.12)\n==WARNING== No kernels were profiled.\n", "empty",
            "cudaProfilerStart"),
        (1, "==ERROR== Something new\n", "crash", "log"),
        (None, "", "crash", "log"),
        (-9, "", "crash", "log"),
        (3, "", "crash", "log"),
    ],
)  # fmt: skip
def test_failures_are_told_apart(code, log, kind, told):
    fault = classify(code, log, False)
    assert fault is not None and fault.tool == "ncu"
    assert fault.kind == kind and told in fault.remedy, fault
    assert "\n" not in fault.text + fault.remedy


@pytest.mark.parametrize(
    ("said", "told"),
    [("RuntimeError: CUDA error: CUDA driver is a stub library", "LD_LIBRARY_PATH"), ("LibraryNotLoaded", "gVisor")],
)
def test_what_the_program_says_of_the_driver_is_the_reason_where_ncu_knows_none(said, told):
    for code, log in ((1, ENDED), (0, "==WARNING== No kernels were profiled.\n"), (9, "")):
        fault = classify(code, f"{said}\n{log}", False)
        assert fault is not None and fault.kind == "incompatible" and told in fault.remedy and said in fault.text
    forbidden = classify(1, f"{said}\n==ERROR== ERR_NVGPUCTRPERM\n", False)
    assert forbidden is not None and forbidden.kind == "forbidden"


REFUSED = "==PROF== Connected to process 1\n==ERROR== Failed to find metric smsp__nope.sum\n"


@pytest.mark.parametrize(
    ("log", "names", "found"),
    [
        (REFUSED, ["smsp__nope.sum", "smsp__inst_executed.sum"], ["smsp__nope.sum"]),
        (REFUSED, ["smsp__nope.sum.per_second", "nope__x"], ["smsp__nope.sum.per_second", "nope__x"]),  # any of them
        ("==WARNING== Failed to access the following metrics.\n==WARNING== a__x.sum\n==WARNING== b__y.avg\n",
            ["b__y.avg", "a__x.sum", "c__z.max"], ["b__y.avg", "a__x.sum"]),
        (REFUSED, [], []),
        ("==ERROR== ERR_NVGPUCTRPERM\n==ERROR== smsp__nope.sum\n", ["smsp__nope.sum"], []),
        ("Failed to find metric smsp__nope.sum\n", ["smsp__nope.sum"], []),  # the program's own words
    ],
)  # fmt: skip
def test_metrics_that_ncu_refuses_are_told(log, names, found):
    assert list(ncu_command.refused(log, names)) == found
    assert all("Failed to" in why and "\n" not in why for why in ncu_command.refused(log, names).values())


def test_the_list_of_metrics_is_told():
    log = "==ERROR== Failed to access the following metrics.\n==ERROR== dram__bytes.sum\n"
    fault = classify(1, log, False)
    assert fault is not None and "dram__bytes.sum" in fault.text


def test_a_run_that_went_well():
    log = '==PROF== Connected to process 1\n==PROF== Profiling "gemm" - 0: 0%....100% - 2 passes\n==PROF== Report: r\n'
    assert classify(0, log, False) is None
    # What the program itself prints does not count.
    assert classify(0, log + "ERR_NVGPUCTRPERM\nLibraryNotLoaded\n", False) is None


def test_time_outs():
    fault = classify(-9, "==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n", True)
    assert fault is not None and fault.kind == "timeout" and "collectives" in fault.remedy
    forbidden = classify(None, "==ERROR== ERR_NVGPUCTRPERM - The user …\n", True)
    assert forbidden is not None and forbidden.kind == "forbidden"
