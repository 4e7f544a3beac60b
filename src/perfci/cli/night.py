"""`perfci history plan` and `perfci history measure`: a night's comparisons."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import typer

from perfci.cli.measure import folders, measure, read_request
from perfci.cli.output import tell
from perfci.cli.progress import Console
from perfci.github.event import surroundings
from perfci.history.document import Reference
from perfci.history.plan import NightPlan, plan_night
from perfci.history.store import open_store
from perfci.measure.prepare import policy_of
from perfci.measure.request import Request
from perfci.model.base import PerfciError, UsageError
from perfci.model.criteria import Purpose
from perfci.model.policy_text import FILE
from perfci.model.text import chosen, escaped, short
from perfci.sources.git import Repository
from perfci.system.bounded import read_document
from perfci.system.files import disk_errors, remove_tree, write_atomic
from perfci.system.users import keep_outputs

NIGHT = "night.json"
"""The plan, in --out."""
ALONE = "alone"
"""Folder of a first night's run, without a release; comparisons' are called as their purpose."""
_FOLDERS: tuple[str, ...] = ("last", "reference", "seam", ALONE)
_LARGEST = 2**20


class Comparison(NamedTuple):
    """A comparison of a night."""

    folder: str
    request: Request
    words: str
    """For people."""


def tell_plan(store: str, where: Path) -> NoReturn:
    """Print a night's plan as one line of JSON."""
    plan = read_night(_repository(where), store)
    typer.echo(plan.model_dump_json())
    raise typer.Exit(0)


def measure_night(store: str | None, plan_file: Path | None, **asked: Any) -> NoReturn:
    """Make a night's comparisons. Ends with the worst exit code."""
    if (store is None) == (plan_file is None):
        raise UsageError("--store and --plan: give one: the store itself, or what `perfci history plan` says of it")
    where, out = folders(asked["where"], asked.pop("out"))
    repo = _repository(where)
    plan = read_night(repo, store) if store is not None else _read_plan(plan_file or Path(), repo)
    request = read_request("compare", keeps=True, out=out, **asked).but(committed=True, keep=None)
    for note in plan.notes if store is None else ():
        _say(note)
    with keep_outputs(out, where), disk_errors("prepared", out):
        out.mkdir(parents=True, exist_ok=True)
        _require_ours(out)
        write_atomic(out / ".gitignore", "*\n")
        for name in _FOLDERS:
            remove_tree(out / name)  # of the night before: none of it may be taken for this one's
        write_atomic(out / NIGHT, plan.model_dump_json(indent=1) + "\n")
    console, codes, ends = Console(stderr=True), [0], []
    for one in comparisons(repo, plan, request, _as_given(asked, where)):
        _say(f"{one.words}: {one.folder}/")
        try:
            done = measure(one.request, console)
        except PerfciError as error:  # nothing of it was measured; what the others say is worth having
            _say(str(error))
            ends.append(f"{one.words}: error: {error}")
            codes.append(error.exit_code)
            continue
        if not isinstance(done.problem, UsageError) and one.folder != "seam":
            tell(done.report, one.request.where.out, done.files)
        seam = one.folder == "seam"  # two references are not judged, and may differ
        codes.append(0 if seam and done.exit_code == 1 else done.exit_code)
        verdict = "measured" if seam else f"{done.report.verdict}: {done.report.sentence}"
        ends.append(f"{one.words}: {verdict if done.problem is None else done.words}")
        if isinstance(done.problem, KeyboardInterrupt):
            break
    typer.echo("")
    for line in ends:
        typer.echo(line)
    raise typer.Exit(max(codes))


def _require_ours(out: Path) -> None:
    if not (out / NIGHT).is_file() and (found := [name for name in _FOLDERS if os.path.lexists(out / name)]):
        raise UsageError(f"--out {out}: holds {found[0]}, which is of no night: name another folder, or a new one")


def _as_given(asked: Mapping[str, Any], where: Path) -> list[str]:
    valued = [(name, asked.get(name)) for name in ("budget", "python")]
    words = [word for device in asked.get("device") or [] for word in ("--device", device)]
    words += [word for name, value in valued if value for word in (f"--{name}", str(value))]
    words += ["--repo", str(where)] if where != Path.cwd() else []
    return [*words, *chosen(asked.get("cases") or [])]


