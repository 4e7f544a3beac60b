"""The actions and the workflow for users, from the event to comment and check run: real checkouts, real processes."""

import json
import lzma
import re
import sys
import zipfile
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import pytest

from perfci.model.publication import ACCEPT_LABEL
from tests.e2e.conftest import Repo, adding
from tests.github.loopback.act import Job, Machine, copy_actions
from tests.github.loopback.scene import completed, proposed
from tests.github.loopback.server import REPOSITORY, START, GitHub, Pull
from tests.github.loopback.server import ROOT as FIRST
from tests.github.loopback.suites import AT_MOST, LIMIT, applications, hostile, took
from tests.sources.repo import ENV

ROOT = Path(__file__).parents[2]
TEMPLATE = (ROOT / "src/perfci/cli/templates/perf.yml").read_text()
WORKFLOW = TEMPLATE.replace("device: cuda", "device: cpu")
PUBLISHER = """
name: perf-publish
on: {workflow_run: {workflows: [perf], types: [completed]}}
permissions: {}
jobs:
  publish:
    runs-on: ubuntu-latest
    permissions: {actions: read, checks: write, contents: read, pull-requests: write}
    steps:
      - uses: org/perfci/publish@v1
        with: {jobs: measure}
"""
CHECKOUT = re.findall(r"uses: (actions/checkout@[0-9a-f]{40})", TEMPLATE)[0]
HERE = f"""
name: perf
on: {{pull_request: {{types: [opened]}}}}
permissions: {{}}
jobs:
  perfci:
    runs-on: [self-hosted, gpu]
    permissions: {{contents: read, pull-requests: write}}
    steps:
      - uses: {CHECKOUT}
        with: {{fetch-depth: 2, persist-credentials: false}}
      - uses: org/perfci@v1
        with: {{publish: here, device: cpu}}
"""
FORK = "author/kernels"


class Account:
    """The repository on GitHub, a fork of it, and the author's clone."""

    def __init__(self, folder: Path, hub: GitHub, actions: Path) -> None:
        self.hub = hub
        env = {**ENV, "LANG": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "160"}
        self.clone = Repo(folder / "clone", env)
        self.machine = Machine(hub, folder / "kernels.git", folder / "runners", actions, env)
        self.fork = folder / "fork.git"
        for bare in (self.machine.remote, self.fork):
            self.clone.git("init", "-q", "--bare", str(bare))
        self.machine.git("config", "uploadpack.allowReachableSHA1InWant", "true")

    def main(self, kernel: str, policy: str = LIMIT) -> None:
        """The contents of main."""
        self.clone.policy(policy)
        self.clone.write("kernels/adding.py", kernel)
        self.base = self.clone.commit()
        self.clone.git("push", "-q", str(self.machine.remote), "main")
        self.hub.branches["main"] = self.base
        self.hub.commits[self.base] = [FIRST]
        self.hub.files[self.base, "perfci.yaml"] = (self.clone.root / "perfci.yaml").read_bytes()

    def slower_application(self, fails: bool = True) -> None:
        """Main has a command that says how long it took, which takes seconds to measure; the clone has a slower one."""
        took(self.clone, 1, "app")
        self.main("", f"{applications('app')}{AT_MOST}fail_on: {['broken'] * fails}\n")
        took(self.clone, 3, "app")

    def pull_request(self, branch: str = "change", fork: bool = False) -> Pull:
        """A pull request with the clone's contents; GitHub makes its merge with main."""
        clone, git = self.clone, self.machine.git
        clone.git("checkout", "-q", "-b", branch)
        head = clone.commit()
        clone.git("push", "-q", str(self.fork if fork else self.machine.remote), branch)
        if fork:
            git("fetch", "-q", str(self.fork), f"refs/heads/{branch}:refs/pull/7/head")
        tree = git("merge-tree", "--write-tree", self.base, head)
        merge = git("commit-tree", tree, "-p", self.base, "-p", head, "-m", "Merge")
        git("update-ref", "refs/pull/7/merge", merge)
        self.hub.commits |= {head: [self.base], merge: [self.base, head]}
        self.hub.changed = git("diff", "--name-only", self.base, head).splitlines()
        return self.hub.pull(7, head, head_ref=branch, head_repository=FORK if fork else REPOSITORY)

    def event(
        self,
        pull: Pull,
        action: str = "opened",
        label: str = "",
        workflow: str = WORKFLOW,
        started: str = "pull_request",
        attempt: int = 1,
    ) -> dict[str, Job]:
        """The jobs that an event on the pull request starts, or starts again."""
        payload = proposed(pull, self.base, action=action, **({"label": {"name": label}} if label else {}))
        return self.machine.deliver(workflow, started, payload, pull, attempt)

    def completed(self, workflow: str = PUBLISHER) -> Job:
        """The publisher that the end of the newest run starts."""
        run = self.hub.runs[max(self.hub.runs)]
        return self.machine.deliver(workflow, "workflow_run", completed(run))["publish"]

    def lose(self, name: str) -> None:
        """What a job of the newest run measured is gone."""
        self.hub.artifacts = [one for one in self.hub.artifacts if one.name != name]
        (self.machine.folder / "inbox" / f"{self.machine.runs}--{name}.zip").unlink()

    def label(self, pull: Pull) -> None:
        self.hub.label(pull, ACCEPT_LABEL, "maintainer", START + timedelta(minutes=10))

    @property
    def comment(self) -> str:
        [body] = self.hub.own_comments()
        return body

    @property
    def concluded(self) -> list[str]:
        """Of the check runs on the head, oldest first."""
        return [check["conclusion"] for check in self.hub.checks]


