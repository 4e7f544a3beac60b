"""The budget ends between two looks: what was seen until then is said."""

import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Repo

APP = """
import json, os, sys, time

def slept(seconds):
    start = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - start

with open(os.environ["PERFCI_METRICS"], "a") as file:
    for case, seconds in {"slow": SLOW, "fast": FAST}.items():
        line = {"case": case, "metric": "time", "value": slept(seconds), "unit": "s"}
        file.write(json.dumps(line) + "\\n")
"""
LAST_PAIR = 9
BUDGET = 15
TARRY = """
import pathlib
began = pathlib.Path({path!r})
with began.open("a") as file:
    file.write(f"{{time.time()}}\\n")
times = began.read_text().split()
if len(times) > {pairs}:  # once in discovery
    time.sleep(max(0.0, float(times[1]) + {budget} + 1 - time.time()))
"""
"""In head, outside what is timed: from the ninth pair on it waits until the budget is spent."""


@pytest.mark.slow
def test_what_was_plain_to_see_when_the_budget_ended_is_no_pass(repo: Repo, tmp_path: Path) -> None:
    """4.6 times as long in nine pairs, where ten would prove it, and 2.5 times as fast: neither is called unchanged."""
    repo.write(
        "perfci.yaml",
        f"""
        version: 1
        devices: [cpu]
        python: {sys._base_executable}
        budget: {BUDGET}s
        commands: [{{name: app, run: python3 -S app.py, reads: perfci}}]
        limits: [{{regression: 10%}}]
        """,
    )
    repo.write("app.py", APP.replace("SLOW", "0.020").replace("FAST", "0.080"))
    repo.commit("base")
    tarry = TARRY.format(path=str(tmp_path / "began"), pairs=LAST_PAIR, budget=BUDGET)
    repo.write("app.py", APP.replace("SLOW", "0.092").replace("FAST", "0.032") + tarry)
    repo.commit("head")
    run = repo.perfci("compare", "--base", "HEAD~1")
    assert run.code == 0, run.out + run.err
    assert "PASS" not in run.out
    rows = {row["case"]: row for row in run.report["rows"]}
    slow, fast = rows["app/slow"], rows["app/fast"]
    assert slow["pairs"] == LAST_PAIR, "the budget was to end between looks"
    assert slow["class"] == "inconclusive", slow
    assert (fast["class"], fast["look"], fast["last_look"]) == ("improvement", None, True), fast
    assert run.report["verdict"] == "undecided"
    assert "app/slow seems 4.6× slower, which 9 pairs do not prove" in run.out
    assert "all of it beyond the limit of 10 %" in slow["reason"]
    assert fast["interval"]["high"] < 0.5
    assert "1 improvement" in run.out
    assert "unchanged" not in run.out
