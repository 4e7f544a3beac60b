"""The nightly workflow as `perfci init --nightly` writes it, on a real runner with a store on a branch."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfci.history.document import Night
from perfci.history.store import open_store
from tests.e2e.conftest import Repo, adding
from tests.github.loopback.act import Job, Machine, copy_actions
from tests.github.loopback.scene import REPOSITORY
from tests.github.loopback.server import GitHub, serve
from tests.history.nights import nights_in
from tests.sources.repo import ENV

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "src/perfci/cli/templates/nightly.yml"
INSTALL = re.compile(r'"\$RUNNER_TEMP/perfci/bin/pip" install .*')
POLICY = """
    budget: 60s
    limits: [{cases: "*", regression: 900%, creep: 40%}]
"""


def workflow() -> str:
    """With the perfci of these tests in the place of one that pip installs, on the CPU."""
    text = INSTALL.sub(
        f'ln -sf "{Path(sys.executable).parent}/perfci" "$RUNNER_TEMP/perfci/bin/perfci"', TEMPLATE.read_text()
    )
    text = text.replace("-m venv", "-m venv --without-pip")
    return text.replace("--device cuda", "--device cpu")


@pytest.fixture
def hub() -> Iterator[GitHub]:
    with serve() as made:
        yield made


class Main:
    """The main branch of a repository, its remote and the runner of its nights."""

    def __init__(self, folder: Path, hub: GitHub) -> None:
        self.clone = Repo(folder / "clone", {**ENV, "LANG": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "160"})
        actions = copy_actions(folder / "perfci", ROOT)
        # The store's writer clones into a cache of its own, and commits as itself.
        self.machine = Machine(hub, folder / "kernels.git", folder / "runners", actions, {**self.clone.env})
        self.clone.git("init", "-q", "--bare", "-b", "main", str(self.machine.remote))
        self.clone.git("remote", "add", "origin", f"file://{self.machine.remote}")
        self.clone.policy(POLICY)

    def push(self, kernel: str, tag: str = "") -> str:
        self.clone.write("kernels/adding.py", kernel)
        sha = self.clone.commit()
        if tag:
            self.clone.git("tag", tag)
        self.clone.git("push", "-q", "--tags", "origin", "main")
        return sha

    def night(self, text: str) -> dict[str, Job]:
        known = {"full_name": REPOSITORY, "default_branch": "main"}
        payload = {"ref": "refs/heads/main", "repository": known}
        return self.machine.deliver(text, "workflow_dispatch", payload)

    def nights(self) -> list[Night]:
        return nights_in(open_store("git:perfci-history", self.clone.root))


def test_init_writes_the_workflow_beside_a_policy_and_over_nothing(repo: Repo) -> None:
    run = repo.perfci("init", "--nightly")
    assert (run.code, "`perfci init` writes one" in run.err) == (2, True)
    repo.policy(POLICY)
    run = repo.perfci("init", "--nightly")
    assert run.code == 0 and "wrote  .github/workflows/perf-nightly.yml" in run.out
    assert (repo.root / ".github/workflows/perf-nightly.yml").read_text() == TEMPLATE.read_text()
    again = repo.perfci("init", "--nightly")
    assert (again.code, "is there already" in again.err) == (2, True)


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.timeout(900)
def test_nights_are_planned_measured_and_recorded_by_jobs_of_their_own(tmp_path: Path, hub: GitHub) -> None:
    main = Main(tmp_path, hub)
    release = main.push(adding(), "v1.0")
    first = main.night(workflow())
    assert [first[name].result for name in ("plan", "measure", "record", "alert")] == ["success"] * 4, "".join(
        job.log for job in first.values()
    )
    assert first["page"].result == first["calibrate"].result == "skipped"
    [one] = main.nights()
    assert (one.commit.sha, one.last, one.reference and one.reference.name) == (release, None, "v1.0")

    slower = main.push(adding(spin=4_000))
    second = main.night(workflow())
    assert [second[name].result for name in ("plan", "measure", "record", "alert")] == [
        "success",
        "failure",
        "success",
        "success",
    ], "".join(job.log for job in second.values())
    _, two = main.nights()
    assert (two.commit.sha, two.last and two.last.sha) == (slower, release)
    assert two.epoch == one.epoch
    [point] = [point for point in two.points if point.metric == "time"]
    assert point.reference is not None and point.reference.class_ == "regression"
    assert point.reference.ratio is not None and 1.2 < point.reference.ratio.ratio < 9
    assert point.reference.limit == 0.4
    assert point.last is not None and point.last.class_ == "unchanged"
    plan = json.loads(second["plan"].outputs["Plan"]["plan"])
    assert plan["last"]["sha"] == release and plan["reference"]["name"] == "v1.0"
    assert any("since the reference" in text for text in second["measure"].summaries)
