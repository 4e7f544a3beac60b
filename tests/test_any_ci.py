"""Files for GitLab, Jenkins, Buildkite and cron: what they type is typed, in a shallow clone as their checkouts are."""

import http.server
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from urllib.parse import parse_qs
from xml.etree import ElementTree as ET

import pytest
import tree_sitter
import tree_sitter_groovy
import yaml

from tests.e2e.conftest import Repo, adding
from tests.test_examples import reader

ROOT = Path(__file__).parents[1]
CI = ROOT / "examples" / "ci"
GITLAB = yaml.safe_load((CI / ".gitlab-ci.yml").read_text())


@pytest.fixture
def origin(tmp_path: Path) -> Repo:
    """`main`, and `change`, which is far slower."""
    repo = reader(tmp_path, "origin")
    repo.policy("limits: [{cases: '*', metric: time, regression: 20%}]\n")
    repo.write("kernels/adding.py", adding())
    for name in ("perf.sh", "nightly.sh"):
        shutil.copy(CI / name, repo.root)
    repo.commit()
    repo.git("checkout", "-q", "-b", "change")
    repo.write("kernels/adding.py", adding(spin=20_000))
    repo.commit("slower")
    repo.git("checkout", "-q", "main")
    repo.write("README", "main goes on")
    repo.commit("more")
    return repo


def clone(origin: Repo, branch: str) -> Path:
    where = origin.root.parent / f"clone-{branch}"
    origin.git("clone", "-q", "--depth", "1", "--branch", branch, origin.root.as_uri(), str(where))
    return where


