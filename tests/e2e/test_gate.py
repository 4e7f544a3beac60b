"""The main job from commit to exit code."""

import json
import math
import sys

import pytest

from .conftest import Repo, adding

LIMITS = "limits: [{cases: '*', metric: time, regression: 10%}]\n"


def test_no_change_passes(repo: Repo) -> None:
    repo.policy(LIMITS.replace("10%", "50%"))  # however busy the machine, eight pairs tell
    repo.write("kernels/adding.py", adding())
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 0, run.out + run.err
    assert run.classes() == {"adding": "unchanged"}
    assert run.results["sides"]["base"]["tree"] == run.results["sides"]["head"]["tree"]
    files = {path.name for path in (repo.root / "perfci-out").iterdir()}
    assert {
        "results.json",
        "report.json",
        "report.md",
        "report.csv",
        "junit.xml",
        "samples.jsonl",
        "logs",
    } <= files
    assert repo.git("status", "--porcelain") == ""
    costs = run.results["costs"]
    assert math.isclose(sum(costs.values()), run.results["seconds"])
    assert all(
        costs[phase] > 0 for phase in ("snapshot", "start", "import", "check", "open", "warm", "samples", "close")
    )
    told = repo.perfci("report", "--costs")
    assert told.code == 0
    assert {line.split()[0] for line in told.out.splitlines()[2:] if line} >= {"samples", "import", "check"}
    assert json.loads(repo.perfci("report", "--json").out) == run.report, "and nothing else is printed"
    again = repo.perfci("report", "perfci-out", "--out", "again", fresh=True)
    assert again.code == 0, again.err
    for name in ("report.json", "report.md", "report.csv", "junit.xml"):
        assert (repo.root / "again" / name).read_bytes() == (repo.root / "perfci-out" / name).read_bytes()


@pytest.mark.slow
def test_slower_faster_deleted_new_changed_and_wrong(repo: Repo) -> None:
    """Every class of the issue in one comparison, by name, with the exit code of the worst."""
    repo.policy(LIMITS)
    for name in ("slower", "faster", "deleted", "redeclared", "wrong", "broken"):
        repo.write(f"kernels/{name}.py", adding(spin=4000, name=name))
    repo.commit("base")
    repo.write("kernels/slower.py", adding(spin=60_000, name="slower"))
    repo.write("kernels/faster.py", adding(spin=0, name="faster"))
    (repo.root / "kernels/deleted.py").unlink()
    repo.write("kernels/new.py", adding(name="new"))
    text = adding(spin=4000, name="redeclared")
    repo.write(
        "kernels/redeclared.py",
        text.replace("    bench.reference", "    bench.work(flops=5)\n    bench.reference"),
    )
    text = adding(spin=4000, name="wrong")
    repo.write("kernels/wrong.py", text.replace("total += i * 0.5", "total += i * 0.501"))
    repo.write("kernels/broken.py", "import there_is_no_such_module\n")
    repo.write("kernels/gpu.py", adding(name="on_gpu").replace('["cpu"]', '["cuda"]'))
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {
        "slower": "regression", "faster": "improvement", "deleted": "missing", "new": "added",
        "redeclared": "changed", "wrong": "failed", "broken": "failed", "on_gpu": "skipped",
    }  # fmt: skip
    assert "there_is_no_such_module" in run.reasons()["broken"] and "needs cuda" in run.reasons()["on_gpu"]
    row = next(row for row in run.report["rows"] if row["class"] == "regression")
    assert row["interval"]["low"] > 1.0
    assert row["interval"]["low"] <= row["change"] <= row["interval"]["high"]
    assert "`kernels/broken.py` does not import in head" in run.report["sentence"]


NOTE = "base's limits judge; head's count once merged: "


