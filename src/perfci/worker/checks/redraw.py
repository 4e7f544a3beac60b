"""New values for a case's inputs in the same memory: a memo of earlier results does not survive them.

A case is set up twice more, from its own seed and from another. What function and reference can reach and what differs
between the two follows from the draw: the function that has run gets the other values. The rest, such as a flag, a
counter or an empty store, stays: a memo would be there.
"""

from __future__ import annotations

import array
import collections
import functools
import sys
import types
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from ..bench import Bench, Prepared
from .kinds import content, has_no_state, is_python_class, names_of, names_something, slot_of, slots
from .plain import ATOMS, MAPPINGS, bits, is_ndarray, is_tensor, out_of_memory
from .saved import OpaqueGraph, kept, nodes

MOST = 50_000
NO_ROOM = "there is no room for its inputs three times"
HOST_BYTES = 2**30
"""A case that drew more on the host is not set up again, lest memory runs out."""
ADDRESSES = range(2**40, 2**48)
"""Where 64-bit systems map memory; data are seldom as large. The heap of a position-dependent program, as Debian's
Python, lies below: only pointers into a draw count there."""
_CALLABLES = (types.BuiltinMethodType, type("".__str__))
_PARTS = {
    "sparse_coo": ("_indices", "_values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


class Unpaired(Exception):
    """Why inputs cannot be redrawn, as one line."""


class _Images(NamedTuple):
    """A place's content for each draw; one object twice for no change."""

    own: Any
    other: Any

    @property
    def differ(self) -> bool:
        return self.own is not self.other


class Redraw:
    """What follows from a prepared case's draw, with the values of two draws."""

    def __init__(self, target: Prepared, own: Prepared, other: Prepared) -> None:
        """`own`, `other`: set up from its draw and from another, never called. Raises Unpaired."""
        self.own, self.other = own, other
        self._tensors: list[tuple[Any, Any, Any]] = []
        self._changes: list[tuple[Callable[[Any], None], _Images]] = []
        self._seen: dict[int, tuple[Any, ...]] = {}
        """id → the triple, kept alive so that no id is reused."""
        self._addresses: list[tuple[int, int]] = []
        self._ranges: tuple[list[range], list[range]] = ([], [])
        drawn = [[one.tensor for one in made.bench._drawn] for made in (target, own, other)]
        if len({len(tensors) for tensors in drawn}) > 1:
            raise Unpaired("how many tensors it draws depends on their values")
        for tensors in zip(*drawn):
            self._pair(*tensors)
        references = [made.bench.declared_reference() for made in (target, own, other)]
        for trio in ([made.raw for made in (target, own, other)], [one and one.raw for one in references]):
            if self._pair(*trio).differ:
                raise Unpaired("what it returns to be timed differs from draw to draw")
        for addresses in self._addresses:
            for address, ranges in zip(addresses, self._ranges):
                if not any(address in one for one in ranges):
                    raise Unpaired("it keeps a number that may be an address")

    @property
    def changes(self) -> bool:
        """True where anything follows from the draw."""
        return bool(self._tensors or self._changes)

    @property
    def on_device(self) -> bool:
        """True where replays of a graph read all of it from the GPU."""
        return not self._changes and all(target.device.type == "cuda" for target, _, _ in self._tensors)

    def apply(self, other: bool) -> None:
        """Write the values of a draw, without a new version of any tensor."""
        for target, *values in self._tensors:
            _copy(target, values[other])
        for put, images in self._changes:
            put(images.other if other else images.own)

    def release(self) -> None:
        """Release the memory of both draws."""
        self._tensors.clear()
        self._changes.clear()
        self._seen.clear()
        for made in (self.other, self.own):  # the last first: their scripts stand in one another
            made.bench.release()

    # ---------------------------------------------------------------- pairing

    def _pair(self, target: Any, own: Any, other: Any) -> _Images:
        kind = type(own)
        if own is other:
            return _Images(target, target)
        if not _alike(type(other), kind):
            raise Unpaired(f"it keeps a {kind.__name__} in one draw and a {type(other).__name__} in another")
        if kind in ATOMS or kind in (range, slice, frozenset) or names_something(kind):
            return self._pair_atoms(target, own, other)
        if kind is types.CodeType and own == other:
            return _Images(target, target)
        if issubclass(kind, type) and _alike(own, other):
            return self._pair_classes(target, own, other)
        if not _alike(type(target), kind):
            raise Unpaired(f"its calls put a {type(target).__name__} in the place of a {kind.__name__}")
        if id(target) in self._seen:
            _, seen_own, seen_other = self._seen[id(target)]
            if seen_own is not own or seen_other is not other:
                raise Unpaired("what shares memory in one draw does not in another")
            return _Images(target, target)
        if issubclass(kind, tuple):
            return self._pair_tuples(target, own, other)
        self._seen[id(target)] = (target, own, other)
        if len(self._seen) > MOST:
            raise Unpaired(f"it keeps more than {MOST} objects")
        self._descend(kind, target, own, other)
        return _Images(target, target)

    def _descend(self, kind: type, target: Any, own: Any, other: Any) -> None:
        if is_tensor(target):
            self._pair_saved(target, own, other)
            self._pair_tensors(*(sys.modules["torch"].Tensor.detach(one) for one in (target, own, other)))
        elif kind in (list, collections.deque):
            self._pair_lists(target, own, other)
        elif kind in MAPPINGS:
            self._pair_dicts(target, own, other)
        elif kind is set:
            self._pair_sets(target, own, other)
        elif kind in (bytearray, array.array) or is_ndarray(target):
            self._pair_buffers(target, own, other)
        elif kind is types.FunctionType:
            self._pair_functions(target, own, other)
        elif kind is types.MethodType:
            self._require_same(self._pair(target.__func__, own.__func__, other.__func__), "method")
            self._require_same(self._pair(target.__self__, own.__self__, other.__self__), "method")
        elif kind in _CALLABLES:
            if own.__name__ != other.__name__:
                raise Unpaired("it keeps one method in one draw and another in another")
            self._require_same(self._pair(target.__self__, own.__self__, other.__self__), "method")
        elif kind is functools.partial:
            for part in ("func", "args", "keywords"):
                images = self._pair(*(getattr(one, part) for one in (target, own, other)))
                self._require_same(images, "functools.partial")
        elif kind is functools._lru_cache_wrapper:  # what it has stored is a memo
            self._pair(target.__wrapped__, own.__wrapped__, other.__wrapped__)
        elif is_python_class(kind):
            self._pair_instances(kind, target, own, other)
        elif not has_no_state(kind):
            raise Unpaired(f"it keeps a {kind.__name__}, which cannot be read")

    def _put(self, put: Callable[[Any], None], target: Any, own: Any, other: Any) -> None:
        images = self._pair(target, own, other)
        if images.differ:
            self._changes.append((put, images))

    def _require_same(self, images: _Images, where: str) -> None:
        if images.differ:
            raise Unpaired(f"a {where} that it keeps cannot be changed")

    def _pair_atoms(self, target: Any, own: Any, other: Any) -> _Images:
        if own == other:
            return _Images(target, target)
        if self._are_address(own, other):
            self._addresses.append((own, other))  # of its own memory, which stays where it is
            return _Images(target, target)
        return _Images(own, other)

    def _pair_tuples(self, target: Any, own: Any, other: Any) -> _Images:
        kind, trio = type(own), [list(tuple.__iter__(one)) for one in (target, own, other)]
        if len({len(items) for items in trio}) > 1:
            if all(ATOMS.issuperset(map(type, items)) for items in trio):
                return _Images(own, other)
            raise Unpaired("how much it keeps depends on the values that it draws")
        images = [self._pair(*items) for items in zip(*trio)]
        if not any(one.differ for one in images):
            return _Images(target, target)
        made = ([one.own for one in images], [one.other for one in images])
        if kind is tuple or hasattr(kind, "_make"):
            return _Images(*(tuple.__new__(kind, items) for items in made))
        raise Unpaired(f"it keeps a {kind.__name__}, which cannot be changed")

    def _pair_lists(self, target: Any, own: Any, other: Any) -> None:
        trio = [list(one) for one in (target, own, other)]
        _, mine, theirs = trio
        if ATOMS.issuperset(map(type, mine)) and ATOMS.issuperset(map(type, theirs)):
            if mine != theirs and not self._are_addresses(mine, theirs):
                self._changes.append((functools.partial(_refill, target), _Images(mine, theirs)))
            return
        if len(mine) != len(theirs) or len(trio[0]) < len(mine):
            raise Unpaired("how much it keeps depends on the values that it draws")
        images = [self._pair(*items) for items in zip(*trio)]
        if any(one.differ for one in images):
            contents = _Images([one.own for one in images], [one.other for one in images])
            self._changes.append((functools.partial(_refill, target), contents))

    def _are_address(self, own: Any, other: Any) -> bool:
        """Both must be addresses, each of its own draw's memory."""
        if not type(own) is type(other) is int:
            return False
        if own in ADDRESSES and other in ADDRESSES:
            return True
        return all(any(one in known for known in ranges) for one, ranges in zip((own, other), self._ranges))

    def _are_addresses(self, own: Sequence[Any], other: Sequence[Any]) -> bool:
        """They differ in addresses only. Raises Unpaired if in part."""
        differing = [(a, b) for a, b in zip(own, other) if a != b]
        found = [(a, b) for a, b in differing if self._are_address(a, b)]
        if not found:
            return False
        if len(found) < len(differing) or len(own) != len(other):
            raise Unpaired("it keeps numbers of which some may be addresses")
        self._addresses += found
        return True

    def _pair_dicts(self, target: Any, own: Any, other: Any) -> None:
        if not all(type(key) in ATOMS or issubclass(type(key), type) for key in (*own, *other)):
            raise Unpaired("it keeps a dict whose keys are neither text nor numbers")
        if own.keys() != other.keys():
            if not all(ATOMS.issuperset(map(type, one.values())) for one in (own, other)):
                raise Unpaired("the keys of a dict that it keeps depend on the values that it draws")
            self._changes.append((functools.partial(_refill, target), _Images(dict(own), dict(other))))
            return
        for key in own:
            if own[key] is other[key]:
                continue
            if key not in target:
                raise Unpaired("its calls remove from a dict what the set-up has put there")
            self._put(functools.partial(target.__setitem__, key), target[key], own[key], other[key])

    def _pair_sets(self, target: Any, own: Any, other: Any) -> None:
        if not all(ATOMS.issuperset(map(type, one)) for one in (own, other)):
            raise Unpaired("it keeps a set of more than text and numbers")
        if own != other:
            self._changes.append((functools.partial(_refill, target), _Images(set(own), set(other))))

    def _pair_buffers(self, target: Any, own: Any, other: Any) -> None:
        if is_ndarray(target):
            if not (target.shape == own.shape == other.shape and own.dtype == other.dtype) or own.dtype.kind == "O":
                raise Unpaired("an array that it keeps differs in shape or type from draw to draw")
            if own.tobytes() == other.tobytes():
                return
            if not target.flags.writeable:
                raise Unpaired("it keeps an array that cannot be written")
            if own.dtype.kind in "iu" and own.dtype.itemsize == 8 and self._hold_addresses(own, other):
                return
            self._changes.append((functools.partial(target.__setitem__, ...), _Images(own, other)))
        elif len(target) != len(own) or bytes(own) != bytes(other):
            self._changes.append((functools.partial(_refill, target), _Images(own, other)))

    def _pair_functions(self, target: Any, own: Any, other: Any) -> None:
        scripted = own.__globals__.get("__name__") == "__main__"  # which each run compiles anew
        codes = [one.__code__ for one in (target, own, other)]
        if not (codes[0] is codes[1] is codes[2] or (scripted and codes[0] == codes[1] == codes[2])):
            raise Unpaired("it makes functions of its own in each set-up")
        compiled = "_torchdynamo_orig_callable"
        if compiled in vars(own):  # what torch.compile has made: its caches hold code
            self._pair(*(vars(one).get(compiled) for one in (target, own, other)))
            return
        for cells in zip(*(one.__closure__ or () for one in (target, own, other))):
            self._put(functools.partial(setattr, cells[0], "cell_contents"), *map(content, cells))
        for name in ("__defaults__", "__kwdefaults__"):
            self._put(functools.partial(setattr, target, name), *(getattr(one, name) for one in (target, own, other)))
        self._pair_dicts(*(vars(one) for one in (target, own, other)))
        if own.__globals__ is not other.__globals__ and scripted:
            self._pair_names(names_of(own.__code__), target.__globals__, own.__globals__, other.__globals__)

    def _pair_classes(self, target: Any, own: Any, other: Any) -> _Images:
        """Of a script, whose runs define each its own."""
        if id(target) not in self._seen:
            self._seen[id(target)] = (target, own, other)
            for name in vars(own).keys() & vars(other).keys() & vars(target).keys():
                if not name.startswith("__") and (is_tensor(vars(own)[name]) or type(vars(own)[name]) in ATOMS):
                    self._require_same(self._pair(*(vars(one)[name] for one in (target, own, other))), "class")
        return _Images(target, target)

    def _pair_names(self, names: set[str], target: Any, own: Any, other: Any) -> None:
        for name in sorted(names & target.keys() & own.keys() & other.keys()):
            code = type(own[name]).__module__.startswith(("triton.runtime.", "triton.language."))
            if not code and not isinstance(own[name], types.ModuleType):
                self._put(functools.partial(target.__setitem__, name), target[name], own[name], other[name])

    def _pair_instances(self, kind: type, target: Any, own: Any, other: Any) -> None:
        if kind is Bench:
            return  # what it has drawn is known
        if (kind.__module__, kind.__name__) == ("torch._dynamo.eval_frame", "OptimizedModule"):
            self._pair(*(one._orig_mod for one in (target, own, other)))
            return
        if hasattr(own, "__dict__"):
            self._pair_dicts(*(vars(one) for one in (target, own, other)))
        for some in zip(*(slots(type(one)) for one in (target, own, other))):
            self._put(functools.partial(some[0].__set__, target), *map(slot_of, some, (target, own, other)))

    def _pair_saved(self, target: Any, own: Any, other: Any) -> None:
        try:
            graphs = [nodes(one) for one in (target, own, other)]
            if len({tuple(map(_maker, graph)) for graph in graphs}) > 1:
                raise Unpaired("it keeps a graph of autograd that depends on the values that it draws")
            new = [trio for trio in zip(*graphs) if id(trio[0]) not in self._seen]
            self._seen.update((id(trio[0]), trio) for trio in new)  # first: what a node keeps may lead back here
            for trio in new:
                for values in zip(*(kept(node).values() for node in trio)):
                    self._require_same(self._pair(*values), "graph of autograd")
        except OpaqueGraph as error:
            raise Unpaired(f"it keeps {error}") from None

    def _pair_tensors(self, target: Any, own: Any, other: Any) -> None:
        torch, trio = sys.modules["torch"], (target, own, other)
        if len({(one.shape, one.dtype, one.device, one.layout, one.is_quantized) for one in trio}) > 1:
            shapes = " and ".join(str(list(one.shape)) for one in (own, other))
            raise Unpaired(f"tensors that it keeps differ in shape or type from draw to draw: {shapes}")
        parts = _PARTS.get(str(own.layout).rpartition(".")[2])
        if parts is not None:
            for part in parts:
                self._pair_tensors(*(getattr(one, part)() for one in trio))
            return
        places = own.device.type in ("cpu", "cuda")
        if own.layout != torch.strided or own.is_quantized or own.is_nested or not places:
            raise Unpaired("it keeps a tensor whose values cannot be replaced")
        if own.stride() != other.stride() or own.is_conj() != other.is_conj() or own.is_neg() != other.is_neg():
            raise Unpaired("tensors that it keeps differ in layout from draw to draw")
        for one, ranges in zip((own, other), self._ranges):
            storage = one.untyped_storage()
            ranges.append(range(storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        if not own.numel() or _equal(own, other):
            return
        if own.dtype == torch.int64 and self._hold_addresses(own, other):
            return
        self._tensors.append(trio)

    def _hold_addresses(self, own: Any, other: Any) -> bool:
        differing = own != other
        both = differing
        for one, ranges in zip((own, other), self._ranges):
            inside = (one >= ADDRESSES.start) & (one < ADDRESSES.stop)
            for known in ranges:
                inside = inside | ((one >= known.start) & (one < known.stop))
            both = both & inside
        if not bool(both.any()):
            return False
        if bool((differing & ~both).any()):
            raise Unpaired("it keeps numbers of which some may be addresses")
        self._addresses += zip(own[both].tolist(), other[both].tolist())
        return True


def set_up(target: Prepared) -> Redraw:
    """Set up the case twice more, and pair all three. Raises Unpaired, and what the set-up raises."""
    drawn = [one.tensor for one in target.bench._drawn]
    if sum(one.numel() * one.element_size() for one in drawn if one.device.type == "cpu") > HOST_BYTES:
        raise Unpaired(f"it draws more than {HOST_BYTES // 2**20} MiB on the host")
    own = other = None
    try:
        own = target.again(False)
        # Last, as what it may leave behind in modules is then of the draw whose values are written next.
        other = target.again(True)
        return Redraw(target, own, other)
    except Exception as error:
        for made in filter(None, (other, own)):
            made.bench.release()
        if out_of_memory(error):
            raise Unpaired(NO_ROOM) from None
        raise


# ---------------------------------------------------------------- writing


def _refill(target: Any, items: Any) -> None:
    if isinstance(target, (dict, set)):
        target.clear()
        target.update(items)
    elif isinstance(target, collections.deque):
        target.clear()
        target.extend(items)
    else:
        target[:] = items


def _copy(target: Any, source: Any) -> None:
    torch = sys.modules["torch"]
    for axis, (length, stride) in enumerate(zip(source.shape, target.stride())):
        if stride == 0 and length > 1:  # expanded: its elements share memory
            target, source = target.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    # `data` has a version of its own: a memo that goes by the version of its input must not see it rise. What was made
    # in inference mode has none, and can be written only in it.
    with torch.inference_mode() if target.is_inference() else torch.no_grad():
        (target if target.is_inference() else target.data).copy_(source)


def _alike(one: type, two: type) -> bool:
    if one is two:
        return True
    script = getattr(one, "__module__", "") == getattr(two, "__module__", "") == "__main__"
    return script and one.__qualname__ == two.__qualname__


def _maker(node: Any) -> Any:
    made: Any = getattr(type(node), "_forward_cls", None)
    return made.__qualname__ if getattr(made, "__module__", "") == "__main__" else type(node)


def _equal(one: Any, two: Any) -> bool:
    one, two = (bits(each.resolve_conj().resolve_neg()) for each in (one, two))
    return bool(sys.modules["torch"].equal(one, two))
