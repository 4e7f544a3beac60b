"""`perfci compare --gpus`: one comparison on several GPUs of this host, one verdict."""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import typer

from perfci.cli.measure import by_times, interrupt, measure_and_report, read_request, refuse_keep, tell_measured
from perfci.cli.output import tell, write_all
from perfci.cli.progress import Console, Teller
from perfci.cli.report import judged
from perfci.cli.shards import keep_samples, read_shards
from perfci.measure.journal import JOURNAL, gone_on
from perfci.measure.request import Request
from perfci.measure.shards.document import PLAN, SharedPlan
from perfci.measure.shards.host import FOLDER, Member, measure_host, plan_host
from perfci.model.base import MachineError, UsageError
from perfci.model.results import Results
from perfci.system.files import make_scratch
from perfci.system.gpus import ORDER, VISIBLE, host_gpus
from perfci.system.users import find_account, keep_outputs


def compare_on_gpus(text: str, **asked: Any) -> NoReturn:
    """Compare on the GPUs of `--gpus`."""
    if asked.get("prepare"):
        measure_and_report("compare", **asked)  # which builds, and needs no GPU
    refuse_keep("a run on several GPUs")
    request = read_request("compare", **asked)
    if request.what.devices not in (None, ["cuda"]):
        raise UsageError("--gpus: measures on GPUs alone: leave out --device cpu, or compare there by itself")
    gpus = host_gpus(text)
    members = [Member(gpu.name, {VISIBLE: gpu.uuid, ORDER: "PCI_BUS_ID"}, gpu.uuid, gpu.cores) for gpu in gpus]
    if len(members) == 1:
        os.environ.update(members[0].env)
        tell_measured(gone_on(request).but(gpu=members[0].gpu), json=asked.get("json", False))
    compare_on(members, request, json=asked.get("json", False))


def compare_on(members: list[Member], request: Request, *, json: bool = False) -> NoReturn:
    """Compare, judge, write and tell."""
    signal.signal(signal.SIGTERM, interrupt)
    out = request.where.out
    if (out / FOLDER / "shard-1" / JOURNAL).exists():
        request = gone_on(request, out / FOLDER / "shard-1")
    account, strict = find_account(), request.how.strict
    with keep_outputs(out, request.where.repository) as outputs:
        judging = partial(by_times, strict=strict)
        with Teller(Console(stderr=True, quiet=json), judging) as teller, make_scratch() as scratch:
            account.show(scratch)
            begun, home = time.monotonic(), scratch / "sides"
            plan = plan_host(request, members, home, teller)
            built = time.monotonic() - begun
            _require_devices(plan, members)
            try:
                folders, notes = measure_host(request, members, plan, home, teller)
            except KeyboardInterrupt:
                goes_on = (out / FOLDER / PLAN).exists()  # not where a GPU was lost before
                todo = "go on with the same --gpus and --resume" if goes_on else "run again"
                raise MachineError(f"interrupted: {todo}") from None
        outputs.require()  # nothing of the code under test runs any more
        results = _merged(folders, out, built)
        results.notes += notes
        report = judged(results, None, strict=strict)
        keep_samples(folders, out)
        files = write_all(out, report, results)
    tell(report, out, files, json=json)
    raise typer.Exit(report.exit_code)


def _require_devices(plan: SharedPlan, members: list[Member]) -> None:
    if all(one.gpu for one in members) and set(plan.plan.devices) != {"cuda"}:
        raise UsageError(
            "--gpus: the policy measures on the CPU, whose cores are shared here: give --device cuda, and compare "
            "with --device cpu by itself"
        )


def _merged(folders: list[Path], out: Path, built: float) -> Results:
    """`built`: seconds to build and plan, once."""
    (merged,) = read_shards(folders, out)  # GPUs of one model share one plan
    results = merged.results
    for side in results.sides.values():
        side.build_seconds /= len(folders)  # each tells the one build
    results.costs["build"] = results.costs.get("build", 0.0) + built
    results.seconds += built
    return results
