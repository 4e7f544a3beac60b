"""Correctness checks: nothing wrong, unwritten or NaN may pass, and the text says what and where."""

import array
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfci.worker import check
from perfci.worker.bench import prepare
from perfci.worker.check import check_case, compare, finite, leaf_sizes, sketch, verify
from perfci.worker.declare import collecting, kernel

torch = pytest.importorskip("torch")

nan, inf = math.nan, math.inf
numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, inf, -inf, nan])
tolerances = st.sampled_from([0.0, 1e-6, 0.1, 2.0])


def reference_rule(out, ref, rtol, atol):
    """The rule for one element, written down from the documentation."""
    if math.isnan(out) or math.isnan(ref):
        return False
    if math.isinf(out) or math.isinf(ref):
        return out == ref
    return out == ref or abs(out - ref) <= atol + rtol * abs(ref)


def as_tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def as_numpy(values):
    return np.array(values, dtype=np.float64)


CONTAINERS = [list, tuple, as_tensor, as_numpy, lambda v: array.array("d", v)]


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), tolerances, tolerances)
def test_every_container_follows_the_same_rule(pairs, rtol, atol):
    outs, refs = [o for o, _ in pairs], [r for _, r in pairs]
    # At the very edge of the tolerance the rounding of a division decides.
    for o, r in pairs:
        if all(map(math.isfinite, (o, r))) and (allowed := atol + rtol * abs(r)):
            assume(abs(abs(o - r) / allowed - 1) > 1e-9)
    expected = all(reference_rule(o, r, rtol, atol) for o, r in pairs)
    for wrap in CONTAINERS:
        for wrap_ref in CONTAINERS:
            outcome = compare(wrap(outs), wrap_ref(refs), rtol, atol)
            assert outcome.ok is expected
            assert (outcome.kind is None) is outcome.ok
            assert bool(outcome.text) is not outcome.ok
            assert "\n" not in outcome.text
            if any(map(math.isnan, refs)):
                assert "the reference itself holds NaN" in outcome.text
            elif any(map(math.isnan, outs)):
                assert outcome.kind == "nan"


@given(st.lists(numbers, min_size=1, max_size=8))
def test_nothing_with_nan_equals_itself(values):
    for wrap in CONTAINERS:
        value = wrap(values)
        assert compare(value, value, 1.0, 1.0).ok is not any(map(math.isnan, values))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), st.data())
def test_integers_are_compared_exactly(values, data):
    """float64 would take 2**53 and 2**53 + 1 for the same."""
    index = data.draw(st.integers(0, len(values) - 1))
    other = list(values)
    other[index] += 1 if other[index] < 0 else -1
    for wrap in (list, lambda v: torch.tensor(v, dtype=torch.int64), lambda v: np.array(v, dtype=np.int64)):
        assert compare(wrap(values), wrap(values), 0, 0).ok
        outcome = compare(wrap(other), wrap(values), 0, 0)
        assert not outcome.ok and outcome.kind == "wrong"
        assert f"[{index}] is {other[index]}, the reference has {values[index]}" in outcome.text


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(1, 30),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_chunks_do_not_change_what_is_found(shape, chunk, rng, transpose):
    """Large tensors are compared in parts; the index must be that of the whole."""
    ref = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    ref = ref.transpose(0, -1) if transpose else ref
    out = ref.clone()
    index = tuple(rng.randrange(length) for length in ref.shape)
    out[index] += 0.5
    whole, keep = compare(out, ref, 0, 0.1), check.CHUNK
    check.CHUNK = chunk
    try:
        parts = compare(out, ref, 0, 0.1)
        pieces = sketch(ref)
    finally:
        check.CHUNK = keep
    assert parts == whole
    assert f"result{list(index)} is " in parts.text and f"1 of {ref.numel()} elements differ" in parts.text
    assert pieces == pytest.approx(sketch(ref), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(
    ("out", "ref", "says"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), "result has shape [2, 3], the reference has [3, 2]"),
        ([1, 2], [1, 2, 3], "result has length 2, the reference has 3"),
        ({"a": 1}, {"a": 1, "b": 2}, "result has the keys ['a'], the reference has ['a', 'b']"),
        (None, torch.ones(3), "result is None, the reference is an array of shape [3]: return the output"),
        (torch.ones(3), None, "result is an array of shape [3], the reference is None"),
        ([torch.ones(2)], {"a": torch.ones(2)}, "result is a list of 1, the reference is a dict"),
        (torch.ones(1), 1.0, "result is a list of 1, the reference is a float"),
        ("abc", "abd", "result is 'abc', the reference has 'abd'"),
        (b"abc", b"abd", "result[2] is 99, the reference has 100; 1 of 3 elements differ"),
        (
            {"x": [1, {"y": torch.zeros(2, 2)}]},
            {"x": [1, {"y": torch.eye(2)}]},
            "result['x'][1]['y'][0, 0] is 0",
        ),
        (
            torch.tensor([0.0, 3.0]),
            torch.tensor([0.5, 0.0]),
            "2 of 2 elements differ, the worst 30 × the tolerance",
        ),
        (
            torch.tensor([1.0, nan, nan]),
            torch.ones(3),
            "result[1] is NaN, the reference has 1; 2 of 3 elements are",
        ),
        (torch.tensor([nan]), torch.tensor([nan]), "the reference itself holds NaN, at result[0]"),
        ([1, object()], [1, torch.ones(1)], "the reference is an array of shape [1]"),
    ],
)
def test_texts_say_what_and_where(out, ref, says):
    outcome = compare(out, ref, 0, 0.1)
    assert not outcome.ok
    assert says in outcome.text


