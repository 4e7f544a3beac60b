"""The SM clock, measured: the SMs' cycle counters against the GPU's timer, before and after what is timed.

The method is NVBench's (nvbench/detail/timestamps_kernel.cu), a thread that stores `%globaltimer` and `%clock64`, but
on all SMs instead of SM 0.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, Optional

STAMP = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry perfci_stamp(.param .u64 out)
{
    .reg .pred %outside;
    .reg .b32 %sm;
    .reg .b64 %address, %offset, %nanoseconds, %cycles;
    mov.u32 %sm, %smid;
    setp.ge.u32 %outside, %sm, 1024;
    @%outside bra done;
    ld.param.u64 %address, [out];
    cvta.to.global.u64 %address, %address;
    mul.wide.u32 %offset, %sm, 16;
    add.u64 %address, %address, %offset;
    mov.u64 %nanoseconds, %globaltimer;
    mov.u64 %cycles, %clock64;
    st.global.v2.u64 [%address], {%nanoseconds, %cycles};
done:
    ret;
}
"""
MOST_SMS = 1024
"""SMs are numbered below %nsmid, which may exceed their count."""
SHORTEST = 100_000
"""Nanoseconds of a block: the GPU's timer ticks in 32 ns to 1 µs, then under 1 %."""
TICKS = 100
"""Of the GPU's timer in a window, on average, for the same reason."""


class SmClock:
    """Stamps time and cycles on the current device and stream.

    Window 0 is the whole block, others lie around one sample each: within a flush the SMs run faster than within a
    kernel at the power limit (H200, cold matmul 4096: by 4 % on average over the block).
    """

    def __init__(self, torch: Any) -> None:
        """Raises OSError or RuntimeError where the driver cannot be used directly."""
        self._torch = torch
        self.span = 0.0
        """Nanoseconds of the last block."""
        self._driver = ctypes.CDLL("libcuda.so.1")
        # First of all: the driver needs the context that torch makes with its first tensor.
        self._stamps = self._room(1)
        self._windows = 1
        self._blocks = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(STAMP))
        self._function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, ctypes.c_char_p(b"perfci_stamp"))
        self.stamp(0)  # the driver loads a kernel when it is first launched

    def _room(self, windows: int) -> Any:
        with self._torch.inference_mode(False):  # whatever mode the first case stands in: it serves all
            return self._torch.zeros(windows, 2, MOST_SMS, 2, dtype=self._torch.int64, device="cuda")

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise RuntimeError("{} failed with CUDA error {}".format(name, status))

    def forget(self, windows: int) -> None:
        """Clear the stamps of `windows` windows, with the block itself."""
        if windows > len(self._stamps):
            self._stamps = self._room(windows)
        self._stamps.zero_()
        self._windows = windows

    def stamp(self, end: int, window: int = 0) -> None:
        """Queue the stamp before (`end` 0) or after (1) a window."""
        address = ctypes.c_uint64(self._stamps[window, end].data_ptr())
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(address), ctypes.c_void_p))
        stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
        one = ctypes.c_uint(1)
        blocks = ctypes.c_uint(self._blocks)
        none = ctypes.c_uint(0)
        self._call("cuLaunchKernel", self._function, blocks, one, one, one, one, one, none, stream, arguments, None)

    def hertz(self) -> Optional[float]:
        """Return cycles per second, once the device is idle: the mean over the SMs with every stamp.

        Taken within windows around samples if the timer's tick allows, else over the block; None if too short.
        """
        stamps = self._stamps[: self._windows].cpu()
        stamps = stamps[:, :, (stamps[..., 0] > 0).all(1).all(0)]
        if not stamps.shape[2]:
            self.span = 0.0
            return None
        nanoseconds, cycles = (stamps[:, 1] - stamps[:, 0]).unbind(2)
        self.span = float(nanoseconds[0].double().median())
        if float(nanoseconds[0].min()) < SHORTEST or float(cycles.min()) <= 0:
            return None
        tick = functools.reduce(math.gcd, stamps[0, :, :, 0].flatten().tolist())
        samples = self._windows > 1 and float(nanoseconds[1:].double().mean()) >= TICKS * tick
        measured = slice(1, None) if samples else slice(0, 1)
        nanoseconds, cycles = nanoseconds[measured], cycles[measured]
        return float((cycles.sum(0).double() / nanoseconds.sum(0).double()).mean()) * 1e9


def sm_clock(torch: Any) -> Optional[SmClock]:
    """Return the clock; None where it cannot be measured."""
    try:
        return SmClock(torch)
    except (OSError, RuntimeError, AttributeError):
        return None
