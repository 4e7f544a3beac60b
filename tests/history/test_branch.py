"""A history on a branch of a git repository."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from perfci.history.store import open_store
from perfci.history.stores import branch as module
from perfci.history.stores.base import name_of
from perfci.model.base import MachineError, UsageError
from tests.history.nights import night, nights_in
from tests.sources.repo import git, init, write


def hook(repository: Path, name: str, script: str) -> None:
    path = repository / "hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--bare", "bare.git")
    return tmp_path / "bare.git"


def foreign(bare: Path, ref: str, name: str) -> None:
    """A commit of something else, which holds one file."""
    blob = git(bare, "hash-object", "-w", "--stdin", stdin=b"x")
    tree = git(bare, "mktree", stdin=f"100644 blob {blob}\t{name}\n".encode())
    git(bare, "update-ref", ref, git(bare, "commit-tree", tree, "-m", "Other"))


def test_a_branch_that_is_not_there_holds_nothing_and_the_first_night_begins_it(bare: Path) -> None:
    store = open_store(f"git:{bare}#history")
    assert nights_in(store) == []
    assert store.add(night(0))
    assert not store.add(night(0))
    assert store.add(night(1))
    assert [one.run for one in nights_in(open_store(f"git:{bare}#history"))] == ["run0", "run1"]
    assert git(bare, "rev-list", "--count", "history") == "2"
    assert git(bare, "log", "-1", "--format=%an %s", "history") == "perfci Record 20261102T031500Z-run1-1"


def test_the_checkout_one_stands_in_stays_as_it_is(bare: Path, tmp_path: Path) -> None:
    work = init(tmp_path / "work", {"file": "a"})
    hook(work / ".git", "pre-push", "exit 1")
    git(work, "remote", "add", "origin", "../bare.git")
    write(work, {"file": "b"})
    state = [git(work, "status", "--porcelain"), git(work, "for-each-ref"), git(work, "count-objects")]
    store = open_store("git:history", work)
    assert store.add(night(0))
    assert [git(work, "status", "--porcelain"), git(work, "for-each-ref"), git(work, "count-objects")] == state
    assert git(bare, "ls-tree", "-r", "--name-only", "history") == name_of(night(0))


def test_without_a_remote_the_branch_is_the_repository_s_own(tmp_path: Path) -> None:
    store = open_store("git:history", init(tmp_path / "work"))
    assert store.add(night(0))
    assert git(tmp_path / "work", "ls-tree", "-r", "--name-only", "history") == name_of(night(0))
    assert len(nights_in(store)) == 1


def test_a_branch_of_something_else_is_refused(bare: Path) -> None:
    foreign(bare, "refs/heads/main", "setup.py")
    with pytest.raises(UsageError, match=r"holds other things \(setup.py\): name a branch for the history alone"):
        open_store(f"git:{bare}#main").add(night(0))


@pytest.mark.parametrize(
    "text", ["git:", "git:-x", "git:a..b", "git:#history", "git:--upload-pack=x#history", "git:x#"]
)
def test_names_of_no_branch_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_store(text, tmp_path)


def test_an_address_that_starts_a_program_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="ext"):
        nights_in(open_store(f"git:ext::sh -c 'touch {tmp_path}/pwned'#history"))
    assert not (tmp_path / "pwned").exists()


def test_a_secret_in_an_address_is_not_shown(tmp_path: Path) -> None:
    store = open_store("git:https://user:hunter2@127.0.0.1:1/x.git#history")
    assert "hunter2" not in store.text
    with pytest.raises(MachineError) as error:
        nights_in(store)
    assert "hunter2" not in str(error.value)


class Asked(BaseHTTPRequestHandler):
    """A server that knows no repository, and keeps what it was asked with."""

    seen: ClassVar[list[tuple[str, list[str]]]] = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get_all("Authorization") or []))
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


def test_the_repository_s_own_way_to_its_remote_is_taken(tmp_path: Path) -> None:
    """As a checkout in a job leaves it: a header with a token, in a file that the repository's settings include."""
    Asked.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    work = init(tmp_path / "work")
    git(work, "remote", "add", "origin", f"{url}/org/kernels")
    git(work, "config", "--file", str(tmp_path / "token"), f"http.{url}/.extraheader", "Authorization: basic hunter2")
    git(work, "config", f"includeIf.gitdir:{work.resolve()}/.git.path", str(tmp_path / "token"))
    try:
        with pytest.raises(MachineError, match="not found") as error:
            nights_in(open_store("git:history", work))
    finally:
        server.shutdown()
        server.server_close()
    assert Asked.seen == [("/org/kernels/info/refs?service=git-upload-pack", ["basic hunter2"])]
    assert "hunter2" not in str(error.value)


WRITER = """
import sys
from perfci.history.store import open_store
from tests.history.nights import night
store, writer = open_store(sys.argv[1]), int(sys.argv[2])
for number in range(int(sys.argv[3])):
    assert store.add(night(number + writer / 10, run=f"writer{writer}-{number}"))
"""


