"""A difference in each single fact is refused, by its name: of a journal, a plan of shards, prepared sides, a kept build.

Each table names all facts: one that is new needs its line here.
"""

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfci
from benchmarks.agreement import Quiet
from perfci.measure.journal import Journal
from perfci.measure.place import Place
from perfci.measure.plan import identity
from perfci.measure.prepare import SideWork, Sources, find_sources, materialise
from perfci.measure.request import Request
from perfci.measure.shards.deal import planned
from perfci.measure.shards.document import PlannedCase, Shard, SharedPlan
from perfci.measure.sides import kept, prepared
from perfci.measure.sides.planned import of_machine, of_sources, require_cases, require_planned
from perfci.model.base import UsageError
from perfci.model.comparison import marks
from perfci.model.fingerprint import Environments, Fingerprint, GpuFacts
from perfci.model.plan import Plan
from perfci.model.policy import Policy
from perfci.model.results import Case, SideCode
from perfci.sources.git import NamedCommit
from perfci.system.child import Exit
from tests.e2e.conftest import Repo
from tests.judge.build import case, limit, results
from tests.measure.shards.build import setting, shared_plan

ENVIRONMENTS = Environments(interpreters={})
GPU = GpuFacts(capability="9.0", multiprocessors=132, l2_bytes=1, memory_bytes=2, empty_pair_seconds=1e-6)


def policies() -> dict[str, Policy]:
    return {name: Policy(version=1, suite=["k.py"]) for name in ("base", "head")}


def sides() -> dict[str, SideWork]:
    return {
        name: SideWork(name, SideCode(tree="t"), policy, Path("/x"), "/usr/bin/python3")  # type: ignore[arg-type]
        for name, policy in policies().items()
    }


@dataclass
class Run:
    """All that a run is of."""

    request: Request = field(default_factory=lambda: Request.of("compare", Path(), Path()))
    sides: dict[str, SideWork] = field(default_factory=sides)
    policies: dict[str, Policy] = field(default_factory=policies)
    commits: dict[str, str] = field(default_factory=lambda: {"base": "1" * 40, "head": "2" * 40})
    environments: Environments | None = None
    facts: Fingerprint = field(default_factory=lambda: Fingerprint(devices={"cuda": "NVIDIA H200", "cpu": "AMD"}))
    devices: list[Any] = field(default_factory=lambda: ["cuda", "cpu"])
    cases: list[Case] = field(default_factory=lambda: [case("a"), case("b")])
    plan: Plan = field(default_factory=lambda: results([case("a")], [limit("a")]).plan)

    @property
    def sources(self) -> Sources:
        base, head = (NamedCommit("main", self.commits[name], "") for name in ("base", "head"))
        known: Any = self.policies
        return Sources(None, Path(), base, head, known, "base", [], {})

    @property
    def identity(self) -> dict[str, str]:
        place: Any = SimpleNamespace(
            sources=self.sources, sides=self.sides, environments=self.environments, facts=self.facts
        )
        assert set(vars(place)) <= set(Place.__dataclass_fields__)
        return identity(self.request, place, self.plan, self.cases)


def asking(**more: object) -> Callable[[Any], None]:
    def change(of: Any) -> None:
        of.request = of.request.but(**more)

    return change


def shared() -> SharedPlan:
    dealt = (("a@cuda", "", 1), ("x@cpu", "tool", 1), ("y@cpu", "other", 2))
    return shared_plan([PlannedCase(key=key, command=of, seconds=1.0, shard=shard) for key, of, shard in dealt])


