"""The parts beside the kernels, in a process of their own: tuning, the other tools' samples, cuda-bench.

`python -m benchmarks.sensitivity.probe STAGE OPTIONS`, called by `collect`; OPTIONS is a JSON object.

- `tune` finds the amounts of extra work that make each kernel slower by the nominal slow-downs, and measures what is
  realised: CUDA graphs of unchanged and slower code, replayed in turns in one process on the same inputs. As they
  alternate within milliseconds, the clock is the same for all, and ratios of times are ratios at equal clock.
- `samples` times every variant of every kernel for a given time, as a benchmark script does.
- `nvbench` does so through cuda-bench.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.sensitivity.recording import KERNELS, SLOW, Recording
from perfci.stats.describe import trimmed_mean
from perfci.worker.bench import Prepared, prepare
from perfci.worker.discover import discover

START = {"add64k": 40, "gemm1024": 80, "resample": 2000, "attention": 400, "copy512m": 2**21, "gemm8192": 5000}
"""Amounts that tuning begins with: some percent on an H200."""
CPU_STEPS = 200
"""As in kernels.py: extra work is counted in repetitions, so that there is nothing to tune."""
LONG = 300e-6
"""Seconds that a replay lasts at least, so that event times resolve 0.01 % of it."""
ROTATION = 3
"""Input sets together take this many times the L2."""
MOST_SETS = 256
KEPT = 2000
"""Samples that are kept of each variant in each process, evenly spaced in the order measured."""
FLUSH = 2
"""The flush writes this many times the L2."""
VARIANTS = ["base", *(f"{by:g}" for by in SLOW[1:])]
AIM = 1.05
"""Tuning aims at this many times the nominal slow-down: one that came out under a limit of the nominal size would be
within the limit with good reason."""
TUNING_CAPTURES = 3
BATCH = 10
"""Samples that are queued at once."""
SEARCH = 40
"""Steps in which tuning must have found an amount whose effect shows, and is not too large."""
LEAST_EFFECT, LARGEST_EFFECT = 0.01, 0.08
REFINED = 5
"""Steps by which the amounts are then corrected."""

Times = NDArray[np.float64]


class Dial:
    """How much extra work the kernel does now."""

    def __init__(self) -> None:
        self.value = 0

    def __call__(self) -> int:
        """The amount."""
        return self.value


def say(text: str) -> None:
    """Progress, at once."""
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


class Kernel:
    """One kernel with its input sets, drawn and placed from `seed`: one, or with `rotate` enough to pass the L2."""

    def __init__(self, kernel: Any, device: str, seed: int, rotate: bool = True) -> None:
        import torch

        self.torch, self.device, self.dial = torch, device, Dial()
        self.gpu = device == "cuda"
        before = torch.cuda.memory_allocated() if self.gpu else 0
        self.sets: list[Prepared] = [self._prepare(kernel, seed, 0)]
        if self.gpu and rotate:
            each = max(1, torch.cuda.memory_allocated() - before)
            wanted = ROTATION * torch.cuda.get_device_properties(0).L2_cache_size
            count = min(MOST_SETS, -(-wanted // each))
            self.sets += [self._prepare(kernel, seed, index) for index in range(1, count)]
        for one in self.sets:
            one.fn()
        self.wait()
        self.seconds = self._estimate()

    def _prepare(self, kernel: Any, seed: int, index: int) -> Prepared:
        return prepare(kernel, {"slow": "0", "extra": self.dial}, self.device, seed, index)

    def wait(self) -> None:
        """Wait for the device."""
        if self.gpu:
            self.torch.cuda.synchronize()

    def _estimate(self) -> float:
        """Seconds of one execution, about."""
        replay = self.capture(1)
        return min(float(time) for time in replay.times(3))

    def release(self) -> None:
        """Give the memory back."""
        for one in self.sets:
            one.bench.release()
        self.sets.clear()
        if self.gpu:
            self.torch.cuda.empty_cache()

    def capture(self, rounds: int) -> "Replay":
        """`rounds` executions of every input set with the dial as it stands, ready to be repeated."""
        return Replay(self, rounds)

    def rounds(self) -> int:
        """How often all sets must run to last long enough."""
        return max(1, -(-int(LONG * 1e9) // max(1, int(self.seconds * len(self.sets) * 1e9))))


class Replay:
    """A CUDA graph over all input sets; on the CPU a loop."""

    def __init__(self, kernel: Kernel, rounds: int) -> None:
        self.kernel, self.count = kernel, rounds * len(kernel.sets)
        self.amount = kernel.dial.value
        fns = [one.fn for _ in range(rounds) for one in kernel.sets]
        self.graph: Any = None
        if kernel.gpu:
            torch = kernel.torch
            self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            # Not by `with torch.cuda.graph`, which collects garbage and empties the cache: 0.1 s instead of 3 ms.
            with torch.cuda.stream(stream):
                self.graph.capture_begin()
                for fn in fns:
                    fn()
                self.graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph.replay()
            kernel.wait()
        self.fns = fns

    def queue(self) -> Callable[[], float]:
        """Run it, or queue it; returns what tells the seconds of one execution once the device is idle."""
        if self.graph is None:
            self.kernel.dial.value = self.amount
            start = time.perf_counter()
            for fn in self.fns:
                fn()
            seconds = (time.perf_counter() - start) / self.count
            return lambda: seconds
        begin, end = (self.kernel.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.graph.replay()
        end.record()
        return lambda: float(begin.elapsed_time(end)) * 1e-3 / self.count

    def times(self, samples: int) -> list[float]:
        """Seconds of one execution in each of `samples` replays; one before and one behind are not counted."""
        tell = [self.queue() for _ in range(samples + 2)]
        self.kernel.wait()
        return [one() for one in tell[1:-1]]


def interleaved(replays: Sequence[Replay], turns: int, rng: random.Random) -> Times:
    """Seconds of one execution, shape (turns, replays): in each turn every replay once, in random order."""
    found = np.empty((turns, len(replays)))
    for first in range(0, turns, BATCH):
        told: list[tuple[int, int, Callable[[], float]]] = []
        replays[0].queue()  # what is first behind a wait, or last before it, is not counted
        for turn in range(first, min(turns, first + BATCH)):
            order = list(range(len(replays)))
            rng.shuffle(order)
            told += [(turn, index, replays[index].queue()) for index in order]
        replays[0].queue()
        replays[0].kernel.wait()
        for turn, index, tell in told:
            found[turn, index] = tell()
    return found


def slow_downs(kernel: Kernel, amounts: Sequence[int], turns: int, rng: random.Random) -> Times:
    """ln(slower/unchanged) for each amount, from graphs captured once."""
    replays = []
    for amount in (0, *amounts):
        kernel.dial.value = amount
        replays.append(kernel.capture(kernel.rounds()))
    logs = np.log(interleaved(replays, turns, rng))
    return np.array([trimmed_mean(logs[:, index] - logs[:, 0]) for index in range(1, len(replays))])


def tuned(measure: Callable[[Sequence[int]], Times], start: int) -> dict[str, int]:
    """Slow-down → amount. `measure`: amounts → ln(slower/unchanged).

    Raises RuntimeError where extra work does not make the kernel slower.
    """
    amount, effect = start, 0.0
    for _ in range(SEARCH):
        effect = float(measure([amount])[0])
        if effect < LEAST_EFFECT:
            amount = int(1.5 * amount) + 1
        elif effect > LARGEST_EFFECT:
            amount = max(1, int(0.7 * amount))  # not by 1/1.5, so that the search cannot go round in circles
        else:
            break
    further = amount + amount // 4 + 1
    low, high = (float(found) for found in measure([amount, further]))
    if not (LEAST_EFFECT / 2 < low < high):
        raise RuntimeError(f"an amount of {amount} makes it slower by {100 * low:.2f} %: it cannot be tuned")
    # The slope where the effect shows: a first part of the extra work may hide behind what the kernel waits for.
    slope = (high - low) / (further - amount)
    wanted = np.log1p(AIM * np.array(SLOW[1:]))
    amounts = np.maximum(1, np.rint(amount + (wanted - low) / slope)).astype(int)
    for _ in range(REFINED):
        effects = measure(amounts.tolist())
        amounts = np.maximum(1, np.rint(amounts + (wanted - effects) / slope)).astype(int)
    return {f"{by:g}": int(found) for by, found in zip(SLOW[1:], amounts, strict=True)}


def tune(options: dict[str, Any]) -> Recording:
    """Amounts and realised slow-downs of every kernel, into `meta`."""
    rng = random.Random(options["seed"])
    amounts: dict[str, Any] = {}
    realised: dict[str, Any] = {}
    problems: list[str] = []
    for name, declared in declared_kernels(options):
        try:
            kernel = Kernel(declared, options["device"], rng.getrandbits(31))
            amounts[name] = _amounts(name, kernel, options["turns"], rng)
            logs = []
            for placement in range(options["placements"]):
                if placement:
                    kernel.release()
                    kernel = Kernel(declared, options["device"], rng.getrandbits(31))
                for _ in range(options["captures"]):
                    logs.append(slow_downs(kernel, list(amounts[name].values()), options["turns"], rng))
            realised[name] = _realised(np.array(logs), amounts[name], kernel.seconds)
            kernel.release()
        except Exception as error:  # noqa: BLE001 - one kernel that does not work here costs that kernel
            problems.append(f"tune {name}: {type(error).__name__}: {str(error)[:300]}")
            say(problems[-1])
            continue
        say(f"{name}: tuned to {amounts[name]}")
    return Recording(meta={"amounts": amounts, "realised": realised, "problems": problems})


def _amounts(name: str, kernel: Kernel, turns: int, rng: random.Random) -> dict[str, int]:
    if not kernel.gpu:
        return {f"{by:g}": round(CPU_STEPS * by) for by in SLOW[1:]}

    def measure(amounts: Sequence[int]) -> Times:
        # Graphs captured from the same inputs scatter by 0.1-0.6 %.
        found = np.array([slow_downs(kernel, amounts, turns, rng) for _ in range(TUNING_CAPTURES)])
        return np.asarray(found.mean(axis=0))

    return tuned(measure, START[name])


def _realised(logs: Times, amounts: dict[str, int], seconds: float) -> dict[str, Any]:
    """`logs`: ln ratios, shape (captures, slow-downs). The standard error is that of captures, the larger scatter."""
    errors = logs.std(axis=0, ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.full(logs.shape[1], np.nan)
    slow = {
        by: {"amount": amounts[by], "slower": float(np.expm1(mean)), "error": float(error)}
        for by, mean, error in zip(amounts, logs.mean(axis=0), errors, strict=True)
    }
    return {"seconds": seconds, "captures": len(logs), "slow": slow}


def declared_kernels(options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The kernels of the tree that are asked for, by name. Raises RuntimeError where the suite does not import."""
    found = discover(options["tree"], ["kernels.py"])
    for file in found["files"]:
        if file["error"]:
            raise RuntimeError(f"{file['file']}: {file['error']['text']}")
    by_name = {kernel.name: kernel for kernel in found["kernels"]}
    for name in options.get("kernels") or KERNELS:
        yield name, by_name[name]


