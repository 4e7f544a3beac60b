"""`perfci ci`: one job of GitHub Actions."""

import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from perfci.cli.container import measure_in_container
from perfci.cli.measure import Finished, measure, read_machine
from perfci.cli.output import tell
from perfci.cli.progress import Console
from perfci.cli.report import read_results
from perfci.cli.shards import as_planned, told, write_plan
from perfci.github import event, workflow
from perfci.github.artifact import MEMBER, Unfit
from perfci.github.checkout import BaseOfHead, bringing_nothing, changed_files, find_base, require_no_secret
from perfci.github.raw import clear, collect, sift
from perfci.github.settings import PREFIX, Settings, artifact_name, read_settings, require_one_job
from perfci.github.thin import fit
from perfci.measure.prepare import policy_of
from perfci.measure.request import ANEW, OUT, WAIT, Request
from perfci.measure.shards.document import PLAN, Shard, SharedPlan, read_plan
from perfci.measure.shards.merge import begun
from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.model.claims import CLAIM_LINE, Claim
from perfci.model.publication import Publication
from perfci.model.publication import Shard as Published
from perfci.model.results import UNMEASURED, Results
from perfci.model.text import chosen, count, listed, short
from perfci.render.comment import render_summary
from perfci.render.escape import code, prose
from perfci.render.view import ICONS
from perfci.sources.environment import is_secret
from perfci.sources.git import Repository
from perfci.system.files import disk_errors, write_atomic

_RUNNERS = ("ACTIONS_", "GITHUB_", "INPUT_", "RUNNER_", "PERFCI_MATRIX", "PERFCI_JOB_", "PERFCI_EARLIER", PREFIX)
"""Beginnings of this job's variables, which code under test never gets, not even by `pass_env`."""
_MOST_FILES = 20


@dataclass(frozen=True)
class JobAnswer:
    """The job's answer to the workflow."""

    verdict: str
    """Empty for a plan, and for a shard measured before."""
    code: int
    summary: str
    """Markdown."""
    failing: int = 0
    annotations: list[str] = field(default_factory=list)
    out: Path | None = None
    artifact: str = ""
    """Empty where there is nothing to upload."""
    raw: Path | None = None
    """The folder of profilers' reports to hand on."""
    shards: list[str] = field(default_factory=list)
    """The parts of a new plan, such as `1/4`."""


def run_job() -> None:
    """Do the job. Ends the process with its exit code."""
    env = without_secrets()
    files = workflow.Files(env)
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())  # one stream: the runner mixes two in any order
    with workflow.quiet(sys.stdout):
        try:
            answer = gate(env)
        except PerfciError as error:
            answer = _error(str(error), error.exit_code)
        except KeyboardInterrupt:
            answer = _error("interrupted before anything was measured", MachineError.exit_code)
        except Exception as error:  # noqa: BLE001  # it is told, and is an answer
            # Told here, where nothing of its text, which may be the code's under test, is a command to the runner.
            typer.echo(traceback.format_exc())
            text = f"internal error: {type(error).__name__}: please report it with what stands above it in the log"
            answer = _error(text, MachineError.exit_code)
        finally:
            changed = files.restore()
        if changed:
            typer.echo(f"perfci: the code under test wrote into {', '.join(changed)}: undone")
    for command in answer.annotations:
        workflow.tell(command, sys.stdout)
    files.summary([answer.summary, "The summary is larger than GitHub takes: see report.md in the artifact.\n"])
    files.outputs(
        {
            "verdict": answer.verdict,
            "regressions": str(answer.failing),
            "report-path": str(answer.out or ""),
            "artifact-name": answer.artifact,
            "exit-code": str(answer.code),
        }
        | ({"raw-path": str(answer.raw)} if answer.raw is not None else {})
        | ({"shards": json.dumps(answer.shards)} if answer.shards else {})
    )
    raise typer.Exit(answer.code)


def sift_reports(folder: Path) -> None:
    """Remove reports with secrets, and name the folder where any is left.

    A step of its own: it starts nothing of the change.
    """
    files, reports = workflow.Files(os.environ), sift(folder, os.environ)
    for line in reports.left:
        workflow.tell(workflow.annotation("warning", f"not handed on: {line}", title="perfci"), sys.stdout)
    typer.echo(f"perfci: reports of profilers for an artifact of their own: {', '.join(reports.names) or 'none'}")
    files.outputs({"path": str(reports.folder or "")})


