"""Kernels that head may have renamed: their cases are missing there, and those of another name are new."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfci.model.base import Side
from perfci.model.results import Case
from perfci.model.text import escaped
from perfci.system.bounded import Unread, regular

_LARGEST = 1 << 20
"""Bytes of a file."""


def renamed(cases: Sequence[Case], trees: Mapping[Side, Path]) -> list[str]:
    """Return a line for each kernel of base alone whose function is that of a kernel of head alone, but for its name.
    `trees`: each side's snapshot."""
    if len(trees) < 2:
        return []
    alone: dict[Side, dict[str, tuple[str, int]]] = {"base": {}, "head": {}}
    for side, found in alone.items():
        for case in cases:
            there = [name for name, one in case.sides.items() if one.status != "absent"]
            if case.origin == "kernel" and there == [side]:
                found[case.kernel] = case.sides[side].file, case.sides[side].line
    lasting = {case.kernel for case in cases if all(one.status != "absent" for one in case.sides.values())}
    bodies = {name: _body(trees["head"], *place) for name, place in alone["head"].items() if name not in lasting}
    lines = []
    for name, place in alone["base"].items():
        body = _body(trees["base"], *place) if name not in lasting else ""
        now = next((other for other, its in bodies.items() if body and its == body), "")
        if now:
            lines.append(
                f"{escaped(name, 100)} of base has the code of {escaped(now, 100)} of head: renamed? Limits and the "
                "history of its cases go by the old name"
            )
    return lines


def _body(tree: Path, file: str, line: int) -> str:
    """Parameters and statements of the function that is declared at a line; empty where there is none."""
    path = (tree / file).resolve()
    try:
        if not path.is_relative_to(tree.resolve()):
            return ""
        regular(path, _LARGEST)
        return _found(ast.parse(path.read_bytes()), line)
    except (OSError, Unread, SyntaxError, ValueError, RecursionError, MemoryError):  # nothing is asked of such a file
        return ""


def _found(module: ast.Module, line: int) -> str:
    for node in ast.walk(module):
        first = (
            min([node.lineno, *(one.lineno for one in node.decorator_list)]) if isinstance(node, ast.FunctionDef) else 0
        )
        if isinstance(node, ast.FunctionDef) and first <= line <= (node.end_lineno or 0):
            return ast.dump(node.args) + "".join(map(ast.dump, node.body))
    return ""
