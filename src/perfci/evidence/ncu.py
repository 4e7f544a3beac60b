"""Reads what ncu counted: a report (`.ncu-rep`) through NVIDIA's `ncu_report`, or the raw page as CSV.

Both ways give the same values, save that the CSV is printed to two decimals and knows no rules. A value that is absent,
no finite number or below zero is a fault, never a number. What neither source tells: how often a range was pushed, and
kernels that were never written; the latter show where `most` is reached and by comparison with a trace.
"""

import csv
import importlib.metadata
import importlib.util
import json
import math
import mmap
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfci.evidence import chips, ncu_command, ncu_native
from perfci.model.evidence import Counters, Fault, FaultKind, KernelCounters, Rule
from perfci.system.files import one_line

DOMAINS = ("perfci", "<default domain>")
"""NVTX domains that may hold the ranges of cases: the `nvtx` package uses the first, torch the second."""
MOST_LAUNCHES = 20_000
TIMEOUT = 120.0
"""Seconds to read one report."""
_MEMORY = 8 * 2**30
"""Address space of the process that reads a report, beside twelve times the file."""
_MAGIC = b"NVR\0"
_WRITTEN_BY = re.compile(rb"(20\d\d\.\d{1,2}(?:\.\d{1,3}){1,2}) \(build \d+\)")

CAPABILITY = ("device__attribute_compute_capability_major", "device__attribute_compute_capability_minor")
PASSES = "profiler__replayer_passes"
_GRID = tuple(f"launch__grid_dim_{axis}" for axis in "xyz")
_BLOCK = tuple(f"launch__block_dim_{axis}" for axis in "xyz")


@dataclass(frozen=True)
class Reading:
    """What a file says, by NVTX range."""

    counters: dict[str, Counters] = field(default_factory=dict)
    """Range → what was counted in it. No range without a measured kernel."""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """Range → what is missing of it."""
    general: list[Fault] = field(default_factory=list)
    """What holds for the whole file."""
    source: str = ""
    """`ncu_report` with its version, or `csv`."""
    version: str = ""
    """Of the ncu that wrote the report; empty where the source does not tell."""


@dataclass(frozen=True)
class _Launch:
    """A launch as a source tells it."""

    name: str
    nvtx: tuple[tuple[str, str], ...]
    """(domain, range), outermost first."""
    values: Mapping[str, tuple[float | None, str]]
    """Metric → value and unit, of those that the source names; None for what is no number."""
    capability: tuple[int, int] | None
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class _Content:
    launches: Sequence[_Launch] = ()
    faults: Sequence[Fault] = ()
    source: str = ""
    version: str = ""


def read(
    path: Path,
    *,
    ranges: Collection[str] | None = None,
    names: str | Iterable[str] | None = None,
    most: int | None = None,
    ncu: Path | None = None,
    root: Path = Path("/"),
    timeout: float = TIMEOUT,
) -> Reading:
    """What the report or raw CSV at `path` says of each range. Never raises for what a file holds or lacks.

    `ranges`: names of the cases' ranges; a launch belongs to the first of them that is open around it, and one of them
    without a launch is a fault. None: to the outermost range in DOMAINS.
    `names`: quantities of `chips.QUANTITIES` or the name of a set that every launch must have; None takes what the
    file has. `most`: ncu's `--launch-count`: where that many launches are found, more may be missing.
    `ncu`: reads the report where no `ncu_report` does; `root`: where to look for a copy of that module beside ncu.
    `timeout`: seconds for a native reader.

    Raises ValueError for a name that is no quantity.
    """
    wanted = None if names is None else chips.expand(names)
    content = _content(path, ncu, root, timeout)
    reading = Reading(source=content.source, version=content.version, general=list(content.faults))
    found: dict[str, list[_Launch]] = {}
    outside = 0
    for launch in content.launches:
        name = _range(launch, ranges)
        if name is None:
            outside += 1
        else:
            found.setdefault(name, []).append(launch)
    if outside:
        reading.general.append(
            _fault(
                "incomplete",
                f"{path.name}: {outside} of {len(content.launches)} launches lie in no range of a case",
                "launches of other threads, such as autograd's, show in ranges of start and end only",
            )
        )
    if most is not None and len(content.launches) >= most:
        reading.general.append(
            _fault(
                "incomplete",
                f"{path.name}: holds {len(content.launches)} launches, as many as ncu was to take: some may be missing",
                "raise the launch count, or choose kernels by name",
            )
        )
    for name, launches in found.items():
        counters, faults = _count(launches, wanted, content.version)
        if counters.kernels:
            reading.counters[name] = counters
        if faults:
            reading.faults[name] = faults
    for name in sorted(set(ranges or ()) - set(found)):
        why = "the file could not be read" if any(fault.kind == "unreadable" for fault in content.faults) else ""
        reading.faults[name] = [
            _fault("empty", f"ncu has no kernel in range {name}" + (f": {why}" if why else ""), _EMPTY_REMEDY)
        ]
    return reading


