"""The options of the verbs: each is described once, and those that several verbs share stand in groups.

An option that takes a value is called as its parameter is.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

HERE = Path()
OUT = Path("perfci-out")


def _known(incomplete: str) -> list[str]:
    """Return the cases of the last run here that begin so, and a glob for those of each kernel, for the shell's Tab."""
    import json

    from perfci.system.bounded import Unread, regular

    path = OUT / "results.json"
    try:
        regular(path, 2**26)
        ids = sorted({str(case["id"]) for case in json.loads(path.read_bytes())["cases"]})
    except (Unread, OSError, ValueError, KeyError, TypeError):
        return []  # nothing was measured here yet
    ids = [ident for ident in ids if re.fullmatch(r"[\w./=,:+@-]+", ident)]  # a shell reads what is printed here
    kernels = sorted({f"{ident.partition('/')[0]}/*" for ident in ids if "/" in ident})
    return [name for name in (*kernels, *ids) if name.startswith(incomplete)]


Cases = Annotated[
    list[str] | None,
    typer.Argument(metavar="CASE", help="Globs on case ids: 'matmul/*'. All by default.", autocompletion=_known),
]
SomeCases = Annotated[
    list[str], typer.Argument(metavar="CASE", help="Globs on case ids: 'matmul/*'.", autocompletion=_known)
]
OneCase = Annotated[str, typer.Argument(metavar="CASE", help="The id of one case.", autocompletion=_known)]
Base = Annotated[
    str | None,
    typer.Option(metavar="REF", help="Branch, tag or commit to compare with: its merge-base with HEAD is measured."),
]
ProfiledBase = Annotated[
    str | None, typer.Option(metavar="REF", help="Profile this commit's merge-base too, and say what differs.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Keep the reports of nsys and ncu too: they tell of the machine.")]
RawFolder = Annotated[Path | None, typer.Option("--raw", metavar="FOLDER", hidden=True)]
Trace = Annotated[
    str | None,
    typer.Option(
        metavar="osrt,memory",
        help="Of commands, trace calls of the OS runtime or the use of device memory, too: both slow them down.",
    ),
]
Device = Annotated[
    list[str] | None,
    typer.Option("--device", "-d", metavar="cuda|cpu", help="Measure on this device; may be given twice."),
]
Python = Annotated[str | None, typer.Option(metavar="PATH", help="Interpreter of the code under test.")]
Budget = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Time for all that follows the builds, such as 3m.", show_default=False),
]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where everything is written.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="What has no answer fails too: inconclusive, invalid, clock, changed.")
]
Seed = Annotated[int | None, typer.Option(min=0, metavar="N", help="Seed of inputs and schedule.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON and nothing else.")]
Wait = Annotated[str, typer.Option(metavar="TIME", help="How long to wait for another perfci on the device.")]
LockClocks = Annotated[
    str | None,
    typer.Option(
        metavar="base|max|MHZ",
        help="Hold the GPU's SM clock while measuring (needs root); release it however perfci ends.",
    ),
]
Where = Annotated[
    Path, typer.Option("--repo", "-C", metavar="FOLDER", help="The repository.", show_default="this folder")
]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The repository.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", hidden=True)]
PullRequest = Annotated[bool, typer.Option("--pull-request", hidden=True)]


class Deciding:
    """Options of the verbs that decide."""

    quick: Annotated[
        bool,
        typer.Option("--quick", help="An answer within a minute for a few cases; small changes stay undecided."),
    ] = False
    budget: Budget = None
    strict: Strict = False
    measure_all: Annotated[bool, typer.Option("--measure-all", help="Measure what is proved to be unchanged, too.")] = (
        False
    )
    resume: Resume = False
    lock_clocks: LockClocks = None
    raw: Annotated[bool, typer.Option("--raw", hidden=True)] = False


PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Measure a part of this plan, which `perfci plan` made; with --shard."),
]
ShardOf = Annotated[
    str | None, typer.Option("--shard", metavar="K/N", help="With --plan: the part to measure, such as 2/4.")
]


Creep = Annotated[
    bool,
    typer.Option(
        "--creep", help="Base is the reference, such as the last release: ask `creep` limits instead of `regression`."
    ),
]


Gpus = Annotated[
    str | None,
    typer.Option(metavar="all|N,M", help="Share the cases among these GPUs of this host, as nvidia-smi numbers them."),
]


