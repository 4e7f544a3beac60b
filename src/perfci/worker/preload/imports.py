"""Reads from its sources what a suite imports before any of its own code runs. Nothing is executed.

Followed are the statements at the top of each suite file and, in the order of execution, those of the side's own
modules that they name. A statement under a condition is left out, since it may not run; so is all that comes after code
which could change how later imports turn out, such as a variable of the environment.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, Union

from ..discover import matches

CHANGES = frozenset({"environ", "putenv", "unsetenv", "modules", "path", "meta_path", "path_hooks", "chdir"})
"""Attributes of os, sys and site by which code decides what a later import does."""
COMPILING = ("torch._dynamo.backends.inductor", "torch._inductor.compile_fx", "torch._dynamo.repro.after_dynamo",
             "torch._inductor.codegen.cuda_combined_scheduling", "torch.export._trace")  # fmt: skip
"""Modules that the first call of a function of `torch.compile` imports; they import nearly all others (torch 2.13). One
that a version of torch does not have is passed over."""
_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Statement(NamedTuple):
    """`import module`, or `from module import names`, of code that is not the side's own."""

    module: str
    names: tuple[str, ...] = ()


class Scan:
    """The statements of one side's suite, in the order of execution."""

    def __init__(self, tree: str, path: Sequence[str]) -> None:
        """`path`: the side's own entries of `sys.path`."""
        self.tree, self.path = Path(tree), [Path(entry) for entry in path]
        self.found: dict[Statement, None] = {}
        self.stopped = ""
        """Where reading ended before the end: `file:line`."""
        self.compiles = False
        """True where the code names `torch.compile`, and nothing in it may change what that imports later."""
        self._changes = False
        self._seen: set[Path] = set()

    def read(self, patterns: Sequence[str]) -> None:
        """Read the suite files that match `patterns`, as discovery imports them."""
        for pattern in patterns:
            matched = matches(self.tree, pattern)
            for file in [] if isinstance(matched, str) else matched:
                self._file(self.tree / file, "")
        self.compiles = self.compiles and not self._changes

    def _file(self, file: Path, package: str) -> None:
        """Read one source. `package`: the one that it belongs to, by which its relative imports go."""
        if file in self._seen or self.stopped:
            return
        self._seen.add(file)
        try:
            module = ast.parse(file.read_bytes(), str(file))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return  # importing it says what is wrong with it
        self.compiles = self.compiles or any(map(_compiles, ast.walk(module)))
        self._changes = self._changes or any(_decides(one, module) for one in ast.walk(module))
        for node in _top(module.body):
            if self.stopped:
                return
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._module(Statement(alias.name))
            elif isinstance(node, ast.ImportFrom):
                name = _absolute(node, package)
                if name:
                    self._module(Statement(name, tuple(alias.name for alias in node.names)))
            elif _changes(node):
                self.stopped = "{}:{}".format(os.path.relpath(file, self.tree), node.lineno)

    def _module(self, statement: Statement) -> None:
        """Follow a statement into the side's own code, or keep it."""
        if statement.module.partition(".")[0] in ("perfci", "__future__"):
            return
        if not self._own(statement.module):
            self.found.setdefault(statement)
            return
        for name in statement.names:  # a submodule, or something that the package holds
            self._own("{}.{}".format(statement.module, name))

    def _own(self, name: str) -> bool:
        """Tell whether the side has a module of this name; read it, and the packages around it."""
        parts = name.split(".")
        entry = next(
            (entry for entry in self.path if _source(entry / parts[0]) or _is_extension(entry, parts[0])), None
        )
        if entry is None:
            return False
        folder = entry
        for number, part in enumerate(parts):
            folder = folder / part
            source = _source(folder)
            if source is None:
                break
            is_package = source.name == "__init__.py"
            self._file(source, ".".join(parts[: number + is_package]))
        return True


def _source(stem: Path) -> Optional[Path]:
    """Return the source of the module whose path without suffix is `stem`."""
    return next((file for file in (stem / "__init__.py", stem.with_name(stem.name + ".py")) if file.is_file()), None)


def _is_extension(entry: Path, name: str) -> bool:
    return any(entry.glob(name + ".*.so")) or (entry / (name + ".so")).is_file()


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """Return the name of the module that a statement imports from; empty where it leads out of its package."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


_Node = Union[ast.Import, ast.ImportFrom, ast.stmt]


def _top(body: Sequence[ast.stmt]) -> Iterator[_Node]:
    """Yield the statements that run whenever the module is imported; of `try`, what it tries."""
    for node in body:
        if isinstance(node, ast.Try):
            yield from _top(node.body)
            yield from _top(node.finalbody)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _top(node.body)
        else:
            yield node


def _changes(node: ast.AST) -> bool:
    """Tell whether code at the top of a module may change how later imports turn out."""
    return not isinstance(node, _Function) and any(_decides(one, node) for one in ast.walk(node))


def _decides(one: ast.AST, node: ast.AST) -> bool:
    """Tell whether a part of `node` may change how later imports turn out."""
    return (
        isinstance(one, ast.Attribute)
        and one.attr in CHANGES
        and isinstance(one.value, ast.Name)
        and one.value.id in ("os", "sys", "site")
        and not _only_reads(one, node)
    )


def _compiles(node: ast.AST) -> bool:
    """Tell whether code names `torch.compile`."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "torch" and any(alias.name == "compile" for alias in node.names)
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "compile"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    )


def _only_reads(one: ast.Attribute, node: ast.AST) -> bool:
    """Tell whether `os.path.…` is meant, or `os.environ.get(…)`."""
    if isinstance(one.value, ast.Name) and one.value.id == "os" and one.attr == "path":
        return True
    return any(isinstance(a, ast.Attribute) and a.value is one and a.attr == "get" for a in ast.walk(node))
