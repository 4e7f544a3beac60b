"""Progress: one changing line on a terminal, plain lines where there is none."""

import time

import rich.console
from rich.markup import escape
from rich.status import Status

QUIET_SECONDS = 15.0
"""Without a terminal, at most one line of progress in this time."""


class Console(rich.console.Console):
    """Where something is printed."""

    def on_broken_pipe(self) -> None:
        """Raise what the caller handles, BrokenPipeError, where rich would end with the code of a failed gate."""
        raise  # noqa: PLE0704  # called by rich as it handles that


class Teller:
    """Tells a person on stderr what happens; stdout stays for the report."""

    def __init__(self, console: Console, *, brief: bool = False) -> None:
        """`brief`: without a terminal nothing but notes is told."""
        self.console, self.brief = console, brief
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        self._told = 0.0
        self._plain = ""

    def __enter__(self) -> "Teller":
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the changing line away."""
        if self._status:
            self._status.stop()

    def stage(self, text: str) -> None:
        """A new step begins."""
        if self._status:
            self._status.update(escape(text))
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
        wraps = self._status is not None  # a changing line must not pass the width either
        self.console.print(f"perfci: {text}", highlight=False, markup=False, soft_wrap=not wraps)

    def pair(self, pairs: int, left: int, cases: int, seconds: float, budget: float) -> None:
        """A worker pair is done."""
        text = (
            f"pair {pairs} done · {cases - left} of {cases} cases decided · {seconds:.0f} s of at most {budget:.0f} s"
        )
        if self._status:
            self._status.update(text)
        elif not self.brief and (time.monotonic() - self._told >= QUIET_SECONDS or left == 0):
            self._told = time.monotonic()
            self.note(text)
