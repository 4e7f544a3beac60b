"""Correctness: a kernel must return what its reference says, and write all of it."""

from __future__ import annotations

import array
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional

from ..bench import Prepared, prepare
from ..guard import tampered
from .compare import Outcome, compare, finite
from .outputs import handed_out_again, spoil
from .plain import Refused, builtin_torch, is_array, is_sequence, is_tensor, out_of_memory, plain, readable
from .poison import leaf_sizes, poisoned_memory
from .redraw import NO_ROOM, Redraw, Unpaired, set_up
from .sketch import alike, sketch, told_apart
from .state import carried, unbounded
from .tolerance import NONE, Given, field_names

if TYPE_CHECKING:
    from ..declare import Kernel

CACHED = "returned the poisoned result of the call before: its output is cached, not computed"
MEMO = (
    "returned what it had computed for earlier values of its inputs, after new ones were written to the same memory: "
    "its result is remembered, not computed (what is computed once, such as packed weights, belongs into the set-up)"
)
UNWRITTEN = (
    "memory that was not written holds NaN while results are checked: "
    "a kernel that reads its output first, as beta * C does, must be given one of bench.zeros(), not of bench.empty()"
)


def check_case(
    kernel: Kernel,
    params_sets: Sequence[dict[str, Any]],
    device: str,
    seed: int,
    given: Given = NONE,
    *,
    once: bool = False,
) -> dict[str, Any]:
    """Check one case at every set of parameters, the case's own first. Raises what the kernel or its reference raises.

    Each set is built twice from one seed: for the sizes of its results, and, with memory poisoned, for the execution
    that counts. At the case's own set the result is then overwritten and the kernel runs once more, and again with
    inputs redrawn in place, but not with `once`. `given` replaces what the own set declares, wherever a set declares
    the same.

    Returns `ok`; `kind` ("wrong", "nan", "invalid") and `text` of the first failure, which ends the check; `shapes`,
    the sets checked; `compared`, how many had a reference; `worst`; `sketch`, of each reference; and of the own set
    `rtol`, `atol`, `unredrawn` (why not), `result` and `content` (sketch and digest, of a script without a reference
    whose result is the same twice), `missed` (which execution failed: the "first" or a "later" one) and `versus`:
    `Versus.told` with why it is `wrong`.
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
        "result": [],
        "content": "",
        "unredrawn": "",
        "missed": "",
        "versus": None,
    }
    replaced = tampered()
    if replaced:
        result.update(ok=False, kind="invalid", text=replaced)
        return result
    for params in params_sets:
        first = prepare(kernel, params, device, seed, 0, True)
        made = first.fn()
        sizes, told = _sizes(made, first), _told(first, made)
        del made
        first.bench.release()
        del first
        prepared = prepare(kernel, params, device, seed, 0, True)
        reference = prepared.bench.declared_reference()
        own = result["shapes"] == 0
        if own and reference:
            result["rtol"], result["atol"] = reference.rtol, reference.atol
        declared = (reference.rtol, reference.atol) if reference else (None, None)
        base = given if declared == (result["rtol"], result["atol"]) else NONE
        expected = _expected(prepared)
        out = _executed(prepared, sizes)
        outcome = _outcome(prepared, out, expected, base)
        result["missed"] = "" if outcome.ok else "first"
        if reference and outcome.ok:
            result["sketch"] += sketch(expected)
        if own and reference and outcome.ok:
            again = Outcome(True) if once else _again(prepared, out, sizes, base)
            if not again.ok:
                again = _because(again, carried(prepared, _right(sizes, base)))
            elif not once:
                again, result["unredrawn"] = _redrawn(prepared, out, partial(_executed, prepared, sizes), base)
            outcome = outcome if again.ok else again
            result["missed"] = "" if again.ok else "later"
        elif own and outcome.ok and prepared.scripted:
            found = _told(prepared, out)
            if found[1] == told[1] and alike(found[0], told[0]):
                result["result"], result["content"] = found
        del out
        if own and outcome.ok and prepared.bench.declared_versus() is not None:
            result["versus"] = _alternative(prepared.again(False), sizes, base)
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


def _right(sizes: Sequence[int], given: Given) -> Callable[[Prepared], bool]:
    def right(prepared: Prepared) -> bool:
        expected = _expected(prepared)
        return _outcome(prepared, _executed(prepared, sizes), expected, given).ok

    return right


def _because(outcome: Outcome, why: str) -> Outcome:
    text = outcome.text.replace(f"; {UNWRITTEN}", "")
    return replace(outcome, text=f"{text}; {why}") if why else outcome


def _alternative(prepared: Prepared, sizes: Sequence[int], given: Given) -> Any:
    versus = prepared.bench.declared_versus()
    if versus is None:
        return None
    try:
        expected = _expected(prepared)
        with poisoned_memory(sizes, prepared.bench.device_name):
            out = versus.fn()
            prepared.synchronize()
        found = _outcome(prepared, out, expected, given).text
    except Exception as error:
        found = f"{type(error).__name__}: {error}"[:400]
    finally:
        prepared.bench.release()
    return dict(versus.told(), wrong=found)


def verify(prepared: Prepared, given: Given = NONE, *, redraw: bool = True) -> Outcome:
    """Check after timing: run twice more with memory poisoned, the first result overwritten, and compare the second.

    `redraw`: once more with inputs redrawn in place, if possible. Raises what the kernel or its reference raises.
    """
    replaced = tampered()
    if replaced:
        return Outcome(False, "invalid", None, replaced)
    out = prepared.fn()
    prepared.synchronize()
    sizes = _sizes(out, prepared)
    outcome = _again(prepared, out, sizes, given)
    if not outcome.ok:
        return _because(outcome, unbounded(prepared))
    if not redraw:
        return outcome
    found, _ = _redrawn(prepared, out, partial(_executed, prepared, sizes), given)
    return outcome if found.ok else found


def verify_redrawn_replay(prepared: Prepared, out: Any, replay: Callable[[], Any], given: Given = NONE) -> Outcome:
    """Check a CUDA graph likewise: `replay()` must compute `out` of the new values.

    The graph has state outside of the GPU as captured: if that follows from the draw, the function is called instead.
    """
    execute = partial(_executed, prepared, _sizes(out, prepared))
    return _redrawn(prepared, out, execute, given, partial(_replayed, prepared, out, replay))[0]


def verify_replay(prepared: Prepared, out: Any, replay: Callable[[], Any], given: Given = NONE) -> Outcome:
    """Check, after timing, that `replay()` of a CUDA graph computes `out`, the result at capture, again: this catches a
    function that put nothing into the graph."""
    replaced = tampered()
    if replaced:
        return Outcome(False, "invalid", None, replaced)
    return _rewritten(prepared, out, partial(_replayed, prepared, out, replay), given)


def _replayed(prepared: Prepared, out: Any, replay: Callable[[], Any]) -> Any:
    replay()
    prepared.synchronize()
    return out


def _again(prepared: Prepared, out: Any, sizes: Sequence[int], given: Given) -> Outcome:
    return _rewritten(prepared, out, partial(_executed, prepared, sizes), given)


def _rewritten(prepared: Prepared, out: Any, execute: Callable[[], Any], given: Given) -> Outcome:
    """Overwrite what was returned, execute, compare.

    Where the overwritten values change the reference, which may read the last result, they are put back, and another
    execution counts.
    """
    # Without a reference nothing tells the right result from another one.
    strict = prepared.bench.declared_reference() is not None
    spoiled = []
    with builtin_torch():
        try:
            plain(_readable(prepared, out), strict)
        except Refused as refused:
            return Outcome(False, "wrong", None, str(refused))
        if strict:
            spoiled = spoil(out, prepared.bench)
    prepared.synchronize()
    expected = _expected(prepared)
    known = not prepared.scripted or _put_back(prepared)
    _spoil_again(prepared, out, expected, given)
    new = execute()
    outcome = _outcome(prepared, new, expected, given)
    if not outcome.ok and not known:
        return _anew(prepared, expected, given)  # it may have written over what it reads
    if outcome.ok or not spoiled:
        return outcome
    with builtin_torch():
        cached = handed_out_again(spoiled, new)
        for memory in spoiled:
            memory.restore()
    prepared.synchronize()
    again = _expected(prepared)
    if _outcome(prepared, again, expected, given).ok:  # the reference does not read what was overwritten
        return Outcome(False, "wrong", None, CACHED) if cached else outcome
    return _outcome(prepared, execute(), again, given)


def _put_back(prepared: Prepared) -> bool:
    """A script may work in place on its call's inputs. False where they cannot be written anew."""
    with _memory_apart(prepared):
        try:
            redraw = set_up(prepared)
        except Unpaired:
            return False
        try:
            redraw.apply(other=False)
            prepared.synchronize()
        finally:
            redraw.release()
    return True


