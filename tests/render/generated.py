"""A generated run of many cases, with everything that a run records beside its results."""

import math
from collections.abc import Iterable

import numpy as np

from perfci.model.base import SIDES
from perfci.model.plan import Plan
from perfci.model.profile import Slice, Trace
from perfci.model.results import Case, CaseSide, Check, Clock, Moment, Pair, Results, SideCode, Work
from perfci.model.timing import Timing
from perfci.render.html.recorded import Recorded
from tests.judge.build import ceilings, limit
from tests.render.build import FINGERPRINT
from tests.render.build import recorded as profile
from tests.render.h200 import BASE, HEAD

CEILINGS = ceilings(read=4.35e12, copied=4.26e12, bf16=773e12)
START = 1.7677e9
_RATIOS = (1.0, 1.0, 1.0005, 1.014, 0.97, 1.0, 3.1, 1.0)


def recorded(
    cases: int = 8, pairs: int = 16, samples: int = 20, names: Iterable[str] = (), seen: bool = True
) -> Recorded:
    """A comparison on one GPU. `names` take the place of the first cases' ids; `seen`: with profiles of some cases."""
    rng = np.random.default_rng(1)
    ids = [*names, *(f"matmul/m={64 * (i % 8 + 1)}/n={64 * (i // 8 + 1)}" for i in range(cases))][:cases]
    made, raw = [], {}
    for number, ident in enumerate(ids):
        ratio, level, key = _RATIOS[number % len(_RATIOS)], 10.0 ** rng.uniform(-5.5, -3), f"{ident}@cuda"
        profiled = seen and number % 20 == 6
        drawn, raw[key] = [], {}
        for index in range(pairs):
            taken = {
                side: level * factor * np.exp(rng.normal(0, 0.001) + rng.normal(0, 0.004, (3, samples)))
                for side, factor in zip(SIDES, (1.0, ratio), strict=True)
            }
            raw[key][index] = {side: values.tolist() for side, values in taken.items()}
            drawn.append(
                Pair(
                    index=index,
                    first=SIDES[int(rng.integers(2))],
                    values={side: {"time": float(values.mean())} for side, values in taken.items()},
                    clock={
                        side: Clock(hertz=1.98e9 + rng.normal(0, 2e6), blocks=6, variance=1e-6, covariance=-5e-7)
                        for side in SIDES
                    },
                    samples=dict.fromkeys(SIDES, 3 * samples),
                    at=START + 12 * index + 0.05 * number,
                )
            )
        work = Work(flops=level * 3e14, read=level * 2e12, written=level * 1e12)
        sides = {
            side: CaseSide(
                file="kernels/matmul.py", line=12, work=work, dtype="bf16",
                timing=Timing(mode="rotating", settings={"timer": "CUDA events"}),
                check=Check(shapes=27, compared=27, worst=0.35, rtol=2e-2, atol=1e-3),
                profile=profile("sdpa-seq512", side) if profiled else None,
            )
            for side in SIDES
        }  # fmt: skip
        for side in sides.values():
            if side.profile and side.profile.trace:
                side.profile.trace.slices = _one_by_one(side.profile.trace)
        made.append(Case(id=ident, kernel=ident.split("/", maxsplit=1)[0], device="cuda", sides=sides, pairs=drawn))
    asked = [limit(ident, bound=0.01) for ident in ids]
    results = Results(
        run="20260105-101500-4d5993f", mode="compare", started="2026-01-05T10:15:00Z", seconds=185.2,
        measuring_seconds=160.4, command=["perfci", "compare", "--base", BASE], repository="attention",
        fingerprint=FINGERPRINT.model_copy(update={"ceilings": {"cuda": CEILINGS}}),
        sides={
            "base": SideCode(ref="main", commit=BASE, subject="Tune the tile"),
            "head": SideCode(ref="HEAD", commit=HEAD, subject="Use the math path"),
        },
        plan=Plan(seed=1, sides=["base", "head"], criteria=asked, m=len(asked)),
        cases=made,
        moments=[
            Moment(at=START + 12 * i, temperature=round(52 - 14 * math.exp(-i / 6)), sm_clock=1.98e9, power=420.0)
            for i in range(pairs)
        ],
    )  # fmt: skip
    return Recorded(results, raw)


def _one_by_one(trace: Trace) -> list[Slice]:
    """Each kernel of the trace once, one behind the other."""
    found, at = [], 0.0
    for place, kernel in enumerate(trace.kernels):
        found.append(Slice(kernel=place, stream=7, start=at, seconds=kernel.seconds))
        at += kernel.seconds + 2e-6
    return found
