"""Layer 4: the command line. Parses, calls, sets the exit code, nothing else."""

import io
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.exceptions import TyperException

import perfci
from perfci.model.base import PerfciError, UsageError

app = typer.Typer(
    name="perfci",
    help="The performance gate for GPU kernels: base against head, on one machine, in one job.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 passed, 1 the gate failed, 2 usage or configuration, 3 measurement or machine failed.",
)

Cases = Annotated[
    list[str] | None,
    typer.Argument(metavar="CASE", help="Globs on case ids: 'matmul/*'. All by default.", show_default=False),
]
Device = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        "-d",
        metavar="cuda|cpu",
        help="Measure on this device; may be given twice.",
        show_default=False,
    ),
]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="Interpreter of the code under test.", show_default=False),
]
Budget = Annotated[
    str | None,
    typer.Option("--budget", metavar="TIME", help="Time for measuring, such as 3m.", show_default=False),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="An answer within a minute for a few cases; small changes stay undecided."),
]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where everything is written.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="What has no answer fails too: inconclusive, invalid, clock, changed.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, metavar="N", help="Seed of inputs and schedule.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON and nothing else.")]
Wait = Annotated[str, typer.Option("--wait", metavar="TIME", help="How long to wait for another perfci on the device.")]
Committed = Annotated[bool, typer.Option("--committed", help="Measure HEAD as committed, not the working tree.")]
LockClocks = Annotated[
    str | None,
    typer.Option(
        "--lock-clocks",
        metavar="base|max|MHZ",
        help="Hold the GPU's SM clock while measuring (needs root); let go of it however perfci ends.",
        show_default=False,
    ),
]
Where = Annotated[
    Path, typer.Option("--repo", "-C", metavar="FOLDER", help="The repository.", show_default="this folder")
]
Prepare = Annotated[Path | None, typer.Option("--prepare", metavar="FOLDER", hidden=True)]
Prepared = Annotated[Path | None, typer.Option("--prepared", metavar="FOLDER", hidden=True)]
Counters = Annotated[bool, typer.Option("--counters/--no-counters", hidden=True)]
PullRequest = Annotated[bool, typer.Option("--pull-request", hidden=True)]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", hidden=True)]

When = Literal["on-change", "always", "on-regression", "never"]

HERE = Path()
OUT_DEFAULT = Path("perfci-out")


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
def compare(
    cases: Cases = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="REF",
            help="Branch, tag or commit to compare with: its merge-base with HEAD is measured.",
            show_default=False,
        ),
    ] = None,
    device: Device = None,
    quick: Quick = False,
    budget: Budget = None,
    strict: Strict = False,
    resume: Resume = False,
    committed: Committed = False,
    python: Python = None,
    seed: Seed = None,
    lock_clocks: LockClocks = None,
    wait: Wait = "10m",
    out: Out = OUT_DEFAULT,
    where: Where = HERE,
    json: Json = False,
    prepare: Prepare = None,
    prepared: Prepared = None,
    counters: Counters = True,
    pull_request: PullRequest = False,
    debug: Debug = False,
) -> None:
    """Measure this tree against a base commit and judge every limit."""
    from perfci.cli.measure import measure_and_report

    measure_and_report(
        "compare", where=where, out=out, cases=cases, base=base, device=device, quick=quick, budget=budget,
        strict=strict, resume=resume, committed=committed, python=python, seed=seed,
        lock_clocks=lock_clocks, wait=wait, json=json, prepare=prepare, prepared=prepared,
        counters=counters, pull_request=pull_request,
    )  # fmt: skip


@app.command()
def run(
    cases: Cases = None,
    device: Device = None,
    quick: Quick = False,
    budget: Budget = None,
    strict: Strict = False,
    resume: Resume = False,
    committed: Committed = False,
    python: Python = None,
    seed: Seed = None,
    lock_clocks: LockClocks = None,
    wait: Wait = "10m",
    out: Out = OUT_DEFAULT,
    where: Where = HERE,
    json: Json = False,
    prepare: Prepare = None,
    prepared: Prepared = None,
    counters: Counters = True,
    debug: Debug = False,
) -> None:
    """Measure this tree alone: times, rates and absolute limits."""
    from perfci.cli.measure import measure_and_report

    measure_and_report(
        "run", where=where, out=out, cases=cases, base=None, device=device, quick=quick, budget=budget,
        strict=strict, resume=resume, committed=committed, python=python, seed=seed,
        lock_clocks=lock_clocks, wait=wait, json=json, prepare=prepare, prepared=prepared, counters=counters,
    )  # fmt: skip


