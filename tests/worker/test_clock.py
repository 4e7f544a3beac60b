"""The measured SM clock. On a machine without a GPU only that nothing is claimed."""

import types

import pytest

from perfci.measure.rounds import Block, _values
from perfci.worker import clock


def test_no_driver_no_clock(monkeypatch):
    """Without libcuda there is no clock, and so nothing is said in cycles; it is no error."""

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(clock.ctypes, "CDLL", missing)
    assert clock.sm_clock(types.SimpleNamespace()) is None


def test_cycles_need_a_clock_beside_every_sample():
    block = Block([1e-3] * 10, 2e6, False)
    assert _values([[block], [block]]) == {"time": pytest.approx(1e-3), "cycles": pytest.approx(2e3)}
    assert set(_values([[block], [block._replace(hertz=None)]])) == {"time"}


@pytest.mark.gpu
@pytest.mark.torch
def test_the_clock_is_that_of_the_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    measured = clock.SmClock(torch)
    measured.stamp(0)
    torch.cuda._sleep(20_000_000)
    measured.stamp(1)
    torch.cuda.synchronize()
    hertz = measured.hertz()
    # _sleep counts cycles: 20 million of them took as long as the clock says.
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    torch.cuda.synchronize()
    assert hertz == pytest.approx(20_000_000 / (begin.elapsed_time(end) * 1e-3), rel=0.05)
    measured.stamp(0)
    measured.stamp(1)
    torch.cuda.synchronize()
    assert measured.hertz() is None, "too close together to tell"
