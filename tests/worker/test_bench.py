"""Inputs: equal in base and head, placed anew, and a digest that sees every change."""

import json
import math
import os
import random
import subprocess
import sys

import pytest

from perfci.worker import bench as bench_module
from perfci.worker.bench import Bench, prepare
from perfci.worker.declare import collecting, kernel

torch = pytest.importorskip("torch")

FLOATS = ["bf16", "fp16", "fp32", "fp64", "float8_e4m3fn", "complex64"]

DRAW = """
import json, sys
from perfci.worker.bench import Bench
drawn = []
for placement in range(2):
    bench = Bench("cpu", 7, placement)
    x = bench.randn(33, 65, dtype="bf16")
    bench.randint(-5, 5, 1000)
    bench.rand(17, low=2.0, high=3.0)
    bench.tensor([[1, 2], [3, 4]], dtype="int32")
    bench.random.shuffle(list(range(10)))
    drawn.append([bench.inputs_digest(), x.data_ptr() % 4096])
print(json.dumps(drawn))
"""


HEAP = """
import json, os
from array import array
from perfci.worker.bench import Bench
offsets = []
for placement in range(12):
    read, write = os.pipe()
    if os.fork() == 0:
        bench = Bench("cpu", 7, placement)
        arrays = [array("d", bytes(size)) for size in (16 << 10, 64 << 10, 100_000)]
        os.write(write, json.dumps([one.buffer_info()[0] % 4096 for one in arrays]).encode())
        os._exit(0)
    offsets.append(json.loads(os.read(read, 1000)))
    os.wait()
print(json.dumps(offsets))
"""


