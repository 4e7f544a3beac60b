"""A comparison that several machines share: planned, measured in parts, merged into one verdict."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from perfci.measure.request import MEASURE_ALL
from tests.e2e.conftest import Repo, Run, adding, pairs, until

LIMITS = "limits: [{cases: '*', metric: time, regression: 50%}]\n"  # however busy the machine, eight pairs tell
KERNELS = ("ant", "bee", "cat", "dog")


def suite(repo: Repo, policy: str = LIMITS) -> None:
    """Four kernels, of which base is committed."""
    repo.policy(policy)
    for name in KERNELS:
        repo.write(f"kernels/{name}.py", kernel(name))
    repo.commit("base")


def kernel(name: str, spin: int = 0) -> str:
    return adding(spin=spin, name=name)


def planned(repo: Repo, shards: int = 3, *more: str, read: Path | None = None, seed: str = "") -> dict:
    run = repo.perfci(f"PERFCI_SEED={seed}", "plan", "--base", "main~1", "--shards", str(shards), *more)
    assert run.code == 0, run.out + run.err
    return json.loads((read or repo.root / "perfci-out/plan.json").read_text())


def shard(repo: Repo, text: str, *more: str) -> Run:
    return repo.perfci("compare", "--shard", f"perfci-out/plan.json:{text}", *more)


def slower(repo: Repo) -> None:
    """One kernel is slower, the others are touched."""
    for name in KERNELS:
        repo.write(f"kernels/{name}.py", kernel(name, spin=20_000 if name == "bee" else 0) + f"\n# {name}\n")
    repo.commit("change")


def last_line(run: Run) -> str:
    return run.err.strip().splitlines()[-1]


@pytest.mark.slow
def test_three_shards_are_one_verdict(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    plan = planned(repo)
    assert plan["plan"]["m"] == 4, "α is shared by the limits of all shards"
    dealt = [{case["key"] for case in plan["cases"] if case["shard"] == number} for number in (1, 2, 3)]
    assert all(dealt)
    assert set().union(*dealt) == {f"{name}@cpu" for name in KERNELS}
    for number in (1, 2, 3):
        run = shard(repo, f"{number}/3")
        mine = dealt[number - 1]
        assert run.code == int("bee@cpu" in mine), run.out + run.err
        assert f"Shard {number} of 3 of plan" in run.out
        results = json.loads((repo.root / f"shard-{number}" / "results.json").read_text())
        assert {f"{case['id']}@{case['device']}" for case in results["cases"]} == mine
        assert results["plan"]["m"] == 4
        assert results["part"]["shards"] == [number]
        assert results["run"] == plan["run"]
    whole = repo.perfci("merge", "shard-1", "shard-2", "shard-3")
    assert whole.code == 1, whole.out + whole.err
    assert whole.report["verdict"] == "fail"
    assert whole.classes() == {"ant": "unchanged", "bee": "regression", "cat": "unchanged", "dog": "unchanged"}
    assert not any("judged alone" in note for note in whole.report["notes"])
    assert whole.results["part"]["shards"] == [1, 2, 3]
    samples = (repo.root / "perfci-out" / "samples.jsonl").read_text().splitlines()
    assert len(samples) == sum(len(case["pairs"]) for case in whole.results["cases"])
    refused_merges(repo)
    measured_once(repo)


@pytest.mark.slow
def test_a_plan_in_the_tree_is_no_part_of_head(repo: Repo, tmp_path: Path) -> None:
    """By default wherever a shard reads it, elsewhere where it reads it there."""
    suite(repo)
    slower(repo)
    repo.write("kernels/ant.py", kernel("ant") + "\n# not committed\n")
    tree = planned(repo, 2)["sides"]["head"]["tree"]
    there = repo.root / "plans" / "second.json"
    there.parent.mkdir()
    assert planned(repo, 2, "--out", str(there), read=there)["sides"]["head"]["tree"] == tree
    run = repo.perfci("compare", "--shard", f"{there}:1/2")
    assert run.code in (0, 1), run.out + run.err
    assert "shard-1" not in repo.git("status", "--short", "--untracked-files=all"), "git ignores what perfci writes"
    there.rename(tmp_path / "second.json")
    shutil.copy(repo.root / "perfci-out/plan.json", tmp_path / "first.json")
    run = repo.perfci("compare", "--shard", f"{tmp_path}/first.json:2/2")
    assert run.code in (0, 1), run.out + run.err


def refused_merges(repo: Repo) -> None:
    """Each names what is wrong, and none is a pass."""
    missing = repo.perfci("merge", "shard-1", "shard-3")
    assert missing.code == 3
    assert "shard 2 of 3 of plan" in missing.err
    twice = repo.perfci("merge", "shard-1", "shard-2", "shard-2/results.json", "shard-3")
    assert (twice.code, "is named twice" in twice.err) == (2, True)
    shutil.copytree(repo.root / "shard-2", repo.root / "again")
    decided = repo.perfci("merge", "shard-1", "shard-2", "again", "shard-3")
    assert decided.code == 2
    assert "again: is shard 2 again, which shard-2 holds" in decided.err
    assert repo.perfci("merge", "shard-9").code == 2
    merged = repo.perfci("merge", "perfci-out")
    assert (merged.code, "was merged already" in merged.err) == (2, True)


def measured_once(repo: Repo) -> None:
    """Nobody may measure a shard until it pleases."""
    again = shard(repo, "1/3")
    assert again.code == 2
    assert "which is measured once" in again.err
    before = json.loads((repo.root / "shard-1" / "results.json").read_text())["cases"]
    resumed = shard(repo, "1/3", "--resume")
    assert resumed.code in (0, 1), resumed.err
    assert json.loads((repo.root / "shard-1" / "results.json").read_text())["cases"] == before


@pytest.mark.slow
def test_models_of_device_share_error_rates_and_pass_together(repo: Repo) -> None:
    """There is one CPU here: the other model is made of the first by its name, which a merge believes."""
    suite(repo)
    slower(repo)
    refused = repo.perfci("plan", "--base", "main~1", "--models", "0")
    assert (refused.code, last_line(refused)) == (2, "perfci: --models 0: write a number from 1 to 16")
    plan = planned(repo, 1, "--models", "2")
    assert (plan["what"]["models"], plan["plan"]["m"]) == (2, 8), "each limit counts once for each model"
    assert shard(repo, "1/1").code == 1
    results = json.loads((repo.root / "shard-1" / "results.json").read_text())
    assert (results["part"]["models"], results["plan"]["m"]) == (2, 8)
    alone = repo.perfci("merge", "shard-1")
    assert alone.code == 3
    assert "of 2 models of device only " in alone.err and not (repo.root / "perfci-out" / "report.json").exists()

    results["fingerprint"]["devices"]["cpu"] = "Another: CPU/2"
    results["part"]["plan"] = "6" * 64
    results["cases"] = [case | {"pairs": []} if case["id"] == "bee" else case for case in results["cases"]]
    repo.write("other/shard-1/results.json", json.dumps(results))
    both = repo.perfci("merge", "shard-1", "other/shard-1")
    assert both.code == 1, both.out + both.err
    reports = {path.parent.name: json.loads(path.read_text()) for path in repo.root.glob("perfci-out/*/report.json")}
    assert len(reports) == 2 and "Another-CPU-2" in reports
    assert {report["verdict"] for report in reports.values()} == {"fail", reports["Another-CPU-2"]["verdict"]}
    assert both.out.splitlines()[-1].startswith("2 models: ") and "Another: CPU/2 " in both.out.splitlines()[-1]
    assert all("One of 2 models of device that share α" in report["notes"][0] for report in reports.values())
    json_of = repo.perfci("merge", "shard-1", "other/shard-1", "--json")
    assert (json_of.code, "2 models have a report each" in json.loads(json_of.out)["error"]) == (2, True)


def test_a_shard_measures_what_was_planned_or_nothing(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    plan = planned(repo, 2, "--committed")
    for words, said in (
        (["--shard", "perfci-out/plan.json:3/2"], "they are numbered from 1 to 2"),
        (["--shard", "perfci-out/plan.json:1/4"], "the plan has 2 shards"),
        (["--shard", "1/4"], "write the plan's file and the part"),
        (["--shard", "perfci-out/plan.json:1/2", "-k", "ant"], "-k: a shard does what was planned"),
        (["--shard", "perfci-out/plan.json:1/2", "--env", "A=1"], "--env: a shard does what was planned"),
    ):
        run = repo.perfci("compare", *words)
        assert (run.code, said in run.err) == (2, True), run.err
    text = (repo.root / "perfci-out/plan.json").read_text()
    (repo.root / "perfci-out/plan.json").write_text(json.dumps(plan | {"plan": plan["plan"] | {"m": 1}}))
    assert "was changed since it was made" in last_line(shard(repo, "1/2"))
    (repo.root / "perfci-out/plan.json").write_text(text)
    # Another commit, though it holds the same files.
    repo.commit("nothing")
    assert "the commit of head is not that of the plan" in last_line(shard(repo, "1/2"))


def test_another_working_tree_is_refused(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    repo.write("kernels/ant.py", kernel("ant", spin=1))
    planned(repo, 2)
    repo.policy(LIMITS.replace("50%", "60%"))
    assert "the policy of head is not that of the plan" in last_line(shard(repo, "1/2"))
    repo.policy(LIMITS)
    repo.write("kernels/eel.py", kernel("eel"))
    run = shard(repo, "1/2")
    assert run.code == 2 and "the code of head is not that of the plan" in last_line(run)
    assert not (repo.root / "shard-1" / "results.json").exists()


@pytest.mark.slow
def test_a_shard_that_was_killed_goes_on(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    planned(repo, 2)
    elsewhere = {"kind": "header", "run": "x", "identity": {"the machine": "another"}}
    repo.write("shard-1/journal.jsonl", json.dumps(elsewhere) + "\n")
    assert shard(repo, "1/2", "--resume").code in (0, 1), "what may be started again, elsewhere too, always says so"
    journal = repo.root / "shard-2" / "journal.jsonl"
    process = repo.start("compare", "--shard", "perfci-out/plan.json:2/2", start_new_session=True)
    until(process, lambda: len(pairs(journal)) >= 3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = pairs(journal)
    assert len(before) >= 3
    assert repo.perfci("merge", "shard-1", "shard-2").code == 2, "it left no results"
    assert "which is measured once" in shard(repo, "2/2").err
    assert shard(repo, "2/2", "--resume").code in (0, 1)
    assert pairs(journal)[: len(before)] == before
    whole = repo.perfci("merge", "shard-1", "shard-2")
    assert whole.code == 1
    assert whole.classes()["bee"] == "regression"
    assert all(
        [pair["index"] for pair in case["pairs"]] == list(range(len(case["pairs"]))) for case in whole.results["cases"]
    )


@pytest.mark.slow
def test_a_shard_that_is_interrupted_makes_the_run_an_error(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    planned(repo, 2, "--committed")
    repo.write("kernels/ant.py", kernel("ant", spin=5))  # which does not count
    assert shard(repo, "1/2").code in (0, 1)
    process = repo.start("compare", "--shard", "perfci-out/plan.json:2/2")
    until(process, lambda: len(pairs(repo.root / "shard-2" / "journal.jsonl")) >= 2)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 3
    whole = repo.perfci("merge", "shard-1", "shard-2")
    assert whole.code == 3
    assert whole.report["verdict"] == "error"
    assert "shard 2/2 (shard-2): interrupted" in whole.report["sentence"]


@pytest.mark.slow
def test_commands_stay_whole_and_run_where_they_are_dealt(repo: Repo) -> None:
    """Each says where it ran: a shard runs no command of another."""
    repo.policy(
        """
        limits: [{cases: '*', metric: time, regression: 90%}]
        commands:
          - {name: first, run: 'echo first >> "$RAN"; sleep 0.02', device: cpu}
          - {name: second, run: 'echo second >> "$RAN"; sleep 0.02', device: cpu}
        pass_env: [RAN]
        """
    )
    repo.write("kernels/ant.py", kernel("ant"))
    repo.commit()
    ran = repo.root.parent / "ran"
    repo.env["RAN"] = str(ran)
    run = repo.perfci("plan", "--base", "HEAD", "--shards", "3", "--measure-all")
    assert run.code == 0, run.err
    plan = json.loads((repo.root / "perfci-out/plan.json").read_text())
    of = {case["command"]: case["shard"] for case in plan["cases"]}
    assert sorted(of) == ["", "first", "second"]
    for name in ("first", "second"):
        ran.unlink()
        assert shard(repo, f"{of[name]}/3").code == 0
        assert set(ran.read_text().split()) == {name}
    assert shard(repo, f"{of['']}/3").code == 0
    whole = repo.perfci("merge", "shard-1", "shard-2", "shard-3")
    assert whole.code == 0, whole.err
    assert set(whole.classes()) == {"ant", "first", "second"}


@pytest.mark.slow
def test_what_the_plan_has_proved_no_shard_measures(repo: Repo) -> None:
    repo.env[MEASURE_ALL] = "0"
    suite(repo)
    repo.write("docs/why.md", "Because.\n")
    repo.commit("a document")
    plan = planned(repo, 2, seed="2")  # which draws no audit
    proofs = {case["key"]: case["proof"] for case in plan["cases"]}
    if not all(proof["by"] for proof in proofs.values()):
        pytest.skip("needs strace")  # without it nothing is proved, as tests/e2e/proof/test_proof.py has it
    assert plan["plan"]["m"] == 1
    for number in (1, 2):
        run = shard(repo, f"{number}/2")
        assert run.code == 0, run.err
    whole = repo.perfci("merge", "shard-1", "shard-2")
    assert whole.code == 0, whole.err
    assert "4 cases unchanged (all proved)" in whole.report["sentence"]
    assert not any(case["pairs"] for case in whole.results["cases"])


@pytest.mark.slow
def test_prepared_sides_serve_plan_and_shards(repo: Repo, tmp_path: Path) -> None:
    suite(repo)
    slower(repo)
    folder = tmp_path / "sides"
    assert repo.perfci("compare", "--base", "main~1", "--prepare", str(folder)).code == 0
    planned(repo, 4, "--prepared", str(folder))
    run = shard(repo, "1/4", "--prepared", str(folder))
    assert run.code in (0, 1), run.err


def test_more_shards_than_cases_are_refused(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    run = repo.perfci("plan", "--base", "main~1", "--shards", "5")
    assert (run.code, "give --shards 4 at most" in run.err) == (2, True)
    assert not (repo.root / "perfci-out/plan.json").exists()
