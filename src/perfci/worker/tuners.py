"""Traces of tuners: code that times kernels and picks one, so that processes of the same code may differ.

Each worker tunes for itself, unless it finds a choice in its side's cache. Where two are close, all processes of base
may fall into one and those of head into the other: pairs that agree then show nothing (`stats/obvious.py`).

Traces are Triton's autotuner, `torch.backends.cudnn.benchmark`, TunableOp, and Python code that waits for the GPU or
reads its events. C++ is not seen, so a library that launches or times GPU work and is neither torch's, Triton's nor
NVIDIA's counts as well. A random choice, or one by the CPU's clock without a wait through `torch.cuda`, is not seen.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import weakref
from typing import Any, Callable, Optional

from .maps import pieces

NVIDIA = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|cufft\w*|cufile\w*|cupti|curand|cusolver\w*|cusparse|cusparseLt|nccl|npp\w+|"
    r"nvidia-\S+|nvcuvid|nvjpeg\w*|nvJitLink|nvToolsExt|nvrtc\S*|nvshmem\S*|nvperf_\w+)([-.][0-9a-f]+)?\.so"
)
"""They choose by heuristics, without measurements unless asked to tune."""
KNOWN = ("torch", "torchaudio", "torchvision", "triton", "cuda.bindings")
"""Packages whose libraries are no trace: torch's choose nothing by measuring; the last is torch's way to the driver."""
OTHERS = ("numba.cuda", "cuda.core", "cutlass", "helion", "tilelang", "jax", "warp")
"""Packages that may time GPU work without a library that shows it."""
WORKS = (b"LaunchKernel", b"cudaEvent", b"cuEvent")
"""Names in a library that launches GPU work or times it."""

ELSEWHERE = ("autotune_in_subproc", "pipeline_max_autotune_gemm", "distributed_max_autotune_gemm")
"""Settings of `torch._inductor.config` by which it tunes in another process."""

UNSEEN = "works on the GPU, and what it chooses cannot be told"
"""Of libraries of which nothing else is known."""

_before: Optional[set[str]] = None
"""torch's libraries; None where nothing is watched."""
_watched: set[int] = set()
_inside = 0
"""Calls of known tuners under way: what they time is theirs."""
_here = ""
_ever = ""
"""A trace of the open case whose choice later cases of this process may share."""
_earlier = ""
"""Such a trace of an earlier case."""
_shared: weakref.WeakSet[Any] = weakref.WeakSet()
_tuned: dict[tuple[Any, ...], dict[Any, Any]] = {}
"""A script's kernel, configurations and key → what was chosen."""
_chosen: dict[tuple[int, int], tuple[str, Any]] = {}
"""Ids of tuner and configuration → kernel and configuration, by first use."""
MOST_CHOICES, MOST_PARAMETERS, LONGEST = 32, 32, 80
"""Choices of a case, parameters of a choice, characters of a name or value."""


def remember() -> None:
    """Take the present libraries for torch's: call when nothing else was imported."""
    global _before
    _before = _libraries()


