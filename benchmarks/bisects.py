"""Bisects of planted changes by replayed pairs: who is accused, and rightly; no GPU is needed.

    python -m benchmarks.bisects [BISECTS]

Histories are real ones of git, with merges, walked by git's own bisect; the pairs are those of identical code recorded
on an H200, drawn with replacement and with sides exchanged by a coin, to which what is planted is added. What a commit
changes its descendants have; what a commit takes back too. The limit of a case is 2 %, or what its recorded scatter
allows; planted steps are 2 to 8 times as large. Prints a line for each kind of history, and ends with 1 where more than
1 % of all bisects accuse a commit that changes nothing, or fewer than 98 % of those with one step that can be measured
find it.
"""

import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from perfci.bisect.document import BisectStep, Range
from perfci.bisect.search import Trial, search
from perfci.bisect.walk import GitHistory
from perfci.model.base import Side
from perfci.model.criteria import Criterion, LimitSource
from perfci.model.plan import Looks
from perfci.model.report import Interval
from perfci.model.results import Case, CaseSide, Clock, Pair
from perfci.model.timing import Timing
from perfci.sources.git import Repository
from perfci.stats.answer import answer
from perfci.stats.walsh import hodges_lehmann, interval

ROOT = Path(__file__).resolve().parent.parent
RECORDED: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "h200" / "equal_clock.json").read_text())
LEAST, SCATTER = 0.02, 2.5
"""The limit of a case: no less, and so many standard deviations of its pairs."""
MOST_WRONG, LEAST_FOUND = 0.01, 0.98
BISECTS_EACH = 20
"""Bisects of one history."""
PAIRS = Looks().pairs[-1]
BLOCKS = 8
SIDES: tuple[Side, Side] = ("base", "head")


@dataclass
class Planted:
    """A history with what its commits do."""

    commits: Sequence[str]
    """Full hashes, oldest first: the first is good, the last bad."""
    ancestors: dict[str, frozenset[str]]
    """Commit → itself and all before it."""
    steps: dict[str, float] = field(default_factory=dict)
    """Commit → log ratio that it and its descendants have on top of what they would have."""
    broken: frozenset[str] = frozenset()
    """Commits that cannot be measured."""

    def level(self, commit: str) -> float:
        """Return the log ratio of a commit to the first one."""
        return math.fsum(size for step, size in self.steps.items() if step in self.ancestors[commit])


def history(folder: Path, commits: int, rng: random.Random) -> tuple[Repository, Planted]:
    """Make a history of `commits` commits: a line with branches that part from it and are merged into it later."""
    lines, parents, marks = [], list[list[int]](), count(1)
    line = [next(marks)]
    parents.append([])
    branches: list[list[int]] = []
    while len(parents) < commits:
        left = commits - len(parents)
        kind = rng.random()
        if branches and kind < 0.2:
            branch = branches.pop(rng.randrange(len(branches)))
            parents.append([line[-1], branch[-1]])
            line.append(next(marks))
        elif kind < 0.4 and left > 4:
            parents.append([rng.choice(line[-6:])])
            branches.append([next(marks)])
        elif branches and kind < 0.6:
            branch = rng.choice(branches)
            parents.append([branch[-1]])
            branch.append(next(marks))
        else:
            parents.append([line[-1]])
            line.append(next(marks))
    for mark, own in enumerate(parents, 1):
        text = str(mark)
        lines += ["commit refs/heads/main", f"mark :{mark}", f"committer A <a@b> {1700000000 + 60 * mark} +0000"]
        lines += [
            f"data {len(text)}",
            text,
            *([f"from :{own[0]}"] if own else []),
            *(f"merge :{one}" for one in own[1:]),
        ]
        lines += ["M 100644 inline n", f"data {len(text)}", text]
    told = folder / "marks"
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(folder)], check=True)
    feed = ["git", "fast-import", "--quiet", "--force", f"--export-marks={told}"]
    subprocess.run(feed, cwd=folder, input="\n".join(lines).encode(), check=True)
    named = {int(mark[1:]): sha for mark, sha in (one.split() for one in told.read_text().splitlines())}
    before: dict[str, frozenset[str]] = {}
    for mark, own in enumerate(parents, 1):
        before[named[mark]] = frozenset({named[mark]}).union(*(before[named[one]] for one in own))
    bad = named[line[-1]]
    repo = Repository.find(folder)
    assert repo is not None
    reached = [named[mark] for mark in range(1, len(parents) + 1) if named[mark] in before[bad]]
    return repo, Planted([*reached[:-1], bad] if reached[-1] != bad else reached, before)


