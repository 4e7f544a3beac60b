"""Nights of one device over two years, whose steps and drifts are known; and the same as documents of a history."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRIFT, DRIFTS = 0.05, 240
"""Log ratio that a drift comes to, and the nights that it takes."""
APART = 40
"""Nights between two steps of a case, at least."""
NOISY, SHOWN = 3.0, 0.5
"""How much larger the noise of a noisy week is; the share of the excess that its intervals show."""


@dataclass(frozen=True)
class World:
    """How nights come about."""

    nights: int = 730
    cases: int = 200
    scatter: tuple[float, float] = (0.002, 0.006)
    """Standard deviation of a night's log ratio, from case to case."""
    within: float = 0.5
    """Part of its variance that pairs of one night show, and so its interval; the rest comes from night to night."""
    lag: tuple[float, float] = (0.0, 0.0)
    """Autocorrelation of what comes from night to night, from case to case."""
    tails: float = 0.0
    """Share of answers whose noise is three times as large, unseen by their intervals."""
    noisy: float = 0.0
    """Share of weeks in which everything on the device scatters `NOISY` times as much."""
    gaps: float = 0.0
    """Share of nights that are missing, and of each case's answers; with it a fortnight without any."""
    step: float = 10 / 3
    """Size of a step in units of the scatter: 1 % at 0.3 %."""
    every: float = 0.0
    """Nights between the steps of a case, on average; 0 for none."""
    shared: float = 0.0
    """Share of the cases that step on a night on which any does, each its own way; 0: each has nights of its own."""
    drifts: float = 0.0
    """Share of cases that drift by `DRIFT`, once, and do nothing else."""
    swaps: float = 0.0
    """Standard deviation by which ratios move as the machine is swapped for its like, thrice."""


WHITE = World()
STEPS = World(every=180.0)
SHARED = replace(STEPS, shared=0.5)
ALL = World(lag=(0.0, 0.6), tails=0.02, noisy=0.05, gaps=0.04, every=180.0, drifts=0.05, swaps=0.0003)
WORLDS: dict[str, World] = {
    "independent noise, no change": WHITE,
    "independent noise, steps": STEPS,
    "half of the cases step together": SHARED,
    "autocorrelated, 0 to 0.6": replace(STEPS, lag=(0.0, 0.6)),
    "2 % of answers with thrice the noise": replace(STEPS, tails=0.02),
    "noisy weeks, one in twenty": replace(STEPS, noisy=0.05),
    "gaps": replace(STEPS, gaps=0.04),
    "machine swaps": replace(STEPS, swaps=0.0003),
    "all of these, and drifts": ALL,
}


@dataclass(frozen=True)
class Simulated:
    """One device: rows are cases, columns nights."""

    x: Array
    """Log ratios to the reference; NaN without an answer."""
    error: Array
    """Their standard errors, as intervals show them; NaN likewise."""
    steps: list[dict[int, float]]
    """Of each case: first night → log ratio that it steps by."""
    drifts: list[tuple[int, int] | None]
    """Of each case: first and last night of a drift."""
    scatter: Array


