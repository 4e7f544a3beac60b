"""Compilers, headers and Docker."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfci.doctor.gpu import boards, cuda_words
from perfci.doctor.machine import Machine, ok, warn
from perfci.doctor.pytorch import inside
from perfci.model.doctor import Finding
from perfci.system import strace

DOCKER_TIME = 8.0
"""Seconds: a daemon that is being started answers late."""


def check_nvcc(machine: Machine) -> Iterator[Finding]:
    """Check the compiler that torch's extensions would take: $CUDA_HOME's, that on the PATH, /usr/local/cuda's."""
    home = machine.env.get("CUDA_HOME") or machine.env.get("CUDA_PATH")
    candidates = [f"{home}/bin/nvcc"] if home else []
    candidates += [found for found in (machine.which("nvcc"),) if found]
    candidates.append(str(machine.root / "usr/local/cuda/bin/nvcc"))
    path = next((one for one in candidates if Path(one).is_file()), None)
    if path is None:
        yield ok("nvcc", "not installed: CUDA sources cannot be compiled here")
        return
    said = machine.run([path, "--version"])
    release = re.search(r"release (\d+)\.(\d+), V([\d.]+)", said.out)
    if not said.fine or release is None:
        yield warn("nvcc", f"{path} does not work: {said.why()}", "install a CUDA toolkit, or set CUDA_HOME to one")
        return
    text, values = f"nvcc {release[3]} ({path})", {"version": release[3], "path": path}
    major, driver = int(release[1]), machine.known(boards).cuda
    built = machine.known(inside).get("torch").get("cuda")
    if driver is not None and major > driver // 1000:
        reason = f"{text} is newer than the driver ({cuda_words(driver)}): what it compiles does not run"
        yield warn("nvcc", reason, f"update the driver, or take a toolkit of CUDA {driver // 1000}", **values)
    elif built and int(str(built).split(".", maxsplit=1)[0]) != major:
        reason = f"{text} has another CUDA major than torch ({built}): torch refuses to build extensions with it"
        yield warn("nvcc", reason, f"set CUDA_HOME to a toolkit of CUDA {built}", **values)
    else:
        yield ok("nvcc", text, **values)


def check_cutlass(machine: Machine) -> Iterator[Finding]:
    """Check CUTLASS: its Python package, or its headers where compilers search."""
    facts = machine.known(inside).get("cutlass")
    where = _headers(machine)
    parts = []
    if facts.get("there"):
        broken = f", which cannot be imported ({facts['error']})" if facts["error"] else ""
        parts.append(f"Python package {facts['version'] or 'of unknown version'}{broken}")
    if where is not None:
        parts.append(f"headers {where[1]} in {where[0]}")
    values: dict[str, Any] = {"package": facts.get("version"), "headers": where[1] if where else None}
    if facts.get("there") and facts["error"]:
        yield warn("cutlass", "; ".join(parts), "install one that fits this Python (nvidia-cutlass-dsl)", **values)
    elif parts:
        yield ok("cutlass", "; ".join(parts), **values)
    else:
        missing = "neither a Python package nor headers" if facts else "no headers; the interpreter could not be asked"
        yield ok("cutlass", f"{missing} ($CUTLASS_PATH, $CPATH, /usr/local/include, third_party/cutlass)", **values)


def _headers(machine: Machine) -> tuple[str, str] | None:
    """Return folder and version of CUTLASS's headers."""
    env = machine.env
    folders = [f"{env[name]}/include" for name in ("CUTLASS_PATH", "CUTLASS_HOME", "CUTLASS_DIR") if env.get(name)]
    for name in ("CPATH", "CPLUS_INCLUDE_PATH"):
        folders += [one for one in env.get(name, "").split(":") if one]
    folders += [str(machine.root / one) for one in ("usr/include", "usr/local/include", "usr/local/cuda/include")]
    folders += [str(machine.where / one / "include") for one in ("third_party/cutlass", "3rdparty/cutlass", "cutlass")]
    for folder in folders:
        try:
            text = Path(folder, "cutlass/version.h").read_text(errors="replace")
        except OSError:
            continue
        numbers = [re.search(rf"#define CUTLASS_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
        return folder, ".".join(number[1] for number in numbers if number) or "of unknown version"
    return None


def check_strace(machine: Machine) -> Iterator[Finding]:
    """Check strace, by which `compare` proves that a case cannot have changed."""
    path = machine.which("strace")
    if path is None:
        text = "not installed: cases that read nothing of a change are measured, too"
        yield warn("strace", text, strace.INSTALL, path=None)
    elif why := strace.refusal(path):
        yield warn("strace", f"cases that read nothing of a change are measured, too: {why}", strace.ALLOW, path=path)
    else:
        yield ok("strace", f"{path}: cases that read nothing of a change need not be measured", path=path)


def check_docker(machine: Machine) -> Iterator[Finding]:
    """Check Docker's client, daemon and GPU runtime; nothing where Docker is not installed."""
    path = machine.which("docker")
    if path is None:
        return
    said = machine.run([path, "info", "--format", "{{json .}}"], DOCKER_TIME)
    try:
        info: Any = json.loads(said.out)
    except ValueError:
        info = {}
    info = info if isinstance(info, dict) else {}
    client = str((info.get("ClientInfo") or {}).get("Version") or "of unknown version")
    server = info.get("ServerVersion")
    if not server:
        errors = [str(one) for one in info.get("ServerErrors") or []] or [said.why()]
        denied = "permission denied" in " ".join(errors).lower()
        remedy = (
            "sudo usermod -aG docker $USER, and log in again"
            if denied
            else "start it (sudo systemctl start docker), or set DOCKER_HOST"
        )
        yield warn("docker", f"client {client}, but no daemon: {errors[0]}", remedy, client=client, server=None)
        return
    runtimes = sorted(info.get("Runtimes") or {})
    ways = [f"runtime {name}" for name in runtimes if "nvidia" in name] + _cdi(machine, info)
    text = f"client {client}, daemon {server}"
    values = {"client": client, "server": server, "runtimes": runtimes, "gpu": ways}
    if ways:
        yield ok("docker", f"{text}; GPUs by {', '.join(ways)}", **values)
    elif machine.known(boards).boards:
        remedy = "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; restart docker"
        yield warn("docker", f"{text}; containers get no GPU: neither a runtime nvidia nor CDI", remedy, **values)
    else:
        yield ok("docker", f"{text}; no GPU runtime", **values)


def _cdi(machine: Machine, info: dict[str, Any]) -> list[str]:
    """Return NVIDIA's devices by the Container Device Interface: what the daemon lists, else specifications that lie
    there."""
    devices = info.get("DiscoveredDevices") or []
    if any("nvidia.com/gpu" in str(one.get("ID", "")) for one in devices if isinstance(one, dict)):
        return ["CDI"]
    for folder in info.get("CDISpecDirs") or []:
        if any((machine.root / str(folder).lstrip("/")).glob("*nvidia*")):
            return [f"CDI ({folder})"]
    return []
