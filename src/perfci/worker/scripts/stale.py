"""Variables that a loop has kept from its turn before: they tell nothing of a call in this one."""

from __future__ import annotations

import ast
import functools
import tokenize
from collections.abc import Iterator
from types import FrameType
from typing import Any

LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Place = tuple[int, int]
"""Line and column."""


def stale(frame: FrameType) -> frozenset[str]:
    """Return the names that the file assigns nowhere but behind a frame's statement in a loop around it, which has not
    read them before; no names where the source cannot be read."""
    return _stale(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=None)
def _stale(file: str, line: int) -> frozenset[str]:
    tree = _tree(file)
    around: list[ast.stmt] = []
    for statement in _statements(tree, line):
        around = [] if isinstance(statement, FUNCTIONS) else [*around, statement]
    loops = [one for one in around[:-1] if isinstance(one, LOOPS)]
    if not loops:
        return frozenset()
    loop, start, end = loops[0], _start(around[-1]), _end(around[-1])
    behind, elsewhere = set[str](), set[str]()
    for name, place, keyword in _assigned(tree):
        if not start <= place <= _end(loop):
            elsewhere.add(name)
        elif not keyword:
            behind.add(name)
    if "*" in elsewhere:  # such an import may have assigned any of them
        return frozenset()
    names = (node for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return frozenset(behind - elsewhere - {node.id for node in names if _start(node) <= end})


def _start(node: Any) -> Place:
    return node.lineno, node.col_offset


def _end(node: Any) -> Place:
    return node.end_lineno, node.end_col_offset


@functools.lru_cache(maxsize=None)
def _assigned(tree: ast.AST) -> list[tuple[str, Place, bool]]:
    """What any scope assigns, where, and whether that is a keyword of a call, which may: `globals().update`. What has
    no place stands at the top."""
    found: list[tuple[str, Place, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names = [] if isinstance(node.ctx, ast.Load) else [node.id]
        elif isinstance(node, ast.alias):
            names = [(node.asname or node.name).partition(".")[0]]
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            names = node.names
        else:  # functions, arguments, keywords, exceptions and patterns
            names = [text for key in ("name", "arg", "rest") if isinstance(text := getattr(node, key, None), str)]
        place = _start(node) if hasattr(node, "lineno") else (0, 0)
        found += [(name, place, isinstance(node, ast.keyword)) for name in names]
    return found


@functools.lru_cache(maxsize=None)
def _tree(file: str) -> ast.AST:
    try:
        with tokenize.open(file) as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _statements(node: ast.AST, line: int) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.stmt):
            if not child.lineno <= line <= (child.end_lineno or line):
                continue
            yield child
        yield from _statements(child, line)
