"""The shipped suite: every kernel agrees with its reference, and none of them would let a wrong one pass."""

import dataclasses
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest

from perfci.worker.bench import prepare
from perfci.worker.checks.check import check_case
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


def test_every_file_imports_and_the_kernels_are_those_that_limits_and_records_name():
    assert [entry["error"] for entry in SUITE["files"]] == [None] * 10
    written = ["layernorm", "trajectory_resample", "voxelize"]
    torchs = ["decode_step", "host_transfer", "matmul", "multimodal_fusion", "sdpa", "sparse_bsr_gemm"]
    assert sorted(KERNELS) == sorted([*torchs, *written, *(f"{name}_triton" for name in written)])
    assert (len(ON_CPU), sum(len(kernel.cases("cuda")) for kernel in SUITE["kernels"])) == (10, 35)


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
    "spoil",
    [
        lambda bench, fn: lambda: fn() * (1 + 2**-10),
        lambda bench, fn: lambda: fn().half().float(),
        lambda bench, fn: lambda: fn().roll(1, -2),
    ],
    ids=["off by 0.1 %", "computed in half", "rows shifted"],
)
def test_a_spoiled_result_fails(name, spoil):
    """The tolerance is narrow enough: what is not written, NaN or not returned fails with any."""
    assert check(spoiled(name, spoil), smallest(name))["kind"] == "wrong"


def test_tf32_does_not_pass_for_fp32():
    """Inputs rounded to 11 bits, as tensor cores do: faster, and another product."""

    def tf32(bench, fn):
        a, b = ((drawn.tensor.view(torch.int32) & ~0x1FFF).view(torch.float32) for drawn in bench._drawn)
        return lambda: a @ b

    result = check(spoiled("matmul", tf32), smallest("matmul"))
    assert result["kind"] == "wrong"


def fails(name, monkeypatch, **replaced):
    """What the check says of the kernel when functions of its file are replaced."""
    for function, other in replaced.items():
        monkeypatch.setattr(MODULES[name], function, other)
    return check(KERNELS[name], smallest(name))["kind"]


def nearest(values, times, at):
    index = (at[:, :, None] - times[:, None, :]).abs().argmin(-1)
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


def unbiased(x, weight, bias):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def bumped(tensor, amount):
    changed = tensor.clone()
    changed.view(-1)[tensor.view(-1).abs().argmax()] += amount
    return changed


def counted(change):
    """Voxels whose counts and means `change` has replaced."""
    return lambda real: lambda *given: change(*real(*given))


def unturned(real):
    def step(x, keys, values, weights, turn, heads):
        return real(x, keys, values, weights, (torch.ones_like(turn[0]), torch.zeros_like(turn[1])), heads)

    return step


def ungated(real):
    def fuse(image, lidar, text, weights, heads):
        return real(image, lidar, text, {**weights, "gate": weights["gate"] * 1.01}, heads)

    return fuse


ATTENTION = "scaled_dot_product_attention"
WRONG = {
    ("sdpa", ATTENTION): {
        "another scale": lambda real: partial(real, scale=0.13),
        "a mask": lambda real: partial(real, is_causal=True),
        "dropout": lambda real: partial(real, dropout_p=0.001),
    },
    ("trajectory_resample", "resample"): {
        "the nearest sample": lambda real: nearest,
        "a later time": lambda real: lambda values, times, at: real(values, times, at + 1e-3),
    },
    ("layernorm", "torch_form"): {
        "an unbiased variance": lambda real: unbiased,
        "no epsilon": lambda real: lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, eps=0.0),
    },
    ("voxelize", "voxelize_torch"): {
        "a point lost": lambda real: lambda points, *rest: real(points[1:], *rest),
        "points outside pulled in": lambda real: lambda points, *rest: real(points.clamp(-3.999, 3.999), *rest),
        "points moved": lambda real: lambda points, *rest: real(points + 1e-3, *rest),
        "one count": counted(lambda counts, means: (bumped(counts, 1), means)),
        "one mean": counted(lambda counts, means: (counts, bumped(means, 1e-4))),
        "sums": counted(lambda counts, means: (counts, means * counts.unsqueeze(-1))),
        "axes swapped": counted(lambda counts, means: (counts.transpose(1, 2), means)),
    },
    ("decode_step", ATTENTION): {
        "groups mixed": lambda real: lambda query, *rest: real(query.roll(1, 1), *rest).roll(-1, 1),
        "without the oldest": lambda real: lambda query, k, v: real(query, k[:, :, 1:], v[:, :, 1:]),
    },
    ("decode_step", "step"): {"another position": unturned},
    ("multimodal_fusion", "fuse"): {
        "a word lost": lambda real: lambda image, lidar, text, *rest: real(image, lidar, text[:, :-1], *rest),
        "rows of another": lambda real: lambda image, lidar, *rest: real(image, lidar.roll(1, -1), *rest),
        "another gate": ungated,
        "half the heads": lambda real: lambda *given: real(*given[:-1], given[-1] // 2),
    },
    ("sparse_bsr_gemm", "bsr_gemm_torch"): {
        "transposed blocks": lambda real: lambda values, *rest: real(values.transpose(1, 2), *rest),
        "blocks displaced": lambda real: lambda v, rows, columns, *rest: real(v, rows, columns.roll(1), *rest),
        "a block lost": lambda real: lambda v, rows, columns, *rest: real(v[:-1], rows[:-1], columns[:-1], *rest),
    },
}


@pytest.mark.parametrize(
    ("place", "change"),
    [
        pytest.param(at, wrong, id=f"{at[0]}: {name}")
        for at, changes in WRONG.items()
        for name, wrong in changes.items()
    ],
)
def test_another_result_than_the_references_fails(place, change, monkeypatch):
    kernel, function = place
    assert fails(kernel, monkeypatch, **{function: change(getattr(MODULES[kernel], function))}) == "wrong"


def test_a_decode_step_that_does_not_append_reads_nan(monkeypatch):
    module = MODULES["decode_step"]
    source = Path(module.__file__).read_text()
    for line in ("keys[:, :, -1] = rotate(key, *turn)", "values[:, :, -1] = value"):
        assert line in source
        changed = {}
        exec(source.replace(line, "pass").split("def reference")[0], changed)
        assert fails("decode_step", monkeypatch, step=changed["step"]) == "nan"


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
