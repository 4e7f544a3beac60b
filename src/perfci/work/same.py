"""The proof that base and head give the GPU the same work, from two recorded work lists of each side. Pure.

What is not known to be the same is a difference. Lists of two processes of a side show what is the same in all of them,
but for padding in library kernels' parameters: nobody writes it, and it holds whatever lay there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfci.model.kernels import identify
from perfci.model.text import count, escaped
from perfci.work.code import without_path
from perfci.work.lists import Allocation, End, Graph, Node, Parameter, WorkList

SameCode = Callable[[bytes, bytes, str], str]
_COMPARED = frozenset({"tensor", "of the graph", "device", "host"})
"""Kinds of memory whose contents are compared."""
_PARTS = {
    "kernel": ("function", "image", "own", "grid", "block", "shared", "launch", "attributes", "parameters"),
    "copy": ("source", "target", "width", "rows", "depth"),
    "memset": ("target", "pitch", "value", "element", "width", "height"),
    "child graph": ("graph",),
    "empty": (),
}
"""Kind of node → required parts."""
_ADDRESSES = ":names addresses"
"""Ends the digest of memory that holds addresses: what lies there was not read."""
_WORD = 8
_NAME, _REASON = 60, 400
"""Characters of a kernel's name, and of a recorded reason."""


@dataclass(frozen=True)
class Recorded:
    """The work list of one process."""

    work: WorkList
    images: Mapping[str, bytes]
    """SHA-256 → machine code that may be the side's own."""


def why_not_same(base: Sequence[Recorded], head: Sequence[Recorded], same_code: SameCode) -> str:
    """Return why base and head are not known to give the GPU the same work, as a clause, or empty."""
    if min(len(base), len(head)) < 2:
        return "one process of a side does not tell what is the same in all"
    for side, lists in (("base", base), ("head", head)):
        for one in lists:
            if why := _unknown(one):
                return f"{side}: {why}"
    hidden = _padding(base, head)
    for side, lists in (("base", base), ("head", head)):
        for one in lists[1:]:
            if why := _difference(lists[0], one, hidden, same_code):
                return f"{side} differs from process to process: {why}"
    return _difference(base[0], head[0], hidden, same_code)


def rows(work: WorkList) -> list[str]:
    """Return a line for each node, child graphs' behind theirs."""
    return [f"{'  ' * depth}{_named(node)}{_shape(node)}" for depth, node in walk(work)]


# ---------------------------------------------------------------- what one list tells of itself


def _unknown(one: Recorded) -> str:
    work = one.work
    if work.unread:
        return escaped(work.unread[0], _REASON)
    for _, node in walk(work):
        if (parts := _PARTS.get(node.kind)) is None:
            return f"{_shown(node.kind)}: such nodes are not compared"
        if absent := next((part for part in parts if getattr(node, part) is None), ""):
            return f"the {_WORDS.get(absent, absent)} of {_named(node)} were not recorded"
        if (node.kind == "child graph") != (node.graph is not None):
            return f"{_named(node)} holds a graph and is none, or is one and holds none"
        if node.kind == "kernel" and (not node.image or (node.own is not False and node.image not in one.images)):
            return f"the machine code of {_named(node)} was not recorded"
        if node.kind in ("copy", "memset") and not all(_places(node)):
            return f"{_named(node)} is from or to memory that the driver does not know"
    for number, memory in enumerate(work.memory):
        if memory.kind not in _COMPARED:
            return f"allocation {number} is {_shown(memory.kind)} memory, which is not compared"
        if memory.digest.endswith(_ADDRESSES):
            return f"allocation {number} holds addresses, and what lies there is not compared"
        if not memory.digest and memory.kind != "of the graph":
            return f"it is not known what allocation {number} holds"
    for variable in work.variables:
        if not variable.digest:
            return f"it is not known what the variable {_shown(variable.name)} holds"
        if variable.digest.endswith(_ADDRESSES):
            return f"the variable {_shown(variable.name)} holds addresses, and what lies there is not compared"
    return ""


# ---------------------------------------------------------------- padding


def _padding(base: Sequence[Recorded], head: Sequence[Recorded]) -> set[tuple[int, int, int]]:
    """Bytes, as node, parameter and offset, that are the same kernel's padding: every process shows that nobody writes
    them, or they hold addresses of the host."""
    found: set[tuple[int, int, int]] = set()
    if all(one.work is base[0].work for one in (*base, *head)):
        return found
    walks = [[node for _, node in walk(one.work)] for one in (*base, *head)]
    for number, nodes in enumerate(zip(*walks, strict=False)):
        # Another image may have other parameters in the same places, and own code may compute what differs.
        if len({node.image for node in nodes}) != 1 or any(node.own is not False for node in nodes):
            continue
        for index, same in enumerate(zip(*(node.parameters or [] for node in nodes), strict=False)):
            if len({len(one.bytes) for one in same}) != 1:
                continue
            found |= {(number, index, at) for at in _in_all(one.unwritten for one in same)}
            for at in _of_host(same[: len(base)], same[len(base) :]):
                found |= {(number, index, place) for place in range(at, at + _WORD)}
    return found


