"""Commands under profilers: one execution of the whole process, its limits, and what of it is a case's."""

import lzma
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from perfci.measure.commands.readers.base import Reported
from perfci.measure.place import Place
from perfci.measure.profiling import commands as whole
from perfci.measure.profiling.collect import Profilers, find_profilers, observe
from perfci.measure.profiling.commands import profile_command
from perfci.measure.request import How
from perfci.model.plan import Plan
from perfci.model.policy import Command
from perfci.model.profile import Fault
from perfci.model.results import Case
from perfci.profilers.base import Keep, ProfilerRequest
from perfci.profilers.ncu.command import InstalledNcu
from perfci.profilers.ncu.profiler import Ncu
from perfci.profilers.nsys import command as nsys_command
from perfci.profilers.nsys.command import InstalledNsys, probe
from perfci.profilers.nsys.profiler import Nsys
from perfci.profilers.torch.profiler import Kineto
from tests.judge.build import limit

from .opened import opened, request_of

DATA = Path(__file__).parent.parent / "data"
APP = """
    import os, sys, time
    import nvtx

    for _ in range(int(sys.argv[1])):
        nvtx.push_range("step")
        time.sleep(0.02)
        nvtx.push_range("inner")
        time.sleep(0.02)
        nvtx.pop_range()
        nvtx.pop_range()
    print("token:", os.environ.get("A_TOKEN"))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A tree measured alone, whose commands the tests give; by the plain interpreter, which starts fast."""
    root = tmp_path / "repo"
    root.mkdir()
    (root / "app.py").write_text(dedent(APP))
    (root / "perfci.yaml").write_text(
        "version: 1\ncommands: [{name: app, run: 'true'}]\ntimeout: 20s\nenv: {A_TOKEN: canary}\n"
    )
    with opened(request_of(root)) as made:
        yield made


@pytest.mark.parametrize("profile", [False, True])
def test_reports_lie_in_a_folder_of_their_own_which_holds_no_other_run_s(place, tmp_path, profile):
    """Not even where the tree brings a link in its place; and a profile without them keeps none of before."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (out / "profile").mkdir(parents=True)
    (out / "profile" / "old").touch()
    (out / "raw").symlink_to(elsewhere)
    plan = Plan(seed=1, sides=["head"], judged=not profile)
    keep = find_profilers(place, plan, How(raw=True), out).found[Kineto].request.keep
    assert keep == Keep(out / "profile" if profile else None, out / "raw", handed_on=not profile)
    assert (out / "raw").is_dir() and not (out / "raw").is_symlink() and list((out / "raw").iterdir()) == []
    assert (out / "profile" / "old").exists() is not profile
    (out / "raw" / "old.ncu-rep").touch()
    find_profilers(place, plan, How(), out)
    assert (out / "raw").exists() is not profile
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]


def form(run: str, **fields) -> Command:
    return Command(name="app", run=run, **fields)


def cases_of(place: Place, command: Command, *names: str) -> list[Case]:
    """The cases that a first execution would have found, and the sides' policies with this command in them."""
    for side in place.sides.values():
        side.policy = side.policy.model_copy(update={"commands": [command]})
    found = {name: {one: Reported(one, {"time": [1.0]}) for one in names} for name in place.sides}
    place.runner.cases["app"] = len(names)
    return place.runner._cases("app", command.device, found)


def profiled(place: Place, command: Command, profiler):
    cases = cases_of(place, command, "app")
    (found,) = profile_command(
        place.runner, "head", command, cases, profiler, place.parent.scratch / "profile"
    ).values()
    return found


def recorded(place: Place, command: Command, nsys: Nsys):
    """By a real nsys, which may not reach its own agent in time, as on a machine that has no core for it."""
    for _ in range(5):
        found = profiled(place, command, nsys)
        if not any(fault.tool == "nsys" and fault.kind in ("crash", "empty") for fault in found.faults):
            break
        print((place.runner.logs / "nsys-head-app.log").read_text())
        time.sleep(1.0)
    return found


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + dedent(text))
    path.chmod(0o755)
    return path


