"""Copies from host to device: what pageable memory costs against page-locked memory."""

import perfci


@perfci.kernel(params={"memory": ["pageable", "pinned"], "mib": [64]}, fuzz={"mib": [1]}, devices=["cuda"])
def host_transfer(bench, memory, mib):
    count = mib * 2**20 // 4
    x = bench.randint(0, 2**31 - 1, count, dtype="int32", host=True, pinned=memory == "pinned")
    out = bench.empty(count, dtype="int32")
    bench.work(written=x.nbytes)  # each byte crosses the link once: the bandwidth is the link's
    bench.reference(lambda: x)
    return lambda: out.copy_(x, non_blocking=True)
