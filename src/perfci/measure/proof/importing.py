"""Checks that importing suite files that read what differs does nothing to other files' cases, in one process.

Those files, and every module of the repository that they import, may only define as they are imported: functions,
classes and data, by expressions that call nothing unknown. And base and head must ask for the same packages from
outside. Where that is not known, nothing of the suite is proved.
"""

import ast
import builtins
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from perfci.model.text import escaped

_DATA = (
    ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.JoinedStr, ast.FormattedValue, ast.Subscript, ast.Slice, ast.Starred, ast.Attribute, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.keyword, ast.expr_context, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop,
)  # fmt: skip
"""Parts of expressions that call nothing on data: operators of a class call its methods."""
_PURE = frozenset(
    {
        "bool", "bytes", "complex", "dict", "enumerate", "float", "frozenset", "int", "len", "list", "max", "min",
        "pow", "range", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip",
        "collections.namedtuple", "dataclasses.field", "enum.auto", "functools.partial", "itertools.product",
        "logging.getLogger", "math.ceil", "math.log2", "math.prod", "math.sqrt", "operator.attrgetter",
        "operator.itemgetter", "os.environ.get", "os.getenv", "os.path.abspath", "os.path.basename", "os.path.dirname",
        "os.path.join", "pathlib.Path", "re.compile", "torch.device", "triton.Config",
        "triton.language.constexpr", "typing.NewType", "typing.TypeVar",
    }
)  # fmt: skip
"""Functions that change nothing which others see."""
_HERE = re.compile(
    r"([\w.]+)\(__file__\)(\.parent|\.(resolve|absolute)\(\)|\.parents\[\d+\]|\.(with_name|joinpath)\('[^']*'\))*"
)
"""A path beside the file itself, by `pathlib.Path`. All other methods may do anything."""
_OWN_NAMES = ("__file__", "__name__")
_FILE = ast.Name("__file__")
_DECORATORS = frozenset(
    {
        "classmethod", "property", "staticmethod", "abc.abstractmethod", "contextlib.contextmanager",
        "dataclasses.dataclass", "functools.cache", "functools.cached_property", "functools.lru_cache",
        "functools.total_ordering", "functools.wraps", "perfci.kernel", "torch.compile", "torch.inference_mode",
        "torch.no_grad", "triton.autotune", "triton.heuristics", "triton.jit", "typing.final", "typing.overload",
        "typing.runtime_checkable",
    }
)  # fmt: skip
"""Decorators that keep what they decorate nowhere else."""
_ENUMS = frozenset({"enum.Enum", "enum.IntEnum"})
_BASES = _ENUMS | {
    "object", "Exception", "AttributeError", "ImportError", "KeyError", "LookupError",
    "RuntimeError", "TypeError", "ValueError", "abc.ABC", "torch.autograd.Function", "torch.nn.Module",
    "typing.Generic", "typing.NamedTuple", "typing.Protocol", "typing.TypedDict",
}  # fmt: skip
"""Classes from outside that nobody asks for their subclasses."""


_DYNAMIC = {
    "__import__", "entry_points", "exec", "import_module", "iter_modules", "pytest_plugins", "run_module", "run_path",
    "spec_from_file_location", "walk_packages",
}  # fmt: skip
"""Names of what finds or executes files by name."""
NO_PYTHON = "which is no Python"


@dataclass(frozen=True)
class Imported:
    """A side's modules that its suite imports, and its suite files."""

    folder: Path
    modules: Mapping[str, str]
    """Module → path below the folder."""
    suite: Sequence[str]
    parsed: "dict[str, _Module | str]" = field(default_factory=dict)
    """Path → module, or why it is unknown."""

    @property
    def paths(self) -> set[str]:
        """All paths, below the folder."""
        return {*self.modules.values(), *(f"tree/{file}" for file in self.suite)}


