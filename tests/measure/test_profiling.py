"""The profiling pass over real workers: one start of a tool for all cases, and what a case that breaks it costs."""

import csv
import io
import lzma
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from perfci.measure.budget import Budget
from perfci.measure.cases import merge
from perfci.measure.discovery import discover
from perfci.measure.place import Place
from perfci.measure.profiling import turns as profilers_turns
from perfci.measure.profiling.choose import LAST, OPEN, rank, wanted
from perfci.measure.profiling.collect import Profilers, asked_alike, observe
from perfci.measure.profiling.kernels import Observation, profile_cases
from perfci.measure.profiling.turns import Turn, Turns
from perfci.model.criteria import Criterion
from perfci.model.plan import Plan
from perfci.model.profile import Fault, Profile, Trace
from perfci.model.results import Case, CaseSide, Pair
from perfci.profilers.base import Profiler, ProfilerRequest, Read
from perfci.profilers.metrics import take
from perfci.profilers.ncu.command import InstalledNcu
from perfci.profilers.ncu.profiler import Ncu
from perfci.profilers.nsys.command import InstalledNsys, probe
from perfci.profilers.nsys.profiler import Nsys
from perfci.profilers.torch.profiler import Kineto
from perfci.system.child import Under
from perfci.worker.profile import PROFILE_WARM_CALLS
from tests.judge.build import limit

from .opened import opened, request_of

SUITE = """
    import os
    import time
    import perfci

    @perfci.kernel(params={"ms": [5, 12]}, devices=["cpu"])
    def spins(bench, ms):
        log = open(f"spins-{ms}", "a", buffering=1)
        def run():
            start = time.perf_counter()
            while time.perf_counter() < start + ms / 1000:
                pass
            print(time.perf_counter() - start, file=log)
        return run
"""
ENDS = """
    @perfci.kernel(devices=["cpu"])
    def ends_the_process(bench):
        return lambda: os._exit(3)

    @perfci.kernel(devices=["cpu"])
    def raises(bench):
        def run():
            raise ValueError("no such table")
        return run
"""


class Passing(Profiler[Trace]):
    """A tool that starts the program, sees every case it was told of, and writes down what it passed on."""

    name = "nsys"
    part = "trace"
    scopes = frozenset({"case"})
    executions = 2
    seconds = 20.0

    @classmethod
    def find(cls, request):
        return cls()

    def __init__(self) -> None:
        self.starts = 0
        self.environments: list[dict[str, str]] = []

    def under(self, report: Path) -> Under:
        def command(argv: list[str]) -> list[str]:
            self.starts += 1
            return ["/usr/bin/env", *argv]

        def environment(env):
            self.environments.append({name: value for name, value in env.items() if "TOKEN" not in name})
            return self.environments[-1]

        return Under(command, environment)

    def read(self, report, names, ended, log):
        found = {name: Trace(source="nsys", executions=2, wall=1e-3, busy=0, span=0) for name in names}
        return Read(found if ended is not None and ended.code == 0 else {})


@pytest.fixture
def place(tmp_path, monkeypatch, request):
    root = tmp_path / "repo"
    root.mkdir()
    (root / "k.py").write_text(dedent(SUITE) + dedent(getattr(request, "param", "")))
    (root / "perfci.yaml").write_text("version: 1\nsuite: [k.py]\ntimeout: 20s\nenv: {A_TOKEN: canary}\n")
    own = any(request.node.get_closest_marker(name) for name in ("torch", "nsys"))  # with the packages of the tests
    with opened(request_of(root, **({"python": sys.executable} if own else {}))) as made:
        yield made


def cases_of(place: Place) -> list[Case]:
    return merge(discover(place, [], print), place.sides, ["cpu"], [])


def taken(place: Place, profiler) -> dict[str, Observation]:
    folder = place.parent.scratch / "profile"
    folder.mkdir(exist_ok=True)
    found = profile_cases(place.benches["cpu"], "head", cases_of(place), profiler, folder, lambda text: None)
    return {key.removesuffix("@cpu"): value for key, value in found.items()}


