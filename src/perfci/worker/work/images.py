"""The machine code loaded into this process, as CUPTI hands it over, and the module of each image.

All specialisations of a Triton kernel share a name. A module that a driver call returns is of the image loaded
meanwhile; one that a library loads is known by its functions, if only one image has them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from ..maps import pieces
from .driver import Driver, OpaqueWork
from .elf import HEADER, extent, functions, variables

_DRIVER_API, _RESOURCE = 1, 3
"""CUpti_CallbackDomain."""
_MODULE_LOADED = 6
"""CUpti_CallbackIdResource."""
_EXIT = 1
"""CUPTI_API_EXIT."""
_LOADS = re.compile(r"cuModuleLoad(Data(Ex)?|FatBinary)?|cuLibraryLoadData")
_LIBRARY = b"cuLibraryLoadData"
_WAITS = re.compile(r"cu(Event(ElapsedTime|Synchronize|Query)|Stream(Synchronize|Query)|CtxSynchronize)(_v2)?(_ptsz)?")
"""Without them the GPU's time stays unknown."""
_LINKED = (0x466243B1).to_bytes(4, "little")
"""FATBINC_MAGIC of fatbinary_section.h: what nvcc links into a program."""
_MOST_CALLBACKS = 2000
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)


class _Call(ctypes.Structure):
    """CUpti_CallbackData."""

    _fields_ = [
        ("site", ctypes.c_int), ("name", ctypes.c_char_p), ("params", ctypes.c_void_p), ("returned", ctypes.c_void_p),
    ]  # fmt: skip


class _Resource(ctypes.Structure):
    """CUpti_ResourceData."""

    _fields_ = [("context", ctypes.c_void_p), ("handle", ctypes.c_void_p), ("descriptor", ctypes.c_void_p)]


class _Module(ctypes.Structure):
    """CUpti_ModuleResourceData."""

    _fields_ = [("number", ctypes.c_uint32), ("size", ctypes.c_size_t), ("image", ctypes.c_void_p)]


def _mapped() -> list[str]:
    return sorted({piece.path for piece in pieces() if piece.path.startswith("/") and os.path.isfile(piece.path)})


def _cupti() -> Any:
    """Another than torch's sees nothing. Raises OpaqueWork."""
    for path in _mapped():
        if re.search(r"/libcupti\.so[.0-9]*$", path):
            return ctypes.CDLL(path)
    raise OpaqueWork("torch has loaded no CUPTI, by which machine code is seen")