def draw_in_process(hash_seed):
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    out = subprocess.run([sys.executable, "-c", DRAW], env=env, check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


@pytest.mark.slow
def test_two_processes_draw_the_same_inputs_at_the_same_offsets():
    """Base and head must measure the same work; hash() differs between processes and must not matter."""
    first, second = draw_in_process(hash_seed=1), draw_in_process(hash_seed=2)
    assert first == second
    assert first[0][0] != first[1][0]


def test_placements_move_tensors_within_a_page_and_change_their_values():
    tensors = [Bench("cpu", 0, placement).randn(1000) for placement in range(16)]
    offsets = {tensor.storage_offset() for tensor in tensors}
    assert len(offsets) > 8
    assert all(tensor.data_ptr() % 64 == 0 and tensor.is_contiguous() for tensor in tensors)
    assert len({float(tensor[0]) for tensor in tensors}) == 16


def test_placements_move_what_a_case_allocates_without_bench():
    """Where arrays and lists lie decides over a quarter of the time of some kernels, and head's need not lie where
    base's do."""
    out = subprocess.run([sys.executable, "-c", HEAP], check=True, capture_output=True, text=True)
    drawn = json.loads(out.stdout)
    assert all(len({offsets[number] for offsets in drawn}) > 6 for number in range(3)), drawn


def test_each_tensor_has_padding_before_it_that_lives_as_long_as_the_bench():
    bench = Bench("cpu", 0, 0)
    for _ in range(5):
        bench.zeros(10)
    sizes = [pad.numel() for pad in bench._pads]
    assert len(sizes) == 5 and len(set(sizes)) > 1
    assert all(512 <= size <= 64 * 2**10 for size in sizes)


def test_the_first_tensors_stay_when_another_is_drawn_behind_them():
    """A new input of head must not change the values of the old ones."""
    short, long = Bench("cpu", 0, 0), Bench("cpu", 0, 0)
    first = short.randn(10)
    again = long.randn(10)
    long.randn(10)
    assert torch.equal(first, again)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floating_types_are_drawn_with_unit_variance(dtype):
    x = Bench("cpu", 3, 0).randn(200, 200, dtype=dtype)
    assert x.dtype == Bench("cpu", 0, 0).dtype(dtype)
    wide = x.to(torch.complex128) if x.is_complex() else x.double()
    parts = torch.view_as_real(wide) if x.is_complex() else wide
    assert abs(parts.mean()) < 0.03
    assert abs(parts.std() - 1) < 0.03


def test_half_types_round_the_values_of_float32():
    wide, half = Bench("cpu", 3, 0).randn(1000), Bench("cpu", 3, 0).randn(1000, dtype="bf16")
    assert torch.equal(wide.to(torch.bfloat16), half)


def test_ranges_of_rand_and_randint():
    bench = Bench("cpu", 0, 0)
    x = bench.rand(10_000, low=-2.0, high=5.0)
    assert -2 <= x.min() < -1.9 and 4.9 < x.max() < 5
    for dtype in ("int64", "int32", "uint8", "fp32"):
        i = bench.randint(3, 7, 10_000, dtype=dtype)
        assert sorted(set(i.tolist())) == [3, 4, 5, 6]
    assert bench.randint(0, 2, 100, dtype="bool").dtype == torch.bool


def test_shapes_come_as_numbers_or_as_one_tuple():
    bench = Bench("cpu", 0, 0)
    assert bench.randn(2, 3).shape == bench.randn((2, 3)).shape == bench.full((2, 3), 1.5).shape
    assert bench.randn(()).shape == ()
    assert bench.empty(0, 4).shape == (0, 4)
    assert bench.randn(2, 3, 4).stride() == (12, 4, 1)
    assert bench.shapes()[:2] == ["randn float32[2, 3]", "randn float32[2, 3]"]
    assert len(bench.inputs_digest()) == 64


def test_tensor_copies_what_it_gets():
    source = torch.arange(6).reshape(2, 3).t()
    copy = Bench("cpu", 0, 0).tensor(source)
    assert torch.equal(copy, source) and copy.is_contiguous()
    source.zero_()
    assert copy.sum() == 15


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "bool"])
def test_outputs_are_poisoned_only_on_request(dtype):
    poisoned = Bench("cpu", 0, 0, poison=True).empty(64, dtype=dtype)
    if poisoned.is_floating_point() or poisoned.is_complex():
        assert bool(torch.isnan(poisoned.to(torch.complex128)).all())
    else:
        assert bool((poisoned == (1 if dtype == "bool" else -1)).all())


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("size", [1, 3, 1_000_003])
def test_the_digest_sees_a_change_of_any_one_element(dtype, size):
    """Beyond the sample, the sum over all bytes must see it."""
    bench = Bench("cpu", 0, 0)
    x = bench.zeros(size, dtype=dtype)
    before = bench.inputs_digest()
    for index in {0, size // 2, size - 1}:
        x[index] = 1
        assert bench.inputs_digest() != before
        x[index] = 0
        assert bench.inputs_digest() == before


def test_the_digest_sees_types_shapes_order_and_plain_random_numbers():
    def digest(draw):
        bench = Bench("cpu", 0, 0)
        draw(bench)
        return bench.inputs_digest()

    digests = [
        digest(lambda b: b.zeros(4, 2)),
        digest(lambda b: b.zeros(2, 4)),
        digest(lambda b: b.zeros(2, 4, dtype="int32")),
        digest(lambda b: (b.zeros(2, 4), b.randn(3))),
        digest(lambda b: (b.randn(3), b.zeros(2, 4))),
        digest(lambda b: None),
        digest(lambda b: b.random.random()),
        digest(lambda b: (b.random.random(), b.random.random())),
    ]
    assert len(set(digests)) == len(digests)


def test_the_digest_leaves_out_what_outputs_hold():
    bench = Bench("cpu", 0, 0)
    out = bench.empty(10)
    before = bench.inputs_digest()
    out.fill_(3)
    assert bench.inputs_digest() == before


def test_global_generators_are_seeded_before_a_case_is_built():
    drawn = []

    def case(bench):
        drawn.append((random.random(), float(torch.rand(()))))
        return lambda: None

    with collecting() as kernels:
        kernel()(case)
    for seed, placement in [(0, 0), (0, 0), (0, 1), (1, 0)]:
        prepare(kernels[0], {}, "cpu", seed, placement)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_work_is_declared_once_in_finite_numbers():
    bench = Bench("cpu", 0, 0)
    assert bench.declared_work() == {"flops": 0.0, "read": 0.0, "written": 0.0, "items": 0.0, "item": "items"}
    for bad in (-1, math.inf, math.nan, "3", True, None):
        with pytest.raises(ValueError, match=r"^bench\.work\(read=…\): .* is no finite number of at least 0$"):
            bench.work(read=bad)
    bench.work(flops=2 * 8192**3, items=3, item="tokens")
    assert bench.declared_work()["flops"] == 2 * 8192**3
    assert bench.declared_work()["item"] == "tokens"
    with pytest.raises(ValueError, match="called before"):
        bench.work(read=1)


def test_a_reference_is_declared_once_and_is_not_called():
    bench = Bench("cpu", 0, 0)
    with pytest.raises(TypeError, match=r"write bench\.reference\(lambda: …\)"):
        bench.reference(torch.ones(1))
    for bad in (-1e-3, math.nan, math.inf):
        with pytest.raises(ValueError, match="no finite number"):
            bench.reference(lambda: 1, rtol=bad)
    bench.reference(lambda: pytest.fail("called"), rtol=1e-3, atol=1e-5)
    assert (bench.declared_reference().rtol, bench.declared_reference().atol) == (1e-3, 1e-5)
    with pytest.raises(ValueError, match="called before"):
        bench.reference(lambda: 1)


def test_a_kernel_function_that_returns_no_function_is_told_so():
    def sum_of(bench):
        return bench.randn(3).sum()

    def forgot(bench):
        bench.randn(3)

    with collecting() as kernels:
        kernel()(sum_of)
        kernel()(forgot)
    for one, what in zip(kernels, ["a Tensor", "nothing"], strict=True):
        with pytest.raises(TypeError) as caught:
            prepare(one, {}, "cpu", 0, 0)
        assert f"{one.file}:{one.line}: {one.name}() returned {what}: return the function" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_unknown_dtypes_are_named():
    with pytest.raises(ValueError, match="'float99' is no dtype"):
        Bench("cpu", 0, 0).randn(3, dtype="float99")
    with pytest.raises(ValueError, match="'nn' is no dtype"):
        Bench("cpu", 0, 0).dtype("nn")


def test_release_frees_inputs_although_the_reference_refers_to_the_bench():
    import weakref

    bench = Bench("cpu", 0, 0)
    gone = weakref.ref(bench.randn(10))
    bench.reference(lambda: bench)
    assert gone() is not None
    bench.release()
    assert gone() is None


def test_seeds_depend_on_every_part():
    seeds = {
        bench_module.Bench("cpu", s, p)._integer(purpose) for s in (1, 11) for p in (1, 11) for purpose in ("1", "11")
    }
    assert len(seeds) == 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_inputs_lie_there_and_host_tensors_do_not():
    bench = Bench("cuda", 0, 0, poison=True)
    assert bench.randn(1000, dtype="fp16").is_cuda and bench.randint(0, 9, 10).is_cuda
    assert bool(torch.isnan(bench.empty(10)).all())
    host, pinned = bench.randn(10, host=True), bench.randn(10, pinned=True)
    assert not host.is_cuda and not host.is_pinned() and pinned.is_pinned()
    again = Bench("cuda", 0, 0, poison=True)
    again.randn(1000, dtype="fp16"), again.randint(0, 9, 10), again.empty(10)
    again.randn(10, host=True), again.randn(10, pinned=True)
    assert again.inputs_digest() == bench.inputs_digest()
    addresses = set()
    for placement in range(8):
        one = Bench("cuda", 0, placement)
        addresses.add(one.randn(1000).data_ptr() % 2**20)
    assert len(addresses) > 3
