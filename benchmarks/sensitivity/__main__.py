"""`python -m benchmarks.sensitivity collect | verdicts | replay | plot | reduce`."""

import argparse
import sys
from pathlib import Path

from benchmarks.sensitivity.recording import KERNELS, RECORDED, Recording


def main() -> int:
    """Parse and call; see README.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sensitivity", description=main.__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    live = verbs.add_parser("collect", help="measure on this machine")
    live.add_argument("--out", type=Path, default=Path("sensitivity-out"))
    live.add_argument("--minutes", type=float, default=6.0)
    live.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    live.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    live.add_argument("--pairs", type=int, default=64)
    live.add_argument("--processes", type=int, default=64)
    live.add_argument("--seed", type=int, default=1)
    live.add_argument("--timing", choices=["auto", "rotating", "cold", "hot"], default="auto")
    for verb, words in (
        ("verdicts", "ask nvbench-compare-robust about a recording's cuda-bench samples"),
        ("replay", "hits and false alarms, as a table"),
        ("plot", "power curves and false alarms, as pictures"),
    ):
        one = verbs.add_parser(verb, help=words)
        one.add_argument("recording", type=Path, nargs="?", default=RECORDED)
        if verb != "verdicts":
            one.add_argument("--runs", type=int, default=500, help="resampled decisions of perfci per kernel")
        if verb == "replay":
            one.add_argument("--kernels", action="store_true", help="one table per kernel, too")
        if verb == "plot":
            one.add_argument("--out", type=Path, default=Path("sensitivity-out"))
    raw = verbs.add_parser("reduce", help="reduce raw recordings to the file that is replayed")
    raw.add_argument("folder", type=Path)
    raw.add_argument("--out", type=Path, default=RECORDED)
    asked = parser.parse_args()
    return int(globals()[asked.verb](asked))


def collect(asked: argparse.Namespace) -> int:
    """Measure here."""
    from benchmarks.sensitivity.collect import Asked
    from benchmarks.sensitivity.collect import collect as run

    fields = {key: value for key, value in vars(asked).items() if key != "verb"}
    return run(Asked(**{**fields, "out": asked.out.resolve(), "kernels": list(asked.kernels)}))


def verdicts(asked: argparse.Namespace) -> int:
    """Add verdicts to a recording."""
    from benchmarks.sensitivity.collect import add_verdicts

    recording = Recording.load(asked.recording)
    count = add_verdicts(recording)
    recording.save(asked.recording)
    sys.stdout.write(f"{asked.recording}: {count} kernels and slow-downs judged\n")
    return 0 if count else 1


def replay(asked: argparse.Namespace) -> int:
    """Print the tables."""
    from benchmarks.sensitivity.judge import clopper_pearson, evaluate, failing_runs, pooled, realised_table, table

    recording = Recording.load(asked.recording)
    rows = evaluate(recording, asked.runs)
    sys.stdout.write(realised_table(recording) + "\n" + table(pooled(rows)))
    if "rotating" in recording.modes("pairs"):
        runs = max(10, asked.runs // 10)
        failing, undecided = failing_runs(recording, "rotating", 0.01, runs)
        low, high = clopper_pearson(failing, runs)
        sys.stdout.write(
            f"\n{failing} of {runs} runs of 100 unchanged cases fail ({100 * low:.1f}–{100 * high:.1f} %), "
            f"{undecided} of {100 * runs} decisions not `unchanged`\n"
        )
    if asked.kernels:
        for kernel in recording.kernels:
            sys.stdout.write(f"\n### {kernel}\n\n" + table([row for row in rows if row.kernel == kernel]))
    return 0


def plot(asked: argparse.Namespace) -> int:
    """Draw."""
    from benchmarks.sensitivity.plot import draw

    for path in draw(Recording.load(asked.recording), asked.out, asked.runs):
        sys.stdout.write(f"{path}\n")
    return 0


def reduce(asked: argparse.Namespace) -> int:
    """Reduce."""
    from benchmarks.sensitivity.reduce import reduce as run

    run(asked.folder).save(asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
