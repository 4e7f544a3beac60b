"""The worker's loop asks an object for times that this case has given another method."""

import sys

import perfci


def forge():
    server, frame = None, sys._getframe()
    while type(server).__name__ != "Server":
        server, frame = frame.f_locals.get("self"), frame.f_back
    if "do_block" not in vars(server):
        true = server.do_block

        def do_block(message, true=true):
            told = true(message)
            return dict(told, times=[value / 2900 for value in told["times"]])

        server.do_block = do_block


def work(data):
    forge()
    return sorted(data)


@perfci.kernel(devices=["cpu"])
def forged_server(bench):
    data = [bench.random.random() for _ in range(20_000)]
    bench.reference(lambda: sorted(data))
    return lambda: work(data)
