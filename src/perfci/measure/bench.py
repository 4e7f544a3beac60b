"""A bench: all that the measuring of one device's cases needs, its fresh workers, and the forms of their answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


class Checked(Document):
    """The answer to `check`: see `worker.checks.check.check_case`."""

    ok: bool
    kind: ReasonKind | None
    text: str
    shapes: int
    compared: int
    worst: float | None
    rtol: float | dict[str, float] | None
    atol: float | dict[str, float] | None
    sketch: Items[float]
    unredrawn: str
    versus: Versus | None
    peak: int
    """Bytes of device memory that it has needed at most."""
    tuner: str | None
    """As `worker.tuners.told`; None on a CPU."""
    settings: dict[str, Setting]
    """As they were behind it, on a GPU."""


class Warmed(Document):
    """The answer to `open` that does not describe the case."""

    warm: Amount


class Block(Document):
    """The answer to `block`."""

    times: Items[float]
    """Seconds of one execution, one for each sample."""
    hertz: float | None
    """SM clock beside it."""
    drained: bool
    """True where the GPU waited for the CPU."""


class Beside(Document):
    """The answer to `versus`."""

    own: Items[Items[float]]
    other: Items[Items[float]]
    failed: str


class Closed(Document):
    """The answer to `close`."""

    ok: bool
    kind: ReasonKind | None = None
    text: str = ""
    tuner: str | None = None
    chosen: Items[Choice] = Field(default_factory=list)


class Refusal(Document):
    """The answer to `probe` and to `work`: why it cannot be, or nothing, and what one execution then takes."""

    refused: str
    seconds: Amount | None = None


class Executed(Document):
    """The answer to `prove`: of each case why it is not proved, or nothing."""

    cases: list[str]


@dataclass
class Bench:
    """All that rounds of one device need: the sides, their parent, cores and time-outs."""

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
    """Case key → how it is measured, the same in base and in head."""
    context: bool = False
    """True where several processes may use the device at once, and each needs a context for that."""
    spare: dict[Side, Worker] = field(default_factory=dict)
    """Workers of the next round, started as those of the last one ended."""
    draws: str = ""
    """Whence orders and placements are drawn, where that is not the seed alone."""

    @property
    def lot(self) -> str:
        """The seed of orders and placements; that of inputs stays `seed`."""
        return self.draws or str(self.seed)

    def worker(self, name: Side, under: Under | None = None, log: Path | None = None) -> Worker:
        """Return a fresh worker of one side with its suite imported, `under` a profiler. Raises Died."""
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
        """Return a fresh worker of one side that is importing its suite: others may begin meanwhile. Raises Died.

        `beside`: it runs beside a worker of the other side. Then it writes no bytecode: one of base would mend what
        head's code did to base's, and nobody would see it. And both make their context on the GPU at the same time.
        `work`: it sees all machine code that is loaded. `seed`: of what the suite draws as it is imported; None takes
        the bench's.
        """
        side = self.sides[name]
        arena = side.arena(self.threads, self.cores)
        with self.costs.phase("start"):
            worker = self.parent.worker(arena, log or self.logs / f"{name}.log", under)
        worker.begin(
            "load",
            seed=self.seed if seed is None else seed,
            suite=side.suite,
            forbidden=self.forbidden,
            bytecode=not beside,
            context=beside and self.context,
            work=work,
        )
        return worker

    def loading(self, worker: Worker) -> Wait:
        """Return the wait for a worker that is importing its suite."""
        return worker.wait(max(self.timeout, 60.0))

    def loaded(self, worker: Worker, waited: Wait | None = None) -> Worker:
        """Return the worker once it has imported its suite. Raises Died. `waited`: where that is over."""
        try:
            with self.costs.phase("import"):
                worker.answer(max(self.timeout, 60.0), waited=waited)
        except Died:
            worker.kill()
            raise
        return worker


def case_fields(case: Case, name: Side) -> dict[str, Any]:
    """Return the fields that name a case to a worker."""
    side = case.sides[name]
    return {"kernel": case.kernel, "params": side.params, "device": case.device}
