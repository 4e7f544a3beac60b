"""The example with a compiled extension builds, and only what was built can be measured."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "extension"

CHECK = """
import json, sys
tree, site = sys.argv[1:]
sys.path.insert(0, site)
from perfci.worker.checks.check import check_case
from perfci.worker.discover import discover, foreign_modules, repo_modules
found = discover(tree, ["kernels/*.py"])
results = [
    check_case(kernel, [case.params, *kernel.fuzz_sets("cpu", case.params)], "cpu", 0)["text"]
    for kernel in found["kernels"] for case in kernel.cases("cpu")
]
errors = [entry["error"] for entry in found["files"]]
print(json.dumps([errors, results, foreign_modules(tree, site, []), repo_modules(tree, site)]))
"""


def build_and_check(folder, old, new):
    tree, site = folder / "tree", folder / "site"
    shutil.copytree(EXAMPLE, tree, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    source = tree / "src" / "blocked" / "_transpose.cpp"
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    build = "pip install --quiet --no-index --no-deps --no-build-isolation --target"
    subprocess.run([sys.executable, "-m", *build.split(), str(site), "."], cwd=tree, check=True)
    command = [sys.executable, "-c", CHECK, str(tree), str(site)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out)


pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")


@pytest.mark.slow
def test_a_wrong_extension_comes_from_the_overlay_and_fails_its_check(tmp_path):
    """Tiles at the edge are the classic mistake: full tiles only."""
    errors, texts, foreign, modules = build_and_check(
        tmp_path, "row < rows; row += kTile", "row + kTile <= rows; row += kTile"
    )
    assert errors == [None] and foreign == []
    assert modules["blocked"] == "site/blocked/__init__.py"
    assert modules["blocked._transpose"].startswith("site/blocked/_transpose.")
    assert texts[0].startswith("at rows=") and "elements differ" in texts[0]


def test_without_a_build_there_is_nothing_to_import(tmp_path):
    (tmp_path / "site").mkdir()
    command = [sys.executable, "-c", CHECK, str(EXAMPLE), str(tmp_path / "site")]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    errors = json.loads(out)[0]
    assert "No module named 'blocked'" in errors[0]["text"]
