"""Comparing: nothing wrong or NaN may pass, and the text says what and where."""

import array
import collections
import math
import re
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfci.worker.checks import compare as module
from perfci.worker.checks.compare import Outcome, compare, finite
from perfci.worker.checks.sketch import sketch
from perfci.worker.checks.tolerance import field_names, read_tolerance

torch = pytest.importorskip("torch")

nan, inf = math.nan, math.inf
numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, inf, -inf, nan])
tolerances = st.sampled_from([0.0, 1e-6, 0.1, 2.0])


class Pair(NamedTuple):
    values: float
    indices: int


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
    whole, keep = compare(out, ref, 0, 0.1), module.CHUNK
    module.CHUNK = chunk
    try:
        parts = compare(out, ref, 0, 0.1)
        pieces = sketch(ref)
    finally:
        module.CHUNK = keep
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
        ({"x": [1, {"y": torch.zeros(2, 2)}]}, {"x": [1, {"y": torch.eye(2)}]}, "result['x'][1]['y'][0, 0] is 0"),
        (torch.tensor([0.0, 3.0]), torch.tensor([0.5, 0.0]), "2 of 2 elements differ, the worst 30 × the tolerance"),
        (torch.tensor([1.0, nan, nan]), torch.ones(3), "result[1] is NaN, the reference has 1; 2 of 3 elements are"),
        (torch.tensor([nan]), torch.tensor([nan]), "the reference itself holds NaN, at result[0]"),
        ([1, object()], [1, torch.ones(1)], "result[1] is an object, which cannot be compared: return tensors, numpy"),
        ([1, 2], [1, object()], "of the reference, result[1] is an object, which cannot be compared: return"),
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
        ({1, "a"}, frozenset({"a", 1})),
        ({"a": {1}}, {"a": {1.0}}),
        (True, 1),
        (None, None),
        (Pair(1.0, 2), (1, 2)),
        (np.longdouble(2), 2.0),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([1, (2.0, None)], dtype=object), [1, (2.0, None)]),
        ({("b", 1): b"c"}, {("b", 1): b"c"}),
        (torch.Size([2, 3]), (2, 3)),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
    ],
)
def test_equal_values_of_other_types_are_equal(out, ref):
    assert compare(out, ref, 0, 0).ok and compare(ref, out, 0, 0).ok


@pytest.mark.parametrize(
    ("out", "ref"),
    [
        (np.array([2**64 - 1], dtype=np.uint64), np.array([-1])),
        (10**400, 1.0),
        (torch.tensor([complex(1, 2)]), torch.tensor([complex(1, -2)])),
        (torch.tensor([complex(inf, 1)]), torch.tensor([complex(inf, 2)])),
        ({1}, {2}),
        ({1}, [1]),
        (1, "1"),
        ("a", b"a"),
        (None, 0),
        (torch.tensor([True]), torch.tensor([False])),
    ],
)
def test_different_values_are_different(out, ref):
    assert not compare(out, ref, 0, 0).ok and not compare(ref, out, 0, 0).ok
    assert not compare(out, ref, 1e-3, 1e-3).ok


def test_worst_is_the_share_of_the_tolerance_that_is_used():
    outcome = compare(torch.tensor([1.0, 2.1]), torch.tensor([1.0, 2.0], dtype=torch.float64), 0.05, 0.1)
    assert outcome.ok and outcome.worst == pytest.approx(0.1 / (0.1 + 0.05 * 2), rel=1e-6)
    assert compare([], [], 0, 0).worst is None


@pytest.mark.parametrize("wrap", [torch.tensor, np.array, list, lambda v: {"a": [v]}])
def test_without_a_reference_nan_and_infinity_are_found(wrap):
    assert finite(wrap([1.0, 2.0])) == Outcome(True)
    found = finite(wrap([1.0, nan, nan]))
    assert not found.ok and found.kind == "nan" and "[1] is nan" in found.text
    found = finite(wrap([1.0, 2.0, -inf]))
    assert not found.ok and found.kind == "wrong" and "[2] is -inf" in found.text