@pytest.fixture(scope="session")
def actions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The actions, with a start that takes the environment of the tests: what it installs else, one slow test installs."""
    start = f'#!/usr/bin/env bash\nset -euo pipefail\nexec "{sys.executable}" -I -m perfci "$@"\n'
    return copy_actions(tmp_path_factory.mktemp("actions"), ROOT, start)


@pytest.fixture
def account(tmp_path: Path, hub: GitHub, actions: Path) -> Account:
    return Account(tmp_path, hub, actions)


@pytest.mark.slow
def test_a_fork_is_measured_without_rights_published_with_them_and_accepted_without_measuring(account: Account) -> None:
    hub = account.hub
    account.slower_application()
    pull = account.pull_request(fork=True)
    jobs = account.event(pull)
    measure, publish = jobs["measure"], jobs["publish"]
    assert measure.result == "success", measure.log
    assert publish.result == "failure"  # the verdict stands, and who reads the log is told why nothing else came of it
    assert "a fork's own run may only read: publish from `workflow_run`" in publish.log
    assert (hub.comments, hub.checks) == ([], [])
    assert [one.name for one in hub.artifacts] == ["perfci--measure--0--1"]

    assert account.completed().result == "failure"
    assert "`app`" in account.comment
    assert account.concluded == ["failure"]

    account.label(pull)
    jobs = account.event(pull, "labeled", ACCEPT_LABEL)
    assert jobs["measure"].result == "skipped"
    assert jobs["publish"].result == "success", jobs["publish"].log
    published = account.completed()
    assert published.result == "success", published.log
    assert account.concluded == ["success"]
    assert "maintainer" in account.comment
    assert len(hub.artifacts) == 1
    assert account.machine.runs == 104


@pytest.mark.slow
def test_one_job_writes_the_comment_and_is_the_gate(account: Account) -> None:
    """`publish: here`: one comment, no check, and the job is the gate. test_here.py publishes again."""
    hub = account.hub
    account.slower_application()
    job = account.event(account.pull_request(), workflow=HERE)["perfci"]
    assert job.result == "failure", job.log
    outputs = job.outputs["org/perfci@v1"]
    assert (outputs["verdict"], outputs["exit-code"]) == ("fail", "1")
    assert outputs["comment-url"] == hub.comments[0]["html_url"]
    assert account.comment.startswith("### ❌ ") and "`app`" in account.comment
    assert "suite=perfci run=101 " in account.comment and "/actions/runs/101/artifacts/" in account.comment
    assert ACCEPT_LABEL not in account.comment, "nothing reads it"
    assert "t0ken" not in job.log
    assert (len(hub.comments), hub.checks, hub.misfits) == (1, [], [])


REPORTS = """
import lzma, pathlib
folder = pathlib.Path(pathlib.Path({where!r}).read_text().strip(), "perfci-out", "raw")
folder.mkdir(parents=True, exist_ok=True)
real = lzma.decompress(pathlib.Path({real!r}).read_bytes())
(folder / "ncu-head-0.ncu-rep").write_bytes(real)
(folder / "ncu-base-0.ncu-rep").write_bytes(real + b"registry-4711-canary")
if not (folder / "nsys-base-0.nsys-rep").is_symlink():
    (folder / "nsys-base-0.nsys-rep").symlink_to("/etc/passwd")
