"""Marks of the executions of a case for a profiler."""

import sys
from importlib import metadata

import pytest

from perfci.worker import profile

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("nsys", "package", "cuda", "marked"),
    [
        ("2023.4.4", "0.2.11", "13.0", ""),
        ("2025.3.1", "0.2.17", "13.0", ""),
        ("2023.4.4", "0.2.17", "13.0", "torch.cuda.nvtx: nsys 2023.4.4 records no range of nvtx 0.2.17"),
        ("2023.4.4", None, "13.0", "torch.cuda.nvtx: nvtx is not installed"),
        ("2023.4.4", "0.2.11", None, ""),
        ("2023.4.4", None, None, "nothing: nvtx is not installed"),
        ("", "0.2.17", "13.0", "torch.cuda.nvtx: ncu is watching"),
    ],
)
@pytest.mark.parametrize("threads", [False, True])
def test_the_package_marks_where_it_is_recorded_and_else_it_is_told_what_does(
    monkeypatch: pytest.MonkeyPatch, nsys: str, package: str | None, cuda: str | None, marked: str, threads: bool
) -> None:
    if package is None:
        monkeypatch.setitem(sys.modules, "nvtx", None)
    else:
        pytest.importorskip("nvtx")
    real = metadata.version
    monkeypatch.setattr(profile.metadata, "version", lambda name: package if name == "nvtx" else real(name))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv(profile.NSYS, nsys)
    found, begin, end = profile.marker(threads)
    assert found == marked
    if not marked.startswith("torch"):  # which needs CUDA
        end(begin("perfci-0-case"))
