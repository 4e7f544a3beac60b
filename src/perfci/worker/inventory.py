"""The inventory of the interpreter of the code under test, for `perfci doctor`: runs there by `python -c`.

One JSON object a line, `{"topic": …}`, flushed at once: what crashes (a broken extension, a driver) leaves what was
learnt before, and its own name.
"""

import importlib
import json
import os
import sys
import warnings
from contextlib import suppress
from importlib import metadata
from typing import Any

TOLD = 3
"""The descriptor that answers go to: standard output, moved out of the way of what packages print."""


def _say(topic: str, **facts: Any) -> None:
    os.write(TOLD, (json.dumps(dict(facts, topic=topic)) + "\n").encode())


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return "{}: {}".format(type(error).__name__, lines[0].strip() if lines else "")[:300]


def _package(topic: str, module: str, *distributions: str) -> None:
    """Tell whether `module` can be imported, and the version of the distribution that brings it."""
    _say("begin", what=topic)
    version = None
    for name in distributions:
        try:
            version = metadata.version(name)
            break
        except metadata.PackageNotFoundError:
            continue
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        own = (error.name or "").partition(".")[0] == module.partition(".")[0]
        _say(topic, version=version, there=version is not None, error="" if own and version is None else _short(error))
    except BaseException as error:
        _say(topic, version=version, there=True, error=_short(error))
    else:
        _say(topic, version=version or getattr(loaded, "__version__", None), there=True, error="")


def _torch() -> Any:
    """Tell of torch and return it, or None."""
    _say("begin", what="import torch")
    try:
        import torch
    except ModuleNotFoundError as error:
        _say("torch", there=(error.name or "").split(".")[0] != "torch", error=_short(error))
        return None
    except BaseException as error:
        _say("torch", there=True, error=_short(error))
        return None
    activities: Any = getattr(torch.profiler, "supported_activities", set)()
    _say(
        "torch",
        there=True,
        error="",
        version=torch.__version__,
        cuda=torch.version.cuda,
        profiler=any(str(one).endswith("CUDA") for one in activities),
    )
    return torch


def _cuda(torch: Any) -> bool:
    """Return whether torch can use the GPU: tried with one addition."""
    _say("begin", what="torch.cuda")
    facts: "dict[str, Any]" = {"available": bool(torch.cuda.is_available()), "error": "", "ran": False}
    try:
        if torch.version.cuda:
            torch.cuda.init()
        if facts["available"]:
            properties = torch.cuda.get_device_properties(0)
            facts["count"] = torch.cuda.device_count()
            facts["name"] = properties.name
            facts["capability"] = [properties.major, properties.minor]
            facts["uuid"] = str(getattr(properties, "uuid", "")) or None
            facts["architectures"] = torch.cuda.get_arch_list()
            facts["ran"] = float((torch.ones(1, device="cuda") + 1).item()) == 2.0
    except BaseException as error:
        facts["error"] = _short(error)
    _say("cuda", **facts)
    return bool(facts["ran"])


def _attention(torch: Any, usable: bool) -> None:
    """Each back end of scaled_dot_product_attention: switched on, and tried alone where there is a GPU."""
    _say("begin", what="attention")
    switches = {
        "flash": "flash_sdp_enabled",
        "memory-efficient": "mem_efficient_sdp_enabled",
        "cuDNN": "cudnn_sdp_enabled",
    }
    on = {
        name: bool(getattr(torch.backends.cuda, ask)())
        for name, ask in switches.items()
        if hasattr(torch.backends.cuda, ask)
    }
    tried = {}
    if usable:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        kinds = {"flash": "FLASH_ATTENTION", "memory-efficient": "EFFICIENT_ATTENTION", "cuDNN": "CUDNN_ATTENTION"}
        q = torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.float16)
        for name, kind in kinds.items():
            if name not in on or not hasattr(SDPBackend, kind):
                continue
            try:
                with sdpa_kernel([getattr(SDPBackend, kind)]):
                    torch.nn.functional.scaled_dot_product_attention(q, q, q)
                torch.cuda.synchronize()
                tried[name] = ""
            except BaseException as error:
                tried[name] = _short(error)
    _say("attention", on=on, tried=tried)


def _fp8(torch: Any, usable: bool) -> None:
    """torch._scaled_mm on float8_e4m3fn, tried where there is a GPU."""
    _say("begin", what="fp8")
    there = hasattr(torch, "_scaled_mm") and hasattr(torch, "float8_e4m3fn")
    facts: "dict[str, Any]" = {"there": there, "tried": False, "error": ""}
    if there and usable and tuple(torch.cuda.get_device_capability(0)) >= (8, 9):
        facts["tried"] = True
        try:
            a = torch.ones(32, 32, device="cuda").to(torch.float8_e4m3fn)
            one = torch.ones((), device="cuda")
            found = torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            found = found[0] if isinstance(found, tuple) else found
            if not bool((found.float() == 32.0).all().item()):
                facts["error"] = "a wrong result"
        except BaseException as error:
            facts["error"] = _short(error)
    _say("fp8", **facts)


def _tf32(torch: Any) -> None:
    _say("begin", what="tf32")
    facts: "dict[str, Any]" = {"matmul": torch.get_float32_matmul_precision(), "cudnn": None}
    with suppress(RuntimeError):  # torch ≥ 2.9 refuses after its new setting was used
        facts["cudnn"] = bool(torch.backends.cudnn.allow_tf32)
    _say("tf32", **facts)


def main() -> None:
    """Everything, most important first."""
    # The folder that perfci runs in must not stand in for a package.
    sys.path[:] = [entry for entry in sys.path if entry]
    warnings.simplefilter("ignore")
    os.dup2(1, TOLD)
    os.dup2(2, 1)
    _say("python", version=".".join(map(str, sys.version_info[:3])), path=sys.executable)
    torch = _torch()
    if torch is not None:
        usable = _cuda(torch)
        for ask in (_attention, _fp8):
            ask(torch, usable)
        _tf32(torch)
    _package("triton", "triton", "triton", "pytorch-triton")
    _package("flash-attn", "flash_attn", "flash-attn", "flash_attn")
    _package("cutlass", "cutlass", "nvidia-cutlass-dsl", "nvidia-cutlass", "cutlass_library")
    _package("nvtx", "nvtx", "nvtx")
    _say("end")


if __name__ == "__main__":
    main()
