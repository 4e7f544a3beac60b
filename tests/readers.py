"""Readers of files in the process that tests: for what is read. Their own process starts in longer than most reads take.

That a reader is a process of its own, with bounds, is tested where it is decided: tests/system/test_bounded.py,
tests/profilers/test_hostile.py, tests/measure/test_apart.py.
"""

import json
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, validate_call

from perfci.system.bounded import Bounds, Unread


def ask_here(request: bytes, bounds: Bounds, folder: Path) -> bytes:
    """In the place of `bounded._ask`: arguments and answer go as JSON all the same."""
    asked = json.loads(request)
    function: Any = attrgetter(asked["function"])(import_module(asked["module"]))
    adapter: TypeAdapter[Any] = TypeAdapter(get_type_hints(function, include_extras=True)["return"])
    try:
        return adapter.dump_json(validate_call(function)(**asked["arguments"]))
    except Exception as error:  # noqa: BLE001  # as in a reader's own process
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise Unread(f"its reader failed ({said[:200]})") from None
