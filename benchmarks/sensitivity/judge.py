"""From a recording to hits and false alarms, tool by tool. Pure: no file, no clock, no GPU.

A *trial* is one decision: is head slower than base? An *alarm* on slower code is a hit, on the same code a false
alarm. Tools:

- perfci: `perfci.stats.answer.answer` over worker pairs, as the gate calls it, for m criteria that share α.
- stored baseline: base's number is stored, head's is measured later by other processes; alarm where the ratio of
  medians exceeds 1 + threshold.
- asv's rule: two-sided Mann-Whitney over the samples of two processes a side, p < 0.002, and the ratio of medians
  beyond a factor, 1.1 by default (asv_runner 0.3.2, asv/_stats.py and commands/compare.py).
- nvbench-compare-robust: SLOW is an alarm; AMBG and ???? are no answer.

Each row says how many trials are *independent*, that is, share no data; all trials beyond these reuse workers or
processes in other combinations. Both intervals are Clopper and Pearson's (Biometrika 26, 1934), for all trials as if
they were independent, and for the independent number at the same rate: only the second may be read as what another
recording would give.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.sensitivity.recording import SLOW, UNASKED, VERDICTS, Recording
from perfci.model.base import SIDES
from perfci.model.criteria import Criterion, LimitSource
from perfci.model.plan import Looks
from perfci.model.results import Case, CaseSide, Clock, Pair
from perfci.stats.answer import answer
from perfci.stats.decide import Status

P_VALUE = 0.002
"""asv's."""
ASV_ROUNDS = 2
"""Processes a side, asv's default; one where there are not enough."""
FACTORS = [1.1, 1.01]
"""asv's default, and one of the size that is to be found."""
THRESHOLDS = [0.02, 0.05]
CURVE = [0.0, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15]
"""Thresholds of the curves."""
MOST = 400
"""Combinations of processes that are tried, at most, where there are more."""
M = 100
"""Criteria that share α in the run of a trial: the suite of a hundred cases that perfci's promise is about."""
LOOKS = Looks.fitted(M)


@dataclass(frozen=True)
class Row:
    """The answers of one tool on one kernel at one slow-down."""

    tool: str
    mode: str
    kernel: str
    slow: float
    """Nominal."""
    trials: int
    alarms: int
    unanswered: int
    independent: int
    pairs: float = math.nan
    """Worker pairs a decision took, median; NaN for other tools."""

    @property
    def rate(self) -> float:
        """Share of trials with an alarm; NaN without trials."""
        return self.alarms / self.trials if self.trials else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval, all trials taken as independent."""
        return clopper_pearson(self.alarms, self.trials)

    @property
    def wide_interval(self) -> tuple[float, float]:
        """95 % interval, with the independent number of trials at the same rate."""
        return clopper_pearson(self.rate * self.independent if self.trials else 0.0, self.independent)


def clopper_pearson(hits: float, trials: float, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share. `hits` need not be whole: quantiles of beta distributions, as they stand."""
    if trials <= 0:
        return 0.0, 1.0
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = 0.0 if hits <= 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits >= trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def pool(rows: Sequence[Row]) -> Row:
    """All kernels together."""
    first = rows[0]
    return Row(
        first.tool,
        first.mode,
        "all",
        first.slow,
        sum(row.trials for row in rows),
        sum(row.alarms for row in rows),
        sum(row.unanswered for row in rows),
        sum(row.independent for row in rows),
        float(np.median([row.pairs for row in rows])),
    )


# ---------------------------------------------------------------- perfci


def pairs_of(array: NDArray[Any], blocks: int = 8) -> list[Pair]:
    """Worker pairs of a recording's `pairs` array, as the gate holds them."""
    found = []
    for index, row in enumerate(np.asarray(array, dtype=np.float64)):
        values = {side: {"time": float(row[4 * at])} for at, side in enumerate(SIDES)}
        clock = {
            side: Clock(hertz=row[at + 1], blocks=blocks, variance=row[at + 2], covariance=row[at + 3])
            for at, side in ((0, SIDES[0]), (4, SIDES[1]))
            if np.isfinite(row[at + 1])
        }
        found.append(Pair(index=index, values=values, clock=clock if len(clock) == len(SIDES) else {}))
    return found