OF_SIDES = {
    "the policy of base": setting("policies.base", Policy(version=1, suite=["k.py"], budget="1m")),
    "the policy of head": setting("policies.head", Policy(version=1, suite=["k.py"], budget="1m")),
    "the code of base": setting("sides.base.info", SideCode(tree="other")),
    "the code of head": setting("sides.head.info", SideCode(tree="other")),
    "the interpreter of base": setting("sides.base.python", "/opt/python"),
    "the interpreter of head": setting("sides.head.python", "/opt/python"),
}
ENVIRONMENT = {
    "what differs between the environments of base and head": setting("environments", ENVIRONMENTS),
}
OF_JOURNAL = OF_SIDES | ENVIRONMENT | {
    "the command": asking(mode="run"),
    "the shard": lambda run: setattr(run, "request", replace(run.request, planned=planned(Shard(shared(), 1)))),
    "the set of --env": asking(env={"head": {"A": "1"}}),
    "the set of cases": lambda run: run.cases.pop(),
    "the plan": setting("plan.m", 7),
    "the machine's perfci": setting("facts.perfci", "0"),
    "the machine's host": setting("facts.host", "Linux 9"),
    "the machine's cpu": setting("facts.cpu", "another"),
    "the machine's cores": setting("facts.cores", 3),
    "the machine's python": setting("facts.python", "3.9"),
    "the machine's torch": setting("facts.torch", "2.9"),
    "the machine's cuda": setting("facts.cuda", "13"),
    "the machine's driver": setting("facts.driver", "590"),
    "the machine's devices": setting("facts.devices", {"cpu": "AMD"}),
    "the machine's uuid": setting("facts.uuid", "GPU-2"),
    "the machine's gpu": setting("facts.gpu", GPU),
    "the machine's imported": setting("facts.imported", {"a": "b"}),
}  # fmt: skip


def test_each_fact_of_a_journal_has_its_line_here() -> None:
    assert Run().identity.keys() == OF_JOURNAL.keys()


@pytest.mark.parametrize("name", OF_JOURNAL)
def test_a_journal_is_not_gone_on_with_where_one_fact_is_another(name: str, tmp_path: Path) -> None:
    begun = Run()
    Journal(tmp_path, begun.identity, "r", resume=False).close()
    again = Journal(tmp_path, Run().identity, "s", resume=True)
    again.close()
    assert again.run == "r"
    now = Run()
    OF_JOURNAL[name](now)
    with pytest.raises(UsageError) as error:
        Journal(tmp_path, now.identity, "s", resume=True)
    said = str(error.value)
    assert said.startswith(f"{tmp_path}/journal.jsonl: cannot resume: {name} has changed since")
    assert said.endswith(": leave out --resume to begin anew") and said.isprintable()


def test_a_journal_that_holds_more_or_less_is_not_gone_on_with(tmp_path: Path) -> None:
    """Of another version say, which compares something else."""
    whole = Run().identity
    for then, now in ((whole | {"more": "1"}, whole), (whole, whole | {"more": "1"})):
        Journal(tmp_path, then, "r", resume=False).close()
        with pytest.raises(UsageError, match="more has changed since"):
            Journal(tmp_path, now, "r", resume=True)


def test_a_budget_may_be_another(tmp_path: Path) -> None:
    more = Run()
    more.plan.budget = 1e6
    assert more.identity == Run().identity


OF_SOURCES = OF_SIDES | {
    "the commit of base": setting("commits.base", "3" * 40),
    "the commit of head": setting("commits.head", "3" * 40),
}
OF_MACHINE = ENVIRONMENT | {
    "the model of cuda": setting("facts.devices.cuda", "NVIDIA H100"),
    "the model of cpu": setting("devices", ["cuda"]),
    "the version of python": setting("facts.python", "3.9"),
    "the version of torch": setting("facts.torch", "2.9"),
    "the version of cuda": setting("facts.cuda", "13"),
}


def sources_of(run: Run) -> dict[str, Any]:
    return of_sources(run.sources, run.sides)  # type: ignore[arg-type]


def machine_of(run: Run) -> dict[str, Any]:
    return of_machine(run.facts, run.devices, run.environments)


