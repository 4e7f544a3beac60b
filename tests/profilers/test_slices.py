"""What the device did one by one in the last execution: from nsys and from torch.profiler."""

import pytest

from perfci.model.profile import MOST_SLICES, Trace
from perfci.profilers.nsys import trace as nsys
from perfci.profilers.torch import trace as kineto

from .test_kineto import DATA
from .test_nsys import CASES


@pytest.fixture(scope="module")
def traces(recorded) -> dict[str, dict[str, Trace]]:
    return {side: nsys.read(path, CASES).seen for side, path in recorded.items()}


def test_one_execution_is_told_kernel_by_kernel(traces):
    base, head = (traces[side]["sdpa-seq512"] for side in ("base", "head"))
    assert [one.kernel for one in base.slices] == [0] and len(head.slices) == 14
    for trace in (base, head):
        of_one = {place: sum(one.kernel == place for one in trace.slices) for place in range(len(trace.kernels))}
        assert of_one == {place: kernel.count for place, kernel in enumerate(trace.kernels)}
        assert trace.slices[0].start == 0
        assert sum(one.seconds for one in trace.slices) == pytest.approx(trace.busy, rel=0.05)
        ends = [one.start + one.seconds for one in trace.slices]
        assert all(end <= after.start for end, after in zip(ends, trace.slices[1:], strict=False))


def test_a_copy_is_told_by_its_kind(traces):
    (upload,) = traces["head"]["upload-mib64"].slices
    assert (upload.kernel, upload.name) == (None, "copy host to device")


def test_a_whole_capture_is_cut(recorded):
    (trace,) = nsys.read(recorded["head"], None).seen.values()
    assert len(trace.slices) == MOST_SLICES
    assert [one.start for one in trace.slices] == sorted(one.start for one in trace.slices)


def test_torch_profiler_tells_the_same():
    trace = kineto.read(DATA / "cuda.json", "perfci-execution")
    assert isinstance(trace, Trace) and trace.slices
    kernels = [one for one in trace.slices if one.kernel is not None]
    assert len(kernels) == sum(kernel.count for kernel in trace.kernels)
    assert trace.slices[0].start == 0
