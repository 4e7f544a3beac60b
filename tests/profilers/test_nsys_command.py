"""Running nsys: the tool and its options, real captures, what may be kept of them, and what went wrong."""

import itertools
import lzma
import os
import secrets as randomness
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from perfci.model.base import MachineError
from perfci.model.profile import Fault
from perfci.profilers.nsys import command as nsys_command
from perfci.profilers.nsys.command import (
    InstalledNsys,
    candidates,
    classify,
    export_command,
    find,
    probe,
    profile_command,
)
from perfci.profilers.nsys.origin import behind
from perfci.profilers.nsys.privacy import environment, isolate, isolation, scrub
from perfci.profilers.nsys.trace import read
from perfci.profilers.scan import contains, secrets
from tests.system.machines import program, says

from .test_nsys import CASES, DATA, PID, Export

# ---------------------------------------------------------------- which nsys

HELP = """
usage: nsys profile [<args>] [application] [<application args>]

\t-c, --capture-range=

\t   Possible values are none, cudaProfilerApi, nvtx, hotkey.

\t(Deprecated) --event-sampling-frequency=

\t-o, --output=

\t-t, --trace=

\t   Select the API(s) to trace. See '--not-a-flag=1'.
"""


def install(path, script=None):
    """A program that answers as nsys does."""
    version, usage = says("NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0\n"), says(HELP)
    program(path.parent, path.name, script or f'case "$1" in\n--version) {version} ;;\nprofile) {usage} ;;\nesac')
    return path


def test_an_nsys_tells_its_version_and_its_options(tmp_path):
    path = install(tmp_path / "nsys")
    options = frozenset({"capture-range", "event-sampling-frequency", "output", "trace"})
    assert probe(path, {"PATH": "/usr/bin:/bin"}) == InstalledNsys(path, "2023.4.4.54", options)


def test_the_one_on_the_path_goes_before_nvidias_folders_and_those_by_version(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_command, "_PLACES", (f"{tmp_path}/opt/nsight-systems-cli/*/bin/nsys",))
    old, new = (install(tmp_path / f"opt/nsight-systems-cli/{v}/bin/nsys") for v in ("2025.1.3", "2025.10.1"))
    assert candidates({"PATH": str(tmp_path / "nothing")}) == [new, old]
    mine = install(tmp_path / "bin" / "nsys")
    environ = {"PATH": f"{mine.parent}:/usr/bin:/bin"}
    assert candidates(environ) == [mine, new, old]
    assert find(environ).path == mine


def test_a_toolkits_placeholder_is_passed_over(tmp_path, monkeypatch):
    """CUDA's bin folder holds a script of this name where nsys is not installed."""
    monkeypatch.setattr(nsys_command, "_PLACES", (f"{tmp_path}/opt/nsys",))
    empty = install(tmp_path / "bin" / "nsys", 'echo "==ERROR== Nsight Systems package not found"; exit 1')
    environ = {"PATH": f"{empty.parent}:/usr/bin:/bin"}
    fault = find(environ)
    assert (fault.kind, fault.tool) == ("absent", "nsys") and "package not found" in fault.text and fault.remedy
    assert find(environ | {"PATH": "/nothing"}).text == "nsys is not installed"
    good = install(tmp_path / "opt" / "nsys")
    assert find(environ).path == good


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("exec sleep 30", "timeout"),
        ('test "$1" = --version && echo "NVIDIA Nsight Systems version 2025.1.3.140-1v0"; exit 1', "incompatible"),
        ("kill -SEGV $$", "absent"),
    ],
)
def test_an_nsys_that_does_not_answer(tmp_path, monkeypatch, script, kind):
    monkeypatch.setattr(nsys_command, "PROBE_TIMEOUT", 0.5)
    fault = probe(install(tmp_path / "nsys", script), {"PATH": "/usr/bin:/bin"})
    assert isinstance(fault, Fault) and fault.kind == kind and "\n" not in fault.text and fault.remedy
    assert probe(tmp_path, {}).kind == "crash"


