"""nsys, ncu and torch's own profiler, as the profiling pass uses them."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfci.measure.profiling.kernels import Profiler, Read
from perfci.model.base import DeviceKind
from perfci.model.profile import Counters, Fault, Tool, Trace
from perfci.model.results import Reason
from perfci.profilers import readers
from perfci.profilers.ncu import chips
from perfci.profilers.ncu import command as ncu_command
from perfci.profilers.ncu.command import Ncu as InstalledNcu
from perfci.profilers.nsys import command as nsys_command
from perfci.profilers.nsys import export as nsys_export
from perfci.profilers.nsys import privacy as nsys_privacy
from perfci.profilers.nsys.command import Nsys as InstalledNsys
from perfci.profilers.nsys.export import fault as nsys_fault
from perfci.system.bounded import Unread
from perfci.system.files import end_of
from perfci.system.process import Exit, Under
from perfci.system.users import SAME, Account
from perfci.worker.profile import NSYS

EXECUTIONS = 10
"""Of a case under a timeline."""
LAUNCHES = 5000
"""Kernel launches that ncu profiles at most in one start around cases, of which each is executed once."""
COMMAND_LAUNCHES = 1000
"""The same around a command, which launches as it likes: tens of milliseconds each."""
TRACED, SLOWER = 3, 10
"""Under a timeline, and under ncu, a case may take this many times its time-out: ncu replays each kernel, and saves its
memory."""
EXPORT_TIMEOUT = 300.0
LOG_END = 200_000
"""Bytes of a log that are searched for what went wrong."""


@dataclass(frozen=True)
class Keep:
    """Where what profilers wrote stays, without what it tells of the machine."""

    folder: Path
    raw: bool = False
    """Whether the tools' own reports stay too."""


def _end_of(log: Path) -> str:
    return end_of(log, LOG_END).decode(errors="replace")


@dataclass(frozen=True)
class Nsys(Profiler[Trace]):
    """Nsight Systems around a worker; one start for all cases of a side. Or around a command, as a whole."""

    installed: InstalledNsys
    seconds: float
    cuda: bool = True
    whole: bool = False
    """Whether all that the process does is one execution, whose name is ""."""
    written_env: frozenset[tuple[str, str]] = frozenset()
    """Names and values that the policies set: the process gets these beside what every one gets."""
    keep: Keep | None = None
    account: Account = SAME
    """Who runs what is profiled, and the tool with it."""
    tool: Tool = "nsys"
    executions: int = EXECUTIONS
    window: bool | None = False

    def under(self, report: Path) -> Under:
        """How a worker or a command is started under nsys."""
        output = report.with_suffix(".nsys-rep")
        duration = nsys_command.DURATION if self.whole else None

        def command(argv: list[str]) -> list[str]:
            return nsys_privacy.isolate(
                nsys_command.profile_command(
                    self.installed, output, argv, cuda=self.cuda, capture_range=not self.whole, duration=duration
                ),
                self.account.prefix(),
            )

        def environment(env: Mapping[str, str]) -> dict[str, str]:
            # What nsys writes meanwhile is then below one folder, and can be weighed.
            own = nsys_privacy.environment(env, self.written_env) | {NSYS: self.installed.version}
            return own | ({"TMPDIR": str(report.parent)} if self.whole else {})

        return Under(command, environment)

    def excess(self, report: Path) -> Reason | None:
        """Why nsys is to be ended: what it writes to the report's folder passes what is read of it."""
        if (size := nsys_command.used(report.parent)) <= nsys_command.SIZE:
            return None
        return Reason(kind="memory", text=_too_large("nsys and the command under it wrote", size))

    def path(self, report: Path, name: str) -> str | None:
        """Nsys writes one report for all."""
        return None

    def written(self, report: Path) -> bool:
        """Whether the report is there: it is written as the capture ends. Without CUDA, as the worker does."""
        return not self.cuda or report.with_suffix(".nsys-rep").is_file()

    def read(self, report: Path, names: Sequence[str], ended: Exit | None, log: Path) -> Read[Trace]:
        """Export the report and read it; what goes wrong on the way is a fault of all ranges."""
        raw, export = report.with_suffix(".nsys-rep"), report.with_suffix(".sqlite")
        code, killer = (ended.code, ended.signal) if ended else (None, None)
        fault = nsys_command.classify(code, _end_of(log), raw, signal=killer, timed_out=ended is None)
        if not raw.is_file():  # a link may lead anywhere: nothing is read of it but by the user who may read it
            return Read(general=[fault] if fault else [])
        if (size := raw.stat().st_size) > nsys_command.SIZE:
            raw.unlink()
            text = _too_large("nsys wrote a report of", size)
            return Read(general=[Fault(tool="nsys", kind="crash", text=text, remedy=SMALLER)])
        argv = [*self.account.prefix(), *nsys_command.export_command(self.installed, raw, export)]
        if not _exported(argv, raw.parent, log):
            text = f"nsys export took more than {EXPORT_TIMEOUT:g} s"
            return Read(general=[Fault(tool="nsys", kind="timeout", text=text, remedy="profile fewer cases at a time")])
        self.account.reclaim(raw.parent)
        made = None if self.whole else self.executions
        found = readers.nsys_traces(export, None if self.whole else names, self.account, made)
        refused = self._keep(raw, export) if self.keep is not None and export.is_file() else []
        raw.unlink(missing_ok=True)
        export.unlink(missing_ok=True)
        for name in [name for name, trace in found.traces.items() if self.cuda and _blind(trace)]:
            del found.traces[name]
            found.faults[name] = _BLIND_COMMAND if self.whole else _BLIND
        general = [
            *([fault] if fault else []),
            *(_cut() for trace in found.traces.values() if self.whole and _ran_on(trace)),
            *refused,
            *(one for one in found.general if one not in found.faults.values()),
        ]
        return Read(found.traces, {name: [one] for name, one in found.faults.items()}, general)

    def _keep(self, raw: Path, export: Path) -> list[Fault]:
        """Keep the scrubbed export and a timeline for ui.perfetto.dev; the report itself where it is asked for and a
        scan of its export finds no secret."""
        assert self.keep is not None
        refused = readers.keep_nsys(export, self.keep.folder, self.account)
        if not self.keep.raw:
            return refused
        try:
            held = readers.held_secrets(export, nsys_privacy.secrets(dict(os.environ)))
        except Unread as why:
            text = f"{export.name}: {why}: whether it holds secrets is not known, and {raw.name} was not kept"
            return [*refused, nsys_fault("forbidden", text, "go without --raw", aside=True)]
        if held:
            text = f"{raw.name} holds values of {', '.join(sorted(held))}: it was not kept"
            return [*refused, nsys_fault("forbidden", text, "unset them, or go without --raw", aside=True)]
        if raw.is_file():
            shutil.copyfile(raw, self.keep.folder / raw.name)
        return refused


