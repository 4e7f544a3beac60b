"""`perfci ci` as the action calls it: real checkouts of real merges, the real command line, a tiny suite on the CPU."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

import perfci
from perfci.cli.ci import _request, _words
from perfci.github.checkout import BaseOfHead
from perfci.github.event import context
from perfci.github.settings import Settings
from perfci.measure.shards.document import read_plan
from perfci.sources.git import NamedCommit
from tests.e2e.conftest import SYSTEM_PYTHON, Repo, adding, as_root
from tests.e2e.warm import Warm
from tests.github.loopback.scene import beside, environment, proposed
from tests.github.loopback.server import REPOSITORY, Pull
from tests.github.loopback.suites import AT_MOST, LIMIT, applications, hostile, took
from tests.sources.repo import git

CANARY = "canary-4711"
CANARIES = {
    "GITHUB_TOKEN": CANARY,
    "ACTIONS_RUNTIME_TOKEN": CANARY,
    "ACTIONS_ID_TOKEN_REQUEST_URL": CANARY,
    "HF_TOKEN": CANARY,
    "AWS_SECRET_ACCESS_KEY": CANARY,
}
GITHUB_MD = Path(__file__).parents[2] / "docs" / "github.md"


@dataclass
class Job:
    """One job: its checkout, what it printed, its outputs, its summary."""

    code: int
    log: str
    outputs: dict[str, str]
    summary: str
    checkout: Path

    @property
    def report(self) -> dict:
        return json.loads((self.checkout / "perfci-out" / "report.json").read_text())

    @property
    def annotations(self) -> list[str]:
        return [line for line in self.log.splitlines() if re.match(r"::(error|warning)\b", line)]


class Hub:
    """The repository on the server, and the runner that serves it."""

    def __init__(self, tmp_path: Path, warm: Warm) -> None:
        self.tmp_path = tmp_path
        self.warm = warm
        self.runner = tmp_path / "runner"
        (self.runner / "tmp").mkdir(parents=True)
        env = {**os.environ, "TMPDIR": str(self.runner / "tmp"), "COLUMNS": "160", "NO_COLOR": "1"}
        env = {name: value for name, value in env.items() if not name.startswith("GITHUB_")}
        self.repo = Repo(tmp_path / "hub", env)

    def main(self, policy: str, kernel: str = "") -> str:
        """What main has from now on, with what else stands in the working tree; its commit."""
        self.repo.policy(policy)
        self.repo.write("kernels/adding.py", kernel)
        return self.repo.commit()

    def pull_request(self, branch: str = "change") -> dict:
        """The payload for what stands in the working tree as a pull request to main, and GitHub's merge of it."""
        base = self.repo.git("rev-parse", "main")
        self.repo.git("checkout", "-q", "-b", branch)
        return self.proposed(base, self.repo.commit(), branch)

    def proposed(self, base: str, head: str, branch: str = "change", message: str = "Merge") -> dict:
        tree = self.repo.git("merge-tree", "--write-tree", base, head)
        self.merge = self.repo.git("commit-tree", tree, "-p", base, "-p", head, "-m", message)
        self.repo.git("update-ref", "refs/pull/7/merge", self.merge)
        return proposed(Pull(7, head, head_ref=branch), base)

    def checkout(self, sha: str, depth: int = 2) -> Path:
        folder = self.tmp_path / "work" / "r"
        folder.mkdir(parents=True)
        git(folder, "init", "-q")
        git(folder, "remote", "add", "origin", f"file://{self.repo.root}")
        git(folder, "fetch", "-q", f"--depth={depth}", "origin", sha)
        git(folder, "checkout", "-q", "--detach", sha)
        return folder

    def job(
        self, event: str, payload: dict, sha: str, checkout: Path, env: dict[str, str] | None = None,
        command: Sequence[str] = (), **inputs: str,
    ) -> Job:  # fmt: skip
        """Run one step, or a `command` of an interpreter's own in its place, as the runner does."""
        names = ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV", "GITHUB_PATH")
        files = {name: self.runner / name for name in names}
        for path in files.values():
            path.write_text("")
        (self.runner / "event.json").write_text(json.dumps(payload))
        ref = f"refs/pull/{payload['pull_request']['number']}/merge" if "pull_request" in payload else "refs/heads/main"
        runner = {
            "GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_SHA": sha, "GITHUB_REF": ref, "GITHUB_RUN_ID": "99",
            "GITHUB_RUN_ATTEMPT": "2", "GITHUB_JOB": "measure", "GITHUB_EVENT_NAME": event, "PERFCI_MATRIX": '{"gpu": "h100"}',
            "GITHUB_EVENT_PATH": str(self.runner / "event.json"), **{name: str(path) for name, path in files.items()},
        }  # fmt: skip
        asked = {f"PERFCI_INPUT_{name.upper()}": value for name, value in inputs.items()}
        whole = self.repo.env | runner | asked | CANARIES | (env or {})
        if command:
            done = subprocess.run(
                [sys.executable, "-I", *command], cwd=checkout, env=whole,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200, check=False,
            )  # fmt: skip
            code, log = done.returncode, done.stdout
        else:
            code, log, _ = self.warm.run(("ci",), checkout, whole, 200, merged=True, isolated=True)
            assert code is not None, log
        output, summary, *others = (path.read_text() for path in files.values())
        found = re.findall(r"^([a-z-]+)<<(\S+)\n(.*?)\n\2$", output, re.MULTILINE | re.DOTALL)
        assert others == ["", ""] and CANARY not in log
        return Job(code, log, {name: value for name, _, value in found}, summary, checkout)


