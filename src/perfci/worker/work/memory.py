"""The memory that a graph's nodes name: each allocation by first use, with a digest of its content.

Addresses differ between processes; allocation, offset, alignment and content can be compared.
"""

from __future__ import annotations

import bisect
import ctypes
import hashlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

from ..maps import pieces
from .driver import Driver

ALIGNED = 512
"""Bytes of torch's alignment; kernels and libraries ask for no more."""
_WORD = 8
_NAMES = ":names addresses"
_CHUNK = 1 << 22
"""Words of 8 bytes: 32 MiB."""
_MULTIPLY = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_SPREAD = -0x61C8864680B583EB
"""Of SplitMix64 (Steele, Lea, Flood 2014), signed. A digest against chance, not against intent."""
_GAP, _MOST_LIKELY = 1 << 30, 1000
"""Bytes between mappings that are taken as one. All that the driver knows lies in mappings of this process, to which
about one random word in 2^25 points."""
_SMALL = 1 << 16
"""Bytes up to which a copy to the host is digested faster."""
_LARGEST = 8 << 30
"""Bytes: a second of an H200."""
_LEAST_ADDRESS = 1 << 20
"""Smaller words are numbers."""
HEAP = "[heap]"
"""In the kernel's list of mappings; near zero where the interpreter is not position-independent."""
_LEAST_PAIR, _BELOW = 1 << 42, 1 << 36
"""Below the first lie mappings of the driver's own, to which pairs of small numbers of 4 bytes point; where torch's
memory does, too, others' may so many bytes below it."""


class Destination(NamedTuple):
    """Where an address leads to, comparable from capture to capture."""

    inside: bool
    """It lies in the graph's own memory, which each capture has elsewhere."""
    offset: int
    """In its block there, else the address; bytes."""


