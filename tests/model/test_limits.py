"""Which limits ask which cases for which metrics."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.model.base import UsageError, matches
from perfci.model.criteria import Criterion, Purpose
from perfci.model.limits import Subject, criteria, idle, names, nearest, told
from perfci.model.plan import Declared
from perfci.model.policy import Policy
from perfci.model.policy_text import parse_policy

KERNEL = Subject("matmul/n=64", "cpu", reports=frozenset({"time"}))
COMMAND = Subject("build", "cpu", reports=frozenset({"compile_memory"}))
SERVER = Subject("serve", "cpu", reports=frozenset({"time", "p99"}))
UNKNOWN = Subject("later", "cpu")


def policy(*limits: str) -> Policy:
    lines = "".join(f"  - {limit}\n" for limit in limits)
    metrics = "metrics: {compile_memory: {better: lower}, p99: {unit: s, better: lower}, p999: {unit: s}}\n"
    return parse_policy(f"version: 1\nsuite: [k.py]\n{metrics}limits:\n{lines}")


def asked(policy: Policy, *subjects: Subject) -> set[tuple[str, str]]:
    return {(one.case, one.metric) for one in criteria(policy, subjects)}


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


def test_a_bound_holds_for_what_head_alone_reports_and_a_change_is_not_asked_of_it() -> None:
    grown = replace(COMMAND, bounded=frozenset({"p99"}))
    made = criteria(policy("{cases: '*', metric: p99, max: 20ms, regression: 5%}"), [grown])
    assert [(one.metric, one.kind) for one in made] == [("p99", "max")]


def test_before_anything_ran_every_limit_asks() -> None:
    assert asked(policy("{cases: '*', metric: p99, regression: 5%}"), UNKNOWN) == {("later", "p99")}


KERNELS = ["smoothing/rounds=4", "smoothing/rounds=8", "softmax/n=64"]
DECLARED = Declared(kernels=KERNELS, commands=["app", "serve/batch=1", "serve/batch=8"])
REPORTED = {"app": {"time"}, "serve/batch=1": {"time", "p99"}, "serve/batch=8": {"p99"}}
REPORTS = {name: frozenset(metrics) for name, metrics in REPORTED.items()}


def wrong(limit: str, declared: Declared = DECLARED) -> list[str]:
    return [one.text for one in idle(policy(limit), declared, REPORTS) if one.wrong]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("{cases: 'smothing/*', regression: 2%}", ".cases: 'smothing/*' matches no case: did you mean 'smoothing/*'?"),
        ("{cases: ['softmax/*', 'app/a=8'], regression: 2%}", ".cases: 'app/a=8' matches no case: did you mean 'app'?"),
        ("{cases: serve, regression: 2%}", ".cases: 'serve' matches no case: did you mean 'serve/*'?"),
        (
            "{cases: 'softmax/*', metric: p99, max: 2ms}",
            ": no case that softmax/* matches reports p99: they report time",
        ),
        (
            "{cases: 'serve/*', metric: p999, max: 2ms}",
            ": no case that serve/* matches reports p999: did you mean 'p99'?",
        ),
        (
            "{cases: zzz, regression: 2%}",
            ".cases: 'zzz' matches no case: there are smoothing/*, softmax/*, serve/*, app: fix or remove it",
        ),
        (
            "{cases: 'serve/batch=8', metric: bandwidth, min: 2TB/s}",
            ": no case that serve/batch=8 matches reports bandwidth: they report p99",
        ),
        (
            "{cases: 'serve/*', metric: host_time, regression: 25%}",
            ": no case that serve/* matches has a host_time: commands are processes of their own",
        ),
    ],
)
def test_a_limit_that_judges_nothing_is_a_mistake(limit: str, expected: str) -> None:
    assert wrong(limit) == [f"limits[0]{expected}"]


@pytest.mark.parametrize(
    "limit",
    [
        "{cases: '*', metric: p99, max: 2ms}",
        "{cases: 'serve/*', regression: 2%}",  # one of the two reports a time
        "{cases: '*', regression: 2%, devices: ['*H100*']}",  # another machine's
        "{cases: 'app', metric: registers, max: 64}",  # a profiler's to see
        "{cases: 'app', expect_kernels: flash}",
        "{cases: 'softmax/*', metric: tflops, min: 1TFLOP/s}",
        "{cases: '*', metric: host_time, regression: 25%, min_change: 5us}",
    ],
)
def test_what_some_case_can_answer_is_none(limit: str) -> None:
    assert wrong(limit) == []


def test_what_may_be_missing_is_told_and_no_mistake() -> None:
    allowed = policy("{cases: app, metric: p99, max: 2ms, fail_on: broken}")
    assert [(one.wrong, one.text) for one in idle(allowed, DECLARED, REPORTS)] == [
        (False, "limits[0]: no case that app matches reports p99: they report time")
    ]


def test_a_limit_is_not_at_fault_where_nothing_is_declared() -> None:
    assert wrong("{cases: '*', regression: 2%}", Declared()) == [
        "limits[0].cases: '*' matches no case: no kernel or command is declared: see `suite` and `commands`"
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("smothing", "did you mean 'smoothing/*'?"),
        ("smoothing", "did you mean 'smoothing/*'?"),
        ("apps", "did you mean 'app'?"),
        ("zzz", "there are smoothing/*, softmax/*, app"),
    ],
)
def test_a_mistyped_case_is_told_the_nearest(asked: str, expected: str) -> None:
    assert nearest(asked, [*KERNELS, "app"]) == expected


def test_what_is_not_known_is_no_mistake() -> None:
    """A command that has not run may report anything below its name; a file that does not import, anything."""
    listed = Declared(kernels=KERNELS, commands=["serve"], unknown=["serve"])
    assert wrong("{cases: 'serve/batch=*', metric: p99, max: 2ms}", listed) == []
    assert wrong("{cases: 'ser*', metric: p99, max: 2ms}", listed) == []
    assert wrong("{cases: 'smothing/*', regression: 2%}", listed) == [
        "limits[0].cases: 'smothing/*' matches no case: did you mean 'smoothing/*'?"
    ]
    assert wrong("{cases: 'smothing/*', regression: 2%}", DECLARED.model_copy(update={"whole": False})) == []


@given(st.lists(st.from_regex(r"[a-z]{1,6}(/n=[0-9]{1,2})?", fullmatch=True), min_size=1, max_size=8), st.data())
def test_a_limit_is_wrong_just_where_it_matches_nothing(ids: list[str], data: st.DataObject) -> None:
    pattern = data.draw(st.one_of(st.sampled_from(ids), st.from_regex(r"[a-z]{1,4}[*]?(/[*])?", fullmatch=True)))
    (text,) = wrong(f"{{cases: '{pattern}', regression: 2%}}", Declared(kernels=ids)) or [""]
    assert bool(text) == (not any(matches(pattern, ident) for ident in ids))
    assert "\n" not in text


CUDA = Subject("softmax/n=64", "cuda", "NVIDIA H100 PCIe", reports=frozenset({"time"}))
CPU = Subject("softmax/n=64", "cpu", "AMD EPYC 9654", reports=frozenset({"time"}))
APP = Subject("app", "cuda", "NVIDIA H100 PCIe", reports=frozenset({"time"}), command=True)


def waiting(made: Policy, *subjects: Subject) -> list[Criterion]:
    return [one for one in criteria(made, subjects, KERNELS) if one.waits]


def judged(made: Policy, *subjects: Subject) -> list[Criterion]:
    return [one for one in criteria(made, subjects, KERNELS) if not one.waits]


def waits(limit: str, *subjects: Subject) -> list[tuple[str, str, str]]:
    return [(one.case, one.metric, one.waits) for one in waiting(policy(limit), *subjects)]


def test_a_limit_for_another_device_waits() -> None:
    limit = "{cases: 'softmax/*', metric: bandwidth, min: 2TB/s, devices: ['*H200*', cpu]}"
    assert waits(limit, CUDA) == [("softmax/n=64", "bandwidth", "it is for *H200*, cpu, and this is NVIDIA H100 PCIe")]
    assert waits(limit, CPU) == []
    assert waits("{cases: '*', regression: 2%, devices: [cuda]}", CPU, CUDA) == [
        ("softmax/n=64", "time", "it is for cuda, and this is AMD EPYC 9654")
    ]


def test_of_limits_for_several_devices_the_one_that_fits_counts() -> None:
    """The others are not told: each machine answers by its own. A bound of another kind is no other."""
    pair = "{cases: '*', regression: 2%, devices: [cuda]}", "{cases: '*', regression: 10%, devices: [cpu]}"
    assert waiting(policy(*pair), CPU) == waiting(policy(*pair), CUDA) == []
    most = "{cases: '*', max: 3ms, devices: [cuda]}"
    assert [str(one.source) for one in waiting(policy(most, *pair), CPU)] == ["limits[0]"]


def test_what_profilers_see_waits_for_a_gpu() -> None:
    both = "{cases: '*', regression: 2%, expect_kernels: flash}"
    assert waits(both, CPU) == [("softmax/n=64", "kernels", "profilers see nothing of it on the CPU")]
    assert waits(both, CUDA) == []
    counters = policy("{cases: '*', metric: dram_throughput, min: 80%}")
    assert [one.case for one in judged(counters, CPU, CUDA)] == ["softmax/n=64"]


def test_a_profilers_limit_is_a_commands_where_it_can_be_meant_for_nothing_else() -> None:
    """Either it counts or it is told: it never vanishes."""
    for mine in ("app", "a*", "[ab]pp", "*p"):
        limit = f"{{cases: '{mine}', metric: registers, max: 64}}"
        assert [one.case for one in judged(policy(limit), APP)] == ["app"]
        assert waits(limit, APP) == []
    everything = "{cases: '*', metric: registers, max: 64}"
    assert [one.case for one in judged(policy(everything), APP, CUDA)] == ["softmax/n=64"]
    assert waits(everything, APP, CUDA) == [
        ("app", "registers", "'*' takes kernels too, and a command is profiled only for a limit of its own")
    ]


def test_every_limit_that_names_a_case_is_judged_or_waits() -> None:
    lines = [
        f"{{cases: '{cases}', {what}, devices: ['{device}']}}"
        for cases in ("*", "softmax/*", "app", "a*")
        for what in ("regression: 2%", "metric: registers, max: 9", "metric: dram_bytes, max: 2GB", "expect_kernels: x")
        for device in ("*", "cuda", "cpu", "*H100*", "*B200*")
    ]
    for line in lines:
        one = policy(line)
        for subject in (CPU, CUDA, APP):
            assert len(criteria(one, [subject], KERNELS)) == names(one.limits[0], subject.id), line


def test_a_limit_that_waits_is_one_line_with_its_cases() -> None:
    twins = [replace(CPU, id=ident) for ident in KERNELS]
    limits = policy("{cases: '*', metric: bandwidth, min: 2TB/s, devices: ['*H100*']}", "{cases: '*', regression: 2%}")
    assert told(criteria(limits, twins, KERNELS)) == [
        "limits[0]: bandwidth of smoothing/rounds=4 and 2 more is not judged here: it is for *H100*, and this is AMD "
        "EPYC 9654"
    ]


def test_a_kernels_own_bound_needs_its_unit_too() -> None:
    own = Subject("k", "cuda", own=[{"metric": "sm_throughput", "min": 0.85}], where="k.py:3")
    with pytest.raises(UsageError, match=r"^k\.py:3: limits\[0\]\.min: 0\.85 has no unit: write 85%"):
        criteria(policy("{regression: 2%}"), [own])
    zero = Subject("k", "cuda", own=[{"metric": "sm_throughput", "min": 0}], where="k.py:3")
    assert [one.bound for one in criteria(policy("{regression: 2%}"), [zero]) if one.observed] == [0.0]


@pytest.mark.parametrize(
    ("purpose", "kinds"),
    [("change", "max regression"), ("last", "max regression"), ("reference", "creep max"), ("seam", "")],
)
def test_creep_is_asked_against_the_reference_alone_and_regression_never_there(purpose: Purpose, kinds: str) -> None:
    written = policy("{cases: '*', regression: 2%, creep: 5%, min_change: 1us}", "{cases: '*', max: 5ms}")
    own = replace(KERNEL, own=[{"creep": "3%"}])
    found = {one.kind: one for one in criteria(written, [own], purpose=purpose)}
    assert " ".join(sorted(found)) == kinds
    if "creep" in found:
        assert (found["creep"].bound, found["creep"].relative) == (0.03, True)
    assert "creep" not in {one.kind for one in criteria(written, [own], compared=False, purpose=purpose)}


def test_a_limit_on_creep_that_waits_is_told_where_it_is_asked_alone() -> None:
    written = policy("{cases: '*', creep: 5%, devices: cuda}")
    assert not told(criteria(written, [KERNEL]))
    (line,) = told(criteria(written, [KERNEL], purpose="reference"))
    assert "it is for cuda" in line


def test_of_as_many_files_as_github_names_not_all_are_known() -> None:
    ignoring = Policy(version=1, ignore=["docs/*"])
    for many, ignored in ((0, False), (299, True), (300, False)):
        assert ignoring.ignores([f"docs/{n}" for n in range(many)]) is ignored
    assert not ignoring.ignores(["docs/1", "src/1"])


HOST = '{cases: ["*"], metric: host_time, regression: 25%, min_change: 5us}'


def test_a_host_time_is_asked_of_kernels_on_a_gpu() -> None:
    gpu, cpu = Subject("k", "cuda"), Subject("k", "cpu", reports=frozenset({"time"}))
    command = Subject("tool", "cuda", reports=frozenset({"time"}), command=True)
    (found,) = criteria(policy(HOST), [gpu, cpu, command])
    assert (found.case_key, found.metric, found.min_change, found.waits) == (
        "k@cuda",
        "host_time",
        pytest.approx(5e-6),
        "",
    )


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        (Subject("k", "cpu"), "on the CPU a case's time is its host time"),
        (Subject("k", "cuda", command=True), "a process"),
    ],
)
def test_a_limit_on_host_time_that_names_a_case_without_one_waits(subject: Subject, why: str) -> None:
    (found,) = criteria(policy(HOST.replace("*", "k")), [subject])
    assert why in found.waits
