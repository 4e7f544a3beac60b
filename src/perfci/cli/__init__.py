"""Layer 6: the command line. Parses, calls, sets the exit code, nothing else.

Every verb stands here and calls a module beside it; options.py describes their options.
"""

import io
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

import perfci
from perfci.cli import history, options
from perfci.cli.options import HERE, OUT, taking
from perfci.model.base import PerfciError, UsageError


class Verbs(TyperGroup):
    """The verbs, each with its whole first sentence in the help, where typer cuts it to a line; the help is what a
    command line without a verb asks for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left of a command line for the verb."""
        return super().parse_args(ctx, args or ["--help"])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs; the long ones go over two lines."""
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.get_short_help_str(limit=1000)) for name, verb in verbs if verb])


app = typer.Typer(
    name="perfci",
    cls=Verbs,
    help="The performance gate for GPU kernels: base against head, on one machine, in one job.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 passed, 1 the gate failed, 2 usage or configuration, 3 measurement or machine failed.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfci {perfci.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
@taking(options.Deciding, options.Measuring, options.Environments)
def compare(
    cases: options.Cases = None,
    base: options.Base = None,
    pull_request: options.PullRequest = False,
    plan: options.PlanFile = None,
    shard: options.ShardOf = None,
    gpus: options.Gpus = None,
    creep: options.Creep = False,
    debug: options.Debug = False,
    **asked: Any,
) -> None:
    """Measure this tree against a base commit and judge every limit, or do one shard's part of that."""
    if gpus is not None and (plan is not None or shard is not None):
        raise UsageError("--gpus: a shard is measured on one GPU: leave out --gpus, or --plan and --shard")
    if creep and (gpus is not None or plan is not None or shard is not None):
        raise UsageError("--creep: is asked on one GPU in one job: leave out --gpus, --plan and --shard")
    if gpus is not None:
        from perfci.cli.gpus import compare_on_gpus

        compare_on_gpus(gpus, cases=cases, base=base, pull_request=pull_request, **asked)
    if plan is not None and shard is not None:
        from perfci.cli.shards import measure_shard

        measure_shard(plan, shard, cases=cases, base=base, pull_request=pull_request, **asked)
    if plan is not None or shard is not None:
        raise UsageError("--plan FILE and --shard K/N: give both, such as --plan plan.json --shard 1/4")
    from perfci.cli.measure import measure_and_report

    measure_and_report("compare", cases=cases, base=base, pull_request=pull_request, creep=creep, **asked)


@app.command("plan")
@taking(options.Planning, options.Environments)
def plan_(
    cases: options.Cases = None,
    base: options.Base = None,
    pull_request: options.PullRequest = False,
    debug: options.Debug = False,
    **asked: Any,
) -> None:
    """Plan a comparison that several machines share: its cases, their deal, its error rates. Measures nothing.

    `perfci compare --plan FILE --shard K/N` measures a part, `perfci report --merge FOLDERS` judges the whole.
    """
    from perfci.cli.shards import make_plan

    make_plan(cases=cases, base=base, pull_request=pull_request, **asked)


@app.command()
@taking(options.Deciding, options.Measuring)
def run(cases: options.Cases = None, debug: options.Debug = False, **asked: Any) -> None:
    """Measure this tree alone: times, rates and absolute limits."""
    from perfci.cli.measure import measure_and_report

    measure_and_report("run", cases=cases, **asked)


@app.command()
@taking(options.Reporting)
def report(debug: options.Debug = False, **asked: Any) -> None:
    """Judge and render again from files alone, or judge what another tool measured."""
    from perfci.cli.report import judge_files, judge_imported

    results, imported = asked.pop("results") or [], asked.pop("imported")
    merge = asked.pop("merge")
    base, device, costs = asked.pop("base") or [], asked.pop("device"), asked.pop("costs")
    by, items = asked.pop("by"), asked.pop("items") or []
    if merge:
        if imported or base or device or by or items:
            raise UsageError("--merge: takes what shards of a plan measured: leave out --import and what goes with it")
        from perfci.cli.shards import judge_merged

        judge_merged(results, costs=costs, **asked)
    if imported and costs:
        raise UsageError("--costs: another tool measured, and does not tell: leave out --import")
    if imported:
        judge_imported(imported, base, results, device=device, by=by, items=items, **asked)
    if base or device or by or items:
        raise UsageError(
            "--base, --device, --by and --items go with --import: `perfci compare --base REF` measures against a base"
        )
    judge_files(results or [OUT], costs=costs, **asked)


@app.command()
@taking(options.Measuring)
def profile(
    cases: options.SomeCases,
    base: options.ProfiledBase = None,
    raw: options.Raw = False,
    trace: options.Trace = None,
    debug: options.Debug = False,
    **asked: Any,
) -> None:
    """Let nsys and ncu profile cases and say what stands out, or with --base what differs. Judges nothing."""
    from perfci.cli.measure import measure_and_report

    measure_and_report(
        "run" if base is None else "compare", cases=cases, base=base, raw=raw, trace=trace, quick=True, profile=True,
        **asked,
    )  # fmt: skip