class Environments:
    """Options of a comparison of environments: interpreters and variables."""

    base_python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Interpreter of base alone; without --base this tree is compared with itself."
        ),
    ] = None
    base_env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a variable for base alone; may be given again."),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a variable for head alone; may be given again."),
    ] = None


class Measuring:
    """Options of the verbs that measure or profile a tree."""

    device: Device = None
    committed: Annotated[bool, typer.Option("--committed", help="Measure HEAD as committed, not the working tree.")] = (
        False
    )
    python: Python = None
    seed: Seed = None
    wait: Wait = "10m"
    out: Out = OUT
    where: Where = HERE
    json: Json = False
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Builds that are kept: base's is taken from there (PERFCI_WORKER)."),
    ] = None
    keep: Annotated[
        str | None,
        typer.Option(metavar="base|head", help="Keep this side's build there: where the base branch is measured."),
    ] = None
    prepare: Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)] = None
    prepared: Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)] = None
    counters: Annotated[bool, typer.Option("--counters/--no-counters", hidden=True)] = True


class Planning:
    """Options of `perfci plan`."""

    shards: Annotated[int, typer.Option(metavar="N", help="Number of machines, or of jobs, that share the cases.")] = 2
    models: Annotated[
        int, typer.Option(metavar="N", help="Number of models of GPU that share α, each with a plan of its own.")
    ] = 1
    quick: Annotated[bool, typer.Option("--quick", help="Fewer pairs: small changes stay undecided.")] = False
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time of each shard behind its builds, such as 3m.", show_default=False),
    ] = None
    measure_all: Annotated[bool, typer.Option("--measure-all", help="Measure what is proved to be unchanged, too.")] = (
        False
    )
    device: Device = None
    committed: Annotated[bool, typer.Option("--committed", help="Plan HEAD as committed, not the working tree.")] = (
        False
    )
    python: Python = None
    seed: Seed = None
    wait: Wait = "10m"
    out: Annotated[Path, typer.Option(metavar="FILE", help="The plan's file.")] = Path("plan.json")
    where: Where = HERE
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Builds that are kept: base's is taken from there (PERFCI_WORKER)."),
    ] = None
    prepared: Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)] = None
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False


class Calibrating:
    """Options of `perfci calibrate`."""

    cases: Cases = None
    pairs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Worker pairs of every case; more tell smaller biases.", show_default="32"),
    ] = None
    device: Device = None
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time for all that follows the builds, such as 3m.", show_default="10m"),
    ] = None
    resume: Resume = False
    python: Python = None
    seed: Seed = None
    lock_clocks: LockClocks = None
    wait: Wait = "10m"
    out: Out = OUT
    where: Where = HERE
    json: Annotated[bool, typer.Option("--json", help="Print the calibration as JSON and nothing else.")] = False


class Bisecting:
    """Options of `perfci bisect`."""

    metric: Annotated[str, typer.Option(metavar="NAME", help="What changed: time, or a metric that pairs decide.")] = (
        "time"
    )
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT", help="The least change to look for, such as 2%.", show_default="the policy's limit"
        ),
    ] = None
    deeper: Annotated[
        bool, typer.Option("--all", help="Where one commit is not all of it, search what is left, too.")
    ] = False
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow the first parents of merges alone: names pull requests.")
    ] = False
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Take perfci.yaml and the suite's files of this commit, for commits from before the case.",
        ),
    ] = None
    skip: Annotated[
        list[str] | None, typer.Option(metavar="REF", help="Do not measure this commit; may be given again.")
    ] = None
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew where an unfinished bisect would be gone on with.")
    ] = False
    device: Device = None
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time for each comparison behind its builds, such as 3m.", show_default="the policy's"
        ),
    ] = None
    python: Python = None
    seed: Seed = None
    lock_clocks: LockClocks = None
    wait: Wait = "10m"
    cache: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep GOOD's build there, for all steps (PERFCI_WORKER).")
    ] = None
    out: Out = OUT
    where: Where = HERE
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON and nothing else.")] = False


class Explaining:
    """Options of `perfci explain`."""

    base: Base = None
    committed: Annotated[bool, typer.Option("--committed", help="Take HEAD as committed, not the working tree.")] = (
        False
    )
    python: Python = None
    seed: Seed = None
    wait: Wait = "10m"
    out: Out = OUT
    where: Where = HERE
    json: Annotated[bool, typer.Option("--json", help="Print the work of both sides as JSON and nothing else.")] = False


