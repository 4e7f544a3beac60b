"""That workflows' expressions are put to GitHub's evaluator as GitHub puts them."""

import pytest

from tests.github.loopback.expressions import ExpressionError, condition, text, value

pytestmark = pytest.mark.node

CONTEXTS = {"github": {"event": {"number": 7, "label": None, "list": ["a", "B"]}, "ref": "refs/heads/x"}}


def test_a_value_keeps_its_type_where_it_is_one_expression() -> None:
    assert value("${{ github.event.number }}", CONTEXTS) == 7
    assert value("${{ github.event.list }}", CONTEXTS) == ["a", "B"]
    assert value("x-${{ '}}' }}-${{ github.event.number }}", CONTEXTS) == "x-}}-7"
    assert text("${{ github.event.number }}", CONTEXTS) == "7"
    assert value("it's", CONTEXTS) == "it's"


def test_a_condition_asks_for_success_where_it_asks_for_no_status() -> None:
    for given, holds in {None: False, "1 == 1": False, "${{ !cancelled() }}": True, "failure() && 0": False}.items():
        assert condition(given, CONTEXTS, failed=True) is holds, given
    assert condition("github.event.number == '7'", CONTEXTS)
    assert not condition("'always()' && github.event.label", CONTEXTS)


@pytest.mark.parametrize("source", ["nothing.x", "foo()", "1 == ", "'open", "1 1", "vars.x"])
def test_what_is_not_known_raises(source: str) -> None:
    with pytest.raises(ExpressionError):
        value("${{ " + source + " }}", CONTEXTS)
    with pytest.raises(ExpressionError):
        condition(source, CONTEXTS)