@app.command()
def report(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RESULTS", help="A results.json, or the folder that holds it.", show_default=str(OUT_DEFAULT)
        ),
    ] = None,
    imported: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="FILES",
            help="Judge JSON of NVBench, google-benchmark, pytest-benchmark or hyperfine: a file, a folder or a quoted "
            "pattern; may be given again.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(
            "--base",
            metavar="FILES",
            help="With --import: the same tool's files of base, as many, paired in order.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", "-d", metavar="cuda|cpu", help="With --import: what was measured.", show_default=False
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Judge by these limits instead (exploratory); with --import perfci.yaml by default.",
            show_default=False,
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="LIST",
            help="What to write, such as html,md,junit,csv,json; all by default.",
            show_default=False,
        ),
    ] = None,
    strict: Strict = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where to write; beside the results by default, with --import into perfci-out/imported.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Judge and render again from files alone, or judge what another tool measured."""
    from perfci.cli.report import judge_files, judge_imported

    if imported:
        judge_imported(
            imported, base or [], results or [], device=device, policy=policy, formats=formats, strict=strict,
            out=out or OUT_DEFAULT / "imported", json=json,
        )  # fmt: skip
    if base or device:
        raise UsageError("--base and --device go with --import: `perfci compare --base REF` measures against a base")
    judge_files(results or [OUT_DEFAULT], policy=policy, formats=formats, strict=strict, out=out, json=json)


@app.command()
def profile(
    cases: Annotated[list[str], typer.Argument(metavar="CASE", help="Globs on case ids: 'matmul/*'.")],
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="REF", help="Profile this commit's merge-base too, and say what differs."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Keep the reports of nsys and ncu too: they tell of the machine.")
    ] = False,
    device: Device = None,
    committed: Committed = False,
    python: Python = None,
    seed: Seed = None,
    wait: Wait = "10m",
    out: Out = OUT_DEFAULT,
    where: Where = HERE,
    json: Json = False,
    prepare: Prepare = None,
    prepared: Prepared = None,
    counters: Counters = True,
    debug: Debug = False,
) -> None:
    """Let nsys and ncu look at cases and say what stands out, or with --base what differs. Judges nothing."""
    from perfci.cli.measure import measure_and_report

    measure_and_report(
        "run" if base is None else "compare", where=where, out=out, cases=cases, base=base, device=device, quick=True,
        budget=None, strict=False, resume=False, committed=committed, python=python, seed=seed, wait=wait, json=json,
        profile=True, raw=raw, prepare=prepare, prepared=prepared, counters=counters,
    )  # fmt: skip


@app.command()
def calibrate(
    cases: Cases = None,
    pairs: Annotated[
        int, typer.Option("--pairs", metavar="N", help="Worker pairs of every case; more tell smaller biases.")
    ] = 32,
    device: Device = None,
    budget: Budget = "10m",
    resume: Resume = False,
    python: Python = None,
    seed: Seed = None,
    lock_clocks: LockClocks = None,
    wait: Wait = "10m",
    out: Out = OUT_DEFAULT,
    where: Where = HERE,
    json: Annotated[bool, typer.Option("--json", help="Print the calibration as JSON and nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Measure HEAD against itself, built twice: noise, false alarms and the smallest change each case can show.

    Ends with 1 where the two builds differ in speed, or more than 1 % of runs would fail on unchanged code. What it
    finds is kept for this machine: compare warns of limits that it cannot hold, and refuses them under --strict.
    """
    from perfci.cli.calibrate import calibrate_machine

    calibrate_machine(
        pairs, where=where, out=out, cases=cases, base=None, device=device, quick=False, budget=budget, strict=False,
        resume=resume, committed=True, python=python, seed=seed, lock_clocks=lock_clocks, wait=wait, json=json,
    )  # fmt: skip


@app.command("list")
def list_(
    cases: Cases = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say how long a comparison takes and which change each case can show.")
    ] = False,
    device: Device = None,
    budget: Budget = None,
    python: Python = None,
    where: Where = HERE,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the cases of this tree with their limits, without measuring."""
    from perfci.cli.listing import list_cases

    list_cases(where, cases, python, json, plan=plan, device=device, budget=budget)


@app.command()
def doctor(
    python: Python = None,
    out: Out = OUT_DEFAULT,
    where: Where = HERE,
    offline: Annotated[
        bool, typer.Option("--offline", help="Look at programs and their versions alone, as an image's build does.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON and nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Say what this machine can give and what stands in the way, with the command that mends it.

    Ends with 3 where something fails: nothing can be measured, or wrongly, or a secret lies open.
    """
    from perfci.cli.doctor import examine_machine

    examine_machine(where, out, python, json, offline)


