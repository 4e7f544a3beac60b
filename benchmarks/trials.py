"""Counts how often the gate says what is true: repeats whole runs on this machine.

    python benchmarks/trials.py init 30      # the repository that `perfci init` writes, unchanged
    python benchmarks/trials.py slower 30    # a commit that makes a kernel of 1 ms or more 15 % slower
    python benchmarks/trials.py python 20    # a case of pure Python, unchanged
    python benchmarks/trials.py torch 20     # a case of torch, unchanged
    python benchmarks/trials.py extension 20 # examples/extension, built for base and for head, unchanged
    python benchmarks/trials.py gpu 30       # six cases on a GPU, from 4 µs to 0.2 ms, unchanged, r = 1 %
    python benchmarks/trials.py host 30      # host times of these cases, unchanged, r = 25 %
    python benchmarks/trials.py gpu 30 10    # only the runs from the eleventh on: each run has a seed of its own
    python benchmarks/trials.py torch 20 --inert  # head differs, by what does nothing as it is executed

Tells in how many runs all pairs of a case stand on one side, beside how many chance would put there: a difference that
lasts as long as base's and head's processes do would show there first. And how many times the machine spent, by the
second clock, what a worker says, at most.
Keep the machine otherwise idle. Ends with 1 where a run said something else than expected, or where more than one in
twenty is undecided.
"""

import argparse
import collections
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MOST_UNDECIDED = 0.05
"""Share of the runs on unchanged code that may end without an answer."""
ROOT = Path(__file__).resolve().parent.parent

TORCH = """
import perfci
import torch

EXTRA = 0


def chain(x):
    y = x
    for _ in range(20):
        y = torch.sin(y)
    for _ in range(EXTRA):
        torch.sin(x)
    return y


@perfci.kernel(devices=["cpu"])
def sines(bench):
    x = bench.randn({n})

    def reference():
        y = x.double()
        for _ in range(20):
            y = torch.sin(y)
        return y

    bench.reference(reference, rtol=1e-5, atol=1e-6)
    return lambda: chain(x)
"""
INERT = '''"""Inert."""
import colorsys
import wave

TABLE = {number: str(number) for number in range(2000)}
'''
"""Put before each suite file of head: a docstring, imports that nobody uses, a table."""
GPU_FILES = ("layernorm", "matmul", "sdpa", "trajectory_resample")
GPU_CASES = (
    "layernorm/*",
    "matmul/n=1024/dtype=bf16",
    "matmul/n=4096/dtype=bf16",
    "sdpa/seq=512",
    "trajectory_resample/batch=32/dtype=fp32",
)
GPU_POLICY = """
version: 1
suite: [kernels/*.py]
limits: [{{cases: "*", metric: {}}}]
"""
ON_GPU = {
    "gpu": GPU_POLICY.format("time, regression: 1%"),
    "host": GPU_POLICY.format("host_time, regression: 25%, min_change: 5us"),
}
"""Kind → policy."""
PYTHON = """
import perfci


def parse(words):
    table = {}
    for index, word in enumerate(words):
        table.setdefault(word[:3], []).append(index)
    return {key: sum(value) for key, value in table.items()}


@perfci.kernel(devices=["cpu"])
def parsing(bench):
    words = ["".join(bench.random.choices("abcdef", k=6)) for _ in range(6000)]
    bench.reference(lambda: {k: sum(i for i, w in enumerate(words) if w[:3] == k) for k in {w[:3] for w in words}})
    return lambda: parse(words)
"""


def git(repo: Path, *args: str) -> None:
    """Run git in `repo`."""
    command = ["git", "-c", "user.name=trials", "-c", "user.email=trials@example.com", *args]
    subprocess.run(command, cwd=repo, check=True, capture_output=True)