def watch() -> None:
    """Watch what times GPU work in this process. Call before `guard.trust`, with torch imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if _before is None:
        remember()
    cuda = torch.cuda
    cuda.Event.elapsed_time = _noting(cuda.Event.elapsed_time, "reads events of the GPU")
    for owner in (cuda, cuda.Event, cuda.Stream, getattr(torch, "accelerator", None)):
        if owner is not None:
            owner.synchronize = _noting(owner.synchronize, "waits for the GPU")


def _noting(function: Callable[..., Any], does: str) -> Callable[..., Any]:
    own = (__package__ or "") + "."

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        global _ever
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if not _inside and not caller.startswith(own):
            _ever = _ever or f"{caller[:80]} {does}, as code does that picks the fastest kernel"
        return function(*args, **kwargs)

    return noted


def find() -> None:
    """Watch the known tuners imported since."""
    module = sys.modules.get("triton.runtime.autotuner")
    tuner = getattr(module, "Autotuner", None)
    if tuner is None or id(tuner) in _watched:
        return
    _watched.add(id(tuner))
    run = tuner.run

    @functools.wraps(run)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _here, _inside
        _share(self)
        name = getattr(getattr(self, "base_fn", None), "__name__", "a kernel")
        if len(self.configs) > 1:
            _here = _here or f"Triton's autotuner chooses for {name[:80]}"
            _inside += 1
            try:
                made = run(self, *args, **kwargs)
            finally:
                _inside -= 1
        else:
            made = run(self, *args, **kwargs)
        config = getattr(self, "best_config", None)
        if config is not None and (id(self), id(config)) not in _chosen and len(_chosen) < MOST_CHOICES:
            _chosen[id(self), id(config)] = name, config
        return made

    tuner.run = noted


def _share(tuner: Any) -> None:
    """Each run of a script makes tuners of its own, for kernels that the process has tuned."""
    code = getattr(getattr(tuner, "base_fn", None), "__code__", None)
    if code is None or tuner.base_fn.__module__ != "__main__" or tuner in _shared:
        return
    _shared.add(tuner)
    if not any(getattr(config, "pre_hook", None) for config in tuner.configs):  # which has names of its run
        what = code.co_filename, code, tuple(map(str, tuner.configs)), str(getattr(tuner, "keys", None))
        tuner.cache = _tuned.setdefault(what, tuner.cache)


def begin() -> None:
    """Forget the traces of the case before, but for those whose choice may live on."""
    global _here, _ever, _earlier
    _here, _ever, _earlier = "", "", _earlier or _ever
    _chosen.clear()
    find()


def chosen() -> list[dict[str, Any]]:
    """Return `kernel` and `config` that Triton's autotuner ran for the open case, as text, each once."""
    found: list[dict[str, Any]] = []
    for name, config in _chosen.values():
        parameters = dict(getattr(config, "kwargs", {}))
        for own in ("num_warps", "num_stages", "num_ctas", "maxnreg"):
            parameters[own] = getattr(config, own, None)  # a version may lack one
        told = [(_short(key), _short(value)) for key, value in parameters.items() if value is not None]
        one = {"kernel": _short(name), "config": dict(told[:MOST_PARAMETERS])}
        if one not in found:
            found.append(one)
    return found


def _short(value: object) -> str:
    return " ".join(str(value).split())[:LONGEST]


def told(known: str = "") -> str:
    """Return one line on what may let processes of this code run other kernels for the open case, or empty.

    `known`: was so before.
    """
    line = _here or _ever
    if not line:
        standing = _standing()
        line = standing if standing != known else ""
    return line


def _standing() -> str:
    torch = sys.modules.get("torch")
    if torch is None or _before is None:
        return "torch was not there before the suite, so that nothing was watched"
    if torch.backends.cudnn.benchmark:
        return "torch.backends.cudnn.benchmark is on"
    tunable = getattr(torch.cuda, "tunable", None)
    if tunable is not None and hasattr(torch._C, "_cuda_tunableop_is_enabled") and tunable.is_enabled():
        return "TunableOp is on"
    inductor = sys.modules.get("torch._inductor.config")
    for name in ELSEWHERE:
        if getattr(inductor, name, False):
            return f"torch._inductor.config.{name} is on"
    if _earlier:
        return _earlier
    other = unseen()
    return f"{other} {UNSEEN}" if other else ""


def unseen() -> str:
    """Return the name of a library in this process of which UNSEEN holds, or empty."""
    return next((name for name in OTHERS if name in sys.modules), None) or os.path.basename(_foreign() or "")


def learn() -> None:
    """Read the present libraries, once for all forks."""
    if _before is not None:
        _foreign()


def _foreign() -> Optional[str]:
    files = [getattr(sys.modules.get(name), "__file__", None) for name in KNOWN]
    known = [os.path.dirname(os.path.realpath(file)) for file in files if file]
    known += [folder + ".libs" for folder in known]  # what a wheel brings along (auditwheel)
    # What Triton builds to launch its kernels.
    known += [os.path.realpath(os.environ["TRITON_CACHE_DIR"])] if "TRITON_CACHE_DIR" in os.environ else []
    for path in sorted(_libraries() - (_before or set())):
        inside = any(path.startswith(folder + os.sep) for folder in known)
        if not inside and not NVIDIA.match(os.path.basename(path)) and _works(path):
            return path
    return None


def _libraries() -> set[str]:
    return {piece.path for piece in pieces() if "x" in piece.rights and piece.path.startswith("/")}


@functools.lru_cache(maxsize=None)
def _works(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return True
    return any(name in content for name in WORKS)
