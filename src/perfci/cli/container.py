"""Measuring in a container: `perfci docker VERB …`, and a job with an image in `container:`."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from perfci.cli.measure import Finished, environments, folders, interrupt, limit_alone, read_machine
from perfci.cli.report import read_results
from perfci.container.start import ONCE, TWICE, Job, start
from perfci.judge.judge import judge
from perfci.measure.journal import gone_on
from perfci.measure.request import OUT, Request
from perfci.model.base import MachineError, UsageError


def run_in_container(
    app: typer.Typer, words: list[str], *, image: str | None, pull: bool, gpus: str, counters: bool | None
) -> None:
    """Run `perfci WORDS` there. Ends the process."""
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
    base, head, limit = asked.get("named") or asked.get("base"), asked.get("head"), asked.get("limit")
    request = Request.of(
        mode, where, out, base=base, head=head, committed=asked.get("committed", False) or head is not None,
        limit=limit_alone(limit, where, alone=head is None) if limit else "", resume=asked.get("resume", False),
        **environments(mode, asked), **read_machine(os.environ),
    )  # fmt: skip
    signal.signal(signal.SIGTERM, interrupt)
    rest += [word for word in sys.argv if word == "--debug"]  # which this command line was rid of
    job = Job(verb, rest, gone_on(request), ["perfci", *sys.argv[1:]], image, pull, gpus, counters)
    raise typer.Exit(start(job).code)


def measure_in_container(request: Request, words: Sequence[str], image: str, *, trusted: bool) -> Finished:
    """Do what `measure` does in a container of `image`. Raises PerfciError.

    `words`: behind the verb. `trusted`: the code's authors may write to the repository.
    """
    signal.signal(signal.SIGTERM, interrupt)
    where = request.where.repository.resolve()
    request = request.but(repository=where, out=where / OUT)
    file = request.where.out / "results.json"
    if not request.where.out.is_symlink():  # which is refused below
        file.unlink(missing_ok=True)
    ended = start(Job(request.what.mode, words, request, request.how.command, image=image, trusted=trusted))
    text = f"the container ended with {ended.code}: {ended.line or 'see what stands above'}"
    problem = UsageError(text) if ended.code == UsageError.exit_code else MachineError(text)
    if not file.is_file():
        raise problem
    report = judge(read_results(file), strict=request.how.strict)
    return Finished(report, None if ended.code == report.exit_code else problem)