@pytest.mark.slow
def test_all_cases_share_one_start_and_a_trimmed_environment(place):
    tool = Passing()
    found = taken(place, tool)
    assert tool.starts == 1
    assert set(found) == {"spins/ms=5", "spins/ms=12"}
    assert all(isinstance(one.seen, Trace) and not one.faults for one in found.values())
    assert tool.environments and all("A_TOKEN" not in env for env in tool.environments)


@pytest.mark.slow
@pytest.mark.parametrize("place", [ENDS], indirect=True)
def test_a_case_that_breaks_the_tool_costs_itself_alone(place):
    tool = Passing()
    found = taken(place, tool)
    assert tool.starts == 2, "the others are profiled again without it"
    assert [found[name].seen is not None for name in ("spins/ms=5", "spins/ms=12")] == [True, True]
    ended, raised = found["ends_the_process"], found["raises"]
    assert (ended.seen, ended.faults[0].kind) == (None, "crash")
    assert "status 3" in ended.faults[0].text and ended.faults[0].remedy == "see logs/nsys-head.log"
    assert (raised.seen, raised.faults[0].kind) == (None, "crash")
    assert "no such table" in raised.faults[0].text


class Windowed(Passing):
    """A tool whose window is open from the first case to the last."""

    window = False


@pytest.mark.slow
@pytest.mark.parametrize("place", [ENDS], indirect=True)
def test_cases_are_warm_before_the_window_opens(place):
    """What they load at first is in no capture, and one that breaks there costs itself alone."""
    tool = Windowed()
    found = taken(place, tool)
    for ms in (5, 12):
        assert found[f"spins/ms={ms}"].seen is not None
    calls = len((place.sides["head"].tree / "spins-5").read_text().split())
    assert (calls - 1) % (2 * PROFILE_WARM_CALLS + tool.executions) == 0, "but for the scout's one"
    assert [found[name].seen for name in ("ends_the_process", "raises")] == [None, None]


class Dead(Passing):
    """A tool that cannot start the program."""

    def under(self, report: Path) -> Under:
        return Under(lambda argv: ["/bin/sh", "-c", "echo refused >&2; exit 9"], dict)

    def read(self, report, names, ended, log):
        assert "refused" in log.read_text()
        return Read(general=[Fault(tool="nsys", part="trace", kind="forbidden", text="refused", remedy="ask")])


@pytest.mark.slow
def test_a_tool_that_does_not_start_is_a_fault_of_every_case(place):
    found = taken(place, Dead())
    assert [(one.seen, one.faults[0].kind) for one in found.values()] == [(None, "forbidden")] * 2


@pytest.mark.slow
def test_an_ncu_that_hangs_is_ended(place, tmp_path, monkeypatch):
    """As one does that waits for a lock that another holds."""
    monkeypatch.setattr("perfci.system.starter.START_TIMEOUT", 3.0)  # in which a shell starts, however busy
    program = tmp_path / "ncu"
    program.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 1000\n")
    program.chmod(0o755)
    found = taken(
        place, Ncu(InstalledNcu(program, "2025.3.1"), ProfilerRequest(5.0), "gh100", ("dram_bytes",), (), 5.0)
    )
    assert [(one.seen, [fault.kind for fault in one.faults]) for one in found.values()] == [(None, ["timeout"])] * 2
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


FAKE_NCU = """#!/bin/sh
# Does what it is told, counts what was recorded on an H200, and knows no smsp__nope.sum.
while :; do
    case $1 in
        --nvtx | --force-overwrite) shift ;;
        --export) out=$2; shift 2 ;;
        --metrics) metrics=$2; shift 2 ;;
        --log-file) log=$2; shift 2 ;;
        --*) shift 2 ;;
        *) break ;;
    esac
done
echo "$metrics" >> {folder}/asked
: > "$log"
case $metrics in *smsp__nope.sum*)
    echo '==ERROR== Failed to find metric smsp__nope.sum' > "$log"
    exit 1 ;;
esac
"$@" || exit
cp {folder}/page.csv "$out"
"""