FAR = [
    # out, reference, rtol, atol → what is said
    ((1.0, 2.05), (1.0, 2.0), {0: 0, 1: 0.1}, 0, ""),
    ((1.05, 2.0), (1.0, 2.0), {0: 0, 1: 0.1}, 0, "result[0] is 1.05, the reference has 1"),
    ({"y": 1.05, "lse": 7.0}, {"y": 1.0, "lse": 7.0}, {"y": 0.1, "*": 0}, 0, ""),
    ({"y": 1.0, "lse": 7.05}, {"y": 1.0, "lse": 7.0}, {"y": 0.1, "*": 0}, 0, "result['lse'] is 7.05"),
    ({"y": 1.0, "lse": 7.05}, {"y": 1.0, "lse": 7.0}, {"y": 0.1, "*": 0}, {"lse": 0.1, "*": 0}, ""),
    ((1.05, 3), Pair(1.0, 3), {"values": 0.1, "indices": 0}, 0, ""),
    (Pair(1.0, 4), Pair(1.0, 3), {"values": 0.5, "indices": 0}, 0, "result[1] is 4, the reference has 3"),
    ([[1.05], [2.0]], [[1.0], [2.0]], {0: 0.1, 1: 0}, 0, ""),  # all that lies within an output
    ([[1.0], [2.05]], [[1.0], [2.0]], {0: 0.1, 1: 0}, 0, "result[1][0] is 2.05"),
    ((1.0, 2.0), (1.0, 2.0), {0: 0.1}, 0, "rtol says nothing of the output '1': name it, or all others by '*'"),
    ((1.0,), (1.0,), {0: 0.1, "lse": 0.1}, 0, "rtol names the output 'lse', which the reference does not have"),
    (1.0, 1.0, 0, {0: 0.1}, "atol names the output '0', but the reference is no tuple, list or dict"),
    (1.05, 1.0, {"*": 0.1}, 0, ""),
    ((float("nan"), 1.0), (1.0, 1.0), {"*": 9}, {"*": 9}, "result[0] is NaN"),
]


@pytest.mark.parametrize(("out", "ref", "rtol", "atol", "said"), FAR)
def test_each_output_has_its_own_tolerance(out, ref, rtol, atol, said):
    found = compare(out, ref, read_tolerance("rtol", rtol), read_tolerance("atol", atol), names=field_names(ref))
    assert found.ok == (said == "")
    assert found.text.startswith(said)


def test_base_speaks_first_and_head_of_what_base_does_not_name():
    base = ({"y": 0.1}, 0.0)
    ref = {"y": 1.0, "new": 1.0}
    loose = {"y": 9.0, "new": 0.2}
    assert compare({"y": 1.05, "new": 1.1}, ref, loose, 9.0, base).ok
    assert compare({"y": 1.2, "new": 1.0}, ref, loose, 9.0, base).text.startswith("result['y'] is 1.2")
    assert compare({"y": 1.0, "new": 1.3}, ref, loose, 9.0, base).text.startswith("result['new'] is 1.3")
    assert not compare({"y": 1.2, "new": 1.0}, ref, loose, 9.0, (0.1, 0.0)).ok  # one number is for all
    assert compare({"y": 1.05}, {"y": 1.0}, {"y": 9.0}, 0.0, ({"y": 0.1, "gone": 0.1}, 0.0)).ok


@given(
    errors=st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1), min_size=1),
    tolerance=st.dictionaries(st.sampled_from("abcd*"), st.floats(0, 1), min_size=1),
)
def test_no_output_passes_beyond_the_tolerance_that_names_it(errors, tolerance):
    ref = dict.fromkeys(errors, 1.0)
    out = {name: 1.0 + error for name, error in errors.items()}
    fits = set(tolerance) - {"*"} <= set(errors) and ("*" in tolerance or set(errors) <= set(tolerance))
    within = fits and all(abs(out[name] - 1.0) <= tolerance.get(name, tolerance.get("*", 0.0)) for name in errors)
    assert compare(out, ref, 0.0, tolerance).ok == within


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, r"bench.reference(rtol={}): name an output"),
        ({-1: 0.1}, "name an output by its position from 0 on"),
        ({True: 0.1}, "name an output by its position from 0 on"),
        ({(0,): 0.1}, "name an output by its position from 0 on"),
        ({0: 0.1, "0": 0.2}, "names the output '0' twice"),
        ({"y": -1}, "bench.reference(rtol={'y': …}): -1 is no finite number of at least 0"),
        ({"y": float("nan")}, "nan is no finite number"),
        ("1e-3", "bench.reference(rtol=…): '1e-3' is no finite number"),
    ],
)
def test_a_tolerance_that_is_none_is_refused_where_it_is_declared(value, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        read_tolerance("rtol", value)
