"""The result says of itself that it equals whatever it is compared with."""

import perfci


class L:
    """Equal to everything."""

    def __eq__(self, other):
        return True

    __hash__ = None


class Sorted(list):
    """A list that seems sorted to whoever compares it."""

    def __eq__(self, other):
        return True

    def __getitem__(self, index):
        return sorted(self)[index]

    __hash__ = None


@perfci.kernel(devices=["cpu"])
def always_equal(bench):
    data = [bench.random.random() for _ in range(20_000)]
    bench.reference(lambda: sorted(data))
    return lambda: [L()] * 20_000


@perfci.kernel(devices=["cpu"])
def sorted_late(bench):
    data = [bench.random.random() for _ in range(1000)]
    bench.reference(lambda: sorted(data))
    return lambda: Sorted(data)


@perfci.kernel(devices=["cpu"])
def both_agree(bench):
    """The reference is of the same kind."""
    bench.reference(lambda: [L()] * 20_000)
    return lambda: [L()] * 20_000