@pytest.fixture
def hub(tmp_path: Path, warm: Warm) -> Hub:
    return Hub(tmp_path, warm)


SPY = """
    import os, time
    def spy():
        seen, pid = [repr(dict(os.environ))], os.getpid()
        while pid > 1:
            try:
                seen.append(open(f"/proc/{pid}/environ", errors="replace").read())
                pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
            except OSError:
                break
        with open(FILE, "a") as file:
            file.write(f"code {time.time()}\\n" + "\\n".join(seen) + "\\n")
    spy()
"""


@pytest.mark.slow
def test_an_unchanged_pull_request_passes_and_its_code_sees_no_secret(hub: Hub) -> None:
    """From a branch with a hostile name; neither builds nor cases see a secret, nor do their ancestors hold one, and
    no git runs once they have begun."""
    spied = hub.tmp_path / "spied"
    spy = dedent(SPY).replace("FILE", repr(str(spied)))
    passed = "pass_env: [GITHUB_TOKEN, HF_TOKEN, GITHUB_ENV, HARMLESS]\nbuild: [python3 spy.py]\n"
    hub.repo.write("spy.py", spy)
    hub.main(LIMIT.replace("20%", "50%") + passed, spy + adding())
    hub.repo.write("kernels/adding.py", spy + adding() + "# changed\n")
    payload = hub.pull_request("$(id)")
    shims = hub.tmp_path / "shims"
    shims.mkdir()
    ran = hub.tmp_path / "git-ran"
    real = subprocess.check_output(["which", "git"], text=True).strip()
    (shims / "git").write_text(f'#!/bin/sh\ndate +%s.%N >>{ran}\nexec {real} "$@"\n')
    (shims / "git").chmod(0o755)
    path = {"PATH": f"{shims}:{os.environ['PATH']}", "HARMLESS": "passes"}
    command = ("-m", "perfci", "ci")  # a process whose ancestors are none of these tests'
    job = hub.job("pull_request", payload, hub.merge, hub.checkout(hub.merge), path, command)
    assert job.code == 0, job.log
    assert job.outputs == {
        "verdict": "pass", "regressions": "0", "exit-code": "0", "artifact-name": "perfci--measure--0-h100--2",
        "report-path": str(job.checkout / "perfci-out"),
    }  # fmt: skip
    assert job.report["sides"]["base"]["commit"] == payload["pull_request"]["base"]["sha"]
    assert job.report["sides"]["head"]["commit"] == hub.merge
    base = payload["pull_request"]["base"]["sha"]
    assert job.report["command"][:4] == ["perfci", "compare", base, "--committed"]
    assert job.summary
    assert job.annotations == []
    seen = spied.read_text()
    assert CANARY not in seen
    assert "'HARMLESS': 'passes'" in seen
    assert "'GITHUB_ENV'" not in seen
    assert "GITHUB_RUN_ID=99" in seen  # the run's own environment was read
    code = min(float(line.split()[1]) for line in seen.splitlines() if line.startswith("code "))
    calls = [float(line) for line in ran.read_text().splitlines()]
    assert calls
    assert max(calls) < code < time.time()


