"""Memory that is poisoned: where, how much and for how long."""

import sys

import numpy as np
import pytest

from perfci.worker.checks.poison import leaf_sizes, poisoned_memory

torch = pytest.importorskip("torch")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is poisoned on Linux")
def test_memory_is_poisoned_for_the_check_alone():
    """The same process goes on to time other cases: filling every allocation would change their times."""
    with poisoned_memory([], "cpu"):
        assert bool(torch.isnan(torch.empty(2**25)).all())
    assert not bool(torch.isnan(torch.empty(2**25)).any())


def test_sizes_of_results():
    x = torch.zeros(10, 10)
    assert leaf_sizes([x, {"a": np.zeros(3)}, x[0], b"abcd", None, 1.0, torch.zeros(0)]) == [4, 24, 400]
