"""Bad policies: each costs one line that names file, line, field and remedy."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perfci.model.base import UsageError
from perfci.model.criteria import least_change
from perfci.model.limits import Subject, criteria, declared, looser
from perfci.model.metrics import CATALOGUE, Metric
from perfci.model.policy_text import parse_policy
from perfci.model.timing import Timing

GOOD = "version: 1\nsuite: [kernels/*.py]\n"
LIMIT = GOOD + "limits:\n  - "

BAD = {
    "a table without value": (GOOD + "commands: [{name: s, run: ./s, reads: csv}]", "commands[0].reads: a table needs `value:`"),
    "columns of no table": (GOOD + "commands: [{name: s, run: ./s, unit: ms}]", "commands[0].unit: is of a table: write `reads: csv`"),
    "a column twice": (GOOD + "commands: [{name: s, run: ./s, reads: jsonl, case: ms, value: ms, unit: ms}]", "commands[0].case: 'ms' cannot tell rows apart"),
    "empty": ("", "perfci.yaml: is not a policy: begin with `version: 1`"),
    "not YAML": ("suite: [a", "perfci.yaml:1: not valid YAML: expected ',' or ']'"),
    "a list": ("- a", "is not a policy"),
    "tab": ("version: 1\n\tsuite: a", "perfci.yaml:2: not valid YAML: found character"),
    "no version": ("suite: [a.py]", "version: is required: add `version: 1`"),
    "other version": ("version: 2\nsuite: [a.py]", "perfci.yaml:1: version: 2 is not allowed: write 1"),
    "mistyped field": (GOOD + "limts: []", "perfci.yaml:3: limts: unknown field: did you mean 'limits'?"),
    "outside": ("version: 1\nsuite: [../a.py]", "perfci.yaml:2: suite[0]: '../a.py' must be a path inside"),
    "limit's field": (LIMIT + "{regresion: 2%}", "perfci.yaml:4: limits[0].regresion: unknown field: did you mean 'regression'?"),
    "a script's field": ("version: 1\nsuite: [{script: a.py, argz: x}]\n", "perfci.yaml:2: suite[0].argz: unknown field: did you mean 'args'?"),
    "script mistyped": ("version: 1\nsuite:\n  - {scirpt: a.py}\n", "perfci.yaml:3: suite[0].scirpt: unknown field: did you mean 'script'?"),
    "timer of a test": ("version: 1\nsuite:\n  - {pytest: a.py, timers: {__main__.x: fn}}\n", "suite[0].timers: tests have no __main__"),
    "both kinds": ("version: 1\nsuite:\n  - {script: a.py, pytest: b.py}\n", "write `script:` or `pytest:`, and one of them"),
    "history's field": (GOOD + "history: {refrence: v1}", "perfci.yaml:3: history.refrence: unknown field: did you mean 'reference'?"),
    "a metric's field": (GOOD + "metrics: {p99: {units: ms}}", "perfci.yaml:3: metrics.p99.units: unknown field: did you mean 'unit'?"),
    "a field of no metric": (GOOD + "metrics: {p99: {xyz: 1}}", "metrics.p99.xyz: unknown field: known are unit, better"),
    "percent without sign": (LIMIT + "{regression: 2}", "limits[0].regression: write it with its unit, such as '2%'"),
    "negative percent": (LIMIT + "{regression: -2%}", "limits[0].regression: '-2%' is not between 0% and 1000%"),
    "limit without bound": (LIMIT + "{cases: '*'}", "limits[0]: a limit needs one of: regression, creep, min, max"),
    "unknown metric": (LIMIT + "{metric: tmie, regression: 2%}", "limits[0].metric: 'tmie' is no metric: did you mean 'time'?"),
    "minutes or milliseconds": (LIMIT + "{max: 5m}", "limits[0].max: '5m' has no known unit: write it like '5ms' (ns, us,"),
    "a least change of minutes": (LIMIT + "{regression: 2%, min_change: 1m}", "limits[0].min_change: '1m' has no known unit: write it like '200ns'"),
    "a share": (LIMIT + "{metric: sm_throughput, min: 0.85}", "perfci.yaml:4: limits[0].min: 0.85 has no unit: write 85% (0.85% if that is intended)"),
    "a share as text": (LIMIT + "{metric: occupancy, min: '0.5'}", "limits[0].min: 0.5 has no unit: write 50%"),
    "range without unit": (LIMIT + "{metric: 'range:encode', max: 2}", "limits[0].max: 2 has no unit: write it with its unit, like '5ms'"),
    "own metric without unit": (
        GOOD + "metrics: {loss: {unit: nats}}\nlimits:\n  - {metric: loss, max: 2.5}",
        "limits[0].max: 2.5 has no unit: write 2.5nats",
    ),
    "no number": (LIMIT + "{metric: registers, max: .nan}", "limits[0].max: nan is no finite number"),
    "no end": (LIMIT + "{metric: registers, max: .inf}", "limits[0].max: inf is no finite number"),
    "too large": (LIMIT + "{metric: dram_bandwidth, max: 1e308TB/s}", "limits[0].max: '1e308TB/s' is no finite number"),
    "bytes for a count": (LIMIT + "{metric: throughput, min: 2TB/s}", "limits[0].min: '2TB/s' has no known unit: write it like '5000/s'"),
    "a least change elsewhere": (LIMIT + "{metric: tflops, regression: 2%, min_change: 1us}", "perfci.yaml:4: limits[0].min_change: belongs to a limit on time or host_time"),
    "no cases": (LIMIT + "{cases: [], regression: 2%}", "limits[0].cases: [] does not fit: must not be empty"),
    "severity": (LIMIT + "{regression: 2%, fail_on: error}", "limits[0].fail_on: 'error' is not allowed: write 'broken', 'missing' or 'undecided'"),
    "duration": (GOOD + "budget: soon", "perfci.yaml:3: budget: 'soon' does not begin with a number"),
    "duration's unit": (GOOD + "timeout: 3 fortnights", "timeout: '3 fortnights' has no known unit: write it like '30s'"),
    "threads": (GOOD + "threads: many", "perfci.yaml:3: threads: 'many' does not fit: write a whole number"),
    "device": (GOOD + "devices: [gpu]", "perfci.yaml:3: devices[0]: 'gpu' is not allowed: write 'cuda' or 'cpu'"),
    "limit's device": (LIMIT + "{regression: 2%, devices: [cuda, cpuu]}", "perfci.yaml:4: limits[0].devices[1]: 'cpuu': did you mean 'cpu'? (write cuda"),
    "limit's device in capitals": (LIMIT + "{regression: 2%, devices: CUDA}", "limits[0].devices: 'CUDA': did you mean 'cuda'?"),
    "gpu": (LIMIT + "{regression: 2%, devices: gpu}", "limits[0].devices: 'gpu': did you mean 'cuda'?"),
    "mode": (GOOD + "fail_on: [never]", "fail_on[0]: 'never' is not allowed: write 'broken', 'missing' or 'undecided'"),
    "command's name": (GOOD + "commands: [{name: a b, run: x}]", "commands[0].name: 'a b' is no plain name"),
    "command without run": (GOOD + "commands: [{name: a}]", "commands[0].run: is required: add `run: …`"),
    "a warm-up of nothing": (GOOD + "commands: [{name: a, run: x, skip: 3}]", "commands[0].skip: there is no `range:` whose first executions"),
    "an unknown trace": (GOOD + "commands: [{name: a, run: x, trace: [ostr]}]", "commands[0].trace[0]: 'ostr' is not allowed: write 'osrt' or 'memory'"),
    "memory of no device": (GOOD + "commands: [{name: a, run: x, trace: memory}]", "commands[0].trace: a command on the CPU has no device memory: write device: cuda"),
    "two of one name": (GOOD + "commands: [{name: a, run: x}, {name: a, run: y}]", "commands[1].name: two commands are named 'a'"),
    "catalogue's name": (GOOD + "metrics: {time: {}}", "perfci.yaml:3: metrics.time: is a name of perfci's own catalogue"),
    "price": (GOOD + "gpu_hour: 3.5", "perfci.yaml:3: gpu_hour: 3.5 is no price: write it like '3.50 USD'"),
    "a count with a unit": (LIMIT + "{metric: registers, max: 5ms}", "limits[0].max: '5ms': registers has no unit: write a plain number, such as 1e6"),
    "creep that no timing excludes": (LIMIT + "{creep: 0%}", "limits[0].creep: 0% can never be excluded by timing"),
    "creep of a speed-up": (LIMIT + "{metric: speedup, creep: 5%}", "limits[0].creep: speedup is measured of head alone"),
    "a reference that is an option": (LIMIT + "{creep: 5%}\nhistory: {reference: --all}", "history.reference"),
    "a speed-up relative to base": (LIMIT + "{metric: speedup, regression: 5%}", "limits[0].regression: speedup is measured of head alone: write min, such as 1.10x"),
    "no way to be worse": (
        LIMIT + "{metric: sm__cycles_active.avg, regression: 1%}",
        "perfci.yaml:4: limits[0].regression: perfci does not know which way sm__cycles_active.avg gets worse: add better: lower (or higher)",
    ),
    "the other way": (
        LIMIT + "{metric: smsp__inst_executed.sum, regression: 1%, better: higher}",
        "limits[0].better: of smsp__inst_executed.sum lower is better: leave it out",
    ),
    "the other way of time": (LIMIT + "{regression: 1%, better: higher}", "limits[0].better: of time lower is better: leave it out"),
    "no way at all": (LIMIT + "{metric: sm__cycles_active.avg, max: 5, better: up}", "limits[0].better: 'up' is not allowed: write 'lower' or 'higher'"),
    "what ncu counts and the table knows to scatter": (
        LIMIT + "{metric: dram__bytes.sum, regression: 2%}",
        "limits[0].regression: dram__bytes.sum is observed once and scatters from run to run: write min or max",
    ),
    "ncu's name with a prefix": (
        LIMIT + "{metric: 'ncu:smsp__inst_executed.sum', max: 5}",
        "limits[0].metric: 'ncu:smsp__inst_executed.sum' is no metric: write smsp__inst_executed.sum",
    ),
    "a rollup that there is not": (
        LIMIT + "{metric: smsp__inst_executed.total, max: 5}",
        "limits[0].metric: 'smsp__inst_executed.total' is no metric, nor can ncu have it: write it like smsp__inst_executed.sum",
    ),
    "two metrics of ncu": (LIMIT + "{metric: 'a__b.sum,c__d.sum', max: 5}", "is no metric, nor can ncu have it"),
    "ncu's bytes without unit": (LIMIT + "{metric: dram__bytes_read.max, max: 5}", "limits[0].max: 5 has no unit: write it with its unit, like '2GB'"),
    "ncu's share without unit": (
        LIMIT + "{metric: sm__throughput.max.pct_of_peak_sustained_elapsed, min: 0.8}",
        "limits[0].min: 0.8 has no unit: write 80% (0.8% if that is intended)",
    ),
    "ncu's clock without unit": (LIMIT + "{metric: gpc__cycles_elapsed.avg.per_second, min: 1.5}", "like '1.5GHz'"),
    "a set of counters": (GOOD + "counters: all", "perfci.yaml:3: counters: 'all' is no set: write default, deep, full, or sections: [SpeedOfLight]"),
    "a section alone": (GOOD + "counters: SpeedOfLight", "counters: 'SpeedOfLight' is no set: write default, deep, full, or sections: [SpeedOfLight]"),
    "no section": (GOOD + "counters: []", "counters: names no section: write some, such as [SpeedOfLight], or leave it out"),
    "a mistyped section": (GOOD + "counters: [Occupancy, Speedoflight]", "counters[1]: 'Speedoflight' is no section of ncu: did you mean 'SpeedOfLight'?"),
    "a set among sections": (GOOD + "counters: [deep]", "counters[0]: deep is a set and no section of ncu: write counters: deep"),
    "no name of a section": (GOOD + "counters: ['--set']", "counters[0]: '--set' is no name of a section of ncu: write one such as SpeedOfLight"),
    "env as list": (GOOD + "env: [A]", "env: ['A'] does not fit: write fields with values"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_each_mistake_is_one_line(name: str) -> None:
    text, expected = BAD[name]
    with pytest.raises(UsageError) as caught:
        parse_policy(text)
    message = str(caught.value)
    assert expected in message
    assert message.startswith("perfci.yaml:")
    assert "\n" not in message
    assert len(message) < 300
    assert caught.value.exit_code == 2


@given(st.text(max_size=300))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        parse_policy(text)
    except UsageError as error:
        assert "\n" not in str(error)  # a property, not an expected failure


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["version", "suite", "limits", "cases", "min", "commands", "x"]), inner, max_size=4),
        max_leaves=12,
    )
)  # fmt: skip
def test_no_structure_raises_anything_else(data: object) -> None:
    try:
        parse_policy(yaml.safe_dump(data))
    except UsageError as error:
        assert "\n" not in str(error)


def _levels(schema: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], list[str]]]:
    """Yield each place of the policy's schema that has fields, and their names."""
    if "$ref" in schema:
        schema = POLICY["$defs"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        yield path, list(schema["properties"])
    for name, below in schema.get("properties", {}).items():
        yield from _levels(below, (*path, name))
    for below in schema.get("anyOf", []):
        yield from _levels(below, path)
    if "items" in schema:
        yield from _levels(schema["items"], (*path, 0))
    for below in schema.get("patternProperties", {}).values():
        yield from _levels(below, (*path, "suite"))  # a name of a user's may be that of a field


POLICY = json.loads((Path(__file__).parents[2] / "schemas" / "policy.json").read_text())
LEVELS = dict(_levels(POLICY))


def test_the_schema_has_levels() -> None:
    assert {*LEVELS} == {(), ("commands", 0), ("metrics", "suite"), ("limits", 0), ("history",)}


@pytest.mark.parametrize("path", LEVELS, ids=str)
def test_what_is_offered_for_a_mistyped_field_is_of_its_level(path: tuple[str | int, ...]) -> None:
    """One letter of one field is wrong or left out, anywhere: what is offered could be written there."""
    fields = LEVELS[path]
    wrong = {name[:at] + put + name[at + 1 :] for name in fields for at in range(len(name)) for put in ("", "q")}
    for name in sorted(wrong - {*fields}):
        written: Any = {name: 1}
        for part in reversed(path):
            written = [written] if part == 0 else {part: written}
        with pytest.raises(UsageError) as caught:
            parse_policy(yaml.safe_dump({"version": 1, "suite": ["a.py"]} | written))
        offered = re.search(
            rf"{name}: unknown field: (?:did you mean '(\w+)'\?|known are ([\w, ]+))", str(caught.value)
        )
        assert offered is not None, caught.value
        assert {*(offered[1] or offered[2]).split(", ")} <= {*fields}, caught.value


def test_the_last_limit_counts_and_base_declares_for_both() -> None:
    """Of the policy's limits on one case and metric the last one counts; a kernel's own may only tighten it."""
    policy = parse_policy(
        LIMIT + "{cases: '*', regression: 2%}\n  - {cases: 'a/*', regression: 5%, devices: cpu}\n"
        "  - {cases: 'a/*', regression: 9%, devices: '*H200*'}\n  - {cases: b, max: 5ms}\n"
    )
    subjects = [
        Subject("a/n=1", "cpu"), Subject("a/n=1", "cuda", "NVIDIA H200"), Subject("b", "cpu"),
        Subject("c", "cpu", own=[{"metric": "time", "regression": "7%"}], where="c.py:3"),
        Subject("d", "cpu", own=[{"regression": "1%"}, {"metric": "throughput", "min": "5/s"}], where="d.py:4"),
    ]  # fmt: skip
    made = {(j.case, j.device, j.kind): (round(j.bound, 6), str(j.source)) for j in criteria(policy, subjects)}
    assert made == {
        ("a/n=1", "cpu", "regression"): (0.05, "limits[1]"),
        ("a/n=1", "cuda", "regression"): (0.09, "limits[2]"),
        ("b", "cpu", "regression"): (0.02, "limits[0]"),
        ("b", "cpu", "max"): (0.005, "limits[3]"),
        ("c", "cpu", "regression"): (0.02, "limits[0]"),
        ("d", "cpu", "regression"): (0.01, "d.py:4: limits[0]"),
        ("d", "cpu", "min"): (5.0, "d.py:4: limits[1]"),
    }
    assert looser(policy, subjects) == [
        "c.py:3: limits[0]: is less strict than the policy's own (limits[0]), which counts"
    ]


@pytest.mark.parametrize("devices", ["cuda", "[cpu, '*H200*']", "NVIDIA H100 80GB HBM3", "'c[pu]*'", "H100"])
def test_devices_are_kinds_and_names(devices: str) -> None:
    assert parse_policy(LIMIT + f"{{regression: 2%, devices: {devices}}}").limits


@pytest.mark.parametrize("metric", [one for one in CATALOGUE.values() if one.unit], ids=lambda metric: metric.name)
@pytest.mark.parametrize("bound", [85, "0.5", "1e3"])
def test_a_number_without_the_unit_that_is_due_is_refused_with_an_example(metric: Metric, bound: float | str) -> None:
    """Every metric with a unit: times, rates, sizes, shares, cycles."""
    for kind in ("min", "max"):
        with pytest.raises(UsageError, match=rf"limits\[0\].{kind}: \S+ has no unit: write ") as caught:
            parse_policy(LIMIT + f"{{metric: {metric.name}, {kind}: {bound!r}}}")
        example = re.search(r"(?:write|like) '?(?!it )([^\s']+)", str(caught.value))
        assert example is not None
        parse_policy(LIMIT + f"{{metric: {metric.name}, {kind}: {example[1]}}}")


def test_sections_that_a_newer_ncu_may_have_are_left_to_it() -> None:
    counters = parse_policy(GOOD + "counters: [SpeedOfLight_NewChart, Tile]").counters
    assert counters == ["SpeedOfLight_NewChart", "Tile"]


def test_a_kernels_own_bad_limit_names_its_place() -> None:
    with pytest.raises(UsageError, match=r"^c\.py:3: limits\[0\]\.metric: 'speed' is no metric"):
        criteria(
            parse_policy(GOOD), [Subject("c", "cpu", own=[{"metric": "speed", "regression": "7%"}], where="c.py:3")]
        )


def test_short_kernels_keep_their_limits() -> None:
    """The timer is read once a batch on the CPU, once a graph under `rotating`: its tick must not widen the limit of a
    kernel of 200 ns or 2 µs. A least change that somebody wrote holds as written."""
    rotating, cold = Timing(mode="rotating", executions_per_graph=256), Timing(mode="cold")
    policy = parse_policy(LIMIT + "{regression: 10%}")
    cpu, cuda = criteria(policy, [Subject("a", "cpu"), Subject("a", "cuda")])
    assert least_change(cpu, Timing(mode="cpu")) == 0.0
    assert least_change(cuda, cold) == 32e-9
    assert least_change(cuda, rotating) == 32e-9 / 256
    (written,) = criteria(parse_policy(LIMIT + "{regression: 10%, min_change: 200ns}"), [Subject("a", "cuda")])
    assert least_change(written, rotating) == least_change(written, cold) == pytest.approx(200e-9)


def test_a_kernels_own_limit_for_a_mistyped_device_is_refused() -> None:
    own = [{"regression": "7%", "devices": ["cdua"]}]
    with pytest.raises(UsageError, match=r"^c\.py:3: limits\[0\]\.devices: 'cdua': did you mean 'cuda'\?"):
        declared(Subject("c", "cpu", own=own, where="c.py:3"), {})
