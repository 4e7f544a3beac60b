"""The gate on a GPU. Skipped, visibly, where torch can use none."""

import subprocess
import sys

import pytest

from tests.e2e.conftest import Repo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("gpu")]


KERNELS = """
    import perfci
    import torch

    EXTRA = 0

    def chain(x, rounds):
        for _ in range(rounds):
            x = torch.sin(x)
        return x

    @perfci.kernel(devices=["cuda"])
    def sines(bench):
        x = bench.randn(4096, 4096)
        def reference():
            y = x.double()
            for _ in range(20):
                y = torch.sin(y)
            return y
        bench.reference(reference, rtol=1e-4, atol=1e-5)
        return lambda: chain(x, 20 + EXTRA) if not EXTRA else (chain(x, EXTRA), chain(x, 20))[1]

    @perfci.kernel(devices=["cuda"])
    def asserts(bench):
        x = bench.randn(1024)
        index = bench.randint(0, 1024, 64)
        return lambda: x[index]
"""


def test_slow_down_and_a_poisoned_context(repo: Repo) -> None:
    """15 % more work of the same kind is a regression; a device-side fault costs its own case only."""
    repo.write(
        "perfci.yaml", "version: 1\nsuite: [kernels/*.py]\nlimits: [{cases: '*', metric: time, regression: 2%}]\n"
    )
    repo.write("kernels/k.py", KERNELS)
    repo.commit("base")
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 0, run.out + run.err
    assert set(run.classes().values()) == {"unchanged"}
    text = (repo.root / "kernels/k.py").read_text().replace("EXTRA = 0", "EXTRA = 3")
    repo.write(
        "kernels/k.py", text.replace("index = bench.randint(0, 1024, 64)", "index = bench.randint(5000, 6000, 64)")
    )
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"sines": "regression", "asserts": "failed"}
    row = next(row for row in run.report["rows"] if row["case"] == "sines")
    assert 1.12 < row["interval"]["low"] < row["interval"]["high"] < 1.18
    assert run.results["fingerprint"]["devices"]["cuda"]


MODES = """
    import perfci
    import torch

    @perfci.kernel(devices=["cuda"])
    def captured(bench):
        x = bench.randn(1024, 1024)
        bench.reference(lambda: torch.sin(x.double()), rtol=1e-5, atol=1e-6)
        return lambda: torch.sin(x)

    @perfci.kernel(devices=["cuda"])
    def synchronises(bench):
        x = bench.randn(1024, 1024)
        return lambda: torch.sin(x) if x.sum().item() < 1e9 else x

    @perfci.kernel(devices=["cuda"], timing="hot")
    def in_the_cache(bench):
        x = bench.randn(1024, 1024)
        return lambda: torch.sin(x)

    @perfci.kernel(devices=["cuda"], timing="rotating")
    def cannot_be_rotating(bench):
        x = bench.randn(1024, 1024)
        return lambda: torch.sin(x) if x.sum().item() < 1e9 else x

    @perfci.kernel(devices=["cuda"])
    def more_than_half_of_the_memory(bench):
        gpu = torch.cuda.get_device_properties(0).total_memory
        x = bench.zeros(int(0.55 * gpu) // 4)
        return lambda: x[: 2**24].add_(1.0)
"""


def test_timing_modes_and_their_reasons(repo: Repo) -> None:
    """Steady where it can be captured, else cold and why; what was asked for or not at all; large cases alternate."""
    limits = "limits: [{cases: '*', metric: time, regression: 10%}]"
    repo.write("perfci.yaml", f"version: 1\nsuite: [kernels/*.py]\nbudget: 90s\n{limits}\n")
    repo.write("kernels/k.py", MODES)
    repo.commit("base")
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 3, "a case that fails in both sides measures nothing: " + run.out + run.err
    cases = {case["id"]: case for case in run.results["cases"]}
    timing = {name: case["sides"]["head"]["timing"] for name, case in cases.items()}
    assert timing["captured"]["mode"] == "rotating"
    assert timing["captured"]["sets"] > 10
    assert timing["synchronises"]["mode"] == "cold"
    assert "base cannot be captured into a CUDA graph" in timing["synchronises"]["because"]
    assert timing["in_the_cache"]["mode"] == "hot"
    assert "timing mode rotating" in cases["cannot_be_rotating"]["sides"]["head"]["reason"]["text"]
    large = cases["more_than_half_of_the_memory"]
    assert "together they need" in (timing["more_than_half_of_the_memory"]["alternating"] or ""), large["sides"]
    for name in ("captured", "in_the_cache", "more_than_half_of_the_memory", "synchronises"):
        assert len(cases[name]["pairs"]) >= 8, (name, run.out, run.err)
        assert all(pair["clock"]["base"]["hertz"] > 5e8 for pair in cases[name]["pairs"])
    assert cases["captured"]["pairs"][0]["values"]["head"]["time"] > 1.2e-6, "4 MB are read from memory, not cache"


NVBENCH = """
    import sys

    import cuda.bench as bench
    import torch

    EXTRA = 0

    def chain(state):
        x = torch.randn(state.get_int64("N"), 4096, device="cuda")
        state.add_global_memory_reads(x.nbytes)

        def launcher(launch):
            with torch.cuda.stream(torch.cuda.ExternalStream(launch.get_stream().addressof())):
                for _ in range(10 + EXTRA):
                    torch.sin(x)

        state.exec(launcher)

    bench.register(chain).add_int64_axis("N", [4096])
    bench.run_all_benchmarks(sys.argv)
"""


def test_an_nvbench_program_is_a_first_class_case(repo: Repo) -> None:
    """Its state is a case, its binary samples the values, and 20 % more work is a regression."""
    if subprocess.run([sys.executable, "-c", "import cuda.bench"], capture_output=True, check=False).returncode:
        pytest.skip("needs cuda-bench")  # Linux on x86 alone; its output is read from a file in tests/measure
    repo.write(
        "perfci.yaml",
        """
        version: 1
        commands: [{name: sines, run: python bench.py --timeout 1, reads: nvbench, device: cuda}]
        limits: [{cases: '*', metric: time, regression: 5%}]
        """,
    )
    repo.write("bench.py", NVBENCH)
    repo.commit("base")
    repo.write("bench.py", (repo.root / "bench.py").read_text().replace("EXTRA = 0", "EXTRA = 2"))
    run = repo.perfci("compare", "--base", "HEAD", timeout=400)
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"sines/chain/N=4096": "regression"}
    large = run.results["cases"][0]
    assert large["sides"]["head"]["work"]["read"] == 4096 * 4096 * 4
    assert min(pair["samples"]["head"] for pair in large["pairs"]) >= 10