def _spoil_again(prepared: Prepared, out: Any, expected: Any, given: Given) -> None:
    """A script may keep a result beside its inputs, which are put back: what is returned must be computed."""
    if prepared.scripted and prepared.bench.declared_reference() and _outcome(prepared, out, expected, given).ok:
        with builtin_torch():
            spoil(out, prepared.bench)
        prepared.synchronize()


def _anew(prepared: Prepared, expected: Any, given: Given) -> Outcome:
    fresh = prepared.again(False)
    try:
        return _outcome(fresh, _executed(fresh, []), expected, given)
    finally:
        fresh.bench.release()


def _redrawn(
    prepared: Prepared, out: Any, execute: Callable[[], Any], given: Given, replay: Optional[Callable[[], Any]] = None
) -> tuple[Outcome, str]:
    """Execute with inputs redrawn; `replay` instead, if it reads all of them from the GPU. Also why none were. `out`:
    what was returned last."""
    if prepared.bench.declared_reference() is None:
        return Outcome(True), ""
    with _memory_apart(prepared):
        try:
            redraw = set_up(prepared)
        except Unpaired as unpaired:
            return Outcome(True), str(unpaired)
        try:
            if not redraw.changes:
                return Outcome(True), "its inputs are the same in every draw"
            run = replay if replay is not None and redraw.on_device else execute
            return _with_other_values(prepared, redraw, out, run, given), ""
        except Exception as error:
            if not out_of_memory(error):
                raise
            return Outcome(True), NO_ROOM
        finally:
            redraw.release()


