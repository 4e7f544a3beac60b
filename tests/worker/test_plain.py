"""Only values of exact builtin types are compared: nothing that a result or a reference brings along may decide, or
be computed after the clock has stopped."""

import collections
import dataclasses
import enum

import numpy as np
import pytest

from perfci.worker.checks.check import check_case, verify
from perfci.worker.checks.compare import compare
from perfci.worker.checks.plain import DEEPEST, Refused, plain

from .made import case, outcomes, prepared

torch = pytest.importorskip("torch")


def agree(self, *_):
    raise AssertionError("code of the result ran")


class Yes:
    """Equal to everything, as the table of the gate's promises has it."""

    def __eq__(self, other):
        return True

    __hash__ = None


HOOKS = dict.fromkeys(
    ("__eq__", "__ne__", "__len__", "__iter__", "__getitem__", "__hash__", "__repr__", "__float__"), agree
)
HOOKS["__class__"] = property(agree)


class Meta(type):
    """Whose classes pretend."""

    __instancecheck__ = __subclasscheck__ = agree
    __name__ = property(agree)


def subclass(base):
    return type("Own", (base,), HOOKS)


@dataclasses.dataclass
class Record:
    x: float


class Colour(enum.IntEnum):
    RED = 1


class Agreeing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), more=None):
        raise AssertionError("code of the result ran")


def fake():
    with torch._subclasses.fake_tensor.FakeTensorMode():
        return torch.empty(3)


REFUSED = {
    "generator": (lambda: (i for i in range(3)), "is a generator: compute the values in the timed function"),
    "map": (lambda: map(abs, [1]), "is a map: compute"),
    "awaitable": (lambda: type("Later", (), {"__await__": agree})(), "is a Later: compute"),
    "function": (lambda: lambda: 1, "call it in the timed function"),
    "mapping": (lambda: collections.UserDict(a=1), "whose values may be computed late: return a dict"),
    "fake": (fake, "it holds no values"),
    "meta": (lambda: torch.empty(3, device="meta"), "is on the device 'meta', which holds no values"),
    "object": (Yes, "is a Yes, which cannot be compared: return tensors"),
    "in a list": (lambda: [Yes()] * 20_000, "result[0] is a Yes, which cannot be compared: return tensors"),
    "metaclass": (lambda: Meta("Pretender", (), HOOKS)(), "is a Pretender, which cannot be compared"),
    "list": (lambda: subclass(list)([1.0]), "is an Own, a list of a class of its own: return a plain list"),
    "dict": (lambda: subclass(dict)(a=1), "is an Own, a dict of a class of its own: return a plain dict"),
    "str": (lambda: subclass(str)("a"), "a str of a class of its own"),
    "float": (lambda: subclass(float)(1), "a float of a class of its own"),
    "int": (lambda: Colour.RED, "is a Colour, an int of a class of its own: return a plain int"),
    "set": (lambda: subclass(set)(), "a set of a class of its own"),
    "counter": (lambda: collections.Counter("a"), "a dict of a class of its own"),
    "dataclass": (lambda: Record(1.0), "is a Record, which cannot be compared: return tensors"),
    "tensor": (lambda: torch.ones(2).as_subclass(Agreeing), "is an Agreeing, a tensor of a class of its own"),
    "array": (lambda: np.ones(2).view(np.matrix), "is a matrix, which cannot be compared"),
    "key": (lambda: {frozenset(): 1}, "has a frozenset as a key"),
    "element": (lambda: {(1, Colour.RED)}, "has a tuple as an element"),
    "NaN as a key": (lambda: {float("nan"): 1}, "has NaN as a key"),
    "inside": (lambda: {"a": (1, [subclass(list)()])}, "result['a'][1][0] is an Own"),
    "dates": (lambda: np.array(["2020-01-01"], dtype="datetime64[D]"), "result[0] is a date"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_answer_for_itself_is_refused_with_what_to_return_instead(name):
    make, words = REFUSED[name]
    value = make()
    for out, ref in ((value, value), (value, [1.0] * 20_000), (value, {"a": 1})):
        outcome = compare(out, ref, 1e9, 1e9)
        assert (outcome.ok, outcome.kind) == (False, "wrong")
        assert words in outcome.text and "\n" not in outcome.text
    outcome = compare([1.0], value, 1e9, 1e9)
    assert not outcome.ok and outcome.text.startswith("of the reference, ")

    def declared(bench):
        bench.reference(lambda: value)
        return make

    result = check_case(case(declared), [{}], "cpu", 0)
    assert (result["ok"], result["kind"]) == (False, "wrong") and words in result["text"]
    assert not verify(prepared(declared)).ok


def test_without_a_reference_what_cannot_be_compared_is_left_alone():
    """A kernel that parses or builds something is timed although nothing can be said of what it returns."""
    assert plain(subclass(list)([2.0]), strict=False) == [2.0]
    found = plain(subclass(float)(2.0), strict=False)
    assert found == 2.0 and type(found) is float

    def builds(bench):
        return lambda: subclass(object)()

    first, after = outcomes(builds)
    assert (first["ok"], first["text"], after.ok) == (True, "", True)


def test_a_tuple_is_read_past_what_its_class_overrides():
    """As those of torch.max() are, and named tuples."""
    tuples = type("Own", (tuple,), HOOKS)
    assert compare(tuples((1, torch.ones(2))), [1, torch.ones(2)], 0, 0).ok
    assert not compare(tuples((1, 2)), [1, 3], 0, 0).ok
    assert compare(torch.eye(2).max(0), (torch.ones(2), torch.tensor([0, 1])), 0, 0).ok


def test_attributes_of_a_tensor_do_not_take_the_place_of_its_methods():
    out = torch.zeros(3)
    for name in ("detach", "to", "clone", "tolist", "is_floating_point", "reshape", "untyped_storage", "numel"):
        setattr(out, name, lambda *_, **__: torch.ones(3))
    assert not compare(out, torch.ones(3), 0, 0).ok
    assert compare(out, torch.zeros(3), 0, 0).ok


def test_modes_of_torch_that_are_left_on_see_nothing_of_the_comparison():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, kinds, arguments=(), more=None):
            raise AssertionError("code of the suite ran")

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, arguments=(), more=None):
            raise AssertionError("code of the suite ran")

    out, same, other = torch.zeros(3), torch.zeros(3), torch.ones(3)
    for mode in (Functions, Dispatch):
        with mode():
            found = compare(out, same, 0, 0).ok, compare([out], [other], 0, 0).ok, compare(np.zeros(3), out, 0, 0).ok
        assert found == (True, False, True)


def test_what_is_nested_without_end_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(Refused, match=f"more than {DEEPEST} deep"):
        plain(endless)
    deep = 1.0
    for _ in range(DEEPEST - 1):
        deep = [deep]
    assert compare(deep, deep, 0, 0).ok
