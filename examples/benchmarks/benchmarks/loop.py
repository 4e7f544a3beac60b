"""A loop around torch's timer."""

import torch
from norms import PROVIDERS
from torch.utils.benchmark import Timer

for n in (256, 1024):
    for provider in ("mine", "torch"):
        names = {"norm": PROVIDERS[provider], "x": torch.randn(64, n), "weight": torch.randn(n)}
        print(n, provider, Timer("norm(x, weight)", globals=names).blocked_autorange())
