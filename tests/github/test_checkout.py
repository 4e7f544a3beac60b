"""Is the checkout fit, and does it hold the base: real repositories, real remotes, shallow clones as CI makes them."""

from pathlib import Path

import pytest

from perfci.github.checkout import BaseOfHead, bringing_nothing, changed_files, find_base, require_no_secret
from perfci.github.event import Context
from perfci.model.base import MachineError, UsageError
from perfci.model.publication import Origin
from perfci.sources.git import Repository
from tests.sources.repo import commit, find, git, init

TOKEN = "ghs_" + "a1B2" * 9


class Hub:
    """A repository on a server with `main`, a pull request from a branch, and GitHub's merge of the two."""

    def __init__(self, tmp_path: Path, commits: int = 1) -> None:
        self.tmp_path = tmp_path
        self.root = init(tmp_path / "hub", {"a.txt": "1"})
        self.fork_point = git(self.root, "rev-parse", "HEAD")
        git(self.root, "checkout", "-q", "-b", "$(id)")
        for number in range(commits):
            self.head = commit(self.root, {"docs/b.md": str(number)})
        git(self.root, "checkout", "-q", "main")
        for number in range(commits):
            self.main = commit(self.root, {"a.txt": f"2 {number}"})
        tree = git(self.root, "merge-tree", "--write-tree", self.main, self.head)
        self.merge = git(self.root, "commit-tree", tree, "-p", self.main, "-p", self.head, "-m", "Merge")
        git(self.root, "update-ref", "refs/pull/7/merge", self.merge)
        git(self.root, "update-ref", "refs/pull/7/head", self.head)

    def checkout(self, sha: str, depth: int) -> Path:
        """As actions/checkout does it: an empty repository, one fetch, a detached HEAD."""
        folder = self.tmp_path / f"checkout-{depth}-{sha[:6]}"
        folder.mkdir()
        git(folder, "init", "-q")
        git(folder, "remote", "add", "origin", f"file://{self.root}")
        whole = ["origin", "+refs/heads/*:refs/remotes/origin/*", sha]
        git(folder, "fetch", "-q", "--no-tags", *([f"--depth={depth}", "origin", sha] if depth else whole))
        git(folder, "checkout", "-q", "--detach", sha)
        return folder

    def pull_request(self, **fields) -> Context:
        origin = Origin(repository="o/r", pull_request=7, event="pull_request", head_sha=self.head, run_id=1)
        return Context(**{
            "origin": origin, "base": self.main, "merge_sha": self.merge, "trusted": True,
            "privileged": False, **fields,
        })  # fmt: skip

    def push(self, sha: str, base: str) -> Context:
        origin = Origin(repository="o/r", event="push", head_sha=sha, run_id=1)
        return Context(origin, base, None, trusted=True, privileged=False)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


def compared(repo: Repository, context: Context, asked: str = "") -> BaseOfHead:
    found = find_base(repo, context, asked)
    assert found is not None
    return found


def commits(repo: Repository) -> int:
    """How many commits lie in the object store."""
    objects = repo.git("cat-file", "--batch-all-objects", "--batch-check").stdout.decode()
    return sum(line.split()[1] == "commit" for line in objects.splitlines())


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_merge_commit_is_compared_with_its_first_parent(hub: Hub, depth: int) -> None:
    repo = find(hub.checkout(hub.merge, depth))
    before = commits(repo)
    found = compared(repo, hub.pull_request())
    assert (found.merge, found.ref, found.base.sha) == (True, None, hub.main)
    assert commits(repo) - before == (1 if depth == 1 else 0)  # the base and nothing more, and that only where it lacks
    assert changed_files(repo, found.base.sha) == ["docs/b.md"]


@pytest.mark.slow
def test_a_head_checked_out_by_itself_is_compared_with_the_merge_base(tmp_path: Path) -> None:
    hub = Hub(tmp_path, commits=60)
    found = compared(find(hub.checkout(hub.head, 1)), hub.pull_request())
    assert (found.merge, found.base.sha) == (False, hub.fork_point)


def test_a_whole_clone_stays_whole(hub: Hub) -> None:
    repo = find(hub.checkout(hub.head, 0))
    assert compared(repo, hub.pull_request(base="refs/heads/main")).base.sha == hub.fork_point
    assert not repo.is_shallow()


def test_a_branch_of_an_earlier_job_on_the_runner_is_fetched_anew(hub: Hub) -> None:
    folder = hub.checkout(hub.merge, 0)
    git(folder, "update-ref", "refs/remotes/origin/main", hub.fork_point)
    assert compared(find(folder), hub.push(hub.merge, "refs/heads/main")).base.sha == hub.main


def test_what_is_asked_for_takes_the_place_of_the_events_base(hub: Hub) -> None:
    git(hub.root, "tag", "v1", hub.fork_point)
    for depth, asked in ((1, "main"), (2, hub.main)):
        assert compared(find(hub.checkout(hub.merge, depth)), hub.pull_request(), asked).base.sha == hub.main
    repo = find(hub.checkout(hub.merge, 0))
    git(repo.root, "fetch", "-q", "origin", "tag", "v1")
    found = compared(repo, hub.pull_request(), "v1")
    assert (found.ref, found.base.sha) == ("v1", hub.fork_point)
    assert find_base(repo, hub.pull_request(), "none") is None


