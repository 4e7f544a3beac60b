"""`perfci run`, `perfci compare` and `perfci calibrate`."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn, get_args

import typer

from perfci.cli.options import known_cases
from perfci.cli.output import tell, tell_files, write_all
from perfci.cli.progress import Console, Teller
from perfci.cli.proposal import propose
from perfci.judge.judge import judge
from perfci.measure.calibrate.forecast import CALIBRATION
from perfci.measure.calibrate.trials import conclude, ready
from perfci.measure.environments import parse_variables
from perfci.measure.journal import gone_on
from perfci.measure.place import prepare_sides
from perfci.measure.request import CACHE, COMMAND, KEEP, OUT, SEED, WAIT, Request
from perfci.measure.run import Measurement, failed_results
from perfci.model.base import DeviceKind, MachineError, PerfciError, UsageError
from perfci.model.claims import Claim
from perfci.model.policy import Traced
from perfci.model.policy_text import FILE
from perfci.model.report import Report
from perfci.model.results import Results
from perfci.model.text import did_you_mean, escaped
from perfci.model.units import parse_duration
from perfci.render import calibration as rendered
from perfci.sources.git import Repository
from perfci.system.files import write_atomic
from perfci.system.users import keep_outputs

_AS_ASKED = (
    "base", "head", "quick", "resume", "committed", "pull_request", "counters", "strict", "profile", "raw",
)  # fmt: skip
"""Fields of a request that are the command line's."""
CALIBRATION_FILES = ("calibration.md", "calibration.json", "results.json", "samples.jsonl", "logs/")


@dataclass(frozen=True)
class Finished:
    """A measurement written to its folder."""

    report: Report
    problem: PerfciError | KeyboardInterrupt | None
    files: Sequence[str] = ()
    """Shown to people."""

    @property
    def exit_code(self) -> int:
        """The problem's, else the report's."""
        if self.problem is None:
            return self.report.exit_code
        return self.problem.exit_code if isinstance(self.problem, PerfciError) else MachineError.exit_code

    @property
    def words(self) -> str:
        """The problem in one line."""
        if not isinstance(self.problem, KeyboardInterrupt):
            return str(self.problem)
        return "interrupted: go on with --resume" if "--resume" in self.report.advised else "interrupted"


def measure_and_report(mode: Literal["run", "compare"], **asked: Any) -> None:
    """Do one whole job. Ends the process."""
    request = gone_on(read_request(mode, keeps=True, **asked))
    if request.where.prepare is not None:
        prepare(request, request.where.prepare, Console(stderr=True, quiet=asked.get("json", False)))
        raise typer.Exit(0)
    tell_measured(request, json=asked.get("json", False))


def tell_measured(request: Request, *, json: bool = False) -> NoReturn:
    """Measure, judge, write and tell."""
    outcome = measure(request, Console(stderr=True, quiet=json))
    if json and isinstance(outcome.problem, UsageError | KeyboardInterrupt):
        raise outcome.problem  # which is told as JSON, too
    try:
        if not isinstance(outcome.problem, UsageError):  # which is one line, and nothing was measured
            tell(outcome.report, request.where.out, outcome.files, json=json)
    finally:  # Ctrl-C ends those too who read stdout
        if outcome.problem is not None and not json:
            typer.echo(f"perfci: {outcome.words}", err=True)
    raise typer.Exit(outcome.exit_code)


def measure(request: Request, console: Console) -> Finished:
    """Measure, judge and write. Raises PerfciError where there is nothing to write."""
    signal.signal(signal.SIGTERM, interrupt)
    out, strict = request.where.out, request.how.strict
    problem: PerfciError | KeyboardInterrupt | None = None
    with keep_outputs(out, request.where.repository) as outputs:
        with Teller(console, partial(by_times, strict=strict)) as teller:
            measurement = Measurement(request, teller, partial(_tell_times, teller, strict))
            try:
                results = measurement.measure()
            except (PerfciError, KeyboardInterrupt) as error:
                kept = failed_results(measurement, error)
                if kept is None:
                    raise
                results, problem = kept, error
        outputs.require()  # nothing of the code under test runs any more
        report = judge(results, strict=strict)
        return Finished(report, problem, write_all(out, report, results))


def by_times(results: Results, *, strict: bool) -> Report:
    """Return what pairs alone tell."""
    return judge(results, strict=strict, criteria=results.plan.timed)


def _tell_times(teller: Teller, strict: bool, results: Results) -> None:
    if results.plan.timed:
        report = by_times(results, strict=strict)
        teller.note(f"{report.verdict.upper()} by times alone: {report.sentence}")
    teller.stage("profiling")