def options(command):
    """Options of a command line, and what follows them."""
    given = [word for word in command[2:] if word.startswith("--")]
    return {word.split("=", 1)[0][2:]: word.split("=", 1)[1] for word in given}, command[2 + len(given) :]


ALL = frozenset({
    "trace", "sample", "cpuctxsw", "backtrace", "cuda-graph-trace", "cuda-event-trace", "capture-range",
    "capture-range-end", "duration", "kill", "wait", "resolve-symbols", "discard-environment", "stats",
    "force-overwrite", "output", "cuda-memory-usage", "osrt-backtrace-threshold",
})  # fmt: skip


def test_command_lines():
    nsys = InstalledNsys(Path("/n"), "2025.3.1.90", ALL)
    argv = ["python", "-c", "--trace=x"]
    common = {"sample": "none", "cpuctxsw": "none", "backtrace": "none", "wait": "primary", "resolve-symbols": "false", "discard-environment": "true", "stats": "false", "force-overwrite": "true", "output": "o.nsys-rep"}  # fmt: skip
    gpu = common | {"trace": "cuda,nvtx", "cuda-graph-trace": "node", "cuda-event-trace": "false"}
    ranged = gpu | {"capture-range": "cudaProfilerApi", "capture-range-end": "stop", "kill": "none"}

    def made(**more):
        command = profile_command(nsys, Path("o.nsys-rep"), argv, **more)
        assert command[:2] == ["/n", "profile"] and command[-3:] == argv
        return options(command[:-3])[0]

    assert made(cuda=True, capture_range=True) == ranged
    assert made(cuda=True, capture_range=False, duration=30) == gpu | {"duration": "30", "kill": "none"}
    osrt = {"osrt-backtrace-threshold": str(2**31 - 1)}
    whole = {"cuda": True, "capture_range": False}
    assert made(**whole, more=("osrt",)) == gpu | osrt | {"trace": "cuda,nvtx,osrt"}
    assert made(**whole, more=("memory",)) == gpu | {"cuda-memory-usage": "true"}
    assert made(cuda=False, capture_range=False, more=("osrt", "memory")) == common | osrt | {"trace": "nvtx,osrt"}
    assert made(cuda=False, capture_range=True) == common | {"trace": "nvtx"}  # that range would never open
    with pytest.raises(ValueError, match="nothing to profile"):
        profile_command(nsys, Path("o"), [], cuda=True, capture_range=True)
    old = InstalledNsys(Path("/n"), "2022.2.1", frozenset({"trace", "output"}))
    assert profile_command(old, Path("o"), ["x"], cuda=True, capture_range=True) == ["/n", "profile", "--trace=cuda,nvtx", "--output=o", "x"]  # fmt: skip
    assert export_command(old, Path("a.nsys-rep"), Path("a.sqlite")) == ["/n", "export", "--type=sqlite", "--force-overwrite=true", "--output=a.sqlite", "a.nsys-rep"]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "driver", "lags"),
    [
        ("2023.4.4.54", "13.0", True),  # seen to lose events
        ("2025.3.2.474", "13.0", False),
        ("2025.3.2.474", "13.4", False),
        ("2025.1.3.140", "13.1", True),
        ("2023.4.4.54", "12.9", False),
        ("2023.4.4.54", "", False),
        ("2021.1.0", "13.0", False),
        ("2031.1.0", "14.0", False),  # newer than those that are known here
    ],
)
def test_an_nsys_of_an_older_cuda_than_the_driver_is_told(version, driver, lags):
    assert bool(behind(version, driver)) is lags


# ---------------------------------------------------------------- environment, secrets


