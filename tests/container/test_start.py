"""The rights that `perfci docker` gives a container, and refusals. tests/e2e/image/test_docker.py starts real ones."""

import os
import shlex
import shutil
import socket
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import perfci
from perfci.cli.container import run_in_container
from perfci.container import engine, start
from perfci.container.engine import Ended, Image, UnknownCapabilityError
from perfci.container.rights import (
    RUN_CAPABILITIES,
    Counting,
    Host,
    counting,
    environment,
    need_of,
    read_host,
    require_no_cover,
)
from perfci.container.start import Job, Terms, arguments, choose_gpus, default_image, own_cores, require_fit
from perfci.measure.request import MEASURE_ALL, Request
from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.model.policy_text import parse_policy
from perfci.system import users

OPEN, NEW, OLD = Host("580.95.05"), Host("580.95.05", True), Host("550.54.15", True)
NO_GPU = Host(None)


@pytest.mark.parametrize(
    ("need", "host", "trusted", "asked", "perfmon", "allowed", "capability"),
    [
        # untrusted: nothing, and no ncu, whatever is needed or asked
        ("required", NEW, False, True, True, False, None),
        ("required", OPEN, False, True, True, False, None),
        # --no-counters
        ("required", NEW, True, False, True, False, None),
        # nothing is needed, or the host lets everybody count
        ("none", NEW, True, None, True, True, None),
        ("required", OPEN, True, True, True, True, None),
        # PERFMON where it does, for explanations alone, too
        ("wanted", NEW, True, None, True, True, "PERFMON"),
        ("none", NEW, True, True, True, True, "PERFMON"),
        # SYS_ADMIN where it does not, for what somebody has asked for
        ("wanted", OLD, True, None, True, True, None),
        ("wanted", OLD, True, True, True, True, "SYS_ADMIN"),
        ("required", OLD, True, None, True, True, "SYS_ADMIN"),
        ("wanted", NEW, True, None, False, True, None),
        ("required", NEW, True, None, False, True, "SYS_ADMIN"),
        # 565 is the first driver that takes PERFMON
        ("wanted", Host("565.57.01", True), True, None, True, True, "PERFMON"),
        ("wanted", Host("560.35.03", True), True, None, True, True, None),
    ],
)
def test_the_lowest_rung_that_does(need, host, trusted, asked, perfmon, allowed, capability):
    rung = counting(need, host, trusted=trusted, asked=asked, perfmon=perfmon)
    assert (rung.allowed, rung.capability) == (allowed, capability)
    assert bool(rung.why) == (capability is not None or (need == "wanted" and allowed and host.admin_only))


@pytest.mark.parametrize(
    ("verb", "text", "need"),
    [
        ("compare", "profile: never", "none"),
        ("compare", "", "wanted"),
        ("compare", "profile: never\nlimits: [{metric: dram_throughput, min: 80%}]", "required"),
        ("run", "profile: never\nlimits: [{metric: registers, regression: 0%}]", "none"),  # nsys sees these
        ("profile", "profile: never", "required"),
    ],
)
def test_what_needs_counters(verb, text, need):
    policies = [parse_policy(f"version: 1\nsuite: [a.py]\n{one}\n") for one in ("profile: never", text)]
    assert need_of(verb, policies) == need
    assert need_of("doctor", []) == "wanted"


def test_a_host_is_read(tmp_path):
    assert read_host(tmp_path) == NO_GPU
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: gcc 12\n"
    )
    (folder / "params").write_text("Mobile: 4294967295\nRmProfilingAdminOnly: 1\n")
    assert read_host(tmp_path) == NEW
    (folder / "params").write_text("RmProfilingAdminOnly: 0\n")
    assert read_host(tmp_path) == OPEN


def test_what_the_run_may_is_what_running_code_as_another_user_takes():
    assert set(RUN_CAPABILITIES) == set(users.NEEDED.values())


