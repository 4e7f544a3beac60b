"""Calls of the CUDA driver that tell what a captured graph holds (cuda.h of CUDA 12.4 and later)."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

KERNEL, COPY, MEMSET, HOST, CHILD, EMPTY = range(6)
CONDITIONAL = 13
"""CUgraphNodeType; NODE_KINDS has the others."""
NODE_KINDS = (
    "kernel", "copy", "memset", "host", "child graph", "empty", "event wait", "event record", "semaphore signal",
    "semaphore wait", "allocation", "free", "batch of memory operations", "conditional",
)  # fmt: skip
MEMORY_KINDS = {1: "host", 2: "device", 3: "array", 4: "managed"}
"""CUmemorytype."""
LAUNCH_ATTRIBUTES = {
    2: "cooperative", 3: "synchronization policy", 4: "cluster", 5: "cluster scheduling", 8: "priority",
    9: "memory domains", 10: "memory domain", 11: "preferred cluster", 13: "device updatable",
    14: "shared memory carveout", 16: "NVLink-centric scheduling",
}  # fmt: skip
"""CUlaunchAttributeID but ACCESS_WINDOW; edges and event nodes show 6, 7 and 12."""
ACCESS_WINDOW = 1
"""CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: it holds an address."""
FUNCTION_ATTRIBUTES = {
    0: "most threads", 1: "static shared memory", 2: "constant memory", 3: "local memory", 4: "registers",
    5: "PTX version", 6: "binary version", 7: "cache mode", 8: "most dynamic shared memory",
    9: "preferred shared memory carveout", 10: "cluster size must be set", 11: "cluster width", 12: "cluster height",
    13: "cluster depth", 14: "cluster size may be non-portable", 15: "cluster scheduling",
}  # fmt: skip
"""CUfunction_attribute."""
LIMITS = {0: "stack", 1: "printf buffer", 2: "malloc heap", 3: "depth of launches", 4: "pending launches",
          5: "L2 fetch granularity", 6: "persisting L2"}  # fmt: skip
"""CUlimit."""
_SUCCESS, _INVALID_VALUE, _NOT_SUPPORTED = 0, 1, 801
"""CUresult."""
_MEMORY_TYPE, _IS_MANAGED, _IS_LEGACY_IPC, _RANGE_START, _RANGE_SIZE, _POOL = 2, 8, 10, 11, 12, 17
"""CUpointer_attribute."""
_PAGEABLE_ACCESS = 88
"""CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS."""
_PARAMETERS_POINTER, _PARAMETERS_SIZE = 1, 2
"""CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE."""
_VALUE_BYTES, _RESOURCE_BYTES = 64, 144
"""Of a CUlaunchAttributeValue, of a CUDA_RESOURCE_DESC."""


class OpaqueWork(Exception):
    """The driver does not tell a part of the work."""


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("params", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]  # fmt: skip


class _CopyEnd(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("lod", ctypes.c_size_t),
        ("kind", ctypes.c_int), ("host", ctypes.c_void_p), ("device", ctypes.c_void_p), ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p), ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class CopyParams(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = [
        ("source", _CopyEnd), ("target", _CopyEnd), ("width", ctypes.c_size_t), ("rows", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    ]  # fmt: skip


class MemsetParams(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS, with room for the context at the end of its second version."""

    _fields_ = [
        ("target", ctypes.c_void_p), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint), ("element", ctypes.c_uint),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("context", ctypes.c_void_p),
    ]  # fmt: skip