def fake_nsys(path: Path, profile: str, export: str = "exit 1") -> Nsys:
    """An nsys whose `profile` and `export` are shell: in them `$out` is what it was told to write."""
    program = script(
        path,
        f"""
        verb=$1
        for word in "$@"; do case "$word" in --output=*) out=${{word#--output=}};; esac; done
        if [ "$verb" = export ]; then {export}; exit; fi
        {profile}
        """,
    )
    flags = frozenset({"trace", "output", "duration", "kill", "capture-range"})
    return Nsys(InstalledNsys(program, "2025.1.1", flags), ProfilerRequest(60.0), 60.0, whole=True)


def fake_ncu(path: Path, text: str) -> Ncu:
    """An ncu whose work is shell: in it `$out` is the report and `$log` the log that it was told to write."""
    program = script(
        path,
        f"""
        echo "$@" > {path}.args
        while [ $# -gt 0 ]; do
            case "$1" in --export) out=$2;; --log-file) log=$2;; esac
            shift
        done
        {text}
        """,
    )
    return Ncu(
        InstalledNcu(program, "2025.3.1"),
        ProfilerRequest(60.0),
        "gh100",
        ("dram_bytes", "registers"),
        (),
        60.0,
        whole=True,
    )


# ---------------------------------------------------------------- a real nsys


@pytest.fixture(scope="module")
def nsys() -> Nsys:
    pytest.importorskip("nvtx")  # the case pushes ranges with it
    installed = probe(Path(os.environ.get("PERFCI_TEST_NSYS") or "nsys"), os.environ)
    if not isinstance(installed, InstalledNsys):
        pytest.skip(f"needs nsys: {installed.text}")  # no package index has it
    return Nsys(installed, ProfilerRequest(60.0), 60.0, cuda=False, whole=True)


@pytest.mark.nsys
def test_nsys_sees_the_whole_process(place, nsys):
    found = recorded(place, form(f"{sys.executable} app.py 5"), nsys)
    assert found.faults == [] and found.seen is not None
    assert found.seen.executions == 1 and found.seen.wall > 0.2
    ranges = {one.name: one for one in found.seen.ranges}
    assert {name: one.count for name, one in ranges.items()} == {"step": 5, "step/inner": 5}
    assert ranges["step"].host == pytest.approx(0.2, rel=0.2)
    assert "token: None" in (place.runner.logs / "nsys-head-app.log").read_text()


@pytest.mark.nsys
def test_nsys_sees_the_loop_without_its_warm_up(place, nsys):
    command = form(f"{sys.executable} app.py 5", range="step", skip=2)
    found = recorded(place, command, nsys.for_command("cpu", 20.0, command))
    assert found.faults == [] and found.seen is not None
    assert (found.seen.within, found.seen.executions) == ("step", 3)
    assert 0.04 <= found.seen.wall < 0.2
    assert [(one.name, one.count) for one in found.seen.ranges] == [("inner", 1)]
    assert found.seen.os_calls == [], "unasked"


@pytest.mark.slow
@pytest.mark.nsys
def test_nsys_sees_no_loop_where_all_of_it_is_skipped(place, nsys):
    command = form(f"{sys.executable} app.py 5", range="step", skip=5)
    found = recorded(place, command, nsys.for_command("cpu", 20.0, command))
    assert found.seen is None
    assert [fault.text for fault in found.faults] == [
        "its process does not execute it more often than the 5 times that are skipped"
    ]


@pytest.mark.nsys
def test_nsys_sees_the_os_runtime_where_it_is_asked_to(place, nsys):
    command = form(f"{sys.executable} app.py 5", range="step", skip=2, trace=["osrt"])
    found = recorded(place, command, nsys.for_command("cpu", 20.0, command))
    assert found.faults == [] and found.seen is not None
    sleep = next(one for one in found.seen.os_calls if "nanosleep" in one.name)
    assert (sleep.count, sleep.launching) == (2, 0) and 0.04 <= sleep.seconds <= found.seen.wall
    assert found.seen.memory is None


@pytest.mark.slow
@pytest.mark.nsys
def test_a_command_that_runs_on_is_cut_and_says_so(place, nsys, monkeypatch):
    monkeypatch.setattr(nsys_command, "DURATION", 2)
    found = recorded(place, form(f"{sys.executable} app.py 1000"), nsys)
    assert found.seen is not None and 0 < found.seen.ranges[0].count < 1000, "it was ended before it was through"
    (fault,) = found.faults
    assert (fault.kind, fault.text) == ("incomplete", "nsys recorded the first 2 s of the command, which ran on")


# ---------------------------------------------------------------- limits


