"""Code under test as another user than the run, and sides that are built before they are measured."""

import gzip
import lzma
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from perfci.measure.profiling.collect import counting_parent
from perfci.profilers.base import Keep, ProfilerRequest
from perfci.profilers.ncu import module as ncu_module
from perfci.profilers.ncu.command import InstalledNcu
from perfci.profilers.ncu.profiler import Ncu, counters
from perfci.profilers.nsys import profiler as nsys_profiler
from perfci.profilers.nsys import trace as nsys
from perfci.profilers.nsys.command import InstalledNsys
from perfci.profilers.nsys.profiler import Nsys
from perfci.profilers.sass import profiler as sass
from perfci.profilers.torch import profiler as kineto_profiler
from perfci.profilers.torch import trace as kineto
from perfci.profilers.torch.profiler import NAME, Kineto
from perfci.system.child import Died, Exit
from perfci.system.process import Parent
from perfci.system.users import CAP_PERFMON, CAP_SYS_ADMIN, find_account, held

from .conftest import CANARY, GID, PLAIN_PYTHON, SYSTEM_PYTHON, UID, Repo, adding, as_root, until

DATA = Path(__file__).parents[1] / "data"


def policy(repo: Repo, text: str = "", python: str | None = SYSTEM_PYTHON) -> None:
    repo.policy(f"budget: 20s\nlimits: [{{cases: '*', metric: time, regression: 50%}}]\n{text}", python)


def logged(repo: Repo, name: str) -> str:
    return (repo.root / "perfci-out" / "logs" / name).read_text(errors="replace")


def living() -> list[int]:
    return [one.pid for one in psutil.process_iter(["uids"]) if one.info["uids"] and one.info["uids"].real == UID]


COMMAND = """
commands:
  - {name: counts, run: 'id -u; echo "{\\"metric\\": \\"time\\", \\"value\\": 0.01, \\"unit\\": \\"s\\"}" > "$PERFCI_METRICS"', reads: perfci}
build: id -u; echo built > "$PERFCI_SITE/built"; echo more > in-tree
"""


@as_root
@pytest.mark.slow
def test_a_comparison_ends_as_it_does_with_one_user(two_users: Repo) -> None:
    repo = two_users
    policy(repo, COMMAND)
    repo.write("kernels/adding.py", adding() + "import os\nprint('user', os.getuid(), open('in-tree').read())\n")
    repo.commit()
    repo.write("kernels/adding.py", (repo.root / "kernels" / "adding.py").read_text() + "# another\n")
    os.chown(repo.root, 4321, 4322)
    other = repo.perfci("compare", "--base", "HEAD", "--quick")
    assert other.code == 0, other.out + other.err
    assert {row["case"]: row["class"] for row in other.report["rows"]} == {"adding": "unchanged", "counts": "unchanged"}
    assert re.findall(r"(?m)^user (\d+) more", logged(repo, "head.log")), "it was imported from its own tree"
    for log in ("base.log", "head.log", "build-base.log", "build-head.log"):
        assert re.findall(r"(?m)^(?:user )?(\d+)\b", logged(repo, log)), log
        assert set(re.findall(r"(?m)^(?:user )?(\d+)\b", logged(repo, log))) == {str(UID)}
    for path in [repo.root / "perfci-out", *(repo.root / "perfci-out").rglob("*")]:
        assert (path.lstat().st_uid, path.lstat().st_gid) == (4321, 4322), path
    assert list((repo.root.parent / "t").glob("perfci-[0-9]*")) == []
    assert not any("ran as a user who may write" in note for note in other.report["notes"])
    assert other.report["verdict"] == "pass"


