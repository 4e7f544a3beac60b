"""The machine around a run: the GPU's states and ceilings."""

import os
import time

from perfci.measure.place import Place, ask_outside
from perfci.model.fingerprint import Ceilings
from perfci.model.results import Moment
from perfci.system.gpu import Gpu, GpuState, describe


class Watch:
    """The GPU's state around each round."""

    def __init__(self, place: Place) -> None:
        self.gpu: Gpu | None = None
        self.states: list[GpuState] = []
        self.moments: list[Moment] = []
        self.why = ""
        if "cuda" in place.benches:
            self.gpu, self.why = Gpu.open(place.facts.uuid or 0)
        if self.gpu is not None and place.facts.gpu is not None:
            place.facts.gpu.nvml = self.gpu.facts()

    def read(self) -> None:
        """Record the state now."""
        if self.gpu is not None:
            state = self.gpu.state(ours=[os.getpid()])
            self.states.append(state)
            clock = None if state.sm_clock is None else state.sm_clock * 1e6
            told = {"temperature": state.temperature, "sm_clock": clock, "power": state.power}
            self.moments.append(Moment(at=time.time(), **told))

    def notes(self) -> list[str]:
        """Return notes on the states."""
        return [*([self.why] if self.why else []), *describe(self.states)]


def measure_ceilings(place: Place) -> None:
    """Measure each device's ceilings, in a worker outside base and head, on the cases' cores. Raises MachineError."""
    head, parent = place.sides["head"], place.parent
    for device, bench in place.benches.items():
        place.facts.ceilings[device] = ask_outside(
            Ceilings, "ceilings", head, parent, bench.logs / "facts.log", bench.threads, bench.cores, device=device
        )
