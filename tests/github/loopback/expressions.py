"""GitHub's expressions, as GitHub's own parser and evaluator read them (npm's @actions/workflow-parser)."""

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


class ExpressionError(Exception):
    """An expression that GitHub refuses, or that asks for what the contexts given lack."""


def value(template: str, contexts: Mapping[str, Any]) -> Any:
    """Evaluate a value of a workflow: of any type where it is one expression alone. Raises ExpressionError."""
    return _asked(value=template, contexts=contexts)["value"]


def text(template: str, contexts: Mapping[str, Any]) -> str:
    """The same as a string, as an environment and the inputs of an action hold it. Raises ExpressionError."""
    return str(_asked(value=template, contexts=contexts)["text"])


def condition(template: str | None, contexts: Mapping[str, Any], failed: bool = False) -> bool:
    """Tell whether an `if` holds, after what `failed` or did not. Raises ExpressionError."""
    status = {"success": not failed, "failure": failed, "cancelled": False, "always": True}
    return bool(_asked(value="success()" if template is None else template, contexts=contexts, status=status)["value"])


def _asked(**question: Any) -> dict[str, Any]:
    node = _node()
    assert node.stdin is not None and node.stdout is not None
    node.stdin.write(f"{json.dumps(question)}\n")
    node.stdin.flush()
    answer: dict[str, Any] = json.loads(node.stdout.readline())
    if "error" in answer:
        raise ExpressionError(f"{question['value']}: {answer['error']}")
    return answer


@functools.cache
def _node() -> subprocess.Popen[str]:
    """Ends with the standard input that this process leaves to it."""
    if shutil.which("node") is None or not (ROOT / "node_modules/@actions").exists():
        pytest.skip("needs Node.js, and npm's packages by `make node_modules`")
    scripts = Path(__file__).parents[1]
    command = ["node", "--import", str(scripts / "json.mjs"), str(scripts / "expressions.mjs")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
