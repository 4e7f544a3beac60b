"""What captures of the same executions show: whether they launch the same, and which bytes of a launch nobody writes.

Structures of a library's launch lie on the stack, with padding that holds what calls before left there.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import random
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ..maps import pieces
from .memory import HEAP, Destination

WORD = 8
"""Bytes of an address."""
_LIBC = ctypes.PyDLL(None)  # which keeps other threads of Python out
_LIBC.malloc.restype = ctypes.c_void_p
_TOP_PAD, _PAD = -2, 16 << 20
"""M_TOP_PAD of mallopt(3), and bytes."""
_SIZES = *(100 << 10 >> halved for halved in range(7)), *range(1032, 23, -16)
"""From below M_MMAP_THRESHOLD (mallopt(3)) down to each size that glibc's threads cache (malloc.c: TCACHE_MAX_BINS)."""
_MOST = 1 << 16
"""Chunks of one size."""
_QUIET = re.compile(
    "(LOAD|STORE)_(FAST|CONST|GLOBAL|DEREF|CLOSURE)|POP_|COPY|SWAP|DUP_|ROT_|PUSH_NULL|CACHE|RESUME|NOP|JUMP_|PRECALL|"
    "EXTENDED_ARG|KW_NAMES|RETURN_|MAKE_|BUILD_"
)
"""Instructions that call no operator."""


class _Block(ctypes.Structure):
    _fields_ = [("held", ctypes.c_ubyte * (1 << 15))]


def drawing_again(torch: Any) -> Callable[[], None]:
    """Return what resets the host's generators: values that a capture draws must not pass for bytes that nobody
    writes."""
    numpy = sys.modules.get("numpy")
    standard, of_torch = random.getstate(), torch.get_rng_state()
    of_numpy = numpy.random.get_state() if numpy is not None else None

    def again() -> None:
        random.setstate(standard)
        torch.set_rng_state(of_torch)
        if numpy is not None:
            numpy.random.set_state(of_numpy)

    return again


def displace_heap() -> None:
    """Use up what is free of the heap, for good, and go on a random distance behind it. Heap addresses in padding then
    differ between forks, and show, while malloc takes the same ways in each, which leave the same numbers there."""
    heap = [one for one in pieces() if one.path == HEAP]
    if not heap:
        return  # of another malloc
    _LIBC.mallopt(_TOP_PAD, _PAD)
    for size in _SIZES:
        for _ in range(_MOST):
            if not heap[0].begin <= (_allocated(size) or 0) < heap[-1].end:
                break
    _allocated(_SIZES[0] + 16 * random.SystemRandom().randrange(1500))


def _allocated(size: int) -> Optional[int]:
    address: Optional[int] = _LIBC.malloc(ctypes.c_size_t(size))
    return address


@contextlib.contextmanager
def filled(torch: Any, fill: int) -> Iterator[None]:
    """Fill the unused stack with a byte before each instruction of Python: where that byte is in a launch's structures,
    nobody wrote another."""
    block = _Block.from_buffer(bytearray([fill]) * ctypes.sizeof(_Block))

    def trace(frame: Any, event: str, _: Any) -> Any:
        frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = trace, True, False  # in this order, for Python 3.12
        if event == "call" or (event == "opcode" and _works(frame.f_code, frame.f_lasti)):
            _LIBC.getpid(block)  # a structure by value lies on the stack
        return trace

    if torch is not None and "torch._dynamo" in sys.modules:  # which would compile it, too
        trace = torch.compiler.disable(trace)
    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # which Python 3.12 asks as tracing begins
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@functools.lru_cache(maxsize=4096)
def _working(code: Any) -> bytes:
    return bytes(_QUIET.match(dis.opname[one]) is None for one in code.co_code)


def _works(code: Any, at: int) -> bool:
    """Tell whether an instruction may call into C."""
    try:
        return bool(_working(code)[at])
    except TypeError:  # a constant of it cannot be hashed
        return True


