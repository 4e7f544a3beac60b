"""What somebody sees who waits for a run: a changing line and decided rows on a terminal, plain lines elsewhere."""

import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import termios
from io import StringIO, TextIOWrapper
from subprocess import PIPE, Popen

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.cli.measure import by_times
from perfci.cli.progress import Console, Teller
from perfci.judge.judge import judge
from perfci.measure.request import MEASURE_ALL, SEED, PairProgress
from perfci.model.results import Case, Pair
from perfci.render.terminal import _Printer
from perfci.render.view import View
from tests.measure.shards.replay import Series, measure, planned, series

from .conftest import Repo, adding

STANDING = PairProgress(pairs=8, open=2, decided=3, cases=5, seconds=20.4, budget=60.0, expected=87.0)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A pseudo-terminal, and what was written to it."""

    def __init__(self, columns: int) -> None:
        self.ours, self.theirs = pty.openpty()
        self.said = ""
        self.resize(columns)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self, until: str = "") -> str:
        """Read until something was said, or to the end."""
        while not until or until not in self.said:
            try:
                self.said += os.read(self.ours, 1 << 16).decode(errors="replace")
            except OSError:  # EIO: nobody holds the other end
                if until:
                    pytest.fail(f"{until} was never said: {self.said}")
                break
        return self.said

    def lines(self) -> list[str]:
        """The lines that stay, without colour."""
        stay = [line.rpartition("\r\x1b[2K")[2] for line in self.said.split("\r\n")]
        return [ESCAPE.sub("", line).strip() for line in stay]

    @property
    def clean(self) -> bool:
        """The cursor is seen, and nothing of the changing line is left."""
        return self.said.rindex("\x1b[?25h") > self.said.rindex("\x1b[?25l") and "\u280b" not in "".join(
            self.lines()[-1:]
        )


def teller_on(columns: int, env: dict[str, str]) -> tuple[Terminal, Teller]:
    terminal = Terminal(columns)
    file = TextIOWrapper(os.fdopen(terminal.theirs, "wb", buffering=0), write_through=True)
    return terminal, Teller(Console(file=file, _environ={"TERM": "xterm", "COLUMNS": str(columns)} | env))


@pytest.fixture
def changed(repo: Repo) -> Repo:
    """One case far slower, one as it was, one that is proved."""
    for name in ("NO_COLOR", "COLUMNS"):
        repo.env.pop(name)
    repo.env["TERM"] = "xterm"
    repo.policy("budget: 120s\nlimits: [{cases: '*', metric: time, regression: 40%}]\n")
    for name in ("slower", "alike"):
        repo.write(f"kernels/{name}.py", adding().replace("adding", name))
    repo.commit("base")
    repo.write("kernels/slower.py", adding(spin=20_000).replace("adding", "slower"))
    repo.commit("change")
    return repo


def start(repo: Repo, terminal: Terminal, *args: str) -> Popen:
    """Start perfci on a terminal of its own, whose Ctrl-C reaches it; what is printed is read apart."""
    process = Popen(
        ["sh", "-c", 'tty="$0"; exec "$@" < "$tty" 2> "$tty"', os.ttyname(terminal.theirs), sys.executable, "-m", "perfci", *args],
        cwd=repo.root, env=repo.env, stdin=terminal.theirs, stdout=PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    os.close(terminal.theirs)
    return process


@pytest.mark.slow
def test_a_terminal_is_told_what_is_expected_and_what_is_decided(changed: Repo) -> None:
    terminal = Terminal(100)
    process = start(changed, terminal, "compare", "--base", "main~1", "--committed", "--measure-all")
    terminal.read()
    printed = process.communicate()[0]
    assert process.returncode == 1 and "\x1b" not in printed
    assert re.search(r"0 of 2 cases decided · about \d+ (s|min)[\d s]* more · measuring, pair 1 done", terminal.said)
    assert "at most" not in terminal.said and terminal.clean
    told = {line.split()[1]: line for line in terminal.lines() if line[:1] in ("✓", "✗")}
    assert told["slower"].startswith("✗") and told["alike"].startswith("✓")
    for name, line in told.items():
        (row,) = [line for line in printed.splitlines() if re.search(rf"\b{name}\b.*µs|\b{name}\b.*ms", line)]
        values = re.split(" · | → ", line.split(" time ")[1].replace("limit ", ""))
        assert len(values) == 4 and all(value in row for value in values), (line, row)


def test_ctrl_c_leaves_the_terminal_as_it_was(changed: Repo) -> None:
    terminal = Terminal(40)
    process = start(changed, terminal, "compare", "--base", "main~1", "--committed")
    terminal.read(until="0 of 2 cases decided")
    terminal.resize(30)
    os.write(terminal.ours, b"\x03")
    terminal.read()
    assert process.wait() == 3
    process.communicate()
    assert terminal.lines()[-2:] == ["perfci: interrupted: go on with --resume", ""] and terminal.clean


@pytest.mark.tools
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_proved_cases_are_told_once_as_a_count(changed: Repo) -> None:
    changed.env[MEASURE_ALL] = "0"
    changed.write("docs/why.md", "One way.")
    changed.commit("a document")
    changed.env[SEED] = "2"
    terminal = Terminal(40)
    process = start(changed, terminal, "compare", "--base", "main~1", "--committed")
    terminal.read()
    process.communicate()
    assert process.returncode == 0
    assert [line for line in terminal.lines() if line[:1] in ("✓", "✗")] == ["✓ 2 cases proved unchanged"]


def test_colour_that_is_forced_colours_no_line_of_a_pipe() -> None:
    said = StringIO()
    with Teller(Console(file=said, _environ={"FORCE_COLOR": "1", "TERM": "xterm"})) as teller:
        teller.stage("checking · head · k")
        teller.pair(STANDING)
    assert len(said.getvalue().splitlines()) == 2 and "\x1b" not in said.getvalue()


@pytest.mark.slow
def test_a_pipe_gets_lines_even_where_colour_is_forced(changed: Repo) -> None:
    changed.env |= {"FORCE_COLOR": "1", "TERM": "xterm"}
    run = changed.perfci("compare", "--base", "main~1", "--committed", fresh=True)
    assert run.code == 1
    assert all(line.isprintable() for line in run.err.splitlines())
    assert "decided · " in run.err and "✗" not in run.err


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TTY_COMPATIBLE": "0"}])
def test_a_terminal_that_cannot_change_a_line_gets_lines(env: dict[str, str]) -> None:
    terminal, teller = teller_on(40, env)
    with teller:
        teller.stage("checking · head · k")
        teller.pair(STANDING)
    teller.console.file.close()
    assert terminal.read().split("\r\n") == [
        "perfci: checking",
        "perfci: pair 8 done · 3 of 5 cases decided · 20 s of at most 60 s, about 1 min 30 s more",
        "",
    ]


@pytest.mark.parametrize("columns", [40, 100])
def test_whatever_is_told_the_changing_line_is_one(columns: int) -> None:
    terminal, teller = teller_on(columns, {"NO_COLOR": "1"})
    with teller:
        for text in ("checking · head · " + "a_long_name/" * 30, "checking · head · \x1b[2J\x07\u202e\n[red]k"):
            teller.stage(text)
            teller._live.refresh()
        teller.note("\x1b[2Jdone")
        teller.pair(STANDING)
        teller._live.refresh()
    teller.console.file.close()
    drawn = terminal.read()
    assert "\n" not in drawn.replace("perfci: \\x1b[2Jdone\r\n", "", 1).removesuffix("\r\n\x1b[?25h\r\x1b[1A\x1b[2K")
    assert not re.search(r"\x1b\[2J|\x07|\u202e|\x1b\[(3|4|9)\d", drawn)
    whole = "3 of 5 cases decided · about 1 min 30 s more · measuring, pair 8 done"
    assert (whole if columns == 100 else "3 of 5 cases decided · about 1 min 30…") in drawn
    assert terminal.clean


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (None, None),
        (0.0, None),
        (0.2, "5 s"),
        (42.0, "40 s"),
        (58.0, "1 min"),
        (101.0, "1 min 30 s"),
        (4000, "1 h 7 min"),
    ],
)
def test_an_estimate_is_rough_and_one_that_is_not_known_is_not_there(expected: float | None, words: str | None) -> None:
    said = StringIO()
    Teller(Console(file=said, _environ={})).pair(STANDING._replace(expected=expected))
    more = f", about {words} more" if words else ""
    assert said.getvalue() == f"perfci: pair 8 done · 3 of 5 cases decided · 20 s of at most 60 s{more}\n"


def drifting(seed: int, factor: float) -> Series:
    """One case whose pairs resemble those before them."""
    rng = np.random.default_rng(seed)
    x, made = 0.0, []
    for index in range(64):
        x = 0.8 * x + rng.normal(0, 0.004)
        values = {"base": {"time": 1e-3}, "head": {"time": 1e-3 * factor * float(np.exp(x))}}
        made.append(Pair(index=index, values=values, seconds={"block": 0.1}))
    return {"k/n=0": made}


@given(
    st.one_of(
        st.builds(
            series, st.integers(0, 2**16), st.integers(1, 4),
            st.dictionaries(st.integers(0, 3), st.sampled_from([0.9, 1.01, 1.03, 1.2])),
        ),
        st.builds(drifting, st.integers(0, 2**16), st.sampled_from([1.0, 1.03, 1.05])),
    )
)  # fmt: skip
@settings(deadline=None)
def test_no_decided_row_says_what_the_report_does_not(source: Series) -> None:
    """Drift may take a class back, once all pairs are there; a row that was told has none."""
    made, told = planned(source), []

    def lines(report) -> list[str]:
        printer = _Printer(View(report), Console(file=StringIO(), _environ={}))
        return [printer.line(row).plain for row in report.rows]

    def decided(cases: list[Case]) -> None:
        file = StringIO()
        teller = Teller(Console(file=file, _environ={}), lambda results: by_times(results, strict=False))
        teller._live = object()  # type: ignore[assignment]  # as where a terminal looks
        teller.decided(made.model_copy(update={"cases": cases}))
        told.extend(file.getvalue().splitlines())

    measure(made, source, decided=decided)
    assert len(told) == len(set(told)) and set(told) <= set(lines(judge(made)))
    answered = {row.case for row in judge(made).rows if row.class_ in ("regression", "improvement", "unchanged")}
    assert answered <= {line.split()[1] for line in told}
