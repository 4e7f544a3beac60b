"""The transpose, without torch: inputs come from bench.random, buffers are arrays."""

from array import array

from blocked import transpose as blocked_transpose

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
        blocked_transpose(source, target, rows, columns)
        return target

    def reference():
        return array("d", (value for column in range(columns) for value in source[column::columns]))

    bench.work(read=8 * len(source), written=8 * len(source))
    bench.reference(reference)
    return run
