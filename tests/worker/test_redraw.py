"""Inputs redrawn in place: a memo is found whatever it goes by, and no honest kernel is accused."""

import array
import collections
import ctypes
import functools
import random
import re
import types
from functools import partial

import numpy as np
import pytest

from perfci.worker.checks import check, kinds, redraw
from perfci.worker.checks.check import check_case, verify, verify_redrawn_replay

from .made import case, outcomes, prepared

torch = pytest.importorskip("torch")


# ---------------------------------------------------------------- memos


def of_one_input(reference, make, *shape):
    """A kernel whose function is `make(x)`, of a tensor of this shape or of a hundred numbers."""

    def declared(bench):
        x = bench.randn(*shape or (100,))
        bench.reference(lambda: reference(x), rtol=1e-5, atol=1e-6)
        return make(x)

    return declared


exp_of = partial(of_one_input, lambda x: x.double().exp())


def keyed(key):
    """A kernel of a library that keeps results by `key` of its input, and hands out copies of them."""
    memo = {}

    def exp(x):
        name = key(x)
        if name not in memo:
            memo[name] = x.exp()
        return memo[name].clone()

    return exp_of(lambda x: lambda: exp(x))


@exp_of
def closure(x):
    stored = []

    def run():
        if not stored:
            stored.append(x.exp())
        return stored[0].clone()

    return run


@exp_of
def nonlocal_memo(x):
    kept = None

    def run():
        nonlocal kept
        kept = x.exp() if kept is None else kept
        return kept + 0

    return run


class Layer:
    def __init__(self, x):
        self.x, self.memo = x, None

    def __call__(self):
        if self.memo is None:
            self.memo = self.x.exp()
        return self.memo.clone()


def flag(bench):
    """The memo is a buffer that is there from the beginning."""
    x, kept, done = bench.randn(100), bench.zeros(100), [False]
    bench.reference(lambda: x.double().exp(), rtol=1e-5, atol=1e-6)

    def run():
        if not done[0]:
            torch.exp(x, out=kept)
            done[0] = True
        return kept.clone()

    return run


def python_list(bench):
    """By the identity of a list."""
    data, memo = [bench.random.random() for _ in range(50)], {}
    bench.reference(lambda: sorted(data))

    def run():
        if id(data) not in memo:
            memo[id(data)] = sorted(data)
        return list(memo[id(data)])

    return run


def shared_with_the_reference(bench):
    """The reference goes through the same memo, and follows the values as little."""
    x = bench.randn(100)
    exp = functools.cache(torch.exp)
    bench.reference(lambda: exp(x).double(), rtol=1e-5, atol=1e-6)
    return lambda: exp(x).clone()


def numpy_memo(bench):
    x, memo = bench.randn(100).numpy(), {}
    bench.reference(lambda: np.exp(x.astype(np.float64)), rtol=1e-5, atol=1e-6)

    def run():
        name = x.__array_interface__["data"]
        if name not in memo:
            memo[name] = np.exp(x)
        return memo[name].copy()

    return run


MEMOS = {
    "address and version": keyed(lambda x: (x.data_ptr(), x._version)),
    "shape": keyed(lambda x: tuple(x.shape)),
    "closure": closure,
    "nonlocal": nonlocal_memo,
    "attribute": exp_of(Layer),
    **{fn.__name__: fn for fn in (flag, python_list, shared_with_the_reference, numpy_memo)},
}


@pytest.mark.parametrize("name", MEMOS)
def test_a_memo_that_returns_copies_is_found_before_and_after_timing(name):
    first, after = outcomes(MEMOS[name])
    assert (first["ok"], first["kind"], first["unredrawn"]) == (False, "wrong", "")
    # A memo by shape is filled by the case's other set-up: then the plain comparison finds it.
    assert "its result is remembered, not computed" in first["text"] or name == "shape"
    assert (after.ok, after.kind) == (False, "wrong")


