"""The work list of a case: what the timed graph launches, and on which memory."""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import hashlib
import json
import os
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from ..gpu import WARM_CALLS
from ..graph import GraphSampler
from ..proof.flags import flags
from .driver import CHILD, COPY, EMPTY, KERNEL, MEMSET, NODE_KINDS, CopyParams, Driver, KernelParams, OpaqueWork
from .elf import demangled
from .images import Images
from .memory import HEAP, Memory

_WORD = 8
_MOST_NODES = 20_000
MOST_TITLE = 20_000
_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype = ctypes.c_void_p
_CACHED, _CHUNKS = range(24, 1033, 16), 7
"""Sizes that a thread of glibc caches free chunks of, and how many of each (malloc.c: TCACHE_MAX_BINS,
TCACHE_FILL_COUNT)."""
_QUIET = re.compile(
    "(LOAD|STORE)_(FAST|CONST|GLOBAL|DEREF|CLOSURE)|POP_|COPY|SWAP|DUP_|ROT_|PUSH_NULL|CACHE|RESUME|NOP|JUMP_|PRECALL|"
    "EXTENDED_ARG|KW_NAMES|RETURN_|MAKE_|BUILD_"
)
"""Instructions that call no operator."""


class _Block(ctypes.Structure):
    _fields_ = [("held", ctypes.c_ubyte * (1 << 15))]


FILE = "work-{}.json"


class Record:
    """The work lists of one case, one for each draw of its inputs."""

    def __init__(self, images: Images, folder: Path, own: Sequence[str]) -> None:
        """`own`: folders of the side's own libraries. Raises OpaqueWork."""
        self.driver, self.images, self.folder, self.own = Driver(), images, folder, own
        self.number = 0
        self.launches: list[Any] = []
        self.padding: list[Optional[list[_Padding]]] = []
        self.known: dict[int, _Function] = {}

    def add(self, fns: Sequence[Callable[[], Any]], batch: int, *, last: bool) -> None:
        """Write the work list of a graph of `batch` executions, a multiple of the number of `fns`, to FILE in the
        folder, and each image that may be the side's own to a file named by its SHA-256. `unread` lists what cannot be
        read.

        Process settings are those behind the `last` draw. Only the first draw shows parameter bytes that nobody
        writes, and whether one capture launches what another does. Raises OpaqueWork, what capture raises, OSError.
        """
        self.known.clear()  # a handle may be another function's by now
        sampler = GraphSampler(fns)
        with self.images.listened():
            for fn in [*[fns[0]] * (0 if self.number else WARM_CALLS), *fns]:  # as a pair's first placement and others
                fn()
        sampler.rig.synchronize()  # not the case's, so not listened to
        sampler.rig.forget_pool()  # where blocks lie in it would hang on the cases before
        torch, pool = sampler.rig.torch, sampler.rig.pool
        redraw = drawing_again(torch)
        captures: list[_Capture] = []
        fills: list[Optional[int]] = (
            [None] if self.number else [None, *random.SystemRandom().sample(range(256), 2), None]
        )
        if not self.number:
            redraw()
            displace_heap()
            _captured(sampler, batch)  # whose memory the others find in its place
        for turn, fill in enumerate(fills, 1):
            redraw()
            displace_heap()
            with contextlib.nullcontext() if fill is None else _filled(torch, fill):
                graph = _captured(sampler, batch)
            memory = Memory(torch, self.driver, pool, contents=turn == len(fills))
            recorder = _Recorder(self.driver, self.images, memory, self.own, self.known)
            captures.append(_Capture(list(recorder.values(graph)), list(recorder.besides(graph)), fill))
        launches = [
            None if one is None else (one.function, [*map(len, one.parameters)]) for one in captures[0].launches
        ]
        if not self.number:
            self.launches, self.padding = launches, _padding(captures)
        if why := _unsteady(captures):
            recorder.unread.add(why)
        recorder.padding = self.padding if launches == self.launches else []
        found = recorder.graph(graph)
        for digest in recorder.images_of_own:
            (self.folder / digest).write_bytes(self.images.held[digest])
        written = {
            **found,
            "memory": recorder.memory.listed,
            "variables": recorder.variables(),
            "context": self.driver.context(),
            "settings": self._settings() if last else {},
            "executions": batch,
            "unread": sorted(recorder.unread),
        }
        (self.folder / FILE.format(self.number)).write_text(json.dumps(written), encoding="utf-8")
        self.number += 1

    def _settings(self) -> dict[str, str]:
        side = os.path.dirname(self.own[0])
        told = {name: repr(value).replace(side, "") for name, value in flags().items()}
        return {name: hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() for name, text in told.items()}


