"""torch and its packages as the interpreter of the code under test sees them, asked in a process of their own."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfci.doctor.gpu import Boards, boards, cuda_words
from perfci.doctor.machine import Machine, Said, clipped, fail, ok, warn
from perfci.model.doctor import Finding
from perfci.model.text import version_numbers

CHILD = Path(__file__).parents[1] / "worker" / "inventory.py"
IMPORT_TIME, GPU_TIME = 30.0, 90.0
"""Seconds: torch from a cold disk takes tens; with a GPU also CUDA's start and the first kernels of each library."""
OLDEST_PYTHON = (3, 9)
FLASH_CAPABILITY = (8, 0)
"""Of torch's FlashAttention 2 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""


@dataclass(frozen=True)
class Inside:
    """The interpreter's answers: topic → facts; and how it ended, if not well."""

    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str = ""

    def get(self, topic: str) -> dict[str, Any]:
        """Return the facts of a topic; empty where it was not told."""
        return self.topics.get(topic, {})

    @property
    def usable(self) -> bool:
        """A kernel of torch's ran on the GPU."""
        return bool(self.get("cuda").get("ran"))


def inside(machine: Machine) -> Inside:
    """Ask the interpreter. The GPUs' state is taken first: this process is on the GPU."""
    limit = GPU_TIME if machine.known(boards).boards else IMPORT_TIME
    env = machine.env if machine.python_env is None else machine.python_env
    said = machine.run([machine.python, "-c", CHILD.read_text(encoding="utf-8")], limit, env=env)
    topics: dict[str, dict[str, Any]] = {}
    doing = ""
    for line in said.out.splitlines():
        try:
            facts = json.loads(line)
        except ValueError:
            continue
        if isinstance(facts, dict) and isinstance(facts.get("topic"), str):
            if facts["topic"] == "begin":
                doing = str(facts.get("what", ""))
            else:
                topics[facts.pop("topic")] = facts
    if "end" in topics:
        return Inside(topics)
    ended = Said(said.code, "", said.err, said.problem).why()
    return Inside(topics, f"{ended}{f' at {doing}' if doing else ''}")


def check_torch(machine: Machine) -> Iterator[Finding]:
    """Check the interpreter, its torch, and whether that can use the GPU."""
    seen, gpus = machine.known(inside), machine.known(boards)
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
    yield _torch(machine, seen, gpus)


def _torch(machine: Machine, seen: Inside, gpus: Boards) -> Finding:
    torch, cuda = seen.get("torch"), seen.get("cuda")
    there = bool(gpus.boards)
    if not torch:
        text = f"torch cannot be asked: {seen.problem}"
        return fail("torch", text, f"see why: {machine.python} -c 'import torch'")
    if torch["error"]:
        if torch["there"]:
            text = f"import torch fails: {torch['error']}"
            return fail(
                "torch", text, f"fix that installation: {machine.python} -m pip install --force-reinstall torch"
            )
        remedy = f"{machine.python} -m pip install torch, or name the interpreter that has it (--python)"
        if there:
            return fail("torch", "not installed: no case can use the GPU, commands of the policy can", remedy)
        return warn("torch", "not installed: cases in plain Python and commands can be measured", remedy)
    name = f"torch {torch['version']}" + (f" for CUDA {torch['cuda']}" if torch["cuda"] else ", without CUDA")
    values = {"version": torch["version"], "cuda": torch["cuda"], "profiler": torch["profiler"]}
    if not there:
        reason = "" if not cuda.get("available") else f"; it sees {cuda.get('name')} all the same"
        return ok("torch", f"{name}{reason}", **values)
    if not torch["cuda"]:
        return fail(
            "torch", f"{name}: it cannot use the GPU", "install a CUDA build (pytorch.org, Get Started)", **values
        )
    if not cuda:
        return fail("torch", f"{name}: {seen.problem}", "see dmesg for Xid errors, and the driver's version", **values)
    if not cuda["ran"]:
        return fail(
            "torch", f"{name} cannot use the GPU: {_refusal(machine, cuda)}", _remedy(machine, torch, gpus), **values
        )
    capability = ".".join(map(str, cuda["capability"]))
    return ok(
        "torch",
        f"{name}, driver for {cuda_words(gpus.cuda)}: a kernel ran on {cuda['name']}, capability {capability}",
        capability=capability,
        uuid=cuda.get("uuid"),
        devices=cuda.get("count"),
        **values,
    )


def _refusal(machine: Machine, cuda: dict[str, Any]) -> str:
    hidden = (machine.python_env or machine.env).get("CUDA_VISIBLE_DEVICES")
    hides = f"; CUDA_VISIBLE_DEVICES={clipped(hidden, 80)!r}" if hidden is not None else ""
    return f"{cuda['error'] or 'is_available() is false'}{hides}"