_EMPTY_REMEDY = "see ncu's log; a case without kernels has no counters"


def _fault(kind: FaultKind, text: str, remedy: str = "") -> Fault:
    return Fault(tool="ncu", kind=kind, text=one_line(text)[:1000], remedy=one_line(remedy)[:1000])


def _range(launch: _Launch, ranges: Collection[str] | None) -> str | None:
    for domain, name in launch.nvtx:
        if domain in DOMAINS and name and (ranges is None or name in ranges):
            return name
    return None


# ---------------------------------------------------------------- from launches to counters


def _count(launches: Sequence[_Launch], wanted: tuple[str, ...] | None, version: str) -> tuple[Counters, list[Fault]]:
    """Launches of one range, grouped by name and launch configuration, and what they lack."""
    capability = next((one.capability for one in launches if one.capability), None)
    chip = (capability and chips.chip_of(*capability)) or ""
    names = wanted if wanted is not None else _told(launches, chip)
    lacking: dict[str, list[str]] = {}
    for name, why in (chips.unavailable(names, chip) if chip else {}).items():
        lacking.setdefault(why, []).append(name)
    faults = [
        _fault("incompatible", f"{', '.join(lacked)}: {why}", "ask for it on another chip only")
        for why, lacked in lacking.items()
    ]
    names = tuple(name for name in names if chips.source(name, chip) is not None or not chip)
    groups: dict[tuple[object, ...], list[tuple[_Launch, float, dict[str, float]]]] = {}
    untimed, unknown = 0, 0
    missing: dict[str, int] = {}
    for launch in launches:
        seconds = _scaled(launch, chips.TIME, "s")
        if seconds is None or seconds <= 0:
            untimed += 1
            continue
        if not launch.name or launch.grid is None or launch.block is None:
            unknown += 1
            continue
        values = {name: value for name in names if (value := _value(launch, name, chip)) is not None}
        for name in names:
            if name not in values:
                missing[name] = missing.get(name, 0) + 1
        configuration = tuple(values.get(name) for name in ("registers", "shared_memory"))
        key = (launch.name, launch.grid, launch.block, configuration)
        groups.setdefault(key, []).append((launch, seconds, values))
    for number, what in ((untimed, "time"), (unknown, "name or launch configuration")):
        if number:
            text = f"{number} of {len(launches)} launches have no {what}: ncu did not measure them"
            faults.append(_fault("incomplete", text, "see ncu's log for what failed"))
    if missing:
        text = ", ".join(f"{name} ({number})" for name, number in sorted(missing.items()))
        faults.append(
            _fault(
                "incomplete",
                f"no finite value for some of {len(launches)} launches: {text}",
                "ask ncu for these metrics; a kernel that failed under ncu has none",
            )
        )
    kernels = [_group(members, names) for members in groups.values()]
    kernels.sort(key=lambda kernel: (-kernel.seconds, kernel.name, kernel.grid, kernel.block))
    passes = [value for one in launches if (value := one.values.get(PASSES, (None, ""))[0]) is not None]
    most = max((value for value in passes if math.isfinite(value) and 0 < value < 2**31), default=None)
    return (
        Counters(version=version, chip=chip, passes=None if most is None else round(most), kernels=kernels),
        faults,
    )


