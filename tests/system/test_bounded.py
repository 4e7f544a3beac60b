"""Readers in processes of their own: what passes a bound is told, and takes nothing with it."""

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perfci.system import bounded
from perfci.system.bounded import MIB, Bounds, Unread, call, desk, regular, take

DEFS = """
import os, signal, subprocess, sys, time
from pathlib import Path
from pydantic import BaseModel

class Told(BaseModel):
    path: Path
    sizes: list[int]
    user: int

def tells(path: Path, sizes: list[int], more: dict[str, float]) -> Told:
    print("noise")
    return Told(path=path, sizes=[size + int(more["x"]) for size in sizes], user=os.getuid())

def where(names: list[str]) -> dict[str, str]:
    return {"cwd": os.getcwd(), "environment": " ".join(sorted(os.environ)), "modules": " ".join(n for n in names if n in sys.modules)}

def allocates(size: int) -> int:
    return len(bytearray(size))

def spins() -> int:
    while True:
        pass

def sleeps(note: Path) -> int:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    note.write_text(f"{os.getpid()} {child.pid}")
    time.sleep(1000)

def babbles() -> str:
    return "x" * 10**7

def writes(path: Path) -> int:
    with path.open("wb") as file:
        return sum(file.write(b"x" * 2**20) for _ in range(100))

def fails() -> int:
    raise KeyError("one\\ntwo")

def dies() -> int:
    os.kill(os.getpid(), signal.SIGSEGV)

def shouts() -> int:
    sys.stderr.write("y" * 10**7)
    return 7

def taken_over() -> list[int]:
    os.write(3, b'["a"]')
    os._exit(0)

def huge_program() -> int:
    from perfci.system.bounded import unbind
    code = "import sys; sys.exit(len(bytearray(300 * 2**20)) != 300 * 2**20)"
    bound = subprocess.run([sys.executable, "-I", "-S", "-c", code], stderr=subprocess.DEVNULL).returncode
    free = subprocess.run([sys.executable, "-I", "-S", "-c", code], preexec_fn=unbind).returncode
    return 10 * bool(bound) + bool(free)
"""


@pytest.fixture
def readers(tmp_path, monkeypatch):
    """A module of readers that the process can import as it imports perfci."""
    (tmp_path / "misreaders.py").write_text(DEFS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        bounded, "_BOOT", bounded._BOOT.replace("from perfci", f"sys.path.append({str(tmp_path)!r}); from perfci", 1)
    )
    sys.modules.pop("misreaders", None)
    yield importlib.import_module("misreaders")
    sys.modules.pop("misreaders", None)


@pytest.fixture
def folder():
    with desk() as place:
        yield place


def test_arguments_and_answer_go_by_the_annotations(readers, folder):
    told = call(readers.tells, Bounds(), folder, path=Path("/a b"), sizes=[1, 2], more={"x": 3.0})
    assert told == readers.Told(path=Path("/a b"), sizes=[4, 5], user=os.getuid())


def test_it_has_nothing_of_this_process_but_where_programs_are(readers, folder, monkeypatch):
    monkeypatch.setenv("A_CANARY", "secret")
    told = call(readers.where, Bounds(), folder, names=["torch", "numpy", "rich", "typer", "github"])
    assert told["cwd"] == str(folder) and "A_CANARY" not in told["environment"] and "PATH" in told["environment"]
    assert told["modules"] == ""


@pytest.mark.parametrize(
    ("name", "bounds", "words"),
    [
        pytest.param("spins", Bounds(seconds=1), r"not read within 1 s of processor time", marks=pytest.mark.slow),
        ("babbles", Bounds(answer=MIB), r"what it says takes more than 1 MiB"),
        ("fails", Bounds(), r"its reader failed \(KeyError: 'one\\ntwo'\)"),
        ("dies", Bounds(), r"its reader died \(SIGSEGV\)"),
        ("taken_over", Bounds(), r"its reader answered nonsense \(int_parsing\)"),
    ],
)
def test_what_passes_a_bound_is_told(readers, folder, name, bounds, words):
    with pytest.raises(Unread, match=words) as error:
        call(getattr(readers, name), bounds, folder)
    assert "\n" not in str(error.value)


