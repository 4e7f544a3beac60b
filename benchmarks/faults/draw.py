"""Draws one-line faults: by room, in proportion to its lines, the same ones for a seed."""

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

TURNED = {
    ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="), ast.GtE: (">=", "<"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
BOUNDARY = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
}  # fmt: skip
UNSEEN = {"annotation", "returns", "decorator_list"}
"""Fields of a node in which a fault would say nothing of what the code does."""

Position = tuple[int, int]
Edit = tuple[str, Position, Position, str, str]
"""Operator; where the text begins and ends; what in it is replaced ("": all of it) by what ("{}": the text)."""


@dataclass(frozen=True)
class Fault:
    """A line that becomes another. Found again by its text: `nth` among equal lines of the function ("": none)."""

    file: str
    function: str
    line: str
    nth: int
    operator: str
    becomes: str


def first(node: Any) -> Position:
    """Return where a node begins."""
    return node.lineno, node.col_offset


def last(node: Any) -> Position:
    """Return where a node ends."""
    return node.end_lineno, node.end_col_offset


def edits(node: ast.AST) -> Iterator[Edit]:
    """Yield what may be done to a node itself, not to what is below it."""
    match node:
        case ast.Compare(left=left, ops=[compared], comparators=[right]):
            for operator, table in (("turned", TURNED), ("boundary", BOUNDARY)):
                if type(compared) in table:
                    yield operator, last(left), first(right), *table[type(compared)]
        case ast.BoolOp(op=op, values=values):
            words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            for left, right in pairwise(values):
                yield "and-or", last(left), first(right), *words
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield "arithmetic", last(left), first(right), *ARITHMETIC[type(op)]
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in ARITHMETIC:
            yield "arithmetic", last(target), first(value), *ARITHMETIC[type(op)]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "unary", first(node), first(operand), "", ""
        case ast.Constant(value=bool() as value):
            yield "constant", first(node), last(node), "", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", first(node), last(node), "", repr(value + 1 if value < 10 else value * 2)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and not value.value):
            yield "default", first(value), last(value), "", "None"
        case ast.Raise():
            yield "swallowed", first(node), last(node), "", "pass"
        case ast.Expr(value=ast.Call()):
            yield "left out", first(node), last(node), "", "pass"
        case ast.Continue():
            yield "loop", first(node), last(node), "", "break"
        case ast.Break():
            yield "loop", first(node), last(node), "", "continue"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "negated", first(test), last(test), "", "not ({})"
        case ast.comprehension(ifs=[test]):
            yield "negated", first(test), last(test), "", "not ({})"
        case ast.Call(args=args, keywords=keywords):
            given = sorted([*args, *keywords], key=first)
            for before, argument, after in zip([None, *given], given, [*given[1:], None], strict=False):
                if isinstance(argument, ast.keyword) and argument.arg and not prose(argument.value):
                    end = first(after) if after and not before else last(argument)
                    yield "argument", last(before) if before else first(argument), end, "", ""


def prose(node: ast.expr) -> bool:
    """Return whether it is text, which people read."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in which a fault may lie. What is in an f-string has no places of its own before Python 3.12."""
    for field, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and field not in UNSEEN and not isinstance(node, ast.JoinedStr):
                yield node
                yield from nodes(node)


