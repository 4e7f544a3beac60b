"""What the device did one by one in the last execution of each case, from an nsys export: a timeline to draw."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from perfci.evidence.nsys_events import COPY, GRAPH, KERNEL, SET, Events
from perfci.model.evidence import MOST_SLICES, CopyKind, KernelUse, Slice

_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_WORDS = {KERNEL: "kernel", SET: "memory set", GRAPH: "CUDA graph"}


def slices(
    events: Events, kernels: Mapping[int, Sequence[KernelUse]], kind_of: Callable[[object], CopyKind]
) -> dict[int, list[Slice]]:
    """By name: the first MOST_SLICES operations of its last execution, in the order of their begin.

    `kernels`: those that are told of each name. `kind_of`: what a copy's number means.
    """
    events.db.execute(
        "CREATE TABLE last AS SELECT name, max(e.id) AS exec, NULL AS began FROM execs e "
        "WHERE EXISTS (SELECT 1 FROM ops o WHERE o.exec = e.id) GROUP BY name"
    )
    events.db.execute("UPDATE last SET began = (SELECT min(o.start) FROM ops o WHERE o.exec = last.exec)")
    events.db.execute(
        "CREATE TABLE picked AS SELECT * FROM (SELECT l.name AS name, l.began AS began, o.kind AS kind, o.source AS "
        "source, o.start AS start, o.end AS end, row_number() OVER (PARTITION BY l.name ORDER BY o.start, o.kind, "
        f"o.source) AS place FROM last l CROSS JOIN ops o ON o.exec = l.exec) WHERE place <= {MOST_SLICES}"
    )
    places: dict[int, dict[tuple[object, object], int]] = defaultdict(dict)
    for index, told in kernels.items():
        for number, kernel in enumerate(told):
            shape = ",".join(map(str, (*kernel.grid, *kernel.block)))
            places[index].setdefault((kernel.name, shape), number)
    found: dict[int, list[tuple[int, Slice]]] = defaultdict(list)
    for kind, table in events.device.items():
        what, shape = "NULL", "NULL"
        if kind == COPY:
            what = "x.copyKind"
        elif kind == KERNEL:
            names = [f"x.{name}" for name in ("demangledName", "shortName", "mangledName") if name in table.columns]
            what, shape = f"coalesce({', '.join(names)}, NULL)", " || ',' || ".join(f"x.{side}" for side in _SHAPE)
        rows = events.rows(
            f"SELECT name, place, start, length, stream, {events.text('what') if kind == KERNEL else 'what'}, shape "
            "FROM (SELECT p.name AS name, p.place AS place, p.start - p.began AS start, p.end - p.start AS length, "
            f"{'x.streamId' if 'streamId' in table.columns else '0'} AS stream, {what} AS what, {shape} AS shape "
            f"FROM picked p CROSS JOIN {table.rows} x ON x.rowid = p.source WHERE p.kind = {kind})"
        )
        for index, place, start, length, stream, said, launched in rows:
            at = places[index].get((said, launched)) if kind == KERNEL else None
            one = Slice(
                name=f"copy {kind_of(said)}" if kind == COPY else "" if at is not None else _WORDS[kind],
                kernel=at,
                stream=stream if isinstance(stream, int) else 0,
                start=start * 1e-9,
                seconds=length * 1e-9,
            )
            found[index].append((place, one))
    return {index: [one for _, one in sorted(told, key=lambda item: item[0])] for index, told in found.items()}
