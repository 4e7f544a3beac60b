"""On a GPU what the host pays for an execution is measured beside what the GPU does, and where that is proved alone."""

import pytest

from tests.e2e.conftest import Repo
from tests.e2e.gpu.test_gpu_same_work import seed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.usefixtures("gpu")]

SUITE = """
import perfci
import torch

import library

N = 1 << 16

def planted(name, timing=None):
    @perfci.kernel(name=name, devices=["cuda"], timing=timing)
    def kernel(bench):
        x = bench.randn(N)
        bench.reference(lambda: x * library.FACTOR.get(name, 2))
        def run():
            library.spend(name)
            return library.times(x, library.FACTOR.get(name, 2))
        return run

for name in ("same", "five", "twenty", "more", "measured", "measured_same"):
    planted(name)
planted("cold", "cold")
planted("cold_same", "cold")

@perfci.kernel(devices=["cuda"])
def launcher(bench):
    x = bench.randn(N)
    return lambda: library.launch(x)

@perfci.kernel(devices=["cuda"])
def synchronises(bench):
    x = bench.randn(N)
    return lambda: x * float((x * 2).sum() > 0)

@perfci.kernel(devices=["cuda"], timing="hot")
def launches(bench):
    x = bench.randn(N)
    def run():
        y = x
        for _ in range(1500):
            y = y * 1
        return y
    return run
"""
LIBRARY = """
import time

import torch

FACTOR = {}
MICROSECONDS = {}

def spend(name):
    end = time.perf_counter() + MICROSECONDS.get(name, 0) * 1e-6
    while name in MICROSECONDS and time.perf_counter() < end:
        pass

def times(x, factor):
    return x * factor

def launch(x):
    return x * 3
"""
SLOWER = """
FACTOR = {"measured": 3, "measured_same": 3, "cold": 3, "cold_same": 3}
MICROSECONDS = {"five": 5, "twenty": 20, "more": 300, "measured": 20, "cold": 20}

class Wrapped(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 3

def launch(x):
    with torch.autograd.profiler.record_function("launch"):
        return Wrapped.apply(x)
"""
LIMITS = """
version: 1
suite: [k.py]
budget: 240s
limits:
  - {cases: "*", metric: time, regression: 50%}
"""
HOST = """
  - {cases: "*", metric: host_time, regression: 25%, min_change: 5us}
"""
SLOW = ("twenty", "more", "measured", "cold", "launcher")


def test_host_time(repo: Repo) -> None:
    repo.env["PERFCI_MEASURE_ALL"] = "0"
    repo.write("perfci.yaml", LIMITS + HOST)
    repo.write("k.py", SUITE)
    repo.write("library.py", LIBRARY)
    repo.commit("base")
    repo.write("library.py", LIBRARY + SLOWER)
    run = repo.perfci(f"PERFCI_SEED={seed(False)}", "compare", "HEAD", timeout=600)
    print(run.out, run.results["costs"])
    rows = {(row["case"], row["metric"]): row for row in run.report["rows"]}
    cases = {case["id"]: case for case in run.results["cases"]}
    whole = run.results["measuring_seconds"]
    hosts = sum(pair["seconds"].get("host", 0) for case in cases.values() for pair in case["pairs"] if pair["blocks"])
    print(f"host times take {100 * hosts / whole:.1f} % of the rounds")
    for name, case in cases.items():
        both = [
            [round(1e6 * values.get("host_time", 0), 1) for values in pair["values"].values()] for pair in case["pairs"]
        ]
        share = [pair["seconds"].get("host", 0) / sum(pair["seconds"].values()) for pair in case["pairs"]]
        row = rows[name, "host_time"]
        print(name, case["proof"], case["sides"]["head"]["host"], row["class"], row["reason"], share[-3:], both[:8])
    assert run.code == 1
    for name in SLOW:
        assert rows[name, "host_time"]["class"] == "regression", name
    for name in ("same", "measured_same", "cold_same"):
        assert rows[name, "host_time"]["class"] == "unchanged", name
    assert rows["five", "host_time"]["change"] > 1, "it is seen, though of 25 µs it is less than the limit"
    for name in ("synchronises", "launches"):
        row = rows[name, "host_time"]
        assert (row["class"], "host and GPU cannot be told apart" in row["reason"]) == ("invalid", True)
    for name in ("same", "twenty", "more", "launcher"):
        assert cases[name]["proof"]["by"] == "work" and rows[name, "time"]["proved"]
        assert "time" not in cases[name]["pairs"][0]["values"]["head"], "its host time alone is measured"


def test_a_longer_host_time_is_told_where_no_limit_asks(repo: Repo) -> None:
    repo.env["PERFCI_MEASURE_ALL"] = "0"
    repo.write("perfci.yaml", LIMITS)
    repo.write("k.py", SUITE)
    repo.write("library.py", LIBRARY)
    repo.commit("base")
    repo.write(
        "library.py", LIBRARY + SLOWER.replace('"measured": 3, "measured_same": 3, "cold": 3, "cold_same": 3', "")
    )
    run = repo.perfci(f"PERFCI_SEED={seed(False)}", "compare", "HEAD", "-k", "more", "-k", "same", timeout=300)
    told = next(note for note in run.report["notes"] if "takes more than twice as long in head" in note)
    assert "more (" in told and "same" not in told
    assert run.code == 0
