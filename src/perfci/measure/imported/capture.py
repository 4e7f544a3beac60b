"""Reads files of nsys, ncu and torch.profiler: a case is an NVTX range, or a kernel where no file has a range."""

import os
import shutil
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfci.measure.imported.base import Files
from perfci.model.base import Side, UsageError
from perfci.model.profile import Counters, Fault, FaultKind, Trace
from perfci.model.text import listed
from perfci.profilers.base import Read
from perfci.profilers.faults import fault
from perfci.profilers.ncu.profiler import counters
from perfci.profilers.nsys import command as nsys_command
from perfci.profilers.nsys.origin import behind
from perfci.profilers.nsys.profiler import export_report, traces
from perfci.profilers.torch.profiler import captured

By = Literal["range", "kernel"]
"""The part of a capture that is a case."""
Kind = Literal["nsys", "nsys report", "ncu", "torch.profiler"]
Seen = Read[Trace] | Read[Counters]
NEWER = "capture with an nsys that is as new as the driver's CUDA"
BEGIN = 2**18
"""Bytes of a file by which it is recognised."""
MARK = "mark what is to be a case by an NVTX range or record_function, or give --by kernel"
_SUFFIXES: dict[str, Kind] = {
    ".nsys-rep": "nsys report", ".qdrep": "nsys report", ".ncu-rep": "ncu", ".sqlite": "nsys",
}  # fmt: skip


@dataclass(frozen=True)
class Capture:
    """One file of one side."""

    path: Path
    kind: Kind
    seen: Seen

    @property
    def timeline(self) -> bool:
        """Tell whether it holds times."""
        return self.kind != "ncu"


def recognise(path: Path) -> Kind | None:
    """Return the profiler that wrote a file, by content, else name, or None."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            begin = file.read(BEGIN)
    except OSError:
        return None  # who reads it says why it cannot be read
    if begin.startswith(b"SQLite format 3\0"):
        return "nsys"
    if begin.startswith(b"NVR\0"):
        return "ncu"
    if begin.startswith(b"\x1f\x8b"):
        try:
            begin = zlib.decompressobj(wbits=31).decompress(begin, BEGIN)
        except zlib.error:
            return None
    if begin.lstrip()[:1] == b"{" and (b'"traceEvents"' in begin or b'"deviceProperties"' in begin):
        return "torch.profiler"
    if b'"Kernel Name"' in begin:
        return "ncu"
    return _SUFFIXES.get(path.suffix)


def read_all(
    files: Files, kinds: Mapping[Path, Kind], by: By | None, scratch: Path, metrics: Sequence[str] = ()
) -> tuple[dict[Side, list[Capture]], By]:
    """Read all files by ranges, or by kernels where none has any; return them and which. `metrics`: by ncu's names."""
    exported = {path: _exported(path, scratch) if kind == "nsys report" else path for path, kind in kinds.items()}

    def each(way: By) -> dict[Side, list[Capture]]:
        return {
            name: [Capture(path, kinds[path], _seen(path, exported[path], kinds[path], way, metrics)) for path in paths]
            for name, paths in files.items()
        }

    if by == "kernel":
        return each("kernel"), "kernel"
    found = each("range")
    everything = [one for some in found.values() for one in some]
    without = [one for one in everything if not works(one)]
    if not without:
        return found, "range"
    if by is None and not any(one.seen.seen or one.seen.faults for one in everything):
        return each("kernel"), "kernel"
    first, lost, how = without[0], "", MARK
    if (told := next((one for one in first.seen.general if not one.aside), None)) is not None:
        raise _refused(first.path, exported[first.path], told)
    if (aside := next((one for one in first.seen.general if one.remedy == NEWER), None)) is not None:
        lost, how = f" ({aside.text})", aside.remedy
    raise UsageError(f"import: {first.path}: holds no range with work of the GPU{lost}: {how}")


def works(one: Capture) -> bool:
    """Tell whether some range of a file holds work of the GPU."""
    return any(map(worked, one.seen.seen.values())) or bool(lost_ranges(one))


def worked(seen: Trace | Counters) -> bool:
    """Tell whether something ran on the GPU; nsys may report only that a CUDA graph ran."""
    return not isinstance(seen, Trace) or seen.busy > 0 or seen.sets > 0


def lost_ranges(one: Capture) -> list[str]:
    """Return ranges of which a file has only faults."""
    return [name for name in one.seen.faults if name not in one.seen.seen]


def _exported(path: Path, scratch: Path) -> Path:
    nsys = nsys_command.find(os.environ)
    if isinstance(nsys, Fault):
        text = f"{nsys.text}: export it where nsys is (nsys export --type sqlite {path.name}), and import that"
        raise UsageError(f"import: {path}: only nsys reads its own reports, and {text}")
    folder = Path(tempfile.mkdtemp(dir=scratch))
    out, log = folder / f"{path.stem}.sqlite", folder / "log"
    if not export_report(nsys_command.export_command(nsys, path.absolute(), out), folder, log) or not out.is_file():
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        why = said[0][:300] if said else "it said nothing"
        raise UsageError(f"import: {path}: nsys {nsys.version} cannot export it ({why}): is it whole, and no newer?")
    return out


def _blank(file: Path) -> list[str]:
    return [name for name, trace in traces(file, "outermost").seen.items() if not trace.calls and not trace.busy]


def _seen(path: Path, file: Path, kind: Kind, by: By, metrics: Sequence[str]) -> Seen:
    """Raises UsageError where there is nothing."""
    found: Seen
    if kind == "ncu":
        tool = shutil.which("ncu")
        found = counters(
            file, ranges=None, whole=by == "kernel", names=None, own=metrics, most=None,
            installed=Path(tool) if tool else None,
        )  # fmt: skip
    elif kind == "torch.profiler":
        found = captured(file, by)
    else:
        reading = traces(file, "outermost" if by == "range" else None)
        version = next((one.version for one in reading.seen.values()), "")
        if why := behind(version, reading.driver):
            blank = _blank(file) if by == "kernel" else []
            of: FaultKind = "incomplete" if blank else "incompatible"
            text = f"version {version}: {why}"
            text += f", and nothing is in {listed(blank, 3)}" if blank else ""
            reading.general.append(fault("nsys", "trace", of, text, NEWER, aside=not blank))
        found = reading
    lost = [one for one in found.general if not one.aside]
    if by == "kernel":
        lost += [one for some in found.faults.values() for one in some]
    else:  # without a range it may hold kernels
        lost = [one for one in lost if one.kind != "empty"] if not found.faults else []
    if not found.seen and lost:
        raise _refused(path, file, lost[0])
    return found


def _refused(path: Path, file: Path, fault: Fault) -> UsageError:
    text = fault.text.replace(file.name, str(path), 1) if file.name in fault.text else f"{path}: {fault.text}"
    return UsageError(f"import: {text}" + (f": {fault.remedy}" if fault.remedy else ""))
