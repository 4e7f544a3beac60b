"""The six kernels: right, and with the same result however much extra work they do."""

import importlib.util
import shutil

import pytest

from benchmarks.sensitivity import collect, probe
from benchmarks.sensitivity.recording import KERNELS
from perfci.worker.checks.compare import compare

torch = pytest.importorskip("torch")

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.torch),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
            pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
        ],
    ),
]


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """The kernels, by name, as a suite without extra work declares them."""
    tree = tmp_path_factory.mktemp("suite")
    shutil.copy(collect.HERE / "kernels.py", tree)
    (tree / "amounts.json").write_text("{}\n")
    return dict(probe.declared_kernels({"tree": str(tree)}))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_result_is_right_whatever_the_extra_work(declared, name, device):
    kernel = probe.Kernel(declared[name], device, seed=3, rotate=False)
    (prepared,) = kernel.sets
    reference = prepared.bench.declared_reference()
    expected = reference.fn()
    for amount in (0, 1, 7, probe.START[name] if device == "cuda" else 10):
        kernel.dial.value = amount
        outcome = compare(prepared.fn(), expected, reference.rtol, reference.atol)
        assert outcome.ok, f"amount {amount}: {outcome.text}"
    kernel.release()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_tuning_realises_one_percent_on_a_gpu(declared):
    """One latency-bound kernel: within a third of nominal, measured anew."""
    import random

    rng = random.Random(1)
    kernel = probe.Kernel(declared["add64k"], "cuda", seed=4)
    amounts = probe.tuned(lambda asked: probe.slow_downs(kernel, asked, 12, rng), probe.START["add64k"])
    found = [float(probe.slow_downs(kernel, [amounts["0.01"]], 12, rng)[0]) for _ in range(32)]
    assert sum(found) / len(found) == pytest.approx(0.01, rel=0.35)
