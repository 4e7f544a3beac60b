"""`report.html`, one file that opens offline and runs its own script alone.

A template escapes whatever it prints; plots are drawn by uPlot from JSON in the page. The content security policy names
scripts and styles by their hash.
"""

import base64
import glob
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from perfci.model.base import SIDES, DeviceKind
from perfci.model.report import CLASSES, CaseFacts, CaseProfile, Effect, Measured, Report, Row
from perfci.model.text import shell, shorten
from perfci.model.units import show_change
from perfci.render import words
from perfci.render.escape import spans, visible
from perfci.render.facts import timing
from perfci.render.html import plots
from perfci.render.html.recorded import Recorded
from perfci.render.parts import templates
from perfci.render.view import View

_HERE = Path(__file__).parent
_STYLES = ("uPlot.min.css", "style.css")
_SCRIPTS = ("uPlot.iife.min.js", "copy.js", "report.js")
_LONGEST = 4000
_SIGNS: dict[Effect, str] = {"fail": "✗", "undecided": "?", "warn": "!", "pass": "✓"}
_COMMIT = re.compile(r"[0-9a-f]{40}")


def render(report: Report, recorded: Recorded | None = None) -> str:
    """Return the page, with fewer plots without `recorded`."""
    recorded = recorded or Recorded()
    shown = View(report)
    cases = _cases(shown)
    data = plots.page(report, recorded, [(case.case, case.device) for case in cases])
    page = jinja().get_template("page.html.j2")
    return page.render(
        view=shown,
        report=report,
        cases=cases,
        numbers={(case.case, case.device): case.number for case in cases},
        drawn=data["cases"],
        overview=data["overview"],
        hot=bool(data["moments"]),
        missing=recorded.missing,
        policy=policy(_SCRIPTS, _STYLES),
        styles=[Markup(asset(name)) for name in _STYLES],
        scripts=[Markup(asset(name)) for name in _SCRIPTS],
        data=Markup(plots.embed(data)),
    )


@dataclass
class Case:
    """A case on a device, and all that the report says of it."""

    number: int
    case: str
    device: DeviceKind
    commands: list[str]
    rows: list[Row] = field(default_factory=list)
    """Worst first."""
    measured: list[Measured] = field(default_factory=list)
    facts: CaseFacts | None = None
    profile: CaseProfile | None = None

    @property
    def place(self) -> str:
        """`kernels/softmax.py:12`."""
        row = next((row for row in self.rows if row.file), None)
        return "" if row is None else f"{row.file}:{row.line}" if row.line else row.file


def _cases(shown: View) -> list[Case]:
    report = shown.report
    parts: list[Sequence[Row | Measured | CaseFacts | CaseProfile]] = [
        report.rows, report.measured, report.facts, report.profiles,
    ]  # fmt: skip
    found: dict[tuple[str, DeviceKind], Case] = {}
    for one in (one for part in parts for one in part):
        key = (one.case, one.device)
        if key not in found:
            found[key] = Case(len(found), *key, _commands(shown, *key))
        match one:
            case Row():
                found[key].rows.append(one)
            case Measured():
                found[key].measured.append(one)
            case CaseFacts():
                found[key].facts = one
            case CaseProfile():
                found[key].profile = one
    return list(found.values())


def _commands(shown: View, case: str, device: DeviceKind) -> list[str]:
    sides = shown.report.sides
    base, head = ((sides[side].commit or "" if side in sides else "") for side in SIDES)
    if shown.report.environments is not None and shown.report.environments.asked:
        return [shell(shown.report.command)]  # no commit holds what was compared
    what = ["perfci", "compare", base or "HEAD"] if shown.comparing else ["perfci", "run"]
    checkout = [f"git switch --detach {head}"] if _COMMIT.fullmatch(head) and not shown.dirty("head") else []
    return [*checkout, shell([*what, "--device", device, "-k", glob.escape(case)])]


@cache
def asset(name: str) -> str:
    """Return a file beside this one, as it stands in the page."""
    text = (_HERE / name).read_text(encoding="utf-8").strip()
    if re.search(r"</(script|style)|<!--", text, re.IGNORECASE):
        raise ValueError(f"{name} would end the element that it stands in")
    return text


@cache
def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return the content security policy: only what was hashed runs."""

    def hashes(names: Sequence[str]) -> str:
        digests = (hashlib.sha256(asset(name).encode()).digest() for name in names)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def jinja() -> Environment:
    """Return the template, and what it may call."""
    found = templates(_HERE, _finalize, autoescape=True)
    found.filters |= {"prose": _prose, "breakable": _breakable, "exact": _exact}
    found.globals |= {
        "because": words.because, "timing": timing, "show_change": show_change, "sign": _SIGNS.__getitem__,
        "classes": CLASSES, "key": _key, "help_page": words.help_page, "shell": shell,
    }  # fmt: skip
    return found


def _finalize(value: Any) -> Any:
    """Safe is text with nothing hidden in it, whole numbers, or Markup."""
    if isinstance(value, Markup) or type(value) is int:
        return value
    if isinstance(value, str):
        # As it stands inside a line: its own spaces at the ends belong to the template.
        lead, trail = " " * value.startswith(" "), " " * (value.endswith(" ") and value != " ")
        return f"{lead}{shorten(visible(value), _LONGEST)}{trail}"
    raise TypeError(f"a template prints {value!r}: format it first")


def _prose(text: str) -> Markup:
    parts = spans(shorten(visible(text), _LONGEST))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)
    )


def _breakable(name: str) -> Markup:
    return Markup("<wbr>").join(re.split(r"(?<=[/=_,:@.])", shorten(visible(name), _LONGEST)))


def _exact(line: str) -> Markup:
    return escape("".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in line))


def _key(value: float | None) -> str:
    return repr(value) if value is not None and math.isfinite(value) else ""
