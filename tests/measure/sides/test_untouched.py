"""What was built is checked again: with real files, a real interpreter and its real bytecode."""

import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfci.measure.sides.untouched import Seal
from perfci.model.base import MachineError
from perfci.system.process import Parent
from perfci.worker import bytecode
from tests.e2e.conftest import PLAIN_PYTHON

FILES = {"tree/lib.py": "VALUE = 1\n", "tree/data/table.csv": "1,2\n", "site/pkg/__init__.py": "VALUE = 2\n"}


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = Parent(PLAIN_PYTHON, scratch, dict(os.environ))
    yield made
    made.close()


@pytest.fixture
def side(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tree/run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "tree/link").symlink_to("lib.py")
    return tmp_path


def sealed(side: Path, built: set[str] | None = None) -> Seal:
    (side / "cache").mkdir(exist_ok=True)
    return Seal("base", side / "tree", side / "site", side / "cache", built)


def problem(seal: Seal, parent: Parent, env: dict[str, str] | None = None) -> str:
    try:
        seal.require(sys.executable, parent, {**os.environ, **(env or {})}, parent.scratch / "bytecode.log")
    except MachineError as error:
        text = str(error)
        assert text.startswith("base's files were changed while it was measured: ") and "there is no verdict" in text
        assert "\n" not in text
        return text.removeprefix("base's files were changed while it was measured: ").split(": there is")[0]
    return ""


def imported(side: Path, *flags: str) -> None:
    code = "import lib, pkg"
    env = {"PYTHONPATH": f"{side}/tree:{side}/site", "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, *flags, "-c", code], env=env, check=True)


def cache(side: Path, name: str) -> Path:
    return Path(importlib.util.cache_from_source(str(side / name)))


def doctor(side: Path, name: str, text: str) -> None:
    """Bytecode of another text with the header that Python expects."""
    header = cache(side, name).read_bytes()[:16]
    other = side / "other.py"
    other.write_text(text)
    made = py_compile.compile(str(other), cfile=str(side / "other.pyc"))
    cache(side, name).write_bytes(header + Path(made).read_bytes()[16:])


def test_what_runs_leave_behind_is_no_change(side: Path, parent: Parent) -> None:
    seal = sealed(side)
    for flags in ((), ("-O",), ("-OO",)):
        imported(side, *flags)
    for name in ("log.txt", "out/results.json", ".pytest_cache/v", "data/new.csv", "core"):
        (side / "tree" / name).parent.mkdir(exist_ok=True)
        (side / "tree" / name).write_text("x")
    os.utime(side / "tree/lib.py", None)
    assert problem(seal, parent) == "", "and bytecode that is older than its source would not be loaded"


TOUCHED: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda side: (side / "tree/lib.py").write_text("VALUE = 3\n"), "tree/lib.py was changed"),
    "data": (lambda side: (side / "tree/data/table.csv").write_text("1,3\n"), "tree/data/table.csv was changed"),
    "site": (lambda side: (side / "site/pkg/__init__.py").write_text(""), "site/pkg/__init__.py was changed"),
    "mode": (lambda side: (side / "tree/run.sh").chmod(0o755), "tree/run.sh was changed"),
    "gone": (lambda side: (side / "tree/data/table.csv").unlink(), "tree/data/table.csv is gone"),
    "renamed": (lambda side: (side / "site/pkg").rename(side / "site/gkp"), "site/gkp/__init__.py is new, and 1 more"),
    "module": (lambda side: (side / "tree/json.py").write_text(""), "tree/json.py is new"),
    "extension": (lambda side: (side / "tree/lib.so").write_text(""), "tree/lib.so is new"),
    "path": (lambda side: (side / "site/x.pth").write_text(""), "site/x.pth is new"),
    "bytecode alone": (lambda side: (side / "tree/json.pyc").write_text(""), "tree/json.pyc is new"),
    "link": (lambda side: (side / "tree/numpy").symlink_to("/"), "tree/numpy is new"),
    "link moved": (
        lambda side: ((side / "tree/link").unlink(), (side / "tree/link").symlink_to("run.sh")),
        "tree/link was changed",
    ),
    "same length, same time": (
        lambda side: (
            (side / "tree/lib.py").write_text("VALUE = 9\n"),
            os.utime(side / "tree/lib.py", ns=(946684800 * 10**9, 946684800 * 10**9)),
        ),
        "tree/lib.py was changed",
    ),
}


