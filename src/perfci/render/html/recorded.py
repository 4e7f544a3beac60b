"""Records that a run leaves beside its report."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfci.model.base import Side
from perfci.model.results import Results

Samples = Mapping[str, Mapping[int, Mapping[Side, list[list[float]]]]]
"""Case key → pair → side → placements → samples in seconds."""


@dataclass(frozen=True)
class Recorded:
    """What is not in a run's report."""

    results: Results | None = None
    samples: Samples = field(default_factory=dict)
    missing: str = ""
    """Why there are no samples."""
