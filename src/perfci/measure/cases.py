"""The cases that each side declares, and those measured here."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perfci.measure.prepare import BASE_JUDGES, SideWork, in_units, require_inside
from perfci.measure.request import What
from perfci.model.base import SIDES, DeviceKind, Side, UsageError, matches
from perfci.model.fingerprint import Fingerprint
from perfci.model.limits import Subject, matched, nearest
from perfci.model.plan import Declared
from perfci.model.policy import Limit, Policy
from perfci.model.policy_text import FILE
from perfci.model.results import UNREAD, Case, CaseSide, FileFailure, Reason, reports
from perfci.model.text import listed
from perfci.model.timing import TimingMode
from perfci.system.starter import Heard, Worker


@dataclass(frozen=True)
class Scouting:
    """What a scout needs."""

    differing: dict[str, Any]
    """As `imports.asked.Difference` takes it."""
    tell: Callable[[str, str], None]
    """Takes a module, and a digest of its settings; an empty one takes the module back. Without a name: which modules
    are not reported, and why."""


@dataclass
class Declarations:
    """One side's declarations."""

    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Key (`id@device`) → the worker's description."""
    files: list[FileFailure] = field(default_factory=list)
    suite: list[str] = field(default_factory=list)
    scripts: list[dict[str, Any]] = field(default_factory=list)
    """With their calls."""
    unrun: list[str] = field(default_factory=list)
    """Kernels of scripts not asked for."""
    broken: set[str] = field(default_factory=set)
    imports: dict[str, float] = field(default_factory=dict)
    """`import NAME` → seconds for each worker."""


def load(
    side: SideWork,
    worker: Worker,
    suite: Sequence[str],
    scripts: Sequence[dict[str, Any]],
    timeout: float,
    forbidden: Sequence[str],
    heard: Callable[[Heard], None],
    scouting: Scouting | None = None,
) -> Declarations:
    """Import `suite` and list the calls of `scripts` in a worker, which `heard` hears.

    Raises Died; MachineError where it imports from outside.
    """
    asked = None if scouting is None else scouting.differing
    worker.begin(
        "load", seed=0, suite=list(suite), scripts=list(scripts), forbidden=list(forbidden), asked=asked, tells=True
    )
    reply = worker.answer(timeout, heard)
    require_inside(side, reply["foreign"])
    side.info.modules.update(reply["modules"])  # of files that are imported one by one, too
    declarations = Declarations(scripts=reply["scripts"])
    programs = {one["file"] for one in reply["scripts"]}
    for case in reply["cases"]:
        declarations.cases[f"{case['id']}@{case['device']}"] = case
    for file in reply["files"]:
        kind = file["error"] and file["error"]["kind"]
        if file["file"] not in programs and kind in (None, "import"):
            declarations.suite.append(file["file"])
        if (kind, side.name) == ("absent", "base"):
            continue  # a suite that base does not have yet: its cases are new
        if kind is not None:
            reason = Reason(
                kind="script" if kind == "absent" else kind,
                text=file["error"]["text"][:1000],
                log=f"logs/{side.name}.log",
            )
            declarations.files.append(FileFailure(side=side.name, file=file["file"], reason=reason))
            declarations.broken.add(file["file"])
    return declarations


def choose_devices(what: What, limits: Policy, gpu: bool) -> list[DeviceKind]:
    """Return the devices asked for, else the policy's, else the GPU if present, else the CPU."""
    asked = what.devices or limits.devices
    if asked:
        return [device for device in asked if device == "cpu" or gpu] or ["cpu"]
    return ["cuda"] if gpu else ["cpu"]


