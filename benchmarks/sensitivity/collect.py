"""Collect live: perfci on two commits that differ by one line, and the other tools on the same kernels.

Order: tuning (how much extra work makes each kernel slower by how much), perfci, then processes of the other tools in
turns until the time is spent. Every stage is written into the recording as it ends, so that a run which is cut short
leaves what it has.

Equal GPU time: what a regression found by perfci costs per case, DECISION pairs at the wall time of a pair with
starting and placing shared out, is what every other tool gets for a decision as pure sampling time, its own starting
not counted.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sensitivity.probe import VARIANTS
from benchmarks.sensitivity.recording import KERNELS, SLOW, Recording
from perfci.cli.progress import Console, Teller
from perfci.measure.request import Request
from perfci.measure.run import Measurement
from perfci.model.base import SIDES, DeviceKind, PerfciError
from perfci.model.results import Case, Results

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DECISION = 16
"""Pairs in which a regression is found."""
TUNED, COMPARED = 0.4, 0.62
"""Shares of the time at which tuning, and perfci, must have ended."""
CHECKING: dict[DeviceKind, float] = {"cuda": 45.0, "cpu": 2.0}
"""Seconds that perfci spends before it measures, about: compiling base and head, checking every case."""
STARTING = 25.0
"""Seconds that a process of each other tool takes to start, about, both together."""
ROUNDS = 2
"""Processes of each other tool that there must be time for: no comparison needs fewer."""
LEAST = 0.05
"""Seconds of sampling per variant in a process of another tool, at least."""
POLICY = """\
version: 1
suite: [kernels.py]
timeout: 2m
limits:
  - {cases: "*", metric: time, regression: 1%}
