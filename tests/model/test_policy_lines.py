"""An error of the policy names the line where the value stands, however the policy is written."""

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.model.base import Loc, UsageError
from perfci.model.limits import mistake
from perfci.model.plan import Declared
from perfci.model.policy import KEY, spelled
from perfci.model.policy_text import parse_policy

GOOD: dict[str, Any] = {
    "version": 1,
    "suite": ["kernels/*.py", "more/a.py"],
    "commands": [
        {"name": "mm", "run": "./bench --all", "reads": "nvbench", "device": "cuda", "timeout": "2m", "kernels": "gemm"},
        {"name": "app", "run": "./app", "reads": "perfci"},
    ],
    "build": ["make", "make install"],
    "path": "src",
    "python": ".venv/bin/python",
    "env": {"A": "b", "C": "d"},
    "pass_env": ["CUDA_HOME", "HOME"],
    "devices": ["cuda", "cpu"],
    "timing": "cold",
    "threads": 2,
    "budget": "10m",
    "timeout": "90s",
    "build_timeout": "1.5h",
    "seed": 7,
    "memory": "8GiB",
    "gpu_hour": "3.50 USD",
    "metrics": {"loss": {"unit": "nats", "better": "lower"}, "gain": {}},
    "limits": [
        {"cases": ["mm/*", "a"], "metric": "time", "regression": "2%", "min_change": "200ns", "devices": ["cuda", "*H200*"]},
        {"metric": "loss", "max": "2.5nats", "fail_on": "missing"},
        {"cases": ["b"], "metric": "sm_throughput", "min": "80%"},
        {"metric": "registers", "regression": "0%", "max": 128},
        {"cases": ["a", "b", "c"], "expect_kernels": "flash"},
        {"metric": "time", "max": "5 ms", "fail_on": ["broken", "undecided"]},
    ],
    "ignore": ["docs/*", "*.md"],
}  # fmt: skip


class Written:
    """YAML of `GOOD` or what is left of it in a style that `pick` chooses value by value, and each value's line."""

    def __init__(self, document: dict[str, Any], pick: Callable[[list[Any]], Any]) -> None:
        self.pick, self.text = pick, ""
        self.lines: dict[Loc, int] = {}
        self.fields(document, (), 0)

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def fields(self, value: dict[str, Any], loc: Loc, indent: int, begun: bool = False) -> None:
        for name, inner in value.items():
            if not begun:
                self.text += self.pick(["", "", "# what follows: {a, - b\n", "\n"]) + " " * indent
            begun = False
            self.lines.setdefault(loc, self.line)
            self.lines[*loc, name, KEY] = self.line
            self.text += f"{name}:"
            self.value(inner, (*loc, name), indent)

    def items(self, value: list[Any], loc: Loc, indent: int) -> None:
        for index, inner in enumerate(value):
            self.text += self.pick(["", "", "   # the next\n"]) + " " * indent + "-"
            if isinstance(inner, dict) and self.pick(["block", "flow"]) == "block":
                self.lines[*loc, index] = self.line
                self.text += " "
                self.fields(inner, (*loc, index), indent + 2, begun=True)
            else:
                self.value(inner, (*loc, index), indent, flow=True)

    def value(self, value: Any, loc: Loc, indent: int, *, flow: bool = False) -> None:
        if isinstance(value, dict | list) and value and not flow and self.pick(["block", "flow"]) == "block":
            self.lines[loc] = self.line  # where its name is
            self.text += "\n"
            (self.fields if isinstance(value, dict) else self.items)(value, loc, indent + 2)  # type: ignore[operator]
            return
        if isinstance(value, str) and value.isprintable() and value.strip() and self.pick(["block", "line"]) == "block":
            self.lines[loc] = self.line
            self.text += self.pick([" |-", " >-"]) + f"\n{' ' * (indent + 4)}{value}\n"
            return
        self.text += self.pick([" ", " ", "\n" + " " * (indent + 4)])
        self.flow(value, loc, indent + 6)
        self.text += self.pick(["\n", "  # said\n"])

    def flow(self, value: Any, loc: Loc, indent: int) -> None:
        gap = lambda: self.pick(["", " ", "\n" + " " * indent, " # so\n" + " " * indent])  # noqa: E731
        self.lines[loc] = self.line
        if isinstance(value, dict):
            self.text += "{"
            for number, (name, inner) in enumerate(value.items()):
                self.text += ("," if number else "") + gap()
                self.lines[*loc, name, KEY] = self.line
                self.text += f"{name}: "
                self.flow(inner, (*loc, name), indent)
            self.text += gap() + "}"
        elif isinstance(value, list):
            self.text += "["
            for index, inner in enumerate(value):
                self.text += ("," if index else "") + gap()
                self.flow(inner, (*loc, index), indent)
            self.text += gap() + "]"
        else:
            self.text += json.dumps(value)


Wrong = tuple[Loc, Callable[[Any], None], str]
"""Where the mistake stands, what makes it, and the field as the error names it."""


def inside(document: Any, loc: Loc) -> Any:
    for part in loc:
        document = document[part]
    return document


def put(value: Any, *loc: int | str) -> Wrong:
    """A wrong value in place of the one at `loc`."""
    return loc, lambda document: inside(document, loc[:-1]).__setitem__(loc[-1], value), spelled(loc)


def named(new: str, *loc: int | str) -> Wrong:
    """A wrong name in place of the field's."""

    def change(document: Any) -> None:
        fields = inside(document, loc[:-1])
        whole = [(new if name == loc[-1] else name, value) for name, value in fields.items()]
        fields.clear()
        fields.update(whole)

    place = (*loc[:-1], new)
    return (*place, KEY), change, spelled(place)


