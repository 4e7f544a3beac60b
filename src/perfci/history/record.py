"""Make a night of a run's comparisons."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from pydantic import ValidationError

from perfci.history.document import Compared, Night, Point, Ratio, Reference, Seam
from perfci.history.plan import NightPlan, described
from perfci.model.base import DeviceKind, UsageError
from perfci.model.comparison import digest
from perfci.model.metrics import known_metric
from perfci.model.report import CLASSES, Class, Report, Row, Trail
from perfci.model.text import escaped, one_line, short
from perfci.sources.git import Repository

_INCOMPARABLE: frozenset[Class] = frozenset({"added", "changed", "skipped", "missing"})
"""No ratio to the reference, on this night and later."""
_WHOLE = "time"
"""Recorded for a case that fails as a whole."""
_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_CPU_ALONE = re.compile(r" (-d|--device)[ =]cpu\b(?!.* (-d|--device)[ =]cuda\b)")
"""No GPU was asked for."""
_AHEAD = timedelta(days=1)
"""By which a machine's clock may be ahead of this one's."""
_OF_MAIN = ("reference", "last", "alone")
"""Comparisons of main, whose values count in this order."""
Key = tuple[str, DeviceKind, str]
"""Case, device, metric."""


@dataclass(frozen=True)
class Comparison:
    """A report and where it lies."""

    place: str
    report: Report

    def commit(self, side: str) -> str:
        """Return the full hash; empty without a commit."""
        return next((code.commit or "" for name, code in self.report.sides.items() if name == side), "")


@dataclass
class NightRun:
    """A run by its command line."""

    run: str
    attempt: int
    url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    """Further facts across which nothing is concluded."""


def night_of(comparisons: Mapping[str, Comparison], plan: NightPlan, asked: NightRun, repo: Repository) -> Night:
    """Return the night of a plan; some `comparisons` may have no report.

    Raises UsageError for what is no run of the plan, on one machine.
    """
    main = [comparisons[name] for name in _OF_MAIN if name in comparisons]
    for one in comparisons.values():
        _require_committed(one)
    for one in main:
        if (head := one.commit("head")) != plan.head.sha:
            raise UsageError(
                f"{one.place}: is of {short(head)}, its plan of {short(plan.head.sha)}: measure the night anew"
            )
    planned = _planned(plan)
    for name, one in comparisons.items():
        if name != "alone":
            _require_planned(one, name, planned.get(name))
    _require_one_machine([*main, *comparisons.values()])
    lost = [name for name in planned if name not in comparisons]
    devices = _devices(main)
    environment = _environment(main[0]) | asked.environment
    reference = None
    if plan.reference is not None:
        reference = Reference(name=plan.reference.name, commit=described(repo, plan.reference.commit.sha))
    last, seam = comparisons.get("last"), comparisons.get("seam")
    try:
        return Night(
            run=asked.run,
            attempt=asked.attempt,
            url=asked.url,
            started=min(_instant(one) for one in main),
            commit=described(repo, plan.head.sha),
            last=described(repo, last.commit("base")) if last is not None else None,
            reference=reference,
            devices=devices,
            environment=environment,
            epoch=_epoch(reference, devices, environment),
            seam=_seam(repo, seam, plan.seam.name) if seam is not None and plan.seam is not None else None,
            error=_error(comparisons, lost),
            points=[point for point in _points(comparisons) if point.device in devices],
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = escaped(".".join(map(str, first["loc"])), 100)
        raise UsageError(f"{main[0].place}: cannot be recorded ({at}: {first['msg']})") from None


def _epoch(reference: Reference | None, devices: Mapping[DeviceKind, str], environment: Mapping[str, str]) -> str:
    facts = ([list(fact) for fact in sorted(facts.items())] for facts in (devices, environment))
    return digest([reference.commit.sha if reference is not None else "", *facts])[:16]


def _require_committed(one: Comparison) -> None:
    if "head" not in one.report.sides:
        raise UsageError(f"{one.place}: ended before it knew what it measures: {one_line(one.report.sentence)}")
    for side, code in one.report.sides.items():
        if code.commit is None:
            raise UsageError(f"{one.place}: its {side} is no commit: measure a clone of the repository, as committed")
        if not _SHA.fullmatch(code.commit):
            raise UsageError(f"{one.place}: its {side} is no full hash of a commit ({escaped(code.commit, 60)})")
        if code.dirty:
            raise UsageError(f"{one.place}: its {side} has uncommitted changes: measure with --committed")
    if one.report.environments is not None and one.report.environments.asked:
        raise UsageError(f"{one.place}: compares environments, not commits: leave out --python base: and --env base:")


def _planned(plan: NightPlan) -> dict[str, tuple[str, str]]:
    made = {}
    if plan.last is not None:
        made["last"] = plan.last.sha, plan.head.sha
    if plan.reference is not None:
        made["reference"] = plan.reference.commit.sha, plan.head.sha
        if plan.seam is not None:
            made["seam"] = plan.seam.commit.sha, plan.reference.commit.sha
    return made


def _require_planned(one: Comparison, name: str, sides: tuple[str, str] | None) -> None:
    """Else a night's ratios would go by the name of what they are not to."""
    base, head = one.commit("base"), one.commit("head")
    if one.report.purpose != name or (base, head) != sides:
        raise UsageError(
            f"{one.place}: compares {short(head)} with {short(base) or 'no base'} as `{one.report.purpose}`, "
            f"which is not its plan's `{name}`: measure the night anew"
        )