def _told(launches: Sequence[_Launch], chip: str) -> tuple[str, ...]:
    """Quantities that the file has for at least one launch: where others lack them, that is told."""
    return tuple(
        name
        for name in chips.QUANTITIES
        if any(all(m in one.values for m in source.metrics) for source in _sources(name, chip) for one in launches)
    )


def _sources(name: str, chip: str) -> tuple[chips.Source, ...]:
    """The source on this chip; where the chip is not known, each, since a report names its metrics itself."""
    if chip:
        one = chips.source(name, chip)
        return () if one is None else (one,)
    return chips.QUANTITIES[name].sources


def _value(launch: _Launch, name: str, chip: str) -> float | None:
    """A quantity of one launch in perfci's unit; None where a part of it is absent or no finite number."""
    for source in _sources(name, chip):
        parts = [
            None if (part := _scaled(launch, metric, chips.QUANTITIES[name].unit)) is None else factor * part
            for metric, factor in source.metrics.items()
        ]
        if None not in parts:
            total = math.fsum(part for part in parts if part is not None)
            return total if math.isfinite(total) else None
    return None


def _group(members: Sequence[tuple[_Launch, float, dict[str, float]]], names: Iterable[str]) -> KernelCounters:
    """Launches of one kernel and configuration. A quantity that one of them lacks, the group lacks."""
    first = members[0][0]
    weight = math.fsum(seconds for _, seconds, _ in members)
    values = {}
    for name in names:
        if all(name in told for _, _, told in members):
            fold = chips.QUANTITIES[name].fold
            each = [(told[name], seconds) for _, seconds, told in members]
            if fold == "sum":
                value = math.fsum(one for one, _ in each)
            elif fold == "maximum":
                value = max(one for one, _ in each)
            else:
                value = math.fsum(one * (seconds / weight) for one, seconds in each)
            if math.isfinite(value):
                values[name] = value
    assert first.grid is not None and first.block is not None
    return KernelCounters(
        name=first.name[:2000],
        count=len(members),
        seconds=weight,
        grid=first.grid,
        block=first.block,
        values=values,
        rules=_ordered(rule for launch, _, _ in members for rule in launch.rules),
    )


def _ordered(rules: Iterable[Rule]) -> list[Rule]:
    """Each finding once, with the largest estimate of any launch, largest first; those without one in ncu's order."""
    best: dict[str, Rule] = {}
    for rule in rules:
        known = best.get(rule.name)
        if known is None or (rule.speedup or 0.0) > (known.speedup or 0.0):
            best[rule.name] = rule
    return sorted(best.values(), key=lambda rule: -1.0 if rule.speedup is None else rule.speedup, reverse=True)


# ---------------------------------------------------------------- units

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
"""ncu scales by thousands, for bytes as well."""
_SECONDS = {
    "s": 1.0, "second": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6, "ns": 1e-9, "nsecond": 1e-9,
}  # fmt: skip
_BYTES = {
    f"{prefix}byte{each}": factor
    for prefix, factor in _PREFIXES.items()
    for each in ("", "/block", "/thread")
}  # fmt: skip
_RATES = {f"{prefix}byte/{per}": factor for prefix, factor in _PREFIXES.items() for per in ("s", "second")}
_COUNTED = ("", "inst", "register/thread", "register", "block", "thread", "warp", "wave", "sector", "request", "ratio")
_COUNTS = {prefix + what: factor for prefix, factor in _PREFIXES.items() for what in _COUNTED if what or not prefix}
_UNITS = {"s": _SECONDS, "B": _BYTES, "B/s": _RATES, "%": {"%": 1.0}, "": _COUNTS}
"""Unit of perfci → unit of ncu's, as it is spelt in CSV of any version and by `ncu_report` → factor."""


def _scaled(launch: _Launch, metric: str, unit: str) -> float | None:
    """A metric in perfci's unit. None where it is absent, not finite, below zero, or in a unit of another kind."""
    value, told = launch.values.get(metric, (None, ""))
    factor = _UNITS[unit].get(told)
    if value is None or factor is None:
        return None
    value *= factor
    return value if math.isfinite(value) and value >= 0 else None


def _metrics() -> list[str]:
    """Everything that is read from a file."""
    quantities = (metric for one in chips.QUANTITIES.values() for source in one.sources for metric in source.metrics)
    return list(dict.fromkeys([chips.TIME, *quantities, *CAPABILITY, PASSES, *_GRID, *_BLOCK]))


