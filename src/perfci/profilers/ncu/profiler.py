"""Nsight Compute as a back end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfci.model.base import DeviceKind
from perfci.model.policy import Command
from perfci.model.profile import Counters, Fault
from perfci.profilers.base import LOG_END, Profiler, ProfilerRequest, Read, grown, said, trimmed
from perfci.profilers.ncu import chips
from perfci.profilers.ncu import command as ncu_command
from perfci.profilers.ncu import file as ncu_file
from perfci.profilers.ncu import module as ncu_module
from perfci.profilers.ncu import report as ncu_report
from perfci.profilers.ncu.command import InstalledNcu, may_count
from perfci.profilers.ncu.launch import fault
from perfci.profilers.scan import keep_report
from perfci.system.bounded import MIB, Unread, call, desk, regular
from perfci.system.child import Exit, Under
from perfci.system.files import end_of
from perfci.system.users import SAME, Account

LAUNCHES = 5000
"""Of one start around cases, each executed once."""
COMMAND_LAUNCHES = 1000
"""Around a command: tens of milliseconds each."""
SLOWER, SLOWEST = 10, 40
"""Times its time-out that a case may take, as ncu replays each kernel and saves its memory; the latter for ncu's full
set or a section."""


@dataclass(frozen=True)
class Ncu(Profiler[Counters]):
    """Nsight Compute around a worker, one start for a side's cases, or a command."""

    installed: InstalledNcu
    request: ProfilerRequest
    chip: str
    names: tuple[str, ...]
    """Quantities of `chips.COUNTED` that the chip can give, and ncu's metrics."""
    sections: tuple[str, ...]
    seconds: float
    full: bool = False
    further: bool = False
    """Sections may hold more of the table than was asked for."""
    whole: bool = False
    """All launches count, under the name ""."""
    kernels: str | None = None
    """A regular expression for functions."""
    launches: int = LAUNCHES
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Requested counter → why this chip cannot give it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """ncu's metric → its words."""
    name = "ncu"
    part = "counters"
    scopes = frozenset({"case", "command"})
    trims = True
    executions = 1
    window = True

    @classmethod
    def find(cls, request: ProfilerRequest) -> "Ncu | Fault":
        """Return the first ncu that fits the driver and may count on a GPU; or why not."""
        found = may_count() or ncu_command.find(request.driver_cuda)
        if isinstance(found, Fault):
            return found
        if not request.gpu:
            return fault("absent", "there is no GPU to count on")
        chip = (chips.chip_of(*request.capability) if request.capability else None) or ""
        named = () if isinstance(request.counters, str) else tuple(request.counters)
        of = request.counters if isinstance(request.counters, str) else "default"
        wanted = chips.expand([*chips.expand(of), *request.metrics])
        missing = chips.unavailable(wanted, chip)
        own = cls(
            found, request, chip, tuple(name for name in wanted if name not in missing),
            tuple(dict.fromkeys([*chips.SECTIONS[of], *named])), 0.0, full=of == chips.FULL, further=bool(named),
            unavailable=missing,
        )  # fmt: skip
        return replace(own, seconds=own.slower * request.timeout)

    @property
    def slower(self) -> int:
        """Times its time-out that a case may take."""
        return SLOWEST if self.full or self.further else SLOWER

    def for_command(self, device: DeviceKind, timeout: float, asked: Command) -> "Ncu":
        """See `Profiler`."""
        seconds = self.slower * timeout
        return replace(self, whole=True, kernels=asked.kernels, launches=COMMAND_LAUNCHES, seconds=seconds)

    def asking(self, metrics: Sequence[str]) -> "Ncu":
        """See `Profiler`."""
        return replace(self, names=tuple(dict.fromkeys([*self.names, *metrics])))

    def without(self, refused: Mapping[str, str]) -> "Ncu":
        """See `Profiler`."""
        names = tuple(name for name in self.names if name not in refused)
        return replace(self, names=names, refused={**self.refused, **refused})

    def lacking(self) -> Mapping[str, str]:
        """Return the counters that the chip cannot give."""
        return self.unavailable

    def under(self, report: Path) -> Under:
        """See `Profiler`."""

        def command(argv: list[str]) -> list[str]:
            return ncu_command.command(
                self.installed.path,
                argv,
                report=report.with_suffix(".ncu-rep"),
                log=report.with_suffix(".log"),
                metrics=chips.metrics_for(self.names, self.chip),
                sections=self.sections,
                set_name=chips.FULL if self.full else None,
                launches=self.launches,
                kernels=self.kernels,
                capture=not self.whole,
            )

        return Under(command, lambda env: trimmed(env, self.request.written_env))

    def read(self, report: Path, names: Sequence[str], ended: Exit | None, log: Path) -> Read[Counters]:
        """Read the report; ncu's words go to the worker's log."""
        self.request.account.reclaim(report.parent)
        own, raw = report.with_suffix(".log"), report.with_suffix(".ncu-rep")
        if own.is_file():
            with log.open("ab") as handle:
                handle.write(end_of(own, LOG_END))
        failed = ncu_command.classify(ended.code if ended else None, said(log), ended is None)
        refused = ncu_command.refused(said(log), [name for name in self.names if name not in chips.COUNTED])
        told = [_refusal(name, why, self.chip) for name, why in self.refused.items()]
        if not raw.is_file():
            nothing = fault("empty", "ncu wrote no report", f"see logs/{log.name}")
            return Read(general=[failed or nothing, *told], refused=refused)
        ranges = None if self.whole else names
        found = counters(
            raw, ranges=ranges, whole=self.whole, names=[name for name in self.names if name not in refused],
            further=self.further, most=self.launches, installed=self.installed.path, account=self.request.account,
        )  # fmt: skip
        keep = self.request.keep.raw if self.request.keep is not None else None
        unkept = keep_report(raw, raw, keep, (ncu_file.LARGEST, ncu_file.LARGEST), fault) if keep is not None else []
        raw.unlink(missing_ok=True)
        general = [*([failed] if failed else []), *told, *found.general, *unkept]
        return Read(found.seen, found.faults, general, refused=refused)


def _refusal(name: str, why: str, chip: str) -> Fault:
    of = f" --chips {chip}" if chip else ""
    return fault("incompatible", f"{name}: {why}", f"see what ncu has: ncu --query-metrics{of}", [name])


def counters(
    path: Path,
    *,
    ranges: Sequence[str] | None,
    whole: bool,
    names: Sequence[str] | None,
    most: int | None,
    installed: Path | None,
    own: Sequence[str] = (),
    further: bool = False,
    account: Account = SAME,
) -> Read[Counters]:
    """Call `report.read` in another process."""
    try:
        size = regular(path, ncu_file.LARGEST)
        bounds = grown(
            size, MIB, 300, memory=768 * MIB + 14 * size, answer=64 * MIB, written=256 * MIB + 8 * size,
            program=ncu_file.MEMORY + 12 * size,
        )  # fmt: skip
        with desk(account) as folder:
            return call(
                ncu_report.read, bounds, folder, account, path=path.absolute(), ranges=ranges, whole=whole, names=names,
                own=own, further=further, most=most, ncu=installed, modules=ncu_module.modules(),
                timeout=min(ncu_report.TIMEOUT, 0.8 * bounds.wall),
            )  # fmt: skip
    except Unread as why:
        found = fault("unreadable", f"{path.name}: {why}", "profile again")
        return Read(general=[found])
