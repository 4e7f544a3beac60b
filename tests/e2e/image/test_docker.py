"""`perfci docker`, whole: real containers of the image that test_image.py builds, inspected while they run."""
# ruff: noqa: F811  # arguments that are named after the fixtures that they take

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perfci.model.base import MachineError
from tests.e2e.conftest import adding, pairs, until
from tests.e2e.image.test_image import Image, Project, docker, image, project  # noqa: F401  # fixtures
from tests.e2e.test_two_users import BUILD, CALLS, EXTENSION
from tests.e2e.warm import Warm

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

CANARIES = {
    "A_TOKEN": "canary-of-the-host",
    "AWS_SECRET_ACCESS_KEY": "canary-of-the-host",
    "NO_COLOR": "canary-of-the-run",  # which it takes, and hands to nobody
    "LD_LIBRARY_PATH": "/canary-of-the-host",
}
SEVEN = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID"}


class Started:
    """One `perfci docker` on the host, and what the engine said meanwhile of the containers that it started."""

    def __init__(self, project: Project, image: Image, *words: str, env: dict[str, str] | None = None) -> None:
        self.mine = ("--filter", "label=perfci.started", "--filter", f"volume={project.out}")
        self.volume = f"label=perfci.started={project.out}"
        self.seen: dict[str, dict] = {}
        self.users: dict[str, set[str]] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perfci", "docker", "--image", image.name, *words],
            cwd=project.root, env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1", **(env or {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while self.process.poll() is None:
            for one in docker("ps", "--quiet", *self.mine, check=False).stdout.split():
                told = docker("inspect", one, check=False)
                top = docker("top", one, "-eo", "pid,uid,args", check=False)
                if told.returncode == 0:
                    [found] = json.loads(told.stdout)
                    phase = found["Config"]["Labels"]["perfci.started"]
                    self.seen[phase] = found
                    lines = top.stdout.splitlines()[1:]
                    self.users.setdefault(phase, set()).update(line.split(maxsplit=1)[1] for line in lines)
            time.sleep(0.2)

    def end(self, timeout: float = 240) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        self._watcher.join()
        assert docker("ps", "--all", "--quiet", *self.mine).stdout == "", "left behind"
        assert docker("volume", "ls", "--quiet", "--filter", self.volume).stdout == "", "left behind"
        return self.process.returncode, out, err


SUITE = """
import glob, os, socket, sys
assert os.listdir("/sys/class/net") == ["lo"], os.listdir("/sys/class/net")
print("STATUS", [line for line in open("/proc/self/status") if line.startswith(("Cap", "NoNewPrivs", "Uid"))], flush=True)
for name in glob.glob("/proc/[0-9]*/environ"):
    try:
        print("ENVIRON", name, open(name).read(), flush=True)
    except OSError as error:
        print("REFUSED", name, error.strerror, flush=True)
for name in ({root!r} + "/perfci.yaml", {out!r} + "/journal.jsonl", "/perfci-sides/prepared.json", "/usr/x", "/opt/perfci/x"):
    try:
        open(name, "a").write("bad")
        print("WROTE", name, flush=True)
    except OSError as error:
        print("REFUSED", name, error.strerror, flush=True)
assert not os.path.exists("/var/run/docker.sock")
"""
POLICY = """\
version: 1
suite: [kernels/*.py]
devices: [cpu]
budget: 40s
pass_env: [MY_SIZE]
build:
  - test -e /sys/class/net/eth0
  - test "$MY_SIZE" = 3
  - python3 build.py
limits: [{cases: "*", metric: time, regression: 50%}]
"""


def extension(project: Project) -> None:
    """A suite that calls a compiled extension, and tries what it may."""
    repo = project.repo
    texts = {"perfci.yaml": POLICY, "fast.c": EXTENSION, "build.py": BUILD, "kernels/totals.py": CALLS}
    for name, text in texts.items():
        repo.write(name, text)
    (project.root / "kernels" / "adding.py").unlink()
    with (project.root / "kernels" / "totals.py").open("a") as suite:
        suite.write(SUITE.format(root=str(project.root), out=str(project.out)))
    repo.commit()
    project.hand_over()


