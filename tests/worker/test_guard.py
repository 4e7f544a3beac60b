"""Defences that must tell a cheat and must never accuse an honest kernel."""

import ctypes
import math
import sys
import time
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.worker import guard
from perfci.worker.checks import check, compare

torch = pytest.importorskip("torch")

# ---------------------------------------------------------------- replaced functions


def test_nothing_replaced_nothing_told():
    assert guard.Trusted().tampered() is None


def other(*_, **__):
    return 1


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        (time, "perf_counter_ns", "time.perf_counter_ns"),
        (time, "perf_counter", "time.perf_counter"),
        (torch.cuda.Event, "elapsed_time", "torch.cuda.Event.elapsed_time"),
        (torch.cuda, "Event", "torch.cuda.Event"),
        (torch.cuda, "synchronize", "torch.cuda.synchronize"),
        (torch.Tensor, "zero_", "torch.Tensor.zero_"),
        (torch, "where", "torch.where"),
        (compare, "compare", "compare.compare"),
        (compare._Tally, "outcome", "compare._Tally.outcome"),
        (check, "compare", "check.compare"),
        (guard, "tampered", "guard.tampered"),
    ],
)
def test_what_is_replaced_is_named(monkeypatch, owner, name, told):
    trusted = guard.Trusted()
    replacement = type("Event", (), {}) if name == "Event" else other
    monkeypatch.setattr(owner, name, replacement)
    text = trusted.tampered()
    assert text is not None
    assert told in text and "\n" not in text
    monkeypatch.undo()
    assert trusted.tampered() is None


def test_a_function_whose_code_was_exchanged_is_named(monkeypatch):
    """Its identity stays: the code object tells."""
    trusted = guard.Trusted()
    monkeypatch.setattr(torch.cuda.synchronize, "__code__", other.__code__)
    assert "torch.cuda.synchronize" in trusted.tampered()


def test_torch_that_the_suite_imports_first_is_no_replacement(monkeypatch):
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch", raising=False)
        trusted = guard.Trusted()
    fake = types.ModuleType("torch")
    fake.cuda = types.SimpleNamespace(Event=type("Event", (), {"__new__": lambda cls: object.__new__(cls)}))
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert trusted.tampered() is None


def test_what_the_suite_adds_is_no_replacement():
    trusted = guard.Trusted()
    torch.cuda.something_new = other
    try:
        assert trusted.tampered() is None
    finally:
        del torch.cuda.something_new


def test_trust_takes_down_every_module_of_the_worker():
    """A module that is imported only later could not be told from a replaced one."""
    guard.trust()
    names = {name.rsplit(".", 1)[0].rsplit(".", 1)[-1] for name in guard._trusted.then}
    assert {"cpu", "gpu", "graph", "check", "compare", "bench", "serve"} <= names


# ---------------------------------------------------------------- work elsewhere

us = st.floats(0.1, 2000).map(lambda value: value * 1e-6)


@given(event=us, queue=us, count=st.integers(1, 20), noise=st.lists(st.floats(0, 25e-6), min_size=1, max_size=5))
def test_honest_kernels_are_never_accused(event, queue, count, noise):
    """Bound by the GPU or by the CPU: a batch ends when the slower of both is done, and a synchronisation later."""
    spans = [(max(event, queue) * count + min(event, queue) + late, event * count, queue * count) for late in noise]
    assert guard.outlasts(spans, count) is None


@given(event=us, queue=us, count=st.integers(1, 20))
def test_work_on_another_stream_is_told(event, queue, count):
    elsewhere = 2 * (event + queue) + 40e-6
    spans = [(elsewhere * count, event * count, queue * count)] * 3
    text = guard.outlasts(spans, count)
    assert text is not None and "another stream" in text and "\n" not in text


def test_one_slow_batch_accuses_nobody():
    """A machine that was interrupted once is not a kernel that cheats."""
    assert guard.outlasts([(1.0, 1e-5, 1e-5), (2.1e-5, 1e-5, 1e-5)], 1) is None


# ---------------------------------------------------------------- two clocks


@given(events=st.floats(1e-6, 1), besides=st.floats(0, 1), error=st.floats(-0.02, 0.02), gaps=st.floats(0, 0.15))
def test_clocks_of_one_gpu_agree(events, besides, error, gaps):
    span = (events + besides) * (1 + error) * (1 + gaps) + 5e-6
    assert guard.clocks_agree(events, int(span * 1e9), besides) is None


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.5, 2.0, 1000.0, math.nan, math.inf, -1.0])
def test_event_times_that_are_made_up_do_not_agree(factor):
    text = guard.clocks_agree(factor * 2e-3, 2_000_000)
    assert text is not None and "\n" not in text


# ---------------------------------------------------------------- persisting L2


class Driver:
    """A driver that keeps the limit, or knows none."""

    def __init__(self, size=0, known=True):
        self.size, self.known, self.resets = size, known, 0

    def cuCtxGetLimit(self, address, limit):
        assert limit == 6
        ctypes.cast(address, ctypes.POINTER(ctypes.c_size_t))[0] = self.size
        return 0 if self.known else guard.CUDA_ERROR_UNSUPPORTED_LIMIT

    def cuCtxSetLimit(self, limit, size):
        assert limit == 6
        self.size = size.value
        return 0

    def cuCtxResetPersistingL2Cache(self):
        self.resets += 1
        return 0


def test_l2_that_was_set_aside_is_told_and_given_back(monkeypatch):
    driver = Driver(size=24 * 2**20)
    monkeypatch.setattr(guard, "_driver", lambda: driver)
    assert "24.0 MiB of the L2" in guard.persisting_l2()
    guard.forbid_persisting_l2()
    assert (guard.persisting_l2(), driver.size, driver.resets) == (None, 0, 1)


def test_a_gpu_without_persisting_l2_is_left_alone(monkeypatch):
    driver = Driver(known=False)
    monkeypatch.setattr(guard, "_driver", lambda: driver)
    guard.forbid_persisting_l2()
    assert (guard.persisting_l2_bytes(), guard.persisting_l2(), driver.resets) == (None, None, 0)


def test_without_a_gpu_nothing_is_claimed(monkeypatch):
    monkeypatch.setitem(
        guard.sys.modules, "torch", types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=bool))
    )
    guard.forbid_persisting_l2()
    assert guard.persisting_l2_bytes() is None


# ---------------------------------------------------------------- on a GPU

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def matmul():
    a = torch.randn(1024, 1024, device="cuda")
    return lambda: a @ a


def many_small():
    x = torch.randn(1000, device="cuda")

    def run():
        y = x
        for _ in range(30):
            y = y + 1
        return y

    return run


def host_copy():
    x = torch.randn(2**22).pin_memory()
    return lambda: x.to("cuda", non_blocking=True)


def joined_streams():
    x, stream = torch.randn(2**24, device="cuda"), torch.cuda.Stream()

    def run():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x * 2
        torch.cuda.current_stream().wait_stream(stream)
        return y

    return run


def synchronising():
    x = torch.randn(2**20, device="cuda")
    return lambda: x.sum().item()


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("make", [matmul, many_small, host_copy, joined_streams, synchronising])
def test_on_a_gpu_honest_kernels_are_not_accused(make):
    fn = make()
    for _ in range(3):
        fn()
    assert guard.work_elsewhere(fn, 0.0, 0.0) is None
