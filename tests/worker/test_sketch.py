"""Sketches: references that differ in one element do not seem alike."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.worker.checks.sketch import PROJECTIONS, _mix, sketch

torch = pytest.importorskip("torch")

inf = math.inf


def as_tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(0, 39))
def test_a_sketch_depends_on_values_and_order_not_on_the_container(values, cut):
    whole = sketch(values)
    for same in (as_tensor(values), np.array(values), (values[:cut], {"k": as_tensor(values[cut:])})):
        assert sketch(same) == pytest.approx(whole, rel=1e-9, abs=1e-6)
    assert whole[0] == pytest.approx(math.sqrt(sum(v * v for v in values)), rel=1e-9, abs=1e-12)


def test_a_sketch_sees_one_element_a_permutation_and_words():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x.clone()
    y[7777] += 1e-3
    swapped = x.flip(0)
    assert all(abs(a - b) > 1e-6 for a, b in zip(sketch(x), sketch(y), strict=True))
    assert sketch(swapped)[0] == pytest.approx(sketch(x)[0])
    assert sketch(swapped)[1:] != pytest.approx(sketch(x)[1:])
    assert sketch("one") != sketch("two") != sketch(None)
    assert all(map(math.isfinite, sketch(torch.tensor([inf, -inf, 1.0]))))
    assert sketch(torch.tensor([inf])) != sketch(torch.tensor([-inf]))


def test_projections_are_on_balanced_and_independent_signs():
    """Otherwise two references could differ and project alike."""
    bits = _mix(np.arange(2**17, dtype=np.int64))
    signs = np.array([1 - 2 * (bits >> (8 * k) & 1) for k in range(PROJECTIONS)])
    assert np.abs(signs.mean(axis=1)).max() < 5 / math.sqrt(2**17)
    assert np.abs(np.corrcoef(signs) - np.eye(PROJECTIONS)).max() < 5 / math.sqrt(2**17)
    assert np.array_equal(bits, _mix(torch.arange(2**17)).numpy())
    assert [_mix(i) for i in range(100)] == bits[:100].tolist()
