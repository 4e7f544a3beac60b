"""The GPU along the run, as results keep it."""

import time
from types import SimpleNamespace

from perfci.measure.machine import Watch
from perfci.system.gpu import GpuState


def test_each_reading_is_kept_in_si_units_with_its_time():
    watch = Watch(SimpleNamespace(benches={}))
    watch.read()
    assert watch.moments == []  # no GPU, nothing to tell
    states = [GpuState(at=0.0, temperature=41, sm_clock=1980, power=420.5), GpuState(at=1.0)]
    watch.gpu = SimpleNamespace(state=lambda ours: states[len(watch.moments)])
    before = time.time()
    watch.read()
    watch.read()
    first, second = watch.moments
    assert (first.temperature, first.sm_clock, first.power) == (41, 1.98e9, 420.5)
    assert (second.temperature, second.sm_clock, second.power) == (None, None, None)
    assert before <= first.at <= second.at <= time.time()
