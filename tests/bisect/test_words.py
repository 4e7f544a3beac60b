"""Texts of a bisect."""

import io
import os
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from perfci.bisect.document import Bisect, BisectStep, CommitFacts, Range
from perfci.bisect.words import answer, print_answer, print_bisect, render, sentence, told
from perfci.model.report import Interval

GOLDEN = Path(__file__).with_name("golden")
HOSTILE = "[link](https://x.y) | <b>@all</b> `x`"
SUBJECTS = {
    "a": "Release 1.2", "b": "Fuse the epilogue of the normalisation, and what comes after it, into one kernel",
    "c": HOSTILE, "d": "Rename", "e": "Merge the fused epilogue", "f": "Release 1.3",
}  # fmt: skip
FACTS = {
    name * 40: CommitFacts(commit=name * 40, subject=subject, author="Jane Doe", date="2026-03-04")
    for name, subject in SUBJECTS.items()
}


def compared(purpose: str, base: str, head: str, change: float | None = None, **more) -> BisectStep:
    interval = None if change is None else Interval(low=change - 0.005, high=change + 0.005, level=0.95)
    fields = {"answer": "unknown" if change is None else "yes" if change > 1.05 else "no"}
    return BisectStep(
        purpose=purpose, base=base * 40, head=head * 40, change=change, interval=interval,
        **(fields | ({} if change is None else {"pairs": 12, "seconds": 14.2, "limit": 0.05}) | more),
    )  # fmt: skip


def searched(ending: str, named: str | None = None, **more) -> Range:
    whole = compared("whole", "a", "f", 1.097)
    made = Range(
        good=FACTS["a" * 40], bad=FACTS["f" * 40], candidates=31, ending=ending, sentence="",
        named=FACTS[named * 40] if named else None, **({"whole": whole} | more),
    )  # fmt: skip
    made.sentence = sentence(made, "time")
    return made


STEPS = [
    compared(
        "step",
        "a",
        "d",
        reason="head does not build: `make` ended with exit code 2; its first error: f.cu(3): error: x",
    ),
    compared("step", "a", "c", 1.001),
    compared("step", "a", "e", 1.096),
    compared("step", "a", "d", answer="no", reason="no file that it reads differs between base and head"),
]
WHY = ["One kernel takes 12 % longer: 62.4 µs, not 54.7 µs: more registers, 40 → 64, and fewer warps"]
CONFIRMED = [compared("confirm", "a", "b", 1.0961, explained=WHY)]
ENDED = {
    "found": [searched("found", "b", steps=STEPS, confirmed=CONFIRMED, own=1.0961)],
    "several": [
        searched("found", "b", steps=STEPS, confirmed=CONFIRMED, own=1.0961, several=True),
        searched("found", "e", confirmed=[compared("confirm", x, "e", 1.03) for x in "bd"], own=1.03),
        searched("alike", whole=compared("whole", "e", "f", 1.001, reason="a change for the worse of 5 % is excluded")),
    ],
    "merge": [searched("joined", "e", confirmed=[compared("confirm", x, "e", 1.06) for x in "bd"])],
    "skipped": [searched("skipped", steps=STEPS[:1], suspects=[FACTS[x * 40] for x in "bcd"])],
    "unconfirmed": [
        searched("unconfirmed", "c", confirmed=[compared("confirm", "b", "c", 1.001, reason="a change of 5 % is excluded")])
    ],
    "unmeasured": [searched("unmeasured", whole=compared("whole", "a", "f", reason="aaaaaaaaaa: base does not build"))],
}  # fmt: skip


def document(ending: str) -> Bisect:
    ranges = ENDED[ending]
    return Bisect(
        repository="kernels", case="fused_add_rms_norm/hidden=4096", device="cuda", device_name="NVIDIA H200",
        metric="time", better="lower", limit=0.05, command=["perfci", "bisect", "v1.2", "main"],
        sentence=answer(ranges, "time"), ranges=ranges, names=FACTS, seconds=131.0,
    )  # fmt: skip


def check(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("PERFCI_UPDATE_GOLDEN") == "1":
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


def printed(ending: str, width: int) -> str:
    file = io.StringIO()
    terminal = {"width": width, "force_terminal": True, "color_system": None} if width else {}
    console = Console(file=file, _environ={}, **terminal)
    print_bisect(document(ending), console)
    print_answer(document(ending), console)
    return file.getvalue()


@pytest.mark.parametrize("ending", ENDED)
def test_golden_markdown(ending):
    check(f"{ending}.md", render(document(ending)))


@pytest.mark.parametrize("ending", ENDED)
@pytest.mark.parametrize("width", [0, 100])
def test_golden_terminal(ending, width):
    check(f"{ending}.{width or 'plain'}.txt", printed(ending, width))


@pytest.mark.parametrize("ending", ENDED)
@pytest.mark.parametrize("width", [60, 120])
def test_no_line_is_wider_than_the_terminal(ending, width):
    assert max(map(cell_len, printed(ending, width).splitlines())) <= width


@pytest.mark.parametrize("ending", ENDED)
def test_the_last_line_is_the_answer_and_so_is_the_exit_code(ending):
    found = document(ending)
    last = printed(ending, 0).splitlines()[-1]
    assert last == found.sentence
    codes = {"found": 0, "several": 0, "unmeasured": 3}
    assert found.exit_code == codes.get(ending, 1)
    assert last.startswith("no commit is accused: ") == (found.exit_code != 0)


def test_each_comparison_is_a_line_as_it_ends():
    lines = [told(one, FACTS[one.head]) for one in [ENDED["found"][0].whole, *STEPS, *CONFIRMED]]
    check("lines.txt", "\n".join(lines) + "\n")
