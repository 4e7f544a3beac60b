"""A launch: one fresh process of one arm. It imports the suite, checks and times cases, and answers in JSON."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
import traceback
import types
from typing import Any, Optional

from . import bench, check, declare, discover
from .channel import Channel, connect

TEXT_LIMIT = 400
"""Characters of a reason that are kept: the log holds the rest."""


def one_line(error: BaseException) -> str:
    """An exception as one short line."""
    text = " ".join(str(error).split())
    line = type(error).__name__ + (": " + text if text else "")
    return line if len(line) <= TEXT_LIMIT else line[: TEXT_LIMIT - 1] + "…"


def facade() -> types.ModuleType:
    """The module that suite files get for `import perfci`, whatever the interpreter has installed under that name."""
    module = types.ModuleType("perfci", "perfci, as seen by the code under test")
    module.kernel = declare.kernel  # type: ignore[attr-defined]
    module.Bench = bench.Bench  # type: ignore[attr-defined]
    return module


def enter(message: dict[str, Any]) -> None:
    """Turn this process, just forked, into a launch of one arm. Never returns."""
    from .parent import leash

    code = 70  # EX_SOFTWARE: the launch itself broke
    try:
        if os.getsid(0) != os.getpid():  # a spawned launch leads a session already
            os.setsid()
        leash(message.get("cores"))
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(message["env"])
        channel = connect(message["address"])
        channel.send({"hello": message["id"], "pid": os.getpid()})
        Launch(channel, message).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the user's code closed it
                stream.flush()
        os._exit(code)


def main(setup: str) -> None:
    """Entry of a spawned launch: `setup` is the JSON that a fork would get."""
    enter(json.loads(setup))


class Launch:
    """Serves the conductor's requests, one at a time."""

    def __init__(self, channel: Channel, setup: dict[str, Any]) -> None:
        self.channel = channel
        self.setup = setup
        self.kernels: dict[str, declare.Kernel] = {}
        self.prepared: Any = None
        self.sampler: Any = None
        self.fuzzed: set[str] = set()
        self.warm: set[str] = set()
        os.register_at_fork(after_in_child=channel.close)

    def run(self) -> None:
        """Serve until the conductor hangs up or says goodbye."""
        self.enter_arm()
        while True:
            message = self.channel.receive()
            if message is None or message["op"] == "bye":
                return
            try:
                reply = getattr(self, "do_" + message["op"])(message)
            except Exception as error:
                traceback.print_exc()
                reply = {"error": {"kind": "exception", "text": one_line(error)}, "poisoned": self.poisoned()}
            self.channel.send(reply)

    def enter_arm(self) -> None:
        """Make this process one of the arm's: its folder, its path, its threads."""
        os.chdir(self.setup["tree"])
        known = set(self.setup["path"])
        sys.path[:] = self.setup["path"] + [entry for entry in sys.path if entry and entry not in known]
        sys.modules["perfci"] = facade()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.setup["threads"])

    def poisoned(self) -> bool:
        """Whether the CUDA context of this process no longer works."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        try:
            torch.cuda.synchronize()
        except Exception:  # whatever it raises: the context is lost, and the conductor takes a new launch
            return True
        return False

    def do_facts(self, message: dict[str, Any]) -> dict[str, Any]:
        """Interpreter, torch and GPU as this process sees them."""
        facts: dict[str, Any] = {"python": sys.version.split()[0], "torch": None, "cuda": None, "gpu": None}
        try:
            import torch
        except ModuleNotFoundError:
            return facts
        facts["torch"] = torch.__version__
        facts["cuda"] = torch.version.cuda
        if torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(0)
            facts["gpu"] = {
                "name": properties.name,
                "uuid": str(getattr(properties, "uuid", "")),
                "multiprocessors": properties.multi_processor_count,
                "capability": "{}.{}".format(*torch.cuda.get_device_capability(0)),
                "l2_bytes": properties.L2_cache_size,
                "memory_bytes": properties.total_memory,
            }
        return facts

    def do_load(self, message: dict[str, Any]) -> dict[str, Any]:
        """Import the suite; say which cases it declares and where every module of the repository came from."""
        start = time.monotonic()
        root, site = self.setup["tree"], self.setup["site"]
        found = discover.discover(root, message["suite"])
        self.kernels = {kernel.name: kernel for kernel in found["kernels"]}
        cases = []
        for kernel in found["kernels"]:
            for device in kernel.devices:
                for spec in kernel.cases(device):
                    cases.append(
                        {
                            "id": spec.id,
                            "kernel": spec.kernel,
                            "device": spec.device,
                            "params": spec.params,
                            "file": spec.file,
                            "line": spec.line,
                            "limits": list(kernel.limits),
                            "fuzz": len(kernel.fuzz_sets(device, spec.params)),
                        }
                    )
        return {
            "files": found["files"],
            "cases": cases,
            "foreign": discover.foreign_modules(root, site, message["forbidden"]),
            "modules": discover.repo_modules(root, site),
            "seconds": time.monotonic() - start,
        }

    def do_check(self, message: dict[str, Any]) -> dict[str, Any]:
        """Check one case for correctness at its own and its fuzzed parameters."""
        kernel = self.kernels[message["kernel"]]
        device, params = message["device"], message["params"]
        sets = [params]
        for fuzzed in kernel.fuzz_sets(device, params) if message["fuzz"] else []:
            # The cases of a kernel share most of their fuzzed shapes: each is checked once, with the first of them.
            name = json.dumps([kernel.name, device, fuzzed], sort_keys=True)
            if name not in self.fuzzed:
                self.fuzzed.add(name)
                sets.append(fuzzed)
        return check.check_case(
            kernel, sets, device, message["seed"], rtol=message.get("rtol"), atol=message.get("atol")
        )

    def do_open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Draw and place a case's inputs anew and warm it up."""
        self.prepared = self.sampler = None
        kernel = self.kernels[message["kernel"]]
        self.prepared = bench.prepare(
            kernel, message["params"], message["device"], message["seed"], message["placement"], False
        )
        made = self.prepared.bench
        digest = made.inputs_digest() if message.get("digest") else None  # before a kernel changes its inputs
        if message["device"] == "cuda":
            from .cuda import CudaSampler

            self.sampler = CudaSampler(self.prepared.fn)
        else:
            from .cpu import CpuSampler

            self.sampler = CpuSampler(self.prepared.fn)
        name = json.dumps([message["kernel"], message["params"], message["device"]], sort_keys=True)
        estimate = None
        if name not in self.warm:
            self.warm.add(name)
            estimate = self.sampler.estimate()
        else:
            self.sampler.settle()
        return {
            "estimate": estimate,
            "digest": digest,
            "work": made.declared_work(),
            "contract": dict(self.sampler.contract(), threads=self.setup["threads"]),
        }

    def do_block(self, message: dict[str, Any]) -> dict[str, Any]:
        """Time one block of samples."""
        times = self.sampler.block(message["batch"], message["samples"])
        return {"times": times, "hertz": self.sampler.hertz, "drained": self.sampler.drained}

    def do_close(self, message: dict[str, Any]) -> dict[str, Any]:
        """Check the result once more, after timing, and drop the case."""
        try:
            self.sampler.finish()
            outcome: Optional[Any] = None
            if message["verify"]:
                outcome = check.verify(self.prepared, message.get("rtol"), message.get("atol"))
        finally:
            self.prepared.bench.release()
            self.prepared = self.sampler = None
            gc.collect()
        if outcome is None:
            return {"ok": True}
        return {"ok": outcome.ok, "kind": outcome.kind, "text": outcome.text}
