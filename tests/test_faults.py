"""The faults of `benchmarks.faults` are the same for a seed, change one line each, and leave the tree as it was."""

import shutil
from pathlib import Path

import pytest

from benchmarks.faults.draw import Fault, Module, draw, find, planted

SOURCE = Path(__file__).parents[1] / "src" / "perfci"
CHANGES = {
    "a < b": {"turned": "a >= b", "boundary": "a <= b"},
    "a is not None": {"turned": "a is None"},
    "a not in b": {"turned": "a in b"},
    "a and b": {"and-or": "a or b"},
    "a // 2": {"arithmetic": "a * 2", "constant": "a // 3"},
    "a -= 1": {"arithmetic": "a += 1", "constant": "a -= 2"},
    "b = not a": {"unary": "b = a"},
    "b = True": {"constant": "b = False"},
    'c("é", key=b)': {"argument": 'c("é")', "left out": "pass"},
    "b = c(key=a, last=b)": {"argument": "b = c(last=b)"},
    "b = [a for a in b if a]": {"negated": "b = [a for a in b if not (a)]"},
    "if a: pass": {"negated": "if not (a): pass"},
    "return a": {"default": "return None"},
    'raise E(f"{a < 1}")': {"swallowed": "pass"},
}


def made(folder: Path, line: str) -> Path:
    path = folder / "room" / "module.py"
    path.parent.mkdir()
    path.write_text(f'class Class:\n    def method(self, a: "int" = b) -> None:\n        # {line}\n        {line}\n')
    return path


@pytest.mark.parametrize("line", CHANGES)
def test_each_operator_changes_the_line(tmp_path, line):
    module = Module(made(tmp_path, line))
    edits = module.edits
    assert set(edits) == {4}
    faults = [module.fault("room/module.py", edit) for edit in edits[4]]
    found = {fault.operator: fault.becomes for fault in reversed(faults)}  # of two by one operator the first
    assert found == CHANGES[line]
    assert {(fault.function, fault.line, fault.nth) for fault in faults} == {("Class.method", line, 0)}


@pytest.mark.slow
def test_draws_are_of_all_rooms():
    faults = draw(SOURCE, 40, 1, [])
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {fault.file.partition("/")[0] for fault in faults} == rooms
    assert len(set(faults)) == 40
    assert draw(SOURCE, 1, 1, ["stats"])[0] in faults


def test_draws_are_the_same_and_grow():
    few = draw(SOURCE, 4, 1, ["bisect", "sources"])
    assert few == draw(SOURCE, 4, 1, ["bisect", "sources"])
    assert few != draw(SOURCE, 4, 2, ["bisect", "sources"])
    assert set(few) < set(draw(SOURCE, 6, 1, ["bisect", "sources"]))


def test_a_fault_is_planted_where_it_was_drawn_and_leaves_nothing_behind(tmp_path):
    source = tmp_path / "perfci"
    for room in ("stats", "work"):
        shutil.copytree(SOURCE / room, source / room)
    for fault in draw(source, 10, 1, []):
        file, number = find(source, fault)
        path, before = source / file, (SOURCE / file).read_bytes()
        assert file == fault.file
        with pytest.raises(KeyError), planted(path, number, fault):
            changed = zip(before.split(b"\n"), path.read_bytes().split(b"\n"), strict=True)
            assert [place for place, (one, other) in enumerate(changed, start=1) if one != other] == [number]
            assert not list(path.parent.glob(f"__pycache__/{path.stem}.*"))
            raise KeyError
        assert path.read_bytes() == before


def test_a_line_is_found_in_another_file_or_is_gone(tmp_path):
    path = made(tmp_path, "return a")
    fault = Fault("room/former.py", "Class.method", "return a", 0, "default", "return None")
    assert find(tmp_path, fault) == ("room/module.py", 4)
    with planted(path, 4, fault):
        assert path.read_text().endswith("        return None\n")
    assert find(tmp_path, Fault("room/module.py", "Class.other", "return a", 0, "default", "return None")) is None
