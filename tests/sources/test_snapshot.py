"""Snapshots: a side holds exactly the files of its commit or working tree, and taking it disturbs nothing."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from perfci.model.base import MachineError
from perfci.sources import snapshot
from perfci.sources.snapshot import MTIME, Suite, snapshot_commit, snapshot_folder, snapshot_worktree
from tests.errors import refused
from tests.sources.repo import ENV, commit, find, fingerprint, git, init, lfs_pointer, lfs_store, tree, write

ODD = {
    "plain.py": "1",
    "with space/a b": "2",
    "new\nline/x\ny": "3",
    "ünï/日本": "4",
    "-dash": "5",
    "*[glob]?": "6",
    ".hidden/.x": "7",
    "empty": "",
}


def with_links_and_modes(root: Path) -> str:
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("plain.py")
    (root / "folder-link").symlink_to("ünï")
    (root / "dangling").symlink_to("gone")
    (root / "absolute").symlink_to("/etc/hostname")
    return commit(root)


def with_submodules(tmp_path: Path) -> Path:
    """`outer` with the submodule `deps/sub`, which has the submodule `inner`."""
    inner = init(tmp_path / "inner-origin", {"deep.h": "deep 1\n"})
    sub = init(tmp_path / "sub-origin", {"sub.h": "sub 1\n"})
    git(sub, "submodule", "add", "-q", str(inner), "inner")
    commit(sub)
    outer = init(tmp_path / "outer", {"main.py": "1\n"})
    git(outer, "submodule", "add", "-q", str(sub), "deps/sub")
    git(outer, "submodule", "update", "-q", "--init", "--recursive")
    commit(outer)
    return outer


SUBMODULE_FILES = {"main.py": "1\n", "deps/sub/sub.h": "sub 1\n", "deps/sub/inner/deep.h": "deep 1\n"}


TAKES: dict[str, Callable[[Path, Path], str]] = {
    "commit": lambda root, target: snapshot_commit(find(root), git(root, "rev-parse", "HEAD"), target),
    "worktree": lambda root, target: snapshot_worktree(find(root), target),
    "folder": snapshot_folder,
}


def alike(root: Path, tmp_path: Path) -> Path:
    """The tree of HEAD's commit, which is that of the working tree."""
    assert TAKES["commit"](root, tmp_path / "one") == TAKES["worktree"](root, tmp_path / "two")
    return tmp_path / "one"


def sources(folder: Path) -> dict[str, str]:
    return {name: content for name, content in tree(folder).items() if not name.endswith(".gitmodules")}


def test_a_commit_is_written_with_odd_names_links_and_modes(tmp_path: Path):
    root = init(tmp_path / "a b\nc", ODD)
    sha = with_links_and_modes(root)
    snapshot_commit(find(root), sha, tmp_path / "tree")
    assert tree(tmp_path / "tree") == ODD | {
        "run.sh": "x:#!/bin/sh\n",
        "link": "-> plain.py",
        "folder-link": "-> ünï",
        "dangling": "-> gone",
        "absolute": "-> /etc/hostname",
    }


def test_commit_and_clean_working_tree_have_one_digest(tmp_path: Path):
    """So that a run on a clean tree and one on the commit can be told to be the same code."""
    root = init(tmp_path / "work", ODD | {".gitignore": "*.log\n"})
    sha = with_links_and_modes(root)
    write(root, {"build.log": "ignored"})
    commit_snapshot = snapshot_commit(find(root), sha, tmp_path / "one")
    old = os.umask(0o077)
    try:
        worktree_snapshot = snapshot_worktree(find(root), tmp_path / "two")
    finally:
        os.umask(old)
    assert commit_snapshot == worktree_snapshot
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    for side in (tmp_path / "one", tmp_path / "two"):
        assert (side / "plain.py").stat().st_mode & 0o777 == 0o644
        assert {path.lstat().st_mtime for path in side.glob("*") if not path.is_dir()} == {MTIME}


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: (root / "plain.py").write_text("2"),
    "mode": lambda root: (root / "plain.py").chmod(0o755),
    "name": lambda root: (root / "plain.py").rename(root / "Plain.py"),
    "link": lambda root: ((root / "link").unlink(), (root / "link").symlink_to("empty")),
    "added": lambda root: (root / "untracked").touch(),
    "removed": lambda root: (root / "empty").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_changes_the_digest(tmp_path: Path, change: str):
    root = init(tmp_path / "work", ODD)
    before = snapshot_commit(find(root), with_links_and_modes(root), tmp_path / "one")
    CHANGES[change](root)
    assert snapshot_worktree(find(root), tmp_path / "two") != before


