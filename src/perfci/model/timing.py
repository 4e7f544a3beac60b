"""The timing facts: how the numbers of one side of a case were measured."""

from typing import Literal

from pydantic import Field

from perfci.model.base import Document

TimingMode = Literal["auto", "rotating", "cold", "hot"]
"""The mode that a policy or a kernel asks for; `auto` is rotating where a case can be captured into a CUDA graph, else
cold."""
Mode = Literal["cpu", "rotating", "cold", "hot"]
"""The way a worker samples a case: `cpu` where it runs on the CPU."""
GRAPH_MODES: tuple[Mode, ...] = ("rotating", "hot")
"""Modes that time replays of a CUDA graph."""
Setting = str | int | float | bool
_SAID: dict[str, str] = {"alternating": "sides", "statistic": "time"}
"""Fields that people read under another name."""


class Timing(Document):
    """The way the numbers of one side of a case were measured. None: not told, or not of this mode."""

    mode: Mode | Literal["command", "imported"]
    """`command`: the times are those that a command reports, or its wall time; `imported`: those of a tool's file."""
    cache: str | None = None
    """The contents of the caches when an execution begins."""
    threads: int | None = None
    """CPU threads that the case may use."""
    clocks: str | None = None
    """The way the GPU's SM clock was held, and whether it was measured beside every block."""
    executions_per_graph: int | None = None
    """Executions in one sample of `rotating` and `hot`, whose timer resolves them together."""
    sets: int | None = None
    """Input sets that `rotating` walks through."""
    rotated_bytes: int | None = None
    """Bytes of all these sets together, on the device."""
    because: str | None = None
    """Why `auto` is not rotating here."""
    alternating: str | None = None
    """Why the workers of a pair live one after the other; None where they live together."""
    reads: str | None = None
    """The format of a command's numbers, or the tool that wrote an imported file."""
    statistic: str | None = None
    """Kind of the times in an imported file: samples, mean, median."""
    machine: str | None = None
    """Where an imported file was measured, as it tells: `2 cores, AMD EPYC 9654`."""
    units: dict[str, str] = Field(default_factory=dict)
    """A command's own metrics → unit, of those that base and head declare in different units."""
    settings: dict[str, Setting] = Field(default_factory=dict)
    """Facts that only the worker's sampler knows: its timer, and settings of libraries that a time depends on."""

    def told(self) -> dict[str, Setting]:
        """Return everything that is known as one mapping, under the names that people read."""
        fields = self.model_dump(exclude={"units", "settings"}, exclude_none=True)
        units = {f"unit of {metric}": unit for metric, unit in self.units.items()}
        return {**self.settings, **units, **{_SAID.get(name, name): value for name, value in fields.items()}}