def comparisons(repo: Repository, plan: NightPlan, request: Request, more: Sequence[str]) -> Iterator[Comparison]:
    """Yield the comparisons of a plan.

    `request`: of all; `more`: the end of each command line.
    """
    judged = [one for one in (plan.last, plan.reference) if one is not None]
    if not judged:
        command = ["perfci", "run", "--committed", *more]
        alone = request.but(mode="run", out=request.where.out / ALONE, command=command)
        yield Comparison(ALONE, alone, "main alone")

    def against(purpose: Purpose, base: str, head: str, words: str) -> Comparison:
        creep = ["--creep"] if purpose == "reference" else []
        made = request.but(
            out=request.where.out / purpose,
            commits=(base, head),
            purpose=purpose,
            comparisons=1 if purpose == "seam" else len(judged),
            command=["perfci", "compare", base, "--committed", *creep, *more],
        )
        return Comparison(purpose, made, words)

    if plan.last is not None:
        yield against("last", plan.last.sha, "HEAD", f"against {short(plan.last.sha)}, recorded last")
    if plan.reference is not None:
        base = _named(repo, plan.reference)
        yield against("reference", base, "HEAD", f"against the reference {escaped(plan.reference.name, 200)}")
        if plan.seam is not None:
            old, words = _named(repo, plan.seam), escaped(plan.seam.name, 200)
            yield against("seam", old, base, f"{escaped(plan.reference.name, 200)} against {words}, the one before")


def read_night(repo: Repository, store: str) -> NightPlan:
    """Return the plan by a store, and say what that leaves out. Raises UsageError, MachineError."""
    head = repo.commit("HEAD")
    policy = policy_of(repo, head)
    if policy is None:
        raise UsageError(f"{short(head.sha)}: has no {FILE}: write one with `perfci init`, and commit it")
    opened = open_store(store, repo.root)
    here = surroundings(os.environ)
    nights = (night for _, night in opened.read(reversed(opened.names())))
    if here is not None:  # an attempt before is of this very commit, and would hide what it found
        nights = (night for night in nights if not night.run.startswith(f"{here.GITHUB_RUN_ID}."))
    plan = plan_night(repo, policy, nights)
    for fault in opened.faults:
        _say(f"{escaped(store, 200)}: {fault.name}: {fault.reason}")
    for note in plan.notes:
        _say(note)
    return plan


def read_measured(folder: Path) -> tuple[NightPlan, dict[str, Path]]:
    """Return a night's plan, and its comparisons' folders with a report. Raises UsageError."""
    made_by = "`perfci history measure` makes this folder"
    plan = read_document(folder / NIGHT, NightPlan, _LARGEST, "plan of a night", made_by)
    found = {name: folder / name for name in _FOLDERS if (folder / name / "report.json").is_file()}
    if not (found.keys() - {"seam"}):
        raise UsageError(f"{folder}: none of its comparisons has a report: see what `perfci history measure` said")
    return plan, found


def _read_plan(file: Path, repo: Repository) -> NightPlan:
    shown, made_by = f"--plan {file}", "`perfci history plan` makes one"
    plan = read_document(file, NightPlan, _LARGEST, "plan of a night", made_by, shown)
    head = repo.commit("HEAD").sha
    if plan.head.sha != head:
        raise UsageError(f"--plan {file}: is of {short(plan.head.sha)}, and {short(head)} is checked out: make it anew")
    return plan


def _repository(where: Path) -> Repository:
    repo = Repository.find(where)
    if repo is None:
        raise UsageError(f"{escaped(where)}: not a git repository: a night compares commits of one")
    return repo


def _named(repo: Repository, reference: Reference) -> str:
    try:
        return reference.name if repo.commit(reference.name).sha == reference.commit.sha else reference.commit.sha
    except UsageError:
        return reference.commit.sha


def _say(text: str) -> None:
    typer.echo(f"perfci: {text}", err=True)