@pytest.mark.slow
def test_a_regression_fails_by_bases_limit_and_is_annotated(hub: Hub) -> None:
    """The pull request loosens the limit and prints workflow commands: neither helps it."""
    hostile(hub.repo, LIMIT)
    hub.repo.commit()
    hostile(hub.repo, LIMIT.replace("20%", "900%"), spins=20_000)
    job = hub.job("pull_request", hub.pull_request(), hub.merge, hub.checkout(hub.merge, depth=1))
    assert job.code == 1, job.log
    assert (job.outputs["verdict"], job.outputs["regressions"], job.outputs["exit-code"]) == ("fail", "2", "1")
    assert job.report["policy_from"] == "base"
    lines = job.log.splitlines()
    failed, annotation = job.annotations
    assert annotation.startswith("::error file=kernels/adding.py,line=")
    assert failed.startswith("::error title=app::fails in head: ")
    assert "'a%250A::error::b,c=d|" in failed
    stop = next(index for index, line in enumerate(lines) if line.startswith("::stop-commands::"))
    resume = lines.index(f"::{lines[stop].removeprefix('::stop-commands::')}::")
    assert stop == 0
    assert resume < lines.index(annotation)
    assert "@everyone" not in job.summary


@pytest.mark.slow
def test_a_change_to_ignored_files_alone_passes_without_measuring(hub: Hub) -> None:
    """And without a plan: no shards, so that no job follows."""
    hub.repo.write("old.md", "text")
    hub.main(LIMIT + "ignore: ['docs/*', '*.md']\n", adding())
    hub.repo.write("docs/deep/`@everyone`.txt", "text")
    hub.repo.git("mv", "old.md", "new.md")
    job = hub.job(
        "pull_request", hub.pull_request(), hub.merge, hub.checkout(hub.merge, depth=1), shards="2", publish="true"
    )
    assert job.code == 0, job.log
    assert job.outputs == unmeasured(job, "pass")
    assert "passed without measuring" in job.log
    assert "`new.md`" in job.summary


def unmeasured(job: Job, verdict: str) -> dict[str, str]:
    """The outputs of a job that leaves an artifact in which there is nothing but that: it was heard."""
    out = job.checkout / "perfci-out"
    assert [path.name for path in out.iterdir()] == ["unmeasured.json"]
    name = "perfci--measure--0-h100--2"
    return {"verdict": verdict, "regressions": "0", "exit-code": "0", "artifact-name": name, "report-path": str(out)}


NIGHT = {"schedule": "17 3 * * *", "repository": {"full_name": REPOSITORY, "default_branch": "main"}}


def test_a_pull_request_whose_head_base_holds_is_not_measured(hub: Hub) -> None:
    """The job ends well, and nothing says that anything passed."""
    head = hub.main(LIMIT, "raise SystemExit('must not run')\n")
    base = hub.repo.commit("more")[:10]
    payload = hub.proposed(hub.repo.git("rev-parse", "main"), head)
    job = hub.job("pull_request", payload, hub.merge, hub.checkout(hub.merge, depth=10))
    assert job.code == 0, job.log
    assert job.outputs == unmeasured(job, "undecided")
    assert f"perfci: nothing to compare, and nothing was measured: {base} holds every commit of {head[:10]}" in job.log
    assert job.summary == (
        f"### 🟡 Nothing to compare\n\n`{head[:10]}` has no commit of its own, `{base}` holds them all. "
        "Nothing was measured: this is no pass.\n"
    )
    assert job.annotations == []
    assert "PASS" not in job.log and "passed" not in job.log


def test_a_pull_request_cannot_ignore_itself(hub: Hub) -> None:
    """Base's `ignore` counts, and one file beside the ignored ones is enough. What is broken shows that it is measured."""
    hub.main(LIMIT + "ignore: ['docs/*']\nbuild: ['false']\n", adding())
    hub.repo.policy(LIMIT + "ignore: ['*']\nbuild: ['false']\n")
    hub.repo.write("docs/a.md", "text")
    job = hub.job("pull_request", hub.pull_request(), hub.merge, hub.checkout(hub.merge), publish="true")
    assert job.code == 3, job.log
    assert (job.outputs["verdict"], job.outputs["exit-code"], job.outputs["artifact-name"]) == ("error", "3", "")
    assert "does not build" in job.annotations[0]
    assert "does not build" in job.summary


