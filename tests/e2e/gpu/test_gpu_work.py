"""`perfci explain` on a GPU: what gives it the same work is told so, and every planted change is not."""

import json
import re
from typing import NamedTuple

import pytest

from tests.e2e.conftest import Repo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.usefixtures("gpu")]

CUDA = """
#include <cuda_runtime.h>
#include <cuda_fp16.h>
EXTRA
__global__ void work(const float *x, float *y, int n, float by) {
    EARLY
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = BODY;
}
BEHIND
extern "C" int start(const float *x, float *y, int n, float by, cudaStream_t stream) {
    LAUNCH
    return (int)cudaGetLastError();
}
"""
LAUNCH = "work<<<256, 128, 0, stream>>>(x, y, n, by);"
TABLE = "__device__ float table[4] = {1, 2, 3, 4};"
CONFIGURED = """cudaLaunchConfig_t config = {}; config.gridDim = 256; config.blockDim = 128; config.stream = stream;
    cudaLaunchAttribute one[1]; config.attrs = one; config.numAttrs = 1; ATTRIBUTE
    if (cudaError_t e = cudaLaunchKernelEx(&config, work, x, y, n, by)) return (int)e;"""
CLUSTER = "one[0].id = cudaLaunchAttributeClusterDimension; one[0].val.clusterDim.x = {}; \\\n" \
          "    one[0].val.clusterDim.y = one[0].val.clusterDim.z = 1;"  # fmt: skip
SHARED = "cudaFuncSetAttribute(work, cudaFuncAttributeMaxDynamicSharedMemorySize, {});" + LAUNCH


class Extension(NamedTuple):
    """A kernel in CUDA C++, and what head changes in it."""

    old: str = ""
    new: str = ""
    body: str = "x[i] * by"
    launch: str = LAUNCH
    extra: str = ""
    early: str = ""
    flags: tuple[str, str] = ("", "")

    def source(self) -> str:
        parts = {"EXTRA": self.extra, "EARLY": self.early, "BODY": self.body, "LAUNCH": self.launch, "BEHIND": ""}
        text = CUDA
        for name, part in parts.items():
            text = text.replace(name, part)
        assert self.old in text
        return text


