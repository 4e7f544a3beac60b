"""Nsight Systems as a back end."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from perfci.model.base import DeviceKind, MachineError
from perfci.model.policy import Command, Traced
from perfci.model.profile import Fault, Trace
from perfci.model.results import Reason
from perfci.model.text import escaped
from perfci.profilers.base import LARGEST_TIMELINE, SMALLER, TRACED, Keep, Profiler, ProfilerRequest, Read, grown, said
from perfci.profilers.nsys import command as nsys_command
from perfci.profilers.nsys import export as nsys_export
from perfci.profilers.nsys import perfetto
from perfci.profilers.nsys import privacy as nsys_privacy
from perfci.profilers.nsys import trace as nsys_trace
from perfci.profilers.nsys.command import InstalledNsys
from perfci.profilers.nsys.export import fault
from perfci.profilers.nsys.trace import Loop
from perfci.profilers.scan import keep_report
from perfci.system.bounded import MIB, Unread, call, desk, regular, run, take
from perfci.system.child import Exit, Under
from perfci.system.users import SAME, Account
from perfci.worker.profile import NSYS

EXPORT_TIMEOUT = 300.0
"""Seconds."""


@dataclass(frozen=True)
class Nsys(Profiler[Trace]):
    """Nsight Systems around a worker, one start for a side's cases, or a command."""

    installed: InstalledNsys
    request: ProfilerRequest
    seconds: float
    cuda: bool = True
    whole: bool = False
    """Around a command, whose trace has the name ""."""
    loop: Loop | None = None
    """A command's executions; None for the whole process as one."""
    more: frozenset[Traced] = frozenset()
    name = "nsys"
    part = "trace"
    scopes = frozenset({"case", "command"})
    trims = True
    window = False

    @classmethod
    def find(cls, request: ProfilerRequest) -> "Nsys | Fault":
        """See `command.find`."""
        found = nsys_command.find()
        if isinstance(found, Fault):
            return found
        return cls(found, request, TRACED * request.timeout)

    def for_cases(self, device: DeviceKind) -> "Nsys":
        """On the CPU no capture range opens, and no CUDA call is missed."""
        return replace(self, cuda=device == "cuda")

    def for_command(self, device: DeviceKind, timeout: float, asked: Command) -> "Nsys":
        """See `Profiler`."""
        loop = Loop(asked.range, asked.skip) if asked.range is not None else None
        more = frozenset(one for one in asked.trace if device == "cuda" or one != "memory")
        return replace(self, cuda=device == "cuda", whole=True, loop=loop, more=more, seconds=TRACED * timeout)

    def under(self, report: Path) -> Under:
        """See `Profiler`."""
        output = report.with_suffix(".nsys-rep")
        duration = nsys_command.DURATION if self.whole else None

        def command(argv: list[str]) -> list[str]:
            return nsys_privacy.isolate(
                nsys_command.profile_command(
                    self.installed,
                    output,
                    argv,
                    cuda=self.cuda,
                    capture_range=not self.whole,
                    duration=duration,
                    more=self.more,
                ),
                self.request.account.prefix(),
            )

        def environment(env: Mapping[str, str]) -> dict[str, str]:
            # What nsys writes meanwhile is then below one folder, and can be weighed.
            own = nsys_privacy.environment(env, self.request.written_env) | {NSYS: self.installed.version}
            return own | ({"TMPDIR": str(report.parent)} if self.whole else {})

        return Under(command, environment)

    def excess(self, report: Path) -> Reason | None:
        """Return why nsys is to be ended: it writes more than is read."""
        if (size := nsys_command.used(report.parent)) <= nsys_command.SIZE:
            return None
        return Reason(kind="memory", text=_too_large("nsys and the command under it wrote", size))

    def written(self, report: Path) -> bool:
        """Tell whether the report is there: written as the capture ends, without CUDA as the worker does."""
        return not self.cuda or report.with_suffix(".nsys-rep").is_file()

    def read(self, report: Path, names: Sequence[str], ended: Exit | None, log: Path) -> Read[Trace]:
        """Export and read the report."""
        raw, export = report.with_suffix(".nsys-rep"), report.with_suffix(".sqlite")
        code, killer = (ended.code, ended.signal) if ended else (None, None)
        failed = nsys_command.classify(code, said(log), raw, signal=killer, timed_out=ended is None)
        if not raw.is_file():  # a link may lead anywhere: nothing is read of it but by the user who may read it
            return Read(general=[failed] if failed else [])
        if (size := raw.stat().st_size) > nsys_command.SIZE:
            raw.unlink()
            text = _too_large("nsys wrote a report of", size)
            return Read(general=[fault("crash", text, SMALLER)])
        argv = [*self.request.account.prefix(), *nsys_command.export_command(self.installed, raw, export)]
        if not export_report(argv, raw.parent, log):
            text = f"nsys export took more than {EXPORT_TIMEOUT:g} s"
            return Read(general=[fault("timeout", text, "profile fewer cases at a time")])
        self.request.account.reclaim(raw.parent)
        made = None if self.whole else self.executions
        found = traces(export, self.loop if self.whole else names, self.request.account, made, sorted(self.more))
        refused = self._keep(raw, export, keep) if (keep := self.request.keep) else []
        raw.unlink(missing_ok=True)
        export.unlink(missing_ok=True)
        for name in [name for name, trace in found.seen.items() if self.cuda and _blind(trace)]:
            del found.seen[name]
            found.faults[name] = [_BLIND_COMMAND if self.whole else _BLIND]
        general = [
            *([failed] if failed else []),
            # A duration is kept to the millisecond (seen with 2023.4).
            *([_cut()] if self.whole and found.length >= 0.99 * nsys_command.DURATION else []),
            *refused,
            *found.general,
        ]
        return Read(found.seen, found.faults, general)

    def _keep(self, raw: Path, export: Path, keep: Keep) -> list[Fault]:
        account, refused = self.request.account, list[Fault]()
        if keep.folder is not None and export.is_file():
            refused += keep_export(export, keep.folder, account)
        if keep.raw is None:
            return refused
        seen = nsys_privacy.isolation(account.prefix())
        if keep.handed_on and account.ids is None and not seen.holds:
            # A scan knows the secrets of this environment, and not those of other processes.
            text = f"{raw.name} was not kept: {seen.text}"
            return [*refused, fault("forbidden", text, _ALONE, aside=True)]
        return [*refused, *keep_report(raw, export, keep.raw, (nsys_command.SIZE, nsys_export.LARGEST), fault)]


