"""A comparison on a GPU leaves out what gives it the same work, and measures everything else."""

import random

import pytest

from perfci.measure.proof.same_code import AUDITED
from tests.e2e.conftest import Repo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("gpu")]

SUITE = """
import perfci
import torch
import triton
import triton.language as tl

N = 1 << 22

@triton.jit
def _scaled(x, y, n, BY: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * BY, mask=at < n)

@perfci.kernel(devices=["cuda"], params={"block": [512, 1024]})
def scaled(bench, block):
    x, y = bench.randn(N), bench.empty(N)
    bench.reference(lambda: x * 2)
    block = block * GROWN if block == 512 else block
    return lambda: (_scaled[(triton.cdiv(N, block),)](x, y, N, BY=2, BLOCK=block), y)[1]

@perfci.kernel(devices=["cuda"])
def product(bench):
    a, b = bench.randn(2048, 2048, dtype=torch.bfloat16), bench.randn(2048, 2048, dtype=torch.bfloat16)
    return lambda: a @ b

@perfci.kernel(devices=["cuda"])
def synchronises(bench):
    x = bench.randn(N)
    def run():
        y = x * 2
        torch.cuda.synchronize()
        return y
    return run

@perfci.kernel(devices=["cuda"])
def watched(bench):
    x = bench.randn(N)
    return lambda: x * 3
"""
POLICY = """
version: 1
suite: [k.py]
budget: 90s
limits:
  - {cases: "*", metric: time, regression: 5%}
  - {cases: "scaled/*", metric: registers, regression: 0%}
  - {cases: product, metric: kernel_launches, max: 1000}
  - {cases: watched, metric: sync_count, regression: 0%}
"""


def seed(audited: bool) -> str:
    """Return a seed by which one of the cases that are proved by their work is measured all the same, or none."""
    return next(
        str(n) for n in range(100) if (random.Random(f"{n}/work/audit").random() < AUDITED) == audited
    )  # fmt: skip


@pytest.mark.parametrize("audited", [False, True])
def test_equal_work_is_not_timed(repo: Repo, audited: bool) -> None:
    pytest.importorskip("triton")  # comes with torch for GPUs alone
    repo.write("perfci.yaml", POLICY)
    repo.write("k.py", SUITE.replace("GROWN", "1"))
    repo.commit("base")
    repo.env["PERFCI_MEASURE_ALL"] = "0"
    repo.write("k.py", "# A line that matters to nobody.\n" + SUITE.replace("GROWN", "4"))
    run = repo.perfci(f"PERFCI_SEED={seed(audited)}", "compare", "--base", "HEAD", timeout=400)
    cases = {case["id"]: case for case in run.results["cases"]}
    for name, case in cases.items():
        print(name, case["proof"], len(case["pairs"]))
    print(run.results["costs"], run.out)
    by_work = {name for name, case in cases.items() if case["proof"]["by"] == "work"}
    assert by_work == {"scaled/block=1024", "product"}
    drawn = {name for name in by_work if cases[name]["proof"]["audited"]}
    assert len(drawn) == audited
    for name, case in cases.items():
        assert bool(case["pairs"]) == (name not in by_work - drawn), "what is not proved is timed"
    reasons = {name: case["proof"]["reason"] for name, case in cases.items()}
    assert "grid" in reasons["scaled/block=512"]
    assert "not timed as a CUDA graph" in reasons["synchronises"]
    assert "sync_count asks what the host does" in reasons["watched"]
    rows = {(row["case"], row["metric"]): row for row in run.report["rows"]}
    for metric in ("time", "registers"):
        row = rows["scaled/block=1024", metric]
        assert row["class"] == "unchanged" and row["proved"] == ("scaled/block=1024" not in drawn)
    assert run.results["plan"]["m"] == 5, "they share α as it was planned"
    assert "they give the GPU the same work" in run.out