CALLEE = "__device__ __noinline__ float callee(float v) { return v * 2.f; }"
CONSTANT = "__constant__ float table[4] = {1, 2, 3, 4};"
SET = (
    "static bool once = [] { float v[4] = {5, 6, 7, 8}; return cudaMemcpyToSymbol(table, v, 16) == 0; }(); (void)once; "
)
TWICE = "cudaMemsetAsync(y, 0, 4096, stream);" + LAUNCH
HOST = "cudaLaunchHostFunc(stream, [](void *) {}, nullptr);" + LAUNCH
CHANGED = {
    "constant": Extension("x[i] * by", "x[i] * by + 1.f"),
    "grid": Extension("<<<256", "<<<512"),
    "block": Extension("128, 0", "256, 0"),
    "shared": Extension("128, 0, stream", "128, 1024, stream"),
    "callee": Extension("v * 2.f", "v * 3.f", body="callee(x[i])", extra=CALLEE),
    "constant_memory": Extension("{1, 2", "{1, 3", body="x[i] * table[i & 3]", extra=CONSTANT),
    "device_table": Extension("{1, 2", "{1, 3", body="x[i] * table[i & 3]", extra=TABLE),
    "copied_to_symbol": Extension("{5, 6", "{5, 9", body="x[i] * table[i & 3]", extra=CONSTANT, launch=SET + LAUNCH),
    "registers": Extension(
        body="powf(x[i], by) * sinf(x[i]) + cosf(by * x[i]) * tanf(x[i]) + lgammaf(x[i])",
        flags=("", "-maxrregcount=16"),
    ),
    "fast_math": Extension(body="sinf(x[i]) / by", flags=("", "-use_fast_math")),
    "architecture": Extension(flags=("-arch=sm_90", "-arch=sm_80")),
    "bounds": Extension("float by) {", "float by) { ", flags=("", "-DBOUND")),
    "cluster": Extension("x = 1;", "x = 2;", launch=CONFIGURED.replace("ATTRIBUTE", CLUSTER.format(1))),
    "cooperative": Extension(
        "cooperative = 0", "cooperative = 1",
        launch=CONFIGURED.replace("ATTRIBUTE", "one[0].id = cudaLaunchAttributeCooperative; one[0].val.cooperative = 0;"),
    ),
    "priority": Extension(
        "priority = 0", "priority = -2",
        launch=CONFIGURED.replace("ATTRIBUTE", "one[0].id = cudaLaunchAttributePriority; one[0].val.priority = 0;"),
    ),
    "most_shared": Extension("16384", "32768", launch=SHARED.format(16384)),
    "memset": Extension("y, 0, 4096", "y, 1, 4096", launch=TWICE),
    "memset_size": Extension("y, 0, 4096", "y, 0, 8192", launch=TWICE),
    "value": Extension("n, by);", "n, by + 1.f);"),
    "host_node": Extension(launch=HOST),
    "lines": Extension(flags=("", "-lineinfo")),
    "another_kernel": Extension("// none", "__global__ void other(float *y) { y[0] = 1; }", extra="// none"),
    "another_behind": Extension(),
    "printf": Extension(
        '"a"', '"bcd"', extra="#include <cstdio>", early='if (n == 1) printf("a");',
    ),
}  # fmt: skip
SAME = {
    "rebuilt": Extension(),
    "comment": Extension("one comment", "another comment", extra="// one comment"),
    "docstring": Extension(),
    # All that it may call stands in its own machine code.
    "indirect": Extension(
        extra="typedef float (*F)(float); __device__ float f(float v) { return v; } __device__ F table[1] = {f};",
        body="table[n == 7 ? 1 : 0](x[i])",
    ),
}
TORCH = '''
import ctypes, os, sys
import perfci
import torch
import triton
import triton.language as tl

N = 1 << 16

def library(name):
    path = next(p for p in (os.path.join(f, "lib%s.so" % name) for f in sys.path) if os.path.exists(p))
    start = ctypes.CDLL(path).start
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_void_p]
    return start

@perfci.kernel(devices=["cuda"], params={"name": NAMES})
def extension(bench, name):
    """A docstring."""
    start, x, y = library(name), bench.randn(N), bench.empty(N)
    def launch():
        if error := start(x.data_ptr(), y.data_ptr(), N, 2.0, torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("CUDA error %d" % error)
        return y
    return launch

@triton.jit
def _scaled(x, y, n, BLOCK: tl.constexpr, BY: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * BY, mask=at < n)

def scaled(bench, block, by, warps=4):
    x, y = bench.randn(N), bench.empty(N)
    return lambda: (_scaled[(triton.cdiv(N, block),)](x, y, N, block, by, num_warps=warps), y)[1]

def both(x, y, apart):
    here, other = torch.cuda.current_stream(), OTHER
    a = x * 2
    if apart:
        other.wait_stream(here)
        with torch.cuda.stream(other):
            b = y * 3
        here.wait_stream(other)
    else:
        b = y * 3
    return a + b

OTHER = torch.cuda.Stream()

class Driver:
    """What torch has no calls for."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        def call(*arguments):
            assert getattr(self.cuda, name)(*arguments) == 0, name
        return call

driver, word = Driver(), ctypes.c_uint64

def of_few(multiprocessors):
    """A stream on so many multiprocessors."""
    torch.cuda.init()
    whole, some, rest = ((ctypes.c_ubyte * 144)() for _ in range(3))
    driver.cuDeviceGetDevResource(0, whole, 1)
    groups, what, context, stream = ctypes.c_uint(1), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.cuDevSmResourceSplitByCount(some, ctypes.byref(groups), whole, rest, 0, multiprocessors)
    driver.cuDevResourceGenerateDesc(ctypes.byref(what), some, 1)
    driver.cuGreenCtxCreate(ctypes.byref(context), what, 0, 1)
    driver.cuGreenCtxStreamCreate(ctypes.byref(stream), context, 1, 0)
    return torch.cuda.ExternalStream(stream.value)

def on(stream, x):
    here = torch.cuda.current_stream()
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        y = x * 2
    here.wait_stream(stream)
    return y

SIZE = 2 << 20

def mapped(compressed, pieces):
    """A tensor of 4 MiB on mapped memory, of two pieces or of one that is mapped twice."""
    class Properties(ctypes.Structure):
        _fields_ = [("ints", ctypes.c_int * 4), ("none", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
    made = Properties()
    made.ints[0], made.ints[2], made.flags[0] = 1, 1, compressed
    begin, handles = word(), [word() for _ in range(pieces)]
    driver.cuMemAddressReserve(ctypes.byref(begin), ctypes.c_size_t(2 * SIZE), ctypes.c_size_t(0), word(0), word(0))
    for handle in handles:
        driver.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(SIZE), ctypes.byref(made), word(0))
    for at in range(2):
        piece = handles[at % pieces]
        driver.cuMemMap(word(begin.value + at * SIZE), ctypes.c_size_t(SIZE), ctypes.c_size_t(0), piece, word(0))
    access = (ctypes.c_int * 3)(1, 0, 3)
    driver.cuMemSetAccess(begin, ctypes.c_size_t(2 * SIZE), access, ctypes.c_size_t(1))
    class Holder:
        __cuda_array_interface__ = {
            "shape": (2 * SIZE // 4,), "typestr": "<f4", "data": (begin.value, False), "version": 3
        }
    return torch.as_tensor(Holder(), device="cuda").fill_(1)

def moved(bench, first):
    return bench.randn(N)[first : first + 1024]

WORKS = {
    "triton_same": lambda bench: scaled(bench, 1024, 2.0),
    "triton_block": lambda bench: scaled(bench, PICK(1024, 512), 2.0),
    "triton_value": lambda bench: scaled(bench, 1024, PICK(2.0, 3.0)),
    "triton_warps": lambda bench: scaled(bench, 1024, 2.0, PICK(4, 8)),
    "dtype": lambda bench: (lambda x: lambda: x * 2)(bench.randn(N, dtype=PICK(torch.float32, torch.float16))),
    "extra_copy": lambda bench: (lambda x: lambda: PICK(x, x.clone()) * 2)(bench.randn(N)),
    "copied": lambda bench: (lambda x: (lambda: x * 2) if PICK(True, False) else (lambda: x.clone() * 2))(bench.randn(N)),
    "slice": lambda bench: (lambda x: lambda: x * 2)(moved(bench, PICK(4, 5))),
    "index": lambda bench: (lambda x, i: lambda: x.index_select(0, i))(
        bench.randn(N), torch.arange(100, device="cuda") + PICK(0, 1)
    ),
    "index_same": lambda bench: (lambda x, i: lambda: x.index_select(0, i))(
        bench.randn(N), torch.arange(100, device="cuda")
    ),
    "streams": lambda bench: (lambda x, y: lambda: both(x, y, PICK(True, False)))(bench.randn(N), bench.randn(N)),
    "streams_same": lambda bench: (lambda x, y: lambda: both(x, y, True))(bench.randn(N), bench.randn(N)),
    "tf32": lambda bench: product(bench, torch.float32, PICK("highest", "high")),
    "product": lambda bench: product(bench, torch.float32, "highest"),
    "product_bf16": lambda bench: product(bench, torch.bfloat16, "highest"),
    "transposed": lambda bench: (lambda a, b: lambda: a @ PICK(b, b.t()))(
        bench.randn(512, 512), bench.randn(512, 512)
    ),
    "sum": lambda bench: (lambda x: lambda: x.sum())(bench.randn(N)),
    "sort": lambda bench: (lambda x: lambda: x.sort())(bench.randn(512, 128)),
    "softmax": lambda bench: (lambda x: lambda: x.softmax(-1))(bench.randn(512, 128)),
    "embedding": lambda bench: embedded(bench),
    "from_host": lambda bench: (lambda x: lambda: x.to("cuda", non_blocking=True) * 2)(
        torch.ones(N).mul_(PICK(1, 2)).pin_memory()
    ),
    "multiprocessors": lambda bench: (lambda x, some: lambda: on(some, x))(bench.randn(N), of_few(PICK(64, 16))),
    "uncompressed": lambda bench: (lambda x: lambda: x * 2)(mapped(PICK(1, 0), 2)),
    "mapped_twice": lambda bench: (lambda x: lambda: x * 2)(mapped(0, PICK(1, 2))),
    "later_draws": lambda bench: (lambda x: lambda: x * 2)(bench.randn(N * (PICK(1, 4) if seldom() else 1))),
    "later_values": lambda bench: (lambda x, i: lambda: x.index_select(0, i))(
        bench.randn(N), torch.arange(N, device="cuda") * (PICK(1, 7) if seldom() else 1) % N
    ),
    "allocated": lambda bench: (lambda x: lambda: x[:1024] * 2)(bench.randn(PICK(2048, 4096))),
    # The last by its name, since whatever follows has that, too.
    "with_environment": lambda bench: (lambda x: lambda: x * 2)(setting(bench.randn(N))),
}

ASKED = []

def seldom():
    """In every second draw."""
    ASKED.append(None)
    return len(ASKED) % 2 == 0

def setting(x):
    driver_of_c.setenv(b"SOME_LIBRARY_ASKS", PICK(b"base", b"head"), 1)
    return x

driver_of_c = ctypes.CDLL(None)

def product(bench, dtype, precision):
    a, b = bench.randn(1024, 1024, dtype=dtype), bench.randn(1024, 1024, dtype=dtype)
    def multiply():
        torch.set_float32_matmul_precision(precision)
        try:
            return a @ b
        finally:
            torch.set_float32_matmul_precision("highest")
    return multiply

def embedded(bench):
    weight, ids = bench.randn(1000, 64).requires_grad_(), torch.arange(4096, device="cuda") % 1000
    return lambda: torch.autograd.grad(torch.nn.functional.embedding(ids, weight).sum(), weight)[0]

def PICK(base, head):
    return base

@perfci.kernel(devices=["cuda"], params={"name": list(WORKS)})
def work(bench, name):
    return WORKS[name](bench)
'''
TORCH_SAME = {"triton_same", "streams_same", "product", "product_bf16", "sum", "sort", "softmax"}
AT_TIMES = {"index_same", "embedding"}
"""The same, but what an operator's own calls leave in the padding of a launch is not shown to be padding."""
BUILD = """
for f in *.cu; do
    n=${f%.cu}
    nvcc -shared -Xcompiler -fPIC -std=c++17 $(cat $n.flags) $f -o "$PERFCI_SITE/lib$n.so" &
done
wait
for f in *.cu; do [ -f "$PERFCI_SITE/lib${f%.cu}.so" ] || exit 1; done
"""


