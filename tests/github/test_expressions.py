"""Expressions mean here what they mean to GitHub, or say that they do not."""

import pytest

from tests.github.expressions import ExpressionError, condition, evaluate, template, text

CONTEXTS = {
    "github": {"event": {"number": 7, "label": None, "list": ["a", "B"]}, "ref": "refs/heads/x"},
    "matrix": None,
    "inputs": {"a-b": "true"},
}
SAID = {
    "github.event.label && 'label' || 'code'": "code", "1 == '1'": "true", "'A' == 'a'": "true", "null == ''": "true",
    "null == 0": "true", "true == 'true'": "false", "true == 1": "true", "github.event.number": "7",
    "github.event.nothing.more": "", "inputs.a-b": "true", "github['REF']": "refs/heads/x", "!github.event.label": "true",
    "'it''s'": "it's", "toJSON(matrix)": "null", "toJSON(github.event.list)": '[\n  "a",\n  "B"\n]',
    "fromJSON('{\"a\": [1]}').a[0]": "1", "format('{0}-{1}{{', 1, 'x')": "1-x{", "contains(github.event.list, 'b')": "true",
    "contains('Hello', 'ELL')": "true", "startsWith('Hello','he')": "true", "endsWith('Hello','LO')": "true",
    "join(github.event.list, '-')": "a-B", "0x10": "16", "-1.5": "-1.5", "1e3": "1000", "0.1": "0.1", "1.0": "1",
    "github.event": "Object", "github.event.list": "Array", "1 < '2'": "true", "'a' < 'B'": "true", "'10' > 9": "true",
    "null >= 0": "true", "'x' == 0": "false", "true && 0": "0", "'' || null": "", "1 && 2 || 3": "2",
    "(1 == 1) == 'true'": "false", "github.event.list[5]": "", "github.event.list['0']": "a", "contains('abc','')": "true",
    "!''": "true", "'abc' >= 'ABC'": "true", "NaN == NaN": "false", "'NaN' == 0": "false", "github == github": "true",
    "+1": "1", "Infinity": "Infinity", "fromJSON('true')": "true",
}  # fmt: skip
"""What GitHub's own evaluator says: npm's @actions/expressions 0.3.61."""


@pytest.mark.parametrize("source", SAID)
def test_an_expression_has_the_value_that_github_gives_it(source: str) -> None:
    assert text(evaluate(source, CONTEXTS)) == SAID[source]


@pytest.mark.parametrize(
    "source",
    ["nothing.x", "foo()", "1 == ", "-0x1", "a b", "'open", "(1", "github.event.list.*", "success()", "1 1", ""],
)
def test_what_is_not_known_raises(source: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(source, CONTEXTS)


def test_a_template_keeps_types_and_a_condition_asks_for_success() -> None:
    assert template({"a": "${{ github.event.number }}", "b": ["x-${{ '}}' }}-${{ 1 }}"]}, CONTEXTS) == {
        "a": 7,
        "b": ["x-}}-1"],
    }
    failed = {"success": lambda: False, "failure": lambda: True, "always": lambda: True, "cancelled": lambda: False}
    for given, holds in {"1 == 1": False, "${{ !cancelled() }}": True, "failure() && 0": False, "'always()'": False}.items():  # fmt: skip
        assert condition(given, CONTEXTS, failed) is holds
    assert condition(None, CONTEXTS, failed) is False
    with pytest.raises(ExpressionError, match="always true"):
        condition("${{ 1 }} ", CONTEXTS | {}, failed) or condition("x ${{ 1 }}", CONTEXTS, failed)
