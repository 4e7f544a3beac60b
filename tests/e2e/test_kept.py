"""Base's build between runs, by the command line: kept where the base branch is measured, and out of head's reach."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from perfci.system.users import Account, find_account

from .conftest import GID, SYSTEM_PYTHON, UID, Repo, Run, adding, as_root

BUILDS = """
build:
  - test ! -e "$PERFCI_SITE/where" && echo -n "$PERFCI_SITE" > "$PERFCI_SITE/where"
  - echo "built for $(basename "$(dirname "$PERFCI_SITE")")" > in-tree && ln -s in-tree linked
"""
USES = """
import os, pathlib
site = pathlib.Path(os.environ["PERFCI_SITE"])
assert (site / "where").read_text() == str(site), "what is built may name its own folder"
print("USES", open("linked").read())
"""
REACH = """
import glob
for path in ("{cache}", "{cache}/entries", "{cache}/lock", "{cache}/entries/{key}", "{cache}/entries/{key}/site/where"):
    for name, act in (
        ("listed", os.listdir), ("read", lambda path: open(path).read()), ("written", lambda path: open(path, "a")),
        ("removed", os.unlink), ("moved", lambda path: os.rename(path, path + "-gone")),
        ("linked", lambda path: os.symlink("/etc/passwd", path + "-link")),
    ):
        try:
            act(path)
        except OSError:
            continue
        print("REACHED", name, path, flush=True)
print("TRIED", flush=True)
"""


def policy(repo: Repo, text: str = BUILDS) -> None:
    limits = "limits: [{cases: '*', metric: time, regression: 50%}]\n"
    repo.policy(f"budget: 60s\n{limits}{text}", SYSTEM_PYTHON)


def taken(run: Run) -> bool:
    assert run.code == 0, run.out + run.err
    told = any("base was built by an earlier run (PERFCI_CACHE)" in note for note in run.report["notes"])
    assert told == (not (run.folder / "perfci-out" / "logs" / "build-base.log").exists())
    return told


def compare(repo: Repo, cache: str = "", keep: str = "") -> Run:
    shutil.rmtree(repo.root / "perfci-out", ignore_errors=True)
    words = (f"PERFCI_CACHE={cache}", f"PERFCI_KEEP={keep}", "PERFCI_MEASURE_ALL=0")  # what is proved is not measured
    return repo.perfci(*words, "compare", "--base", "HEAD", "--committed")


@as_root
@pytest.mark.slow
def test_what_the_base_branch_built_is_base_of_a_change_and_head_cannot_reach_it(two_users: Repo) -> None:
    repo, cache = two_users, two_users.root.parent / "cache"
    policy(repo)
    repo.write("kernels/adding.py", USES + adding())
    repo.commit("base")
    pushed = repo.perfci(f"PERFCI_CACHE={cache}", "PERFCI_KEEP=head", "run", "--committed")
    assert pushed.code == 0, pushed.out + pushed.err
    (entry,) = (cache / "entries").iterdir()
    assert not (cache / "sides").exists(), "nothing is left of the run"
    for path in (cache, cache / "entries", entry):
        assert path.stat().st_uid == 0
    assert (cache.stat().st_mode & 0o777, (cache / "entries").stat().st_mode & 0o777) == (0o711, 0o700)

    repo.write("kernels/adding.py", USES + REACH.format(cache=cache, key=entry.name) + adding())
    repo.git("add", "-A")
    repo.git("commit", "-q", "-m", "a pull request")
    kept = {path: path.lstat().st_mtime_ns for path in entry.rglob("*") if path.name != "entry.json"}
    shutil.rmtree(repo.root / "perfci-out")
    run = repo.perfci(f"PERFCI_CACHE={cache}", "compare", "--base", "HEAD~1", "--committed")
    assert taken(run)
    log = (repo.root / "perfci-out" / "logs" / "head.log").read_text()
    assert "TRIED" in log and "REACHED" not in log
    base = (repo.root / "perfci-out" / "logs" / "base.log").read_text()
    assert set(re.findall(r"USES (.*)", base)) == {"built for base"}
    assert kept == {path: path.lstat().st_mtime_ns for path in entry.rglob("*") if path.name != "entry.json"}
    assert [one.name for one in (cache / "entries").iterdir()] == [entry.name], (
        "and without PERFCI_KEEP a run keeps none"
    )

    (entry / "site" / "where").write_text("/elsewhere")
    run = repo.perfci(f"PERFCI_CACHE={cache}", "compare", "--base", "HEAD~1", "--committed")
    assert run.code == 0, run.out + run.err
    assert "a build that was kept cannot be used: its files are not those that were kept" in run.err
    assert list((cache / "entries").iterdir()) == []


@as_root
@pytest.mark.slow
def test_another_build_is_another_entry_and_a_failed_one_is_none(two_users: Repo) -> None:
    repo, cache = two_users, str(two_users.root.parent / "cache")
    policy(repo)
    repo.write("kernels/adding.py", adding())
    repo.commit()
    assert not taken(compare(repo, cache))
    assert not taken(compare(repo, cache, "base"))
    assert taken(compare(repo, cache))
    assert not taken(compare(repo)), "only where it is asked for"
    repo.env["CFLAGS"] = "-O0"
    assert not taken(compare(repo, cache))
    del repo.env["CFLAGS"]
    policy(repo, BUILDS + "  - 'true'\n")
    repo.commit()
    assert not taken(compare(repo, cache))
    policy(repo, 'build: [test -z "$PERFCI_SITE"]\n')
    repo.commit()
    failed = compare(repo, cache, "base")
    assert failed.code == 3, failed.out + failed.err
    assert len(list((two_users.root.parent / "cache" / "entries").iterdir())) == 1


@as_root
@pytest.mark.slow
def test_nothing_is_kept_while_somebody_else_runs_as_the_user_of_the_code(two_users: Repo) -> None:
    """A job beside it, say: what that user builds, that user may change."""
    repo, cache = two_users, two_users.root.parent / "cache"
    policy(repo)
    repo.write("kernels/adding.py", adding())
    repo.commit()
    other = subprocess.Popen([*find_account(repo.env).prefix(), "sleep", "300"])
    try:
        run = repo.perfci(f"PERFCI_CACHE={cache}", "PERFCI_KEEP=head", "run")
    finally:
        other.kill()
        other.wait()
    assert run.code == 0, run.out + run.err
    assert "the build of head is not kept: others ran as the user of the code under test meanwhile" in run.err
    assert list((cache / "entries").iterdir()) == []


OF_HOME = """
build:
  - python3 -c 'import site; print(site.ENABLE_USER_SITE)' > "$PERFCI_SITE/site"
  - git config --global user.name > "$PERFCI_SITE/who" || echo nobody > "$PERFCI_SITE/who"
  - echo "$HOME" "$TMPDIR" > "$PERFCI_SITE/folders" && touch "$HOME/made" "$TMPDIR/made"
