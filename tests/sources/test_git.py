"""Finding the repository, its commits and base: what perfci compares, in every clone people and CI have."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.sources.git import Repository, git_environment, means_itself, run_git
from tests.errors import refused
from tests.sources.repo import ENV, commit, find, fingerprint, git, init, write

FILES = {"perfci.yaml": "version: 1\n", "src/a.py": "a = 1\n"}


@pytest.mark.parametrize("name", ["plain", "with space", "zwei\nZeilen", "größe-日本", " lead", "a'b\"c"])
def test_a_repository_is_found_from_its_top_from_below_and_from_a_file_whatever_its_name(tmp_path: Path, name: str):
    root = init(tmp_path / name, FILES)
    for place in (root, root / "src", root / "src/a.py"):
        repo = find(place)
        assert repo.root == root.resolve()
        assert repo.git_dir == repo.common_dir == root.resolve() / ".git"
        assert repo.read("HEAD", "src/a.py") == b"a = 1\n"


def test_a_linked_worktree_and_a_submodule_are_repositories_of_their_own(tmp_path: Path):
    main = init(tmp_path / "main", FILES)
    git(main, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    linked = find(tmp_path / "linked" / "src")
    assert (linked.root, linked.common_dir) == (tmp_path / "linked", main / ".git")
    assert (linked.git_dir, linked.head_commit().ref) == (main / ".git/worktrees/linked", "side")

    outer = init(tmp_path / "outer", {"x": "x"})
    git(outer, "submodule", "add", "-q", str(main), "deps/sub")
    sub = find(outer / "deps/sub/src")
    assert (sub.root, sub.git_dir) == (outer / "deps/sub", outer / ".git/modules/deps/sub")


def test_outside_git_there_is_no_repository_and_half_a_repository_is_an_error_of_one_line(tmp_path: Path):
    assert Repository.find(tmp_path) is None
    with refused("no such folder"):
        Repository.find(tmp_path / "gone" / "file")

    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    with refused("bare repository"):
        Repository.find(bare)

    init(tmp_path / "work", FILES)
    with refused("working tree"):
        Repository.find(tmp_path / "work/.git")

    # What a container sees that mounts a linked worktree or a submodule alone.
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/.git").write_text("gitdir: /nowhere/.git/worktrees/x\n")
    with refused("/nowhere/.git/worktrees/x", "mount"):
        Repository.find(tmp_path / "torn")


def test_without_git_a_plain_folder_is_fine_and_a_repository_says_what_to_install(tmp_path: Path, monkeypatch):
    root = init(tmp_path / "work", FILES)
    (tmp_path / "plain").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "plain"))
    assert Repository.find(tmp_path / "plain") is None
    with refused("install git"):
        Repository.find(root / "src")


def test_a_caller_bound_to_another_repository_does_not_mislead(tmp_path: Path, monkeypatch):
    """perfci run from a git hook or alias finds GIT_DIR and friends in its environment."""
    other = init(tmp_path / "other", {"b": "b"})
    root = init(tmp_path / "work", FILES)
    for name, value in (("GIT_DIR", ".git"), ("GIT_WORK_TREE", "."), ("GIT_INDEX_FILE", ".git/index")):
        monkeypatch.setenv(name, str(other / value))
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    repo = find(root)
    assert repo.root == root
    assert not repo.is_dirty(exclude=[root / "out"])
    assert "GIT_DIR" not in git_environment(os.environ)


def test_a_repository_of_another_user_is_read(tmp_path: Path):
    """The container runs as root on a folder of the caller's."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")  # as CI does: no other way makes a file of another user
    root = init(tmp_path / "work", FILES)
    for path in (root, *root.rglob("*")):
        os.chown(path, 12345, 12345)
    assert find(root).head_commit() and not find(root).is_dirty()


