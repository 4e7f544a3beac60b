"""The worker runs in the interpreter of the code under test, whatever that has installed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import perfci.worker

FOLDER = Path(perfci.worker.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_module_is_python_3_9_and_imports_standard_library_torch_and_itself(path):  # nvtx where it is installed
    module = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            imported = [node.module]
        elif isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        else:
            continue
        for name in imported:
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or top in {"torch", "nvtx", "perfci_worker"}, f"line {node.lineno}"


def test_the_package_works_under_another_name_without_perfci_and_torch():
    code = f"""
import importlib.util, sys
for name in ("perfci", "torch", "numpy", "pydantic"):
    sys.modules[name] = None
spec = importlib.util.spec_from_file_location(
    "injected", {str(FOLDER / "__init__.py")!r}, submodule_search_locations=[{str(FOLDER)!r}]
)
sys.modules["injected"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["injected"])
from injected import bench, boot, channel, cpu, declare, discover, gpu, graph, parent, serve
from injected.checks import check, compare, poison, redraw, sketch
print(sorted(m for m in sys.modules if m.startswith("perfci.")))
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out == "[]\n"
