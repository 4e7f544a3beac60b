"""Results documents for tests: small, whole, and deterministic."""

from typing import Any

import numpy as np

from perfci.model.criteria import Criterion, LimitSource
from perfci.model.fingerprint import Ceilings, Fingerprint, Rate
from perfci.model.metrics import known_metric
from perfci.model.plan import Looks, Plan
from perfci.model.results import Case, CaseSide, Clock, Pair, Reason, Results, SideCode
from perfci.model.timing import Timing

T = 48.5e-6
PAIRS = 24
POLICY = LimitSource(origin="policy")
"""The first limit of a policy."""


def values(
    ratio: float = 1.0, n: int = PAIRS, sd: float = 0.002, base: float = T, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Base's and head's worker values whose ratio is `ratio` with noise `sd` per pair."""
    rng = np.random.default_rng(seed)
    b = base * np.exp(rng.normal(0, 0.01, n))
    return b, b * ratio * np.exp(rng.normal(0, sd, n))


def pairs(base=None, head=None, metric: str = "time", **more: Any) -> list[Pair]:
    """Pairs of worker values; `more`: metric → (base's values, head's values)."""
    series = {metric: (base, head)} | more
    n = max(len(v) for two in series.values() for v in two if v is not None)
    return [
        Pair(
            index=i,
            values={
                side: {name: float(two[k][i]) for name, two in series.items() if two[k] is not None and i < len(two[k])}
                for k, side in enumerate(("base", "head"))
                if any(two[k] is not None for two in series.values())
            },
        )
        for i in range(n)
    ]


def at_clocks(made: list[Pair], base: float = 1.98e9, head: float = 1.98e9, slope: float = 1.0) -> list[Pair]:
    """The pairs with clocks of so many hertz beside them, whose blocks followed the clock by `slope`."""
    for pair in made:
        pair.clock = {
            name: Clock(hertz=hertz, blocks=16, variance=0.01, covariance=-0.01 * slope)
            for name, hertz in (("base", base), ("head", head))
        }
    return made


def ceilings(read: float | None = None, copied: float | None = None, **matmul: float | None) -> Ceilings:
    """The rates that a device reaches at most, of those given; the rest was not measured."""
    rates = {name: Rate(value=value) for name, value in {"read": read, "copied": copied, **matmul}.items()}
    return Ceilings(
        device="cuda", read=rates.pop("read"), copied=rates.pop("copied"), matmul=rates, to_device=None, to_host=None,
        seconds=0.4,
    )  # fmt: skip


def side(status: str = "ok", kind: str | None = None, text: str = "it broke", **fields: Any) -> CaseSide:
    defaults = {
        "reason": Reason(kind=kind, text=text) if kind else None,
        "file": "kernels/suite.py",
        "line": 7,
        "params": {"n": 64},
        "inputs": "ab" * 32,
        "timing": Timing(mode="rotating", settings={"timer": "events"}),
    }
    if status == "absent":
        defaults = {"reason": defaults["reason"]}
    return CaseSide(status=status, **(defaults | fields))


def case(
    ident: str = "matmul/n=64",
    ratio: float | None = 1.0,
    base: CaseSide | None = None,
    head: CaseSide | None = None,
    **fields: Any,
) -> Case:
    """A case that ran in base and in head with `ratio` in time; None gives it no pairs."""
    sides = {"base": base or side(), "head": head or side()}
    made = fields.pop("pairs", None)
    if made is None:
        made = [] if ratio is None else pairs(*values(ratio, **fields.pop("values", {})))
    return Case(
        **{"id": ident, "kernel": ident.split("/", maxsplit=1)[0], "device": "cuda", "sides": sides, "pairs": made}
        | fields
    )


def limit(
    ident: str = "matmul/n=64", metric: str = "time", kind: str = "regression", bound: float = 0.02, **fields: Any
) -> Criterion:
    known = known_metric(metric)
    unit, better, tier = (known.unit, known.better or "lower", known.tier) if known else ("", "lower", "reported")
    data = {"case": ident, "device": "cuda", "kind": kind, "bound": bound, "source": POLICY}
    return Criterion(**(data | {"metric": metric, "unit": unit, "better": better, "tier": tier} | fields))


def results(cases: list[Case], limits: list[Criterion] | None = None, **fields: Any) -> Results:
    """Results in mode compare; every case has the default limit unless `limits` says otherwise."""
    asked = [limit(c.id, device=c.device) for c in cases] if limits is None else limits
    mode = fields.pop("mode", "compare")
    sides = {"base": SideCode(ref="main")} if mode == "compare" else {}
    sides["head"] = SideCode(ref="HEAD")
    m = max(1, sum(one.shares_alpha for one in asked))
    looks = fields.pop("looks", Looks.fitted(m))
    return Results(
        run="r1", mode=mode, started="2025-01-01T00:00:00Z", command=["perfci", "compare", "--base", "main"],
        fingerprint=Fingerprint(), sides=sides, cases=cases,
        plan=Plan(seed=1, sides=[*sides], looks=looks, criteria=asked, m=m), **fields,
    )  # fmt: skip


def alone(ident: str = "matmul/n=64", head: CaseSide | None = None, n: int = PAIRS, level: float = T) -> Case:
    """A case of a run without base."""
    measured = case(ident, pairs=pairs(None, values(1.0, n, base=level)[1]) if head is None else [])
    measured.sides = {"head": head or side()}
    return measured
