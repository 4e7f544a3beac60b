"""`perfci bisect` on real histories, on the CPU: merges, commits that do not build, a case that comes and goes, a kill."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from .conftest import Repo, Run, adding, until

POLICY = """
    budget: 60s
    build: [sh build.sh]
    limits: [{cases: "*", metric: time, regression: 25%}]
"""
SPIN = 20_000
"""Work that a slower kernel has on top of 2 000 iterations: so much slower is beyond what a busy machine's drift does."""
FOUND = re.compile(r"^[0-9a-f]{10} '.*' \(t, \d{4}-\d\d-\d\d\) is the commit: time \+\d")


class Line:
    """A history under way: each commit has a file of its own, so that no two have the same files."""

    def __init__(self, repo: Repo) -> None:
        self.repo, self.number = repo, 0
        repo.policy(POLICY)
        repo.write("build.sh", "true\n")
        repo.write(".gitignore", "perfci-out/\n")
        repo.write("kernels/adding.py", adding())
        self.commits = {"first": self.commit("first")}

    def commit(self, message: str) -> str:
        self.number += 1
        self.repo.write(f"notes/{message.replace(' ', '-')}", str(self.number))
        return self.repo.commit(message)

    def plain(self, n: int) -> None:
        for _ in range(n):
            self.commit(f"plain {self.number}")

    def merge(self, branch: str) -> str:
        self.repo.git("merge", "-q", "--no-ff", "-m", f"merge {branch}", branch)
        return self.repo.git("rev-parse", "HEAD")


def bisected(repo: Repo, *args: str) -> tuple[Run, dict]:
    run = repo.perfci("bisect", *args, timeout=600)
    return run, json.loads((repo.root / "perfci-out" / "bisect" / "bisect.json").read_text())


def compared(journal: Path) -> list[dict]:
    """What has an answer; a line that is being written is left out."""
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    return [one["compared"] for one in map(json.loads, lines) if one["kind"] == "compared"]


def last(run: Run) -> str:
    return run.out.rstrip("\n").splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commit_is_found_past_merges_commits_that_do_not_build_and_a_case_that_goes_away(repo: Repo) -> None:
    line = Line(repo)
    line.plain(4)
    repo.git("checkout", "-q", "-b", "side")
    line.plain(3)
    repo.write("build.sh", "exit 3\n")
    line.commit("breaks the build")
    repo.write("build.sh", "true\n")
    line.commit("mends the build")
    repo.git("checkout", "-q", "main")
    line.plain(3)
    line.merge("side")
    repo.git("mv", "kernels/adding.py", "kernels/adding.txt")
    repo.write("kernels/other.py", adding(name="other"))
    line.commit("takes the case away")
    line.plain(1)
    repo.git("mv", "kernels/adding.txt", "kernels/adding.py")
    line.commit("brings it back")
    repo.git("checkout", "-q", "-b", "slow")
    line.plain(2)
    repo.write("kernels/adding.py", adding(spin=SPIN))
    culprit = line.commit("adds with care")
    line.plain(2)
    repo.git("checkout", "-q", "main")
    line.plain(4)
    line.merge("slow")
    line.plain(5)
    before = repo.git("status", "--porcelain", "--branch"), repo.git("for-each-ref")

    run, found = bisected(repo, line.commits["first"], "main", "-k", "adding")

    assert run.code == 0, run.out + run.err
    (one,) = found["ranges"]
    # On a busy machine the whole change and the commit's own may differ by more than their intervals tell.
    assert (one["ending"], one["named"]["commit"]) == ("found", culprit)
    assert one["candidates"] >= 30
    assert FOUND.match(last(run)) and "'adds with care'" in last(run)
    assert before == (repo.git("status", "--porcelain", "--branch"), repo.git("for-each-ref"))
    text = (repo.root / "perfci-out" / "bisect" / "bisect.md").read_text()
    assert "adds with care" in text.splitlines()[0]
    repo.git("bisect", "replay", "perfci-out/bisect/bisect.log")
    assert f"first bad commit: [{culprit}]" in repo.git("bisect", "log")


@pytest.mark.slow
def test_one_unchanged_range_ends_at_once(repo: Repo) -> None:
    line = Line(repo)
    line.plain(3)

    run, found = bisected(repo, "main~3", "main", "-k", "adding", "--json")

    assert run.code == 1, run.err
    assert json.loads(run.out) == found
    (one,) = found["ranges"]
    assert (one["ending"], one["steps"], one["named"]) == ("alike", [], None)
    assert one["sentence"].startswith("no commit is accused: time is alike in ")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_in_the_middle_it_goes_on(repo: Repo) -> None:
    line = Line(repo)
    line.plain(2)
    repo.write("kernels/adding.py", adding(spin=SPIN))
    culprit = line.commit("adds with care")
    line.plain(3)
    journal = repo.root / "perfci-out" / "bisect" / "journal.jsonl"
    process = repo.start("bisect", "main~6", "main", "-k", "adding", start_new_session=True)
    until(process, lambda: len(compared(journal)) >= 2, seconds=300)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = compared(journal)

    run, found = bisected(repo, "main~6", "main", "-k", "adding")

    assert run.code == 0, run.out + run.err
    assert f"going on behind {len(kept)} comparisons (--restart begins anew)" in run.err
    (one,) = found["ranges"]
    assert one["named"]["commit"] == culprit
    assert [one["whole"], *one["steps"]][:2] == kept[:2]

    again = repo.perfci("bisect", "main~6", "main", "-k", "adding", "--budget", "1s", timeout=600)
    assert "going on" not in again.err, "what has ended begins anew"


