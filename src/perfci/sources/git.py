"""Git: the repository, its commits, the choice of base. Never writes into a repository."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.model.text import did_you_mean, escaped, shell

TIMEOUT = 120.0
"""Seconds for one reading call of git."""

# No hook, no daemon, no descent into submodules by itself, and raw bytes as paths.
_CONFIG = (
    ("safe.directory", "*"),
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.quotePath", "false"),
    ("submodule.recurse", "false"),
)
# Of the caller's GIT_* variables only those that say how to reach a remote or where configuration lies:
# the others (GIT_DIR, GIT_INDEX_FILE, …, set by hooks and aliases) would point git at another repository.
_KEEP = (
    "GIT_ASKPASS",
    "GIT_CEILING_DIRECTORIES",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_EXEC_PATH",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
)
LFS_OFF = ("filter.lfs.smudge=", "filter.lfs.clean=", "filter.lfs.process=", "filter.lfs.required=false")
"""Git LFS's filter may be configured but not installed, and it would download."""
_DEFAULT_BASES = (
    "refs/remotes/origin/HEAD",
    "refs/remotes/origin/main",
    "refs/remotes/origin/master",
    "refs/heads/main",
    "refs/heads/master",
)
_HEAD = re.compile(r"(?:HEAD|@)(?:[~^]0|\^\{(?:commit)?\})*")
_HASH = re.compile(r"[0-9a-f]{4,64}", re.IGNORECASE)
_WHOLE_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.IGNORECASE)


