"""Compilers, strace, and the contents of perfci's image."""

import re
from collections.abc import Iterator
from pathlib import Path

from perfci.doctor.gpu import boards, cuda_words
from perfci.doctor.machine import Machine, fail, ok, warn
from perfci.doctor.profilers import ncu, nsys
from perfci.doctor.pytorch import inside
from perfci.model.base import UsageError
from perfci.model.doctor import Finding
from perfci.model.profile import Fault
from perfci.model.text import version_numbers
from perfci.system import pins, strace
from perfci.system.bounded import Said


def nvcc(machine: Machine) -> tuple[str, str, Said] | None:
    """Return path, version and answer of the compiler: $CUDA_HOME's, the PATH's, /usr/local/cuda's."""
    home = machine.env.get("CUDA_HOME") or machine.env.get("CUDA_PATH")
    places = (f"{home}/bin/nvcc" if home else None, machine.which("nvcc"), machine.root / "usr/local/cuda/bin/nvcc")
    path = next((str(place) for place in places if place and Path(place).is_file()), None)
    if path is None:
        return None
    said = machine.run([path, "--version"])
    release = re.search(r"release \d+\.\d+, V([\d.]+)", said.out)
    return path, release[1] if said.fine and release else "", said


def check_nvcc(machine: Machine) -> Iterator[Finding]:
    """Check whether what nvcc makes runs here, and in torch."""
    if (compiler := machine.known(nvcc)) is None:
        return
    path, version, said = compiler
    if not version:
        yield warn("nvcc", f"{path} does not work: {said.why()}", "install a CUDA toolkit, or set CUDA_HOME to one")
        return
    text, major, driver = f"nvcc {version} ({path})", version_numbers(version)[0], machine.known(boards).cuda
    built = str(machine.known(inside).get("torch").get("cuda") or "")
    if driver is not None and major > driver // 1000:
        reason = f"{text} is newer than the driver ({cuda_words(driver)}): what it compiles does not run"
        yield warn("nvcc", reason, f"update the driver, or take a toolkit of CUDA {driver // 1000}")
    elif built and version_numbers(built)[0] != major:
        reason = f"{text} has another CUDA major than torch ({built}): torch refuses to build extensions with it"
        yield warn("nvcc", reason, f"set CUDA_HOME to a toolkit of CUDA {built}")


def check_strace(machine: Machine) -> Iterator[Finding]:
    """Check strace, by which `compare` proves cases unchanged."""
    path = machine.which("strace")
    if path is None:
        yield warn("strace", "not installed: cases that read nothing of a change are measured, too", strace.INSTALL)
    elif why := strace.refusal(path):
        yield warn("strace", f"cases that read nothing of a change are measured, too: {why}", strace.ALLOW)


def check_image(machine: Machine, built: bool = False) -> Iterator[Finding]:
    """Check an image's driver and pinned versions.

    Where it is `built`, what is not fails.
    """
    name = machine.env.get(pins.VARIABLE)
    if not name:
        return
    try:
        variant = pins.variant(name)
    except UsageError as error:
        yield fail("image", str(error), f"build it with one of these as VARIANT, or unset {pins.VARIABLE}")
        return
    driver = next((board.driver for board in machine.known(boards).boards if board.driver), None)
    if driver and version_numbers(driver)[0] < variant.driver:
        fit = pins.for_driver(driver)
        remedy = f"take the image {fit}" if fit else "update the driver"
        yield fail("image", f"{name} needs driver {variant.driver}, and this is {driver}", remedy, variant=name)
        return
    held = _held(machine)
    wanted = {"ncu": variant.ncu, "nsys": variant.nsys, "torch": variant.torch}
    if held["CUDA"] or variant.base.startswith("nvidia/"):
        wanted["CUDA"] = ".".join(variant.cuda.split(".")[:2])  # nvcc numbers its patches otherwise
    other = [
        f"{tool} {held[tool] or 'missing'}, pinned is {version}"
        for tool, version in wanted.items()
        if version_numbers(held[tool])[: len(version_numbers(version)[:3])] != version_numbers(version)[:3]
    ]
    if other:
        make, text = fail if built else warn, f"{name} holds {'; '.join(other)}"
        yield make("image", text, f"build it with `make image VARIANT={name}`", variant=name)
    else:
        holds = ", ".join(f"{tool} {version}" for tool, version in wanted.items())
        yield ok("image", f"{name}: {holds}, as pinned", variant=name)


def _held(machine: Machine) -> dict[str, str]:
    profilers = {"ncu": machine.known(ncu), "nsys": machine.known(nsys)}
    compiler = machine.known(nvcc)
    return {
        **{name: "" if isinstance(tool, Fault) else tool.version for name, tool in profilers.items()},
        "torch": str(machine.known(inside).get("torch").get("version") or ""),
        "CUDA": compiler[1] if compiler else "",
    }