def test_a_memo_that_begins_once_it_is_timed_is_found_after_timing():
    @exp_of
    def declared(x):
        calls, memo = [], []

        def run():
            calls.append(1)
            if len(calls) < 50:
                return x.exp()
            memo[:] = memo or [x.exp()]
            return memo[0].clone()

        return run

    assert check_case(case(declared), [{}], "cpu", 0)["ok"]
    made = prepared(declared)
    for _ in range(60):
        made.fn()
    assert verify(made, redraw=False).ok, "nothing else finds it"
    outcome = verify(made)
    assert outcome.kind == "wrong" and "remembered, not computed" in outcome.text


@pytest.mark.parametrize("copies", [True, False])
def test_a_replay_is_checked_with_its_inputs_redrawn_by_calling_the_function_where_the_graph_cannot_read_them(copies):
    """On the CPU, where no replay reads what is redrawn, the function itself is called."""
    made = prepared(closure if copies else HONEST["derived"])
    out, replays = made.fn(), []
    outcome = verify_redrawn_replay(made, out, lambda: replays.append(1))
    assert outcome.ok is not copies and not replays


# ---------------------------------------------------------------- what is honest

HONEST = {
    "an input as it is": of_one_input(torch.clone, lambda x: lambda: x),
    "a view of an input by numpy": of_one_input(torch.clone, lambda x: lambda: x.numpy()),
    "parts of one buffer": of_one_input(lambda x: [x[:50] + 1, x[50:] + 1], lambda x: lambda: (x + 1).chunk(2)),
    "expanded": of_one_input(lambda x: x.expand(3, 7), lambda x: lambda: (x + 0).expand(3, 7), 3, 1),
    "a method of an input": exp_of(lambda x: x.exp),
}


def honest(fn):
    HONEST[fn.__name__] = fn
    return fn


@honest
def derived(bench):
    """The set-up packs and sorts; the reference is evaluated at once."""
    x, weight = bench.randn(20, 30), bench.randn(30, 10)
    packed, order = weight.t().contiguous(), x.argsort(0)
    expected = x.double().gather(0, order) @ weight.double()
    bench.reference(lambda: expected, rtol=1e-4, atol=1e-4)
    return lambda: x.gather(0, order) @ packed.t()


@honest
def module(bench):
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).requires_grad_(False)
    x = bench.randn(4, 8)
    bench.reference(
        lambda: layer.double()(x.double()).float() if layer.float() is None else layer.float()(x), atol=1e-5
    )
    return functools.partial(layer, x)


@honest
def accumulates(bench):
    """State that does not follow from the draw: the reference reads it."""
    x, total = bench.randn(10), bench.zeros(10)
    bench.reference(lambda: total.double() + x.double(), atol=1e-5)
    return lambda: total.add_(x)


@honest
def lazy_workspace(bench):
    x, kept = bench.randn(10), {}
    bench.reference(lambda: x * 2)

    def run():
        if "room" not in kept:
            kept["room"] = torch.empty(10)
        return torch.mul(x, 2, out=kept["room"])

    return run


@honest
def plain_python(bench):
    draw = bench.random
    data = {"list": [draw.random() for _ in range(20)], "set": {draw.randrange(1000) for _ in range(20)}}
    words = tuple(str(draw.randrange(100)) for _ in range(5))
    queue, scale = collections.deque(draw.random() for _ in range(5)), draw.random()
    table = {draw.randrange(10**6): draw.random() for _ in range(10)}
    raw, numbers = bytearray(draw.randbytes(20)), array.array("d", data["list"])

    def compute():
        values = sorted(v * scale for v in data["list"])
        return values, sorted(data["set"]), words, sum(queue), max(table.values()), bytes(raw), numbers.tolist()

    bench.reference(compute)
    return compute


@honest
def in_place_on_a_list(bench):
    data = [bench.random.randrange(5) for _ in range(20)]
    bench.reference(lambda: sorted(data))

    def run():
        data.sort()
        return data

    return run


@honest
def slots_and_methods(bench):
    one = Slotted(bench.randn(5), bench.random.random())
    bench.reference(lambda: one.x.double() * one.scale, rtol=1e-6)
    return one.run


