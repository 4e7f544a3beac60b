"""What of proposals is right: each against what was planted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.history.simulate import Simulated

NEAR = 10
"""Nights within which a proposal that does not name the night of a step is still about it."""
FLAT = 60
"""Nights after a drift within which its end may be told."""
MONTH = 30.4


@dataclass
class Told:
    """A proposal: the change lies after night `before` and not after night `after`; it was known on night `known`."""

    before: int
    after: int
    known: int
    size: float
    drift: bool = False


@dataclass
class Score:
    """Counts over whole stores."""

    delays: list[int] = field(default_factory=list)
    """Of every step: answers from its first night to that on which it was proposed; 0 where it never was."""
    false: int = 0
    """Proposals where nothing was planted."""
    misplaced: int = 0
    """Proposals about a planted step whose nights do not have it."""
    drifting: int = 0
    """Drifts."""
    drifts_told: int = 0
    """Those of which something was proposed; and as a drift."""
    drifts_named: int = 0
    months: float = 0.0
    """Months of one device."""

    def within(self, answers: int) -> float:
        """Return the share of steps that were proposed within so many answers."""
        return float(np.mean([0 < delay <= answers for delay in self.delays])) if self.delays else float("nan")

    def a_month(self, devices: int, cases: int = 200) -> float:
        """Return false proposals a month in a store of so many devices, all of `cases` cases."""
        return self.false / self.months * devices * 200 / cases

    def add(self, simulated: Simulated, proposals: Sequence[Sequence[Told]]) -> None:
        """Count one device's proposals, a sequence of each case."""
        self.months += simulated.x.shape[1] / MONTH
        for row, own in enumerate(proposals):
            self._add(np.isfinite(simulated.x[row]), simulated.steps[row], simulated.drifts[row], own)

    def _add(
        self, answered: np.ndarray, steps: dict[int, float], drift: tuple[int, int] | None, own: Sequence[Told]
    ) -> None:
        used: set[int] = set()
        for night, size in steps.items():
            hits = (
                index for index, one in enumerate(own)
                if index not in used and one.known >= night and one.before < night <= one.after and one.size * size > 0
            )  # fmt: skip
            hit = next(hits, None)
            used |= {hit} - {None}  # type: ignore[arg-type]
            self.delays.append(0 if hit is None else int(answered[night : own[hit].known + 1].sum()))
        for index, one in enumerate(own):
            if index in used or (drift and drift[0] <= one.known <= drift[1] + FLAT):
                continue
            near = any(one.before - NEAR < night <= one.after + NEAR for night in steps)
            self.misplaced += near
            self.false += not near
        if drift:
            about = [one for one in own if drift[0] <= one.known <= drift[1] + FLAT and one.size > 0]
            self.drifting += 1
            self.drifts_told += bool(about)
            self.drifts_named += any(one.drift for one in about)
