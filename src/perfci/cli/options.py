"""The options of the verbs: each is described once, and those that several verbs share stand in groups."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import typer

HERE = Path()
OUT = Path("perfci-out")

Cases = Annotated[
    list[str] | None,
    typer.Argument(metavar="CASE", help="Globs on case ids: 'matmul/*'. All by default.", show_default=False),
]
SomeCases = Annotated[list[str], typer.Argument(metavar="CASE", help="Globs on case ids: 'matmul/*'.")]
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="REF",
        help="Branch, tag or commit to compare with: its merge-base with HEAD is measured.",
        show_default=False,
    ),
]
ProfiledBase = Annotated[
    str | None,
    typer.Option("--base", metavar="REF", help="Profile this commit's merge-base too, and say what differs."),
]
Raw = Annotated[bool, typer.Option("--raw", help="Keep the reports of nsys and ncu too: they tell of the machine.")]
Pairs = Annotated[
    int, typer.Option("--pairs", metavar="N", help="Worker pairs of every case; more tell smaller biases.")
]
Forecast = Annotated[
    bool, typer.Option("--plan", help="Say how long a comparison takes and which change each case can show.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Check programs and their versions alone, as an image's build does.")
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
CalibrationJson = Annotated[bool, typer.Option("--json", help="Print the calibration as JSON and nothing else.")]
FindingsJson = Annotated[bool, typer.Option("--json", help="Print what was found as JSON and nothing else.")]
Wait = Annotated[str, typer.Option("--wait", metavar="TIME", help="How long to wait for another perfci on the device.")]
Committed = Annotated[bool, typer.Option("--committed", help="Measure HEAD as committed, not the working tree.")]
LockClocks = Annotated[
    str | None,
    typer.Option(
        "--lock-clocks",
        metavar="base|max|MHZ",
        help="Hold the GPU's SM clock while measuring (needs root); release it however perfci ends.",
        show_default=False,
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

    quick: Quick = False
    budget: Budget = None
    strict: Strict = False
    resume: Resume = False
    lock_clocks: LockClocks = None


class Measuring:
    """Options of the verbs that measure or profile a tree."""

    device: Device = None
    committed: Committed = False
    python: Python = None
    seed: Seed = None
    wait: Wait = "10m"
    out: Out = OUT
    where: Where = HERE
    json: Json = False
    prepare: Annotated[Path | None, typer.Option("--prepare", metavar="FOLDER", hidden=True)] = None
    prepared: Annotated[Path | None, typer.Option("--prepared", metavar="FOLDER", hidden=True)] = None
    counters: Annotated[bool, typer.Option("--counters/--no-counters", hidden=True)] = True


Results = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RESULTS", help="A results.json, or the folder that holds it.", show_default=str(OUT)),
]
Imported = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILES",
        help="Judge JSON of NVBench, google-benchmark, pytest-benchmark or hyperfine: a file, a folder or a quoted "
        "pattern; may be given again.",
        show_default=False,
    ),
]
ImportedBase = Annotated[
    list[str] | None,
    typer.Option(
        "--base",
        metavar="FILES",
        help="With --import: the same tool's files of base, as many, paired in order.",
        show_default=False,
    ),
]
ImportedDevice = Annotated[
    str | None,
    typer.Option("--device", "-d", metavar="cuda|cpu", help="With --import: what was measured.", show_default=False),
]
OtherPolicy = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Judge by these limits instead (exploratory); with --import perfci.yaml by default.",
        show_default=False,
    ),
]
Formats = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="LIST",
        help="What to write, such as html,md,junit,csv,json; all by default.",
        show_default=False,
    ),
]
ReportOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Where to write; beside the results by default, with --import into perfci-out/imported.",
        show_default=False,
    ),
]


class Container:
    """Options of `perfci docker`."""

    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="IMAGE",
            envvar="PERFCI_DOCKER_IMAGE",
            help="An image that holds perfci.",
            show_default="perfci:cuda13 or cuda12, as the driver is",
        ),
    ] = None
    pull: Annotated[bool, typer.Option("--pull", help="Fetch the image from its registry first.")] = False
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="all|none|0,1", help="Which GPUs it gets; all where there is a driver.")
    ] = "auto"
    counters: Annotated[
        bool | None,
        typer.Option(
            "--counters/--no-counters",
            help="Give ncu's pass what it needs, up to SYS_ADMIN, or go without ncu; as the policy needs by default.",
            show_default=False,
        ),
    ] = None


class Publishing:
    """Options of `perfci publish`."""

    suite: Annotated[
        str, typer.Option("--suite", envvar="PERFCI_INPUT_SUITE", help="Which suite of the repository.")
    ] = "perfci"
    artifacts: Annotated[
        str,
        typer.Option(
            "--artifacts",
            metavar="GLOB",
            envvar="PERFCI_INPUT_ARTIFACTS",
            help="Artifacts to read, where the workflow names them itself.",
            show_default=False,
        ),
    ] = ""
    jobs: Annotated[
        str,
        typer.Option(
            "--jobs", metavar="GLOB", envvar="PERFCI_INPUT_JOBS", help="The jobs that measure: each must succeed."
        ),
    ] = "*"
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="REF",
            envvar="PERFCI_INPUT_BASE",
            help="What the measuring action was given as `base`.",
            show_default=False,
        ),
    ] = ""
    cases: Annotated[
        str,
        typer.Option(
            "--cases", metavar="GLOBS", envvar="PERFCI_INPUT_CASES", help="The same of `cases`.", show_default=False
        ),
    ] = ""
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICES",
            envvar="PERFCI_INPUT_DEVICE",
            help="The same of `device`.",
            show_default=False,
        ),
    ] = ""
    comment: Annotated[
        Literal["on-change", "always", "on-regression", "never"],
        typer.Option("--comment", envvar="PERFCI_INPUT_COMMENT", help="When to begin a comment."),
    ] = "on-change"
    policy: Annotated[
        str,
        typer.Option("--policy", metavar="PATH", envvar="PERFCI_INPUT_POLICY", help="The policy in the repository."),
    ] = "perfci.yaml"
    strict: Annotated[
        bool,
        typer.Option("--strict", envvar="PERFCI_INPUT_STRICT", help="What is undecided fails."),
    ] = False
    here: Annotated[Path | None, typer.Option("--here", metavar="FOLDER", hidden=True)] = None


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
