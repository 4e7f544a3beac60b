"""The doctor in perfci's image: does the driver fit, and is there what is pinned."""

from pathlib import Path

import pytest

from perfci.doctor.survey import OFFLINE, diagnose
from perfci.doctor.tools import check_image
from perfci.system import pins
from perfci.system.pins import variant
from tests.system.machines import H200, NO_GPU, NVCC, NoDriver, Nvml, alone, machine, ncu, nsys, program, says

NSYS = "2023.4.4"
"""What the stand-in for nsys says."""


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch):
    alone(monkeypatch)


@pytest.fixture
def pinned(monkeypatch):
    """cuda13 as pinned, but for the nsys that the stand-in is."""
    fields = variant("cuda13").model_copy(update={"nsys": NSYS})
    variants = {"cuda13": fields, "cuda12": variant("cuda12")}
    monkeypatch.setattr(pins, "variants", lambda: variants)


def image(folder: Path, *, torch: str = "2.13.0+cu130", tool: str = "2025.3.1.0", nvml=None, name: str = "cuda13"):
    told = (H200 if nvml else NO_GPU) | {"torch": H200["torch"] | {"version": torch}}
    found = machine(folder, told=told, nvml=nvml or NoDriver(), env={"PERFCI_IMAGE": name} if name else None)
    nsys(folder / "bin")
    ncu(folder / "bin", tool)
    program(folder / "bin", "nvcc", says(NVCC))
    return found


def lines(found, **options):
    return [(one.status, one.found) for one in check_image(found, **options)]


def test_elsewhere_there_is_no_line(tmp_path):
    assert lines(image(tmp_path, name="")) == []


@pytest.mark.parametrize("nvml", [None, Nvml()])
def test_what_is_as_pinned_is_well(tmp_path, pinned, nvml):
    held = f"cuda13: ncu 2025.3.1, nsys {NSYS}, torch 2.13.0, CUDA 13.0, as pinned"
    assert lines(image(tmp_path, nvml=nvml), built=True) == [("ok", held)]


def test_what_is_not_as_pinned_fails_where_it_is_built_and_is_told_later(tmp_path, pinned):
    found = image(tmp_path, torch="2.13.1", tool="2026.1.1.2")
    held = "cuda13 holds ncu 2026.1.1, pinned is 2025.3.1; torch 2.13.1, pinned is 2.13.0"
    assert lines(found, built=True) == [("fail", held)]
    assert lines(found) == [("warn", held)]


@pytest.mark.parametrize("tool", ["nsys", "ncu", "nvcc"])
def test_what_is_missing_is_not_as_pinned(tmp_path, pinned, tool):
    found = image(tmp_path)
    (tmp_path / "bin" / tool).unlink()
    ((status, held),) = lines(found, built=True)
    assert status == "fail"
    assert f"{'CUDA' if tool == 'nvcc' else tool} missing, pinned is" in held


def test_a_driver_that_is_too_old_fails_with_the_image_that_fits(tmp_path):
    (line,) = check_image(image(tmp_path, nvml=Nvml(12090, "575.57.08")))
    assert (line.status, line.found) == ("fail", "cuda13 needs driver 580, and this is 575.57.08")
    assert line.remedy == "take the image cuda12"
    (line,) = check_image(image(tmp_path / "older", nvml=Nvml(11080, "470.256.02")))
    assert (line.status, line.remedy) == ("fail", "update the driver")


def test_a_name_that_is_no_variant_fails(tmp_path):
    ((status, held),) = lines(image(tmp_path, name="cuda99"))
    assert (status, held) == ("fail", "cuda99: is no variant of the image: choose cuda13, cuda12, debian")


def test_a_build_checks_programs_alone(tmp_path, pinned):
    """No line on this machine's GPU, disks, repository or token: they are not the image's."""
    found = diagnose(image(tmp_path), (), OFFLINE)
    names = {one.name for one in found.findings}
    assert names >= {"image", "python", "torch"}
    assert not names & {"gpu", "disk", "memory", "git", "token", "temporary folder", "counters"}
    assert found.exit_code == 0
    assert diagnose(image(tmp_path / "without", tool="1999.1.1"), (), OFFLINE).exit_code == 3
