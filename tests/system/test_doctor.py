"""The doctor's checks of a machine: true of fake roots and real processes, bounded in time, never an exception."""

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.doctor import CHECKS, Machine, examine, gpu, host, ok, pytorch, repository, tools, warn
from perfci.doctor import machine as doctor_machine
from perfci.system import facts
from tests.system.machines import (
    CONTAINER,
    DOCKERS,
    FIRST,
    GVISOR,
    H200,
    NO_GPU,
    NVCC,
    Nvml,
    machine,
    program,
    says,
    write,
)  # fmt: skip


def lines(check, found: Machine) -> dict:
    return {one.name: one for one in check(found)}


def only(check, found: Machine):
    (one,) = check(found)
    return one


# ---------------------------------------------------------------- the frame


def test_a_check_that_breaks_or_hangs_is_a_line_under_its_own_name(tmp_path):
    def breaks(found):
        raise KeyError("x\ny")

    def hangs(found):
        time.sleep(60)
        yield ok("never", "never")

    checks = {"fine": lambda m: [ok("fine", "all is well")], "broken": breaks, "hung": hangs, "nothing": lambda m: []}
    found = examine(Machine(where=tmp_path), checks, [warn("first", "known already", "x")], limit=0.5)
    assert [(one.name, one.status) for one in found] == [
        ("broken", "fail"), ("hung", "fail"), ("first", "warn"), ("fine", "ok"),
    ]  # fmt: skip
    assert "KeyError" in found[0].found and "\n" not in found[0].found
    assert "0.5 s" in found[1].found


def test_every_check_survives_a_machine_with_nothing_on_it(tmp_path):
    empty = Machine(
        root=tmp_path, env={}, where=tmp_path, out=tmp_path / "out", python="/no/such", nvml=Nvml(mute=["nvmlInit"])
    )
    found = examine(empty, CHECKS)
    assert not [one for one in found if "broke" in one.found]
    assert {one.name: one.status for one in found}["python"] == "fail"


def test_a_program_that_does_not_end_is_killed_with_what_it_started(tmp_path):
    mark = tmp_path / "pid"
    path = program(tmp_path, "hang", f"sleep 300 & echo $! > '{mark}'; wait")
    said = Machine().run([path], timeout=0.5)
    assert said.code is None and said.problem == "no answer within 0.5 s"
    pid = int(mark.read_text())
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        pytest.fail("what it started still runs")


def test_a_child_left_behind_does_not_keep_us_waiting(tmp_path):
    said = Machine().run([program(tmp_path, "leave", "sleep 300 & echo done")], timeout=30)
    assert (said.code, said.out) == (0, "done\n")


