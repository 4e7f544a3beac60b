"""Modes of torch that belong to a thread, which modules set as they are imported."""

from __future__ import annotations

import sys
from typing import Any

_known: dict[str, tuple[Any, bool]] = {}


def take_modes(path: str) -> None:
    """Set this thread's modes as the first import of a file's tests left them in this process: now, if none was."""
    asked = _known.setdefault(path, _modes())
    if asked != _modes() and asked[0] is not None:
        torch = sys.modules["torch"]
        torch.set_default_device(asked[0])
        torch.set_grad_enabled(asked[1])


def _modes() -> tuple[Any, bool]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):  # as before 2.3
        return None, True
    return torch.get_default_device(), torch.is_grad_enabled()