def _require_one_machine(comparisons: Sequence[Comparison]) -> None:
    first = comparisons[0]
    for one in comparisons[1:]:
        for what, mine, theirs in [
            ("device", first.report.fingerprint.devices, one.report.fingerprint.devices),
            ("environment", _environment(first), _environment(one)),
        ]:
            both = mine.keys() & theirs.keys() if what == "device" else mine.keys() | theirs.keys()
            if other := [name for name in both if mine.get(name) != theirs.get(name)]:
                told = f"{mine.get(other[0], 'none')} and {theirs.get(other[0], 'none')}"
                raise UsageError(
                    f"{first.place} and {one.place}: differ in {other[0]} ({escaped(told, 200)}): "
                    "record what one machine measured"
                )


def _environment(one: Comparison) -> dict[str, str]:
    facts = one.report.fingerprint
    known = {"python": facts.python, "torch": facts.torch, "cuda": facts.cuda, "driver": facts.driver}
    return {name: one_line(value, 200) for name, value in known.items() if value}


def _devices(main: Sequence[Comparison]) -> dict[DeviceKind, str]:
    """Those measured, or that would have been; no CPU beside a GPU.

    Raises UsageError for cases that need a GPU where there is none: it may have gone.
    """
    known = main[0].report.fingerprint.devices
    kinds: set[DeviceKind] = set()
    for one in main:
        heads = ((facts, facts.reasons.get("head")) for facts in one.report.facts)
        skipped = {(facts.case, facts.device) for facts, reason in heads if reason and reason.kind == "device"}
        kinds |= {it.device for it in one.report.facts if (it.case, it.device) not in skipped}
        gone = sorted(case for case, kind in skipped if kind == "cuda" and kind not in one.report.fingerprint.devices)
        if gone and not _CPU_ALONE.search(" ".join(one.report.command)):
            raise UsageError(
                f"{one.place}: skipped {escaped(gone[0], 200)}, as the machine had no GPU: find out where it went, or "
                "measure with --device cpu if none is meant"
            )
    both: tuple[DeviceKind, ...] = ("cuda", "cpu")
    # What is measured where nobody says otherwise.
    usual = both[1:] if _CPU_ALONE.search(" ".join(main[0].report.command)) else [it for it in both if it in known][:1]
    found = {kind: one_line(known.get(kind, ""), 400) for kind in both if kind in (kinds or usual)}
    if unnamed := [kind for kind, name in found.items() if not name]:
        raise UsageError(f"{main[0].place}: does not tell the name of its {unnamed[0]} device: measure it anew")
    return found


def _instant(one: Comparison) -> str:
    try:
        at = datetime.fromisoformat(one.report.started)
    except ValueError:
        raise UsageError(f"{one.place}: does not tell when it began: measure it anew") from None
    at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    if at > datetime.now(UTC) + _AHEAD:  # it would stay the last night for good
        raise UsageError(f"{one.place}: began on {at:%Y-%m-%d}, in the future: set that machine's clock, measure anew")
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _seam(repo: Repository, one: Comparison, name: str) -> Seam:
    before = Reference(name=name, commit=described(repo, one.commit("base")))
    points = [point.model_copy(update={"reference": None}) for point in _points({"last": one})]
    return Seam(before=before, points=[one for one in points if one.last is not None])


def _error(comparisons: Mapping[str, Comparison], lost: list[str]) -> str:
    told = {"reference": "against the reference", "last": "against the commit before", "alone": "main"}
    found = ((what, comparisons[name].report) for name, what in told.items() if name in comparisons)
    said = [f"{what}: {report.sentence}" for what, report in found if report.verdict == "error"]
    return one_line("; ".join([*([f"no report: {', '.join(lost)}"] if lost else []), *said]), 1000)


# ---------------------------------------------------------------- points


def _points(comparisons: Mapping[str, Comparison]) -> list[Point]:
    parts = {name: _Part(comparisons[name]) for name in _OF_MAIN if name in comparisons}
    keys = sorted({key for part in parts.values() for key in part.named()})
    return [point for key in keys if (point := _point(key, parts)) is not None]


def _point(key: Key, parts: "Mapping[str, _Part]") -> Point | None:
    case, device, metric = key
    last = parts["last"].compared(key) if "last" in parts else None
    reference = parts["reference"].compared(key) if "reference" in parts else None
    if reference is not None and reference.ratio is None and reference.class_ in _INCOMPARABLE:
        reference = None
    order = list(parts.values())
    value = next((found for part in order if (found := part.value(key)) is not None), None)
    if value is None and last is None and reference is None:
        return None
    return Point(
        case=case,
        device=device,
        metric=metric,
        unit=next((unit for part in order if (unit := part.unit(key))), ""),
        timing=next((timing for part in order if (timing := part.timing(key))), ""),
        value=value,
        scatter=next((found for part in order if (found := part.scatter(key)) is not None), None),
        last=last,
        reference=reference,
    )


