"""Progress: one changing line where a terminal looks, plain lines where none does."""

import time
from collections.abc import Callable

import rich.console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from perfci.measure.request import Standing
from perfci.model.report import Report
from perfci.model.results import Results
from perfci.model.text import count, escaped
from perfci.render.terminal import print_decided
from perfci.render.words import duration

QUIET_SECONDS = 15.0
"""Without a terminal, at most one line of progress in this time."""
_REDRAWN = 4
"""Times a second that the changing line is drawn: it moves, and takes little of the machine that is measured."""
_STEPS = ((60, 5), (600, 30))
"""Seconds below which an estimate is told in steps of so many; else of a minute."""


class Console(rich.console.Console):
    """Where something is printed."""

    def on_broken_pipe(self) -> None:
        """Raise what the caller handles, BrokenPipeError, where rich would end with the code of a failed gate."""
        raise  # noqa: PLE0704  # called by rich as it handles that


class _Line(Spinner):
    """The changing line, cut where the terminal ends: what was wrapped could not be taken away once it is resized."""

    def render(self, time: float) -> Text:
        line = super().render(time)
        assert isinstance(line, Text)  # as what it tells is
        line.no_wrap, line.overflow = True, "ellipsis"
        return line


class Teller:
    """Tells a person on stderr what happens; stdout stays for the report."""

    def __init__(
        self, console: Console, judged: Callable[[Results], Report] | None = None, *, brief: bool = False
    ) -> None:
        """`judged`: says what pairs have decided, which a terminal is told as it comes. `brief`: without a terminal
        nothing but notes is told."""
        self.console, self.judged, self.brief = console, judged, brief
        self._line = _Line("dots", Text("starting"), style="status.spinner")
        # Where colour is forced upon a pipe, rich takes it for a terminal, and nobody there sees a line change.
        looks = console.is_interactive and console.file.isatty()
        self._live = Live(self._line, console=console, refresh_per_second=_REDRAWN, transient=True) if looks else None
        self._told = 0.0
        self._plain = ""

    def __enter__(self) -> "Teller":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the changing line away."""
        if self._live:
            self._live.stop()

    def stage(self, text: str) -> None:
        """A new step begins."""
        if self._live:
            self._line.update(text=Text(escaped(text)))
            return
        if self.brief:
            return
        # Steps of many (`checking · head · case`) are told once for all.
        kind = text.split(" · ", maxsplit=1)[0]
        if kind != self._plain:
            self._plain = kind
            self.note(kind)

    def note(self, text: str) -> None:
        """Something worth a line of its own: without a terminal it is one, however long."""
        wraps = self._live is not None  # a changing line must not pass the width either
        self.console.print(f"perfci: {escaped(text)}", highlight=False, markup=False, soft_wrap=not wraps)

    def pair(self, standing: Standing) -> None:
        """A worker pair is done."""
        decided = f"{standing.decided} of {count(standing.cases, 'case')} decided"
        more = f"about {_about(standing.expected)} more" if standing.expected else ""
        done = f"pair {standing.pairs} done"
        if self._live:
            # A narrow terminal has no room for what comes last.
            self._line.update(text=Text(" · ".join(filter(None, (decided, more, f"measuring, {done}")))))
        elif not self.brief and (time.monotonic() - self._told >= QUIET_SECONDS or standing.open == 0):
            self._told = time.monotonic()
            spent = f"{standing.seconds:.0f} s of at most {standing.budget:.0f} s"
            self.note(" · ".join((done, decided, ", ".join(filter(None, (spent, more))))))

    def decided(self, results: Results) -> None:
        """Cases are decided: a terminal gets their rows, and where none looks the report has them soon."""
        if self._live and self.judged:
            print_decided(self.judged(results), self.console)


def _about(seconds: float) -> str:
    """Return an estimate as it is told: `40 s`, `2 min 30 s`."""
    step = next((step for below, step in _STEPS if seconds < below), 60)
    whole = max(1, round(seconds / step)) * step
    return f"{whole} s" if whole < 60 else duration(whole)