def amount_of(options: dict[str, Any], name: str, variant: str) -> int:
    """The extra work of a variant."""
    return int(options["amounts"][name].get(variant, 0))


def thinned(values: Sequence[float]) -> NDArray[np.float32]:
    """At most KEPT values, evenly spaced in the order measured."""
    array = np.asarray(values, dtype=np.float32)
    return array if len(array) <= KEPT else array[np.linspace(0, len(array) - 1, KEPT).round().astype(int)]


def samples(options: dict[str, Any]) -> Recording:
    """Samples of every variant of every kernel, `seconds` each: replays of graphs that rotate through input sets
    (`rotating`), and single executions behind a flush of the L2 (`cold`)."""
    rng = random.Random(options["seed"])
    recording = Recording(meta={"problems": [], "seconds": {}})
    chosen = [(name, declared, variant) for name, declared in declared_kernels(options) for variant in VARIANTS]
    rng.shuffle(chosen)
    for name, declared, variant in chosen:
        try:
            kernel = Kernel(declared, options["device"], rng.getrandbits(31))
            kernel.dial.value = amount_of(options, name, variant)
            for mode in options["modes"]:
                take = cold if mode == "cold" else rotating
                start = time.perf_counter()
                found = take(kernel, options["seconds"])
                recording.meta["seconds"][f"{name}|{mode}|{variant}"] = time.perf_counter() - start
                recording.put(thinned(found), "samples", name, mode, variant)
            kernel.release()
        except Exception as error:  # noqa: BLE001 - as above
            recording.meta["problems"].append(f"samples {name} {variant}: {type(error).__name__}: {str(error)[:300]}")
            say(recording.meta["problems"][-1])
    return recording


