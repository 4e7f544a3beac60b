"""A work list, recorded by a worker (`perfci.worker.work`)."""

from typing import Annotated

from pydantic import Field

from perfci.model.base import Document, Items

Words = Annotated[str, Field(max_length=20_000)]
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
    """With zeros in place of addresses."""
    places: Items[tuple[Size, Size, Size, Size]]
    """Of each address its offset, then as in Place."""
    host: Items[Size] = Field(default_factory=list)
    """In a library kernel: offsets of words that may be addresses of the host, which the GPU cannot follow, and lead
    into no file."""
    unwritten: Items[Size] = Field(default_factory=list)
    """In a library kernel: bytes that nobody writes."""


class End(Document):
    """One end of a copy, with its shape (CUDA_MEMCPY3D); no Place where the driver knows none."""

    kind: Size
    place: Items[Size] = Field(max_length=3)
    x: Size
    y: Size
    z: Size
    lod: Size
    pitch: Size
    height: Size


class Node(Document):
    """A node of a graph. Fields that its kind lacks are None."""

    kind: Words
    function: Words | None = None
    title: Words | None = None
    image: Digest | None = None
    """SHA-256 of the machine code; empty where unknown."""
    own: bool | None = None
    """Of a kernel: its machine code may be the side's own, not a library's."""
    grid: Three | None = None
    block: Three | None = None
    shared: Size | None = None
    launch: dict[Words, Hexadecimal] | None = None
    attributes: dict[Words, int] | None = None
    """The function's."""
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
    """Nodes as added, and their dependencies."""

    nodes: Items[Node]
    edges: Items[tuple[Size, Size, Hexadecimal]]
    """Number of the first node, number of the dependent, the edge's data."""


class Allocation(Document):
    """Memory that a node names."""

    kind: Words
    """`tensor`: a block of torch's. `of the graph`: empty before the first replay. `device`, `host`: allocated
    otherwise."""
    bytes: Size
    digest: Words
    """Of its contents before the first replay."""


class Variable(Document):
    """A `__constant__` or `__device__` variable."""

    image: Digest
    name: Words
    bytes: Size
    digest: Words
    """Empty where unknown."""


class WorkList(Graph):
    """A graph's work, and what it depends on."""

    memory: Items[Allocation]
    """By first use."""
    variables: Items[Variable]
    context: dict[Words, int]
    """Limits of the CUDA context."""
    settings: dict[Words, Digest]
    """Digests of the process's environment, limits and flags."""
    executions: Size
    unread: Items[Words]
    """Why the list is incomplete."""