def exchanged(pair: Pair) -> Pair:
    """The pair with its sides exchanged: as likely as the pair itself where both run the same code."""
    base, head = SIDES
    clock = {base: pair.clock[head], head: pair.clock[base]} if pair.clock else {}
    return pair.model_copy(update={"values": {base: pair.values[head], head: pair.values[base]}, "clock": clock})


def slower(pair: Pair, by: float) -> Pair:
    """The pair with head's time scaled by 1 + `by`."""
    values = {SIDES[0]: pair.values[SIDES[0]], SIDES[1]: {"time": pair.values[SIDES[1]]["time"] * (1 + by)}}
    return pair.model_copy(update={"values": values})


def at(index: int, pair: Pair) -> Pair:
    """The pair as the one that was measured at `index`."""
    return pair if pair.index == index else pair.model_copy(update={"index": index})


def decided(pairs: Sequence[Pair], r: float, looks: Looks, m: int) -> tuple[Status, int]:
    """Return the gate's answer after these pairs, and how many it used. `inconclusive` where they do not suffice."""
    case = Case.model_construct(
        id="case",
        kernel="case",
        device="cuda",
        sides={side: CaseSide() for side in SIDES},
        pairs=[at(index, pair) for index, pair in enumerate(pairs)],
    )
    decision = answer(case, criterion(r), looks, m, ended=len(pairs) >= looks.pairs[-1]).decision
    return "inconclusive" if decision.status == "continue" else decision.status, decision.n


def criterion(r: float) -> Criterion:
    """The question: is time worse by r?"""
    return Criterion(
        case="case", device="cuda", metric="time", unit="s", better="lower", tier="timing", kind="regression", bound=r,
        source=LimitSource(origin="policy"),
    )  # fmt: skip


def ways(pairs: Sequence[Pair], slow: float) -> list[tuple[Pair, Pair]]:
    """Each pair as it was and with its sides exchanged, head slower by `slow`."""
    return [(slower(pair, slow), slower(exchanged(pair), slow)) for pair in pairs]


def resampled(
    pairs: Sequence[tuple[Pair, Pair]], r: float, rng: np.random.Generator, m: int = M, alike: bool = True
) -> tuple[Status, int]:
    """One decision from `ways` drawn with replacement; with `alike`, sides exchanged by a coin.

    Looks are taken as in a run: more pairs are drawn only where the first ones leave it undecided.
    """
    drawn: list[Pair] = []
    status: Status = "inconclusive"
    used = 0
    for n in LOOKS.pairs[2:]:
        for _ in range(n - len(drawn)):
            plain, turned = pairs[int(rng.integers(len(pairs)))]
            drawn.append(at(len(drawn), turned if alike and rng.integers(2) else plain))
        status, used = decided(drawn, r, LOOKS, m)
        if status != "inconclusive":
            break
    return status, used


def consumed(pairs: Sequence[Pair], r: float, m: int = M) -> list[tuple[Status, int]]:
    """Decisions that share no data: each takes the pairs that it needs, the next begins behind them.

    What is undecided when the pairs run out is no trial, as it is none of a run that goes on.
    """
    found = []
    at = 0
    while at + LOOKS.first <= len(pairs):
        status, used = decided(pairs[at:], r, LOOKS, m)
        if status == "inconclusive" and used < LOOKS.pairs[-1]:
            break
        found.append((status, used))
        at += used
    return found


def perfci_row(recording: Recording, kernel: str, mode: str, slow: float, r: float, runs: int, seed: int) -> Row | None:
    """perfci on one kernel. Pairs of the same code are scaled where no slower code was measured."""
    live = recording.get("pairs", kernel, mode, slow)
    array = live if live is not None else recording.get("pairs", kernel, mode, 0.0)
    if array is None or len(array) < LOOKS.first:
        return None
    pairs = pairs_of(array)
    scale = slow if live is None else 0.0
    rng = np.random.default_rng([seed, round(slow * 1e6), round(r * 1e6)])
    alike = live is None or slow == 0
    drawn_from = ways(pairs, scale)
    trials = [resampled(drawn_from, r, rng, alike=alike) for _ in range(runs)]
    own = consumed([slower(pair, scale) for pair in pairs], r)
    if not runs:
        trials = own
    return Row(
        f"perfci, r = {percent(r)}",
        mode,
        kernel,
        slow,
        len(trials),
        sum(status == "regression" for status, _ in trials),
        sum(status in ("inconclusive", "invalid") for status, _ in trials),
        len(own),
        float(np.median([used for _, used in trials])) if trials else math.nan,
    )