def write(repo: Repo, head: bool) -> None:
    extensions = CHANGED | SAME
    repo.write("perfci.yaml", "version: 1\nsuite: [k.py]\nbuild: [sh build.sh]\n")
    repo.write("build.sh", BUILD)
    for name, one in extensions.items():
        source = one.source()
        if head and one.old:
            source = source.replace(one.old, one.new)
        if head and name == "another_behind":
            source += "__global__ void last(float *y) { y[0] = 2; }\n"
        if name == "bounds":
            bound = "__launch_bounds__(128, 16) " if head else ""
            source = source.replace("void work(", f"void {bound}work(")
        source = re.sub(r"\bwork\b", f"work_{name}", source)  # libraries with kernels of one name are not told apart
        repo.write(f"{name}.cu", source)
        flags = one.flags[head]
        repo.write(f"{name}.flags", flags if "-arch" in flags else f"-arch=sm_90 {flags}")
    text = TORCH.replace("NAMES", json.dumps(list(extensions)))
    if head:
        text = text.replace("    return base\n", "    return head\n").replace("A docstring.", "Another docstring.")
    repo.write("k.py", text)


def test_equal_work_is_told_and_no_planted_change_is_taken_for_it(repo: Repo) -> None:
    write(repo, head=False)
    repo.commit("base")
    write(repo, head=True)
    run = repo.perfci("explain", "-k", "*", "--base", "HEAD", "--json", timeout=800)
    print(run.err[-3000:])
    found = {case.partition("name=")[2]: one for case, one in json.loads(run.out).items()}
    for name, one in found.items():
        print(name, "|", one["why_not"] or "the same", "|", len(one["work"].get("base", [])))
    same = {name for name, one in found.items() if not one["why_not"]}
    expected = {*SAME, *TORCH_SAME}
    assert found.keys() >= expected | CHANGED.keys()
    assert same - expected - AT_TIMES == set(), "planted changes are never the same work"
    assert expected - same == set(), {name: found[name]["why_not"] for name in expected - same}