def test_a_program_that_never_stops_talking_is_ended(tmp_path):
    said = Machine().run(
        [program(tmp_path, "talk", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done")], timeout=30
    )
    assert said.problem == "wrote more than 1 MiB"


def test_how_programs_end():
    run = Machine().run
    assert run(["/no/such"]).problem == "no such program"
    assert run(["/"]).problem.startswith("cannot be started")
    assert run(["/bin/sh", "-c", "echo a; echo b >&2; exit 3"]).why() == "exit 3: b"
    assert run(["/bin/sh", "-c", "kill -SEGV $$"]).why() == "killed by signal 11"


def test_a_fact_is_asked_once_and_what_it_raises_is_raised_each_time():
    asked = []

    def fact(found):
        asked.append(1)
        raise ValueError("no")

    found = Machine()
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            found.known(fact)
    assert asked == [1]


# ---------------------------------------------------------------- system, container, cores, disks


@pytest.mark.parametrize(
    ("version", "log", "status", "word"),
    [
        ("Linux version 6.8.0 (gcc) #1\n", "", "ok", "neither gVisor nor WSL"),
        (GVISOR, "", "warn", "gVisor"),
        ("Linux version 6.8.0 (gcc) #1\n", "[   0.0] Starting gVisor...\n", "warn", "gVisor"),
        ("Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f) #1\n", "", "warn", "WSL"),
    ],
)
def test_the_kernel(tmp_path, version, log, status, word):
    found = machine(tmp_path, version=version)
    program(tmp_path / "bin", "dmesg", says(log))
    line = only(host.check_system, found)
    assert line.status == status and word in line.found and "Ubuntu 24.04.3 LTS" in line.found


@pytest.mark.parametrize(
    ("files", "env", "namespaces", "kind", "words"),
    [
        ({}, {}, FIRST, None, "none"),
        ({".dockerenv": ""}, {}, CONTAINER, "Docker", "without CAP_SYS_ADMIN"),
        ({".dockerenv": ""}, {}, FIRST, None, "an image run as a machine"),
        ({"run/.containerenv": ""}, {}, CONTAINER, "Podman", "/run/.containerenv"),
        ({"proc/self/cgroup": "0::/kubepods.slice/pod1\n"}, {}, CONTAINER, "Kubernetes", "kubepods"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, CONTAINER, "Kubernetes", "$KUBERNETES"),
        ({"run/systemd/container": "lxc\n"}, {}, CONTAINER, "lxc", "lxc"),
        ({"proc/self/cgroup": "4:memory:/docker/0123\n"}, {}, CONTAINER, "Docker", "/proc/self/cgroup"),
        ({}, {}, FIRST | {"pid": 4026532000}, None, "no known one, but namespaces of its own: pid"),
    ],
)
def test_the_container(tmp_path, files, env, namespaces, kind, words):
    found = machine(tmp_path, env=env, namespaces=namespaces, caps=DOCKERS)
    for name, text in files.items():
        write(found.root / name, text)
    line = only(host.check_container, found)
    assert line.values["kind"] == kind and words in line.found


def test_a_container_that_shares_every_namespace_with_its_host(tmp_path):
    """docker run --pid host --ipc host --uts host: what is its own is /."""
    found = machine(tmp_path, caps=DOCKERS)
    write(found.root / ".dockerenv", "")
    table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
    write(
        found.root / "proc/self/mountinfo",
        table + "75 51 0:39 / / rw,relatime master:2 - overlay overlay rw,lowerdir=/l\n",
    )
    line = only(host.check_container, found)
    assert line.values["kind"] == "Docker"
    assert line.found == "Docker (/.dockerenv; the host's namespaces), without CAP_SYS_ADMIN"
    booted = machine(tmp_path / "booted")
    write(booted.root / ".dockerenv", "")
    write(booted.root / "proc/self/mountinfo", table)
    assert only(host.check_container, booted).values["kind"] is None


def test_sys_admin_of_a_user_namespace_is_not_the_drivers(tmp_path):
    assert host.sys_admin(machine(tmp_path / "a")) is True
    assert host.sys_admin(machine(tmp_path / "b", caps=DOCKERS)) is False
    assert host.sys_admin(machine(tmp_path / "c", namespaces=FIRST | {"user": 4026532001})) is False


def test_cpu_quota_of_both_versions_of_cgroups(tmp_path):
    mount = "31 30 0:26 / /sys/fs/cgroup rw - {} cgroup rw{}\n"
    two = tmp_path / "two"
    write(two / "proc/self/cgroup", "0::/a/b\n")
    write(two / "proc/self/mountinfo", mount.format("cgroup2", ""))
    assert facts.cpu_quota(two) is None
    write(two / "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    write(two / "sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    assert facts.cpu_quota(two) == pytest.approx(1.5)
    one = tmp_path / "one"
    write(one / "proc/self/cgroup", "1:cpu,cpuacct:/\n")
    write(one / "proc/self/mountinfo", mount.format("cgroup", ",cpu,cpuacct"))
    write(one / "sys/fs/cgroup/cpu.cfs_quota_us", "-1\n")
    write(one / "sys/fs/cgroup/cpu.cfs_period_us", "100000\n")
    assert facts.cpu_quota(one) is None
    write(one / "sys/fs/cgroup/cpu.cfs_quota_us", "400000\n")
    assert facts.cpu_quota(one) == pytest.approx(4)


@pytest.mark.parametrize(("free", "status"), [(100 * 10**6, "fail"), (10**9, "warn"), (10**10, "ok")])
def test_disk_space(tmp_path, monkeypatch, free, status):
    found = machine(tmp_path)
    monkeypatch.setattr(host.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    assert only(host.check_disk, found).status == only(host.check_temporary, found).status == status


def test_a_tmpdir_that_is_not_there_and_an_output_folder_that_is_a_file(tmp_path):
    found = machine(tmp_path, env={"TMPDIR": "/no/such"})
    line = only(host.check_temporary, found)
    assert line.status == "warn" and "TMPDIR=/no/such" in line.found
    (tmp_path / "repo" / "perfci-out").write_text("")
    assert only(host.check_disk, found).status == "fail"


@pytest.mark.parametrize(
    ("mark", "noexec", "nowhere"),
    [
        ([], "mount -o remount,exec", "set TMPDIR"),
        ([".dockerenv"], "docker run --tmpfs", "docker run --tmpfs /tmp:exec"),  # its --tmpfs is noexec without that
    ],
)
def test_a_temporary_folder_of_no_use(tmp_path, monkeypatch, mark, noexec, nowhere):
    found = machine(tmp_path, namespaces=CONTAINER)
    for name in mark:
        write(found.root / name, "")
    with monkeypatch.context() as patch:
        patch.setattr(host.os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOEXEC))
        line = only(host.check_temporary, found)
        assert line.status == "fail" and "noexec" in line.found and line.remedy.startswith(noexec)
    monkeypatch.setattr(doctor_machine, "writable", lambda folder: False)
    line = only(host.check_temporary, found)
    assert line.status == "fail" and line.remedy.startswith(nowhere)


@pytest.mark.parametrize(("free", "status"), [(2**28, "fail"), (2**31, "warn"), (2**34, "ok")])
def test_memory(tmp_path, monkeypatch, free, status):
    monkeypatch.setattr(host, "free_memory", lambda root: free)
    assert only(host.check_memory, machine(tmp_path)).status == status


# ---------------------------------------------------------------- GPUs


def gpu_lines(tmp_path, **answers) -> dict:
    return lines(gpu.check_gpus, machine(tmp_path, nvml=Nvml(**answers)))


@pytest.mark.parametrize(
    ("answers", "name", "status", "words"),
    [
        ({}, "gpu 0", "ok", "NVIDIA H200, 140 GiB of memory, compute capability 9.0, driver 580.159.04 (CUDA 13.0)"),
        ({}, "gpu 0 modes", "ok", "compute mode default, MIG off, ECC on, persistence on"),
        ({"nvmlDeviceGetComputeMode": lambda: 2}, "gpu 0 modes", "fail", "nvidia-smi -i 0 -c DEFAULT"),
        ({"nvmlDeviceGetComputeMode": lambda: 3}, "gpu 0 modes", "warn", "-c DEFAULT"),
        ({"nvmlDeviceGetMigMode": lambda: [1, 1]}, "gpu 0 modes", "warn", "-mig 0"),
        ({"nvmlDeviceGetPersistenceMode": lambda: 0}, "gpu 0 modes", "warn", "-pm 1"),
        ({"nvmlDeviceGetVirtualizationMode": lambda: 2}, "gpu 0 modes", "warn", "vGPU"),
        ({"mute": ["nvmlDeviceGetMigMode", "nvmlDeviceGetEccMode"]}, "gpu 0 modes", "ok", "MIG not told, ECC not told"),
        ({}, "gpu 0 clocks", "ok", "SM 345 MHz of at most 1980 MHz"),
        ({"nvmlDeviceGetCurrentClocksEventReasons": lambda: 0x40}, "gpu 0 clocks", "warn", "too hot"),
        ({"nvmlDeviceGetCurrentClocksEventReasons": lambda: 0x2}, "gpu 0 clocks", "warn", "--reset-applications-clocks"),
        ({"nvmlDeviceGetTemperature": lambda sensor: 84}, "gpu 0 clocks", "warn", "84 °C"),
        ({"nvmlDeviceGetEnforcedPowerLimit": lambda: 500_000}, "gpu 0 clocks", "warn", "-pl 700"),
        ({}, "gpu 0 users", "ok", "no other process"),
        ({"mute": ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"]}, "gpu 0 users", "ok", "not told"),
        ({"nvmlDeviceGetComputeRunningProcesses": lambda: [SimpleNamespace(pid=2**22 + 7, usedGpuMemory=1)]}, "gpu 0 users", "warn", "4194311"),
        ({"nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=55, memory=0)}, "gpu 0 users", "fail", "busy 55 %"),
        ({"nvmlDeviceGetMemoryInfo": lambda v=None: SimpleNamespace(total=2**37, used=2**33)}, "gpu 0 users", "warn", "8.6 GB of memory in use"),
    ],
)  # fmt: skip
def test_a_gpu(tmp_path, answers, name, status, words):
    line = gpu_lines(tmp_path, **answers)[name]
    assert line.status == status
    assert words in f"{line.found} {line.remedy}"


def test_a_gpu_that_tells_nothing_has_lines_that_claim_nothing(tmp_path):
    mute = [*Nvml().answers]
    found = gpu_lines(tmp_path, mute=mute)
    assert {line.status for line in found.values()} == {"ok"}
    assert not any(
        value
        for line in found.values()
        for key, value in line.values.items()
        if key not in ("uuid", "name", "driver", "cuda")
    )


@pytest.mark.parametrize(
    ("files", "namespaces", "status", "words"),
    [
        ({}, FIRST, "warn", "no NVIDIA GPU"),
        ({"sys/bus/pci/devices/0000:17:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:17:00.0/class": "0x030200\n"}, FIRST, "fail", "0000:17:00.0"),
        ({"sys/bus/pci/devices/0000:17:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:17:00.0/class": "0x020000\n"}, FIRST, "warn", "no NVIDIA GPU"),
        ({"sys/bus/pci/devices/0000:c1:00.0/vendor": "0x1002\n", "sys/bus/pci/devices/0000:c1:00.0/class": "0x120000\n"}, FIRST, "warn", "AMD's GPU at 0000:c1:00.0 is not measured"),
        ({"sys/bus/pci/devices/0000:c1:00.0/vendor": "0x1002\n", "sys/bus/pci/devices/0000:c1:00.0/class": "0x060400\n"}, FIRST, "warn", "no NVIDIA GPU"),
        ({"proc/driver/nvidia/version": "NVRM", ".dockerenv": ""}, CONTAINER, "warn", "--gpus all"),
        ({"proc/driver/nvidia/version": "NVRM", ".dockerenv": "", "dev/nvidia0": ""}, CONTAINER, "fail", "cannot be used"),
    ],
)  # fmt: skip
def test_no_gpu_or_one_that_cannot_be_used(tmp_path, files, namespaces, status, words):
    found = machine(tmp_path, namespaces=namespaces)
    for name, text in files.items():
        write(found.root / name, text)
    line = only(gpu.check_gpus, found)
    assert line.status == status and words in f"{line.found} {line.remedy}"


def test_a_driver_that_hangs_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "NVML_TIME", 0.2)
    hung = Nvml()
    hung.nvmlInit = lambda: time.sleep(60)
    found = machine(tmp_path, nvml=hung)
    write(found.root / "proc/driver/nvidia/version", "NVRM")
    line = only(gpu.check_gpus, found)
    assert line.status == "fail" and "no answer within 0.2 s" in line.found


def test_locking_clocks_is_predicted(tmp_path):
    make = lambda name, **fields: only(gpu.check_locking, machine(tmp_path / name, nvml=Nvml(), **fields))  # noqa: E731
    assert make("a").status == "ok"
    assert "needs root" in make("b", euid=1000).found
    (tmp_path / "c").mkdir()
    found = machine(tmp_path / "c" / "x", nvml=Nvml(), caps=DOCKERS, namespaces=CONTAINER)
    write(found.root / ".dockerenv", "")
    assert "SYS_ADMIN" in only(gpu.check_locking, found).found
    assert list(gpu.check_locking(machine(tmp_path / "d"))) == []


# ---------------------------------------------------------------- torch


def torch_line(tmp_path, told, nvml=None, **fields):
    return lines(pytorch.check_torch, machine(tmp_path, told=told, nvml=nvml, **fields))["torch"]


REFUSED = H200["cuda"] | {
    "available": False,
    "ran": False,
    "error": "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).",
}


@pytest.mark.parametrize(
    ("told", "nvml", "env", "status", "words"),
    [
        (H200, Nvml(), {}, "ok", "a kernel ran on NVIDIA H200, capability 9.0"),
        (NO_GPU, None, {}, "ok", "without CUDA"),
        (NO_GPU, Nvml(), {}, "fail", "install a CUDA build"),
        (H200 | {"cuda": REFUSED}, Nvml(12080), {}, "fail", "the driver runs CUDA 12 at most"),
        (H200 | {"cuda": REFUSED}, Nvml(), {"CUDA_VISIBLE_DEVICES": ""}, "fail", "unset CUDA_VISIBLE_DEVICES"),
        (H200 | {"torch": {"there": False, "error": "ModuleNotFoundError: No module named 'torch'"}}, Nvml(), {}, "fail", "not installed"),
        (H200 | {"torch": {"there": False, "error": "ModuleNotFoundError: No module named 'torch'"}}, None, {}, "warn", "not installed"),
        (H200 | {"torch": {"there": True, "error": "OSError: libcudart.so.13"}}, Nvml(), {}, "fail", "libcudart.so.13"),
    ],
)  # fmt: skip
def test_torch(tmp_path, told, nvml, env, status, words):
    line = torch_line(tmp_path, told, nvml, env=env)
    assert line.status == status and words in f"{line.found} {line.remedy}"


@pytest.mark.parametrize(
    ("change", "name", "status", "words"),
    [
        ({}, "attention", "ok", "SDPA ran alone with flash, memory-efficient, cuDNN"),
        ({"attention": {"on": {"flash": True}, "tried": {"flash": "RuntimeError: No available kernel."}}}, "attention", "warn", "flash refused (RuntimeError: No available kernel.)"),
        ({"attention": {"on": {"flash": False, "cuDNN": True}, "tried": {"flash": "", "cuDNN": ""}}}, "attention", "warn", "switched off: flash"),
        ({"fp8": {"there": True, "tried": True, "error": "RuntimeError: x"}}, "fp8", "warn", "failed: RuntimeError: x"),
        ({"fp8": {"there": True, "tried": False, "error": ""}}, "fp8", "ok", "FP8 needs 8.9"),
        ({"fp8": {"there": False, "tried": False, "error": ""}}, "fp8", "ok", "no float8"),
        ({"tf32": {"matmul": "high", "cudnn": None}}, "tf32", "ok", "TF32 on in matrix products (high precision), not told in"),
        ({"triton": {"version": None, "there": False, "error": ""}}, "triton", "warn", "pip install triton"),
        ({"flash-attn": {"version": "2.8.3", "there": True, "error": "ImportError: undefined symbol: _ZN3c10"}}, "flash-attn", "warn", "undefined symbol"),
        ({"flash-attn": {"version": "2.8.3", "there": True, "error": ""}}, "flash-attn", "ok", "flash_attn 2.8.3 can be imported"),
    ],
)  # fmt: skip
def test_what_torch_offers(tmp_path, change, name, status, words):
    line = lines(pytorch.check_offers, machine(tmp_path, told=H200 | change, nvml=Nvml()))[name]
    assert line.status == status and words in f"{line.found} {line.remedy}"


def test_a_torch_that_kills_its_interpreter_is_told_with_what_was_learnt_before(tmp_path):
    found = machine(tmp_path, nvml=Nvml())
    told = [{"topic": "python"} | H200["python"], {"topic": "begin", "what": "import torch"}]
    body = "".join(f"echo '{json.dumps(line)}'\n" for line in told) + "kill -SEGV $$"
    found.python = program(tmp_path / "bin", "dies", body)
    seen = lines(pytorch.check_torch, found)
    assert seen["python"].status == "ok"
    assert seen["torch"].status == "fail" and "killed by signal 11 at import torch" in seen["torch"].found


def test_an_interpreter_that_hangs_or_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(pytorch, "IMPORT_TIME", 0.3)
    found = machine(tmp_path)
    found.python = program(tmp_path / "bin", "hangs", "sleep 60")
    assert "no answer within 0.3 s" in only(pytorch.check_torch, found).found
    found = machine(tmp_path / "b", told=NO_GPU | {"python": {"version": "3.8.19", "path": "x"}})
    assert lines(pytorch.check_torch, found)["python"].status == "fail"


@pytest.mark.slow
def test_the_real_interpreter_of_these_tests_is_told_as_it_is(tmp_path):
    import sys

    found = machine(tmp_path)
    found.python, found.python_env = sys.executable, dict(os.environ)
    # A module of the user's own beside perfci is no package.
    (tmp_path / "repo" / "torch.py").write_text("raise SystemExit(7)")
    seen = found.known(pytorch.inside)
    assert seen.problem == ""
    assert seen.get("python")["version"] == ".".join(map(str, sys.version_info[:3]))
    code = "import torch; print(torch.__version__, torch.version.cuda)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        assert seen.get("torch")["error"]
    else:
        assert done.stdout.split() == [seen.get("torch")["version"], str(seen.get("torch")["cuda"])]


# ---------------------------------------------------------------- git and secrets


def configure(found: Machine, *entry: str) -> None:
    subprocess.run(["git", "-C", str(found.where), "config", *entry], check=True)


@pytest.mark.parametrize(
    "entry",
    [
        ("http.https://github.com/.extraheader", "AUTHORIZATION: basic c2VjcmV0c2VjcmV0"),
        ("http.extraHeader", "Authorization: Bearer c2VjcmV0c2VjcmV0"),
        ("remote.origin.url", "https://x-access-token:c2VjcmV0c2VjcmV0@github.com/a/b"),
        ("remote.origin.url", "https://ghp_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0@github.com/a/b"),
        ("remote.origin.pushurl", "https://oauth2:c2VjcmV0c2VjcmV0@gitlab.com/a/b.git"),
        ("url.https://u:c2VjcmV0c2VjcmV0@github.com/.insteadOf", "https://github.com/"),
    ],
)
def test_a_secret_is_named_and_never_shown(tmp_path, entry):
    found = machine(tmp_path)
    configure(found, *entry)
    line = only(repository.check_token, found)
    assert line.status == "fail"
    assert "c2Vjcm" not in line.model_dump_json()


def test_a_secret_in_an_included_file_or_a_submodule_is_found(tmp_path):
    """Included files are how actions/checkout keeps credentials since version 6."""
    found = machine(tmp_path)
    secret = tmp_path / "git-credentials.config"
    secret.write_text('[http "https://github.com/"]\n\textraheader = AUTHORIZATION: basic c2VjcmV0\n')
    configure(found, f"includeIf.gitdir:{found.where}/.git.path", str(secret))
    assert only(repository.check_token, found).status == "fail"
    other = machine(tmp_path / "other")
    write(other.where / ".git/modules/lib/cutlass/HEAD", "ref: refs/heads/main\n")
    write(other.where / ".git/modules/lib/cutlass/config", '[remote "origin"]\n\turl = https://a:c2VjcmV0@h/x\n')
    line = only(repository.check_token, other)
    assert line.status == "fail" and ".git/modules/lib/cutlass/config" in line.found and "c2Vjcm" not in line.found


@pytest.mark.parametrize(
    "entry",
    [
        ("remote.origin.url", "https://github.com/a/b"),
        ("remote.origin.url", "git@github.com:a/b.git"),
        ("remote.origin.url", "ssh://git@github.com/a/b"),
        ("remote.origin.url", "https://someone@dev.azure.com/a/_git/b"),
        ("http.https://github.com/.extraheader", "X-Trace: 1"),
        ("http.proxy", "http://proxy:3128"),
    ],
)
def test_what_is_no_secret_is_not_one(tmp_path, entry):
    found = machine(tmp_path)
    configure(found, *entry)
    assert only(repository.check_token, found).status == "ok"


@given(st.lists(st.text(max_size=60), max_size=4))
def test_words_about_secrets_never_hold_a_value(entries):
    for entry in entries:
        value = entry.partition("\n")[2]
        for word in repository.secrets([entry]):
            assert not value or len(value) < 12 or value not in word


def test_git(tmp_path):
    found = machine(tmp_path)
    assert only(repository.check_git, found).status == "ok"
    nowhere = machine(tmp_path / "nowhere")
    nowhere.where = nowhere.root / "etc"
    line = only(repository.check_git, nowhere)
    assert line.status == "warn" and "git init" in line.remedy
    assert list(repository.check_token(nowhere)) == []
    without = machine(tmp_path / "without", env={"PATH": str(tmp_path / "tmp")})
    assert only(repository.check_git, without).status == "fail"


def test_another_users_repository(tmp_path):
    """perfci reads it, and so does the doctor; git before 2.38 cannot be asked to, and nothing is claimed of it."""
    found = machine(tmp_path)
    configure(found, "remote.origin.url", "https://x-access-token:c2VjcmV0c2VjcmV0@github.com/a/b")
    found.env = {**found.env, "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    assert only(repository.check_git, found).status == "ok"
    assert only(repository.check_token, found).status == "fail"
    old = machine(tmp_path / "old")
    (tmp_path / "old/bin/git").unlink()
    refusal = says("", 128, "fatal: detected dubious ownership in repository at '/repo'\n")
    program(tmp_path / "old/bin", "git", f'case "$*" in *--version) echo git version 2.36.1; exit ;; esac\n{refusal}')
    for check, words in ((repository.check_git, "another user"), (repository.check_token, "not searched")):
        line = only(check, old)
        assert line.status == "warn" and words in line.found and "safe.directory" in line.remedy


def test_a_shallow_clone_is_told(tmp_path):
    found = machine(tmp_path)
    for text in ("a", "b"):
        subprocess.run(
            ["git", "-C", str(found.where), "-c", "user.name=t", "-c", "user.email=t@x", "commit", "-q", "--allow-empty", "-m", text],
            check=True,
        )  # fmt: skip
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{found.where}", str(tmp_path / "shallow")], check=True
    )
    found.where = tmp_path / "shallow"
    line = only(repository.check_git, found)
    assert line.status == "warn"
    subprocess.run(["sh", "-c", line.remedy.split(", or ")[0]], cwd=found.where, check=True)
    again = machine(tmp_path / "again")
    again.where = found.where
    assert only(repository.check_git, again).status == "ok"


# ---------------------------------------------------------------- compilers and Docker


def test_nvcc(tmp_path):
    found = machine(tmp_path / "a")
    assert "not installed" in only(tools.check_nvcc, found).found
    for name, told, nvml, status, words in (
        ("b", H200, Nvml(), "ok", "nvcc 13.0.88"),
        ("c", H200, Nvml(12080), "warn", "newer than the driver"),
        (
            "d",
            H200 | {"torch": H200["torch"] | {"cuda": "12.8"}},
            Nvml(),
            "warn",
            "another CUDA major than torch (12.8)",
        ),
    ):
        found = machine(tmp_path / name, told=told, nvml=nvml)
        program(tmp_path / name / "bin", "nvcc", says(NVCC))
        line = only(tools.check_nvcc, found)
        assert line.status == status and words in line.found
    home = machine(tmp_path / "e", env={"CUDA_HOME": str(tmp_path / "e" / "cuda")})
    program(tmp_path / "e" / "cuda" / "bin", "nvcc", says(NVCC.replace("13.0", "12.6")))
    program(tmp_path / "e" / "bin", "nvcc", says(NVCC))
    assert "nvcc 12.6.88" in only(tools.check_nvcc, home).found


def test_cutlass(tmp_path):
    found = machine(tmp_path)
    assert "neither" in only(tools.check_cutlass, found).found
    header = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n"
    write(found.where / "third_party/cutlass/include/cutlass/version.h", header)
    assert "headers 4.2.1" in only(tools.check_cutlass, found).found
    found = machine(tmp_path / "b", told=H200 | {"cutlass": {"version": "4.3.0", "there": True, "error": ""}})
    assert "Python package 4.3.0" in only(tools.check_cutlass, found).found


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("[ $1 = --version ] && echo version 6.8 && exit; echo Process 7 attached >&2", "ok", "need not be measured"),
        ("echo version 5.2", "warn", "older than 5.3"),
        ("[ $1 = --version ] && echo version 6.8 && exit; echo 'PTRACE_SEIZE: Operation not permitted' >&2; exit 1", "warn", "not permitted"),
        (None, "warn", "apt-get install strace"),
    ],
)  # fmt: skip
def test_strace(tmp_path, script, status, words):
    if script is not None:
        program(tmp_path / "bin", "strace", script)
    line = only(tools.check_strace, machine(tmp_path))
    assert line.status == status and words in f"{line.found} {line.remedy}"


@pytest.mark.parametrize(
    ("info", "code", "err", "nvml", "status", "words"),
    [
        ({"ServerVersion": "28.2.2", "Runtimes": {"runc": {}, "nvidia": {}}}, 0, "", Nvml(), "ok", "GPUs by runtime nvidia"),
        ({"ServerVersion": "28.2.2", "Runtimes": {"runc": {}}}, 0, "", Nvml(), "warn", "nvidia-container-toolkit"),
        ({"ServerVersion": "28.2.2", "Runtimes": {"runc": {}}}, 0, "", None, "ok", "no GPU runtime"),
        ({"ServerVersion": "28.3.0", "Runtimes": {}, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}, 0, "", Nvml(), "ok", "GPUs by CDI"),
        ({"ServerVersion": "28.2.2", "CDISpecDirs": ["/etc/cdi"]}, 0, "", Nvml(), "ok", "CDI (/etc/cdi)"),
        ({"ServerErrors": ["permission denied while trying to connect to the Docker daemon socket"]}, 1, "", None, "warn", "usermod"),
        (None, 1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\n", None, "warn", "no daemon"),
    ],
)  # fmt: skip
def test_docker(tmp_path, info, code, err, nvml, status, words):
    found = machine(tmp_path, nvml=nvml)
    write(found.root / "etc/cdi/nvidia.yaml", "")
    program(tmp_path / "bin", "docker", says("" if info is None else json.dumps(info) + "\n", code, err))
    line = only(tools.check_docker, found)
    assert line.status == status and words in f"{line.found} {line.remedy}"


def test_docker_is_told_only_where_it_is_installed(tmp_path):
    assert list(tools.check_docker(machine(tmp_path))) == []


def test_a_gpu_is_read_before_torch_uses_it(tmp_path):
    """Else the doctor's own process would be the other that uses it."""
    order = []
    found = machine(tmp_path, told=H200, nvml=Nvml(nvmlDeviceGetUtilizationRates=lambda: order.append("state")))
    mark = tmp_path / "started"
    found.python = program(tmp_path / "bin", "marks", f"touch '{mark}'; {says('')}")
    Nvml.nvmlInit, kept = (lambda self: order.append("after" if mark.exists() else "before")), Nvml.nvmlInit
    try:
        examine(found, {"torch": pytorch.check_torch, "gpu": gpu.check_gpus})
    finally:
        Nvml.nvmlInit = kept
    assert order[0] == "before" and "after" not in order
