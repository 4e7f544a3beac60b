"""`perfci calibrate`: HEAD against itself, to know what this machine can show."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from perfci.cli.measure import interrupt, read_options
from perfci.cli.progress import Teller
from perfci.measure.calibrate import history
from perfci.measure.calibrate.trials import conclude, policy_text, ready
from perfci.measure.options import Options
from perfci.measure.run import Measurement
from perfci.model.calibration import Calibration
from perfci.model.policy import Policy
from perfci.render.calibration import print_calibration, render
from perfci.system.files import write_atomic
from perfci.system.users import Outputs, find_account, keep_outputs

FOLDER = "calibration"
"""Within --out, so that the last comparison stays as it is."""
FILES = ("calibration.md", "calibration.json", "policy.yaml", "results.json", "samples.jsonl", "logs/")


def calibrate_machine(pairs: int, **asked: Any) -> None:
    """Measure, conclude, keep, tell. Ends the process with its exit code."""
    options = read_options("compare", **asked)
    options, policy, notes = ready(replace(options, out=options.out / FOLDER), pairs)
    signal.signal(signal.SIGTERM, interrupt)
    with keep_outputs(options.out.parent, options.where, find_account()) as outputs:
        calibration = _calibrate(options, policy, notes, outputs)
    kept = history.store(calibration)
    if asked["json"]:
        typer.echo(calibration.model_dump_json(indent=1))
    else:
        print_calibration(calibration, Console())
        names = [name for name in FILES if (options.out / name).exists()]
        typer.echo(f"\nFiles in {_short(options.out)}/: {' · '.join(names)}")
        typer.echo(f"Kept for this machine: {' · '.join(map(str, kept))}")
    raise typer.Exit(calibration.exit_code)


def _calibrate(options: Options, policy: Policy, notes: list[str], outputs: Outputs) -> Calibration:
    """Measure and conclude, into the output folder."""
    with Teller(Console(stderr=True)) as teller:
        measurement = Measurement(options, teller)
        results = measurement.measure()
    outputs.require()  # nothing of the code under test runs any more
    write_atomic(options.out / "results.json", results.model_dump_json(indent=1) + "\n")
    calibration = conclude(results, measurement.spent, policy, whole=not options.cases, notes=notes)
    write_atomic(options.out / "calibration.json", calibration.model_dump_json(indent=1) + "\n")
    write_atomic(options.out / "calibration.md", render(calibration))
    write_atomic(options.out / "policy.yaml", policy_text(calibration, policy))
    return calibration


def _short(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