def test_what_is_built_with_a_network_is_measured_without(image: Image, project: Project, tmp_path: Path) -> None:
    extension(project)
    config = tmp_path / "config"
    config.mkdir()
    proxies = {"httpProxy": "http://canary-of-the-engine:1", "httpsProxy": "http://canary-of-the-engine:1"}
    (config / "config.json").write_text(json.dumps({"proxies": {"default": proxies}}))
    env = {**CANARIES, "DOCKER_CONFIG": str(config), "MY_SIZE": "3", "CFLAGS": "-O2"}
    run = Started(project, image, "compare", "--base", "HEAD", "--committed", env=env)
    code, out, err = run.end()
    assert code == 0, out + err
    assert "PASS" in out and "totals" in out
    assert "no GPU here, so perfci measures on the CPU" in err
    assert err.count("no GPU here") == 1, "building needs none"
    report = json.loads((project.out / "report.json").read_text())
    assert {row["class"] for row in report["rows"]} == {"unchanged"}
    results = json.loads((project.out / "results.json").read_text())
    assert results["command"][:2] == ["perfci", "docker"]
    assert "/perfci-sides" not in json.dumps(results["command"])
    assert results["sides"]["head"]["build_seconds"] > 0
    assert project.owners() == {project.user}
    assert project.owners(project.root / ".git") == {project.user}

    # what the containers were
    assert set(run.seen) == {"build", "measure"}
    for phase, found in run.seen.items():
        host, settings = found["HostConfig"], found["Config"]
        assert host["Privileged"] is False
        assert (host["CapDrop"], {one.removeprefix("CAP_") for one in host["CapAdd"]}) == (["ALL"], SEVEN)
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert host["ReadonlyRootfs"] is True
        assert host["NetworkMode"] == ("bridge" if phase == "build" else "none")
        assert host["PidsLimit"] == 8192 and 0 < host["Memory"] < 2**50
        assert not host["DeviceRequests"]
        mounts = {one["Destination"]: one for one in found["Mounts"]}
        assert set(mounts) == {str(project.root), str(project.out), "/perfci-sides", "/tmp/perfci-leases"}
        assert {where for where, one in mounts.items() if not one["RW"]} == {str(project.root)}
        assert "canary-of-the-host" not in json.dumps(settings)
        assert "canary-of-the-engine" not in json.dumps(found)
        assert {"MY_SIZE=3", "CFLAGS=-O2", "NO_COLOR=canary-of-the-run"} <= set(settings["Env"])
    # setpriv is the run itself, still root, until it has become what it starts
    started = [line for lines in run.users.values() for line in lines if "boot.py" in line]
    sides = [line for line in started if "setpriv --reuid" not in line]
    assert sides and {line.split()[0] for line in sides} == {str(project.user)}
    runs = [line for lines in run.users.values() for line in lines if " -m perfci " in line and "tini" not in line]
    assert runs and {line.split()[0] for line in runs} == {"0"}

    # what the code under test saw, which it wrote into its log
    log = (project.out / "logs" / "head.log").read_text()
    assert "WROTE" not in log
    for refused in ("perfci.yaml", "journal.jsonl", "prepared.json", "/usr/x", "/opt/perfci/x", "/proc/1/environ"):
        assert any(line.startswith("REFUSED") and refused in line for line in log.splitlines()), refused
    status = log[log.index("STATUS") :].splitlines()[0]
    assert f"Uid:\\t{project.user}\\t" in status
    assert all(f"Cap{name}:\\t0000000000000000" in status for name in ("Inh", "Prm", "Eff", "Bnd", "Amb"))
    assert "NoNewPrivs:\\t1" in status
    assert "MY_SIZE=3" in log
    written = [path for path in project.out.rglob("*") if path.is_file()]
    assert len(written) > 8
    assert [path for path in written if b"canary-of" in path.read_bytes()] == []


def test_exit_codes_are_perfcis(image: Image, project: Project) -> None:
    project.repo.write("perfci.yaml", "version: 1\nsuite: [kernels/*.py]\ndevices: [cpu]\nbudget: 30s\n"
                       "limits: [{cases: '*', metric: time, regression: 30%}]\n")  # fmt: skip
    project.repo.commit()
    project.repo.write("kernels/adding.py", adding(spin=20_000))
    project.hand_over()
    code, out, err = Started(project, image, "compare", "--quick", "--base", "HEAD").end()
    assert code == 1, out + err
    assert "FAIL" in out
    assert project.owners() == {project.user}

    code, out, err = Started(project, image, "compare", "--python", "/none", "--base", "HEAD").end()
    assert code == 2, out + err
    assert "/none" in err.splitlines()[-1]

    project.repo.write("perfci.yaml", "version: 1\nsuite: [kernels/*.py]\ndevices: [cpu]\nbuild: 'false'\n")
    project.hand_over()
    code, out, err = Started(project, image, "run").end()
    assert code == 3, out + err
    assert "head does not build" in err
    assert project.owners() == {project.user}


def test_sigterm_keeps_finished_pairs_and_resume_goes_on(image: Image, project: Project) -> None:
    limit = "limits: [{cases: '*', metric: time, regression: 0.1%}]\n"  # which no minute can decide
    project.repo.write("perfci.yaml", f"version: 1\nsuite: [kernels/*.py]\ndevices: [cpu]\nbudget: 3m\n{limit}")
    project.repo.commit()
    project.hand_over()
    run = Started(project, image, "compare", "--base", "HEAD", "--measure-all")
    journal = project.out / "journal.jsonl"
    until(run.process, lambda: len(pairs(journal)) >= 3)
    run.process.send_signal(signal.SIGTERM)
    code, out, err = run.end()
    assert code == 3, out + err  # 137 where the engine had to kill it
    assert "perfci: stopping: " in err and "go on with --resume" in err
    kept = len(pairs(journal))
    assert project.owners() == {project.user}
    run = Started(project, image, "compare", "--base", "HEAD", "--measure-all", "--resume", "--budget", "30s")
    code, out, err = run.end()
    assert code == 0, out + err
    assert len(pairs(journal)) > kept
    assert project.owners() == {project.user}


