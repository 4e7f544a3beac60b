"""JSON schemas of the documents, for editors and for programs that read them without perfci.

`python -m perfci.model.schemas schemas/` writes them; a test fails where the files in `schemas/` differ.
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from perfci.model.base import Document, UsageError
from perfci.model.calibration import Calibration
from perfci.model.doctor import Diagnosis
from perfci.model.plan import Plan
from perfci.model.policy import Policy, _as_list
from perfci.model.report import Report
from perfci.model.results import Results

_DOCUMENTS: dict[str, tuple[type[Document], Literal["validation", "serialization"]]] = {
    # People write the policy, so its schema says what perfci accepts; perfci writes the others.
    "policy": (Policy, "validation"),
    "plan": (Plan, "serialization"),
    "results": (Results, "serialization"),
    "report": (Report, "serialization"),
    "calibration": (Calibration, "serialization"),
    "doctor": (Diagnosis, "serialization"),
}


class _Generator(GenerateJsonSchema):
    """What pydantic does not know: which lists may be one string, and how NaN and infinities are written."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = super().function_before_schema(schema)
        if self.mode == "validation" and schema["function"]["function"] is _as_list:
            return {"anyOf": [{"type": "string", "minLength": 1}, inner]}
        return inner

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        number = super().float_schema(schema)
        bounded = any(bound in schema for bound in ("ge", "gt", "le", "lt"))
        if self.mode == "serialization" and not bounded and schema.get("allow_inf_nan", True):
            # `ser_json_inf_nan="strings"` of Document
            return {"anyOf": [number, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
        return number


def schemas() -> dict[str, dict[str, Any]]:
    """Name of the document → its JSON schema (draft 2020-12): policy, plan, results, report, calibration, doctor."""
    return {
        name: {"$schema": GenerateJsonSchema.schema_dialect}
        | document.model_json_schema(mode=mode, schema_generator=_Generator)
        | {"title": f"perfci {name}"}
        for name, (document, mode) in _DOCUMENTS.items()
    }


def files() -> dict[str, str]:
    """File name → text, sorted and indented, as it stands in `schemas/`."""
    return {
        f"{name}.json": json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, schema in schemas().items()
    }


def main(arguments: list[str]) -> None:
    """Write every schema into the folder `arguments[0]`. Raises UsageError without exactly one folder."""
    if len(arguments) != 1:
        raise UsageError("usage: python -m perfci.model.schemas FOLDER")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(str(error))
