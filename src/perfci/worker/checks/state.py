"""State that a case carries between executions in drawn tensors, as a failure's reason: it changes no outcome."""

from __future__ import annotations

import sys
from typing import Any, Callable

from ..bench import Drawn, Prepared
from .plain import bits, builtin_torch


def carried(prepared: Prepared, right: Callable[[Prepared], bool]) -> str:
    """Return what an execution changes of the drawn tensors, if putting that back makes the next one right, as the end
    of a sentence, or "".

    `right` executes and compares.
    """
    try:
        fresh = prepared.again(False)
    except Exception:  # of the user's code, on the way to a reason: the failure itself is told
        return ""
    try:
        drawn = _drawn(fresh)
        kept = [(one.tensor.grad, one.tensor.detach().clone()) for one in drawn]
        fresh.fn()
        fresh.synchronize()
        graded = [one for one, (grad, _) in zip(drawn, kept) if one.tensor.grad is not grad]
        changed = [one for one, (_, values) in zip(drawn, kept) if not _same(one.tensor, values)]
        for one, (grad, values) in zip(drawn, kept):
            one.tensor.grad = grad
            one.tensor.data.copy_(values)
        if not (graded or changed) or not right(fresh):
            return ""
    except Exception:  # likewise; memory may be short, too
        return ""
    finally:
        fresh.bench.release()
    if changed:
        return f"an execution overwrites what the case has drawn ({_named(changed)}); with that put back it is right"
    return f"an execution adds to the .grad of what the case has drawn ({_named(graded)}); without that it is right"


def unbounded(prepared: Prepared) -> str:
    """Return which tensors drawn finite no longer are, or ""."""
    drawn = [one for one in prepared.bench._drawn if one.method in ("randn", "rand", "zeros")]
    try:
        with builtin_torch():
            lost = [one for one in drawn if not _finite(one.tensor.detach())]
    except Exception:  # as in `carried`
        return ""
    return f"what the case has drawn ({_named(lost)}) holds infinities or NaN by now" if lost else ""


def _drawn(prepared: Prepared) -> list[Drawn]:
    return [one for one in prepared.bench._drawn if one.method != "empty"]


def _named(some: list[Drawn]) -> str:
    return some[0].shape + (f" and {len(some) - 1} more" if len(some) > 1 else "")


def _same(one: Any, two: Any) -> bool:
    return bool(sys.modules["torch"].equal(bits(one.detach()), bits(two)))


def _finite(tensor: Any) -> bool:
    floating = tensor.is_floating_point() or tensor.is_complex()
    wide = tensor.float() if floating and tensor.element_size() == 1 else tensor  # torch asks no float8
    return not floating or bool(sys.modules["torch"].isfinite(wide).all())