"""
"""A suite that writes reports itself, as no GPU is here to have any."""


@pytest.mark.slow
@pytest.mark.parametrize("fork", [False, True])
def test_reports_of_profilers_have_an_artifact_of_their_own(account: Account, fork: bool) -> None:
    """Linked beside the other one; without what holds a secret of the job's, without links, and never of a fork."""
    hub, machine = account.hub, account.machine
    machine.prepare = f'pwd >"{machine.folder}/where"'
    account.slower_application()
    real = ROOT / "tests" / "data" / "ncu" / "ncu_base.ncu-rep.xz"
    account.clone.write("kernels/adding.py", REPORTS.format(where=f"{machine.folder}/where", real=str(real)))
    secret = "    env: {REGISTRY_TOKEN: registry-4711-canary}\n    runs-on: [self-hosted, gpu]\n"
    workflow = (WORKFLOW if fork else HERE).replace("    runs-on: [self-hosted, gpu]\n", secret)
    workflow = workflow.replace("device: cpu}", 'device: cpu, raw: "true"}')
    workflow = workflow.replace("          device: cpu # a", '          raw: "true"\n          device: cpu # a', 1)
    ran = account.event(account.pull_request(fork=fork), workflow=workflow)
    measure = ran["measure" if fork else "perfci"]
    if fork:
        assert account.completed().result == "failure"
    results = "perfci--measure--0--1" if fork else "perfci--perfci--0--1"
    hub.receive()
    left = {one.name: one for one in hub.artifacts}
    assert left.keys() == ({results} if fork else {results, f"{results}-raw"}), measure.log
    assert "canary" not in measure.log
    if fork:
        assert "reports of profilers are not handed on: pull request #7 is of a fork" in measure.log
        assert "-raw" not in account.comment
        return
    with zipfile.ZipFile(BytesIO(left[results].content)) as opened:
        assert not [name for name in opened.namelist() if name.startswith("raw")]
    with zipfile.ZipFile(BytesIO(left[f"{results}-raw"].content)) as opened:
        assert opened.namelist() == ["ncu-head-0.ncu-rep"]
        assert opened.read("ncu-head-0.ncu-rep") == lzma.decompress(real.read_bytes())
    [said] = measure.said("warning")
    assert said.data == "not handed on: ncu-base-0.ncu-rep: holds values of REGISTRY_TOKEN"
    assert "nsys-base-0.nsys-rep: is no ordinary file" in measure.log
    assert re.search(rf"Files: \[{results}\]\(\S+\)[^\[]*, \[{results}-raw\]\(\S+\)", account.comment)
    assert measure.outputs["org/perfci@v1"]["raw-artifact-url"].startswith("https://github.com/")


def test_one_job_refuses_a_fork_before_anything_of_it_runs(account: Account) -> None:
    """Even where its token could write."""
    account.main("raise SystemExit('must not run')\n", LIMIT + "build: touch ran\n")
    job = account.event(account.pull_request(fork=True), workflow=HERE)["perfci"]
    assert job.result == "failure"
    assert job.outputs["org/perfci@v1"]["exit-code"] == "2"
    [said] = job.said("error")
    assert said.data.startswith("publish: here: pull request #7 is of a fork, and a stranger's code must not run")
    assert "publish from workflow_run" in said.data
    assert "must not run" not in job.log.replace(said.data, "")
    assert "measured for" not in job.log and "comment" not in job.outputs["org/perfci@v1"].get("comment-url", "")
    assert (account.hub.comments, account.hub.artifacts) == ([], [])


@pytest.mark.slow
def test_one_job_without_the_right_to_comment_ends_as_it_measured(account: Account) -> None:
    account.slower_application(fails=False)
    workflow = HERE.replace(", pull-requests: write", "")
    job = account.event(account.pull_request(), workflow=workflow)["perfci"]
    assert (job.result, job.outputs["org/perfci@v1"]["exit-code"]) == ("success", "0"), job.log
    [said] = [one.data for one in job.said("error") if "no comment was written" in one.data]
    assert said.endswith("give the job `permissions: {contents: read, pull-requests: write}`")
    assert account.hub.comments == []


