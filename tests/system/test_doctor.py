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

from perfci.doctor import gpu, host, pytorch, repository, tools
from perfci.doctor import machine as doctor_machine
from perfci.doctor.machine import Machine, ok, warn
from perfci.doctor.survey import CHECKS, examine
from perfci.system import facts
from tests.sources.repo import commit, git
from tests.system.machines import CONTAINER, FIRST, H200, NO_GPU, NVCC, Nvml, machine, program, says, write


def lines(check, found: Machine) -> dict:
    return {one.name: one for one in check(found)}


def only(check, found: Machine):
    (line,) = check(found)
    return line


def silent(check, found: Machine) -> bool:
    return list(check(found)) == []


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
    said = Machine().run([path], limit=0.5)
    assert said.code is None and said.problem == "no answer within 0.5 s"
    pid = int(mark.read_text())
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        pytest.fail("what it started still runs")


def test_a_child_left_behind_is_no_hanging_program(tmp_path):
    said = Machine().run([program(tmp_path, "leave", "sleep 300 & echo done")], limit=0.5)
    assert (said.code, said.out) == (0, "done\n")


def test_a_program_that_never_stops_talking_is_ended(tmp_path):
    talk = program(tmp_path, "talk", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done")
    assert Machine().run([talk], limit=30).problem == "what it says takes more than 1 MiB"


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
    ("version", "words"),
    [
        ("Linux version 6.8.0 (gcc) #1\n", []),
        ("Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f) #1\n", ["WSL"]),
    ],
)
def test_the_kernel(tmp_path, version, words):
    lines = list(host.check_system(machine(tmp_path, version=version)))
    assert [line.found.partition(":")[0] for line in lines] == words


OVERLAY = "22 1 254:0 / / rw - ext4 /dev/vda rw\n75 51 0:39 / / rw,relatime - overlay overlay rw,lowerdir=/l\n"


@pytest.mark.parametrize(
    ("files", "env", "namespaces", "inside"),
    [
        ({}, {}, FIRST, False),
        ({".dockerenv": ""}, {}, CONTAINER, True),
        ({".dockerenv": ""}, {}, FIRST, False),  # an image run as a machine
        ({".dockerenv": "", "proc/self/mountinfo": OVERLAY}, {}, FIRST, True),  # docker run --pid host --ipc host …
        ({".dockerenv": "", "proc/self/mountinfo": OVERLAY.splitlines()[0]}, {}, FIRST, False),
        ({"run/.containerenv": ""}, {}, CONTAINER, True),
        ({"proc/self/cgroup": "0::/kubepods.slice/pod1\n"}, {}, CONTAINER, True),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, CONTAINER, True),
        ({"run/systemd/container": "lxc\n"}, {}, CONTAINER, True),
        ({"proc/self/cgroup": "4:memory:/docker/0123\n"}, {}, CONTAINER, True),
        ({}, {}, FIRST | {"pid": 4026532000}, False),
    ],
)
def test_a_container(tmp_path, files, env, namespaces, inside):
    assert host.in_container(machine(tmp_path, env=env, namespaces=namespaces, files=files)) is inside


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