def alive(marker: str) -> bool:
    return any(marker in " ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"]))


def test_nsys_is_ended_where_it_writes_too_much(place, tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_command, "SIZE", 2**20)
    writing = 'head -c 3000000 /dev/zero > "$TMPDIR/report.qdstrm"; sleep 3600.25'
    found = profiled(place, form("true"), fake_nsys(tmp_path / "nsys", writing))
    assert found.seen is None
    (fault,) = found.faults
    assert fault.kind == "crash" and fault.text.endswith("0.0 GiB, more than 0.0 GiB") and "fewer steps" in fault.remedy
    assert not alive("sleep 3600.25"), "what nsys started is killed with it"
    assert not list((place.parent.scratch / "profile").iterdir()), "what it wrote is removed"


def test_a_report_that_is_too_large_is_not_exported(place, tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_command, "SIZE", 2**20)
    monkeypatch.setattr(Nsys, "excess", lambda self, report: None)  # it grows between two checks
    tool = fake_nsys(tmp_path / "nsys", 'head -c 3000000 /dev/zero > "$out"', f"touch {tmp_path}/exported")
    found = profiled(place, form("true"), tool)
    assert found.seen is None and "wrote a report of" in found.faults[0].text
    assert not (tmp_path / "exported").exists()


def test_a_command_that_hangs_under_a_tool_is_ended(place, tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "FINISH", 0.0)
    tool = replace(fake_nsys(tmp_path / "nsys", "sleep 3600.5"), seconds=1.0)
    found = profiled(place, form("true"), tool)
    assert (found.seen, found.faults[0].kind) == (None, "timeout")
    assert not alive("sleep 3600.5")


def test_nsys_is_asked_for_the_whole_process_with_a_folder_of_its_own(place, tmp_path):
    found = profiled(place, form("true"), fake_nsys(tmp_path / "nsys", 'echo "$@" tmp=$TMPDIR; exit 7'))
    said = (place.runner.logs / "nsys-head-app.log").read_text()
    assert "--duration=60 --kill=none" in said and "capture-range" not in said and "/bin/sh -c true" in said
    assert f"tmp={place.parent.scratch}/profile/nsys-head-app" in said
    assert found.faults[0].kind == "crash" and "status 7" in found.faults[0].text


# ---------------------------------------------------------------- ncu


def counted(path: Path) -> Path:
    """The raw page of a real report."""
    path.write_bytes(lzma.decompress((DATA / "ncu" / "ncu_base.csv.xz").read_bytes()))
    return path


def test_a_metric_that_ncu_refuses_costs_a_command_that_metric_alone(place, tmp_path):
    page = counted(tmp_path / "page.csv")
    refused = "echo '==ERROR== Failed to find metric smsp__nope.sum' > \"$log\"; exit 1"
    tool = fake_ncu(tmp_path / "ncu", f'grep -q __nope {tmp_path}/ncu.args && {{ {refused}; }}; cp {page} "$out"')
    asked = ["smsp__inst_executed.max", "smsp__nope.sum"]
    seen, faults = profiled(place, form("true", device="cuda"), tool.asking(asked))
    assert seen is not None and {"dram_bytes", "registers", "smsp__inst_executed.max"} == {*seen.kernels[0].values}
    assert [fault.metrics for fault in faults] == [["smsp__nope.sum"]]


def test_ncu_counts_the_kernels_that_were_asked_for(place, tmp_path):
    page = counted(tmp_path / "page.csv")
    tool = replace(fake_ncu(tmp_path / "ncu", f'cp {page} "$out"'), kernels="gemm|softmax", launches=50)
    found = profiled(place, form("./bench", device="cuda"), tool)
    assert found.faults == [] and found.seen is not None
    assert sum(kernel.count for kernel in found.seen.kernels) > 1, "launches in no range count too"
    given = (tmp_path / "ncu.args").read_text()
    assert "--kernel-name-base function --kernel-name regex:gemm|softmax" in given and "--launch-count 50" in given
    assert "--profile-from-start" not in given and "--nvtx-include" not in given
    assert given.endswith("/bin/sh -c ./bench\n")


def test_as_many_launches_as_were_to_be_taken_is_a_fault(place, tmp_path):
    page = counted(tmp_path / "page.csv")
    tool = replace(fake_ncu(tmp_path / "ncu", f'cp {page} "$out"'), launches=2)
    found = profiled(place, form("./bench", device="cuda"), tool)
    (fault,) = found.faults
    assert found.seen is not None and fault.kind == "incomplete" and "choose kernels" in fault.remedy


