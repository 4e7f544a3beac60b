"""Correctness checks: nothing wrong, unwritten or NaN may pass, and the text says what and where."""

import subprocess
import sys
from typing import NamedTuple

import pytest

from perfci.worker.bench import prepare
from perfci.worker.checks.check import check_case, verify
from perfci.worker.checks.sketch import sketch

from .made import case, prepared

torch = pytest.importorskip("torch")


def checked(fn, sets=({},), rtol=None, atol=None):
    params = {name: [value] for name, value in sets[0].items()}
    return check_case(case(fn, params=params), list(sets), "cpu", 0, (rtol, atol))


SIZES = [16, 1000, 100_000, 3_000_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reference", [True, False])
def test_an_output_that_is_not_written_fails(size, reference):
    """Freed memory still holds the right values of the run before: it is poisoned."""

    def lazy(bench):
        x = bench.randn(size)
        if reference:
            bench.reference(lambda: 2 * x)
        calls = []

        def run():
            out = torch.empty_like(x)
            calls.append(1)
            return torch.mul(x, 2, out=out) if len(calls) > 1 else out

        return run

    result = checked(lazy)
    assert not result["ok"]
    assert result["kind"] == "nan" or (reference and result["kind"] == "wrong")


def test_an_output_written_in_part_fails():
    def partial(bench):
        x = bench.randn(100_000)
        bench.reference(lambda: x + 1)

        def run():
            out = torch.empty_like(x)
            out[:-1] = x[:-1] + 1
            return out

        return run

    result = checked(partial)
    assert result["kind"] == "nan" and "1 of 100000 elements are NaN" in result["text"]


def test_a_reference_that_is_the_output_does_not_vouch_for_itself():
    def vain(bench):
        out = torch.zeros(10)
        bench.reference(lambda: out)
        return lambda: out.add_(1)

    assert checked(vain)["kind"] == "wrong"


def test_a_correct_case_reports_what_was_checked():
    def double(bench, n):
        x = bench.randn(n)
        bench.work(read=x.nbytes, items=n)
        bench.reference(lambda: x.double() * 2, rtol=1e-5, atol=1e-7)
        return lambda: x * 2

    result = checked(double, [{"n": 5}, {"n": 1}, {"n": 0}])
    assert (result["ok"], result["kind"], result["text"]) == (True, None, "")
    assert (result["shapes"], result["compared"]) == (3, 3)
    assert (result["rtol"], result["atol"]) == (1e-5, 1e-7)
    assert 0 <= result["worst"] <= 1
    assert checked(double, [{"n": 5}])["sketch"] == result["sketch"][:5], "the case's own first"
    assert len(result["sketch"]) == 15


def test_the_set_that_fails_is_named_and_ends_the_check():
    def odd(bench, n):
        x = bench.randn(n)
        bench.reference(lambda: x * 2)
        return lambda: x * (3 if n == 7 else 2)

    result = checked(odd, [{"n": 5}, {"n": 7}, {"n": 9}])
    assert not result["ok"] and result["shapes"] == 2
    assert result["text"].startswith("at n=7: result[")


def test_without_a_reference_only_finite_values_are_asked_for():
    def free(bench):
        return bench.randn(5).exp

    result = checked(free)
    assert (result["ok"], result["compared"], result["worst"], result["sketch"]) == (True, 0, None, [])


def test_given_tolerances_replace_those_declared():
    """Base's tolerances hold for head: a pull request cannot loosen its own."""

    def loose(bench, n):
        x = bench.full((n,), 1.0)
        bench.reference(lambda: x.double(), rtol=0.5 if n < 10 else 0.2)
        return lambda: x + 0.1

    assert checked(loose, [{"n": 5}, {"n": 6}, {"n": 20}])["ok"]
    strict = checked(loose, [{"n": 5}], rtol=0.01, atol=0.0)
    assert not strict["ok"] and strict["rtol"] == 0.5, "what head declares is still reported"
    # Another set may need, and declares, another tolerance: that of the case's own set is not forced upon it.
    assert checked(loose, [{"n": 5}, {"n": 20}], rtol=0.15, atol=0.0)["ok"]
    assert not checked(loose, [{"n": 5}, {"n": 6}], rtol=0.15, atol=-0.1)["ok"]
    assert not verify(prepare(case(loose, params={"n": [5]}), {"n": 5}, "cpu", 0, 0), (0.01, 0.0)).ok


def test_what_a_kernel_raises_is_raised():
    def broken(bench):
        def run():
            raise RuntimeError("illegal instruction")

        return run

    with pytest.raises(RuntimeError, match="illegal instruction"):
        checked(broken)


def works_in_place(bench):
    """Its reference is computed once, in the set-up."""
    x = bench.randn(8, 8)
    wanted = x.double() * 0.5
    bench.reference(lambda: wanted, rtol=1e-6, atol=1e-6)
    return lambda: x.mul_(0.5)


def adds_up(bench):
    """Its reference knows nothing of the sum that is kept."""
    total, mask = bench.zeros(8, dtype="fp64"), bench.full(8, float("-inf"))
    x = bench.randn(100, 8, dtype="fp64")
    bench.reference(lambda: (x.sum(0), mask), rtol=1e-9)
    return lambda: (total.add_(x.sum(0)).clone(), mask)


def adds_gradients(bench):
    x = bench.randn(8, 8).requires_grad_()
    bench.reference(lambda: 2 * x.detach().double(), rtol=1e-6)

    def run():
        x.square().sum().backward()
        return x.grad.clone()

    return run


def counts_its_calls(bench):
    """It works in place, too, but that is not why it is wrong."""
    x, state, calls = bench.randn(8), bench.zeros(8), []
    bench.reference(lambda: x.double() * 2)

    def run():
        calls.append(state.add_(1))
        return x * (2 if len(calls) < 2 else 3)

    return run


def draws_another_sum(bench):
    """Nothing that was drawn changes: what it keeps is its own."""
    x, kept = bench.randn(8), torch.zeros(8)
    bench.reference(lambda: x.double())
    return lambda: kept.add_(x).clone()


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (works_in_place, "an execution overwrites what the case has drawn (randn float32[8, 8]); with that put back "),
        (adds_up, "an execution overwrites what the case has drawn (zeros float64[8]); with that put back it is right"),
        (adds_gradients, "an execution adds to the .grad of what the case has drawn (randn float32[8, 8]); without "),
        (counts_its_calls, ""),
        (draws_another_sum, ""),
    ],
)
def test_a_second_result_that_is_wrong_says_what_the_first_left_behind(fn, why):
    """Only where the result is right again with that put back: else it is not the reason."""
    found = checked(fn)
    assert not found["ok"] and found["kind"] == "wrong"
    told = found["text"].partition("; an execution ")
    assert "".join(told[1:]).startswith(f"; {why}" if why else "")
    assert bool(told[1]) == bool(why)


