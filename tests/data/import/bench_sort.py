import os

import pytest

SPIN = int(os.environ.get("SPIN", "1"))


@pytest.mark.parametrize("n", [100, 2000])
def test_sort(benchmark, n):
    data = list(range(n, 0, -1))
    benchmark.extra_info["comparisons"] = n * 2
    assert benchmark(lambda: [sorted(data) for _ in range(SPIN)])[0][0] == 1


class TestText:
    def test_join(self, benchmark):
        assert benchmark.pedantic(",".join, args=[["a"] * 1000], rounds=20, iterations=50)