def test_a_dirty_tree_is_taken_as_it_is(tmp_path: Path):
    files = dict.fromkeys(["mod", "gone", "removed", "was/dir", "swapped/x"], "1")
    root = init(tmp_path / "work", files | {".gitignore": "*.o\n"})
    write(root, {"mod": "2", "staged": "s1", "new/untracked": "u", "x.o": "ignored", "perfci-out/r.json": "{}"})
    git(root, "add", "staged")
    write(root, {"staged": "s2"})
    (root / "gone").unlink()
    git(root, "rm", "-q", "removed")
    shutil.rmtree(root / "was")
    (root / "was").write_text("a file now")
    shutil.rmtree(root / "swapped")
    write(root, {"elsewhere/x": "through a link"})
    (root / "swapped").symlink_to("elsewhere")
    os.mkfifo(root / "pipe")
    snapshot_worktree(find(root), tmp_path / "tree", exclude=[root / "perfci-out"])
    assert tree(tmp_path / "tree") == {
        ".gitignore": "*.o\n",
        "mod": "2",
        "staged": "s2",
        "new/untracked": "u",
        "was": "a file now",
        "elsewhere/x": "through a link",
        "swapped": "-> elsewhere",
    }


def test_the_excluded_folder_and_the_target_itself_stay_out_even_when_tracked(tmp_path: Path):
    root = init(tmp_path / "work", {"a": "1", "out/results.json": "{}", "outer/b": "2"})
    target = root / "scratch/head/tree"
    snapshot_worktree(find(root), target, exclude=[root / "out"])
    assert tree(target) == {"a": "1", "outer/b": "2"}


def test_a_tree_in_the_middle_of_a_merge_conflict_is_taken_once(tmp_path: Path):
    root = init(tmp_path / "work", {"a": "1"})
    git(root, "checkout", "-q", "-b", "topic")
    commit(root, {"a": "2"})
    git(root, "checkout", "-q", "main")
    commit(root, {"a": "3"})
    # With an identity of its own: where the caller has none, git refuses before it merges.
    merge = subprocess.run(["git", "merge", "topic"], cwd=root, env=ENV, capture_output=True, text=True, check=False)
    assert merge.returncode == 1 and "CONFLICT (content)" in merge.stdout, merge.stdout + merge.stderr
    snapshot_worktree(find(root), tmp_path / "tree")
    assert list(tree(tmp_path / "tree")) == ["a"]
    assert "<<<<<<<" in tree(tmp_path / "tree")["a"]


def test_a_repository_without_commits_has_a_working_tree(tmp_path: Path):
    root = init(tmp_path / "work")
    write(root, {"a": "1"})
    snapshot_worktree(find(root), tmp_path / "tree")
    assert tree(tmp_path / "tree") == {"a": "1"}


def test_other_worktrees_inside_the_tree_stay_out_and_clones_inside_it_come_along(tmp_path: Path):
    main = init(tmp_path / "main", {"a": "1"})
    git(main, "worktree", "add", "-q", "-b", "side", str(main / "trees/side"))
    init(main / "third_party/lib", {"lib.h": "h", ".gitignore": "*.o\n"})
    write(main, {"third_party/lib/new.h": "n", "third_party/lib/x.o": "o"})
    snapshot_worktree(find(main), tmp_path / "tree")
    assert tree(tmp_path / "tree") == {
        "a": "1",
        "third_party/lib/lib.h": "h",
        "third_party/lib/new.h": "n",
        "third_party/lib/.gitignore": "*.o\n",
    }


