"""The files that differ, as whoever looks for the cause is told them."""

from pathlib import Path

import pytest

from perfci.measure.changed import changed
from perfci.model.base import Side


@pytest.fixture
def trees(tmp_path: Path) -> dict[Side, Path]:
    found: dict[Side, Path] = {"base": tmp_path / "base" / "tree", "head": tmp_path / "head" / "tree"}
    for tree in found.values():
        tree.mkdir(parents=True)
        (tree / "same.py").write_text("same\n")
    return found


def test_what_has_most_lines_comes_first(trees: dict[Side, Path]) -> None:
    for name, (base, head) in {"k/a.py": ("1\n", "2\n3\n4\n"), "b.py": ("1\n", "2\n")}.items():
        for side, text in (("base", base), ("head", head)):
            path = trees[side] / name  # type: ignore[index]  # two of them
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    (trees["base"] / "gone.py").write_text("1\n2\n3\n4\n5\n")
    (trees["head"] / "weights.bin").write_bytes(bytes(range(256)))
    assert changed(trees) == "`gone.py` +0 -5, `k/a.py` +3 -1, `b.py` +1 -1 and 1 more"


def test_names_are_escaped_and_many_are_counted(trees: dict[Side, Path]) -> None:
    (trees["head"] / "new\nline`s.py").write_text("1\n" * 9)
    for number in range(5):
        (trees["head"] / f"{number}.py").write_text("1\n")
    assert changed(trees) == "`new\\nline's.py` +9 -0, `0.py` +1 -0, `1.py` +1 -0 and 3 more"


def test_a_binary_file_has_no_lines(trees: dict[Side, Path]) -> None:
    (trees["head"] / "weights.bin").write_bytes(bytes(range(256)))
    assert changed(trees) == "`weights.bin`"


def test_of_equal_trees_or_one_nothing_is_told(trees: dict[Side, Path]) -> None:
    assert changed(trees) == changed({"head": trees["head"]}) == ""
    assert changed({"base": trees["base"], "head": trees["head"] / "missing"}) == ""
