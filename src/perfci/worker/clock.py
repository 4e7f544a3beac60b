"""The SM clock, measured: the SMs' cycle counters against the GPU's timer, before and after a block of samples.

The method is NVBench's (nvbench/detail/timestamps_kernel.cu), a kernel of one thread on every SM that stores
`%globaltimer` and `%clock64`, but over all SMs instead of SM 0 alone: a kernel runs on all of them, and they need not
run alike. What nvidia-smi tells is a request and an average; this is what ran.
"""

from __future__ import annotations

import ctypes
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
"""Rows of a stamp: SMs are numbered below %nsmid, which may exceed how many there are."""
SHORTEST = 100_000
"""Nanoseconds between two stamps at least: the GPU's timer ticks in 32 ns to 1 µs, which is then under 1 %."""


class SmClock:
    """Stamps time and cycles on the current device and stream."""

    def __init__(self, torch: Any) -> None:
        """Raises OSError or RuntimeError where the driver cannot be used directly."""
        self._torch = torch
        self.span = 0.0
        """Nanoseconds between the last two stamps."""
        self._driver = ctypes.CDLL("libcuda.so.1")
        # First of all: the driver needs the context that torch makes with its first tensor.
        self._stamps = torch.zeros(2, MOST_SMS, 2, dtype=torch.int64, device="cuda")
        self._blocks = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(STAMP))
        self._function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, ctypes.c_char_p(b"perfci_stamp"))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise RuntimeError("{} failed with CUDA error {}".format(name, status))

    def stamp(self, index: int) -> None:
        """Queue stamp 0 (before) or 1 (after) on the current stream."""
        if index == 0:
            self._stamps.zero_()
        address = ctypes.c_uint64(self._stamps[index].data_ptr())
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(address), ctypes.c_void_p))
        stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
        one = ctypes.c_uint(1)
        blocks = ctypes.c_uint(self._blocks)
        none = ctypes.c_uint(0)
        self._call("cuLaunchKernel", self._function, blocks, one, one, one, one, one, none, stream, arguments, None)

    def hertz(self) -> Optional[float]:
        """Cycles per second between the stamps, once the device is idle: the mean over the SMs that have both.

        None where the stamps lie too close together. `span` is then how far they lie apart.
        """
        stamps = self._stamps.cpu()
        both = (stamps[:, :, 0] > 0).all(0)
        nanoseconds, cycles = (stamps[1] - stamps[0])[both].double().unbind(1)
        self.span = float(nanoseconds.median()) if len(nanoseconds) else 0.0
        if not len(nanoseconds) or float(nanoseconds.min()) < SHORTEST or float(cycles.min()) <= 0:
            return None
        return float((cycles / nanoseconds).mean()) * 1e9


def sm_clock(torch: Any) -> Optional[SmClock]:
    """The clock, or None where it cannot be measured: then nothing is said in cycles."""
    try:
        return SmClock(torch)
    except (OSError, RuntimeError, AttributeError):
        return None
