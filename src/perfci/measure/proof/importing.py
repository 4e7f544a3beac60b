"""Tells whether importing a suite does the same in base and in head for all that does not read what differs.

Cases of other suite files share a process with a file that differs: what its import does to others, they see. So the
statements that are executed at import must be the same in both sides, but for those that only define: functions,
classes, constants, by expressions that call nothing unknown. And no such statement, in any module that the suite
imports, may use a definition that differs, be it through others. Where that is not known, they are not the same.
"""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from perfci.model.text import escaped

_PLAIN = (
    ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Subscript, ast.Slice, ast.Starred, ast.Lambda,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.keyword, ast.expr_context,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.arguments, ast.arg,
)  # fmt: skip
"""Parts of expressions that call nothing; operators of values that are plain themselves."""
_PURE = frozenset(
    {
        "bool", "bytes", "complex", "dict", "enumerate", "float", "frozenset", "int", "len", "list", "max", "min",
        "pow", "range", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip",
        "dataclasses.field", "itertools.product", "logging.getLogger", "math.ceil", "math.sqrt", "os.path.dirname",
        "os.path.join", "pathlib.Path", "re.compile", "torch.device", "triton.Config", "triton.language.constexpr",
        "typing.NewType", "typing.TypeVar",
    }
)  # fmt: skip
"""Functions that change nothing which others see."""
_DECORATORS = frozenset(
    {
        "classmethod", "property", "staticmethod", "contextlib.contextmanager", "dataclasses.dataclass",
        "functools.cache", "functools.cached_property", "functools.lru_cache", "functools.wraps", "perfci.kernel",
        "torch.compile", "torch.inference_mode", "torch.no_grad", "triton.autotune", "triton.heuristics", "triton.jit",
    }
)  # fmt: skip
"""Decorators that keep what they decorate nowhere else."""
_BASES = frozenset(
    {
        "object", "Exception", "ValueError", "RuntimeError", "TypeError", "abc.ABC", "enum.Enum", "enum.IntEnum",
        "torch.autograd.Function", "torch.nn.Module", "typing.Generic", "typing.NamedTuple", "typing.Protocol",
        "typing.TypedDict",
    }
)  # fmt: skip
"""Classes, from outside, that nobody asks for their subclasses."""
_DYNAMIC = frozenset(
    {
        "__dict__", "__import__", "entry_points", "eval", "exec", "exec_module", "globals", "import_module",
        "load_module", "modules", "reload", "runpy", "vars",
    }
)  # fmt: skip
"""Names and attributes by which code is reached that no statement names."""
_IMPORT = "import "


class Imported(NamedTuple):
    """The modules of a side that its suite imports, and its suite files."""

    folder: Path
    """The side's."""
    modules: Mapping[str, str]
    """Name of a module → its path below the folder."""
    suite: Sequence[str]
    """Suite files, in its tree."""

    @property
    def paths(self) -> set[str]:
        """All of them, below the folder."""
        return {*self.modules.values(), *(f"tree/{file}" for file in self.suite)}