def test_profiled_processes_get_what_is_allowed():
    kept = {
        "PATH": "/bin", "HOME": "/h", "LD_LIBRARY_PATH": "/l", "CUDA_VISIBLE_DEVICES": "0", "TRITON_CACHE_DIR": "/t",
        "CUDA_CACHE_PATH": "/c", "TORCHINDUCTOR_CACHE_DIR": "/i", "PERFCI_SITE": "/s", "OMP_NUM_THREADS": "4",
        "PYTHONPATH": "/p", "OMP_WAIT_POLICY": "PASSIVE", "TMPDIR": "/tmp", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    lost = {
        "GITHUB_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x", "PERFCI_TOKEN": "x", "CUDA_API_KEY": "x",
        "PIP_INDEX_URL": "https://u:p@host/", "SSH_AUTH_SOCK": "/x", "SOMETHING": "else", "https_proxy": "http://a:b@c",
        "TORCH_HOME": "https://user:secret@host/x",
    }  # fmt: skip
    assert environment(kept | lost) == kept | {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    written = {"SOMETHING": "else", "HF_TOKEN": "x", "PIP_INDEX_URL": "https://u:p@host/", "GITHUB_TOKEN": "other"}
    assert "SOMETHING" not in environment(lost, [("SOMETHING", "y")])
    assert environment(lost, written.items()).keys() == {"SOMETHING", "NSYS_NVTX_PROFILER_REGISTER_ONLY"}


@contextmanager
def sibling(**variables):
    process = subprocess.Popen(["sleep", "120"], env={"PATH": os.environ["PATH"], **variables})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_isolation_says_what_holds():
    found = isolation()
    assert found.text and "\n" not in found.text and found.holds == bool(found.prefix)
    assert isolate(["nsys", "x"]) == [*found.prefix, "nsys", "x"]
    if not found.holds:
        pytest.skip(f"needs a PID namespace: {found.text}")  # some containers forbid them

    def run(script):
        return subprocess.run(isolate(["/bin/sh", "-c", script]), capture_output=True, text=True, check=False)

    with sibling(CANARY="value-" + "x" * 20):
        seen = run("cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -c CANARY; ls -d /proc/[0-9]* | wc -l")
    variables, processes = map(int, seen.stdout.split())
    assert variables == 0 and processes < 10
    assert [run(f"exit {code}").returncode for code in (0, 7)] == [0, 7]


def test_what_is_left_dies_with_the_namespace():
    if not isolation().holds:
        pytest.skip(f"needs a PID namespace: {isolation().text}")  # as above
    daemon = ["sleep", f"31.{randomness.randbelow(10**9)}"]

    def alive():
        return any(process.info["cmdline"] == daemon for process in psutil.process_iter(["cmdline"]))

    process = subprocess.Popen(isolate(["/bin/sh", "-c", f"setsid {' '.join(daemon)} & wait"]), start_new_session=True)
    try:
        while not alive():
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while alive():
        assert time.monotonic() < deadline, "a daemon outlived its namespace"
        time.sleep(0.05)


# ---------------------------------------------------------------- scrubbing


def leaky(path):
    """An export with a secret in every place where nsys 2023.4 was seen to put one, and in the columns of events."""
    export = Export(path)
    export.push("a", 100, 200)
    export.launch("kernel", 110, 1)
    export.string("A=1\0CANARY=hidden-value-1\0")
    export.string("CUPTI dropped 3 records. Some CUPTI events might be missing.")
    printed = export.string("the program printed hidden-value-2")
    export.add("ProcessStreams", globalPid=1, filenameId=printed, contentId=printed)
    for name, value in {
        "PROCESS_0:ENVIRONMENT_VARIABLE": 'X="hidden-value-3"', "PROCESS_0:ARGUMENT_2": "--token=hidden-value-4",
        "PROCESS_0:USER_NAME": "hidden-value-5", "RATE_HZ": "0",
    }.items():  # fmt: skip
        export.add("META_DATA_CAPTURE", name=name, value=value)
    export.add("META_DATA_EXPORT", name="EXPORT_HOST", value="hidden-value-6")
    export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value="T=hidden-value-7;A=b")
    export.add("TARGET_INFO_SYSTEM_ENV", name="CpuCores", value="2")
    export.add("PROCESSES", globalPid=PID, pid=23, name="python")
    export.add("PROCESSES", globalPid=99 << 24, pid=99, name="hidden-value-8")
    export.add("TARGET_ENVIRONMENT_2030", v="hidden-value-9")
    where, db = export.string("/home/hidden-value-10/lib.so"), export.db
    db.execute(
        "CREATE TABLE OSRT_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER /* REFERENCES StringIds(id) */)"
    )
    db.execute("INSERT INTO OSRT_CALLCHAINS VALUES (1, ?, ?)", (where, where))
    db.commit()
    return export


def test_a_scrubbed_export_tells_the_same_and_nothing_else(tmp_path):
    export = leaky(tmp_path / "x.sqlite")
    before = export.read()
    export.db.close()
    values = {str(i): f"hidden-value-{i}" for i in range(1, 11)}
    assert contains(export.path, values) == sorted(values)
    copy = tmp_path / "copy.sqlite"
    scrub(export.path, copy)
    assert contains(copy, values) == [] and contains(export.path, values) == sorted(values)
    assert read(copy, ["a"]) == before and before.general[0].text.startswith("nsys says: CUPTI dropped 3")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.sqlite", "x.sqlite"]
    db = sqlite3.connect(copy)
    kept = [name for (name,) in db.execute("SELECT name FROM META_DATA_CAPTURE")]
    assert kept == ["PROCESS_0:COLLECT_CUDA_TRACE", "RATE_HZ"]
    assert db.execute("SELECT name FROM PROCESSES").fetchall() == [("python",)]


@pytest.mark.parametrize("side", ["base", "head"])
def test_scrubbing_keeps_every_event_of_a_real_export(recorded, tmp_path, side):
    path = recorded[side]
    before, copy = (read(path, CASES), read(path, None)), tmp_path / "copy.sqlite"
    scrub(path, copy)
    assert (read(copy, CASES), read(copy, None)) == before


def test_what_cannot_be_scrubbed_is_said(tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"SQLite format 3\0" + bytes(5000))
    with pytest.raises(MachineError, match=r"cannot be scrubbed .*: do not publish it"):
        scrub(path, tmp_path / "copy.sqlite")
    assert path.read_bytes()[:15] == b"SQLite format 3" and [p.name for p in tmp_path.iterdir()] == ["x.sqlite"]
    with pytest.raises(MachineError, match="cannot be scrubbed: No such file"):
        scrub(tmp_path / "none.sqlite", tmp_path / "copy.sqlite")


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TRIGGER again AFTER DELETE ON StringIds BEGIN INSERT INTO PROCESSES VALUES (1, 1, old.value); END",
        "CREATE VIEW NVTX_RANGES AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    ],
)
def test_a_program_in_an_export_is_not_run(tmp_path, made):
    export = leaky(tmp_path / "x.sqlite")
    export.db.execute(made)
    export.db.commit()
    export.db.close()
    with pytest.raises(MachineError, match="which is no table"):
        scrub(export.path, tmp_path / "copy.sqlite")
    assert not (tmp_path / "copy.sqlite").exists()


