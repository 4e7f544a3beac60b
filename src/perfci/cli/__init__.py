"""Layer 6: the command line. Parses, calls, sets the exit code, nothing else.

Each verb calls a module beside this.
"""

import io
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

import perfci
from perfci.cli import history, options
from perfci.cli.options import HERE, OUT, taking
from perfci.model.base import DeviceKind, PerfciError, UsageError
from perfci.model.text import escaped

DEBUG = "--debug"
"""Anywhere on a command line: tracebacks are shown."""


FIRST = (
    "There is no perfci.yaml here yet. First: perfci init, which writes one, for the benchmarks that it finds or with "
    "a first case; then perfci compare, as soon as something is changed. perfci doctor says what this machine can give."
)


def _has_policy() -> bool:
    here = Path.cwd()
    return any((folder / "perfci.yaml").exists() for folder in (here, *here.parents))


class Verbs(TyperGroup):
    """The verbs, each with its whole first sentence in the help, where typer cuts it to a line; without a verb the help
    is shown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the verb's words. Without any, where no policy is, the help says what comes first."""
        if not args and ctx.parent is None and not _has_policy():
            self.epilog = FIRST
        return super().parse_args(ctx, args or ["--help"])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs, long ones over two lines."""
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, verb.get_short_help_str(limit=1000)) for name, verb in verbs if verb and not verb.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(shown)


app = typer.Typer(
    name="perfci",
    cls=Verbs,
    help="The performance gate for GPU kernels: base against head, on one machine, in one job.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 passed, 1 the gate failed, 2 usage or configuration, 3 measurement or machine failed. "
    "More verbs, each with --help: explain, plan, merge, import, docker.",
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


OF_MACHINE = (
    "Of the machine, by variables: PERFCI_WAIT=30m waits longer for another perfci, PERFCI_SEED=7 draws as another run "
    "did, PERFCI_CACHE=FOLDER and PERFCI_KEEP=base keep builds."
)
"""Behind the options of verbs that measure."""


@app.command()
def init(
    where: Annotated[Path, typer.Argument(metavar="FOLDER", help="The repository.")] = HERE,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Write perf.slurm.sh beside the policy, and nothing else.")
    ] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Write perf-job.yaml beside the policy, and nothing else.")
    ] = False,
    nightly: Annotated[
        bool, typer.Option("--nightly", help="Write .github/workflows/perf-nightly.yml, and nothing else.")
    ] = False,
) -> None:
    """Write a policy, a first case and a workflow into a repository; or what a cluster is given, or the nightly.

    Benchmarks that call timers of Triton, torch, flashinfer or pytest-benchmark are the first cases where there are
    some.
    """
    from perfci.cli.init import KUBERNETES, NIGHTLY, SLURM, write_beside, write_first
    from perfci.sources.git import Repository

    if not where.is_dir():
        raise UsageError(f"{where}: is no folder: make it first")
    repo = Repository.find(where)
    if repo is not None and repo.root != where.resolve():
        where = repo.root  # where every verb looks for the policy, and GitHub for workflows
        typer.echo(f"into   {where}, the root of the repository")
    if names := [SLURM] * slurm + [KUBERNETES] * kubernetes + [NIGHTLY] * nightly:
        write_beside(where, names)
    else:
        write_first(where, repo)


@app.command()
@taking(options.Placed)
def doctor(
    offline: Annotated[
        bool, typer.Option("--offline", help="Check programs and their versions alone, as an image's build does.")
    ] = False,
    **asked: Any,
) -> None:
    """Say what this machine can give and what stands in the way, with the command that fixes it.

    Ends with 3 where something fails: nothing can be measured, or wrongly, or a secret lies open.
    """
    from perfci.cli.doctor import examine_machine

    examine_machine(offline=offline, **asked)


@app.command("list")
def list_(
    cases: options.Cases = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Say how long a comparison takes and which change each case can show."),
    ] = False,
    device: options.Device = None,
    budget: options.Budget = None,
    python: options.Python = None,
    where: options.Where = HERE,
    json: options.Json = False,
) -> None:
    """List the cases of this tree with their limits, without measuring."""
    from perfci.cli.listing import list_cases

    list_cases(plan=plan, json=json, cases=cases, device=device, budget=budget, python=python, where=where)


@app.command(epilog=OF_MACHINE)
@taking(options.Deciding, options.Measuring)
def run(cases: options.Cases = None, **asked: Any) -> None:
    """Measure this tree alone: times, rates and absolute limits."""
    from perfci.cli.measure import measure_and_report

    measure_and_report("run", cases=cases, **asked)


@app.command(epilog=OF_MACHINE)
@taking(options.Deciding, options.Measuring)
def compare(
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="BASE",
            help="Branch, tag or commit to compare with: its merge-base with HEAD is measured. "
            "By default origin's main branch, else main.",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Argument(metavar="HEAD", help="Branch, tag or commit to measure. By default this tree as it is."),
    ] = None,
    cases: options.Cases = None,
    base: Annotated[str | None, typer.Option(hidden=True)] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Where there is no perfci.yaml: how much slower benchmarks may get, such as 2%.",
        ),
    ] = None,
    pull_request: options.PullRequest = False,
    shard: Annotated[
        str | None,
        typer.Option(metavar="FILE:K/N", help="Measure this part of a plan of `perfci plan`, such as plan.json:2/4."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="all|N,M", help="Share the cases among these GPUs of this host, as nvidia-smi numbers them."
        ),
    ] = None,
    creep: Annotated[
        bool,
        typer.Option(
            "--creep",
            help="Base is the reference, such as the last release: ask `creep` limits instead of `regression`.",
        ),
    ] = False,
    env: options.Variables = None,
    measure_all: options.MeasureAll = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Refuse, with exit code 2, a change to other files than these, and any to suite or policy.",
        ),
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB: PERCENT",
            help="Say whether the time of these cases falls by as much, by pairs of their own: 'softmax*: 10%'.",
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            max=10**6,
            help="The claim is the K-th of a search, which share α: it has 1 / K (K + 1) of it.",
        ),
    ] = None,
    described: Annotated[str | None, typer.Option(hidden=True)] = None,
    **asked: Any,
) -> None:
    """Measure this tree against a base commit and judge every limit, or do one shard's part of that."""
    if named is not None and base is not None:
        raise UsageError(f"{escaped(named, 300)}, --base {escaped(base, 300)}: name one base")
    for name in filter(None, [named, head]):
        from perfci.cli.measure import require_ref

        require_ref(name, asked["where"])
    if head is not None and (gpus is not None or shard is not None):
        raise UsageError(f"{escaped(head, 300)}: --gpus and --shard measure this tree: leave out HEAD, or them")
    if gpus is not None and shard is not None:
        raise UsageError("--gpus: a shard is measured on one GPU: leave out --gpus, or --shard")
    if creep and (gpus is not None or shard is not None):
        raise UsageError("--creep: is asked on one GPU in one job: leave out --gpus and --shard")
    if creep and only:
        raise UsageError("--only: base is to judge, and --creep asks limits of head: leave one out")
    if claim and (gpus is not None or shard is not None):
        raise UsageError("--claim: is decided on one GPU in one job: leave out --gpus and --shard")
    if attempt is not None and not claim:
        raise UsageError("--attempt: counts claims: give one, such as --claim 'softmax*: 10%'")
    asked |= {
        "cases": cases,
        "base": named or base,
        "head": head,
        "limit": limit,
        "pull_request": pull_request,
        "env": env,
        "only": only,
    }
    asked["measure_all"] = measure_all
    asked |= {"claim": claim, "attempt": attempt, "described": described}
    if gpus is not None:
        from perfci.cli.gpus import compare_on_gpus

        compare_on_gpus(gpus, **asked)
    if shard is not None:
        from perfci.cli.shards import measure_shard

        measure_shard(shard, **asked)
    from perfci.cli.measure import measure_and_report

    measure_and_report("compare", creep=creep, **asked)


