"""Where counters are forbidden on a GPU: machine code of what the sides compiled says which kernel left tensor cores."""

import json

import pytest

from tests.e2e.conftest import Repo
from tests.system.machines import FORBIDDEN, ncu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("gpu")]

KERNEL = """
    import perfci
    import torch
    import triton
    import triton.language as tl

    TENSOR = tl.constexpr(True)

    @triton.jit
    def _mm(a, b, c):
        i = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :] + tl.program_id(0) * 4096
        x, y = tl.load(a + i), tl.load(b + i)
        if TENSOR:
            tl.store(c + i, tl.dot(x, y))
        else:
            tl.store(c + i, x * y)  # a sum over broadcast products Triton would put on tensor cores again

    @perfci.kernel(devices=["cuda"])
    def matrices(bench):
        a, b = (bench.randn(2048, 64, 64, dtype=torch.float16) for _ in range(2))
        c = torch.empty(2048, 64, 64, device="cuda")
        return lambda: (_mm[(2048,)](a, b, c), c)[1]
"""
POLICY = """
    version: 1
    suite: [k.py]
    budget: 40s
    limits:
      - {cases: "*", metric: time, regression: 5%}
      - {cases: "*", metric: tensor_active, min: 1%}
"""


def test_a_kernel_that_left_tensor_cores_is_named_without_counters(repo: Repo, tmp_path) -> None:
    ncu(tmp_path / "bin", version="2024.1.1.0", log=FORBIDDEN, code=1)
    repo.env["PATH"] = f"{tmp_path / 'bin'}:{repo.env['PATH']}"
    repo.write("perfci.yaml", POLICY)
    repo.write("k.py", KERNEL)
    repo.commit("base")
    repo.write("k.py", KERNEL.replace("constexpr(True)", "constexpr(False)"))
    run = repo.perfci("compare", "--base", "HEAD", timeout=500)
    told = json.dumps(run.report["profiles"], indent=1) + run.out + run.err
    assert run.code == 1, told
    (case,) = run.results["cases"]
    base, head = (case["sides"][name]["profile"]["code"] for name in ("base", "head"))
    assert [(one["name"], bool(one["tensor"])) for one in base] == [("_mm", True)], told
    assert [(one["name"], bool(one["tensor"])) for one in head] == [("_mm", False)], told
    (profile,) = run.report["profiles"]
    assert profile["sentences"][0].startswith("`_mm` uses tensor cores no longer"), told
    gate = next(row for row in run.report["rows"] if row["metric"] == "tensor_active")
    assert (gate["class"], gate["effect"]) == ("invalid", "fail"), "the code answers no limit: " + told