def test_a_regex_that_no_kernel_matches(place, tmp_path):
    said = 'echo "==WARNING== No kernels were profiled." > "$log"'
    tool = replace(fake_ncu(tmp_path / "ncu", said), kernels="nothing")
    found = profiled(place, form("./bench", device="cuda"), tool)
    (fault,) = found.faults
    assert (found.seen, fault.kind) == (None, "empty") and "`kernels:`" in fault.remedy


# ---------------------------------------------------------------- NVBench


@pytest.mark.slow
def test_an_nvbench_program_runs_each_state_once_under_a_profiler(place, tmp_path):
    own = form("./bench", reads="nvbench", device="cuda")
    line = [place.runner.line("head", own, tmp_path, profiled=profiled)[0][-1] for profiled in (False, True)]
    assert line == ['./bench --jsonbin "$PERFCI_NVBENCH"', './bench --jsonbin "$PERFCI_NVBENCH" --profile']
    tool = fake_ncu(tmp_path / "ncu", f'cp {counted(tmp_path / "page.csv")} "$out"')
    assert profiled(place, own, tool).faults == []
    named = form('./bench --jsonbin "$PERFCI_NVBENCH" && echo done', reads="nvbench", device="cuda")
    (fault,) = profiled(place, named, tool).faults
    assert fault.kind == "incomplete" and "not of one execution" in fault.text


# ---------------------------------------------------------------- what of it is a case's


def two_sides(place: Place) -> Place:
    """The same tree as base too."""
    head = place.sides["head"]
    sides = {"base": replace(head, name="base"), "head": head}
    return replace(place, sides=sides, runner=replace(place.runner, sides=sides))


def observed(place: Place, tmp_path: Path, *names: str, **fields) -> list[Case]:
    """Profile a command on a GPU in base and head, through tools that hand out real captures."""
    capture = tmp_path / "capture.sqlite"
    capture.write_bytes(lzma.decompress((DATA / "nsys" / "base.sqlite.xz").read_bytes()))
    found = {
        Nsys: fake_nsys(tmp_path / "nsys", 'echo report > "$out"', f'cp {capture} "$out"'),
        Kineto: Kineto(ProfilerRequest(60.0), 60.0),
        Ncu: fake_ncu(tmp_path / "ncu", f'cp {counted(tmp_path / "page.csv")} "$out"'),
    }
    tools = Profilers(found, capability=(9, 0))
    both = two_sides(place)
    cases = cases_of(both, form("./bench", device="cuda", **fields), *names)
    assert {name for case in cases for name in case.sides} == {"base", "head"}
    plan = Plan(seed=0, sides=["base", "head"], judged=False)
    observe(both, tools, cases, plan, both.parent.scratch / "e", print)
    return cases


@pytest.mark.slow
def test_metrics_of_a_command_with_one_case(place, tmp_path):
    (case,) = observed(place, tmp_path, "app", kernels="gemm")
    assert "--kernel-name regex:gemm" in (tmp_path / "ncu.args").read_text()
    for side in case.sides.values():
        found = side.profile
        assert found.reports == 1 and found.faults == [] and found.trace.executions == 1
        assert found.metrics["kernel_launches"] == sum(kernel.count for kernel in found.trace.kernels) > 10
        assert found.metrics["dram_bytes"] > 0 and found.metrics["registers"] > 0
        assert not {"device_busy", "launch_overhead"} & set(found.metrics)


def test_a_command_with_a_range_has_the_metrics_of_its_loop(place, tmp_path):
    (case,) = observed(place, tmp_path, "app", kernels="gemm", range="matmul-n4096", skip=4)
    for side in case.sides.values():
        found = side.profile
        assert found.reports == 1 and (found.trace.within, found.trace.executions) == ("matmul-n4096", 6)
        assert 0 < found.metrics["device_busy"] <= 100 and 0 <= found.metrics["launch_overhead"] < 100
        assert found.metrics["kernel_launches"] < 10