def test_what_a_sparse_checkout_left_out_comes_from_head(tmp_path: Path):
    root = init(tmp_path / "work", {"a": "1", "wide/b": "2", "kept/c": "3", "new\nline/d": "4"})
    sha = git(root, "rev-parse", "HEAD")
    for sparse_index in ("--no-sparse-index", "--sparse-index"):
        git(root, "sparse-checkout", "set", "--cone", sparse_index, "kept")
        assert not (root / "wide").exists()
        repo = find(root)
        assert not repo.is_dirty()
        one = snapshot_commit(repo, sha, tmp_path / f"one{sparse_index}")
        two = snapshot_worktree(repo, tmp_path / f"two{sparse_index}")
        assert one == two
        assert len(tree(tmp_path / f"one{sparse_index}")) == 4


def test_a_file_system_without_modes_takes_them_from_git(tmp_path: Path):
    root = init(tmp_path / "work", {"run.sh": "#!/bin/sh\n", "a": "1"})
    (root / "run.sh").chmod(0o755)
    commit(root)
    git(root, "config", "core.fileMode", "false")
    (root / "run.sh").chmod(0o644)
    (root / "a").chmod(0o777)
    alike(root, tmp_path)


def test_attributes_are_those_of_the_snapshot_not_of_the_working_tree(tmp_path: Path):
    """A pull request that changes line endings must not change them in base."""
    root = init(tmp_path / "work", {".gitattributes": "*.txt text eol=crlf\n", "a.txt": "1\n2\n"})
    base = git(root, "rev-parse", "HEAD")
    commit(root, {".gitattributes": "*.txt text eol=lf\n"})
    snapshot_commit(find(root), base, tmp_path / "tree")
    assert (tmp_path / "tree/a.txt").read_bytes() == b"1\r\n2\r\n"


def test_taking_snapshots_writes_nothing_into_the_repository(tmp_path: Path):
    """It may be mounted read-only, or belong to somebody who is committing right now."""
    root = with_submodules(tmp_path)
    first = git(root, "rev-parse", "HEAD~1")
    git(root, "config", "core.splitIndex", "true")
    for name in ("post-checkout", "post-index-change"):
        hook = root / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
    os.utime(root / "main.py", (1, 1))
    before = fingerprint(root)
    repo = find(root)
    snapshot_commit(repo, git(root, "rev-parse", "HEAD"), tmp_path / "one")
    snapshot_commit(repo, first, tmp_path / "two")
    snapshot_worktree(repo, tmp_path / "three")
    assert fingerprint(root) == before
    assert not (tmp_path / "ran").exists()