class _Part:
    def __init__(self, one: Comparison) -> None:
        report = one.report
        self._facts = {(facts.case, facts.device): facts for facts in report.facts}
        self._measured = {(it.case, it.device, it.metric): it for it in report.measured}
        self._trails = {(it.case, it.device, it.metric): it for it in (*report.unasked, *report.trails)}
        # Where nothing was asked of a case against a reference, its ratio is known all the same.
        self._unasked: dict[Key, Trail | None] = {}
        if report.purpose in ("reference", "seam"):
            proved = [(it.case, it.device) for it in report.facts if it.proof is not None and it.proof.by]
            self._unasked |= {(*case, _WHOLE): None for case in proved}
            self._unasked |= {(it.case, it.device, it.metric): it for it in report.unasked}
        self._rows: dict[Key, list[Row]] = {}
        told = {(row.case, row.device) for row in report.rows if row.kind != "presence"}
        for row in report.rows:
            whole = row.kind == "presence"
            # A file that does not import is no case; and what a case's limits say counts more than the case as a whole.
            if (row.case, row.device) in self._facts and not (whole and (row.case, row.device) in told):
                self._rows.setdefault((row.case, row.device, row.metric or _WHOLE), []).append(row)

    def named(self) -> Iterator[Key]:
        yield from self._measured
        yield from self._rows
        yield from self._unasked

    def compared(self, key: Key) -> Compared | None:
        if not (rows := self._rows.get(key)):
            return _unasked(self._unasked[key]) if key in self._unasked else None
        worst = min(rows, key=lambda row: CLASSES.index(row.class_))
        relative = next((row for row in rows if row.against == "base"), None)
        ratio, why = _ratio(relative) if relative is not None else (None, "")
        if relative is None and key in self._unasked and (beside := _unasked(self._unasked[key])) is not None:
            ratio = beside.ratio
        limit = relative.limit if relative is not None else None
        return Compared(
            **{"class": worst.class_},
            reason=one_line("; ".join(filter(None, [worst.reason, why])), 1000),
            ratio=ratio,
            limit=limit if limit is not None and math.isfinite(limit) else None,
        )

    def value(self, key: Key) -> float | None:
        found = self._measured.get(key)
        if found is not None and "head" in found.sides:
            value: float | None = found.sides["head"].median
        else:
            value = next((row.head for row in self._rows.get(key, []) if row.head is not None), None)
        return value if value is not None and math.isfinite(value) else None

    def unit(self, key: Key) -> str:
        if key in self._measured:
            return one_line(self._measured[key].unit, 50)
        return next((one_line(row.unit, 50) for row in self._rows.get(key, []) if row.unit), "")

    def timing(self, key: Key) -> str:
        facts = self._facts.get(key[:2])
        return facts.timing.mode if facts is not None and facts.timing is not None and key in self._measured else ""

    def scatter(self, key: Key) -> float | None:
        """Standard deviation of the logarithms of pairs' ratios."""
        trail = self._trails.get(key)
        ratios = [one for one in trail.ratios if one is not None and 0 < one < math.inf] if trail else []
        if trail is None or len(ratios) < 2 or len(ratios) != len(trail.ratios):
            return None
        return float(np.std(np.log(ratios), ddof=1))


def _unasked(trail: Trail | None) -> Compared | None:
    if trail is None:
        ratio: Ratio | None = Ratio(ratio=1, low=1, high=1, level=1, pairs=0)
    else:
        look = trail.looks[-1] if trail.looks else None
        if look is None or not 0 < look.interval.low <= look.interval.high < math.inf:
            return None
        level = look.interval.level
        ratio = Ratio(ratio=look.change, low=look.interval.low, high=look.interval.high, level=level, pairs=look.pairs)
    reason = "no limit on its change: its ratio alone is recorded"
    return Compared(**{"class": "inconclusive" if trail is not None else "unchanged"}, reason=reason, ratio=ratio)


def _ratio(row: Row) -> tuple[Ratio | None, str]:
    if row.proved:
        return Ratio(ratio=1, low=1, high=1, level=1, pairs=0), ""
    if row.change is None:
        return None, ""
    if not 0 < row.change < math.inf:
        return None, "its ratio is no finite number above 0"
    known = known_metric(row.metric)
    if row.interval is None and known is not None and known.exact:
        return Ratio(ratio=row.change, low=row.change, high=row.change, level=1, pairs=1), ""
    if row.interval is None:
        return None, "seen once in base and in head, it has no interval"
    low, high, level = row.interval.low, row.interval.high, row.interval.level
    if not (0 < low <= high < math.inf and 0 <= level <= 1):
        return None, "its interval has no end"
    return Ratio(ratio=row.change, low=low, high=high, level=level, pairs=row.pairs), ""