@dataclass
class _Module:
    """The statements of a module that are executed as it is imported, by what they do."""

    effects: list[str] = field(default_factory=list)
    """Those that do more than define, in order, and `import …` of what is asked for."""
    used: set[str] = field(default_factory=set)
    """Names that these use."""
    defined: dict[str, str] = field(default_factory=dict)
    """Name → the statements that only define it."""
    uses: dict[str, set[str]] = field(default_factory=dict)
    """Name → names that its definitions use."""
    bound: dict[str, set[str]] = field(default_factory=dict)
    """Name → what imports anywhere bind to it: a module, or an attribute of one."""

    @property
    def imported(self) -> set[str]:
        """Modules that are asked for as it is imported, or attributes of modules."""
        return {text.removeprefix(_IMPORT) for text in self.effects if text.startswith(_IMPORT)}

    def add(self, statements: list[ast.stmt], package: list[str]) -> None:
        """Take in statements. `package`: names that relative imports begin at."""
        for one in statements:
            imports = [each for each in ast.walk(one) if isinstance(each, (ast.Import, ast.ImportFrom))]
            for each in imports:
                self._bind(each, package)
            if isinstance(one, ast.If) and _never(one.test):
                self.add(one.orelse, package)
            elif isinstance(one, ast.If) and self._is_plain(one.test):
                self._effect(one.test)
                self._branches([one.body, one.orelse], package)
            elif isinstance(one, ast.Try):
                self.effects.append("try")
                for handler in one.handlers:
                    self._effect(handler.type or ast.Name("BaseException"))
                branches = [one.body, *(handler.body for handler in one.handlers), one.orelse, one.finalbody]
                self._branches(branches, package)
            elif isinstance(one, (ast.Import, ast.ImportFrom)):
                self.effects += [_IMPORT + target for target in _targets(one, package).values()]
            elif (names := self._defines(one)) is None:
                self._effect(one)
                self.effects += [_IMPORT + target for each in imports for target in _targets(each, package).values()]
            else:
                for name in names:
                    self.defined[name] = self.defined.get(name, "") + ast.dump(one)
                    self.uses.setdefault(name, set()).update(_names(one))

    def without(self, other: "_Module") -> list[str]:
        """Return the effects without imports that only this one has: whether those do anything shows in what they
        import."""
        return [text for text in self.effects if not text.startswith(_IMPORT) or text in other.effects]

    def _effect(self, one: ast.AST) -> None:
        self.effects.append(ast.dump(one))
        self.used |= _names(one)

    def _branches(self, branches: list[list[ast.stmt]], package: list[str]) -> None:
        for branch in branches:
            self.add(branch, package)
            self.effects.append("end")

    def _bind(self, one: ast.Import | ast.ImportFrom, package: list[str]) -> None:
        for alias, target in _targets(one, package).items():
            plain = isinstance(one, ast.Import) and not alias.asname
            top = target.partition(".")[0]
            self.bound.setdefault(top if plain else alias.asname or alias.name, set()).add(top if plain else target)

    def _defines(self, one: ast.stmt) -> list[str] | None:
        """Return the names that a statement defines, where it does nothing else; else None."""
        if isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            return []
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts = [*one.args.defaults, *one.args.kw_defaults, *_annotations(one)]
            plain = all(map(self._is_plain, parts)) and all(map(self._keeps_nothing, one.decorator_list))
            return [one.name] if plain else None
        if isinstance(one, ast.ClassDef):
            bases = all(self._called(_bare(base)) in _BASES for base in one.bases) and not one.keywords
            inside = all(self._defines(each) is not None for each in one.body)
            return [one.name] if bases and inside and all(map(self._keeps_nothing, one.decorator_list)) else None
        if isinstance(one, ast.Assign) and self._is_plain(one.value):
            tuples = [target.elts if isinstance(target, ast.Tuple) else [target] for target in one.targets]
            targets = [target for each in tuples for target in each]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            # In the place of what could not be imported: no definition, or the name would not be that of the import.
            return names if len(names) == len(targets) and not self.bound.keys() & set(names) else None
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            return [one.target.id] if self._is_plain(one.value) and self._is_plain(one.annotation) else None
        return None

    def _is_plain(self, value: ast.expr | None) -> bool:
        """Tell whether an expression calls nothing but what is known to change nothing."""
        if value is None or isinstance(value, ast.Lambda):
            return True
        if isinstance(value, ast.Call):
            calls_none = all(keyword.arg != "key" for keyword in value.keywords)
            plain = calls_none and all(map(self._is_plain, [*value.args, *_values(value)]))
            return plain and self._called(value.func) in _PURE
        parts = ast.iter_child_nodes(value)
        return isinstance(value, _PLAIN) and all(self._is_plain(one) for one in parts)  # type: ignore[arg-type]

    def _keeps_nothing(self, decorator: ast.expr) -> bool:
        if not isinstance(decorator, ast.Call):
            return self._called(decorator) in _DECORATORS
        plain = all(map(self._is_plain, [*decorator.args, *_values(decorator)]))
        return plain and self._called(decorator.func) in _DECORATORS

    def _called(self, value: ast.expr) -> str:
        """Return the dotted name of what an expression names, as it was imported; empty where it names nothing."""
        first, dot, rest = ast.unparse(value).partition(".")
        targets = self.bound.get(first, {first} if "*" not in self.bound else set())
        return "" if first in self.defined or len(targets) != 1 else next(iter(targets)) + dot + rest


def _targets(one: ast.Import | ast.ImportFrom, package: list[str]) -> dict[ast.alias, str]:
    """Return what each part of an import asks for: a module, or an attribute of one."""
    if isinstance(one, ast.Import):
        return {alias: alias.name for alias in one.names}
    above = package[: len(package) - one.level + 1] if one.level else []
    module = ".".join([*above, *([one.module] if one.module else [])])
    return {alias: f"{module}.{alias.name}" for alias in one.names}


def _bare(base: ast.expr) -> ast.expr:
    return base.value if isinstance(base, ast.Subscript) else base