@pytest.mark.parametrize("name", TOUCHED)
def test_what_could_change_what_an_side_does_is_named(side: Path, parent: Parent, name: str) -> None:
    os.utime(side / "tree/lib.py", ns=(946684800 * 10**9, 946684800 * 10**9))
    seal = sealed(side)
    imported(side)
    touch, words = TOUCHED[name]
    touch(side)
    assert problem(seal, parent) == words


@pytest.mark.parametrize("name", ["tree/lib.py", "site/pkg/__init__.py"])
@pytest.mark.parametrize("when", ["before it was sealed", "since"])
def test_bytecode_that_is_not_of_its_source_is_found(side: Path, parent: Parent, name: str, when: str) -> None:
    if when == "since":
        seal = sealed(side)
        imported(side)
    else:
        imported(side)
        seal = sealed(side)
    assert problem(seal, parent) == ""
    doctor(side, name, "VALUE = 5\n")
    folder = name.partition("/")[0]
    assert problem(seal, parent) == f"{cache(side, name).relative_to(side)} is not the bytecode of its source"
    assert folder in problem(seal, parent)
    cache(side, name).write_bytes(cache(side, name).read_bytes()[:20])
    assert "is not the bytecode of its source" in problem(seal, parent), "what cannot be read is not of its source"


def test_bytecode_of_a_run_before_is_checked_where_the_side_was_prepared(side: Path, parent: Parent) -> None:
    imported(side)
    doctor(side, "tree/lib.py", "VALUE = 5\n")
    assert problem(sealed(side), parent) == "", "what the build itself has made is taken for right"
    assert "is not the bytecode of its source" in problem(sealed(side, set(FILES)), parent)


def test_what_an_side_makes_while_it_is_alone_is_its_own(side: Path, parent: Parent) -> None:
    seal = sealed(side)
    with seal.own():
        (side / "tree/made.so").write_text("1")
    (side / "tree/foreign.so").write_text("1")
    with seal.own():
        (side / "tree/later.py").write_text("1")
    assert problem(seal, parent) == "tree/foreign.so is new"
    (side / "tree/foreign.so").unlink()
    assert problem(seal, parent) == ""
    (side / "tree/made.so").write_text("2")
    assert problem(seal, parent) == "tree/made.so was changed"
    (side / "tree/made.so").write_text("1")
    with seal.own():
        (side / "tree/lib.py").write_text("VALUE = 7\n")
    assert problem(seal, parent) == "tree/lib.py was changed", "what was built is not to be changed by anyone"


BUILT = ("torch_extensions/k/k.so", "triton/AB/k.cubin", "cuda/0/1/ab12", "triton/CD/k.autotune.json", "xdg/x/k.py")
LOGS = (
    "torch_extensions/k/.ninja_log",
    "torch_extensions/k/lock",
    "cuda/index",
    "xdg/run.log",
    "inductor/a.best_config",
)


