"""Configuration fails closed: a limit that nothing can answer, and a device that is not there, never pass."""

import json
import shutil
import sys
from textwrap import dedent

import pytest

from perfci.github.artifact import parse
from tests.e2e.conftest import PLAIN_PYTHON, Repo, Run, adding

QUICK = ("--quick", "--budget", "5m")
NO_GPU = pytest.mark.skipif(bool(shutil.which("nvidia-smi")), reason="needs a machine without a GPU")
TIME = "limits:\n  - {cases: '*', metric: time, regression: 50%}\n"


def last(run: Run) -> str:
    return run.err.strip().splitlines()[-1]


def project(repo: Repo, policy: str) -> str:
    repo.policy(policy)
    repo.write("kernels/adding.py", adding())
    return repo.commit()


def changed(repo: Repo, policy: str) -> None:
    repo.policy(policy)
    repo.commit("other limits")


@pytest.mark.parametrize("args", [("list",), ("compare", "--base", "HEAD", "-k", "adding", *QUICK)])
def test_a_typo_in_a_limits_glob(repo: Repo, args: tuple[str, ...]) -> None:
    """Whichever cases were asked for: nothing is measured, and the nearest name is told."""
    project(repo, "limits:\n  - {cases: adding, regression: 50%}\n  - {cases: ['adding', 'ading*'], regression: 9%}\n")
    run = repo.perfci(*args)
    assert run.code == 2
    assert "perfci.yaml:7: limits[1].cases: 'ading*' matches no case: did you mean 'adding'?" in last(run)
    assert "PASS" not in run.out and "measuring" not in run.err
    assert not (repo.root / "perfci-out/report.json").exists()


@pytest.mark.slow
def test_a_typo_in_a_commands_glob_is_found_once_it_has_run(repo: Repo) -> None:
    line = '{"case": "batch=8", "metric": "time", "value": 0.01, "unit": "s"}'
    command = f"commands:\n  - {{name: serve, run: 'echo ''{line}'' > $PERFCI_METRICS', reads: perfci}}\n"
    project(repo, command + "limits:\n  - {cases: 'serve/btch=8', regression: 50%}\n")
    assert repo.perfci("list").code == 0  # it has not run: who knows what it reports
    run = repo.perfci("compare", "--base", "HEAD", *QUICK)
    assert run.code == 2
    assert "limits[0].cases: 'serve/btch=8' matches no case: did you mean 'serve/batch=8'?" in last(run)
    project(repo, "metrics: {p99: {unit: s}}\n" + command + "limits:\n  - {cases: 'serve/*', metric: p99, max: 1s}\n")
    assert "no case that serve/* matches reports p99: they report time" in last(repo.perfci("run", *QUICK))
    project(repo, command)
    asked = ("-k", "adding", "-k", "serve/btch=8")  # one that is there does not hide one that is not
    assert repo.perfci("list", *asked).code == 0
    run = repo.perfci("run", *asked, *QUICK)
    assert (run.code, last(run)) == (2, "perfci: serve/btch=8: matches no case: did you mean 'serve/batch=8'?")


def test_a_limit_for_a_device_that_is_not_here_is_no_typo(repo: Repo) -> None:
    repo.policy("limits:\n  - {cases: adding, regression: 50%}\n  - {cases: big, regression: 2%}\n")
    other = adding().replace('devices=["cpu"]', 'devices=["cuda"]').replace("def adding", "def big")
    repo.write("kernels/adding.py", adding())
    repo.write("kernels/big.py", other)
    repo.commit()
    run = repo.perfci("list")
    assert run.code == 0, run.err
    assert "big\tcuda\tskipped: needs cuda" in run.out


@pytest.mark.slow
def test_a_limit_of_a_case_that_is_gone_is_missing_as_ever(repo: Repo) -> None:
    """And is told to be idle once merged. A limit that head adds for a new case is fine."""
    project(repo, "limits:\n  - {cases: adding, regression: 50%}\n")
    repo.git("mv", "kernels/adding.py", "kernels/summing.py")
    repo.write("kernels/summing.py", adding(name="summing"))
    changed(repo, "limits:\n  - {cases: [adding, summing], regression: 50%}\n")
    run = repo.perfci("compare", "--base", "HEAD^", *QUICK)
    assert run.code == 1
    assert run.classes() == {"adding": "missing", "summing": "added"}
    assert (
        "once this is merged, perfci.yaml:6: limits[0].cases: 'adding' matches no case: there are summing: fix or remove it"
        in run.report["notes"]
    )