# ---------------------------------------------------------------- what went wrong


@pytest.mark.parametrize(
    ("code", "log", "kind", "says"),
    [
        (1, "unrecognised option '--nonsense=1'\n\nusage: nsys profile", "incompatible", "unrecognised option"),
        (1, "Executable not found in current directory or standard search paths\n", "crash", "Executable not found"),
        (1, "std::exception::what: boost::filesystem::temp_directory_path: Not a directory", "forbidden", "temp_directory_path"),
        (0, "Failed to create '/x/c6.nsys-rep': No such file or directory.\nGenerated:\n", "forbidden", "Failed to create"),
        (1, "Report was created in Nsight Systems version (2026), newer than your current version", "incompatible", "newer"),
        (1, "Exportation error: Section Table Reference magic number mismatch.", "unreadable", "Exportation error"),
        (0, "A client is already subscribed to CUPTI. CUPTI does not support", "busy", "already subscribed"),
        (1, "unshare: unshare failed: Operation not permitted", "forbidden", "unshare failed"),
        (3, "Traceback\nValueError: x\n[1/1] [==100%] r.nsys-rep\nGenerated:\n    /tmp/r.nsys-rep\n", "crash", "status 3, saying: ValueError: x"),
        (139, "", "crash", "killed by signal 11"),
        (0, "Generated:\n", "empty", "wrote no x.nsys-rep"),
    ],
)  # fmt: skip
def test_failures_have_a_kind_and_a_remedy(tmp_path, code, log, kind, says):
    fault = classify(code, log, tmp_path / "x.nsys-rep")
    assert fault.kind == kind and says in fault.text and fault.remedy and "\n" not in fault.text


