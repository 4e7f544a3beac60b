"""Correctness: is what a kernel returns what its reference says, and does it write all of it?"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from .bench import Prepared, prepare
from .compare import Outcome, compare, finite, is_array, is_sequence, is_tensor
from .poison import leaf_sizes, poisoned_memory
from .sketch import sketch

if TYPE_CHECKING:
    from .declare import Kernel


def check_case(
    kernel: Kernel,
    params_sets: Sequence[dict[str, Any]],
    device: str,
    seed: int,
    *,
    rtol: Optional[float] = None,
    atol: Optional[float] = None,
) -> dict[str, Any]:
    """Check one case at every set of parameters; the first set is the case's own.

    Each set is built twice from the same seed: once to see how large the results are, and once more, with
    memory poisoned, for the execution whose result counts. `rtol` and `atol` replace what the case's own set
    declares, wherever a set declares the same. What the kernel or its reference raises is raised.

    Returns `ok`; `kind` and `text` of the first failure, which ends the check, or None and ""; `shapes`, the
    sets checked; `compared`, how many of them with a reference; `worst`; and of the case's own set `rtol`,
    `atol` (as declared; None without a reference), `sketch`, `digest` of the inputs and `work`.
    """
    result: dict[str, Any] = {
        "ok": True,
        "kind": None,
        "text": "",
        "shapes": 0,
        "compared": 0,
        "worst": None,
        "rtol": None,
        "atol": None,
        "sketch": [],
        "digest": "",
        "work": {},
    }
    for params in params_sets:
        first = prepare(kernel, params, device, seed, 0, True)
        sizes = leaf_sizes(first.fn())
        first.bench.release()
        del first
        prepared = prepare(kernel, params, device, seed, 0, True)
        reference = prepared.bench.declared_reference()
        own = result["shapes"] == 0
        if own:
            result["digest"] = prepared.bench.inputs_digest()
            result["work"] = prepared.bench.declared_work()
            if reference:
                result["rtol"], result["atol"] = reference.rtol, reference.atol
        declared = (reference.rtol, reference.atol) if reference else (None, None)
        same = declared == (result["rtol"], result["atol"])
        outcome, expected = _execute(prepared, device, sizes, rtol if same else None, atol if same else None)
        if own and reference:
            result["sketch"] = sketch(expected)
        prepared.bench.release()
        result["shapes"] += 1
        result["compared"] += reference is not None
        if outcome.worst is not None:
            result["worst"] = max(outcome.worst, result["worst"] or 0.0)
        if not outcome.ok:
            label = " ".join(f"{name}={value}" for name, value in params.items())
            text = f"at {label}: {outcome.text}" if label else outcome.text
            result.update(ok=False, kind=outcome.kind, text=text)
            break
    return result


def verify(prepared: Prepared, rtol: Optional[float] = None, atol: Optional[float] = None) -> Outcome:
    """The check after timing: run what was timed once more, with memory poisoned, and compare.

    `rtol` and `atol` replace what the case declares. What the kernel or its reference raises is raised.
    """
    sizes = leaf_sizes(prepared.fn())
    return _execute(prepared, prepared.bench.device_name, sizes, rtol, atol)[0]


def _execute(
    prepared: Prepared, device: str, sizes: Sequence[int], rtol: Optional[float], atol: Optional[float]
) -> tuple[Outcome, Any]:
    """The outcome of one execution, and the reference, copied before: a kernel may work in place."""
    reference = prepared.bench.declared_reference()
    expected = _copied(reference.fn()) if reference else None
    with poisoned_memory(sizes, device):
        out = prepared.fn()
        if device.startswith("cuda"):
            import torch

            torch.cuda.synchronize()
    if reference is None:
        return finite(out), None
    return (
        compare(
            out,
            expected,
            reference.rtol if rtol is None else rtol,
            reference.atol if atol is None else atol,
        ),
        expected,
    )


def _copied(ref: Any) -> Any:
    """The reference with memory of its own: it must not change when the kernel runs."""
    if is_tensor(ref):
        return ref.detach().clone()
    if isinstance(ref, Mapping):
        return {key: _copied(value) for key, value in ref.items()}
    if is_sequence(ref):
        return [_copied(value) for value in ref]
    if is_array(ref) or isinstance(ref, (array.array, bytearray)):
        return ref[...].copy() if is_array(ref) else ref[:]
    return ref.tolist() if isinstance(ref, memoryview) else ref