def _triple(values: Mapping[str, tuple[float | None, str]], names: Iterable[str]) -> tuple[int, int, int] | None:
    numbers = [values.get(name, (None, ""))[0] for name in names]
    whole = [int(n) for n in numbers if n is not None and math.isfinite(n) and 0 < n < 2**32 and n == int(n)]
    return (whole[0], whole[1], whole[2]) if len(whole) == 3 else None


def _capability(values: Mapping[str, tuple[float | None, str]]) -> tuple[int, int] | None:
    numbers = [values.get(name, (None, ""))[0] for name in CAPABILITY]
    whole = [int(n) for n in numbers if n is not None and math.isfinite(n) and 0 <= n < 1000]
    return (whole[0], whole[1]) if len(whole) == 2 else None


# ---------------------------------------------------------------- files


def _content(path: Path, ncu: Path | None, root: Path, timeout: float) -> _Content:
    again = "profile again"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(64)
            if head.startswith(_MAGIC):
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    blocks = _blocks(content)
                    match = _WRITTEN_BY.search(content)
                    version = "" if match is None else ".".join(match[1].decode().split(".")[:3])
                if blocks is None:
                    text = f"{path.name}: is cut or damaged"
                    return _Content(version=version, faults=[_fault("unreadable", text, again)])
                results = sum(block.header.get(field, 0) for block in blocks[1:] for field in _RESULTS)
                return _report(path, size, results, version, ncu, root, timeout)
    except OSError as error:
        return _Content(faults=[_fault("unreadable", f"{path.name}: cannot be read: {error.strerror}", again)])
    if not size:
        return _Content(faults=[_fault("unreadable", f"{path.name}: is empty", again)])
    if head.startswith(b"version https://git-lfs"):
        return _Content(faults=[_fault("unreadable", f"{path.name}: is a pointer of Git LFS", "run git lfs pull")])
    return _csv(path)


_LAYOUT = 7
"""Version of the file format, as of ncu 2025.3; see extras/FileFormat/ProfilerReport.proto of Nsight Compute."""
_SOURCES, _RESULTS, _PAYLOAD = 1, (2, 7, 8, 9), 5
"""Fields of BlockHeader: modules' code; results of kernels, ranges, command lists and graphs; bytes of payload."""


@dataclass(frozen=True)
class _Block:
    begin: int
    end: int
    header: Mapping[int, int]


def _blocks(content: mmap.mmap) -> list[_Block] | None:
    """The file header and the blocks of a report, in order; None where it does not end with one, as one that was cut.

    After the magic come a FileHeader and blocks: the size of the header in 4 bytes, the header, a block's payload.
    Behind a file header of a layout that perfci does not know there is nothing.
    """
    found: list[_Block] = []
    at = len(_MAGIC)
    while at < len(content):
        end = at + 4 + int.from_bytes(content[at : at + 4], "little")
        header = _fields(content[at + 4 : end]) if at + 4 < end <= len(content) else None
        if header is None:
            return None
        if found:
            end += header.get(_PAYLOAD, 0)
        found.append(_Block(at, end, header))
        if found[0].header.get(1) != _LAYOUT:
            return found
        at = end
    return found if found and at == len(content) else None


def without_code(report: Path, target: Path) -> None:
    """Copy a report without the machine code of whole modules, which makes up nine tenths of it and more.

    Metrics and rules stay; the source page of Nsight Compute is empty. Raises ValueError for what is no whole report in
    a layout that perfci knows, OSError as files do.
    """
    with report.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        blocks = _blocks(content) if content[: len(_MAGIC)] == _MAGIC else None
        if blocks is None or blocks[0].header.get(1) != _LAYOUT:
            raise ValueError(f"{report}: no whole report of ncu in a layout that perfci knows: keep it as it is")
        kept = [
            block
            for block in blocks
            if block is blocks[0] or not block.header.get(_SOURCES) or any(block.header.get(f) for f in _RESULTS)
        ]
        parts = [content[block.begin : block.end] for block in kept]
    target.write_bytes(_MAGIC + b"".join(parts))