@cache
def scatter(key: str) -> float:
    """Return the standard deviation of recorded log ratios at equal clock, about as `equal_clock` takes them."""
    sums = RECORDED[key]
    x, clock = np.array(sums["time"]), np.array(sums["clock"])
    return float(min(x.std(), (x + clock).std()))


def drawn(key: str, shift: float, rng: np.random.Generator) -> list[Pair]:
    """Return PAIRS pairs of a recorded case, with `shift` added to the log ratio of time."""
    sums, pairs = RECORDED[key], list[Pair]()
    for index, i in enumerate(rng.integers(0, len(sums["time"]), PAIRS)):
        sign, (one, other) = (1.0, SIDES) if rng.random() < 0.5 else (-1.0, SIDES[::-1])
        clocks = {"base": 1e9, "head": 1e9 * math.exp(sign * sums["clock"][i])}
        told = {"base": one, "head": other}
        clock = {
            side: Clock(
                hertz=clocks[side],
                blocks=BLOCKS,
                variance=sums["variance"][told[side]][i],
                covariance=sums["covariance"][told[side]][i],
            )
            for side in SIDES
        }
        head = 1e-3 * math.exp(sign * sums["time"][i] + shift)
        values: dict[Side, dict[str, float]] = {"base": {"time": 1e-3}, "head": {"time": head}}
        pairs.append(Pair(index=index, values=values, clock=clock, tuners={"base": "", "head": ""}))
    return pairs


def compare(key: str, limit: float, planted: Planted, asked: Trial, rng: np.random.Generator) -> BisectStep:
    """Answer one question as a measured comparison does."""
    found = BisectStep(purpose=asked.purpose, base=asked.base, head=asked.head, answer="unknown")
    if planted.broken & {asked.base, asked.head}:
        found.reason = "does not build"
        return found
    criterion = Criterion(
        case="replayed", device="cuda", metric="time", unit="s", better=asked.better or "lower", tier="timing",
        kind="regression", bound=asked.bound or limit, threshold=asked.purpose == "step",
        source=LimitSource(origin="default"),
    )  # fmt: skip
    looks = Looks.fitted(asked.sharing)
    side = CaseSide(timing=Timing(mode="rotating"), tuner="")
    pairs = drawn(key, planted.level(asked.head) - planted.level(asked.base), rng)
    case = Case(id="replayed", kernel="replayed", device="cuda", sides={"base": side, "head": side})
    for n in (n for n in range(1, PAIRS + 1) if looks.at(n)):
        case.pairs = pairs[:n]
        decided = answer(case, criterion, looks, asked.sharing, ended=n == PAIRS)
        if decided.decision.status != "continue":
            break
    assert decided.ratios is not None
    x, status = decided.ratios.x, decided.decision.status
    bounds = interval(x, 0.95)
    found.change, found.pairs, found.limit = math.exp(hodges_lehmann(x)), decided.decision.n, decided.limit
    found.interval = Interval(low=math.exp(bounds.low), high=math.exp(bounds.high), level=bounds.level)
    if status == "regression" or (status == "improvement" and asked.purpose == "whole"):
        found.answer = "yes"
    elif status in ("unchanged", "improvement"):
        found.answer = "no"
    return found


KINDS = ("one step", "one step, commits that do not build", "two steps", "a step that is taken back", "nothing")


