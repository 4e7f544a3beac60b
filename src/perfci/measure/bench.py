"""A bench, and the forms of its workers' answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from perfci.measure.costs import Costs
from perfci.measure.prepare import SideWork
from perfci.measure.timing import Setup
from perfci.model.base import Amount, Document, Items, Side
from perfci.model.results import Case, Choice, ReasonKind, Versus
from perfci.model.timing import Setting
from perfci.system.child import Died, Under
from perfci.system.process import Parent
from perfci.system.starter import Wait, Worker


class CheckReply(Document):
    """As `worker.checks.check.check_case` answers."""

    ok: bool
    kind: ReasonKind | None
    text: str
    shapes: int
    compared: int
    worst: float | None
    rtol: float | dict[str, float] | None
    atol: float | dict[str, float] | None
    sketch: Items[float]
    result: Items[float]
    content: str
    unredrawn: str
    missed: Literal["", "first", "later"]
    versus: Versus | None
    peak: int
    """Bytes of device memory."""
    tuner: str | None
    """As `worker.tuners.told`; None on a CPU."""
    settings: dict[str, Setting]
    """Behind it, on a GPU."""


class Warmed(Document):
    """The answer to `open`."""

    warm: Amount


class Warm(Document):
    """The answer to `warm`."""


class Block(Document):
    """The answer to `block`."""

    times: Items[float]
    """Seconds of one execution, per sample."""
    hertz: float | None
    drained: bool


class Beside(Document):
    """The answer to `versus`."""

    own: Items[Items[float]]
    other: Items[Items[float]]
    failed: str


class Hosted(Document):
    """The answer to `host`."""

    times: Items[float]
    """Seconds of the host for each execution."""
    waits: bool


class Closed(Document):
    """The answer to `close`."""

    ok: bool
    kind: ReasonKind | None = None
    text: str = ""
    tuner: str | None = None
    chosen: Items[Choice] = Field(default_factory=list)


class Refusal(Document):
    """The answer to `probe` and `work`: why it is impossible, or empty, and an execution's seconds."""

    refused: str
    seconds: Amount | None = None


class Executed(Document):
    """The answer to `prove`: why each case is not proved, or empty."""

    cases: list[str]


@dataclass
class Bench:
    """What rounds of one device need."""

    parent: Parent
    sides: Mapping[Side, SideWork]
    seed: int
    threads: int
    cores: list[int]
    timeout: float
    forbidden: list[str]
    logs: Path
    costs: Costs
    setups: dict[str, Setup] = field(default_factory=dict)
    """By case key."""
    context: bool = False
    """Several processes may use the device at once, each with a context."""
    spare: dict[Side, Worker] = field(default_factory=dict)
    """Workers of the next round."""
    lot: str = ""
    """The seed of orders and placements."""

    def worker(self, name: Side, under: Under | None = None, log: Path | None = None) -> Worker:
        """Return a fresh worker with its suite imported. Raises Died."""
        return self.loaded(self.begin(name, under, log))

    def begin(
        self,
        name: Side,
        under: Under | None = None,
        log: Path | None = None,
        *,
        beside: bool = False,
        work: bool = False,
        seed: int | None = None,
    ) -> Worker:
        """Return a fresh worker importing its suite. Raises Died.

        `beside`: a worker of the other side runs, too. Then it writes no bytecode: base's would repair unseen what
        head's code did to base's. Both make their GPU context at once. `work`: it sees all loaded machine code. `seed`:
        of draws during import.
        """
        side = self.sides[name]
        arena = side.arena(self.threads, self.cores)
        with self.costs.phase("start"):
            worker = self.parent.worker(arena, log or self.logs / f"{name}.log", under)
        worker.begin(
            "load",
            seed=self.seed if seed is None else seed,
            suite=side.suite,
            scripts=side.scripts,
            forbidden=self.forbidden,
            bytecode=not beside,
            context=beside and self.context,
            work=work,
        )
        return worker

    def loading(self, worker: Worker) -> Wait:
        """Return the wait for a worker importing its suite."""
        return worker.wait(max(self.timeout, 60.0))

    def loaded(self, worker: Worker, waited: Wait | None = None) -> Worker:
        """Return the worker once it has imported its suite. Raises Died."""
        try:
            with self.costs.phase("import"):
                worker.answer(max(self.timeout, 60.0), waited=waited)
        except Died:
            worker.kill()
            raise
        return worker


def case_fields(case: Case, name: Side) -> dict[str, Any]:
    """Return the fields that name a case to a worker."""
    side, base = case.sides[name], case.sides.get("base")
    fields = {"kernel": case.kernel, "params": side.params, "device": case.device}
    return {**fields, "missed": base.check.miss} if base is not None and base.check.miss else fields
