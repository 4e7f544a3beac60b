"""Kernels by their names: what stays the same from build to build, their labels, their families.

Each profiler demangles in its own way (`(int)4` and `<unnamed>::`; `4` and `at::` for `at::native::`; `(anonymous
namespace)::` and `{lambda()#2}`): all must give a kernel the same identity.
"""

import functools
import re
from dataclasses import dataclass
from typing import Literal

from perfci.model.text import printable, shorten

Family = Literal[
    "attention", "matrix multiply", "convolution", "cast", "copy", "gather", "reduction", "softmax", "normalisation",
    "sort", "fill", "collective", "elementwise", "triton", "",
]  # fmt: skip

WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
"""Bytes of an element."""
LONGEST = 48
"""Characters of a label: two with their numbers fit into a line."""

LAUNCHERS = frozenset(
    f"{kind}elementwise_kernel{more}"
    for kind in ("", "vectorized_", "unrolled_", "legacy_", "index_", "vectorized_templated_")
    for more in ("", "_with_index", "_for_multi_outputs", "_manual_unroll")
) | {"reduce_kernel", "reduce_1Block_kernel", "multi_tensor_apply_kernel", "FusedOptimizerTensorListMetadata"}
"""ATen/native/cuda/CUDALoops.cuh, Reduce.cuh: what they compute is a template argument."""
# Names are a stranger's: what stands between two words is bounded, so that no name takes time with its square.
_OPERATION = re.compile(r"\b(\w+?)_kernel(?:_cuda|_impl)?\b")
_FUNCTORS = (
    re.compile(r"\bCUDAFunctor(?:OnSelf|OnOther)?_(\w+)"),
    re.compile(r"\b([A-Za-z]\w*?)_?[Ff]unctor\w*"),
    re.compile(r"\b([A-Z]\w*?)Ops\b"),
    re.compile(r"\b([A-Z]\w*?)(?:CUDA)?Kernel(?:Impl)?\b"),
)
_WRAPPERS = frozenset({"gpu", "gpu_index", "aunary", "bunary", "unary", "binary", "cuda", "compare", "elementwise"})
_ANONYMOUS = re.compile(r"<unnamed>::|\(anonymous namespace\)::|_GLOBAL__N__\w{0,300}?::|_INTERNAL_\w{0,300}?::")
_TRITON = re.compile(r"triton_(?:poi|red|per|tem|mm|for|unk|split_scan)_|triton_")
_NUMBERED = re.compile(r"_\d+$")
_HASH = re.compile(r"_(?=[0-9a-f]*\d)[0-9a-f]{8,}$")
_SPECIALISED = re.compile(r"_(?=\d[\ddec]*\dd)\d[\ddec]*$")
"""Triton up to 2.1 appends which arguments are constants or divisible by 16: `add_0d1d2d3de`."""
_LAMBDA = re.compile(r"lambda\(([^()]*)\)")
_TYPES = (
    ("float8", re.compile(r"float8|e4m3|e5m2|\bfp8")),
    ("bfloat16", re.compile(r"bfloat16|bf16", re.I)),
    ("float16", re.compile(r"\bhalf|c10::half|float16|fp16|(?<![a-z])f16|__half", re.I)),
    ("float64", re.compile(r"\bdouble\b|float64|fp64")),
    ("float32", re.compile(r"\bfloat\b|float32|fp32")),
)
_ATTENTION = (
    ("cuDNN attention", re.compile(r"cudnn\w{0,300}(?:sdpa|fmha|mha|attention|flash)")),
    ("flash attention", re.compile(r"flash_?(?:fwd|bwd|attn|attention|fprop|mla)|flash::|flashattn")),
    ("memory-efficient attention", re.compile(r"fmha_cutlass|mem_?eff|attention_kernel_batched|\battentionkernel<")),
    ("flex attention", re.compile(r"flex_attention|flex_decoding")),
    ("fused attention", re.compile(r"fmha|attn_fwd|attn_bwd|paged_attention|fused_attention|fused_scaled_dot_product")),
)
_FAMILIES: tuple[tuple[Family, re.Pattern[str]], ...] = (
    ("collective", re.compile(r"nccl|nvshmem|allreduce|all_reduce|allgather|reduce_scatter")),
    ("convolution", re.compile(r"conv(?!ert)\w*|implicit_gemm|wgrad|dgrad|fprop|winograd")),
    ("matrix multiply", re.compile(r"nvjet|gemm|gemv|cutlass|matmul|splitkreduce|cublas|\bmm_kernel")),
    ("softmax", re.compile(r"softmax")),
    ("normalisation", re.compile(r"(?:layer|batch|group|rms)_?norm")),
    ("sort", re.compile(r"sort|topk|scan|histogram")),
    ("gather", re.compile(r"index|gather|scatter|embedding|take")),
    ("copy", re.compile(r"copy|catarray|transpose|permute")),
    ("fill", re.compile(r"fill|memset")),
    ("reduction", re.compile(r"reduce|reduction")),
    ("triton", re.compile(r"^triton_")),
    ("elementwise", re.compile(r"elementwise|pointwise")),
)
_LIBRARIES = (
    ("nvjet", re.compile(r"nvjet")),
    ("xmma", re.compile(r"xmma_gemm")),
    ("cutlass", re.compile(r"cutlass")),
    ("gemv", re.compile(r"gemv")),
    ("cuBLAS", re.compile(r"cublas|splitkreduce|(?:ampere|volta|turing|hopper|maxwell|blackwell)_\w{0,300}gemm")),
)
_TILE = re.compile(r"(?<![\dx])\d+x\d+(?:x\d+)?(?![\dx])")
_SCALAR_MATH = re.compile(r"ffma|simt|(?<![a-z])[sd]gemm|gemv|f32f32_f32f32_f32_(?!.*tensor)")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel by its name."""

    key: str
    """The same whatever was built and whichever tool saw it."""
    label: str
    """For people: one line, at most LONGEST characters."""
    family: Family
    attention: str
    """Of a fused attention."""
    from_library: str
    """Whose matrix multiply it is, if not one's own."""
    types: tuple[str, ...]
    """It works on, keys of WIDTH; empty where not told."""
    cast: tuple[str, str] | None
    """(from, to), keys of WIDTH or "", of a kernel that only converts."""
    scalar: bool
    """By its name a matrix multiply without tensor cores."""


