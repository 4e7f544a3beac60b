"""Host times: each execution behind a hold, and what waits for the GPU is told from what does not."""

import pytest

from perfci.worker import host


class Clock:
    """Host and GPU in simulated seconds: the GPU is busy until `free`."""

    def __init__(self) -> None:
        self.now = self.free = 0.0
        self.holds: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def hold(self, seconds: float) -> None:
        self.holds.append(seconds)
        self.free = max(self.now, self.free) + seconds

    def launch(self, host: float, gpu: float) -> None:
        self.now += host
        self.free = max(self.now, self.free) + gpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(host, "rig", lambda: made)
    monkeypatch.setattr(host, "time", made)
    return made


@pytest.mark.parametrize("seconds", [10e-6, 300e-6, 20e-3])
def test_what_only_launches_does_not_wait(clock: Clock, seconds: float) -> None:
    told = host.host_times([lambda: clock.launch(seconds, 1e-3)], 0, 0.0, 1)
    assert told["waits"] is False and told["times"] == pytest.approx([seconds] * len(told["times"]))


@pytest.mark.parametrize("behind", [0.0, 500e-6])
def test_what_synchronises_waits_whatever_the_host_does_besides(clock: Clock, behind: float) -> None:
    def synchronises() -> None:
        clock.launch(20e-6, 5e-6)
        clock.synchronize()
        clock.now += behind

    assert host.host_times([synchronises], 0, 0.0, 1)["waits"] is True


def test_what_fills_the_queue_waits(clock: Clock) -> None:
    def launches() -> None:
        for number in range(2000):
            if number >= 1024:  # launches that are queued at most
                clock.now = max(clock.now, clock.free - 1024 * 2e-6)
            clock.launch(5e-6, 2e-6)

    assert host.host_times([launches], 0, 0.0, 1)["waits"] is True


def test_each_execution_is_timed_alone_behind_its_hold_after_one_that_is_not(clock: Clock) -> None:
    executed = []
    fns = [lambda name=name: (executed.append(name), clock.launch(10e-6 * (1 + name), 1e-6)) for name in range(3)]
    told = host.host_times(fns, 4, 40e-6, 1)
    assert told == {"times": pytest.approx([10e-6, 20e-6, 30e-6, 10e-6]), "waits": False}
    assert executed == [0, 0, 1, 2, 0] and clock.holds == [40e-6] * 4


def test_where_a_pair_has_room_for_one_execution_no_other_precedes_it(clock: Clock) -> None:
    executed = []
    host.host_times([lambda: executed.append(1)], 1, 1e-3, 1)
    assert executed == [1]