def simulate(world: World, rng: np.random.Generator) -> Simulated:
    """Return one device's nights."""
    size = (world.cases, world.nights)
    scatter = rng.uniform(*world.scatter, world.cases)
    lag = rng.uniform(*world.lag, world.cases)
    wide = np.repeat(np.where(rng.random(world.nights // 7 + 1) < world.noisy, NOISY, 1.0), 7)[: world.nights]
    between = rng.standard_normal(size)
    for night in range(1, world.nights):
        between[:, night] = lag * between[:, night - 1] + np.sqrt(1 - lag**2) * between[:, night]
    noise = math.sqrt(world.within) * rng.standard_normal(size) + math.sqrt(1 - world.within) * between
    noise *= wide * np.where(rng.random(size) < world.tails, 3.0, 1.0)
    error = math.sqrt(world.within) * (1 + SHOWN * (wide - 1)) * np.sqrt(rng.chisquare(15, size) / 15)
    level = np.zeros(size)
    steps: list[dict[int, float]] = []
    drifts: list[tuple[int, int] | None] = []
    together = list(_nights(world, rng)) if world.shared else []
    for case in range(world.cases):
        planted: dict[int, float] = {}
        drift = None
        if rng.random() < world.drifts:
            begin = int(rng.integers(60, world.nights - DRIFTS - 60))
            drift = begin, begin + DRIFTS
            level[case] = DRIFT * np.clip((np.arange(world.nights) - begin) / DRIFTS, 0, 1)
        elif world.every:
            own = (night for night in together if rng.random() < world.shared) if world.shared else _nights(world, rng)
            for night in own:
                planted[night] = float(world.step * scatter[case] * rng.choice((1, -1)))
                level[case, night:] += planted[night]
        steps.append(planted)
        drifts.append(drift)
    if world.swaps:
        for night in rng.integers(30, world.nights - 30, 3):
            level[:, int(night) :] += rng.normal(0, world.swaps, world.cases)[:, None]
    x = level + scatter[:, None] * noise
    if world.gaps:
        x[:, rng.random(world.nights) < world.gaps] = np.nan
        x[rng.random(size) < world.gaps] = np.nan
        gone = int(rng.integers(30, world.nights - 30))
        x[:, gone : gone + 14] = np.nan
    return Simulated(x, np.where(np.isnan(x), np.nan, scatter[:, None] * error), steps, drifts, scatter)


def _nights(world: World, rng: np.random.Generator) -> Iterator[int]:
    """Yield nights of steps."""
    at = APART + rng.exponential(world.every - APART)
    while at < world.nights - APART / 2:
        yield int(at)
        at += APART + rng.exponential(world.every - APART)


FIRST = datetime(2024, 1, 1, 3, 0, tzinfo=UTC)
LEVEL = 0.95
DEVIATE = 1.959964
KERNELS = ("softmax_bf16", "matmul", "sdpa", "layer_norm", "copy", "scan", "conv2d", "rope")


def sha(text: str) -> str:
    """Return something that looks like a commit."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def documents(
    world: World, seed: int, epochs: int = 2, url: str = "https://github.com/org/lib/actions/runs/1"
) -> Iterator[dict[str, Any]]:
    """Yield the nights of one device as documents of a history (`Night`), oldest first.

    The two years have so many epochs of one driver each. A case in fifty is new in the last third, and has no ratio
    before.
    """
    found = simulate(world, np.random.default_rng(seed))
    instant = "%Y-%m-%dT%H:%M:%SZ"
    reference = {
        "name": "v1.0",
        "commit": {"sha": sha("v1.0"), "date": FIRST.strftime(instant), "title": "Release 1.0"},
    }
    names = [f"{KERNELS[case % len(KERNELS)]}/rows={1 << (case // len(KERNELS))}" for case in range(world.cases)]
    before = None
    for night in range(world.nights):
        if np.isnan(found.x[:, night]).all():
            continue
        started = (FIRST + timedelta(days=night)).strftime(instant)
        epoch = night * epochs // world.nights
        commit = {"sha": sha(f"{seed} {night}"), "date": started, "title": f"Change number {night}"}
        points = []
        for case, name in enumerate(names):
            x, error = float(found.x[case, night]), float(found.error[case, night])
            ratio: dict[str, Any] | None = None
            if not math.isnan(x) and not (case % 50 == 49 and night < world.nights * 2 // 3):
                low, high = x - DEVIATE * error, x + DEVIATE * error
                ratio = {
                    "ratio": math.exp(x),
                    "low": math.exp(low),
                    "high": math.exp(high),
                    "level": LEVEL,
                    "pairs": 16,
                }
            points.append({
                "case": name, "device": "cuda", "metric": "time", "unit": "s", "timing": "rotating",
                "value": 1e-5 * (1 + case) * math.exp(0 if math.isnan(x) else x),
                "scatter": None if ratio is None else 4 * error,
                "reference": {
                    "class": "unchanged" if ratio else "missing",
                    "reason": "" if ratio else "the reference lacks the case", "ratio": ratio, "limit": 0.05,
                },
            })  # fmt: skip
        yield {
            "kind": "perfci-night", "version": 1, "run": f"{seed}-{night}", "url": f"{url}{night}", "started": started,
            "commit": commit, "last": before, "reference": reference, "devices": {"cuda": "NVIDIA H200"},
            "environment": {"driver": f"58{epoch}.82"}, "epoch": sha(f"epoch {epoch}")[:16], "points": points,
        }  # fmt: skip
        before = commit
