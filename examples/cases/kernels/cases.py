"""Cases as real suites have them, where something has to be known: docs/suite.md says what, under the same names."""

from typing import NamedTuple

import torch

import perfci

ROWS, COLUMNS = 256, 512


class Normed(NamedTuple):
    """Results of the forward pass."""

    y: torch.Tensor
    rstd: torch.Tensor


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> Normed:
    """Root mean square normalisation (Zhang and Sennrich, 2019)."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return Normed(x * rstd * weight, rstd)


def drawn(bench):
    x = bench.randn(ROWS, COLUMNS).requires_grad_()
    weight = bench.rand(COLUMNS, low=0.5, high=1.5).requires_grad_()
    return x, weight, bench.randn(ROWS, COLUMNS)


def exact_gradients(x, weight, upstream):
    """The gradients in float64, by torch's own derivation of the same formula."""
    x, weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    return torch.autograd.grad(rms_norm(x, weight).y, [x, weight], upstream.double())


@perfci.kernel(devices=["cuda", "cpu"])
def backward_alone(bench):
    """The forward pass is part of the set-up: its graph is kept, and only the backward pass is timed."""
    x, weight, upstream = drawn(bench)
    y = rms_norm(x, weight).y
    bench.reference(lambda: exact_gradients(x, weight, upstream), rtol=1e-4, atol={0: 1e-5, 1: 1e-3})
    return lambda: torch.autograd.grad(y, [x, weight], upstream, retain_graph=True)


@perfci.kernel(devices=["cuda", "cpu"])
def forward_and_backward(bench):
    x, weight, upstream = drawn(bench)
    bench.reference(lambda: exact_gradients(x, weight, upstream), rtol=1e-4, atol={0: 1e-5, 1: 1e-3})
    return lambda: torch.autograd.grad(rms_norm(x, weight).y, [x, weight], upstream)


@perfci.kernel(devices=["cuda", "cpu"])
def tolerances(bench):
    """The sum of squares cancels nothing: the factor is held more tightly than the product."""
    x, weight = bench.randn(ROWS, COLUMNS), bench.rand(COLUMNS)
    bench.reference(
        lambda: rms_norm(x.double(), weight.double()), rtol={"y": 1e-5, "rstd": 1e-6}, atol={"y": 1e-6, "*": 0}
    )
    return lambda: rms_norm(x, weight)


@perfci.kernel(devices=["cuda", "cpu"])
def in_place(bench):
    """Halving and adding stays bounded however often it runs; the reference reads the state as it is then."""
    state, x = bench.zeros(ROWS, COLUMNS), bench.randn(ROWS, COLUMNS)
    bench.reference(lambda: state.double() * 0.5 + x.double(), rtol=1e-6, atol=1e-6)
    return lambda: state.mul_(0.5).add_(x)


@perfci.kernel(devices=["cuda", "cpu"])
def with_item(bench):
    """The host reads a number before it goes on: on a GPU the launch is in the time, and so is the wait."""
    x = bench.randn(ROWS, COLUMNS)

    def scaled():
        return x / max(x.abs().max().item(), 1e-6)

    bench.reference(lambda: x.double() / x.double().abs().max().clamp(min=1e-6), rtol=1e-5, atol=1e-6)
    return scaled


@perfci.kernel(devices=["cuda", "cpu"])
def largest(bench):
    """Timed beside a whole sort; perfci.yaml says by how much it has to be faster."""
    x = bench.randn(ROWS, COLUMNS)
    bench.reference(lambda: x.double().sort(descending=True).values[:, :8])
    bench.versus("sort", lambda: x.sort(descending=True).values[:, :8])
    return lambda: x.topk(8).values
