"""Entry point of perfci's image: arranges a user, a home and git, and becomes perfci.

perfci stays root, so that the code under test can change nothing of perfci's; with `docker run --user` all runs as that
user.
"""

import os
import pwd
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from perfci.container import say
from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.sources.git import Repository, run_git
from perfci.system.files import disk_errors
from perfci.system.gpu import Gpu
from perfci.system.users import VARIABLE

SUITE = Path("/opt/perfci/suite")
OUT = "perfci-out"
NOBODY = 10001
"""Uid and gid that own nothing: for the code under test where the workspace is root's."""
MEASURING = ("run", "compare", "profile", "calibrate", "bisect")
OF_THE_SUITE = ("run", "profile", "list")
FOR_THE_OWNER = ("init", "report")
"""Verbs that only write files, as the owner of the workspace."""


def main() -> None:
    """Become `perfci ARGS`, or end with one line and an exit code."""
    where = Path.cwd()
    try:
        args = settle(sys.argv[1:], where)
        env = arrange(args[0], where, os.environ)
    except PerfciError as error:
        say(str(error).removeprefix("perfci: "))
        sys.exit(error.exit_code)
    command = [sys.executable, "-I", "-m", "perfci", *args]
    os.execve(command[0], command, env)


def settle(args: Sequence[str], where: Path) -> list[str]:
    """Return `args`, or by default those that fit the files in `where`.

    Raises UsageError where nothing could be written there, and as `Repository.find`.
    """
    if not args or (args[0] in MEASURING and "--prepare" not in args):  # building needs none
        gpu, why = Gpu.open(0)
        if gpu is None:
            say(f"no GPU here, so perfci measures on the CPU: `docker run --gpus all` gives GPUs ({why})")
    if _is_empty(where) and (not args or args[0] in OF_THE_SUITE):
        mount = f'docker run --gpus all -v "$PWD:{where}" perfci compare main'
        say(f"nothing is mounted at {where}, so this is the suite that ships; for a repository: {mount}")
        verb, *rest = args or ["run"]
        out = [] if verb == "list" else ["--out", str(where / OUT)]
        return [verb, "--repo", str(SUITE), *out, *rest]
    return list(args) or default(where)


def _is_empty(folder: Path) -> bool:
    with disk_errors("read", folder):
        return not any(folder.iterdir())


def default(where: Path) -> list[str]:
    """Return arguments to compare, without a base for the tree alone. Raises as `settle`."""
    if not os.access(where, os.W_OK):
        raise UsageError(
            f"{where}: cannot be written: mount a folder for the output and name it: "
            "docker run -v FOLDER:/out … compare --out /out"
        )
    repo = Repository.find(where)
    if repo is None:
        say(f"{where} is no git repository, so it is measured alone, against no base")
        return ["run"]
    try:
        base = repo.resolve_base(None, pull_request=False)
    except UsageError as error:
        say(f"this tree is measured alone: {error}")
        return ["run"]
    head = repo.head_commit()
    if head is not None and head.sha == base.sha and not repo.is_dirty(exclude=[where / OUT]):
        say(f"this tree is measured alone: it is {base.ref} as committed, which would be its base")
        return ["run"]
    say(f"this tree is compared with {base.ref}")
    return ["compare"]


def arrange(verb: str, where: Path, caller: Mapping[str, str]) -> dict[str, str]:
    """Return perfci's environment: home and name of who runs the code under test, and a git that trusts `where` alone.

    As root it also adds that user to /etc/passwd, and becomes the owner of `where` for a verb that only writes files.
    Raises MachineError.
    """
    info, root = where.stat(), os.geteuid() == 0
    owner = (info.st_uid, info.st_gid) if info.st_uid else (NOBODY, NOBODY)
    user, group = owner if root else (os.geteuid(), os.getegid())
    env = {name: value for name, value in caller.items() if name != VARIABLE}
    try:
        top = Path(tempfile.mkdtemp(prefix="perfci-home-"))
    except OSError as error:
        raise MachineError(
            f"no folder for temporary files can be written ({error.strerror}): docker run --tmpfs /tmp:exec"
        ) from None
    home, config = top / "home", top / "gitconfig"
    with disk_errors("made", top):
        home.mkdir(0o700)
        _configure_git(config, where)
        if root:
            top.chmod(0o711)  # passed through, and not written
            os.chown(home, user, group)
    name = _name(user, group, home)
    env |= {"HOME": str(home), "USER": name, "LOGNAME": name}
    env |= {"GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_NOSYSTEM": "1"}
    if root and verb in FOR_THE_OWNER and info.st_uid:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    elif root:
        env[VARIABLE] = f"{user}:{group}"
    elif verb in MEASURING:
        say(f"runs as uid {user} throughout, not as root: the code under test could change what perfci writes")
    return env


def _configure_git(config: Path, where: Path) -> None:
    try:
        repo = Repository.find(where)
    except PerfciError:  # perfci says so where it needs one: `doctor` and `--help` do not
        repo = None
    trusted = str(repo.root if repo else where)
    for key, value in {"safe.directory": trusted, "core.hooksPath": "/dev/null", "core.fsmonitor": "false"}.items():
        run_git(["config", "--file", str(config), key, value], cwd=config.parent)


def _name(user: int, group: int, home: Path) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    if os.geteuid() == 0:
        # On a read-only root $USER and $HOME say the same to nearly everything.
        with suppress(OSError), Path("/etc/passwd").open("a", encoding="utf-8") as passwd:
            passwd.write(f"perfci:x:{user}:{group}:perfci:{home}:/bin/sh\n")
    return "perfci"


if __name__ == "__main__":
    main()