def test_memory_is_bounded_beside_what_the_interpreter_takes(readers, folder):
    assert call(readers.allocates, Bounds(memory=64 * MIB), folder, size=50 * MIB) == 50 * MIB
    with pytest.raises(Unread, match="takes more than 64 MiB of memory"):
        call(readers.allocates, Bounds(memory=64 * MIB), folder, size=70 * MIB)


def test_a_program_that_it_starts_may_be_given_more(readers, folder):
    assert call(readers.huge_program, Bounds(memory=64 * MIB, program=600 * MIB), folder) == 10


def test_files_that_it_writes_are_bounded(readers, folder):
    with pytest.raises(Unread, match="File too large"):
        call(readers.writes, Bounds(written=10 * MIB), folder, path=folder / "x")
    assert (folder / "x").stat().st_size <= 10 * MIB


def test_what_it_says_beside_its_answer_is_let_go(readers, folder):
    assert call(readers.shouts, Bounds(), folder) == 7


@pytest.mark.slow
def test_one_that_hangs_is_ended_with_what_it_started(readers, folder, monkeypatch):
    monkeypatch.setattr(Bounds, "wall", property(lambda self: 3.0))
    with pytest.raises(Unread, match="no answer within 3 s"):
        call(readers.sleeps, Bounds(), folder, note=folder / "note")
    for pid in map(int, (folder / "note").read_text().split()):
        for _ in range(100):
            if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"{pid} lives")


def test_an_interpreter_that_cannot_start_is_told(readers, folder, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(Unread, match="no such program"):
        call(readers.tells, Bounds(), folder, path=Path(), sizes=[], more={})


def test_only_ordinary_files_of_a_size_are_read(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(Unread, match="there is no such file"):
        regular(path, 10)
    path.write_bytes(b"x" * 10)
    assert regular(path, 10) == 10
    with pytest.raises(Unread, match="more than the 0 MiB that are read"):
        regular(path, 9)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "link", tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(Unread, match="is no ordinary file"):
            regular(other, 2**30)


def test_a_file_of_holes_is_not_read(tmp_path):
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(b"head")
        file.truncate(100 * MIB)
    if path.stat().st_blocks * 512 >= MIB:
        pytest.skip("this file system writes holes")
    with pytest.raises(Unread, match="has 100 MiB, of which 0 are on the disk"):
        regular(path, 2**30)
    path.write_bytes(bytes(20 * MIB))
    assert regular(path, 2**30) == 20 * MIB


def test_what_a_reader_made_is_taken_whole_or_not(tmp_path, folder):
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(Unread):
        take(folder / "link", tmp_path / "out", MIB)
    (folder / "x").write_bytes(b"made")
    take(folder / "x", tmp_path / "out", MIB)
    assert (tmp_path / "out").read_bytes() == b"made" and [one.name for one in tmp_path.iterdir()] == ["out"]


def test_starting_one_imports_nothing_heavy():
    code = "import sys, perfci.system.bounded; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not {"torch", "numpy", "scipy", "rich", "typer"} & set(loaded.split())


def test_what_perfci_needs_may_lie_on_pythonpath(tmp_path: Path) -> None:
    """As where nothing may be installed: the interpreter itself then has neither perfci nor pydantic."""
    places = [str(Path(bounded.__file__).parents[2]), *(one for one in sys.path if one.endswith("site-packages"))]
    script = tmp_path / "reads.py"
    script.write_text(
        "from pathlib import Path\n"
        "from perfci.profilers.scan import held_secrets\n"
        "print(held_secrets(Path('report'), {'TOKEN': 'canary-of-many-letters'}, 2**20))\n"
    )
    (tmp_path / "report").write_bytes(b"a canary-of-many-letters stands here")
    (tmp_path / "pydantic.py").write_text("raise ImportError('of the folder that it was started in')")
    done = subprocess.run(
        [sys._base_executable, "-P", script.name], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(places)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "['TOKEN']\n"), done.stderr