class Slotted:
    __slots__ = ("scale", "x")

    def __init__(self, x, scale):
        self.x, self.scale = x, scale

    def run(self):
        return self.x * self.scale


@honest
def raw_pointers(bench):
    """As ctypes kernels take them: addresses of its own memory, which stays."""
    x, out = bench.randn(16), bench.empty(16)
    bench.reference(lambda: x.clone())
    arguments = (out.data_ptr(), x.data_ptr(), 64)
    listed, tensor = [x.data_ptr(), out.data_ptr()], torch.tensor([out.data_ptr(), x.data_ptr()])

    def run():
        assert sorted(listed) == sorted(arguments[:2]) == sorted(tensor.tolist())
        ctypes.memmove(*arguments)
        return out

    return run


@honest
def state_in_a_module(bench):
    """The last set-up wins."""
    STATE["x"] = bench.randn(5)
    bench.reference(lambda: STATE["x"].double() + 1, rtol=1e-5, atol=1e-6)
    return lambda: STATE["x"] + 1


STATE = {}


@honest
def views(bench):
    x = bench.randn(4, 6)
    left, wide, turned = x[:, :3], x[:1].expand(5, 6), x.t()
    bench.reference(lambda: (left.double(), wide.double(), turned.double()))
    return lambda: (left + 0, wide + 0, turned + 0)


@honest
def state_rewritten_in_part(bench):
    """As a KV cache: one position is written, the whole is returned."""
    cache, x = bench.zeros(10, 4), bench.randn(4)
    bench.reference(lambda: torch.cat((cache[:3], x[None], cache[4:])))

    def run():
        cache[3] = x
        return cache

    return run


@honest
def nothing_to_compare(bench):
    x = torch.ones(3)
    return lambda: x.mul_(1)


@honest
def sparse(bench):
    dense = bench.randn(6, 6)
    both = dense.to_sparse(), dense.to_sparse_csr()
    bench.reference(lambda: (dense.clone(), dense.clone()))
    return lambda: tuple(one.to_dense() for one in both)


@honest
def sparse_result(bench):
    dense = bench.randn(6, 6)
    bench.reference(lambda: {"sum": dense.double() * 2, "of": [dense.clone()]})
    return lambda: {"sum": (dense * 2).to_sparse(), "of": (dense.to_sparse_csr(),)}


@honest
def kinds_of_tensors(bench):
    x = bench.randn(8)
    kinds = [x.bfloat16(), x > 0, (x * 100).to(torch.int8), torch.complex(x, -x).conj(), x.sum(), x.long()]
    with torch.inference_mode():
        kinds.append(x * 2)
    kinds.append(torch.nn.Parameter(x.clone()))
    bench.reference(lambda: [one.detach().clone() for one in kinds])
    return lambda: [one + 0 if one.dtype != torch.bool else one | one for one in kinds]


@honest
def autograd(bench):
    weight, x = torch.nn.Parameter(bench.randn(5)), bench.randn(5)
    bench.reference(lambda: (weight.detach() * x, x))

    def run():
        weight.grad = None
        y = weight * x
        y.sum().backward()
        return y.detach(), weight.grad

    return run


