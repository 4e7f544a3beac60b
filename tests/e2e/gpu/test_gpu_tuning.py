"""Triton's own autotuner on a GPU: what each side chose, and that it is told."""

import pytest

from tests.e2e.conftest import Repo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("gpu")]

SUITE = """
    import perfci
    import torch
    import triton
    import triton.language as tl

    @triton.autotune(configs=[triton.Config({"BLOCK": n}, num_warps=w) for n, w in CONFIGS], key=["n"])
    @triton.jit
    def double(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    @perfci.kernel(devices=["cuda"])
    def doubled(bench):
        x = bench.randn(1 << 22)
        y = bench.empty(1 << 22)
        bench.reference(lambda: x.double() * 2, rtol=1e-6, atol=0)
        def launch():
            double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
            return y
        return launch
"""


def test_configurations_that_triton_chose_are_the_cause(repo: Repo) -> None:
    """Both sides choose between two, of which one is faster by far in every process."""
    pytest.importorskip("triton")  # comes with torch for GPUs alone
    repo.write(
        "perfci.yaml", "version: 1\nsuite: [kernels/*.py]\nlimits: [{cases: '*', metric: time, regression: 5%}]\n"
    )
    repo.write("kernels/k.py", SUITE.replace("CONFIGS", "[(1024, 4), (16, 1)]"))
    repo.commit("base")
    repo.write("kernels/k.py", SUITE.replace("CONFIGS", "[(64, 1), (16, 1)]"))
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"doubled": "regression"}
    case = next(case for case in run.results["cases"] if case["id"] == "doubled")
    assert case["sides"]["head"]["tuner"] == "Triton's autotuner chooses for double"
    for side, block in (("base", "1024"), ("head", "64")):
        chosen = [choice for pair in case["pairs"] for choice in pair["choices"][side]]
        assert {choice["kernel"] for choice in chosen} == {"double"}
        assert {choice["config"]["BLOCK"] for choice in chosen} == {block}
    cause = next(row["cause"] for row in run.report["rows"] if row["metric"] == "time")
    assert cause == "autotuning: BLOCK 1024 → 64, num_warps 4 → 1"