class Driver:
    """The driver's calls. All raise OpaqueWork where the driver lacks a call, or refuses."""

    def __init__(self) -> None:
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise OpaqueWork("the CUDA driver cannot be loaded") from error
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._textures: dict[int, bool] = {0: False}

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver."""
        result = self.result(name, *arguments)
        if result != _SUCCESS:
            raise OpaqueWork(f"{name} failed with {result}")

    def result(self, name: str, *arguments: Any) -> int:
        """Call the driver, and return its CUresult."""
        try:
            function = getattr(self.cuda, name)
        except AttributeError as error:
            raise OpaqueWork(f"this driver has no {name}") from error
        return int(function(*arguments))

    def nodes(self, graph: int) -> list[int]:
        """Return the handles of a graph's nodes, in order of creation."""
        count = ctypes.c_size_t()
        self.call("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
        found = (ctypes.c_void_p * count.value)()
        if count.value:
            self.call("cuGraphGetNodes", ctypes.c_void_p(graph), found, ctypes.byref(count))
        return [int(node or 0) for node in found]

    def edges(self, graph: int) -> list[tuple[int, int, str]]:
        """Return handles of both nodes, and the edge's data in hexadecimal."""
        count = ctypes.c_size_t()
        handle = ctypes.c_void_p(graph)
        self.call("cuGraphGetEdges_v2", handle, None, None, None, ctypes.byref(count))
        if not count.value:
            return []
        begins, ends = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
        data = (ctypes.c_ubyte * 8 * count.value)()
        self.call("cuGraphGetEdges_v2", handle, begins, ends, data, ctypes.byref(count))
        return [
            (int(one or 0), int(other or 0), bytes(held).hex())
            for one, other, held in zip(begins, ends, data)  # Python 3.9 has no strict
        ]

    def kind(self, node: int) -> int:
        """Return a node's CUgraphNodeType."""
        kind = ctypes.c_int()
        self.call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        return kind.value

    def child(self, node: int) -> int:
        """Return the graph of a child node."""
        graph = ctypes.c_void_p()
        self.call("cuGraphChildGraphNodeGetGraph", ctypes.c_void_p(node), ctypes.byref(graph))
        return int(graph.value or 0)

    def kernel(self, node: int) -> KernelParams:
        """Return how a kernel node launches; sets `func` for a node with a `kern`."""
        params = KernelParams()
        self.call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(params))
        if not params.func:
            function = ctypes.c_void_p()
            self.call("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(params.kern))
            params.func = function
        return params

    def launch_attributes(self, node: int) -> dict[str, str]:
        """Return a kernel node's attributes in hexadecimal, as far as this driver knows them."""
        found = {}
        for number, name in {**LAUNCH_ATTRIBUTES, ACCESS_WINDOW: "access window"}.items():
            value = (ctypes.c_ubyte * _VALUE_BYTES)()
            result = self.result("cuGraphKernelNodeGetAttribute", ctypes.c_void_p(node), number, value)
            if result in (_INVALID_VALUE, _NOT_SUPPORTED):
                continue
            if result != _SUCCESS:
                raise OpaqueWork(f"cuGraphKernelNodeGetAttribute failed with {result} for {name}")
            found[name] = bytes(value).hex()
        return found

    def function(self, function: int) -> tuple[str, int]:
        """Return a function's name and its module's handle."""
        handle, name, module = ctypes.c_void_p(function), ctypes.c_char_p(), ctypes.c_void_p()
        self.call("cuFuncGetName", ctypes.byref(name), handle)
        self.call("cuFuncGetModule", ctypes.byref(module), handle)
        return (name.value or b"").decode("utf-8", "backslashreplace"), int(module.value or 0)

    def attributes(self, function: int) -> dict[str, int]:
        """Return a function's attributes as they are now."""
        found, value = {}, ctypes.c_int()
        for number, words in FUNCTION_ATTRIBUTES.items():
            self.call("cuFuncGetAttribute", ctypes.byref(value), number, ctypes.c_void_p(function))
            found[words] = value.value
        return found

    def loaded_from(self, kernel: int) -> int:
        """Return the handle of a CUkernel's library, or 0."""
        found = ctypes.c_void_p()
        if not kernel or self.result("cuKernelGetLibrary", ctypes.byref(found), ctypes.c_void_p(kernel)) != _SUCCESS:
            return 0
        return int(found.value or 0)

    def functions(self, module: int) -> list[str]:
        """Return the names of a module's functions."""
        count, handle = ctypes.c_uint(), ctypes.c_void_p(module)
        self.call("cuModuleGetFunctionCount", ctypes.byref(count), handle)
        found = (ctypes.c_void_p * count.value)()
        self.call("cuModuleEnumerateFunctions", found, count, handle)
        names = []
        for function in found:
            name = ctypes.c_char_p()
            self.call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(function))
            names.append((name.value or b"").decode("utf-8", "backslashreplace"))
        return names

    def parameters(self, params: KernelParams) -> list[tuple[int, bytes]]:
        """Return the offset and the bytes of each parameter of a launch."""
        if (places := self._places.get(params.func)) is None:
            places = self._places[params.func] = self._placed(params)
        if not places:
            return []
        if params.params:
            values = (ctypes.c_void_p * len(places)).from_address(params.params)
            if all(values):
                return [(offset, ctypes.string_at(value, size)) for (offset, size), value in zip(places, values)]
        elif params.extra:
            whole = _buffer(params.extra)
            if all(offset + size <= len(whole) for offset, size in places):
                return [(offset, whole[offset : offset + size]) for offset, size in places]
        raise OpaqueWork("the driver keeps the parameters of this launch to itself")

    def _placed(self, params: KernelParams) -> list[tuple[int, int]]:
        places: list[tuple[int, int]] = []
        while True:
            offset, size = ctypes.c_size_t(), ctypes.c_size_t()
            result = self.result(
                "cuFuncGetParamInfo", ctypes.c_void_p(params.func), ctypes.c_size_t(len(places)), ctypes.byref(offset),
                ctypes.byref(size),
            )  # fmt: skip
            if result == _INVALID_VALUE:  # behind the last one
                break
            if result != _SUCCESS:
                raise OpaqueWork(f"cuFuncGetParamInfo failed with {result}")
            places.append((offset.value, size.value))
        return places

    def copy(self, node: int) -> CopyParams:
        """Return what a copy node copies."""
        params = CopyParams()
        self.call("cuGraphMemcpyNodeGetParams", ctypes.c_void_p(node), ctypes.byref(params))
        return params

    def memset(self, node: int) -> MemsetParams:
        """Return what a memset node sets."""
        params = MemsetParams()
        self.call("cuGraphMemsetNodeGetParams", ctypes.c_void_p(node), ctypes.byref(params))
        return params

    def memory(self, address: int) -> Optional[tuple[str, int, int]]:
        """Return kind, begin and end of the allocation at an address."""
        kind = ctypes.c_uint()
        if self.result("cuPointerGetAttribute", ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(address)) != _SUCCESS:
            return None
        managed = ctypes.c_uint()
        start, size = ctypes.c_uint64(), ctypes.c_size_t()
        for value, attribute in ((managed, _IS_MANAGED), (start, _RANGE_START), (size, _RANGE_SIZE)):
            self.call("cuPointerGetAttribute", ctypes.byref(value), attribute, ctypes.c_uint64(address))
        words = "managed" if managed.value else MEMORY_KINDS.get(kind.value, "unknown")
        return words, start.value, start.value + size.value

    def is_plain(self, address: int) -> bool:
        """Tell whether device memory is cudaMalloc's, or of the device's default pool. Mapped memory may have other
        sizes or properties than addresses tell."""
        legacy, pool = ctypes.c_uint(), ctypes.c_void_p()
        for value, attribute in ((legacy, _IS_LEGACY_IPC), (pool, _POOL)):
            self.call("cuPointerGetAttribute", ctypes.byref(value), attribute, ctypes.c_uint64(address))
        if legacy.value or not pool.value:
            return bool(legacy.value)
        device, usual = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuCtxGetDevice", ctypes.byref(device))
        self.call("cuDeviceGetDefaultMemPool", ctypes.byref(usual), device)
        return pool.value == usual.value

    def is_texture(self, handle: int) -> bool:
        """Tell whether a number is the handle of a texture or of a surface."""
        if handle not in self._textures:
            described = (ctypes.c_ubyte * _RESOURCE_BYTES)()
            results = [
                self.result(f"cu{kind}ObjectGetResourceDesc", described, ctypes.c_uint64(handle))
                for kind in ("Tex", "Surf")
            ]
            self._textures[handle] = _SUCCESS in results
        return self._textures[handle]

    def primary(self) -> int:
        """Return the handle of the device's primary context."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuCtxGetDevice", ctypes.byref(device))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuDevicePrimaryCtxRelease_v2", device)
        return int(context.value or 0)

    def shares_host_memory(self, device: int) -> bool:
        """Tell whether a GPU follows ordinary host addresses, as by HMM or a coherent link."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), _PAGEABLE_ACCESS, device)
        return bool(value.value)

    def symbol(self, module: int, name: str) -> Optional[tuple[int, int]]:
        """Return address and bytes of a module's variable, or None."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        result = self.result(
            "cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(module),
            name.encode("utf-8", "surrogateescape"),
        )  # fmt: skip
        return (address.value, size.value) if result == _SUCCESS else None

    def context(self) -> dict[str, int]:
        """Return the current context's limits, and how it divides caches from shared memory."""
        found = {}
        for number, name in LIMITS.items():
            value = ctypes.c_size_t()
            result = self.result("cuCtxGetLimit", ctypes.byref(value), number)
            if result == _SUCCESS:
                found[name] = value.value
        cache = ctypes.c_int()
        self.call("cuCtxGetCacheConfig", ctypes.byref(cache))
        found["cache configuration"] = cache.value
        return found


def _buffer(extra: int) -> bytes:
    words = ctypes.cast(extra, ctypes.POINTER(ctypes.c_void_p))
    address, size = 0, 0
    for at in range(0, 4, 2):
        if words[at] == _PARAMETERS_POINTER:
            address = int(words[at + 1] or 0)
        elif words[at] == _PARAMETERS_SIZE and words[at + 1]:
            size = ctypes.c_size_t.from_address(int(words[at + 1] or 0)).value
        else:
            break
    return ctypes.string_at(address, size) if address else b""
