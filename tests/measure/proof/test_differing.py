"""Base and head differ in what differs, and in nothing else."""

import os
from pathlib import Path

import pytest

from perfci.measure.prepare import SideWork
from perfci.measure.proof.differing import Differing, differing, source_of, unequal
from perfci.model.base import Side
from perfci.model.policy_text import parse_policy
from perfci.model.results import SideCode

POLICY = "version: 1\nsuite: [a.py]\n"


def made(tmp_path: Path, name: Side, policy: str = POLICY, python: str = "/usr/bin/python3") -> SideWork:
    side = SideWork(name, SideCode(), parse_policy(policy), tmp_path / name, python)
    for folder in (side.tree, side.site, side.cache):
        folder.mkdir(parents=True)
    side.env = {"PERFCI_SITE": str(side.site), "HOME": "/root"}
    for path in ("tree/a.py", "tree/pkg/b.py", "site/lib.so", "cache/triton/k.json", "cache/pip/x.whl"):
        file = side.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    return side


@pytest.fixture
def sides(tmp_path: Path) -> tuple[SideWork, SideWork]:
    return made(tmp_path, "base"), made(tmp_path, "head")


def found(sides: tuple[SideWork, SideWork]) -> Differing:
    for side in sides:
        side.close()
    return differing(*sides)


def test_downloads_alone_are_not_compared(sides: tuple[SideWork, SideWork]) -> None:
    assert found(sides) == Differing(frozenset({"cache/pip"}), frozenset())


CHANGES = {
    "content": (lambda head: (head.tree / "a.py").write_text("2"), {"tree/a.py"}, set()),
    "mode": (lambda head: (head.tree / "a.py").chmod(0o755), {"tree/a.py"}, set()),
    "mode of a folder": (lambda head: head.site.chmod(0o700), {"site"}, set()),
    "new": (lambda head: (head.tree / "pkg" / "c.py").write_text(""), {"tree/pkg/c.py"}, {"tree/pkg"}),
    "gone": (lambda head: (head.site / "lib.so").unlink(), {"site/lib.so"}, {"site"}),
    "a folder": (lambda head: (head.tree / "empty").mkdir(), {"tree/empty"}, {"tree"}),
    "a link": (lambda head: (head.tree / "l").symlink_to("pkg"), {"tree/l"}, {"tree"}),
    "a cache": (lambda head: (head.cache / "triton" / "k.json").write_text("2"), {"cache/triton/k.json"}, set()),
    "a folder for a file": (
        lambda head: ((head.tree / "a.py").unlink(), (head.tree / "a.py").mkdir()),
        {"tree/a.py"},
        {"tree"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_found(sides: tuple[SideWork, SideWork], change: str) -> None:
    do, paths, folders = CHANGES[change]
    do(sides[1])
    assert found(sides) == Differing(frozenset(paths | {"cache/pip"}), frozenset(folders))


def test_what_discovery_leaves_counts_and_bytecode_does_not(sides: tuple[SideWork, SideWork]) -> None:
    for side in sides:
        side.close()
    (sides[0].tree / "__pycache__").mkdir()
    (sides[0].tree / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"1")
    (sides[0].tree / "tuned.json").write_text("1")
    seen = differing(*sides)
    assert seen.paths == {"cache/pip", "tree/tuned.json"} and seen.folders == {"tree"}


def test_what_pip_notes_of_the_folder_that_it_built_in_does_not_count(sides: tuple[SideWork, SideWork]) -> None:
    for side in sides:
        info = side.site / "pkg-1.0.dist-info"
        info.mkdir()
        (info / "direct_url.json").write_text(f'{{"url": "file://{side.tree}"}}')
        (info / "RECORD").write_text(f"pkg/a.py,sha256=1,2\npkg-1.0.dist-info/direct_url.json,sha256={side.name},9\n")
    assert found(sides).paths == {"cache/pip"}
    record = sides[1].site / "pkg-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("sha256=1", "sha256=2"))
    assert found(sides).paths == {"cache/pip", "site/pkg-1.0.dist-info/RECORD"}


def test_bytecode_stands_for_its_source() -> None:
    assert source_of("tree/a/__pycache__/b.cpython-311.opt-1.pyc") == "tree/a/b.py"
    assert source_of("tree/a/b.pyc") == "tree/a/b.pyc"
    differs = Differing(frozenset({"tree/a/b.py"}), frozenset({"tree/c"}))
    assert differs.first({"tree/a/__pycache__/b.cpython-311.pyc"}, set()) == "tree/a/b.py"
    assert differs.first({"tree/c"}, {"tree/c"}) == "tree/c"
    assert differs.first({"tree/c", "tree/a"}, {"tree/a"}) == ""


def test_all_else_must_be_equal_but_for_the_sides_own_folder(tmp_path: Path) -> None:
    base, head = made(tmp_path / "1", "base"), made(tmp_path / "1", "head")
    assert unequal(base, head) == ""
    head.env["HOME"] = "/home"
    assert unequal(base, head) == "the environments of base and head differ in HOME"
    head.python = os.sep + "other"
    assert unequal(base, head) == "base runs on /usr/bin/python3, head on /other"
    other = made(tmp_path / "2", "head", POLICY + "build: make\nbuild_timeout: 3m\nlimits: []\n")
    assert unequal(base, other) == "the policies of base and head differ in build"