def _of_host(*sides: Sequence[Parameter]) -> set[int]:
    """Where every process holds an address of the host, and each of a side another. A number, or a part of one beside
    half an address, would be the same in both."""
    found = _in_all(one.host for side in sides for one in side)
    return {at for at in found if all(len(_words(side, at)) == len(side) for side in sides)}


def _words(side: Iterable[Parameter], at: int) -> set[str]:
    return {one.bytes[2 * at : 2 * (at + _WORD)] for one in side}


def _in_all(several: Iterable[Iterable[int]]) -> set[int]:
    return set.intersection(*map(set, several))


# ---------------------------------------------------------------- what differs between two lists


def _difference(one: Recorded, other: Recorded, hidden: set[tuple[int, int, int]], same_code: SameCode) -> str:
    if one.work is other.work:
        return _of_code(one, other, same_code)
    mine, theirs = list(walk(one.work)), list(walk(other.work))
    for number, ((depth, ours), (beside, their)) in enumerate(zip(mine, theirs, strict=False)):
        if why := _of_nodes(number, ours, their, hidden):
            return f"node {number + 1} of {len(mine)}, {_named(ours)}: {why}"
        if depth != beside:
            return f"node {number + 1} of {len(mine)} belongs to another graph"
    if len(mine) != len(theirs):
        return f"{count(len(mine), 'node')} → {count(len(theirs), 'node')}"
    for graph, another in zip(_graphs(one.work), _graphs(other.work), strict=True):
        if len(graph.nodes) != len(another.nodes) or sorted(graph.edges) != sorted(another.edges):
            return "nodes wait for others"
    if one.work.executions != other.work.executions:
        return _changed("executions in the graph", one.work.executions, other.work.executions)
    if len(one.work.memory) != len(other.work.memory):
        return _changed("allocations", len(one.work.memory), len(other.work.memory))
    if one.work.context != other.work.context:
        return _changed("limit", one.work.context, other.work.context)
    for name in sorted({**one.work.settings, **other.work.settings}):
        if one.work.settings.get(name) != other.work.settings.get(name):
            return f"{_shown(name)} of the process"
    return (
        _of_code(one, other, same_code) or _of_variables(one, other) or _of_memory(one.work.memory, other.work.memory)
    )


def _of_nodes(number: int, one: Node, other: Node, hidden: set[tuple[int, int, int]]) -> str:
    if one.function != other.function and one.image != other.image:
        # Of one image, names that differ in this alone are two functions; of two, `_of_code` refuses such.
        one, other = (
            node if node.function is None else node.model_copy(update={"function": without_path(node.function)})
            for node in (one, other)
        )
    for name in _WHOLE:
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs and name == "function" and _label(one) != _label(other):
            return f"another kernel, {_label(other)}"
        if mine != theirs:
            return _changed(_WORDS.get(name, name), mine, theirs)
    if one.parameters is None or other.parameters is None:
        return "" if one.parameters is other.parameters else "it has other parts"
    if len(one.parameters) != len(other.parameters):
        return _changed("number of parameters", len(one.parameters), len(other.parameters))
    for index, (left, right) in enumerate(zip(one.parameters, other.parameters, strict=True)):
        if left != right and (why := _of_parameters((number, index), left, right, hidden)):
            return f"parameter {index}, {why}"
    return ""