def _fields(message: bytes) -> dict[int, int] | None:
    """The numbers in a protobuf message (protobuf.dev/programming-guides/encoding); None where it is none."""
    found: dict[int, int] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while shift < 70 and at < len(message):
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError

    try:
        while at < len(message):
            key = varint()
            kind = key & 7
            if kind == 0:
                found[key >> 3] = varint()
            elif kind in (1, 2, 5):
                length = varint() if kind == 2 else {1: 8, 5: 4}[kind]
                at += length
            else:
                return None
    except ValueError:
        return None
    return found if at == len(message) else None


@dataclass(frozen=True)
class Module:
    """An `ncu_report` that may be imported."""

    folder: Path
    """To be put on the path."""
    version: str
    """Empty where it is not known."""


def modules(root: Path = Path("/")) -> list[Module]:
    """The `ncu_report` of this interpreter, then the copies beside installed Nsight Computes, newest first."""
    found = []
    spec = importlib.util.find_spec("ncu_report")
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin).parent
        try:
            version = importlib.metadata.version("ncu-report")
        except importlib.metadata.PackageNotFoundError:
            version = ""
        found.append(Module(origin.parent if spec.submodule_search_locations else origin, version))
    for folder in ncu_command.installations(root):
        python = folder / "extras" / "python"
        if (python / "ncu_report.py").is_file() or (python / "ncu_report").is_dir():
            match = re.search(r"20\d\d(\.\d+)+", folder.name)
            found.append(Module(python, match.group() if match else ""))
    return found


def _report(
    path: Path, size: int, results: int, version: str, ncu: Path | None, root: Path, timeout: float
) -> _Content:
    """A report through the first module that is at least as new as it and can be imported, else through ncu."""
    older = []
    for module in modules(root):
        if version and module.version and _number(module.version)[:2] < _number(version)[:2]:
            older.append(module.version)
            continue
        content = _native(path, size, version, module, timeout)
        if content is not None:
            return _counted(path, content, results)
    if ncu is not None:
        return _counted(path, _import(path, version, ncu, timeout), results)
    why = f"the ncu_report here ({', '.join(older)}) is older" if older else "there is no ncu_report that works here"
    text = f"{path.name}: written by ncu {version or 'of unknown version'}: {why}"
    remedy = f"pip install 'ncu-report>={version or '2026.2'}'"
    return _Content(version=version, faults=[_fault("incompatible", text, remedy)])


def _counted(path: Path, content: _Content, results: int) -> _Content:
    """With a fault where fewer launches were read than the report announces.

    `ncu_report` reads what is damaged as far as it can, and tells nothing.
    """
    if content.faults or len(content.launches) >= results:
        return content
    text = f"{path.name}: announces {results} launches and gives {len(content.launches)}"
    return replace(content, faults=[_fault("incomplete", text, "profile again")])


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _native(path: Path, size: int, version: str, module: Module, timeout: float) -> _Content | None:
    """A report through `ncu_report`, in a process of its own. None where that cannot be imported."""
    request = {
        "folder": str(module.folder),
        "report": str(path),
        "metrics": _metrics(),
        "most": MOST_LAUNCHES,
        "memory": _MEMORY + 12 * size,
    }
    source = f"ncu_report {module.version}".strip()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", ncu_native.__file__],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"{path.name}: {source} did not read it within {timeout:g} s"
        return _Content(source=source, version=version, faults=[_fault("unreadable", text, "profile fewer kernels")])
    if done.returncode == ncu_native.NO_MODULE:
        return None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else told[0]
        text = f"{path.name}: {source} cannot read it ({how})"
        return _Content(source=source, version=version, faults=[_fault("unreadable", text, "profile again")])
    answer = json.loads(done.stdout)
    source = f"ncu_report {answer['version'] or module.version}".strip()
    launches = [_from_native(one) for one in answer["launches"]]
    faults = []
    if not answer["ranges"]:
        faults.append(_fault("unreadable", f"{path.name}: truncated, or no report of ncu", "profile again"))
    elif not launches:
        faults.append(_fault("empty", f"{path.name}: holds no kernel", _EMPTY_REMEDY))
    if answer["dropped"]:
        text = f"{path.name}: {answer['dropped']} launches beyond the first {MOST_LAUNCHES} were not read"
        faults.append(_fault("incomplete", text, "profile fewer kernels"))
    return _Content(launches, faults, source, version)


