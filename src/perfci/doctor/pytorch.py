"""torch as the interpreter of the code under test sees it, in another process."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfci.doctor.gpu import Boards, boards
from perfci.doctor.machine import Machine, fail, ok, warn
from perfci.model.doctor import Finding
from perfci.model.text import version_numbers

CHILD = Path(__file__).parents[1] / "worker" / "inventory.py"
IMPORT_TIME, GPU_TIME = 30.0, 90.0
"""Seconds: torch from a cold disk; CUDA's start and the first kernel, too."""
OLDEST_PYTHON = (3, 9)


@dataclass(frozen=True)
class Inside:
    """The interpreter's answers, topic → facts, and how it ended, if not well."""

    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str = ""

    def get(self, topic: str) -> dict[str, Any]:
        """Return the facts of a topic."""
        return self.topics.get(topic, {})

    @property
    def usable(self) -> bool:
        """A kernel of torch's ran on the GPU."""
        return bool(self.get("cuda").get("ran"))


def inside(machine: Machine) -> Inside:
    """Ask the interpreter; the GPUs' state is taken first."""
    limit = GPU_TIME if machine.known(boards).boards else IMPORT_TIME
    said = machine.run([machine.python, "-c", CHILD.read_text(encoding="utf-8")], limit, env=machine.tested)
    topics: dict[str, dict[str, Any]] = {}
    for line in said.out.splitlines():
        try:
            facts = json.loads(line)
            topics[facts.pop("topic")] = facts
        except (ValueError, LookupError, AttributeError, TypeError):
            continue
    if "end" in topics:
        return Inside(topics)
    ended = replace(said, raw=b"").why()
    return Inside(topics, f"{ended} at {topics['begin']['what']}" if "begin" in topics else ended)


def check_torch(machine: Machine) -> Iterator[Finding]:
    """Check the interpreter, its torch, and its use of the GPU."""
    seen = machine.known(inside)
    python = seen.get("python")
    if not python:
        text = f"{machine.python} cannot be used for the code under test: {seen.problem}"
        yield fail("python", text, "name another interpreter: python: in perfci.yaml, or --python")
        return
    version = python["version"]
    if version_numbers(version)[:2] < OLDEST_PYTHON:
        yield fail("python", f"{machine.python} is Python {version}: the worker needs 3.9", "name a newer interpreter")
    else:
        yield ok("python", f"the code under test runs in Python {version} ({machine.python})", version=version)
    yield _torch(machine, seen, machine.known(boards))


def _torch(machine: Machine, seen: Inside, gpus: Boards) -> Finding:
    torch, cuda, pip = seen.get("torch"), seen.get("cuda"), f"{machine.python} -m pip install"
    if not torch:
        return fail("torch", f"torch cannot be asked: {seen.problem}", f"see why: {machine.python} -c 'import torch'")
    if torch["error"] and torch["there"]:
        text = f"import torch fails: {torch['error']}"
        return fail("torch", text, f"fix that installation: {pip} --force-reinstall torch")
    if torch["error"]:
        remedy = f"{pip} torch, or name the interpreter that has it (--python)"
        if gpus.boards:
            return fail("torch", "not installed: no case can use the GPU, commands of the policy can", remedy)
        return warn("torch", "not installed: cases in plain Python and commands can be measured", remedy)
    name = f"torch {torch['version']}" + (f" for CUDA {torch['cuda']}" if torch["cuda"] else ", without CUDA")
    if gpus.boards and not torch["cuda"]:
        return fail("torch", f"{name}: it cannot use the GPU", "install a CUDA build (pytorch.org, Get Started)")
    if gpus.boards and not cuda:
        return fail("torch", f"{name}: {seen.problem}", "see dmesg for Xid errors, and the driver's version")
    if gpus.boards and not cuda["ran"]:
        text = f"{name} cannot use the GPU: {cuda['error'] or 'is_available() is false'}"
        return fail("torch", text, _remedy(machine, torch, gpus))
    ran = f": a kernel ran on {cuda['name']}" if gpus.boards else ""
    return ok("torch", f"{name}{ran}", version=torch["version"], cuda=torch["cuda"])


def _remedy(machine: Machine, torch: dict[str, Any], gpus: Boards) -> str:
    """CUDA's minor-version compatibility: the driver's major must not be under torch's."""
    most = (gpus.cuda or 10**6) // 1000
    if most < version_numbers(torch["cuda"])[0]:
        return f"the driver runs CUDA {most} at most: update it, or install torch for CUDA {most}"
    if (hidden := machine.tested.get("CUDA_VISIBLE_DEVICES")) is not None:
        return f"unset CUDA_VISIBLE_DEVICES, which is {hidden!r}, or name a GPU that is there"
    return f"see why: {machine.python} -c 'import torch; torch.ones(1, device=\"cuda\")'"
