"""The JSON schemas: in step with the documents, and true of the files that people and perfci write."""

import json
import math
from itertools import product
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from perfci import schemas
from perfci.model.base import UsageError
from perfci.model.metrics import CATALOGUE, CustomMetric, resolve
from perfci.model.policy import LIMIT_KEYS, Limit, Policy
from perfci.model.policy_text import parse_policy
from perfci.model.report import Report
from perfci.model.results import Case, CaseSide, Check, FileFailure, Reason, Results, Work
from perfci.model.timing import Timing
from tests.judge import build
from tests.model.test_policy_errors import BAD
from tests.model.test_policy_lines import GOOD
from tests.render.build import reports

FOLDER = Path(__file__).parents[2] / "schemas"
ALL = schemas.schemas()

POLICY = """
version: 1
suite: [kernels/*.py]
build: pip install --no-deps --no-build-isolation --target "$PERFCI_SITE" .   # in base and in head
limits:
  - {cases: "*", metric: time, regression: 2%}
  - {cases: "softmax_bf16/*", metric: throughput, min: 5000/s, fail_on: missing}
  - {cases: [softmax_bf16/rows=8192, "matmul/*"], metric: bandwidth, min: 2TB/s, devices: ["*H100*", "*H200*"]}
"""

VALIDATORS = {name: jsonschema.Draft202012Validator(schema) for name, schema in ALL.items()}


def errors(document: str, value: object) -> list[str]:
    return [error.message for error in VALIDATORS[document].iter_errors(value)]


