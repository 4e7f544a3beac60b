"""One size a run, with a timer of its own."""

import argparse
import time

import torch
from norms import PROVIDERS


class Stopwatch:
    def time(self, call, repeat=20):
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        return (time.perf_counter() - start) / repeat


parser = argparse.ArgumentParser()
parser.add_argument("--m", type=int, default=64)
parser.add_argument("--n", type=int, required=True)
args = parser.parse_args()
for provider, norm in PROVIDERS.items():
    x, weight = torch.randn(args.m, args.n), torch.randn(args.n)
    print(provider, Stopwatch().time(lambda: norm(x, weight)))
