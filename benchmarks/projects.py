"""Measure what an answer costs on projects as they are: `python -m benchmarks.projects NAME…`, the whole command, cold.

    autotuned   five cases of a Triton kernel with 25 configurations and cache_results=True: it does more work now
    docstring   the same five cases: a docstring is another
    imports     eighteen cases whose functions import transformers: everything measured (it must be installed)
    files       twenty suite files with five cases each, on the CPU: one of the files is another
    calm        nine cases on the CPU, everything measured
    hopeless    these and one that no number of pairs decides: its seconds by those of `calm`, too, if that ran before

Each is a repository of two commits, compared with empty caches. Prints the wall seconds of the command, its account by
phase, how many cases were proved, decided and left, and its sentence; ends with 1 where a case has no answer, but one
that is hopeless and is left before the last look, and where that makes `hopeless` take over 1.3 times `calm`.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.trials import git

TUNED = '''
import torch
import triton
import triton.language as tl

WARPS, STAGES, ROWS = (1, 2, 4, 8, 16), (2, 3, 4, 5, 6), 8
CONFIGS = [triton.Config({"BLOCK": 1024}, num_warps=warps, num_stages=stages) for warps in WARPS for stages in STAGES]


@triton.autotune(CONFIGS, key=["n"], cache_results=True)
@triton.jit
def scan_kernel(x, out, n, half, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    carried = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * n + at, mask=at < n, other=0.0)
        for _ in range(TIMES):
            values = values * half + values * half
        summed = tl.cumsum(values, axis=0) + carried
        tl.store(out + row * n + at, summed, mask=at < n)
        carried += tl.sum(values, axis=0)


def scan(x):
    """Return the running sums of rows."""
    out = torch.empty_like(x)
    scan_kernel[(x.shape[0],)](x, out, x.shape[1], 0.5, TIMES=1)
    return out
'''
TUNED_SUITE = """
import perfci
from scans import scan


@perfci.kernel(params={"n": [1024, 2048, 4096, 8192, 16384]}, devices=["cuda"])
def scans(bench, n):
    x = bench.randn(2048, n)
    bench.work(read=x.nbytes, written=x.nbytes)
    bench.reference(lambda: x.double().cumsum(1).float(), rtol=1e-3, atol=1e-2)
    return lambda: scan(x)
"""
IMPORTS = """
import torch

import perfci


@perfci.kernel(params={"n": [256, 512, 1024, 2048, 4096, 8192], "width": [64, 128, 256]}, devices=["cuda"])
def silu(bench, n, width):
    from transformers.activations import ACT2FN
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x = bench.randn(n, width)
    norm = LlamaRMSNorm(width).to(x.device)
    bench.reference(lambda: torch.nn.functional.silu(x.double() / (x.double().square().mean(-1, True) + 1e-6).sqrt()),
                    rtol=1e-4, atol=1e-5)
    return torch.no_grad()(lambda: ACT2FN["silu"](norm(x)))
"""
FILE = """
import perfci


def total(values):
    return sum(value * {factor} for value in values)


@perfci.kernel(params={{"n": [2000, 3000, 4000, 5000, 6000]}}, devices=["cpu"])
def total_{number}(bench, n):
    values = [bench.random.random() for _ in range(n)]
    return lambda: total(values)
"""


NOISY = """
import random

import perfci

FACTOR = 2.0
TIMES = random.SystemRandom().randrange(93, 108)  # another in each process: a pair scatters by some 6 %


@perfci.kernel(devices=["cpu"], limits=[{"metric": "time", "regression": "1%"}])
def noisy(bench):
    values = [bench.random.random() for _ in range(100)]
    return lambda: [sum(value * FACTOR for value in values) for _ in range(TIMES)][0]
