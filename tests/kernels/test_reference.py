"""The shipped suite: every kernel agrees with its reference, and none of them would let a wrong one pass."""

import dataclasses
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest

from perfci.worker.bench import prepare
from perfci.worker.checks.check import check_case, verify
from perfci.worker.checks.compare import compare
from perfci.worker.discover import discover

torch = pytest.importorskip("torch")

torch.set_num_threads(1)  # as in a launch; several only wait for each other at these sizes

ROOT = Path(__file__).parents[2]
SUITE = discover(str(ROOT), ["kernels/*.py"])
KERNELS = {kernel.name: kernel for kernel in SUITE["kernels"]}
MODULES = {kernel.name: sys.modules[kernel.fn.__module__] for kernel in SUITE["kernels"]}
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
    assert [entry["error"] for entry in SUITE["files"]] == [None] * 10
    assert [case.id for kernel in SUITE["kernels"] for case in kernel.cases("cuda")] == [
        "decode_step/batch=1/context=4096/dtype=bf16",
        "decode_step/batch=32/context=4096/dtype=bf16",
        "host_transfer/memory=pageable/mib=64",
        "host_transfer/memory=pinned/mib=64",
        *(
            f"{kernel}/shape={shape}/dtype=bf16"
            for kernel in ("layernorm", "layernorm_triton")
            for shape in ("8192x4096", "512x1024")
        ),
        *(f"matmul/n={n}/dtype={dtype}" for n in (1024, 4096, 8192) for dtype in ("bf16", "fp16", "fp32")),
        "multimodal_fusion/batch=8/dtype=bf16",
        *(f"sdpa/seq={seq}" for seq in (128, 256, 512, 1024, 2048)),
        *(f"sparse_bsr_gemm/n=4096/sparsity={sparsity}/dtype=bf16" for sparsity in (0.8, 0.9)),
        *(
            f"{kernel}/batch={batch}/dtype={dtype}"
            for kernel in ("trajectory_resample", "trajectory_resample_triton")
            for batch in (4, 32)
            for dtype in ("bf16", "fp32")
        ),
        "voxelize/points=200000/grid=256x256x16",
        "voxelize_triton/points=200000/grid=256x256x16",
    ]
    assert [case.id for case in ON_CPU] == [
        "decode_step/batch=2/context=64/dtype=fp32/dim=128/heads=4/kv_heads=2/hidden=384",
        "layernorm/shape=64x768/dtype=fp32",
        "matmul/n=256/dtype=fp32",
        "matmul/n=384/dtype=fp32",
        "multimodal_fusion/batch=1/dtype=fp32/image=64/lidar=32/text=8/dim=128/heads=4",
        "sdpa/seq=128/batch=2/heads=4/dtype=fp32",
        "sdpa/seq=256/batch=2/heads=4/dtype=fp32",
        "sparse_bsr_gemm/n=64/sparsity=0.8/dtype=fp32/m=512/k=512",
        "trajectory_resample/batch=4/dtype=fp32",
        "voxelize/points=5000/grid=32x32x8",
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
    work = prepare(kernel, case.params, "cpu", 0, 0).bench.declared_work()
    assert work["flops"] > 0 and work["read"] > 0 and work["written"] > 0
    # Too wide a tolerance would let everything pass: a good kernel uses a visible share of it.
    assert 0.01 < result["worst"] < 0.7


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("decode_step", "bf16"),
        ("layernorm", "bf16"),
        ("matmul", "bf16"),
        ("matmul", "fp16"),
        ("multimodal_fusion", "bf16"),
        ("sdpa", "bf16"),
        ("sdpa", "fp16"),
        ("sparse_bsr_gemm", "bf16"),
        ("trajectory_resample", "bf16"),
    ],
)
def test_the_tolerance_of_16_bit_types_fits_them(name, dtype):
    result = check(KERNELS[name], {**smallest(name), "dtype": dtype})
    assert result["text"] == "" and result["worst"] > 0.05


@pytest.mark.parametrize(
    "name",
    ["decode_step", "layernorm", "matmul", "multimodal_fusion", "sdpa", "sparse_bsr_gemm", "trajectory_resample"],
)
@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("nan", lambda bench, fn: partial(torch.empty_like, fn())),
        ("nan", lambda bench, fn: lambda: torch.where(torch.arange(fn().shape[-1]) == 5, torch.nan, fn())),
        ("wrong", lambda bench, fn: lambda: fn() * (1 + 2**-10)),
        ("wrong", lambda bench, fn: lambda: fn().half().float()),
        ("wrong", lambda bench, fn: lambda: fn().roll(1, -2)),
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
    module = MODULES[kernel.name]
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
    module = MODULES[kernel.name]

    def nearest(values, times, at):
        index = (at[:, :, None] - times[:, None, :]).abs().argmin(-1)
        return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))

    real = module.resample
    for wrong in (nearest, lambda values, times, at: real(values, times, at + 1e-3)):
        monkeypatch.setattr(module, "resample", wrong)
        assert check(kernel, smallest("trajectory_resample"))["kind"] == "wrong"


def fails(name, monkeypatch, **replaced):
    """What the check says of the kernel when functions of its file are replaced."""
    for function, other in replaced.items():
        monkeypatch.setattr(MODULES[name], function, other)
    return check(KERNELS[name], smallest(name))["kind"]


def test_layer_norm_with_another_variance_or_epsilon_fails(monkeypatch):
    def unbiased(x, weight, bias):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * weight + bias

    assert fails("layernorm", monkeypatch, torch_form=unbiased) == "wrong"
    without = partial(torch.nn.functional.layer_norm, eps=0.0)
    assert fails("layernorm", monkeypatch, torch_form=lambda x, w, b: without(x, x.shape[-1:], w, b)) == "wrong"


