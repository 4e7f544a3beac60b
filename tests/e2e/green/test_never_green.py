"""What has no answer is never shown as passed: exit code and words of whole runs, in everything that is written."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.e2e.conftest import Repo, Run, adding

LIMITS = "limits: [{cases: '*', metric: time, regression: 10%}]\n"
ERRATIC = """
    import os
    import perfci

    SPIN = 12_000
    if "/head/" in os.getcwd():  # another in each process, as a tuner may choose
        with open(FILE, "a") as starts:
            starts.write(".")
        SPIN = [4_000, 36_000][os.path.getsize(FILE) % 2]

    @perfci.kernel(devices=["cpu"])
    def erratic(bench):
        def work():
            total = 0
            for i in range(SPIN):
                total += i
            return 7
        bench.reference(lambda: 7)
        return work
"""
SLEEPS = """
import os, time
with open({file!r}, "a") as starts:
    starts.write(".")
if os.path.getsize({file!r}) == {at}:
    time.sleep({seconds})
"""
"""At the import in one process of head, so that the budget ends after a known number of pairs on any machine."""
BEFORE = 2
"""Processes of head before the first pair: one finds the cases, one checks them."""


def never_green(run: Run) -> None:
    """Assert that nothing that people or tools read of the run says that it passed."""
    for text in (run.out, run.err, *((run.folder / "perfci-out" / name).read_text() for name in ("report.md",))):
        assert "PASS" not in text and "Passed" not in text and "✅" not in text, text
    page = (run.folder / "perfci-out" / "report.html").read_text()
    assert '<section class="verdict pass' not in page and "✅" not in page
    verdict = ET.parse(run.folder / "perfci-out" / "junit.xml").find(".//testcase[@name='verdict']")
    assert verdict is not None
    assert [child.tag for child in verdict] in (["skipped"], ["failure"], ["error"], ["system-out"])
    if run.report["verdict"] == "undecided":
        assert "UNDECIDED" in run.out
        assert [child.tag for child in verdict] == ["skipped"] and "docs/undecided.md" in run.out


@pytest.mark.slow
def test_every_case_inconclusive(repo: Repo, tmp_path: Path) -> None:
    repo.policy(LIMITS)
    repo.write("kernels/erratic.py", ERRATIC.replace("FILE", repr(str(tmp_path / "starts"))))
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--quick", "--budget", "5m")
    assert (run.code, run.report["verdict"]) == (0, "undecided"), run.out + run.err
    assert run.classes() == {"erratic": "inconclusive"}
    assert "Undecided: `erratic` is inconclusive" in run.report["sentence"]
    never_green(run)
    again = repo.perfci("report", "perfci-out", "--strict")
    assert again.code == 1 and "FAIL" in again.out, again.out + again.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "budget", "code", "words"), [(8, 35, 0, "UNDECIDED"), (9, 35, 1, "FAIL"), (5, 15, 3, "ERROR")]
)
def test_far_slower_when_the_budget_ends(
    repo: Repo, tmp_path: Path, pairs: int, budget: int, code: int, words: str
) -> None:
    """Proved or not, or not even measured: it never passes, and says what was seen."""
    repo.adds(LIMITS)
    sleeps = SLEEPS.format(file=str(tmp_path / "starts"), at=BEFORE + pairs + 1, seconds=budget + 1)  # of the next pair
    (repo.root / "kernels/adding.py").write_text(sleeps + adding(spin=20_000))
    run = repo.perfci("compare", "--base", "HEAD", "--budget", f"{budget}s")
    assert (run.code, len(run.results["cases"][0]["pairs"])) == (code, pairs), run.out + run.err
    assert words in run.out
    never_green(run)
    if code == 0:
        assert "seems" in run.report["sentence"] and "which 8 pairs do not prove" in run.report["sentence"]
        assert "all of it beyond the limit of 10 %" in run.reasons()["adding"]
        assert "the budget ended" in run.reasons()["adding"]
    elif code == 1:
        assert run.classes() == {"adding": "regression"}
    else:
        assert run.report["sentence"].startswith("The budget of 15s ended before the first 8 pairs of `adding`")
        assert "--budget " in run.report["advice"] and "would do" in run.report["advice"]


@pytest.mark.slow
def test_declared_work_that_differs_hides_no_slow_down(repo: Repo) -> None:
    repo.policy(LIMITS)
    kernel = adding().replace("    bench.reference", "    bench.work(read={read})\n    bench.reference")
    repo.write("kernels/adding.py", kernel.replace("{read}", "4096"))
    repo.commit()
    slower = adding(spin=20_000).replace("    bench.reference", "    bench.work(read=4100)\n    bench.reference")
    repo.write("kernels/adding.py", slower)
    run = repo.perfci("compare", "--base", "HEAD", "--quick", "--budget", "5m")
    assert run.code == 1, run.out + run.err
    assert [(row["class"], row["effect"]) for row in run.report["rows"]] == [
        ("regression", "fail"),
        ("changed", "warn"),
    ]
    assert "declared work read is 4096.0 in base, 4100.0 in head" in run.out


def test_nothing_but_skipped_cases(repo: Repo) -> None:
    repo.policy(LIMITS)
    repo.write("kernels/adding.py", adding().replace('devices=["cpu"]', 'devices=["cuda"]'))
    repo.commit()
    for arguments in (("compare", "--base", "HEAD"), ("run",)):
        run = repo.perfci(*arguments)
        assert (run.code, run.report["verdict"]) == (0, "undecided"), run.out + run.err
        assert "UNDECIDED: nothing was measured: adding is skipped: needs cuda" in run.out
        never_green(run)


def test_fail_on_undecided_is_bases_to_say(repo: Repo) -> None:
    repo.policy(f"{LIMITS}fail_on: [broken, missing, undecided]\n")
    repo.write("kernels/adding.py", adding().replace('devices=["cpu"]', 'devices=["cuda"]'))
    repo.commit()
    repo.policy(LIMITS)
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    assert "has no answer fails" in run.out
    never_green(run)