def without_secrets() -> dict[str, str]:
    """Return the environment, its runner's part then hidden from its processes.

    With a secret in it, or where Python could import from the checkout, the process first starts itself anew without:
    /proc shows what a process was started with.
    """
    env = dict(os.environ)
    clean = scrubbed(env)
    if clean != env or not sys.flags.isolated:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-I", "-m", "perfci", *sys.argv[1:]], clean)
    for name in env:
        if name.startswith(_RUNNERS):
            del os.environ[name]
    return env


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` without secrets; for untrusted code without any value resembling one."""
    try:
        trusted = event.load(env).trusted
    except UsageError:
        trusted = False
    return {
        name: value
        for name, value in env.items()
        if not (is_secret(name, "" if trusted else value) or name.startswith("ACTIONS_"))
    }


@dataclass(frozen=True)
class _Job:
    env: Mapping[str, str]
    settings: Settings
    context: event.Context
    repo: Repository
    shard: Shard | None
    """The part of a plan to measure; None for a whole comparison, and for its plan."""
    artifact: str
    out: Path


def gate(env: Mapping[str, str]) -> JobAnswer:
    """Measure what the event asks for, if needed. Raises PerfciError."""
    job = _read(env)
    asked = _decide(job)
    return asked if isinstance(asked, JobAnswer) else _do(job, asked)


def _read(env: Mapping[str, str]) -> _Job:
    settings, context = read_settings(env), event.load(env)
    if context.privileged:
        raise UsageError(
            f"event {env.get('GITHUB_EVENT_NAME')}: has rights that code of a pull request must not have: measure on "
            "`pull_request`, and let only the publishing action run on this event"
        )
    if settings.publish == "here":
        event.require_own(context)
        require_one_job(env)
    if settings.raw == "true" and not env.get("RUNNER_TEMP"):
        raise UsageError("input raw: RUNNER_TEMP is not set: outside of GitHub Actions use perfci profile --raw")
    if settings.cache and settings.container != "none":
        raise UsageError("input cache: no image of `container:` sees it: let the job itself run in a container of it")
    where = Path.cwd()
    repo = Repository.find(where)
    if repo is None:
        raise UsageError(f"checkout: {where} is in no git repository: run actions/checkout first")
    require_no_secret(repo.root)
    clear(where / OUT)  # of an earlier job in the same workspace
    shard = Shard.parse(read_plan(Path(settings.plan)), settings.shards) if settings.plan else None
    return _Job(env, settings, context, repo, shard, artifact_name(settings, env), where / OUT)


def _decide(job: _Job) -> JobAnswer | Request:
    settings, context, repo, shard = job.settings, job.context, job.repo, job.shard
    if shard is not None and (stands := _stands(shard, job.env)) is not None:
        return stands
    compared = find_base(repo, context, settings.base if shard is None else _base_of(shard.plan))
    if settings.planned and compared is None:
        raise UsageError(
            f"input shards: this {context.origin.event} is compared with nothing, and only a comparison is shared out: "
            "name a base, or measure in one job, without shards"
        )
    if compared is not None and shard is None:
        policy, changed = policy_of(repo, compared.base), changed_files(repo, compared.base.sha)
        if policy is not None and policy.ignores(changed):
            return _unmeasured(_satisfied(changed), job)
        if (commit := bringing_nothing(repo, context, compared, settings.base)) is not None:
            return _unmeasured(_without_own_commits(short(commit), compared.name), job)
    request = _request(settings, context, job.out, compared)
    if shard is not None:
        return as_planned(request, shard, Path(settings.plan)).but(command=shard.plan.command)
    keeps = settings.cache and event.of_default_branch(context, job.env)
    return request.but(keep="head") if keeps else request


def _do(job: _Job, request: Request) -> JobAnswer:
    settings = job.settings
    if settings.planned:
        return _plan(settings.planned, job, request)
    if settings.container == "none":
        outcome = measure(request, Console(stderr=True))
        tell(outcome.report, job.out, outcome.files)
    else:
        words = _words(settings, request)
        outcome = measure_in_container(request, words, settings.container, trusted=job.context.trusted)
    answer = _answer(outcome, settings, job.context, job.out, job.artifact)
    return replace(answer, raw=_reports(job.out, Path(job.env["RUNNER_TEMP"]))) if request.how.raw else answer


def _base_of(plan: SharedPlan) -> str:
    if plan.what.pull_request:
        return ""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", plan.base or ""):
        raise UsageError(f"input plan: names no commit as base: {ANEW}")
    return plan.base or ""


def _stands(shard: Shard, env: Mapping[str, str]) -> JobAnswer | None:
    """None where it is to be measured. `PERFCI_EARLIER` names the folder of earlier attempts' artifacts.

    Raises UsageError for a shard begun there.
    """
    earlier = _handed_over(shard, env)
    if any(results.error is None for results in earlier):
        said = f"{shard.words} was measured in an earlier attempt, and is measured once: what was measured stands"
        typer.echo(f"perfci: {said}")
        return JobAnswer("", 0, f"### Measured before\n\n{prose(said, 1000)}. `Re-run all jobs` makes a new plan.\n")
    if any(begun(results) for results in earlier):
        raise UsageError(
            f"{shard.words} has begun in an earlier attempt, and would be measured twice: `Re-run all jobs` makes a "
            "new plan"
        )
    return None


def _handed_over(shard: Shard, env: Mapping[str, str]) -> list[Results]:
    if not env.get("PERFCI_EARLIER"):
        return []
    folder, handed = Path(env["PERFCI_EARLIER"]), []
    # actions/download-artifact makes a folder for each of several artifacts, and none where there is one.
    for file in [*folder.glob("results.json"), *sorted(folder.glob("*/results.json"))]:
        try:
            results = read_results(file)
        except UsageError as error:
            typer.echo(f"perfci: earlier attempts: {error}")
            continue
        if results.part is not None and (results.part.plan, results.part.shards) == (shard.plan.digest, [shard.number]):
            handed.append(results)
    return handed


def _plan(shards: int, job: _Job, request: Request) -> JobAnswer:
    out = _made(job.out)
    plan = write_plan(request, shards, out / PLAN)
    if not isinstance(plan, SharedPlan):
        return _answer(plan, job.settings, job.context, out, job.artifact)
    lines = told(plan)
    for line in lines:
        typer.echo(f"perfci: {line}")
    summary = "\n".join(["### Planned, and nothing measured yet", "", *(f"- {line}" for line in lines)]) + "\n"
    parts = [f"{number}/{shards}" for number in range(1, shards + 1)]
    return JobAnswer("", 0, summary, out=out, artifact=job.artifact, shards=parts)


def _made(out: Path) -> Path:
    with disk_errors("written", out):
        out.mkdir(exist_ok=True)
        for name in ("results.json", UNMEASURED):
            (out / name).unlink(missing_ok=True)
    return out


def _reports(out: Path, temporary: Path) -> Path | None:
    reports = collect(out, temporary)
    for line in reports.left:
        typer.echo(f"perfci: raw: not handed on: {line}")
    if reports.folder is None:
        typer.echo("perfci: raw: no profiler has left a report that can be handed on")
    return reports.folder


def _request(settings: Settings, context: event.Context, out: Path, compared: BaseOfHead | None) -> Request:
    stranger = event.why_stranger(context) if settings.raw == "true" else ""
    if stranger:
        typer.echo(f"perfci: raw: reports of profilers are not handed on: {stranger}")
    claims = _claims(settings, context) if compared else {}
    machine = read_machine({WAIT: os.environ.get(WAIT, "")})
    return Request.of(
        "compare" if compared else "run",
        out.parent,
        out,
        **machine,
        **claims,
        base=compared.ref if compared else None,
        pull_request=compared.merge if compared else False,
        models=settings.models,
        cases=settings.cases,
        devices=settings.device or None,
        python=settings.python or None,
        cache=Path(settings.cache).resolve() if settings.cache else None,
        own_python=shutil.which("python3") or shutil.which("python") or sys.executable,  # which has the job's torch
        committed=True,
        counters=context.trusted,
        raw=settings.raw == "true" and not stranger,
        command=_command(settings, compared is not None),
    )


def _claims(settings: Settings, context: event.Context) -> dict[str, Any]:
    """One that cannot be read is only told."""
    if not context.claim:
        return {}
    try:
        claim = Claim.parse(context.claim)
    except ValueError as error:
        typer.echo(f"perfci: the description's {CLAIM_LINE} {error}")
        return {}
    if settings.planned or settings.plan:
        typer.echo(f"perfci: the description's {CLAIM_LINE} is not measured in shards")
        return {}
    return {"claims": [claim], "described": context.claim}


def _words(settings: Settings, request: Request) -> list[str]:
    what, how = request.what, request.how
    words = how.command[2:]
    words += [f"--base={what.base}"] if what.base else []
    words += ["--pull-request"] if what.pull_request else []
    words += ["--raw"] if how.raw else []
    words += [f"--described={what.described}"] if what.described else []
    return [*words, *([f"--python={settings.python}"] if settings.python else [])]


def _command(settings: Settings, compares: bool) -> list[str]:
    words = ["perfci", "compare" if compares else "run", "--committed"]
    for device in settings.device:
        words += ["--device", device]
    return [*words, *chosen(settings.cases)]


def _answer(outcome: Finished, settings: Settings, context: event.Context, out: Path, artifact: str) -> JobAnswer:
    report, ends = outcome.report, outcome.exit_code
    if outcome.problem is not None:
        typer.echo(f"perfci: {outcome.words}")
        notes = [workflow.annotation("error", outcome.words, title="perfci")]
    elif report.verdict == "error":
        notes = [workflow.annotation("error", report.sentence, title="perfci")]
    else:
        notes = [] if settings.publish == "true" else workflow.annotations(report)  # the check run has them
    if settings.publish == "true" and ends == 1:
        typer.echo("perfci: the gate fails, which the publishing job says")
        ends = 0
    notes += _fit(out / MEMBER)
    publication = Publication(suite=settings.suite, origin=context.origin, shards=[Published(report=report)])
    failing = {(row.case, row.device) for row in report.rows if row.effect == "fail"}
    return JobAnswer(report.verdict, ends, render_summary(publication) + "\n", len(failing), notes, out, artifact)


def _fit(file: Path) -> list[str]:
    with disk_errors("read", file):
        content = file.read_bytes()
    try:
        fitted, note = fit(content)
    except Unfit as why:
        line = f"no publishing job will take what was measured, which {why}: where it is too much, share the cases out"
        typer.echo(f"perfci: {line}")
        return [workflow.annotation("warning", line, title="perfci")]
    if fitted != content:
        write_atomic(file, fitted)
    if note:
        typer.echo(f"perfci: {MEMBER}: {note[0].lower()}{note[1:]}")
    return []


def _unmeasured(answer: JobAnswer, job: _Job) -> JobAnswer:
    out = _made(job.out)
    write_atomic(out / UNMEASURED, json.dumps({"version": 1, "verdict": answer.verdict}) + "\n")
    return replace(answer, out=out, artifact=job.artifact)


def _satisfied(changed: list[str]) -> JobAnswer:
    said = f"base's `ignore` names every changed file ({count(len(changed), 'file')})"
    typer.echo(f"perfci: passed without measuring: {said}")
    shown = listed([code(path) for path in changed], _MOST_FILES)
    return JobAnswer("pass", 0, f"### ✅ Passed without measuring\n\n{said[0].upper()}{said[1:]}: {shown}.\n")


def _without_own_commits(head: str, base: str) -> JobAnswer:
    typer.echo(f"perfci: nothing to compare, and nothing was measured: {base} holds every commit of {head}")
    said = f"{code(head)} has no commit of its own, {code(base)} holds them all. Nothing was measured: this is no pass."
    return JobAnswer("undecided", 0, f"### {ICONS['undecided']} Nothing to compare\n\n{said}\n")


def _error(text: str, ends: int) -> JobAnswer:
    typer.echo(f"perfci: {text}")
    said = workflow.annotation("error", text, title="perfci")
    return JobAnswer("error", ends, f"### ⛔ Nothing was judged\n\n{prose(text, 1000)}\n", annotations=[said])
