"""The transpose of each device. That of the CPU needs no torch: inputs come from bench.random, buffers are arrays."""

from array import array

import blocked

import perfci


@perfci.kernel(
    params={"rows": [512], "columns": [512, 500]},
    fuzz={"rows": [1, 16, 33], "columns": [1, 31]},
    devices=["cpu"],
)
def transpose(bench, rows, columns):
    source = array("d", (bench.random.random() for _ in range(rows * columns)))
    target = array("d", bytes(source.itemsize * len(source)))

    def run():
        blocked.transpose(source, target, rows, columns)
        return target

    def reference():
        return array("d", (value for column in range(columns) for value in source[column::columns]))

    bench.work(read=8 * len(source), written=8 * len(source))
    bench.reference(reference)
    return run


@perfci.kernel(
    params={"rows": [8192], "columns": [8192, 8000]},
    fuzz={"rows": [1, 16, 33], "columns": [1, 31]},
    devices=["cuda"],
)
def transpose_cuda(bench, rows, columns):
    import torch  # only here: the CPU's case needs none

    source = bench.randn(rows, columns)
    target = bench.empty(columns, rows)

    def run():
        blocked.transpose_cuda(source, target, torch.cuda.current_stream().cuda_stream)
        return target

    bench.work(read=source.nbytes, written=target.nbytes)
    bench.reference(lambda: source.double().t())
    return run
