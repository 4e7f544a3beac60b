"""What a suite imports is read from its sources, in the order in which it would run."""

from pathlib import Path

import pytest

from perfci.worker.preload.imports import Scan, Statement


def scanned(root: Path, files: dict[str, str], patterns: tuple[str, ...] = ("kernels/*.py",)) -> Scan:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    scan = Scan(str(root), [str(root / "site"), str(root / "src")])
    scan.read(patterns)
    return scan


def found(root: Path, files: dict[str, str]) -> list[str]:
    return [one.module for one in scanned(root, files).found]


def test_statements_are_followed_through_the_sides_own_modules(tmp_path):
    files = {
        "kernels/a.py": "import perfci\nfrom own import part\nimport after\n",
        "src/own/__init__.py": "import first\nfrom . import other\nfrom .deep.er import thing\n",
        "src/own/part.py": "import second\n",
        "src/own/other.py": "from ..nowhere import x\nimport third\n",
        "src/own/deep/__init__.py": "",
        "src/own/deep/er.py": "from ..other import y\nfrom fourth.sub import name\n",
        "src/own/unused.py": "import never\n",
    }
    assert found(tmp_path, files) == ["first", "third", "fourth.sub", "second", "after"]


def test_names_are_kept_as_a_lazy_package_loads_by_them(tmp_path):
    scan = scanned(tmp_path, {"kernels/a.py": "from transformers import AutoModel, Trainer\nfrom x import *\n"})
    assert list(scan.found) == [Statement("transformers", ("AutoModel", "Trainer")), Statement("x", ("*",))]


def test_what_may_not_run_is_left_out(tmp_path):
    text = """
import sure
if TYPE_CHECKING:
    import typed
if available():
    import guarded
try:
    import tried
except ImportError:
    import fallback
finally:
    import last
with quiet():
    import inside
def late():
    import later
class Kernel:
    import never
"""
    assert found(tmp_path, {"kernels/a.py": text}) == ["sure", "tried", "last", "inside"]


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['A'] = '1'",
        "os.environ.setdefault('A', '1')",
        "os.putenv('A', '1')",
        "sys.path.insert(0, 'x')",
        "sys.modules['a'] = None",
        "del os.environ['A']",
        "if True:\n    os.environ.update(A='1')",
        "sys.path_hooks.append(f)",
        "os.chdir('/')",
        "environ['A'] = '1'",
        "o.environ['A'] = '1'",
    ],
)
def test_nothing_is_read_after_code_that_changes_how_imports_turn_out(tmp_path, line):
    scan = scanned(
        tmp_path,
        {"kernels/a.py": f"import os, sys\nimport before\n{line}\nimport after\n", "kernels/b.py": "import late"},
    )
    assert [one.module for one in scan.found] == ["os", "sys", "before"]
    assert scan.stopped == "kernels/a.py:3"


@pytest.mark.parametrize(
    "line",
    [
        "HERE = os.path.dirname(__file__)",
        "N = os.environ.get('N', '1')",
        "def f():\n    os.environ['A'] = '1'",
        "sys.exit",
    ],
)
def test_reading_changes_nothing(tmp_path, line):
    assert found(tmp_path, {"kernels/a.py": f"import os, sys\n{line}\nimport after\n"}) == ["os", "sys", "after"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f():\n    return torch.compile(g)", True),
        ("@torch.compile(dynamic=False)\ndef f(): ...", True),
        ("from torch import compile", True),
        ("from own import f", True),
        ("re.compile('x')", False),
        ("torch.compile(f)\nN = os.environ.get('N')", True),
        ("torch.compile(f)\ndef g():\n    import hidden", True),
        ("torch.compile(f)\ndef g():\n    import setting", False),
        ("torch.compile(f)\ndef g(env):\n    env['TORCHINDUCTOR_FREEZING'] = '1'", False),
        ("torch.compile(f)\nfrom sys import path as p", False),
        ("import dotenv, torch\ntorch.compile(f)", False),
        ("def f():\n    os.environ['TORCHINDUCTOR_MAX_AUTOTUNE'] = '1'\n    return torch.compile(g)", False),
    ],
)
def test_code_that_compiles_later_is_told_but_not_where_it_may_decide_how(tmp_path, text, told):
    files = {
        "kernels/a.py": text,
        "kernels/b.py": "import os\n",
        "src/own.py": "f = torch.compile(g)\n",
        "src/hidden.py": "x = 1",
    }
    files |= {"src/setting.py": "import os\nos.environ['A'] = 'x'\n"} if "setting" in text else {}
    assert scanned(tmp_path, files).compiles is told


def test_what_is_no_python_is_passed_over(tmp_path):
    files = {"kernels/a.py": "import broken_by\n", "kernels/b.py": "def (:\n", "kernels/c.py": "import good\n"}
    assert found(tmp_path, files) == ["broken_by", "good"]
    deep = "x = " + "(" * 5000 + ")" * 5000
    assert found(tmp_path / "deep", {"kernels/a.py": deep, "kernels/b.py": "import good\n"}) == ["good"]


def test_modules_that_import_each_other_end(tmp_path):
    files = {
        "kernels/a.py": "import one\n",
        "src/one.py": "import two\nimport x\n",
        "src/two.py": "import one\nimport y\n",
    }
    assert found(tmp_path, files) == ["y", "x"]


def test_an_extension_of_the_side_is_its_own(tmp_path):
    files = {"kernels/a.py": "import built\nimport foreign\n", "site/built.cpython-311-x86_64-linux-gnu.so": ""}
    assert found(tmp_path, files) == ["foreign"]