@pytest.mark.slow
def test_the_workflows_for_public_projects(account: Account) -> None:
    """A fork's pull request, measured by a workflow that the default branch holds."""
    folder = ROOT / "examples" / "public" / ".github" / "workflows"
    perf, measure, publish = (
        (folder / f"{name}.yml").read_text().replace("device: cuda", "device: cpu")
        for name in ("perf", "perf-measure", "perf-publish")
    )
    account.machine.called[".github/workflows/perf-measure.yml"] = measure
    account.slower_application()
    pull = account.pull_request(fork=True)
    jobs = account.event(pull, workflow=perf)
    assert {name: job.result for name, job in jobs.items()} == {"measure": "success"}
    assert account.completed(publish).result == "failure"
    assert account.concluded == ["failure"]
    account.label(pull)
    published = account.event(pull, "labeled", ACCEPT_LABEL, publish, "pull_request_target")["publish"]
    assert published.result == "success", published.log
    assert account.concluded == ["success"]
    assert len(account.hub.artifacts) == 1
    account.hub.branches["side"] = account.base
    account.hub.protected.add("side")
    twin = account.hub.pull(8, pull.head, base_ref="side", head_ref="copy", head_repository=FORK)
    held = account.event(twin, "opened", workflow=publish, started="pull_request_target")["publish"]
    assert "nothing to publish: pull request #8 is yet to be measured" in held.log
    assert account.concluded == ["action_required"]


SHARDS = (ROOT / "examples/shards/.github/workflows/perf.yml").read_text().replace("device: cuda", "device: cpu")
SHARDS = SHARDS.replace("shards: 4", "shards: 2")
REPEATED = (
    re.sub(r"  plan: #.*?\n\n", "", SHARDS, flags=re.DOTALL)
    .replace("    needs: plan\n    if: ${{ needs.plan.outputs.shards }} # none where nothing has to be measured\n", "")
    .replace("needs: [plan, measure]", "needs: measure")
    .replace("${{ needs.plan.outputs.artifact }}", "perfci--plan--0--1")
    .replace("${{ fromJSON(needs.plan.outputs.shards) }}", '["1/2", "2/2"]')
)
"""What is left of it where GitHub runs some jobs again: the plan's job is not among them, and its outputs stay."""


@pytest.mark.slow
def test_jobs_of_a_matrix_measure_the_shards_of_a_plan_and_one_job_says_what_they_come_to(account: Account) -> None:
    """The example as it stands, but for the device and the number of shards.

    act runs plan, matrix and publisher with the outputs that one job needs of another. Artifacts pass through stand-ins
    of GitHub's two actions, which keep its rules on names and folders: act's own server of them takes no token and no
    attempt, and the publisher's API knows nothing of it. It tells an action nothing of the matrix that its job is in,
    so that here shards alone tell names of artifacts apart. And it runs no job again: `Re-run failed jobs` is a
    workflow with what GitHub would run of it, in the same run, as its second attempt.
    """
    hub = account.hub
    took(account.clone, 1, "fast", "slow")
    account.main("", applications("fast", "slow") + AT_MOST)
    took(account.clone, 3, "slow")
    pull = account.pull_request()
    jobs = account.event(pull, workflow=SHARDS)
    assert {name: job.result for name, job in jobs.items()} == {
        "plan": "success", "measure 1/2": "success", "measure 2/2": "success", "publish": "failure",
    }, "".join(job.log for job in jobs.values())  # fmt: skip
    outputs = jobs["plan"].outputs["org/perfci@v1"]
    assert (outputs["verdict"], outputs["exit-code"]) == ("", "0")
    assert json.loads(outputs["shards"]) == ["1/2", "2/2"]
    assert {one.name for one in hub.artifacts} == {
        "perfci--plan--0--1", "perfci--measure--0-1-2--1", "perfci--measure--0-2-2--1"
    }  # fmt: skip
    assert account.concluded == ["failure"]
    assert "`slow`" in account.comment and "| ❌" in account.comment

    account.lose("perfci--measure--0-1-2--1")
    again = account.event(pull, workflow=REPEATED, attempt=2)
    assert {name: job.result for name, job in again.items()} == {
        "measure 1/2": "success", "measure 2/2": "success", "publish": "failure",
    }, "".join(job.log for job in again.values())  # fmt: skip
    stands = "shard 2/2 was measured in an earlier attempt, and is measured once: what was measured stands"
    assert [stands in again[f"measure {one}/2"].log for one in (1, 2)] == [False, True]
    assert ["1 case unchanged" in again[f"measure {one}/2"].log for one in (1, 2)] == [True, False]
    assert {one.name for one in hub.artifacts} == {
        "perfci--plan--0--1", "perfci--measure--0-1-2--2", "perfci--measure--0-2-2--1"
    }  # fmt: skip
    assert account.concluded == ["failure", "failure"]
    assert "`slow`" in account.comment