def plant(kind: str, planted: Planted, limit: float, rng: random.Random) -> Planted:
    """Return the history with steps of a kind, as likely for the better as for the worse."""
    after, sizes = list(planted.commits[1:]), [math.log1p(limit) * rng.uniform(2, 8) for _ in range(2)]
    rng.shuffle(after)
    way = rng.choice((1.0, -1.0))
    steps: dict[str, float] = {}
    match kind:
        case "one step" | "one step, commits that do not build":
            steps = {after[0]: way * sizes[0]}
        case "two steps":
            steps = {after[0]: way * sizes[0], after[1]: way * sizes[1]}
        case "a step that is taken back":
            later = [one for one in after if after[0] in planted.ancestors[one] and one != after[0]]
            steps = {after[0]: way * sizes[0]} | ({rng.choice(later): -way * sizes[0]} if later else {})
    ends = {planted.commits[0], planted.commits[-1]}
    broken = frozenset(one for one in after if rng.random() < 0.1) - ends if "build" in kind else frozenset()
    return Planted(planted.commits, planted.ancestors, steps, broken)


def told(found: Range, planted: Planted) -> dict[str, bool]:
    """Return what is to be counted of one bisect."""
    accused = found.named.commit if found.ending == "found" and found.named is not None else None
    hidden = found.ending == "skipped"
    suspects = {one.commit for one in found.suspects}
    return {
        "found": accused is not None and accused in planted.steps,
        "wrong": accused is not None and accused not in planted.steps,
        "hidden": hidden and bool(suspects & planted.steps.keys()),
        "none": accused is None and not hidden,
        "several": found.several,
    }


def run(number: int, seed: int = 1) -> bool:
    """Run so many bisects, print what came out, and return whether the rates hold."""
    counts: dict[str, dict[str, int]] = {}
    pairs: list[int] = []
    steps: list[int] = []
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    keys = sorted(RECORDED)
    with tempfile.TemporaryDirectory() as folder:
        for index in range(number):
            if index % BISECTS_EACH == 0:
                repo, plain = history(Path(folder) / f"repo{index}", rng.randint(8, 64), rng)
            kind = KINDS[index % len(KINDS)]
            key = rng.choice(keys)
            limit = max(LEAST, SCATTER * scatter(key))
            planted = plant(kind, plain, limit, rng)
            scratch = Path(folder) / f"walk{index}"
            scratch.mkdir()

            def ask(asked: Trial, key: str = key, limit: float = limit, planted: Planted = planted) -> BisectStep:
                return compare(key, limit, planted, asked, noise)

            found = search(GitHistory(repo, scratch), ask, planted.commits[0], planted.commits[-1], "time")
            own = counts.setdefault(kind, dict.fromkeys(("bisects", "found", "wrong", "hidden", "none", "several"), 0))
            own["bisects"] += 1
            for name, value in told(found, planted).items():
                own[name] += value
            steps.append(len(found.steps))
            pairs.append(sum(one.pairs for one in (found.whole, *found.steps, *found.confirmed)))
    for kind, own in counts.items():
        print(f"{kind:36}", "  ".join(f"{name} {n}" for name, n in own.items()), flush=True)
    most = np.quantile(pairs, 0.95)
    print(f"steps: {np.mean(steps):.1f} on average; pairs: {np.mean(pairs):.0f}, at most {most:.0f} in 95 %")
    wrong = sum(own["wrong"] for own in counts.values())
    singles = [counts[kind] for kind in KINDS[:2] if kind in counts]
    asked = sum(own["bisects"] - own["hidden"] for own in singles)
    hit = sum(own["found"] for own in singles)
    print(f"wrong: {wrong} of {number}; steps found: {hit} of {asked} that can be measured")
    return wrong <= MOST_WRONG * number and hit >= LEAST_FOUND * asked


if __name__ == "__main__":
    sys.exit(0 if run(int(sys.argv[1]) if len(sys.argv) > 1 else 1000) else 1)
