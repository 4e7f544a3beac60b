"""What the worker writes as JSON is edited: a time is 2900 times shorter."""

import json

import perfci

true = json.dumps


def forged(message, *args, **more):
    if isinstance(message, dict) and "times" in message:
        message = dict(message, times=[value / 2900 for value in message["times"]])
    return true(message, *args, **more)


json.dumps = forged


@perfci.kernel(devices=["cpu"])
def forged_json(bench):
    data = [bench.random.random() for _ in range(20_000)]
    bench.reference(lambda: sorted(data))
    return lambda: sorted(data)