def test_a_pull_request_reads_the_builds_that_are_kept_and_writes_none(hub: Hub) -> None:
    """The default branch does: test_a_job_as_docs_write_it_keeps_and_takes_builds, and test_event.py."""
    hub.main(LIMIT)
    hub.repo.write("change", "of something")
    payload = hub.pull_request()
    spied = (
        f"import os, sys\nsys.path.insert(0, {str(Path(perfci.__file__).parents[1])!r})\n"
        "import perfci.cli.ci\nci = sys.modules['perfci.cli.ci']\n"
        "def measure(request, console): raise LookupError(f'keep {request.where.keep} in {request.where.cache}')\n"
        "ci.measure, ci.without_secrets = measure, lambda: dict(os.environ)\nci.run_job()"
    )
    checkout = hub.checkout(hub.merge)
    job = hub.job("pull_request", payload, hub.merge, checkout, command=["-c", spied], cache="/var/cache/perfci")
    assert "LookupError: keep None in /var/cache/perfci" in job.log
    refused = hub.job("pull_request", payload, hub.merge, checkout, cache="/c", container="perfci:cuda13")
    assert refused.outputs["exit-code"] == "2" and "input cache: no image of `container:` sees it" in refused.log


@as_root
@pytest.mark.slow
def test_a_job_as_docs_write_it_keeps_and_takes_builds(two_users: Repo, warm: Warm) -> None:
    """In a container of the image steps run as root, in a home and a checkout of root's, with no entry point."""
    [job] = [
        text for text in re.findall(r"```yaml\n(.*?)```", GITHUB_MD.read_text(), re.DOTALL) if "PERFCI_WORKER" in text
    ]
    env = yaml.safe_load(job)["env"]
    home, cache = two_users.root.parent / "github-home", two_users.root.parent / "cache"
    home.mkdir()
    hub = Hub(two_users.root.parent / "job", warm)
    hub.repo.policy(f"build: ['echo built > \"$PERFCI_SITE/built\"']\n{LIMIT.replace('20%', '90%')}")
    text = (hub.repo.root / "perfci.yaml").read_text()
    hub.repo.write("perfci.yaml", re.sub("python: .*", f"python: {SYSTEM_PYTHON}", text))
    hub.repo.write(
        "kernels/adding.py", f"import os\nassert os.getuid() == {env['PERFCI_WORKER'].partition(':')[0]}\n{adding()}"
    )
    sha = hub.repo.commit()

    def measured(event: str, payload: dict, sha: str) -> Job:
        shutil.rmtree(hub.tmp_path / "work", ignore_errors=True)
        job = hub.job(event, payload, sha, hub.checkout(sha), {**env, "HOME": str(home)}, cache=str(cache))
        assert job.outputs["exit-code"] == "0", job.log
        return job

    assert measured("schedule", NIGHT, sha).report["mode"] == "run"
    assert len(list((cache / "entries").iterdir())) == 1
    hub.repo.write("change", "of something")
    job = measured("pull_request", hub.pull_request(), hub.merge)
    assert "base was built by an earlier run (PERFCI_CACHE)" in job.log + "".join(job.report["notes"])


def two_commands(hub: Hub) -> dict:
    """Commands that say how long they took, which head makes slower than their limit."""
    took(hub.repo, 1, "a", "b")
    hub.main(applications("a", "b") + AT_MOST)
    took(hub.repo, 3, "b")
    return hub.pull_request()


def planned(hub: Hub, payload: dict, checkout: Path) -> Path:
    """The plan of two shards that a job makes, where the next job's workflow has fetched it."""
    job = hub.job("pull_request", payload, hub.merge, checkout, shards="2", publish="true")
    assert job.code == 0, job.log
    plan = hub.tmp_path / "fetched" / "plan.json"
    plan.parent.mkdir()
    shutil.copy(checkout / "perfci-out" / "plan.json", plan)
    shutil.rmtree(checkout / "perfci-out")
    return plan


