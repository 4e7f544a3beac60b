"""Results that only seem right: handed out again without being computed."""

import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.worker.bench import Bench
from perfci.worker.checks.check import verify_replay
from perfci.worker.checks.outputs import spoil

from .made import outcomes, prepared

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


# ---------------------------------------------------------------- cached outputs


def both(fn):
    """Whether, of which kind and in which words the checks before and after timing fail."""
    first, after = outcomes(fn)
    return (first["ok"], first["kind"], first["text"]), (after.ok, after.kind, after.text)


def caching(make):
    """A kernel whose function computes once and hands out what it stored ever after."""

    def declared(bench):
        x = bench.randn(100)
        bench.reference(lambda: make(x), rtol=1e-5, atol=1e-6)
        stored = []

        def run():
            if not stored:
                stored.append(make(x))
            return stored[0]

        return run

    return declared


MAKERS = {
    "float32": lambda x: x.exp(),
    "bf16": lambda x: x.bfloat16(),
    "zeros": lambda x: x * 0,
    "constant": lambda x: torch.full((5,), 3.0),
    "one number": lambda x: x.sum(),
    "complex": lambda x: torch.complex(x, -x),
    "bool": lambda x: x > 0,
    "one bool": lambda x: (x > 0).any(),
    "indices": lambda x: x.argsort(),
    "int8": lambda x: (x * 10).to(torch.int8),
    "transposed": lambda x: x.reshape(4, 25).exp().t(),
    "tuple": lambda x: (x.sum(), x.argsort()),
    "dict": lambda x: {"a": [x + 1], "b": 2},
    "numpy": lambda x: x.exp().numpy(),
    "numpy int": lambda x: x.argsort().numpy(),
    "list": lambda x: x.exp().tolist(),
    "array": lambda x: array.array("d", x.tolist()),
    "float array": lambda x: array.array("f", x.tolist()),
    "bytearray": lambda x: bytearray(range(10)),
    "inference": lambda x: inference(x),
}


def inference(x):
    with torch.inference_mode():
        return x.exp()


@pytest.mark.parametrize("name", MAKERS)
def test_a_cached_result_is_found_before_and_after_timing(name):
    for ok, kind, text in both(caching(MAKERS[name])):
        assert (ok, kind) == (False, "wrong"), text
        assert "its output is cached" in text


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_result_computed_each_time_passes(name):
    def honest(bench):
        x = bench.randn(100)
        bench.reference(lambda: MAKERS[name](x), rtol=1e-5, atol=1e-6)
        return lambda: MAKERS[name](x)

    assert both(honest) == ((True, None, ""), (True, None, ""))


def test_a_cached_result_with_one_element_written_is_found():
    def declared(bench):
        x = bench.randn(100)
        bench.reference(lambda: x * 2)
        stored = x * 2

        def run():
            stored[0] = x[0] * 2
            return stored

        return run

    for ok, _, text in both(declared):
        assert not ok and "cached" in text


def test_a_cache_that_outlives_the_case_is_found():
    """Keyed by shape at module level, as in a library: the second build of the case meets it filled."""
    stored = {}

    def declared(bench):
        x = bench.randn(64)
        bench.reference(lambda: x + 1)

        def run():
            if x.shape not in stored:
                stored[x.shape] = x + 1
            return stored[x.shape]

        return run

    assert "cached" in both(declared)[0][2]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool", "complex64"]
    ),
    st.lists(st.integers(-100, 100), min_size=1, max_size=20),
)
def test_spoiling_changes_floats_and_restoring_brings_back_every_bit(dtype, values):
    """Flipped floats and bools differ in every element; restored memory is bit for bit what it was."""
    tensor = torch.tensor(values).to(getattr(torch, dtype))
    before = tensor.clone()
    (spoiled,) = spoil(tensor, Bench("cpu", 0, 0))
    raw = tensor.view(torch.uint8) if dtype != "bool" else tensor
    old = before.view(torch.uint8) if dtype != "bool" else before
    if tensor.is_floating_point() or dtype == "bool":
        assert not (raw == old).any()
        assert spoiled.left()
    else:
        assert sorted(map(str, tensor.tolist())) == sorted(map(str, before.tolist())) or tensor.is_complex()
    spoiled.restore()
    assert torch.equal(raw, old)
    assert not spoiled.left()


# ---------------------------------------------------------------- a graph that is replayed


@pytest.mark.parametrize("skips", [False, True])
def test_a_replay_computes_what_is_compared(skips):
    def declared(bench):
        x = bench.randn(32)
        bench.reference(lambda: x * 2)
        return lambda: x * 2

    made = prepared(declared)
    out = made.fn()
    outcome = verify_replay(made, out, lambda: None if skips else out.copy_(made.fn()))
    assert outcome.ok is not skips and ("cached" in outcome.text) is skips
