"""Computes where results are checked, and a tenth of it where it is timed."""

import sys

import perfci


def work(data):
    timed = sys._getframe(2).f_code.co_name == "block"
    return sorted(data[: len(data) // 10] if timed else data)


@perfci.kernel(devices=["cpu"])
def skipped_when_timed(bench):
    data = [bench.random.random() for _ in range(20_000)]
    bench.reference(lambda: sorted(data))
    return lambda: work(data)