def _captured(sampler: GraphSampler, batch: int) -> int:
    try:
        # Whatever set's result is kept in a timed graph, the same one is here: the memory of the others is used again.
        sampler.capture(batch, keep=True, kept=0)
    except TypeError as error:
        raise OpaqueWork("this torch does not keep the graph that it captures") from error
    if not hasattr(sampler.graph, "raw_cuda_graph"):
        raise OpaqueWork("this torch does not tell the graph that it captures")
    sampler.rig.synchronize()
    return int(sampler.graph.raw_cuda_graph())


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
    """Leave other chunks to each fork, and as many: heap addresses in padding then differ between forks, and show,
    while glibc takes the same ways, which leave the same numbers there."""
    for size in _CACHED:
        chunks = [_LIBC.malloc(ctypes.c_size_t(size)) for _ in range(2 * _CHUNKS)]
        for chunk in random.SystemRandom().sample(chunks, _CHUNKS):
            _LIBC.free(ctypes.c_void_p(chunk))


@contextlib.contextmanager
def _filled(torch: Any, fill: int) -> Iterator[None]:
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
    return bool(_working(code)[at])


class _Values(NamedTuple):
    function: str
    parameters: list[bytes]
    addresses: list[dict[int, tuple[bool, int]]]
    """For each parameter, offsets of addresses that the driver knows, and where they lead to (`Memory.settled`)."""
    own: bool = False
    """The side's own, whose bytes are all somebody's."""
    launch: tuple[Any, ...] = ()
    """Grid, block, bytes of dynamic shared memory."""


class _Capture(NamedTuple):
    launches: list[Optional[_Values]]
    besides: list[object]
    """What else each node is, and what waits for what."""
    fill: Optional[int] = None
    """The byte that filled the stack before."""


class _Padding(NamedTuple):
    """Of a parameter."""

    none: set[int]
    """Words that only look like addresses."""
    unwritten: set[int]
    """Bytes that nobody writes."""


_NO_PADDING = _Padding(set(), set())


def _padding(captures: Sequence[_Capture]) -> list[Optional[list[_Padding]]]:
    """Return the padding of each launch's parameters, None where nothing may be left out; nothing where launches cannot
    be matched. Bytes that hold what filled the stack, another byte each time, are written by nobody. A word that is an
    address in only some captures is none."""
    fills = [one.fill for one in captures]
    if len({len(one.launches) for one in captures}) != 1 or len({*fills} - {None}) < 2:
        return []
    found: list[Optional[list[_Padding]]] = []
    for same in zip(*(one.launches for one in captures)):
        several = [one for one in same if one is not None and not one.own]
        shapes = {(one.function, tuple(map(len, one.parameters))) for one in several}
        if len(several) < len(captures) or len(shapes) != 1:
            found.append(None)
            continue
        parts = []
        for index, value in enumerate(several[0].parameters):
            always = set.intersection(*(set(one.addresses[index]) for one in several))
            free = set(range(len(value))).difference(*(range(at, at + _WORD) for at in always))
            filled = [(fill, one.parameters[index]) for fill, one in zip(fills, several) if fill is not None]
            unwritten = {at for at in free if all(held[at] == fill for fill, held in filled)}
            none = set().union(*(one.addresses[index] for one in several)) - always
            parts.append(_Padding(none, unwritten))
        found.append(parts)
    return found


def _unsteady(captures: Sequence[_Capture]) -> str:
    """Return how captures of the same executions differ, which the timed ones may do as well; empty if they do not."""
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
            plain = [bytearray(one.parameters[index]) for one in several]
            for value in plain:
                for at in addresses:
                    value[at : at + _WORD] = bytes(_WORD)
            if any(value != plain[0] for value in plain):
                return f"kernel {several[0].function}: its parameter {index} differs from capture to capture"
    return ""


def _digest(path: str, offset: int) -> bytes:
    return hashlib.sha256(f"{path}:{offset}".encode("utf-8", "surrogateescape")).digest()[:_WORD]


class _Function(NamedTuple):
    name: str
    title: str
    module: int
    image: str
    """Empty where it is not known."""
    own: bool