def test_success_needs_an_output(tmp_path):
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(b"")
    assert classify(0, "", path).kind == "empty"
    path.write_bytes(b"x")
    assert classify(0, "", path) is None
    assert classify(3, "", path).kind == "crash"
    fault = classify(0, "std::exception::what: Unknown runtime API function index: 468\nGenerated:", path)
    assert fault.kind == "incomplete" and "468" in fault.text, "it ends well, and what followed is lost"
    assert classify(None, "", path, signal=9).text == "nsys or the program under it was killed by signal 9"
    assert classify(None, "", path, timed_out=True).kind == "timeout"


# ---------------------------------------------------------------- real captures

PROGRAM = """
import time
import nvtx

def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

now = time.perf_counter
for name, seconds in (("perfci-0-short", 0.01), ("perfci-1-long", 0.03)):
    shorter = longer = inner = 0.0
    whole = now()
    for number in range(5):
        nvtx.push_range(name{domain})
        begun = begun if number else now()
        work(seconds / 2)
        before = now()
        nvtx.push_range("inner")
        since = now()
        work(seconds / 2)
        shorter += now() - since
        nvtx.pop_range()
        longer += now() - before
        inner = now() - begun
        nvtx.pop_range({pop})
    print(name, inner / 5, (now() - whole) / 5, shorter / 5, longer / 5)
"""


