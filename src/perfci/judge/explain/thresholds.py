"""From which difference or share on something seen by a profiler is worth a sentence."""

ONCE = 0.5
"""A difference of launches or calls an execution from which on it counts: less comes and goes within the executions
of one capture, as a warm-up or a cache that grows, and is not in the loop."""
AGAIN = 100
"""Allocations of a process from which on they are no start-up of its own: PyTorch's has some dozen."""
PINNED = 0.5
"""Share of a pageable copy's time that pinned memory gives back at least: 0.78 for 64 MiB on the recorded H200."""
TIME = 0.05
"""Relative: kernel times under a profiler, at whatever clock it left, scatter by some percent."""
BYTES, LEAST_BYTES = 0.10, 1e6
"""Differences between executions in what an L2 still holds: a tenth of the traffic, and some 100 kB of next to none."""
INSTRUCTIONS = 0.02
"""The same code executes the same number, save for what spins."""
POINTS, HIT_POINTS = 5.0, 10.0
"""Percentage points of occupancy and pipes, and of hit rates: several times what they scatter by from launch to
launch."""
STALL, LEAST_STALL = 0.25, 0.5
"""Relative, and in warps per instruction: less than half a stalled warp per instruction holds nothing up."""
MINOR = 0.01
"""Share of the device time under which a kernel's counters are not compared: it explains nothing."""
IDLE_POINTS, IDLE = 20.0, 50.0
"""Percent of the device's span between operations: its rise that is told, and where launches bind. A profiler makes
launches slower, so that less says nothing."""
CONFLICTS, LEAST_CONFLICTS = 0.25, 1e4
"""Bank conflicts: few of them cost nothing."""
BANDWIDTH = 0.10
"""Relative: copies share the link and the host's memory with others."""
TENSOR, IDLE_TENSOR, LOST = 10.0, 1.0, 4.0
"""Percent of the cycles with tensor pipes active from which on a case lives by them, under which it does without, and
the factor at which that has changed."""
SHARE = 0.05
"""Of the wall time: less of it in allocations or waits is not worth a step of its own."""
DOMINANT = 0.10
"""Of the device time: kernels that are explained on their own."""
SPILLED = 0.05
"""Of a kernel's instructions: fewer loads and stores of local memory cost next to nothing, and tuned kernels spill
some."""
OCCUPIED = 30.0
"""Percent of occupancy under which latency is hardly hidden, unless tensor pipes do the work: few warps keep these
busy."""
MANY = 3.0
"""Ratio from which on it stands beside the two numbers."""
DETAILS = 4
"""Kernels that are compared on their own: those that changed most."""