def perfci(repo: Path, *args: str) -> int:
    """Run perfci in `repo`; returns its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "perfci", *args], cwd=repo, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        sys.stderr.write(done.stderr)
    return done.returncode


def make(kind: str, repo: Path) -> str:
    """Fill `repo` for one kind of trial; returns the base to compare with."""
    if kind == "extension":
        shutil.copytree(ROOT / "examples" / "extension", repo, dirs_exist_ok=True)
    elif kind in ON_GPU:
        (repo / "kernels").mkdir()
        for name in GPU_FILES:
            shutil.copy(ROOT / "kernels" / f"{name}.py", repo / "kernels")
        (repo / "perfci.yaml").write_text(ON_GPU[kind])
    else:
        perfci(repo, "init")
    if kind in ("python", "torch"):
        (repo / "kernels" / "example.py").unlink()
    if kind in ("slower", "torch"):
        (repo / "kernels" / "sines.py").write_text(TORCH.replace("{n}", "100_000"))
    if kind == "python":
        (repo / "kernels" / "parsing.py").write_text(PYTHON)
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "base")
    if kind != "slower":
        return "HEAD"
    path = repo / "kernels" / "sines.py"
    path.write_text(path.read_text().replace("EXTRA = 0", "EXTRA = 3"))
    git(repo, "commit", "-q", "-a", "-m", "15 % slower")
    return "HEAD~1"


def differ(repo: Path) -> None:
    """Commit a head that does what base does."""
    for path in (repo / "kernels").glob("*.py"):
        path.write_text(INERT + path.read_text())
    git(repo, "commit", "-q", "-a", "-m", "inert")


def one_sided(case: dict[str, Any], metric: str) -> tuple[bool, float]:
    """Return whether all pairs of a case stand on one side, and how probable that is where neither is slower."""
    logs = [math.log(pair["values"]["head"][metric] / pair["values"]["base"][metric]) for pair in case["pairs"]]
    return min(logs) > 0 or max(logs) < 0, 2.0 ** (1 - len(logs))


def main(kind: str, end: int, first: int = 0, *, inert: bool = False) -> int:
    """Repeat and count."""
    runs = end - first
    codes: collections.Counter[int] = collections.Counter()
    classes: collections.Counter[str] = collections.Counter()
    verdicts: collections.Counter[str] = collections.Counter()
    right = 0
    changes, sided, chance = [], 0, 0.0
    spent: list[float] = []
    start = time.monotonic()
    cpu = ("--device", "cpu") if kind in ("slower", "python", "torch") else ()
    asked = ("--device", "cuda", *(word for case in GPU_CASES for word in ("-k", case))) if kind in ON_GPU else cpu
    metric = "host_time" if kind == "host" else "time"
    with tempfile.TemporaryDirectory() as folder:
        repo = Path(folder)
        base = make(kind, repo)
        if inert:
            differ(repo)
            base = "HEAD~1"
        for number in range(first, end):
            os.environ["PERFCI_SEED"] = str(number)
            code = perfci(repo, "compare", "--base", base, "--measure-all", *asked)
            codes[code] += 1
            report = json.loads((repo / "perfci-out" / "report.json").read_text())
            verdicts[report["verdict"]] += 1
            rows = {row["case"]: row for row in report["rows"] if row["kind"] == "regression"}
            classes.update(f"{case}: {row['class']}" for case, row in rows.items())
            changes += [(case, row["change"], row["pairs"]) for case, row in rows.items()]
            for case in json.loads((repo / "perfci-out" / "results.json").read_text())["cases"]:
                spent += [times for pair in case["pairs"] for times in pair["spent"].values()]
                if case["pairs"]:
                    alike, probability = one_sided(case, metric)
                    sided, chance = sided + alike, chance + probability
            proven = [case for case, row in rows.items() if row["class"] == "regression"]
            if kind == "slower":
                right += code == 1 and proven == ["sines"] and rows["sines"]["interval"]["low"] > 1
            else:
                right += code == 0 and bool(rows)
            sys.stdout.write(
                f"{number + 1}: exit {code}, {report['sentence']}; on one side {sided} so far, by chance {chance:.2f}\n"
            )
            sys.stdout.flush()
    summary = {
        "kind": kind,
        "runs": runs,
        "right": right,
        "exit codes": dict(codes),
        "verdicts": dict(verdicts),
        "classes": dict(classes),
        "inert difference": inert,
        "cases with all pairs on one side": sided,
        "of these by chance": round(chance, 2),
        "readings of the second clock": len(spent),
        "the largest of them": round(max(spent, default=1.0), 2),
        "seconds a run": round((time.monotonic() - start) / runs, 1),
        "cores": os.cpu_count(),
    }
    for case in sorted({case for case, _, _ in changes}):
        own = sorted(change for name, change, _ in changes if name == case and change is not None)
        pairs = [n for name, _, n in changes if name == case]
        ratio = f"ratio {own[0]:.4f} … {own[len(own) // 2]:.4f} … {own[-1]:.4f}" if own else "never measured"
        summary[case] = f"{ratio}, at most {max(pairs)} pairs"
    sys.stdout.write(json.dumps(summary, indent=1) + "\n")
    return 0 if right == runs and verdicts["undecided"] <= MOST_UNDECIDED * runs else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["init", "slower", "python", "torch", "extension", *ON_GPU])
    parser.add_argument("runs", type=int)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("--inert", action="store_true")
    asked = parser.parse_args()
    sys.exit(main(asked.kind, asked.runs, asked.first, inert=asked.inert))
