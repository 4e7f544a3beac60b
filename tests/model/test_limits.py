"""Which limits ask which cases for which metrics."""

from perfci.model.limits import Subject, idle_limits, judgements
from perfci.model.policy import Policy
from perfci.model.policy_text import parse_policy

KERNEL = Subject("matmul/n=64", "cpu", reports=frozenset({"time"}))
COMMAND = Subject("build", "cpu", reports=frozenset({"compile_memory"}))
SERVER = Subject("serve", "cpu", reports=frozenset({"time", "p99"}))
UNKNOWN = Subject("later", "cpu")


def policy(*limits: str) -> Policy:
    lines = "".join(f"  - {limit}\n" for limit in limits)
    metrics = "metrics: {compile_memory: {better: lower}, p99: {unit: s, better: lower}}\n"
    return parse_policy(f"version: 1\nsuite: [k.py]\n{metrics}limits:\n{lines}")


def asked(policy: Policy, *subjects: Subject) -> set[tuple[str, str]]:
    return {(judgement.case, judgement.metric) for judgement in judgements(policy, subjects)}


def test_a_glob_asks_a_case_only_for_what_it_reports() -> None:
    """A command that reports registers alone does not fail for having no time, a kernel not for having no p99."""
    everything = policy("{cases: '*', metric: time, regression: 2%}", "{cases: '*', metric: p99, regression: 5%}")
    assert asked(everything, KERNEL, COMMAND, SERVER) == {("matmul/n=64", "time"), ("serve", "time"), ("serve", "p99")}


def test_a_rate_is_asked_of_what_has_a_time() -> None:
    rates = policy("{cases: '*', metric: bandwidth, min: 1GB/s}")
    assert asked(rates, KERNEL, COMMAND) == {("matmul/n=64", "bandwidth")}


def test_a_limit_that_names_a_case_is_never_dropped() -> None:
    """Whoever writes down the case wants the metric: that it is not there must be said."""
    named = policy("{cases: [build], metric: time, regression: 2%}")
    assert asked(named, COMMAND) == {("build", "time")}
    own = Subject("k", "cpu", own=[{"metric": "p99", "regression": "7%"}], reports=frozenset({"time"}))
    assert ("k", "p99") in asked(policy("{cases: '*', regression: 2%}"), own)


def test_before_anything_ran_every_limit_asks() -> None:
    assert asked(policy("{cases: '*', metric: p99, regression: 5%}"), UNKNOWN) == {("later", "p99")}


def test_a_limit_that_judges_nothing_is_told() -> None:
    idle = policy(
        "{cases: 'nothing/*', regression: 2%}",
        "{cases: 'm*', metric: p99, regression: 2%}",
        "{cases: '*', metric: p99, regression: 2%}",
        "{cases: '*', regression: 2%, devices: [cuda]}",
    )
    subjects = [KERNEL, SERVER]
    assert idle_limits(idle, [subject.id for subject in subjects], subjects) == [
        "limits[0] (cases nothing/*) matches no case",
        "limits[1] (cases m*): no case that it matches reports p99",
    ]