@pytest.mark.slow
def test_a_head_that_loosens_its_limits_is_judged_by_base_and_told_so(repo: Repo) -> None:
    repo.adds(LIMITS, "base")
    repo.policy("limits: [{cases: '*', metric: time, regression: 900%}]\nfail_on: []\n")
    own = 'devices=["cpu"], limits=[{"metric": "time", "max": "1h"}]'
    repo.write("kernels/adding.py", adding(spin=20_000).replace('devices=["cpu"]', own))
    repo.commit("loosen and slow down")
    run = repo.perfci("compare", "--base", "HEAD~1", "--committed")
    assert run.code == 1, run.out + run.err
    assert run.report["policy_from"] == "base"
    notes = [note.removeprefix(NOTE) for note in run.report["notes"] if note.startswith(NOTE)]
    assert notes == ["perfci.yaml differs in fail_on, limits", "the limits that `adding` declares itself differ"]
    assert f"note: {NOTE}perfci.yaml differs in fail_on, limits" in run.out


@pytest.mark.slow
def test_first_adoption_passes_and_says_so(repo: Repo) -> None:
    """Base knows nothing of perfci: every case is new, and head's own limits apply."""
    repo.write("readme", "nothing yet")
    base = repo.commit("before perfci")
    repo.adds(LIMITS, "adopt perfci")
    run = repo.perfci("compare", "--base", "HEAD~1", "--committed")
    assert run.code == 0, run.out + run.err
    assert run.classes() == {"adding": "added"}
    assert run.report["policy_from"] == "head"
    assert any(f"base {base[:10]} has no perfci.yaml" in note for note in run.report["notes"])
    assert run.report["command"] == ["perfci", "compare", "--base", base, "--committed"]


@pytest.mark.slow
def test_run_judges_absolute_limits(repo: Repo) -> None:
    repo.policy("limits: [{cases: '*', metric: time, max: 1us}]\n")
    repo.write("kernels/adding.py", adding())
    run = repo.perfci("run")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"adding": "violation"}
    assert any("compared with nothing" in note for note in run.report["notes"])
    repo.policy("fail_on: []\nlimits: [{cases: '*', metric: time, max: 1us}]\n")
    repo.write("other.yaml", "version: 1\nlimits:\n  - {cases: 'ading', metric: time, max: 1s}\n")
    typo = repo.perfci("report", "--policy", "other.yaml")
    said = "perfci: other.yaml:3: limits[0].cases: 'ading' matches no case: did you mean 'adding'?\n"
    assert (typo.code, typo.err) == (2, said)
    warned = repo.perfci("report", "--policy", "perfci.yaml")
    assert warned.code == 0 and "PASS: Passed, but of 1 case 1 violation" in warned.out, warned.out + warned.err


@pytest.mark.torch
@pytest.mark.slow
def test_a_profile_says_what_was_seen_and_judges_nothing(repo: Repo) -> None:
    """Base and head are profiled, by torch's own profiler where there is no nsys; a limit that would fail does not."""
    pytest.importorskip("torch")
    kernel = """
        import perfci
        import torch

        @perfci.kernel(devices=["cpu"])
        def sines(bench):
            x = bench.randn(2**16)
            return lambda: torch.sin(x)
    """
    repo.write("kernels/k.py", kernel)
    repo.write("perfci.yaml", "version: 1\nsuite: [kernels/*.py]\nlimits: [{cases: '*', metric: time, max: 1ns}]\n")
    repo.commit("base")
    run = repo.perfci("profile", "-k", "sines", "--base", "HEAD", "--python", sys.executable)
    assert run.code == 0, run.out + run.err
    assert "PROFILED: 1 case, not judged" in run.out
    seen = run.report["profiles"][0]
    assert seen["case"] == "sines" and seen["sources"], seen
    assert list((repo.root / "perfci-out" / "profile").glob("*.timeline.json.gz"))
    for side in ("base", "head"):
        assert run.results["cases"][0]["sides"][side]["profile"]["trace"]["executions"] == 10
    assert "profile/ · " in run.out.splitlines()[-1]
    plain = repo.perfci("run", "--quick", "--python", sys.executable)
    listed = plain.out.splitlines()[-1]
    assert listed.startswith("Files in perfci-out/: report.md · ") and "samples.jsonl" in listed
    assert "profile/" not in listed and "profile.csv" not in listed  # which an earlier run wrote
    missed = repo.perfci("profile", "-k", "sinus", "--python", sys.executable)
    assert missed.code == 2 and "sinus" in missed.err
