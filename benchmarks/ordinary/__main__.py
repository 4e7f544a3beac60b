"""Measure what an answer on ordinary cases costs: `python -m benchmarks.ordinary [SUITE]`, on a machine with a GPU.

SUITE is a folder with `perfci.yaml` and what that names; by default the one beside this file, of thirteen cases as
projects have them. It is compared with itself, everything measured. Prints the wall seconds from the command to the
verdict, their account, and per case how many pairs it took, what it ended with, and its timing mode; and what a case
costs a pair beyond its samples.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.agreement import Quiet
from benchmarks.trials import git
from perfci.measure.request import Request
from perfci.measure.run import Measurement
from perfci.model.results import Results

HERE = Path(__file__).parent


def measured(suite: Path, folder: Path) -> tuple[Results, float]:
    """Compare a suite with itself. Returns the results, and the seconds that passed but for profilers."""
    repository = folder / "repository"
    shutil.copytree(suite, repository, ignore=shutil.ignore_patterns("__pycache__", "__*__.py"))
    for args in (["init", "-q"], ["add", "."], ["commit", "-qm", "suite"]):
        git(repository, *args)
    start = time.monotonic()
    request = Request.of("compare", repository, folder / "out", base="HEAD", committed=True, measure_all=True)
    results = Measurement(request, Quiet()).measure()
    return results, time.monotonic() - start - results.costs.get("profile", 0.0)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, nargs="?", default=HERE)
    with tempfile.TemporaryDirectory() as folder:
        results, seconds = measured(parser.parse_args().suite, Path(folder))
    pairs = sum(len(case.pairs) for case in results.cases)
    beyond = sum(sum(pair.seconds.values()) - pair.seconds["block"] for case in results.cases for pair in case.pairs)
    print(f"{seconds:.1f} s to the verdict of {len(results.cases)} cases, {pairs} pairs of a case")
    print("  " + ", ".join(f"{phase} {spent:.1f}" for phase, spent in results.costs.items() if spent >= 0.05))
    print(f"  {beyond / max(pairs, 1):.3f} s a case and pair beyond samples")
    for case in results.cases:
        side = case.sides["head"]
        mode = side.timing.mode if side.timing is not None else "-"
        why = side.reason.text[:80] if side.reason is not None else side.tuner or ""
        print(f"  {case.id:32} {case.stopped:10} {len(case.pairs):3} pairs  {mode:9} {why}")


if __name__ == "__main__":
    main()