def _remedy(machine: Machine, torch: dict[str, Any], gpus: Boards) -> str:
    """Return what to do by the rule of CUDA's minor-version compatibility: the driver's major must not be under
    torch's."""
    major = int(str(torch["cuda"]).split(".", maxsplit=1)[0])
    if gpus.cuda is not None and gpus.cuda // 1000 < major:
        most = gpus.cuda // 1000
        return f"the driver runs CUDA {most} at most: update it, or install torch for CUDA {most}"
    if "CUDA_VISIBLE_DEVICES" in (machine.python_env or machine.env):
        return "unset CUDA_VISIBLE_DEVICES, or name a GPU that is there"
    return f"see why: {machine.python} -c 'import torch; torch.ones(1, device=\"cuda\")'"


def check_offers(machine: Machine) -> Iterator[Finding]:
    """Check FlashAttention, FP8, TF32 and Triton as this torch offers them."""
    seen = machine.known(inside)
    if seen.get("torch").get("version"):
        yield _attention(seen)
        yield _fp8(seen)
        tf32 = seen.get("tf32")
        if tf32:
            switch = {True: "on", False: "off", None: "not told"}[tf32["cudnn"]]
            matmul = "off" if tf32["matmul"] == "highest" else "on"
            text = f"TF32 {matmul} in matrix products ({tf32['matmul']} precision), {switch} in cuDNN's convolutions"
            yield ok("tf32", text, **tf32)
        else:
            yield _cut_short("tf32", seen)
    yield _package(seen, "triton", "Triton", bool(machine.known(boards).boards))
    yield _package(seen, "flash-attn", "the package flash_attn", False)


def _cut_short(name: str, seen: Inside) -> Finding:
    return fail(name, f"not told: the interpreter ended before ({seen.problem})", "fix what ended it, and run again")


def _attention(seen: Inside) -> Finding:
    facts = seen.get("attention")
    if not facts:
        return _cut_short("attention", seen)
    on = [name for name, switch in facts["on"].items() if switch]
    if not seen.get("torch")["cuda"]:
        return ok("attention", "this torch has none of SDPA's fused back ends for GPUs", **facts)
    if not facts["tried"]:
        switched = ", ".join(on) or "none"
        return ok("attention", f"SDPA's fused back ends were not tried without a GPU; switched on: {switched}", **facts)
    ran = [name for name, error in facts["tried"].items() if not error]
    refused = [f"{name} refused ({clipped(error, 120)})" for name, error in facts["tried"].items() if error]
    text = "; ".join([f"SDPA ran alone with {', '.join(ran) or 'no fused back end'}", *refused])
    off = [name for name in facts["on"] if name not in on]
    if off:
        text += f"; switched off: {', '.join(off)}"
    capable = tuple(seen.get("cuda")["capability"]) >= FLASH_CAPABILITY
    if capable and ("flash" not in ran or "flash" in off):
        return warn("attention", text, "install a torch that is built with FlashAttention for this GPU", **facts)
    return ok("attention", text, **facts)


def _fp8(seen: Inside) -> Finding:
    facts = seen.get("fp8")
    if not facts:
        return _cut_short("fp8", seen)
    if not facts["there"]:
        return ok("fp8", "this torch has no float8 matrix products (torch._scaled_mm)", **facts)
    if facts["error"]:
        return warn("fp8", f"torch._scaled_mm with float8_e4m3fn failed: {facts['error']}", "update torch", **facts)
    if facts["tried"]:
        return ok("fp8", "torch._scaled_mm ran with float8_e4m3fn", **facts)
    if seen.usable:
        capability = ".".join(map(str, seen.get("cuda")["capability"]))
        return ok("fp8", f"not on this GPU: it has capability {capability}, FP8 needs 8.9", **facts)
    return ok("fp8", "torch._scaled_mm is there; it was not tried without a GPU", **facts)


def _package(seen: Inside, topic: str, words: str, needed: bool) -> Finding:
    facts = seen.get(topic)
    if not facts:
        if not seen.get("python"):
            return warn(topic, f"{words} was not searched: the interpreter does not run", "fix python first")
        return _cut_short(topic, seen)
    if facts["error"]:
        version = f" {facts['version']}" if facts["version"] else ""
        return warn(topic, f"{words}{version} cannot be imported: {facts['error']}", "install one that fits this torch")
    if facts["there"]:
        return ok(
            topic, f"{words} {facts['version'] or 'of unknown version'} can be imported", version=facts["version"]
        )
    if needed:
        return warn(topic, f"{words} is not installed: kernels written in it cannot run", f"pip install {topic}")
    return ok(topic, f"{words} is not installed")
