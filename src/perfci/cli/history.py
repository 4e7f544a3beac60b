"""`perfci history`: its verbs. Each loads what it needs when it is called."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfci.cli import options
from perfci.cli.options import HERE
from perfci.model.base import UsageError

if TYPE_CHECKING:
    from perfci.history.series import Device
    from perfci.history.store import Fault

app = typer.Typer(help="Keep what comparisons of main said, night by night, and show it.", rich_markup_mode=None)

NIGHTS = Path("perfci-night")
_STORE = typer.Option("--store", metavar="STORE", help="The history: a folder, git:BRANCH or git:URL#BRANCH.")
StoreName = Annotated[str, _STORE]


@app.command(hidden=True)
def record(
    store: StoreName,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of `perfci history measure`.")] = NIGHTS,
    run: Annotated[
        str, typer.Option(metavar="NAME", help="The run's name.", show_default="GitHub's run and the device")
    ] = "",
    attempt: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10_000, help="The run's attempt.", show_default="GitHub's, or 1"),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the run can be read.", show_default="GitHub's page of it")
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A fact that begins an epoch where it changes, such as image=sha256:…; may be given again.",
        ),
    ] = None,
    where: options.Where = HERE,
) -> None:
    """Record a run on main: one document, which is never changed.

    The repository tells the commits' dates and titles. Nothing of the code under test runs.
    """
    from perfci.cli.night import read_measured
    from perfci.cli.report import read_report
    from perfci.github.event import surroundings
    from perfci.history.record import Comparison, NightRun, night_of
    from perfci.history.store import open_store
    from perfci.history.stores.base import name_of
    from perfci.model.text import escaped
    from perfci.render.history import recorded
    from perfci.sources.git import Repository

    plan, folders = read_measured(out)
    repo = Repository.find(where)
    if repo is None:
        raise UsageError(
            f"{escaped(where)}: is in no git repository, which tells dates and titles: name one with --repo"
        )
    comparisons = {
        name: Comparison(escaped(folder), read_report(folder / "report.json")) for name, folder in folders.items()
    }
    first = next(iter(comparisons.values())).report
    known = first.run, 1, ""
    if (of_github := surroundings(os.environ)) is not None:
        names, number = first.fingerprint.devices, of_github.GITHUB_RUN_ID
        page = f"{of_github.GITHUB_SERVER_URL}/{of_github.GITHUB_REPOSITORY}/actions/runs/{number}"
        name = f"{number}.{_slug(names.get('cuda') or names.get('cpu', ''))}"
        known = name, of_github.GITHUB_RUN_ATTEMPT, page if page.startswith("https://") else ""
    opened = open_store(store, where)
    about = NightRun(run or known[0], attempt or known[1], known[2] if url is None else url, _facts(fact or []))
    night = night_of(comparisons, plan, about, repo)
    new = opened.add(night)
    typer.echo(recorded(night, name_of(night), new=new))
    for warning in opened.warnings:
        typer.echo(f"perfci: {warning}", err=True)


@app.command()
def show(
    cases: Annotated[str, typer.Option("-k", metavar="GLOB", help="Cases whose ids match, such as 'sdpa/*'.")],
    store: StoreName,
    metric: Annotated[str, typer.Option(metavar="NAME", help="Which metric.")] = "time",
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", metavar="cuda|cpu|NAME", help="A kind, or a glob on names: '*H200*'."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Nights of each case and device, the last ones.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print the nights as JSON and nothing else.")] = False,
    where: options.Where = HERE,
) -> None:
    """Show the last commits of a case: the ratio to the reference and to the commit before, with a sparkline.

    What is stored is shown, never judged against.
    """
    import json as jsonlib

    from perfci.cli.progress import Console
    from perfci.history.series import choose
    from perfci.render.history import as_json, fault_lines, no_series, print_series

    devices, left_out = _collected(store, where)
    series = choose(devices, cases, metric, device, limit)
    if json:
        typer.echo(jsonlib.dumps(as_json(series, left_out), indent=1))
        return
    print_series(series, Console())
    for line in fault_lines(left_out):
        typer.echo(f"perfci: {line}", err=True)
    if not series:
        raise UsageError(f"{cases}: {no_series(cases, devices)}")


@app.command()
def alert(
    store: StoreName,
    repository: Annotated[
        str, typer.Option(metavar="OWNER/NAME", envvar="GITHUB_REPOSITORY", help="The repository on GitHub.")
    ],
    suite: Annotated[
        str, typer.Option(metavar="NAME", help="Of several suites of a repository, each has its own issues.")
    ] = "perfci",
    where: options.Where = HERE,
) -> None:
    """Tell once when main slips: an issue per device, opened after two nights over a limit, closed after two within.

    GITHUB_TOKEN needs issues: write and nothing else; it is read from the environment. None of the repository's code
    runs.
    """
    from perfci.cli.alert import keep_issues

    keep_issues(store, repository, suite, where)


@app.command()
def check(
    store: StoreName,
    json: options.Json = False,
    where: options.Where = HERE,
) -> None:
    """Say where main has changed since when, and how far it stands from the reference.

    Changes are proposed, and a bisect decides: each comes with its command. Ends with 1 where something is proposed or
    over its limit, 3 where the store cannot be read.
    """
    from perfci.history.check import check
    from perfci.render.changes import render

    devices, left_out = _collected(store, where)
    found = check(devices, left_out)
    typer.echo(found.model_dump_json(indent=1) if json else render(found).rstrip("\n"))
    raise typer.Exit(found.exit_code)


@app.command()
def html(
    store: StoreName,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The site: index.html, and cases/ with a page of each.")],
    where: options.Where = HERE,
) -> None:
    """Write the history as a static site, for GitHub Pages or any folder: an overview, and a page of each case."""
    from perfci.history.check import check
    from perfci.history.stores.base import made
    from perfci.model.text import count
    from perfci.render.html.history import site
    from perfci.system.files import write_atomic

    devices, left_out = _collected(store, where)
    found = check(devices, left_out, last=max(len(device.heads) for device in devices))
    pages = 0
    for name, text in site(devices, found):
        made((out / name).parent)
        write_atomic(out / name, text)
        pages += 1
    left = f", {count(len(left_out), 'document')} left out" if left_out else ""
    typer.echo(f"{out}/index.html: {count(found.nights, 'night')}, {count(pages - 1, 'case')}{left}")


def _collected(store: str, where: Path) -> tuple[list["Device"], list["Fault"]]:
    from perfci.history.series import read
    from perfci.history.store import open_store

    opened = open_store(store, where)
    return read(opened), opened.faults


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "device"


def _facts(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not (mark and name and value):
            raise UsageError(f"--fact {text}: write NAME=VALUE, such as image=sha256:1a2b")
        found[name] = value
    return found


@app.command(hidden=True)
def plan(store: StoreName, where: options.Where = HERE) -> None:
    """Say which commits this night's main is compared with, as JSON: the one recorded last, and the reference.

    Measures nothing. `perfci history measure --plan FILE` makes the comparisons where the store is not at hand.
    """
    from perfci.cli.night import tell_plan

    tell_plan(store, where)


@app.command(hidden=True)
def measure(
    cases: options.Cases = None,
    store: Annotated[str | None, _STORE] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead: what `perfci history plan` said, where no store is to be."),
    ] = None,
    budget: options.BudgetOfEach = None,
    device: options.Device = None,
    python: options.Python = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where each comparison gets a folder.")] = NIGHTS,
    where: options.Where = HERE,
) -> None:
    """Compare main with the commit recorded last, and with the reference; a new reference with the one before.

    Each comparison has its own report, in a folder of --out, and α is shared by all. Ends with the exit code of the
    worst.
    """
    from perfci.cli.night import measure_night

    measure_night(store, plan, cases=cases, budget=budget, device=device, python=python, out=out, where=where)