@pytest.mark.parametrize(("of", "table"), [(sources_of, OF_SOURCES), (machine_of, OF_MACHINE)])
def test_no_shard_is_measured_where_one_fact_is_not_that_of_the_plan(of, table) -> None:
    then = json.loads(json.dumps(marks(of(Run()))))
    assert then.keys() == table.keys()
    require_planned(then, of(Run()))
    for name, change in table.items():
        now = Run()
        change(now)
        with pytest.raises(UsageError) as error:
            require_planned(then, of(now))
        said = str(error.value)
        assert said.startswith(f"--shard: {name} is not that of the plan"), said
        assert "measure what was planned, or make a new plan" in said and said.isprintable()


def test_a_device_that_was_not_planned_is_refused() -> None:
    less = Run(devices=["cuda"])
    with pytest.raises(UsageError, match=r"the model of cpu is not that of the plan \(nothing, here AMD\)"):
        require_planned(marks(machine_of(less)), machine_of(Run()))


def command(key: str, of: str) -> Case:
    return case(key, device="cpu").model_copy(update={"origin": "command", "kernel": of})


def test_no_shard_is_measured_where_one_case_is_not_that_of_the_plan() -> None:
    first = planned(Shard(shared(), 1))
    own = [case("a"), command("x", "tool")]
    assert require_cases(first, own) == own
    for cases, said in (
        (own[:1], r"x@cpu is not that of the plan \(tool, here nothing\)"),
        (own[1:], r"a@cuda is not that of the plan \(none, here nothing\)"),
        ([*own, case("b")], r"b@cuda is not that of the plan \(nothing, here none\)"),
        ([*own, command("y", "other")], r"y@cpu is not that of the plan \(nothing, here other\)"),
        ([own[0], command("x", "other")], r"x@cpu is not that of the plan \(tool, here other\)"),
        ([own[0], case("x", device="cpu")], r"x@cpu is not that of the plan \(tool, here none\)"),
    ):
        with pytest.raises(UsageError, match=f"--shard: the case {said}"):
            require_cases(first, cases)


# ---------------------------------------------------------------- sides that were prepared


@dataclass
class Built:
    """A repository of two commits, and its sides in a folder."""

    repo: Repo
    request: Request
    folder: Path

    def document(self, change: Callable[[dict[str, Any]], object]) -> None:
        file = self.folder / prepared.MANIFEST
        told = json.loads(file.read_text())
        change(told)
        file.write_text(json.dumps(told))


@pytest.fixture
def built(tmp_path: Path) -> Built:
    repo, folder = Repo(tmp_path / "repo", dict(os.environ)), tmp_path / "prepared"
    folder.mkdir()
    for number in (1, 2):
        repo.write("perfci.yaml", f"version: 1\nsuite: [k.py]\nbudget: {number}m\n")
        repo.write("k.py", f"# {number}\n")
        repo.commit()
    request = Request.of("compare", repo.root, tmp_path / "out", base="main~1", python=sys.executable)
    sources = find_sources(request)
    made = materialise(request, sources, folder, Quiet(), 0)
    for side in made.values():
        (side.site / "it.so").write_text("built")
    prepared.write(request, sources, made, 0.0, folder)
    return Built(repo, request, folder)


def moved(of: Built) -> None:
    of.folder = of.folder.rename(of.folder.with_name("elsewhere"))


def committed(of: Built) -> None:
    of.repo.commit("more")
    of.request = of.request.but(base="main~2")
    of.document(lambda told: told["asked"].update(marks({"BASE": "main~2"})))


def committed_base(of: Built) -> None:
    of.repo.git("tag", "v1", "main~1")
    of.document(lambda told: told["sides"]["base"]["info"].update(commit="4" * 40))