@pytest.mark.parametrize(
    ("writers", "nights", "apart"),
    [(3, 1, True), pytest.param(8, 6, True, marks=pytest.mark.slow), pytest.param(8, 3, False, marks=pytest.mark.slow)],
)
def test_of_writers_at_once_nothing_is_lost_and_nothing_forced(
    bare: Path, tmp_path: Path, writers: int, nights: int, apart: bool
) -> None:
    """`apart`: each with a clone of its own, as on machines of their own."""
    git(bare, "config", "receive.denyNonFastForwards", "true")
    git(bare, "config", "core.logAllRefUpdates", "true")
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, f"git:{bare}#history", str(number), str(nights)], cwd=root,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / (f"cache{number}" if apart else "cache"))},
        )
        for number in range(writers)
    ]  # fmt: skip
    assert [process.wait() for process in processes] == [0] * writers
    store = open_store(f"git:{bare}#history")
    found = {one.run for one in nights_in(store)}
    assert found == {f"writer{number}-{k}" for number in range(writers) for k in range(nights)}
    assert not store.faults
    assert git(bare, "rev-list", "--count", "history") == str(writers * nights)
    assert len(git(bare, "reflog", "show", "history").splitlines()) == writers * nights
    git(bare, "fsck", "--strict")


def test_a_branch_that_may_not_be_written_is_told_with_git_s_words(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF", 0.01)
    hook(bare, "pre-receive", "exit 1")
    with pytest.raises(MachineError, match=r"cannot be pushed to: .*pre-receive hook declined.*: see that the token"):
        open_store(f"git:{bare}#history").add(night(0))


def test_a_push_that_came_through_though_it_failed_is_found_again(bare: Path) -> None:
    """The connection breaks behind the update: git says that it failed, and the night is there."""
    hook(bare, "post-receive", "kill -9 $PPID")
    store = open_store(f"git:{bare}#history")
    assert store.add(night(0))
    assert [one.run for one in nights_in(store)] == ["run0"]


def test_a_branch_whose_name_ends_alike_is_another(bare: Path) -> None:
    foreign(bare, "refs/heads/a/refs/heads/history", "README")
    store = open_store(f"git:{bare}#history")
    assert nights_in(store) == []
    assert store.add(night(0))
    assert [one.run for one in nights_in(store)] == ["run0"]


def test_a_damaged_clone_is_made_anew(bare: Path, cache: Path) -> None:
    store = open_store(f"git:{bare}#history")
    store.add(night(0))
    (clone,) = cache.rglob("clone.git")
    for path in (clone / "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"damaged")
    assert [one.run for one in nights_in(open_store(f"git:{bare}#history"))] == ["run0"]


def test_locks_of_a_killed_writer_are_in_nobody_s_way(bare: Path, cache: Path) -> None:
    store = open_store(f"git:{bare}#history")
    store.add(night(0))
    (clone,) = cache.rglob("clone.git")
    for name in ("index.lock", "shallow.lock", "refs/perfci/tip.lock", "config.lock"):
        (clone / name).touch()
    assert open_store(f"git:{bare}#history").add(night(1))
    assert len(nights_in(store)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_killed_writer_leaves_a_branch_that_is_whole(bare: Path, seed: int) -> None:
    root = Path(__file__).parents[2]
    draw = random.Random(seed)
    for writer in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, f"git:{bare}#history", str(writer), "100"], cwd=root, start_new_session=True
        ) as process:
            time.sleep(draw.uniform(0.8, 2.5))
            os.killpg(process.pid, signal.SIGKILL)
    for lock in bare.rglob("*.lock"):
        lock.unlink()  # of git-receive-pack: a server's is not killed with the writer
    store = open_store(f"git:{bare}#history")
    assert store.add(night(50))
    found = nights_in(store)
    assert not store.faults
    assert git(bare, "rev-list", "--count", "history") == str(len(found))
    git(bare, "fsck", "--strict")


def test_links_trees_without_end_and_foreign_files_are_faults(bare: Path) -> None:
    store = open_store(f"git:{bare}#history")
    store.add(night(0))
    blob = git(bare, "hash-object", "-w", "--stdin", stdin=b"/etc/passwd")
    inner = f"120000 blob {blob}\t20261105T031500Z-link-1.json\n100644 blob {blob}\tnotes.txt\n"
    bomb = git(bare, "mktree", stdin=f"100644 blob {blob}\tx\n".encode())
    for _ in range(12):
        bomb = git(bare, "mktree", stdin="".join(f"040000 tree {bomb}\t{n:02}\n" for n in range(10)).encode())
    inner += f"040000 tree {bomb}\tbomb\n"
    month = git(bare, "mktree", stdin=inner.encode())
    year = git(bare, "mktree", stdin=f"040000 tree {month}\t11\n".encode())
    years = git(bare, "mktree", stdin=f"040000 tree {year}\t2026\n040000 tree {bomb}\t9999\n".encode())
    root = git(bare, "mktree", stdin=f"040000 tree {years}\tnights\n".encode())
    git(bare, "update-ref", "refs/heads/history", git(bare, "commit-tree", root, "-m", "Hostile"))
    assert nights_in(store) == []
    faults = {fault.name: fault.reason for fault in store.faults}
    assert faults["nights/2026/11/20261105T031500Z-link-1.json"] == "is no ordinary file"
    assert faults["nights/2026/11/bomb"] == "is no ordinary file"
    assert faults["nights/2026/11/notes.txt"] == "is no document of a history"
