"""What all rows have in common: what they do to the verdict, their order, the case they speak of."""

import math
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from perfci.judge.compare import state
from perfci.judge.words import one_line
from perfci.model.base import DeviceKind
from perfci.model.metrics import CATALOGUE, CustomMetric
from perfci.model.plan import Gate, Judgement, Looks, Waiting
from perfci.model.policy import Severity
from perfci.model.report import CLASSES, UNANSWERED, Class, Effect, Row
from perfci.model.results import Case, CaseArm
from perfci.stats.walsh import Array, hodges_lehmann

EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""Worst first."""


@dataclass(frozen=True)
class Context:
    """What rows are judged by."""

    looks: Looks
    m: int
    """Number of gating judgements."""
    strict: bool
    """Whether what has no answer fails the run."""
    compared: bool
    """Whether there is a base."""
    asked: dict[str, list[Judgement]]
    """Case key → its judgements."""
    gates: dict[str, list[Gate]]
    """Case key → its gates."""
    waiting: dict[str, list[Waiting]]
    """Case key → its limits that cannot be judged here."""
    custom: dict[str, CustomMetric]

    def unit(self, metric: str) -> str:
        """The unit of a metric; empty for one that neither the catalogue nor the policy knows."""
        if metric in CATALOGUE:
            return CATALOGUE[metric].unit
        return self.custom[metric].unit if metric in self.custom else ""

    def effect(self, class_: Class, severity: Severity = "fail") -> Effect:
        """What a row does to the verdict. A limit that only warns does so whether or not it has an answer."""
        if class_ in ("regression", "violation"):
            return severity
        if class_ in UNANSWERED:
            return self.undecided if severity == "fail" else "warn"
        return "pass"

    @property
    def undecided(self) -> Effect:
        """What a row does that withholds an answer."""
        return "fail" if self.strict else "undecided"


def order(row: Row) -> tuple[object, ...]:
    """Sorts rows worst first; the same order whatever order they came in.

    Regressions and violations stand among each other by how many times a value changed, or is beyond its bound.
    """
    ratio = row.change if row.kind == "regression" else row.head / row.limit if row.head and row.limit else None
    size = abs(math.log(ratio)) if ratio and ratio > 0 else 0.0
    return (
        EFFECTS.index(row.effect),
        CLASSES.index("regression" if row.class_ == "violation" else row.class_),
        -size,
        row.case,
        row.device,
        row.metric,
        row.kind,
        row.limit or 0.0,
        row.limit_source,
        row.reason,
    )


def centre(values: Array) -> float | None:
    """Hodges–Lehmann centre of launch values; None where there are none or one is not finite."""
    return hodges_lehmann(values) if values.size and np.isfinite(values).all() else None


def because(arm: CaseArm) -> str:
    """`: ` and the reason of an arm's state, where it gives one."""
    text = one_line(arm.reason.text, 400) if arm.reason else ""
    return f": {text}" if text else ""


def about(case: Case) -> dict[str, Any]:
    """The fields of a row that name its case: where head declares it, or else base."""
    declared = next((arm for name in ("head", "base") if (arm := state(case, name)).file), CaseArm())
    return {
        "case": case.id,
        "kernel": case.kernel,
        "device": case.device,
        "file": declared.file,
        "line": declared.line,
    }


def about_id(case: str, device: DeviceKind) -> dict[str, Any]:
    """The same where only the id is known."""
    return {"case": case, "kernel": case.split("/", maxsplit=1)[0], "device": device}