HOSTILE = """
import glob, os, subprocess, sys
def attempt(name, do):
    try:
        found = do()
    except OSError as error:
        print("ATTACK", name, "refused:", error.strerror, flush=True)
    else:
        print("ATTACK", name, "WORKED" if found is not False else "found nothing", flush=True)
def append(path):
    with open(path, "a") as file:
        file.write("bad")
def read(pattern):
    told = b"".join(open(path, "rb").read() for path in glob.glob(pattern) if readable(path))
    return b"{canary}" in told
def readable(path):
    return os.access(path, os.R_OK)
runner = os.getppid()
while os.stat("/proc/%d" % runner).st_uid == os.getuid():
    runner = int(open("/proc/%d/stat" % runner).read().rsplit(")", 1)[1].split()[1])
attempt("environ", lambda: open("/proc/%d/environ" % runner).read())
attempt("memory", lambda: open("/proc/%d/mem" % runner, "rb"))
attempt("descriptors", lambda: os.listdir("/proc/%d/fd" % runner))
attempt("any environ", lambda: read("/proc/[0-9]*/environ"))
attempt("kill", lambda: os.kill(runner, 9))
for name in ("journal.jsonl", "results.json", ".gitignore", "logs/base.log"):
    attempt(name, lambda: append("{out}/" + name))
attempt("plant a log", lambda: os.symlink("{out}/journal.jsonl", "{out}/logs/nsys-head-0.log"))
attempt("move outputs", lambda: os.rename("{out}", "{out}-gone"))
attempt("sources", lambda: append("{root}/kernels/adding.py"))
base = os.path.join(os.path.dirname(os.path.dirname(os.getcwd())), "base")
attempt("base's kernel", lambda: append(base + "/tree/kernels/adding.py"))
attempt("base's build", lambda: append(base + "/site/built"))
attempt("base's tree", lambda: os.rename(base + "/tree/kernels", base + "/tree/elsewhere"))
attempt("base's folder", lambda: os.rename(base + "/tree", base + "/elsewhere"))
attempt("its own kernel", lambda: append("kernels/adding.py"))
import socket
held = []
def impersonate():
    # of every worker to come it says that it is this process
    for number in range(1, 200):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].setblocking(False)
        held[-1].connect(os.path.dirname(base) + "/s")
        held[-1].sendall(b'{"hello": %d}\\n' % number)
attempt("impersonate", impersonate)
attempt("socket folder", lambda: os.listdir(os.path.dirname(base)))
if os.fork() == 0:
    import ctypes, time
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        time.sleep(600)
    os._exit(0)
"""


@pytest.mark.slow
@as_root
def test_hostile_code_reads_nothing_changes_nothing_and_leaves_nothing(two_users: Repo) -> None:
    repo = two_users
    secret = repo.root.parent / "secret"
    secret.write_text('{"metric": "time", "value": 0.001, "unit": "s"}\n')
    secret.chmod(0o600)
    line = '{\\"metric\\": \\"time\\", \\"value\\": 0.01, \\"unit\\": \\"s\\"}'
    command = "commands: [{{name: counts, run: '{}', reads: perfci}}]\nbuild: echo built > \"$PERFCI_SITE/built\"\n"
    policy(repo, command.format(f'echo "{line}" > "$PERFCI_METRICS"'))
    repo.write("kernels/adding.py", adding())
    repo.commit()
    before = (repo.root / "perfci.yaml").read_text()
    out = repo.root / "perfci-out"
    hostile = HOSTILE.replace("{out}", str(out)).replace("{root}", str(repo.root)).replace("{canary}", CANARY)
    (repo.root / "kernels" / "adding.py").write_text(adding() + hostile)
    policy(repo, command.format(f'ln -s {secret} "$PERFCI_METRICS"'))
    assert before != (repo.root / "perfci.yaml").read_text()
    run = repo.perfci("compare", "--base", "HEAD", "--quick")
    said = re.findall(r"(?m)^ATTACK .*$", logged(repo, "head.log"))
    assert len(set(said)) >= 15, logged(repo, "head.log")
    assert [line for line in said if "WORKED" in line and "impersonate" not in line] == []
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"adding": "unchanged", "counts": "failed"}
    assert "no such file" in run.reasons()["counts"], "the link was not followed"
    assert living() == []
    assert CANARY not in "".join(path.read_text(errors="replace") for path in out.rglob("*") if path.is_file())
    assert secret.stat().st_uid == 0