def test_a_job_plans_and_hands_on_the_plan_alone(hub: Hub) -> None:
    payload = two_commands(hub)
    checkout = hub.checkout(hub.merge)
    out = checkout / "perfci-out"
    out.mkdir()
    for name in ("results.json", "unmeasured.json"):
        (out / name).write_text("{}")  # of an earlier job in the same workspace
    job = hub.job("pull_request", payload, hub.merge, checkout, shards="2", models="3", publish="true")
    assert job.code == 0, job.log
    assert job.outputs == {
        "verdict": "", "regressions": "0", "exit-code": "0", "artifact-name": "perfci--measure--0-h100--2",
        "report-path": str(out), "shards": '["1/2", "2/2"]',
    }  # fmt: skip
    assert {path.name for path in out.iterdir()} & {"plan.json", "results.json", "unmeasured.json", "report.json"} == {
        "plan.json"
    }
    plan = json.loads((out / "plan.json").read_text())
    assert (plan["shards"], plan["what"]["models"], plan["plan"]["m"], len(plan["cases"])) == (2, 3, 6, 2)
    assert (plan["what"]["committed"], plan["what"]["pull_request"]) == (True, True)
    assert "### Planned, and nothing measured yet" in job.summary and "- shard 2/2: 1 case" in job.summary
    assert job.annotations == []


@pytest.mark.slow
def test_a_job_measures_one_shard_and_no_attempt_measures_it_again(hub: Hub) -> None:
    payload = two_commands(hub)
    checkout = hub.checkout(hub.merge)
    plan = planned(hub, payload, checkout)
    digest = json.loads(plan.read_text())["digest"]
    asked = {"plan": str(plan), "shards": "2/2", "publish": "true"}

    def measure(earlier: Path | str = "") -> Job:
        return hub.job("pull_request", payload, hub.merge, checkout, {"PERFCI_EARLIER": str(earlier)}, **asked)

    job = measure()
    assert (job.code, job.outputs["verdict"], job.outputs["regressions"]) == (0, "fail", "1"), job.log
    assert "perfci: the gate fails, which the publishing job says" in job.log
    results = json.loads((checkout / "perfci-out" / "results.json").read_text())
    assert (results["part"]["plan"], results["part"]["shards"], results["plan"]["m"]) == (digest, [2], 2)
    assert [case["id"] for case in results["cases"]] == ["b"]
    assert results["command"][1:4] == ["compare", results["sides"]["base"]["commit"], "--committed"]

    there = measure()
    assert there.code == 2 and "holds shard 2/2 of this plan, which is measured once" in there.log

    handed = hub.tmp_path / "earlier"
    shutil.move(checkout / "perfci-out", handed / "perfci--measure--1-2-2--1")
    again = measure(handed)
    said = "shard 2/2 was measured in an earlier attempt, and is measured once: what was measured stands"
    assert again.code == 0 and f"perfci: {said}" in again.log and said in again.summary
    assert again.outputs == {
        "verdict": "", "regressions": "0", "exit-code": "0", "artifact-name": "", "report-path": "",
    }  # fmt: skip
    assert not (checkout / "perfci-out").exists()

    file = handed / "perfci--measure--1-2-2--1" / "results.json"
    file.write_text(json.dumps(results | {"error": {"kind": "exit", "text": "GPU 0 is lost"}}))
    begun = measure(handed)
    assert begun.code == 2
    assert "shard 2/2 has begun in an earlier attempt, and would be measured twice: `Re-run all jobs`" in begun.log

    lost = results | {"error": {"kind": "exit", "text": "GPU 0 is lost"}, "cases": []}
    file.write_text(json.dumps(lost))
    other = handed / "perfci--measure--0-1-2--1"
    other.mkdir()
    (other / "results.json").write_text("{")
    job = measure(handed)
    assert (job.code, job.outputs["verdict"]) == (0, "fail"), job.log
    assert "perfci: earlier attempts: " in job.log and "is no results document of this version" in job.log


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("forge", "input plan: names no commit as base: make a new plan"),
        pytest.param("move", "--shard: the commit of head is not that of the plan", marks=pytest.mark.slow),
    ],
)
def test_a_plan_that_is_not_of_this_change_measures_nothing(hub: Hub, change: str, words: str) -> None:
    payload = two_commands(hub)
    checkout = hub.checkout(hub.merge)
    plan = planned(hub, payload, checkout)
    if change == "forge":  # with a digest of its own, as whoever tampers with the job that plans may make one
        known = read_plan(plan)
        what, base = known.what.model_copy(update={"pull_request": False}), known.sides["base"]
        sides = {**known.sides, "base": base.model_copy(update={"commit": "--upload-pack=touch ran"})}
        plan.write_text(known.model_copy(update={"what": what, "sides": sides}).sealed().model_dump_json())
    else:
        of = payload["pull_request"]
        hub.proposed(of["base"]["sha"], of["head"]["sha"], message="Merged anew")
        shutil.rmtree(checkout)
        checkout = hub.checkout(hub.merge)
    job = hub.job("pull_request", payload, hub.merge, checkout, plan=str(plan), shards="1/2", publish="true")
    assert (job.code, job.outputs["artifact-name"]) == (2, "")
    [annotation] = job.annotations
    assert words in annotation