class _Recorder:
    def __init__(
        self,
        driver: Driver,
        images: Images,
        memory: Memory,
        own: Sequence[str],
        known: dict[int, _Function],
    ) -> None:
        """`known`: functions by handle."""
        self.driver, self.images, self.memory, self.own, self.known = driver, images, memory, own, known
        self.attributes: dict[int, dict[str, int]] = {}
        self.primary = driver.primary()
        self.used: dict[str, int] = {}
        self.twice: set[str] = set()
        self.images_of_own: set[str] = set()
        self.unread: set[str] = set()
        self.count = self.launches = 0
        self.padding: list[Optional[list[_Padding]]] = []

    def graph(self, graph: int) -> dict[str, Any]:
        handles = self.driver.nodes(graph)
        self.count += len(handles)
        if self.count > _MOST_NODES:
            raise OpaqueWork(f"it has more than {_MOST_NODES} nodes")
        numbers = {handle: number for number, handle in enumerate(handles)}
        edges = sorted([numbers[one], numbers[other], data] for one, other, data in self.driver.edges(graph))
        return {"nodes": [self.node(handle) for handle in handles], "edges": edges}

    def node(self, handle: int) -> dict[str, Any]:
        kind = self.driver.kind(handle)
        name = NODE_KINDS[kind] if kind < len(NODE_KINDS) else f"kind {kind}"
        try:
            if kind == KERNEL:
                return {"kind": name, **self.kernel(handle)}
            if kind == COPY:
                return {"kind": name, **self.copy(self.driver.copy(handle))}
            if kind == MEMSET:
                set_ = self.driver.memset(handle)
                sizes = {"pitch": set_.pitch, "value": set_.value, "element": set_.element,
                         "width": set_.width, "height": set_.height}  # fmt: skip
                return {"kind": name, "target": self.place(set_.target), **sizes}
            if kind == CHILD:
                return {"kind": name, "graph": self.graph(self.driver.child(handle))}
        except OpaqueWork as error:
            self.unread.add(f"{name}: {error}")
        else:
            if kind != EMPTY:
                self.unread.add(f"{name}: such nodes are not compared")
        return {"kind": name}

    def besides(self, graph: int) -> Iterator[object]:
        """Yield what each node is beside a launch's parameters, a child graph's behind it, and the graph's edges."""
        handles = self.driver.nodes(graph)
        for handle in handles:
            kind = self.driver.kind(handle)
            yield kind
            if kind == KERNEL:
                yield {**self.driver.launch_attributes(handle), "access window": ""}  # it holds an address
            elif kind == MEMSET:
                set_ = self.driver.memset(handle)
                yield set_.pitch, set_.value, set_.element, set_.width, set_.height, self.memory.settled(set_.target)
            elif kind == COPY:
                params = self.driver.copy(handle)
                yield params.width, params.rows, params.depth
                for end in (params.source, params.target):
                    yield end.x, end.y, end.z, end.lod, end.kind, end.pitch, end.height
                    yield self.memory.settled(int((end.host if end.kind == 1 else end.device) or 0))
            elif kind == CHILD:
                yield from self.besides(self.driver.child(handle))
        numbers = {handle: number for number, handle in enumerate(handles)}
        yield sorted((numbers[one], numbers[other], data) for one, other, data in self.driver.edges(graph))

    def values(self, graph: int) -> Iterator[Optional[_Values]]:
        """Yield the parameters of each launch; None if they are unreadable."""
        for handle in self.driver.nodes(graph):
            kind = self.driver.kind(handle)
            if kind == CHILD:
                yield from self.values(self.driver.child(handle))
            if kind != KERNEL:
                continue
            params = self.driver.kernel(handle)
            function = self.function(params)
            try:
                held = [value for _, value in self.driver.parameters(params)]
            except OpaqueWork:  # `kernel` says so
                yield None
                continue
            addresses = [dict(self.addresses(value)) for value in held]
            launch = (tuple(params.grid), tuple(params.block), params.shared)
            yield _Values(function.name, held, addresses, function.own, launch)

    def addresses(self, value: bytes) -> Iterator[tuple[int, tuple[bool, int]]]:
        for at in range(0, len(value) - _WORD + 1, _WORD):
            address = int.from_bytes(value[at : at + _WORD], "little")
            if self.memory.is_known(address):
                yield at, self.memory.settled(address)

    def function(self, params: KernelParams) -> _Function:
        if (known := self.known.get(params.func)) is None:
            name, module = self.driver.function(params.func)
            library = self.driver.loaded_from(params.kern or 0)
            image = self.images.of(self.driver, library, module, name) or ""
            own = self.images.is_own(library, module, name, self.own)
            known = _Function(name, demangled(name)[:MOST_TITLE], module, image, own)
            self.known[params.func] = known
        return known

    def kernel(self, handle: int) -> dict[str, Any]:
        params = self.driver.kernel(handle)
        padding = self.padding[self.launches] if self.launches < len(self.padding) else None
        self.launches += 1
        name, title, module, image, own = self.function(params)
        if params.func not in self.attributes:
            self.attributes[params.func] = self.driver.attributes(params.func)
        if image:
            if self.used.setdefault(image, module) != module:
                self.twice.add(image)
            self.images_of_own |= {image} if own else set()
        else:
            self.unread.add(f"kernel {name}: it is not known which machine code was loaded for it")
        if params.context != self.primary:
            self.unread.add(f"kernel {name}: it runs in a context of its own, which may have fewer multiprocessors")
        launch = self.driver.launch_attributes(handle)
        if any(bytes.fromhex(launch.pop("access window", ""))):
            self.unread.add(f"kernel {name}: it sets an access policy window")
        found = {
            "function": name,
            "title": title,
            "image": image,
            "own": own,
            "grid": list(params.grid),
            "block": list(params.block),
            "shared": params.shared,
            "launch": launch,
            "attributes": self.attributes[params.func],
        }
        try:
            found["parameters"] = self.parameters(params, padding, own=own)
        except OpaqueWork as error:
            self.unread.add(f"kernel {name}: {error}")
        return found

    def parameters(self, params: KernelParams, padding: Optional[list[_Padding]], *, own: bool) -> list[dict[str, Any]]:
        """Host addresses in a library's kernel are left over in padding, or for host code: a GPU without the host's
        page tables cannot follow them. Those into files stand for path and offset."""
        found = []
        for index, (offset, value) in enumerate(self.driver.parameters(params)):
            words = {
                at: int.from_bytes(value[at : at + _WORD], "little") for at in range(0, len(value) - 7, _WORD // 2)
            }
            if own and any(at % _WORD and self.memory.is_known(word) for at, word in words.items()):
                raise OpaqueWork("an address stands where compilers put none")
            if any(self.driver.is_texture(word) for at, word in words.items() if not at % _WORD):
                raise OpaqueWork("it reads a texture or a surface, whose contents are not compared")
            none, unwritten = padding[index] if padding is not None else _NO_PADDING
            plain, places = bytearray(value), []
            for at, word in words.items():
                place = None if at % _WORD or at in none else self.memory.find(word)
                if place is not None:
                    plain[at : at + _WORD] = bytes(_WORD)
                    places.append([at, *place])
            host, heap = [], []
            if not own and not self.memory.shared:
                taken = {at for first, *_ in places for at in range(first, first + _WORD)}
                for at, word in words.items():
                    whole = range(at, at + _WORD)
                    if not taken.isdisjoint(whole) or (leads := self.memory.of_host(word)) is None:
                        continue
                    if leads[0] == HEAP:
                        heap += [] if at % _WORD else [at]
                        continue
                    taken.update(whole)
                    if leads[0] and unwritten.isdisjoint(whole):  # else but a part of it is left over
                        plain[at : at + _WORD] = _digest(os.path.basename(leads[0]), leads[1])
                    else:
                        host.append(at)
            kinds = {"host": host, "heap": heap, "unwritten": sorted(unwritten)}
            found.append({"offset": offset, "bytes": plain.hex(), "places": places, **kinds})
        return found

    def place(self, address: int) -> list[int]:
        place = self.memory.find(address)
        if place is None:
            self.unread.add("it copies from or to memory of the host that the driver does not know")
        return [] if place is None else list(place)

    def copy(self, params: CopyParams) -> dict[str, Any]:
        found: dict[str, Any] = {"width": params.width, "rows": params.rows, "depth": params.depth}
        for name, end in (("source", params.source), ("target", params.target)):
            if end.array:
                self.unread.add("copy: arrays are not compared")
            address = end.host if end.kind == 1 else end.device  # CU_MEMORYTYPE_HOST
            shape = {"x": end.x, "y": end.y, "z": end.z, "lod": end.lod, "pitch": end.pitch, "height": end.height}
            found[name] = {"kind": end.kind, "place": self.place(int(address or 0)), **shape}
        return found

    def variables(self) -> list[dict[str, Any]]:
        found = []
        for image, module in sorted(self.used.items()):
            for name in self.images.variables(image):
                if image in self.twice:
                    self.unread.add(f"variable {name}: several modules have one, loaded from the same machine code")
                place = self.driver.symbol(module, name)
                held = self.memory.digest(*place) if place is not None and place[1] else ""
                seen = self.driver.memory(place[0]) if place is not None else None
                if seen is not None and seen[0] == "managed":
                    self.unread.add(f"variable {name}: it lies in managed memory, which moves")
                if not held:
                    self.unread.add(f"variable {name}: the driver does not find it")
                found.append({"image": image, "name": name, "bytes": place[1] if place else 0, "digest": held})
        return found
