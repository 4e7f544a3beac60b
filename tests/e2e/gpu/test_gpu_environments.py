"""Two environments on a GPU: the same code under variables that change what libraries choose, or nothing."""

import pytest

from tests.e2e.conftest import Repo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("gpu")]

KERNEL = """
    import perfci
    import torch
    import triton
    import triton.language as tl

    @perfci.kernel(devices=["cuda"])
    def product(bench):
        a, b = bench.randn(4096, 4096), bench.randn(4096, 4096)
        bench.reference(lambda: a.double() @ b.double(), rtol=1e-2, atol=1)
        return lambda: a @ b

    @triton.jit
    def _scaled(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    @perfci.kernel(devices=["cuda"])
    def scaled(bench):
        x, y = bench.randn(1 << 24), bench.empty(1 << 24)
        bench.reference(lambda: x * 2)
        return lambda: (_scaled[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024), y)[1]
"""
POLICY = """
    version: 1
    suite: [k.py]
    budget: 120s
    limits: [{cases: "*", metric: time, regression: 5%}]
"""


def test_what_a_variable_changes_is_found_and_what_it_leaves_is_unchanged(repo: Repo) -> None:
    """cuBLAS leaves TF32 for single precision; Triton compiles anew, without lines, what runs as before."""
    pytest.importorskip("triton")  # comes with torch for GPUs alone
    repo.write("perfci.yaml", POLICY)
    repo.write("k.py", KERNEL)
    repo.commit()
    asked = ("--env", "base:TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1", "--env", "TRITON_DISABLE_LINE_INFO=1")
    run = repo.perfci("compare", *asked, timeout=400)
    assert run.code == 1, run.out + run.err
    for case in run.results["cases"]:
        for pair in case["pairs"]:
            print(case["id"], {name: pair[name] for name in ("values", "clock", "scatter", "gaps", "seconds")})
    rows = {row["case"]: row for row in run.report["rows"] if row["metric"] == "time"}
    for row in rows.values():
        print(row["case"], row["class"], row["change"], row["interval"], row["cause"])
    assert run.classes() == {"product": "regression", "scaled": "unchanged"}
    assert rows["product"]["change"] > 0.5, "without TF32 a product of matrices takes more than half again"
    assert rows["product"]["cause"], "the kernel that cuBLAS chose instead is named"
    told = run.out.replace("`", "")
    assert "2 variables: TORCH_ALLOW_TF32_CUBLAS_OVERRIDE 1 → not set, TRITON_DISABLE_LINE_INFO not set → 1" in told
    assert run.report["pairs"] >= 2 * 2, "nothing is proved by equal files"