def test_list_and_doctor_take_one_container_and_leave_nothing(image: Image, project: Project) -> None:
    project.repo.write("perfci.yaml", "version: 1\nsuite: [kernels/*.py]\ndevices: [cpu]\n")
    project.hand_over()
    code, out, err = Started(project, image, "list", "--json").end()
    assert code == 0, out + err
    assert [case["case"] for case in json.loads(out)["cases"]] == ["adding"]
    assert project.owners() == {project.user}
    code, out, err = Started(project, image, "doctor", "--json").end()
    found = {one["name"]: one for one in json.loads(out)["findings"]}
    assert found["image"]["values"] == {"variant": "debian"}
    code, out, err = Started(project, Image("perfci:none", 0), "list").end()
    assert (code, out) == (2, "")
    assert err == (
        "perfci: image perfci:none: is not here: make it in a clone of perfci with `make image`, name another with "
        "--image, or fetch it with --pull\n"
    )
    code, out, err = Started(project, image, "list", "--help").end()
    assert code == 0 and "List the cases" in out


def test_what_the_engine_refuses_is_told(image: Image) -> None:
    from perfci.container.engine import Engine, UnknownCapabilityError

    given = {"image": image.name, "command": ["--version"]}
    with Engine.connect() as engine:
        with pytest.raises(UnknownCapabilityError, match="unknown capability"):
            engine.run({**given, "cap_add": ["NONE_SUCH"]})
        if not engine.gives_gpus():  # else it would give one
            with pytest.raises(MachineError, match="cannot give a GPU: install NVIDIA's container toolkit"):
                engine.run({**given, "device_requests": [{"capabilities": [["gpu"]], "count": -1}]})
        with pytest.raises(MachineError, match="ran out of memory"):
            engine.run({**given, "entrypoint": ["python3", "-c", "b'x' * (1 << 30)"], "mem_limit": 100 << 20})
        with pytest.raises(MachineError, match="ended with 7, which perfci never does"):
            engine.run({**given, "entrypoint": ["sh", "-c", "exit 7"]})
        ended = engine.run({**given, "entrypoint": ["sh", "-c", "echo 'perfci: last' >&2; sleep 1; exit 2"]})
        assert (ended.code, ended.line) == (2, "last")


FORK = {"full_name": "someone/r", "default_branch": "main"}


def test_the_action_measures_a_fork_in_the_image_that_it_names(image: Image, tmp_path: Path, warm: Warm) -> None:
    """Run and code in the container; no secret of the job is there, and the job's answer is as in place."""
    from tests.github.test_ci import CANARY, Hub

    hub = Hub(tmp_path, warm)
    text = "version: 1\nsuite: [kernels/*.py]\ndevices: [cpu]\npass_env: [HF_TOKEN]\nbudget: 30s\n"
    hub.repo.write("perfci.yaml", text + "limits: [{cases: '*', metric: time, regression: 40%}]\n")
    hub.repo.write("kernels/adding.py", adding())
    hub.repo.commit()
    spying = "import os\nprint('SEEN', dict(os.environ), flush=True)\n"
    hub.repo.write("kernels/adding.py", adding(spin=20_000) + spying)
    payload = hub.pull_request()
    payload["pull_request"]["head"]["repo"] = FORK
    checkout = hub.checkout(hub.merge)
    job = hub.job("pull_request", payload, hub.merge, checkout, container=image.name)
    assert job.code == 1, job.log
    assert (job.outputs["verdict"], job.outputs["regressions"]) == ("fail", "1")
    assert job.outputs["report-path"] == str(checkout / "perfci-out")
    results = json.loads((checkout / "perfci-out" / "results.json").read_text())
    verb, base, how = results["command"][1:4]
    assert (verb, base, how) == ("compare", results["sides"]["base"]["commit"], "--committed")
    assert "SEEN" in (checkout / "perfci-out" / "logs" / "head.log").read_text()
    assert [
        path
        for path in (checkout / "perfci-out").rglob("*")
        if path.is_file() and CANARY in path.read_text(errors="replace")
    ] == []
    assert "adding" in job.summary

    hub.repo.git("checkout", "-q", "main")
    hub.repo.write("perfci.yaml", text + "build: 'false'\n")
    sha = hub.repo.commit()
    subprocess.run(["rm", "-rf", checkout], check=True)
    job = hub.job("schedule", {"schedule": "17 3 * * *"}, sha, hub.checkout(sha, depth=1), container=image.name)
    assert job.code == 3, job.log
    assert "does not build" in job.annotations[0]
    assert job.outputs["artifact-name"] == ""
