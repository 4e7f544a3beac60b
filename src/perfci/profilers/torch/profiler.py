"""torch.profiler as a back end: timelines of cases, taken inside the worker (Kineto, over CUPTI)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from perfci.model.base import DeviceKind
from perfci.model.profile import Fault, Trace
from perfci.profilers.base import LARGEST_TIMELINE, TRACED, Profiler, ProfilerRequest, Read, grown
from perfci.profilers.faults import fault
from perfci.profilers.torch import capture as kineto_capture
from perfci.profilers.torch import json as kineto_json
from perfci.profilers.torch import trace as kineto_trace
from perfci.system.bounded import MIB, Unread, call, desk, regular, take
from perfci.system.child import Exit
from perfci.system.users import SAME, Account
from perfci.worker.profile import NAME

LARGEST_TRACE = 512 * MIB
"""Bytes of Kineto's JSON, packed or not."""
Seen = tuple[Trace | None, Annotated[list[Fault], Field(max_length=2)]]


@dataclass(frozen=True)
class Kineto(Profiler[Trace]):
    """torch.profiler inside the worker."""

    request: ProfilerRequest
    seconds: float
    device: DeviceKind = "cuda"
    name = "torch.profiler"
    part = "trace"
    scopes = frozenset({"case"})

    @classmethod
    def find(cls, request: ProfilerRequest) -> "Kineto":
        """Return the profiler of the torch under test."""
        return cls(request, TRACED * request.timeout)

    def for_cases(self, device: DeviceKind) -> "Kineto":
        """See `Profiler`."""
        return replace(self, device=device)

    def path(self, report: Path, name: str) -> str | None:
        """See `Profiler`."""
        return f"{report}-{name}.json.gz"

    def read(self, report: Path, names: Sequence[str], ended: Exit | None, log: Path) -> Read[Trace]:
        """Read the trace of each case."""
        self.request.account.reclaim(report.parent)
        read: Read[Trace] = Read()
        paths = {name: Path(f"{report}-{name}.json.gz") for name in names}
        keep = self.request.keep.folder if self.request.keep is not None else None
        for name, (trace, faults) in traces(paths, NAME, self.device, self.request.account, keep).items():
            if trace is not None:
                read.seen[name] = trace
            if faults:
                read.faults[name] = faults
            paths[name].unlink(missing_ok=True)
        return read


# ---------------------------------------------------------------- traces, read in processes of their own


def traces(
    paths: Mapping[str, Path], name: str, device: DeviceKind, account: Account = SAME, keep: Path | None = None
) -> dict[str, Seen]:
    """Return each case's executions in ranges `name`, and what is missing.

    `keep`: folder for timelines. Raises OSError where it cannot be written to.
    """
    sizes: dict[str, int] = {}
    found: dict[str, Seen] = {}
    for case, path in paths.items():
        try:
            sizes[case] = regular(path, LARGEST_TRACE)
        except Unread as why:
            found[case] = _no_trace(path, why)
    asked = {case: paths[case] for case in sizes}
    try:
        return found | _kineto(asked, sum(sizes.values()), name, device, account, keep)
    except Unread as why:
        if len(asked) == 1:
            return found | {case: _no_trace(path, why) for case, path in asked.items()}
    for case, path in asked.items():  # each for itself: one of them broke the reader of all
        try:
            found |= _kineto({case: path}, sizes[case], name, device, account, keep)
        except Unread as why:
            found[case] = _no_trace(path, why)
    return found


def _no_trace(path: Path, why: Unread) -> Seen:
    return None, [fault("torch.profiler", "trace", "unreadable", f"{path.name}: {why}", kineto_json.REMEDY)]


def _kineto(
    paths: Mapping[str, Path], size: int, name: str, device: DeviceKind, account: Account, keep: Path | None
) -> dict[str, Seen]:
    if not paths:
        return {}
    bounds = grown(size, MIB / 8, 300, written=256 * MIB + size)  # packed it is a tenth
    with desk(account) as folder:
        found = call(
            read_kineto, bounds, folder, account, paths={case: path.absolute() for case, path in paths.items()},
            name=name, device=device, folder=None if keep is None else folder,
        )  # fmt: skip
        account.reclaim(folder)
        if found.keys() != paths.keys():
            raise Unread("its reader answered for other cases")
        for path in paths.values() if keep is not None else ():
            assert keep is not None
            if (made := _timeline(folder, path)).exists():
                take(made, _timeline(keep, path), LARGEST_TIMELINE)
    return found


def captured(path: Path, by: Literal["range", "kernel"]) -> Read[Trace]:
    """Call `capture.read` in another process."""
    try:
        bounds = grown(regular(path, LARGEST_TRACE), MIB / 8, 300)
        with desk() as folder:
            return call(kineto_capture.read, bounds, folder, path=path.absolute(), by=by)
    except Unread as why:
        text = f"{path.name}: {why}"
        return Read(general=[fault("torch.profiler", "trace", "unreadable", text, kineto_capture.AGAIN)])


def _timeline(folder: Path, path: Path) -> Path:
    return folder / f"{path.name.removesuffix('.gz').removesuffix('.json')}.timeline.json.gz"


def read_kineto(paths: dict[str, Path], name: str, device: DeviceKind, folder: Path | None) -> dict[str, Seen]:
    """Read each trace; publish it where `folder` is given."""
    told: dict[str, Seen] = {}
    for case, path in paths.items():
        found = kineto_trace.read(path, name, device)
        refused = None if folder is None else kineto_trace.publish(path, _timeline(folder, path))
        refused = refused.model_copy(update={"aside": True}) if refused else None  # a picture, and no value
        seen = found if isinstance(found, Trace) else None
        told[case] = seen, [one for one in (found, refused) if isinstance(one, Fault)]
    return told
