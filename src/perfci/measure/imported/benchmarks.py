"""Benchmarks' files, each a worker."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import perfci
from perfci.measure.commands.readers import FORMATS, apart
from perfci.measure.commands.readers.base import About, Format, Reported
from perfci.measure.commands.runner import status_of
from perfci.measure.imported.base import Files, Imported, named, require_as_many, require_workers, too_few
from perfci.model.base import DeviceKind, Side, UsageError
from perfci.model.fingerprint import Fingerprint
from perfci.model.plan import Plan
from perfci.model.policy import Policy
from perfci.model.results import Case, CaseSide, Pair, Reason, SideCode, Work
from perfci.model.timing import Timing
from perfci.stats.describe import trimmed_mean


class File(NamedTuple):
    """One file of one side."""

    path: Path
    format: Format
    about: About
    cases: Mapping[str, Reported]


def read(files: Files, policy: Policy, device: DeviceKind | None) -> Imported:
    """Read one benchmarking tool's files. Raises UsageError."""
    found = {name: [_read(path, policy) for path in paths] for name, paths in files.items()}
    require_as_many({name: len(one) for name, one in found.items()})
    require_workers(files)
    everything = [file for one in found.values() for file in one]
    tools = {file.format.tool: file for file in reversed(everything)}
    if len(tools) > 1:
        told = " and ".join(f"{file.path} is of {tool}" for tool, file in sorted(tools.items()))
        raise UsageError(f"import: {told}: import one tool at a time")
    (tool,) = tools
    kind: DeviceKind = device or ("cuda" if tool == "nvbench" else "cpu")
    n = len(found["head"])
    return Imported(
        cases=[
            _case(ident, kind, found, n) for ident in sorted({ident for file in everything for ident in file.cases})
        ],
        device=kind,
        facts=_facts(kind, tool, everything),
        sides={name: _side(one) for name, one in found.items()},
        workers=n,
        reports=_reports(everything),
        observed=False,
        timed=True,
        notes=lambda plan: _notes(tool, found, plan),
        dates=[date for file in everything if (date := _moment(file.about)) is not None],
    )


def _read(path: Path, policy: Policy) -> File:
    try:
        told = apart.read(None, path, "", policy.metrics)
        return File(path, FORMATS[told.tool], told.about, told.cases)
    except ValueError as error:
        raise UsageError(f"import: {error}") from None


def _case(ident: str, device: DeviceKind, read: Mapping[Side, Sequence[File]], n: int) -> Case:
    sides = {name: _case_side(name, ident, files) for name, files in read.items()}
    case = Case(id=ident, kernel=ident.split("/", maxsplit=1)[0], device=device, origin="imported", sides=sides)
    if all(side.status in ("skipped", "absent") for side in sides.values()):
        case.stopped = "skipped"
    elif sides["head"].status == "ok":
        case.pairs = [_pair(index, ident, read, sides) for index in range(n)]
    else:
        case.stopped = "failed"
    return case


def _case_side(name: Side, ident: str, files: Sequence[File]) -> CaseSide:
    told = [(file.path.name, file.cases.get(ident)) for file in files]
    if not any(one for _, one in told):
        return CaseSide(status="absent", reason=Reason(kind="absent", text=f"no file of {name} reports it"))
    for file, one in told:
        if one is None:
            text = f"{file} does not report it, other files of {name} do"
            return CaseSide(status="failed", reason=Reason(kind="invalid", text=text))
        if one.reason is not None:
            reason = one.reason.model_copy(update={"text": f"{file}: {one.reason.text}"})
            return CaseSide(status=status_of(reason), reason=reason)
    known = [one for _, one in told if one is not None]
    if any(one.work != known[0].work or one.values.keys() != known[0].values.keys() for one in known):
        text = f"the files of {name} do not agree on its work or its metrics"
        return CaseSide(status="failed", reason=Reason(kind="invalid", text=text))
    timing = Timing(
        mode="imported",
        reads=files[0].format.tool,
        statistic=", ".join(sorted({one.statistic for one in known})),
        machine="; ".join(sorted({_machine(file.about) for file in files})),
    )
    return CaseSide(work=known[0].work or Work(), timing=timing)


def _pair(index: int, ident: str, read: Mapping[Side, Sequence[File]], sides: Mapping[Side, CaseSide]) -> Pair:
    reported = {name: files[index].cases[ident].values for name, files in read.items() if sides[name].status == "ok"}
    return Pair(
        index=index,
        values={
            name: {metric: trimmed_mean(samples) for metric, samples in values.items()}
            for name, values in reported.items()
        },
        samples={name: len(values["time"]) for name, values in reported.items()},
    )


def _reports(files: Sequence[File]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for file in files:
        for ident, one in file.cases.items():
            if one.values:
                found[ident] = found.get(ident, frozenset()) | one.values.keys()
    return found


def _machine(about: About) -> str:
    cores = f"{about.cores} cores" if about.cores else ""
    return ", ".join(filter(None, (cores, about.cpu, about.device))) or "not told"


def _facts(device: DeviceKind, tool: str, files: Sequence[File]) -> Fingerprint:
    abouts = [file.about for file in files]

    def told(values: Sequence[str]) -> str:
        return "; ".join(dict.fromkeys(filter(None, values)))

    cpu, gpu = told([about.cpu for about in abouts]), told([about.device for about in abouts])
    devices = {"cpu": cpu} if device == "cpu" else {"cuda": gpu}
    return Fingerprint(
        perfci=perfci.__version__,
        host=told([about.host for about in abouts]),
        cpu=cpu,
        cores=max(about.cores for about in abouts),
        python=told([about.python for about in abouts]),
        devices={kind: name for kind, name in devices.items() if name},
        imported={"imported from": tool} | dict(abouts[0].more),
    )


def _side(files: Sequence[File]) -> SideCode:
    told = {(file.about.commit, file.about.dirty) for file in files}
    commit, dirty = told.pop() if len(told) == 1 else (None, False)
    return SideCode(ref=named([file.path for file in files]), commit=commit, dirty=dirty)


def _notes(tool: str, read: Mapping[Side, Sequence[File]], plan: Plan) -> list[str]:
    notes = [f"measured by {tool}: perfci built nothing, checked no result and did not choose the order of measuring"]
    notes += dict.fromkeys(remark for files in read.values() for file in files for remark in file.about.remarks)
    if "base" not in read:
        return [*notes, "compared with nothing: only absolute limits were judged (--base FILE compares)"]
    base, head = ({file.about.host for file in read[name]} - {""} for name in plan.sides)
    if base and head and base != head:
        notes.append(
            f"base was measured on {', '.join(sorted(base))}, head on {', '.join(sorted(head))}: "
            "what differs between machines passes for the change"
        )
    notes += too_few(plan)
    cases = [{case for file in read[name] for case in file.cases} for name in plan.sides]
    if tool == "hyperfine" and cases[0].isdisjoint(cases[-1]):
        notes.append("no command is in both: hyperfine names cases by command: give both one --command-name NAME")
    moments = {name: [_moment(file.about) for file in read[name]] for name in plan.sides}
    before, after = ([one for one in moments[name] if one is not None] for name in ("base", "head"))
    known = len(before) == len(after) == plan.max_pairs > 1
    if known and (max(before) <= min(after) or max(after) <= min(before)):
        notes.append("one side was measured before the other, not in turns: what drifted between passes for the change")
    return notes


def _moment(about: About) -> datetime | None:
    try:
        found = datetime.fromisoformat(about.date)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
