"""What importing a suite does to cases that read nothing of a change: the same in both sides, or not known to be."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from perfci.measure.proof.importing import Imported, closed, importing

SUITE = """
import perfci
import lib
from lib import core
SIZES = [1, 2]

def work(n): return sum(range(n))

@perfci.kernel(params={"n": SIZES}, devices=["cpu"])
def a(bench, n):
    return lambda: work(n)
"""
LIB = {
    "lib/__init__.py": "from lib.core import run\nfrom .extra import more\n",
    "lib/core.py": """
        import functools, os
        try:
            import triton
        except ImportError:
            triton = None
        RATE = 2
        STATE = {}
        def run(n=RATE): return helper(n)
        def helper(n): return n
        if triton is not None:
            @triton.autotune(configs=[triton.Config({"B": 1}) for _ in range(2)], key=["n"])
            @triton.jit
            def kernel(x): return x
        class Backend:
            def run(self): return run()
        """,
    "lib/extra.py": "def more(): return 1\n",
    "lib/setup.py": "import importlib\ndef load(name): return importlib.import_module(name)\n",
}
Change = Mapping[str, tuple[str, str]]
"""Path → what is replaced, by what; an empty text stands for the end of the file."""
SAME: dict[str, Change] = {
    "a comment and a docstring": {"kernels/a.py": ("\nimport perfci", '"""Cases."""\nimport perfci  # the gate')},
    "the body of a function": {"kernels/a.py": ("sum(range(n))", "sum(range(2 * n))")},
    "sizes of cases": {"kernels/a.py": ("[1, 2]", "[1, 2, 4]")},
    "a kernel more": {"kernels/a.py": ("", "@perfci.kernel(devices=['cpu'])\ndef c(bench): return work\n")},
    "a module of Python more": {"kernels/a.py": ("import lib\n", "import dataclasses, lib\n")},
    "the body of a tuned kernel": {"lib/core.py": ("return x", "return x + x")},
    "a method": {"lib/core.py": ("return run()", "return run(3)")},
    "a new module that only defines": {
        "kernels/a.py": ("import lib\n", "import lib\nfrom lib.new import fast\n"), "lib/new.py": ("", "def fast(): return 1\n"),
    },
    "imports in another order": {"kernels/a.py": ("import lib\nfrom lib import core\n", "from lib import core\nimport lib\n")},
    "an enum, and types": {
        "kernels/a.py": ("", "import enum\nclass Mode(enum.Enum):\n    A = enum.auto()\n    def flip(self): return 1\n"
                             "def f(x: list[int] | core.Backend | None, y: 'lib.X' = None) -> dict[str, int]: return {}\n"),
    },
    "a stand-in": {"kernels/a.py": ("", "try:\n    import tomllib\nexcept ImportError:\n    tomllib = None\n")},
    "paths": {
        "kernels/a.py": ("", "from pathlib import Path\nHERE = Path(__file__).resolve().parent / 'x'\n"
                             "TOP = Path(__file__).parents[1].joinpath('y')\n"),
    },
    "what the standard library makes": {
        "kernels/a.py": ("", "import functools, os\nfrom collections import namedtuple\nfrom typing import overload\n"
                             "Shape = namedtuple('Shape', 'rows columns')\nHALF = functools.partial(range, 1)\n"
                             "TOP = os.path.abspath(__file__)\nMODE = os.environ.get('MODE', 'fast')\n"
                             "@overload\ndef f(x: int) -> int: ...\nclass Lost(KeyError): pass\n"),
    },
    "a new suite file": {"kernels/n.py": ("", SUITE.replace("def a(", "def n("))},
}  # fmt: skip
OTHER: dict[str, Change] = {
    "an environment variable": {"kernels/a.py": ("", "import os\nos.environ['A'] = '1'\n")},
    "a flag of torch": {"kernels/a.py": ("", "import torch\ntorch.backends.cudnn.benchmark = True\n")},
    "a first call that wins": {"kernels/a.py": ("", "core.run(3)\n")},
    "an element of a table": {"kernels/a.py": ("", "core.STATE[0] = 20\n")},
    "an attribute of a module": {"kernels/a.py": ("", "lib.MODE = 'slow'\n")},
    "a stand-in for a module": {"kernels/a.py": ("", "import sys\nsys.modules['fast'] = lib\n")},
    "a subclass": {"kernels/a.py": ("", "class Mine(core.Backend):\n    rank = 1\n")},
    "the method of a subclass": {
        "kernels/a.py": ("def work", "class Mine(core.Backend):\n    def run(self): return 1\ndef work"),
        "kernels/b.py": ("", "class Mine(core.Backend):\n    def run(self): return 2\n"),
    },
    "a registered class": {"kernels/a.py": ("", "import collections.abc\ncollections.abc.Sequence.register(lib.core.Backend)\n")},
    "a decorator that may keep it": {"kernels/a.py": ("def work", "@core.kept\ndef work")},
    "a call in a default": {"kernels/a.py": ("def work(n)", "def work(n, m=core.run())")},
    "a call in the arguments of a kernel": {"kernels/a.py": ('"n": SIZES', '"n": core.run()')},
    "a call behind a condition": {"lib/core.py": ("RATE = 2", "RATE = 2\nif os.name: os.nice(1)")},
    "a comprehension that calls": {"kernels/a.py": ("[1, 2]", "[core.run(n) for n in (1, 2)]")},
    "a walrus": {"kernels/a.py": ("[1, 2]", "[(lib := 2)]")},
    "a name that may be another": {"kernels/a.py": ("import lib\n", "import lib\nfrom lib.core import *\nRANGE = range(3)\n")},
    "another package": {"kernels/a.py": ("import lib\n", "import lib, numpy\n")},
    "a function with side effects for sorting": {"kernels/a.py": ("[1, 2]", "sorted([1, 2], key=core.run)")},
    "a class that a call makes": {"kernels/a.py": ("[1, 2]", "type('Mine', (core.Backend,), {})")},
    "an iteration over what may be consumed": {"kernels/a.py": ("", "NAMES = list(lib.core.STATE)\n")},
    "an element that may be made": {"kernels/a.py": ("", "BLOCK = core.STATE['a']\n")},
    "a method of a module's": {"kernels/a.py": ("", "SIZE = core.STATE.get('a')\n")},
    "a method of what is held": {"kernels/a.py": ("", "import numpy\nSIZE = [numpy.random][0].get('a')\n")},
    "a method of what a function returns": {"kernels/a.py": ("", "import numpy\nSIZE = max([numpy.random]).get('a')\n")},
    "a method of what is got": {"kernels/a.py": ("", "import os\nX = {'a': os.environ}.get('a').get('z')\n")},
    "a call in an index": {"kernels/a.py": ("", "from pathlib import Path\nX = Path(__file__).parents[core.run()].joinpath('y')\n")},
    "a name of its own that is another": {"kernels/a.py": ("", "from lib.core import STATE as __name__\nX = [n for n in __name__]\n")},
    "a name that a loop takes": {"kernels/a.py": ("", "import os\nX = [len(1) for len in [os.nice]]\n")},
    "a function for sorting in a dict": {"kernels/a.py": ("", "import os\nX = sorted([1], **{'key': os.nice})\n")},
    "a method of a text": {"kernels/a.py": ("", "NAMES = 'a b'.split()\n")},
    "a path of its own": {"kernels/a.py": ("", "from lib.core import run as Path\nX = Path(__file__).resolve()\n")},
    "a file of its own": {"kernels/a.py": ("", "from pathlib import Path\nfrom lib.core import STATE as __file__\nX = Path(__file__).resolve()\n")},
    "a path that a loop takes": {"kernels/a.py": ("", "from pathlib import Path\nX = [Path(__file__).resolve() for Path in [lib.core.run]]\n")},
    "where a link leads": {"kernels/a.py": ("", "from pathlib import Path\nX = Path('sizes').resolve()\n")},
    "a file that is renamed": {"kernels/a.py": ("", "from pathlib import Path\nPath('x').replace('y')\nX = Path('x').replace('y')\n")},
    "a question to what may answer": {"kernels/a.py": ("", "HAS = 'fast' in core.STATE\n")},
    "an operator of its own": {"kernels/a.py": ("", "BOTH = core.STATE | core.RATE\n")},
    "an unpacking": {"kernels/a.py": ("", "ONE, TWO = core.STATE\n")},
    "an enum that its methods make": {
        "kernels/a.py": ("", "import enum\nclass Mode(enum.Enum):\n    A = 1\n    def __init__(self, v): lib.run(v)\n"),
    },
    "a descriptor": {"kernels/a.py": ("", "class Turbo:\n    knob = core.STATE\n")},
    "what answers imports": {"lib/extra.py": ("", "def __getattr__(name): return 1\n")},
    "a stand-in of its own": {"kernels/a.py": ("", "try:\n    import numba\nexcept ImportError:\n    numba = core\n")},
    "a loop": {"kernels/a.py": ("", "for one in (1, 2):\n    SIZES.append(one)\n")},
    "a call before an import": {"kernels/a.py": ("from lib import core\n", "core.run()\nfrom lib import core\n")},
    "what another import does": {"lib/extra.py": ("", "print('more')\n")},
    "no Python": {"kernels/a.py": ("def work", "def work(")},
}  # fmt: skip
USED: dict[str, tuple[str, str, Change]] = {
    "a function that is called": ("lib/extra.py", "more()\n", {"lib/extra.py": ("return 1", "return 2")}),
    "a function that others call": ("lib/__init__.py", "run()\n", {"lib/core.py": ("return n", "return n + 1")}),
    "another function of the same name": (
        "lib/extra.py", "more()\n", {"lib/extra.py": ("def more(): return 1\n", "from lib.core import run as more\n")},
    ),
    "a constant that a call reads": ("lib/core.py", "os.nice(RATE)\n", {"lib/core.py": ("RATE = 2", "RATE = 3")}),
    "a default": ("lib/core.py", "run()\n", {"lib/core.py": ("RATE = 2", "RATE = 3")}),
    "a module by its name": ("kernels/b.py", "import lib.core\nlib.core.run()\n", {"lib/core.py": ("return n", "return n + 1")}),
    "all of a module": ("kernels/b.py", "from lib.core import *\nrun()\n", {"lib/core.py": ("return n", "return n + 1")}),
    "an import inside of a function": (
        "kernels/b.py", "def later():\n    from lib import core\n    return core.run()\nlater()\n", {"lib/core.py": ("return n", "return n + 1")},
    ),
    "a module that is found": ("kernels/b.py", "from lib.setup import load\nload('lib.core')\n", {"lib/core.py": ("return n", "return n + 1")}),
    "evaluated text": ("kernels/b.py", "eval('lib.run()')\n", {"lib/core.py": ("return n", "return n + 1")}),
    "what is registered": ("kernels/b.py", "import atexit\nfrom lib import run\natexit.register(run)\n", {"lib/core.py": ("return n", "return n + 1")}),
}  # fmt: skip
"""Path → what stands at its end in both sides; and the change."""


def side(folder: Path, files: Mapping[str, str]) -> Imported:
    modules = {}
    for path, text in files.items():
        file = folder / "tree" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
        if path.startswith("lib/"):
            modules[path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = f"tree/{path}"
    return Imported(folder, modules, [path for path in files if path.startswith("kernels/")])


def said(folder: Path, change: Change, more: Mapping[str, str] | None = None) -> str:
    files = {"kernels/a.py": SUITE, "kernels/b.py": SUITE.replace("def a(", "def b("), **LIB}
    base = {path: dedent(text) + (more or {}).get(path, "") for path, text in files.items()}
    head = dict(base)
    for path, (before, after) in change.items():
        text = head.get(path, "")
        assert before in text
        head[path] = text.replace(before, after, 1) if before else text + after
    changed = {path for path in head if head[path] != base.get(path)}
    apart = {
        path
        for path in head
        if path.startswith("kernels/") and (path in changed or any("lib/" in one for one in changed))
    }
    return importing(side(folder / "base", base), side(folder / "head", head), apart)


@pytest.mark.parametrize("how", SAME)
def test_what_only_defines_changes_nothing_for_others(tmp_path: Path, how: str) -> None:
    assert said(tmp_path, SAME[how]) == ""


@pytest.mark.parametrize("how", OTHER)
def test_what_does_more_than_define_is_told(tmp_path: Path, how: str) -> None:
    assert said(tmp_path, OTHER[how]) != ""


@pytest.mark.parametrize("how", USED)
def test_what_is_used_as_it_is_imported_is_told(tmp_path: Path, how: str) -> None:
    path, text, change = USED[how]
    assert said(tmp_path / "with", change, {path: text}) != ""
    assert said(tmp_path / "without", change) == ""


def test_what_both_sides_do_is_not_known_either(tmp_path: Path) -> None:
    """A case that is traced before it may take another way than behind it."""
    both = {"kernels/a.py": "import os\nos.environ['A'] = '1'\n"}
    assert said(tmp_path, {"kernels/a.py": ("sum(range(n))", "n")}, both) == (
        "tree/kernels/a.py:13 does more than define as it is imported"
    )
    only_b = {"kernels/b.py": both["kernels/a.py"]}
    assert said(tmp_path / "b", {"kernels/a.py": ("sum(range(n))", "n")}, only_b) == "", (
        "it imports nothing that differs"
    )


def test_what_a_suite_file_reaches_is_known_however_it_is_imported(tmp_path: Path) -> None:
    """Of what is imported twice, too; what only a function imports is left to a tracer."""
    files = {
        "kernels/a.py": "import lib.one\ndef late(): import lib.other\n",
        "kernels/b.py": "from lib import two\nif True:\n    import lib.other\n",
        "kernels/c.py": "import json\n",
        "lib/__init__.py": "",
        "lib/one.py": "from . import deep\n",
        "lib/two.py": "from .deep import x\n",
        "lib/deep.py": "x = 1\n",
        "lib/other.py": "",
    }
    suite = side(tmp_path, files)
    reached = [{path.removeprefix("tree/") for path in closed(suite, [file])} - {file} for file in suite.suite]
    package = {"lib/__init__.py", "lib/deep.py"}
    assert reached == [package | {"lib/one.py"}, package | {"lib/two.py", "lib/other.py"}, set()]