@app.command()
@taking(options.Calibrating)
def calibrate(debug: options.Debug = False, **asked: Any) -> None:
    """Measure HEAD against itself, built twice: noise, false alarms and the smallest change each case can show.

    Ends with 1 where the two builds differ in speed, or more than 1 % of runs would fail on unchanged code. What it
    finds is kept for this machine: compare warns of limits that it cannot hold, and refuses them under --strict.
    """
    from perfci.cli.measure import calibrate_machine

    calibrate_machine(committed=True, **asked)


@app.command()
@taking(options.Bisecting)
def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="The commit, tag or branch before the change.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="One behind it.")],
    case: options.OneCase,
    debug: options.Debug = False,
    **asked: Any,
) -> None:
    """Find the commit between GOOD and BAD that made a case slower, or faster.

    Steps compare candidates with GOOD in turns on this machine. The last line names the commit, or says that none is
    accused. Ends with 0 where a commit is found, 1 where none is, 3 where that cannot be measured. Interrupted, the
    same command goes on.
    """
    from perfci.cli.bisect import find_commit

    find_commit(good, bad, case, **asked)


@app.command()
@taking(options.Explaining)
def explain(cases: options.SomeCases, debug: options.Debug = False, **asked: Any) -> None:
    """Say whether a change reaches the GPU at all: kernels, launches, arguments, data and machine code, side by side.

    Nothing is timed. Ends with 0 where base and head give the GPU the same work in all these cases, 1 where that is
    not known.
    """
    from perfci.cli.explain import explain_cases

    explain_cases(cases, **asked)


@app.command("list")
@taking(options.Listing)
def list_(debug: options.Debug = False, **asked: Any) -> None:
    """List the cases of this tree with their limits, without measuring."""
    from perfci.cli.listing import list_cases

    list_cases(**asked)


@app.command()
@taking(options.Examining)
def doctor(debug: options.Debug = False, **asked: Any) -> None:
    """Say what this machine can give and what stands in the way, with the command that fixes it.

    Ends with 3 where something fails: nothing can be measured, or wrongly, or a secret lies open.
    """
    from perfci.cli.doctor import examine_machine

    examine_machine(**asked)


@app.command("docker", context_settings={"allow_interspersed_args": False})
@taking(options.Container)
def docker_(
    words: Annotated[
        list[str], typer.Argument(metavar="VERB …", help="run, compare, profile, list or doctor, with its options.")
    ],
    debug: options.Debug = False,
    **asked: Any,
) -> None:
    """Run a verb in a container: built with a network and without rights, measured with the GPU and without network.

    The repository is read-only there. Results lie where they would lie without a container.
    """
    from perfci.cli.container import run_in_container

    run_in_container(app, words, **asked)


@app.command()
def ci(raw: options.RawFolder = None, debug: options.Debug = False) -> None:
    """Measure the event's commit against its base, in a job of GitHub Actions: what the action calls.

    Its inputs come from the environment; action.yml describes them.
    """
    from perfci.cli.ci import run_job, sift_reports

    if raw is not None:
        sift_reports(raw)
    else:
        run_job()


FIRST_FILES = {
    "perfci.yaml": "perfci.yaml",
    "kernels/example.py": "example.py",
    ".github/workflows/perf.yml": "perf.yml",
}
"""Files that `perfci init` writes, each with the file in templates/ that it is."""
SLURM, KUBERNETES, NIGHTLY = "perf.slurm.sh", "perf-job.yaml", ".github/workflows/perf-nightly.yml"
"""Files that it writes where it is asked to, beside a policy."""


@app.command()
def init(
    where: options.Folder = HERE,
    slurm: Annotated[bool, typer.Option("--slurm", help=f"Write {SLURM} beside the policy, and nothing else.")] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help=f"Write {KUBERNETES} beside the policy, and nothing else.")
    ] = False,
    nightly: Annotated[bool, typer.Option("--nightly", help=f"Write {NIGHTLY}, and nothing else.")] = False,
    debug: options.Debug = False,
) -> None:
    """Write a policy, a first case and a workflow into a repository; or what a cluster is given, or the nightly."""
    from perfci.sources.git import Repository, lacks_a_name

    if not where.is_dir():
        raise UsageError(f"{where}: is no folder: make it first")
    repo = Repository.find(where)
    if repo is not None and repo.root != where.resolve():
        where = repo.root  # where every verb looks for the policy, and GitHub for workflows
        typer.echo(f"into   {where}, the root of the repository")
    if slurm or kubernetes or nightly:
        _write_beside(where, [SLURM] * slurm + [KUBERNETES] * kubernetes + [NIGHTLY] * nightly)
        return
    if (where / "perfci.yaml").exists():
        raise UsageError(f"{where / 'perfci.yaml'}: is there already: edit it, or remove it first")
    for name, template in FIRST_FILES.items():
        path = where / name
        if path.exists():
            typer.echo(f"kept   {name}")
            continue
        _write_template(path, template)
        typer.echo(f"wrote  {name}")
    first = "git init && " if repo is None else ""
    typer.echo("")
    if lacks_a_name(where):
        typer.echo(
            "git does not know yet who commits here: first `git config --global user.name NAME`, "
            "and `git config --global user.email ADDRESS`."
        )
    typer.echo(
        f"Now: `{first}git add -A && git commit -m 'Add perfci'`, then `perfci compare --base HEAD --measure-all` "
        "measures the tree against itself."
    )
    typer.echo("Change kernels/example.py, and `perfci compare --base HEAD` judges your change.")


