"""What nsys says that whole traces hold, too: whether it is a loss the launches, the copies and their work tell."""

from itertools import cycle, product

import pytest

from perfci.profilers.nsys.trace import Reading, read

from .test_nsys import CASES, COPY, KERNEL, RUNTIME, SET, change

UNIFIED = (
    "CUDA device 0: Unified Memory cannot be traced on devices that don't support peer-to-peer transfers."
    "Please verify that SLI/NVLink is functioning properly."
)
RECORDS = "Could not parse 12 CUPTI activity records."
MOVED = ("copy_bytes", "copy_time", "copy_bandwidth_h2d", "copy_bandwidth_d2h")
WAYS = [CASES, "outermost", None]
"""Cases of perfci's, ranges and kernels of an import."""


def saying(path, message, *statements):
    made = [f"DROP TABLE IF EXISTS {table}" for table in ("DIAGNOSTIC_EVENT", "ENUM_DIAGNOSTIC_SEVERITY_LEVEL")]
    event = f"SELECT 1 AS timestamp, 3 AS severity, '{message.replace(chr(39), chr(39) * 2)}' AS text"
    change(path, *made, f"CREATE TABLE DIAGNOSTIC_EVENT AS {event}", *statements)
    return path


def losses(reading: Reading) -> list[tuple[str, ...]]:
    """The metrics of each loss that nsys told, () for all."""
    return [tuple(one.metrics) for one in reading.general if one.text.startswith("nsys says: ") and not one.aside]


@pytest.mark.parametrize("message", [UNIFIED, RECORDS])
@pytest.mark.parametrize("ranges", WAYS, ids=["cases", "ranges", "kernels"])
def test_a_message_beside_all_launches_and_copies_is_no_loss(trace, message, ranges):
    before = read(trace, ranges)
    after = read(saying(trace, message), ranges)
    assert losses(after) == [] and after.faults == before.faults and after.seen == before.seen
    (told,) = [one for one in after.general if one not in before.general]
    assert told.aside and told.text == f"nsys says: {message}: each launch and copy has its work, and all work its call"


DELETIONS = [
    f"DELETE FROM {KERNEL} WHERE rowid = (SELECT max(rowid) FROM {KERNEL})",
    f"DELETE FROM {COPY} WHERE rowid = (SELECT max(rowid) FROM {COPY})",
    f"DELETE FROM {SET} WHERE rowid = (SELECT max(rowid) FROM {SET})",
    f"DELETE FROM {RUNTIME} WHERE correlationId = (SELECT max(correlationId) FROM {KERNEL})",
    f"DELETE FROM {RUNTIME} WHERE correlationId = (SELECT max(correlationId) FROM {COPY})",
]


@pytest.mark.parametrize(
    ("message", "deletion", "ranges"),
    [(*one, ranges) for one, ranges in zip(product((UNIFIED, RECORDS), DELETIONS), cycle(WAYS))],
)
def test_where_one_event_is_missing_it_is_a_loss_of_all(trace, message, deletion, ranges):
    assert losses(read(saying(trace, message, deletion), ranges)) == [()]


def test_no_trace_tells_how_many_kernels_a_graph_has(trace):
    """Nor how many copies a batch has: of records that were not read some may be of them."""
    a_launch = f"(SELECT r.nameId FROM {RUNTIME} r JOIN {KERNEL} k ON k.correlationId = r.correlationId LIMIT 1)"
    rename = f"UPDATE StringIds SET value = 'cudaGraphLaunch_v10000' WHERE id = {a_launch}"
    assert losses(read(saying(trace, RECORDS, rename), "outermost")) == [()]
    assert losses(read(saying(trace, UNIFIED), "outermost")) == []


def test_managed_memory_moves_unseen(trace):
    managed = "INSERT INTO StringIds (id, value) VALUES (987654, 'cudaMallocManaged_v6000')"
    assert losses(read(saying(trace, UNIFIED, managed), "outermost")) == [MOVED]
    assert losses(read(saying(trace, RECORDS), "outermost")) == []
