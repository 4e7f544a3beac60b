"""The one digest, and the one line that says what is no longer the same."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.model.base import UsageError
from perfci.model.comparison import digest, marks, require_same

LEAVES = [
    None, True, False, 0, 1, -1, 10**30, 0.0, -0.0, 1.0, 1e30, float("nan"), float("inf"), "", "0", "1", "1.0", "True",
    "true", "null", "None", "nan", "é", "e\u0301", "\udc80", "[]", "{}", "a\nb",
]  # fmt: skip
LEAF = st.sampled_from(LEAVES)
KEY = st.sampled_from(["", "0", "1", "true", "null", "a", "é"])
VALUES = st.recursive(LEAF, lambda of: st.lists(of, max_size=3) | st.dictionaries(KEY, of, max_size=3), max_leaves=6)


def typed(value: Any) -> str:
    """The value with each of its types, without the order of keys: told by another way than the digest's."""
    if isinstance(value, dict):
        return f"dict({sorted((key, typed(one)) for key, one in value.items())})"
    if isinstance(value, list):
        return f"list({[typed(one) for one in value]})"
    return f"{type(value).__name__}({value!r})"


def turned(value: Any, order: random.Random) -> Any:
    """The same with its keys in another order."""
    if isinstance(value, dict):
        return {key: turned(value[key], order) for key in order.sample(list(value), len(value))}
    return [turned(one, order) for one in value] if isinstance(value, list) else value


def places(value: Any) -> list[tuple[Any, ...]]:
    """The path of each leaf."""
    if not isinstance(value, dict | list):
        return [()]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [(key, *rest) for key, one in items for rest in places(one)]


def changed(value: Any, place: tuple[Any, ...], leaf: Any) -> Any:
    """A copy with another leaf at a place."""
    if not place:
        return leaf
    copy = value.copy()
    copy[place[0]] = changed(value[place[0]], place[1:], leaf)
    return copy


@given(VALUES, st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_order_of_keys(value: Any, order: random.Random) -> None:
    assert digest(turned(value, order)) == digest(value)


@given(VALUES.filter(places), st.data())
def test_the_digest_depends_on_every_leaf(value: Any, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places(value)))
    other = changed(value, place, data.draw(LEAF))
    assert (digest(other) == digest(value)) == (typed(other) == typed(value))


@given(VALUES.filter(places), st.data())
def test_what_is_missing_is_not_none(value: Any, data: st.DataObject) -> None:
    key = data.draw(KEY)
    whole = {"rest": value, key: None}
    assert digest(whole) != digest({name: one for name, one in whole.items() if name != key})


@pytest.mark.parametrize(
    "value", [{1: "a"}, {None: "a"}, {True: 1}, [{"a": {2: 3}}], (1, 2), {"a": (1,)}, b"a", {1}, object], ids=str
)
def test_what_json_would_write_as_something_else_has_no_digest(value: Any) -> None:
    with pytest.raises(ValueError, match="valid"):
        digest(value)


def test_digests_that_are_stored_are_found_again() -> None:
    """Epochs of nights are named by them, in stores that outlive a version."""
    value = {"b": [1, 1.5, None, True], "a": "é"}
    assert digest(value) == "111023df541cbeb40d7d66edbc2aa0f30e355d4e0dfe15e3d24e711730a659f7"


def refused(then: dict[str, Any], now: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as error:
        require_same(then, now, "out", "has changed", "begin anew")
    said = str(error.value)
    assert said.isprintable() and len(said) < 400
    return said


@given(LEAF, LEAF)
def test_a_fact_of_another_type_is_another(one: Any, other: Any) -> None:
    then, now = marks({"fact": one}), marks({"fact": other})
    if typed(one) == typed(other):
        require_same(then, now, "out", "has changed", "begin anew")
    else:
        assert refused(then, now).startswith("out: fact has changed")


@given(LEAF)
def test_a_fact_that_one_side_lacks_is_another_in_both_directions(one: Any) -> None:
    refused(marks({"fact": one}), {})
    refused({}, marks({"fact": one}))


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ("2.4", "2.5", "out: fact has changed (2.4, here 2.5): begin anew"),
        ("a" * 40, "b" * 64, "out: fact has changed (aaaaaaaaaa, here bbbbbbbbbb): begin anew"),
        (None, "main", "out: fact has changed (none, here main): begin anew"),
        ("", 3, "out: fact has changed (none, here 3): begin anew"),
        (["a"], ["b"], 'out: fact has changed (["a"], here ["b"]): begin anew'),
        ({"TOKEN": "x"}, {"TOKEN": "y"}, "out: fact has changed: begin anew"),
        ("x" * 200, "y" * 200, "out: fact has changed: begin anew"),
        ("a: 1\nb: 2\n", "a: 2\n", "out: fact has changed: begin anew"),
    ],
)
def test_what_differs_is_told_where_people_can_read_it(then: Any, now: Any, said: str) -> None:
    assert refused(marks({"same": 1, "fact": then}), marks({"fact": now, "same": 1})) == said
    assert "TOKEN" not in json.dumps(marks({"fact": then}))


def test_what_is_missing_is_told() -> None:
    assert refused({}, marks({"fact": "2.5"})) == "out: fact has changed (nothing, here 2.5): begin anew"


@given(st.text(), st.text())
def test_whatever_another_program_wrote_is_one_line(then: str, now: str) -> None:
    refused({"fact": f"{then}x"}, {"fact": f"{now}y"})