OF_PREPARED: dict[str, Callable[[Built], object]] = {
    "its folder": moved,
    "the command (run or compare)": asking(mode="run"),
    "BASE": asking(base="main~0"),
    "HEAD": asking(head="main~1"),
    "the set of --env": asking(env={"head": {"A": "1"}}),
    "--committed": asking(committed=True),
    "the pull request": asking(pull_request=True),
    "the set of --only": asking(only=["src/**"]),
    "the set of sides": lambda of: of.document(lambda told: told["sides"].pop("base")),
    "the interpreter of base": asking(base_python="/bin/sh"),
    "the interpreter of head": asking(python="/bin/sh", base_python=sys.executable),
    "base/tree/k.py": lambda of: (of.folder / "base/tree/k.py").write_text("# other"),
    "head/site/it.so": lambda of: (of.folder / "head/site/it.so").unlink(),
    "the commit of base": committed_base,
    "the commit of head": committed,
    "the policy of base": lambda of: of.document(
        lambda told: told["sides"]["base"].update(policy="version: 1\nsuite: [k.py]\n")
    ),
    "the policy of head": lambda of: of.repo.write("perfci.yaml", "version: 1\nsuite: [k.py]\nbudget: 9m\n"),
    "the working tree": lambda of: of.repo.write("new.py", ""),
}


def test_what_was_prepared_is_taken_as_it_was_prepared(built: Built, tmp_path: Path) -> None:
    _, sides, _ = prepared.load(built.request, built.folder, tmp_path)
    assert [*sides] == ["base", "head"]
    (built.folder / "head/tree/__pycache__").mkdir()
    (built.folder / "head/tree/__pycache__/k.pyc").write_text("of an earlier measurement")
    prepared.load(built.request, built.folder, tmp_path / "more")


@pytest.mark.parametrize("name", OF_PREPARED)
def test_what_was_prepared_is_not_taken_where_one_fact_is_another(name: str, built: Built, tmp_path: Path) -> None:
    OF_PREPARED[name](built)
    with pytest.raises(UsageError) as error:
        prepared.load(built.request, built.folder, tmp_path)
    said = str(error.value)
    assert said.startswith(f"{built.folder}: {name} has changed since it was prepared"), said
    assert said.endswith(": prepare it again") and said.isprintable()


def test_what_another_perfci_prepared_is_not_taken(built, tmp_path, monkeypatch):
    monkeypatch.setattr(perfci, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"perfci's version has changed since .*, here 0\.0\.1\): prepare it again"):
        prepared.load(built.request, built.folder, tmp_path)
    told = json.loads((built.folder / prepared.MANIFEST).read_text())
    assert {"perfci's version"} == told["asked"].keys() - OF_PREPARED.keys()


# ---------------------------------------------------------------- builds that are kept


class Tells:
    """A parent whose tools tell a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def execute(self, argv: list[str], *, log: Path, **_: object) -> Exit:
        log.write_text(self.text)
        return Exit(0, None, 0.0)


def test_the_key_of_a_kept_build_depends_on_each_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    def key(
        tools: str = "gcc 12", folder: str = "base", python: str = "/usr/bin/python3", tree: str = "t", **more
    ) -> str:
        side = SideWork(
            "base", SideCode(tree=tree), Policy(version=1, suite=["k.py"], **more), tmp_path / folder, python
        )
        parent: Any = Tells(tools)
        found = kept.key_of(side, parent, tmp_path / "log")
        assert found is not None
        return found

    def told(path: str, *begins: str) -> list[str]:
        return [*plain(path, *begins), "another"] if path == other else plain(path, *begins)

    first, plain, other = key(), kept._lines, ""
    assert key() == first
    found = [
        key("gcc 13"), key(folder="elsewhere"), key(python="/opt/python"), key(tree="u"), key(build=["make"]),
        key(env={"ARCH": "90"}),
    ]  # fmt: skip
    for holder, name, value in (
        (perfci, "__version__", "0"),
        (platform, "machine", lambda: "z80"),
        (kept, "_gpus", lambda: ["Model: another"]),
        (kept.os.path, "realpath", lambda path: "/opt/python3.13"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(holder, name, value)
            found.append(key())
    monkeypatch.setattr(kept, "_lines", told)
    for other in ("/proc/cpuinfo", "/etc/os-release", "/proc/driver/nvidia/version"):  # noqa: B007  # read by `told`
        found.append(key())
    assert len({first, *found}) == 1 + len(found)
