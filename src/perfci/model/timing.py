"""How the numbers of one side of a case were measured."""

from typing import Literal

from pydantic import Field

from perfci.model.base import Document

TimingMode = Literal["auto", "rotating", "cold", "hot"]
"""Of policy or kernel; `auto` is rotating where a case can be captured into a CUDA graph, else cold."""
Mode = Literal["cpu", "rotating", "cold", "hot"]
GRAPH_MODES: tuple[Mode, ...] = ("rotating", "hot")
"""They replay a CUDA graph."""
Setting = str | int | float | bool
_SAID: dict[str, str] = {"alternating": "sides", "statistic": "time"}
"""For people."""


class Timing(Document):
    """None: not told, or not of this mode."""

    mode: Mode | Literal["command", "imported"]
    """`command`: times that it reports, or its wall time; `imported`: those of a tool's file."""
    cache: str | None = None
    """As an execution begins."""
    threads: int | None = None
    """CPU threads that the case may use."""
    clocks: str | None = None
    """Whether the GPU's SM clock was measured beside every block."""
    executions_per_graph: int | None = None
    """In one sample, whose timer resolves them together."""
    sets: int | None = None
    """Input sets that `rotating` walks through."""
    rotated_bytes: int | None = None
    """Of all sets together, on the device."""
    because: str | None = None
    """Why `auto` is not rotating here."""
    alternating: str | None = None
    """Why a pair's workers live one after the other; None where together."""
    reads: str | None = None
    """A command's format, or the tool that wrote an imported file."""
    host: str | None = None
    """Why host times that a limit asks for cannot be taken."""
    statistic: str | None = None
    """Of an imported file's times: samples, mean, median."""
    machine: str | None = None
    """As an imported file tells: `2 cores, AMD EPYC 9654`."""
    units: dict[str, str] = Field(default_factory=dict)
    """A command's metric → unit, where base's and head's declarations differ."""
    settings: dict[str, Setting] = Field(default_factory=dict)
    """The timer, and settings of libraries that a time depends on."""

    def told(self) -> dict[str, Setting]:
        """Return all that is known, by names for people."""
        fields = self.model_dump(exclude={"units", "settings"}, exclude_none=True)
        units = {f"unit of {metric}": unit for metric, unit in self.units.items()}
        return {**self.settings, **units, **{_SAID.get(name, name): value for name, value in fields.items()}}
