"""Tests of pytest-benchmark's."""

import pytest
import torch
from norms import PROVIDERS


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("shape", [(64, 256), (64, 1024)])
def test_norm(benchmark, provider, shape):
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    result = benchmark(PROVIDERS[provider], x, weight)
    assert result.shape == x.shape