def _of_parameters(which: tuple[int, int], one: Parameter, other: Parameter, hidden: set[tuple[int, int, int]]) -> str:
    mine, theirs = (one.offset, len(one.bytes) // 2), (other.offset, len(other.bytes) // 2)
    if mine != theirs:
        return _changed("offset and size", mine, theirs)
    if len(one.places) != len(other.places):
        return _changed("addresses", len(one.places), len(other.places))
    for places in zip(one.places, other.places, strict=True):
        if places[0] != places[1]:
            return _changed("address,", *(dict(zip(_PLACE, place, strict=True)) for place in places))
    for at in range(0, mine[1], _WORD):
        left, right = (_visible(which, parameter, at, hidden) for parameter in (one, other))
        if left != right:
            return _changed(f"bytes from {at}", left, right)
    return ""


def _changed(what: str, one: object, other: object) -> str:
    if isinstance(one, End) and isinstance(other, End):
        one, other = one.model_dump(), other.model_dump()
    if isinstance(one, dict) and isinstance(other, dict):
        part = next(name for name in sorted({**one, **other}) if one.get(name) != other.get(name))
        return _changed(f"{what} {_shown(part)}", one.get(part), other.get(part))
    return f"{what} {_shown(one)} → {_shown(other)}"


def _places(node: Node) -> list[Sequence[int]]:
    """Empty places where unknown."""
    if node.kind == "memset":
        return [node.target if isinstance(node.target, list) else ()]
    return [end.place if isinstance(end, End) else () for end in (node.source, node.target)]


_PLACE = ("at byte", "allocation", "offset", "alignment")
_WHOLE = [name for name in Node.model_fields if name not in ("image", "own", "title", "parameters", "graph")]
_WORDS = {
    "shared": "bytes of dynamic shared memory",
    "element": "bytes of an element",
    "launch": "launch attribute",
    "attributes": "function attribute",
}


def _visible(which: tuple[int, int], parameter: Parameter, first: int, hidden: set[tuple[int, int, int]]) -> str:
    return "".join(
        "__" if (*which, at) in hidden else parameter.bytes[2 * at : 2 * at + 2]
        for at in range(first, min(first + _WORD, len(parameter.bytes) // 2))
    )


def _of_memory(one: Sequence[Allocation], other: Sequence[Allocation]) -> str:
    for number, (ours, theirs) in enumerate(zip(one, other, strict=True)):
        if ours.kind != theirs.kind:
            return f"allocation {number}: {_shown(ours.kind)} → {_shown(theirs.kind)}"
        if ours.bytes != theirs.bytes:
            return f"allocation {number}: {ours.bytes} → {theirs.bytes} bytes"
        if ours.digest != theirs.digest:
            return f"allocation {number} of {ours.bytes} bytes holds other values"
    return ""


def _of_variables(one: Recorded, other: Recorded) -> str:
    """By image, name and contents, not address. Images, whose digests may differ for the same code, correspond by order
    of use; every node must use the corresponding one."""
    (left, uses), (right, others) = _variables(one.work, other.work), _variables(other.work, one.work)
    if left != right:
        name = min(set(left) ^ set(right), default=(0, "", 0, ""))[1]
        return f"the variable {_shown(name)} is not the same"
    return "" if uses == others else "the images whose variables are read are used in another order"


def _variables(work: WorkList, other: WorkList) -> tuple[list[tuple[int, str, int, str]], list[int]]:
    """Image's place, name, bytes and digest of each variable; the image's place of each launch."""
    having = {each.image for each in work.variables}
    uses = [node.image for _, node in walk(work) if node.image]
    places = {image: place for place, image in enumerate(dict.fromkeys(image for image in uses if image in having))}
    shared = {node.image for _, node in walk(other)}
    return sorted(
        (places.get(each.image, -1), each.name if each.image in shared else without_path(each.name), each.bytes,
         each.digest)
        for each in work.variables
    ), [places.get(image, -1) for image in uses]  # fmt: skip


def _of_code(one: Recorded, other: Recorded, same_code: SameCode) -> str:
    seen: set[tuple[str, str, str]] = set()
    for (_, ours), (_, their) in zip(walk(one.work), walk(other.work), strict=True):
        if ours.kind != "kernel" or ours.image is None or their.image is None:
            continue
        key = (ours.image, their.image, ours.function or "")
        # What a library calls beside its image is the library's; own code may be led to what differs.
        if (ours.image == their.image and ours.own is False and their.own is False) or key in seen:
            continue
        seen.add(key)
        if ours.image not in one.images or their.image not in other.images:
            return f"{_named(ours)}: it is of another library"
        if why := same_code(one.images[ours.image], other.images[their.image], ours.function or ""):
            return f"{_named(ours)}: {why}"
    return ""


# ---------------------------------------------------------------- the parts of a list


def walk(graph: Graph, depth: int = 0) -> Iterator[tuple[int, Node]]:
    """Yield each node with its depth, a child graph's behind its node."""
    for node in graph.nodes:
        yield depth, node
        if node.graph is not None:
            yield from walk(node.graph, depth + 1)


def _graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.nodes:
        if node.graph is not None:
            yield from _graphs(node.graph)


def _named(node: Node) -> str:
    return f"{_shown(node.kind)} {_label(node)}" if node.function else _shown(node.kind)


def _label(node: Node) -> str:
    return f"`{_shown(identify(node.title or node.function or '').label)}`"


def _shape(node: Node) -> str:
    if node.grid is None or node.block is None:
        return ""
    return f" {' × '.join(map(str, node.grid))} blocks of {' × '.join(map(str, node.block))}"


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(str, value)) + ")" if len(value) < 10 else f"{len(value)} values"
    return escaped("none" if value is None else value, _NAME).replace("`", "'")
