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


@pytest.mark.slow
def test_slower_faster_deleted_new_changed_and_wrong(repo: Repo) -> None:
    """Every class of the issue in one comparison, by name, with the exit code of the worst."""
    repo.policy(LIMITS)
    for name in ("slower", "faster", "deleted", "redeclared", "wrong"):
        repo.write(f"kernels/{name}.py", adding(spin=4000).replace("def adding", f"def {name}"))
    repo.commit("base")
    repo.write("kernels/slower.py", adding(spin=12000).replace("def adding", "def slower"))
    repo.write("kernels/faster.py", adding(spin=0).replace("def adding", "def faster"))
    (repo.root / "kernels/deleted.py").unlink()
    repo.write("kernels/new.py", adding().replace("def adding", "def new"))
    text = adding(spin=4000).replace("def adding", "def redeclared")
    repo.write(
        "kernels/redeclared.py",
        text.replace("    bench.reference", "    bench.work(flops=5)\n    bench.reference"),
    )
    text = adding(spin=4000).replace("def adding", "def wrong")
    repo.write("kernels/wrong.py", text.replace("total += i * 0.5", "total += i * 0.501"))
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {
        "slower": "regression", "faster": "improvement", "deleted": "missing", "new": "added",
        "redeclared": "changed", "wrong": "failed",
    }  # fmt: skip
    row = next(row for row in run.report["rows"] if row["class"] == "regression")
    assert row["interval"]["low"] > 1.0
    assert row["interval"]["low"] <= row["change"] <= row["interval"]["high"]
    assert "`slower`" in run.report["sentence"] or "wrong" in run.report["sentence"]


@pytest.mark.slow
def test_a_head_that_loosens_its_limits_is_judged_by_base(repo: Repo) -> None:
    repo.policy(LIMITS)
    repo.write("kernels/adding.py", adding())
    repo.commit("base")
    repo.policy("limits: [{cases: '*', metric: time, regression: 900%}]\n")
    repo.write("kernels/adding.py", adding(spin=16000))
    repo.commit("loosen and slow down")
    run = repo.perfci("compare", "--base", "HEAD~1", "--committed")
    assert run.code == 1, run.out + run.err
    assert run.report["policy_from"] == "base"


@pytest.mark.slow
def test_first_adoption_passes_and_says_so(repo: Repo) -> None:
    """Base knows nothing of perfci: every case is new, and head's own limits apply."""
    repo.write("readme", "nothing yet")
    base = repo.commit("before perfci")
    repo.policy(LIMITS)
    repo.write("kernels/adding.py", adding())
    repo.commit("adopt perfci")
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


@pytest.mark.slow
def test_limits_that_only_warn_never_fail(repo: Repo) -> None:
    repo.policy("fail_on: []\nlimits: [{cases: '*', metric: time, max: 1us}]\n")
    repo.write("kernels/adding.py", adding())
    run = repo.perfci("run")
    assert run.code == 0
    assert run.classes() == {"adding": "violation"}
    assert "PASS: Passed, but of 1 case 1 violation" in run.out


@pytest.mark.slow
def test_report_again_gives_the_same_bytes(repo: Repo) -> None:
    repo.policy(LIMITS)
    repo.write("kernels/adding.py", adding())
    repo.commit()
    assert repo.perfci("compare", "--base", "HEAD").code == 0
    out = repo.root / "perfci-out"
    names = ["report.json", "report.md", "report.csv", "junit.xml"]
    first = {name: (out / name).read_bytes() for name in names}
    for folder in ("again", "and-again"):
        run = repo.perfci("report", "perfci-out", "--out", folder, fresh=True)
        assert run.code == 0, run.err
        assert {name: (repo.root / folder / name).read_bytes() for name in names} == first


@pytest.mark.slow
def test_json_is_the_only_thing_on_stdout(repo: Repo) -> None:
    repo.policy()
    repo.write("kernels/adding.py", adding())
    repo.perfci("run")
    run = repo.perfci("report", "--json")
    assert json.loads(run.out)["verdict"] == "undecided"  # without a base, no limit on changes has an answer


@pytest.mark.slow
def test_a_file_that_does_not_import_costs_that_file(repo: Repo) -> None:
    repo.policy(LIMITS)
    repo.write("kernels/adding.py", adding())
    repo.write("kernels/broken.py", adding().replace("def adding", "def other"))
    repo.commit("base")
    repo.write("kernels/broken.py", "import there_is_no_such_module\n")
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"adding": "unchanged", "other": "failed"}
    assert "there_is_no_such_module" in run.reasons()["other"]


@pytest.mark.slow
def test_a_case_for_another_device_is_skipped(repo: Repo) -> None:
    repo.policy(LIMITS)
    repo.write("kernels/adding.py", adding())
    repo.write("kernels/gpu.py", adding().replace('["cpu"]', '["cuda"]').replace("def adding", "def on_gpu"))
    run = repo.perfci("run")
    assert run.code == 0, run.out + run.err
    assert run.classes()["on_gpu"] == "skipped"
    assert "needs cuda" in run.reasons()["on_gpu"]


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
    run = repo.perfci("profile", "sines", "--base", "HEAD", "--python", sys.executable)
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
    missed = repo.perfci("profile", "sinus", "--python", sys.executable)
    assert missed.code == 2 and "sinus" in missed.err
