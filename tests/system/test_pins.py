"""The pins of the image: they fit each other, and nothing that is published names another version."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import perfci
from perfci.model.base import UsageError
from perfci.profilers.ncu.command import _DRIVERS, cuda_major
from perfci.system.pins import DEFAULT, for_driver, variant, variants

ROOT = Path(__file__).parents[2]
NVIDIA = [name for name, one in variants().items() if one.base.startswith("nvidia/")]

# NVIDIA's redistrib_*.json, as https://github.com/NixOS/nixpkgs keeps them under
# pkgs/development/cuda-modules/_cuda/manifests/cuda/.
NCU_OF_CUDA = {
    "11.8.0": "2022.3.0", "12.0.0": "2022.4.0", "12.0.1": "2022.4.1", "12.1.0": "2023.1.0", "12.1.1": "2023.1.1",
    "12.2.0": "2023.2.0", "12.2.1": "2023.2.1", "12.2.2": "2023.2.2", "12.3.0": "2023.3.0", "12.3.1": "2023.3.1",
    "12.3.2": "2023.3.1", "12.4.0": "2024.1.0", "12.4.1": "2024.1.1", "12.5.0": "2024.2.0", "12.5.1": "2024.2.1",
    "12.6.0": "2024.3.0", "12.6.1": "2024.3.1", "12.6.2": "2024.3.2", "12.6.3": "2024.3.2", "12.8.0": "2025.1.0",
    "12.8.1": "2025.1.1", "12.9.0": "2025.2.0", "12.9.1": "2025.2.1", "13.0.0": "2025.3.0", "13.0.1": "2025.3.1",
    "13.0.2": "2025.3.1", "13.1.0": "2025.4.0", "13.1.1": "2025.4.1", "13.2.1": "2026.1.1", "13.4.1": "2026.3.0",
    "13.4.2": "2026.3.1",
}  # fmt: skip


@pytest.mark.parametrize("name", variants())
def test_ncu_is_the_one_that_comes_with_its_cuda(name):
    one = variant(name)
    assert NCU_OF_CUDA[one.cuda] == one.ncu
    major = int(one.cuda.split(".")[0])
    assert cuda_major(one.ncu) == major, "what the doctor and the ncu pass go by"
    assert str(one.driver) == _DRIVERS[major]


@pytest.mark.parametrize("name", NVIDIA)
def test_an_image_is_built_on_its_cuda_with_its_nsys(name):
    one = variant(name)
    assert one.base == f"nvidia/cuda:{one.cuda}-devel-ubuntu24.04"
    assert re.search(r"NsightSystems-linux-cli-public-(\d+\.\d+\.\d+)\.", one.nsys_package)[1] == one.nsys
    assert one.nsys_sha256
    assert name == f"cuda{one.cuda.split('.')[0]}"


def test_the_default_is_first_and_for_the_newest_cuda():
    assert next(iter(variants())) == DEFAULT == max(NVIDIA, key=lambda name: variant(name).driver)
    assert (variant("cuda13").driver, variant("cuda12").driver) == (580, 525)


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("580.95.05", "cuda13"), ("610.43.02", "cuda13"), ("579.99", "cuda12"), ("575.57.08", "cuda12"),
        ("525.60.13", "cuda12"), ("524.99", None), ("470.256.02", None), ("580", "cuda13"),
    ],
)  # fmt: skip
def test_the_driver_says_which_image(driver, name):
    assert for_driver(driver) == name


def pins(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfci.system.pins", name]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_variant_that_is_none_is_told_with_those_there_are():
    with pytest.raises(UsageError, match=r"^cuda11: is no variant of the image: choose cuda13, cuda12, debian$"):
        variant("cuda11")
    done = pins("cuda11")
    assert (done.returncode, done.stdout) == (1, "") and "choose cuda13" in done.stderr


def test_the_dockerfile_has_the_values_of_the_default_variant():
    found = {}
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if match := re.fullmatch(r'ARG (\w+)="?([^"]*)"?', line):
            found[match[1]] = match[2]
    assert found.pop("REVISION") == ""  # of the commit, where it is built from one
    assert found == variant(DEFAULT).arguments(DEFAULT)
    assert found["VERSION"] == perfci.__version__


@pytest.mark.parametrize("name", variants())
def test_the_arguments_of_a_build_are_quoted_for_xargs(name):
    printed = pins(name).stdout
    by_xargs = subprocess.run(["xargs", "-n1"], input=printed, capture_output=True, text=True, check=True).stdout
    assert by_xargs.splitlines() == shlex.split(printed)
    values = dict(one.split("=", 1) for one in shlex.split(printed) if one != "--build-arg")
    assert values == variant(name).arguments(name)


NAMED = {
    r"nvidia/cuda:(\d+\.\d+\.\d+)(?=-devel)": "cuda",
    r"nsight-systems-cli-(\d+\.\d+\.\d+)": "nsys",
    r"NsightSystems-linux-cli-public-(\d+\.\d+\.\d+)": "nsys",
    r"nsight-compute-(\d+\.\d+\.\d+)": "ncu",
    r"(?<![-\w])torch==(\d+\.\d+\.\d+)": "torch",
}
"""How files name a version to be installed → the pin. `nvidia/cuda:` without a patch, or of another flavour, is none."""


def published() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    kinds = {".md", ".yml", ".yaml", ".toml", ".txt", ".sh", ""}
    files = [ROOT / name for name in listed.split("\0") if name and not name.startswith("tests/")]
    return [file for file in files if file.is_file() and (file.suffix in kinds or "Dockerfile" in file.name)]


def test_no_file_names_another_version():
    seen, other = set(), []
    for file in published():
        text = file.read_text(errors="replace")
        for pattern, pin in NAMED.items():
            for version in re.findall(pattern, text):
                seen.add((pin, version))
                if version not in {getattr(one, pin) for one in variants().values()}:
                    other.append(f"{file.relative_to(ROOT)}: {pin} {version}")
        other += [
            f"{file.relative_to(ROOT)}: {tag}" for tag in re.findall(r"nvidia/cuda:(?!\d+\.\d+\.\d+-devel)\S+", text)
        ]
    assert other == []
    assert {("cuda", variant(DEFAULT).cuda), ("nsys", variant(DEFAULT).nsys)} <= seen, "the patterns match nothing"


def test_the_page_on_containers_has_the_pins_in_its_table():
    page = (ROOT / "docs" / "containers.md").read_text()
    for name in NVIDIA:
        one = variant(name)
        row = f"| `{name}` | {one.driver} | {one.cuda} | {one.ncu} | {one.nsys} | {one.torch} |"
        assert row in page
