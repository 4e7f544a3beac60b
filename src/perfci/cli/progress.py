"""Progress: one changing line on a terminal, else plain lines."""

import time
from collections.abc import Callable

import rich.console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from perfci.measure.request import PairProgress
from perfci.model.report import Report
from perfci.model.results import Results
from perfci.model.text import count, escaped
from perfci.render.terminal import print_decided
from perfci.render.words import duration

QUIET_SECONDS = 15.0
"""Seconds between lines of progress without a terminal."""
_REDRAWN = 4
"""Times a second: it moves, and takes little of the measured machine."""
_STEPS = ((60, 5), (600, 30))
"""Seconds below which an estimate has this step; else a minute."""


class Console(rich.console.Console):
    """rich's console."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which the caller handles, where rich would end with the code of a failed gate."""
        raise  # noqa: PLE0704  # called by rich as it handles that


class _Line(Spinner):
    """Cut where the terminal ends: wrapped lines could not be removed after a resize."""

    def render(self, time: float) -> Text:
        line = super().render(time)
        assert isinstance(line, Text)  # as what it tells is
        line.no_wrap, line.overflow = True, "ellipsis"
        return line


class Teller:
    """Tells a person on stderr what happens; stdout is the report's."""

    def __init__(
        self, console: Console, judged: Callable[[Results], Report] | None = None, *, brief: bool = False
    ) -> None:
        """`judged`: judges decided pairs, which a terminal shows at once. `brief`: without a terminal only notes are
        told."""
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
        if self._live:
            self._live.stop()

    def stage(self, text: str) -> None:
        """Begin a step."""
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
        """Tell something in a line of its own, not wrapped without a terminal."""
        wraps = self._live is not None  # a changing line must not pass the width either
        self.console.print(f"perfci: {escaped(text)}", highlight=False, markup=False, soft_wrap=not wraps)

    def pair(self, standing: PairProgress) -> None:
        """Tell of a worker pair."""
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
        """Show decided cases on a terminal; elsewhere the report has them soon."""
        if self._live and self.judged:
            print_decided(self.judged(results), self.console)


def _about(seconds: float) -> str:
    step = next((step for below, step in _STEPS if seconds < below), 60)
    whole = max(1, round(seconds / step)) * step
    return f"{whole} s" if whole < 60 else duration(whole)
