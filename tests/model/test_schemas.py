"""The JSON schemas: in step with the documents, and true of the files that people and perfci write."""

import json
import math
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from perfci.model import schemas
from perfci.model.base import UsageError
from perfci.model.fingerprint import Fingerprint
from perfci.model.plan import Judgement, Looks, Plan, Schedule
from perfci.model.policy import Policy
from perfci.model.report import Report
from perfci.model.results import Case, CaseSide, Check, FileFailure, Pair, Reason, Results, SideCode, Work
from perfci.model.timing import Timing
from tests.render.build import reports

FOLDER = Path(__file__).parents[2] / "schemas"
ALL = schemas.schemas()

POLICY = """
version: 1
suite: [kernels/*.py]
build: pip install --no-deps --no-build-isolation --target "$PERFCI_SITE" .   # in base and in head
limits:
  - {cases: "*", metric: time, regression: 2%}
  - {cases: "softmax_bf16/*", metric: throughput, min: 5000/s, severity: warn}
  - {cases: [softmax_bf16/rows=8192, "matmul/*"], metric: bandwidth, min: 2TB/s, devices: ["*H100*", "*H200*"]}
"""

FULL = """
version: 1
suite: kernels/*.py
commands:
  - {name: mm, run: ./bench, reads: nvbench, device: cuda, timeout: 2m}
  - {name: app, run: ./app, reads: perfci}
build: [make, make install]
path: src
python: .venv/bin/python
env: {A: b}
pass_env: [CUDA_HOME]
devices: [cuda, cpu]
threads: 2
budget: 10m
timeout: 90s
build_timeout: 1.5h
memory: 8GiB
seed: 7
mode: observe
metrics: {loss: {unit: nats, better: lower}}
limits:
  - {metric: time, regression: 0.5%, min_change: 200ns, on_missing: warn}
  - {metric: time, max: 5 ms}
  - {metric: loss, max: 2.5nats}
  - {metric: registers, max: 128}
  - {metric: dram_bandwidth, min: 0}
"""


def errors(document: str, value: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(ALL[document])
    return [error.message for error in validator.iter_errors(value)]


@pytest.mark.parametrize("name", ALL)
def test_schema_is_valid_and_says_what_it_is(name):
    jsonschema.Draft202012Validator.check_schema(ALL[name])
    assert ALL[name]["title"] == f"perfci {name}"
    assert ALL[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_files_are_in_step_with_the_documents():
    """On a difference: `python -m perfci.model.schemas schemas/`."""
    found = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.json")}
    assert found == schemas.files()


def test_main_writes_the_files_and_wants_one_folder(tmp_path):
    schemas.main([str(tmp_path / "new")])
    assert {file.name for file in (tmp_path / "new").iterdir()} == set(schemas.files())
    with pytest.raises(UsageError, match="schemas FOLDER"):
        schemas.main([])


@pytest.mark.parametrize("text", [POLICY, FULL])
def test_a_written_policy_is_valid(text):
    value = yaml.safe_load(text)
    Policy.model_validate(value)
    assert errors("policy", value) == []


@pytest.mark.parametrize(
    "change",
    [
        {"budget": 600},
        {"budget": "10"},
        {"timeout": "-3s"},
        {"memory": "8 gigs"},
        {"limits": [{"regression": 0.02}]},
        {"limits": [{"max": 5}]},
        {"limits": [{"metric": "sm_throughput", "min": 0.85}]},
        {"limits": [{"metric": "range:encode", "max": 2}]},
        {"limits": [{"regression": "2"}]},
        {"limits": [{"regression": "2%", "min_change": "2%"}]},
        {"limits": [{"cases": [], "regression": "2%"}]},
        {"limitz": []},
        {"mode": "off"},
        {"version": 2},
    ],
)
def test_schema_and_document_refuse_the_same_mistakes(change):
    value = yaml.safe_load(POLICY) | change
    with pytest.raises(ValidationError):
        Policy.model_validate(value)
    assert errors("policy", value)


@pytest.mark.parametrize("state", reports())
def test_every_report_is_valid(state):
    report = reports()[state]
    assert errors("report", json.loads(report.model_dump_json())) == []
    assert Report.model_validate_json(report.model_dump_json()).model_dump_json() == report.model_dump_json()


def results(value: float) -> Results:
    """A results document that uses every part, with one value to choose."""
    side = CaseSide(
        file="kernels/a.py",
        line=3,
        params={"n": 64, "dtype": "bf16"},
        work=Work(flops=1e9),
        inputs="ab12",
        timing=Timing(mode="cpu", cache="warm", threads=1, settings={"timer": "perf_counter_ns", "tf32": False}),
        check=Check(shapes=3, compared=3, worst=0.2, rtol=1e-2, atol=1e-3, sketch=[1.0, value]),
    )
    pair = Pair(
        index=0,
        first="base",
        values={"base": {"time": 1e-5}, "head": {"time": value}},
        samples={"base": 60},
        spread={"base": 0.01},
    )
    plan = Plan(
        seed=1,
        sides=["base", "head"],
        looks=Looks(),
        schedules={"cpu": Schedule()},
        judgements=[
            Judgement(
                case="a/n=64",
                device="cpu",
                metric="time",
                unit="s",
                better="lower",
                kind="regression",
                bound=0.02,
            )
        ],
    )
    reason = Reason(kind="import", text="ImportError", log="logs/base.log")
    failed = CaseSide(status="failed", reason=reason)
    return Results(
        run="r", mode="compare", started="2026-01-05T10:15:00Z", command=["perfci"], fingerprint=Fingerprint(devices={"cpu": "x"}),
        sides={"base": SideCode(commit="1" * 40), "head": SideCode(dirty=True)}, plan=plan,
        cases=[Case(id="a/n=64", kernel="a", device="cpu", sides={"base": side, "head": side}, pairs=[pair]), Case(id="b", kernel="b", device="cpu", sides={"head": failed}, stopped="failed")],
        files=[FileFailure(side="head", file="kernels/b.py", reason=reason)], error=reason, custom_metrics={"loss": {"unit": "nats"}},
    )  # fmt: skip


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