@pytest.mark.slow
def test_heads_typo_is_heads_and_bases_is_bases(repo: Repo) -> None:
    good, bad = TIME, "limits:\n  - {cases: 'ading', regression: 50%}\n"
    project(repo, good)
    changed(repo, bad)
    run = repo.perfci("compare", "--base", "HEAD^", *QUICK)
    assert run.code == 2
    assert last(run).startswith("perfci.yaml:6: limits[0].cases: 'ading' matches no case: did you mean 'adding'?")
    # Base has it, and head too: the change did not bring it.
    wrong = repo.commit("nothing")
    run = repo.perfci("compare", "--base", "HEAD^", *QUICK)
    base = repo.git("rev-parse", "HEAD^")[:10]
    assert run.code == 2 and wrong
    assert last(run).startswith(f"perfci: {base}:perfci.yaml:6: limits[0].cases: 'ading' matches no case")
    assert "perfci.yaml of head has it too: fix it there" in last(run)
    assert not (repo.root / "perfci-out/results.json").exists()
    # Head fixes it: nothing is measured, and what is published knows why.
    changed(repo, good)
    run = repo.perfci("compare", "--base", "HEAD^")
    assert run.code == 2 and run.out == ""
    assert "this change fixes it: the label perf-regression-accepted accepts it" in last(run)
    assert run.results["error"]["kind"] == "policy"
    assert parse((repo.root / "perfci-out/results.json").read_bytes()).plan.declared.kernels == ["adding"]
    again = repo.perfci("report")
    assert again.code == 3 and "PASS" not in again.out and "'ading' matches no case" in again.out


def test_a_kernels_own_bound_without_a_unit_whichever_case_is_asked_for(repo: Repo) -> None:
    project(repo, TIME)
    own = adding().replace('["cpu"]', '["cuda"], limits=[{"metric": "sm_throughput", "min": 0.85}]')
    repo.write("kernels/other.py", own.replace("def adding", "def other"))
    run = repo.perfci("run", "-k", "adding", *QUICK)
    assert run.code == 2
    assert last(run).startswith("perfci: kernels/other.py:")
    assert "limits[0].min: 0.85 has no unit: write 85%" in last(run)


COUNTERS = "limits:\n  - {cases: '*', metric: dram_throughput, min: 80%}\n"


@pytest.mark.slow
@NO_GPU
def test_counters_of_a_case_on_the_cpu(repo: Repo) -> None:
    """Told by name; and where it is the case's only limit, the case is not answered."""
    project(repo, COUNTERS)
    told = "limits[0]: dram_throughput of adding is not judged here: profilers see nothing of it on the CPU"
    listed = repo.perfci("list")
    assert listed.code == 0
    assert told in listed.err and "adding\tcpu\tno limit that can be judged here" in listed.out
    assert told in json.loads(repo.perfci("list", "--json").out)["notes"]
    run = repo.perfci("run", *QUICK)
    (row,) = run.report["rows"]
    assert row["class"] == "invalid"
    assert row["reason"].startswith(
        "no limit on it can be judged here: limits[0] on dram_throughput: profilers see nothing of it on the CPU"
    )
    assert told in run.report["notes"]
    assert "PASS" not in run.out
    assert (run.report["verdict"], run.code) == ("undecided", 0)
    # From the file alone it is the same.
    again = repo.perfci("report", "--json")
    assert json.loads(again.out)["rows"] == run.report["rows"] and again.code == run.code
    tried = repo.perfci("report", "--policy", "perfci.yaml", "--json")
    assert [row["class"] for row in json.loads(tried.out)["rows"]] == ["invalid"]
    assert told in json.loads(tried.out)["notes"]
    # Beside a limit that is judged it is only told.
    repo.policy(COUNTERS + "  - {cases: '*', metric: time, max: 10s}\n")
    beside = json.loads(repo.perfci("report", "--policy", "perfci.yaml", "--json").out)
    assert beside["rows"] and "invalid" not in {row["class"] for row in beside["rows"]} and told in beside["notes"]


@NO_GPU
def test_a_case_that_is_gone_is_missing_though_its_limits_wait_for_another_machine(repo: Repo) -> None:
    """No machine would find it any more."""
    project(repo, COUNTERS + "  - {cases: '*', metric: time, max: 10s, devices: ['*H100*']}\n")
    repo.git("rm", "-q", "kernels/adding.py")
    repo.write("kernels/summing.py", adding(name="summing"))
    repo.commit("another one")
    run = repo.perfci("compare", "--base", "HEAD^", "-k", "adding", *QUICK)
    assert (run.code, run.classes()) == (1, {"adding": "missing"}), run.out + run.err