def lost_gpu(what: What, limits: Policy, policy: str, facts: Fingerprint, python: str) -> str:
    """Return why a run must not begin, or empty: a runner's lost GPU must not pass as skipped."""
    asked = what.devices or limits.devices or []
    if "cuda" not in asked or "cuda" in facts.devices:
        return ""
    where = "--device cuda" if what.devices else f"{policy}: devices: [{', '.join(asked)}]"
    why = "see torch.cuda.is_available()" if facts.torch else f"{python} has no torch (--python names another)"
    if "rocm" in (facts.torch or ""):
        why = f"torch {facts.torch} is for ROCm, and perfci measures NVIDIA's GPUs alone"
    return f"{where}: there is no GPU that torch can use here: {why}, or measure on the CPU alone with --device cpu"


def merge(
    declarations: Mapping[Side, Declarations],
    sides: Mapping[Side, SideWork],
    devices: Sequence[DeviceKind],
    globs: Sequence[str],
) -> list[Case]:
    """Return the cases of base ∪ head, sorted by id."""
    described: dict[str, dict[DeviceKind, dict[Side, dict[str, Any]]]] = {}
    for name, one in declarations.items():
        for case in one.cases.values():
            described.setdefault(case["id"], {}).setdefault(case["device"], {})[name] = case
    wanted = [i for i in sorted(described) if not globs or any(matches(pattern, i) for pattern in globs)]
    cases = []
    for ident in wanted:
        here = [device for device in devices if device in described[ident]]
        for device in here or sorted(described[ident])[:1]:
            in_sides = described[ident][device]
            any_side = next(iter(in_sides.values()))
            made = {
                name: _side(name, side, in_sides.get(name), declarations, any_side, bool(here))
                for name, side in sides.items()
            }
            stopped: Literal["decided", "skipped"] = "decided" if here else "skipped"
            cases.append(Case(id=ident, kernel=any_side["kernel"], device=device, sides=made, stopped=stopped))
    return cases


def require_some(
    cases: Sequence[Case], declarations: Mapping[Side, Declarations], known: Declared, globs: Sequence[str]
) -> None:
    """Raise UsageError where there is nothing to measure, or a glob matches no case, unless a broken file or an unrun
    command could still match."""
    names = sorted({*known.kernels, *known.commands})
    lost = [glob for glob in globs if not matched(glob, names, known)] if cases else [*globs] if names else []
    if not cases and known.unrun and not any(one.files or one.scripts for one in declarations.values()):
        lost = [*globs]
    names += [f"{name}/*" for name in known.unrun]
    if lost:
        whys = (next(_skipped(glob, declarations), "") or nearest(glob, names) for glob in lost)
        raise UsageError("; ".join(f"{glob}: matches no case: {why}" for glob, why in zip(lost, whys, strict=True)))
    if cases:
        return
    broken = [failure for one in declarations.values() for failure in one.files]
    if broken:
        raise UsageError(f"{broken[0].file}: {UNREAD[broken[0].why]}: {broken[0].reason.text}: no case is left")
    if skipped := ended(declarations):
        raise UsageError(skipped[0])
    raise UsageError(f"{FILE}: suite: its files declare no case: decorate a function with @perfci.kernel")


def may_match(globs: Iterable[str], kernel: str) -> bool:
    """Tell whether a kernel without known cases may have one that a glob matches."""
    return any(matched(glob, (), Declared(unrun=[kernel])) for glob in globs)


def _skipped(glob: str, declarations: Mapping[Side, Declarations]) -> Iterator[str]:
    for side in declarations.values():
        for one in side.scripts:
            if one["listed"]["skipped"] and may_match([glob], one["kernel"]):
                yield f"{one['file']} is skipped: {one['listed']['skipped']}"


def mains(cases: Sequence[Case]) -> list[Case]:
    """Return the cases that head declares: nobody misses what main has given up."""
    return [case for case in cases if not _gone(case.sides["head"])]


def _gone(head: CaseSide) -> bool:
    return head.status == "absent" and (head.reason is None or head.reason.kind == "absent")