"""


@dataclass
class Asked:
    """A collection, as it was asked for."""

    out: Path
    """Folder; `recording.npz` is written there."""
    minutes: float = 6.0
    device: DeviceKind = "cuda"
    kernels: list[str] = field(default_factory=lambda: list(KERNELS))
    pairs: int = 64
    """Of perfci per case, at most: the time may end them earlier."""
    seed: int = 1
    mode: str = "auto"
    """Of perfci on a GPU."""
    turns: int = 12
    captures: int = 4
    placements: int = 4
    """The reference of what is realised: turns × captures × placements replays."""
    processes: int = 64
    """Of each other tool, at most."""
    longest: float = 20.0
    """Seconds of sampling per variant in a process of another tool, at most."""


def say(text: str) -> None:
    """Progress, with the time."""
    sys.stderr.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")
    sys.stderr.flush()


class Collector:
    """One collection: its clock, its scratch folder and what it has so far."""

    def __init__(self, asked: Asked, scratch: Path) -> None:
        self.asked, self.scratch = asked, scratch
        self.start = time.monotonic()
        self.recording = Recording(meta={"device": "", "injected": "kernel", "problems": [], "seconds": {}})
        self.columns: dict[tuple[str, ...], list[Any]] = {}

    # ------------------------------------------------------------ time and files

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the time is spent."""
        return 60 * self.asked.minutes * share - (time.monotonic() - self.start)

    def save(self) -> None:
        """Write what there is."""
        path = self.asked.out / "recording.npz"
        self.recording.save(path)
        say(f"wrote {path}: {path.stat().st_size / 1024:.0f} KiB")

    def problem(self, text: str) -> None:
        """Something that is missing from the recording, and why."""
        self.recording.meta["problems"].append(text)
        say(f"PROBLEM: {text}")

    # ------------------------------------------------------------ stages

    def probe(self, stage: str, timeout: float, **options: Any) -> Recording | None:
        """A stage of `probe` in a process of its own; None where it failed, which is a problem that is kept."""
        out = self.scratch / "probe.npz"
        out.unlink(missing_ok=True)
        options |= {"out": str(out), "device": self.asked.device, "kernels": self.asked.kernels}
        options |= {"scratch": str(self.scratch), "tree": str(self.repo)}
        command = [sys.executable, "-m", "benchmarks.sensitivity.probe", stage, json.dumps(options)]
        path = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        log = self.asked.out / f"{stage}.log"
        try:
            with log.open("a") as file:
                done = subprocess.run(
                    command,
                    cwd=self.scratch,
                    env=env,
                    timeout=timeout,
                    check=False,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
        except subprocess.TimeoutExpired:
            self.problem(f"{stage}: did not end within {timeout:.0f} s")
            return None
        if done.returncode != 0 or not out.exists():
            last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
            self.problem(f"{stage}: ended with {done.returncode}: {' '.join(last)[:300]} (log: {log.name})")
            return None
        found = Recording.load(out)
        for text in found.meta["problems"]:
            self.problem(text)
        return found

    @property
    def repo(self) -> Path:
        """The repository of the kernels."""
        return self.scratch / "repo"

    def make_repo(self) -> None:
        """The suite and a policy, committed, without extra work."""
        self.repo.mkdir()
        shutil.copy(HERE / "kernels.py", self.repo)
        (self.repo / "amounts.json").write_text("{}\n")
        (self.repo / "perfci.yaml").write_text(f"timing: {self.asked.mode}\n{POLICY}")
        git(self.repo, "init", "-q", "-b", "main")
        git(self.repo, "add", "-A")
        git(self.repo, "commit", "-q", "-m", "unchanged")

    def tune(self) -> bool:
        """Find amounts and realised slow-downs; return whether there are any."""
        say("tuning")
        asked = self.asked
        found = self.probe(
            "tune",
            max(60.0, self.left(TUNED)),
            seed=asked.seed,
            turns=asked.turns,
            captures=asked.captures,
            placements=asked.placements,
        )
        if found is None or not found.meta["amounts"]:
            return False
        self.recording.meta |= {key: found.meta[key] for key in ("amounts", "realised")}
        asked.kernels = list(found.meta["amounts"])
        for name, one in found.meta["realised"].items():
            shown = [f"{by} → {100 * s['slower']:.2f} ± {100 * s['error']:.2f} %" for by, s in one["slow"].items()]
            say(f"{name}: {1e6 * one['seconds']:.2f} µs, realised {', '.join(shown)}")
        (self.repo / "amounts.json").write_text(json.dumps(found.meta["amounts"]) + "\n")
        git(self.repo, "commit", "-q", "-a", "-m", "slower")
        self.save()
        return True

    def perfci(self) -> None:
        """Worker pairs of base and head, whatever their looks say."""
        asked = self.asked
        request = Request.of(
            "compare",
            self.repo,
            asked.out / "perfci",
            base="HEAD~1",
            cases=[f"{name}/*" for name in asked.kernels],
            devices=[asked.device],
            python=sys.executable,
            budget=max(5.0, self.left(COMPARED) - CHECKING[asked.device]),
            exact_pairs=asked.pairs,
            committed=True,
            seed=asked.seed,
        )
        with Teller(Console(stderr=True)) as teller:
            measurement = Measurement(request, teller)
            try:
                measurement.measure()
            except PerfciError as error:
                self.problem(f"perfci: {error}")
        if measurement.results is not None:
            self.take(measurement.results)
            self.save()

    def take(self, results: Results) -> None:
        """Pairs of perfci's results into the recording, and what a pair cost."""
        done = 0
        for case in results.cases:
            for side, one in case.sides.items():
                if one.status != "ok":
                    self.problem(f"perfci: {case.id} in {side}: {one.reason.text if one.reason else one.status}")
            rows = pair_rows(case)
            if not rows:
                continue
            done += len(rows)
            mode = case.sides["head"].timing.mode
            name, by = case.kernel, float(case.sides["head"].params["slow"])
            array = np.array(rows, dtype=np.float32)
            self.recording.put(array, "pairs", name, mode, by)
            self.recording.put(array[:, [0, 4]], "workers", name, mode, by)
        fewest = min((len(case.pairs) for case in results.cases), default=0)
        if fewest < DECISION <= self.asked.pairs:
            self.problem(
                f"perfci: only {fewest} pairs of some cases, finding a regression needs {DECISION}: more minutes"
            )
        facts = results.fingerprint
        self.recording.meta["device"] = facts.devices.get(self.asked.device, "?")
        self.recording.meta["facts"] = {"driver": facts.driver, "torch": facts.torch, "cuda": facts.cuda}
        if done:
            self.recording.meta["seconds"]["pair"] = results.measuring_seconds / done
            say(f"perfci: {done} pairs of {len(results.cases)} cases, {results.measuring_seconds / done:.3f} s a pair")

    def others(self) -> None:
        """Processes of the other tools, in turns, until the time is spent."""
        pair = self.recording.meta["seconds"].get("pair")
        if pair is None:
            self.problem("the other tools: what a decision of perfci costs is not known")
            return
        decision = DECISION * pair
        # Two processes a side make a decision of the stored baseline and of asv's rule, one makes nvbench's.
        quarter, half = (min(self.asked.longest, max(LEAST, decision / parts)) for parts in (4, 2))
        amounts = self.recording.meta["amounts"]
        nvbench = self.asked.device == "cuda"
        cells = len(self.asked.kernels) * len(VARIANTS)
        spent = cells * (quarter + half if nvbench else 2 * quarter)
        share = min(1.0, max(0.05, (self.left() / ROUNDS - STARTING) / spent))
        if share < 1:
            say(f"the other tools get {100 * share:.0f} % of perfci's GPU time: more minutes would even this out")
        quarter, half = (max(LEAST, share * seconds) for seconds in (quarter, half))
        self.recording.meta["share"] = share
        self.recording.meta["seconds"] |= {"judgement": decision, "samples": quarter, "nvbench": half}
        longest = 0.0
        for number in range(self.asked.processes):
            if number >= ROUNDS and self.left() < longest:
                break
            start = time.monotonic()
            seed = 1000 * self.asked.seed + number
            # cuda-bench takes the cold samples where it works.
            modes = ["rotating"] if nvbench else ["rotating", "cold"]
            found = self.probe(
                "samples", max(60.0, self.left() + 60), seed=seed, seconds=quarter, modes=modes, amounts=amounts
            )
            if found is None:
                break
            self.add(found)
            if nvbench:
                found = self.probe("nvbench", max(60.0, self.left() + 60), seed=seed, seconds=half, amounts=amounts)
                nvbench = found is not None
                if found is not None:
                    self.add(found)
            longest = max(longest, time.monotonic() - start)
            say(f"the other tools: {number + 1} processes each, the last in {time.monotonic() - start:.0f} s")
            self.save()

    def add(self, found: Recording) -> None:
        """Append a process's samples as a row."""
        for key, values in found.arrays.items():
            rows = self.columns.setdefault(tuple(key.split("|")), [])
            rows.append(values)
            width = max(map(len, rows))
            filled = [np.pad(row, (0, width - len(row)), constant_values=np.nan) for row in rows]
            self.recording.put(np.array(filled, dtype=np.float32), *key.split("|"))
        spent = self.recording.meta["seconds"].setdefault("processes", {})
        for key, seconds in found.meta["seconds"].items():
            spent.setdefault(key, []).append(round(seconds, 4))

    def verdicts(self) -> None:
        """Ask nvbench-compare-robust, where cuda-bench took samples."""
        try:
            add_verdicts(self.recording)
        except (FileNotFoundError, RuntimeError) as error:
            self.problem(f"{error}: ask later with `python -m benchmarks.sensitivity verdicts`")


def add_verdicts(recording: Recording) -> int:
    """The tool's verdict on each process of base against each other of head; returns how many kernels were asked about.

    Raises FileNotFoundError where the tool is not installed, RuntimeError where it fails.
    """
    from benchmarks.sensitivity.reduce import verdicts

    asked = 0
    for kernel in recording.kernels:
        for by in SLOW:
            sides = []
            for variant in ("base", by if by else "base"):
                times, clocks = (recording.get(kind, kernel, "nvbench", variant) for kind in ("samples", "clocks"))
                if times is None or len(times) < 2:
                    break
                rows = [None] * len(times) if clocks is None else list(clocks)
                sides.append(
                    [
                        (t[np.isfinite(t)], None if c is None else c[np.isfinite(c)])
                        for t, c in zip(times, rows, strict=True)
                    ]
                )
            if len(sides) == 2 and len(sides[0]) == len(sides[1]):
                recording.put(verdicts(*sides), "verdicts", kernel, by)
                asked += 1
    return asked


def pair_rows(case: Case) -> list[list[float]]:
    """A case's pairs as rows of a recording's `pairs` array."""
    rows = []
    for pair in sorted(case.pairs, key=lambda pair: pair.index):
        row: list[float] = []
        for side in SIDES:
            clock = pair.clock.get(side)
            row.append(pair.values[side]["time"])
            row += [clock.hertz, clock.variance, clock.covariance] if clock else [np.nan] * 3
        rows.append(row)
    return rows


def git(repo: Path, *words: str) -> None:
    """Run git in `repo`. Raises CalledProcessError."""
    identity = ["-c", "user.name=sensitivity", "-c", "user.email=sensitivity@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=repo, check=True, capture_output=True)


def collect(asked: Asked) -> int:
    """Everything; returns an exit code. 1 where a part is missing from the recording: its `meta` says which."""
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sensitivity-") as scratch:
        collector = Collector(asked, Path(scratch))
        collector.make_repo()
        if collector.tune():
            collector.perfci()
            collector.others()
            if asked.device == "cuda":
                collector.verdicts()
        collector.save()
    problems: Sequence[str] = collector.recording.meta["problems"]
    say(f"done in {time.monotonic() - collector.start:.0f} s, {len(problems)} problems")
    for text in problems:
        say(f"PROBLEM: {text}")
    return 1 if problems else 0
