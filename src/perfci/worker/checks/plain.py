"""The types that a result may be made of.

Another class could decide its own comparison by `__eq__`, `__iter__` or `__torch_function__`: no code of it runs here.
"""

from __future__ import annotations

import array
import collections
import contextlib
import functools
import inspect
import math
import sys
from collections.abc import Iterator
from typing import Any

Path = tuple[Any, ...]

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
NUMBERS = frozenset({bool, int, float, complex})
MAPPINGS = frozenset({dict, collections.OrderedDict, collections.defaultdict})
"""dict.items() reads them past what Python code could override."""
BUFFERS = frozenset({bytearray, array.array, memoryview})
DEEPEST = 64
INSTEAD = "return tensors, numpy arrays, numbers, text, or lists, tuples and dicts of them"
_BASES = ((list, "list"), (dict, "dict"), (set, "set"), (frozenset, "set"), (str, "str"), (bytes, "bytes"),
          (int, "int"), (float, "float"), (complex, "complex"))  # fmt: skip
_HINTS = {
    "FakeTensor": "it holds no values",
    "DTensor": "return its full_tensor() or to_local()",
    "AsyncCollectiveTensor": "wait for it in the timed function",
}


class Refused(Exception):
    """A result that cannot be compared, or is not there when the function returns, as one line."""


class Opaque:
    """Stands for a value neither compared nor opened."""


OPAQUE = Opaque()


def plain(value: Any, strict: bool = True, path: Path = ()) -> Any:
    """Return the result in tensors, numpy arrays, buffers, numbers, text, None, lists, tuples, dicts and frozensets.

    Types are exactly these: tensors are new, detached objects on the same memory; containers are copied; named tuples
    become tuples. Raises Refused for other types, such as what computes its values when read (generators, functions,
    subclasses of tensors), and for tensors on a device without values.

    Without `strict`, where nothing is compared, subclasses of builtin types count, and other values become OPAQUE.
    """
    kind = type(value)
    if kind in ATOMS or kind in BUFFERS:
        return value
    if len(path) >= DEEPEST:
        raise Refused(f"the result is nested more than {DEEPEST} deep: return flat lists or tensors")
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _plain_tensor(torch, value, strict, path)
    if numpy is not None and kind is numpy.ndarray:
        return value if value.dtype.kind in "biufc" else plain(value.tolist(), strict, path)
    if numpy is not None and kind in _scalars(numpy):
        return _number(value)
    if kind in MAPPINGS or (not strict and issubclass(kind, dict)):
        return _plain_dict(value, strict, path)
    if kind is list or (not strict and issubclass(kind, list)):
        return _items(list.__iter__(value), strict, path)
    if issubclass(kind, tuple):
        return tuple(_items(tuple.__iter__(value), strict, path))
    if kind is set or kind is frozenset:
        return frozenset(_key(item, path, "an element") for item in value)
    return _other(value, strict, path)


def readable(value: Any, depth: int = 0) -> Any:
    """Return what `plain` can read of a result, None in the place of the rest."""
    if depth == DEEPEST:
        return None
    if type(value) in (list, tuple):
        return [readable(item, depth + 1) for item in value]
    if type(value) is dict:
        return {key: readable(item, depth + 1) for key, item in value.items() if _is_key(key)}
    try:
        read = plain(value, strict=False)
    except Refused:
        return None
    return None if type(read) is Opaque else read


def _items(items: Iterator[Any], strict: bool, path: Path) -> list[Any]:
    found = list(items)
    if ATOMS.issuperset(map(type, found)):
        return found
    return [plain(item, strict, (*path, index)) for index, item in enumerate(found)]


def _plain_dict(value: dict[Any, Any], strict: bool, path: Path) -> Any:
    items = list(dict.items(value))
    if not strict and not all(_is_key(key) for key, _ in items):
        return [plain(item, strict, (*path, index)) for index, (_, item) in enumerate(items)]
    return {_key(key, path, "a key"): plain(item, strict, (*path, key)) for key, item in items}


def _is_key(key: Any) -> bool:
    """Hashing and comparing runs builtin code only, and `key` equals itself."""
    if type(key) is tuple:
        return all(map(_is_key, key))
    return type(key) in ATOMS and (type(key) not in NUMBERS or key == key)  # noqa: PLR0124  # NaN does not


def _key(key: Any, path: Path, what: str) -> Any:
    if not _is_key(key):
        if type(key) in NUMBERS:
            raise Refused(f"{place_name(path)} has NaN as {what}: NaN equals nothing")
        raise Refused(f"{place_name(path)} has {_a(_name(type(key)))} as {what}: take text, numbers or tuples of them")
    return key