def write_page(folder: Path, ranges: dict[str, str]) -> None:
    """Write what was counted of some cases on an H200, as if each had been in another range."""
    packed = Path(__file__).parents[1] / "data" / "ncu" / "ncu_base.csv.xz"
    names, units, *launches = csv.reader(io.StringIO(lzma.decompress(packed.read_bytes()).decode(), newline=""))
    at = next(at for at, name in enumerate(names) if "Push/Pop_Range" in name)
    with (folder / "page.csv").open("w", newline="") as page:
        out = csv.writer(page, quoting=csv.QUOTE_ALL)
        out.writerows([names, units])
        for number, (case, other) in enumerate(ranges.items()):
            launch = next(launch for launch in launches if f":{case}:" in launch[at])
            launch[at] = launch[at].replace(case, other)
            out.writerow([str(number), *launch[1:]])


@pytest.fixture
def fake_ncu(tmp_path):
    """An ncu whose reports are those of two cases: matmul and attention."""
    write_page(tmp_path, {"sdpa-seq512": "perfci-0-spins-ms-12", "matmul-n4096": "perfci-1-spins-ms-5"})
    program = tmp_path / "ncu"
    program.write_text(FAKE_NCU.replace("{folder}", str(tmp_path)))
    program.chmod(0o755)
    names = ("instructions", "dram_bytes")
    return Ncu(InstalledNcu(program, "2025.3.1"), ProfilerRequest(20.0), "gh100", names, (), 20.0)


def asked_of(fake_ncu: Ncu) -> list[str]:
    return (fake_ncu.installed.path.parent / "asked").read_text().splitlines()


@pytest.mark.slow
def test_a_metric_that_ncu_refuses_costs_that_metric_alone(place, fake_ncu):
    own = ["smsp__inst_executed.avg", "smsp__nope.sum"]
    found = taken(place, fake_ncu.asking(own))
    assert len(asked_of(fake_ncu)) == 2 and "smsp__nope" not in asked_of(fake_ncu)[1]
    for one, expected in zip(found.values(), (56126.06, 31951.65), strict=True):
        profile = Profile()
        take(profile, one.seen, one.faults, None, gpu=True)
        assert profile.metrics["smsp__inst_executed.avg"] == expected and "smsp__nope.sum" not in profile.metrics
        assert {"instructions", "dram_bytes"} <= profile.metrics.keys(), "they stand"
        (fault,) = (one for one in profile.faults if "smsp__nope.sum" in one.metrics)
        assert fault.text == "smsp__nope.sum: Failed to find metric smsp__nope.sum"
        assert "--query-metrics" in fault.remedy


@pytest.mark.slow
def test_a_metric_by_ncus_own_name_is_asked_for_the_cases_of_its_limit_alone(place, fake_ncu, monkeypatch):
    cases = [case.model_copy(update={"device": "cuda"}) for case in cases_of(place)]
    criteria = [
        limit("spins/ms=12", "smsp__inst_executed.avg", "max", 2e4),
        limit("spins/ms=12", "smsp__inst_executed.avg", "min", 2),
        limit("spins/ms=5", "instructions", "max", 1),
    ]
    starts = []

    def started(bench, name, some, profiler, scratch, note, turn):
        starts.append((profiler.names, [case.id for case in some]))
        return {}  # without a GPU nothing of them can run

    monkeypatch.setattr("perfci.measure.profiling.collect.profile_cases", started)
    alike = replace(place, benches={"cuda": place.benches["cpu"]})
    plan = Plan(seed=0, sides=["head"], criteria=criteria)
    observe(alike, Profilers({Ncu: fake_ncu}), cases, plan, place.parent.scratch / "p", lambda text: None)
    own = ("instructions", "dram_bytes", "smsp__inst_executed.avg")
    assert starts == [(own, ["spins/ms=12"]), (own[:2], ["spins/ms=5"])]
    assert asked_alike(cases, plan, "trace") == [((), cases)] and asked_alike([], plan, "counters") == [((), [])]