def cached(side: Path, *names: str, text: str = "built") -> None:
    for name in names:
        (side / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
        (side / "cache" / name).write_text(text)


@pytest.mark.parametrize("name", BUILT)
def test_what_a_build_left_in_caches_stays_as_it_was(side: Path, parent: Parent, name: str) -> None:
    cached(side, *BUILT, *LOGS, "pip/http/a")
    seal = sealed(side)
    cached(side, *LOGS, "pip/http/a", "triton/EF/k.cubin", "xdg/state.json", text="of what was measured")
    (side / "cache/torch_extensions/k/lock").unlink()
    os.utime(side / "cache" / name)
    assert problem(seal, parent) == ""
    cached(side, name, text="slow")
    assert problem(seal, parent) == f"cache/{name} was changed"
    (side / "cache" / name).unlink()
    assert problem(seal, parent) == f"cache/{name} is gone"


def test_code_that_a_side_compiles_while_it_is_alone_stays_as_it_was(side: Path, parent: Parent) -> None:
    cached(side, "xdg/old.so")
    seal = sealed(side)
    with seal.own():
        cached(side, "xdg/old.so", "xdg/new.so", "xdg/k.ptx", "xdg/seen.json", text="compiled again")
    cached(side, "xdg/seen.json", text="and counted")
    assert problem(seal, parent) == ""
    for name in ("old.so", "new.so", "k.ptx"):
        cached(side, f"xdg/{name}", text="slow")
        assert problem(seal, parent) == f"cache/xdg/{name} was changed"
        cached(side, f"xdg/{name}", text="compiled again")
    seal.close_caches()
    shutil.rmtree(side / "cache")
    assert problem(seal, parent) == "", "nothing of a side runs any more"


@pytest.mark.parametrize("name", ["xdg/k.so", "pip/wheel", "xdg/run.log", "xdg/new"])
def test_while_another_side_is_built_nothing_in_caches_changes(side: Path, name: str) -> None:
    cached(side, "xdg/k.so", "pip/wheel", "xdg/run.log")
    os.utime(side / "cache" / "xdg/k.so", ns=(10**18, 10**18))
    seal = sealed(side)
    with seal.undisturbed("head"):
        (side / "cache/xdg/k.so").read_text()
    said = f"base's caches were changed while head was built: {name}: there is no verdict: find out what writes there"
    with pytest.raises(MachineError, match=said), seal.undisturbed("head"):
        cached(side, name)  # the same again
        os.utime(side / "cache" / name, ns=(10**18, 10**18))


def test_what_a_side_made_before_it_failed_is_its_own(side: Path, parent: Parent) -> None:
    seal = sealed(side)
    with pytest.raises(RuntimeError), seal.own():
        (side / "tree/made.py").write_text("")
        cached(side, "xdg/made.so")
        raise RuntimeError
    assert problem(seal, parent) == ""
    cached(side, "xdg/made.so", text="slow")
    assert problem(seal, parent) == "cache/xdg/made.so was changed"


def test_settings_that_change_bytecode_are_minded(side: Path, parent: Parent) -> None:
    (side / "tree/lib.py").write_text("def f(x):\n    return (x + 1) * 2\n")
    seal = sealed(side)
    imported(side, "-X", "no_debug_ranges")
    assert problem(seal, parent, {"PYTHONNODEBUGRANGES": "1"}) == ""


def test_hashed_bytecode_is_judged_as_python_would_load_it(tmp_path: Path) -> None:
    source = tmp_path / "lib.py"
    for mode in py_compile.PycInvalidationMode:
        source.write_text("VALUE = 1\n")
        made = py_compile.compile(str(source), invalidation_mode=mode)
        assert made is not None and not bytecode.faulty(made)
        source.write_text("VALUE = 20\n")
        # Unchecked, it is loaded although its source says something else.
        assert bytecode.faulty(made) is (mode is py_compile.PycInvalidationMode.UNCHECKED_HASH)


def test_an_interpreter_that_cannot_check_is_an_error(side: Path, parent: Parent) -> None:
    seal = sealed(side)
    imported(side)
    with pytest.raises(MachineError, match=r"/bin/false: cannot check the bytecode of base: it exited with"):
        seal.require("/bin/false", parent, dict(os.environ), parent.scratch / "log")


def test_caches_that_are_put_back_are_held_to_what_they_were(side: Path) -> None:
    cubin = side / "cache" / "triton" / "kernel.cubin"
    cubin.parent.mkdir(parents=True, exist_ok=True)
    cubin.write_bytes(b"of the build")
    seal = Seal("base", side / "tree", side / "site", side / "cache")
    then = seal.caches()
    with seal.own():
        cubin.write_bytes(b"of a try")
    cubin.write_bytes(b"of the build")
    seal.require_caches(then)
    seal.close_caches()
    seal.require_caches(then)
    cubin.write_bytes(b"of the other side, put back")
    with pytest.raises(MachineError, match=r"kernel\.cubin was changed"):
        seal.close_caches()