def export_report(argv: Sequence[str], folder: Path, log: Path) -> bool:
    """Run nsys' reader. Tell whether it finished."""
    bounded = [
        "/bin/sh",
        "-c",
        'ulimit -c 0; ulimit -f "$0" 2>/dev/null; exec "$@"',
        str(nsys_export.LARGEST // 512),
        *argv,
    ]
    said = run(bounded, EXPORT_TIMEOUT, env=nsys_privacy.environment(os.environ), cwd=folder)
    with log.open("ab") as handle:
        handle.write(said.raw + said.err.encode())
    return not said.late


_ALONE = "measure in a container of perfci's image, or where a user may open a PID namespace"
_BLIND = fault(
    "empty",
    "nsys recorded the executions, and no call of the CUDA API in them",
    "another nsys version may help; torch.profiler is asked instead",
)
_BLIND_COMMAND = fault(
    "empty",
    "nsys recorded the command, and no call of the CUDA API in it",
    "another nsys version may help; write device: cpu where the command does not use the GPU",
)


def _cut() -> Fault:
    text = f"nsys recorded the first {nsys_command.DURATION} s of the command, which ran on"
    return fault("incomplete", text, SMALLER)


def _too_large(what: str, size: int) -> str:
    return f"{what} {size / 2**30:.1f} GiB, more than {nsys_command.SIZE / 2**30:.1f} GiB"


def _blind(trace: Trace) -> bool:
    """A GPU case calls CUDA's API at least."""
    return not (trace.kernels or trace.copies or trace.sets or trace.calls)


# ---------------------------------------------------------------- reports, read in processes of their own


def traces(
    export: Path,
    names: Sequence[str] | Literal["outermost"] | Loop | None,
    account: Account = SAME,
    executions: int | None = None,
    asked: Sequence[Traced] = (),
) -> nsys_trace.Reading:
    """Call `trace.read` in another process."""
    try:
        # A file that is refused before it is opened is described by `nsys_trace.read`.
        size = export.lstat().st_size if export.is_file() else 0
        bounds = grown(size, MIB, nsys_trace.LIMIT, answer=64 * MIB, written=256 * MIB + 4 * size)
        with desk(account) as folder:
            return call(
                nsys_trace.read, bounds, folder, account, path=export.absolute(), ranges=names, limit=bounds.wall,
                executions=executions, asked=asked,
            )  # fmt: skip
    except Unread as why:
        return nsys_trace.Reading(general=[fault("unreadable", f"{export.name}: {why}", nsys_export.AGAIN)])


def keep_export(export: Path, folder: Path, account: Account = SAME) -> list[Fault]:
    """Write the scrubbed export and a timeline into `folder`; return faults, which cost no value. Raises OSError."""
    try:
        size = regular(export, nsys_export.LARGEST)
        bounds = grown(size, 2 * MIB, nsys_trace.LIMIT, written=256 * MIB + 4 * size)
        with desk(account) as place:
            copy, timeline = place / export.name, place / f"{export.stem}.timeline.json.gz"
            if refused := call(_scrub, bounds, place, account, export=export.absolute(), copy=copy):
                return [refused.model_copy(update={"aside": True})]
            account.reclaim(place)
            take(copy, folder / export.name, bounds.written)
            account.give(place)
            refused = call(perfetto.write, bounds, place, account, export=copy, out=timeline)
            account.reclaim(place)
            if refused is None:
                take(timeline, folder / timeline.name, LARGEST_TIMELINE)
    except Unread as why:
        refused = fault("unreadable", f"{export.name}: {why}", nsys_export.AGAIN)
    return [refused.model_copy(update={"aside": True})] if refused else []


def _scrub(export: Path, copy: Path) -> Fault | None:
    try:
        nsys_privacy.scrub(export, copy)
    except MachineError as error:
        return fault("unreadable", escaped(error), nsys_export.AGAIN)
    return None