def without(*loc: int | str) -> Wrong:
    """Without the field, which is required: the line is that of what lacks it."""
    return loc[:-1], lambda document: inside(document, loc[:-1]).pop(loc[-1]), spelled(loc)


WRONG = [
    put(2, "version"), put("../up.py", "suite", 1), put({"a": 1}, "suite"), put(7, "commands"), put("x y", "commands", 1, "name"),
    put("mm", "commands", 1, "name"), put("excel", "commands", 0, "reads"), put("tpu", "commands", 0, "device"),
    put("2 fortnights", "commands", 0, "timeout"), put("(", "commands", 0, "kernels"), put("", "commands", 1, "run"),
    put(3, "build", 1), put(["A"], "env"), put(5, "env", "C"), put("A B", "pass_env", 1), put("gpu", "devices", 1),
    put("warm", "timing"), put("many", "threads"), put(0, "threads"), put("soon", "budget"), put(600, "budget"),
    put("8 gigs", "memory"), put(3.5, "gpu_hour"), put("same", "metrics", "loss", "better"), put([1], "metrics", "gain"),
    put("x" * 30, "metrics", "loss", "unit"), put({}, "limits"), put("all", "limits", 1), put("2", "limits", 0, "regression"),
    put("0%", "limits", 0, "regression"), put("1m", "limits", 0, "min_change"), put([], "limits", 0, "cases"),
    put(4, "limits", 0, "cases", 1), put("", "limits", 4, "cases", 2), put("cdua", "limits", 0, "devices", 0),
    put("tiem", "limits", 0, "metric"), put("5zz", "limits", 1, "max"), put(2.5, "limits", 1, "max"), put("5ms", "limits", 2, "min"),
    put(0.8, "limits", 2, "min"), put(True, "limits", 3, "max"), put([1], "limits", 3, "max"), put("error", "limits", 1, "fail_on"),
    put("a(", "limits", 4, "expect_kernels"), put(1, "ignore", 1),
    named("comands", "commands"), named("regresion", "limits", 0, "regression"), named("untis", "metrics", "loss", "unit"),
    named("cycles", "metrics", "gain"), named("2A", "env", "C"), named("read", "commands", 0, "reads"),
    without("version"), without("commands", 1, "run"), without("commands", 0, "name"),
]  # fmt: skip


WAYS = st.integers(0, 2**32).map(lambda seed: Random(seed).choice)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(WRONG), WAYS)
def test_the_line_is_that_of_the_value(wrong: Wrong, pick: Callable[[list[Any]], Any]) -> None:
    loc, change, where = wrong
    document = copy.deepcopy(GOOD)
    change(document)
    written = Written(document, pick)
    with pytest.raises(UsageError) as caught:
        parse_policy(written.text)
    assert str(caught.value).startswith(f"perfci.yaml:{written.lines[loc]}: {where}: "), written.text


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong[2])
def test_the_line_of_each_value_one_a_line(wrong: Wrong) -> None:
    test_the_line_is_that_of_the_value.hypothesis.inner_test(wrong, lambda ways: ways[0])  # type: ignore[attr-defined]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(0, 0), (0, 1), (2, 0), (4, 0), (4, 1), (4, 2)]), WAYS)
def test_what_the_cases_tell_has_its_line_too(place: tuple[int, int], pick: Callable[[list[Any]], Any]) -> None:
    """The globs that match nothing, and a metric that nothing reports, of a policy that is well formed."""
    index, number = place
    document = copy.deepcopy(GOOD)
    document["limits"][index]["cases"][number] = "nothing/like-it"
    known = Declared(kernels=["mm/n=1", "a", "b", "c"], commands=["mm", "app"], whole=True)
    written = Written(document, pick)
    found = mistake(parse_policy(written.text), known, {}, "main:perfci.yaml")
    line = written.lines["limits", index, "cases", number]
    assert found.startswith(f"main:perfci.yaml:{line}: limits[{index}].cases: 'nothing/like-it' matches no case: ")

    whole = Written(GOOD, pick)
    found = mistake(parse_policy(whole.text), known, {"mm": frozenset(), "app": frozenset({"gain"})}, "p.yaml")
    line = whole.lines["limits", 1, "metric"]
    assert found.startswith(f"p.yaml:{line}: limits[1]: no case that * matches reports loss")


@pytest.mark.parametrize(
    "text, said",
    [
        ("version: 1\nsuite: a.py\nlimits:\n  - regression: 2%\n    devices: cdua\n", "perfci.yaml:5: limits[0].devices: "),
        ("version: 1\nsuite:\n  ../a.py\n", "perfci.yaml:3: suite: '../a.py' must be a path"),
        ("version: 1\nseed: 2026-13-45\n", "perfci.yaml:2: month must be in 1..12"),
        (f"version: 1\n\nseed: {'9' * 5000}\n", "perfci.yaml:3: Exceeds the limit"),
        ("version: 1\nsuite: a\0.py\n", "perfci.yaml:2: not valid YAML"),
        ("version: 1\nsuite:\n" + "[" * 3000, "perfci.yaml:3: "),
        ("version: 1\nsuite: [a.py]\nsuite: [b.py]\n", "perfci.yaml:3: 'suite' is written twice"),
        ("version: 1\nlimits: &a []\nignore: *a\n", "perfci.yaml:3: an alias"),
        ("version: 1\n---\nversion: 1\n", "perfci.yaml:2: but found another document"),
        ("version: 1\n\n2: 3\n", "perfci.yaml:3: the key 2 must be text"),
    ],
)  # fmt: skip
def test_what_is_no_value_has_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy(text)
    assert str(caught.value).startswith(said)
