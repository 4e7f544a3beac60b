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
ENVIRONMENT = frozenset({"environ", "environb", "putenv", "unsetenv"})
"""The part of CHANGES that is told by its name alone, under whatever name its module goes."""
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
        self._late: list[str] = []
        """Modules that sources name anywhere."""
        self._seen: set[Path] = set()

    def read(self, patterns: Sequence[str]) -> None:
        """Read the suite files that match `patterns`, as discovery imports them."""
        for pattern in patterns:
            matched = matches(self.tree, pattern)
            for file in [] if isinstance(matched, str) else matched:
                self._file(self.tree / file, "")
        self.compiles = self.compiles and not self._changes and not self._late_changes()

    def _file(self, file: Path, package: str) -> None:
        """Read one source. `package`: the one that it belongs to, by which its relative imports go."""
        if file in self._seen or self.stopped:
            return
        self._seen.add(file)
        module = _parsed(file)
        if module is None:
            return  # importing it says what is wrong with it
        self.compiles = self.compiles or any(map(_compiles, ast.walk(module)))
        self._changes = self._changes or _may_change(module)
        self._late += _named(module, package)
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

    def _late_changes(self) -> bool:
        """Tell whether a source of the side's own that only functions import may change what is imported later."""
        read = set(self._seen)
        while self._late:
            for file, package in self._sources(self._late.pop()) or ():
                if file in read:
                    continue
                read.add(file)
                module = _parsed(file)
                if module is None or _may_change(module):
                    return True
                self._late += _named(module, package)
        return False

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
        found = self._sources(name)
        for source, package in found or ():
            self._file(source, package)
        return found is not None

    def _sources(self, name: str) -> Optional[list[tuple[Path, str]]]:
        """Return the sources of a module of the side's own and of the packages around it, each with the package by
        which its relative imports go; None where the side has none of this name."""
        parts = name.split(".")
        entry = next(
            (entry for entry in self.path if _source(entry / parts[0]) or _is_extension(entry, parts[0])), None
        )
        if entry is None:
            return None
        found, folder = [], entry
        for number, part in enumerate(parts):
            folder = folder / part
            source = _source(folder)
            if source is None:
                break
            found.append((source, ".".join(parts[: number + (source.name == "__init__.py")])))
        return found


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
    if isinstance(one, ast.Name):  # from os import environ
        return one.id in ENVIRONMENT and not _only_reads(one, node)
    if not isinstance(one, ast.Attribute) or not isinstance(one.value, ast.Name):
        return False
    of_module = one.attr in CHANGES and one.value.id in ("os", "sys", "site")
    return (of_module or one.attr in ENVIRONMENT) and not _only_reads(one, node)


def _may_set(node: ast.AST) -> bool:
    """Tell whether code may set what decides how dynamo and inductor are imported in another way than `_decides`
    sees."""
    if isinstance(node, (ast.ImportFrom, ast.Import)):
        said = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        renamed = any(alias.asname and alias.name in ("sys", "site") for alias in node.names)
        return renamed or "dotenv" in said or (said[0] in ("sys", "site") and not CHANGES.isdisjoint(said[1:]))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.startswith(("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE", "TORCH_LOGS"))
    return False


def _may_change(module: ast.Module) -> bool:
    """Tell whether code anywhere in a source may change what is imported later."""
    return any(_decides(one, module) or _may_set(one) for one in ast.walk(module))


def _named(module: ast.Module, package: str) -> list[str]:
    """Return the modules that a source imports anywhere, functions included."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (name := _absolute(node, package)):
            found += [name, *("{}.{}".format(name, alias.name) for alias in node.names)]
    return found


def _parsed(file: Path) -> Optional[ast.Module]:
    """Return a source as a tree; None where it is none."""
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


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


def _only_reads(one: Union[ast.Attribute, ast.Name], node: ast.AST) -> bool:
    """Tell whether `os.path.…` is meant, or `os.environ.get(…)`."""
    if (
        isinstance(one, ast.Attribute)
        and isinstance(one.value, ast.Name)
        and one.value.id == "os"
        and one.attr == "path"
    ):
        return True
    return any(isinstance(a, ast.Attribute) and a.value is one and a.attr == "get" for a in ast.walk(node))