@pytest.fixture(scope="module")
def nsys():
    path = os.environ.get("PERFCI_TEST_NSYS")
    found = probe(Path(path), os.environ) if path else find()
    if isinstance(found, Fault):
        pytest.skip(f"needs nsys on PATH or in PERFCI_TEST_NSYS: {found.text}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The `nvtx` package in a folder of its own, of a version whose ranges every nsys records."""
    folder = tmp_path_factory.mktemp("nvtx")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "nvtx==0.2.11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        pytest.skip(f"needs nvtx 0.2.11 from the package index: {done.stderr.strip().splitlines()[-1:]}")
    return folder


def exported(nsys, report, export, **how):
    """The fault of exporting a report."""
    done = subprocess.run(export_command(nsys, report, export), capture_output=True, text=True, check=False, **how)
    return classify(done.returncode, done.stdout + done.stderr, export)


def capture(nsys, folder, name, site, *, isolated=True, domain=True):
    """Profile the program and export: the report, the export, what was printed."""
    source = folder / f"{name}.py"
    source.write_text(PROGRAM.format(domain=', domain="perfci"' * domain, pop='domain="perfci"' * domain))
    report, export = folder / f"{name}.nsys-rep", folder / f"{name}.sqlite"
    temporary = folder / f"{name}.tmp"
    temporary.mkdir()
    env = environment({**os.environ, "PYTHONPATH": str(site), "TMPDIR": str(temporary)})
    for _ in range(5):  # on a busy machine nsys may lose its own agent, and the report with it, but not the session
        command = profile_command(nsys, report, [sys.executable, str(source)], cuda=False, capture_range=True)
        done = subprocess.run(
            isolate(command) if isolated else command, env=env, cwd=folder, check=False, text=True, timeout=120,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if "Connection to Agent lost" not in done.stdout and "Local Endpoint is not available" not in done.stdout:
            break
    assert classify(done.returncode, done.stdout, report) is None, done.stdout
    assert exported(nsys, report, export, env=env) is None
    return report, export, done.stdout


NAMES = ["perfci-0-short", "perfci-1-long"]


@pytest.mark.nsys
@pytest.mark.parametrize("domain", [True, False])
@pytest.mark.slow
def test_a_real_capture_finds_the_ranges_and_their_times(nsys, site, tmp_path, domain):
    _, export, printed = capture(nsys, tmp_path, "a", site, domain=domain)
    reading = read(export, NAMES)
    assert reading.faults == {} and reading.general == []
    said = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.startswith("perfci-")}
    for name in NAMES:
        trace = reading.seen[name]
        assert trace.executions == 5 and trace.version == nsys.version and trace.kernels == []
        # The program's clock just within a range and just around it: between them lies what nsys saw, on any machine.
        least, most, inner_least, inner_most = (
            seconds * by for seconds, by in zip(map(float, said[name]), (0.99, 1.01) * 2, strict=True)
        )
        assert least <= trace.wall <= most
        (inner,) = trace.ranges
        assert (inner.name, inner.count, inner.device) == ("inner", 1, 0)
        assert inner_least <= inner.host <= inner_most
    (whole,) = read(export, None).seen.values()
    assert whole.wall >= 5 * sum(trace.wall for trace in reading.seen.values())


@pytest.mark.slow
@pytest.mark.nsys
def test_failures_of_the_nsys_at_hand(nsys, tmp_path):
    def run(*argv, output=None, **env):
        report = output or tmp_path / "f.nsys-rep"
        command = profile_command(nsys, report, argv, cuda=False, capture_range=False)
        done = subprocess.run(command, env=environment(os.environ) | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)  # fmt: skip
        fault = classify(done.returncode, done.stdout, report)
        return fault and (fault.kind, fault.text)

    # nsys itself loses the report of a program that ends at once, now and then on a busy machine.
    faults = list(itertools.takewhile(bool, (run("/bin/true") for _ in range(5))))
    assert len(faults) < 5, faults
    assert run("/nonexistent/program")[0] == "crash"
    assert run("/bin/sh", "-c", "echo broken; exit 3") == ("crash", "the program under nsys, or nsys itself, exited with status 3, saying: broken")  # fmt: skip
    assert "killed by signal 11" in run("/bin/sh", "-c", "kill -SEGV $$")[1]
    assert run("/bin/true", output=tmp_path / "none" / "x.nsys-rep")[0] == "forbidden"
    assert run("/bin/true", output=tmp_path / "y.nsys-rep", TMPDIR="/nonexistent")[0] == "forbidden"
    junk = tmp_path / "junk.nsys-rep"
    junk.write_bytes(b"junk" * 100)
    assert exported(nsys, junk, tmp_path / "j.sqlite").kind == "unreadable"


@pytest.mark.slow
@pytest.mark.nsys
def test_the_canary_of_a_sibling_process_is_in_no_artifact(nsys, site, tmp_path, monkeypatch):
    """And, so that this can fail: without isolation, as root, nsys writes it into report and export."""
    held = {name: "canary-" + randomness.token_hex(16) for name in ("SIBLING", "OWN")}
    monkeypatch.setenv("CANARY_OWN_TOKEN", held["OWN"])
    assert secrets(os.environ)["CANARY_OWN_TOKEN"] == held["OWN"]
    with sibling(CANARY_TOKEN=held["SIBLING"]):
        for isolated in (True, False) if isolation().holds else (False,):
            report, export, _ = capture(nsys, tmp_path, f"isolated-{isolated}", site, isolated=isolated)
            if isolated or os.geteuid() == 0:
                seen = [] if isolated else ["SIBLING"]
                assert contains(export, held) == seen and contains(report, held) == seen
            scrub(export, copy := tmp_path / f"scrubbed-{isolated}.sqlite")
            assert contains(copy, held) == [] and len(read(copy, NAMES).seen) == 2
    if not isolation().holds:
        pytest.skip(f"needs a PID namespace for its first half: {isolation().text}")


def test_the_fixtures_hold_nothing_of_the_machine_they_are_from():
    for path in (DATA / "base.sqlite.xz", DATA / "head.sqlite.xz"):
        content = lzma.decompress(path.read_bytes())
        assert not [word for word in (b"HOME=", b"LD_LIBRARY_PATH", b"/tmp/", b"/opt/") if word in content], path.name
