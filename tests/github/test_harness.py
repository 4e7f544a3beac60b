"""The runner and its expressions do what GitHub's do, or say that they do not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arms.repo import ENV, git, init
from tests.github.expressions import ExpressionError, condition, evaluate, template, text
from tests.github.harness import Machine, NotKnown
from tests.github.server import GitHub, serve

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


@pytest.fixture
def hub() -> Iterator[GitHub]:
    with serve() as made:
        yield made


@pytest.fixture
def machine(tmp_path: Path, hub: GitHub) -> Machine:
    remote = init(tmp_path / "remote", {"file": "text"})
    action = tmp_path / "actions" / "action.yml"
    action.parent.mkdir()
    action.write_text(ACTION)
    assert git(remote, "rev-parse", "main")
    return Machine(hub, remote, tmp_path / "runners", action.parent, ENV)


ACTION = """
inputs: {given: {default: "${{ github.event_name }}"}, other: {default: o}}
outputs:
  said: {value: "${{ steps.say.outputs.value }}"}
  ended: {value: "${{ steps.say.outcome }} ${{ steps.say.conclusion }}"}
runs:
  using: composite
  steps:
    - id: say
      shell: bash
      continue-on-error: true
      env: {GIVEN: "${{ inputs.given }} ${{ inputs.other }}"}
      run: |
        printf 'value<<END\\n%s\\nlines\\nEND\\n' "$GIVEN" >>"$GITHUB_OUTPUT"
        echo "LATER=kept" >>"$GITHUB_ENV"
        echo "$GITHUB_ACTION_PATH"
        false | true
        echo "not reached"
"""
FLOW = """
name: flow
on: {push: }
permissions: {}
jobs:
  first:
    runs-on: x
    steps:
      - {id: own, uses: org/perfci@v0, with: {other: given}}
      - name: look
        env: {SAID: "${{ steps.own.outputs.said }}|${{ steps.own.outputs.ended }}|${{ env.LATER }}"}
        run: |
          echo "$SAID $LATER"
          echo "::error file=a%2Cb,line=1::one%0Atwo"
          echo "::stop-commands::word"
          echo "::error::silent"
          echo "::word::"
          echo "text ##[warning]old"
          exit 3
      - {name: never, run: echo never}
      - {name: after, if: failure(), run: echo after}
  second: {needs: first, runs-on: x, steps: [{run: echo second}]}
  third: {needs: [first, second], if: always(), runs-on: x, steps: [{run: "echo third ${{ needs.first.result }}"}]}
"""


def test_a_workflow_runs_as_on_github(machine: Machine) -> None:
    jobs = machine.deliver(FLOW, "push", {"ref": "refs/heads/main"})
    assert {name: job.result for name, job in jobs.items()} == {"first": "failure", "second": "skipped", "third": "success"}  # fmt: skip
    first = jobs["first"]
    assert first.outputs("org/perfci@v0") == {"said": "push given\nlines", "ended": "failure success"}
    assert first.log.splitlines()[:4] == [str(machine.actions), "push given", "lines|failure success|kept kept", "::error file=a%2Cb,line=1::one%0Atwo"]  # fmt: skip
    assert [(one.name, one.properties, one.data) for one in first.said("error", "warning")] == [
        ("error", {"file": "a,b", "line": "1"}, "one\ntwo"),
        ("warning", {}, "old"),
    ]
    assert [step.conclusion for step in first.steps] == ["success", "success", "failure", "skipped", "success"]
    assert first.log.endswith("after\n")
    assert jobs["third"].log == "third failure\n"
    assert machine.hub.runs[101].conclusion == "failure"


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        ("org/perfci@v0", "some/action@v1"),
        ("org/perfci@v0", "actions/checkout@v5"),
        ("with: {other: given}", "with: {nothing: given}"),
        ("permissions: {}", "defaults: {}"),
        ("on: {push: }", "on: {pull_request: }"),
        ("failure(), run", "failure(), shell: pwsh, run"),
    ],
)
def test_what_this_runner_does_not_do_raises(machine: Machine, known: str, unknown: str) -> None:
    assert known in FLOW
    with pytest.raises((NotKnown, KeyError)):
        machine.deliver(FLOW.replace(known, unknown), "push", {"ref": "refs/heads/main"})