def test_a_read_only_repository_can_be_measured(tmp_path: Path):
    root = with_submodules(tmp_path)
    mounted = subprocess.run(
        ["sh", "-c", f"mount --bind '{root}' '{root}' && mount -o remount,bind,ro '{root}'"],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("bind mounts are not allowed here")  # to root, as in CI, chmod alone would forbid nothing
    try:
        with pytest.raises(OSError):
            (root / "x").touch()
        alike(root, tmp_path)
    finally:
        subprocess.run(["umount", str(root)], check=True)


def test_each_commit_gets_its_own_commit_of_a_submodule_and_the_tree_gets_its_changes(tmp_path: Path):
    root = with_submodules(tmp_path)
    base = git(root, "rev-parse", "HEAD")
    commit(root / "deps/sub/inner", {"deep.h": "deep 2\n"})
    commit(root / "deps/sub", {"sub.h": "sub 2\n"})
    head = commit(root)
    write(root, {"deps/sub/sub.h": "sub 3\n", "deps/sub/new.h": "new\n"})
    repo = find(root)
    assert repo.is_dirty()
    snapshot_commit(repo, base, tmp_path / "base")
    snapshot_commit(repo, head, tmp_path / "head")
    snapshot_worktree(repo, tmp_path / "tree")
    assert sources(tmp_path / "base") == SUBMODULE_FILES
    newer = SUBMODULE_FILES | {"deps/sub/sub.h": "sub 2\n", "deps/sub/inner/deep.h": "deep 2\n"}
    assert sources(tmp_path / "head") == newer
    dirty = newer | {"deps/sub/sub.h": "sub 3\n", "deps/sub/new.h": "new\n"}
    assert sources(tmp_path / "tree") == dirty


def test_a_submodule_that_head_moved_or_dropped_is_found_for_base(tmp_path: Path):
    root = with_submodules(tmp_path)
    base = git(root, "rev-parse", "HEAD")
    git(root, "mv", "deps/sub", "vendor")
    moved = commit(root)
    git(root, "rm", "-q", "-f", "vendor")
    commit(root)
    repo = find(root)
    snapshot_commit(repo, base, tmp_path / "base")
    snapshot_commit(repo, moved, tmp_path / "moved")
    assert sources(tmp_path / "base") == SUBMODULE_FILES
    assert tree(tmp_path / "moved")["vendor/inner/deep.h"] == "deep 1\n"


def test_a_submodule_with_its_own_git_folder_inside_is_filled_in(tmp_path: Path):
    lib = init(tmp_path / "work/lib", {"lib.h": "h"})
    root = tmp_path / "work"
    git(root, "init", "-q")
    git(root, "-c", "advice.addEmbeddedRepo=false", "submodule", "add", "-q", str(lib), "lib")
    commit(root, {"a": "1"})
    assert (lib / ".git").is_dir()
    assert tree(alike(root, tmp_path))["lib/lib.h"] == "h"


def test_submodules_of_a_linked_worktree_are_filled_in(tmp_path: Path):
    root = with_submodules(tmp_path)
    linked = tmp_path / "linked"
    git(root, "worktree", "add", "-q", "-b", "side", str(linked))
    # Its submodules are not checked out; their commits lie in the main repository.
    assert sources(alike(linked, tmp_path)) == SUBMODULE_FILES
    git(linked, "submodule", "update", "-q", "--init", "--recursive")
    snapshot_worktree(find(linked), tmp_path / "three")
    assert tree(tmp_path / "three") == tree(tmp_path / "one")


def test_a_submodule_that_was_never_fetched_is_named_with_the_command_that_gets_it(tmp_path: Path):
    outer = with_submodules(tmp_path)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(outer), str(clone))
    repo = find(clone)
    for kind in ("commit", "worktree"):
        with refused("submodule deps/sub", "git submodule update --init --recursive"):
            TAKES[kind](clone, tmp_path / "tree")
        shutil.rmtree(tmp_path / "tree")
    git(clone, "submodule", "update", "-q", "--init")
    with refused("submodule deps/sub/inner"):
        snapshot_worktree(repo, tmp_path / "tree")
    shutil.rmtree(tmp_path / "tree")
    git(clone, "submodule", "update", "-q", "--init", "--recursive")
    snapshot_worktree(repo, tmp_path / "tree")
    assert sources(tmp_path / "tree") == SUBMODULE_FILES


def test_a_shallow_submodule_without_the_commit_of_base_says_what_to_fetch(tmp_path: Path):
    """The effect of `fetch-depth` on submodules in CI when a pull request moves one."""
    outer = with_submodules(tmp_path)
    base = git(outer, "rev-parse", "HEAD")
    old = git(outer / "deps/sub", "rev-parse", "HEAD")
    commit(tmp_path / "sub-origin", {"sub.h": "sub 2\n"})
    git(outer / "deps/sub", "pull", "-q", "origin", "main")
    commit(outer)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(outer), str(clone))
    git(clone, "config", "-f", ".gitmodules", "submodule.deps/sub.url", f"file://{tmp_path}/sub-origin")
    git(clone, "submodule", "update", "-q", "--init", "--recursive", "--depth=1")
    with refused(f"git -C '{clone / 'deps/sub'}' fetch origin {old}"):
        snapshot_commit(find(clone), base, tmp_path / "tree")
    git(clone / "deps/sub", "fetch", "-q", "--depth=1", "origin", old)
    shutil.rmtree(tmp_path / "tree")
    snapshot_commit(find(clone), base, tmp_path / "tree")
    assert tree(tmp_path / "tree")["deps/sub/sub.h"] == "sub 1\n"


def test_submodules_that_nobody_is_meant_to_fetch_stay_empty(tmp_path: Path):
    outer, clone = with_submodules(tmp_path), tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(outer), str(clone))
    git(clone, "config", "submodule.deps/sub.update", "none")
    assert sources(alike(clone, tmp_path)) == {"main.py": "1\n"}

    git(outer, "rm", "-q", "--cached", ".gitmodules")
    (outer / ".gitmodules").unlink()
    sha = commit(outer)
    git(tmp_path, "clone", "-q", str(outer), str(tmp_path / "undeclared"))
    snapshot_commit(find(tmp_path / "undeclared"), sha, tmp_path / "three")
    assert tree(tmp_path / "three") == {"main.py": "1\n"}
    assert (tmp_path / "three/deps/sub").is_dir()


