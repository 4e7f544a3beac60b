"""What a loop has kept from its turn before is no word of a call."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from perfci.worker.scripts.calls import words_of

LOOPS = {
    "kept": """
        for name in ("a", "b"):
            call()
            mode = "fast" if name == "a" else "slow"
            for fullgraph in (True, False):
                if fullgraph:
                    call()
                    mode = "compiled"
            speedup = 2
        """,
    "counted": """
        size = 1
        while size < 4:
            call()
            size *= 2
        """,
    "read by what is called": """
        size, unused = 1, 0
        for _ in range(2):
            call(lambda: size)
            size, unused = size + 1, unused + 1
        """,
    "of another scope": """
        mode = "mine"
        for name in ("a", "b"):
            call()
            def later():
                mode = "its own"
            _ = [mode for mode in ()]
        """,
    "in one line": """
        for rep in (1, 2): call()
        """,
    "through a function": """
        def inner(value):
            call()
            value = 0
        for value in (1, 2):
            inner(value)
            last = value
        """,
    "before the loop": """
        start = 5
        call()
        for start in ():
            pass
        """,
    "in its header": """
        total = 3
        for step in [call() or 1]:
            total = step
        """,
    "prepared for the next turn": """
        n = 2
        for _ in range(2):
            call()
            n //= 2
        """,
    "read by a function": """
        impl = "a"
        def step():
            return impl
        for _ in range(2):
            call(step)
            impl = "b"
        """,
    "an argument": """
        def inner(mode):
            for _ in range(2):
                call()
                mode = "next"
        inner("given")
        """,
    "in one line, and its target": """
        for a in (1,):
            for b in (2,):
                for c in (3,): call()
        """,
    "on the same line": """
        for a in (1,):
            kind = "x"; call()
        """,
    "imported": """
        from math import pi
        for _ in range(2):
            call()
            pi = 3
        """,
    "a keyword of a call": """
        globals().update(told=5)
        for name in ("a", "b"):
            call()
            told = 1
            dict(given=given)
        """,
    "matched": """
        for name in ("a", "b"):
            match name:
                case "a":
                    call()
                case other:
                    call()
            told = name
        """,
}
WORDS = {
    "kept": [{"name": "a"}, {"name": "a", "mode": "fast", "fullgraph": True}, {"name": "b"},
             {"name": "b", "mode": "slow", "fullgraph": True}],
    "prepared for the next turn": [{"n": 2}, {"n": 1}],
    "read by a function": [{"impl": "a"}, {"impl": "b"}],
    "an argument": [{"mode": "given"}, {"mode": "next"}],
    "in one line, and its target": [{"a": 1, "b": 2, "c": 3}],
    "on the same line": [{"a": 1, "kind": "x"}],
    "a keyword of a call": [{"given": 7, "told": 5, "name": "a"}, {"given": 7, "told": 1, "name": "b"}],
    "imported": [{"pi": 3.141592653589793}, {"pi": 3}],
    "counted": [{"size": 1}, {"size": 2}],
    "read by what is called": [{"size": 1, "unused": 0}, {"size": 2, "unused": 1}],
    "of another scope": [{"name": "a", "mode": "mine"}, {"name": "b", "mode": "mine"}],
    "in one line": [{"rep": 1}, {"rep": 2}],
    "through a function": [{"value": 1}, {"value": 2}],
    "before the loop": [{"start": 5}],
    "in its header": [{"total": 3}],
    "matched": [{"name": "a"}, {"name": "b", "other": "b"}],
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("where", ["module", "function"])
def test_what_a_loop_has_kept_is_no_word_of_a_call(tmp_path: Path, name: str, where: str) -> None:
    text = dedent(LOOPS[name])
    if where == "function":
        text = "def run():\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "run()\n"
    file = tmp_path / "script.py"
    file.write_text(text)
    found: list[dict] = []

    def call(fn: object = None) -> None:
        words = words_of(sys._getframe(1), str(tmp_path))
        found.append({key: value for key, value in words.items() if key != "in"})

    exec(compile(text, str(file), "exec"), {"call": call} | ({"given": 7} if "given=given" in text else {}))
    assert found == WORDS[name]


def test_an_import_of_everything_may_have_assigned_any_name(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    text = "from math import *\nfor name in 'ab':\n    call()\n    pi = 3\n"
    file.write_text(text)
    found: list[dict] = []

    def call() -> None:
        found.append(words_of(sys._getframe(1), str(tmp_path)))

    exec(compile(text, str(file), "exec"), {"call": call})
    assert [words["pi"] for words in found] == [3.141592653589793, 3]


def test_code_without_a_file_keeps_its_words(tmp_path: Path) -> None:
    found: list[dict] = []

    def call() -> None:
        found.append(words_of(sys._getframe(1), ""))

    exec(compile("for name in 'ab':\n    call()\n    mode = name\n", "<string>", "exec"), {"call": call})
    assert [words.get("mode") for words in found] == [None, "a"]
