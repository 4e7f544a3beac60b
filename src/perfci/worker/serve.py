"""A worker: one fresh process of one side, which imports the suite, checks and times cases."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import mmap
import os
import random
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from . import bench, ceilings, declare, discover, guard, profile, tuners, versus
from .channel import Channel, connect
from .checks import check
from .cpu import CpuSampler
from .gpu import ColdSampler, allocated, give_back, rig, transient
from .graph import GraphSampler, probe
from .host import host_times
from .imports.asked import AskingFinder
from .leash import PR_SET_PTRACER, PR_SET_PTRACER_ANY, leash, prctl
from .proof.steps import prove
from .scripts.held import Stuck, leave_all
from .scripts.kernel import ScriptKernel
from .scripts.reached import device_bytes
from .scripts.reaching import end_sessions
from .work.captures import displace_heap
from .work.driver import OpaqueWork
from .work.images import Images
from .work.record import Record

SETS_APART = 256
"""Between the numbers of two placements' first sets: at least `MOST_SETS` of measure/timing.py."""
CHECKED_SHARE = 0.02
"""Of the GPU's memory, up to which freed memory is kept where several check at once."""
SCRIPT_SETS = 16
"""Input sets at most of a script's call: each is a run of the script."""
SMALL, POOL = 512, 1 << 14
"""Bytes of pymalloc's largest block, and of a pool of blocks of one size (Objects/obmalloc.c)."""
TEXT_LIMIT = 400


def described(error: BaseException) -> str:
    """Return type and message of an exception, in one short line."""
    text = " ".join(str(error).split())
    line = type(error).__name__ + (": " + text if text else "")
    return line if len(line) <= TEXT_LIMIT else line[: TEXT_LIMIT - 1] + "…"


def facade() -> types.ModuleType:
    """Return the module for `import perfci` in suite files, whatever is installed under that name."""
    module = types.ModuleType("perfci", "perfci, as seen by the code under test")
    module.kernel = declare.kernel  # type: ignore[attr-defined]
    module.Bench = bench.Bench  # type: ignore[attr-defined]
    return module


def enter(message: dict[str, Any], log: Optional[int] = None) -> None:
    """Turn this process, just forked or spawned, into a worker of one side. Never returns.

    `log`: for all output, if not yet set.
    """
    code = 70  # EX_SOFTWARE: the worker itself broke
    try:
        if os.getsid(0) != os.getpid():  # a spawned worker leads a session already
            os.setsid()
        leash(message.get("cores"))
        if log is not None:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
        if not message.get("profiled"):  # a profiler finds its way into this process by variables of its own
            os.environ.clear()
            os.environ.update(message["env"])
        channel = connect(message["address"])
        channel.send({"hello": message["id"], "pid": os.getpid()})
        Server(channel, message).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the user's code closed it
                stream.flush()
        if not message.get("profiled"):
            os._exit(code)
        sys.exit(code)  # a profiler in this process writes what it has as the process ends


def main(setup: str) -> None:
    """Enter a spawned worker: `setup` is a fork's message in JSON."""
    enter(dict(json.loads(setup), spawned=True))


def import_torch() -> None:
    """Import torch, if any, before the suite: guards need it unchanged."""
    try:
        import torch  # noqa: F401  # for all that looks it up among the modules

        with contextlib.suppress(ImportError):
            importlib.import_module("numpy.random")  # which draws inputs
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return
    tuners.remember()  # before libraries come that are imported for the suite


