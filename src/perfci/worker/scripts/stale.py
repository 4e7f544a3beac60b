"""Variables that a loop has kept from its turn before: they tell nothing of a call in this one."""

from __future__ import annotations

import ast
import functools
import tokenize
from collections.abc import Iterator
from types import FrameType

LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def stale(frame: FrameType) -> frozenset[str]:
    """Return the names that a loop around a frame's statement assigns in or behind it, and neither reads nor assigns
    before; no names where the source cannot be read."""
    return _stale(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=None)
def _stale(file: str, line: int) -> frozenset[str]:
    around: list[ast.stmt] = []
    for statement in _statements(_tree(file), line):
        around = [] if isinstance(statement, FUNCTIONS) else [*around, statement]
    loops = (one for one in around[:-1] if isinstance(one, LOOPS))
    return frozenset(name for loop in loops for name in _kept(loop, around[-1]))


def _kept(loop: ast.stmt, statement: ast.stmt) -> set[str]:
    names = [*_names(loop)]
    end = statement.end_lineno or statement.lineno
    read = {node.id for node in names if isinstance(node.ctx, ast.Load) and node.lineno <= end}
    assigned = [node for node in names if not isinstance(node.ctx, ast.Load)]
    before = {node.id for node in assigned if node.lineno < statement.lineno}
    turn = {node.id for node in _names(loop.target)} if isinstance(loop, (ast.For, ast.AsyncFor)) else set()
    return {node.id for node in assigned} - read - before - turn


@functools.lru_cache(maxsize=None)
def _tree(file: str) -> ast.AST:
    try:
        with tokenize.open(file) as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _statements(node: ast.AST, line: int) -> Iterator[ast.stmt]:
    """Yield the statements that hold a line, from the outermost on."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.stmt):
            if not child.lineno <= line <= (child.end_lineno or line):
                continue
            yield child
        yield from _statements(child, line)


def _names(node: ast.AST, assigns: bool = True) -> Iterator[ast.Name]:
    """Yield names that a scope reads, in functions of its own as well, and those that it assigns."""
    if isinstance(node, ast.Name) and (assigns or isinstance(node.ctx, ast.Load)):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _names(child, assigns and not isinstance(node, SCOPES))
