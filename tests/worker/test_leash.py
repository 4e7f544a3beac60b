"""The core that a thread stays on: the same for the same seed, for a while, and that thread's alone."""

import os
import threading

import pytest

from perfci.worker.leash import drawn_core, on_core


@pytest.fixture(autouse=True)
def cores():
    """All cores that this process may use, beside others' tests too; they are the same afterwards."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # as far as the container allows
    wide = os.sched_getaffinity(0)
    try:
        yield wide
        assert os.sched_getaffinity(0) == wide
    finally:
        os.sched_setaffinity(0, before)


def test_the_core_follows_from_the_seed_and_is_one_that_may_be_used(cores):
    drawn = [drawn_core(seed) for seed in range(200)]
    assert drawn == [drawn_core(seed) for seed in range(200)]
    assert set(drawn) == cores, "all of them are drawn"
    with on_core(min(cores)):
        assert drawn_core(1) == min(cores)


def test_the_calling_thread_stays_on_its_core_for_a_while(cores):
    if len(cores) < 2:
        pytest.skip("needs two cores")  # with one, a thread is never anywhere else
    ask, tell = threading.Event(), threading.Event()
    seen = []

    def other():
        ask.wait()
        seen.append(os.sched_getaffinity(0))
        tell.set()

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(ValueError, match="its own"), on_core(max(cores)):
        assert os.sched_getaffinity(0) == {max(cores)}
        ask.set()
        tell.wait()
        raise ValueError("its own")
    thread.join()
    assert seen == [cores]
    assert os.sched_getaffinity(0) == cores


def test_where_there_is_no_such_core_the_thread_stays_free(cores):
    with on_core(max(cores) + 1000):
        assert os.sched_getaffinity(0) == cores
    with on_core(None):
        assert os.sched_getaffinity(0) == cores
