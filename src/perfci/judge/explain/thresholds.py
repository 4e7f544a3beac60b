"""From which difference or share on something is worth a sentence."""

ONCE = 0.5
"""Launches or calls an execution: fewer come and go within a capture, as a warm-up does."""
AGAIN = 100
"""Allocations of a process: the start-up of PyTorch has some dozen."""
PINNED = 0.5
"""Of a pageable copy's time, given back by pinned memory: 0.78 for 64 MiB on the recorded H200."""
TIME = 0.05
"""Relative: kernel times under a profiler scatter by some percent."""
BYTES, LEAST_BYTES = 0.10, 1e6
"""An L2's contents differ by a tenth of the traffic, and some 100 kB of next to none."""
INSTRUCTIONS = 0.02
"""The same code executes the same number, save for what spins."""
POINTS, HIT_POINTS = 5.0, 10.0
"""Percentage points of occupancy and pipes, and of hit rates: several times their scatter."""
STALL, LEAST_STALL = 0.25, 0.5
"""Relative, and in stalled warps per instruction: fewer hold nothing up."""
MINOR = 0.01
"""Of the device time: a kernel under it explains nothing."""
IDLE_POINTS, IDLE = 20.0, 50.0
"""Percent of the device's span: its rise that is told, and where launches bind."""
CONFLICTS, LEAST_CONFLICTS = 0.25, 1e4
"""Bank conflicts: few of them cost nothing."""
BANDWIDTH = 0.10
"""Relative: copies share the link."""
TENSOR, IDLE_TENSOR, LOST = 10.0, 1.0, 4.0
"""Percent of cycles: a case lives by them, does without, and the factor of a change."""
SHARE = 0.05
"""Of the wall time, in allocations or waits."""
DOMINANT = 0.10
SPILLED = 0.05
"""Of a kernel's instructions: tuned kernels spill some."""
OCCUPIED = 30.0
"""Percent under which latency is hardly hidden, unless by tensor pipes."""
MANY = 3.0
DETAILS = 4
"""Kernels compared on their own."""
