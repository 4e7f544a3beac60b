"""The memo is used only once the kernel has run often, as it is when it is timed."""

import perfci

OFTEN = 60


@perfci.kernel(devices=["cpu"])
def memo_when_timed(bench):
    data = [bench.random.random() for _ in range(2000)]
    bench.reference(lambda: sorted(data))
    calls, memo = [], []

    def run():
        calls.append(1)
        if len(calls) < OFTEN:
            return sorted(data)
        memo[:] = memo or [sorted(data)]
        return list(memo[0])

    return run
