"""Traces of tuners: code that times kernels and picks one, so that processes of the same code may differ.

The choice of a tuner hangs on a few measured microseconds. Where two choices are close, processes fall into two groups,
and those of base may all fall into one and those of head into the other: pairs that agree well then show nothing. What
assumes that pairs scatter about one value is not asked of such cases (`stats/obvious.py`).

Two kinds of traces count. What is known to tune: Triton's autotuner, `torch.backends.cudnn.benchmark`, TunableOp. And
what a tuner written in Python does: wait for the GPU or read its events. What C++ does is not seen, and so a library
that launches or times work on the GPU and is neither torch's, Triton's nor NVIDIA's counts as well. Not seen is a
choice that is drawn by lot, or that the CPU's clock makes without waiting through `torch.cuda`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import Any, Callable, Optional

from .maps import pieces

NVIDIA = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|cufft\w*|cufile\w*|cupti|curand|cusolver\w*|cusparse|cusparseLt|nccl|npp\w+|"
    r"nvidia-\S+|nvcuvid|nvjpeg\w*|nvJitLink|nvToolsExt|nvrtc\S*|nvshmem\S*|nvperf_\w+)([-.][0-9a-f]+)?\.so"
)
"""Libraries whose choices follow from the question alone: heuristics, no measurements, unless one of them is asked to
tune."""
KNOWN = ("torch", "torchaudio", "torchvision", "triton", "cuda.bindings")
"""Packages whose libraries are of these, too: PyTorch's own choose nothing by measuring, and the last is torch's way to
the driver."""
OTHERS = ("numba.cuda", "cuda.core", "cutlass", "helion", "tilelang", "jax", "warp")
"""Packages that work on the GPU without a library that shows it, and may time what they do."""
WORKS = (b"LaunchKernel", b"cudaEvent", b"cuEvent")
"""Names in a library that launches work on the GPU or times it."""

ELSEWHERE = ("autotune_in_subproc", "pipeline_max_autotune_gemm", "distributed_max_autotune_gemm")
"""Settings of `torch._inductor.config` by which it tunes in another process; in this one it reads events."""

UNSEEN = "works on the GPU, and what it chooses cannot be told"
"""Said of libraries of which nothing but this is known."""

_before: Optional[set[str]] = None
"""Libraries that torch brought, before the suite; None where nothing is watched."""
_watched: set[int] = set()
"""Classes whose methods are wrapped already, by id."""
_inside = 0
"""Calls of a known tuner that are under way: what they time is theirs."""
_here = ""
"""The trace of the case that was opened last."""
_ever = ""
"""A trace of it whose choice later cases of this process may share."""
_earlier = ""
"""Such a trace of a case before it."""
_chosen: dict[tuple[int, int], tuple[str, Any]] = {}
"""Tuner and configuration, by id → kernel's name and configuration, of the open case in the order of first use."""
MOST_CHOICES, MOST_PARAMETERS, LONGEST = 32, 32, 80
"""Choices of a case, parameters of one, characters of a parameter's name or value that are told."""


def remember() -> None:
    """Take the libraries that are here for torch's: to be called when it was imported and nothing else was."""
    global _before
    _before = _libraries()


def watch() -> None:
    """Watch what times work on the GPU in this process. To be called before `guard.trust`, with torch imported."""
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
    """Return `function`, which notes calls from outside of this package."""
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
    """Watch the known tuners that were imported since."""
    module = sys.modules.get("triton.runtime.autotuner")
    tuner = getattr(module, "Autotuner", None)
    if tuner is None or id(tuner) in _watched:
        return
    _watched.add(id(tuner))
    run = tuner.run

    @functools.wraps(run)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _here, _inside
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


def begin() -> None:
    """Forget the traces of the case before, but for those whose choice may live on."""
    global _here, _ever, _earlier
    _here, _ever, _earlier = "", "", _earlier or _ever
    _chosen.clear()
    find()


def chosen() -> list[dict[str, Any]]:
    """Return the configurations with which Triton's autotuner ran kernels for the open case: `kernel` and `config`,
    names and values as text, each once."""
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
    """Return one line on what may let processes of this code run other kernels for the open case; empty where there is
    no trace of it, or of nothing but what was `known` before it was opened."""
    line = _here or _ever
    if not line:
        standing = _standing()
        line = standing if standing != known else ""
    return line


def _standing() -> str:
    """Return one line on what may do so for any case of this process."""
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
    other = next((name for name in OTHERS if name in sys.modules), None) or os.path.basename(_foreign() or "")
    return f"{other} {UNSEEN}" if other else ""


def learn() -> None:
    """Look through the libraries that are here: forks of this process need not read them."""
    if _before is not None:
        _foreign()


def _foreign() -> Optional[str]:
    """Return a library in this process that works on the GPU and is neither torch's, Triton's nor NVIDIA's, if there is
    one."""
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
    """Return the paths of the files whose code is in this process."""
    return {piece.path for piece in pieces() if "x" in piece.rights and piece.path.startswith("/")}


@functools.lru_cache(maxsize=None)
def _works(path: str) -> bool:
    """Return whether a library names what launches or times work on the GPU; True where it cannot be read."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return True
    return any(name in content for name in WORKS)