def typed(origin: Repo, where: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-euc", script],
        cwd=where, env=origin.env | env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def failures(where: Path) -> dict[str, str]:
    """Names of tests in the JUnit file → the tag that says how each ended."""
    tests = ET.parse(where / "perfci-out/junit.xml").getroot().iter("testcase")
    ended = ("failure", "error", "skipped")
    return {one.get("name", ""): next((tag for tag in ended if one.find(tag) is not None), "passed") for one in tests}


@pytest.mark.slow
def test_a_change_against_where_it_left_its_target_in_a_shallow_clone(origin: Repo) -> None:
    """By GitLab's line, and then Buildkite's with the agent replaced by a program that notes what it is told."""
    where = clone(origin, "change")
    stale = where / "perfci-out"
    stale.mkdir()
    (stale / "report.md").write_text("of an earlier job")
    [line] = GITLAB["perf"]["script"]
    done = typed(origin, where, line, CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failure" in failures(where).values()
    base = origin.git("merge-base", "main", "change")
    assert f"base {base[:7]}" in done.stdout
    for path in [GITLAB["perf"]["artifacts"]["reports"]["junit"], *GITLAB["perf"]["artifacts"]["paths"]]:
        assert (where / path).exists()

    agent = where.parent / "agent"
    agent.mkdir()
    (agent / "buildkite-agent").write_text('#!/bin/sh\necho "$*" > "$TOLD.words"\ncat > "$TOLD"\n')
    (agent / "buildkite-agent").chmod(0o755)
    [step] = yaml.safe_load((CI / "buildkite.yml").read_text())["steps"]
    told = where.parent / "told"
    path = f"{agent}{os.pathsep}{origin.env['PATH']}"
    command = step["command"].replace("$$", "$")
    done = typed(origin, where, command, BUILDKITE_PULL_REQUEST_BASE_BRANCH="main", PATH=path, TOLD=str(told))
    assert done.returncode == 1, done.stdout + done.stderr
    assert told.read_text() == (where / "perfci-out/report.md").read_text()
    assert (told.parent / "told.words").read_text() == "annotate --context perf --style error\n"


def groovy(text: str) -> tuple[list[str], bool]:
    """Names of the calls and blocks of a Groovy source as they stand in it, and whether all of it is Groovy."""
    tree = tree_sitter.Parser(tree_sitter.Language(tree_sitter_groovy.language())).parse(text.encode()).root_node
    names, todo = [], [tree]
    while todo:
        node = todo.pop()
        if node.type == "identifier":
            names.append(node.text.decode())
        todo += reversed(node.children)
    return names, not tree.has_error


def test_the_jenkinsfile_is_groovy() -> None:
    """Jenkins's own check of a declarative pipeline needs a Jenkins; the names are those of its handbook."""
    text = (CI / "Jenkinsfile").read_text()
    names, whole = groovy(text)
    assert whole
    blocks = ["pipeline", "agent", "options", "stages", "stage", "steps", "sh", "post", "always", "junit"]
    assert [name for name in names if name in blocks] == blocks
    for found, broken in [("time: 1, ", "time: 1 "), ("always {", "always"), ("'gpu' }", "'gpu'"), ("sh '", "sh ")]:
        assert text.count(found) == 1 and not groovy(text.replace(found, broken))[1]


@pytest.mark.slow
def test_a_push_is_compared_with_the_commit_before(origin: Repo) -> None:
    """By Jenkins's line, whose variable is not set then."""
    where = clone(origin, "main")
    [line] = re.findall(r"sh '(.*)'", (CI / "Jenkinsfile").read_text())
    done = typed(origin, where, line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(failures(where).values()) <= {"passed", "skipped"}, "undecided where others need the cores"
    assert f"base {origin.git('rev-parse', 'main~1')[:7]}" in done.stdout


def test_a_target_that_cannot_be_fetched_is_no_pass(origin: Repo) -> None:
    where = clone(origin, "change")
    done = typed(origin, where, "./perf.sh gone")
    assert done.returncode == 3
    assert "perf.sh: gone cannot be fetched from origin" in done.stderr
    assert not (where / "perfci-out").exists()


@pytest.mark.slow
def test_the_night_says_something_only_where_there_is_something_to_say(origin: Repo) -> None:
    where = clone(origin, "main")
    origin.git("-C", str(where), "fetch", "-q", "--unshallow")
    results = origin.root.parent / "results"
    night = f"./nightly.sh '{where}' main '{results}'"
    first = typed(origin, origin.root, night)
    assert (first.returncode, first.stdout) == (0, ""), first.stdout + first.stderr
    assert len(list(results.glob("*/report.md"))) == 1
    again = typed(origin, origin.root, night)
    assert (again.returncode, again.stdout) == (0, "")
    assert len(list(results.glob("*/report.md"))) == 1  # nothing was pushed

    origin.git("merge", "-q", "--no-edit", "change")
    slower = typed(origin, origin.root, night)
    assert slower.returncode == 1, slower.stdout + slower.stderr
    assert slower.stdout.startswith("perfci ended with 1: ")
    assert "`adding`" in slower.stdout

    origin.write("perfci.yaml", "version: 9\n")
    origin.commit("broken")
    broken = typed(origin, origin.root, night)
    assert broken.returncode == 2 and "version" in broken.stdout
    judged = origin.git("-C", str(where), "rev-parse", "refs/perfci/nightly/main")
    assert judged == origin.git("rev-parse", "main~1"), "the next night compares with the last that was judged"


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_note_of_gitlab_is_the_report(origin: Repo, tmp_path: Path) -> None:
    told: list[tuple[str, str | None, str]] = []

    class Api(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            told.append((self.path, self.headers["PRIVATE-TOKEN"], parse_qs(body)["body"][0]))
            self.send_response(201 if self.headers["PRIVATE-TOKEN"] == "token" else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    report = "### ✅ No regression & nothing else = fine\n\n| a | b |\n"
    (tmp_path / "perfci-out").mkdir()
    (tmp_path / "perfci-out/report.md").write_text(report)
    script = "\n".join(GITLAB["perf-comment"]["script"])
    with http.server.HTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"CI_API_V4_URL": f"http://127.0.0.1:{server.server_port}/api/v4", "NO_PROXY": "127.0.0.1"}
        env |= {"CI_PROJECT_ID": "7", "CI_MERGE_REQUEST_IID": "12"}
        done = typed(origin, tmp_path, script, PERF_COMMENT_TOKEN="token", **env)
        refused = typed(origin, tmp_path, script, PERF_COMMENT_TOKEN="wrong", **env)
        (tmp_path / "perfci-out/report.md").unlink()
        nothing = typed(origin, tmp_path, script, PERF_COMMENT_TOKEN="token", **env)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert told[0] == ("/api/v4/projects/7/merge_requests/12/notes", "token", report)
    assert refused.returncode != 0
    assert nothing.returncode != 0 and len(told) == 2


def test_the_job_that_measures_gets_no_token() -> None:
    assert "TOKEN" not in str(GITLAB["perf"])
    assert GITLAB["perf-comment"]["variables"]["GIT_STRATEGY"] == "none"
    assert "perf.sh" not in str(GITLAB["perf-comment"]["script"])