def _from_native(told: Mapping[str, Any]) -> _Launch:
    values = {name: (None if value is None else float(value), unit) for name, (value, unit) in told["values"].items()}
    return _Launch(
        name=one_line(told["name"]),
        nvtx=tuple((domain, name) for domain, name in told["nvtx"]),
        values=values,
        capability=_capability(values),
        grid=_triple(values, _GRID),
        block=_triple(values, _BLOCK),
        rules=tuple(rule for one in told["rules"] if (rule := _rule(one)) is not None),
    )


def _clean(text: str) -> str:
    """Without lone surrogates, which stand for bytes that are no UTF-8."""
    return text.encode(errors="replace").decode()


_LINK = re.compile(r"@(?:url|section|source|sass):([^:@]*):[^@]*@")
_LOCAL, _GLOBAL = 1, 2
"""SpeedupType of `ncu_report`: of the part that the finding is about, or of the kernel's time."""
_OPTIMIZATION = 2
"""MsgType of `ncu_report`: suggestions, and above it warnings and errors; below it what is well."""


def _rule(told: Mapping[str, Any]) -> Rule | None:
    """A finding, or None for what is none: no message, or one that says that all is well."""
    message, estimate = told.get("rule_message"), told.get("speedup_estimation") or {}
    if not isinstance(message, Mapping) or message.get("type", 0) < _OPTIMIZATION or not message.get("message"):
        return None
    text = _LINK.sub(r"\1", " ".join(_clean(str(message["message"])).split()))
    speedup = float(estimate.get("speedup", math.nan))
    usable = math.isfinite(speedup) and speedup > 0
    if usable and estimate.get("type") == _LOCAL:
        text = f"{text} (up to {speedup:.1f} % of this part alone)"
    title = str(message.get("title") or told.get("name") or told.get("rule_identifier") or "")
    return Rule(
        name=one_line(_clean(title))[:200],
        message=one_line(text)[:2000],
        speedup=speedup if usable and estimate.get("type") == _GLOBAL else None,
    )