@pytest.mark.slow
@as_root
@pytest.mark.parametrize("tool", ["nsys", "ncu", "torch.profiler"])
def test_a_report_that_is_a_link_is_not_read(two_users: Repo, tmp_path: Path, tool: str) -> None:
    """Neither is what it leads to read, nor kept, nor written to; the export runs as the user, too."""
    secret, report = two_users.root.parent / "secret", two_users.root.parent / "report" / "r"
    secret.write_text(f"==ERROR== {CANARY}\n")
    secret.chmod(0o600)
    account = find_account(two_users.env)
    report.parent.mkdir()
    for suffix in (".nsys-rep", ".sqlite", ".log", ".ncu-rep", "-case.json.gz"):
        Path(f"{report}{suffix}").symlink_to(secret)
    account.give(report.parent)
    exports = two_users.root / "nsys"
    exports.write_text(f'#!/bin/sh\nid -u > {report.parent}/who\nfor last; do :; done\ncat "$last" > {report}.copy\n')
    exports.chmod(0o755)
    request = ProfilerRequest(1.0, keep=Keep(tmp_path, tmp_path), account=account)
    profilers = {
        "nsys": Nsys(InstalledNsys(exports, "2023.4.4", frozenset()), request, 1.0),
        "ncu": Ncu(InstalledNcu(Path("/bin/false"), "2024.1.1"), request, "", (), (), 1.0),
        "torch.profiler": Kineto(request, 1.0),
    }
    log = tmp_path / "log"
    log.touch()
    found = profilers[tool].read(report, ["case"], Exit(0, None, 1.0), log)
    assert not found.seen
    assert found.general or found.faults["case"]
    assert CANARY not in log.read_text() + repr(found)
    assert {path.name for path in tmp_path.iterdir()} == {"log"}
    assert secret.read_text() == f"==ERROR== {CANARY}\n"
    if tool == "nsys":
        assert (report.parent / "who").read_text() == f"{UID}\n"
        assert "Permission denied" in log.read_text()


@as_root
def test_machine_code_is_read_as_the_user(two_users: Repo) -> None:
    account, folder = find_account(two_users.env), two_users.root / "cache"
    two_users.root.chmod(0o755)
    (folder / "triton").mkdir(parents=True)
    account.give(folder)
    subprocess.run(
        [*account.prefix(), "sh", "-c", "printf 0123ELF > triton/a.cubin; ln -s /etc/shadow b.cubin; ln -s / up"],
        cwd=folder, check=True,
    )  # fmt: skip
    account.reclaim(folder)
    tool = two_users.root / "cuobjdump"
    tool.write_text('#!/bin/sh\necho read by $(id -u): $(cat "$3") $A_CANARY; exit 1\n')
    tool.chmod(0o755)
    _, left = sass.code([folder], tool, (9, 0), [], account)
    assert left == [f"a.cubin: cuobjdump exited with status 1: read by {UID}: 0123ELF"]


