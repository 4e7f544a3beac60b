"""The clock of the CPU sampler runs ten times too slow."""

import time

import perfci

true = time.perf_counter_ns
time.perf_counter_ns = lambda: true() // 10


@perfci.kernel(devices=["cpu"])
def patched_timer(bench):
    data = [bench.random.random() for _ in range(1000)]
    bench.reference(lambda: sorted(data))
    return lambda: sorted(data)
