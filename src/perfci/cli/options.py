"""Options that several verbs take, in groups.

An option with a value is called as its parameter. Properties of the machine are variables: `read_machine` and
`read_kept` of cli/measure.py.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

HERE = Path()
OUT = Path("perfci-out")


def known_cases(incomplete: str = "") -> list[str]:
    """Return the cases that were measured here last, and globs of each kernel's."""
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
    typer.Option(
        "-k",
        metavar="GLOB",
        help="Cases whose ids match, such as 'matmul/*'; may be given again. All by default.",
        autocompletion=known_cases,
    ),
]
SomeCases = Annotated[
    list[str],
    typer.Option(
        "-k",
        metavar="GLOB",
        help="Cases whose ids match, such as 'matmul/*'; may be given again.",
        autocompletion=known_cases,
    ),
]
OneCase = Annotated[str, typer.Option("-k", metavar="CASE", help="The id of one case.", autocompletion=known_cases)]
Base = Annotated[
    str | None,
    typer.Option(metavar="REF", help="Branch, tag or commit to compare with: its merge-base with HEAD is measured."),
]
Device = Annotated[
    list[str] | None,
    typer.Option("--device", "-d", metavar="cuda|cpu", help="Measure on this device; may be given twice."),
]
Committed = Annotated[bool, typer.Option("--committed", help="Take HEAD as committed, not the working tree.")]
Python = Annotated[str | None, typer.Option(metavar="PATH", help="Interpreter of the code under test.")]
Pythons = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[base:]PATH",
        help="Interpreter of the code under test; in a comparison `base:` is base's alone; without a base this tree "
        "is compared with itself.",
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(metavar="[base:]NAME=VALUE", help="Set a variable for head, or for base, alone; may be given again."),
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Time for all that follows the builds, such as 3m.", show_default=False),
]
BudgetOfEach = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Time for each comparison behind its builds, such as 3m.", show_default="the policy's"
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="An answer within a minute for a few cases; small changes stay undecided.")
]
MeasureAll = Annotated[bool, typer.Option("--measure-all", help="Measure what is proved to be unchanged, too.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where everything is written.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="What has no answer fails too: inconclusive, invalid, clock, changed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON and nothing else.")]
Where = Annotated[
    Path, typer.Option("--repo", "-C", metavar="FOLDER", help="The repository.", show_default="this folder")
]
PullRequest = Annotated[bool, typer.Option("--pull-request", hidden=True)]
Prepared = Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)]


class Deciding:
    """Options of verbs that decide."""

    quick: Quick = False
    budget: Budget = None
    strict: Strict = False
    resume: Resume = False
    json: Json = False
    raw: Annotated[bool, typer.Option("--raw", hidden=True)] = False


class Measuring:
    """Options of verbs that measure or profile."""

    device: Device = None
    committed: Committed = False
    python: Pythons = None
    out: Out = OUT
    where: Where = HERE
    prepare: Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)] = None
    prepared: Prepared = None
    counters: Annotated[bool, typer.Option("--counters/--no-counters", hidden=True)] = True


class Placed:
    """Options of verbs with one interpreter."""

    python: Python = None
    out: Out = OUT
    where: Where = HERE
    json: Json = False


class Judging:
    """Options of verbs that judge files."""

    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge by these limits instead (exploratory).")
    ] = None
    strict: Strict = False
    json: Json = False


Verb = TypeVar("Verb", bound=Callable[..., None])


def taking(*groups: type) -> Callable[[Verb], Verb]:
    """Give a verb the options of `groups`, behind its own, as keywords in its `**asked`."""

    def decorate(verb: Verb) -> Verb:
        own = inspect.signature(verb)
        parameters = [own.parameters[name] for name in own.parameters if name != "asked"]
        for group in groups:
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(group, name), annotation=kind)
                for name, kind in inspect.get_annotations(group).items()
            ]
        cast(Any, verb).__signature__ = own.replace(parameters=parameters)  # which is what typer reads
        return verb

    return decorate
