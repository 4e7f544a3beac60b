"""The code under test."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return `x` over its root mean square along the last dimension, times `weight`."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return x * scale


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return what torch computes."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


PROVIDERS = {"mine": rms_norm, "torch": reference}
