"""Measure what a dear import costs a comparison: `python -m benchmarks.imports [SECONDS] [--most RATIO]`.

A suite of four small CPU cases is compared with itself, eight pairs each, once as it is and once importing a package
that takes SECONDS (6) to import, as transformers does. Prints both wall times and their ratio; ends with 1 where that
is above RATIO.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.agreement import Quiet
from benchmarks.trials import git
from perfci.measure.options import Options
from perfci.measure.run import Measurement

SUITE = """
{extra}
import torch
import perfci


@perfci.kernel(params={{"n": [1000, 2000, 3000, 4000]}}, devices=["cpu"])
def smooth(bench, n):
    x = bench.randn(n, 32)
    bench.work(read=x.nbytes, written=x.nbytes)
    bench.reference(lambda: x.double().tanh().float(), rtol=1e-5)
    return lambda: torch.tanh(x)
"""
PACKAGE = """
import time
_start = time.process_time()
while time.process_time() - _start < {seconds}:
    sum(range(10_000))
"""
PAIRS = 8


def seconds(extra: str) -> tuple[float, dict[str, float]]:
    """Return the wall seconds of one comparison, and its account by phase."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        repository.joinpath("kernels").mkdir(parents=True)
        repository.joinpath("kernels/smooth.py").write_text(SUITE.format(extra=extra))
        repository.joinpath("perfci.yaml").write_text("version: 1\nsuite: [kernels/*.py]\ndevices: [cpu]\n")
        for args in (["init", "-q"], ["add", "."], ["commit", "-qm", "suite"]):
            git(repository, *args)
        options = Options("compare", repository, Path(folder, "out"), base="HEAD", exact_pairs=PAIRS, committed=True)
        start = time.monotonic()
        results = Measurement(options, Quiet()).measure()
        if any(len(case.pairs) != PAIRS for case in results.cases):
            raise SystemExit(f"not measured: {[case.sides for case in results.cases if not case.pairs]}")
        costs = results.costs
        return time.monotonic() - start, {str(phase): spent for phase, spent in costs.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=6.0)
    parser.add_argument("--most", type=float, default=None, metavar="RATIO")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder)
        packages.joinpath("dear").mkdir()
        packages.joinpath("dear/__init__.py").write_text(PACKAGE.format(seconds=asked.seconds))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        without, plain = seconds("")
        with_it, costs = seconds("import dear")
    ratio = with_it / without
    print(f"without the import {without:.1f} s, with it {with_it:.1f} s: {ratio:.2f} times, in {PAIRS} pairs")
    for phase in costs:
        print(f"  {phase:10} {plain.get(phase, 0.0):6.1f} {costs[phase]:6.1f}")
    if asked.most is not None and ratio > asked.most:
        raise SystemExit(f"{ratio:.2f} times is more than {asked.most:g}")


if __name__ == "__main__":
    main()