@pytest.mark.slow
@pytest.mark.torch
def test_torch_profiler_stands_in(place):
    pytest.importorskip("torch")
    found = taken(place, Kineto(ProfilerRequest(20.0), 20.0, "cpu"))
    for ms in (5, 12):
        trace = found[f"spins/ms={ms}"].seen
        assert trace is not None, found[f"spins/ms={ms}"].faults
        assert (trace.source, trace.executions) == ("torch.profiler", 10)
        # What the case itself saw of the last ten, which a busy machine lengthens, too, and the profiler's own work.
        own = sum(own_times(place, ms)[-10:]) / 10
        assert own <= trace.wall <= 3 * own


def own_times(place: Place, ms: int) -> list[float]:
    return [float(line) for line in (place.sides["head"].tree / f"spins-{ms}").read_text().split()]


@pytest.mark.slow  # for a machine that does nothing else; a real capture is read in tests/profilers/test_nsys_command.py
@pytest.mark.alone
@pytest.mark.nsys
def test_nsys_sees_a_suite_on_the_cpu(place):
    pytest.importorskip("nvtx")
    path = os.environ.get("PERFCI_TEST_NSYS") or "nsys"
    installed = probe(Path(path), os.environ)
    if not isinstance(installed, InstalledNsys):
        pytest.skip(f"needs nsys: {installed.text}")
    found = taken(place, Nsys(installed, ProfilerRequest(60.0), 60.0, cuda=False))
    for ms in (5, 12):
        one = found[f"spins/ms={ms}"]
        assert one.seen is not None, one.faults
        assert one.seen.executions == 10
        assert one.seen.marked == "", "the package nvtx of the tests is one that every nsys records"
        # What the case itself saw of the last ten; a busy machine lengthens what lies between them.
        assert one.seen.wall >= 0.99 * sum(own_times(place, ms)[-10:]) / 10


# ---------------------------------------------------------------- which cases


def measured(name: str, ratio: float, pairs: int = 8, device: str = "cuda") -> Case:
    made = [
        Pair(index=i, values={"base": {"time": 1e-4}, "head": {"time": 1e-4 * ratio * (1 + i * 1e-5)}})
        for i in range(pairs)
    ]
    return Case(id=name, kernel=name, device=device, sides={"base": CaseSide(), "head": CaseSide()}, pairs=made)


def plan(*names: str, bound: float = 0.1, observed: tuple[Criterion, ...] = ()) -> Plan:
    asked = [limit(name, bound=bound) for name in names]
    return Plan(seed=0, sides=["base", "head"], criteria=[*asked, *observed], m=len(names))


def test_what_changed_is_profiled():
    same, slower, faster, slightly = (
        measured(*one) for one in (("same", 1.0), ("slower", 1.05), ("faster", 0.8), ("slightly", 1.01))
    )
    asked = plan("same", "slower", "faster", "slightly")
    assert [rank(case, asked) for case in (same, slower, faster, slightly)] == [LAST, 1, 1, LAST]
    traced, counted = wanted([same, slower, faster, slightly], asked, "on_change")
    assert [case.id for case in traced] == [case.id for case in counted] == ["slower", "faster"]
    assert wanted([same, slower], asked, "never") == ([], [])
    assert len(wanted([same, slower], asked, "always")[0]) == 2


