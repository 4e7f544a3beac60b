"""Theoretical occupancy.

The rules are those of NVIDIA's occupancy calculator (`cuda_occupancy.h` 12.1, of CUDA 13); the sizes are the CUDA C++
Programming Guide's "Technical Specifications per Compute Capability", as in `cuda/__device/arch_traits.h` of CCCL 3.3.
Clusters and named barriers can lower it further.
"""

from dataclasses import dataclass

WARP = 32
REGISTERS = 65536
"""32-bit registers of an SM, and the most of a block, from 7.0 on."""
MOST_REGISTERS = 255
"""Of a thread."""
MOST_THREADS = 1024
"""Of a block."""
REGISTER_UNIT = 256
"""Of allocation, for a warp."""
PARTITIONS = 4
"""Register files of an SM."""


@dataclass(frozen=True, slots=True)
class _Chip:
    warps: int
    """An SM."""
    blocks: int
    """An SM."""
    shared: int
    """Bytes of an SM."""
    reserved: int = 1024
    """Bytes of shared memory that the driver takes of each block, from 8.0 on."""
    unit: int = 128
    """Bytes in which a block's shared memory is allocated: 256 before 8.0."""


_KIB = 1024
CHIPS = {
    (7, 0): _Chip(64, 32, 96 * _KIB, 0, 256),
    (7, 5): _Chip(32, 16, 64 * _KIB, 0, 256),
    (8, 0): _Chip(64, 32, 164 * _KIB),
    (8, 6): _Chip(48, 16, 100 * _KIB),
    (8, 7): _Chip(48, 16, 164 * _KIB),
    (8, 9): _Chip(48, 24, 100 * _KIB),
    (9, 0): _Chip(64, 32, 228 * _KIB),
    (10, 0): _Chip(64, 32, 228 * _KIB),
    (10, 3): _Chip(64, 32, 228 * _KIB),
    (11, 0): _Chip(48, 24, 228 * _KIB),
    (12, 0): _Chip(48, 24, 100 * _KIB),
    (12, 1): _Chip(48, 24, 100 * _KIB),
}
"""10.7 is left out: the sources contradict each other about its shared memory."""


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(capability: tuple[int, int], threads: int, registers: int, shared_bytes: int) -> float | None:
    """Return the percent of an SM's warps that blocks keep resident (`sm__maximum_warps_per_active_cycle_pct`).

    `registers`: a thread. `shared_bytes`: a block, static and dynamic. None for an unknown capability, and for what
    such a chip cannot launch.
    """
    blocks = resident(capability, threads, registers, shared_bytes)
    return None if blocks is None else 100.0 * blocks * -(-threads // WARP) / CHIPS[capability].warps


def resident(capability: tuple[int, int], threads: int, registers: int, shared_bytes: int) -> int | None:
    """Return the blocks that an SM holds at once; None as `occupancy`."""
    chip = CHIPS.get(capability)
    if chip is None or not 0 < threads <= MOST_THREADS or not 0 <= registers <= MOST_REGISTERS or shared_bytes < 0:
        return None
    warps = -(-threads // WARP)
    a_warp = _up(registers * WARP, REGISTER_UNIT)
    shared = _up(shared_bytes + chip.reserved, chip.unit)
    # The hardware's check of a block rounds its warps up to the partitions.
    if a_warp * _up(warps, PARTITIONS) > REGISTERS or shared > chip.shared:
        return None
    limits = [chip.warps // warps, chip.blocks]
    if a_warp:
        limits.append(REGISTERS // PARTITIONS // a_warp * PARTITIONS // warps)
    if shared:
        limits.append(chip.shared // shared)
    return min(limits)
