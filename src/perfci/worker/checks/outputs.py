"""Overwrites what a kernel returned, to show whether the next call writes it."""

from __future__ import annotations

import abc
import array
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from ..bench import Bench
from .plain import MAPPINGS, NUMBERS, bits, is_array, is_tensor

_FLIP = bytes(255 - value for value in range(256))
_FLIP_BOOL = bytes(value ^ 1 for value in range(256))
_WORDS = {1: "B", 2: "H", 4: "I", 8: "Q"}


# ---------------------------------------------------------------- overwriting what was returned


class Spoiled(abc.ABC):
    """Memory that a kernel returned, overwritten with wrong values.

    All bits of floating-point and bool elements are flipped: zeros become NaN. Integers are reversed in order, which
    keeps an index in range should a kernel read it.
    """

    where = (0, 0)
    """First address, and one past the last."""

    @abc.abstractmethod
    def left(self) -> bool:
        """Tell whether wrong values remain: all integers, or one of other elements."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Put back what the kernel had returned."""


class _List(Spoiled):
    def __init__(self, numbers: list[Any]) -> None:
        self.numbers, self.kept = numbers, list(numbers)
        self.wrong = float("nan")
        numbers[:] = [self.wrong] * len(numbers)

    def left(self) -> bool:
        return any(number is self.wrong for number in self.numbers)

    def restore(self) -> None:
        self.numbers[:] = self.kept


class _Buffer(Spoiled):
    def __init__(self, flat: Any, form: str, size: int) -> None:
        self.flat, self.kept, self.words = flat, bytes(flat), _WORDS.get(size, "Q")
        self.reverses = form in "bBhHiIlLqQ"
        if self.reverses:
            self.wrong = flat.cast(form)[::-1].tobytes()
        else:
            self.wrong = self.kept.translate(_FLIP_BOOL if form == "?" else _FLIP)
        flat[:] = self.wrong

    def left(self) -> bool:
        if self.reverses:
            return bool(self.kept != self.wrong and bytes(self.flat) == self.wrong)
        wrong: Any = memoryview(self.wrong)
        return any(a == b for a, b in zip(self.flat.cast(self.words), wrong.cast(self.words)))

    def restore(self) -> None:
        self.flat[:] = self.kept


class _Tensor(Spoiled):
    def __init__(self, torch: Any, tensor: Any) -> None:
        self.torch = torch
        self.reverses = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        with torch.inference_mode():  # what a kernel made in it can be changed only in it
            self.bits = bits(tensor)
            self.kept = self.bits.clone()
            self.bits.copy_(self._wrong())

    def _wrong(self) -> Any:
        return self.kept.flip(tuple(range(self.kept.dim()))) if self.reverses else ~self.kept

    def left(self) -> bool:
        with self.torch.inference_mode():
            wrong = self._wrong()
            same = self.bits == wrong
            return bool(same.all() and (wrong != self.kept).any()) if self.reverses else bool(same.any())

    def restore(self) -> None:
        with self.torch.inference_mode():
            self.bits.copy_(self.kept)


def spoil(out: Any, bench: Bench) -> list[Spoiled]:
    """Overwrite what a kernel returned.

    Left alone are inputs that the bench drew (kernels may work in place), memory that elements share, and what cannot
    be written or, for want of memory, kept.
    """
    inputs = [_range(drawn.tensor) for drawn in bench._drawn if drawn.method != "empty"]
    found: list[Spoiled] = []
    seen: set[tuple[int, int]] = set()
    for leaf in _memories(out):
        where = _range(leaf)
        if where in seen or _overlaps(where, inputs):
            continue
        seen.add(where)
        made = _spoiled(leaf)
        if made is not None:
            made.where = where
            found.append(made)
    return found


def handed_out_again(spoiled: Sequence[Spoiled], out: Any) -> bool:
    """Tell whether a result holds overwritten memory with wrong values still in it."""
    ranges = [_range(leaf) for leaf in _memories(out)]
    return any(memory.left() for memory in spoiled if _overlaps(memory.where, ranges))


def _overlaps(one: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    return any(one[0] < end and begin < one[1] for begin, end in others)


def _memories(value: Any) -> Iterator[Any]:
    if type(value) in MAPPINGS:
        for item in dict.values(value):
            yield from _memories(item)
    elif type(value) is list and value and NUMBERS.issuperset(map(type, value)):
        yield value
    elif type(value) is list or issubclass(type(value), tuple):
        for item in list.__iter__(value) if type(value) is list else tuple.__iter__(value):
            yield from _memories(item)
    elif is_tensor(value):
        torch = sys.modules["torch"]
        tensor = torch.Tensor.detach(value)
        if tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested and tensor.numel():
            yield tensor
    elif type(value) in (bytearray, array.array) or is_array(value):
        view = memoryview(value)
        if view.c_contiguous and view.nbytes and not view.readonly:
            yield value


def _spoiled(leaf: Any) -> Optional[Spoiled]:
    if type(leaf) is list:
        return _List(leaf)
    if is_tensor(leaf):
        torch = sys.modules["torch"]
        shared = any(length > 1 and stride == 0 for length, stride in zip(leaf.shape, leaf.stride()))
        if shared or leaf.is_conj() or leaf.is_neg():
            return None
        try:
            return _Tensor(torch, leaf)
        except torch.cuda.OutOfMemoryError:
            return None
    view = memoryview(leaf)
    if view.format not in {*"bBhHiIlLqQefdg?", "Zf", "Zd", "Zg"}:
        return None
    return _Buffer(view.cast("B"), view.format, view.itemsize)


def _range(leaf: Any) -> tuple[int, int]:
    if is_tensor(leaf):
        storage = leaf.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    if type(leaf) is array.array:
        begin, length = leaf.buffer_info()
        return begin, begin + length * leaf.itemsize
    if type(leaf) in (bytearray, list):
        return id(leaf), id(leaf) + 1  # of its own
    begin = leaf.__array_interface__["data"][0]
    return begin, begin + leaf.nbytes
