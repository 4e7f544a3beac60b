"""`bench.versus` from the declaration to the verdict: an alternative is timed beside a case, in head's process."""

import math

import pytest

from .conftest import Repo, Run

KERNEL = """
    import perfci


    def spin(n, times=1):
        for _ in range(times):
            total = 0.0
            for i in range(n):
                total += i * 0.5
        return total


    def declare(bench, n, versus):
        bench.reference(lambda: 0.25 * n * (n - 1), rtol=1e-9, atol=0)
        if versus:
            bench.versus(*versus)
        return lambda: spin(n)
"""
CASES = """

    @perfci.kernel(devices=["cpu"])
    def ten_times(bench):
        return declare(bench, 400, ("tenfold", lambda: spin(400, 10)))


    @perfci.kernel(devices=["cpu"])
    def wrong(bench):
        return declare(bench, 400, ("nothing", lambda: 0.0))


    @perfci.kernel(devices=["cpu"])
    def raising(bench):
        return declare(bench, 400, ("broken", lambda: 1 / 0))


    @perfci.kernel(devices=["cpu"])
    def none(bench):
        return declare(bench, 400, None)
"""
TEN_TIMES = CASES.split("\n\n\n", maxsplit=2)[0]
LIMITS = """
    limits:
      - {cases: "*", metric: speedup, min: 1.10x, fail_on: broken}
      - {cases: ten_times, metric: speedup, min: 2x}
"""


def written(repo: Repo, limits: str = LIMITS, kernels: str = KERNEL + CASES) -> None:
    repo.policy(limits)
    repo.write("kernels/k.py", kernels)
    repo.commit()


def on_speedup(run: Run) -> dict[str, dict]:
    return {row["case"]: row for row in run.report["rows"] if row["metric"] == "speedup"}


@pytest.mark.slow
def test_an_alternative_is_timed_beside_head_and_told_in_every_report(repo: Repo) -> None:
    written(repo)
    run = repo.perfci("run")
    assert run.code == 0, run.out + run.err
    rows = on_speedup(run)
    assert {name: row["class"] for name, row in rows.items()} == {
        "ten_times": "unchanged", "wrong": "invalid", "raising": "invalid", "none": "invalid",
    }  # fmt: skip
    assert 3 < rows["ten_times"]["head"] < 30, "ten times the work, in the same process, on a busy machine"
    assert rows["ten_times"]["interval"]["low"] <= rows["ten_times"]["head"] <= rows["ten_times"]["interval"]["high"]
    assert "against tenfold is within the limit of 2.00x" in rows["ten_times"]["reason"]
    assert "nothing is no alternative: result is 0" in rows["wrong"]["reason"]
    assert "broken is no alternative: ZeroDivisionError" in rows["raising"]["reason"]
    assert "head declares no alternative: bench.versus" in rows["none"]["reason"]
    for name in ("report.md", "report.html", "report.csv"):
        text = (repo.root / "perfci-out" / name).read_text()
        assert "speedup" in text, name
        assert name == "report.csv" or "x tenfold" in text, name
    (case,) = [case for case in run.results["cases"] if case["id"] == "ten_times"]
    assert case["pairs"] and all("speedup" in pair["values"]["head"] for pair in case["pairs"])


@pytest.mark.slow
def test_one_that_is_too_slow_fails_and_one_that_was_so_already_warns(repo: Repo) -> None:
    four_times = KERNEL + TEN_TIMES.replace("spin(400, 10)", "spin(400, 4)")
    written(repo, "limits: [{cases: ten_times, metric: speedup, min: 2x}]\n", four_times)
    slower = four_times.replace("lambda: spin(n)", "lambda: spin(n, 8)")
    repo.write("kernels/k.py", slower)
    run = repo.perfci("compare", "--base", "HEAD")
    (row,) = on_speedup(run).values()
    assert (run.code, row["class"], row["effect"]) == (1, "violation", "fail"), run.out + run.err
    assert row["head"] < 2 < row["base"], "base's by its time beside head's"
    repo.commit("slower")
    repo.write("kernels/k.py", slower + "# the same\n")
    run = repo.perfci("compare", "--base", "HEAD")
    (row,) = on_speedup(run).values()
    assert row["class"] == "violation", run.out + run.err
    # Chance may have it lower still beyond the noise, which fails.
    lower = "lower still" in row["reason"]
    assert (run.code, row["effect"]) == ((1, "fail") if lower else (0, "warn")), run.out + run.err
    assert lower or "as it already was in base" in row["reason"]


@pytest.mark.slow
def test_another_alternative_than_bases_is_another_question(repo: Repo) -> None:
    cheap = TEN_TIMES.replace("spin(400, 10)", "spin(400)")
    renamed = cheap.replace("def ten_times", "def renamed")
    written(repo, "limits: [{cases: '*', metric: speedup, min: 1.10x}]\n", KERNEL + cheap + renamed)
    weaker = cheap.replace("spin(400)", "spin(401)")
    repo.write("kernels/k.py", KERNEL + weaker + renamed.replace('"tenfold"', '"elevenfold"'))
    run = repo.perfci("compare", "--base", "HEAD")
    rows = on_speedup(run)
    assert {(row["class"], row["effect"]) for row in rows.values()} == {("changed", "undecided")}, run.out + run.err
    assert "tenfold does something else in head than in base" in rows["ten_times"]["reason"]
    assert "tenfold in base, elevenfold in head" in rows["renamed"]["reason"]


def test_one_that_fails_while_it_is_timed_is_no_answer(repo: Repo) -> None:
    failing = TEN_TIMES.replace("lambda: spin(400, 10)", "Later()")
    later = """

    class Later:
        calls = 0

        def __call__(self):
            Later.calls += 1
            if Later.calls > 3:
                raise OSError("the fourth call")
            return spin(400)
"""
    written(repo, "limits: [{cases: ten_times, metric: speedup, min: 1.10x}]\n", KERNEL + later + failing)
    run = repo.perfci("run")
    (row,) = on_speedup(run).values()
    assert row["class"] == "invalid" and "tenfold failed: OSError: the fourth call" in row["reason"], run.out + run.err
    assert (row["effect"], run.code) == ("fail", 1), "head has no value, as where it is wrong"
    (case,) = run.results["cases"]
    assert all(math.isfinite(pair["values"]["head"]["time"]) for pair in case["pairs"]), "the case itself stands"
