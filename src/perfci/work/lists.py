"""A work list: what the graph that is timed does, node by node, as a worker recorded it (`perfci.worker.work`)."""

from typing import Annotated

from pydantic import Field

from perfci.model.base import Document, Items

Words = Annotated[str, Field(max_length=20_000)]
"""A mangled name may be long."""
Hexadecimal = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=1 << 17)]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Size = Annotated[int, Field(ge=0, lt=1 << 64)]
Three = tuple[Size, Size, Size]
Place = tuple[Size, Size, Size]
"""Number of an allocation, offset in it, alignment of the address; bytes."""


class Parameter(Document):
    """A parameter of a kernel."""

    offset: Size
    """In the kernel's block of parameters."""
    bytes: Hexadecimal
    """Its value, with zeros where an address was."""
    places: Items[tuple[Size, Size, Size, Size]]
    """Each address in it: where it stands, then as in Place."""
    host: Items[Size] = Field(default_factory=list)
    """Where addresses of the host stand that the GPU cannot follow, in parameters of a library's kernel."""
    loose: Items[Size] = Field(default_factory=list)
    """Bytes that differ from capture to capture in one process, in parameters of a library's kernel."""


class End(Document):
    """One end of a copy: a Place, or none where the driver knows none, and its shape (CUDA_MEMCPY3D)."""

    kind: Size
    place: Items[Size] = Field(max_length=3)
    x: Size
    y: Size
    z: Size
    lod: Size
    pitch: Size
    height: Size


class Node(Document):
    """A node of a graph. The fields that its kind does not have are None."""

    kind: Words
    function: Words | None = None
    title: Words | None = None
    """The function's name as C++ writes it, for people."""
    image: Digest | None = None
    """SHA-256 of the machine code; empty where it is not known."""
    own: bool | None = None
    """True of a kernel whose machine code may be the side's own, False of one from a library that lies elsewhere."""
    grid: Three | None = None
    block: Three | None = None
    shared: Size | None = None
    """Bytes of dynamic shared memory."""
    launch: dict[Words, Hexadecimal] | None = None
    """The launch's attributes."""
    attributes: dict[Words, int] | None = None
    """The function's, as the driver tells them."""
    parameters: list[Parameter] | None = None
    source: End | None = None
    target: End | list[Size] | None = None
    """Of a copy an End, of a memset a Place."""
    width: Size | None = None
    rows: Size | None = None
    depth: Size | None = None
    height: Size | None = None
    pitch: Size | None = None
    value: Size | None = None
    element: Size | None = None
    graph: "Graph | None" = None


class Graph(Document):
    """Nodes as they were added, and which of them wait for which."""

    nodes: Items[Node]
    edges: Items[tuple[Size, Size, Hexadecimal]]
    """Number of the node that comes first, number of the one that waits, the edge's data."""


class Allocation(Document):
    """Memory that a node names."""

    kind: Words
    """`tensor`: a block of torch's. `of the graph`: holds nothing before the graph is replayed. `device`, `host`:
    allocated otherwise. Anything else is not compared."""
    bytes: Size
    digest: Words
    """Of what it holds before the first replay."""


class Variable(Document):
    """A `__constant__` or `__device__` variable of machine code that is launched."""

    image: Digest
    name: Words
    bytes: Size
    digest: Words
    """Of what it holds before the first replay; empty where that is not known."""


class WorkList(Graph):
    """The work of a graph, and all that it depends on."""

    memory: Items[Allocation]
    """By first use."""
    variables: Items[Variable]
    context: dict[Words, int]
    """Limits of the CUDA context."""
    settings: dict[Words, Digest]
    """Digests of the environment, limits and flags of the process, in which the side's folder has no name."""
    executions: Size
    """Executions of the case in the graph."""
    unread: Items[Words]
    """Why the list is not whole; empty where it is."""