@pytest.mark.slow
def test_a_shard_fetches_the_base_that_was_planned_with(hub: Hub) -> None:
    """The plan's job was told another than the event says."""
    payload = two_commands(hub)
    hub.repo.git("branch", "release", "main")
    checkout = hub.checkout(hub.merge, depth=10)
    job = hub.job("pull_request", payload, hub.merge, checkout, shards="2", publish="true", base="release")
    assert job.code == 0, job.log
    plan = shutil.copy(checkout / "perfci-out" / "plan.json", hub.tmp_path)
    shutil.rmtree(checkout)
    shard = {"plan": str(plan), "shards": "1/2", "publish": "true"}
    job = hub.job("pull_request", payload, hub.merge, hub.checkout(hub.merge, depth=1), **shard)
    assert (job.code, job.outputs["verdict"]) == (0, "pass"), job.log
    assert job.report["sides"]["base"]["commit"] == payload["pull_request"]["base"]["sha"]


def test_a_plan_by_a_faulty_policy_tells_who_publishes(hub: Hub) -> None:
    """As a measurement does: somebody may then accept the change that fixes it."""
    hub.main(LIMIT.replace("'*'", "none/*"), adding())
    hub.repo.policy(LIMIT)
    job = hub.job("pull_request", hub.pull_request(), hub.merge, hub.checkout(hub.merge), shards="2", publish="true")
    assert (job.code, job.outputs["artifact-name"]) == (2, "perfci--measure--0-h100--2")
    assert "shards" not in job.outputs and not (job.checkout / "perfci-out" / "plan.json").exists()
    results = json.loads((job.checkout / "perfci-out" / "results.json").read_text())
    assert (results["error"]["kind"], results["part"]) == ("policy", None)
    assert "matches no case" in job.annotations[0]


def test_what_is_compared_with_nothing_is_not_shared_out(hub: Hub) -> None:
    sha = hub.main(LIMIT)
    job = hub.job("schedule", NIGHT, sha, hub.checkout(sha), shards="2", publish="true")
    assert (job.code, job.outputs["artifact-name"]) == (2, "")
    said = "input shards: this schedule is compared with nothing, and only a comparison is shared out"
    assert said in job.annotations[0]


@pytest.mark.slow
def test_what_must_not_be_measured_is_one_line(hub: Hub) -> None:
    """Forks: test_actions.py. Another commit than the event's: test_checkout.py."""
    hub.main(LIMIT, "raise SystemExit('must not run')\n")
    payload = hub.pull_request()
    checkout = hub.checkout(hub.merge)
    out = checkout / "perfci-out"

    def refuse(words: str, event: str = "pull_request", where: Path = checkout, publish: str = "true") -> None:
        job = hub.job(event, payload, hub.merge, where, {"PERFCI_JOB_TOTAL": "2"}, publish=publish)
        assert job.code == 2, job.log
        assert job.outputs == {
            "verdict": "error", "regressions": "0", "exit-code": "2", "artifact-name": "", "report-path": "",
        }  # fmt: skip
        [annotation] = job.annotations
        assert words in annotation
        assert not out.exists()

    refuse("measure on `pull_request`", event="pull_request_target")
    refuse("publish: here: is for one job", publish="here")
    refuse("run actions/checkout first", where=hub.runner)
    out.symlink_to(hub.tmp_path / "elsewhere")
    refuse("perfci-out: is a link: remove it")
    out.unlink()
    git(checkout, "config", "http.https://github.com/.extraheader", f"AUTHORIZATION: basic {CANARY}")
    refuse("persist-credentials: false")