def _import(path: Path, version: str, ncu: Path, timeout: float) -> _Content:
    """A report through `ncu --import`, as the raw page."""
    with tempfile.NamedTemporaryFile(suffix=".csv") as page:
        try:
            done = subprocess.run(
                ncu_command.raw_page(ncu, path),
                stdin=subprocess.DEVNULL,
                stdout=page,
                stderr=subprocess.PIPE,
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            text = f"{path.name}: {ncu} cannot read it ({error})"
            return _Content(version=version, faults=[_fault("unreadable", text, "pip install ncu-report")])
        if done.returncode:
            told = (Path(page.name).read_bytes()[:4000] + b"\n" + done.stderr).decode(errors="replace")
            why = next(
                (line for line in told.splitlines() if line.startswith("==ERROR==")), f"status {done.returncode}"
            )
            text = f"{path.name}: {ncu.name} cannot read it ({why.removeprefix('==ERROR== ')})"
            return _Content(version=version, faults=[_fault("unreadable", text, "pip install ncu-report")])
        content = _csv(Path(page.name), path.name)
    return _Content(content.launches, content.faults, "csv", version)


# ---------------------------------------------------------------- the raw page as CSV

_NAME, _CC, _BLOCK_SIZE, _GRID_SIZE = "Kernel Name", "CC", "Block Size", "Grid Size"
_PLAIN = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_DIMENSIONS = re.compile(r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)")


def _csv(path: Path, name: str = "") -> _Content:
    """The raw page: a row of names, a row of units, a row for each launch; other lines of ncu around them.

    A file that ends within a row is told so; one that ends between rows looks whole.
    """
    name = name or path.name
    again = "ncu --import REPORT --page raw --csv --print-units base"
    launches: list[_Launch] = []
    faults: list[Fault] = []
    header: list[str] | None = None
    units: list[str] | None = None
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for row in csv.reader(_records(file), strict=True):
                if header is None:
                    if "Metric Name" in row and "Metric Value" in row:
                        text = f"{name}: is not the raw page of ncu, but one row for each metric"
                        return _Content(source="csv", faults=[_fault("unreadable", text, again)])
                    if "ID" in row and _NAME in row:
                        header = row
                elif len(row) != len(header):
                    faults.append(_fault("incomplete", f"{name}: the row of launch {len(launches) + 1} is cut", again))
                    break
                elif units is None:
                    units = row
                elif len(launches) == MOST_LAUNCHES:
                    text = f"{name}: launches beyond the first {MOST_LAUNCHES} were not read"
                    faults.append(_fault("incomplete", text, "profile fewer kernels"))
                    break
                else:
                    launches.append(_from_row(header, units, row))
    except csv.Error as error:
        kind: FaultKind = "incomplete" if launches else "unreadable"
        faults.append(_fault(kind, f"{name}: broken after {len(launches)} launches ({error})", again))
    except OSError as error:
        faults.append(_fault("unreadable", f"{name}: cannot be read: {error.strerror}", "profile again"))
    if not faults and header is None:
        faults.append(_fault("unreadable", f"{name}: neither a report of ncu nor its raw page as CSV", again))
    elif not faults and not launches:
        faults.append(_fault("empty", f"{name}: holds no kernel", _EMPTY_REMEDY))
    return _Content(launches, faults, "csv")


def _records(file: Iterable[str]) -> Iterator[str]:
    """Lines of the table, without ncu's own (`==PROF== …`), without NUL and without empty ones; the last one must end.

    ncu quotes every field and writes no line break into one, so that a line is a row.
    """
    for line in file:
        if line.strip() and not line.startswith("=="):
            yield line.replace("\0", "�")


def _from_row(header: Sequence[str], units: Sequence[str], row: Sequence[str]) -> _Launch:
    cells = dict(zip(header, row, strict=True))
    unit = dict(zip(header, units, strict=True))
    values = {metric: (_parse(cells[metric]), unit[metric].strip()) for metric in _METRICS if metric in cells}
    capability = _capability(values)
    if capability is None and (match := re.fullmatch(r"(\d+)\.(\d+)", cells.get(_CC, ""))):
        capability = int(match[1]), int(match[2])
    return _Launch(
        name=one_line(cells[_NAME]),
        nvtx=tuple(_nvtx(cells)),
        values=values,
        capability=capability,
        grid=_triple(values, _GRID) or _dimensions(cells.get(_GRID_SIZE, "")),
        block=_triple(values, _BLOCK) or _dimensions(cells.get(_BLOCK_SIZE, "")),
    )


_METRICS = _metrics()


def _parse(cell: str) -> float | None:
    """`1,243,749.33`, `3.88`, `38 (1; 2; 3)` with instances; None for `n/a`, `nan`, `inf`, nothing, anything else."""
    text = cell.split(" (", 1)[0].strip()
    if _PLAIN.fullmatch(text) or _THOUSANDS.fullmatch(text):
        value = float(text.replace(",", ""))
        return value if math.isfinite(value) else None
    return None


def _dimensions(cell: str) -> tuple[int, int, int] | None:
    match = _DIMENSIONS.fullmatch(cell.strip())
    if match is None:
        return None
    found = int(match[1]), int(match[2]), int(match[3])
    return found if all(0 < one < 2**32 for one in found) else None


_SAME = re.compile(r"([^:]*):(.+):[^:]*:[^:]*:[^:]*:[^:]*:[A-Za-z]+:\2")
_NOTHING = re.compile(r"([^:]*):(.+?)(?::none){6}")


def _nvtx(cells: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Ranges of a row: `1112  "perfci:NAME:none:none:RGB:0xff:REGISTERED:NAME" `, one quoted text for each.

    Behind domain and name stand type and value of the payload, of the colour and of the message.
    """
    for column, cell in cells.items():
        if "Push/Pop_Range" in column or "Start/Stop_Range" in column:
            for text in re.findall(r'"([^"]*)"', cell):
                told = re.sub(r"^\d+:", "", text) if "Start/Stop_Range" in column else text
                match = _SAME.fullmatch(told) or _NOTHING.fullmatch(told)
                domain, name = match.groups() if match else (*told.split(":"), "", "")[:2]
                yield domain, name