class Listing:
    """Options of `perfci list`."""

    cases: Cases = None
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Say how long a comparison takes and which change each case can show; by a trial, if need be.",
        ),
    ] = False
    device: Device = None
    budget: Budget = None
    python: Python = None
    where: Where = HERE
    json: Json = False


class Examining:
    """Options of `perfci doctor`."""

    python: Python = None
    out: Out = OUT
    where: Where = HERE
    offline: Annotated[
        bool, typer.Option("--offline", help="Check programs and their versions alone, as an image's build does.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON and nothing else.")] = False


class Reporting:
    """Options of `perfci report`."""

    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RESULTS", help="A results.json, or the folder that holds it.", show_default=str(OUT)),
    ] = None
    imported: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="FILES",
            help="Judge what another tool wrote: JSON of NVBench, google-benchmark, pytest-benchmark or hyperfine, or "
            "captures of nsys, ncu or torch.profiler: a file, a folder or a quoted pattern; may be given again.",
        ),
    ] = None
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="FILES", help="With --import: the same tools' files of base, as many, paired in order."),
    ] = None
    device: Annotated[
        str | None, typer.Option("--device", "-d", metavar="cuda|cpu", help="With --import: what was measured.")
    ] = None
    by: Annotated[
        str | None,
        typer.Option(
            metavar="range|kernel",
            help="With --import of captures: a case for each NVTX range, or for each kernel with its grid; by default "
            "ranges where there are any.",
        ),
    ] = None
    items: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB=NUMBER",
            help="With --import of captures: the items of an execution, such as 'train=640 samples', for limits on "
            "throughput; may be given again.",
        ),
    ] = None
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Judge all shards of a plan as one run: name the folder of each (perfci compare --plan)."
        ),
    ] = False
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Judge by these limits instead (exploratory); with --import perfci.yaml by default.",
        ),
    ] = None
    formats: Annotated[
        str | None,
        typer.Option("--format", metavar="LIST", help="What to write, such as html,md,junit,csv,json; all by default."),
    ] = None
    costs: Annotated[
        bool, typer.Option("--costs", help="Say where the time went: each phase of the run, and imports that are dear.")
    ] = False
    strict: Strict = False
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where to write; beside the results by default, with --import into perfci-out/imported.",
        ),
    ] = None
    json: Json = False


class Container:
    """Options of `perfci docker`."""

    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            envvar="PERFCI_DOCKER_IMAGE",
            help="An image that holds perfci.",
            show_default="perfci:cuda13 or cuda12, as the driver is",
        ),
    ] = None
    pull: Annotated[bool, typer.Option("--pull", help="Fetch the image from its registry first.")] = False
    gpus: Annotated[
        str, typer.Option(metavar="all|none|0,1", help="Which GPUs it gets; all where there is a driver.")
    ] = "auto"
    counters: Annotated[
        bool | None,
        typer.Option(
            "--counters/--no-counters",
            help="Give ncu's pass what it needs, up to SYS_ADMIN, or go without ncu; as the policy needs by default.",
        ),
    ] = None


Here = Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)]
StoreOrNone = Annotated[
    str | None,
    typer.Option("--store", metavar="STORE", help="The history: a folder, git:BRANCH or git:URL#BRANCH."),
]
NightPlanFile = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Instead: what `perfci history plan` said, where no store is to be."),
]


class MeasuringNights:
    """Options of `perfci history measure`."""

    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time for each comparison behind its builds, such as 30m.", show_default="the policy's"
        ),
    ] = None
    device: Device = None
    python: Python = None
    lock_clocks: LockClocks = None
    cache: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Builds that are kept: base's is taken from there.")
    ] = None
    wait: Wait = "10m"
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where each comparison gets a folder.")] = Path(
        "perfci-night"
    )
    where: Where = HERE


Verb = TypeVar("Verb", bound=Callable[..., None])


def taking(*groups: type) -> Callable[[Verb], Verb]:
    """Give a verb the options of `groups`, in order, behind its own; they come as keywords, in its `**asked`."""

    def decorate(verb: Verb) -> Verb:
        own = inspect.signature(verb)
        parameters = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        for group in groups:
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(group, name), annotation=kind)
                for name, kind in inspect.get_annotations(group).items()
            ]
        cast(Any, verb).__signature__ = own.replace(parameters=parameters)  # which is what typer reads
        return verb

    return decorate