def _number(value: Any) -> Any:
    found = value.item()
    if type(found) in ATOMS:
        return found
    if value.dtype.kind in "fc":  # of long doubles item() gives themselves
        return complex(value) if value.dtype.kind == "c" else float(value)
    raise Refused(f"the result holds {_a(_name(type(value)))}, which cannot be compared: {INSTEAD}")


@functools.lru_cache(maxsize=1)
def _scalars(numpy: Any) -> frozenset[type]:
    return frozenset(numpy.dtype(code).type for code in numpy.typecodes["All"])


def _plain_tensor(torch: Any, value: Any, strict: bool, path: Path) -> Any:
    kind = type(value)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        name = _name(kind)
        hint = _HINTS.get(name, "return a plain tensor")
        raise Refused(f"{place_name(path)} is {_a(name)}, a tensor of a class of its own: {hint}")
    # A new object: the one that was returned may have attributes in the place of its methods.
    value = torch.Tensor.detach(value)
    if value.device.type not in ("cpu", "cuda"):
        raise Refused(f"{place_name(path)} is on the device {value.device.type!r}, which holds no values")
    return _items(iter(value.unbind()), strict, path) if value.is_nested else value


def _other(value: Any, strict: bool, path: Path) -> Any:
    kind, where = type(value), place_name(path)
    name = _name(kind)
    if any(_defines(kind, method) for method in ("__next__", "__anext__", "__await__")):
        raise Refused(f"{where} is {_a(name)}: compute the values in the timed function")
    base, called = next(((base, called) for base, called in _BASES if issubclass(kind, base)), (None, ""))
    if base is not None:
        if strict:
            raise Refused(f"{where} is {_a(name)}, {_a(called)} of a class of its own: return a plain {called}")
        return base.__pos__(value) if base in (int, float, complex) else OPAQUE  # of the base: it may have its own
    if callable(value):
        raise Refused(f"{where} is {_a(name)}: call it in the timed function")
    if _defines(kind, "keys") and _defines(kind, "__getitem__"):
        raise Refused(f"{where} is {_a(name)}, whose values may be computed late: return a dict")
    if strict:
        raise Refused(f"{where} is {_a(name)}, which cannot be compared: {INSTEAD}")
    return OPAQUE


def _defines(kind: type, name: str) -> bool:
    """Runs no code of the class."""
    return inspect.getattr_static(kind, name, None) is not None


def _a(name: str) -> str:
    return f"an {name}" if name[:1] in "aeiouAEIOU" else f"a {name}"


def _name(kind: type) -> str:
    """Runs no code of the metaclass."""
    return " ".join(str(type.__dict__["__name__"].__get__(kind)).split())[:60]


def place_name(path: Path) -> str:
    """Return a place such as `result[0]['logits'][3, 7]`."""
    steps = (str(list(step)) if isinstance(step, tuple) else f"[{step!r}]" for step in path)
    return "result" + "".join(steps)


@contextlib.contextmanager
def builtin_torch() -> Iterator[None]:
    """Hide operations from torch modes of the suite, which could change results."""
    torch = sys.modules.get("torch")
    with contextlib.ExitStack() as stack:
        for name in ("DisableTorchFunction", "_DisableTorchDispatch"):
            guard = getattr(torch._C, name, None) if torch is not None else None
            if guard is not None:
                stack.enter_context(guard())
        yield


# ---------------------------------------------------------------- of what plain() returns


def is_tensor(value: Any) -> bool:
    """Tell whether this is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and (type(value) is torch.Tensor or type(value) is torch.nn.Parameter)


def is_ndarray(value: Any) -> bool:
    """Tell whether this is a numpy array, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def is_array(value: Any) -> bool:
    """Tell whether this is a tensor or a numpy array of numbers or bool."""
    return is_tensor(value) or (is_ndarray(value) and value.dtype.kind in "biufc")


def is_sequence(value: Any) -> bool:
    """Tell whether this is a list or a tuple."""
    return type(value) is list or type(value) is tuple


def is_number(value: Any) -> bool:
    """Tell whether this is a plain number or bool."""
    return type(value) in NUMBERS


def is_nan(value: Any) -> bool:
    """Tell whether this is a plain number and NaN."""
    if type(value) is complex:
        return math.isnan(value.real) or math.isnan(value.imag)
    return type(value) is float and math.isnan(value)


def strided(value: Any) -> Any:
    """Return a plain tensor as strided and not quantised."""
    if value.is_quantized:
        value = value.dequantize()
    return value if value.layout == sys.modules["torch"].strided else value.to_dense()


def bits(tensor: Any) -> Any:
    """Return a tensor as bool, or as integers of its elements' size, in the same memory."""
    torch = sys.modules["torch"]
    if tensor.dtype == torch.bool:
        return tensor
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes[tensor.element_size()])


def out_of_memory(error: Exception) -> bool:
    """Tell whether torch found no room on the device."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
