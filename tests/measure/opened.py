"""What a run measures in, opened without the run."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.agreement import Quiet
from perfci.measure.costs import Costs
from perfci.measure.place import Place, open_place
from perfci.measure.request import Request


def request_of(root: Path, **asked: Any) -> Request:
    """Of a folder, alone; by the plain interpreter, which starts fast."""
    return Request.of("run", root, root / "out", **({"devices": ["cpu"], "python": sys._base_executable} | asked))


@contextmanager
def opened(request: Request) -> Iterator[Place]:
    with ExitStack() as stack:
        yield open_place(request, Quiet(), stack, Costs())