@app.command(epilog=OF_MACHINE)
@taking(options.Measuring)
def profile(
    cases: options.SomeCases,
    base: Annotated[
        str | None, typer.Option(metavar="REF", help="Profile this commit's merge-base too, and say what differs.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Keep the reports of nsys and ncu too: they tell of the machine.")
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="osrt,memory",
            help="Of commands, trace calls of the OS runtime or the use of device memory, too: both slow them down.",
        ),
    ] = None,
    **asked: Any,
) -> None:
    """Let nsys and ncu profile cases and say what stands out, or with --base what differs. Judges nothing."""
    from perfci.cli.measure import measure_and_report

    measure_and_report(
        "run" if base is None else "compare", cases=cases, base=base, raw=raw, trace=trace, quick=True, profile=True,
        **asked,
    )  # fmt: skip


@app.command(epilog=OF_MACHINE)
@taking(options.Placed)
def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="The commit, tag or branch before the change.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="One behind it.")],
    case: options.OneCase,
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="What changed: time, or a metric that pairs decide.")
    ] = "time",
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT", help="The least change to look for, such as 2%.", show_default="the policy's limit"
        ),
    ] = None,
    deeper: Annotated[
        bool, typer.Option("--all", help="Where one commit is not all of it, search what is left, too.")
    ] = False,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow the first parents of merges alone: names pull requests.")
    ] = False,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Take perfci.yaml and the suite's files of this commit, for commits from before the case.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="REF", help="Do not measure this commit; may be given again.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew where an unfinished bisect would be gone on with.")
    ] = False,
    device: options.Device = None,
    budget: options.BudgetOfEach = None,
    **asked: Any,
) -> None:
    """Find the commit between GOOD and BAD that made a case slower, or faster.

    Steps compare candidates with GOOD in turns on this machine. The last line names the commit, or says that none is
    accused. Ends with 0 where a commit is found, 1 where none is, 3 where that cannot be measured. Interrupted, the
    same command goes on.
    """
    from perfci.cli.bisect import find_commit

    find_commit(
        good, bad, metric=metric, limit=limit, cases=[case], device=device, budget=budget, **asked,
        search={"deeper": deeper, "first_parent": first_parent, "suite": suite, "restart": restart, "skip": skip},
    )  # fmt: skip