class Normed(torch.autograd.Function):
    """A function whose forward pass saves what no closure shows, as libraries of kernels write them."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True))
        ctx.save_for_backward(x, weight, scale)
        ctx.twice = 2 * x.detach()
        return x * scale * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        along = (grad * weight * x).mean(-1, keepdim=True)
        return scale * grad * weight - scale**3 * along * (ctx.twice / 2), (grad * x * scale).sum(0)


def backward_alone(bench, function):
    """What a benchmark of a backward pass is: the forward pass belongs to the set-up."""
    inputs = [bench.randn(16, 8).requires_grad_(), bench.rand(8, low=0.5, high=1.5).requires_grad_()]
    grad = bench.randn(16, 8)

    def reference():
        x, weight = (one.detach().double().requires_grad_() for one in inputs)
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * weight
        return torch.autograd.grad(y, (x, weight), grad.double())

    bench.reference(reference, rtol=1e-5, atol=1e-5)
    result = function(*inputs)
    return lambda: torch.autograd.grad(result, inputs, grad, retain_graph=True)


@honest
def a_backward_pass_alone(bench):
    return backward_alone(
        bench, lambda x, weight: torch.nn.functional.rms_norm(x.clone(), (8,), weight, eps=1e-30) * torch.ones(8)
    )


@honest
def a_backward_pass_of_a_custom_function(bench):
    return backward_alone(bench, Normed.apply)


@honest
def a_long_graph(bench):
    x = bench.randn(4).requires_grad_()
    ones = torch.ones(4, requires_grad=True)
    y = x
    for _ in range(2000):
        y = y * ones  # of which each saves both
    bench.reference(lambda: [2 * x.detach().double()])
    y = y.square()
    return lambda: list(torch.autograd.grad(y, x, torch.ones(4), retain_graph=True))


@honest
def defaults(bench):
    x, scale = bench.randn(5), bench.random.random()

    def run(x=x, *, scale=scale):
        return x * scale

    bench.reference(lambda: x.double() * scale, rtol=1e-5, atol=1e-6)
    return run


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_is_checked_with_other_values_and_passes(name):
    first, after = outcomes(HONEST[name])
    assert (first["ok"], first["text"], first["unredrawn"]) == (True, "", "")
    assert (after.ok, after.text) == (True, "")


UNPAIRED = {
    "a generator": (lambda random: (i for i in range(10)), "a generator, which cannot be read"),
    "a random generator": (lambda random: type(random)(5), "a Random, which cannot be read"),
    "a class of its own": (lambda random: type("Own", (), {})(), "a Own in one draw and a Own in another"),
    "a length": (lambda random: [[]] * random.randrange(10**6), "how much it keeps depends on the values"),
    "a shape": (lambda random: torch.zeros(random.randrange(10**6)), "differ in shape or type from draw to draw"),
    "an address": (lambda random: 2**46 + random.randrange(2**20), "a number that may be an address"),
    "addresses": (lambda random: torch.tensor([2**46 + random.randrange(2**20)]), "a number that may be an address"),
    "ctypes": (lambda random: ctypes.c_double(1), "a c_double, which cannot be read"),
    "a pattern": (lambda random: re.compile(f"{random.random()}"), "a Pattern, which cannot be read"),
    "keys": (lambda random: {random.random(): []}, "the keys of a dict that it keeps depend"),
}


def of_a_view(random):
    x = torch.full((4,), random.random(), requires_grad=True).clone()
    x[0].mul_(2)
    return x


def checkpointed(random):
    x = torch.full((4,), random.random(), requires_grad=True)
    return torch.utils.checkpoint.checkpoint(lambda one: one.sin().cos(), x, use_reentrant=False)


UNPAIRED |= {
    "a graph that writes into a view": (of_a_view, "a graph of autograd whose CopySlices cannot be read"),
    "a graph that computes anew": (checkpointed, "whose CosBackward0 makes anew what it has saved"),
    "a graph that depends on values": (
        lambda random: sum([torch.ones(1, requires_grad=True)] * random.randrange(100)),
        "a graph of autograd that depends on the values",
    ),
}


@pytest.mark.parametrize("name", UNPAIRED)
def test_what_cannot_be_paired_is_said_and_not_accused(name):
    make, words = UNPAIRED[name]

    def declared(bench):
        x, kept = bench.randn(10), make(bench.random)
        bench.reference(lambda: x * 2)
        return lambda: (kept, x * 2)[1]

    first, after = outcomes(declared)
    assert first["ok"] and after.ok
    assert words in first["unredrawn"] and "\n" not in first["unredrawn"]


def test_inputs_that_never_change_and_cases_without_a_reference_say_so():
    def constant(bench):
        x = bench.full((5,), 2.0)
        bench.reference(lambda: x * 2)
        return lambda: x * 2

    def free(bench):
        return bench.randn(5).exp

    assert outcomes(constant)[0]["unredrawn"] == "its inputs are the same in every draw"
    assert outcomes(free)[0]["unredrawn"] == ""


def test_large_host_inputs_are_not_drawn_three_times(monkeypatch):
    monkeypatch.setattr(redraw, "HOST_BYTES", 100)
    first, after = outcomes(closure)
    assert first["ok"] and after.ok
    assert first["unredrawn"] == "it draws more than 0 MiB on the host"


def test_a_result_that_is_wrong_for_other_values_only_is_found():
    def wrong(bench):
        x, known = bench.randn(100), []
        bench.reference(lambda: x * 2)

        def run():
            known.append(float(x[0]))
            return x * (2 if known[0] == known[-1] else 3)

        return run

    first, after = outcomes(wrong)
    for ok, text in ((first["ok"], first["text"]), (after.ok, after.text)):
        assert not ok and "with its inputs redrawn in place: result[" in text


def test_neither_addresses_nor_versions_tell_of_a_redraw():
    made = prepared(HONEST["kinds_of_tensors"])
    pairs = redraw.set_up(made)
    assert pairs.changes and not pairs.on_device
    tensor = made.bench._drawn[0].tensor
    before, version, address = tensor.clone(), tensor._version, tensor.data_ptr()
    pairs.apply(other=True)
    assert (tensor._version, tensor.data_ptr()) == (version, address) and not torch.equal(before, tensor)
    pairs.apply(other=False)
    assert (tensor._version, tensor.data_ptr()) == (version, address) and torch.equal(before, tensor)
    pairs.release()


def test_an_error_over_nan_says_that_outputs_are_poisoned_and_what_to_give_a_kernel_that_reads_its_own():
    def gemm(bench, output):
        a, b, c = bench.randn(4, 4), bench.randn(4, 4), getattr(bench, output)(4, 4)
        bench.reference(lambda: a.double() @ b.double(), rtol=1e-4, atol=1e-4)
        return lambda: a @ b + 0.0 * c

    kernel = case(gemm, params={"output": ["empty", "zeros"]})
    result = check_case(kernel, [{"output": "empty"}], "cpu", 0)
    assert result["kind"] == "nan"
    assert "memory that was not written holds NaN while results are checked" in result["text"]
    assert "as beta * C does, must be given one of bench.zeros(), not of bench.empty()" in result["text"]
    assert check_case(kernel, [{"output": "zeros"}], "cpu", 0)["ok"]


def test_kinds_of_objects_are_told_apart():
    assert kinds.is_python_class(Layer) and kinds.is_python_class(Slotted)
    assert kinds.is_python_class(torch.nn.Linear) and kinds.is_python_class(types.SimpleNamespace) is False
    for kind in (random.Random, re.Pattern, np.random.Generator, ctypes.c_int, dict, type(iter([]))):
        assert not kinds.is_python_class(kind), kind
    assert kinds.has_no_state(ctypes.CDLL) and kinds.has_no_state(torch.cuda.Stream)
    assert kinds.has_no_state(torch.Generator) and not kinds.has_no_state(torch.Tensor)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_redrawing_leaves_the_peak_of_memory_alone(monkeypatch):
    def large(bench):
        x = bench.randn(2**26)
        bench.reference(lambda: x)
        return lambda: x.clone()

    torch.cuda.reset_peak_memory_stats()
    check.highest_before = 0
    assert check_case(case(large), [{}], "cuda", 0)["unredrawn"] == ""
    before = max(check.highest_before, torch.cuda.max_memory_allocated())
    monkeypatch.setattr(redraw, "HOST_BYTES", -1)
    torch.cuda.reset_peak_memory_stats()
    check.highest_before = 0
    check_case(case(large), [{}], "cuda", 0)
    assert max(check.highest_before, torch.cuda.max_memory_allocated()) >= 0.95 * before
