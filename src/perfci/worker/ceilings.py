"""The most that this device does, measured: the speed of light, beyond which a time is not believed
(perfci/judge/speed_of_light.py). Takes half a second on a GPU."""

from __future__ import annotations

import functools
import time
from typing import Any, Callable

GPU_BYTES = 2**30
"""Twenty times the largest L2, half a millisecond at 4 TB/s."""
GPU_MATMUL = 8192
"""cuBLAS reaches its best from some 4096 on."""
HOST_BYTES = 64 * 2**20
CPU_BYTES = 256 * 2**20
"""More than the last cache of a CPU."""
CPU_MATMUL = 512
REPEATS = 7
LONG = 10e-3
"""Seconds from which an execution is repeated only twice."""
FP4_FACTOR = 4.0
"""Tensor cores from Blackwell on take 4-bit numbers, torch.matmul does not: their dense rate is at most this many
times that of 8 bits (B200: 9 and 4.5 PFLOP/s, B300: 15 and 4.5; NVIDIA's data sheets)."""

Timer = Callable[[Callable[[], Any]], float]
Rate = dict[str, Any]


def measure(device: str) -> dict[str, Any]:
    """Measure the ceilings of `device` ("cuda" or "cpu", with torch's current threads).

    Returns `{"device", "read", "copied", "matmul": {dtype: …}, "to_device", "to_host", "seconds"}`. A rate is
    `{"value": float, "how": str}` in bytes or floating-point operations per second, or `{"value": None, "reason":
    str}`. `copied` counts bytes read and written; `to_device` and `to_host` are of pinned memory, None on the CPU.
    """
    start = time.perf_counter()
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        nothing = _missing("torch is not installed")
        found: dict[str, Any] = {"read": nothing, "copied": nothing, "matmul": {}, "to_device": None, "to_host": None}
    else:
        with torch.inference_mode():
            found = _gpu(torch) if device.startswith("cuda") else _cpu(torch)
    return {"device": device, **found, "seconds": time.perf_counter() - start}


def _gpu(torch: Any) -> dict[str, Any]:
    def timer(fn: Callable[[], Any]) -> float:
        return _best_of_events(torch, fn)

    try:
        return {
            **_memory(torch, timer, "cuda", GPU_BYTES),
            "matmul": _matmuls(torch, timer, "cuda", GPU_MATMUL),
            "to_device": _link(torch, timer, True),
            "to_host": _link(torch, timer, False),
        }
    finally:
        torch.cuda.empty_cache()


def _cpu(torch: Any) -> dict[str, Any]:
    matmul = _matmuls(torch, _best_of_calls, "cpu", CPU_MATMUL)
    return {**_memory(torch, _best_of_calls, "cpu", CPU_BYTES), "matmul": matmul, "to_device": None, "to_host": None}


def _memory(torch: Any, timer: Timer, device: str, size: int) -> dict[str, Rate]:
    """Reading is at least as fast as the copy, which reads while it writes."""
    try:
        source = torch.ones(size // 4, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
    except RuntimeError as error:
        nothing = _missing(f"no room for {2 * size / 2**30:.2g} GiB: {_line(error)}")
        return {"read": nothing, "copied": nothing}
    half = source.numel() // 2
    copy = _rate(2 * size, timer, lambda: target.copy_(source), "copy")
    ways = {
        "sum": lambda: torch.sum(source),
        "max": lambda: torch.amax(source),
        "dot product": lambda: torch.dot(source[:half], source[half:]),
    }
    read = [_rate(size, timer, fn, name) for name, fn in ways.items()]
    return {"read": max([*read, copy], key=lambda rate: rate["value"] or 0.0), "copied": copy}


def _matmuls(torch: Any, timer: Timer, device: str, size: int) -> dict[str, Rate]:
    flops = 2.0 * size**3
    found: dict[str, Rate] = {}
    on_gpu = device == "cuda"
    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32 if on_gpu else False
    kinds = [("bf16", torch.bfloat16), ("fp32", torch.float32)]
    # No CPU does fp16 faster than bf16, and many do it in software.
    kinds += [("fp16", torch.float16), ("tf32", torch.float32)] if on_gpu else [("fp64", torch.float64)]
    try:
        for name, dtype in kinds:
            if on_gpu:
                settings.allow_tf32 = name == "tf32"
            try:
                a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
            except RuntimeError as error:
                found[name] = _missing(_line(error))
                continue
            out = torch.empty_like(a)
            found[name] = _rate(flops, timer, functools.partial(torch.mm, a, b, out=out), f"{size}³")
    finally:
        if on_gpu:
            settings.allow_tf32 = before
    found["int8"] = _int8(torch, timer, device, size, flops)
    if on_gpu:
        found["fp8"] = _fp8(torch, timer, size, flops)
        narrow = found["fp8"]["value"] or 0.0
        if torch.cuda.get_device_capability()[0] >= 10 and narrow:
            found["fp4"] = {"value": FP4_FACTOR * narrow, "how": f"at most {FP4_FACTOR:g} times fp8"}
    return found


def _int8(torch: Any, timer: Timer, device: str, size: int, flops: float) -> Rate:
    if not hasattr(torch, "_int_mm"):
        return _missing("this torch has no _int_mm")
    a = torch.randint(-8, 8, (size, size), device=device, dtype=torch.int8)
    return _rate(flops, timer, lambda: torch._int_mm(a, a.t()), f"{size}³")


def _fp8(torch: Any, timer: Timer, size: int, flops: float) -> Rate:
    dtype = getattr(torch, "float8_e4m3fn", None)
    if dtype is None or not hasattr(torch, "_scaled_mm"):
        return _missing("this torch has no _scaled_mm")
    try:
        a = torch.randn(size, size, device="cuda").to(dtype)
        b = torch.randn(size, size, device="cuda").to(dtype).t()  # cuBLAS wants the second one by columns
        one = torch.ones((), device="cuda")
    except RuntimeError as error:
        return _missing(_line(error))
    return _rate(
        flops,
        timer,
        lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True),
        f"{size}³",
    )


def _link(torch: Any, timer: Timer, to_device: bool) -> Rate:
    try:
        host = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(HOST_BYTES, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        return _missing(_line(error))
    source, target = (host, there) if to_device else (there, host)
    return _rate(HOST_BYTES, timer, lambda: target.copy_(source, non_blocking=True), "pinned memory")


def _rate(amount: float, timer: Timer, fn: Callable[[], Any], how: str) -> Rate:
    try:
        return {"value": amount / timer(fn), "how": how}
    except (RuntimeError, ValueError) as error:  # not for this type, not on this device, no memory
        return _missing(_line(error))


def _missing(reason: str) -> Rate:
    return {"value": None, "reason": reason}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _best_of_events(torch: Any, fn: Callable[[], Any]) -> float:
    fn()
    torch.cuda.synchronize()
    start = time.perf_counter()
    fn()
    torch.cuda.synchronize()
    events = []
    for _ in range(2 if time.perf_counter() - start >= LONG else REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        fn()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return max(min(float(begin.elapsed_time(end)) for begin, end in events) * 1e-3, 1e-9)


def _best_of_calls(fn: Callable[[], Any]) -> float:
    """What takes LONG when warm is done in software: once is enough."""
    fn()
    times: list[float] = []
    while len(times) < REPEATS and not (times and times[0] > 5 * LONG):
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)