@pytest.mark.slow
def test_faster_is_found_too_and_its_parent_is_held_against_it(repo: Repo) -> None:
    line = Line(repo)
    repo.write("kernels/adding.py", adding(spin=SPIN))
    line.commit("slow")
    repo.write("kernels/adding.py", adding())
    culprit = line.commit("quick again")
    line.commit("plain")

    run, found = bisected(repo, "main~2", "main", "-k", "adding")

    assert run.code == 0, run.out + run.err
    assert found["ranges"][0]["named"]["commit"] == culprit
    assert re.search(r"is the commit: time -\d", last(run))


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("nowhere", "main", "-k", "adding"), 2, "'nowhere': no such branch, tag or commit here"),
        (("main", "main", "-k", "adding"), 2, "main and main are the same commit: name two"),
        (("main", "main~1", "-k", "adding"), 2, "main~1 is an ancestor of main: name the older one first"),
        (("main~1", "main", "-k", "ading"), 2, "ading: matches no case: did you mean 'adding'?"),
        (("main~1", "main", "-k", "*"), 2, "one case is asked for, and there are 2: name one of adding"),
        (("main~1", "main", "-k", "adding", "--metric", "registers"), 2, "registers: is not decided by pairs"),
        (("main~1", "main", "-k", "adding", "--limit", "2"), 2, "--limit"),
    ],
)
def test_mistakes_are_one_line(repo: Repo, args: tuple[str, ...], code: int, said: str) -> None:
    line = Line(repo)
    repo.write("kernels/other.py", adding(name="other"))
    line.commit("other")
    line.commit("plain")
    run = repo.perfci("bisect", *args)
    assert (run.code, said in run.err) == (code, True), run.err
    assert run.err.rstrip().splitlines()[-1].startswith("perfci: ") and not run.out


def test_an_end_without_the_case_cannot_be_measured(repo: Repo) -> None:
    line = Line(repo)
    repo.write("kernels/later.py", adding(name="later"))
    line.commit("later")
    run, found = bisected(repo, "main~1", "main", "-k", "later")
    assert run.code == 3, run.out + run.err
    assert found["ranges"][0]["ending"] == "unmeasured"
    assert last(run).startswith("no commit is accused: whether time changes from "), last(run)


@pytest.mark.slow
def test_commits_from_before_the_suite_are_asked_with_that_of_another(repo: Repo) -> None:
    repo.write(".gitignore", "perfci-out/\n__pycache__/\n")
    body, _, kernel = adding().partition("@perfci.kernel")
    repo.write("work.py", body.replace("import perfci\n", ""))
    repo.write("kernels/old.py", "raise RuntimeError('of another time')\n")
    repo.commit("before perfci")
    repo.write(
        "work.py", body.replace("import perfci\n", "").replace("range(n)", "range(20 * n)").replace("0.5", "0.25")
    )
    repo.write("notes", "1")
    repo.commit("slower, and wrong")
    culprit = repo.git("rev-parse", "HEAD")
    repo.write("notes", "2")
    repo.commit("plain")
    repo.git("rm", "-q", "kernels/old.py")
    repo.policy(POLICY.replace("build: [sh build.sh]", "path: ['.']"))
    unchecked = kernel.replace("bench.reference(lambda: 0.25 * 2000 * (2000 - 1), rtol=1e-9, atol=0)", "pass")
    repo.write("kernels/adding.py", "import perfci\nfrom work import work\n\n@perfci.kernel" + unchecked)
    repo.commit("perfci comes")

    run, found = bisected(repo, "main~3", "main", "-k", "adding", "--suite", "main")

    assert run.code == 0, run.out + run.err
    assert found["ranges"][0]["named"]["commit"] == culprit
    without = repo.perfci("bisect", "main~3", "main", "-k", "adding", "--restart")
    assert without.code == 3 and "does not declare it" in without.out, without.out + without.err


def test_of_another_line_the_commit_where_they_part_is_taken(repo: Repo) -> None:
    line = Line(repo)
    parted = line.commit("parted")
    repo.git("checkout", "-q", "-b", "release")
    line.commit("release")
    repo.git("checkout", "-q", "main")
    line.commit("plain")
    repo.git("revert", "--no-edit", "HEAD")  # the same files need no measurement
    run, found = bisected(repo, "release", "main", "-k", "adding")
    assert found["ranges"][0]["good"]["commit"] == parted
    assert found["seconds"] == 0 and not (repo.root / "perfci-out" / "bisect" / "comparisons").exists()
    assert last(run).endswith(f"the files are those of {parted[:10]}")
    assert f"release is on another line: {parted[:10]}, where it parted, is taken for it" in run.err