def failing_runs(
    recording: Recording, mode: str, r: float, runs: int, cases: int = M, seed: int = 0
) -> tuple[int, int]:
    """Runs on unchanged code with an alarm, and decisions that were not `unchanged`, of `runs` × `cases`.

    Each case of a run is one of the kernels, with worker pairs drawn anew.
    """
    sources = [ways(pairs_of(array), 0.0) for kernel in recording.kernels for array in _alike(recording, kernel, mode)]
    if not sources:
        raise ValueError(f"no worker pairs of unchanged code under the timing mode {mode!r}")
    rng = np.random.default_rng(seed)
    failing = undecided = 0
    for _ in range(runs):
        statuses = [resampled(sources[int(rng.integers(len(sources)))], r, rng)[0] for _ in range(cases)]
        failing += "regression" in statuses
        undecided += sum(status != "unchanged" for status in statuses)
    return failing, undecided


def _alike(recording: Recording, kernel: str, mode: str) -> Iterator[NDArray[Any]]:
    array = recording.get("pairs", kernel, mode, 0.0)
    if array is not None and len(array) >= LOOKS.first:
        yield array


# ---------------------------------------------------------------- the others


def centres(recording: Recording, kernel: str, mode: str, slow: float) -> tuple[list[float], list[float]]:
    """Medians of base's and head's processes, head's scaled where no slower code was measured."""
    base, head = samples_of(recording, kernel, mode, slow)
    return [float(np.median(one)) for one in base], [float(np.median(one)) for one in head]


