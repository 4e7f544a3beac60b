"""Builds that are kept: what is taken is what was kept, whoever wrote there, died or altered it meanwhile."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from perfci.measure.prepare import SideWork
from perfci.measure.sides import kept as module
from perfci.measure.sides.kept import Kept, key_of, open_kept
from perfci.model.base import UsageError
from perfci.model.policy import Policy
from perfci.model.results import SideCode
from perfci.system.child import Exit
from perfci.system.users import SAME

KEY = "a" * 64


class Here(Kept):
    """As `open_kept` makes it, with what it notes."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        (folder / "entries").mkdir(parents=True, exist_ok=True)
        super().__init__(folder, SAME, self.said.append)


def side(folder: Path, text: str = "built", **policy) -> SideWork:
    made = SideWork("base", SideCode(tree="t"), Policy(version=1, suite=["k.py"], **policy), folder, sys.executable)
    for part in (made.tree, made.site / "lib", made.site / "empty", made.cache):
        part.mkdir(parents=True)
    (made.tree / "k.py").write_text("source")
    (made.site / "lib" / "it.so").write_text(text)
    (made.site / "lib" / "it.so").chmod(0o755)
    (made.site / "lib" / "it.so.1").symlink_to("it.so")
    os.utime(made.tree / "k.py", ns=(10**18, 10**18))
    return made


def shown(one: SideWork) -> dict[str, object]:
    return {
        str(path.relative_to(one.folder)): (
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
            path.lstat().st_mode,
            path.lstat().st_mtime_ns if path.is_file() and not path.is_symlink() else 0,
        )
        for path in one.folder.rglob("*")
    }


@pytest.fixture
def kept(tmp_path: Path) -> Here:
    return Here(tmp_path / "cache")


def test_what_is_taken_is_what_was_kept_and_leaves_it_as_it_is(kept: Here, tmp_path: Path) -> None:
    built = side(tmp_path / "one")
    assert not kept.take(KEY, built) and kept.said == []
    kept.keep(KEY, built)
    before = shown(built)
    for name in ("two", "three"):
        fresh = side(tmp_path / name, "only a snapshot")
        (fresh.tree / "left over").write_text("of the snapshot")
        assert kept.take(KEY, fresh)
        assert shown(fresh) == before
        (fresh.site / "lib" / "it.so").write_text("written by what is measured")
    assert kept.said == []
    assert [entry.name for entry in kept.entries.iterdir()] == [KEY]


def replaced(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def moved(entry: Path) -> None:
    """The entry itself is a link to a whole one elsewhere."""
    entry.rename(entry.parent.parent / "elsewhere")
    entry.symlink_to(entry.parent.parent / "elsewhere")


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "beside")
    path.symlink_to(path.parent.parent / "beside")