class _Module:
    def __init__(self, statements: list[ast.stmt], package: list[str], own: Collection[str]) -> None:
        """`package`: names that relative imports begin at; `own`: top-level names of the side's modules."""
        self.package, self.own = package, own
        self.effects: list[int] = []
        """Lines of statements that do more than define."""
        self.imported: dict[str, int] = {}
        """Modules asked for, or their attributes → first line."""
        self.bound: dict[str, set[str]] = {}
        """Name → what imports bind to it: a module or its attribute."""
        self.defined: set[str] = set()
        self.data: set[str] = set()
        """Names of numbers, texts, collections of these."""
        self.anywhere: dict[str, int] = {}
        """As `imported`, with imports in functions."""
        self.dynamic = False
        """It may execute files by other means."""
        self.files: set[str] = set()
        """File names, without folders, that its texts may be."""
        for one in (one for top in statements for one in ast.walk(top)):
            if isinstance(one, (ast.Import, ast.ImportFrom)):
                self._bind(one)
                for target in self._targets(one).values():
                    self.anywhere[target] = min(one.lineno, self.anywhere.get(target, one.lineno))
            elif isinstance(one, (ast.Name, ast.Attribute)):
                self.dynamic |= (one.id if isinstance(one, ast.Name) else one.attr) in _DYNAMIC
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                self.files.add(one.value.rpartition("/")[2])
        self._add(statements)

    def _add(self, statements: Iterable[ast.stmt]) -> None:
        for one in statements:
            if isinstance(one, ast.If):
                never = ast.unparse(one.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
                self._require(one, never or self._is_data(one.test))
                self._add([*([] if never else one.body), *one.orelse])
            elif isinstance(one, ast.Try):
                self._require(one, all(each.type is None or self._is_plain(each.type) for each in one.handlers))
                handled = [each for handler in one.handlers for each in handler.body]
                self._add([*one.body, *handled, *one.orelse, *one.finalbody])
            elif isinstance(one, (ast.Import, ast.ImportFrom)):
                for target in self._targets(one).values():
                    self.imported.setdefault(target, one.lineno)
            else:
                self._require(one, self._defines(one))

    def _require(self, one: ast.stmt, holds: bool) -> None:
        if not holds:
            self.effects.append(min([one.lineno, *(each.lineno for each in getattr(one, "decorator_list", ()))]))

    def line(self, start: int = 0) -> int:
        """First line from `start` that does more than define, or 0."""
        return min((line for line in self.effects if line >= start), default=0)

    def _bind(self, one: ast.Import | ast.ImportFrom) -> None:
        for alias, target in self._targets(one).items():
            plain = isinstance(one, ast.Import) and not alias.asname
            top = target.partition(".")[0]
            self.bound.setdefault(top if plain else alias.asname or alias.name, set()).add(top if plain else target)

    def _targets(self, one: ast.Import | ast.ImportFrom) -> dict[ast.alias, str]:
        """A module or its attribute."""
        if isinstance(one, ast.Import):
            return {alias: alias.name for alias in one.names}
        above = self.package[: len(self.package) - one.level + 1] if one.level else []
        module = ".".join([*above, *([one.module] if one.module else [])])
        return {alias: f"{module}.{alias.name}" for alias in one.names}

    def _defines(self, one: ast.stmt, is_enum: bool = False) -> bool:
        """`is_enum`: in the body of one, which its own methods make."""
        if isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            return True
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._define([one.name], is_data=False)
            given = all(map(self._is_plain, [*one.args.defaults, *one.args.kw_defaults]))
            plain = (
                given
                and all(map(self._is_type, _annotations(one)))
                and all(map(self._keeps_nothing, one.decorator_list))
            )
            # `__getattr__` of a module answers imports (PEP 562).
            return plain and one.name != "__getattr__" and not (is_enum and one.name.startswith("_"))
        if isinstance(one, ast.ClassDef):
            bases = {self._called(base.value if isinstance(base, ast.Subscript) else base) for base in one.bases}
            inside = _Module([], self.package, self.own)
            inside.bound, inside.defined, inside.data = self.bound, {*self.defined}, {*self.data}
            body = all(inside._defines_in_class(each, bool(bases & _ENUMS)) for each in one.body)
            self._define([one.name], is_data=False)
            return bases <= _BASES and not one.keywords and body and all(map(self._keeps_nothing, one.decorator_list))
        if isinstance(one, ast.Assign):
            tuples = [target.elts if isinstance(target, ast.Tuple) else [target] for target in one.targets]
            targets = [target for each in tuples for target in each]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            known = self._is_plain(one.value) if len(targets) == len(tuples) else self._is_data(one.value)
            # In the place of what could not be imported stands a constant, or a name would not be that of the import.
            instead = not self.bound.keys() & set(names) or isinstance(one.value, ast.Constant)
            self._define(set(names) - self.bound.keys(), is_data=self._is_data(one.value))
            return known and instead and len(names) == len(targets)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            known = self._is_plain(one.value) and self._is_type(one.annotation)
            self._define([one.target.id], is_data=one.value is not None and self._is_data(one.value))
            return known and one.target.id not in self.bound
        return False

    def _define(self, names: Iterable[str], *, is_data: bool) -> None:
        for name in names:
            (self.data.add if is_data and name not in self.defined else self.data.discard)(name)
            self.defined.add(name)

    def _defines_in_class(self, one: ast.stmt, is_enum: bool) -> bool:
        """Methods of objects that a class holds may be called as it is made (`__set_name__`)."""
        value = one.value if isinstance(one, (ast.Assign, ast.AnnAssign)) else None
        return (value is None or self._is_data(value)) and self._defines(one, is_enum)

    def _is_plain(self, value: ast.expr | None) -> bool:
        """Or only kept: under a name, in a tuple, list or dict."""
        if value is None or isinstance(value, (ast.Name, ast.Constant, ast.Lambda)):
            return True
        if isinstance(value, ast.Attribute):
            return self._is_plain(value.value)
        if isinstance(value, (ast.Tuple, ast.List)):
            return all(map(self._is_plain, value.elts))
        if isinstance(value, ast.Dict) and all(isinstance(key, ast.Constant) for key in value.keys):
            return all(map(self._is_plain, value.values))
        if isinstance(value, ast.Subscript):  # a generic type
            return self._is_outside(value.value) and self._is_plain(value.slice)
        return self._is_data(value)

    def _is_type(self, value: ast.expr | None) -> bool:
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
            return self._is_type(value.left) and self._is_type(value.right)
        return self._is_plain(value)

    def _is_outside(self, value: ast.expr) -> bool:
        top = self._called(value).partition(".")[0]
        return bool(top) and top not in self.own

    def _is_data(self, value: ast.AST, local: Collection[str] = ()) -> bool:
        """Also of `local` names, or of what lies outside the repository."""
        if isinstance(value, ast.Name):
            own = value.id in _OWN_NAMES and value.id not in self.bound.keys() | self.defined
            return value.id in local or value.id in self.data or own or self._is_outside(value)
        if isinstance(value, ast.Call):
            here = None if local else _HERE.fullmatch(ast.unparse(value))
            if here and self._called(ast.parse(here[1], mode="eval").body) == "pathlib.Path":
                return self._is_data(_FILE)
            given = [*value.args, *(keyword.value for keyword in value.keywords)]
            calls_none = all(keyword.arg not in ("key", None) for keyword in value.keywords)
            known = self._called(value.func) in _PURE and ast.unparse(value.func).partition(".")[0] not in local
            return calls_none and known and all(self._is_data(one, local) for one in given)
        loops = [one for one in getattr(value, "generators", []) if isinstance(one, ast.comprehension)]
        names = {*local, *(one.id for loop in loops for one in ast.walk(loop.target) if isinstance(one, ast.Name))}
        return isinstance(value, _DATA) and all(self._is_data(one, names) for one in ast.iter_child_nodes(value))

    def _keeps_nothing(self, decorator: ast.expr) -> bool:
        if not isinstance(decorator, ast.Call):
            return self._called(decorator) in _DECORATORS
        given = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
        return self._called(decorator.func) in _DECORATORS and all(map(self._is_plain, given))

    def _called(self, value: ast.expr) -> str:
        """A dotted name as imported, or empty."""
        first, dot, rest = ast.unparse(value).partition(".")
        builtin = {first} if hasattr(builtins, first) and "*" not in self.bound else set()
        targets = self.bound.get(first, builtin)
        return "" if first in self.defined or len(targets) != 1 else next(iter(targets)) + dot + rest


def _annotations(one: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr | None]:
    arguments = [*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs, one.args.vararg, one.args.kwarg]
    yield from (argument.annotation for argument in arguments if argument is not None)
    yield one.returns


def importing(base: Imported, head: Imported, apart: Collection[str]) -> str:
    """Return why importing the suite files `apart` may affect others, as a clause, or empty."""
    asked = []
    for side in (base, head):
        for path, module in closed(side, [file for file in side.suite if file in apart]).items():
            if isinstance(module, str):
                return f"the suite imports {escaped(path, 200)}, {module}"
            if line := module.line():
                return f"{escaped(path, 200)}:{line} does more than define as it is imported"
        whole = [module for module in closed(side, side.suite).values() if isinstance(module, _Module)]
        asked.append({name for module in whole for name in module.imported})
    own = {*base.modules, *head.modules}
    names = {name for name in asked[0] ^ asked[1] if not _is_known(name, own)}
    return f"the suite of one side alone imports {escaped(min(names), 200)}" if names else ""


def at_work(side: Imported, differs: Collection[str]) -> dict[str, int]:
    """Return path → the first line that does more than define by what differs, or 0, of imported modules.

    They differ, name a file that does, cannot be read, may execute files by other means, or import another such module.
    """
    modules = closed(side, side.suite, anywhere=True)
    names = {PurePosixPath(path).name for path in differs if not path.endswith(".py")}
    code = any(path.endswith(".py") for path in differs)
    start: dict[str, int] = {}
    for path, module in modules.items():
        if isinstance(module, str):
            unknown = module != NO_PYTHON
        else:
            unknown = (code and module.dynamic) or not names.isdisjoint(module.files)
        if path in differs or unknown:
            start[path] = 1
    while True:
        later = {}
        for path, module in modules.items():
            asked = module.anywhere.items() if path not in start and isinstance(module, _Module) else ()
            lines = [line for target, line in asked if any(side.modules.get(one) in start for one in _parts(target))]
            later.update({path: min(lines)} if lines else {})
        if not later:
            break
        start |= later
    parsed = {path: module for path, module in modules.items() if isinstance(module, _Module)}
    return {path: parsed[path].line(line) if path in parsed else line for path, line in start.items()}


def _is_known(name: str, own: Collection[str]) -> bool:
    """Modules of the repository, Python's own, or perfci's."""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top == "perfci" or name in own or name.rpartition(".")[0] in own


def closed(side: Imported, suite: Iterable[str], *, anywhere: bool = False) -> dict[str, _Module | str]:
    """Return path → module, or why it is unknown, of suite files and all that they import of the side. `anywhere`: also
    in functions."""
    reached: dict[str, _Module | str] = {}
    todo = [f"tree/{file}" for file in suite]
    while todo:
        path = todo.pop()
        if path in reached:
            continue
        if path not in side.parsed:
            side.parsed[path] = _parse(side, path)
        module = reached[path] = side.parsed[path]
        if isinstance(module, _Module):
            parts = {part for target in (module.anywhere if anywhere else module.imported) for part in _parts(target)}
            todo += [side.modules[part] for part in sorted(parts & side.modules.keys())]
    return reached


def _parse(side: Imported, path: str) -> _Module | str:
    if PurePosixPath(path).suffix != ".py":
        return NO_PYTHON
    try:
        statements = ast.parse((side.folder / path).read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return "which cannot be read as Python"
    name = {file: name for name, file in side.modules.items()}.get(path, "")
    package = name.split(".") if PurePosixPath(path).name == "__init__.py" else name.split(".")[:-1]
    return _Module(statements, package, {name.partition(".")[0] for name in side.modules})


def module_names(folder: Path, path: Sequence[str], files: Iterable[str]) -> dict[str, str]:
    """Return module → its file below `folder`, found by `path`, entries of `sys.path`, among `files`."""
    found: dict[str, str] = {}
    for entry in path:
        if not Path(entry).is_relative_to(folder):
            continue
        top = Path(entry).relative_to(folder).as_posix() + "/"
        for file in files:
            stem, dot, suffix = file.removeprefix(top).partition(".")
            if file.startswith(top) and dot and suffix.endswith(("py", "so")):
                found.setdefault(stem.removesuffix("/__init__").replace("/", "."), file)
    return found


def _parts(target: str) -> list[str]:
    parts = target.split(".")
    return [".".join(parts[: number + 1]) for number in range(len(parts))]