def test_a_head_whose_commits_base_holds_brings_nothing(hub: Hub) -> None:
    """A new branch, also by hand; a branch put back; a pull request whose head is checked out, or GitHub's merge of it."""
    tip, older = find(hub.checkout(hub.main, 0)), find(hub.checkout(hub.fork_point, 0))
    new, back = hub.push(hub.main, "refs/heads/main"), hub.push(hub.fork_point, hub.main)
    held = hub.pull_request(origin=back.origin.model_copy(update={"pull_request": 7}))
    for repo, context, asked in (
        (tip, new, ""),
        (tip, hub.push(hub.main, ""), "main"),
        (older, back, ""),
        (older, held, ""),
    ):
        assert bringing_nothing(repo, context, compared(repo, context, asked), asked) == context.origin.head_sha
    merged = find(hub.checkout(hub.merge, 0))
    assert (
        bringing_nothing(merged, held, BaseOfHead(None, True, merged.resolve_base("main", pull_request=True)))
        == hub.fork_point
    )
    own = hub.pull_request()
    assert bringing_nothing(merged, own, compared(merged, own)) is None
    assert bringing_nothing(tip, new, compared(tip, new, hub.main), hub.main) is None, "asked for by its hash"


def test_without_a_base_nothing_is_fetched(hub: Hub) -> None:
    repo = find(hub.checkout(hub.main, 1))
    assert find_base(repo, hub.push(hub.main, "")) is None
    assert commits(repo) == 1


def test_another_commit_than_the_events_is_refused(hub: Hub) -> None:
    with pytest.raises(UsageError, match=r"neither the commit .* nor its merge with the base"):
        find_base(find(hub.checkout(hub.fork_point, 1)), hub.pull_request())
    moved = hub.pull_request(origin=hub.pull_request().origin.model_copy(update={"head_sha": "c" * 40}))
    with pytest.raises(UsageError, match="run the workflow anew"):
        find_base(find(hub.checkout(hub.merge, 2)), moved)


def test_a_base_that_cannot_be_had_says_what_to_check_out(hub: Hub) -> None:
    folder = hub.checkout(hub.merge, 1)
    git(folder, "remote", "set-url", "origin", "file:///nonexistent")
    with pytest.raises(MachineError, match="check out with `fetch-depth: 2`") as raised:
        find_base(find(folder), hub.pull_request())
    assert "\n" not in str(raised.value)


def test_the_head_of_a_fork_is_found_in_the_base_repository(tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    fork = tmp_path / "fork"
    git(tmp_path, "clone", "-q", f"file://{hub.root}", "fork")
    git(fork, "checkout", "-q", "-b", "theirs", "origin/main")
    theirs = commit(fork, {"c.txt": "3"})
    git(hub.root, "fetch", "-q", f"file://{fork}", "+refs/heads/theirs:refs/pull/8/head")
    repo = find(hub.checkout(theirs, 1))
    origin = Origin(repository="o/r", pull_request=8, event="pull_request", head_sha=theirs, fork=True, run_id=1)
    assert compared(repo, hub.pull_request(origin=origin, merge_sha="d" * 40)).base.sha == hub.main


def test_no_hook_and_no_monitor_runs(hub: Hub, tmp_path: Path) -> None:
    folder = hub.checkout(hub.merge, 1)
    ran = tmp_path / "ran"
    for name in ("reference-transaction", "post-checkout", "pre-auto-gc"):
        hook = folder / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
        hook.chmod(0o755)
    git(folder, "config", "core.fsmonitor", f"touch {ran}")
    repo = find(folder)
    compared(repo, hub.pull_request())
    changed_files(repo, hub.main)
    assert not ran.exists()


SECRETS = {
    "header": lambda git, folder: git("config", "http.https://github.com/.extraheader", "AUTHORIZATION: basic eDp5"),
    "url": lambda git, folder: git("config", "remote.origin.url", f"https://x-access-token:{TOKEN}@github.com/o/r"),
    "instead": lambda git, folder: git("config", f"url.https://{TOKEN}@github.com/.insteadOf", "git@github.com:"),
    "worktree": lambda git, folder: (
        git("config", "extensions.worktreeConfig", "true"),
        git("config", "--worktree", "http.extraheader", "Authorization: bearer x"),
    ),
    "conditional include": lambda git, folder: (
        (folder.parent / "credentials.config").write_text(f"[http]\n\textraheader = AUTHORIZATION: bearer {TOKEN}\n"),
        git("config", "includeIf.gitdir:/github/workspace/.git.path", str(folder.parent / "credentials.config")),
    ),
    "store": lambda git, folder: git("config", "credential.helper", "store --file /tmp/x"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SECRETS)
def test_a_checkout_that_holds_a_secret_is_refused_and_the_secret_not_shown(hub: Hub, kind: str) -> None:
    folder = hub.checkout(hub.merge, 2)
    require_no_secret(folder)
    SECRETS[kind](lambda *args: git(folder, *args), folder)
    with pytest.raises(UsageError, match="persist-credentials: false") as raised:
        require_no_secret(folder)
    assert TOKEN not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_configuration_that_cannot_be_read_is_no_pass(hub: Hub) -> None:
    folder = hub.checkout(hub.merge, 2)
    module = folder / ".git" / "modules" / "sub"
    module.mkdir(parents=True)
    (module / "HEAD").write_text("ref: refs/heads/main\n")
    (module / "config").write_text("[broken\n")
    with pytest.raises(UsageError, match="cannot read"):
        require_no_secret(folder)