ATTACKS = {
    "altered": lambda entry: replaced(entry / "site/lib/it.so", "buil7"),
    "truncated": lambda entry: os.truncate(entry / "site/lib/it.so", 2),
    "empty": lambda entry: os.truncate(entry / "tree/k.py", 0),
    "gone": lambda entry: (entry / "tree/k.py").unlink(),
    "added": lambda entry: (entry / "tree/sitecustomize.py").write_text("import evil"),
    "a folder added": lambda entry: (entry / "tree/torch").mkdir(),
    "a folder gone": lambda entry: shutil.rmtree(entry / "cache"),
    "in the cache": lambda entry: (entry / "cache/kernel.cubin").write_text("slow"),
    "another mode": lambda entry: (entry / "tree/k.py").chmod(0o755),
    "a link in the place of a file": lambda entry: linked(entry / "tree/k.py"),
    "a link that leads elsewhere": lambda entry: (
        (entry / "site/lib/it.so.1").unlink(), (entry / "site/lib/it.so.1").symlink_to("/etc/passwd"),
    ),
    "a link to a folder": lambda entry: linked(entry / "site/lib"),
    "a part is a link": lambda entry: linked(entry / "site"),
    "the entry is a link": moved,
    "a pipe": lambda entry: os.mkfifo(entry / "tree/pipe"),
    "no document": lambda entry: (entry / "entry.json").unlink(),
    "half a document": lambda entry: os.truncate(entry / "entry.json", 40),
    "a document that says nothing": lambda entry: (entry / "entry.json").write_text("{}"),
    "no entry": lambda entry: (shutil.rmtree(entry), entry.write_text("")),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_broken_entry_is_dropped_and_never_used(kept: Here, tmp_path: Path, attack: str) -> None:
    kept.keep(KEY, side(tmp_path / "one"))
    ATTACKS[attack](kept.entries / KEY)
    fresh = side(tmp_path / "two", "only a snapshot")
    before = shown(fresh)
    assert not kept.take(KEY, fresh)
    assert shown(fresh) == before, "it is built as ever"
    assert not os.path.lexists(kept.entries / KEY)
    assert len(kept.said) == 1 and kept.said[0].startswith("a build that was kept cannot be used: ")
    kept.keep(KEY, fresh)
    assert kept.take(KEY, side(tmp_path / "three")), "what is built now is kept in its place"


def test_an_entry_under_another_key_is_not_used(kept: Here, tmp_path: Path) -> None:
    """A build by another interpreter, say, that somebody has renamed."""
    kept.keep(KEY, side(tmp_path / "one"))
    (kept.entries / KEY).rename(kept.entries / ("b" * 64))
    assert not kept.take("b" * 64, side(tmp_path / "two"))
    assert list(kept.entries.iterdir()) == []


def test_a_disk_that_refuses_costs_the_entry_alone(kept: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.keep(KEY, side(tmp_path / "one"))

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device", target)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_copy_file", full)
        assert not kept.take(KEY, side(tmp_path / "two"))
        kept.keep("b" * 64, side(tmp_path / "three"))
    assert ["No space left" in said for said in kept.said] == [True, True]
    assert list(kept.entries.iterdir()) == []


def test_writers_beside_each_other_leave_one_whole_entry(tmp_path: Path) -> None:
    """Of two machines, which do not see each other's lock, each publishes all at once."""
    sides = [side(tmp_path / f"side-{number}", f"built {number}") for number in range(4)]
    writers = [Here(tmp_path / "cache") for _ in sides]
    for round_ in range(10):
        key = f"{round_:064}"
        with ThreadPoolExecutor(len(sides)) as pool:
            list(pool.map(Here.keep, writers, [key] * len(sides), sides))
        fresh = side(tmp_path / f"fresh-{round_}", "only a snapshot")
        assert writers[0].take(key, fresh), writers[0].said
        assert shown(fresh) in [shown(one) for one in sides]
    assert sorted(one.name for one in writers[0].entries.iterdir()) == [f"{number:064}" for number in range(10)]


def test_it_is_bounded_and_those_that_were_not_used_for_longest_go(kept, tmp_path, monkeypatch):
    kept.keep("0" * 64, side(tmp_path / "one"))
    size = kept_bytes(kept, "0")
    monkeypatch.setattr(module, "MOST_BYTES", int(2.5 * size))
    kept.keep("1" * 64, side(tmp_path / "two"))
    for number, age in (("0", 100), ("1", 50)):
        os.utime(kept.entries / (number * 64) / "entry.json", (age, age))
    assert kept.take("0" * 64, side(tmp_path / "three")), "which is a use"
    dead = kept.entries / ".new-dead"
    dead.mkdir()
    os.utime(dead, (1, 1))
    kept.keep("2" * 64, side(tmp_path / "four"))
    assert sorted(one.name[0] for one in kept.entries.iterdir()) == ["0", "2"]
    monkeypatch.setattr(module, "MOST_BYTES", size // 2)
    kept.keep("3" * 64, side(tmp_path / "five"))
    assert "is not kept: it takes" in kept.said[-1]
    assert not os.path.lexists(kept.entries / ("3" * 64))


def test_a_disk_that_will_not_drop_what_is_beyond_the_bound_is_told(kept, tmp_path, monkeypatch):
    def refuses(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    kept.keep("0" * 64, side(tmp_path / "one"))
    monkeypatch.setattr(module, "MOST_BYTES", 1.5 * kept_bytes(kept, "0"))
    monkeypatch.setattr(module, "remove", refuses)
    kept.keep("1" * 64, side(tmp_path / "two"))
    assert "cannot be removed, and takes room beyond the bound: " in kept.said[-1]
    assert len(list(kept.entries.iterdir())) == 2


def kept_bytes(kept: Here, digit: str) -> int:
    return int(json.loads((kept.entries / (digit * 64) / "entry.json").read_text())["bytes"])


class Executes:
    """A parent that starts what it is told."""

    def execute(self, argv, *, env, cwd, log, timeout):
        with log.open("w") as out:
            code = subprocess.run(
                argv, env=env, cwd=cwd, stdout=out, stderr=out, timeout=timeout, check=False
            ).returncode
        return Exit(code, None, 0.0)


@pytest.mark.slow
def test_the_key_holds_what_compilers_say_and_which_packages_the_interpreter_has(tmp_path, monkeypatch):
    """Each other fact: test_identity.py."""
    tools, venv, parent = tmp_path / "tools", tmp_path / "venv", Executes()
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", str(venv)], check=True)  # type: ignore[attr-defined]
    package = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    torch = package / "torch-2.9.dist-info" / "METADATA"
    torch.parent.mkdir(parents=True)

    def installed(name: str, version: str) -> None:
        (tools / name).write_text(f"#!/bin/sh\necho {name} {version}\n")
        (tools / name).chmod(0o755)

    def key(python: str = str(venv / "bin/python")) -> str | None:
        made = SideWork("base", SideCode(), Policy(version=1, suite=["k.py"]), tmp_path / "base", python)
        made.tree.mkdir(parents=True, exist_ok=True)
        return key_of(made, parent, tmp_path / "tools.log")  # type: ignore[arg-type]  # a stand-in

    keys = []
    for change in (
        lambda: installed("nvcc", "12.8"),
        lambda: installed("nvcc", "12.9"),
        lambda: installed("mycc", "1") or monkeypatch.setenv("CC", "mycc"),
        lambda: installed("mycc", "2"),
        lambda: torch.write_text("Name: torch\nVersion: 2.9\n"),
        lambda: torch.write_text("Name: torch\nVersion: 2.10\n"),
    ):
        change()
        keys.append(key())
        assert keys[-1] is not None, (tmp_path / "tools.log").read_text()
    assert len(set(keys)) == len(keys)
    assert key() == keys[-1], "and of nothing else"
    assert key("/no/python") is None


def test_where_the_code_under_test_runs_as_this_user_nothing_is_kept(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="could write what later is base: name another user in"):
        open_kept(tmp_path / "cache", SAME, stack, print)
    assert not (tmp_path / "cache").exists()
