"""A point cloud into a dense grid: how many points each voxel holds, and the mean of their features."""

import torch

import perfci

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:  # torch for the CPU comes without
    triton = None

# Metres. A power of two: x / VOXEL is exact, so that no rounding moves a point into another voxel, whatever the
# precision and the order of operations.
VOXEL = 0.25
FEATURES = 4  # x, y, z, intensity
# Points per voxel are exact. The sums of up to 16 floats depend on the order in which atomic additions arrive: each
# addition rounds by up to 2^-24 of the partial sum, so means err by up to 16 · 2^-24 of the mean magnitude, which is
# |mean| for coordinates and about 1 for the intensity, a normal value.
TOLERANCE = 16 * 2**-24


def voxelize_torch(points, size, strides, shape):
    """Points [n, 4] → counts int32 [z, y, x] and means [z, y, x, 4], 0 where there is no point.

    `size` and `strides` [3] hold the cells along x, y and z and the distance between neighbours in the grid. The
    grid is centred on the origin; points outside of it go to a voxel past the end, which is cut off.
    """
    cell = torch.floor(points[:, :3] / VOXEL).to(torch.int64) + size // 2
    inside = ((cell >= 0) & (cell < size)).all(1)
    total = shape[0] * shape[1] * shape[2]
    index = torch.where(inside, (cell * strides).sum(1), total)
    counts = torch.zeros(total + 1, dtype=torch.int32, device=points.device)
    counts.index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
    sums = points.new_zeros(total + 1, FEATURES).index_add_(0, index, points)
    means = sums[:total] / counts[:total].clamp(min=1).unsqueeze(1)
    return counts[:total].view(shape), means.view(*shape, FEATURES)


if triton is not None:

    @triton.jit
    def add_points(points, counts, sums, number, nx, ny, nz, voxel, BLOCK: tl.constexpr):
        """Add each point to its voxel's count and sums, atomically."""
        each = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        feature = tl.arange(0, 4)
        place = each[:, None] * 4 + feature[None, :]
        point = tl.load(points + place, mask=(each < number)[:, None], other=0.0)
        step = tl.floor(point / voxel).to(tl.int32)
        # A thread holds all four features of a point: these sums stay within it.
        x = tl.sum(tl.where(feature[None, :] == 0, step, 0), 1) + nx // 2
        y = tl.sum(tl.where(feature[None, :] == 1, step, 0), 1) + ny // 2
        z = tl.sum(tl.where(feature[None, :] == 2, step, 0), 1) + nz // 2
        inside = (each < number) & (x >= 0) & (x < nx) & (y >= 0) & (y < ny) & (z >= 0) & (z < nz)
        cell = (z * ny + y) * nx + x
        tl.atomic_add(counts + cell, 1, mask=inside, sem="relaxed")
        tl.atomic_add(sums + cell[:, None] * 4 + feature[None, :], point, mask=inside[:, None], sem="relaxed")

    @triton.jit
    def divide(counts, sums, cells, BLOCK: tl.constexpr):
        """Sums to means in place. The others are read only: most voxels hold no point or one."""
        cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        count = tl.load(counts + cell, mask=cell < cells, other=0)
        place = sums + cell[:, None] * 4 + tl.arange(0, 4)[None, :]
        several = (count > 1)[:, None]
        tl.store(place, tl.load(place, mask=several, other=0.0) / count[:, None].to(tl.float32), mask=several)


def voxelize_triton_form(points, shape):
    """The same as voxelize_torch(points, …, shape) for contiguous points on the GPU."""
    nz, ny, nx = shape
    cells = nz * ny * nx
    # Sums and counts in one block, so that one kernel clears both.
    room = points.new_zeros(cells * (FEATURES + 1))
    sums, counts = room[: cells * FEATURES], room[cells * FEATURES :].view(torch.int32)
    add_points[(triton.cdiv(len(points), 128),)](
        points, counts, sums, len(points), nx, ny, nz, VOXEL, BLOCK=128, num_warps=4
    )
    divide[(triton.cdiv(cells, 512),)](counts, sums, cells, BLOCK=512, num_warps=4)
    return counts.view(shape), sums.view(*shape, FEATURES)


def reference(points, shape):
    """Counts, and means from sums in float64."""
    nz, ny, nx = shape
    x, y, z = (torch.floor(points.double()[:, i] / VOXEL).long() + n // 2 for i, n in enumerate((nx, ny, nz)))
    inside = (x >= 0) & (x < nx) & (y >= 0) & (y < ny) & (z >= 0) & (z < nz)
    index = ((z * ny + y) * nx + x)[inside]
    cells = nz * ny * nx
    counts = torch.bincount(index, minlength=cells)
    sums = [torch.bincount(index, points[inside, i].double(), minlength=cells) for i in range(FEATURES)]
    means = torch.stack(sums, 1) / counts.clamp(min=1).unsqueeze(1)
    return counts.view(shape), means.view(*shape, FEATURES)


def declare(bench, points, grid):
    """Cloud and shape of the grid; work and reference are declared."""
    nx, ny, nz = map(int, grid.split("x"))
    shape = (nz, ny, nx)
    cloud = bench.randn(points, FEATURES)
    # Densest in the middle, as around a sensor; about one point in a hundred lies outside the grid.
    cloud[:, 0].mul_(0.19 * nx * VOXEL)
    cloud[:, 1].mul_(0.19 * ny * VOXEL)
    cloud[:, 2].mul_(0.19 * nz * VOXEL)
    cells = nx * ny * nz
    bench.work(
        flops=FEATURES * (points + cells),  # an addition for each point, a division for each voxel
        read=cloud.nbytes,
        written=cells * (FEATURES + 1) * 4,
        items=points,
        item="points",
    )
    bench.reference(lambda: reference(cloud, shape), rtol=TOLERANCE, atol=TOLERANCE)
    return cloud, shape


PARAMS = {"points": [200_000], "grid": ["256x256x16"]}
FUZZ = {"points": [1, 1000, 3001], "grid": ["1x1x1", "7x5x3", "100x33x9"]}
CPU = {
    "params": {"points": [5000], "grid": ["32x32x8"]},
    "fuzz": {"points": [1, 1000], "grid": ["1x1x1", "7x5x3", "100x33x9"]},
}


@perfci.kernel(params=PARAMS, fuzz=FUZZ, devices={"cuda": None, "cpu": CPU})
def voxelize(bench, points, grid):
    """Sizes are on the device before, since a copy would wait."""
    cloud, shape = declare(bench, points, grid)
    nz, ny, nx = shape
    size = torch.tensor([nx, ny, nz], device=bench.device)
    strides = torch.tensor([1, nx, ny * nx], device=bench.device)
    return lambda: voxelize_torch(cloud, size, strides, shape)


@perfci.kernel(params=PARAMS, fuzz=FUZZ, devices=["cuda"])
def voxelize_triton(bench, points, grid):
    """Not on the CPU, which Triton does not compile for: torch's form is a case of its own."""
    cloud, shape = declare(bench, points, grid)
    return lambda: voxelize_triton_form(cloud, shape)