class Memory:
    """The named allocations, in order."""

    def __init__(self, torch: Any, driver: Driver, pool: tuple[int, int], *, contents: bool = True) -> None:
        """`pool`: the graph's own memory, without results before a replay."""
        self.contents = contents
        self.torch, self.driver, self.pool = torch, driver, tuple(pool)
        self.listed: list[dict[str, Any]] = []
        self.numbers: dict[int, int] = {}
        """First address → number in `listed`."""
        self.found: dict[int, Optional[tuple[int, int, int]]] = {}
        self.known: dict[int, bool] = {}
        segments = torch.cuda.memory_snapshot()
        self.segments = sorted(
            ((one["address"], one["address"] + one["total_size"], one) for one in segments), key=lambda one: one[0]
        )
        self.begins = [begin for begin, _, _ in self.segments]
        self.shared = driver.shares_host_memory(torch.cuda.current_device())
        """The GPU follows any host address: that is data then."""
        self.mapped = sorted(pieces())
        low = min([_LEAST_PAIR, *(begin - _BELOW for begin in self.begins[:1])])
        own = [(begin, end) for begin, end, _ in self.segments]
        self.bounds = _bounds(sorted([*own, *((one.begin, one.end) for one in self.mapped if one.begin >= low)]))

    def of_host(self, address: int) -> Optional[tuple[str, int]]:
        """Return where a word leads to, if it is an address of this process's memory, and may also be a number: in a
        mapped file path and offset, else an empty path."""
        at = bisect.bisect_right(self.mapped, (address, float("inf"))) - 1
        if at < 0 or address >= self.mapped[at].end:
            return None
        piece = self.mapped[at]
        if address < _LEAST_PAIR and piece.path != HEAP:
            return None
        return (piece.path, piece.offset + address - piece.begin) if piece.path.startswith("/") else ("", 0)

    def is_known(self, address: int) -> bool:
        """Tell whether the driver knows an address."""
        if address not in self.known:
            self.known[address] = address >= _LEAST_ADDRESS and self.driver.memory(address) is not None
        return self.known[address]

    def destination(self, address: int) -> Destination:
        """Return where an address leads to."""
        block = self._block(address)
        inside = block is not None and block[0] == "of the graph"
        return Destination(inside, address - block[1] if inside and block is not None else address)

    def find(self, address: int) -> Optional[tuple[int, int, int]]:
        """Return the allocation's number, the offset and the alignment, or None."""
        if address < _LEAST_ADDRESS:
            return None
        if address not in self.found:
            self.found[address] = self._find(address)
        return self.found[address]

    def _find(self, address: int) -> Optional[tuple[int, int, int]]:
        seen = self.driver.memory(address)
        if seen is None:
            return None
        kind, begin, end = seen
        if kind == "device" and not self.driver.is_plain(address):
            kind = "mapped"  # or of a pool of its own
        block = self._block(address) if kind == "device" else None
        if block is not None:
            kind, begin, end = block
        if begin not in self.numbers:
            self.numbers[begin] = len(self.listed)
            self.listed.append({"kind": kind, "bytes": end - begin, "digest": self._digest(kind, begin, end)})
        return self.numbers[begin], address - begin, min(address & -address, ALIGNED)

    def _block(self, address: int) -> Optional[tuple[str, int, int]]:
        at = bisect.bisect_right(self.begins, address) - 1
        if at < 0 or address >= self.segments[at][1]:
            return None
        begin, _, segment = self.segments[at]
        private = tuple(segment.get("segment_pool_id", (0, 0))) == self.pool
        for block in segment["blocks"]:
            end = begin + block["size"]
            if begin <= address < end:
                if private:
                    return "of the graph", begin, end
                if block["state"] != "active_allocated":
                    return "freed", begin, end
                return "tensor", begin, begin + (block.get("requested_size") or block["size"])
            begin = end
        return None

    def _digest(self, kind: str, begin: int, end: int) -> str:
        if not self.contents or end - begin > _LARGEST:
            return ""
        if kind in ("tensor", "device"):
            return self.digest(begin, end - begin)
        return self._held(ctypes.string_at(begin, end - begin)) if kind == "host" else ""

    def digest(self, begin: int, size: int) -> str:
        """Return a digest of device memory, with a mark where a word of it is an address."""
        if size <= _SMALL:
            held = self._view(begin, size, "|u1").cpu() if size else None
            return self._held(ctypes.string_at(held.data_ptr(), size) if held is not None else b"")
        torch = self.torch
        whole = size // _WORD
        sums = [0, 0]
        names = False
        for first in range(0, whole, _CHUNK):
            words = self._view(begin + first * 8, min(_CHUNK + 1, whole - first), "<i8")
            pairs, likely = self._likely(words)
            words = words[:_CHUNK]
            place = torch.arange(first, first + words.numel(), device="cuda", dtype=torch.int64)
            parts = [likely.sum()]
            for number, multiply in enumerate(_MULTIPLY):
                mixed = (words + place * _SPREAD) * multiply
                mixed = (mixed ^ (mixed >> 31)) * _MULTIPLY[1 - number]
                parts.append((mixed ^ (mixed >> 29)).sum())
            some, *found = torch.stack(parts).tolist()  # the one wait for a GPU that other processes use, too
            sums = [one + more for one, more in zip(sums, found)]
            names = names or (some > 0 and self._names(pairs[likely]))
        rest = b""
        if beside := size % _WORD:
            tail = bytes(self._view(begin + size - beside - _WORD, _WORD + beside, "|u1").tolist())
            names, rest = names or self._named(tail), tail[_WORD:]
        text = ":".join([*(f"{one % (1 << 64):016x}" for one in sums), rest.hex(), str(size)])
        return text + (_NAMES if names else "")

    def _held(self, held: bytes) -> str:
        return hashlib.sha256(held).hexdigest() + (_NAMES if self._named(held) else "")

    def _named(self, held: bytes) -> bool:
        for first in range(0, len(held), _CHUNK * _WORD):
            part = held[first : first + (_CHUNK + 1) * _WORD]
            whole = self.torch.frombuffer(bytearray(part + bytes(-len(part) % _WORD)), dtype=self.torch.int64)
            pairs, likely = self._likely(whole)
            if self._names(pairs[likely]):
                return True
        return False

    def _likely(self, words: Any) -> tuple[Any, Any]:
        """Return each 8 bytes at a multiple of 4, and whether memory of this process is mapped there."""
        odd = ((words[:-1] >> 32) & 0xFFFFFFFF) | (words[1:] << 32)
        pairs = self.torch.cat([words, odd])
        bounds = self.torch.tensor(self.bounds, dtype=self.torch.int64, device=words.device)
        return pairs, self.torch.bucketize(pairs, bounds, right=True) % 2 == 1

    def _names(self, likely: Any) -> bool:
        """Tell whether one is an address that the driver knows, or there are too many to ask."""
        several = likely.unique()
        return several.numel() > _MOST_LIKELY or any(self.driver.memory(one) is not None for one in several.tolist())

    def _view(self, address: int, count: int, kind: str) -> Any:
        """Without a copy (CUDA Array Interface 3)."""
        interface = {"shape": (count,), "typestr": kind, "data": (address, False), "version": 3}
        return self.torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device="cuda")


def _bounds(mapped: Sequence[tuple[int, int]]) -> list[int]:
    """Return begins and ends of mappings, in turns."""
    bounds: list[int] = []
    for begin, end in mapped:
        if end >= 1 << 63:  # the kernel's
            continue
        if bounds and begin - bounds[-1] <= _GAP:
            bounds[-1] = max(bounds[-1], end)
        else:
            bounds += [begin, end]
    return bounds
