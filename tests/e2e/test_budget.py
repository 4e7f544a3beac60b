"""The budget holds all that follows the builds; one that cannot show a regression is said early, and never passes."""

import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Repo, adding

from .green.test_never_green import BEFORE, never_green

SLEEPS = """
    import time
    import perfci

    @perfci.kernel(devices=["cpu"])
    def sleeps(bench):
        def work():
            time.sleep({seconds})
            return 7
        bench.reference(lambda: (time.sleep({check}), 7)[1])
        return work
"""


def sleeping(repo: Repo, seconds: float, check: float = 0.0) -> None:
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write("kernels/sleeps.py", SLEEPS.format(seconds=seconds, check=check))
    repo.commit()


@pytest.mark.slow
def test_a_budget_that_cannot_show_a_regression_is_refused_before_the_first_pair_with_one_that_does(repo: Repo) -> None:
    sleeping(repo, seconds=0.25)
    run = repo.perfci("compare", "--base", "HEAD", "--budget", "20s")
    assert (run.code, run.report["verdict"]) == (3, "error"), run.out + run.err
    assert run.results["cases"][0]["pairs"] == [] and run.results["cases"][0]["stopped"] == "budget"
    said = "The budget of 20s is too short to show a regression of `sleeps`: measuring ended early"
    assert run.report["sentence"] == said
    assert "the budget of 20s is too short to show a regression: 9 pairs of each case take longer" in run.err
    never_green(run)
    found = re.search(r"--budget (\w+),", run.report["advice"])
    assert found, run.report["advice"]
    again = repo.perfci("compare", "--base", "HEAD", "--budget", found[1])
    assert (again.code, again.report["verdict"]) == (0, "pass"), again.out + again.err


@pytest.mark.slow
def test_what_is_too_dear_for_the_budget_is_undecided_beside_what_is_not(repo: Repo) -> None:
    """The cheap case is decided, and the budget is not waited for."""
    sleeping(repo, seconds=1.0)
    repo.write("kernels/adding.py", adding())
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--measure-all", "--budget", "90s")
    assert (run.code, run.report["verdict"]) == (0, "undecided"), run.out + run.err
    assert run.classes() == {"adding": "unchanged", "sleeps": "invalid"}
    reason = run.reasons()["sleeps"]
    assert reason.startswith("no finished pair: the budget is too short for it; a budget of "), reason
    found = re.search(r"a budget of (\d+)m would do", reason)
    assert found and int(found[1]) >= 4, reason
    assert f"--budget {found[1]}m" in run.report["advice"]
    assert f"the budget of 90s is too short for sleeps; a budget of {found[1]}m would do" in run.err
    assert run.results["budget_needed"] == 0
    never_green(run)
    strict = repo.perfci("report", "perfci-out", "--strict")
    assert strict.code == 1 and "FAIL" in strict.out, strict.out + strict.err


@pytest.mark.slow
def test_what_only_the_first_pair_shows_is_refused_after_it(repo: Repo, tmp_path: Path) -> None:
    """Samples are short, and from the first pair on each process imports for eight seconds."""
    sleeping(repo, seconds=0.0001)
    starts = tmp_path / "starts"
    suite = (repo.root / "kernels" / "sleeps.py").read_text()
    count = f"with open({str(starts)!r}, 'a') as file:\n    file.write('.')\n"
    wait = f"if os.path.getsize({str(starts)!r}) > {2 * BEFORE}:\n    time.sleep(8)\n"
    (repo.root / "kernels" / "sleeps.py").write_text(f"import os, time\n{count}{wait}{suite}")
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--budget", "40s")
    assert (run.code, run.report["verdict"]) == (3, "error"), run.out + run.err
    assert len(run.results["cases"][0]["pairs"]) == 1
    assert "is too short to show a regression" in run.report["sentence"]
    never_green(run)


@pytest.mark.slow
def test_checks_count_and_a_case_that_they_do_not_reach_is_not_timed(repo: Repo) -> None:
    """The check of base would outlast this test: it is waited for until the budget ends, and a fifth more."""
    sleeping(repo, seconds=0.0001, check=600)
    (repo.root / "perfci.yaml").write_text((repo.root / "perfci.yaml").read_text() + "timeout: 15m\n")
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--budget", "3s")
    assert (run.code, run.report["verdict"]) == (3, "error"), run.out + run.err
    assert run.report["sentence"].startswith("The budget of 3s ended before the first 8 pairs of `sleeps`")
    assert "Give a much larger budget" in run.report["advice"]
    case = run.results["cases"][0]
    assert {side["reason"]["text"] for side in case["sides"].values()} == {"the budget ended before it was checked"}
    never_green(run)


BUILT = """
    import os, subprocess
    import perfci

    @perfci.kernel(devices=["cpu"])
    def built(bench):
        made = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "made")
        if not os.path.exists(made):
            subprocess.run([{program!r}], check=True)
            os.makedirs(os.path.dirname(made), exist_ok=True)
            open(made, "w").close()
        return lambda: sum(range(2_000))
"""


@pytest.mark.parametrize("program", ["ninja", "sleeper"])
@pytest.mark.slow
def test_a_case_may_compile_for_longer_than_a_step_may_take(repo: Repo, tmp_path: Path, program: str) -> None:
    path = tmp_path / program
    path.write_text("#!/bin/sh\nfor _ in 1 2 3 4 5 6 7; do sleep 1; done\n")
    path.chmod(0o755)
    repo.policy("timeout: 3s\nlimits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write("kernels/built.py", BUILT.format(program=str(path)))
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--measure-all", "--budget", "60s")
    if program == "ninja":
        assert run.classes() == {"built": "unchanged"}, run.out + run.err
        assert run.err.count("building what cases compile") == 1
        assert run.code == 0
    else:
        assert "no answer within 3 s" in run.reasons()["built"]
        assert run.code == 3