def _with_other_values(
    prepared: Prepared, redraw: Redraw, out: Any, execute: Callable[[], Any], given: Given
) -> Outcome:
    wanted = _expected(redraw.other)
    redraw.apply(other=True)
    prepared.synchronize()
    _spoil_again(prepared, out, wanted, given)
    if _outcome(prepared, execute(), wanted, given).ok:
        return Outcome(True)
    # A kernel may carry over state that does not follow from the draw, as one that accumulates does. Then its reference
    # reads it, too, and what it says now counts, if it follows the values at all.
    redraw.apply(other=False)
    before = _expected(prepared)
    redraw.apply(other=True)
    now = _expected(prepared)
    prepared.synchronize()
    out = execute()
    if _outcome(prepared, before, now, given).ok:
        now = wanted
    found = _outcome(prepared, out, now, given)
    if found.ok or found.kind != "wrong":
        return found
    remembered = _outcome(prepared, out, before, given).ok
    return replace(found, text=MEMO if remembered else f"with its inputs redrawn in place: {found.text}")


highest_before = 0
"""Most device bytes held before inputs were redrawn, which takes memory that no measurement needs."""


@contextlib.contextmanager
def _memory_apart(prepared: Prepared) -> Iterator[None]:
    global highest_before  # the allocator's own mark is global, too
    torch = sys.modules.get("torch")
    if torch is None or not prepared.bench.device_name.startswith("cuda"):
        yield
        return
    highest_before = max(highest_before, int(torch.cuda.max_memory_allocated()))
    try:
        yield
    finally:
        torch.cuda.reset_peak_memory_stats()


@builtin_torch()
def _sizes(out: Any, prepared: Prepared) -> list[int]:
    try:
        return leaf_sizes(plain(out, strict=False), prepared.bench.holds)
    except Refused:
        return []


def _executed(prepared: Prepared, sizes: Sequence[int]) -> Any:
    with poisoned_memory(sizes, prepared.bench.device_name):
        out = prepared.fn()
        prepared.synchronize()
    return out


def _readable(prepared: Prepared, out: Any) -> Any:
    """What a benchmark returns was not written to be compared: what cannot be read of it stands for nothing."""
    written = not prepared.scripted or prepared.bench.declared_reference() is not None
    return out if written else readable(out)


def _told(prepared: Prepared, out: Any) -> tuple[list[float], str]:
    if prepared.scripted and prepared.bench.declared_reference() is None:
        with builtin_torch(), contextlib.suppress(Refused):
            return told_apart(_readable(prepared, out))
    return [], ""


def _expected(prepared: Prepared) -> Any:
    """A copy from before the kernel runs, which may work in place."""
    reference = prepared.bench.declared_reference()
    if reference is None:
        return None
    found = reference.fn()
    prepared.bench.fields = field_names(found)  # before it becomes a plain tuple
    with builtin_torch():
        try:
            return copied(plain(found))
        except Refused:
            return found  # which comparing will say


def _outcome(prepared: Prepared, out: Any, expected: Any, given: Given) -> Outcome:
    reference = prepared.bench.declared_reference()
    if reference is None:
        found = finite(_readable(prepared, out))
    else:
        found = compare(out, expected, reference.rtol, reference.atol, given, prepared.bench.fields)
    return replace(found, text=f"{found.text}; {UNWRITTEN}") if found.kind == "nan" else found


def copied(ref: Any) -> Any:
    """Return a plain value in memory of its own."""
    if is_tensor(ref):
        return ref.detach().clone()
    if type(ref) is dict:
        return {key: copied(value) for key, value in ref.items()}
    if is_sequence(ref):
        return [copied(value) for value in ref]
    if is_array(ref):
        return ref[...].copy()
    if type(ref) in (array.array, bytearray):
        return ref[:]
    return ref.tolist() if type(ref) is memoryview else ref