@pytest.mark.parametrize(
    ("out", "ref"),
    [
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float64)),
        (torch.ones(3).to(torch.float8_e4m3fn), torch.ones(3)),
        (torch.eye(3).to_sparse(), torch.eye(3)),
        (torch.ones(2, requires_grad=True), np.ones(2)),
        (torch.tensor(1.5), 1.5),
        (np.float32(1.5), torch.tensor(1.5)),
        (np.ones(3, dtype=np.uint64), torch.ones(3)),
        (np.array([2**64 - 1], dtype=np.uint64), np.array([2**64 - 1], dtype=np.uint64)),
        (torch.tensor([True, False]), torch.tensor([1, 0])),
        ((torch.ones(1), [2]), [torch.ones(1), (2,)]),
        ({"a": None, "b": "x"}, {"b": "x", "a": None}),
        (memoryview(b"ab"), (b"ab"[0:0] and None) or [97, 98]),
        (np.ones(4)[::-2], torch.ones(4)[::2]),
        (10**400, 10**400),
        (complex(1, inf), complex(1, inf)),
    ],
)
def test_equal_values_of_other_types_are_equal(out, ref):
    assert compare(out, ref, 0, 0).ok


@pytest.mark.parametrize(
    ("out", "ref"),
    [
        (np.array([2**64 - 1], dtype=np.uint64), np.array([-1])),
        (10**400, 1.0),
        (torch.tensor([complex(1, 2)]), torch.tensor([complex(1, -2)])),
        (torch.tensor([complex(inf, 1)]), torch.tensor([complex(inf, 2)])),
        ({1}, {2}),
        (torch.tensor([True]), torch.tensor([False])),
    ],
)
def test_different_values_are_different(out, ref):
    assert not compare(out, ref, 0, 0).ok
    assert not compare(out, ref, 1e-3, 1e-3).ok


def test_worst_is_the_share_of_the_tolerance_that_is_used():
    outcome = compare(torch.tensor([1.0, 2.1]), torch.tensor([1.0, 2.0], dtype=torch.float64), 0.05, 0.1)
    assert outcome.ok and outcome.worst == pytest.approx(0.1 / (0.1 + 0.05 * 2), rel=1e-6)
    assert compare([], [], 0, 0).worst is None


@pytest.mark.parametrize("wrap", [torch.tensor, np.array, list, lambda v: {"a": [v]}])
def test_without_a_reference_nan_and_infinity_are_found(wrap):
    assert finite(wrap([1.0, 2.0])) == check.Outcome(True)
    found = finite(wrap([1.0, nan, nan]))
    assert not found.ok and found.kind == "nan" and "[1] is nan" in found.text
    found = finite(wrap([1.0, 2.0, -inf]))
    assert not found.ok and found.kind == "wrong" and "[2] is -inf" in found.text


# ---------------------------------------------------------------- sketches


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(0, 39))
def test_a_sketch_depends_on_values_and_order_not_on_the_container(values, cut):
    whole = sketch(values)
    for same in (as_tensor(values), as_numpy(values), (values[:cut], {"k": as_tensor(values[cut:])})):
        assert sketch(same) == pytest.approx(whole, rel=1e-9, abs=1e-6)
    assert whole[0] == pytest.approx(math.sqrt(sum(v * v for v in values)), rel=1e-9, abs=1e-12)


def test_a_sketch_sees_one_element_a_permutation_and_words():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x.clone()
    y[7777] += 1e-3
    swapped = x.flip(0)
    assert all(abs(a - b) > 1e-6 for a, b in zip(sketch(x), sketch(y), strict=True))
    assert sketch(swapped)[0] == pytest.approx(sketch(x)[0])
    assert sketch(swapped)[1:] != pytest.approx(sketch(x)[1:])
    assert sketch("one") != sketch("two") != sketch(None)
    assert all(map(math.isfinite, sketch(torch.tensor([inf, -inf, 1.0]))))
    assert sketch(torch.tensor([inf])) != sketch(torch.tensor([-inf]))