"""


class Project(NamedTuple):
    """Two commits, and how they are compared."""

    base: dict[str, str]
    """Path → contents."""
    head: dict[str, str]
    """Those that differ."""
    device: str
    budget: str
    options: tuple[str, ...] = ()
    hopeless: int = 0
    """Cases that no number of pairs decides."""


DEAREST = 1.3
"""Times the run without a hopeless case that one with it may take. After how few pairs it is known is no matter of
choice: the centre of 16 is known to a quarter of their scatter, and 64 pairs show a change of a third of it."""
TUNED_FILES = {"scans.py": TUNED, "kernels/scans.py": TUNED_SUITE}
CALM = {"kernels/calm.py": FILE.format(number=0, factor=2.0).replace("6000]", "6000, 7000, 8000, 9000, 10000]")}
FILES = {f"kernels/file_{number}.py": FILE.format(number=number, factor=2.0) for number in range(20)}
PROJECTS = {
    "autotuned": Project(TUNED_FILES, {"scans.py": TUNED.replace("TIMES=1)", "TIMES=64)")}, "cuda", "120s"),
    "docstring": Project(TUNED_FILES, {"scans.py": TUNED.replace("running sums", "sums so far")}, "cuda", "120s"),
    "imports": Project({"kernels/silu.py": IMPORTS}, {}, "cuda", "120s", ("--measure-all",)),
    "files": Project(FILES, {"kernels/file_7.py": FILE.format(number=7, factor=2.5)}, "cpu", "300s"),
    "calm": Project(CALM, {}, "cpu", "300s", ("--measure-all",)),
    "hopeless": Project(CALM | {"kernels/noisy.py": NOISY}, {}, "cpu", "300s", ("--measure-all",), hopeless=1),
}


def commit(repository: Path, files: dict[str, str]) -> None:
    """Write files and commit what there is."""
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "--allow-empty", "-m", "files")


def compared(project: Project, folder: Path) -> tuple[bool, float]:
    """Compare a project's commits, and print what came of it. Returns whether each case has an answer, or is one that
    has none and was left before the last look, and the seconds."""
    repository, home = folder / "repository", folder / "home"
    repository.mkdir()
    home.mkdir()
    git(repository, "init", "-q")
    limits = "limits: [{cases: '*', metric: time, regression: 10%}]"
    policy = f"version: 1\nsuite: [kernels/*.py]\npath: [.]\nbudget: {project.budget}\n{limits}\n"
    commit(repository, {"perfci.yaml": policy, **project.base})
    commit(repository, project.head)
    words = ["compare", "--base", "HEAD~1", "--device", project.device, *project.options]
    start = time.monotonic()
    command = [sys.executable, "-m", "perfci", *words]
    ended = subprocess.run(command, cwd=repository, env={**os.environ, "HOME": str(home)}, check=False)
    seconds = time.monotonic() - start
    results = json.loads((repository / "perfci-out/results.json").read_text())
    report = json.loads((repository / "perfci-out/report.json").read_text())
    ends = collections.Counter(
        "proved" if (case["proof"] or {}).get("by") else case["stopped"] for case in results["cases"]
    )
    print(f"{seconds:.1f} s, exit {ended.returncode}: {report['sentence']}")
    print("  " + ", ".join(f"{phase} {spent:.1f}" for phase, spent in results["costs"].items() if spent >= 0.05))
    print("  " + ", ".join(f"{count} {end}" for end, count in ends.items()))
    pairs = [len(case["pairs"]) for case in results["cases"] if case["stopped"] == "hopeless"]
    rest = set(ends) - {"proved", "decided", "hopeless"}
    if pairs:
        print(f"  hopeless after {pairs[0]} pairs")
    return not rest and len(pairs) == project.hopeless, seconds


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=PROJECTS, metavar="NAME")
    answered, taken = True, dict[str, float]()
    for name in parser.parse_args().names:
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            well, taken[name] = compared(PROJECTS[name], Path(folder))
        answered &= well
        if name == "hopeless" and "calm" in taken:
            times = taken[name] / taken["calm"]
            answered &= times <= DEAREST
            print(f"  {times:.2f} times the seconds of calm")
    raise SystemExit(0 if answered else 1)


if __name__ == "__main__":
    main()