class Module:
    """A file of source: its lines, what they belong to, and what may be done to each."""

    def __init__(self, path: Path) -> None:
        self.lines = path.read_bytes().split(b"\n")
        self.tree = ast.parse(path.read_bytes())
        self.functions = [""] * (len(self.lines) + 1)
        self.statements = list(range(len(self.lines) + 1))
        """Number of a line → that with which its statement begins."""
        self.called = [False] * (len(self.lines) + 1)
        """Number of a line → is it run by a call, not by an import."""
        self._own(self.tree, "")
        self.numbers = defaultdict[tuple[str, str], list[int]](list)
        """Function and text of a line → the numbers of such lines."""
        for number, line in enumerate(self.lines, start=1):
            self.numbers[self.functions[number], line.decode().strip()].append(number)

    def _own(self, tree: ast.AST, function: str) -> None:
        for node in ast.iter_child_nodes(tree):
            inner = function
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{function}.{node.name}".lstrip(".")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in range(node.body[0].lineno, last(node)[0] + 1):
                    self.called[number] = True
            if isinstance(node, ast.stmt):
                for number in range(node.lineno, last(node)[0] + 1):
                    self.functions[number], self.statements[number] = inner, node.lineno
            self._own(node, inner)

    @cached_property
    def edits(self) -> dict[int, list[Edit]]:
        """Return the edits by the numbers of their lines."""
        found = defaultdict(list)
        for node in nodes(self.tree):
            for edit in edits(node):
                if edit[1][0] == edit[2][0]:
                    found[edit[1][0]].append(edit)
        return dict(found)

    def fault(self, file: str, edit: Edit) -> Fault | None:
        """Return the fault. None: it would be no code."""
        operator, (number, start), (_, end), old, new = edit
        line = self.lines[number - 1]
        text = line[start:end].decode()
        edited = text.replace(old, new, 1) if old else new.format(text)
        becomes = line[:start] + edited.encode() + line[end:]
        try:
            ast.parse(b"\n".join([*self.lines[: number - 1], becomes, *self.lines[number:]]))
        except SyntaxError:
            return None
        key = self.functions[number], line.decode().strip()
        return Fault(file, *key, self.numbers[key].index(number), operator, becomes.decode().strip())


@cache
def module(path: Path) -> Module:
    """Return a file as it was when it was first asked for."""
    return Module(path)


def modules(source: Path) -> dict[str, Module]:
    """Return all files of rooms by their paths. Templates are files of users."""
    files = sorted(source.glob("*/**/*.py"))
    return {str(path.relative_to(source)): module(path) for path in files if "templates" not in path.parts}


def draw(source: Path, count: int, seed: int, rooms: list[str]) -> list[Fault]:
    """Return faults of all rooms, or of `rooms`: one of each, the others by the number of lines that can be faulty.

    A greater count adds to the same ones, and no room's faults depend on another room.
    """
    places = defaultdict[str, list[tuple[str, list[Edit]]]](list)
    for file, code in modules(source).items():
        room = file.partition("/")[0]
        if not rooms or room in rooms:
            places[room] += [(file, edits) for edits in code.edits.values()]
    shares = Counter[str]()
    for _ in range(count):
        shares[max(places, key=lambda room: (not shares[room], len(places[room]) / (shares[room] + 1)))] += 1
    drawn = []
    for room in sorted(shares):
        chance = random.Random(f"{seed} {room}")
        chance.shuffle(places[room])
        faults = (modules(source)[file].fault(file, chance.choice(edits)) for file, edits in places[room])
        drawn += [fault for fault, _ in zip(filter(None, faults), range(shares[room]), strict=False)]
    return drawn


def find(source: Path, fault: Fault) -> tuple[str, int] | None:
    """Return file and number of the line, also in another file if it is the only one. None: it is gone."""
    key = fault.function, fault.line
    found = {file: code.numbers[key] for file, code in modules(source).items() if len(code.numbers[key]) > fault.nth}
    file = fault.file if fault.file in found else next(iter(found)) if len(found) == 1 else None
    return (file, found[file][fault.nth]) if file else None


@contextmanager
def planted(path: Path, number: int, fault: Fault) -> Iterator[None]:
    """Plant it for as long as the context lasts."""
    before = path.read_bytes()
    lines = before.split(b"\n")
    lines[number - 1] = lines[number - 1].replace(fault.line.encode(), fault.becomes.encode())
    try:
        write(path, b"\n".join(lines))
        yield
    finally:
        write(path, before)


def write(path: Path, content: bytes) -> None:
    """Write source. What is compiled of it goes: within a second, and of the same length, it would be taken for new."""
    path.write_bytes(content)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
