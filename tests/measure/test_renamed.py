"""Kernels of one side alone that are one function by two names."""

import os
from pathlib import Path
from textwrap import dedent

import pytest

from perfci.measure.renamed import renamed
from perfci.model.results import Case, CaseSide

FILE = """
    import perfci

    @perfci.kernel(devices=["cpu"], params={{"n": [1, 2]}})
    def {}(bench, n):
        return lambda: sum(range(n)){}

    @perfci.kernel(devices=["cpu"])
    def stays(bench):
        return lambda: 1
"""


def case(name: str, here: dict[str, tuple[str, int]], n: int = 1) -> Case:
    sides = {
        side: CaseSide(file=here[side][0], line=here[side][1]) if side in here else CaseSide(status="absent")
        for side in ("base", "head")
    }
    return Case(id=f"{name}/n={n}", kernel=name, device="cpu", sides=sides)


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    made = {side: tmp_path / side for side in ("base", "head")}
    for tree in made.values():
        tree.mkdir()
    return made


def asked(trees: dict, base: str, head: str, line: int = 4) -> list[str]:
    (trees["base"] / "k.py").write_text(dedent(base))
    (trees["head"] / "other.py").write_text(dedent(head))
    stays = case("stays", {"base": ("k.py", 8), "head": ("other.py", 8)})
    old = [case("old", {"base": ("k.py", line)}, n) for n in (1, 2)]
    new = [case("new", {"head": ("other.py", line)}, n) for n in (1, 2)]
    return renamed([stays, *old, *new], trees)


@pytest.mark.parametrize("line", [4, 5, 6])
def test_a_function_of_another_name_is_told_once(trees: dict, line: int) -> None:
    (told,) = asked(trees, FILE.format("old", ""), "\n" + FILE.format("new", "").lstrip("\n"), line)
    assert told == (
        "old of base has the code of new of head: renamed? Limits and the history of its cases go by the old name"
    )


def test_other_code_is_another_case(trees: dict) -> None:
    assert asked(trees, FILE.format("old", ""), FILE.format("new", " + 1")) == []
    assert asked(trees, FILE.format("old", ""), FILE.format("new", ""), line=1) == [], "no function is there"
    assert asked(trees, "def old(:", FILE.format("new", "")) == []
    (trees["base"] / "k.py").unlink()
    os.mkfifo(trees["base"] / "k.py")  # for whose other end nobody waits
    assert renamed([case("old", {"base": ("k.py", 4)}), case("new", {"head": ("other.py", 4)})], trees) == []
    outside = case("old", {"base": ("../head/other.py", 4)})
    assert renamed([outside, case("new", {"head": ("other.py", 4)})], trees) == []
    assert renamed([], {"head": trees["head"]}) == []
