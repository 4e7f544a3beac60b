"""What renderings show: golden files, and text as a terminal has it."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console


def golden(file: Path, text: str) -> str:
    """Return the text of a golden file: it changes only on purpose, where `PERFCI_UPDATE_GOLDEN=1` rewrites it."""
    if os.environ.get("PERFCI_UPDATE_GOLDEN") == "1":
        file.write_text(text, encoding="utf-8")
    return file.read_text(encoding="utf-8")


def printed(write: Callable[..., None], document: Any, width: int = 0, colour: str | None = None) -> str:
    """Return what is written on a terminal of that width, or, for 0, into a file."""
    file = io.StringIO()
    terminal: dict[str, Any] = {"width": width, "force_terminal": True, "color_system": colour} if width else {}
    write(document, Console(file=file, _environ={}, **terminal))
    return file.getvalue()