@pytest.mark.parametrize(("free", "status"), [(100 * 10**6, ["fail"]), (10**9, ["warn"]), (10**10, [])])
def test_disk_space(tmp_path, monkeypatch, free, status):
    found = machine(tmp_path)
    monkeypatch.setattr(host.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    for check in (host.check_disk, host.check_temporary):
        assert [line.status for line in check(found)] == status


@pytest.mark.parametrize(
    ("cores", "quota", "words"),
    [(8, None, ""), (8, 8, ""), (8, 1.5, "a quota of 1.5 for 8 cores"), (1, None, "1 core")],
)
def test_cores(tmp_path, monkeypatch, cores, quota, words):
    monkeypatch.setattr(host, "usable_cores", lambda: cores)
    monkeypatch.setattr(host, "cpu_quota", lambda root: quota)
    lines = list(host.check_cores(machine(tmp_path)))
    assert bool(lines) is bool(words) and all(words in line.found for line in lines)


def test_a_tmpdir_that_is_not_there_and_an_output_folder_that_is_a_file(tmp_path):
    found = machine(tmp_path, env={"TMPDIR": "/no/such"})
    line = only(host.check_temporary, found)
    assert line.status == "warn" and "TMPDIR=/no/such" in line.found
    (tmp_path / "repo" / "perfci-out").write_text("")
    assert only(host.check_disk, found).status == "fail"


@pytest.mark.parametrize(
    ("mark", "noexec", "nowhere"),
    [
        ({}, "mount -o remount,exec", "set TMPDIR"),
        # Its --tmpfs is noexec without that.
        ({".dockerenv": ""}, "docker run --tmpfs", "docker run --tmpfs /tmp:exec"),
    ],
)
def test_a_temporary_folder_of_no_use(tmp_path, monkeypatch, mark, noexec, nowhere):
    found = machine(tmp_path, namespaces=CONTAINER, files=mark)
    with monkeypatch.context() as patch:
        patch.setattr(host.os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOEXEC))
        line = only(host.check_temporary, found)
        assert line.status == "fail" and "noexec" in line.found and line.remedy.startswith(noexec)
    monkeypatch.setattr(doctor_machine, "writable", lambda folder: False)
    line = only(host.check_temporary, found)
    assert line.status == "fail" and line.remedy.startswith(nowhere)


@pytest.mark.parametrize(("free", "status"), [(2**28, ["fail"]), (2**31, ["warn"]), (2**34, [])])
def test_memory(tmp_path, monkeypatch, free, status):
    monkeypatch.setattr(host, "free_memory", lambda root: free)
    assert [line.status for line in host.check_memory(machine(tmp_path))] == status


# ---------------------------------------------------------------- GPUs


def gpu_lines(tmp_path, **answers) -> dict:
    return lines(gpu.check_gpus, machine(tmp_path, nvml=Nvml(**answers)))


