"""Plant one-line faults in perfci's source, and note which the tests catch.

    python -m benchmarks.faults [--faults 40] [--seed 1] [--room ROOM]…  # of all rooms, as HEAD has them
    python -m benchmarks.faults --again results.json                     # those of a former run
    python -m benchmarks.faults --room stats --tests tests/stats         # of one room, with its own tests alone

Needs `pip install coverage`, and about an hour of two idle cores. Faults are planted in a copy, a clone of HEAD with an
environment of its own. Each is tried by the tests of `make test` that run its line, the quick ones of its own room
first. Which do is known from one run of all with coverage, kept for as long as source and tests stand: a line is of the
test in whose process it runs, or in a process below. What is killed tells nothing. A line that no test is known to run,
as those that run at an import, is tried by all tests of the room and of the file. A test that fails has caught the
fault, if it passes without. What is not caught a person judges: it may change nothing. A run that is broken off goes on
where it was. With `--again`, ends with 1 where a fault was caught then and is not now; a line that is gone is "gone".

mutmut and cosmic-ray would not do: mutmut changes no process that may import only the standard library, as workers, and
both name a fault by its number in a file, which in a later tree is another's.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .copy import BESIDE, ROOT, Copy, Witnesses
from .draw import Fault, draw, find, planted

QUICK = 20.0
"""Seconds of tests that are tried first, in one process."""


def caught(copy: Copy, witnesses: Witnesses, fault: Fault, file: str, number: int) -> str | None:
    """Return the test that catches a fault, or None."""
    left, most = witnesses.of(file, number), QUICK
    while left:
        batch = list[str]()
        total = 0.0
        for test in left:
            total += witnesses.seconds[test]
            if batch and total > most:
                break
            batch.append(test)
        # A test that hangs is ended, and tried without the fault as any that fails.
        beside = BESIDE if total > 2 * QUICK else ()
        options = ("--maxfail=1", "--timeout=120", *beside)  # one failure tells that the fault is caught
        with planted(copy.source / file, number, fault):
            tested = copy.test(batch, *options, limit=300 + 4 * total)
        if not tested.failed and tested.code not in (0, 5):  # 5: none is left
            return "too long" if tested.code is None else f"pytest ends with {tested.code}"
        if tested.failed:
            passing = copy.test(tested.failed).seconds
            for test in tested.failed:
                if test in passing or "::" not in test:  # a file that cannot be imported
                    return test
            batch = [*tested.seconds, *tested.failed]
        else:
            most = float("inf")
        left = [test for test in left if test not in batch]
    return None


def row(fault: Fault, result: dict[str, Any]) -> str:
    """Return the row of a table."""
    change = f"`{fault.line}` → `{fault.becomes}`".replace("|", "\\|")
    end = "gone" if result["gone"] else result["caught"] or "**nobody**"
    return f"| {fault.file} | {fault.function} | {change} | {end} | {result['tests']} | {result['seconds']:.0f} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", default=[])
    parser.add_argument("--tests", nargs="+", default=["tests"])
    parser.add_argument("--again", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=ROOT / "perfci-out" / "faults", metavar="FOLDER")
    asked = parser.parse_args()
    former = {Fault(**one["fault"]): one for one in json.loads(asked.again.read_text())} if asked.again else {}
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        faults = [*former] or draw(copy.source, asked.faults, asked.seed, asked.room)
        witnesses = Witnesses(copy, asked.tests, asked.out)
        out = asked.out / f"results-{witnesses.key}.json"
        known = {Fault(**one["fault"]): one for one in json.loads(out.read_text())} if out.exists() else {}
        print("| file | function | fault | caught by | tests | s |\n|---|---|---|---|--:|--:|")
        for fault in faults:
            if fault not in known:
                begin, place = time.monotonic(), find(copy.source, fault)
                known[fault] = {
                    "fault": asdict(fault),
                    "gone": place is None,
                    "caught": caught(copy, witnesses, fault, *place) if place else None,
                    "tests": len(witnesses.of(*place)) if place else 0,
                    "seconds": round(time.monotonic() - begin, 1),
                }
                out.write_text(json.dumps(list(known.values()), indent=1))
            print(row(fault, known[fault]), flush=True)
    found = [known[fault] for fault in faults]
    gone = sum(one["gone"] for one in found)
    print(f"\n{sum(bool(one['caught']) for one in found)} of {len(found)} caught, {gone} gone: {out}")
    missed = {fault for fault in faults if not known[fault]["caught"] and not known[fault]["gone"]}
    lost = [fault for fault in former if former[fault]["caught"] and fault in missed]
    if lost:
        raise SystemExit("\n".join(["caught then, not now:", *(row(fault, former[fault]) for fault in lost)]))


if __name__ == "__main__":
    main()