# ---------------------------------------------------------------- the environment


CALLER = {
    "PATH": "/host/bin", "HOME": "/home/me", "LD_LIBRARY_PATH": "/host/lib", "PYTHONPATH": "/host", "CC": "/host/cc",
    "CUDA_HOME": "/host/cuda", "CMAKE_PREFIX_PATH": "/host", "SSL_CERT_FILE": "/host/certificates",
    "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all", "PERFCI_WORKER": "1:1", "LD_PRELOAD": "/x.so",
    "DOCKER_HOST": "tcp://engine", "SSH_AUTH_SOCK": "/agent", "ANYTHING": "1", "GITHUB_TOKEN": "secret",
    "CFLAGS": "-O3", "CUDA_VISIBLE_DEVICES": "1", "OMP_PROC_BIND": "close", "LC_ALL": "C.UTF-8", "TERM": "xterm",
    "PIP_INDEX_URL": "https://index.example/simple", "HTTPS_PROXY": "http://proxy.example:3128", "NO_COLOR": "1",
    "DATA_DIR": "/data", "HF_TOKEN": "hf", "MY_SIZE": "3", "GIT_DIR": "/x",
}  # fmt: skip
ALWAYS = {"CFLAGS", "CUDA_VISIBLE_DEVICES", "OMP_PROC_BIND", "LC_ALL", "TERM", "NO_COLOR"}