@pytest.mark.parametrize(
    ("asked", "limits", "more", "options"),
    [
        ([], [], (), []),
        ([], [limit("app", "peak_memory", "max", 1e9)], (), ["--cuda-memory-usage=true"]),
        (["memory"], [], ("osrt",), ["--trace=cuda,nvtx,osrt", "--cuda-memory-usage=true"]),
    ],
)
def test_what_is_traced_of_a_command_besides(place, tmp_path, asked, limits, more, options):
    capture = tmp_path / "capture.sqlite"
    capture.write_bytes(lzma.decompress((DATA / "nsys" / "mallocs.sqlite.xz").read_bytes()))
    args = tmp_path / "args"
    tool = fake_nsys(tmp_path / "nsys", f'echo report > "$out"; echo "$@" >> {args}', f'cp {capture} "$out"')
    flags = tool.installed.flags | {"cuda-memory-usage"}
    tools = Profilers({Nsys: replace(tool, installed=replace(tool.installed, flags=flags))}, capability=(9, 0))
    both = two_sides(place)
    (case,) = cases_of(both, form("./bench", device="cuda", range="step", skip=3, trace=asked), "app")
    plan = Plan(seed=0, sides=["base", "head"], criteria=limits, judged=bool(limits))
    place.limits.profile = "never"
    observe(both, tools, [case], plan, both.parent.scratch / "e", print, more=more)
    lines = args.read_text().splitlines()
    assert len(lines) == 2, "base and head alike"
    for line in lines:
        assert set(options) <= set(line.split()) and ("memory-usage" in line) is bool(options)
    for side in case.sides.values():
        assert side.profile.faults == [] and side.profile.metrics["peak_memory"] == 2**24


@pytest.mark.slow
def test_a_command_with_several_cases_gives_none_of_them_its_metrics(place, tmp_path):
    cases = observed(place, tmp_path, "app/a", "app/b")
    for case in cases:
        for side in case.sides.values():
            assert side.profile.reports == 2 and side.profile.metrics == {}
            assert side.profile.trace.kernels and side.profile.counters.kernels


def test_profiled_code_gets_what_the_policies_write_and_nothing_that_pass_env_brings(place, tmp_path, monkeypatch):
    plan, side = Plan(seed=0, sides=["head"], judged=False), place.sides["head"]
    asked = {"env": {"FUSED": "1", "A_TOKEN": "canary"}, "pass_env": ["LICENCE", "ABSENT"]}
    side.policy = side.policy.model_copy(update=asked)
    side.env |= {"FUSED": "1", "A_TOKEN": "canary", "LICENCE": "4711"}
    installed = fake_nsys(tmp_path / "nsys", f"env >{tmp_path}/seen; exit 1").installed
    monkeypatch.setattr("perfci.profilers.nsys.command.find", lambda: installed)
    tools = find_profilers(place, plan, How(), tmp_path / "out")
    cases = cases_of(place, form("true"), "app")
    notes = observe(place, tools, cases, plan, tmp_path / "e", print)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "FUSED=1" in seen and not [line for line in seen if line.startswith(("A_TOKEN=", "LICENCE="))]
    assert notes[1:] == ["under nsys and ncu, code does without LICENCE: reports hold the environment"]


def test_ncu_is_not_asked_for_code_that_is_not_trusted(place, tmp_path, monkeypatch):
    installed = fake_ncu(tmp_path / "ncu", "exit 1").installed
    monkeypatch.setattr("perfci.profilers.ncu.command.find", lambda _: installed)
    plan = Plan(seed=0, sides=["head"])
    asked, unasked = (
        find_profilers(place, plan, How(counters=counters), tmp_path / "out").found[Ncu] for counters in (True, False)
    )
    assert (asked.kind, unasked.kind) == ("absent", "forbidden")  # absent: there is no GPU here
    assert "fork" in unasked.text


def test_a_tool_that_is_missing_is_said_of_each_case(place, tmp_path):
    absent = Fault(tool="nsys", part="trace", kind="absent", text="nsys is not installed", remedy="install it")
    uncounted = absent.model_copy(update={"tool": "ncu", "part": "counters"})
    tools = Profilers({Nsys: absent, Kineto: Kineto(ProfilerRequest(60.0), 60.0), Ncu: uncounted})
    cases = cases_of(place, form("true", device="cuda"), "app/a", "app/b")
    observe(place, tools, cases, Plan(seed=0, sides=["head"], judged=False), tmp_path / "e", print)
    for case in cases:
        assert [fault.tool for fault in case.sides["head"].profile.faults] == ["nsys", "ncu"]
