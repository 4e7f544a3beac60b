"""The image, as a Docker Engine builds and runs it: the Dockerfile on a Debian that has the Nsight tools.

Needs the engine and the base image that `.ci/docker` makes.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from perfci.container.start import own_cores
from perfci.system.pins import variant
from tests.e2e.conftest import Repo, adding, pairs

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
MOST_BYTES = 4.2e9
"""Of the image on Debian, three quarters of which are its Nsight tools with their windows, and torch."""
MOST_SECONDS = 600
CANARY = f"canary-{uuid.uuid4().hex}.invalid"
"""Stands for what a build is told and must not keep."""


def docker(*args: object, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command, *rest = map(str, args)
    cores = ["--cpuset-cpus", own_cores()] if command == "run" and own_cores() else []
    done = subprocess.run(
        ["docker", command, *cores, *rest],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        errors="replace",
    )
    assert done.returncode == 0 or not check, f"docker {args[0]}: {done.stdout}\n{done.stderr}"
    return done


@dataclass
class Image:
    name: str
    seconds: float

    def run(self, workspace: Path | None, *args: str, options: tuple[str, ...] = (), timeout: float = 300):
        """`docker run` with `workspace` mounted as README.md says."""
        mount = [] if workspace is None else ["--volume", f"{workspace}:/workspace"]
        return docker("run", "--rm", *mount, *options, self.name, *args, check=False, timeout=timeout)

    def shell(self, script: str) -> str:
        return docker("run", "--rm", "--entrypoint", "/bin/bash", self.name, "-euc", script).stdout


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image, built anew. Docker takes layers that it has from its cache."""
    if shutil.which("docker") is None or docker("image", "inspect", variant("debian").base, check=False).returncode:
        pytest.skip("needs a Docker Engine, and the base image that `sudo .ci/docker` makes")  # no registry has it
    name = f"perfci-test:{os.getpid()}"
    arguments = shlex.split(
        subprocess.run(
            [sys.executable, "-m", "perfci.system.pins", "debian"], capture_output=True, text=True, check=True
        ).stdout
    )
    # Proxies are arguments that every Dockerfile has and no image keeps.
    proxies = [word for key in ("HTTP_PROXY", "HTTPS_PROXY") if os.environ.get(key) for word in ("--build-arg", key)]
    start = time.monotonic()
    done = subprocess.run(
        ["docker", "build", "--tag", name, *arguments, *proxies, "--build-arg", f"NO_PROXY={CANARY}", "."],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=880, check=False,
        env={**os.environ, "DOCKER_BUILDKIT": os.environ.get("DOCKER_BUILDKIT", "0")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    yield Image(name, time.monotonic() - start)
    docker("rmi", "--no-prune", name)


@dataclass
class Project:
    """A repository with two commits on a branch, owned by somebody who is not root."""

    repo: Repo
    user: int = field(default_factory=lambda: os.getuid() or 1000)

    @property
    def root(self) -> Path:
        return self.repo.root

    @property
    def out(self) -> Path:
        return self.root / "perfci-out"

    def hand_over(self, *more: Path) -> None:
        """Everything to `user`, as a caller's folder is the caller's."""
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", f"{self.user}:{self.user}", self.root, *more], check=True)

    def report(self) -> dict:
        return json.loads((self.out / "report.json").read_text())

    def owners(self, folder: Path | None = None) -> set[int]:
        top = folder or self.out
        return {path.lstat().st_uid for path in (top, *top.rglob("*"))}


POLICY = """\
version: 1
suite: [kernels/*.py]
devices: [cpu]
budget: {budget}
build: test "$(id -u)" = {user} && touch "$HOME/mine"
commands:
  - {{name: app, run: python3 app.py, device: cpu}}
limits:
  - {{cases: "*", metric: time, regression: 40%}}
"""
APP = "import time\nfor n in range(20):\n    sum(range(50_000 * {factor}))\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """main, and a branch that is the same but for a comment."""
    env = {**os.environ, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    made = Project(Repo(tmp_path / "a repository", env))
    made.repo.write("perfci.yaml", POLICY.format(budget="1m", user=made.user))
    made.repo.write("kernels/adding.py", adding())
    made.repo.write("app.py", APP.format(factor=1))
    made.repo.commit("base")
    made.repo.git("switch", "-q", "-c", "change")
    made.repo.write("kernels/adding.py", adding() + "# nothing else\n")
    made.repo.commit("head")
    made.hand_over()
    return made


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("perfci: ")]


# ---------------------------------------------------------------- what it holds


def test_it_holds_what_is_pinned_and_is_no_larger_than_it_may_be(image: Image, record_property) -> None:
    size = json.loads(docker("image", "inspect", image.name).stdout)[0]["Size"]
    record_property("image_bytes", size)
    record_property("build_seconds", round(image.seconds))
    sys.stderr.write(f"\nimage: {size / 1e9:.2f} GB, built in {image.seconds:.0f} s\n")
    assert size < MOST_BYTES
    assert image.seconds < MOST_SECONDS
    one = variant("debian")
    told = image.shell(
        "nsys --version; ncu --version; python -c 'import torch; print(torch.__version__)'; perfci --version"
    )
    assert f"version {one.nsys}." in told
    assert f"Version {one.ncu}." in told
    assert re.search(rf"^{re.escape(one.torch)}\b", told, re.MULTILINE)
    done = image.run(None, "doctor", "--offline", "--json")
    found = {line["name"]: line for line in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0
    assert (found["image"]["status"], found["image"]["values"]) == ("ok", {"variant": "debian"})


def test_it_is_set_up_as_the_page_on_containers_says(image: Image) -> None:
    config = json.loads(docker("image", "inspect", image.name).stdout)[0]["Config"]
    env = dict(one.split("=", 1) for one in config["Env"])
    assert env["PATH"].split(":")[0] == "/opt/torch/bin"
    assert (config["WorkingDir"], config["User"], config["StopSignal"]) == ("/workspace", "", "SIGTERM")
    labels = {key.rpartition(".")[2]: value for key, value in config["Labels"].items()}
    assert labels["title"] == "perfci" and labels["version"] == variant("debian").arguments("debian")["VERSION"]
    # Nobody but root may change perfci, and code under test finds its own interpreter.
    assert image.shell("find /opt/perfci /usr/local/bin ! -type l -perm /022") == ""
    assert image.shell("command -v python").strip() == "/opt/torch/bin/python"


def test_nothing_of_the_build_is_left_in_it(image: Image) -> None:
    """Neither caches nor what the build was told: in no layer, not in its history, not in its environment."""
    caches = "/root/.cache /var/lib/apt/lists /var/cache/apt /tmp /var/log/apt /etc/pip.conf /root/.config /root/.netrc"
    assert image.shell(f"for one in {caches}; do [ ! -e $one ] || find $one -type f; done") == ""
    secrets = [CANARY, *hosts_of_the_environment()]
    described = docker("image", "inspect", image.name).stdout + docker("history", "--no-trunc", image.name).stdout
    assert [one for one in ("PIP_", "_PROXY", "_proxy", *secrets) if one in described] == []
    saved = subprocess.Popen(["docker", "save", image.name], stdout=subprocess.PIPE)
    assert saved.stdout is not None
    assert found_in(saved.stdout, secrets) == []
    assert saved.wait() == 0


def hosts_of_the_environment() -> list[str]:
    """Hosts of indexes and proxies that this machine's environment names."""
    named = {key: value for key, value in os.environ.items() if re.search(r"(?i)^PIP_.*(INDEX|HOST)|_PROXY$", key)}
    return [host for value in named.values() for word in value.split() if (host := urlsplit(word).hostname)]


def found_in(stream, words: list[str]) -> list[str]:
    """Those of `words` that are in a stream."""
    found, tail, overlap = set(), b"", max(map(len, words)) - 1
    while block := stream.read(1 << 24):
        window = tail + block
        found |= {word for word in words if word.encode() in window}
        tail = window[-overlap:]
    return sorted(found)


# ---------------------------------------------------------------- what it does


def test_without_arguments_it_compares_the_repository_and_gives_the_caller_the_results(image: Image, project: Project):
    done = image.run(project.root)
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout
    told = lines(done)
    assert "no GPU here" in told[0] and "--gpus all" in told[0]
    assert told[1] == "perfci: this tree is compared with main"
    assert {row["class"] for row in project.report()["rows"]} == {"unchanged"}
    assert project.owners() == {project.user}
    assert project.owners(project.root / ".git") == {project.user}, "git has written there as another"


def test_what_is_slower_fails_the_gate(image: Image, project: Project) -> None:
    project.repo.write("kernels/adding.py", adding(spin=20_000))
    project.hand_over()
    done = image.run(project.root, "compare", "-k", "adding")
    assert done.returncode == 1, done.stderr
    assert [row["class"] for row in project.report()["rows"]] == ["regression"]
    assert project.owners() == {project.user}


def test_a_mistake_and_a_failure_end_as_without_a_container(image: Image, project: Project) -> None:
    project.repo.write("perfci.yaml", "version: 1\nsuites: []\n")
    wrong = image.run(project.root, "run")
    assert wrong.returncode == 2
    assert "suites" in wrong.stderr.splitlines()[-1]
    project.repo.write("perfci.yaml", POLICY.format(budget="1m", user=project.user).replace("&& touch", "&& false &&"))
    project.hand_over()
    failed = image.run(project.root, "run")
    assert failed.returncode == 3, failed.stderr
    assert "does not build" in failed.stderr
    assert project.owners() == {project.user}


RANGES = """\
import nvtx

for n in range(3):
    with nvtx.annotate("step"):
        sum(range(100_000))
"""


def test_nsys_records_what_runs_as_the_owner_of_the_workspace(image: Image, project: Project) -> None:
    policy = POLICY.format(budget="1m", user=project.user)
    project.repo.write("perfci.yaml", policy)  # nvtx is the image's
    project.repo.write("app.py", RANGES)
    project.hand_over()
    for _ in range(2):  # on a busy machine nsys at times writes no report, which perfci says: then once more
        done = image.run(project.root, "profile", "-k", "app")
        assert done.returncode == 0, done.stderr
        results = json.loads((project.out / "results.json").read_text())
        (case,) = results["cases"]
        profile = case["sides"]["head"]["profile"]
        if [fault["kind"] for fault in profile["faults"]] != ["empty"]:
            break
    assert profile["faults"] == []
    assert profile["trace"]["source"] == "nsys"
    assert profile["trace"]["version"].startswith(f"{variant('debian').nsys}.")
    assert [(one["name"], one["count"]) for one in profile["trace"]["ranges"]] == [("step", 3)]
    assert {path.name for path in (project.out / "profile").iterdir()} >= {"nsys-head-app.sqlite"}
    assert project.owners() == {project.user}


def test_docker_stop_keeps_finished_pairs_and_resume_goes_on(image: Image, project: Project) -> None:
    name = f"perfci-{uuid.uuid4().hex[:12]}"
    project.repo.write("perfci.yaml", POLICY.format(budget="3m", user=project.user).replace("40%", "0.1%"))
    project.repo.commit("a limit that no run of a minute can decide")
    project.hand_over()
    docker("run", "--detach", "--name", name, "--volume", f"{project.root}:/workspace", image.name, "compare", "-k", "adding",
           "--base", "HEAD", "--measure-all")  # fmt: skip
    try:
        journal = project.out / "journal.jsonl"
        deadline = time.monotonic() + 120
        while len(pairs(journal)) < 3:
            assert time.monotonic() < deadline, docker("logs", name).stderr
            time.sleep(0.3)
        docker("stop", "--time", "60", name)
        assert docker("wait", name).stdout.strip() == "3"  # 137 where the engine had to kill it
        assert "go on with --resume" in docker("logs", name).stderr
    finally:
        docker("rm", "--force", name)
    kept = len(pairs(journal))
    assert project.owners() == {project.user}
    done = image.run(
        project.root, "compare", "-k", "adding", "--base", "HEAD", "--measure-all", "--resume", "--budget", "30s"
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr  # about a limit of 0.1 % chance has a say
    assert len(pairs(journal)) > kept
    assert project.owners() == {project.user}


def test_with_nothing_mounted_it_measures_the_suite_that_ships(image: Image) -> None:
    done = image.run(None, "run", "--quick", "-k", "layernorm/*")
    assert done.returncode == 0, done.stderr
    assert any("nothing is mounted at /workspace" in line for line in lines(done))
    assert "layernorm" in done.stdout


def test_without_arguments_and_with_nothing_mounted_it_runs_the_suite_that_ships(image: Image) -> None:
    """Stopped when the first pair of every case is through: whole, it takes minutes."""
    name = f"perfci-{uuid.uuid4().hex[:12]}"
    docker("run", "--detach", "--name", name, image.name)
    try:
        deadline = time.monotonic() + 240
        while "perfci: pair 1 done" not in (told := docker("logs", name).stderr):
            assert docker("inspect", "--format", "{{.State.Running}}", name).stdout.strip() == "true", told
            assert time.monotonic() < deadline, told
            time.sleep(1)
        docker("stop", "--time", "60", name)
        done = docker("logs", name)
    finally:
        docker("rm", "--force", name)
    mount = 'docker run --gpus all -v "$PWD:/workspace" perfci compare main'
    assert any("nothing is mounted at /workspace" in line and line.endswith(mount) for line in lines(done))
    for kernel in ("layernorm/shape=64x768", "matmul/n=256", "sdpa/seq=128", "voxelize/points=5000"):
        assert kernel in done.stdout


def test_as_another_user_everything_runs_as_that_one(image: Image, project: Project) -> None:
    options = ("--user", f"{project.user}:{project.user}")
    done = image.run(project.root, "run", "-k", "adding", options=options)
    assert done.returncode == 0, done.stderr
    assert any(f"runs as uid {project.user} throughout" in line for line in lines(done))
    assert project.owners() == {project.user}


def test_a_workspace_that_is_read_only_needs_a_folder_for_the_output(image: Image, project: Project, tmp_path: Path):
    mount = f"{project.root}:/workspace:ro"
    refused = image.run(None, options=("--volume", mount))
    assert refused.returncode == 2
    assert "/workspace: cannot be written: mount a folder for the output" in lines(refused)[-1]
    refused = image.run(None, "compare", options=("--volume", mount))
    assert refused.returncode == 3
    assert "Read-only file system" in lines(refused)[-1]
    out = tmp_path / "out"
    out.mkdir()
    project.hand_over(out)
    options = ("--volume", mount, "--volume", f"{out}:/out", "--read-only", "--tmpfs", "/tmp:exec", "--network", "none")
    done = image.run(None, "compare", "-k", "adding", "--out", "/out", options=options)
    assert done.returncode == 0, done.stderr
    assert (out / "report.json").is_file()
    assert project.owners(out) == {project.user}
    assert not project.out.exists()


def test_a_linked_worktree_needs_its_main_repository_at_the_same_path(image: Image, project: Project, tmp_path: Path):
    linked = tmp_path / "linked"
    project.repo.git("worktree", "add", "-q", "--detach", str(linked))
    project.hand_over(linked)
    refused = image.run(linked)
    assert refused.returncode == 2
    assert (
        str(project.root) in lines(refused)[-1] and "mount the main repository at the same path" in lines(refused)[-1]
    )
    done = image.run(linked, options=("--volume", f"{project.root}:{project.root}:ro"))
    assert done.returncode == 0, done.stderr
    assert "perfci: this tree is compared with main" in lines(done)
    assert project.owners(linked / "perfci-out") == {project.user}


def test_init_writes_files_of_the_caller(image: Image, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    user = os.getuid() or 1000
    if os.getuid() == 0:
        os.chown(folder, user, user)
    done = image.run(folder, "init")
    assert done.returncode == 0, done.stderr
    assert {path.stat().st_uid for path in folder.rglob("*")} == {user}
