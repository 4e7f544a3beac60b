"""A criterion: one limit on one metric of one case, and all that is known of the kinds of limits.

To add a kind of limit, begin here:

1. Name it in `Kind`. The type checker then names each `match` below that must say what holds of it: what it compares
   with, beyond which side of it a value is wrong, which of two is stricter, how it is listed. `Key` and `asked()` are
   not matched on: look at them yourself.
2. Give it a key in `Limit` of `model/policy.py`, with what `LIMIT_KEYS`, `CHANGES` (where it is a change) and
   `check_limit` there must know of it, and run `make schemas`.
3. `model/limits.py`: which cases it asks, and when it asks none.
4. Only where it compares with something new: a value of `Against`; CONTRIBUTING.md lists who asks for it, the docs and
   the tests.
"""

from collections.abc import Collection
from typing import Any, Literal, Self, assert_never

from pydantic import Field, model_validator

from perfci.model.base import DeviceKind, Document
from perfci.model.metrics import HOST_TIME, OBSERVED, Direction, Metric, Tier
from perfci.model.policy import FAIL_ON, FailOn, Limit, Outcome, Regex, bound_in_unit
from perfci.model.timing import Timing
from perfci.model.units import item_of, limit_percent, show

Kind = Literal["regression", "creep", "min", "max", "kernels"]
Purpose = Literal["change", "last", "reference", "seam"]
"""`change`: base's limits judge what head changes. Else both are commits of main, and head judges: against the commit
recorded last; against the reference (a release), with `creep` limits in place of `regression`; and of a new reference
against the one before, of which nothing is asked."""
Against = Literal["base", "bound", "names"]
"""Base, a bound in the metric's unit, or an expression for names of kernels."""
Beyond = Literal["above", "below"]
"""The side of a limit that breaks it."""
Key = tuple[str, str, str, Kind]
"""Of several limits on the same case, device, metric and kind, one counts."""

TIMER_TICK: dict[DeviceKind, float] = {"cuda": 32e-9, "cpu": 0.0}
"""Seconds of a sample. CUDA events tick in 32 ns (measured on an H200); on the CPU two readings of perf_counter (90
ns) are under 0.01 % of a batch, which lasts 1 ms at least."""


def against(kind: Kind) -> Against:
    """Return head's counterpart."""
    match kind:
        case "regression" | "creep":
            return "base"
        case "min" | "max":
            return "bound"
        case "kernels":
            return "names"
        case _:
            assert_never(kind)


def asked_in(kind: Kind, purpose: Purpose) -> bool:
    """Tell whether a comparison of this purpose asks such limits."""
    match kind:
        case "regression":
            return purpose in ("change", "last")
        case "creep":
            return purpose == "reference"
        case "min" | "max" | "kernels":
            return purpose != "seam"
        case _:
            assert_never(kind)


def beyond(kind: Kind, better: Direction = "lower") -> Beyond:
    """Return the side on which a value is worse.

    `better`: of the metric of a relative limit. Raises ValueError for `kernels`: names have no order.
    """
    match kind:
        case "regression" | "creep":
            return "above" if better == "lower" else "below"
        case "max":
            return "above"
        case "min":
            return "below"
        case "kernels":
            raise ValueError("names of kernels are neither above nor below a limit")
        case _:
            assert_never(kind)


class LimitSource(Document):
    """Where a limit stands."""

    origin: Literal["policy", "kernel", "default"]
    """`kernel`: its declaration; `default`: the policy has no limits."""
    index: int = Field(0, ge=0, le=999_999)
    """Among the limits of the policy or the kernel."""
    where: str = ""
    """`file:line` of the kernel's declaration."""

    def __str__(self) -> str:
        match self.origin:
            case "policy":
                return f"limits[{self.index}]"
            case "kernel":
                return f"{self.where}: limits[{self.index}]"
            case "default":
                return "default"
            case _:
                assert_never(self.origin)


