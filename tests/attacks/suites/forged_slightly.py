"""As forged_json, by less than the clocks may differ."""

import json

import perfci

true = json.dumps


def forged(message, *args, **more):
    if isinstance(message, dict) and "times" in message:
        message = dict(message, times=[value / 1.5 for value in message["times"]])
    return true(message, *args, **more)


json.dumps = forged


@perfci.kernel(devices=["cpu"])
def forged_slightly(bench):
    data = [bench.random.random() for _ in range(20_000)]
    bench.reference(lambda: sorted(data))
    return lambda: sorted(data)
