"""The house stays guessable: one word for one thing, small rooms, no circles, one of each helper."""

import ast
import graphlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
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
LAUNCHES = (
    "perfci/profilers/",
    "perfci/judge/explain/",
    "perfci/model/",
    "perfci/worker/",
    "perfci/render/",
    "perfci/work/",
)
"""Where a launch is that of a kernel; a process of a side is a worker."""
LOOKS = re.compile(r"_?(|of_|last_|first_|early_|quick_|bound_)looks?(_at)?", re.IGNORECASE)
"""The interim looks of the sequential test; profiles are profiled, files are read."""
BACK_ENDS = {"perfci.render.csv", "perfci.render.markdown"}
"""Formats, which `render/__init__.py` registers."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def words(name: str) -> list[str]:
    """`CaseSide`, `case_side` → case, side."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def named(tree: ast.AST) -> Iterator[str]:
    """Types, functions, parameters and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_name_in_the_code_is_an_old_word(path: Path) -> None:
    place = str(path.relative_to(SOURCE))
    for name in [*path.relative_to(SOURCE).with_suffix("").parts, *named(parsed(path))]:
        found = words(name)
        assert not OLD & set(found), name
        assert "launch" not in found or place.startswith(LAUNCHES) or "kernel" in found, name
        assert "look" not in found or LOOKS.fullmatch(name), name


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


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def test_no_docstring_opens_with_whether_what_or_which() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{one.lineno}: {str(one.value).splitlines()[0]}"
        for path in MODULES
        for one in docstrings(parsed(path))
        if re.match(r"(Whether|What|Which)\b", str(one.value))
    ]
    assert not found, "\n".join(found)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("perfci")


def test_no_modules_import_each_other_in_a_circle(graph: grimp.ImportGraph) -> None:
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()


def test_no_small_module_has_a_single_importer(graph: grimp.ImportGraph) -> None:
    found = []
    for module in graph.modules - BACK_ENDS:
        path = SOURCE / f"{module.replace('.', '/')}.py"
        if path.exists() and len(path.read_text().splitlines()) < 60:
            importers = graph.find_modules_that_directly_import(module)
            found += [f"{module} is imported by {one} alone" for one in importers if len(importers) == 1]
    assert not found


@pytest.mark.parametrize("top", [SOURCE, ROOT / "tests"], ids=["src", "tests"])
def test_no_folder_is_a_long_flat_list(top: Path) -> None:
    counts = Counter(path.parent for path in top.rglob("*.py"))
    assert not {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > 20}


@cache
def types() -> dict[str, list[str]]:
    """Name of a type → the modules that define one."""
    found = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return found


@pytest.mark.parametrize("name", ["Criterion", "Launch", "Metric", "Ncu", "Nsys", "Outcome", "Profiler", "Worker"])
def test_there_is_one_type_of_this_name(name: str) -> None:
    assert len(types()[name]) == 1, types()[name]
