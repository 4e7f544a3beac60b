"""A calibration of recorded H200 pairs: six kernels under `rotating`, 32 pairs each."""

import json
from functools import cache
from pathlib import Path

import numpy as np

from perfci.measure.calibrate.trials import conclude
from perfci.model.calibration import Calibration
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Fingerprint
from perfci.model.plan import Looks, Plan, Schedule
from perfci.model.results import Case, CaseSide, Moments, Pair, Reason, Results, Scatter, SideCode
from perfci.model.timing import Timing
from tests.judge.build import limit

RATIOS = json.loads((Path(__file__).parents[1] / "data" / "h200" / "pair_ratios.json").read_text())
IDS = {
    "add64k": "add/n=65536", "mm1024": "matmul/n=1024", "mm8192": "matmul/n=8192",
    "resample": "trajectory_resample", "sdpa512": "sdpa/seq=512", "copy512M": "copy/bytes=512M",
}  # fmt: skip
SECONDS = {
    "add64k": 1.6e-6, "mm1024": 5.83e-6, "mm8192": 1.6e-3, "resample": 33e-6, "sdpa512": 48.5e-6, "copy512M": 258e-6,
}  # fmt: skip


def criterion(case: str, bound: float = 0.01, **more) -> Criterion:
    return limit(case, bound=bound, **more)


def case(ident: str, x, seconds: float = 1e-4, metric: str = "time", **more) -> Case:
    """A case whose pairs have these log ratios."""
    side = CaseSide(params={"n": 1}, timing=Timing(mode="rotating", threads=1))
    pairs = [
        Pair(
            index=i,
            values={"base": {metric: seconds}, "head": {metric: seconds * float(np.exp(v))}},
            seconds={"block": 0.5},
        )
        for i, v in enumerate(x)
    ]
    fields = {"device": "cuda", "sides": {"base": side, "head": side.model_copy(deep=True)}} | more
    return Case(id=ident, kernel=ident.split("/", maxsplit=1)[0], pairs=pairs, **fields)


def results(cases: list[Case], criteria: list[Criterion] | None = None, **more) -> Results:
    asked = [criterion(one.id, device=one.device) for one in cases] if criteria is None else criteria
    plan = Plan(
        seed=0, sides=["base", "head"], looks=Looks(), devices=["cuda"], schedules={"rotating": Schedule()},
        criteria=asked, m=max(1, len(asked)), exact_pairs=32, budget=600,
    )  # fmt: skip
    facts = Fingerprint(
        cpu="AMD EPYC 9654", cores=16, python="3.12.3", torch="2.11.0", cuda="13.0", driver="580.159",
        devices={"cpu": "AMD EPYC 9654", "cuda": "NVIDIA H200"},
    )  # fmt: skip
    fields = {
        "run": "r", "mode": "compare", "started": "2026-01-05T10:15:00+00:00", "command": ["perfci", "calibrate"],
        "fingerprint": facts, "sides": {"base": SideCode(), "head": SideCode(commit="1a2b3c4d5e" * 4)}, "plan": plan, "cases": cases,
        "seconds": 200.0, "measuring_seconds": 150.0, "repository": "kernels",
    }  # fmt: skip
    return Results(**(fields | more))


def recorded(plant: dict[str, float] | None = None) -> Results:
    """32 pairs of the six kernels; `plant`: kernel → a bias to add."""
    made = results(
        [
            case(
                IDS[kernel],
                np.array(RATIOS[f"{kernel}|rot|cycles"])[:32] + (plant or {}).get(kernel, 0),
                SECONDS[kernel],
            )
            for kernel in IDS
        ]
    )
    scatter = Scatter(
        placements=8,
        blocks=4,
        placement=Moments(time=7e-6, cross=0, clock=0),
        block=Moments(time=5e-5, cross=0, clock=0),
    )
    for pair in made.cases[4].pairs:
        pair.scatter = scatter
    return made


STATES = ("quiet", "planted", "loud")
"""That people read."""


@cache
def calibrations() -> dict[str, Calibration]:
    """One for each of STATES."""
    quiet = recorded()
    planted = recorded({"sdpa512": 0.003, "mm8192": -0.012})
    loud = results(
        [
            case("add/n=65536", np.array(RATIOS["add64k|cold|time"])[:32], 4.4e-6),
            case("matmul/n=1024", np.array(RATIOS["mm1024|cold|time"])[:5], 9e-6, stopped="budget"),
            case("app/frame", np.array(RATIOS["mm1024|rot|cycles"])[:32], 30.0, metric="cycles", device="cpu"),
            Case(
                id="broken|case",
                kernel="broken",
                device="cuda",
                sides={
                    "base": CaseSide(),
                    "head": CaseSide(status="failed", reason=Reason(kind="crash", text="killed by <b>SIGSEGV</b>")),
                },
                stopped="failed",
            ),
        ],
        [criterion("add/n=65536"), criterion("app/frame", device="cpu", metric="cycles", unit="cycles")],
    )
    return {
        "quiet": conclude(quiet),
        "planted": conclude(planted, notes=["changes that are not committed were left out"]),
        "loud": conclude(loud),
    }
