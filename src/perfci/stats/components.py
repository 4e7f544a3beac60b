"""Where the noise of a worker pair comes from: the worker, the placement of buffers, or the block of samples.

A nested analysis of variance of the pairs' log ratios by the method of moments (Searle, Casella & McCulloch,
Variance Components, 1992, 3.6 and 5.2; Snedecor & Cochran, Statistical Methods, 8th ed., 13.8). With K pairs of
a placements of n blocks, block ratios x_kij = ln(head/base) of the blocks that stood next to each other:

    E Σ (x_kij - x_ki.)² / (K a (n - 1)) = B²
    E Σ (x_ki. - x_k..)² / (K (a - 1))   = P² + B²/n
    variance of a pair's x               = L² + P²/a + B²/(a n)

L, P and B are what differs from worker pair to worker pair, from placement to placement within one, from block to block
within that. What base and head share (drift, the same offsets of buffers) cancels in the ratio and is in none of them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from perfci.model.base import SIDES, Side
from perfci.model.results import Case, Moments, Scatter
from perfci.stats.equal_clock import log_ratios
from perfci.stats.series import paired

Blocks = Mapping[Side, Sequence[Sequence[tuple[float, float | None]]]]
"""Side → placement → block → (seconds, clock in hertz or None), in the order measured."""
MOST = 16
"""Placements of a worker, and blocks of a placement, at most."""


class Components(NamedTuple):
    """Standard deviations, in log units, of a pair's log ratio at equal clock."""

    worker: float
    placement: float
    """Of one placement."""
    block: float
    """Of one block."""
    placements: int
    """In a worker, as measured last."""
    blocks: int
    """In a placement and side."""

    def shares(self) -> dict[str, float]:
        """Return component → share of the variance of a pair."""
        return {
            "worker": self.worker**2,
            "placement": self.placement**2 / self.placements,
            "block": self.block**2 / (self.placements * self.blocks),
        }

    def noise(self, placements: int | None = None, blocks: int | None = None) -> float:
        """Return the standard deviation of a pair's log ratio with so many placements and blocks; None: as measured."""
        a, n = placements or self.placements, blocks or self.blocks
        return math.sqrt(self.worker**2 + self.placement**2 / a + self.block**2 / (a * n))


class Costs(NamedTuple):
    """Seconds, base and head together."""

    placement: float
    block: float


def scatter_of(blocks: Blocks) -> Scatter | None:
    """Return the sums of squares of one pair from its block values.

    None where a side is absent, numbers of blocks differ or are 0, or a value is not finite and positive. The clock's
    sums are 0 where a block lacks it.
    """
    sides = [blocks.get(name, []) for name in SIDES]
    counts = {len(placement) for side in sides for placement in side}
    if len({len(side) for side in sides}) != 1 or len(counts) != 1 or 0 in counts:
        return None
    # Shape (sides, placements, blocks, 2).
    table = np.array([[[(t, math.nan if f is None else f) for t, f in p] for p in side] for side in sides])
    if np.isnan(table[..., 1]).any():
        table[..., 1] = 1.0
    if not (np.isfinite(table).all() and (table > 0).all()):
        return None
    logs = np.log(table)
    ratios = logs[1] - logs[0]
    means = ratios.mean(axis=1)
    return Scatter(
        placements=ratios.shape[0],
        blocks=ratios.shape[1],
        placement=_moments(means - means.mean(axis=0)),
        block=_moments((ratios - means[:, None]).reshape(-1, 2)),
    )


def _moments(deviations: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Moments:
    time, clock = deviations[:, 0], deviations[:, 1]
    return Moments(time=float(time @ time), cross=float(time @ clock), clock=float(clock @ clock))


def components(case: Case, first: int, least: int = 2) -> Components | None:
    """Return the components of a case's pairs, at equal clock.

    `first`: pairs of the first look. None where fewer than `least` pairs tell, none has two placements or two blocks of
    one, or a value is not finite. A component that the others account for is 0, as is that of workers in a single pair.
    """
    ratios = log_ratios(case, "time", first)
    found = [
        (x, pair.scatter)
        for x, (pair, _, _) in zip(ratios.x, paired(case, "time"), strict=True)
        if pair.scatter is not None
    ]
    if len(found) < least:
        return None
    b = ratios.slope or 0.0
    scatters = [scatter for _, scatter in found]
    of_blocks = sum(s.placements * (s.blocks - 1) for s in scatters)
    of_placements = sum(s.placements - 1 for s in scatters)
    if not of_blocks or not of_placements:
        return None
    block = sum(s.block.at(b) for s in scatters) / of_blocks
    thinned = sum((s.placements - 1) / s.blocks for s in scatters) / of_placements
    placement = max(0.0, sum(s.placement.at(b) for s in scatters) / of_placements - block * thinned)
    within = sum((placement + block / s.blocks) / s.placements for s in scatters) / len(scatters)
    worker = max(0.0, float(np.var([x for x, _ in found], ddof=1)) - within) if found[1:] else 0.0
    if not all(math.isfinite(v) for v in (block, placement, worker)):
        return None
    last = scatters[-1]
    return Components(math.sqrt(worker), math.sqrt(placement), math.sqrt(block), last.placements, last.blocks)


_HELP = {
    "worker": ("workers", "only more pairs help"),
    "placement": ("placements", "more placements in a worker help"),
    "block": ("blocks", "more blocks or longer ones help"),
}


def sentence(found: Components) -> str:
    """Say which component dominates."""
    shares = found.shares()
    total = math.fsum(shares.values())
    if not total > 0:
        return "pairs do not differ at all"
    worst = max(shares, key=lambda name: shares[name])
    name, helps = _HELP[worst]
    return f"{shares[worst] / total * 100:.0f} % of the variance from {name}: {helps}"


def allot(found: Components, costs: Costs, target: float, seconds: float, most: float) -> tuple[int, int]:
    """Return placements in a worker and blocks in a placement (even) for the next pairs.

    The cheapest that scatter within workers by `target` at most, a standard deviation in log units, for up to `most`
    seconds a pair; out of reach, those that scatter least for `seconds`; where these allow nothing, one placement of
    two blocks. Without bounds the least lies at n = √(cost_placement/cost_block) · B/P (Cochran, Sampling Techniques,
    3rd ed., 10.6). Raises ValueError for costs not positive and finite.
    """
    if not all(math.isfinite(cost) and cost > 0 for cost in costs):
        raise ValueError("costs are positive numbers of seconds")

    def cost(choice: tuple[int, int]) -> float:
        a, n = choice
        return a * (costs.placement + n * costs.block)

    def scatter(choice: tuple[int, int]) -> float:
        a, n = choice
        return math.sqrt(found.placement**2 / a + found.block**2 / (a * n))

    choices = [(a, n) for a in range(1, MOST + 1) for n in range(2, MOST + 1, 2)]
    within = [choice for choice in choices if cost(choice) <= most and scatter(choice) <= target]
    if within:
        return min(within, key=lambda choice: (cost(choice), scatter(choice)))
    affordable = (choice for choice in choices if cost(choice) <= seconds)
    return min(affordable, key=lambda choice: (scatter(choice), cost(choice)), default=(1, 2))