class Criterion(Document):
    """The question: does this metric of this case keep to this limit?

    By the metric's tier decided by statistics over worker pairs (`timed`), or by one value a side of a profiler or a
    check (`observed`).
    """

    case: str
    device: DeviceKind
    metric: str
    """`kernels` where names of kernels are asked for."""
    unit: str
    better: Direction
    tier: Tier
    kind: Kind
    bound: float = 0.0
    """Relative change for `regression` and `creep`; a value in `unit` for `min` and `max`."""
    pattern: Regex | Literal[""] = ""
    """Of `kernels`: matches the name of some kernel."""
    min_change: float = 0.0
    """Seconds of the limit under which a change is never a regression."""
    tick: float = 0.0
    """Seconds that the timer resolves of a sample, where the limit names no min_change: over the executions in it,
    the min_change."""
    fail_on: FailOn = Field(default_factory=lambda: list(FAIL_ON))
    added: FailOn = Field(default_factory=list)
    """Of a kernel's own limit: what it adds to the policy's, whichever policy judges."""
    source: LimitSource
    named: bool = True
    """The limit names the case; a pattern asks no case for what it has none of."""
    waits: str = ""
    """The device or tool that it waits for, so that it cannot be judged here."""
    threshold: bool = False
    """Of `regression`: the bound itself parts the answers, as a bisect asks. Else a change that is there, and of
    more than half the bound, is beyond it."""

    @model_validator(mode="after")
    def _decidable(self) -> Self:
        if self.against == "names" and self.tier not in OBSERVED:
            raise ValueError("names of kernels are observed: worker pairs hold values alone")
        return self

    @property
    def case_key(self) -> str:
        """`id@device`."""
        return f"{self.case}@{self.device}"

    @property
    def key(self) -> Key:
        """The question, without its limit."""
        return self.case, self.device, self.metric, self.kind

    @property
    def timed(self) -> bool:
        """Worker pairs decide it."""
        return not self.waits and self.tier not in OBSERVED

    @property
    def observed(self) -> bool:
        """A single observation decides it."""
        return not self.waits and self.tier in OBSERVED

    @property
    def shares_alpha(self) -> bool:
        """Statistics can let the run fail by it: it gets α/m."""
        return self.timed and "broken" in self.fail_on

    @property
    def against(self) -> Against:
        """Head's counterpart."""
        return against(self.kind)

    @property
    def relative(self) -> bool:
        """It asks nothing without a base."""
        return self.against == "base"

    @property
    def beyond(self) -> Beyond:
        """As `beyond()`."""
        return beyond(self.kind, self.better)

    @property
    def sign(self) -> int:
        """1 where a rise is for the worse, else -1."""
        return 1 if self.better == "lower" else -1

    def worse(self, value: float, other: float) -> bool:
        """Tell whether `value` is on the worse side of `other`."""
        return value > other if self.beyond == "above" else value < other

    def broken_by(self, head: float, base: float = 1.0) -> bool:
        """Tell whether head is beyond the bound, or what a relative limit allows of `base`; NaN always is.

        Raises ValueError as `beyond()`.
        """
        upper = self.beyond == "above"
        match self.against:
            case "base":
                limit = base * (1 + self.bound if upper else 1 - self.bound)
            case "bound":
                limit = self.bound
            case "names":
                raise ValueError("no value keeps to an expression for names")
            case _:
                assert_never(self.against)
        return not (head <= limit if upper else head >= limit)

    def stricter_than(self, other: Self) -> bool:
        """Tell whether less keeps to this limit than to `other`, of the same kind; never of expressions."""
        match self.kind:
            case "regression" | "creep" | "max":
                return self.bound < other.bound
            case "min":
                return self.bound > other.bound
            case "kernels":
                return False
            case _:
                assert_never(self.kind)

    def under(self, fail_on: Collection[Outcome]) -> Self:
        """Return a kernel's own criterion where the policy that judges says `fail_on`."""
        return self.model_copy(update={"fail_on": sorted({*fail_on, *self.added})})

    def tightened(self, own: Self) -> Self:
        """Return this criterion of a policy, made stricter by a kernel's `own`: no change loosens a limit beside its
        code."""
        lower = min(self, own, key=lambda one: (one.min_change, one.tick))
        changes: dict[str, Any] = {
            "fail_on": sorted({*self.fail_on, *own.fail_on}),
            "added": own.added,
            "min_change": lower.min_change,
            "tick": lower.tick,
            "named": self.named or own.named,
        }
        if own.stricter_than(self):
            changes |= {"bound": own.bound, "source": own.source}
        return self.model_copy(update=changes)

    def against_base(self, bound: float) -> Self:
        """Return the criterion that head is not worse than base by the share `bound`."""
        return self.model_copy(update={"kind": "regression", "bound": bound, "min_change": 0.0, "tick": 0.0})

    def words(self) -> str:
        """Return `time within 2 %`, `time max 5 ms`, `a kernel matches flash`."""
        match self.kind:
            case "regression":
                return f"{self.metric} within {limit_percent(self.bound)}"
            case "creep":
                return f"{self.metric} within {limit_percent(self.bound)} of the reference"
            case "min" | "max":
                return f"{self.metric} {self.kind} {show(self.bound, self.unit)}"
            case "kernels":
                return f"a kernel matches {self.pattern}"
            case _:
                assert_never(self.kind)


def asked(limit: Limit, metric: Metric, device: DeviceKind) -> dict[Kind, dict[str, Any]]:
    """Return kind → fields of its criterion. Raises ValueError for a bound whose unit does not fit."""
    counted = (item_of(limit.min) or item_of(limit.max)) if metric.name == "throughput" else ""
    unit = counted + metric.unit  # `tokens/s`, as the limit says it
    of = {"metric": metric.name, "unit": unit, "tier": metric.tier, "better": metric.better or limit.better}
    found: dict[Kind, dict[str, Any]] = {}
    changes: dict[Kind, float | None] = {"regression": limit.regression, "creep": limit.creep}
    for kind, bound in changes.items():
        if bound is None:
            continue
        found[kind] = {**of, "bound": bound}
        if metric.unit == "s":
            found[kind] |= {
                "min_change": limit.min_change or 0.0,
                "tick": TIMER_TICK[device] if limit.min_change is None and metric.name != HOST_TIME else 0.0,
            }
    if limit.min is not None:
        found["min"] = {**of, "better": of["better"] or "higher", "bound": bound_in_unit(limit.min, metric)}
    if limit.max is not None:
        found["max"] = {**of, "better": of["better"] or "lower", "bound": bound_in_unit(limit.max, metric)}
    if limit.expect_kernels is not None:
        found["kernels"] = {
            "metric": "kernels", "unit": "", "better": "lower", "tier": "trace", "pattern": limit.expect_kernels,
        }  # fmt: skip
    return found


def least_change(criterion: Criterion, timing: Timing | None) -> float:
    """Return seconds of an execution under which a change is never a regression: the limit's, or what the timer
    resolves."""
    executions = (timing and timing.executions_per_graph) or 1
    return max(criterion.min_change, criterion.tick / executions)