@app.command(epilog=OF_MACHINE)
@taking(options.Placed)
def calibrate(
    cases: options.Cases = None,
    pairs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Worker pairs of every case; more tell smaller biases.", show_default="32"),
    ] = None,
    device: options.Device = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time for all that follows the builds, such as 3m.", show_default="10m"),
    ] = None,
    resume: options.Resume = False,
    **asked: Any,
) -> None:
    """Measure HEAD against itself, built twice: noise, false alarms and the smallest change each case can show.

    Ends with 1 where the two builds differ in speed, or more than 1 % of runs would fail on unchanged code. What it
    finds is kept in perfci-out/calibration, where `perfci list --plan` finds it.
    """
    from perfci.cli.measure import calibrate_machine

    calibrate_machine(pairs, cases=cases, device=device, budget=budget, resume=resume, **asked)


@app.command()
@taking(options.Judging)
def report(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="A results.json, or the folder that holds it.")
    ] = OUT,
    costs: Annotated[
        bool, typer.Option("--costs", help="Say where the time went: each phase of the run, and imports that are dear.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write; beside the results by default.")
    ] = None,
    **asked: Any,
) -> None:
    """Judge and render again from files alone."""
    from perfci.cli.report import judge_files

    judge_files(results, costs=costs, out=out, **asked)


app.add_typer(history.app, name="history", cls=Verbs)


@app.command(hidden=True)
@taking(options.Placed)
def explain(
    cases: options.SomeCases, base: options.Base = None, committed: options.Committed = False, **asked: Any
) -> None:
    """Say whether a change reaches the GPU at all: kernels, launches, arguments, data and machine code, side by side.

    Nothing is timed. Ends with 0 where base and head give the GPU the same work in all these cases, 1 where that is
    not known.
    """
    from perfci.cli.explain import explain_cases

    explain_cases(cases, base=base, committed=committed, **asked)