def rotating(kernel: Kernel, seconds: float) -> list[float]:
    """Replays for `seconds`."""
    replay = kernel.capture(kernel.rounds())
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < BATCH or time.perf_counter() < until:
        found += replay.times(BATCH)
    return found


def cold(kernel: Kernel, seconds: float) -> list[float]:
    """Single executions for `seconds`, each behind a flush, queued while the GPU is held back; CPU: as they come."""
    found: list[float] = []
    until = time.perf_counter() + seconds
    fn, torch = kernel.sets[0].fn, kernel.torch
    if not kernel.gpu:
        while len(found) < BATCH or time.perf_counter() < until:
            start = time.perf_counter()
            fn()
            found.append(time.perf_counter() - start)
        return found
    properties = torch.cuda.get_device_properties(0)
    flush = torch.empty(FLUSH * properties.L2_cache_size, dtype=torch.int8, device="cuda")
    hold = 2e-3
    while len(found) < BATCH or time.perf_counter() < until:
        torch.cuda._sleep(int(hold * 2e9))
        events = []
        start = time.perf_counter()
        for _ in range(BATCH):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            begin.record()
            fn()
            end.record()
            events.append((begin, end))
        flush.zero_()
        fn()
        hold = min(0.05, 2 * (time.perf_counter() - start))
        torch.cuda.synchronize()
        found += [float(begin.elapsed_time(end)) * 1e-3 for begin, end in events]
    return found