@pytest.mark.parametrize("name", ALL)
def test_schema_is_valid_and_says_what_it_is(name):
    jsonschema.Draft202012Validator.check_schema(ALL[name])
    assert ALL[name]["title"] == f"perfci {name}"
    assert ALL[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_files_are_in_step_with_the_documents(tmp_path):
    """On a difference: `python -m perfci.schemas schemas/`."""
    schemas.main([str(tmp_path / "new")])
    written, kept = ({file.name: file.read_text() for file in at.iterdir()} for at in (tmp_path / "new", FOLDER))
    assert written == kept


def test_the_writer_of_schemas_wants_one_folder():
    with pytest.raises(UsageError, match="schemas FOLDER"):
        schemas.main([])


@pytest.mark.parametrize("value", [yaml.safe_load(POLICY), GOOD])
def test_a_written_policy_is_valid(value):
    Policy.model_validate(value)
    assert errors("policy", value) == []


def test_a_limit_asks_by_each_field_that_may_be_left_out_and_has_no_default():
    """`min_change` and `better` are of `regression` and `creep`."""
    left_out = {name for name, field in Limit.model_fields.items() if field.default is None}
    assert left_out - {"min_change", "better", "fail_on"} == {*LIMIT_KEYS}


def limit(**fields: object) -> dict[str, object]:
    return {"limits": [fields]}


BOTH: list[dict[str, object]] = [
    {"version": None}, {"limits": {}}, {"limits": ["all"]}, {"suite": {"a": 1}}, {"suite": [1]}, {"suite": "/abs/*.py"},
    {"path": ["~/x"]}, {"path": "a/../b"}, {"build": 5}, {"env": {"A": 1}}, {"env": {"2A": "x"}}, {"pass_env": ["A B"]},
    {"devices": "cuda"}, {"threads": 0}, {"seed": -1}, {"timing": "warm"}, {"profile": "often"}, {"fail_on": "never"},
    {"ignore": [""]},
    # durations, sizes, prices
    {"budget": 600}, {"budget": "10"}, {"budget": "10 fortnights"}, {"budget": ""}, {"timeout": "-3s"}, {"timeout": "3 s s"},
    {"build_timeout": "1:30"}, {"memory": "8 gigs"}, {"memory": 8}, {"memory": "8Gb"}, {"memory": "-8GiB"},
    {"gpu_hour": "3.5"}, {"gpu_hour": "3.5 usd"}, {"gpu_hour": "USD 3.50"}, {"gpu_hour": "3.50000 USD"},
    # commands and metrics of one's own
    {"commands": [{"run": "a"}]}, {"commands": [{"name": "a", "run": ""}]},
    {"commands": [{"name": "a", "run": "x", "reads": "excel"}]},
    {"commands": [{"name": "a", "run": "x", "timeout": "1 day"}]}, {"commands": [{"name": "a", "run": "x", "read": "wall"}]},
    {"metrics": {"dram_bytes": {"unit": "B"}}}, {"metrics": {"a b": {}}}, {"metrics": {"a": {"better": "up"}}},
    {"metrics": {"a": {"unit": "x" * 30}}}, {"metrics": {"a": []}},
    # limits: shapes
    limit(), limit(regression=None), limit(cases=[""], regression="2%"), limit(cases=3, regression="2%"),
    limit(devices=[], regression="2%"), limit(regression="2%", fail_on=["skip"]), limit(metric="sp eed", regression="2%"),
    limit(metric="", regression="2%"), limit(metric="range: ", max="2ms"), limit(metric="range:", max="2ms"),
    limit(expect_kernels=""), limit(expect_kernels=["flash"]),
    # limits: changes
    limit(regression="2"), limit(regression="x%"), limit(regression="2ms"), limit(regression="2 percent"),
    limit(regression="0%"), limit(regression="0.00 %"), limit(metric="tflops", regression="0%"),
    limit(metric="sm_throughput", regression="2%"), limit(metric="device_time", regression="2%"),
    limit(metric="range:encode", regression="2%"), limit(metric="stall_wait", regression="2%", max=3),
    limit(regression="2%", min_change="2%"), limit(regression="2%", min_change=5), limit(max="5ms", min_change="1us"),
    limit(metric="cycles", regression="2%", min_change="1us"), limit(creep=0.05), limit(creep="-5%"),
    limit(metric="device_time", creep="5%"), limit(metric="cycles", creep="5%", min_change="1us"),
    {"history": {"reference": ""}}, {"history": []}, {"counters": ["a b"]},
    # limits: bounds in the metric's unit
    limit(max=5), limit(min="5zz"), limit(max="soon"), limit(max="5"), limit(max=True), limit(max=["5ms"]),
    limit(metric="cycles", max=100), limit(metric="cv", max=2), limit(metric="tflops", min="600"),
    limit(metric="tflops", min="600 TFLOPS"), limit(metric="bandwidth", min="2TB"), limit(metric="dram_bandwidth", min=2000),
    limit(metric="throughput", min="5000"), limit(metric="dram_bytes", max=1000000),
    limit(metric="sm_throughput", min="80 percent"), limit(metric="registers", max="128 registers"),
    limit(metric="kernel_launches", max="many"), limit(metric="instructions", max="5k"),
]  # fmt: skip

WORDED = [name for name in BAD if name not in ("empty", "a list", "not YAML", "tab")]
ONLY_THE_LOADER = {
    "both kinds", "timer of a test",
    "unknown metric", "own metric without unit", "no number", "no end", "too large", "limit's device", "limit's device in capitals",
    "a table without value", "columns of no table", "a column twice", "gpu", "a warm-up of nothing", "memory of no device", "two of one name", "no way to be worse", "the other way",
    "the other way of time", "what ncu counts and the table knows to scatter", "a rollup that there is not",
    "ncu's bytes without unit", "ncu's share without unit", "ncu's clock without unit", "a mistyped section", "a set among sections",
}  # fmt: skip
"""Of the policies whose errors have words (test_policy_errors)."""
BESIDES: list[dict[str, object]] = [
    limit(expect_kernels="("),
    {"commands": [{"name": "a", "run": "x", "kernels": "(?=x)"}]},
    limit(regression="1001%"),
    {"budget": "1e999s"},
    {"memory": "0.5B"},
]
"""Besides what needs the cases: globs that match none, and metrics that none reports (test_limits)."""


def refuses(change: dict[str, object]) -> tuple[bool, bool]:
    """Whether the schema and the loader refuse a policy with this change."""
    value = yaml.safe_load(POLICY) | change
    try:
        parse_policy(yaml.safe_dump(value, allow_unicode=True))
    except UsageError:
        return bool(errors("policy", value)), True
    return bool(errors("policy", value)), False


@pytest.mark.parametrize("change", BOTH, ids=json.dumps)
def test_schema_and_loader_refuse_the_same_mistakes(change):
    assert refuses(change) == (True, True)


@pytest.mark.parametrize("name", WORDED)
def test_the_schema_refuses_what_has_words_but_what_only_the_loader_can(name):
    """Where the schema learns one of these, it leaves the set above."""
    assert bool(errors("policy", yaml.safe_load(BAD[name][0]))) == (name not in ONLY_THE_LOADER)


@pytest.mark.parametrize("change", BESIDES, ids=json.dumps)
def test_what_only_the_loader_can_refuse(change):
    assert refuses(change) == (False, True)


BOUNDS = {
    "": ["128", "1e3", "-1"], "s": ["5ms", " 5 µs ", "1e-3s", "2min"], "%": ["80%", "80 %"], "B": ["2GB", "2GiB", "512B"],
    "B/s": ["2TB/s", "3e12 B/s"], "/s": ["5000/s", "5 k/s", "5000 samples/s", "2.5ktok/s"], "TFLOP/s": ["600TFLOP/s", "0.5 PFLOP/s"], "cycles": ["1e6cycles"],
    "x": ["1.10x", "2 x"],
}  # fmt: skip


METRICS = [*CATALOGUE.values(), resolve("range:encode", {})]
FIRST = {metric.unit: metric.name for metric in reversed(METRICS)}
"""Unit → the metric that stands for it in the quick tests."""


@pytest.mark.parametrize(
    "metric",
    [
        pytest.param(metric, id=metric.name, marks=[] if FIRST[metric.unit] == metric.name else pytest.mark.slow)
        for metric in METRICS
    ],
)
def test_what_the_loader_takes_the_schema_takes(metric):
    fits = BOUNDS[metric.unit]
    others = {text for unit, texts in BOUNDS.items() if unit != metric.unit for text in texts}
    for text in [*fits, 0, "0", "0.0", *([128, 0.5] if not metric.unit else [])]:
        assert refuses(limit(metric=metric.name, max=text)) == (False, False), text
    for text in others - set(fits):
        assert refuses(limit(metric=metric.name, min=text)) == (True, True), text
    for name, change in product(("regression", "creep"), ("2%", "0%")):
        schema, loader = refuses(limit(metric=metric.name, **{name: change}))
        assert schema == loader, (name, change)


@pytest.mark.parametrize(
    "change",
    [
        limit(metric="smsp__inst_executed.sum", max=1e6), limit(metric="smsp__inst_executed.sum", regression="0%"),
        limit(metric="sm__cycles_active.avg", regression="0%", better="lower"), limit(metric="dram__bytes.max", min="2GB"),
        limit(metric="gpc__cycles_elapsed.avg.per_second", min="1.5GHz"), {"counters": "full"},
        {"counters": ["SpeedOfLight", "MemoryWorkloadAnalysis"]},
    ],
)  # fmt: skip
def test_what_ncu_is_asked_for_is_taken_by_both(change):
    assert refuses(change) == (False, False)


def test_a_least_change_of_host_times_is_taken_by_both():
    assert refuses(limit(metric="host_time", regression="25%", min_change="5us")) == (False, False)
    assert refuses(limit(metric="host_time", max="50us", min_change="5us")) == (True, True)


@pytest.mark.parametrize("state", reports())
def test_every_report_is_valid(state):
    report = reports()[state]
    assert errors("report", json.loads(report.model_dump_json())) == []
    assert Report.model_validate_json(report.model_dump_json()).model_dump_json() == report.model_dump_json()


def results(value: float) -> Results:
    """A results document that uses every part, with one value to choose."""
    reason = Reason(kind="import", text="ImportError", log="logs/base.log")
    timing = Timing(mode="cpu", cache="warm", threads=1, settings={"timer": "perf_counter_ns", "tf32": False})
    check = Check(shapes=3, compared=3, worst=0.2, rtol=1e-2, atol=1e-3, sketch=[1.0, value])
    side = build.side(work=Work(flops=1e9), timing=timing, check=check)
    pairs = build.pairs([1e-5], [value])
    pairs[0].samples, pairs[0].spread = {"base": 60}, {"base": 0.01}
    failed = Case(id="b", kernel="b", device="cpu", sides={"head": CaseSide(status="failed", reason=reason)})
    made = build.results([build.case(base=side, head=side, device="cpu", pairs=pairs), failed])
    failures = [FileFailure(side="head", file="kernels/b.py", reason=reason)]
    return made.model_copy(
        update={"files": failures, "error": reason, "custom_metrics": {"loss": CustomMetric(unit="nats")}}
    )


@pytest.mark.parametrize("value", [1e-5, 0.0, math.nan, math.inf, -math.inf])
def test_results_are_valid_and_come_back_also_with_values_that_are_no_numbers(value):
    """NaN and infinities are written as strings; a schema that refused them would refuse the files that need reading most."""
    written = results(value)
    text = written.model_dump_json()
    assert errors("results", json.loads(text)) == []
    assert errors("plan", json.loads(written.plan.model_dump_json())) == []
    assert Results.model_validate_json(text).model_dump_json() == text


def test_foreign_results_are_refused():
    value = json.loads(results(1.0).model_dump_json())
    assert errors("results", value | {"more": 1})
    assert errors("results", {key: item for key, item in value.items() if key != "plan"})
    value["cases"][0]["pairs"][0]["values"]["head"]["time"] = "fast"
    assert errors("results", value)


@settings(max_examples=200, deadline=None)
@given(st.from_regex(r"\A[+]?[0-9.]{1,4}(e-?[0-9])? ?(ns|us|µs|ms|s|m|min|h|%|B|kB|MiB|GB|x|)\Z", fullmatch=True))
def test_written_quantities_are_judged_alike_by_schema_and_document(text):
    """Where the document takes a quantity the schema does too; the schema alone cannot know ranges."""
    base = yaml.safe_load(POLICY)
    for change in ({"budget": text}, {"memory": text}, {"limits": [{"regression": text}]}):
        try:
            Policy.model_validate(base | change)
        except ValidationError as error:
            wrong_form = any(word in str(error) for word in ("no known unit", "does not begin with a number"))
            assert not wrong_form or errors("policy", base | change)
        else:
            assert errors("policy", base | change) == []
