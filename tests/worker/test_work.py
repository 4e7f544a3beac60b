"""What a worker knows of machine code without a GPU: the names in images, and how parameters' padding is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.worker.work.elf import functions, variables
from perfci.worker.work.record import _loosen, demangled
from tests.work.recorded import documents

IMAGES = [bytes.fromhex(held) for held in documents()["images"].values()]


def test_names_of_kernels_and_variables_are_those_of_the_image() -> None:
    names = [functions(image) for image in IMAGES]
    assert all(names)
    assert frozenset({"_scaled"}) in names
    assert any({"_Z19work_another_behindPKfPfif", "_Z4lastPf"} == set(one) for one in names)
    tables = {name: variables(image) for image in IMAGES for name in functions(image)}
    assert tables["_Z17work_device_tablePKfPfif"] == ["table"]
    assert tables["_Z20work_constant_memoryPKfPfif"] == ["table"]
    assert tables["_scaled"] == []


@given(st.sampled_from(IMAGES), st.data())
def test_damaged_images_name_something_or_nothing(image: bytes, data: st.DataObject) -> None:
    damaged = bytearray(image[: data.draw(st.integers(0, len(image)))])
    for _ in range(data.draw(st.integers(0, 20)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(functions(bytes(damaged)), frozenset)
    assert isinstance(variables(bytes(damaged)), list)


def kernel(held: str, **more: object) -> dict:
    parameter = {"offset": 0, "bytes": held, "places": [], "host": []}
    return {"kind": "kernel", "function": "f", "own": False, "parameters": [parameter], **more}


@pytest.mark.parametrize(
    ("again", "loose"),
    [
        (kernel("00ff22"), [1]),
        (kernel("ff1122"), [0]),
        (kernel("001122"), []),
        (kernel("00ff22", function="g"), None),
        (kernel("00ff2233"), None),
        ({"kind": "memset"}, None),
    ],
)
def test_bytes_that_differ_from_capture_to_capture_are_noted(again: dict, loose: list[int] | None) -> None:
    first = kernel("001122")
    _loosen({"nodes": [first]}, {"nodes": [again]})
    assert first["parameters"][0].get("loose") == loose


def test_own_kernels_have_no_padding() -> None:
    first = kernel("001122", own=True)
    _loosen({"nodes": [first]}, {"nodes": [kernel("00ff22", own=True)]})
    assert "loose" not in first["parameters"][0]


def test_names_of_cpp_are_written_for_people() -> None:
    pytest.importorskip("torch")  # which needs the library that knows them
    assert demangled("_Z9work_gridPKfPfif") == "work_grid(float const*, float*, int, float)"
    assert [demangled(name) for name in ("_scaled", "_Z", "", "_Z\udc80")] == ["_scaled", "_Z", "", "_Z\udc80"]