def test_projections_are_on_balanced_and_independent_signs():
    """Otherwise two references could differ and project alike."""
    bits = check._mix(np.arange(2**17, dtype=np.int64))
    signs = np.array([1 - 2 * (bits >> (8 * k) & 1) for k in range(check.PROJECTIONS)])
    assert np.abs(signs.mean(axis=1)).max() < 5 / math.sqrt(2**17)
    assert np.abs(np.corrcoef(signs) - np.eye(check.PROJECTIONS)).max() < 5 / math.sqrt(2**17)
    assert np.array_equal(bits, check._mix(torch.arange(2**17)).numpy())
    assert [check._mix(i) for i in range(100)] == bits[:100].tolist()


# ---------------------------------------------------------------- cases


def case(fn, **arguments):
    with collecting() as kernels:
        kernel(**arguments)(fn)
    return kernels[0]


def checked(fn, sets=({},), **more):
    params = {name: [value] for name, value in sets[0].items()}
    return check_case(case(fn, params=params), list(sets), "cpu", 0, **more)


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


def test_an_output_of_the_bench_that_is_not_written_fails():
    def lazy(bench):
        x, out = bench.randn(50), bench.empty(50)
        bench.reference(lambda: x * 2)
        return lambda: out

    assert checked(lazy)["kind"] == "nan"


def test_the_output_of_the_bench_serves_when_it_is_written():
    def good(bench):
        x, out = bench.randn(50), bench.empty(50)
        bench.reference(lambda: x.double() * 2, rtol=1e-6)
        return lambda: torch.mul(x, 2, out=out)

    assert checked(good)["ok"]


def test_kernels_may_work_in_place_also_after_many_runs():
    def in_place(bench):
        x = bench.randn(100)
        bench.reference(lambda: x.double() + 1, atol=1e-4)
        return lambda: x.add_(1)

    assert checked(in_place)["ok"]
    prepared = prepare(case(in_place), {}, "cpu", 0, 0)
    for _ in range(10):
        prepared.fn()
    assert verify(prepared).ok


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
    assert result["work"] == {"flops": 0.0, "read": 20.0, "written": 0.0, "items": 5.0, "item": "items"}
    again = checked(double, [{"n": 5}])
    assert (again["digest"], again["sketch"]) == (result["digest"], result["sketch"])
    assert len(result["sketch"]) == 5 and len(result["digest"]) == 64


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
    assert not verify(prepare(case(loose, params={"n": [5]}), {"n": 5}, "cpu", 0, 0), rtol=0.01, atol=0.0).ok


def test_what_a_kernel_raises_is_raised():
    def broken(bench):
        def run():
            raise RuntimeError("illegal instruction")

        return run

    with pytest.raises(RuntimeError, match="illegal instruction"):
        checked(broken)


def test_verify_finds_a_result_that_went_wrong_during_timing():
    def decaying(bench):
        x, calls = bench.randn(100), []
        bench.reference(lambda: x * 2)

        def run():
            calls.append(1)
            return x * (2 if len(calls) < 5 else 3)

        return run

    prepared = prepare(case(decaying), {}, "cpu", 0, 0)
    assert verify(prepared).ok
    for _ in range(3):
        prepared.fn()
    assert verify(prepared).kind == "wrong"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is poisoned on Linux")
def test_memory_is_poisoned_for_the_check_alone():
    """The same process goes on to time other cases: filling every allocation would change their times."""
    with check.poisoned_memory([], "cpu"):
        assert bool(torch.isnan(torch.empty(2**25)).all())
    assert not bool(torch.isnan(torch.empty(2**25)).any())


def test_sizes_of_results():
    x = torch.zeros(10, 10)
    assert leaf_sizes([x, {"a": np.zeros(3)}, x[0], b"abcd", None, 1.0, torch.zeros(0)]) == [4, 24, 400]


PLAIN = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
from perfci.worker.check import check_case
from perfci.worker.declare import collecting, kernel
def plain(bench, n):
    data = [bench.random.random() for _ in range(n)]
    bench.reference(lambda: sorted(data))
    return lambda: sorted(data, reverse=n == 3)
with collecting() as kernels:
    kernel(params={"n": [5]})(plain)
print(check_case(kernels[0], [{"n": 5}, {"n": 3}], "cpu", 0)["text"])
"""


def test_plain_python_is_checked_without_torch_and_numpy():
    out = subprocess.run([sys.executable, "-c", PLAIN], check=True, capture_output=True, text=True).stdout
    assert out.startswith("at n=3: result[0] is ") and "2 of 3 elements differ" in out


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
    prepared = prepare(case(good), {}, "cuda", 0, 0)
    expected = prepared.bench.declared_reference().fn()
    assert sketch(expected) == pytest.approx(sketch(expected.cpu()), rel=1e-9, abs=1e-6)