def redeclared(cases: Sequence[Case], declarations: Mapping[Side, Declarations], policy: Policy) -> list[str]:
    """Return a note on kernels whose own limits head declares otherwise."""
    if "base" not in declarations:
        return []
    ours, theirs = declarations["base"].cases, declarations["head"].cases
    both = [case for case in cases if case.key in ours and case.key in theirs and case.stopped != "skipped"]
    names = dict.fromkeys(
        case.kernel for case in both if _own(ours[case.key], policy) != _own(theirs[case.key], policy)
    )
    if not names:
        return []
    return [f"{BASE_JUDGES}: the limits that {listed(names, 5, '`')} declares itself differ"]


def ended(declarations: Mapping[Side, Declarations]) -> list[str]:
    """Return notes on benchmark scripts that have no case here, fail behind some of their calls, or lack references."""
    sides: dict[tuple[str, str], list[str]] = {}
    for name, side in declarations.items():
        for one in side.scripts:
            known = one["listed"]
            skipped = known["skipped"] and f"skipped: it has no case here: {known['skipped']}"
            for text in filter(None, (skipped, known["ended"], known["alone"])):
                sides.setdefault((text, one["file"]), []).append(name)
    files: dict[tuple[str, str], list[str]] = {}
    for (text, file), names in sides.items():
        files.setdefault((text, " and ".join(names)), []).append(file)
    return [f"{listed(alike, 5)}: {text} ({names})" for (text, names), alike in files.items()]


def _own(described: dict[str, Any], policy: Policy) -> list[Any]:
    """Those of head may be wrong."""
    made: list[Any] = []
    for raw in described["limits"]:
        try:
            made.append(in_units(Limit.model_validate({**raw, "cases": [described["id"]]}), policy))
        except (ValueError, KeyError, TypeError):
            made.append(raw)
    return made


def _side(
    name: Side,
    side: SideWork,
    described: dict[str, Any] | None,
    declarations: Mapping[Side, Declarations],
    any_side: dict[str, Any],
    measured: bool,
) -> CaseSide:
    if side.failure:
        return CaseSide(status="failed", reason=side.failure, file=any_side["file"], line=any_side["line"])
    if described is None:
        file = any_side["file"]
        if file in declarations[name].broken:
            reason = next(f.reason for f in declarations[name].files if f.file == file)
            return CaseSide(status="failed", reason=reason, file=file, line=any_side["line"])
        return CaseSide(status="absent", reason=Reason(kind="absent", text=f"{name} does not declare it"))
    made = CaseSide(file=described["file"], line=described["line"], params=described["params"])
    if not measured:
        made.status = "skipped"
        made.reason = Reason(kind="device", text=f"needs {described['device']}")
    return made


def subjects(
    cases: Sequence[Case],
    declarations: Mapping[Side, Declarations],
    names: Mapping[str, str],
    *,
    first: Side = "base",
) -> list[Subject]:
    """Return the cases as limits see them, with a kernel's own limits as side `first` declares them, else the other."""
    made = []
    for case in cases:
        if case.stopped == "skipped":
            continue
        described = _described(case, declarations, first)
        own = described["limits"] if described else []
        where = f"{described['file']}:{described['line']}" if described else ""
        told = reports(case)
        made.append(
            Subject(
                case.id,
                case.device,
                names.get(case.device, ""),
                own,
                where,
                told.relative,
                told.bounded,
                command=case.origin == "command",
            )
        )
    return made


def timing_of(case: Case, declarations: Mapping[Side, Declarations], limits: Policy) -> TimingMode:
    """Return the timing mode that a case asks for."""
    described = _described(case, declarations)
    asked: TimingMode = (described["timing"] if described else None) or limits.timing
    return asked


def _described(case: Case, declarations: Mapping[Side, Declarations], first: Side = "base") -> dict[str, Any] | None:
    sides = (declarations[name].cases for name in dict.fromkeys([first, *SIDES]) if name in declarations)
    return next((cases[case.key] for cases in sides if case.key in cases), None)
