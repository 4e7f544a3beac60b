"""The shipped suite: every kernel agrees with its reference, and none of them would let a wrong one pass."""

import dataclasses
import sys
from functools import partial
from pathlib import Path

import pytest

from perfci.worker.check import check_case
from perfci.worker.discover import discover

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SUITE = discover(str(ROOT), ["kernels/*.py"])
KERNELS = {kernel.name: kernel for kernel in SUITE["kernels"]}
ON_CPU = [case for kernel in SUITE["kernels"] for case in kernel.cases("cpu")]


def check(kernel, params, device="cpu", fuzz=False):
    sets = [params, *(kernel.fuzz_sets(device, params) if fuzz else [])]
    return check_case(kernel, sets, device, 0)


def smallest(name):
    return KERNELS[name].cases("cpu")[0].params


def spoiled(name, spoil):
    """The kernel with a timed function that `spoil(bench, fn)` made."""
    kernel = KERNELS[name]

    def build(bench, **params):
        return spoil(bench, kernel.fn(bench, **params))

    return dataclasses.replace(kernel, fn=build)


def test_every_file_imports_and_the_ids_are_those_that_limits_and_records_name():
    assert [entry["error"] for entry in SUITE["files"]] == [None] * 4
    assert [case.id for kernel in SUITE["kernels"] for case in kernel.cases("cuda")] == [
        "host_transfer/memory=pageable/mib=64",
        "host_transfer/memory=pinned/mib=64",
        *(f"matmul/n={n}/dtype={dtype}" for n in (1024, 4096, 8192) for dtype in ("bf16", "fp16", "fp32")),
        *(f"sdpa/seq={seq}" for seq in (128, 256, 512, 1024, 2048)),
        *(f"trajectory_resample/batch={batch}/dtype={dtype}" for batch in (4, 32) for dtype in ("bf16", "fp32")),
    ]
    assert [case.id for case in ON_CPU] == [
        "matmul/n=256/dtype=fp32",
        "matmul/n=384/dtype=fp32",
        "sdpa/seq=128/batch=2/heads=4/dtype=fp32",
        "sdpa/seq=256/batch=2/heads=4/dtype=fp32",
        "trajectory_resample/batch=4/dtype=fp32",
    ]


def test_attention_is_fuzzed_over_27_shapes():
    sets = KERNELS["sdpa"].fuzz_sets("cuda", {"seq": 512})
    assert len({(s["seq"], s["batch"], s["heads"]) for s in sets}) == 27


@pytest.mark.parametrize("case", ON_CPU, ids=lambda case: case.id)
def test_agrees_with_its_reference_at_all_its_shapes(case):
    kernel = KERNELS[case.kernel]
    result = check(kernel, case.params, fuzz=True)
    assert result["text"] == ""
    assert result["shapes"] == result["compared"] == 1 + len(kernel.fuzz_sets("cpu", case.params))
    assert result["work"]["flops"] > 0 and result["work"]["read"] > 0 and result["work"]["written"] > 0
    # Too wide a tolerance would let everything pass: a good kernel uses a visible share of it.
    assert 0.01 < result["worst"] < 0.7


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("matmul", "bf16"), ("matmul", "fp16"), ("sdpa", "bf16"), ("sdpa", "fp16"), ("trajectory_resample", "bf16")],
)
def test_the_tolerance_of_16_bit_types_fits_them(name, dtype):
    result = check(KERNELS[name], {**smallest(name), "dtype": dtype})
    assert result["text"] == "" and result["worst"] > 0.05


@pytest.mark.parametrize("name", ["matmul", "sdpa", "trajectory_resample"])
@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("nan", lambda bench, fn: partial(torch.empty_like, fn())),
        ("nan", lambda bench, fn: lambda: torch.where(torch.arange(fn().shape[-1]) == 5, torch.nan, fn())),
        ("wrong", lambda bench, fn: lambda: fn() * (1 + 2**-10)),
        ("wrong", lambda bench, fn: lambda: fn().half().float()),
        ("wrong", lambda bench, fn: lambda: fn().roll(1, 0)),
        ("wrong", lambda bench, fn: lambda: fn()[:-1]),
        ("wrong", lambda bench, fn: lambda: None),
    ],
    ids=["unwritten", "nan", "off by 0.1 %", "computed in half", "rows shifted", "cut short", "not returned"],
)
def test_a_spoiled_result_fails(name, kind, spoil):
    result = check(spoiled(name, spoil), smallest(name))
    assert not result["ok"]
    assert result["kind"] == kind


def test_attention_with_another_scale_or_a_mask_fails(monkeypatch):
    kernel = KERNELS["sdpa"]
    module = sys.modules[kernel.fn.__module__]
    real = module.scaled_dot_product_attention
    for change in ({"scale": 0.13}, {"is_causal": True}, {"dropout_p": 0.001}):
        monkeypatch.setattr(module, "scaled_dot_product_attention", lambda q, k, v, c=change: real(q, k, v, **c))
        assert check(kernel, smallest("sdpa"))["kind"] == "wrong"


def test_tf32_does_not_pass_for_fp32():
    """Inputs rounded to 11 bits, as tensor cores do: faster, and another product."""

    def tf32(bench, fn):
        a, b = ((drawn.tensor.view(torch.int32) & ~0x1FFF).view(torch.float32) for drawn in bench._drawn)
        return lambda: a @ b

    result = check(spoiled("matmul", tf32), smallest("matmul"))
    assert result["kind"] == "wrong"


def test_taking_the_nearest_sample_or_the_wrong_interval_fails(monkeypatch):
    kernel = KERNELS["trajectory_resample"]
    module = sys.modules[kernel.fn.__module__]

    def nearest(values, times, at):
        index = (at[:, :, None] - times[:, None, :]).abs().argmin(-1)
        return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))

    real = module.resample
    for wrong in (nearest, lambda values, times, at: real(values, times, at + 1e-3)):
        monkeypatch.setattr(module, "resample", wrong)
        assert check(kernel, smallest("trajectory_resample"))["kind"] == "wrong"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(
    "case", [case for kernel in SUITE["kernels"] for case in kernel.cases("cuda")], ids=lambda case: case.id
)
def test_on_a_gpu_agrees_with_its_reference_at_all_its_shapes(case):
    result = check(KERNELS[case.kernel], case.params, "cuda", fuzz=True)
    assert result["text"] == ""
    assert result["compared"] == result["shapes"]