@pytest.mark.slow
def test_a_command_whose_device_head_edits_is_gone(repo: Repo) -> None:
    """As a kernel that leaves a device: base's case is missing, whatever head says of another."""
    command = "commands:\n  - {{name: app, run: 'sleep 0.01', device: {}}}\n"
    project(repo, command.format("cpu") + TIME)
    changed(repo, command.format("cuda") + TIME)
    run = repo.perfci("compare", "--base", "HEAD^", "-k", "app", *QUICK)
    assert run.code == 1
    (row,) = [row for row in run.report["rows"] if row["device"] == "cpu"]
    assert (row["class"], row["effect"]) == ("missing", "fail")
    assert "in base, not in head: head declares it with device: cuda" in row["reason"]
    assert "FAIL" in run.out and "PASS" not in run.out
    # The other way round it is a new case here, and base's belongs to another machine.
    other = repo.perfci("compare", "--base", "HEAD", "-k", "app", *QUICK)
    assert other.classes() == {"app": "skipped"}


def test_a_suite_without_torch_names_the_interpreter(repo: Repo) -> None:
    project(repo, TIME)
    repo.write("kernels/adding.py", "import torch\n" + dedent(adding()))
    run = repo.perfci("run", *QUICK)
    assert run.code == 2
    assert (
        f"kernels/adding.py: does not import: ModuleNotFoundError: No module named 'torch' (kernels/adding.py:1): {PLAIN_PYTHON} has no "
        "torch: install it there, or name another interpreter with --python" in last(run)
    )


@pytest.mark.slow
@NO_GPU
def test_the_triton_forms_of_the_suite_do_not_time_torch_on_the_cpu(repo: Repo) -> None:
    pytest.importorskip("torch")
    from tests.test_examples import ROOT

    shutil.copytree(ROOT / "kernels", repo.root / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    repo.write("perfci.yaml", f"version: 1\nsuite: [kernels/*.py]\npython: {sys.executable}\n")
    repo.commit()
    run = repo.perfci("list")
    assert run.code == 0, run.err
    triton = [line.split("\t")[:3] for line in run.out.splitlines() if "_triton/" in line]
    assert len(triton) == 7 and all(line[1:] == ["cuda", "skipped: needs cuda"] for line in triton), triton


def test_a_command_whose_crash_a_pipe_hides_is_told(repo: Repo) -> None:
    repo.policy(
        "commands:\n"
        "  - {name: piped, run: 'true 2>&1 | tee log'}\n"
        "  - {name: safe, run: \"bash -o pipefail -c 'true | cat'\"}\n"
        "  - {name: plain, run: \"true 'a|b' || true\"}\n"  # no pipe: one is quoted, and the other an `or`
        "limits: [{cases: '*', metric: time, max: 100s}]\n"
    )
    repo.commit()
    said = repo.perfci("list").err.replace("\n", " ")
    assert "command piped: a shell tells the exit code of a pipe's last program alone" in said
    assert "command safe" not in said and "command plain" not in said


@pytest.mark.parametrize("args", [("list",), ("compare", "--base", "HEAD", *QUICK)])
def test_a_command_with_the_name_of_a_kernel(repo: Repo, args: tuple[str, ...]) -> None:
    """Of either side, and whatever its cases are called: results could not tell which of both an id names."""
    project(repo, TIME)
    line = '{"case": "n=1", "metric": "time", "value": 0.01, "unit": "s"}'
    command = f"commands: [{{name: adding, run: 'echo ''{line}'' > $PERFCI_METRICS', reads: perfci, device: cpu}}]\n"
    changed(repo, TIME + command)
    if "HEAD" in args:
        (repo.root / "kernels" / "adding.py").unlink()  # base's kernel, and head's command
    run = repo.perfci(*args)
    assert run.code == 2, run.out + run.err
    assert last(run) == "perfci.yaml: commands: adding is a kernel's name, too: rename one of them"
    assert not (repo.root / "perfci-out/report.json").exists()


def test_a_case_that_may_be_gone_and_is_answers_nothing(repo: Repo) -> None:
    project(repo, "limits:\n  - {cases: adding, metric: time, regression: 50%, fail_on: broken}\n")
    repo.git("mv", "kernels/adding.py", "kernels/summing.py")
    repo.write("kernels/summing.py", adding(name="summing"))
    repo.commit("another one")
    run = repo.perfci("compare", "--base", "HEAD^", "-k", "adding", *QUICK)
    assert (run.code, run.report["verdict"]) == (0, "undecided"), run.out + run.err
    assert run.classes() == {"adding": "missing"}
    assert run.report["sentence"] == "Undecided: nothing was measured: `adding` is missing in head"
    assert run.report["advice"].startswith("Bring the case or metric back")