def test_hooks_and_monitors_of_the_repository_do_not_run(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    trap = root / ".git/hooks/trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    trap.chmod(0o755)
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        shutil.copy(trap, trap.with_name(name))
    git(root, "config", "core.fsmonitor", str(trap))
    write(root, {"src/a.py": "a = 2\n"})
    repo = find(root)
    assert repo.is_dirty()
    assert repo.resolve_base("HEAD", False)
    assert not (tmp_path / "ran").exists()


def test_reading_writes_nothing_into_the_repository(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    os.utime(root / "src/a.py", (1, 1))  # git status would refresh its index now
    before = fingerprint(root)
    repo = find(root)
    repo.is_dirty()
    repo.resolve_base(None, False)
    repo.read("HEAD", "src/a.py")
    assert fingerprint(root) == before


def test_head_is_named_after_its_branch_detached_or_unborn(tmp_path: Path):
    root = init(tmp_path / "work")
    assert find(root).head_commit() is None
    with refused("no commit yet"):
        find(root).resolve_base(None, False)
    assert find(root).is_dirty() is False
    sha = commit(root, FILES, "größer | `x`\n\nmore")
    head = find(root).head_commit()
    assert (head.ref, head.sha, head.subject) == ("main", sha, "größer | `x`")
    git(root, "checkout", "-q", "--detach")
    assert find(root).head_commit().ref == "HEAD"


def test_a_revision_is_a_branch_a_tag_a_hash_or_a_branch_of_origin(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    first = git(root, "rev-parse", "HEAD")
    git(root, "tag", "-a", "v1", "-m", "tag")
    git(root, "update-ref", "refs/remotes/origin/release", first)
    second = commit(root, {"b": "b"})
    repo = find(root)
    assert repo.commit("main").sha == repo.commit("HEAD").sha == second
    assert repo.commit("v1").sha == repo.commit("HEAD~1").sha == repo.commit(first[:9]).sha == first
    assert repo.commit("release").ref == "origin/release"
    assert repo.commit("release").sha == first


ALL = "`git fetch --tags origin '+refs/heads/*:refs/remotes/origin/*'`"


@pytest.mark.parametrize("rev", ["nope", "HEAD~7", "HEAD:src/a.py", "main..HEAD", "a`touch pwned`", "0" * 40])
def test_an_unknown_revision_says_what_to_type(tmp_path: Path, rev: str):
    root = init(tmp_path / "work", FILES)
    git(root, "remote", "add", "origin", "nowhere")
    with refused(repr(rev), f"`git fetch --tags origin {rev}`" if rev.isdigit() else ALL):
        find(root).resolve_base(rev, False)


def test_of_a_mistyped_branch_the_nearest_is_told_and_no_remote_that_is_not_there(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    with refused("'mian': no such branch, tag or commit here: did you mean 'main'? Else see `git branch"):
        find(root).resolve_base("mian", False)


@pytest.mark.parametrize("rev", ["", "--all", "-h", "a\nb", "a\x00b"])
def test_what_cannot_name_a_commit_never_reaches_git_as_an_option(tmp_path: Path, rev: str):
    root = init(tmp_path / "work", FILES)
    with refused("no name of a commit"):
        find(root).commit(rev)


def test_only_head_and_its_hash_can_mean_nothing_else():
    sha = "beefcafe" + "0" * 32
    for rev in ("HEAD", "@", "HEAD~0", "@^0", "HEAD^{commit}^{}", sha, "beef", "BEEFCAFE0"):
        assert means_itself(rev, sha), rev
    for rev in ("main", "head", "HEAD~1", "HEAD^", "HEAD@{1}", "HEADS", "origin/HEAD", "bee", "beefcafe1", "cafe", ""):
        assert not means_itself(rev, sha), rev


def test_base_is_the_merge_base_not_the_tip_of_the_branch(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    fork = git(root, "rev-parse", "HEAD")
    git(root, "checkout", "-q", "-b", "topic")
    commit(root, {"t": "t"})
    git(root, "checkout", "-q", "main")
    commit(root, {"m": "m"}, "moved on")
    git(root, "checkout", "-q", "topic")
    base = find(root).resolve_base("main", False)
    assert (base.ref, base.sha, base.subject) == ("main", fork, "a change")


def test_for_a_pull_request_the_base_of_a_merge_commit_is_its_first_parent(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    git(root, "checkout", "-q", "-b", "topic")
    topic = commit(root, {"t": "t"})
    git(root, "checkout", "-q", "main")
    tip = commit(root, {"m": "m"}, "tip of main")
    git(root, "checkout", "-q", "--detach")
    git(root, "merge", "-q", "--no-ff", "-m", "Merge topic into main", "topic")
    repo = find(root)
    base = repo.resolve_base("topic", True)
    assert (base.ref, base.sha, base.subject) == ("HEAD^1", tip, "tip of main")
    assert repo.resolve_base("topic", False).sha == topic
    git(root, "checkout", "-q", "topic")
    assert repo.resolve_base("main", True).ref == "main"


def test_without_a_name_base_is_the_default_branch_of_origin_then_main_or_master(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    sha = git(root, "rev-parse", "HEAD")
    git(root, "checkout", "-q", "-b", "topic")
    commit(root, {"t": "t"})
    repo = find(root)
    assert repo.resolve_base(None, False).ref == "main"
    git(root, "branch", "-q", "-m", "main", "master")
    assert repo.resolve_base(None, False).ref == "master"
    git(root, "update-ref", "refs/remotes/origin/main", sha)
    assert repo.resolve_base(None, False).ref == "origin/main"
    git(root, "update-ref", "refs/remotes/origin/trunk", sha)
    git(root, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    base = repo.resolve_base(None, False)
    assert (base.ref, base.sha) == ("origin/trunk", sha)
    git(root, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/gone")
    assert repo.resolve_base(None, False).ref == "origin/main"
    git(root, "update-ref", "-d", "refs/remotes/origin/main")
    git(root, "branch", "-q", "-D", "master")
    with refused("name one, such as perfci compare REF"):
        repo.resolve_base(None, False)


def test_unrelated_histories_have_no_base(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    git(root, "checkout", "-q", "--orphan", "other")
    commit(root, {"o": "o"})
    with refused("no common commit") as said:
        find(root).resolve_base("main", False)
    assert "shallow" not in str(said.value)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """`main` with the tags v1 and v2, `rel` beside it, a commit that is on no branch, and a pull request's merge."""
    root = init(tmp_path / "origin", FILES)
    for name in "abcd":
        commit(root, {name: name})
    git(root, "tag", "v1", "HEAD~1")
    git(root, "tag", "-a", "-m", "two", "v2", "HEAD~2")
    git(root, "checkout", "-q", "-b", "rel", "HEAD~1")
    commit(root, {"r": "r"})
    git(root, "checkout", "-q", "--detach")
    git(root, "update-ref", "refs/loose", commit(root, {"l": "l"}))
    git(root, "checkout", "-q", "--detach", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "merge", "rel")
    git(root, "update-ref", "refs/pull/1/merge", "HEAD")
    git(root, "checkout", "-q", "main")
    return root


def advised(clone: Path, rev: str | None, *, pull_request: bool = False) -> str:
    """Type the command that perfci advises for this base in `clone`. Return it."""
    with refused() as said:
        find(clone).resolve_base(rev, pull_request)
    found = re.search(r"run `(git fetch [^`]*)`", str(said.value))
    assert found, said.value
    done = subprocess.run(["sh", "-c", found[1]], cwd=clone, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return found[1]


BASES = ["rel", "origin/rel", "rel~1", "v1", "v2", "HEAD~1", "HEAD^", "main~3", "short", "whole", "loose"]


CLONES = {
    "--depth=1": BASES,
    "--depth=2": ["HEAD~1", "rel~1", "short"],
    "--single-branch": ["rel", "v2", "loose", "main~3"],
    "--depth=1 --no-single-branch": ["rel"],
}
"""What a clone was given → bases; the last has this one, and no commit where it parts from head."""


@pytest.mark.parametrize(("kind", "rev"), [(kind, rev) for kind, bases in CLONES.items() for rev in bases])
def test_the_command_that_a_clone_is_told_to_run_gets_the_base(tmp_path: Path, origin: Path, rev: str, kind: str):
    named = {"short": "rel~1", "whole": "rel", "loose": "refs/loose"}
    rev = git(origin, "rev-parse", *(["--short"] if rev == "short" else []), named[rev]) if rev in named else rev
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", *kind.split(), f"file://{origin}", "clone")
    try:
        expected = find(clone).resolve_base(rev, False).sha
    except UsageError:
        advised(clone, rev)
        expected = git(origin, "merge-base", "main", rev.removeprefix("origin/").replace("HEAD", "main"))
    assert find(clone).resolve_base(rev, False).sha == expected


def test_what_is_nowhere_is_no_commit_once_the_clone_is_whole(tmp_path: Path, origin: Path):
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", "clone")
    advised(clone, "no-such-thing")
    with refused("no such branch, tag or commit here") as said:
        find(clone).resolve_base("no-such-thing", False)
    assert "shallow" not in str(said.value)


def test_a_shallow_clone_without_origin_is_told_no_command(tmp_path: Path, origin: Path):
    git(tmp_path, "clone", "-q", "--depth=1", "-o", "upstream", f"file://{origin}", "clone")
    with refused("clone without `--depth`, or check out with `fetch-depth: 0`"):
        find(tmp_path / "clone").resolve_base("rel", False)


def test_the_base_of_a_merge_commit_that_is_on_no_branch(tmp_path: Path, origin: Path):
    """As actions/checkout leaves a pull request with `fetch-depth: 1`."""
    clone = init(tmp_path / "clone")
    git(clone, "remote", "add", "origin", f"file://{origin}")
    git(clone, "fetch", "-q", "--depth=1", "origin", "+refs/pull/1/merge:refs/remotes/pull/1/merge")
    git(clone, "checkout", "-q", "--detach", "refs/remotes/pull/1/merge")
    advised(clone, None, pull_request=True)
    assert find(clone).resolve_base(None, True).sha == git(origin, "rev-parse", "main")


def test_a_file_of_a_commit_is_read_as_it_was(tmp_path: Path):
    content = bytes(range(256)) * 300
    odd = 'ünï "q" *?[x].yaml'
    root = init(tmp_path / "tree", {"perfci.yaml": content, odd: "odd", "sub/x": "x", "empty": ""})
    (root / "link.yaml").symlink_to("sub/x")
    (root / "outside").symlink_to("/etc/passwd")
    sha = commit(root)
    write(root, {"perfci.yaml": "changed"})
    repo = find(root)
    assert repo.read(sha, "perfci.yaml") == content
    assert repo.read(sha, odd) == b"odd"
    assert repo.read(sha, "empty") == b""
    assert repo.read(sha, "link.yaml") == b"x"
    for absent in ("gone", "sub", "outside", "perfci.yaml/x", "/etc/passwd"):
        assert repo.read(sha, absent) is None


def test_dirty_means_modified_staged_deleted_or_untracked_but_not_ignored_or_left_out(tmp_path: Path):
    root = init(tmp_path / "work", {**FILES, ".gitignore": "*.log\n"})
    repo = find(root)
    out = root / "perfci-out"
    write(root, {"x.log": "ignored", "perfci-out/results.json": "{}"})
    assert repo.is_dirty()
    assert not repo.is_dirty(exclude=[out])
    for change in ({"src/a.py": "a = 3\n"}, {"src/new.py": ""}):
        write(root, change)
        assert repo.is_dirty(exclude=[out])
        git(root, "stash", "-q", "-u")
    write(root, {"perfci-out/results.json": "{}"})
    assert not repo.is_dirty(exclude=[out, tmp_path / "elsewhere", root])
    git(root, "rm", "-q", "--cached", "src/a.py")
    assert repo.is_dirty(exclude=[out])
    git(root, "reset", "-q", "--hard")
    (root / "src/a.py").unlink()
    assert repo.is_dirty(exclude=[out])


def test_a_filter_that_is_configured_but_not_installed_does_not_stop_the_look(tmp_path: Path):
    """A container without git-lfs sees the caller's `.git/config`."""
    root = init(tmp_path / "work", {**FILES, ".gitattributes": "*.bin filter=lfs\n", "w.bin": "weights"})
    git(root, "config", "filter.lfs.process", "no-such-git-lfs filter-process")
    git(root, "config", "filter.lfs.required", "true")
    os.utime(root / "w.bin", (1, 1))
    assert not find(root).is_dirty()


def test_a_git_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch):
    fake = tmp_path / "bin/git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    with refused("git status: took longer than 0.3 s", by=MachineError):
        run_git(["status"], cwd=tmp_path, timeout=0.3)


def test_what_git_complains_of_is_one_line(tmp_path: Path):
    root = init(tmp_path / "work", FILES)
    (root / ".git/config").write_text("[broken\n")
    with refused("bad config", by=PerfciError):
        find(root)
