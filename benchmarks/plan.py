"""Shows how near `perfci list --plan` comes to what a run takes, by its trial and by the last results.

    python -m benchmarks.plan [FOLDER] [OPTION…]

FOLDER holds the repository to measure (by default this one), of which HEAD is cloned and compared with itself; options,
such as `--device cpu` or globs of cases, are those of `perfci list` and `perfci compare` alike. Prints a line for each
of two plans and the run that follows it. Ends with 1 where a run took a third more or less than was planned.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

OFF = 1 / 3
"""Share by which a plan may miss."""


def perfci(where: Path, *words: str) -> str:
    """Return what perfci prints. Raises SystemExit with its errors where it ends with an error."""
    command = [sys.executable, "-m", "perfci", *words]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return done.stdout


def miss(where: Path, options: list[str]) -> float:
    """Plan and run once, print both, and return the run's seconds as a share of the plan's, less 1."""
    plan = json.loads(perfci(where, "list", "--plan", "--json", *options))["plan"]
    if plan["beside"] is None:
        raise SystemExit("nothing was found out of what a run costs: see `perfci list --plan`")
    planned = plan["seconds"] + plan["beside"]
    perfci(where, "compare", "--base", "HEAD", *options)
    results = json.loads((where / "perfci-out" / "results.json").read_text())
    taken = results["seconds"] - results["costs"].get("wait", 0.0)
    told = f"planned {planned:.1f} s, taken {taken:.1f} s"
    print(f"by {plan['rests']}: {told}: {taken / planned:.2f}")
    return taken / planned - 1


def main() -> None:
    """Plan without and with results of an earlier run."""
    given = sys.argv[1:]
    root = Path(given.pop(0)) if given and Path(given[0]).is_dir() else Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "repository"
        subprocess.run(["git", "clone", "-q", str(root), str(where)], check=True)
        missed = [miss(where, given), miss(where, given)]
    sys.exit(any(abs(one) > OFF for one in missed))


if __name__ == "__main__":
    main()
