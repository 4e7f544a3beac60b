"""JSON schemas of the documents, for editors and for programs that read them without perfci.

`python -m perfci.schemas schemas/` writes them; a test fails where the files in `schemas/` differ.
"""

import ast
import inspect
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from perfci.bisect.document import Bisect
from perfci.history.check import HistoryCheck
from perfci.history.document import Night
from perfci.measure.shards.document import SharedPlan
from perfci.model.base import Document, UsageError
from perfci.model.calibration import Calibration
from perfci.model.doctor import Diagnosis
from perfci.model.metrics import CATALOGUE, HOST_TIME, OBSERVED, PLAIN_NCU
from perfci.model.plan import Plan
from perfci.model.policy import CHANGES, LIMIT_KEYS, UNITS_OF, Policy
from perfci.model.report import Failure, Report
from perfci.model.results import Results
from perfci.model.suite import as_list, as_values
from perfci.model.units import pattern

_DOCUMENTS: dict[str, tuple[type[Document], Literal["validation", "serialization"]]] = {
    # People write the policy, so its schema says what perfci accepts; perfci writes the others.
    "policy": (Policy, "validation"),
    "plan": (Plan, "serialization"),
    "shared-plan": (SharedPlan, "serialization"),
    "results": (Results, "serialization"),
    "report": (Report, "serialization"),
    "failure": (Failure, "serialization"),
    "bisect": (Bisect, "serialization"),
    "night": (Night, "serialization"),
    "history-check": (HistoryCheck, "serialization"),
    "calibration": (Calibration, "serialization"),
    "doctor": (Diagnosis, "serialization"),
}


def _described(model: type[BaseModel]) -> dict[str, str]:
    """Docstrings of a model's fields by their names in a document.

    pydantic's `use_attribute_docstrings` takes a quarter of a second of each start.
    """
    found = {}
    (tree,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(tree, ast.ClassDef)
    for field, behind in pairwise(tree.body):
        match field, behind:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[model.model_fields[name].alias or name] = inspect.cleandoc(text)
    return found


class _Generator(GenerateJsonSchema):
    """Adds what pydantic does not know: docstrings, lists that may be one string, how NaN is written."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, text in _described(schema["cls"]).items():
            made["properties"][name]["description"] = text
        return made

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = super().function_before_schema(schema)
        if self.mode == "validation" and schema["function"]["function"] in (as_list, as_values):
            return {"anyOf": [inner["items"], inner]}
        return inner

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        return found | {"additionalProperties": False} if "patternProperties" in found else found

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        number = super().float_schema(schema)
        bounded = any(bound in schema for bound in ("ge", "gt", "le", "lt"))
        if self.mode == "serialization" and not bounded and schema.get("allow_inf_nan", True):
            # `ser_json_inf_nan="strings"` of Document
            return {"anyOf": [number, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
        return number


def _limits() -> dict[str, Any]:
    """What must hold between a limit's fields, by the catalogue of metrics.

    The loader alone knows what a policy's own metric may be compared with.
    """
    zero = r"(0+\.?0*|\.0+)"
    spans = {"pattern": r"^range:\S"}
    observed = [one for one in CATALOGUE.values() if one.tier in OBSERVED]
    alone = [one.name for one in CATALOGUE.values() if one.alone]
    sampled = {"enum": [*alone, *(one.name for one in observed if not one.exact)]}
    exact = {"enum": [one.name for one in observed if one.exact]}
    # Of ncu's own metrics the loader knows which are of the table under another name.
    by_ncu = {"pattern": PLAIN_NCU}

    def of(*names: dict[str, Any], default: bool = False) -> dict[str, Any]:
        """`default`: also a limit without a metric."""
        return {"properties": {"metric": {"anyOf": [*names]}}} | ({} if default else {"required": ["metric"]})

    def given(name: str) -> dict[str, Any]:
        return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}

    rules: list[dict[str, Any]] = [{"anyOf": [given(name) for name in LIMIT_KEYS]}]
    for unit in dict.fromkeys(one.unit for one in CATALOGUE.values()):
        listed: dict[str, Any] = {"enum": [one.name for one in CATALOGUE.values() if one.unit == unit]}
        units = UNITS_OF[unit][0] if unit in UNITS_OF else {unit: 1.0}
        written = pattern(units, "[+-]?") + (f"|{pattern([''], '[+-]?', zero)}" if unit else "")
        bare = {"const": 0} if unit else {"type": "number"}
        bound = {"anyOf": [bare, {"type": "string", "pattern": written}, {"type": "null"}]}
        named = of(listed, spans, default=True) if unit == "s" else of(listed)
        rules.append({"if": named, "then": {"patternProperties": {"^m(in|ax)$": bound}}})
    nothing = {"type": "string", "pattern": pattern(["%"], digits=zero)}
    return {
        "allOf": [
            *rules,
            {"if": of(sampled, spans), "then": {"properties": {key: {"type": "null"} for key in CHANGES}}},
            {"if": {"not": of(exact, by_ncu)}, "then": {"properties": {key: {"not": nothing} for key in CHANGES}}},
            {
                "if": given("min_change"),
                "then": {
                    "allOf": [
                        {"anyOf": [given(name) for name in CHANGES]},
                        of({"enum": ["time", HOST_TIME]}, default=True),
                    ]
                },
            },
        ]
    }


def schemas() -> dict[str, dict[str, Any]]:
    """Return document → JSON schema (draft 2020-12)."""
    made: dict[str, dict[str, Any]] = {
        name: {"$schema": GenerateJsonSchema.schema_dialect}
        | document.model_json_schema(mode=mode, schema_generator=_Generator)
        | {"title": f"perfci {name}"}
        for name, (document, mode) in _DOCUMENTS.items()
    }
    policy = made["policy"]
    policy["$defs"]["Limit"] |= _limits()
    policy["properties"]["metrics"]["propertyNames"]["not"] = {"enum": list(CATALOGUE)}
    return made


def files() -> dict[str, str]:
    """Return file name → text, as in `schemas/`."""
    return {
        f"{name}.json": json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, schema in schemas().items()
    }


def main(arguments: list[str]) -> None:
    """Write every schema into `arguments[0]`. Raises UsageError without exactly one folder."""
    if len(arguments) != 1:
        raise UsageError("usage: python -m perfci.schemas FOLDER")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(str(error))