def test_no_path_of_the_hosts_goes_in_and_no_secret_that_a_policy_names_to_code_that_is_not_trusted():
    measuring = environment(CALLER, [], build=False, trusted=True)
    assert measuring == {name: CALLER[name] for name in ALWAYS}
    assert set(environment(CALLER, [], build=True, trusted=True)) == ALWAYS | {"PIP_INDEX_URL", "HTTPS_PROXY"}
    named = ["MY_SIZE", "HF_TOKEN", "DATA_DIR", "PATH", "PERFCI_WORKER", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD", "NO"]
    assert set(environment(CALLER, named, build=False, trusted=True)) == ALWAYS | {"MY_SIZE", "HF_TOKEN", "DATA_DIR"}
    assert set(environment(CALLER, named, build=False, trusted=False)) == ALWAYS | {"MY_SIZE", "DATA_DIR"}
    index = {"PIP_INDEX_URL": "https://me:password@index.example/simple"}
    assert environment(index, [], build=True, trusted=True) == index
    assert environment(index, [], build=True, trusted=False) == {}


# ---------------------------------------------------------------- the arguments


def terms(tmp_path: Path, *words: str, gpus: tuple[str, ...] | None = None, **more) -> Terms:
    request = Request.of("compare", tmp_path / "repo", tmp_path / "repo" / "perfci-out")
    job = Job("compare", words, request, ["perfci", "docker", "compare", "a case"], **more)
    return Terms(
        job, Image("sha256:1", {}, {}), gpus, [tmp_path / "repo"],
        [parse_policy("version: 1\nsuite: [a.py]\npass_env: [MY_SIZE]\n")], Path("/tmp/perfci-leases"), 1 << 34, False,
        CALLER,
    )  # fmt: skip


def test_both_containers_are_held_the_same_way(tmp_path):
    for phase, volume in (("build", "v"), ("measure", "v"), ("list", None), ("doctor", None)):
        made = arguments(terms(tmp_path), phase, volume, Counting(True))
        assert made["privileged"] is False
        assert made["cap_drop"] == ["ALL"]
        assert made["cap_add"] == list(RUN_CAPABILITIES)
        assert made["security_opt"] == ["no-new-privileges:true"]
        assert made["read_only"] is True
        assert (made["mem_limit"], made["pids_limit"]) == (1 << 34, start.PIDS)
        assert made["use_config_proxy"] is False
        mounts = {mount["Target"]: mount for mount in made["mounts"]}
        repo, out = str(tmp_path / "repo"), str(tmp_path / "repo" / "perfci-out")
        assert (mounts[repo]["Source"], mounts[repo]["ReadOnly"]) == (repo, True)
        assert (mounts[out]["Source"], mounts[out]["ReadOnly"]) == (out, False)
        assert ("/perfci-sides" in mounts) == (volume is not None)
        assert set(mounts) <= {repo, out, "/perfci-sides", "/tmp/perfci-leases"}
        assert "docker.sock" not in str(made)
        assert shlex.split(made["environment"]["PERFCI_COMMAND"]) == ["perfci", "docker", "compare", "a case"]
        assert made["environment"]["MY_SIZE"] == "3"


def test_what_is_built_has_a_network_and_what_is_measured_a_gpu(tmp_path):
    rung = Counting(True, "PERFMON", "why")
    build = arguments(terms(tmp_path, gpus=()), "build", "v", Counting(True))
    measure = arguments(terms(tmp_path, gpus=()), "measure", "v", rung)
    assert (build["network_mode"], measure["network_mode"]) == ("bridge", "none")
    assert "device_requests" not in build
    assert build["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert measure["device_requests"] == [{"capabilities": [["gpu"]], "count": -1}]
    assert "NVIDIA_VISIBLE_DEVICES" not in measure["environment"]
    assert measure["environment"]["CUDA_VISIBLE_DEVICES"] == "1"
    assert measure["cap_add"] == [*RUN_CAPABILITIES, "PERFMON"]
    assert ("HTTPS_PROXY" in build["environment"], "HTTPS_PROXY" in measure["environment"]) == (True, False)
    one = arguments(terms(tmp_path, gpus=("1",)), "measure", "v", rung)
    assert one["device_requests"] == [{"capabilities": [["gpu"]], "device_ids": ["1"]}]
    assert "CUDA_VISIBLE_DEVICES" not in one["environment"]
    cpu = arguments(terms(tmp_path), "measure", "v", Counting(True))
    assert "device_requests" not in cpu
    assert cpu["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(("value", "passed"), [("1", "1"), ("0", None)])
def test_that_all_is_to_be_measured_reaches_the_container(tmp_path, monkeypatch, value, passed):
    monkeypatch.setenv(MEASURE_ALL, value)
    assert arguments(terms(tmp_path), "measure", "v", Counting(True))["environment"].get(MEASURE_ALL) == passed


def test_a_caller_that_may_use_some_cores_measures_on_these(tmp_path):
    """As under a job scheduler: an engine starts its containers beside the caller's limits, not below them."""
    assert "cpuset_cpus" not in arguments(terms(tmp_path), "measure", "v", Counting(True))
    some = replace(terms(tmp_path), cores="1,3")
    assert all(arguments(some, phase, "v", Counting(True))["cpuset_cpus"] == "1,3" for phase in ("build", "measure"))
    own = os.sched_getaffinity(0)
    assert own_cores() == ("" if len(own) == os.cpu_count() else ",".join(map(str, sorted(own))))


def test_the_callers_words_are_kept_and_overruled_where_they_name_places(tmp_path):
    made = terms(tmp_path, "-k", "sdpa/*", "--out", "elsewhere", "--", "main")
    repo, out = str(tmp_path / "repo"), str(tmp_path / "repo" / "perfci-out")
    places = ["--repo", repo, "--out", out]
    build = arguments(made, "build", "v", Counting(True))["command"]
    own = ["compare", "-k", "sdpa/*", "--out", "elsewhere"]
    assert build == [*own, *places, "--prepare", "/perfci-sides", "--", "main"]
    measure = arguments(made, "measure", "v", Counting(False))["command"]
    assert measure[-5:] == ["--prepared", "/perfci-sides", "--no-counters", "--", "main"]
    listed = replace(made, job=replace(made.job, verb="list", words=["--plan"]))
    assert arguments(listed, "list", None, Counting(False))["command"] == ["list", "--plan", "--repo", repo]


class OldEngine:
    """As Docker 20.10: it knows no PERFMON, which test_docker.py sees of a real one."""

    def __init__(self) -> None:
        self.runs: list[dict] = []

    def run(self, given: dict) -> Ended:
        if "PERFMON" in given["cap_add"]:
            raise UnknownCapabilityError('Docker: invalid CapAdd: unknown capability: "CAP_PERFMON"')
        self.runs.append(given)
        return Ended(0, "")


@pytest.mark.parametrize(
    ("asked", "capability", "words"), [(None, [], "no counters: "), (True, ["SYS_ADMIN"], "SYS_ADMIN")]
)
def test_an_engine_without_perfmon_gives_sys_admin_only_where_asked(tmp_path, capsys, asked, capability, words):
    made, old = terms(tmp_path, gpus=(), counters=asked), OldEngine()
    rung = counting("wanted", NEW, trusted=True, asked=asked)
    assert start._counted(old, made, "measure", "v", rung, NEW).code == 0
    [given] = old.runs
    assert given["cap_add"] == [*RUN_CAPABILITIES, *capability]
    told = capsys.readouterr().err.splitlines()
    assert "PERFMON" in told[0] and words in told[1]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "path", ["/", "/usr/src/x", "/etc", "/opt", "/opt/perfci", "/opt/torch/x", "/tmp", "/var", "/proc/1"]
)
def test_no_folder_of_the_host_hides_a_part_of_the_image(path):
    with pytest.raises(UsageError, match="would hide a part of the image"):
        require_no_cover(Path(path), "--repo")


@pytest.mark.parametrize(
    "path", ["/home/me/x", "/workspace", "/src", "/tmp/x", "/var/lib/jenkins/x", "/opt/actions/x", "/usrs"]
)
def test_ordinary_folders_are_mounted(path):
    require_no_cover(Path(path), "--repo")


def test_gpus_are_all_none_or_named():
    assert choose_gpus("auto", NO_GPU) is None
    assert choose_gpus("none", NEW) is None
    assert choose_gpus("auto", NEW) == choose_gpus("all", NEW) == ()
    uuid = "GPU-5e2f0a1b-0000-0000-0000-000000000000"
    assert choose_gpus(f"0,{uuid}", NEW) == ("0", uuid)
    with pytest.raises(MachineError, match="has no NVIDIA driver"):
        choose_gpus("all", NO_GPU)
    for wrong in ("", "0,", "first", "0;rm", "--privileged"):
        with pytest.raises(UsageError, match="write all, none"):
            choose_gpus(wrong, NEW)


def test_the_image_follows_the_driver():
    assert default_image(NO_GPU, None) == default_image(OLD, None) == "perfci:cuda13"
    assert default_image(NEW, ()) == "perfci:cuda13"
    assert default_image(OLD, ()) == "perfci:cuda12"
    with pytest.raises(MachineError, match=r"driver 470\.1\.2: is older than any image takes: install 525"):
        default_image(Host("470.1.2"), ())


def image(variant: str | None = "cuda13", version: str = perfci.__version__, title: str = "perfci") -> Image:
    named = {} if variant is None else {"PERFCI_IMAGE": variant}
    label = "org.opencontainers.image."
    return Image("sha256:1", named, {f"{label}title": title, f"{label}version": version})


def test_an_image_must_hold_this_perfci_and_fit_the_driver():
    require_fit("x", image(), NEW, ())
    require_fit("x", image(), OLD, None)  # no GPU, no driver
    require_fit("x", image(title="mine", version="7"), NEW, ())  # FROM perfci
    with pytest.raises(UsageError, match="image python:3: holds no perfci"):
        require_fit("python:3", image(None), NEW, ())
    with pytest.raises(UsageError, match=r"holds perfci 0\.0\.9, and this is .*: make it anew"):
        require_fit("x", image(version="0.0.9"), NEW, ())
    with pytest.raises(MachineError, match=r"needs a driver from 580 on, and this is 550\.54\.15: take perfci:cuda12"):
        require_fit("x", image(), OLD, ())


def mistake(*words: str) -> str:
    from perfci.cli import app

    with pytest.raises(PerfciError) as caught:
        run_in_container(app, list(words), image=None, pull=False, gpus="none", counters=None)
    return str(caught.value)


def test_mistakes_are_told_before_any_container(repo, tmp_path, monkeypatch):
    monkeypatch.chdir(repo.root)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "is not for a container: choose run, compare, profile, list, doctor" in mistake("calibrate")
    assert "no such branch, tag or commit" in mistake("compare", "--base", "nothing")
    assert "'nothing': no such branch, tag or commit" in mistake("compare", "nothing")
    assert "'nothing': no such branch, tag or commit" in mistake("compare", "main", "nothing")
    assert "limits stand in" in mistake("compare", "--limit", "5%")
    assert "holds the repository" in mistake("run", "--out", str(tmp_path))
    assert "would hide a part of the image" in mistake("run", "--out", "/etc")
    (repo.root / "perfci-out").symlink_to(tmp_path)
    assert "is a link: remove it" in mistake("run")
    (repo.root / "perfci-out").unlink()
    repo.write("perfci.yaml", "version: 1\nsuites: []\n")
    assert "suites" in mistake("run")
    assert not (repo.root / "perfci-out").exists()


def test_a_linked_worktree_brings_its_repository(repo, tmp_path):
    linked = tmp_path / "linked"
    repo.git("worktree", "add", "-q", "--detach", str(linked))
    folders, policies = start._sources(Job("run", [], Request.of("run", linked, linked / "perfci-out"), []))
    assert folders == [linked, repo.root / ".git"]
    assert len(policies) == 1


# ---------------------------------------------------------------- what the engine says


def test_no_engine_is_one_line(repo, tmp_path, monkeypatch):
    monkeypatch.chdir(repo.root)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    assert "no engine answers: start one" in mistake("run")
    with closing(socket.socket(socket.AF_UNIX)) as gone:
        gone.bind(str(tmp_path / "engine.sock"))
    assert "no engine answers: start one" in mistake("run")  # refuses the connection
    assert not (repo.root / "perfci-out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody whom a socket refuses")
def test_a_socket_of_others_is_one_line(monkeypatch):
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(folder / "s"))
        listening.listen()
        (folder / "s").chmod(0o600)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/s")
        pytest.importorskip("docker", reason="needs Docker's SDK")  # which the other user may not read
        os.seteuid(12345)
        try:
            with pytest.raises(MachineError, match="its socket is not for this user"), engine.Engine.connect():
                pass
        finally:
            os.seteuid(0)
    shutil.rmtree(folder)


def test_errors_that_wrap_others_are_read():
    inner = ConnectionRefusedError(111, "Connection refused")
    assert "no engine answers" in str(engine.unreachable(RuntimeError("x", RuntimeError("y", inner))))
    assert "does not answer as it should: odd" in str(engine.unreachable(RuntimeError("odd")))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "it cannot give a GPU: install NVIDIA's"),
        ("nvidia-container-cli: initialization error: nvml error", "it cannot give a GPU: "),
        (b"mkdir /var/lib/docker/x: no space left on device", "its disk is full: docker system df"),
        ("invalid mount config: bind source path does not exist: /x", "runs on another machine"),
        ("something\nelse", "Docker: something"),
    ],
)
def test_what_the_engine_refuses_is_one_line(said, words):
    text = str(engine.refusal(said))
    assert words in text and "\n" not in text


def test_an_unknown_capability_can_be_told_apart():
    assert isinstance(engine.refusal('invalid CapAdd: unknown capability: "CAP_PERFMON"'), UnknownCapabilityError)