def test_state_that_grows_without_bounds_is_told_after_timing():
    def doubling(bench):
        x, mask = bench.randn(8, 8), bench.full(8, float("-inf"))
        bench.reference(lambda: (x.double() * 2).sum(0) + 0 * mask.isinf(), rtol=1e-4, atol=1e-3)
        return lambda: x.mul_(2).sum(0)

    assert checked(doubling)["ok"]
    made = prepared(doubling)
    for _ in range(200):
        made.fn()
    found = verify(made)
    assert not found.ok
    assert found.text.endswith("; what the case has drawn (randn float32[8, 8]) holds infinities or NaN by now")


def test_a_result_that_goes_wrong_beside_a_mask_of_infinities_is_no_state_that_grew():
    def masked(bench):
        x, mask, calls = bench.randn(8), bench.full(8, float("-inf")), []
        bench.reference(lambda: (x * 2, mask))

        def run():
            calls.append(1)
            return x * (2 if len(calls) < 6 else 3), mask

        return run

    made = prepared(masked)
    assert verify(made).ok
    for _ in range(5):
        made.fn()
    found = verify(made)
    assert found.kind == "wrong" and "by now" not in found.text and "cached" not in found.text


PLAIN = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
from perfci.worker.bench import Bench
from perfci.worker.checks.check import check_case
from perfci.worker.declare import collecting, kernel
def plain(bench, n):
    data = [bench.random.random() for _ in range(n)]
    bench.reference(lambda: sorted(data))
    return lambda: sorted(data, reverse=n == 3)
with collecting() as kernels:
    kernel(params={"n": [5]})(plain)
print(check_case(kernels[0], [{"n": 5}, {"n": 3}], "cpu", 0)["text"])
try:
    Bench("cpu", 1, 2).randn(3)
except ModuleNotFoundError as error:
    print(error)
"""


def test_plain_python_is_checked_without_torch_and_numpy_and_tensors_say_what_is_missing():
    out = subprocess.run([sys.executable, "-c", PLAIN], check=True, capture_output=True, text=True).stdout
    wrong, missing = out.splitlines()
    assert wrong.startswith("at n=3: result[0] is ") and "2 of 3 elements differ" in wrong
    assert missing == (
        f"bench draws tensors with torch, which {sys.executable} lacks: install it there, name another interpreter with "
        "--python, or use bench.random"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("size", SIZES)
def test_on_a_gpu_an_output_that_is_not_written_fails(size):
    def lazy(bench):
        x = bench.randn(size)
        bench.reference(lambda: 2 * x)
        calls = []

        def run():
            out = torch.empty_like(x)
            calls.append(1)
            return torch.mul(x, 2, out=out) if len(calls) > 1 else out

        return run

    def good(bench):
        x = bench.randn(size)
        bench.reference(lambda: 2 * x.double(), rtol=1e-6)
        return lambda: x * 2

    assert check_case(case(lazy), [{}], "cuda", 0)["kind"] == "nan"
    result = check_case(case(good), [{}], "cuda", 0)
    assert result["ok"]
    made = prepared(good, "cuda")
    expected = made.bench.declared_reference().fn()
    assert sketch(expected) == pytest.approx(sketch(expected.cpu()), rel=1e-9, abs=1e-6)


class Named(NamedTuple):
    y: object
    total: object


def test_tolerances_by_name_hold_in_every_check():
    """Of the result that counts, after it was overwritten, and with its inputs redrawn in place."""

    def sums(bench):
        x = bench.randn(64)
        bench.reference(lambda: Named(2 * x.double(), x.double().sum()), rtol={"y": 0, "total": 1e-3}, atol={"*": 1e-3})
        return lambda: Named(2 * x, x.sum())

    found = checked(sums)
    assert (found["ok"], found["rtol"], found["unredrawn"]) == (True, {"y": 0.0, "total": 1e-3}, "")
    assert not checked(sums, rtol={"y": 0.0, "total": 0.0}, atol={"*": 0.0})["ok"]  # base's count
