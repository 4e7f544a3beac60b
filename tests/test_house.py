"""The house stays guessable: one word for one thing where users read it, no circles, one type of a name."""

import ast
import graphlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
GOLDEN = [path for folder in sorted((ROOT / "tests").glob("*/golden")) for path in sorted(folder.iterdir())]

OLD = {
    "arm", "arms", "contract", "contracts", "conductor", "convict", "convicts", "convicted", "acquit", "acquits",
    "acquitted", "evidence", "judgement", "judgements", "floor", "floors", "mend", "mends", "mended", "meant",
}  # fmt: skip
"""Words that another took the place of: docs/README.md has those that stand."""
PHRASES = ("launch pair", "own word", "let go", "lets go", "none is left", "goes red", "go red")


def words(name: str) -> list[str]:
    """`CaseSide`, `case_side` → case, side."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def keys(schema: object) -> Iterator[str]:
    """Names of fields and values of enumerations in a JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (one for one in schema.get("enum", []) if isinstance(one, str))
        yield from (one for one in [schema.get("const")] if isinstance(one, str))
        for value in schema.values():
            yield from keys(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys(value)


@pytest.mark.parametrize("path", sorted((ROOT / "schemas").glob("*.json")), ids=lambda path: path.name)
def test_no_key_of_a_document_is_an_old_word(path: Path) -> None:
    for name in keys(json.loads(path.read_text())):
        assert not OLD & set(words(name)), name
        assert name != "steady"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_no_golden_file_has_an_old_word(path: Path) -> None:
    text = path.read_text()
    assert not OLD & set(re.findall(r"(?<![\w.-])[a-z]+(?![\w-])", text)), path
    assert not [phrase for phrase in PHRASES if phrase in text]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("perfci")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()


def test_there_is_one_type_of_each_name_that_many_could_have() -> None:
    defined = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(str(path.relative_to(SOURCE)))
    names = ("Criterion", "Launch", "Metric", "Ncu", "Nsys", "Outcome", "Profiler", "Worker")
    assert {name: defined[name] for name in names if len(defined[name]) != 1} == {}
