"""The words of `perfci explain`, of what was recorded."""

from rich.console import Console

from perfci.cli.explain import _tell
from perfci.work.files import WorkAnswer

KERNELS = ["copy", "kernel `_layernorm` 512 × 1 × 1 blocks of 128 × 1 × 1"]


def printed(one: WorkAnswer) -> list[str]:
    console = Console(width=100, force_terminal=False)
    with console.capture() as capture:
        _tell("layernorm/n=1", one, console)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_equal_work_is_told_in_a_line() -> None:
    none = WorkAnswer(why_not="base: it cannot be captured", work={})
    assert printed(none) == ["layernorm/n=1", "not known to be the same work: base: it cannot be captured", ""]
    assert printed(WorkAnswer(why_not="", work={"base": KERNELS, "head": KERNELS})) == [
        "layernorm/n=1",
        "   base                                                   head",
        "1  copy                                                   same",
        "2  kernel `_layernorm` 512 × 1 × 1 blocks of 128 × 1 × 1  same",
        "base and head give the GPU the same work",
        "",
    ]


def test_the_first_difference_stands_behind_both_lists() -> None:
    other = KERNELS[1].replace("512", "256")
    why = "node 2 of 2, kernel `_layernorm`: grid (512, 1, 1) → (256, 1, 1)"
    lines = printed(WorkAnswer(why_not=why, work={"base": KERNELS, "head": [KERNELS[0], other, "copy"]}))
    assert lines[2].split() == ["1", "copy", "same"]
    assert "256 × 1 × 1" in " ".join(lines)
    assert f"not known to be the same work: {why}" in lines