@pytest.mark.parametrize(
    ("answers", "name", "status", "words"),
    [
        ({"nvmlDeviceGetComputeMode": lambda: 2}, "gpu 0 compute mode", "fail", "nvidia-smi -i 0 -c DEFAULT"),
        ({"nvmlDeviceGetComputeMode": lambda: 3}, "gpu 0 compute mode", "warn", "-c DEFAULT"),
        ({"nvmlDeviceGetMigMode": lambda: [1, 1]}, "gpu 0 mig", "warn", "-mig 0"),
        ({"nvmlDeviceGetPersistenceMode": lambda: 0}, "gpu 0 persistence", "warn", "-pm 1"),
        ({"nvmlDeviceGetVirtualizationMode": lambda: 2}, "gpu 0 vgpu", "warn", "vGPU"),
        ({"nvmlDeviceGetCurrentClocksEventReasons": lambda: 0x60}, "gpu 0 clocks", "warn", "held down by sw_thermal, hw_thermal before anything runs the GPU is too hot: see its cooling (nvidia-smi -q -d TEMPERATURE)"),
        ({"nvmlDeviceGetCurrentClocksEventReasons": lambda: 0x2}, "gpu 0 clocks", "warn", "--reset-applications-clocks"),
        ({"nvmlDeviceGetTemperature": lambda sensor: 84}, "gpu 0 temperature", "warn", "84 °C"),
        ({"nvmlDeviceGetEnforcedPowerLimit": lambda: 500_000}, "gpu 0 power limit", "warn", "-pl 700"),
        ({"nvmlDeviceGetComputeRunningProcesses": lambda: [SimpleNamespace(pid=2**22 + 7, usedGpuMemory=1)]}, "gpu 0 users", "warn", "4194311"),
        ({"nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=55, memory=0)}, "gpu 0 users", "fail", "busy 55 %"),
        ({"nvmlDeviceGetMemoryInfo": lambda v=None: SimpleNamespace(total=2**37, used=2**33)}, "gpu 0 users", "warn", "8.6 GB of memory in use"),
    ],
)  # fmt: skip
def test_a_gpu(tmp_path, answers, name, status, words):
    found = gpu_lines(tmp_path, **answers)
    assert set(found) == {"gpu 0", name}
    assert found[name].status == status
    assert words in f"{found[name].found} {found[name].remedy}"


def test_a_gpu_that_tells_nothing_has_a_line_that_claims_nothing(tmp_path):
    (line,) = gpu_lines(tmp_path, mute=[*Nvml().answers]).values()
    assert line.status == "ok"
    assert not any(value for key, value in line.values.items() if key not in ("uuid", "name", "driver", "cuda"))


@pytest.mark.parametrize(
    ("files", "namespaces", "status", "words"),
    [
        ({"sys/bus/pci/devices/0000:17:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:17:00.0/class": "0x030200\n"}, FIRST, "fail", "0000:17:00.0"),
        ({"sys/bus/pci/devices/0000:17:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:17:00.0/class": "0x020000\n"}, FIRST, "warn", "no NVIDIA GPU"),
        ({"proc/driver/nvidia/version": "NVRM", ".dockerenv": ""}, CONTAINER, "warn", "--gpus all"),
        ({"proc/driver/nvidia/version": "NVRM", ".dockerenv": "", "dev/nvidia0": ""}, CONTAINER, "fail", "cannot be used"),
    ],
)  # fmt: skip
def test_no_gpu_or_one_that_cannot_be_used(tmp_path, files, namespaces, status, words):
    line = only(gpu.check_gpus, machine(tmp_path, namespaces=namespaces, files=files))
    assert line.status == status and words in f"{line.found} {line.remedy}"


def test_a_driver_that_hangs_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "NVML_TIME", 0.2)
    hung = Nvml()
    hung.nvmlInit = lambda: time.sleep(60)
    line = only(gpu.check_gpus, machine(tmp_path, nvml=hung, files={"proc/driver/nvidia/version": "NVRM"}))
    assert line.status == "fail" and "no answer within 0.2 s" in line.found


# ---------------------------------------------------------------- torch


def torch_line(tmp_path, told, nvml=None, **fields):
    return lines(pytorch.check_torch, machine(tmp_path, told=told, nvml=nvml, **fields))["torch"]


REFUSED = H200["cuda"] | {"ran": False, "error": "RuntimeError: The NVIDIA driver on your system is too old."}
NO_TORCH = {"torch": {"there": False, "error": "ModuleNotFoundError: No module named 'torch'"}}


@pytest.mark.parametrize(
    ("told", "nvml", "env", "status", "words"),
    [
        (NO_GPU, Nvml(), {}, "fail", "install a CUDA build"),
        (H200 | {"cuda": REFUSED}, Nvml(12080), {}, "fail", "the driver runs CUDA 12 at most"),
        (H200 | {"cuda": REFUSED}, Nvml(), {"CUDA_VISIBLE_DEVICES": ""}, "fail", "unset CUDA_VISIBLE_DEVICES"),
        (H200 | NO_TORCH, Nvml(), {}, "fail", "not installed"),
        (H200 | NO_TORCH, None, {}, "warn", "not installed"),
        (H200 | {"torch": {"there": True, "error": "OSError: libcudart.so.13"}}, Nvml(), {}, "fail", "libcudart.so.13"),
    ],
)  # fmt: skip
def test_torch(tmp_path, told, nvml, env, status, words):
    line = torch_line(tmp_path, told, nvml, env=env)
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
    found = machine(tmp_path / "b", told=NO_GPU | {"python": {"version": "3.8.19"}})
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
    git(found.where, "config", *entry)
    line = only(repository.check_token, found)
    assert line.status == "fail"
    assert "c2Vjcm" not in line.model_dump_json()


def test_a_secret_in_an_included_file_or_a_submodule_is_found(tmp_path):
    """Included files are how actions/checkout keeps credentials since version 6."""
    found = machine(tmp_path)
    secret = tmp_path / "git-credentials.config"
    secret.write_text('[http "https://github.com/"]\n\textraheader = AUTHORIZATION: basic c2VjcmV0\n')
    git(found.where, "config", f"includeIf.gitdir:{found.where}/.git.path", str(secret))
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
    git(found.where, "config", *entry)
    assert silent(repository.check_token, found)


@given(st.lists(st.text(max_size=60), max_size=4))
def test_words_about_secrets_never_hold_a_value(entries):
    for entry in entries:
        value = entry.partition("\n")[2]
        for word in repository.secrets([entry]):
            assert not value or len(value) < 12 or value not in word


def test_git(tmp_path):
    assert silent(repository.check_git, machine(tmp_path))
    nowhere = machine(tmp_path / "nowhere")
    nowhere.where = nowhere.root
    line = only(repository.check_git, nowhere)
    assert line.status == "warn" and "git init" in line.remedy
    assert silent(repository.check_token, nowhere)
    without = machine(tmp_path / "without", env={"PATH": str(tmp_path / "tmp")})
    assert only(repository.check_git, without).status == "fail"


def test_another_users_repository(tmp_path):
    """perfci reads it, and so does the doctor; git before 2.38 cannot be asked to, and nothing is claimed of it."""
    found = machine(tmp_path)
    git(found.where, "config", "remote.origin.url", "https://x-access-token:c2VjcmV0c2VjcmV0@github.com/a/b")
    found.env = {**found.env, "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    assert silent(repository.check_git, found)
    assert only(repository.check_token, found).status == "fail"
    old = machine(tmp_path / "old")
    (tmp_path / "old/bin/git").unlink()
    refusal = says("", 128, "fatal: detected dubious ownership in repository at '/repo'\n")
    program(tmp_path / "old/bin", "git", refusal)
    for check, words in ((repository.check_git, "another user"), (repository.check_token, "not searched")):
        line = only(check, old)
        assert line.status == "warn" and words in line.found and "safe.directory" in line.remedy


def test_a_shallow_clone_is_told(tmp_path):
    found = machine(tmp_path)
    commit(found.where)
    commit(found.where)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{found.where}", "shallow")
    found.where = tmp_path / "shallow"
    line = only(repository.check_git, found)
    assert line.status == "warn"
    subprocess.run(["sh", "-c", line.remedy.split(", or ")[0]], cwd=found.where, check=True)
    again = machine(tmp_path / "again")
    again.where = found.where
    assert silent(repository.check_git, again)


# ---------------------------------------------------------------- compilers, strace


@pytest.mark.parametrize(
    ("torch", "nvml", "words"),
    [
        ("13.0", Nvml(), ""),
        ("13.0", Nvml(12080), "newer than the driver"),
        ("12.8", Nvml(), "another CUDA major than torch (12.8)"),
    ],
)
def test_nvcc(tmp_path, torch, nvml, words):
    found = machine(tmp_path, told=H200 | {"torch": H200["torch"] | {"cuda": torch}}, nvml=nvml)
    program(tmp_path / "bin", "nvcc", says(NVCC))
    lines = list(tools.check_nvcc(found))
    assert bool(lines) is bool(words) and all(words in line.found for line in lines)


def test_the_nvcc_of_cuda_home_comes_first(tmp_path):
    found = machine(tmp_path, env={"CUDA_HOME": str(tmp_path / "cuda")})
    path = program(tmp_path / "cuda" / "bin", "nvcc", says(NVCC.replace("13.0", "12.6")))
    program(tmp_path / "bin", "nvcc", says(NVCC))
    assert tools.nvcc(found)[:2] == (path, "12.6.88")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("[ $1 = --version ] && echo version 6.8 && exit; echo Process 7 attached >&2", ""),
        ("echo version 5.2", "older than 5.3"),
        ("[ $1 = --version ] && echo version 6.8 && exit; echo 'PTRACE_SEIZE: Operation not permitted' >&2; exit 1", "not permitted"),
    ],
)  # fmt: skip
def test_strace(tmp_path, script, words):
    program(tmp_path / "bin", "strace", script)
    lines = list(tools.check_strace(machine(tmp_path)))
    assert bool(lines) is bool(words) and all(words in f"{line.found} {line.remedy}" for line in lines)


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
