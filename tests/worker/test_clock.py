"""The measured SM clock. On a machine without a GPU only that nothing is claimed."""

import types

import pytest

from perfci.measure.bench import Block
from perfci.measure.rounds import _values
from perfci.worker import clock


def test_no_driver_no_clock(monkeypatch):
    """Without libcuda there is no clock, and so nothing is said in cycles; it is no error."""

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(clock.ctypes, "CDLL", missing)
    assert clock.sm_clock(types.SimpleNamespace()) is None


def test_cycles_need_a_clock_beside_every_sample():
    block = Block(times=[1e-3] * 10, hertz=2e6, drained=False)
    assert _values([[block], [block]]) == {"time": pytest.approx(1e-3), "cycles": pytest.approx(2e3)}
    assert set(_values([[block], [block.model_copy(update={"hertz": None})]])) == {"time"}


@pytest.mark.gpu
@pytest.mark.torch
def test_the_clock_is_that_of_the_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    measured = clock.SmClock(torch)
    measured.forget(1)
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
    measured.forget(1)
    measured.stamp(0)
    measured.stamp(1)
    torch.cuda.synchronize()
    assert measured.hertz() is None, "too close together to tell"


class Stamped:
    """Stamps as four SMs would have stored them: a clock of 1 GHz outside, and 2 GHz within the windows around samples."""

    def __init__(self, torch, tick, windows, length):
        block = 20 * windows * length
        rows = [[(tick, tick), (tick + block, 0)]]
        for number in range(windows):
            start = tick + block * (number + 1) // (windows + 1) // tick * tick
            rows.append([(start, start), (start + length, start + 2 * length)])
        rows[0][1] = (tick + block, tick + block + windows * length)
        self.clock = object.__new__(clock.SmClock)
        self.clock._windows = windows + 1
        self.clock._stamps = torch.zeros(windows + 9, 2, 1024, 2, dtype=torch.int64)
        self.clock._stamps[: windows + 1, :, 3:7] = torch.tensor(rows)[:, :, None]
        self.block = (block + windows * length) / block * 1e9


@pytest.mark.torch
@pytest.mark.parametrize(("tick", "expected"), [(32, "samples"), (1024, "block")])
def test_the_clock_is_that_within_the_samples_where_the_tick_allows(tick, expected):
    torch = pytest.importorskip("torch")
    stamped = Stamped(torch, tick, windows=10, length=10 * 1024)
    hertz = stamped.clock.hertz()
    assert hertz == pytest.approx(2e9 if expected == "samples" else stamped.block)
    assert stamped.clock.span == 2_048_000


@pytest.mark.torch
def test_an_sm_without_all_its_stamps_is_left_out():
    torch = pytest.importorskip("torch")
    stamped = Stamped(torch, 32, windows=10, length=10 * 1024)
    stamped.clock._stamps[4, 1, 3] = 0
    assert stamped.clock.hertz() == pytest.approx(2e9)
    stamped.clock._stamps[4, 1] = 0
    assert stamped.clock.hertz() is None