@app.command("plan", hidden=True)
def plan_(
    cases: options.Cases = None,
    base: options.Base = None,
    pull_request: options.PullRequest = False,
    shards: Annotated[int, typer.Option(metavar="N", help="Number of machines, or of jobs, that share the cases.")] = 2,
    models: Annotated[
        int, typer.Option(metavar="N", help="Number of models of GPU that share α, each with a plan of its own.")
    ] = 1,
    quick: options.Quick = False,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time of each shard behind its builds, such as 3m.", show_default=False),
    ] = None,
    measure_all: options.MeasureAll = False,
    device: options.Device = None,
    committed: options.Committed = False,
    python: options.Pythons = None,
    env: options.Variables = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The plan's file.")] = OUT / "plan.json",
    where: options.Where = HERE,
    prepared: options.Prepared = None,
    json: options.Json = False,
) -> None:
    """Plan a comparison that several machines share: its cases, their deal, its error rates. Measures nothing.

    `perfci compare --shard FILE:K/N` measures a part, `perfci merge FOLDERS` judges the whole.
    """
    from perfci.cli.shards import make_plan

    make_plan(
        shards, models, out, json=json, cases=cases, base=base, pull_request=pull_request, quick=quick, budget=budget,
        measure_all=measure_all, device=device, committed=committed, python=python, env=env, where=where,
        prepared=prepared,
    )  # fmt: skip


@app.command(hidden=True)
@taking(options.Judging)
def merge(
    shards: Annotated[
        list[Path], typer.Argument(metavar="FOLDER", help="The folder of each shard, or its results.json.")
    ],
    out: options.Out = OUT,
    **asked: Any,
) -> None:
    """Judge all shards of a plan as one run (perfci compare --shard)."""
    from perfci.cli.shards import judge_merged

    judge_merged(shards, out=out, **asked)


@app.command("import", hidden=True)
@taking(options.Judging)
def import_(
    head: Annotated[
        list[str],
        typer.Option(
            metavar="FILES",
            help="What another tool wrote: JSON of NVBench, google-benchmark, pytest-benchmark or hyperfine, or "
            "captures of nsys, ncu or torch.profiler: a file, a folder or a quoted pattern; may be given again.",
        ),
    ],
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="FILES", help="The same tools' files of base, as many, paired in order."),
    ] = None,
    device: Annotated[
        DeviceKind | None, typer.Option("--device", "-d", metavar="cuda|cpu", help="What was measured.")
    ] = None,
    by: Annotated[
        Literal["range", "kernel"] | None,
        typer.Option(
            metavar="range|kernel",
            help="Of captures: a case for each NVTX range, or for each kernel with its grid; by default ranges where "
            "there are any.",
        ),
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB=NUMBER",
            help="Of captures: the items of an execution, such as 'train=640 samples', for limits on throughput; may "
            "be given again.",
        ),
    ] = None,
    out: options.Out = OUT / "imported",
    **asked: Any,
) -> None:
    """Judge what another tool measured, against its files of base where there are any.

    Limits are those of --policy, else of perfci.yaml.
    """
    from perfci.cli.report import judge_imported

    judge_imported(head, base or [], device=device, by=by, items=items or [], out=out, **asked)