def git_environment(caller: Mapping[str, str], settings: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the environment of every git call. `settings`: keys and values that `ps` does not show."""
    env = {name: value for name, value in caller.items() if not name.startswith("GIT_") or name in _KEEP}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    env["GIT_CONFIG_COUNT"] = str(len(_CONFIG) + len(settings))
    for index, (key, value) in enumerate((*_CONFIG, *settings)):
        env[f"GIT_CONFIG_KEY_{index}"] = key
        env[f"GIT_CONFIG_VALUE_{index}"] = value
    return env


def run_git(
    args: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    config: Sequence[str] = (),
    stdin: bytes = b"",
    timeout: float = TIMEOUT,
    allow: Sequence[int] = (0,),
    hidden: Sequence[tuple[str, str]] = (),
) -> subprocess.CompletedProcess[bytes]:
    """Run `git ARGS` in `cwd`, with `config` (`key=value`) and `hidden` settings, which may hold secrets.

    Raises UsageError where git is missing or refuses the folder's owner, MachineError beyond `timeout` seconds or for a
    status not in `allow`.
    """
    command = ["git", *(part for setting in config for part in ("-c", setting)), *args]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=git_environment(os.environ, hidden) | dict(env or {}),
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("git: is not installed or not on PATH: install git") from None
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"git {args[0]}: took longer than {timeout:g} s in {escaped(cwd)}: "
            "see that its disk and its remote can be reached"
        ) from None
    except OSError as error:
        raise MachineError(f"git {args[0]}: cannot be run in {escaped(cwd)}: {error.strerror}") from None
    if done.returncode not in allow:
        raise git_error(args[0], cwd, done.stderr)
    return done


def git_error(verb: str, cwd: Path, stderr: bytes) -> PerfciError:
    """Return git's `stderr` as an error of one line."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    if any("safe.directory" in line for line in lines):  # git before 2.38 does not read that setting from us
        folder = escaped(cwd)
        return UsageError(
            f"git: {folder} belongs to another user: "
            f"run `{shell(['git', 'config', '--global', '--add', 'safe.directory', str(cwd)], spanned=True)}`"
        )
    if full := [line for line in lines if "No space left" in line or "unable to write" in line]:
        return MachineError(f"git {verb}: {escaped(full[0], 300)}: free space, or set TMPDIR to a larger disk")
    errors = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines[-1:] or ["no message"]
    return MachineError(f"git {verb} failed in {escaped(cwd)}: {escaped(errors[0], 300)}")


def lacks_a_name(folder: Path) -> bool:
    """Tell whether `git commit` would refuse for lack of a committer's name."""
    known = {name: value for name, value in os.environ.items() if name.startswith(("GIT_AUTHOR_", "GIT_COMMITTER_"))}
    asked = ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT") if shutil.which("git") is not None else ()
    return any(run_git(["var", name], cwd=folder, env=known, allow=(0, 128)).returncode for name in asked)


def means_itself(rev: str, head: str) -> bool:
    """Tell whether `rev` can only mean the commit checked out, of hash `head`: `HEAD`, `@`, that hash; not a branch or
    tag."""
    return bool(_HEAD.fullmatch(rev)) or bool(_HASH.fullmatch(rev) and head.startswith(rev.lower()))


@dataclass(frozen=True)
class NamedCommit:
    """A commit as people name it."""

    ref: str
    """As named, or found."""
    sha: str
    subject: str


@dataclass(frozen=True)
class Repository:
    """A git repository with a working tree: clone, linked worktree or submodule."""

    root: Path
    """Top of the working tree, absolute and resolved."""
    git_dir: Path
    """A linked worktree has its own."""
    common_dir: Path

    @classmethod
    def find(cls, path: Path) -> "Repository | None":
        """Return the repository of `path` (a folder or file), or None outside git.

        Raises UsageError for a missing path, a bare or broken repository, and where git is not installed.
        """
        folder = path if path.is_dir() else path.parent
        if not folder.is_dir():
            raise UsageError(f"{escaped(folder)}: no such folder: name one that exists")
        if shutil.which("git") is None:
            here = folder.resolve()
            if any((parent / ".git").exists() for parent in (here, *here.parents)):
                raise UsageError(f"{escaped(folder)}: is a git repository, but git is not on PATH: install git")
            return None
        done = run_git(["rev-parse", "--show-toplevel"], cwd=folder, allow=(0, 128))
        if done.returncode:
            _refuse_half_a_repository(folder, done.stderr)
            return None
        root = Path(_output(done))
        git_dir = Path(_output(run_git(["rev-parse", "--absolute-git-dir"], cwd=root)))
        common = root / _output(run_git(["rev-parse", "--git-common-dir"], cwd=root))
        return cls(root, git_dir, common.resolve())

    def git(
        self, *args: str, stdin: bytes = b"", allow: Sequence[int] = (0,), config: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git at the top of the working tree."""
        return run_git(args, cwd=self.root, stdin=stdin, allow=allow, config=config)

    def files(self) -> list[str]:
        """Return the paths of files that git has, or would take."""
        listed = _output(self.git("ls-files", "-z", "--cached", "--others", "--exclude-standard"))
        return sorted({path for path in listed.split("\0") if path})

    def head_commit(self) -> NamedCommit | None:
        """Return the commit checked out, named after its branch; None without a commit."""
        done = self.git("rev-parse", "--verify", "--quiet", "HEAD^{commit}", allow=(0, 1))
        if done.returncode:
            return None
        branch = self.git("symbolic-ref", "--quiet", "--short", "HEAD", allow=(0, 1))
        return self._commit(_output(branch) or "HEAD", _output(done))

    def commit(self, rev: str) -> NamedCommit:
        """Return the commit of `rev`: branch, tag, hash, `HEAD~2`, a branch of origin. Raises UsageError."""
        sha = self._resolve(rev)
        if sha is None and re.split(r"[~^@:]", rev)[0] not in ("", "HEAD"):
            # A clone in CI often has `main` as `origin/main` only.
            sha = self._resolve(f"refs/remotes/origin/{rev}")
            rev = rev if sha is None else f"origin/{rev}"
        if sha is None:
            name = escaped(rev, 300)
            if self.is_shallow():
                raise UsageError(f"{name!r}: no such commit in this shallow clone: {self.whole(rev)}")
            raise UsageError(f"{name!r}: no such branch, tag or commit here: {self._instead(rev)}")
        return self._commit(rev, sha)

    def _instead(self, rev: str) -> str:
        told = self.git("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads", "refs/tags", "refs/remotes")
        named = os.fsdecode(told.stdout).splitlines()
        hint = did_you_mean({"main": "master", "master": "main"}.get(rev, rev), named, least=0.7)
        fetch = f", or run `{fetching(rev)}`" if self.has_origin() else ""
        return f"{hint and f'{hint} Else '}see `git branch --all`{fetch}"

    def whole(self, rev: str = "HEAD") -> str:
        """Return the command that completes a shallow clone, and fetches `rev`."""
        fetch = f"run `{fetching(rev, '--unshallow')}`" if self.has_origin() else "clone without `--depth`"
        return f"{fetch}, or check out with `fetch-depth: 0`"

    def has_origin(self) -> bool:
        """Tell whether a remote is named origin."""
        return "origin" in os.fsdecode(self.git("remote").stdout).split()

    def names_nothing(self, rev: str) -> bool:
        """Tell whether no commit bears a name."""
        return self._resolve(rev) is None

    def resolve_base(self, ref: str | None, pull_request: bool, of: str | None = None) -> NamedCommit:
        """Return the commit that HEAD, or `of`, is compared with.

        For a pull request's merge commit its first parent; otherwise the merge-base of HEAD and `ref`, by default
        origin's default branch, else `main` or `master`. Raises UsageError.
        """
        head = self.commit(of) if of is not None else self.head_commit()
        if head is None:
            raise UsageError(f"{escaped(self.root)}: has no commit yet, so there is no base: commit first")
        if pull_request and len(parents := self.parents(head.sha)) > 1:
            if self._resolve(parents[0]) is None:
                raise UsageError(
                    f"HEAD^1: the base of this merge commit ({parents[0][:12]}) is not in this shallow "
                    f"clone: run `git fetch --depth=1 origin {parents[0]}`, or check out with `fetch-depth: 2`"
                )
            return self._commit("HEAD^1", parents[0])
        other = self.commit(ref) if ref is not None else self._default_base()
        done = self.git("merge-base", head.sha, other.sha, allow=(0, 1))
        if done.returncode == 0:
            return self._commit(other.ref, _output(done).splitlines()[0])
        name, ours = escaped(other.ref, 300), escaped(of or "HEAD", 300)
        if self.is_shallow():
            raise UsageError(f"{name}: no common commit with {ours} in this shallow clone: {self.whole(other.ref)}")
        raise UsageError(f"{name}: has no common commit with {ours}: name another base")

    def read(self, sha: str, path: str) -> bytes | None:
        """Return a commit's file, or None. Follows links only inside the commit. `path`: without `..` or newlines."""
        done = self.git("cat-file", "--batch", "--follow-symlinks", stdin=os.fsencode(f"{sha}:{path}\n"))
        header, _, rest = done.stdout.partition(b"\n")
        words = header.split(b" ")
        if len(words) != 3 or words[1] != b"blob":
            return None
        return rest[: int(words[2])]

    def is_dirty(self, exclude: Sequence[Path] = ()) -> bool:
        """Tell whether the tree differs from HEAD outside `exclude`; untracked files count."""
        args = [
            "status",
            "--porcelain",
            "-z",
            "--untracked-files=normal",
            "--ignore-submodules=none",
            "--",
            ".",
        ]
        for path in exclude:
            resolved = path.resolve()
            if resolved != self.root and resolved.is_relative_to(self.root):
                args.append(f":(top,literal,exclude){resolved.relative_to(self.root).as_posix()}")
        config = () if shutil.which("git-lfs") else LFS_OFF
        return bool(self.git(*args, config=config).stdout)

    def parents(self, sha: str) -> list[str]:
        """Return the hashes of a commit's parents, also those that a shallow clone lacks."""
        # From the commit itself: `rev-list --parents` hides the parents that a shallow clone has cut off.
        header = self.git("cat-file", "commit", sha).stdout.partition(b"\n\n")[0]
        return [line.split()[1].decode() for line in header.splitlines() if line.startswith(b"parent ")]

    def is_shallow(self) -> bool:
        """Tell whether the clone lacks a part of its history."""
        return _output(self.git("rev-parse", "--is-shallow-repository")) == "true"

    def _resolve(self, rev: str) -> str | None:
        if not rev or rev.startswith("-") or not rev.isprintable():
            raise UsageError(f"{escaped(rev, 300)!r}: is no name of a commit: name a branch, tag or hash")
        done = self.git("rev-parse", "--verify", f"{rev}^{{commit}}", allow=(0, 1, 128))
        if done.returncode == 0:
            return _output(done)
        if b"ambiguous" in done.stderr:
            raise UsageError(f"{rev!r}: more than one commit begins like this: write more of its hash")
        return None

    def _default_base(self) -> NamedCommit:
        for full_ref in _DEFAULT_BASES:
            if (sha := self._resolve(full_ref)) is not None:
                return self._commit(_output(self.git("rev-parse", "--abbrev-ref", full_ref)), sha)
        raise UsageError(
            "no base: there is no origin/HEAD, origin/main, origin/master, main or master here: "
            "name one, such as perfci compare REF"
        )

    def _commit(self, ref: str, sha: str) -> NamedCommit:
        args = ("log", "-1", "--no-show-signature", "--no-notes", "--encoding=UTF-8", "--format=%s", sha)
        subject = self.git(*args).stdout.decode(errors="replace")
        return NamedCommit(ref, sha, escaped(subject.removesuffix("\n"), 200))


def fetching(rev: str, *options: str) -> str:
    """Return the command that fetches `rev` from origin: a branch, tag or whole hash."""
    # What follows the remote's name alone would become FETCH_HEAD and no name.
    what = [rev] if _WHOLE_HASH.fullmatch(rev) else ["+refs/heads/*:refs/remotes/origin/*"]
    return shell(["git", "fetch", *options, "--tags", "origin", *what], spanned=True)


def _output(done: subprocess.CompletedProcess[bytes]) -> str:
    return os.fsdecode(done.stdout.removesuffix(b"\n"))


def _refuse_half_a_repository(folder: Path, stderr: bytes) -> None:
    text = stderr.decode(errors="replace")
    if "not a git repository (or any" in text:
        return
    name = escaped(folder)
    if "must be run in a work tree" in text:
        raise UsageError(f"{name}: is a bare repository or a git directory: run perfci in a working tree")
    if "not a git repository: " in text:
        there = escaped(text.strip().rpartition("not a git repository: ")[2], 300)
        raise UsageError(
            f"{name}: its .git names {there}, which is not here: "
            "in a container, mount the main repository at the same path"
        )
    raise git_error("rev-parse", folder, stderr)