@pytest.mark.slow
def test_a_hostile_regression_is_said_as_it_is(account: Account) -> None:
    """Branch, case and log try to become commands, markup and shell."""
    account.main(hostile(account.clone, LIMIT), LIMIT + applications("app"))
    kernel = hostile(account.clone, LIMIT, spins=20_000)
    pull = account.pull_request("$(id)")
    jobs = account.event(pull)
    measure, publish = jobs["measure"], jobs["publish"]
    assert measure.result == "success", measure.log
    outputs = measure.outputs["org/perfci@v1"]
    assert (outputs["verdict"], outputs["regressions"], outputs["exit-code"]) == ("fail", "2", "0")
    assert outputs["artifact-url"].startswith("https://github.com/octo/kernels/actions/runs/101/artifacts/")
    assert publish.result == "failure"
    assert publish.outputs["org/perfci/publish@v1"]["verdict"] == "fail"
    [check] = account.hub.checks
    assert check["conclusion"] == "failure"
    lines = kernel.splitlines()
    [note] = check["given"]
    assert (note["path"], note["annotation_level"]) == ("kernels/adding.py", "failure")
    assert lines[note["start_line"] - 1].startswith(("@perfci.kernel", "def adding"))
    [left] = account.hub.artifacts
    with zipfile.ZipFile(BytesIO(left.content)) as opened:
        report = json.loads(opened.read("report.json"))
    rows = {row["case"].partition("/")[0]: row for row in report["rows"]}
    # On a busy machine pairs drift, and what they show then fails without being a regression.
    assert rows.pop("app")["class"] == "failed"
    assert [(name, row["class"] in ("regression", "inconclusive")) for name, row in rows.items()] == [("adding", True)]
    percent = re.search(
        r"\| ❌ <code>adding/<wbr>[^`]*</code> time<br>.*\*\*\+(\d+)\s%\*\* .* slower<br>limit\s20\s% \|",
        account.comment,
    )
    assert percent is not None, account.comment
    assert abs(int(percent[1]) - 100 * (rows["adding"]["change"] - 1)) <= 1
    for said in (account.comment, *publish.summaries, *measure.summaries, check["output"]["summary"]):
        assert "@everyone" not in said
        assert "<img" not in said
        assert "t0ken" not in said
    for job in jobs.values():
        assert job.said("error", "warning", "add-mask", "set-output") == []
        assert "uid=" not in job.log + "".join(job.summaries)
        assert "t0ken" not in job.log


@pytest.mark.slow
def test_unchanged_passes_and_what_the_checkout_planted_for_git_does_not_run(account: Account) -> None:
    ran = account.machine.folder / "ran"

    account.machine.prepare = f"""
        for name in reference-transaction post-checkout pre-auto-gc post-index-change; do
            printf '#!/bin/sh\\ntouch {ran}\\n' >.git/hooks/$name; chmod +x .git/hooks/$name
        done
        printf '[core]\\n\\tfsmonitor = touch {ran}\\n' >>.git/config
        git status >/dev/null; rm {ran} # where git does read it, it runs
    """
    account.main(adding())
    account.clone.write("kernels/adding.py", adding() + "# changed\n")
    jobs = account.event(account.pull_request())
    assert {name: job.result for name, job in jobs.items()} == {"measure": "success", "publish": "success"}
    assert jobs["measure"].outputs["org/perfci@v1"]["verdict"] == "pass"
    assert account.concluded == ["success"]
    assert account.hub.own_comments() == []
    assert not ran.exists()


@pytest.mark.slow
def test_a_runner_that_has_lost_its_gpu_is_no_pass(account: Account) -> None:
    """The workflow as `perfci init` writes it."""
    account.main(adding())
    account.clone.write("kernels/adding.py", adding() + "# changed\n")
    jobs = account.event(account.pull_request(), workflow=TEMPLATE)
    assert {name: job.result for name, job in jobs.items()} == {"measure": "failure", "publish": "failure"}
    assert jobs["measure"].outputs["org/perfci@v1"]["exit-code"] == "3"
    assert "there is no GPU that torch can use here" in jobs["measure"].log
    assert account.concluded == ["action_required"]


@pytest.mark.slow
def test_the_action_as_users_get_it(tmp_path: Path, hub: GitHub) -> None:
    """With the packages that are locked, installed as a runner installs them, whatever the checkout says of that."""
    account = Account(tmp_path, hub, copy_actions(tmp_path / "actions", ROOT))
    account.clone.write("uv.toml", "not toml")
    account.main(adding())
    account.clone.write("kernels/adding.py", adding(spin=20_000))
    job = account.event(account.pull_request(), workflow=HERE.replace("publish: here, ", ""))["perfci"]
    assert (job.result, job.outputs["org/perfci@v1"]["exit-code"]) == ("failure", "1"), job.log
    assert job.said("error")[0].properties["file"] == "kernels/adding.py"
