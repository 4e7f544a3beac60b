"""`perfci docker VERB …`: the same command line, in a container of perfci's image."""

import signal
import sys
from pathlib import Path
from typing import Any, Literal

import typer

from perfci.cli.measure import folders, interrupt
from perfci.container.start import ONCE, TWICE, Job, launch
from perfci.measure.options import OUT, Options
from perfci.model.base import UsageError


def run_in_container(
    app: typer.Typer, words: list[str], *, image: str | None, pull: bool, gpus: str, counters: bool | None
) -> None:
    """Run `perfci WORDS` there. Ends the process with its exit code."""
    verb, *rest = words
    if verb not in (*TWICE, *ONCE):
        raise UsageError(f"docker {verb}: is not for a container: choose {', '.join((*TWICE, *ONCE))}")
    group: Any = typer.main.get_command(app)
    # A mistake, and --help, need no container.
    asked = group.commands[verb].make_context(f"perfci {verb}", list(rest)).params
    where, out = folders(asked["where"], asked.get("out", Path(OUT)))
    if (where / OUT).is_symlink() and out == (where / OUT).resolve():
        out = where / OUT  # which is refused: it may be the repository's own
    mode: Literal["run", "compare"] = "compare" if verb == "compare" or (verb == "profile" and asked["base"]) else "run"
    options = Options(mode, where, out, base=asked.get("base"), committed=asked.get("committed", False))
    signal.signal(signal.SIGTERM, interrupt)
    job = Job(verb, rest, options, ["perfci", *sys.argv[1:]], image, pull, gpus, counters)
    raise typer.Exit(launch(job).code)
