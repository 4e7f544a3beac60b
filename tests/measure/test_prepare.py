"""Whether head's own policy would judge otherwise than base's: by what it says, not by how it is written."""

import pytest

from perfci.measure.cases import Found, redeclared
from perfci.measure.prepare import judged_otherwise
from perfci.model.policy import Policy
from perfci.model.policy_text import parse_policy
from perfci.model.results import Case, CaseSide

POLICY = """
version: 1
suite: [kernels/*.py]
limits:
  - {cases: "*", metric: time, regression: 2%, max: 1ms}
  - {cases: "a/*", metric: bandwidth, min: 2TB/s}
"""


def policy(text: str) -> Policy:
    return parse_policy(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max: 1ms", "max: 1000us"),
        ("2TB/s", "2000GB/s"),
        ("regression: 2%", "regression: 2.0%"),
        ('cases: "*", ', ""),  # which is what is taken without
        ("version: 1", "# in other words\nversion: 1\nbudget: 15m\nmode: gate"),
        ("suite: [kernels/*.py]", "suite: [more/*.py]\nbuild: make\nenv: {A: b}\npass_env: [C]\npath: [lib]"),
        ("version: 1", "version: 1\nignore: docs/*\ngpu_hour: 3.50 USD"),
    ],
)
def test_the_same_in_other_words_and_what_each_side_has_for_itself_are_no_difference(old: str, new: str) -> None:
    changed = POLICY.replace(old, new)
    assert changed != POLICY
    assert judged_otherwise(policy(POLICY), policy(changed)) == []


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("regression: 2%", "regression: 3%", ["limits"]),
        ("max: 1ms", "max: 2ms", ["limits"]),
        (", metric: bandwidth, min: 2TB/s", ", metric: bandwidth, min: 2TB/s, severity: warn", ["limits"]),
        ("version: 1", "version: 1\nmode: observe\nbudget: 1m", ["budget", "mode"]),
        ("version: 1", "version: 1\ndevices: [cpu]", ["devices"]),
        ("version: 1", "version: 1\non_undecided: fail", ["on_undecided"]),
        ("version: 1", "version: 1\nmetrics: {p99: {unit: s, better: lower}}", ["metrics"]),
        ("version: 1", "version: 1\nthreads: 2", ["threads"]),
    ],
)
def test_what_judges_otherwise_is_named(old: str, new: str, keys: list[str]) -> None:
    for pair in ((POLICY, POLICY.replace(old, new)), (POLICY.replace(old, new), POLICY)):
        assert judged_otherwise(*map(policy, pair)) == keys


def test_of_several_limits_the_last_counts_so_their_order_does() -> None:
    lines = POLICY.strip().splitlines()
    turned = "\n".join([*lines[:-2], lines[-1], lines[-2]])
    assert judged_otherwise(policy(POLICY), policy(turned)) == ["limits"]


def found(*limits: dict) -> Found:
    return Found(cases={"softmax@cpu": {"id": "softmax", "limits": list(limits)}})


def test_a_kernels_own_limits_are_told_apart_too() -> None:
    case = Case(id="softmax", kernel="softmax", device="cpu", sides={"base": CaseSide(), "head": CaseSide()})

    def notes(base: Found, head: Found) -> list[str]:
        return redeclared([case], {"base": base, "head": head}, policy(POLICY))

    two = {"metric": "time", "regression": "2%"}
    assert notes(found(two), found(two | {"regression": "2.0%"})) == []
    expected = ["base's limits judge; head's count once merged: the limits that `softmax` declares itself differ"]
    for head in (found(), found(two | {"regression": "9%"}), found(two | {"regresion": "9%"}), found(two, two)):
        assert notes(found(two), head) == expected
    assert redeclared([case], {"head": found(two)}, policy(POLICY)) == []
    assert notes(Found(), found(two)) == []  # new in head: its limits count