def _values(call: ast.Call) -> list[ast.expr]:
    return [keyword.value for keyword in call.keywords]


def _annotations(one: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr | None]:
    arguments = [*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs, one.args.vararg, one.args.kwarg]
    yield from (argument.annotation for argument in arguments if argument is not None)
    yield one.returns


def _names(node: ast.AST) -> set[str]:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | _DYNAMIC.intersection(one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute))


def _never(test: ast.expr) -> bool:
    """Tell whether what stands under a condition is not executed at import."""
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")


def _read(side: Imported) -> tuple[dict[str, _Module], str]:
    """Return path → module, of all that a suite imports of a side; and what cannot be read, empty where all can."""
    found: dict[str, _Module] = {}
    named = [*side.modules.items(), *(("", f"tree/{file}") for file in side.suite)]
    for name, path in named:
        if not path.endswith(".py") or path in found:
            continue
        try:
            tree = ast.parse((side.folder / path).read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return {}, path
        module = found[path] = _Module()
        package = name.split(".") if PurePosixPath(path).name == "__init__.py" else name.split(".")[:-1]
        module.add(tree.body, package)
    return found, ""


def importing(base: Imported, head: Imported, differing: Collection[str]) -> str:
    """Return why importing the suite may do another thing in head than in base to cases that read nothing which
    differs, as a clause; empty where it does the same. `differing`: paths."""
    sides = []
    for side in (base, head):
        found, unread = _read(side)
        if unread:
            return f"the suite imports {escaped(unread, 200)}, which cannot be read as Python"
        sides.append(found)
    ours, theirs = sides
    names = {**base.modules, **head.modules}
    others = {path for path in names.values() if PurePosixPath(path).suffix not in ("", ".py")} & set(differing)
    if others:
        return f"the suite imports {escaped(min(others), 200)}, which differs"
    changed: dict[str, set[str]] = {}
    for path in sorted((ours.keys() | theirs.keys()) & (set(differing) | (ours.keys() ^ theirs.keys()))):
        here, there = ours.get(path, _Module()), theirs.get(path, _Module())
        if here.without(there) != there.without(here):
            return f"{escaped(path, 200)} differs in what it does as it is imported"
        changed[path] = _unlike(here.defined, there.defined) | _unlike(here.bound, there.bound)
    if more := _asked(ours, names) ^ _asked(theirs, names):
        return f"the suite of one side alone imports {escaped(min(more), 200)}"
    return next(filter(None, (_reached(found, names, changed) for found in sides if changed)), "")


def _unlike(some: Mapping[str, object], others: Mapping[str, object]) -> set[str]:
    return {name for name in some.keys() | others.keys() if some.get(name) != others.get(name)}


def _asked(modules: Mapping[str, _Module], names: Mapping[str, str]) -> set[str]:
    """Return the modules, or attributes of modules, from elsewhere that a side asks for, but for Python's own."""
    known = names.keys()
    asked = {name for module in modules.values() for name in module.imported}
    return {
        name for name in asked
        if name.partition(".")[0] not in sys.stdlib_module_names and name.partition(".")[0] != "perfci"
        and name not in known and name.rpartition(".")[0] not in known
    }  # fmt: skip


def _reached(modules: Mapping[str, _Module], names: Mapping[str, str], changed: Mapping[str, Collection[str]]) -> str:
    """Return which module uses a definition that differs while it is imported, as a clause; empty where none does."""
    tainted = {path: set(_DYNAMIC.union(changed.get(path, ()))) for path in modules}
    known = {name: path for name, path in names.items() if path in modules}
    moved = {path for path in modules if path in changed}
    grows = True
    while grows:
        before = sum(map(len, tainted.values()))
        for path, module in modules.items():
            own = tainted[path]
            for local, targets in module.bound.items():
                for target in targets:
                    above, _, last = target.rpartition(".")
                    whole = any(one in moved for name, one in known.items() if f"{name}.".startswith(f"{target}."))
                    part = tainted[known[above]] - _DYNAMIC if above in known else set()
                    if whole or last in part:
                        own.add(local)
                    elif last == "*":
                        own |= part
            own.update(name for name, uses in module.uses.items() if uses & own)
            if own - _DYNAMIC:
                moved.add(path)
        grows = sum(map(len, tainted.values())) > before
    for path, module in modules.items():
        if met := module.used & tainted[path]:
            how = "by which it could reach" if min(met) in _DYNAMIC else "which hangs on"
            return f"{escaped(path, 200)} uses {escaped(min(met), 100)} as it is imported, {how} what differs"
    return ""
