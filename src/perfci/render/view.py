"""What every rendering shares, in plain text.

Numbers come from the Report; only notation is worked out here.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

from perfci.judge.hints import IMPORTS
from perfci.model.base import SIDES, DeviceKind, Side
from perfci.model.report import CLASSES, CaseFacts, CaseProfile, Class, Measured, Report, Row, Verdict
from perfci.model.text import count, listed, one_line
from perfci.model.units import limit_percent, parse_price, show, show_change, show_span, significant
from perfci.render.escape import visible
from perfci.render.facts import device_facts, environments, timing
from perfci.render.words import class_count, duration, moved, plain, relative

_STANDARD = ("time", "tflops", "bandwidth", "throughput", "peak", "speedup")
ICONS: dict[Verdict, str] = {"pass": "✅", "fail": "❌", "undecided": "🟡", "error": "⛔"}
"""A run that passes with warnings has another."""
NEEDS_REVIEW = " — this change needs review"
_PHASES = {"open": "set-up", "warm": "warm-up", "close": "clean-up"}
"""Where a word alone says little."""
_LARGE, _DEAR, _MOST_IMPORTS = 0.05, 1.0, 5
"""Share of a phase, seconds of an import to be told; imports listed."""
MOST_PROFILES = 20
"""Cases whose profiles are shown."""
_APART = 0.01
"""Of two ratios, relative: less is rounding."""
ONE_IN_A_HUNDRED = "1 run in 100 on unchanged code fails"


@dataclass(frozen=True)
class MeasuredCase:
    """Everything measured of a case on a device."""

    case: str
    device: DeviceKind
    metrics: dict[str, Measured]


class View:
    """A Report, grouped as people read it."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @property
    def comparing(self) -> bool:
        """There is a base."""
        return self.report.mode == "compare"

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides whose values are shown."""
        return SIDES if self.comparing else ("head",)

    @property
    def imported(self) -> bool:
        """The numbers are another tool's."""
        return any(facts.timing is not None and facts.timing.mode == "imported" for facts in self.report.facts)

    @cached_property
    def failing(self) -> list[Row]:
        """Rows that fail the run, or would, were it not observing."""
        return [row for row in self.report.rows if row.effect == "fail"]

    @cached_property
    def undecided(self) -> list[Row]:
        """Rows without an answer, which keep the run from passing."""
        return [row for row in self.report.rows if row.effect == "undecided"]

    @cached_property
    def leading(self) -> list[Row]:
        """Rows that make the verdict."""
        return self.failing or self.undecided

    @cached_property
    def warnings(self) -> list[Row]:
        """Rows that warn."""
        return [row for row in self.report.rows if row.effect == "warn"]

    @cached_property
    def improvements(self) -> list[Row]:
        """Rows that got better."""
        return [row for row in self.report.rows if row.class_ == "improvement" and row.effect == "pass"]

    @cached_property
    def without_base(self) -> list[Row]:
        """Rows of cases that base lacks."""
        return [row for row in self.report.rows if row.class_ == "added"]

    @cached_property
    def icon(self) -> str:
        """The verdict as one sign."""
        if self.report.unjudged:
            return "ℹ️"
        if self.report.verdict != "pass":
            return ICONS[self.report.verdict]
        return "⚠️" if self.warnings or self.failing else "✅"

    @staticmethod
    def passed_over(row: Row) -> bool:
        """Tell whether a row says only that its device is absent."""
        return row.class_ == "skipped" and row.effect == "pass"

    @cached_property
    def skipped(self) -> list[str]:
        """A line for each reason: `5 cases skipped: needs cuda (matmul, sdpa)`."""
        groups: dict[str, list[Row]] = {}
        for row in self.report.rows:
            if self.passed_over(row):
                groups.setdefault(row.reason.removeprefix("skipped: "), []).append(row)
        return [
            f"{count(len(rows), 'case')} skipped: {reason} ({', '.join(dict.fromkeys(row.kernel for row in rows))})"
            for reason, rows in groups.items()
        ]

    @cached_property
    def measured(self) -> list[MeasuredCase]:
        """By case, in the Report's order."""
        cases: dict[tuple[str, DeviceKind], dict[str, Measured]] = {}
        for entry in self.report.measured:
            cases.setdefault((entry.case, entry.device), {})[entry.metric] = entry
        return [MeasuredCase(case, device, metrics) for (case, device), metrics in cases.items()]

    @cached_property
    def standard_metrics(self) -> list[str]:
        """Time and what follows from it, as far as measured."""
        return [name for name in _STANDARD if any(name in case.metrics for case in self.measured)]

    @cached_property
    def other_measured(self) -> list[Measured]:
        """Other metrics, a row each."""
        return [entry for entry in self.report.measured if entry.metric not in _STANDARD]

    @cached_property
    def kinds(self) -> list[DeviceKind]:
        """The GPU first."""
        seen: set[DeviceKind] = {row.device for row in self.report.rows if not self.passed_over(row)}
        seen |= {measured.device for measured in self.report.measured}
        return [kind for kind in ("cuda", "cpu") if kind in seen]

    def on(self, device: DeviceKind) -> str:
        """Return ` (cpu)` where the report has several devices."""
        return f" ({device})" if len(self.kinds) > 1 else ""

    @staticmethod
    def base(row: Row) -> str:
        """Return base's value of a row."""
        return show(row.base, row.unit)

    @staticmethod
    def head(row: Row) -> str:
        """Return head's value: `48.5 µs (±0.2 %)` under an absolute limit."""
        text = show(row.head, row.unit)
        if row.against != "bound" or row.interval is None or not row.head:
            return text
        width = relative(row.interval.low, row.interval.high, row.head)
        return f"{text} (±{width})" if width else text

    @staticmethod
    def limit(row: Row) -> str:
        """Return `2 %`, `≥ 2.8 TB/s` or `≤ 5 ms`."""
        if row.limit is None:
            return "–"
        match row.against:
            case "base":
                return limit_percent(row.limit)
            case "bound":
                return f"{'≤' if row.beyond == 'above' else '≥'} {plain(show(row.limit, row.unit))}"
            case "names" | None:
                return "–"
            case _:
                assert_never(row.against)

    def change(self, row: Row, interval: bool = True) -> str:
        """Return `+211 % (±0.4) slower`; `proved`; `–` where nothing was compared."""
        if row.change is None:
            return "proved" if row.proved else "–"
        span = row.interval if interval and row.against == "base" else None
        shown = show_span(row.change, span.low, span.high) if span is not None else show_change(row.change)
        return f"{shown} {moved(row)}".rstrip()

    def median(self, entry: Measured | None, side: Side) -> str:
        """Return a side's median; a speed-up with what it is over: `1.23x sdpa`."""
        if entry is None or side not in entry.sides:
            return "–"
        text = show(entry.sides[side].median, entry.unit)
        facts = self._facts.get((entry.case, entry.device))
        return f"{text} {facts.versus}" if entry.metric == "speedup" and facts is not None else text

    @staticmethod
    def spread(entry: Measured | None, side: Side) -> str:
        """Return half of the median's relative interval: `0.1 %`."""
        stats = entry.sides.get(side) if entry is not None else None
        if stats is None or not stats.level or not stats.median:
            return "–"
        return relative(stats.low, stats.high, stats.median) or "–"

    @staticmethod
    def workers(entry: Measured | None, side: Side) -> str:
        """Return the number of workers behind a value."""
        return str(entry.sides[side].n) if entry is not None and side in entry.sides else "–"

    def log(self, row: Row) -> str:
        """Return the path of a failed row's log."""
        facts = self._facts.get((row.case, row.device))
        if facts is None or row.kind != "presence":
            return ""
        reasons = [facts.reasons[side] for side in reversed(SIDES) if side in facts.reasons]
        return next((reason.log for reason in reasons if reason.log), "")

    @cached_property
    def _facts(self) -> dict[tuple[str, DeviceKind], CaseFacts]:
        return {(facts.case, facts.device): facts for facts in self.report.facts}

    @cached_property
    def counts(self) -> list[tuple[Class, int]]:
        """Classes, worst first, with their rows."""
        rows = self.report.rows
        return [(name, number) for name in CLASSES if (number := sum(row.class_ == name for row in rows))]

    @cached_property
    def over(self) -> str:
        """`5 cases in all`, where cases have several rows."""
        cases = {(row.case, row.device) for row in self.report.rows}
        return f"{count(len(cases), 'case')} in all" if len(cases) != len(self.report.rows) else ""

    def fails(self, name: Class) -> bool:
        """Tell whether this class fails the run."""
        return any(row.class_ == name for row in self.failing)

    def commit(self, side: Side) -> str:
        """Return `4d5993f`, the ref's name, or `working tree`."""
        facts = self.report.sides.get(side)
        if facts is None:
            return "–"
        return facts.commit[:7] if facts.commit else facts.ref or "working tree"

    def dirty(self, side: Side) -> bool:
        """Tell whether uncommitted changes were measured."""
        return side in self.report.sides and self.report.sides[side].dirty

    @cached_property
    def devices(self) -> list[str]:
        """Devices used, with a GPU's driver."""
        known = self.report.fingerprint.devices
        names = [known[kind] for kind in self.kinds or known if known.get(kind)]
        if self.report.fingerprint.driver and ("cuda" in self.kinds or not self.kinds):
            names.append(f"driver {self.report.fingerprint.driver}")
        return names

    @cached_property
    def environments(self) -> list[str]:
        """Differences, line by line."""
        return [] if self.report.environments is None else environments(self.report.environments)

    @cached_property
    def effort(self) -> list[str]:
        """Such as `16 pairs`, `noise 0.2 %`, `3 min 5 s of GPU, 0.18 USD`."""
        report = self.report
        parts = []
        if report.pairs:
            one, many = ("pair", "pairs") if self.comparing else ("worker", "workers")
            parts.append(f"{report.pairs} {one if report.pairs == 1 else many}")
        if report.noise is not None and math.isfinite(report.noise):
            parts.append(f"noise {significant(report.noise * 100, 2)} %")
        if report.pairs and report.measuring_seconds:
            parts.append(f"measured for {duration(report.measuring_seconds)}")
        if not self.imported:
            parts.append(f"{duration(report.seconds)} {'of GPU' if 'cuda' in self.kinds else 'in all'}{self._cost}")
        return parts

    @cached_property
    def phases(self) -> list[tuple[str, float, float]]:
        """Longest first: name, seconds, share; none of what is no number."""
        costs = self.report.costs
        if not math.isfinite(whole := math.fsum(costs.values())):
            return []
        longest = sorted(costs.items(), key=lambda two: -two[1])
        return [(_PHASES.get(name, name), one, one / whole) for name, one in longest if one > 0]

    @property
    def dear_imports(self) -> list[str]:
        """`import torch: 2.1 s in each worker`, longest first."""
        dear = sorted(self.report.imports.items(), key=lambda two: -two[1])
        return [
            f"`{visible(name)}`: {duration(one)} in each worker{f': {IMPORTS.text}' if one >= _DEAR else ''}"
            for name, one in dear[:_MOST_IMPORTS]
        ]

    @cached_property
    def costs(self) -> str:
        """`93 s: 61 % samples, 14 % import, 25 % the rest`."""
        if not self.phases:
            return ""
        large = [one for one in self.phases if one[2] >= _LARGE]
        rest = 1 - math.fsum(share for _, _, share in large)
        parts = [f"{share:.0%} {name}".replace("%", " %") for name, _, share in large]
        parts += [f"{rest:.0%} the rest".replace("%", " %")] if rest >= 0.005 else []
        dear = self.dear_imports[:1] if max(self.report.imports.values(), default=0) >= _DEAR else []
        return "; ".join([f"{duration(self.report.seconds)}: {', '.join(parts)}", *dear])

    @property
    def _cost(self) -> str:
        if self.report.gpu_hour is None or "cuda" not in self.kinds:
            return ""
        amount, currency = parse_price(self.report.gpu_hour)
        return f", {amount * self.report.seconds / 3600:.2f} {currency}"

    @cached_property
    def sentence(self) -> str:
        """The verdict, its case between backticks."""
        sentence = visible(self.report.sentence)
        names = {visible(row.case) for row in self.report.rows} - {""}
        for name in sorted(names, key=len, reverse=True):
            before, found, after = sentence.partition(name)
            if found and before[-1:] in ("", " ") and after[:1] in ("", " ", ":", ",") and "`" not in name:
                return f"{before}`{name}`{after}"
        return sentence

    @property
    def headline(self) -> str:
        """The sentence, and what it asks for."""
        return self.sentence + NEEDS_REVIEW * self.report.needs_review

    @cached_property
    def profile(self) -> list[CaseProfile]:
        """Of the cases whose rows are worst."""
        return self.report.profiles[:MOST_PROFILES]

    @cached_property
    def claims(self) -> list[str]:
        """The answer to each claim, those not shown first."""
        return [
            f"claim {row.answer}: {row.case}{self.on(row.device)} {limit_percent(row.fall)} faster: {row.reason}"
            for row in self.report.claims
        ]

    @cached_property
    def remarks(self) -> list[str]:
        """Files that did not import and have no row, notes, claims."""
        told = {row.case for row in self.report.rows if row.case == row.file}
        lost = [one for one in self.report.files if one.file not in told]
        found = [f"Does not import: {one.file} ({one.side}): {one_line(one.reason.text, 400)}" for one in lost]
        return (
            found
            + ["what has no answer fails the run too (--strict, or undecided in fail_on)"] * self.report.strict
            + self.report.notes
            + self.apart
            + self.claims
        )

    @cached_property
    def apart(self) -> list[str]:
        """Why the columns of a row do not tell its change."""
        found = [row for row in self.report.rows if _apart(row)]
        if not found:
            return []
        return [
            "base and head are each side's medians, a change is that of pairs measured side by side, and decides: they "
            f"disagree for {listed(dict.fromkeys(row.case for row in found), 3)}"
        ]

    @cached_property
    def checked(self) -> list[CaseFacts]:
        """Facts of the cases checked."""
        return [facts for facts in self.report.facts if self.check(facts)]

    @staticmethod
    def check(facts: CaseFacts) -> Side | None:
        """Return head, or base where head was not checked."""
        return next((side for side in reversed(SIDES) if side in facts.checks and facts.checks[side].shapes), None)

    @cached_property
    def unreferenced(self) -> list[CaseFacts]:
        """Cases compared with no reference."""
        return [
            facts
            for facts in self.report.facts
            if self.check(facts) and not any(check.compared for check in facts.checks.values())
        ]

    @cached_property
    def noisy(self) -> list[CaseFacts]:
        """Facts of cases whose noise is known by parts, noisiest first."""
        known = [(facts.noise.pair, facts) for facts in self.report.facts if facts.noise is not None]
        return [facts for _, facts in sorted(known, key=lambda item: (-item[0], item[1].case, item[1].device))]

    @cached_property
    def timings(self) -> list[tuple[str, int]]:
        """Each with the number of cases measured so."""
        groups = Counter(timing(facts.timing) for facts in self.report.facts if facts.timing)
        return sorted(groups.items(), key=lambda item: (-item[1], item[0]))

    @cached_property
    def environment(self) -> list[tuple[str, str]]:
        """Facts of machine, tools and code as name and value."""
        report, facts = self.report, self.report.fingerprint
        pairs = [(f"device ({kind})", name) for kind, name in sorted(facts.devices.items()) if name != facts.cpu]
        pairs += [
            ("GPU UUID", _name(facts.uuid)),
            ("driver", facts.driver or ""),
            (
                "torch",
                f"{facts.torch} (CUDA {facts.cuda})" if facts.torch and facts.cuda else facts.torch or "",
            ),
            ("python", facts.python),
            ("host", facts.host),
            ("cpu", ", ".join(filter(None, (facts.cpu, count(facts.cores, "core") if facts.cores else "")))),
            ("memory", plain(show(float(facts.memory), "B")) if facts.memory else ""),
            ("perfci", facts.perfci),
        ]
        pairs += device_facts(facts)
        for side in SIDES:
            if side in report.sides:
                code = report.sides[side]
                built = f"built in {duration(code.build_seconds)}" if code.build_seconds else ""
                state = "with uncommitted changes" if code.dirty else ""
                named = code.ref if code.ref != code.commit else ""
                pairs.append((side, ", ".join(filter(None, (_name(code.commit), named, code.subject, state, built)))))
        pairs += [("limits", f"of {report.policy_from}"), ("started", report.started), ("run", _name(report.run))]
        return [(name, value) for name, value in pairs if value]


def _apart(row: Row) -> bool:
    """Tell whether the ratio of a row's columns lies outside of its change's interval, and well apart."""
    if row.kind != "regression" or not (row.base and row.head and row.change and row.interval):
        return False
    ratio = row.head / row.base
    return not row.interval.low <= ratio <= row.interval.high and abs(ratio / row.change - 1) > _APART


def _name(text: str | None) -> str:
    return f"`{text}`" if text and "`" not in text else text or ""


def by_class(rows: Iterable[Row]) -> str:
    """Return such as `2 inconclusive, 1 clock`."""
    numbers = Counter(row.class_ for row in rows)
    return ", ".join(class_count(name, numbers[name]) for name in CLASSES if name in numbers)