def calibrate_machine(pairs: int | None, *, json: bool, **asked: Any) -> None:
    """Measure HEAD against itself, conclude, keep, tell. Ends the process with its exit code."""
    request = read_request("compare", committed=True, **asked)
    out = request.where.out / CALIBRATION
    request, notes = ready(gone_on(request.but(out=out, exact_pairs=pairs)))
    signal.signal(signal.SIGTERM, interrupt)
    with keep_outputs(out.parent, request.where.repository) as outputs:
        with Teller(Console(stderr=True)) as teller:
            measurement = Measurement(request, teller)
            try:
                results = measurement.measure()
            except KeyboardInterrupt:
                if measurement.results is None:  # nothing is kept yet
                    raise
                raise MachineError("interrupted: go on with --resume") from None
        outputs.require()  # nothing of the code under test runs any more
        write_atomic(out / "results.json", results.model_dump_json(indent=1) + "\n")
        calibration = conclude(results, notes=notes)
        write_atomic(out / "calibration.json", calibration.model_dump_json(indent=1) + "\n")
        write_atomic(out / "calibration.md", rendered.render(calibration))
    if json:
        typer.echo(calibration.model_dump_json(indent=1))
    else:
        rendered.print_calibration(calibration, Console())
        tell_files(out, [name for name in CALIBRATION_FILES if (out / name).exists()])
    raise typer.Exit(calibration.exit_code)


def prepare(request: Request, folder: Path, console: Console) -> None:
    """Build base and head into `folder`, for `--prepared`. Raises PerfciError."""
    signal.signal(signal.SIGTERM, interrupt)
    with Teller(console) as teller, keep_outputs(request.where.out, request.where.repository):
        sides = prepare_sides(request, folder, teller)
        for side in sides:
            if side.failure is not None:
                teller.note(side.failure.text)
        teller.note(f"prepared {' and '.join(side.name for side in sides)} in {folder}")


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM as Ctrl-C: what was measured is kept."""
    raise KeyboardInterrupt


def read_request(mode: Literal["run", "compare"], *, keeps: bool = False, **asked: Any) -> Request:
    """Return the request of a command line.

    `keeps`: kept builds. Raises UsageError for what typer cannot check.
    """
    where, out = folders(asked["where"], asked["out"])
    fields: dict[str, Any] = {name: asked[name] for name in _AS_ASKED if name in asked}
    fields |= {name: asked[name].resolve() for name in ("prepare", "prepared") if asked.get(name)}
    if {"prepare", "prepared"} <= fields.keys():
        raise UsageError("--prepare and --prepared: the first builds, the second measures what was built: give one")
    fields |= read_machine(os.environ)
    if keeps and not {"prepare", "prepared"} & fields.keys():
        fields |= read_kept(os.environ, mode, pull_request=bool(asked.get("pull_request")))
    if asked.get("creep"):
        if not asked.get("base") and not asked.get("resume"):
            raise UsageError("--creep: name the reference, such as the last release: perfci compare v1.2 --creep")
        if asked.get("pull_request"):
            raise UsageError("--creep: is asked of main, and of no pull request: leave it out")
        fields["purpose"] = "reference"
    fields |= {"committed": True} if asked.get("head") else {}
    fields |= {"limit": limit_alone(asked["limit"], where, alone=not asked.get("head"))} if asked.get("limit") else {}
    fields |= {"only": asked["only"]} if asked.get("only") else {}
    fields |= {"claims": [parse_claim(text) for text in asked["claim"]]} if asked.get("claim") else {}
    if said := asked.get("described"):
        fields |= {"claims": [parse_claim(said)], "described": said}
    fields |= {"attempt": asked["attempt"]} if asked.get("attempt") else {}
    fields |= {"measure_all": True} if asked.get("measure_all") else {}  # else as the environment says
    fields |= {"trace": parse_trace(asked["trace"])} if asked.get("trace") else {}
    fields |= {"budget": duration("--budget", asked["budget"])} if asked.get("budget") else {}
    command = shlex.split(os.environ.get(COMMAND, "")) or ["perfci", *sys.argv[1:]]
    fields |= {"cases": asked["cases"] or [], "devices": parse_devices(asked["device"])}
    return Request.of(mode, where, out, command=command, **fields, **environments(mode, asked))


def require_ref(name: str, where: Path) -> None:
    """Raise UsageError where BASE or HEAD names no commit."""
    repo, told = Repository.find(where), escaped(name, 300)
    if repo is None or not repo.names_nothing(name):
        return
    if re.search(r"[*?\[]", name) or name in known_cases():
        raise UsageError(f"{told}: is no commit: cases go behind -k: perfci compare -k {shlex.quote(told)}")
    if ".." in name:
        raise UsageError(f"{told}: is a range: write its ends apart: perfci compare BASE HEAD")
    try:
        repo.commit(name)
    except UsageError as error:
        raise UsageError(f"{error}; cases go behind -k") from None


def limit_alone(text: str, where: Path, *, alone: bool) -> str:
    """Return the policy of `--limit` for the benchmark scripts in `where`, which is measured where `alone`. Raises
    UsageError."""
    if not re.fullmatch(r"\d+(\.\d+)?%", text):
        raise UsageError(f"--limit {escaped(text, 80)}: write a percentage such as 2%")
    repo = Repository.find(where)
    root = where if repo is None else repo.root
    if alone and (root / FILE).exists():
        raise UsageError(f"--limit: limits stand in {root / FILE}: change them there, or leave out --limit")
    policy = propose(root, [] if repo is None else repo.files()).limited(text)
    if policy is None:
        raise UsageError(
            f"--limit: no benchmark that calls a known timer is in {root}: write a first case with `perfci init`"
        )
    return policy


def read_machine(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a request that variables tell. Raises UsageError."""
    fields: dict[str, Any] = {}
    if wait := variables.get(WAIT):
        fields["wait"] = duration(WAIT, wait)
    if seed := variables.get(SEED):
        if not seed.isdecimal() or int(seed) >= 2**63:
            raise UsageError(f"{SEED} {escaped(seed, 80)}: write a number such as 7")
        fields["seed"] = int(seed)
    return fields


