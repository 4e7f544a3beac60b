"""A function called on a thread of its own, within what stands there: frames, `with` blocks, modes."""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any, Callable, Optional

LEAVING = 20.0
"""Seconds that a script has to end once its case is closed."""


_live: list[Held] = []


class Left(BaseException):
    """Raised where a script called its timer, once the case is closed: it ends the script, whatever that catches."""


class Gone(LookupError):
    """A script ended before the call that a case is of."""


class Stuck(RuntimeError):
    """A script does not end: nothing can be timed in its process any more."""


class Held:
    """What a script passed to its timer. Calls run on the script's thread, which waits in that timer meanwhile."""

    def __init__(self, script: Callable[[Held], None], stream: Any = None) -> None:
        """Run `script`, on CUDA's `stream`, to where it calls `hold`. Raises Gone, and what the script raises."""
        self.fn: Callable[[], Any] = _nothing
        self.left = False
        self._stream = stream
        self._jobs: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._reached = threading.Event()
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, args=(script,), daemon=True)
        self._thread.start()
        self._reached.wait()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback keeps this frame
        _live.append(self)

    def _run(self, script: Callable[[Held], None]) -> None:
        try:
            if self._stream is None:
                script(self)
            else:
                with sys.modules["torch"].cuda.stream(self._stream):
                    script(self)
            self._error = Gone("its script ends without this call")
        except Left:
            pass
        except SystemExit as error:
            self._error = Gone(f"its script ends without this call: {error}" if error.code else "its script ends early")
        except BaseException as error:
            self._error = error
        finally:
            self._reached.set()

    def hold(self, fn: Callable[[], Any]) -> None:
        """Wait in the script's timer, calling what is asked for. Raises Left in the end."""
        self.fn = fn
        if self._stream is not None:
            sys.modules["torch"].cuda.synchronize()  # what executes on another stream finds its inputs filled
        self._reached.set()
        while (job := self._jobs.get()) is not None:
            job()
            del job  # with what it returned
        raise Left

    def __call__(self) -> Any:
        """On the caller's stream."""
        if threading.current_thread() is self._thread:
            return self.fn()
        if self._stream is None:
            return self.within(self.fn)
        return self.within(_on_stream, sys.modules["torch"].cuda.current_stream(), self.fn)

    def within(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call anything on the script's thread, on the stream that is current there. Raises what it raises."""
        if threading.current_thread() is self._thread:
            return call(*args, **named)
        if self.left:
            raise RuntimeError("the case is closed")
        returned: list[Any] = []
        raised: list[BaseException] = []
        done = threading.Event()

        def job() -> None:
            try:
                returned.append(call(*args, **named))
            except BaseException as error:
                raised.append(error)
            finally:
                done.set()

        self._jobs.put(job)
        done.wait()
        if raised:
            raise raised.pop()
        return returned.pop()

    def leave(self) -> None:
        """End the script. Raises Stuck."""
        if not self.left:
            self.left = True
            _live.remove(self)
            self.fn = _nothing
            try:
                if self._stream is not None:
                    sys.modules["torch"].cuda.synchronize()  # before its memory serves another
            finally:
                self._jobs.put(None)
                self._thread.join(LEAVING)
            if self._thread.is_alive():
                raise Stuck("its script goes on where its timer ended it")


def leave_all() -> None:
    """End the scripts of cases that failed on their way. Raises Stuck."""
    stuck: list[Stuck] = []
    while _live:
        try:
            _live[-1].leave()
        except Stuck as error:
            stuck.append(error)
    if stuck:
        raise stuck[0]


def _on_stream(stream: Any, fn: Callable[[], Any]) -> Any:
    with sys.modules["torch"].cuda.stream(stream):
        return fn()


def _nothing() -> None:
    raise RuntimeError("the case is closed")