@pytest.mark.slow
def test_python_of_the_checkout_is_not_perfcis(hub: Hub) -> None:
    """Neither a module beside the checkout nor PYTHONPATH gets into perfci itself, however it is started."""
    hub.repo.policy(LIMIT)
    hub.repo.write("typing.py", f"open({str(hub.tmp_path / 'stolen')!r}, 'w')\n")
    sha = hub.repo.commit()
    checkout = hub.checkout(sha, 1)
    env = {**hub.repo.env, **CANARIES, "PYTHONPATH": str(checkout)}
    script = Path(sys.executable).with_name("perfci")
    done = subprocess.run([script, "--version"], cwd=checkout, env=hub.repo.env, capture_output=True, check=True)
    assert done.stdout
    done = subprocess.run(
        [sys.executable, "-I", "-m", "perfci", "ci"], cwd=checkout, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "GITHUB_EVENT_NAME: is not set" in done.stdout
    assert not (hub.tmp_path / "stolen").exists()


def test_an_internal_error_is_an_answer_and_no_command(hub: Hub) -> None:
    """With outputs, summary and annotation; what it says may be text of the code under test."""
    sha = hub.main(LIMIT)
    text = "\n::set-output name=exit-code::0\n##[set-output name=exit-code]0"
    broken = (
        f"import os, sys, perfci.cli.ci\nci = sys.modules['perfci.cli.ci']\ndef gate(env): raise LookupError({text!r})\n"
        "ci.gate, ci.without_secrets = gate, lambda: dict(os.environ)\nci.run_job()"
    )
    job = hub.job("schedule", NIGHT, sha, hub.checkout(sha, 1), command=["-c", broken])
    assert (job.outputs["verdict"], job.outputs["exit-code"]) == ("error", "3")
    assert "internal error: LookupError" in job.summary
    lines = job.log.splitlines()
    stop = lines.index(f"::{lines[0].removeprefix('::stop-commands::')}::")
    assert "in gate" in job.log
    assert [line for line in lines[stop + 1 :] if "set-output" in line] == []


def test_reports_of_profilers_need_the_runners_own_folder(hub: Hub) -> None:
    sha = hub.main(LIMIT)
    job = hub.job("schedule", NIGHT, sha, hub.checkout(sha, 1), {"RUNNER_TEMP": ""}, raw="true")
    assert (job.code, job.outputs["artifact-name"]) == (2, "")
    assert "input raw: RUNNER_TEMP is not set" in job.log


@pytest.mark.parametrize(("repository", "words"), [(REPOSITORY, ["--raw"]), ("stranger/perfci", [])])
def test_perfci_in_a_container_is_told_of_reports_too(repository: str, words: list[str]) -> None:
    found = beside(Pull(7, "a" * 40, head_repository=repository), 100)
    settings = Settings(raw="true")
    request = _request(settings, found, Path("perfci-out"), None)
    assert [word for word in _words(settings, request) if "raw" in word] == words
    assert request.how.counters is bool(words), "no counters are read for code of a fork"


@pytest.mark.slow
@pytest.mark.parametrize(("line", "answers"), [("adding* 50%", ["shown"]), ("gone* 10%", []), ("much faster", [])])
def test_a_job_measures_what_the_description_claims_and_ends_by_its_limits(
    hub: Hub, line: str, answers: list[str]
) -> None:
    hub.main(LIMIT.replace("20%", "900%"), adding(n=20_000))
    hub.repo.write("kernels/adding.py", adding(n=1_000))
    payload = hub.pull_request()
    payload["pull_request"]["body"] = f"Fast.\n\nperfci-claim: {line}\n"
    job = hub.job("pull_request", payload, hub.merge, hub.checkout(hub.merge))
    assert (job.code, job.outputs["verdict"]) == (0, "pass"), job.log
    assert [row["answer"] for row in job.report["claims"]] == answers
    assert ("the description's perfci-claim: 'much faster': write cases" in job.log) == (line == "much faster")


def test_perfci_in_a_container_is_told_of_what_is_claimed() -> None:
    sent = proposed(Pull(7, "a" * 40))
    sent["pull_request"]["body"] = "perfci-claim: adding* 50%"
    found = context("pull_request", sent, environment(100))
    request = _request(
        Settings(), found, Path("perfci-out"), BaseOfHead("main", merge=False, base=NamedCommit("main", "b" * 40, ""))
    )
    assert "--described=adding* 50%" in _words(Settings(), request)