def read_kept(variables: Mapping[str, str], mode: str, *, pull_request: bool) -> dict[str, Any]:
    """Return the fields on kept builds. Raises UsageError where nothing would be kept, or what must not become base."""
    cache, keep = variables.get(CACHE), variables.get(KEEP)
    if keep:
        if keep not in ("base", "head") or (keep == "base" and mode == "run"):
            raise UsageError(f"{KEEP} {escaped(keep, 80)}: write head, or of a comparison base")
        if not cache:
            raise UsageError(f"{KEEP}: name the folder with {CACHE}")
        if pull_request:
            raise UsageError(
                f"{KEEP}: a pull request's run keeps nothing: keep builds where the base branch is measured"
            )
    return {"cache": Path(cache).resolve(), "keep": keep or None} if cache else {}


def refuse_keep(who: str) -> None:
    """Raise UsageError where a run that keeps no build is to keep one."""
    if os.environ.get(KEEP):
        raise UsageError(f"{KEEP}: {who} keeps no build: leave it out")


def environments(mode: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return `--python` and `--env` of both sides, and of one alone. Raises UsageError."""
    python = asked.get("python") or []
    pythons = _by_side([python] if isinstance(python, str) else python)
    for prefix, paths in pythons.items():
        if len(paths) > 1:
            raise UsageError(f"--python {prefix}{paths[1]}: give one interpreter, and at most one of base alone")
    if "base:" in pythons and mode == "run":
        raise UsageError(f"--python base:{pythons['base:'][0]}: there is no base: leave it out")
    fields = {field: pythons[name][0] for field, name in (("python", ""), ("base_python", "base:")) if name in pythons}
    variables = _by_side(asked.get("env") or [])
    env = {"base" if prefix else "head": parse_variables(f"--env {prefix}", of) for prefix, of in variables.items()}
    return fields | {"env": env}


def _by_side(values: Sequence[str]) -> dict[str, list[str]]:
    sides: dict[str, list[str]] = {}
    for value in values:
        prefix = "base:" if value.startswith("base:") else ""
        sides.setdefault(prefix, []).append(value.removeprefix(prefix))
    return sides


def folders(where: Path, out: Path) -> tuple[Path, Path]:
    """Return `--repo` and `--out`, absolute. Raises UsageError."""
    if not where.is_dir():
        raise UsageError(f"--repo {where}: is no folder")
    if out == Path(OUT):
        out = where / OUT
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is no folder")
    return where.resolve(), out.resolve()


def parse_devices(names: list[str] | None) -> list[DeviceKind] | None:
    """Return the devices of `--device`, or None. Raises UsageError."""
    known: dict[str, DeviceKind] = {kind: kind for kind in get_args(DeviceKind)}
    for name in names or []:
        if name not in known:
            raise UsageError(f"--device {name}: write cuda or cpu")
    return [known[name] for name in names or []] or None


def parse_trace(text: str) -> frozenset[Traced]:
    """Return what `--trace` names. Raises UsageError."""
    known: dict[str, Traced] = {name: name for name in get_args(Traced)}
    for name in text.split(","):
        if name not in known:
            raise UsageError(f"--trace {text}: {did_you_mean(name, known, 'write osrt, memory or osrt,memory')}")
    return frozenset(known[name] for name in text.split(","))


def parse_claim(text: str) -> Claim:
    """Return the claim of `--claim`. Raises UsageError."""
    try:
        return Claim.parse(text)
    except ValueError as error:
        raise UsageError(f"--claim {error}") from None


def duration(option: str, text: str) -> float:
    """Return seconds of a duration such as `3m`. Raises UsageError with the option."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option} {error}") from None
    if option == "--budget" and seconds <= 0:
        raise UsageError("--budget must be more than nothing, such as 3m")
    return seconds
