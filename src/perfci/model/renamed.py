"""Keys and values of a policy that were called otherwise before 1.0, so that an old one is told the new one."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

KEYS = {"contract": "timing", "evidence": "profile", "floor": "min_change"}
VALUES = {"steady": "rotating"}
"""Of `timing`."""


def renamed(model: type[BaseModel], detail: Mapping[str, Any]) -> str:
    """Say what to write in place of an old word that `model` refused; empty where it is none.

    `detail`: of pydantic's ValidationError.
    """
    key, given = str(detail["loc"][-1]) if detail["loc"] else "", detail["input"]
    value = VALUES.get(given, given) if isinstance(given, str) else given
    text = f"{value}" if isinstance(value, str | int | float) else "…"
    if detail["type"] == "extra_forbidden" and KEYS.get(key) in model.model_fields:
        return f"is called {KEYS[key]} now: write {KEYS[key]}: {text}"[:300]
    if detail["type"] == "literal_error" and key == "timing" and value != given:
        return f"{given} is called {value} now: write timing: {value}"
    return ""
