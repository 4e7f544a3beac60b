"""`bench.versus` on a GPU: its speed-up is what a comparison of two commits tells that swap the same two."""

import pytest

from tests.e2e.conftest import Repo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.usefixtures("gpu")]

KERNEL = """
    import perfci
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel


    def plain(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


    def flash(q, k, v):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)


    @perfci.kernel(devices=["cuda"], params={"seq": [512, 2048]})
    def attention(bench, seq):
        q, k, v = (bench.randn(4, 16, seq, 64, dtype="bf16") for _ in range(3))
        bench.reference(lambda: plain(q.float(), k.float(), v.float()), rtol=3e-2, atol=3e-2)
        bench.versus("plain", lambda: plain(q, k, v))
        return lambda: FASTER(q, k, v)


    @perfci.kernel(devices=["cuda"])
    def waits(bench):
        x = bench.randn(1 << 22)
        bench.reference(lambda: x * 2)
        bench.versus("with a look at it", lambda: x * 2 if float(x[0]) < 100 else x)
        return lambda: x * 2
"""


def test_a_speed_up_is_that_of_two_commits(repo: Repo) -> None:
    repo.write(
        "perfci.yaml",
        """
        version: 1
        suite: [kernels/*.py]
        devices: [cuda]
        profile: never
        budget: 120s
        limits:
          - {cases: "attention/*", metric: time, regression: 5%}
          - {cases: "*", metric: speedup, min: 1.10x}
        """,
    )
    repo.write("kernels/k.py", KERNEL.replace("FASTER", "plain"))
    repo.commit("plain")
    repo.write("kernels/k.py", KERNEL.replace("FASTER", "flash"))
    run = repo.perfci("compare", "--base", "HEAD", timeout=400)
    rows = {(row["case"], row["metric"]): row for row in run.report["rows"]}
    for seq in (512, 2048):
        time, speedup = rows[f"attention/seq={seq}", "time"], rows[f"attention/seq={seq}", "speedup"]
        told, beside = time["interval"], speedup["interval"]
        print(seq, time["change"], told, speedup["head"], beside, speedup["base"])
        assert speedup["class"] == "unchanged", run.out + run.err
        assert beside["low"] <= 1 / told["low"] and 1 / told["high"] <= beside["high"], "the intervals overlap"
        assert speedup["base"] == pytest.approx(1, rel=0.05), "base is the alternative itself"
    row = rows["waits", "speedup"]
    print(row["head"], row["reason"])
    assert row["head"] > 1.1, "an alternative that waits for the GPU is timed cold, and the case with it"