def ballast(seed: int) -> list[Any]:
    """Return memory to keep, of sizes that `seed` draws: a suite's allocations lie elsewhere in each pair of workers,
    alike within a pair.

    Else what a comment in head moves would lie there in all pairs, faster or slower for good. Up to two pools of each
    of pymalloc's size classes, some 700 pieces of up to 32 KiB, 2 MB in all, and up to 4 MiB that are mapped and never
    touched.
    """
    drawn = random.Random(seed)
    small = [_block(size) for size in range(16, SMALL + 1, 16) for _ in range(drawn.randrange(2 * POOL // size))]
    large = [bytes(drawn.randrange(1 << drawn.randrange(4, 16))) for _ in range(drawn.randrange(500, 1000))]
    return [*small, *large, mmap.mmap(-1, mmap.PAGESIZE * drawn.randrange(1, 1024))]


def _block(size: int) -> Any:
    return object() if size == 16 else float(size) if size == 32 else bytes(size - 33)


class Server:
    """Serves the run's requests, one at a time."""

    def __init__(self, channel: Channel, setup: dict[str, Any]) -> None:
        self.channel = channel
        self.setup = setup
        self.kernels: dict[str, declare.Kernel] = {}
        self.prepared: list[Any] = []
        self.sampler: Any = None
        self.fuzzed: set[str] = set()
        self.warm: set[str] = set()
        self.learned: dict[str, Any] = {}
        self.seconds = float("inf")
        """Of an execution of the case described last."""
        self.capture = contextlib.ExitStack()
        self.asked: Optional[AskingFinder] = None
        self.ballast: list[Any] = []
        self.images: Optional[Images] = None
        self.collecting = False
        """Garbage is to be collected again."""
        self.warmed = False
        """The untimed batch of the block that is asked for next was executed."""
        self.unreadable = ""
        """Why machine code is not seen."""
        os.register_at_fork(after_in_child=channel.close)

    def run(self) -> None:
        """Serve until the run hangs up or says goodbye."""
        self.enter_side()
        while True:
            message = self.channel.receive()
            if message is None or message["op"] == "bye":
                return
            self.warmed &= message["op"] == "block"
            self._collect()
            try:
                reply = getattr(self, "do_" + message["op"])(message)
            except Exception as error:
                traceback.print_exc()
                reply = {"error": {"kind": "exception", "text": described(error)}, "poisoned": self.poisoned()}
                reply["poisoned"] |= isinstance(error, Stuck) or not self._left()
            self.channel.send(reply)

    def _keep_garbage(self) -> None:
        """Until the next request but a warm block's: answers are timed from outside."""
        self.collecting |= gc.isenabled()
        gc.disable()

    def _collect(self) -> None:
        if self.collecting and not self.warmed:
            gc.enable()
            self.collecting = False
            types.SimpleNamespace()  # it counts, so that Python collects what is due: before what is timed next

    def _left(self) -> bool:
        """End a failed case's scripts. False where one does not, or the device no longer answers."""
        self.prepared, self.sampler = [], None
        try:
            leave_all()
        except Exception:  # whatever CUDA raises: the run takes a new worker
            traceback.print_exc()
            return False
        return True

    def enter_side(self) -> None:
        """Take the side's folder, path and threads."""
        if self.setup.get("spawned") and not self.setup.get("profiled"):
            import_torch()  # as the parent did for its forks
        os.chdir(self.setup["tree"])
        known = set(self.setup["path"])
        sys.path[:] = self.setup["path"] + [entry for entry in sys.path if entry and entry not in known]
        sys.modules["perfci"] = facade()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.setup["threads"])
            rig()
            tuners.watch()
        guard.trust()  # before the suite can put anything in the place of what times and checks

    @property
    def cache(self) -> str:
        """Where extensions lie that the suite compiles as it is imported: beside the side's site, if not set."""
        return str(self.setup.get("cache") or os.path.join(os.path.dirname(self.setup["site"]), "cache"))

    def poisoned(self) -> bool:
        """Tell whether the CUDA context no longer works."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        try:
            torch.cuda.synchronize()
        except Exception:  # whatever it raises: the context is lost, and the run takes a new worker
            return True
        return False

    def do_facts(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return interpreter, torch and GPU of this process."""
        none = dict.fromkeys(("torch", "cuda", "name", "uuid", "gpu"))
        facts: dict[str, Any] = {"python": sys.version.split()[0], **none}
        facts["packages"] = discover.packages() if message.get("packages") else []
        try:
            import torch
        except ModuleNotFoundError:
            return facts
        facts["torch"] = torch.__version__
        facts["cuda"] = torch.version.cuda
        if torch.version.cuda and torch.cuda.is_available():  # ROCm's torch calls AMD's GPUs cuda, too
            properties = torch.cuda.get_device_properties(0)
            facts["name"], facts["uuid"] = properties.name, str(getattr(properties, "uuid", ""))
            facts["gpu"] = {
                "multiprocessors": properties.multi_processor_count,
                "capability": "{}.{}".format(*torch.cuda.get_device_capability(0)),
                "l2_bytes": properties.L2_cache_size,
                "memory_bytes": properties.total_memory,
                "empty_pair_seconds": rig().empty_pair(),
            }
        return facts

    def do_ceilings(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the ceilings of a device."""
        return ceilings.measure(message["device"])

    def do_load(self, message: dict[str, Any]) -> dict[str, Any]:
        """Import the suite; return its cases and where every module of the repository came from."""
        root, site = self.setup["tree"], self.setup["site"]
        sys.dont_write_bytecode |= not message.get("bytecode", True)
        bench.seed_generators(message["seed"])
        self.ballast = ballast(message["seed"])
        if message.get("work"):
            displace_heap()
            try:
                self.images = Images()
            except OpaqueWork as error:
                self.unreadable = str(error)
        if any(entry["tests"] for entry in message.get("scripts", [])):
            with contextlib.suppress(ImportError):  # which its run says
                importlib.import_module("pytest")
        if message.get("asked"):
            self.asked = AskingFinder(
                self.setup, message["asked"], lambda name, state: self.channel.send({"asked": [name, state]})
            )
            sys.meta_path.insert(0, self.asked)
        watched = self.images.listened() if self.images is not None else contextlib.nullcontext()
        with watched:
            found = discover.discover(root, message["suite"])
            running = functools.partial(self._running, message.get("tells", False))
            scripts = discover.scripts(root, message.get("scripts", []), found, running)
        tuners.find()
        if message.get("context") and "torch" in sys.modules:
            with contextlib.suppress(Exception):  # the first case that uses the GPU says what is wrong with it
                sys.modules["torch"].cuda.synchronize()
        self.kernels = {kernel.name: kernel for kernel in found["kernels"]}
        cases = []
        for kernel in found["kernels"]:
            for device in kernel.devices:
                for spec in kernel.cases(device):
                    fuzz = len(kernel.fuzz_sets(device, spec.params))
                    cases.append(
                        dict(vars(spec), limits=kernel.limits, timing=kernel.timing, fuzz=fuzz, suite=kernel.suite)
                    )
        # What the suite imported stays: collecting after every case need not walk it.
        gc.collect()
        gc.freeze()
        return {
            "files": found["files"],
            "scripts": scripts,
            "cases": cases,
            "foreign": discover.foreign_modules(root, site, message["forbidden"], self.cache),
            "modules": discover.repo_modules(root, site),
        }

    @contextlib.contextmanager
    def _running(self, told: bool, file: str) -> Iterator[None]:
        if told:
            self.channel.send({"runs": file[:TEXT_LIMIT]})
        try:
            yield
        finally:
            if self.asked is not None:
                self.asked.ran(file)

    def _kernel(self, message: dict[str, Any]) -> declare.Kernel:
        kernel, missed = self.kernels[message["kernel"]], message.get("missed")
        if not (isinstance(kernel, ScriptKernel) and kernel.script.tests):
            end_sessions()
        if isinstance(kernel, ScriptKernel) and (missed == "first" or (missed and message["op"] != "check")):
            return kernel.alone()
        return kernel

    def _forget_results(self) -> None:
        for kernel in self.kernels.values():
            if isinstance(kernel, ScriptKernel):
                kernel.results.clear()

    def do_check(self, message: dict[str, Any]) -> dict[str, Any]:
        """Check one case."""
        kernel = self._kernel(message)
        device, params = message["device"], message["params"]
        tuners.begin()
        _forget_peak(device)
        sets = [params]
        if message.get("anew"):
            self.fuzzed.clear()
        for fuzzed in kernel.fuzz_sets(device, params) if message["fuzz"] else []:
            # The cases of a kernel share most of their fuzzed shapes: each is checked once, with the first of them.
            name = json.dumps([kernel.name, device, fuzzed], sort_keys=True)
            if name not in self.fuzzed:
                self.fuzzed.add(name)
                sets.append(fuzzed)
        given = message.get("rtol"), message.get("atol")
        try:
            found = check.check_case(
                kernel, sets, device, message["seed"], given, once=message.get("missed") == "later"
            )
        finally:
            self._forget_results()
        found.update(peak=_peak(device), tuner=None, settings={})
        if device == "cuda":
            found.update(tuner=tuners.told(), settings=rig().settings())
            give_back(CHECKED_SHARE)
        replaced = guard.tampered()
        return dict(found, ok=False, kind="invalid", text=replaced) if replaced else found

    def do_try(self, message: dict[str, Any]) -> dict[str, Any]:
        """Execute the first case of each suite file's kernel once, for its imports: no case after `seconds`, nor after
        what differs was at work, as nothing is reported then."""
        end = time.monotonic() + message["seconds"]
        asked = self.asked
        assert asked is not None
        kernels = [kernel for kernel in self.kernels.values() if not isinstance(kernel, ScriptKernel)]
        for kernel in sorted(kernels, key=lambda one: asked.depends(one.suite)):
            if asked.ended(kernel.suite) or time.monotonic() > end:
                break
            for device in set(kernel.devices) & set(message["devices"]):
                for spec in list(kernel.cases(device))[:1]:
                    with contextlib.suppress(Exception):  # its check says what is wrong with it
                        bench.prepare(kernel, spec.params, device, 0, 0, False).fn()
        return {}

    def do_await_tracer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Let this user's processes trace this one, and look names up one by one."""
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)
        discover.find_without_listing(self.setup["path"])
        return {}

    def do_prove(self, message: dict[str, Any]) -> dict[str, Any]:
        """See `proof.steps.prove`."""
        return prove(self, message)

    def do_describe(self, message: dict[str, Any]) -> dict[str, Any]:
        """Open a case to learn its inputs, the work and memory of an execution, and tuners' work since the check."""
        device = message["device"]
        self._forget()
        _forget_peak(device)
        known = tuners.told() if device == "cuda" else ""
        before = allocated(device)
        self._draw(message)
        made = self.prepared[0].bench
        # Before a kernel changes its inputs.
        said = {"digest": made.inputs_digest(), "work": made.declared_work(), "dtype": made.main_dtype()}
        room = max(made.device_bytes(), allocated(device) - before)
        said.update(footprint=room, room=room, sets=None, peak=_peak(device))
        if self.prepared[0].scripted and device == "cuda":
            said.update(footprint=device_bytes(self.prepared[0].raw) or room, sets=SCRIPT_SETS)
        self._sample(message)
        said["seconds"] = self.seconds = self._within(self.sampler.estimate)
        said["elsewhere"] = self._within(self.sampler.elsewhere, said["seconds"])
        inputs = said["footprint"] if self.prepared[0].scripted else made.device_bytes()
        said["memory"] = inputs + transient(device, self.prepared[0].fn)
        said.update(settings=self.sampler.settings(), clocks=self.sampler.clocks)
        return dict(said, tuner=tuners.told(known) if device == "cuda" else None)

    def do_open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Draw and place a case's inputs anew and warm it up. `sets`: input sets, each with values of its own."""
        self._forget()
        self._draw(message)
        start = time.monotonic()
        name = self._sample(message)
        if name in self.warm:
            self._within(self.sampler.settle)
        else:
            self.warm.add(name)
            self._within(self.sampler.warm)
        return {"warm": time.monotonic() - start}

    def _forget(self) -> None:
        self.prepared, self.sampler = [], None
        leave_all()
        tuners.begin()

    def _within(self, call: Callable[..., Any], *args: Any) -> Any:
        return self.prepared[0].within(call, *args)

    def _draw(self, message: dict[str, Any]) -> None:
        kernel, device, seed = self._kernel(message), message["device"], message["seed"]
        first = message["placement"] * SETS_APART
        for number in range(first, first + message["sets"]):
            self.prepared.append(bench.prepare(kernel, message["params"], device, seed, number, False))
        tuners.find()

    def _sample(self, message: dict[str, Any]) -> str:
        self.sampler = _sampler(message["mode"], [one.fn for one in self.prepared], message["seed"])
        name = json.dumps([message[key] for key in ("kernel", "params", "device", "mode")], sort_keys=True)
        self.sampler.learned = self.learned.setdefault(name, self.sampler.learned)
        return name

    def do_probe(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return whether a CUDA graph can capture the open case, and an execution's time in it."""
        try:
            return {
                "refused": "",
                "seconds": self._within(probe, self._fns(bool(message.get("versus")))[0], self.seconds),
            }
        except Exception as error:
            # Left for the run, which takes a new worker if the failed capture has broken this one.
            return {"refused": described(error)}

    def do_warm(self, message: dict[str, Any]) -> dict[str, Any]:
        """Execute the untimed batch of a block on the CPU."""
        self._keep_garbage()
        self._within(self.sampler.block, message["batch"], 0)
        self.warmed = True
        return {}

    def do_block(self, message: dict[str, Any]) -> dict[str, Any]:
        """Time one block of samples."""
        self._keep_garbage()
        block = functools.partial(self.sampler.block, warm=True) if self.warmed else self.sampler.block
        self.warmed = False
        times = self._within(block, message["batch"], message["samples"], message["bracket"])
        return {"times": times, "hertz": self.sampler.hertz, "drained": self.sampler.drained}

    def do_versus(self, message: dict[str, Any]) -> dict[str, Any]:
        """Time the open case and its alternative in turns. `failed`: what the alternative raised."""
        mode = message["mode"]
        own = self.sampler if mode == message["own"] else _sampler(mode, self._fns(False), message["seed"])
        other = _sampler(mode, self._fns(True), message["seed"])
        try:
            if own is not self.sampler:
                own.warm()
            other.warm()
            return dict(versus.in_turns(own, other, message), failed="")
        except Exception as error:
            return {"own": [], "other": [], "failed": described(error)}

    def do_host(self, message: dict[str, Any]) -> dict[str, Any]:
        """See `host.host_times`."""
        return dict(self._within(host_times, self._fns(False), message["executions"], message["hold"], message["seed"]))

    def _fns(self, alternative: bool) -> list[Any]:
        if not alternative:
            return [one.fn for one in self.prepared]
        declared = [one.bench.declared_versus() for one in self.prepared]
        return [one.fn for one in declared if one is not None]

    def do_capture(self, message: dict[str, Any]) -> dict[str, Any]:
        """Let a waiting profiler record from here on, or stop."""
        if message["on"]:
            self.capture.enter_context(profile.capture(message["device"] == "cuda"))
        else:
            self.capture.close()
        return {}

    def do_profile(self, message: dict[str, Any]) -> dict[str, Any]:
        """Execute a case for a profiler: warm, then `executions` times in NVTX ranges called `name`.

        `window`: the profiler records these alone. `path`: torch's own profiler writes its trace there.
        """
        kernel, device, window = self._kernel(message), message["device"], message["window"]
        cuda = device == "cuda"
        one = bench.prepare(kernel, message["params"], device, message["seed"], 0, False)
        try:
            one.within(profile.warm, one.fn, sys.modules["torch"].cuda.synchronize if cuda else None)
            name, executions = message["name"], message["executions"]
            if message.get("path"):
                one.within(profile.trace, one.fn, executions, message["path"], device)
                return {}
            with profile.capture(cuda) if window else contextlib.nullcontext():
                # Where the window ends with the case, a range may hold what all threads do.
                marked = one.within(profile.execute, one.fn, name, executions, threads=bool(window))
            if cuda:
                sys.modules["torch"].cuda.synchronize()
            return {"marked": marked}
        finally:
            one.bench.release()
            del one
            gc.collect()
            give_back()

    def do_work(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write into `folder` the GPU work of a graph of `batch` executions over `sets` input sets, for each seed in
        `draws`.

        `refused` says why it is unknown. Where `unseen` libraries are in this process, too, nothing may wait for the
        GPU, as tuners do.
        """
        if self.images is None:
            return {"refused": self.unreadable}
        kernel = self._kernel(message)
        made: list[Any] = []
        own = [self.setup["tree"], self.setup["site"], self.cache]
        try:
            record = Record(self.images, Path(message["folder"]), own)
            draws = message["draws"]
            for placement, seed in enumerate(draws):
                with self.images.listened():
                    for number in range(placement * SETS_APART, placement * SETS_APART + message["sets"]):
                        made.append(bench.prepare(kernel, message["params"], message["device"], seed, number, False))
                record.add([one.fn for one in made], message["batch"], last=placement == len(draws) - 1)
                self._release(made)
        except OpaqueWork as error:
            return {"refused": str(error)}
        except Exception as error:
            return {"refused": described(error)}
        finally:
            self._release(made)
        if message["unseen"] and self.images.waited and tuners.unseen():
            return {"refused": f"it calls {self.images.waited}, as code does that picks the fastest kernel"}
        return {"refused": ""}

    def _release(self, made: list[Any]) -> None:
        """The memory of the next cases must not depend on theirs."""
        while made:
            made.pop().bench.release()
        gc.collect()
        sys.modules["torch"].cuda.empty_cache()

    def do_close(self, message: dict[str, Any]) -> dict[str, Any]:
        """Check the result once more, after timing, and drop the case."""
        outcome: Optional[Any] = None
        tuner: Optional[str] = None
        try:
            self.sampler.finish()
            chosen = tuners.chosen()
            if not isinstance(self.sampler, CpuSampler):
                tuner = tuners.told()
            if message["verify"]:
                given = message.get("rtol"), message.get("atol")
                replays = isinstance(self.sampler, GraphSampler)
                outcome = check.verify(self.prepared[-1], given, redraw=not replays)
                if outcome.ok:
                    outcome = self.sampler.verify(self.prepared, given) or outcome
        finally:
            while self.prepared:
                self.prepared.pop().bench.release()
            self.sampler = None
            self._forget_results()
            gc.collect()
            give_back()
        replaced = guard.tampered()
        if replaced:
            return {"ok": False, "kind": "invalid", "text": replaced}
        if outcome is None:
            return {"ok": True, "tuner": tuner, "chosen": chosen}
        return {"ok": outcome.ok, "kind": outcome.kind, "text": outcome.text, "tuner": tuner, "chosen": chosen}


def _sampler(mode: str, fns: list[Any], seed: int) -> Any:
    """`seed`: the placement's, the same for base and head."""
    if mode == "cpu":
        return CpuSampler(fns[0])
    if mode == "cold":
        return ColdSampler(fns[0], seed)
    if mode in ("rotating", "hot"):
        return GraphSampler(fns)
    raise ValueError(f"{mode!r} is no timing mode")


def _forget_peak(device: str) -> None:
    if device == "cuda" and "torch" in sys.modules:
        sys.modules["torch"].cuda.reset_peak_memory_stats()
        check.highest_before = 0


def _peak(device: str) -> int:
    if device != "cuda" or "torch" not in sys.modules:
        return 0
    return max(check.highest_before, int(sys.modules["torch"].cuda.max_memory_allocated()))
