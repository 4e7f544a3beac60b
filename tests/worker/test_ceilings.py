"""Measured ceilings: numbers or reasons, nothing else, and torch left as it was."""

import json
import subprocess
import sys

import pytest

from perfci.judge.speed_of_light import least_time
from perfci.model.fingerprint import Ceilings, Rate
from perfci.model.results import Work
from perfci.model.timing import Timing
from perfci.worker import ceilings


def rates(found):
    return {"read": found["read"], "copied": found["copied"], **found["matmul"]}


@pytest.mark.torch
def test_ceilings_of_this_cpu_are_rates_or_reasons():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    found = json.loads(json.dumps(ceilings.measure("cpu")))
    assert (found["device"], found["to_device"], torch.get_num_threads()) == ("cpu", None, threads)
    assert all(rate.get("reason") or (rate["value"] > 0 and rate["how"]) for rate in rates(found).values())
    assert {"fp32", "fp64", "bf16"} <= set(found["matmul"])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.alone
def test_ceilings_of_this_cpu_stand_above_what_it_does():
    torch = pytest.importorskip("torch")
    found = ceilings.measure("cpu")
    assert all(rate.get("reason") or rate["value"] > 1e6 for rate in rates(found).values())
    assert found["read"]["value"] >= found["copied"]["value"]
    a = torch.randn(256, 256)
    best = ceilings._best_of_calls(lambda: a @ a)
    assert best > least_time(Work(flops=2 * 256**3), Ceilings.model_validate(found), Timing(mode="cpu"), "cpu")[0]


def test_without_torch_there_are_reasons():
    code = "import json, sys; sys.modules['torch'] = None\nfrom perfci.worker import ceilings\nprint(json.dumps(ceilings.measure('cpu')))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert Ceilings.model_validate_json(out).read == Rate(value=None, reason="torch is not installed")


def test_what_fails_has_a_reason_of_one_line():
    def fails():
        raise RuntimeError("no\nroom")

    assert ceilings._rate(1.0, ceilings._best_of_calls, fails, "x") == {"value": None, "reason": "no room"}


@pytest.mark.gpu
@pytest.mark.torch
def test_ceilings_of_this_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    before = torch.backends.cuda.matmul.allow_tf32
    found = ceilings.measure("cuda")
    assert Ceilings.model_validate(found).to_host is not None
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert all(rate.get("reason") or rate["value"] > 1e9 for rate in rates(found).values())
    assert found["matmul"]["bf16"]["value"] > found["matmul"]["fp32"]["value"]
