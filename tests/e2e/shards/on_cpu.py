"""`perfci compare --gpus`, from the measuring processes on, with the CPU in the place of each GPU.

`python -m tests.e2e.shards.on_cpu COUNT REPO [--resume]`: a folder for temporary files of its own gives each process a
lease of its own.
"""

import os
import sys
from pathlib import Path

import typer

from perfci.cli.gpus import compare_on
from perfci.cli.measure import read_request
from perfci.measure.shards.host import Member
from perfci.model.base import PerfciError


def members(number: int, folder: Path) -> list[Member]:
    cores = sorted(os.sched_getaffinity(0))
    made = []
    for at in range(number):
        own = folder / f"m{at}"
        own.mkdir(exist_ok=True)
        made.append(Member(f"CPU {at}", {"TMPDIR": str(own)}, cores=[cores[at % len(cores)]]))
    return made


def compare(number: int, repo: Path, *, resume: bool) -> None:
    asked = (
        {} if resume else {"base": "main~1", "committed": True, "budget": "90s", "quick": True}
    )  # else of the journal
    os.environ |= {"PERFCI_WAIT": "30s"} if resume else {"PERFCI_WAIT": "30s", "PERFCI_SEED": "3"}
    request = read_request(
        "compare", cases=[], where=repo, out=repo / "perfci-out", device=None if resume else ["cpu"], resume=resume,
        **asked,
    )  # fmt: skip
    compare_on(members(number, Path(os.environ["TMPDIR"])), request)


if __name__ == "__main__":
    try:
        compare(int(sys.argv[1]), Path(sys.argv[2]), resume="--resume" in sys.argv)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    except PerfciError as error:
        print(f"perfci: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