@pytest.mark.slow
@as_root
def test_a_report_of_ncu_is_read_as_the_user(two_users: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ncu's module and by ncu itself, which are native code over a file that the user wrote; nonsense is a fault."""
    account, home = find_account(two_users.env), two_users.root / "opt/nvidia/nsight-compute/2099.3.1"
    (home / "extras/python").mkdir(parents=True)
    for path in (two_users.root, *two_users.root.glob("opt/**/")):
        path.chmod(0o755)
    report = two_users.root / "r.ncu-rep"
    # Of a version that no other module here can be of.
    report.write_bytes(
        lzma.decompress((DATA / "ncu" / "ncu_base.ncu-rep.xz").read_bytes()).replace(b"2025.3", b"2099.3")
    )

    def read(python: str = str(SYSTEM_PYTHON), ncu: Path | None = None) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", python)
            patch.setattr(ncu_module, "modules", partial(ncu_module.copies, two_users.root))
            reading = counters(
                report, ranges=None, whole=True, names=["dram_bytes"], most=None, installed=ncu, account=account
            )
        assert not reading.seen
        return "; ".join(fault.text for fault in reading.general)

    assert "there is no ncu_report that works here" in read(), "there is no such module"
    for text, found in (
        ("def load_report(path): raise OSError(f'{path} is read by {os.getuid()}')", f"r.ncu-rep is read by {UID}"),
        ("os.write(3, b'[]'); os._exit(0)", "its reader answered nonsense"),
        ("os.kill(os.getpid(), 11)", "its reader died (SIGSEGV)"),
    ):
        (home / "extras/python/ncu_report.py").write_text(f"import os\n{text}\n")
        assert found in read()
    (home / "extras").chmod(0o700)
    assert "there is no ncu_report that works here" in read(), "the user cannot read it"
    (home / "extras").chmod(0o755)
    monkeypatch.setenv("A_CANARY", CANARY)
    own = two_users.root / "ncu"
    own.write_text('#!/bin/sh\ntouch "$HOME/section" && echo ==ERROR== read by $(id -u) $A_CANARY\nexit 1\n')
    own.chmod(0o755)
    shutil.rmtree(home)
    assert read(ncu=own).endswith(f"(read by {UID})"), "it has a home to write to, and no secret of perfci's"


@pytest.mark.slow
@as_root
def test_what_the_user_wrote_is_read_as_the_user(two_users: Repo, tmp_path: Path) -> None:
    """Timelines and traces: read and rewritten as that user, kept as this one's."""
    account, folder = find_account(two_users.env), two_users.root / "written"
    two_users.root.chmod(0o755)
    folder.mkdir()
    export, trace = folder / "x.sqlite", folder / "x.json.gz"
    export.write_bytes(lzma.decompress((DATA / "nsys" / "base.sqlite.xz").read_bytes()))
    trace.write_bytes(gzip.compress((DATA / "kineto" / "cuda.json").read_bytes()))
    account.give(folder)
    account.reclaim(folder)
    assert nsys_profiler.traces(export, None, account) == nsys.read(export, None)
    assert nsys_profiler.keep_export(export, tmp_path, account) == []
    found = kineto_profiler.traces({"a": trace}, NAME, "cuda", account, tmp_path)
    assert found == {"a": (kineto.read(trace, NAME), [])}
    kept = {path.name: path.stat().st_uid for path in tmp_path.iterdir()}
    assert kept == dict.fromkeys(("x.sqlite", "x.timeline.json.gz"), 0)
    trace.chmod(0o600)
    ((seen, faults),) = kineto_profiler.traces({"a": trace}, NAME, "cuda", account).values()
    assert seen is None and faults[0].text == "x.json.gz: cannot be read: Permission denied", "root's own is not read"


@pytest.mark.slow
@as_root
def test_what_counts_has_capabilities_that_nothing_else_has(two_users: Repo, tmp_path: Path) -> None:
    asked = [number for number in (CAP_PERFMON, CAP_SYS_ADMIN) if held([number])]
    if not asked:
        pytest.skip("this root has no capability to hand on")  # as in most containers
    scratch = two_users.root / "s"
    scratch.mkdir()
    before = psutil.Process().children()
    ordinary = Parent(str(SYSTEM_PYTHON), scratch, {}, account=find_account(two_users.env))
    try:
        told = {}
        with counting_parent(ordinary) as other:
            for name, parent in (("ordinary", ordinary), ("counting", other)):
                log = tmp_path / name
                parent.execute(["/bin/cat", "/proc/self/status"], env={}, cwd=scratch, log=log, timeout=20)
                told[name] = re.findall(r"Uid:\s*(\d+)|CapEff:\s*(\w+)|CapBnd:\s*(\w+)", log.read_text())
        started = [one for one in psutil.Process().children() if one not in before]
        left = [one for one in started if one.is_running() and one.status() != "zombie"]
        assert len(left) == 1, "the parent that counts is gone"
    finally:
        ordinary.close()
    bits = f"{sum(1 << number for number in asked):016x}"
    assert told["ordinary"] == [(str(UID), "", ""), ("", "0" * 16, ""), ("", "", "0" * 16)]
    assert told["counting"] == [(str(UID), "", ""), ("", bits, ""), ("", "", bits)]


@pytest.mark.slow
@as_root
def test_memory_of_the_other_user_is_limited(two_users: Repo, tmp_path: Path) -> None:
    scratch = two_users.root / "s"
    scratch.mkdir()
    parent = Parent(str(SYSTEM_PYTHON), scratch, {}, memory_limit=100 * 2**20, account=find_account(two_users.env))
    try:
        with pytest.raises(Died, match="GiB of memory, more than"):
            parent.execute(
                [str(SYSTEM_PYTHON), "-c", "import time; held = bytearray(b'x' * (300 << 20)); time.sleep(60)"],
                env={}, cwd=scratch, log=tmp_path / "log", timeout=50,
            )  # fmt: skip
        assert [one for one in living() if one != parent._process.pid] == []
    finally:
        parent.close()


@pytest.mark.slow
@as_root
def test_code_that_kills_what_started_it_gets_away_with_nothing(two_users: Repo) -> None:
    repo = two_users
    policy(repo)
    escape = """
import ctypes, os, signal, time
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    time.sleep(600)
time.sleep(0.2)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""
    repo.write("kernels/adding.py", adding())
    repo.commit()
    (repo.root / "kernels" / "adding.py").write_text(escape)
    run = repo.perfci("compare", "--base", "HEAD", "--quick")
    assert run.code == 3, run.out + run.err
    assert "the parent of the workers was killed" in run.err
    assert living() == []


@pytest.mark.slow
@as_root
def test_who_owns_the_sources_is_told_of(two_users: Repo) -> None:
    """Where the sources can be written by the code under test, the report says so; replaced outputs are found out."""
    repo = two_users
    policy(repo)
    swap = f"""
import os
if os.path.isdir("{repo.root}/perfci-out/logs"):
    os.rename("{repo.root}/perfci-out", "{repo.root}/gone")
    os.mkdir("{repo.root}/perfci-out")
"""
    repo.write("kernels/adding.py", adding())
    repo.commit()
    os.chown(repo.root, UID, GID)
    run = repo.perfci("run", "--quick")
    assert run.code == 0, run.out + run.err
    assert any(f"ran as a user who may write to {repo.root}" in note for note in run.report["notes"])
    (repo.root / "kernels" / "adding.py").write_text(adding() + swap)
    run = repo.perfci("run", "--quick")
    assert run.code == 3, run.out + run.err
    assert "something else in its place" in run.err
    assert not (repo.root / "perfci-out" / "report.json").exists()


EXTENSION = """
#include <Python.h>
static PyObject *total(PyObject *self, PyObject *n) {
    double sum = 0; long last = PyLong_AsLong(n);
    for (long i = 0; i < last; i++) sum += i * 0.5;
    return PyFloat_FromDouble(sum);
}
static PyMethodDef methods[] = {{"total", total, METH_O, ""}, {0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", "", -1, methods};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""
BUILD = """
import os, subprocess, sysconfig
include, site = sysconfig.get_paths()["include"], os.environ["PERFCI_SITE"]
subprocess.check_call(["cc", "-O1", "-shared", "-fPIC", "-I" + include, "fast.c", "-o", site + "/fast.so"])
"""
CALLS = """
import perfci
import fast

@perfci.kernel(devices=["cpu"])
def totals(bench):
    bench.reference(lambda: 0.25 * 200_000 * 199_999, rtol=1e-9, atol=0)
    return lambda: fast.total(200_000)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")  # which every host of GPU code has
def test_sides_are_built_first_and_measured_later(repo: Repo) -> None:
    """The second phase does without git; with each thing changed that must not change it is refused."""
    policy(repo, "build: python3 build.py\n", PLAIN_PYTHON)
    for name, text in (("fast.c", EXTENSION), ("build.py", BUILD), ("kernels/totals.py", CALLS)):
        repo.write(name, text)
    repo.commit()
    folder = repo.root.parent / "prepared"
    first = repo.perfci("compare", "--base", "HEAD", "--quick", "--prepare", str(folder))
    assert first.code == 0, first.out + first.err
    assert f"prepared base and head in {folder}" in first.err
    assert not (repo.root / "perfci-out" / "results.json").exists()
    (repo.root / ".git").rename(repo.root.parent / "git")
    second = repo.perfci("compare", "--base", "HEAD", "--quick", "--prepared", str(folder))
    assert second.code == 0, second.out + second.err
    assert second.report["measured"][0]["case"] == "totals"
    assert "building" not in second.err
    assert second.results["sides"]["base"]["commit"]
    assert second.results["sides"]["head"]["build_seconds"] > 0
    (repo.root.parent / "git").rename(repo.root / ".git")

    def refused(words: str, *args: str) -> None:
        run = repo.perfci(*(args or ("compare", "--base", "HEAD")), "--prepared", str(folder))
        assert run.code == 2, run.out + run.err
        assert words in run.err and len(run.err.strip().splitlines()) == 1, run.err

    refused("BASE has changed", "compare", "--base", "main")
    refused("give one", "compare", "--prepare", str(folder))
    (repo.root / "new.txt").write_text("new")
    refused("the working tree has changed")
    (repo.root / "new.txt").unlink()
    (folder / "head" / "site" / "fast.so").write_bytes(b"another")
    refused("head/site/fast.so has changed")
    (folder / "prepared.json").write_text("{")
    refused("prepared.json: is not of this perfci (its text)")
    (folder / "prepared.json").unlink()
    refused("prepare with --prepare first")


@pytest.mark.slow
@as_root
def test_an_interrupted_run_leaves_its_outputs_to_the_owner_of_the_sources(two_users: Repo) -> None:
    repo = two_users
    policy(repo)
    repo.write("kernels/adding.py", adding())
    repo.commit()
    os.chown(repo.root, 4321, 4322)
    out = repo.root / "perfci-out"
    process = repo.start("compare", "--base", "HEAD")
    until(process, lambda: (out / "samples.jsonl").exists() and (out / "samples.jsonl").stat().st_size)
    assert (out.stat().st_uid, (out / "journal.jsonl").stat().st_uid) == (0, 0)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert (out / "results.json").exists()
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in [out, *out.rglob("*")]} == {(4321, 4322)}
    assert living() == []


@pytest.mark.slow
@as_root
def test_sides_that_another_user_built_are_out_of_its_reach(two_users: Repo) -> None:
    """Head does not build: the second phase says so. What was built cannot be changed while it is measured."""
    repo = two_users
    policy(repo, 'build: echo built > "$PERFCI_SITE/built"\n')
    folder = repo.root.parent / "prepared"
    repo.write("kernels/adding.py", adding())
    repo.commit()
    policy(repo, f"build: echo bad >> {folder}/base/site/built || echo bad >> {folder}/prepared.json\n")
    first = repo.perfci("compare", "--base", "HEAD", "--quick", "--prepare", str(folder))
    assert first.code == 0, first.out + first.err
    assert "head does not build" in first.err
    assert logged(repo, "build-head.log").count("ermission denied") == 2
    assert (folder / "base" / "site" / "built").read_text() == "built\n"
    run = repo.perfci("compare", "--base", "HEAD", "--quick", "--prepared", str(folder))
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"adding": "failed"}
    assert "head does not build" in run.reasons()["adding"]
    done = subprocess.run(
        ["setpriv", "--reuid", str(UID), "--clear-groups", "sh", "-c", f"echo > {folder}/prepared.json"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
