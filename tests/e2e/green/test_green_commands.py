"""Commands that report metrics of their own: what they leave out, add or rename never passes for measured."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.e2e.conftest import PLAIN_PYTHON, Repo, Run

from .test_never_green import never_green

BENCH = """
import json, os, sys

SIDE = "head" if "/head/" in os.getcwd() else "base"
COUNT = {counts!r} + SIDE
with open(COUNT, "a") as count:
    count.write(".")
N = os.path.getsize(COUNT)  # 1 in the first execution of a side

def report(case, p99, **more):
    entries = [dict(metric="time", value=0.001 * (1 + N % 3 / 1000), unit="s"), dict(metric="p99", value=p99, **more)]
    with open(os.environ["PERFCI_METRICS"], "a") as out:
        for entry in entries[: 1 if p99 is None else 2]:
            out.write(json.dumps(dict(entry, case=case)) + "\\n")

"""


class Bench:
    """A repository with one command, `serve`, that reports what `body` says."""

    def __init__(self, repo: Repo, counts: Path) -> None:
        self.repo = repo
        self.counts = counts

    def policy(self, *limits: str, unit: str = "s") -> None:
        lines = "".join(f"  - {limit}\n" for limit in limits)
        self.repo.write(
            "perfci.yaml",
            f"version: 1\ndevices: [cpu]\npython: {PLAIN_PYTHON}\nbudget: 60s\n"
            f"commands: [{{name: serve, run: '{PLAIN_PYTHON} bench.py', reads: perfci, device: cpu}}]\n"
            f"metrics: {{p99: {{unit: {unit}, better: lower}}}}\nlimits:\n{lines}",
        )

    def body(self, text: str) -> None:
        (self.repo.root / "bench.py").write_text(BENCH.format(counts=str(self.counts)) + dedent(text))

    def compare(self) -> Run:
        return self.repo.perfci("compare", "--base", "HEAD", "--quick")

    def changed(self, before: str, after: str) -> Run:
        """Base with the one body against head with the other."""
        self.body(before)
        self.repo.commit()
        self.body(after)
        return self.compare()


def bench(repo: Repo, tmp_path: Path) -> Bench:
    return Bench(repo, tmp_path / "count-")


def undecided(run: Run) -> None:
    """Assert that the run is undecided, now and judged again by base's policy."""
    assert (run.code, run.report["verdict"]) == (0, "undecided"), run.out + run.err
    never_green(run)


STEADY = "report('a', 0.010 * (1 + N % 5 / 5000))\nreport('b', 0.010)\nreport('c', 0.010)"
LOST = "is reported in the first execution, and not in each later one: report it in each"
NEW = "is not reported in the first execution, and in a later one: report it in each"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "failed"),
    [
        (
            "report('a', 0.010 if N % 2 else None)\nreport('b', None if N == 1 else 0.1)\nif N % 2: report('c', 0.01)",
            {"serve/a": f"p99 {LOST}", "serve/b": f"p99 {NEW}", "serve/c": f"it {LOST}"},
        ),
        (f"{STEADY}\nif N > 1: report('d', 5)", dict.fromkeys(["serve/a", "serve/b", "serve/c"], f"serve/d {NEW}")),
    ],
)
def test_what_head_reports_in_some_executions_alone_fails(
    repo: Repo, tmp_path: Path, after: str, failed: dict[str, str]
) -> None:
    """The others may have been the slow ones."""
    one = bench(repo, tmp_path)
    one.policy("{cases: 'serve/*', metric: p99, max: 20ms}", "{cases: 'serve/*', metric: p99, regression: 5%}")
    run = one.changed(STEADY, after)
    assert run.code == 1, run.out + run.err
    reasons = {row["case"]: row["reason"] for row in run.report["rows"] if row["kind"] == "presence"}
    assert reasons == {case: f"fails in head: {reason}" for case, reason in failed.items()}


@pytest.mark.slow
def test_what_base_reports_in_some_executions_alone_is_compared_with_nothing(repo: Repo, tmp_path: Path) -> None:
    one = bench(repo, tmp_path)
    one.policy("{cases: 'serve/*', metric: p99, regression: 5%}")
    run = one.changed("report('a', 0.010 if N == 1 else None)", "report('a', 0.100)")
    undecided(run)
    assert run.reasons()["serve/a"] == f"fails in base only: p99 {LOST}"


@pytest.mark.slow
def test_another_unit_in_heads_policy_is_another_question(repo: Repo, tmp_path: Path) -> None:
    one = bench(repo, tmp_path)
    limits = "{cases: 'serve/*', metric: p99, regression: 5%}", "{cases: 'serve/*', metric: p99, max: 30ms}"
    one.policy(*limits, unit="ms")
    one.body("report('a', 10.0)\nreport('b', None)")
    repo.commit()
    one.policy(*limits, unit="s")
    one.body("report('a', 0.05)\nreport('b', None)")
    run = one.compare()
    undecided(run)
    assert run.classes()["serve/a"] == "changed"
    assert run.reasons()["serve/a"] == "timing unit of p99 is ms in base, s in head"
    assert not [r for r in run.report["rows"] if (r["case"], r["kind"]) == ("serve/a", "regression")]
    assert "changed" not in [r["class"] for r in run.report["rows"] if r["case"] == "serve/b"], (
        "which does not report it"
    )