def samples_of(
    recording: Recording, kernel: str, mode: str, slow: float
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Samples of base's processes and of head's; empty where there are none. Index is the process."""
    base = recording.get("samples", kernel, mode, "base")
    head = recording.get("samples", kernel, mode, slow)
    factor = 1.0
    if head is None:
        # Base's own processes serve as head's too: none is ever compared with itself.
        again = recording.get("samples", kernel, mode, "again")
        head, factor = base if again is None else again, 1 + slow
    if base is None or head is None:
        return [], []
    return [one[np.isfinite(one)] for one in base], [one[np.isfinite(one)] * factor for one in head]


def splits(processes: int, each: int, seed: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Choices of `each` processes for base and as many others for head: all of them, or MOST drawn from them."""
    if processes < 2 * each:
        return []
    total = math.comb(processes, each) * math.comb(processes - each, each)
    if total > MOST:
        rng = np.random.default_rng(seed)
        drawn = [tuple(map(int, rng.permutation(processes)[: 2 * each])) for _ in range(MOST)]
        return [(one[:each], one[each:]) for one in drawn]
    every = range(processes)
    return [
        (base, head)
        for base in itertools.combinations(every, each)
        for head in itertools.combinations([p for p in every if p not in base], each)
    ]


def stored_ratios(recording: Recording, kernel: str, mode: str, slow: float, each: int) -> NDArray[np.float64]:
    """head/base of the medians over `each` processes a side, for every choice of processes that share none."""
    base, head = centres(recording, kernel, mode, slow)
    chosen = splits(len(base), each, seed=1)
    return np.array([np.median([head[j] for j in h]) / np.median([base[i] for i in b]) for b, h in chosen])


def worker_ratios(recording: Recording, kernel: str, mode: str, slow: float, each: int = 16) -> NDArray[np.float64]:
    """The same from perfci's own workers, base's taken from one stretch of time and head's from another.

    As many workers a side as perfci finds a regression with, under the same timing mode, so at the same GPU time: the
    only disadvantage of a stored baseline is then that base and head were not measured side by side.
    """
    live = recording.get("workers", kernel, mode, slow)
    array = live if live is not None else recording.get("workers", kernel, mode, 0.0)
    if array is None:
        return np.array([])
    factor = 1.0 if live is not None else 1 + slow
    windows = np.asarray(array, dtype=np.float64)[: len(array) // each * each].reshape(-1, each, 2)
    base, head = np.median(windows[:, :, 0], axis=1), np.median(windows[:, :, 1], axis=1) * factor
    return np.array([head[j] / base[i] for i in range(len(base)) for j in range(len(head)) if i != j])


def asv_ratios(
    recording: Recording, kernel: str, mode: str, slow: float, each: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ratio of medians and two-sided p of Mann and Whitney's test, over the samples of `each` processes a side."""
    base, head = samples_of(recording, kernel, mode, slow)
    chosen = splits(len(base), each, seed=2)
    if not chosen:
        return np.array([]), np.array([])
    from scipy.stats import mannwhitneyu

    shortest = min(map(len, [*base, *head]))  # processes that took a few more samples than others lose these
    left, right = (np.array([samples[:shortest] for samples in side]) for side in (base, head))
    x, y = (
        np.array([values[list(split[side])].ravel() for split in chosen]) for side, values in enumerate((left, right))
    )
    p_values = mannwhitneyu(x, y, alternative="two-sided", axis=1).pvalue
    return np.median(y, axis=1) / np.median(x, axis=1), np.asarray(p_values)


def peer_rows(recording: Recording, kernel: str, slow: float) -> list[Row]:
    """Every other tool on one kernel, under every timing mode that there is data for."""
    rows = []

    def add(tool: str, mode: str, alarms: NDArray[np.bool_], independent: int, unanswered: int = 0) -> None:
        if len(alarms):
            count = int(np.count_nonzero(alarms))
            rows.append(Row(tool, mode, kernel, slow, len(alarms), count, unanswered, independent))

    for mode in recording.modes("samples"):
        processes = len(samples_of(recording, kernel, mode, slow)[0])
        for each in sorted({1, max(1, processes // 2)}):
            ratios = stored_ratios(recording, kernel, mode, slow, each)
            for threshold in THRESHOLDS:
                add(stored_name(each, threshold), mode, ratios > 1 + threshold, processes // (2 * each))
        rounds = ASV_ROUNDS if processes >= 2 * ASV_ROUNDS else 1
        ratios, p_values = asv_ratios(recording, kernel, mode, slow, rounds)
        for factor in FACTORS:
            alarms = (ratios > factor) & (p_values < P_VALUE)
            add(f"asv's rule, factor {factor:g}", mode, alarms, processes // (2 * rounds))
    for mode in recording.modes("workers"):
        ratios = worker_ratios(recording, kernel, mode, slow)
        for threshold in THRESHOLDS:
            windows = math.isqrt(len(ratios)) + 1 if len(ratios) else 0  # k (k - 1) ratios of k windows
            add(stored_name(16, threshold), mode, ratios > 1 + threshold, windows // 2)
    verdicts = recording.get("verdicts", kernel, slow)
    if verdicts is not None:
        asked = verdicts[verdicts != UNASKED]
        unanswered = int(np.isin(asked, [VERDICTS.index("AMBG"), VERDICTS.index("????")]).sum())
        add(NVBENCH, "cold", asked == VERDICTS.index("SLOW"), min(verdicts.shape) // 2, unanswered)
    return rows


NVBENCH = "nvbench-compare-robust"


def stored_name(each: int, threshold: float) -> str:
    """`stored baseline of 2 workers, 5 %`."""
    return f"stored baseline of {each} worker{'' if each == 1 else 's'}, {percent(threshold)}"


def percent(share: float) -> str:
    """`0.5 %`."""
    return f"{100 * share:g} %"


# ---------------------------------------------------------------- all of it


LIMITS = {"rotating": (0.01, 0.005), "cold": (0.02,)}
"""r, the slow-down that perfci must find, by timing mode; 1 % under any other."""


def evaluate(recording: Recording, runs: int, seed: int = 0) -> list[Row]:
    """Every tool on every kernel and slow-down. `runs`: resampled decisions of perfci per kernel and slow-down; with
    0 only those that share no pairs."""
    rows = []
    for kernel in recording.kernels:
        for by in SLOW:
            for mode in recording.modes("pairs"):
                for r in LIMITS.get(mode, (0.01,)):
                    row = perfci_row(recording, kernel, mode, by, r, runs, seed)
                    if row is not None:
                        rows.append(row)
            rows += peer_rows(recording, kernel, by)
    return rows


def pooled(rows: Sequence[Row]) -> list[Row]:
    """One row per tool, timing mode and slow-down, kernels together, in order of appearance."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.tool, row.mode, row.slow), []).append(row)
    return [pool(group) for group in groups.values()]


@dataclass(frozen=True)
class Curve:
    """False alarms and hits of a rule as its threshold moves, kernels together."""

    tool: str
    mode: str
    thresholds: list[float]
    false_alarms: list[float]
    hits: dict[float, list[float]]
    """Slow-down → share of hits at each threshold."""


def curves(recording: Recording, slow: Sequence[float] = (0.01, 0.02)) -> list[Curve]:
    """The stored baseline and asv's rule at every threshold: no choice of one would have done better."""
    found = []
    for mode in recording.modes("samples"):

        def stored(kernel: str, by: float, mode: str = mode) -> NDArray[np.float64]:
            return stored_ratios(recording, kernel, mode, by, 1)

        def asv(kernel: str, by: float, mode: str = mode) -> NDArray[np.float64]:
            processes = len(samples_of(recording, kernel, mode, by)[0])
            rounds = ASV_ROUNDS if processes >= 2 * ASV_ROUNDS else 1
            ratios, p_values = asv_ratios(recording, kernel, mode, by, rounds)
            return np.where(p_values < P_VALUE, ratios, 0.0)

        found.append(_curve("stored baseline of 1 worker", mode, recording, stored, slow))
        found.append(_curve("asv's rule", mode, recording, asv, slow))
    for mode in recording.modes("workers"):

        def launches(kernel: str, by: float, mode: str = mode) -> NDArray[np.float64]:
            return worker_ratios(recording, kernel, mode, by)

        found.append(_curve("stored baseline of 16 workers", mode, recording, launches, slow))
    return [curve for curve in found if curve.false_alarms]


def _curve(tool: str, mode: str, recording: Recording, ratios: Any, slow: Sequence[float]) -> Curve:
    def shares(by: float) -> list[float]:
        each = [found for kernel in recording.kernels if len(found := ratios(kernel, by))]
        return [float(np.mean([np.mean(one > 1 + t) for one in each])) for t in CURVE] if each else []

    return Curve(tool, mode, CURVE, shares(0.0), {by: shares(by) for by in slow})


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table: per tool and timing mode, alarms at each slow-down with the independent interval."""
    slow = sorted({row.slow for row in rows})
    cells = {(row.tool, row.mode, row.slow): row for row in rows}
    names = list(dict.fromkeys((row.tool, row.mode) for row in rows))
    head = ["tool", "timing", *("false alarms" if by == 0 else f"found at {percent(by)}" for by in slow)]
    head += ["no answer", "trials (independent)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in names:
        own = [row for by in slow if (row := cells.get((*name, by)))]
        shown = [_share(cells.get((*name, by))) for by in slow]
        unanswered = sum(row.unanswered for row in own) / sum(row.trials for row in own)
        trials = f"{own[0].trials} ({own[0].independent})"
        lines.append("| " + " | ".join([*name, *shown, f"{100 * unanswered:.1f} %", trials]) + " |")
    return "\n".join(lines) + "\n"


def _share(row: Row | None) -> str:
    if row is None:
        return "–"
    low, high = row.wide_interval
    return f"{100 * row.rate:.1f} % ({100 * low:.0f}–{100 * high:.0f})"


def realised_table(recording: Recording) -> str:
    """Return the slow-downs that the nominal ones came out as; empty where times were scaled, and are exact."""
    realised = recording.meta.get("realised", {})
    if not realised:
        return ""
    slow = list(next(iter(realised.values()))["slow"])
    head = ["kernel", "time", *(percent(float(by)) for by in slow)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for kernel, one in realised.items():
        cells = [f"{100 * s['slower']:.2f} ± {100 * s['error']:.2f} %" for s in one["slow"].values()]
        lines.append("| " + " | ".join([kernel, f"{1e6 * one['seconds']:.2f} µs", *cells]) + " |")
    return "\n".join(lines) + "\n"
