"""The work list of a case: what the timed graph launches, and on which memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from ..gpu import WARM_CALLS
from ..graph import GraphSampler
from ..proof.flags import flags
from .captures import (
    NO_PADDING,
    WORD,
    Capture,
    Padding,
    Values,
    displace_heap,
    drawing_again,
    filled,
    padding_of,
    why_unsteady,
)
from .driver import CHILD, COPY, EMPTY, KERNEL, MEMSET, NODE_KINDS, CopyParams, Driver, KernelParams, OpaqueWork
from .elf import demangled
from .images import Images
from .memory import Destination, Memory

_MOST_NODES = 20_000
MOST_TITLE = 20_000
FILE = "work-{}.json"


class Record:
    """The work lists of one case, one for each draw of its inputs."""

    def __init__(self, images: Images, folder: Path, own: Sequence[str]) -> None:
        """`own`: folders of the side's own libraries. Raises OpaqueWork."""
        self.driver, self.images, self.folder, self.own = Driver(), images, folder, own
        self.number = 0
        self.launches: list[Any] = []
        self.padding: list[Optional[list[Padding]]] = []
        self.known: dict[int, _Function] = {}

    def add(self, fns: Sequence[Callable[[], Any]], batch: int, *, last: bool) -> None:
        """Write the work list of a graph of `batch` executions, a multiple of the number of `fns`, to FILE in the
        folder, and each image that may be the side's own to a file named by its SHA-256. `unread` lists what cannot be
        read.

        Process settings are those behind the `last` draw. Only the first draw shows parameter bytes that nobody
        writes, and whether one capture launches what another does. Raises OpaqueWork, what capture raises, OSError.
        """
        self.known.clear()  # a handle may be another function's by now
        if not self.number:
            displace_heap()
        sampler = GraphSampler(fns)
        with self.images.listened():
            for fn in [*[fns[0]] * (0 if self.number else WARM_CALLS), *fns]:  # as a pair's first placement and others
                fn()
        sampler.rig.synchronize()  # not the case's, so not listened to
        sampler.rig.forget_pool()  # where blocks lie in it would hang on the cases before
        torch, pool = sampler.rig.torch, sampler.rig.pool
        redraw = drawing_again(torch)
        captures: list[Capture] = []
        fills: list[Optional[int]] = [None]
        if not self.number:
            fills = [None, None, *random.SystemRandom().sample(range(256), 2), None]
        for turn, fill in enumerate(fills, 1):
            redraw()
            with contextlib.nullcontext() if fill is None else filled(torch, fill):
                graph = _captured(sampler, batch)
            memory = Memory(torch, self.driver, pool, contents=turn == len(fills))
            recorder = _Recorder(self.driver, self.images, memory, self.own, self.known)
            captures.append(Capture(list(recorder.values(graph)), list(recorder.besides(graph)), fill))
        launches = [
            None if one is None else (one.function, one.launch, [*map(len, one.parameters)])
            for one in captures[0].launches
        ]
        if not self.number:
            self.launches, self.padding = launches, padding_of(captures[1:])
        if why := why_unsteady(captures):
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


def _digest(path: str, offset: int) -> bytes:
    return hashlib.sha256(f"{path}:{offset}".encode("utf-8", "surrogateescape")).digest()[:WORD]


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
        self.padding: list[Optional[list[Padding]]] = []

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
                yield set_.pitch, set_.value, set_.element, set_.width, set_.height
                yield self.memory.destination(set_.target)
            elif kind == COPY:
                params = self.driver.copy(handle)
                yield params.width, params.rows, params.depth
                for end in (params.source, params.target):
                    yield end.x, end.y, end.z, end.lod, end.kind, end.pitch, end.height
                    yield self.memory.destination(int((end.host if end.kind == 1 else end.device) or 0))
            elif kind == CHILD:
                yield from self.besides(self.driver.child(handle))
        numbers = {handle: number for number, handle in enumerate(handles)}
        yield sorted((numbers[one], numbers[other], data) for one, other, data in self.driver.edges(graph))

    def values(self, graph: int) -> Iterator[Optional[Values]]:
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
            yield Values(function.name, held, addresses, function.own, launch)

    def addresses(self, value: bytes) -> Iterator[tuple[int, Destination]]:
        for at in range(0, len(value) - WORD + 1, WORD):
            address = int.from_bytes(value[at : at + WORD], "little")
            if self.memory.is_known(address):
                yield at, self.memory.destination(address)

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

    def parameters(self, params: KernelParams, padding: Optional[list[Padding]], *, own: bool) -> list[dict[str, Any]]:
        """Host addresses in a library's kernel are left over in padding, or for host code: a GPU without the host's
        page tables cannot follow them. Those into files stand for path and offset."""
        found = []
        for index, (offset, value) in enumerate(self.driver.parameters(params)):
            words = {at: int.from_bytes(value[at : at + WORD], "little") for at in range(0, len(value) - 7, WORD // 2)}
            if own and any(at % WORD and self.memory.is_known(word) for at, word in words.items()):
                raise OpaqueWork("an address stands where compilers put none")
            if any(self.driver.is_texture(word) for at, word in words.items() if not at % WORD):
                raise OpaqueWork("it reads a texture or a surface, whose contents are not compared")
            none, unwritten = padding[index] if padding is not None else NO_PADDING
            plain, places = bytearray(value), []
            for at, word in words.items():
                place = None if at % WORD or at in none else self.memory.find(word)
                if place is not None:
                    plain[at : at + WORD] = bytes(WORD)
                    places.append([at, *place])
            host = []
            if not own and not self.memory.shared:
                taken = {at for first, *_ in places for at in range(first, first + WORD)} | unwritten
                for at, word in words.items():
                    whole = range(at, at + WORD)
                    if not taken.isdisjoint(whole) or (leads := self.memory.of_host(word)) is None:
                        continue
                    taken.update(whole)
                    if leads[0]:
                        plain[at : at + WORD] = _digest(os.path.basename(leads[0]), leads[1])
                    else:
                        host.append(at)
            kinds = {"host": host, "unwritten": sorted(unwritten)}
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
