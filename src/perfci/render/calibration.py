"""A calibration for people: on a terminal, in a log, as Markdown."""

import math
import re
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from perfci.model.calibration import Calibration, CaseCalibration
from perfci.model.text import short
from perfci.model.units import direction, limit_percent, noise_percent, show
from perfci.render.escape import cell, code, prose, visible
from perfci.render.table import Table, put

_HEAD = ["case", "noise", "bias", "smallest change", "limit", "pairs", "decided in"]
_MOST_COMPONENTS = 10


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Print it within a terminal's width; elsewhere padded lines, without colour or cut names."""
    put(console, visible(calibration.sentence), "bold")
    put(console, visible(_machine(calibration)), "dim")
    rows = [[visible(entry) for entry in _row(case, calibration)] for case in calibration.cases]
    put(console, "")
    styles = ["bold red" if case.differs else "" for case in calibration.cases]
    for line in Table(_HEAD, rows, styles).lines(console):
        put(console, line)
    for lead, style, texts in (
        ("warning: ", "yellow", calibration.warnings),
        ("noise: ", "", _components(calibration)),
        ("note: ", "cyan", calibration.notes),
    ):
        if texts:
            put(console, "")
        for text in texts:
            put(console, f"{lead}{visible(text)}", style)
    if calibration.limits:
        put(console, "")
        put(console, "Limits that this machine can hold:")
        for limit in calibration.limits:
            console.print(Text(f"  {visible(limit)}"), soft_wrap=True, highlight=False)  # to be copied


def render(calibration: Calibration) -> str:
    """Return `calibration.md`."""
    lines = [f"### {prose(calibration.sentence)}", "", prose(_machine(calibration, "`")), ""]
    for title, texts in (("", calibration.warnings), ("Notes", calibration.notes)):
        lines += [f"**{title}**", ""] if title and texts else []
        lines += [f"- {prose(text, 600)}" for text in texts] + ([""] if texts else [])
    lines += [f"| {' | '.join(_HEAD)} |", "|" + "---|" * len(_HEAD)]
    for case in calibration.cases:
        name, *rest = _row(case, calibration)
        lines.append(f"| {code(name)} | {' | '.join(map(cell, rest))} |")
    lines.append("")
    if parts := _components(calibration):
        lines += ["**Where the noise comes from**", "", *(f"- {prose(part)}" for part in parts), ""]
    if calibration.limits:
        limits = [visible(line) for line in calibration.limits]
        mark = "`" * max(3, 1 + max(map(len, re.findall("`+", "\n".join(limits))), default=0))
        lines += ["**Limits that this machine can hold**", "", f"{mark}yaml", *limits, mark, ""]
    return "\n".join(lines)


def _machine(calibration: Calibration, quote: str = "") -> str:
    facts = calibration.fingerprint
    devices = [facts.devices.get(kind, kind) for kind in calibration.devices]
    driver = [f"driver {facts.driver}"] if facts.driver and "cuda" in calibration.devices else []
    what = f"{quote}{short(calibration.commit)}{quote}" if calibration.commit else "HEAD"
    pairs = max((case.pairs for case in calibration.cases), default=0)
    return " · ".join([*devices, *driver, f"{what} against itself", f"{pairs} pairs", _time(calibration.seconds)])


def _row(case: CaseCalibration, calibration: Calibration) -> list[str]:
    one_device = len(calibration.devices) == 1
    name = case.case + ("" if case.metric == "time" else f" {case.metric}") + ("" if one_device else f" @{case.device}")
    pairs = case.replayed.pairs if case.replayed else None
    return [
        name,
        noise_percent(case.noise),
        _effect(case),
        "–" if case.smallest is None else noise_percent(math.expm1(case.smallest)),
        "–" if case.asked is None else limit_percent(case.asked),
        "–" if pairs is None else f"{pairs:g}",
        "–" if pairs is None else _time(pairs * case.seconds),
    ]


def _effect(case: CaseCalibration) -> str:
    if case.differs:
        ratio = math.exp(case.effect)
        return f"head {noise_percent(abs(ratio - 1))} {direction(ratio, case.metric)}"
    return f"none beyond {noise_percent(math.expm1(max(abs(case.low), abs(case.high))))}"


def _components(calibration: Calibration) -> Sequence[str]:
    known = [case for case in calibration.cases if case.components]
    known.sort(key=lambda case: (-case.noise, case.case, case.device))
    return [
        f"`{case.case}`: standard deviation of "
        + ", of ".join(f"one {name} {noise_percent(size)}" for name, size in case.components.items())
        for case in known[:_MOST_COMPONENTS]
    ]


def _time(seconds: float) -> str:
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return show(seconds, "s")