@functools.lru_cache(maxsize=4096)
def identify(name: str) -> Kernel:
    """Identify a kernel by its demangled name, whatever text it is."""
    plain, base, arguments = parts(name)
    generic = base in LAUNCHERS
    operation = computed(arguments)[1] if generic else ""
    lower = plain.lower()
    types = _types(arguments, generic) if arguments else _types(plain, False)
    cast = _cast(plain, operation) if generic else None
    attention = next((kind for kind, pattern in _ATTENTION if pattern.search(lower)), "")
    # The arguments of a generic kernel name its loaders and iterators, those of any other one its types.
    telling = f"{base} {operation}".lower() if generic else lower.split("(")[0]
    family: Family = "attention" if attention else "cast" if cast else _family(operation.lower() or telling, telling)
    library = next((kind for kind, pattern in _LIBRARIES if family == "matrix multiply" and pattern.search(lower)), "")
    if cast:
        key = label = f"cast to {cast[1]}" if cast[1] else "cast"
    elif operation:
        key, label = f"torch {operation}", operation
    elif library:
        inner = re.search(r"\bcutlass_\w+", arguments)
        key, label = (inner[0] if inner else base), _library_label(library, plain)
    else:
        key = label = _stable(base)
    scalar = family == "matrix multiply" and bool(_SCALAR_MATH.search(lower))
    return Kernel(key, _short(label), family, attention, library, types, cast, scalar)


def spaced(name: str) -> str:
    """Return `name` in one line, with single spaces."""
    return " ".join(printable(name).split())


def parts(name: str) -> tuple[str, str, str]:
    """Return `name` without return type and anonymous namespaces; its function; the rest."""
    plain = _ANONYMOUS.sub("", spaced(name))
    plain = plain.removeprefix("void ").replace("at::native::", "at::")
    head = re.split(r"[<(\[{]", plain, maxsplit=1)[0].strip() or plain
    return plain, head.rsplit("::", 1)[-1] or head, plain[len(head) :]


def computed(arguments: str) -> tuple[str, str]:
    """Return what a generic kernel computes, spelt and as a word: (`lerp_tensor_kernel`, `lerp_tensor`),
    (`CUDAFunctor_add`, `add`)."""
    for match in _OPERATION.finditer(arguments):
        if match[1].lower() not in _WRAPPERS:
            return match[0], match[1]
    for pattern in _FUNCTORS:
        for match in pattern.finditer(arguments):
            if match[1] and match[1].lower() not in _WRAPPERS:
                return match[0], match[1].lower()
    return "", ""


def _types(text: str, generic: bool) -> tuple[str, ...]:
    """The last lambda that takes any tells them."""
    if generic:
        lambdas = [types for match in _LAMBDA.finditer(text) if (types := _types(match[1], False))]
        if lambdas:
            return lambdas[-1]
    found: list[str] = []
    for name, pattern in _TYPES:
        if pattern.search(text):
            found.append(name)
            text = pattern.sub("", text)  # bfloat16 holds float16
    return tuple(found)


def _cast(plain: str, operation: str) -> tuple[str, str] | None:
    """Of PyTorch's conversions (ATen/native/cuda/Copy.cu): the element loader that casts, or the kernel of one target
    type whose lambda takes another."""
    if "copy" not in operation:
        return None
    takes = _types(plain, True)
    given = takes[0] if len(takes) == 1 else ""
    to_float = re.match(r"(bfloat16|float16)tofloat32_copy", operation)
    if to_float:
        return to_float[1], "float32"
    narrow = re.match(r"(bfloat16|float16|float8)\w*_copy", operation)
    if narrow:
        return (given, narrow[1]) if given and given != narrow[1] else None
    return ("", given) if "WithCast" in plain else None


def _family(*texts: str) -> Family:
    return next((kind for text in texts for kind, pattern in _FAMILIES if pattern.search(text)), "")


def _stable(base: str) -> str:
    """Without hashes, Triton's numbers and specialisations."""
    for pattern in (_HASH, _SPECIALISED):
        base = pattern.sub("", base) or base
    if _TRITON.match(base):
        base = _NUMBERED.sub("", base) or base
    return base


def _library_label(library: str, plain: str) -> str:
    tile = _TILE.search(plain)
    return f"{library} {tile[0]}" if tile else library


def _short(label: str) -> str:
    return shorten(label.replace("`", "'").strip() or "?", LONGEST)