def test_voxels_with_a_point_lost_or_moved_fail(monkeypatch):
    """One point of 5000 is enough, and so is a mean of one voxel."""
    module = MODULES["voxelize"]
    real = module.voxelize_torch

    def wrongly(change):
        return lambda points, size, strides, shape: change(*real(points, size, strides, shape))

    def bumped(tensor, amount):
        changed = tensor.clone()
        changed.view(-1)[tensor.view(-1).abs().argmax()] += amount
        return changed

    for wrong in (
        lambda points, *rest: real(points[1:], *rest),
        lambda points, *rest: real(points.clamp(-3.999, 3.999), *rest),  # points outside pulled in
        lambda points, *rest: real(points + 1e-3, *rest),
        wrongly(lambda counts, means: (bumped(counts, 1), means)),
        wrongly(lambda counts, means: (counts, bumped(means, 1e-4))),
        wrongly(lambda counts, means: (counts, means * counts.unsqueeze(-1))),  # sums
        wrongly(lambda counts, means: (counts.transpose(1, 2), means)),
    ):
        assert fails("voxelize", monkeypatch, voxelize_torch=wrong) == "wrong"


def test_a_decode_step_that_does_not_append_reads_nan(monkeypatch):
    module = MODULES["decode_step"]
    source = Path(module.__file__).read_text()
    for line in ("keys[:, :, -1] = rotate(key, *turn)", "values[:, :, -1] = value"):
        assert line in source
        changed = {}
        exec(source.replace(line, "pass").split("def reference")[0], changed)
        assert fails("decode_step", monkeypatch, step=changed["step"]) == "nan"


def test_a_decode_step_can_be_repeated():
    """Timing runs it thousands of times on the same cache."""
    prepared = prepare(KERNELS["decode_step"], smallest("decode_step"), "cpu", 0, 0)
    first = prepared.fn()
    assert all(torch.equal(prepared.fn(), first) for _ in range(3))
    assert verify(prepared).ok


def test_decode_at_another_position_or_with_other_groups_fails(monkeypatch):
    module = MODULES["decode_step"]
    real, attention = module.step, module.scaled_dot_product_attention

    def groups_mixed(query, keys, values):
        return attention(query.roll(1, 1), keys, values).roll(-1, 1)

    def without_oldest(query, keys, values):
        return attention(query, keys[:, :, 1:], values[:, :, 1:])

    for changed in (groups_mixed, without_oldest):
        assert fails("decode_step", monkeypatch, scaled_dot_product_attention=changed) == "wrong"
    monkeypatch.setattr(module, "scaled_dot_product_attention", attention)

    def unturned(x, keys, values, weights, turn, heads):
        return real(x, keys, values, weights, (torch.ones_like(turn[0]), torch.zeros_like(turn[1])), heads)

    assert fails("decode_step", monkeypatch, step=unturned) == "wrong"


def test_fusion_without_a_modality_or_the_gate_fails(monkeypatch):
    real = MODULES["multimodal_fusion"].fuse
    for wrong in (
        lambda image, lidar, text, *rest: real(image, lidar, text[:, :-1], *rest),
        lambda image, lidar, text, *rest: real(image, lidar.roll(1, -1), text, *rest),
        lambda image, lidar, text, weights, heads: real(
            image, lidar, text, {**weights, "gate": weights["gate"] * 1.01}, heads
        ),
        lambda image, lidar, text, weights, heads: real(image, lidar, text, weights, heads // 2),
    ):
        assert fails("multimodal_fusion", monkeypatch, fuse=wrong) == "wrong"


def test_a_block_in_the_wrong_place_or_transposed_fails(monkeypatch):
    real = MODULES["sparse_bsr_gemm"].bsr_gemm_torch
    for wrong in (
        lambda values, rows, columns, *rest: real(values.transpose(1, 2), rows, columns, *rest),
        lambda values, rows, columns, *rest: real(values, rows, columns.roll(1), *rest),
        lambda values, rows, columns, *rest: real(values[:-1], rows[:-1], columns[:-1], *rest),
    ):
        assert fails("sparse_bsr_gemm", monkeypatch, bsr_gemm_torch=wrong) == "wrong"


def test_every_placement_has_the_same_number_of_blocks():
    """Where they are is drawn; how much work they are is not."""
    draw = MODULES["sparse_bsr_gemm"].draw_blocks
    for seed in range(20):
        rows, columns = draw(Random(seed), 32, 32, 0.9)
        assert len(set(zip(rows, columns, strict=True))) == len(rows) == 102
        assert rows == sorted(rows) and max(columns) < 32


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An overlay with the CUDA C++ library, as the policy's build step makes it."""
    site = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFCI_SITE", str(site))
        subprocess.run([sys.executable, str(ROOT / "kernels" / "build_bsr.py")], check=True)
        yield


GPU_CASES = [case for kernel in SUITE["kernels"] for case in kernel.cases("cuda")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: case.id)
def test_on_a_gpu_agrees_with_its_reference_at_all_its_shapes(case, built):
    result = check(KERNELS[case.kernel], case.params, "cuda", fuzz=True)
    assert result["text"] == ""
    assert result["compared"] == result["shapes"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(
    "case", [case for case in GPU_CASES if "memory=pageable" not in case.id], ids=lambda case: case.id
)
def test_on_a_gpu_can_be_captured_and_replayed(case, built):
    """What the timing mode `rotating` needs; all but copies from pageable memory, which wait for the GPU."""
    prepared = prepare(KERNELS[case.kernel], case.params, "cuda", 0, 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        prepared.fn()
    torch.cuda.synchronize()
    reference = prepared.bench.declared_reference()
    expected = reference.fn()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = prepared.fn()
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert compare(out, expected, reference.rtol, reference.atol).text == ""
