"""Measure what a dear import costs a comparison: `python -m benchmarks.imports [SECONDS] [--most RATIO]`.

A suite of four small CPU cases is compared with itself, eight pairs each, as it is and with an import of a package that
takes SECONDS (6) to import, as transformers does: at the top of the file, inside of the case's function, and behind the
first call of what torch.compile made. Prints wall times, ratios, and by how many imports a run is longer; ends with 1
where a ratio is above RATIO.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.agreement import Quiet
from benchmarks.trials import git
from perfci.measure.request import Request
from perfci.measure.run import Measurement

SUITE = """
{top}
import torch
import perfci


@perfci.kernel(params={{"n": [1000, 2000, 3000, 4000]}}, devices=["cpu"])
def smooth(bench, n):
    x = bench.randn(n, 32)
    bench.work(read=x.nbytes, written=x.nbytes)
    bench.reference(lambda: x.double().tanh().float(), rtol=1e-5)
    {function}
    return call
"""
CALL = "def call():\n        {inside}\n        return torch.tanh(x)"
COMPILED = """def backend(graph, inputs):
        DEAR
        return graph.forward
    call = torch.compile(lambda: torch.tanh(x), backend=backend)"""
PLACES = {
    "at the top": SUITE.format(top="DEAR", function=CALL.format(inside="pass")),
    "inside": SUITE.format(top="", function=CALL.format(inside="DEAR")),
    "behind torch.compile": SUITE.format(top="", function=COMPILED),
}
"""Place of the import → suite, in which it is called DEAR."""
PACKAGE = """
import time
_start = time.process_time()
while time.process_time() - _start < {seconds}:
    sum(range(10_000))
"""
PAIRS = 8


def seconds(suite: str) -> tuple[float, dict[str, float]]:
    """Return the wall seconds of one comparison, and its account by phase."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        repository.joinpath("kernels").mkdir(parents=True)
        repository.joinpath("kernels/smooth.py").write_text(suite)
        repository.joinpath("perfci.yaml").write_text("version: 1\nsuite: [kernels/*.py]\ndevices: [cpu]\n")
        for args in (["init", "-q"], ["add", "."], ["commit", "-qm", "suite"]):
            git(repository, *args)
        request = Request.of("compare", repository, Path(folder, "out"), base="HEAD", exact_pairs=PAIRS, committed=True)
        start = time.monotonic()
        results = Measurement(request, Quiet()).measure()
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
    dear = []
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder)
        packages.joinpath("dear").mkdir()
        packages.joinpath("dear/__init__.py").write_text(PACKAGE.format(seconds=asked.seconds))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        for place, suite in PLACES.items():
            without, plain = seconds(suite.replace("DEAR", "pass"))
            with_it, costs = seconds(suite.replace("DEAR", "import dear"))
            ratio = with_it / without
            print(f"{place}: without {without:.1f} s, with it {with_it:.1f} s: {ratio:.2f} times, in {PAIRS} pairs")
            print(f"  {(with_it - without) / asked.seconds:.1f} imports longer")
            for phase in costs:
                print(f"  {phase:10} {plain.get(phase, 0.0):6.1f} {costs[phase]:6.1f}")
            if asked.most is not None and ratio > asked.most:
                dear.append(f"{place}: {ratio:.2f} times is more than {asked.most:g}")
    if dear:
        raise SystemExit("\n".join(dear))


if __name__ == "__main__":
    main()