@app.command("docker", context_settings={"allow_interspersed_args": False}, hidden=True)
def docker_(
    words: Annotated[
        list[str], typer.Argument(metavar="VERB …", help="run, compare, profile, list or doctor, with its options.")
    ],
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            envvar="PERFCI_DOCKER_IMAGE",
            help="An image that holds perfci.",
            show_default="perfci:cuda13 or cuda12, as the driver is",
        ),
    ] = None,
    pull: Annotated[bool, typer.Option("--pull", help="Fetch the image from its registry first.")] = False,
    gpus: Annotated[
        str, typer.Option(metavar="all|none|0,1", help="Which GPUs it gets; all where there is a driver.")
    ] = "auto",
    counters: Annotated[
        bool | None,
        typer.Option(
            "--counters/--no-counters",
            help="Give ncu's pass what it needs, up to SYS_ADMIN, or go without ncu; as the policy needs by default.",
        ),
    ] = None,
) -> None:
    """Run a verb in a container: built with a network and without rights, measured with the GPU and without network.

    The repository is read-only there. Results lie where they would lie without a container.
    """
    from perfci.cli.container import run_in_container

    run_in_container(app, words, image=image, pull=pull, gpus=gpus, counters=counters)


@app.command(hidden=True)
def ci(raw: Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)] = None) -> None:
    """Measure the event's commit against its base, in a job of GitHub Actions: what the action calls.

    Its inputs come from the environment; action.yml describes them.
    """
    from perfci.cli.ci import run_job, sift_reports

    if raw is not None:
        sift_reports(raw)
    else:
        run_job()


@app.command(hidden=True)
def publish(here: Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)] = None) -> None:
    """Judge what a run measured by base's limits, in GitHub Actions; write comment, check run and summary.

    Needs no GPU and runs no code of the change. GITHUB_TOKEN needs actions: read, checks: write, contents: read and
    pull-requests: write. The inputs come from the environment; publish/action.yml describes them.
    """
    from perfci.cli.publish import publish_run

    publish_run(here)


def main() -> None:
    """Entry point: every error is one line on stderr, or with `--json` a document on stdout, and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # `µ` on a terminal that knows only ASCII
    code = _called([word for word in sys.argv[1:] if word != DEBUG])
    for stream in (sys.stdout, sys.stderr):
        _drop_unwritten(stream)
    sys.exit(code)


def _called(words: list[str]) -> int:
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
        path, verb = _path(command, words)
        if possible := getattr(error, "possibilities", None):  # of a mistyped option
            hidden = {name for one in verb.params if getattr(one, "hidden", False) for name in one.opts}
            error.possibilities = [name for name in possible if name not in hidden]  # type: ignore[attr-defined]
        text = _sentence(error.format_message())
        if text.startswith("Got unexpected extra argument"):
            text += ": cases go behind -k"
        return _say(f"{path}: {text} (see `{path} --help`)", 2)
    except PerfciError as error:
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _say("interrupted", 3)
    except Exception as error:  # noqa: BLE001  # it is told
        if isinstance(error, BrokenPipeError) and _unread():
            return 128 + signal.SIGPIPE  # as a shell tells it: 0 would say that a gate passed
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return _say(f"internal error: {text[:300]}: please report it with the output of --debug", 3)


def _path(command: Any, words: list[str]) -> tuple[str, Any]:
    """`perfci VERB`, as far as `words` name verbs, and its command: not each error of typer has its context."""
    path = "perfci"
    for word in words:
        verb = getattr(command, "commands", {}).get(word)
        if verb is None:
            break
        path, command = f"{path} {word}", verb
    return path, command


def _unread() -> bool:
    """`perfci list | head`."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _drop_unwritten(stream: TextIO | None) -> None:
    """The interpreter's end would turn it into its exit code."""
    if stream is not None:
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _say(line: str, code: int) -> int:
    """With --debug its traceback."""
    line = line.replace("##[", "## [")  # which GitHub's runner takes for a command, wherever in a line it stands
    with suppress(OSError):  # of a stderr that takes nothing: the exit code tells the kind all the same
        if DEBUG in sys.argv:
            traceback.print_exc()
        words = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
        if "--json" in words:
            from perfci.model.report import Failure

            error = line.removeprefix("perfci: ").encode(errors="backslashreplace").decode()
            typer.echo(Failure(error=error, exit_code=2 if code == 2 else 3).model_dump_json())
            return code
        typer.echo(line if line.startswith("perfci") else f"perfci: {line}", err=True)
    return code
