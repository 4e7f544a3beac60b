"""Calls of the OS runtime in exports of nsys: against nsys' own sums, plain SQL, and moment by moment."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.profilers.metrics import of_trace
from perfci.profilers.nsys.trace import Loop, read
from tests.nsys_stats import device_busy, waits
from tests.profilers.test_nsys import PID, TID, Export, change, nsys_here, unpack

OTHER = TID + 1


def wait(export, name, start, end, tid=TID, kind=27):
    export.add("OSRT_API", start=start, end=end, eventClass=kind, globalTid=tid, nameId=export.string(name))


def told(reading, name="a"):
    """Function → (calls, ns, of these on threads that launch) in all executions."""
    trace = reading.seen[name]
    n = trace.executions
    return {
        one.name: (round(one.count * n), round(one.seconds * n * 1e9), round(one.launching * n * 1e9))
        for one in trace.os_calls
    }


def test_the_whole_capture_is_what_plain_sql_says(tmp_path):
    path = unpack(tmp_path, "mallocs")
    reading = read(path, None)
    db = sqlite3.connect(path)
    launching = {tid for (tid,) in db.execute("SELECT DISTINCT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME")}
    assert len(launching) == 1
    expected: dict[str, list[int]] = {}
    for name, tid, ns in db.execute(
        "SELECT s.value, o.globalTid, o.end - o.start FROM OSRT_API o JOIN StringIds s ON s.id = o.nameId "
        "WHERE o.eventClass = 27"
    ):
        one = expected.setdefault(name, [0, 0, 0])
        one[0], one[1], one[2] = one[0] + 1, one[1] + ns, one[2] + ns * (tid in launching)
    assert told(reading, "") == {name: tuple(one) for name, one in expected.items()}
    assert reading.faults == {} and reading.general == []
    poll = reading.seen[""].os_calls[0]
    assert poll.name == "poll" and poll.seconds > 0.5 and poll.launching == 0, "helper threads wait"


@pytest.mark.nsys
def test_sums_are_those_of_the_nsys_at_hand(tmp_path):
    path = unpack(tmp_path, "mallocs")
    assert {name: one[:2] for name, one in told(read(path, None), "").items()} == waits(nsys_here(), path)


@pytest.mark.nsys
@pytest.mark.parametrize("skip", [0, 3])
def test_the_share_in_which_the_device_works_is_that_of_the_nsys_at_hand(tmp_path, skip):
    path = unpack(tmp_path, "mallocs")
    trace = read(path, Loop("step", skip)).seen[""]
    assert of_trace(trace)["device_busy"] == pytest.approx(device_busy(nsys_here(), path, "step", skip), rel=1e-9)


SPANS = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 40), st.sampled_from([TID, OTHER])), max_size=12)


@settings(max_examples=60, deadline=None)
@given(SPANS, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_time_in_executions_is_counted_moment_by_moment(tmp_path_factory, spans, lengths):
    export = Export(tmp_path_factory.mktemp("t") / "trace.sqlite")
    moments, at = set(), 20
    extents = []
    for length in lengths:  # some follow one another without a gap
        export.push("a", at, at + length)
        extents.append((at, at + length))
        moments |= set(range(at, at + length))
        at += length + length % 3
    for start, length, tid in spans:
        wait(export, "poll", start, start + length, tid)
    export.call("cudaStreamSynchronize", 21, 22, 1)
    found = told(export.read())
    ns = sum(len(moments & set(range(start, start + length))) for start, length, _ in spans)
    assert found.get("poll", (0, 0, 0))[1] == ns
    several = sum(start < stop and start + n > begin for start, n, _ in spans if n for begin, stop in extents)
    assert found.get("poll", (0, 0, 0))[0] >= several


def test_threads_that_launch_are_told_from_those_that_wait(export):
    for start in (100, 200):
        export.push("a", start, start + 50)
        export.launch("k", start + 10, start)
    wait(export, "pthread_cond_wait", 0, 1000, OTHER)  # idle in both executions, begun before them
    wait(export, "ioctl", 110, 120)
    wait(export, "ioctl", 160, 170)  # between them
    wait(export, "OS runtime libraries profiling started", 105, 105, kind=31)
    assert told(export.read()) == {"pthread_cond_wait": (2, 100, 0), "ioctl": (1, 10, 10)}


def test_what_cannot_be_told_is_a_line_and_changes_no_value(one):
    assert one.read().general == [], "nobody asked"
    (fault,) = one.read(asked=("osrt",)).general
    assert fault.aside and fault.text == "calls of the OS runtime were not traced" and "--trace=osrt" in fault.remedy
    one.add("META_DATA_CAPTURE", name="OS_RUNTIME_OPTIONS:DURATION_THRESHOLD_NS", value="0")
    assert one.read(asked=("osrt",)).general == [], "traced, and there was none"


@pytest.mark.parametrize("column", ["globalTid", "nameId", "eventClass", "start", "end"])
def test_a_table_of_another_schema_is_refused(tmp_path, column):
    path = unpack(tmp_path, "mallocs")
    before = read(path, None).seen[""]
    change(path, f'ALTER TABLE OSRT_API RENAME COLUMN "{column}" TO other')
    found = read(path, None)
    (fault,) = found.general
    assert fault.aside and fault.text.endswith(f"table OSRT_API has no column {column}")
    assert found.seen[""] == before.model_copy(update={"os_calls": []})


def test_calls_without_times_or_names_are_left_out_and_told(one):
    wait(one, "poll", 110, 120)
    wait(one, "poll", 130, None)
    one.add("OSRT_API", start=140, end=150, eventClass=27, globalTid=TID, nameId=999)
    reading = one.read()
    assert told(reading) == {"poll": (1, 10, 10)}
    assert [fault.text for fault in reading.general] == [
        "1 calls of the OS runtime have no usable times: left out",
        "1 calls of the OS runtime have no name, or are of too many functions: left out",
    ]
    assert all(fault.aside for fault in reading.general)


def test_calls_of_other_processes_are_in_no_execution(one):
    wait(one, "poll", 110, 120, PID + 0x1000000 + 5)
    assert told(one.read()) == {}