def test_regressions_are_profiled_first_and_what_is_undecided_last_or_not_at_all():
    regressed, faster, few, far = (
        measured("regressed", 1.3, 16), measured("faster", 0.7, 16), measured("few", 1.05, 3), measured("far", 1.2, 3),
    )  # fmt: skip
    asked = plan("regressed", "faster", "few", "far")
    assert [rank(case, asked) for case in (regressed, faster, few, far)] == [0, 1, LAST, OPEN]
    traced, counted = wanted([few, faster, far, regressed], asked, "on_change")
    assert [case.id for case in traced] == [case.id for case in counted] == ["regressed", "faster", "far"]
    for some in wanted([few, faster, far, regressed], asked, "on_change", room=False):
        assert [case.id for case in some] == ["regressed", "faster"], "only with budget that is left"


def test_what_a_limit_needs_is_always_taken_and_nothing_on_the_cpu():
    occupancy = limit("same", "occupancy", "min", 60)
    memory = limit("same", "peak_memory", "max", 60)
    case = measured("same", 1.0)
    traced, counted = wanted([case], plan("same", observed=(occupancy,)), "never")
    assert [one.id for one in traced] == [one.id for one in counted] == ["same"]
    launches = limit("same", "kernel_launches", "max", 60)
    assert wanted([case], plan("same", observed=(launches,)), "never") == ([case], [])
    assert wanted([case], plan("same", observed=(memory,)), "never") == ([], []), "the checks tell it"
    assert wanted([measured("same", 2.0, device="cpu")], plan("same"), "always") == ([], [])


def test_the_profilers_time_is_shared_among_the_starts_that_are_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(profilers_turns.time, "monotonic", lambda: now[0])
    turns = Turns(100, 4)
    turns.skip(1)
    first = turns.next()
    assert (first.begin, first.end) == (pytest.approx(100 + 70 / 3), 200)
    now[0] += 10  # it took less than its share
    assert turns.next().begin == pytest.approx(110 + 60 / 2)
    assert turns.next().begin == turns.next().begin == 170, "a second choice has what is left"
    now[0] = 180
    late = turns.next()
    assert late.over and late.patience(60) == 20 and late.patience(5) == 5


@pytest.mark.slow
def test_a_tool_is_not_started_once_its_time_is_over(place):
    tool = Passing()
    folder = place.parent.scratch / "profile"
    folder.mkdir()
    over = Turn(begin=time.monotonic())
    cases = cases_of(place)
    found = profile_cases(place.benches["cpu"], "head", cases, tool, folder, print, over)
    assert tool.starts == 0 and set(found) == {case.key for case in cases}
    for one in found.values():
        assert one.seen is None and "the budget had no time left for it" in one.faults[0].text


class Inside(Passing):
    """A profiler inside the worker, which inherits what the parent imported."""

    name = "torch.profiler"

    def under(self, report: Path) -> None:
        return None

    def read(self, report, names, ended, log):
        self.starts += 1
        return super().read(report, names, ended, log)


@pytest.mark.slow
@pytest.mark.parametrize(("imports", "seeing"), [(1e-3, "nsys"), (1e3, "torch.profiler")])
def test_a_tool_whose_time_would_go_into_imports_leaves_it_to_one_inside_the_worker(place, imports, seeing):
    outside, inside = Passing(), Inside()
    tools = Profilers({Passing: outside, Inside: inside})
    cases = cases_of(place)
    place.parent.imported = imports
    scratch = place.parent.scratch / "profile"
    budget = Budget(300, time.monotonic())
    observe(place, tools, cases, plan("spins").model_copy(update={"judged": False}), scratch, print, budget=budget)
    assert (outside.starts, inside.starts) == ((1, 0) if seeing == "nsys" else (0, 1))
    for case in cases:
        profile = case.sides["head"].profile
        assert profile is not None and profile.trace is not None
        said = [one.text for one in profile.faults if one.tool == "nsys"]
        assert len(said) == (seeing != "nsys") and all("import the suite anew, for about 1000 s" in one for one in said)


def test_commands_on_a_gpu_are_profiled_as_kernels_are():
    case = measured("app", 1.05).model_copy(update={"origin": "command"})
    assert wanted([case], plan("app"), "on_change") == ([case], [case])
    assert wanted([case], plan("app"), "never") == ([], [])