def _exported(argv: Sequence[str], folder: Path, log: Path) -> bool:
    """Run nsys' own reader of a report, which writes no larger file than is read. Whether it came to its end."""
    bounded = [
        "/bin/sh",
        "-c",
        'ulimit -c 0; ulimit -f "$0" 2>/dev/null; exec "$@"',
        str(nsys_export.LARGEST // 512),
        *argv,
    ]
    with log.open("ab") as handle:
        process = subprocess.Popen(
            bounded, env=nsys_privacy.environment(os.environ), cwd=folder, stdin=subprocess.DEVNULL, stdout=handle,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        process.wait(EXPORT_TIMEOUT)
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return True


_BLIND = Fault(
    tool="nsys",
    kind="empty",
    text="nsys recorded the executions, and no call of the CUDA API in them",
    remedy="another nsys version may help; torch.profiler is asked instead",
)
_BLIND_COMMAND = Fault(
    tool="nsys",
    kind="empty",
    text="nsys recorded the command, and no call of the CUDA API in it",
    remedy="another nsys version may help; write device: cpu where the command does not use the GPU",
)
SMALLER = "let it do less: fewer steps, or fewer shapes"
"""What mends a process that is too much for a profiler."""


def _too_large(what: str, size: int) -> str:
    return f"{what} {size / 2**30:.1f} GiB, more than {nsys_command.SIZE / 2**30:.1f} GiB"


def _ran_on(trace: Trace) -> bool:
    """Whether recording ended before the process did. A duration is kept to the millisecond (seen with 2023.4)."""
    return trace.wall >= 0.99 * nsys_command.DURATION


def _cut() -> Fault:
    text = f"nsys recorded the first {nsys_command.DURATION} s of the command, which ran on"
    return Fault(tool="nsys", kind="incomplete", text=text, remedy=SMALLER)


def _blind(trace: Trace) -> bool:
    """Whether nothing of CUDA was recorded: a case on a GPU calls its API at least."""
    return not (trace.kernels or trace.copies or trace.sets or trace.calls)


@dataclass(frozen=True)
class Ncu(Profiler[Counters]):
    """Nsight Compute around a worker; one start for all cases of a side, one execution of each. Or around a command."""

    installed: InstalledNcu
    chip: str
    names: tuple[str, ...]
    """Quantities of `chips.COUNTED` that the chip can give."""
    sections: tuple[str, ...]
    """Sections of ncu, for its rules."""
    seconds: float
    whole: bool = False
    """Whether all that the process launches is counted, under the name ""."""
    kernels: str | None = None
    """A regular expression for the functions that are profiled; None for all."""
    launches: int = LAUNCHES
    written_env: frozenset[tuple[str, str]] = frozenset()
    """Names and values that the policies set: the process gets these beside what every one gets."""
    keep: Keep | None = None
    account: Account = SAME
    """Who runs what is profiled, and the tool with it."""
    tool: Tool = "ncu"
    executions: int = 1
    window: bool | None = True

    def under(self, report: Path) -> Under:
        """How a worker or a command is started under ncu."""

        def command(argv: list[str]) -> list[str]:
            return ncu_command.command(
                self.installed.path,
                argv,
                report=report.with_suffix(".ncu-rep"),
                log=report.with_suffix(".log"),
                metrics=chips.metrics_for(self.names, self.chip),
                sections=self.sections,
                launches=self.launches,
                kernels=self.kernels,
                capture=not self.whole,
            )

        return Under(command, lambda env: nsys_privacy.environment(env, self.written_env))

    def excess(self, report: Path) -> None:
        """Ncu writes what it counted, and no more than `launches` of it."""

    def path(self, report: Path, name: str) -> str | None:
        """Ncu writes one report for all."""
        return None

    def written(self, report: Path) -> bool:
        """Ncu writes as the worker ends."""
        return True

    def read(self, report: Path, names: Sequence[str], ended: Exit | None, log: Path) -> Read[Counters]:
        """Read the report; what ncu said goes to the log of the worker."""
        self.account.reclaim(report.parent)
        own, raw = report.with_suffix(".log"), report.with_suffix(".ncu-rep")
        if own.is_file():
            with log.open("ab") as handle:
                handle.write(end_of(own, LOG_END))
        fault = ncu_command.classify(ended.code if ended else None, _end_of(log), ended is None)
        if not raw.is_file():
            nothing = Fault(tool="ncu", kind="empty", text="ncu wrote no report", remedy=f"see logs/{log.name}")
            return Read(general=[fault or nothing])
        ranges = None if self.whole else names
        found = readers.ncu_counters(
            raw, ranges=ranges, whole=self.whole, names=self.names, most=self.launches, installed=self.installed.path,
            account=self.account,
        )  # fmt: skip
        if self.keep is not None and self.keep.raw:
            shutil.copyfile(raw, self.keep.folder / raw.name)
        raw.unlink(missing_ok=True)
        return Read(found.counters, found.faults, [*([fault] if fault else []), *found.general])


@dataclass(frozen=True)
class Kineto(Profiler[Trace]):
    """torch.profiler inside the worker, where nsys cannot be used."""

    seconds: float
    device: DeviceKind = "cuda"
    keep: Keep | None = None
    account: Account = SAME
    """Who runs what is profiled, and the tool with it."""
    tool: Tool = "torch.profiler"
    executions: int = EXECUTIONS
    window: bool | None = None

    def under(self, report: Path) -> None:
        """A worker like any other."""

    def path(self, report: Path, name: str) -> str | None:
        """A trace of its own for each case."""
        return f"{report}-{name}.json.gz"

    def written(self, report: Path) -> bool:
        """Each case's trace is there when its worker has answered."""
        return True

    def read(self, report: Path, names: Sequence[str], ended: Exit | None, log: Path) -> Read[Trace]:
        """Read the trace of each case."""
        self.account.reclaim(report.parent)
        read: Read[Trace] = Read()
        paths = {name: Path(f"{report}-{name}.json.gz") for name in names}
        keep = self.keep.folder if self.keep is not None else None
        for name, (trace, faults) in readers.kineto_traces(paths, NAME, self.device, self.account, keep).items():
            if trace is not None:
                read.seen[name] = trace
            if faults:
                read.faults[name] = faults
            paths[name].unlink(missing_ok=True)
        return read


NAME = "perfci-execution"
"""What perfci.worker.profile calls the range of an execution."""