@app.command("docker", context_settings={"allow_interspersed_args": False})
def docker_(
    words: Annotated[
        list[str], typer.Argument(metavar="VERB …", help="run, compare, profile, list or doctor, with its options.")
    ],
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="IMAGE",
            envvar="PERFCI_DOCKER_IMAGE",
            help="An image that holds perfci.",
            show_default="perfci:cuda13 or cuda12, as the driver is",
        ),
    ] = None,
    pull: Annotated[bool, typer.Option("--pull", help="Fetch the image from its registry first.")] = False,
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="all|none|0,1", help="Which GPUs it gets; all where there is a driver.")
    ] = "auto",
    counters: Annotated[
        bool | None,
        typer.Option(
            "--counters/--no-counters",
            help="Give ncu's pass what it needs, up to SYS_ADMIN, or go without ncu; as the policy needs by default.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run a verb in a container: built with a network and without rights, measured with the GPU and without network.

    The repository is read-only there. Results lie where they would lie without a container.
    """
    from perfci.cli.docker import run_in_container

    run_in_container(app, words, image=image, pull=pull, gpus=gpus, counters=counters)


@app.command()
def ci(debug: Debug = False) -> None:
    """What the GitHub Action calls: measure the event's commit against its base, in a job of GitHub Actions.

    Its inputs come from the environment; action.yml describes them.
    """
    from perfci.cli.ci import run_job

    run_job()


@app.command()
def init(
    where: Annotated[Path, typer.Argument(metavar="FOLDER", help="The repository.")] = HERE,
    debug: Debug = False,
) -> None:
    """Write a policy, a first case and a workflow into a repository."""
    from perfci.cli.init import write_first_files

    write_first_files(where)


@app.command()
def publish(
    suite: Annotated[
        str, typer.Option("--suite", envvar="PERFCI_INPUT_SUITE", help="Which suite of the repository.")
    ] = "perfci",
    artifacts: Annotated[
        str,
        typer.Option(
            "--artifacts",
            metavar="GLOB",
            envvar="PERFCI_INPUT_ARTIFACTS",
            help="Artifacts to read, where the workflow names them itself.",
            show_default=False,
        ),
    ] = "",
    jobs: Annotated[
        str,
        typer.Option(
            "--jobs", metavar="GLOB", envvar="PERFCI_INPUT_JOBS", help="The jobs that measure: each must succeed."
        ),
    ] = "*",
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="REF",
            envvar="PERFCI_INPUT_BASE",
            help="What the measuring action was given as `base`.",
            show_default=False,
        ),
    ] = "",
    cases: Annotated[
        str,
        typer.Option(
            "--cases", metavar="GLOBS", envvar="PERFCI_INPUT_CASES", help="The same of `cases`.", show_default=False
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICES",
            envvar="PERFCI_INPUT_DEVICE",
            help="The same of `device`.",
            show_default=False,
        ),
    ] = "",
    comment: Annotated[
        When, typer.Option("--comment", envvar="PERFCI_INPUT_COMMENT", help="When to begin a comment.")
    ] = "on-change",
    policy: Annotated[
        str,
        typer.Option("--policy", metavar="PATH", envvar="PERFCI_INPUT_POLICY", help="The policy in the repository."),
    ] = "perfci.yaml",
    strict: Annotated[
        bool, typer.Option("--strict", envvar="PERFCI_INPUT_STRICT", help="What is undecided fails.")
    ] = False,
    debug: Debug = False,
) -> None:
    """In GitHub Actions: judge what a run measured by base's limits; write comment, check run and summary.

    Needs no GPU and runs no code of the change. GITHUB_TOKEN needs actions: read, checks: write, contents: read and
    pull-requests: write.
    """
    from perfci.cli.publish import publish_run

    publish_run(
        (base, cases, device),
        suite=suite,
        artifacts=artifacts,
        jobs=jobs,
        comment=comment,
        policy=policy,
        strict=strict,
    )


def main() -> None:
    """Entry point: every error is one line on stderr, and the exit code tells its kind."""
    debug = "--debug" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # `µ` on a terminal that knows only ASCII
    command: Any = typer.main.get_command(app)
    try:
        code = command.main(args=sys.argv[1:] or ["--help"], prog_name="perfci", standalone_mode=False)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "perfci"
        _say(f"{path}: {_sentence(error.format_message())} (see `{path} --help`)")
        sys.exit(2)
    except typer.Abort:
        _say("interrupted")
        sys.exit(3)
    except PerfciError as error:
        if debug:
            raise
        _say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("interrupted: what was measured is kept; go on with --resume")
        sys.exit(3)
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads on: `perfci list | head`
        sys.exit(0)
    except Exception as error:
        if debug:
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        _say(f"internal error: {text[:300]}: please report it with the output of --debug")
        sys.exit(3)
    sys.exit(code if isinstance(code, int) else 0)


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _say(line: str) -> None:
    line = line.replace("##[", "## [")  # which GitHub's runner takes for a command, wherever in a line it stands
    typer.echo(line if line.startswith("perfci") else f"perfci: {line}", err=True)
