"""GitHub's expressions, as far as workflows here use them: what is not known raises.

There is no library for Python; `test_actions.py` holds this against what GitHub's own evaluator says.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>(?:0x[0-9a-fA-F]+|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.]))"
    r"|(?P<name>[A-Za-z_][\w-]*)|(?P<sign>==|!=|<=|>=|&&|\|\||[<>!()\[\].,]))"
)
_KEYWORDS = {"true": True, "false": False, "null": None, "nan": math.nan, "infinity": math.inf}
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="))
STATUS = ("always", "cancelled", "failure", "success")
Function = Callable[..., Any]


class ExpressionError(Exception):
    """An expression that GitHub refuses, or that is not known here."""


def evaluate(text: str, contexts: Mapping[str, Any], functions: Mapping[str, Function] | None = None) -> Any:
    """The value of an expression without its `${{ }}`. Raises ExpressionError."""
    parser = _Parser(text, contexts, FUNCTIONS | dict(functions or {}))
    value = parser.operation(0)
    if parser.tokens:
        raise ExpressionError(f"{text!r}: {parser.tokens[0][1]!r} is not expected")
    return value


def template(value: Any, contexts: Mapping[str, Any]) -> Any:
    """`value` of a YAML document with the expressions in it evaluated."""
    if isinstance(value, dict):
        return {key: template(one, contexts) for key, one in value.items()}
    if isinstance(value, list):
        return [template(one, contexts) for one in value]
    if not isinstance(value, str):
        return value
    parts = re.split(r"\$\{\{((?:[^'}]|'[^']*'|\}(?!\}))*)\}\}", value)
    if len(parts) == 3 and not parts[0] and not parts[2]:
        return evaluate(parts[1], contexts)
    return "".join(text(evaluate(part, contexts)) if i % 2 else part for i, part in enumerate(parts))


def condition(value: Any, contexts: Mapping[str, Any], status: Mapping[str, Function]) -> bool:
    """Whether an `if:` holds: `success()` is asked for where it asks for no status itself."""
    inner = str("success()" if value is None else json.dumps(value) if isinstance(value, bool) else value).strip()
    if inner.startswith("${{") and inner.endswith("}}") and inner.count("${{") == 1:
        inner = inner[3:-2]
    elif "${{" in inner:
        raise ExpressionError(f"if: {inner}: text around an expression is always true")
    called = {name for name in re.findall(r"(\w+)\s*\(", re.sub(r"'[^']*'", "''", inner)) if name in STATUS}
    return truth(evaluate(inner, contexts, status)) and (bool(called) or truth(status["success"]()))


def truth(value: Any) -> bool:
    """What counts as true: empty arrays and objects do."""
    return isinstance(value, dict | list) or (bool(value) and value == value)


def text(value: Any) -> str:
    """As it stands in a string."""
    if isinstance(value, dict | list):
        return "Object" if isinstance(value, dict) else "Array"
    if value is None or isinstance(value, bool):
        return {None: "", True: "true", False: "false"}[value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return f"{value:.15g}"
    return str(value)


def _number(value: Any) -> float:
    if isinstance(value, dict | list):
        return math.nan
    if isinstance(value, str):
        stripped = value.strip()
        try:
            return float(int(stripped, 16) if stripped.lower().startswith("0x") else stripped or 0)
        except ValueError:
            return math.nan
    return float(value or 0)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if isinstance(left, dict | list) or isinstance(right, dict | list):
        return left is right
    return _number(left) == _number(right)


def _compare(sign: str, left: Any, right: Any) -> bool:
    if sign in ("==", "!="):
        return _equal(left, right) == (sign == "==")
    a, b = (left.lower(), right.lower()) if isinstance(left, str) and isinstance(right, str) else map(_number, (left, right))  # fmt: skip
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign]


def _within(whole: Any, key: Any) -> Any:
    """A property or item; null where there is none, or nothing to have one."""
    if isinstance(whole, dict):
        return next((value for name, value in whole.items() if name.lower() == text(key).lower()), None)
    if isinstance(whole, list):
        index = _number(key)
        return whole[int(index)] if 0 <= index < len(whole) else None
    return None


class _Parser:
    def __init__(self, source: str, contexts: Mapping[str, Any], functions: Mapping[str, Function]) -> None:
        self.source, self.contexts = source, contexts
        self.functions = {name.lower(): one for name, one in functions.items()}
        self.tokens: list[tuple[str, str]] = []
        at, end = 0, len(source.rstrip())
        while at < end:
            found = _TOKEN.match(source, at)
            if found is None:
                raise ExpressionError(f"{source!r}: {source[at:].strip()!r} is not known")
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()

    def next(self, *wanted: str) -> str:
        """The next token if it is one of `wanted`, and of those not a string; else nothing, and it stays."""
        if self.tokens and self.tokens[0][0] == "sign" and self.tokens[0][1] in wanted:
            return self.tokens.pop(0)[1]
        return ""

    def demand(self, sign: str) -> None:
        if not self.next(sign):
            raise ExpressionError(f"{self.source!r}: {sign!r} is missing")

    def operation(self, level: int) -> Any:
        if level == len(_LEVELS):
            return not truth(self.operation(level)) if self.next("!") else self.value()
        left = self.operation(level + 1)
        while sign := self.next(*_LEVELS[level]):
            right = self.operation(level + 1)
            if sign == "||":
                left = left if truth(left) else right
            elif sign == "&&":
                left = right if truth(left) else left
            else:
                left = _compare(sign, left, right)
        return left

    def value(self) -> Any:
        value = self.primary()
        while sign := self.next(".", "["):
            if sign == "[":
                key = self.operation(0)
                self.demand("]")
            elif self.tokens and self.tokens[0][0] == "name":
                key = self.tokens.pop(0)[1]
            else:
                raise ExpressionError(f"{self.source!r}: a name is missing after '.'")
            value = _within(value, key)
        return value

    def primary(self) -> Any:
        if self.next("("):
            value = self.operation(0)
            self.demand(")")
            return value
        kind, token = self.tokens.pop(0) if self.tokens else ("end", "")
        if kind == "string":
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return _number(token)
        if kind != "name":
            raise ExpressionError(f"{self.source!r}: {token or 'its end'!r} is not expected")
        if self.next("("):
            return self.call(token)
        if token.lower() in _KEYWORDS:
            return _KEYWORDS[token.lower()]
        if token not in self.contexts:
            raise ExpressionError(f"{self.source!r}: there is no context {token!r} here")
        return self.contexts[token]

    def call(self, name: str) -> Any:
        arguments = []
        while not self.next(")"):
            arguments.append(self.operation(0))
            if not self.next(","):
                self.demand(")")
                break
        if name.lower() not in self.functions:
            raise ExpressionError(f"{self.source!r}: there is no function {name!r} here")
        return self.functions[name.lower()](*arguments)


def _format(pattern: Any, *values: Any) -> str:
    def one(found: re.Match[str]) -> str:
        return found[0][0] if found[1] is None else text(values[int(found[1])])

    return re.sub(r"\{\{|\}\}|\{(\d+)\}", one, text(pattern))


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, list):
        return any(_equal(one, part) for one in whole)
    return text(part).lower() in text(whole).lower()


FUNCTIONS: dict[str, Function] = {
    "toJSON": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    "fromJSON": lambda value: json.loads(text(value)),
    "format": _format,
    "contains": _contains,
    "startsWith": lambda whole, part: text(whole).lower().startswith(text(part).lower()),
    "endsWith": lambda whole, part: text(whole).lower().endswith(text(part).lower()),
    "join": lambda whole, between=",": text(between).join(map(text, whole if isinstance(whole, list) else [whole])),
}
