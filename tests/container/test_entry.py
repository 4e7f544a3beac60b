"""The image's entry point: the arguments that it gives perfci, and what it arranges. tests/e2e/image/test_image.py runs it whole."""

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from perfci.container.entry import SUITE, settle
from perfci.model.base import MachineError, UsageError


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines that it said, but for the GPU."""
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("perfci: ") for line in lines)
    return [line.removeprefix("perfci: ") for line in lines if "GPU" not in line]


def test_nothing_there_is_about_the_suite_that_ships(tmp_path, capsys):
    suite, out = ["--repo", str(SUITE)], ["--out", str(tmp_path / "perfci-out")]
    assert settle([], tmp_path) == ["run", *suite, *out]
    assert settle(["run", "--quick"], tmp_path) == ["run", *suite, *out, "--quick"]
    assert settle(["list", "--plan"], tmp_path) == ["list", *suite, "--plan"]
    mount = f'docker run --gpus all -v "$PWD:{tmp_path}" perfci compare main'
    line = f"nothing is mounted at {tmp_path}, so this is the suite that ships; for a repository: {mount}"
    assert told(capsys) == [line] * 3
    for args in (["doctor"], ["--help"], ["compare", "main"], ["init"]):
        assert settle(args, tmp_path) == args
    assert told(capsys) == []


def test_a_change_is_compared_with_where_it_left_the_default_branch(repo, capsys):
    repo.git("switch", "-q", "-c", "change")
    repo.commit()
    assert settle([], repo.root) == ["compare"]
    repo.git("switch", "-q", "main")
    repo.write("new.py", "pass\n")  # not committed
    assert settle([], repo.root) == ["compare"]
    assert told(capsys) == ["this tree is compared with main"] * 2


def test_the_base_itself_is_measured_alone(repo, capsys):
    repo.write("perfci-out/report.md", "of an earlier run\n")
    assert settle([], repo.root) == ["run"]
    assert told(capsys) == ["this tree is measured alone: it is main as committed, which would be its base"]


def test_without_a_base_or_a_repository_the_tree_is_measured_alone(repo, tmp_path, capsys):
    repo.git("branch", "-m", "main", "trunk")
    assert settle([], repo.root) == ["run"]
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "perfci.yaml").touch()
    assert settle([], folder) == ["run"]
    first, second = told(capsys)
    assert first.startswith("this tree is measured alone: no base: there is no origin/HEAD")
    assert second == f"{folder} is no git repository, so it is measured alone, against no base"


def test_arguments_are_taken_as_they_are(repo, capsys):
    for arguments in (["compare", "HEAD~1", "-k", "a*"], ["compare", "--prepare", "/sides"]):
        assert settle(arguments, repo.root) == arguments
        said = capsys.readouterr().err
        assert all("GPU" in line for line in said.splitlines())
    assert said == "", "building needs no GPU"


def test_a_worktree_whose_repository_is_elsewhere_is_not_measured_alone(repo, tmp_path):
    linked = tmp_path / "linked"
    repo.git("worktree", "add", "-q", "--detach", str(linked))
    assert settle([], linked) == ["run"]
    repo.root.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="mount the main repository at the same path"):
        settle([], linked)


def test_a_folder_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(MachineError, match=r"gone: cannot be read: No such file"):
        settle([], tmp_path / "gone")


SHOW = """
import json, os, subprocess
import perfci.container.entry as entry
env = entry.arrange("list", entry.Path.cwd(), os.environ)
config = subprocess.run(["git", "config", "--file", env["GIT_CONFIG_GLOBAL"], "--list"], capture_output=True, text=True)
print(json.dumps({"env": env, "config": config.stdout.split("\\n"), "home": os.stat(env["HOME"])[4:6]}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="as root alone it arranges things for another user")
def test_root_arranges_for_the_owner_of_the_workspace(repo, tmp_path):
    """In a process of its own, for an owner who has a line in /etc/passwd: nothing is added there."""
    owner = pwd.getpwnam("nobody")
    os.chown(repo.root, owner.pw_uid, owner.pw_gid)
    env = {**os.environ, "TMPDIR": str(tmp_path), "PERFCI_WORKER": "1:1"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=repo.root, env=env, capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout)
    assert seen["env"]["PERFCI_WORKER"] == f"{owner.pw_uid}:{owner.pw_gid}"
    assert seen["home"] == [owner.pw_uid, owner.pw_gid]
    assert seen["env"]["USER"] == seen["env"]["LOGNAME"] == "nobody"
    assert set(seen["config"]) >= {f"safe.directory={repo.root}", "core.hookspath=/dev/null", "core.fsmonitor=false"}
    config = Path(seen["env"]["GIT_CONFIG_GLOBAL"])
    assert config.stat().st_uid == 0 and not config.stat().st_mode & 0o022
    assert config.parent.stat().st_mode & 0o777 == 0o711
