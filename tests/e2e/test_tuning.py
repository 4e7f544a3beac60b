"""An autotuner's choice in a whole run, with a stand-in of Triton's that needs no GPU."""

import pytest

from .conftest import Repo

STAND_IN = """
    import os

    class Config:
        def __init__(self, kwargs, num_warps=4, num_stages=3, num_ctas=1, maxnreg=None):
            self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
            self.num_ctas, self.maxnreg = num_ctas, maxnreg

    class Autotuner:
        def __init__(self, fn, configs, best):
            self.fn = self.base_fn = fn
            self.configs, self.best, self.cache = configs, best, {}

        def run(self, *args):
            if len(self.configs) > 1 and args not in self.cache:
                self.cache[args] = self.configs[self.best() % len(self.configs)]
            self.best_config = self.cache.get(args, self.configs[0])
            return self.fn(*args, **self.best_config.kwargs)
"""
SUITE = """
    import os
    import perfci
    from triton.runtime.autotuner import Autotuner, Config

    def total(rounds, BLOCK):
        return sum(range(rounds * (BLOCK // 64) ** 4)) and 7

    tuned = Autotuner(total, [Config({"BLOCK": 64}, num_warps=8), Config({"BLOCK": 128})], lambda: BEST)

    @perfci.kernel(devices=["cpu"])
    def totals(bench):
        bench.reference(lambda: 7, rtol=0, atol=0)
        return lambda: tuned.run(2_000)
"""
POLICY = "limits: [{cases: '*', metric: time, regression: 30%}]\n"


def start(repo: Repo, best: str) -> None:
    repo.policy(POLICY)
    repo.write("triton/__init__.py", "")
    repo.write("triton/runtime/__init__.py", "")
    repo.write("triton/runtime/autotuner.py", STAND_IN)
    repo.write("kernels/a.py", SUITE.replace("BEST", best))
    repo.commit()


@pytest.mark.slow
def test_a_choice_that_moved_is_the_cause(repo: Repo) -> None:
    start(repo, "0")
    repo.write("kernels/a.py", SUITE.replace("BEST", "1"))
    run = repo.perfci("compare", "--base", "HEAD", "--quick", "--budget", "3m")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"totals": "regression"}
    assert "autotuning: BLOCK 64 → 128, num_warps 8 → 4" in run.out
    row = next(row for row in run.report["rows"] if row["metric"] == "time")
    assert row["cause"] == "autotuning: BLOCK 64 → 128, num_warps 8 → 4"
    small = {"BLOCK": "64", "num_warps": "8", "num_stages": "3", "num_ctas": "1"}
    choices = run.results["cases"][0]["pairs"][0]["choices"]
    assert choices["base"] == [{"kernel": "total", "config": small}]
    assert choices["head"][0]["config"]["BLOCK"] == "128"


@pytest.mark.slow
def test_a_choice_that_varies_is_noise(repo: Repo) -> None:
    """Each process chooses by its number, as a tuner does where two configurations are close."""
    start(repo, "os.getpid() // 2")
    run = repo.perfci("compare", "--base", "HEAD", "--quick", "--budget", "3m")
    assert run.code == 0, run.out + run.err
    # Of a case that is unchanged all the same the terminal says nothing.
    sentences = [text for one in run.report["profiles"] for text in one["sentences"]]
    assert any("autotuning varies from process to process" in text for text in sentences), sentences
    assert "autotuning: BLOCK" not in run.out