def _write_beside(where: Path, names: list[str]) -> None:
    """Write files of templates/ beside the policy; none where one of them is there. Raises UsageError."""
    if not (where / "perfci.yaml").exists():
        raise UsageError(f"{where / 'perfci.yaml'}: is missing: `perfci init` writes one")
    for name in names:
        if os.path.lexists(where / name):
            raise UsageError(f"{where / name}: is there already: edit it, or remove it first")
    for name in names:
        _write_template(where / name, "nightly.yml" if name == NIGHTLY else name)
        typer.echo(f"wrote  {name}")
    if SLURM in names:
        (where / SLURM).chmod(0o755)
        typer.echo(f"\nNow: see what to change at its head, commit, and call `./{SLURM}` where sbatch is.")
    if NIGHTLY in names:
        typer.echo(
            f"\nNow: see what to change in {NIGHTLY}: PERFCI, STORE, runs-on and device. Give limits creep: 5%, and "
            "tag releases such as v1.2."
        )
    if KUBERNETES in names:
        typer.echo(f"\nNow: see what to change in {KUBERNETES}, and apply it step by step, as its head says.")


def _write_template(path: Path, template: str) -> None:
    from perfci.system.files import write_atomic

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot be made ({error.strerror})") from None
    write_atomic(path, (Path(__file__).parent / "templates" / template).read_text(encoding="utf-8"))


@app.command()
def publish(here: options.Here = None, debug: options.Debug = False) -> None:
    """Judge what a run measured by base's limits, in GitHub Actions; write comment, check run and summary.

    Needs no GPU and runs no code of the change. GITHUB_TOKEN needs actions: read, checks: write, contents: read and
    pull-requests: write. The inputs come from the environment; publish/action.yml describes them.
    """
    from perfci.cli.publish import publish_run

    publish_run(here)


app.add_typer(history.app, name="history", cls=Verbs)


def main() -> None:
    """Entry point: every error is one line on stderr, and the exit code tells its kind."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # `µ` on a terminal that knows only ASCII
    code = _called(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        _drop_unwritten(stream)
    sys.exit(code)


def _called(words: list[str]) -> int:
    """Call the verb. Return its exit code."""
    command: Any = typer.main.get_command(app)
    if "_PERFCI_COMPLETE" in os.environ:  # the shell's Tab
        command.main(words, "perfci")
    try:
        # Not by .main(), which ends with codes of its own for Ctrl-C and for an output that nobody reads.
        with command.make_context("perfci", words) as context:
            code = command.invoke(context)
        return code if isinstance(code, int) else 0
    except typer.Exit as ended:
        return ended.exit_code
    except TyperException as error:
        path = _path(command, words)
        return _say(f"{path}: {_sentence(error.format_message())} (see `{path} --help`)", 2)
    except PerfciError as error:
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _say("interrupted", 3)
    except Exception as error:  # noqa: BLE001  # it is told
        if isinstance(error, BrokenPipeError) and _unread():
            return 128 + signal.SIGPIPE  # as a shell tells it: 0 would say that a gate passed
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return _say(f"internal error: {text[:300]}: please report it with the output of --debug", 3)


def _path(command: Any, words: list[str]) -> str:
    """Return `perfci VERB`, of a command line as far as it names verbs."""
    path = "perfci"
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path += f" {word}"
    return path


def _unread() -> bool:
    """Tell whether nobody reads what is written to stdout or to stderr: `perfci list | head`."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _drop_unwritten(stream: TextIO | None) -> None:
    """Drop what could not be written, where the interpreter's end would try again and turn that into its exit code."""
    if stream is not None:
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _say(line: str, code: int) -> int:
    """Write one line to stderr, and with --debug what it comes from. Return the exit code."""
    line = line.replace("##[", "## [")  # which GitHub's runner takes for a command, wherever in a line it stands
    with suppress(OSError):  # of a stderr that takes nothing: the exit code tells the kind all the same
        if "--debug" in sys.argv:
            traceback.print_exc()
        typer.echo(line if line.startswith("perfci") else f"perfci: {line}", err=True)
    return code
