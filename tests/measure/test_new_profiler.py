"""A new back end is one file and one line: what follows is the file, and `Kprof` in KINDS the line."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perfci.judge.judge import judge
from perfci.measure.commands.readers.base import Reported
from perfci.measure.profiling.collect import find_profilers, observe
from perfci.model.plan import Plan
from perfci.model.policy import Command
from perfci.model.profile import Fault, KernelUse, Trace
from perfci.model.results import Results
from perfci.profilers import registry
from perfci.profilers.base import TRACED, WHOLE, Profiler, Read, trimmed
from perfci.profilers.faults import fault
from perfci.render import markdown
from perfci.system.child import Under

from ..judge import build
from .opened import opened, request_of

KPROF = """\
#!/bin/sh
# kprof REPORT COMMAND...: a profiler that programs tell of their kernels, one name and its seconds a line.
report=$1; shift
KPROF_LOG=$report.kernels "$@" || exit
sed 's/^\\([^ ]*\\) \\(.*\\)$/["\\1", \\2]/' "$report.kernels" | paste -sd, - | sed 's/.*/[&]/' > "$report"
"""


@dataclass(frozen=True)
class Kprof(Profiler[Trace]):
    seconds: float
    program: Path
    written_env: frozenset[tuple[str, str]]

    name = "kprof"
    part = "trace"
    scopes = frozenset({"command"})
    trims = True

    @classmethod
    def find(cls, request):
        for folder in os.environ["PATH"].split(":"):
            if os.access(program := Path(folder) / "kprof", os.X_OK):
                return cls(TRACED * request.timeout, program, request.written_env)
        return fault(cls.name, cls.part, "absent", "kprof is not installed", "install kprof")

    def for_command(self, device, timeout, asked):
        return replace(self, seconds=TRACED * timeout)

    def under(self, report):
        return Under(lambda argv: [str(self.program), str(report), *argv], lambda env: trimmed(env, self.written_env))

    def read(self, report, names, ended, log):
        if ended is None or ended.code != 0:
            return Read(general=[fault(self.name, self.part, "crash", f"kprof {ended and ended.words()}")])
        uses = [
            KernelUse(name=name, count=1, seconds=seconds, grid=(1, 1, 1), block=(32, 1, 1))
            for name, seconds in json.loads(report.read_text())
        ]
        device = sum(one.seconds for one in uses)
        trace = Trace(
            source=self.name, version="1.0", executions=1, wall=device, busy=device, span=device, kernels=uses
        )
        return Read({WHOLE: trace})


@pytest.fixture
def known(monkeypatch):
    """The registry with Kprof in the place of this machine's back ends."""
    monkeypatch.setattr(registry, "KINDS", (Kprof,))


@pytest.fixture
def compared(tmp_path):
    """A repository whose command launches three kernels in base and five in head, as the sides of a comparison."""
    root = tmp_path / "repo"
    root.mkdir()
    (root / "perfci.yaml").write_text("version: 1\ncommands: [{name: app, run: 'true'}]\ntimeout: 20s\n")
    request = request_of(root)
    with opened(request) as place:
        head = place.sides["head"]
        sides = {"base": replace(head, name="base"), "head": head}
        for name, launches in (("base", 3), ("head", 5)):
            run = f'for i in $(seq {launches}); do echo "saxpy 1e-5" >> "$KPROF_LOG"; done'
            form = Command(name="app", run=run, device="cuda")
            sides[name].policy = sides[name].policy.model_copy(update={"commands": [form]})
        yield replace(place, sides=sides, runner=replace(place.runner, sides=sides, cases={"app": 1})), request


def judged(place, request, limit: float):
    """The report of a limit on kernel launches, by what the registered profilers see, through the documents."""
    plan = Plan(seed=0, sides=["base", "head"], criteria=[build.limit("app", "kernel_launches", "max", limit)])
    reported = {side: {"app": Reported("app", {"time": [1.0]})} for side in place.sides}
    cases = place.runner._cases("app", "cuda", reported)
    tools, folder = find_profilers(place, plan, request.how, request.where.out), place.parent.scratch / "profile"
    before = []

    def begin():
        before.append([side.profile for case in cases for side in case.sides.values()])

    observe(place, tools, cases, plan, folder, print, begin=begin)
    assert before == [[None, None]], "what times say is told once, before the first profiler"
    results = build.results(cases)
    results.plan = plan
    return judge(Results.model_validate_json(results.model_dump_json(by_alias=True)))


def test_what_a_new_profiler_sees_is_judged_and_reported(known, compared, tmp_path, monkeypatch):
    (tmp_path / "kprof").write_text(KPROF)
    (tmp_path / "kprof").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for limit, expected in ((4, "violation"), (5, "unchanged")):
        report = judged(*compared, limit)
        (row,) = [row for row in report.rows if row.metric == "kernel_launches"]
        assert (row.class_, row.base, row.head) == (expected, 3, 5)
        (told,) = report.profiles
        assert told.sources == ["kprof 1.0"] and told.faults == []
        assert "kprof 1.0" in markdown.render(report)


def test_why_a_new_profiler_is_missing_is_why_its_limit_is_not_judged(known, compared):
    report = judged(*compared, 4)
    (row,) = [row for row in report.rows if row.metric == "kernel_launches"]
    assert row.class_ == "invalid"
    assert row.reason == "not measured: kprof: kprof is not installed: install kprof"


def test_the_order_of_the_registry_is_the_order_of_choice():
    names = [kind.name for kind in registry.KINDS]
    assert names.index("nsys") < names.index("torch.profiler")


def test_a_name_goes_into_paths():
    with pytest.raises(ValueError, match="string_pattern_mismatch"):
        Fault(tool="../kprof", part="trace", kind="absent", text="the name goes into paths")