def test_a_submodule_cannot_name_a_folder_outside_the_git_directory(tmp_path: Path):
    victim = init(tmp_path / "victim", {"secret": "s"})
    root = init(tmp_path / "work", {"a": "1"})
    stolen = git(victim, "rev-parse", "HEAD")
    (root / ".git/modules").mkdir()
    name = "../../../victim/.git"
    write(root, {".gitmodules": f'[submodule "{name}"]\n\tpath = sub\n\turl = x\n'})
    git(root, "add", ".gitmodules")
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{stolen},sub")
    git(root, "commit", "-q", "-m", "bad")
    with refused("submodule sub"):
        snapshot_commit(find(root), git(root, "rev-parse", "HEAD"), tmp_path / "tree")
    assert not list((tmp_path / "tree").rglob("secret"))


def with_lfs(tmp_path: Path, content: bytes) -> tuple[Path, str]:
    root = init(
        tmp_path / "work",
        {
            ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n",
            "w.bin": lfs_pointer(content),
            "doc.txt": lfs_pointer(b"only resembles one"),
        },
    )
    # As `git lfs install --local` writes it, with no git-lfs on this machine.
    git(root, "config", "filter.lfs.process", "no-such-git-lfs filter-process")
    git(root, "config", "filter.lfs.required", "true")
    return root, git(root, "rev-parse", "HEAD")


def test_lfs_files_come_from_the_clone_whether_checked_out_or_not(tmp_path: Path):
    content = b"\0weights" * 1000
    root, sha = with_lfs(tmp_path, content)
    lfs_store(root / ".git", content)
    repo = find(root)
    one = snapshot_commit(repo, sha, tmp_path / "one")
    assert (tmp_path / "one/w.bin").read_bytes() == content
    assert (tmp_path / "one/doc.txt").read_text() == lfs_pointer(b"only resembles one")
    assert one == snapshot_worktree(repo, tmp_path / "two")
    write(root, {"w.bin": content})
    assert one == snapshot_worktree(repo, tmp_path / "three")
    write(root, {"w.bin": "edited"})
    snapshot_worktree(repo, tmp_path / "four")
    assert (tmp_path / "four/w.bin").read_bytes() == b"edited"


def test_an_lfs_file_that_is_not_here_is_named_never_measured_as_a_pointer(tmp_path: Path):
    root, sha = with_lfs(tmp_path, b"weights")
    with refused("w.bin: only its LFS pointer", f"git lfs fetch origin {sha[:12]}"):
        snapshot_commit(find(root), sha, tmp_path / "one")
    with refused("git lfs pull"):
        snapshot_worktree(find(root), tmp_path / "two")
    lfs_store(root / ".git", b"weights").write_bytes(b"torn")
    with refused("LFS pointer"):
        snapshot_commit(find(root), sha, tmp_path / "three")


def test_lfs_storage_can_be_elsewhere(tmp_path: Path):
    root, sha = with_lfs(tmp_path, b"weights")
    git(root, "config", "lfs.storage", str(tmp_path / "store"))
    stored = lfs_store(tmp_path, b"weights")
    shutil.copytree(tmp_path / "lfs", tmp_path / "store")
    shutil.rmtree(tmp_path / "lfs")
    assert not stored.exists()
    snapshot_commit(find(root), sha, tmp_path / "tree")
    assert (tmp_path / "tree/w.bin").read_bytes() == b"weights"


def test_a_commit_that_is_not_here_is_an_error_of_one_line(tmp_path: Path):
    root = init(tmp_path / "work", {"a": "1"})
    with refused("dddddddddddd: is not in this clone"):
        snapshot_commit(find(root), "d" * 40, tmp_path / "tree")


def test_a_target_that_holds_files_is_refused(tmp_path: Path):
    root = init(tmp_path / "work", {"a": "1"})
    write(tmp_path, {"tree/left-over": "x"})
    for take in TAKES.values():
        with refused("is not empty", by=MachineError):
            take(root, tmp_path / "tree")