"""


@as_root
@pytest.mark.slow
def test_of_a_home_builds_see_what_the_code_under_test_cannot_change(two_users: Repo) -> None:
    """What a stranger's change left there ran in all builds to come, and a slow one was kept."""
    repo, top = two_users, two_users.root.parent
    home, cache = top / "home", top / "cache"
    asked = "import site; print(site.getusersitepackages())"
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    said = subprocess.run([str(SYSTEM_PYTHON), "-c", asked], env=env, check=True, capture_output=True, text=True)
    files = {
        f"{said.stdout.strip()}/usercustomize.py": f"open('{home}/ran', 'a')",
        f"{home}/.gitconfig": "[user]\nname = x",
    }
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    policy(repo, OF_HOME)
    repo.write("kernels/adding.py", adding())
    repo.commit()

    def kept(name: str) -> str:
        shutil.rmtree(repo.root / "perfci-out", ignore_errors=True)
        shutil.rmtree(cache, ignore_errors=True)
        run = repo.perfci(f"PERFCI_CACHE={cache}", "PERFCI_KEEP=head", "run", "--committed")
        assert run.code == 0, run.out + run.err
        (entry,) = (cache / "entries").iterdir()
        assert (entry / "site" / "site").read_text() == "False\n" and not (home / "ran").exists()
        folders = (entry / "site" / "folders").read_text().split()
        assert folders == [f"{cache}/sides/base/cache/home", f"{cache}/sides/base/cache/tmp"]
        assert (entry / "site" / "who").read_text() == f"{name}\n"
        return run.err

    find_account(repo.env).give(home)
    assert f"head is built without .gitconfig of {home}, which the code under test may change (PERFCI_CACHE)" in kept(
        "nobody"
    )
    Account((0, 0)).give(home)
    assert "is built without" not in kept("x")


@as_root
@pytest.mark.parametrize("name", ["PATH", "CCACHE_DIR"])
def test_nothing_is_kept_of_tools_and_caches_that_the_code_under_test_may_change(two_users: Repo, name: str) -> None:
    repo, top = two_users, two_users.root.parent
    tool = top / "open" / "bin" / "cc"
    tool.parent.mkdir(parents=True)
    tool.write_text("")
    os.chown(tool, UID, GID)
    policy(repo, BUILDS + (f"env: {{CCACHE_DIR: '{tool.parent}'}}\n" if name == "CCACHE_DIR" else ""))
    if name == "PATH":
        repo.env["PATH"] = f"{tool.parent}:{repo.env['PATH']}"
    repo.write("kernels/adding.py", adding())
    repo.commit()
    run = repo.perfci(f"PERFCI_CACHE={top}/cache", "PERFCI_KEEP=head", "run", "--committed")
    assert run.code == 2, run.out + run.err
    said = (
        f"PERFCI_KEEP: the code under test may change {tool}, which builds see by {name}: give it to another user, or "
    )
    assert said in run.err


@as_root
@pytest.mark.slow
def test_folders_that_others_may_have_written_are_refused(two_users: Repo) -> None:
    repo, cache = two_users, two_users.root.parent / "cache"
    policy(repo)
    repo.write("kernels/adding.py", adding())
    repo.commit()

    def refused(words: str) -> None:
        run = repo.perfci(f"PERFCI_CACHE={cache}", "run")
        assert run.code == 2 and words in run.err, run.out + run.err

    cache.mkdir()
    (cache / "mine").write_text("")
    refused("holds other things: name a new folder")
    (cache / "mine").unlink()
    (cache / "entries").mkdir(mode=0o755)
    refused("others than this user may have written it")
    (cache / "entries").chmod(0o700)
    os.chown(cache / "entries", UID, GID)
    refused("others than this user may have written it")
    shutil.rmtree(cache)
    (two_users.root.parent / "t" / "others").mkdir()
    os.chown(two_users.root.parent / "t" / "others", UID, GID)
    cache = two_users.root.parent / "t" / "others" / "cache"
    refused("the code under test may write to")
    assert find_account(repo.env).ids == (UID, GID)
