"""The report for a terminal, or as plain lines."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from perfci.judge.headline import UNDECIDED
from perfci.model.report import UNANSWERED, CaseProfile, Effect, Report, Row, Verdict
from perfci.model.text import count, shell
from perfci.render import uses, words
from perfci.render.docs import page
from perfci.render.escape import spans, visible
from perfci.render.table import Table
from perfci.render.uses import Column, UseTable
from perfci.render.view import View
from perfci.render.words import class_count

MOST_ROWS = 40
_MARKS: dict[Effect, str] = {"fail": "✗", "undecided": "?", "warn": "!", "pass": "✓"}
_STYLES: dict[Effect, str] = {"fail": "bold red", "undecided": "bold yellow", "warn": "yellow", "pass": "green"}
_BADGES: dict[Verdict, tuple[str, str]] = {
    "pass": ("PASS", "bold white on green"),
    "fail": ("FAIL", "bold white on red"),
    "undecided": ("UNDECIDED", "bold black on yellow"),
    "error": ("ERROR", "bold white on magenta"),
}


@dataclass(frozen=True)
class _Detail:
    """A narrow terminal breaks more, and leaves no number out."""

    words: bool = False
    """A column has the class; else it stands before the reason."""
    metric: bool = True
    """The metric has a column; else it stands beside the case."""
    lines: int = 1
    """Of a value with its interval, then of a change too."""


_LOG = re.compile(r"\blogs/[\w.-]+\.log\b")
_SENTENCES = 3
_TRACED = 5
_DETAILS = (
    _Detail(words=True),
    _Detail(),
    _Detail(metric=False),
    _Detail(metric=False, lines=2),
    _Detail(metric=False, lines=3),
)


def print_costs(report: Report, console: Console) -> None:
    """Print each phase, and what imports cost."""
    printer = _Printer(View(report), console)
    phases = [[name, f"{seconds:.1f} s", f"{100 * share:.1f} %"] for name, seconds, share in printer.view.phases]
    printer.table(Table(["phase", ">wall time", ">share"], phases))
    printer.block([_prose("", line, "") for line in printer.view.dear_imports])


def print_report(report: Report, console: Console, folder: Path = Path()) -> None:
    """Print the verdict, the rows and what is worth knowing beside them. `folder`: of its logs.

    On a terminal tables within its width; elsewhere one line a row.
    """
    _Printer(View(report), console, folder).print()


def print_decided(report: Report, console: Console) -> None:
    """Print a line for each decided row.

    Without class and reason, which later pairs may change.
    """
    printer = _Printer(View(report), console)
    if proved := len({(row.case, row.device) for row in report.rows if row.proved}):
        printer.put(Text.assemble((_MARKS["pass"], _STYLES["pass"]), f" {count(proved, 'case')} proved unchanged"))
    for row in report.rows:
        if row.kind != "presence" and row.class_ not in UNANSWERED and not row.proved:
            printer.put(printer.line(row))


class _Printer:
    def __init__(self, shown: View, console: Console, folder: Path = Path()) -> None:
        self.view, self.report, self.console, self.folder = shown, shown.report, console, folder
        self.rich = console.is_terminal

    def print(self) -> None:
        self.header()
        known = [row for row in self.report.rows if not self.view.passed_over(row)]
        rows = known
        if len(rows) > MOST_ROWS:
            rows = [row for row in rows if row.class_ != "unchanged"]
        if rows:
            self.table(self.row_table(rows))
        if len(rows) < len(known):
            self.block([Text(f"{len(known) - len(rows)} unchanged rows are not shown.", "dim")])
        self.block([Text(visible(line), "dim") for line in self.view.skipped])
        if not self.view.comparing and self.view.measured:
            self.table(self.measured_table())
            if self.view.other_measured:
                self.table(self.other_table())
        self.block(self.profile())
        self.traced()
        claims = self.view.claims
        self.block([_prose("", claim, "bold") for claim in claims])
        self.block([_prose("note: ", remark, "cyan") for remark in self.view.remarks[: -len(claims) or None]])
        if self.report.verdict == "undecided" and not self.report.unjudged:
            self.block([Text(f"Why is it undecided, and what to do: {page(words.UNDECIDED_PAGE)}", "dim")])

    def profile(self) -> list[Text]:
        told = {(row.case, row.device) for row in self.report.rows if row.cause}
        lines = []
        quiet = {(row.case, row.device) for row in self.report.rows if _quiet(row)}
        quiet -= {(row.case, row.device) for row in self.report.rows if not _quiet(row)}
        for case in self.report.profiles[:MOST_ROWS]:
            key = case.case, case.device
            if key in told or not case.sentences or (self.view.comparing and key in quiet):
                continue  # what stayed as it was needs no explanation here
            name = f"{visible(case.case)}: ", "bold"
            unseen = [f"not seen: {fault}" for fault in case.faults[:_SENTENCES]]
            for text in filter(None, [*case.sentences[:_SENTENCES], case.roofline, *unseen]):
                lines.append(Text.assemble(name, visible(text)))
            for step in case.next_steps[:_SENTENCES]:
                lines.append(Text.assemble(name, ("try: ", "cyan"), visible(step)))
        return lines

    def traced(self) -> None:
        """Of two sides it is less, so that it fits."""
        shown = [(case, table) for case in self.report.profiles[:MOST_ROWS] for table in uses.tables(case)]
        waiting = [(case, table) for case, table in shown if table.kind == "os_call"]
        launching = not self.view.comparing and any(uses.LAUNCHING in table.columns for _, table in waiting)
        columns = (
            [uses.TIME] if self.view.comparing else [uses.CALLS, uses.TIME, uses.SHARE, *[uses.LAUNCHING] * launching]
        )
        self.uses("OS runtime", columns, waiting)
        if waiting:
            self.block([Text(uses.os_runtime(launching=launching), "dim")])
        self.uses("device memory", [uses.BYTES], [one for one in shown if one[1].kind == "memory"])

    def uses(self, first: str, columns: Sequence[Column], of: Sequence[tuple[CaseProfile, UseTable]]) -> None:
        sides = self.view.sides
        head = [
            f">{side} {column.name}" if len(sides) > 1 else f">{column.name}" for side in sides for column in columns
        ]
        cells = [
            [
                visible(case.case) + self.view.on(case.device),
                visible(row.name),
                *(column.cell(row, side) for side in sides for column in columns),
            ]
            for case, table in of
            for row in table.rows[:_TRACED]
        ]
        if cells:
            self.table(Table(["case", first, *head], cells))

    def header(self) -> None:
        report, view = self.report, self.view
        badge, style = _BADGES[report.verdict]
        if report.verdict == "pass" and (view.warnings or view.failing):
            style = "bold black on yellow"
        said = view.headline.removeprefix(UNDECIDED)  # as the badge says already
        if report.unjudged:
            lead, _, said = said.partition(": ")
            badge, style = lead.upper(), "bold white on blue"
        self.put(_prose(f" {badge} " if self.rich else f"{badge}:", said, style, " "))
        if report.advice:
            self.put(_prose("", _LOG.sub(lambda log: str(self.folder / log[0]), report.advice)))
        if report.advised:
            self.console.print(Text(f"  {shell(report.advised)}", "bold"), soft_wrap=True, highlight=False)
        sides = [
            f"{side} {view.commit(side)}{' with uncommitted changes' if view.dirty(side) else ''}"
            for side in report.sides
        ]
        for parts in ([*view.devices, " → ".join(sides)], view.effort):
            self.put(Text(visible(" · ".join(parts)), "dim"))
        for line in view.environments:
            self.put(_prose("", line))
        if view.counts:
            text = Text()
            for index, (name, number) in enumerate(view.counts):
                text.append(" · " if index else "").append(
                    class_count(name, number), "bold" if view.fails(name) else ""
                )
            text.append(f" · {view.over}" if view.over else "")
            self.put(text)

    def row_table(self, rows: Sequence[Row]) -> Table:
        for detail in _DETAILS:
            table = self.detailed(rows, detail)
            if not self.rich or table.fits(self.console.width):
                break
        return table

    def detailed(self, rows: Sequence[Row], detail: _Detail) -> Table:
        view = self.view
        times = self.rich and all(row.metric in ("", "time") for row in rows)
        column = not times and detail.metric
        changes = any(row.change is not None for row in rows)
        head = (["", "class"] if detail.words else [""]) if self.rich else ["effect", "class"]
        head += ["case", "metric"] if column else ["case"]
        head += [">base", ">head"] if view.comparing else [">value"]
        head += ["change in time" if times else "change"] if changes else []
        head += ["limit"] if self.rich else ["limit", "why"]
        cells = []
        for row in rows:
            name = visible(row.case) + view.on(row.device)
            line = [_MARKS[row.effect] if self.rich else row.effect, *([row.class_] if detail.words else [])]
            metric = visible(row.metric)
            line += [name, metric or "–"] if column else [name if times else f"{name} {metric}"]
            line += [visible(view.base(row))] if view.comparing else []
            value, change = visible(view.head(row)), visible(view.change(row))
            line += [_under(value, " (") if detail.lines > 1 else value]
            line += [_under(change, ") ") if detail.lines > 2 else change] if changes else []
            line += [visible(view.limit(row)), *([] if self.rich else [self.why(row)])]
            cells.append(line)
        return Table(head, cells, [_style(row) for row in rows], [self.reason(row, detail) for row in rows])

    def line(self, row: Row) -> Text:
        view = self.view
        values = [f"{view.base(row)} → {view.head(row)}" if view.comparing else view.head(row)]
        values += [view.change(row)] if row.change is not None else []
        values += [f"limit {view.limit(row)}"] if row.limit is not None else []
        name = f"{row.case}{view.on(row.device)} {row.metric}"
        return Text.assemble((_MARKS[row.effect], _style(row)), f" {visible(name)} ", visible(" · ".join(values)))

    def why(self, row: Row) -> str:
        log = self.view.log(row)
        place = f"{row.file}:{row.line}" if row.file and row.line else row.file
        parts = [words.because(row), place if row.effect != "pass" else "", f"log {self.folder / log}" if log else ""]
        return " · ".join(visible(part) for part in parts if part)

    def reason(self, row: Row, detail: _Detail) -> Text | None:
        why = self.why(row)
        if _quiet(row) or not why:
            return None
        return _prose("" if detail.words else f"{row.class_}: ", why, _style(row))

    def measured_table(self) -> Table:
        view = self.view
        head = ["case"]
        for metric in view.standard_metrics:
            head += [f">{metric}", ">±"] if metric == "time" else [f">{metric}"]
        cells = []
        for case in view.measured:
            line = [visible(case.case) + view.on(case.device)]
            for metric in view.standard_metrics:
                entry = case.metrics.get(metric)
                line.append(visible(view.median(entry, "head")))
                if metric == "time":
                    line.append(view.spread(entry, "head"))
            cells.append(line)
        return Table(head, cells)

    def other_table(self) -> Table:
        cells = [
            [
                visible(entry.case) + self.view.on(entry.device),
                visible(entry.metric),
                visible(self.view.median(entry, "head")),
            ]
            for entry in self.view.other_measured
        ]
        return Table(["case", "metric", ">value"], cells)

    def table(self, table: Table) -> None:
        self.block(list(table.drawn(self.console)) if self.rich else table.plain())

    def block(self, lines: Sequence[Text]) -> None:
        if lines:
            self.put(Text())
        for line in lines:
            self.put(line)

    def put(self, text: Text) -> None:
        self.console.print(text, soft_wrap=not self.rich, highlight=False)


def _prose(lead: str, sentence: str, style: str = "", space: str = "") -> Text:
    text = Text(lead, style) if not space else Text.assemble((lead, style), space)
    for index, part in enumerate(spans(visible(sentence))):
        text.append(part, "bold" if index % 2 else "not bold")
    return text


def _under(text: str, mark: str) -> str:
    before, found, after = text.partition(mark)
    return f"{before}{found.rstrip()}\n{after}" if mark == ") " and found else f"{before}\n({after}" if found else text


def _quiet(row: Row) -> bool:
    return row.effect == "pass" and row.class_ in ("unchanged", "skipped")


def _style(row: Row) -> str:
    return "dim" if _quiet(row) else _STYLES[row.effect]