class Values(NamedTuple):
    """A launch's."""

    function: str
    parameters: list[bytes]
    addresses: list[dict[int, Destination]]
    """For each parameter, offsets of addresses that the driver knows."""
    own: bool = False
    """The side's own, whose bytes are all somebody's."""
    launch: tuple[Any, ...] = ()
    """Grid, block, bytes of dynamic shared memory."""


class Capture(NamedTuple):
    """What a capture launches; None where it cannot be read."""

    launches: list[Optional[Values]]
    besides: list[object]
    """What else each node is, and what waits for what."""
    fill: Optional[int] = None
    """The byte that filled the stack before."""

    def unplaced(self) -> Capture:
        """Return it without places in the graph's own memory."""

        def moved(one: Any) -> Any:
            return one._replace(offset=0) if isinstance(one, Destination) and one.inside else one

        return self._replace(
            besides=[moved(one) for one in self.besides],
            launches=[
                one and one._replace(addresses=[{at: moved(to) for at, to in of.items()} for of in one.addresses])
                for one in self.launches
            ],
        )


class Padding(NamedTuple):
    """Of a parameter."""

    none: set[int]
    """Words that only look like addresses."""
    unwritten: set[int]
    """Bytes that nobody writes."""


NO_PADDING = Padding(set(), set())


def padding_of(captures: Sequence[Capture]) -> list[Optional[list[Padding]]]:
    """Return the padding of each launch's parameters, None where nothing may be left out; nothing where launches cannot
    be matched. Bytes that hold what filled the stack, another byte each time, are written by nobody. A word that is an
    address in only some captures is none."""
    fills = [one.fill for one in captures]
    if len({len(one.launches) for one in captures}) != 1 or len({*fills} - {None}) < 2:
        return []
    found: list[Optional[list[Padding]]] = []
    for same in zip(*(one.launches for one in captures)):
        several = [one for one in same if one is not None and not one.own]
        shapes = {(one.function, tuple(map(len, one.parameters))) for one in several}
        if len(several) < len(captures) or len(shapes) != 1:
            found.append(None)
            continue
        parts = []
        for index, value in enumerate(several[0].parameters):
            always = set.intersection(*(set(one.addresses[index]) for one in several))
            free = set(range(len(value))).difference(*(range(at, at + WORD) for at in always))
            filled = [(fill, one.parameters[index]) for fill, one in zip(fills, several) if fill is not None]
            unwritten = {at for at in free if all(held[at] == fill for fill, held in filled)}
            none = set().union(*(one.addresses[index] for one in several)) - always
            parts.append(Padding(none, unwritten))
        found.append(parts)
    return found


def why_unsteady(captures: Sequence[Capture]) -> str:
    """Return how captures of the same executions differ, which the timed ones may do as well; empty if they do not.
    The first finds no memory in its place."""
    return _differing([one.unplaced() for one in captures[:2]]) or _differing(captures[1:])


def _differing(captures: Sequence[Capture]) -> str:
    fills = [one.fill for one in captures]
    if any(one.besides != captures[0].besides for one in captures):
        return "what it gives the GPU differs from capture to capture"
    for same in zip(*(one.launches for one in captures)):
        several = [one for one in same if one is not None]
        if len({(one.function, one.launch, tuple(map(len, one.parameters))) for one in several}) > 1:
            return f"kernel {several[0].function}: its launch differs from capture to capture"
        for index in range(len(several[0].parameters) if several else 0):
            known = [one.addresses[index] for one in several]
            addresses = set.intersection(*map(set, known))
            if any(len({one[at] for one in known}) > 1 for at in addresses):
                return f"kernel {several[0].function}: its parameter {index} leads elsewhere from capture to capture"
            if not several[0].own:
                continue
            # What fills the stack is in the padding of own structures, too.
            plain = [bytearray(one.parameters[index]) for one, fill in zip(same, fills) if one and fill is None]
            for value in plain:
                for at in addresses:
                    value[at : at + WORD] = bytes(WORD)
            if any(value != plain[0] for value in plain):
                return f"kernel {several[0].function}: its parameter {index} differs from capture to capture"
    return ""
