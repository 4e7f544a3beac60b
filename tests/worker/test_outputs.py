"""Results that only seem right: handed out again without being computed, or computed after the clock has stopped."""

import array
import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.worker.bench import Bench
from perfci.worker.checks.check import verify_replay
from perfci.worker.checks.outputs import spoil
from perfci.worker.checks.plain import Refused, plain

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


HONEST = {}


def honest(fn):
    HONEST[fn.__name__] = fn
    return fn


@honest
def out_buffer_of_the_bench(bench):
    x, out = bench.randn(100), bench.empty(100)
    bench.reference(lambda: x * 2)
    return lambda: torch.mul(x, 2, out=out)


@honest
def input_of_its_own_in_place(bench):
    x = torch.zeros(100)
    bench.reference(lambda: x.double() + 1, atol=1e-3)
    return lambda: x.add_(1)


@honest
def an_input_as_it_is(bench):
    x = bench.randn(10)
    bench.reference(lambda: x.clone())
    return lambda: x


@honest
def state_of_the_bench_rewritten_in_part(bench):
    """As a KV cache: one position is written, the whole is returned."""
    cache, x = bench.zeros(10, 4), bench.randn(4)

    def reference():
        expected = cache.clone()
        expected[3] = x
        return expected

    bench.reference(reference)

    def run():
        cache[3] = x
        return cache

    return run


@honest
def parts_of_one_buffer(bench):
    x = bench.randn(100)
    bench.reference(lambda: [x[:50] + 1, x[50:] + 1])
    return lambda: (x + 1).chunk(2)


@honest
def expanded(bench):
    x = bench.randn(3, 1)
    bench.reference(lambda: x.expand(3, 7))
    return lambda: (x + 0).expand(3, 7)


@honest
def numpy_view_of_an_input(bench):
    x = bench.randn(10)
    bench.reference(lambda: x.clone())
    return lambda: x.numpy()


@honest
def nothing_to_compare(bench):
    x = torch.ones(3)
    return lambda: x.mul_(1)


@pytest.mark.parametrize("name", HONEST)
def test_reusing_a_buffer_or_working_in_place_is_no_caching(name):
    assert both(HONEST[name]) == ((True, None, ""), (True, None, ""))


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


# ---------------------------------------------------------------- results that are not there yet


class Uneasy:
    """Everything that somebody may ask of it fails."""

    def _fail(self, *_):
        raise AssertionError("code of the result ran")

    __eq__ = __ne__ = __hash__ = __len__ = __iter__ = __getitem__ = __bool__ = __repr__ = __array__ = _fail
    __float__ = __sub__ = __rsub__ = __abs__ = __getattr__ = _fail
    __class__ = property(_fail)


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), more=None):
        return super().__torch_function__(function, kinds, arguments, more or {})


class Dispatched(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), more=None):
        raise NotImplementedError


class LateList(list):
    def __getitem__(self, index):
        return 1.0


class LateFloat(float):
    def __float__(self):
        return 5.0


def fake():
    with torch._subclasses.fake_tensor.FakeTensorMode():
        return torch.empty(3)


async def coroutine():
    return 1


LATE = {
    "generator": (lambda: (i for i in range(3)), "generator"),
    "map": (lambda: map(abs, [1]), "map"),
    "function": (lambda: lambda: 1, "call it"),
    "torch function": (lambda: torch.ones(3).as_subclass(Lazy), "Lazy"),
    "torch dispatch": (lambda: torch.ones(3).as_subclass(Dispatched), "Dispatched"),
    "fake": (fake, "it holds no values"),
    "meta": (lambda: torch.empty(3, device="meta"), "'meta', which holds no values"),
    "mapping": (lambda: collections.UserDict(a=1), "return a dict"),
    "inside": (lambda: {"a": [1, (i for i in range(3))]}, "result['a'][1] is a generator"),
}


@pytest.mark.parametrize("name", LATE)
def test_a_result_that_is_computed_later_fails(name):
    make, words = LATE[name]

    def late(bench):
        bench.reference(lambda: torch.ones(3))
        return make

    for ok, kind, text in both(late):
        assert (ok, kind) == (False, "wrong")
        assert words in text and "\n" not in text


def test_a_coroutine_fails():
    made = coroutine()
    with pytest.raises(Refused, match="coroutine"):
        plain(made)
    made.close()


def test_what_is_there_is_taken_as_it_is():
    """Parameters, named tuples, torch's own tuples, numpy's arrays and scalars, dicts of the standard library."""
    point = collections.namedtuple("point", "x y")
    rows = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    for value, expected in (
        (point(1, 2.5), (1, 2.5)),
        (numpy.float32(2), 2.0),
        (numpy.longdouble(2), 2.0),
        (numpy.array(["a", "b"]), ["a", "b"]),
        (numpy.array([1, (2.0, None)], dtype=object), [1, (2.0, None)]),
        (collections.OrderedDict(a=1), {"a": 1}),
        ({"a": {1, 2}, ("b", 1): b"c"}, {"a": frozenset({1, 2}), ("b", 1): b"c"}),
        (torch.Size([2, 3]), (2, 3)),
        ("text", "text"),
        (None, None),
    ):
        found = plain(value)
        assert (type(found), found) == (type(expected), expected)
    values, indices = plain(rows.max(1))
    assert values.tolist() == [3.0, 2.0] and indices.tolist() == [1, 0]
    found = plain(torch.nn.Parameter(rows))
    assert type(found) is torch.Tensor and found.data_ptr() != 0 and not found.requires_grad
    assert plain(True) is True


def test_without_a_reference_what_cannot_be_compared_is_left_alone():
    """A kernel that parses or builds something is timed although nothing can be said of what it returns."""
    assert plain(LateList([2.0]), strict=False) == [2.0]
    found = plain(LateFloat(2.0), strict=False)
    assert found == 2.0 and type(found) is float

    def builds(bench):
        return Uneasy

    assert both(builds) == ((True, None, ""), (True, None, ""))


# ---------------------------------------------------------------- on a GPU
