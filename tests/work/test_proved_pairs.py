"""Cases that are proved by their work, measured all the same on an NVIDIA H200: as alike as identical code is.

`proved_pairs.json`: run → case → the log ratios head/base of time of its worker pairs. Head differs from base by a line
that matters to nobody in each suite file; the cases are those of perfci's own suite and of one as users have them.
"""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from perfci.model.plan import Looks
from perfci.stats.decide import decide, margin

RUNS = json.loads((Path(__file__).parents[1] / "data" / "work" / "proved_pairs.json").read_text())
PAIRS = {f"{run}: {case}": np.array(ratios) for run, cases in RUNS.items() for case, ratios in cases.items()}


def chance(x: np.ndarray) -> float:
    """The share of exchanges of base and head in pairs by which the mean lies as far from zero as it does: uniform
    where the sides are alike (Fisher's randomisation test)."""
    if len(x) > 12:
        signs = np.random.default_rng(1).choice((-1.0, 1.0), size=(1 << 12, len(x)))
    else:
        signs = np.array(list(product((-1.0, 1.0), repeat=len(x))))
    return float(np.mean(np.abs(signs @ x) >= abs(x.sum()) - 1e-12))


def test_a_hundred_runs_of_proved_cases_differ_as_identical_code_does() -> None:
    found = np.array([chance(x) for x in PAIRS.values()])
    assert len(found) >= 90
    # By chance 5 % of them; 13 or more of 95 are found once in a thousand times.
    assert np.sum(found <= 0.05) <= 12
    slower = sum(x.mean() > 0 for x in PAIRS.values())
    assert abs(slower - len(found) / 2) < 3.3 * np.sqrt(len(found)) / 2, "neither side is favoured"
    assert abs(np.mean([x.mean() for x in PAIRS.values()])) < 0.001


@pytest.mark.parametrize("limit", [0.02, 0.01])
def test_none_of_them_would_have_failed(limit: float) -> None:
    for name, x in PAIRS.items():
        found = decide(x, margin(limit, "lower"), Looks(), 1, ended=True)
        assert found.status != "regression", name