@pytest.mark.parametrize("kind", TAKES)
def test_a_full_disk_is_one_line_with_a_remedy(tmp_path: Path, kind: str):
    root = init(tmp_path / "work", {"big": os.urandom(400_000), "b/big": os.urandom(400_000)})
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")  # only a small file system of its own can be filled
    try:
        with refused("big", "TMPDIR", by=MachineError):
            TAKES[kind](root, small / "tree")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_plain_folder_is_taken_without_environments_caches_and_results(tmp_path: Path):
    root = tmp_path / "plain"
    write(root, {"a.py": "1", "sub/b": "2", ".venv/x": "-", "sub/node_modules/x": "-", "sub/__pycache__/x": "-"})
    write(root, {".git/config": "-", "perfci-out/r.json": "-", "results/r.json": "-", "sub/results/keep": "3"})
    (root / "link").symlink_to("sub")
    (root / ".venv-link").symlink_to(".venv")
    taken = snapshot_folder(root, root / "results/scratch/tree", exclude=[root / "results"])
    assert tree(root / "results/scratch/tree") == {
        "a.py": "1",
        "sub/b": "2",
        "sub/results/keep": "3",
        "link": "-> sub",
        ".venv-link": "-> .venv",
    }
    assert snapshot_folder(root, tmp_path / "again", exclude=[root / "results"]) == taken


def test_a_plain_folder_that_is_too_large_is_refused_before_it_is_copied(tmp_path: Path, monkeypatch):
    root = tmp_path / "plain"
    write(root, {f"f{i}": "x" * 100 for i in range(20)})
    monkeypatch.setattr(snapshot, "FOLDER_FILES", 20)
    monkeypatch.setattr(snapshot, "FOLDER_BYTES", 2000)
    for name, limit in (("FOLDER_FILES", 19), ("FOLDER_BYTES", 1999)):
        with monkeypatch.context() as patch, refused("run perfci in a smaller folder"):
            patch.setattr(snapshot, name, limit)
            snapshot_folder(root, tmp_path / "tree")
        assert not list((tmp_path / "tree").iterdir())
    snapshot_folder(root, tmp_path / "tree")
    assert len(tree(tmp_path / "tree")) == 20


def test_names_that_are_not_utf8_survive(tmp_path: Path):
    name = os.fsdecode(b"caf\xe9")
    root = init(tmp_path / "work", {name: "1"})
    assert len({take(root, tmp_path / kind) for kind, take in TAKES.items()}) == 1
    assert [os.fsencode(path.name) for path in (tmp_path / "commit").iterdir()] == [b"caf\xe9"]


def test_the_suite_of_another_commit_takes_the_place_of_ones_own(tmp_path: Path):
    root = init(
        tmp_path / "repo", {"lib.py": "old", "kernels/gone.py": "1", "kernels/data.txt": "old", "bench.py": "old"}
    )
    old = git(root, "rev-parse", "HEAD")
    git(root, "rm", "-q", "-r", "kernels/gone.py")
    write(root, {"lib.py": "new", "kernels/a.py": "new", "kernels/data.txt": "new", "more/deep/b.py": "new"})
    write(root, {"bench.py": "new"})
    suite = Suite(commit(root), ["kernels/*.py", "more/**/*.py", "bench.py", "absent/*.py"])
    digest = snapshot_commit(find(root), old, tmp_path / "tree", suite)
    assert tree(tmp_path / "tree") == {
        "lib.py": "old", "kernels/data.txt": "old", "kernels/a.py": "new", "more/deep/b.py": "new", "bench.py": "new",
    }  # fmt: skip
    assert digest != snapshot_commit(find(root), old, tmp_path / "own")
    assert {path.name for path in tmp_path.iterdir()} == {"repo", "tree", "own"}, "nothing is left behind"


def test_a_suite_is_never_put_behind_a_link(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.py").write_text("mine")
    root = init(tmp_path / "repo", {"lib.py": "1"})
    (root / "kernels").symlink_to(outside)
    old = commit(root)
    (root / "kernels").unlink()
    write(root, {"kernels/a.py": "new"})
    with refused("lies behind a link"):
        snapshot_commit(find(root), old, tmp_path / "tree", Suite(commit(root), ["kernels/*.py"]))
    assert tree(outside) == {"mine.py": "mine"}