class Images:
    """All machine code loaded since; make it before the first use of the GPU. Raises OpaqueWork."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        """SHA-256 → image."""
        self.paired: dict[int, str] = {}
        """Handle of a returned module → its image's SHA-256."""
        self.libraries: dict[int, str] = {}
        """Handle of a library of one image → the image's SHA-256: its module comes later."""
        self.called: set[int] = set()
        """Handles of modules and libraries that a call loaded, and no compiler linked into a file."""
        self.sets: dict[str, frozenset[str]] = {}
        self.lists: dict[str, list[str]] = {}
        self.named: dict[str, bool] = {}
        self.cupti = _cupti()
        self.during = threading.local()
        self.listening = False
        self.waited = ""
        """A call that waited for the GPU, or read its clock."""
        self.waits: dict[int, str] = {}
        self.trouble = ""
        """An error while images were loaded: then none is sure."""
        self.callback = _CALLBACK(self._called)
        self.subscriber = ctypes.c_void_p()
        self._call("cuptiSubscribe", ctypes.byref(self.subscriber), self.callback, None)
        self._call("cuptiEnableCallback", 1, self.subscriber, _RESOURCE, _MODULE_LOADED)
        names = {number: self._named(number) for number in range(1, _MOST_CALLBACKS)}
        found = [number for number, name in names.items() if _LOADS.fullmatch(name)]
        self.waits = {number: name for number, name in names.items() if _WAITS.fullmatch(name)}
        if not found or not self.waits:
            raise OpaqueWork("this CUPTI does not name the driver's calls that load machine code, or wait for the GPU")
        for number in (*found, *self.waits):
            self._call("cuptiEnableCallback", 1, self.subscriber, _DRIVER_API, number)
        atexit.register(self.close)

    def close(self) -> None:
        """Unsubscribe: as the interpreter ends, nothing here could be called."""
        atexit.unregister(self.close)
        self.cupti.cuptiUnsubscribe(self.subscriber)

    @contextlib.contextmanager
    def listened(self) -> Iterator[None]:
        """Listen while code under test runs: tuners wait for the GPU, or read its clock."""
        self.listening = True
        try:
            yield
        finally:
            self.listening = False

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            result = int(getattr(self.cupti, name)(*arguments))
        except AttributeError as error:
            raise OpaqueWork(f"this CUPTI has no {name}") from error
        if result != 0:
            raise OpaqueWork(f"{name} failed with {result}: does another tool watch this process?")

    def _named(self, number: int) -> str:
        name = ctypes.c_char_p()
        if self.cupti.cuptiGetCallbackName(_DRIVER_API, ctypes.c_uint32(number), ctypes.byref(name)) != 0:
            return ""
        return (name.value or b"").decode("ascii", "replace")

    def _called(self, _: int, domain: int, number: int, data: int) -> None:
        try:
            if domain == _RESOURCE:
                descriptor = _Resource.from_address(data).descriptor
                if number == _MODULE_LOADED:
                    self._loaded(_Module.from_address(descriptor))
            elif domain == _DRIVER_API and number in self.waits:
                if self.listening:
                    self.waited = self.waited or self.waits[number]
            elif domain == _DRIVER_API:
                self._loads(_Call.from_address(data))
        except BaseException as error:  # nothing may be raised into the driver, and nothing be lost
            self.trouble = f"{type(error).__name__} while machine code was loaded"

    def _loaded(self, module: _Module) -> None:
        image = ctypes.string_at(module.image, module.size)
        digest = hashlib.sha256(image).hexdigest()
        self.held.setdefault(digest, image)
        self.during.seen = [*getattr(self.during, "seen", []), digest]

    def _loads(self, call: _Call) -> None:
        if call.site != _EXIT:
            self.during.seen = []
            return
        seen, self.during.seen = getattr(self.during, "seen", []), []
        # The first parameter of all these calls is where the handle goes, the second one what is loaded.
        where, code = (ctypes.c_void_p * 2).from_address(call.params)
        handle = ctypes.c_void_p.from_address(where).value if where else None
        if handle is None:
            return
        linked = code is not None and ctypes.string_at(code, len(_LINKED)) == _LINKED
        (self.called.discard if linked else self.called.add)(handle)
        if call.name == _LIBRARY:
            self.libraries.pop(handle, None)
            if code and (size := extent(ctypes.string_at(code, HEADER.size))):
                self.libraries[handle] = hashlib.sha256(ctypes.string_at(code, size)).hexdigest()
            return
        if len(seen) == 1:
            self.paired[handle] = seen[0]
        else:  # loaded later, or several at once: known by its functions, if at all
            self.paired.pop(handle, None)

    def of(self, driver: Driver, library: int, module: int, function: str) -> Optional[str]:
        """Return the SHA-256 of a module's image; None where it is not sure. Raises OpaqueWork.

        `library`: the handle of the function's, or 0.
        """
        if self.trouble:
            raise OpaqueWork(self.trouble)
        digest = self.paired.get(module) or self.libraries.get(library)
        if digest is not None and digest in self.held:
            return digest if function in self._functions(digest) else None
        having = [digest for digest in self.held if function in self._functions(digest)]
        if len(having) > 1:
            names = frozenset(driver.functions(module))
            having = [digest for digest in having if self._functions(digest) == names]
        return having[0] if len(having) == 1 else None

    def is_own(self, library: int, module: int, function: str, folders: Sequence[str]) -> bool:
        """Tell whether a kernel may be the side's own: loaded by a call, as by compilers in the process, or named in a
        library below `folders`."""
        if module in self.called or library in self.called:
            return True
        if function not in self.named:
            libraries = [path for path in _mapped() if any(path.startswith(f"{one}/") for one in folders)]
            self.named[function] = any(function.encode() in Path(path).read_bytes() for path in libraries)
        return self.named[function]

    def _functions(self, digest: str) -> frozenset[str]:
        if digest not in self.sets:
            self.sets[digest] = functions(self.held[digest])
        return self.sets[digest]

    def variables(self, digest: str) -> list[str]:
        """See `elf.variables`."""
        if digest not in self.lists:
            self.lists[digest] = variables(self.held[digest])
        return self.lists[digest]