def nvbench(options: dict[str, Any]) -> Recording:
    """Every variant of every kernel through cuda-bench: samples under the timing mode `nvbench`, clocks as `clocks`."""
    import torch
    from cuda import bench

    from benchmarks.sensitivity import nvbench as files

    rng = random.Random(options["seed"])
    recording = Recording(meta={"problems": [], "seconds": {}})

    def register(name: str, declared: Any) -> None:
        def body(state: Any) -> None:
            variant = state.get_string("variant")
            start = time.perf_counter()
            try:
                kernel = Kernel(declared, "cuda", rng.getrandbits(31), rotate=False)
            except Exception as error:  # noqa: BLE001 - NVBench would end the process
                state.skip(f"{type(error).__name__}: {error}"[:200])
                return
            kernel.dial.value = amount_of(options, name, variant)
            fn = kernel.sets[0].fn

            def execute(asked: Any) -> None:
                with torch.cuda.stream(torch.cuda.ExternalStream(asked.get_stream().addressof())):
                    fn()

            state.exec(execute, batched=False)
            kernel.release()
            recording.meta["seconds"][f"{name}|nvbench|{variant}"] = time.perf_counter() - start

        benchmark = bench.register(body)
        benchmark.set_name(name)
        benchmark.add_string_axis("variant", rng.sample(VARIANTS, len(VARIANTS)))
        benchmark.set_timeout(options["seconds"])
        benchmark.set_criterion_param_float64("min-time", options["seconds"])

    for name, declared in declared_kernels(options):
        register(name, declared)
    path = Path(options["scratch"]) / "nvbench.json"
    # A kernel at the power limit runs under NVBench's default threshold, 75 % of the highest clock, and would be
    # discarded without end.
    bench.run_all_benchmarks(["nvbench", "--devices", "0", "--throttle-threshold", "30", "--jsonbin", str(path)])
    for (name, variant), (times, clocks) in files.read(path).items():
        recording.put(thinned(times.tolist()), "samples", name, "nvbench", variant)
        if clocks is not None:
            recording.put(thinned(clocks.tolist()), "clocks", name, "nvbench", variant)
    wanted = [(name, variant) for name, _ in declared_kernels(options) for variant in VARIANTS]
    missing = [" ".join(one) for one in wanted if recording.get("samples", one[0], "nvbench", one[1]) is None]
    if missing:
        recording.meta["problems"].append(f"nvbench: no samples of {', '.join(missing)}")
    return recording


STAGES = {"tune": tune, "samples": samples, "nvbench": nvbench}


def main() -> None:
    """One stage; the recording goes to the file that the options name."""
    options = json.loads(sys.argv[2])
    STAGES[sys.argv[1]](options).save(Path(options["out"]))


if __name__ == "__main__":
    main()
