"""Values that autograd saves for its backward pass: no closure shows them."""

from __future__ import annotations

import re
import sys
from typing import Any

MOST = 10_000
_GENERATED = re.compile(r"[A-Za-z]\w*Backward\d+")
"""Nodes of torch's derivatives.yaml, which keep values as `_saved_…`."""


class OpaqueGraph(Exception):
    """Why a graph cannot be read, as the end of a sentence that begins with `it keeps`."""


def nodes(tensor: Any) -> list[Any]:
    """Return the nodes of a tensor's graph, each once; none for a leaf. Raises OpaqueGraph."""
    found: dict[Any, None] = {}
    todo = [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found[node] = None
            todo += [one for one, _ in node.next_functions]
        if len(found) > MOST:
            raise OpaqueGraph(f"a graph of autograd of more than {MOST} nodes")
    return list(found)


def kept(node: Any) -> dict[str, Any]:
    """Return name → what a node keeps: tensors on the same memory, a custom function's context. Raises OpaqueGraph."""
    function = sys.modules["torch"].autograd.function.BackwardCFunction
    try:
        if isinstance(node, function):
            return {"saved": _twice(node, "saved_tensors"), "context": vars(node)}
        if type(node).__name__ == "AccumulateGrad":
            return {"variable": node.variable}
        if _GENERATED.fullmatch(type(node).__name__):
            return {name: _twice(node, name) for name in dir(node) if name.startswith("_saved_")}
    except RuntimeError as error:  # it was freed, or written over since
        raise OpaqueGraph(f"a graph of autograd whose {type(node).__name__} is gone: {str(error)[:60]!r}") from None
    raise OpaqueGraph(f"a graph of autograd whose {type(node).__name__} cannot be read")


def _twice(node: Any, name: str) -> Any:
    """An attribute, its tensors without a graph. Raises OpaqueGraph for new tensors each time, as of checkpoints'
    hooks."""
    one, again = _detached(getattr(node, name)), _detached(getattr(node, name))
    if _places(one) != _places(again):
        raise OpaqueGraph(f"a graph of autograd whose {type(node).__name__} makes anew what it has saved")
    return one


def _detached(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_detached(one) for one in value)
    return value.detach() if isinstance(value, sys.modules["torch"].Tensor) else value


def _places(value: Any) -> list[int]:
    parts = value if isinstance(value, tuple) else (value,)
    return [one.untyped_storage().data_ptr() for one in parts if isinstance(one, sys.modules["torch"].Tensor)]
