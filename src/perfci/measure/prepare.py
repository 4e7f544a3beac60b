"""Base and head: policy, snapshot and build of each."""

import os
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import Any

from perfci.measure.request import Progress, Request, What
from perfci.measure.sides.untouched import Seal
from perfci.model.base import MachineError, Side, UsageError, matches
from perfci.model.metrics import resolve
from perfci.model.policy import Limit, Policy, bound_in_unit
from perfci.model.policy_text import FILE, parse_policy
from perfci.model.results import Reason, SideCode
from perfci.model.text import escaped
from perfci.sources.environment import DOWNLOADS, HOMES, OF_HOME, TEMPORARY, side_environment
from perfci.sources.git import NamedCommit, Repository, means_itself
from perfci.sources.snapshot import Suite, file_digests, path_text, snapshot_commit, snapshot_folder, snapshot_worktree
from perfci.system.child import Arena, Died
from perfci.system.files import disk_errors, end_of, remove, remove_tree
from perfci.system.process import Parent
from perfci.system.users import Account

STEADY_MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 46), "MALLOC_MMAP_MAX_": "0"}
"""Workers keep freed memory (mallopt(3)). By default glibc decides by the process's history whether an output is paged
in anew: workers of the same code differed by up to 8 × (64 x 4096 float32, smoothed on a CPU; standard deviation of log
times 0.69, and 0.012 so)."""
BASE_JUDGES = "base's limits judge; head's count once merged"
OF_EACH_SIDE = {"suite", "commands", "build", "build_timeout", "path", "python", "env", "pass_env"}
"""Keys of the policy that each side takes from its own; all others are base's for both."""
_OF_NO_JUDGEMENT = {"version", "ignore", "gpu_hour", "history"}


@dataclass
class SideWork:
    """One side while it is measured."""

    name: Side
    info: SideCode
    policy: Policy
    folder: Path
    """Holds `tree/`, `site/` and `cache/`."""
    python: str
    variables: Mapping[str, str] = field(default_factory=dict)
    """From the command line."""
    kept: bool = False
    """Builds see nothing of the caller's home that code under test may have changed."""
    env: dict[str, str] = field(default_factory=dict)
    suite: list[str] = field(default_factory=list)
    """Without files whose import ends the process."""
    scripts: list[dict[str, Any]] = field(default_factory=list)
    """Those that list calls, once they are listed."""
    failure: Reason | None = None
    seal: Seal | None = None

    def __post_init__(self) -> None:
        self.suite, self.scripts = self.policy.globs, self.policy.scripts

    @property
    def written(self) -> dict[str, str]:
        """Its variables, as written."""
        return {**self.policy.env, **self.variables}

    @property
    def tree(self) -> Path:
        """The snapshot."""
        return self.folder / "tree"

    @property
    def site(self) -> Path:
        """`$PERFCI_SITE`, into which the build installs."""
        return self.folder / "site"

    @property
    def cache(self) -> Path:
        """Caches of compilers and packages."""
        return self.folder / "cache"

    def close(self, built: Collection[str] | None = None) -> None:
        """Digest what was built; `built`: as of `Seal`. Raises MachineError."""
        self.seal = Seal(self.name, self.tree, self.site, self.cache, built)

    def own(self) -> AbstractContextManager[None]:
        """While only this side's code runs: see `Seal.own`."""
        return self.seal.own() if self.seal is not None else nullcontext()

    def path(self) -> list[str]:
        """Return the begin of `sys.path`."""
        folders = [self.tree / entry for entry in self.policy.path]
        return [str(self.site), *(str(folder.resolve()) for folder in folders if folder.is_dir())]

    def arena(self, threads: int, cores: list[int]) -> Arena:
        """Return the conditions of this side's workers."""
        return Arena(self.tree, self.site, self.path(), self.env, self.python, threads, cores)


@dataclass(frozen=True)
class Sources:
    """Origin of the sides and limits."""

    repo: Repository | None
    root: Path
    base: NamedCommit | None
    head: NamedCommit | None
    policies: Mapping[Side, Policy]
    policy_from: Side
    notes: list[str]
    texts: Mapping[Side, str]
    changed: str = ""
    """The files that differ, told before anything of the sides runs."""

    def policy_name(self, name: Side) -> str:
        """Return a side's policy's name in errors."""
        return f"{self.base.sha[:10]}:{FILE}" if name == "base" and self.base else FILE


def find_sources(request: Request) -> Sources:
    """Return repository, base, head and both policies. Raises UsageError."""
    what, repo = request.what, Repository.find(request.where.repository)
    root = repo.root if repo else request.where.repository.resolve()
    notes: list[str] = []
    if repo is None and (what.mode == "compare" or what.committed):
        raise UsageError(f"{root}: not a git repository: compare needs one (`git init`, commit), or use `perfci run`")
    if what.only and what.itself:
        raise UsageError("--only: no base holds head to anything: name one: perfci compare BASE --only …")
    head = (repo.commit(what.head) if what.head else repo.head_commit()) if repo else None
    base: NamedCommit | None = None
    if repo and what.commits:
        base, head = repo.commit(what.commits[0]), repo.commit(what.commits[1])
    elif repo and what.mode == "compare":
        base = head if what.itself else repo.resolve_base(what.base, what.pull_request, what.head)
    if repo and head and base and head.sha == base.sha and not (what.environments or what.commits):
        _require_change(request, repo, head, base)
    if what.suite is not None and repo:
        text = repo.read(what.suite, FILE)
        if text is None:
            raise UsageError(f"{what.suite[:10]}: has no {FILE}: name a commit that has one")
        notes.append(f"policy and suite are those of {what.suite[:10]}")
    elif what.committed and repo and head:
        text = repo.read(head.sha, FILE)
    else:
        text = (root / FILE).read_bytes() if (root / FILE).is_file() else None
    if what.limit:
        text = _limited(what, repo, base, text)
        notes.append(f"there is no {FILE}: the benchmarks that perfci finds are held to --limit")
    if text is None and what.head:
        todo = "merge a branch that has one, or give --limit"
        raise UsageError(f"{escaped(what.head, 300)}: has no {FILE}: {todo}")
    if text is None:
        raise UsageError(f"{root / FILE}: there is no policy: write one with `perfci init`, or give compare --limit 5%")
    texts: dict[Side, str] = {"head": _decode(text, FILE)}
    policies: dict[Side, Policy] = {"head": parse_policy(texts["head"])}
    if not policies["head"].suite and not policies["head"].commands:
        raise UsageError(f"{FILE}: nothing to measure: name files under suite, or commands")
    policy_from: Side = "head"
    if base and (what.suite is not None or what.itself or what.limit):
        texts["base"], policies["base"] = texts["head"], policies["head"]
        notes += ["base is the tree of head: what differs is the environment"] if what.itself else []
    elif base and repo:
        old = repo.read(base.sha, FILE)
        if old is None:
            texts["base"], policies["base"] = texts["head"], policies["head"]
            notes.append(f"base {base.sha[:10]} has no {FILE}: judged by the limits of head")
        else:
            texts["base"] = _decode(old, FILE)
            policies["base"] = parse_policy(texts["base"], f"{base.sha[:10]}:{FILE}")
            policy_from = "head" if what.head_judges else "base"
            keys = [] if what.head_judges else judged_otherwise(policies["base"], policies["head"])
            if keys and not request.how.profile:
                notes.append(f"{BASE_JUDGES}: {FILE} differs in {', '.join(keys)}")
    return Sources(repo, root, base, head, policies, policy_from, notes, texts)


def _limited(what: What, repo: Repository | None, base: NamedCommit | None, head: bytes | None) -> bytes:
    """Return the policy of `--limit`. Raises UsageError where a side has one: base's is to judge."""
    of_base = repo.read(base.sha, FILE) if repo and base else None
    for side, text in (("base", of_base), ("head", head)):
        if text is not None:
            raise UsageError(
                f"--limit: {side} has a {FILE}, whose limits hold: change them there, or leave out --limit"
            )
    return what.limit.encode()


def _require_change(request: Request, repo: Repository, head: NamedCommit, base: NamedCommit) -> None:
    if request.what.base is not None and means_itself(request.what.base, head.sha):
        return
    dirty = request.what.head is None and repo.is_dirty(exclude=_own(request))
    if dirty and not request.what.committed:
        return
    name, ours = escaped(base.ref, 300), escaped(request.what.head or "HEAD", 300)
    same = repo.commit(base.ref).sha == head.sha
    if dirty:
        todo = "commit what is changed, or leave out --committed, which measures HEAD as it is committed"
    elif same:
        todo = f"change something first, or compare it with itself: perfci compare {ours}"
    else:
        todo = f"switch to what is to be measured, or compare it with itself: perfci compare {ours}"
    raise UsageError(f"{ours} is {name if same else f'an ancestor of {name}'}: nothing to compare: {todo}")


def _own(request: Request) -> list[Path]:
    """What perfci writes is no part of head."""
    where = request.where
    return [where.out, *filter(None, [where.prepare, where.prepared, where.cache, where.plan_file])]


def judged_otherwise(base: Policy, head: Policy) -> list[str]:
    """Return keys by which head's policy measures or judges otherwise, however written."""
    ours, theirs = _judging(base), _judging(head)
    return [key for key in ours if ours[key] != theirs[key]]


def _judging(policy: Policy) -> dict[str, Any]:
    found = policy.model_dump(exclude=OF_EACH_SIDE | _OF_NO_JUDGEMENT)
    return found | {"limits": [in_units(limit, policy) for limit in policy.limits]}


def in_units(limit: Limit, policy: Policy) -> dict[str, Any]:
    """Return the limit with numeric bounds in the metric's unit."""
    metric = resolve(limit.metric, policy.metrics)
    bounds = {name: value for name in ("min", "max") if (value := getattr(limit, name)) is not None}
    return limit.model_dump() | {name: bound_in_unit(value, metric) for name, value in bounds.items()}


def policy_of(repo: Repository, commit: NamedCommit) -> Policy | None:
    """Return a commit's policy, or None. Raises UsageError."""
    text = repo.read(commit.sha, FILE)
    return None if text is None else parse_policy(_decode(text, FILE), f"{commit.sha[:10]}:{FILE}")


def _decode(text: bytes, name: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{name}: is not UTF-8 text: save it as UTF-8") from None


def choose_python(asked: str | None, policy: Policy, root: Path, own: str = sys.executable) -> str:
    """Return the interpreter of the code under test: asked for, the policy's, the active environment's, else `own`.
    Raises UsageError."""
    named = asked or policy.python
    if named:
        candidate = Path(named).expanduser()
        if "/" not in named:
            found = shutil.which(named)
        else:
            found = str(candidate if candidate.is_absolute() else root / candidate)
        if not found or not os.access(found, os.X_OK) or Path(found).is_dir():
            raise UsageError(
                f"python: {named!r} is no interpreter that can be run: name one in {FILE} or with --python"
            )
        return found
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        inside = Path(os.environ.get(variable, "/nonexistent")) / "bin" / "python"
        if inside.exists():
            return str(inside)
    return own


def materialise(request: Request, sources: Sources, home: Path, progress: Progress, seed: int) -> dict[Side, SideWork]:
    """Take snapshots into `home/base` and `home/head`. Raises UsageError, MachineError."""
    what, where, sides = request.what, request.where, dict[Side, SideWork]()
    limits = sources.policies[sources.policy_from]
    names: list[Side] = ["base", "head"] if sources.base else ["head"]
    for name in names:
        policy = sources.policies[name]
        python = choose_python(what.python_of(name), policy, sources.root, where.own_python)
        # What is kept is used as base: it is built where base lies.
        folder = home / ("base" if name == (where.keep or "base") else "head") if where.cache else home / name
        kept = where.cache is not None
        side = SideWork(name, SideCode(), policy, folder, python, what.env.get(name, {}), kept)
        for folder in (side.tree, side.site, *(side.cache / one for one in HOMES)):
            folder.mkdir(parents=True)
        progress.stage(f"taking a snapshot of {name}")
        side.info = take_snapshot(name, request, sources, side.tree)
        side.env = environment(side, limits.threads, seed, build=False)
        sides[name] = side
    if what.itself and len({side.info.tree for side in sides.values()}) > 1:
        raise MachineError("the working tree changed while it was copied for base and head: run again")
    return sides


IMPORTED = (*all_suffixes(), ".pth")


def require_only(sources: Sources, base: SideWork, head: SideWork, globs: Sequence[str]) -> None:
    """Raise UsageError where head's tree differs from base's in a file that no glob matches, in the policy or a file of
    base's suite, or by a new file that Python could import in place of another."""
    if sources.policy_from != "base" or sources.texts["base"] != sources.texts["head"]:
        raise UsageError(f"--only: {FILE} is not as in base, and base's is to judge: put it back")
    ours, theirs = (file_digests(side.tree) for side in (base, head))
    held = {name for side in (base, head) for name in _suite_files(side.tree, base.policy)}
    for path in sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)):
        if path in held:
            why = "it is of the suite"
        elif not any(matches(glob, path) for glob in globs):
            why = "no glob matches it"
        elif path not in ours and _imports_as_another(head.tree / path, path, ours, base.policy.path):
            why = "Python could import it in place of another module: new ones belong into a package that base has"
        else:
            continue
        raise UsageError(f"--only: {escaped(path, 300)} is not as in base, and {why}: put it back")


def _suite_files(tree: Path, policy: Policy) -> Iterator[str]:
    """Names in `file_digests`, of links' targets, too."""
    scripts = policy.scripts
    named = [path for glob in (*policy.globs, *(one["file"] for one in scripts)) for path in tree.glob(glob)]
    root = os.path.realpath(tree)
    for path in (*named, *(tree / one["each"] for one in scripts if one["each"])):
        yield path_text(path.relative_to(tree))
        target = Path(os.path.realpath(path))  # which takes a link to itself as it is
        if target.is_relative_to(root):
            yield path_text(target.relative_to(root))


def _imports_as_another(file: Path, name: str, ours: Mapping[str, str], searched: Sequence[str]) -> bool:
    """Not below a package of base's, whose modules bear its name."""
    if not file.name.endswith(IMPORTED) and not file.is_symlink():  # which may lead to a package
        return False
    known = {folder for path in ours for folder in PurePosixPath(path).parents}
    folder = next(one for one in PurePosixPath(name).parents if one in known)
    return str(folder / "__init__.py") not in ours or folder in map(PurePosixPath, searched)


def take_snapshot(name: Side, request: Request, sources: Sources, target: Path) -> SideCode:
    """Copy one side's files. Raises UsageError, MachineError."""
    repo, what = sources.repo, request.what
    policy = sources.policies[name]
    files = [*policy.globs, *(script["file"] for script in policy.scripts)]
    suite = Suite(what.suite, files) if what.suite is not None else None
    if name == "base" and sources.base and repo and not what.itself:
        return _info(sources.base, snapshot_commit(repo, sources.base.sha, target, suite))
    if repo and sources.head and what.committed:
        return _info(sources.head, snapshot_commit(repo, sources.head.sha, target, suite))
    exclude = _own(request)
    if repo:
        info = _info(sources.head, snapshot_worktree(repo, target, exclude=exclude))
        info.dirty = repo.is_dirty(exclude=exclude)
        return info
    return SideCode(ref=str(sources.root.name), tree=snapshot_folder(sources.root, target, exclude))


def _info(commit: NamedCommit | None, tree: str) -> SideCode:
    if commit is None:
        return SideCode(ref="working tree", tree=tree)
    return SideCode(ref=commit.ref, commit=commit.sha, subject=commit.subject, tree=tree)


def environment(side: SideWork, threads: int, seed: int, *, build: bool) -> dict[str, str]:
    """Return a side's environment, its interpreter and builds first on PATH."""
    env = side_environment(
        side.folder,
        caller=os.environ,
        policy_env=side.written,
        pass_env=side.policy.pass_env,
        threads=threads,
        build=build,
        kept=side.kept,
    )
    env["PATH"] = os.pathsep.join([str(Path(side.python).parent), str(side.site / "bin"), env.get("PATH", os.defpath)])
    if not build:
        for name, value in {**STEADY_MALLOC, "PYTHONHASHSEED": str(seed % 2**32)}.items():
            env.setdefault(name, value)
    return env


def neutral(side: SideWork, nowhere: Path) -> dict[str, str]:
    """Return the side's environment, `nowhere` in its folder's place."""
    return {name: value.replace(str(side.folder), str(nowhere)) for name, value in side.env.items()}


def make_home(side: SideWork, account: Account) -> list[str]:
    """Link what builds need of the caller's home into the side's. Raises MachineError.

    Returns what a kept build goes without: the code under test may change it.
    """
    old, new, refused = Path(os.environ.get("HOME", "/nonexistent")), side.cache / "home", []
    with disk_errors("made", new):
        for name in OF_HOME:
            if not (old / name).exists():
                continue
            if side.kept and account.may_change(old / name) is not None:
                refused.append(name)
            elif account.may_read(old / name):
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).symlink_to(old / name)
    return refused


def empty_homes(side: SideWork, account: Account) -> None:
    """Drop temporary files and, where kept, the side's homes. Raises MachineError."""
    for folder in (side.cache / name for name in (HOMES if side.kept else (TEMPORARY,))):
        with disk_errors("made", folder):
            remove_tree(folder)
            folder.mkdir()
        account.give(folder)


def copy_cache(side: SideWork, target: Path, account: Account) -> None:
    """Copy the side's caches, without packages and temporary files, for the user of the code under test. Raises OSError
    for a file with several names, or of an uncopyable kind."""

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder) == side.cache and name in (*DOWNLOADS, TEMPORARY)]

    def copy(source: str, copied: str) -> None:
        if account.ids is not None and Path(source).lstat().st_nlink > 1:
            raise OSError(f"{source} has several names")
        shutil.copy2(source, copied, follow_symlinks=False)

    shutil.copytree(side.cache, target, symlinks=True, ignore=left_out, copy_function=copy)
    account.give(target)


def put_back_cache(side: SideWork, copied: Path) -> None:
    """Put back what `copy_cache` copied. Raises MachineError."""
    with disk_errors("put back", side.cache):
        for path in side.cache.iterdir():
            if path.name not in (*DOWNLOADS, TEMPORARY):
                remove(path)
        for path in copied.iterdir():
            path.rename(side.cache / path.name)
        copied.rmdir()


def build(side: SideWork, parent: Parent, out: Path) -> None:
    """Run the side's build steps in its tree. A failing step sets `side.failure`."""
    start = time.monotonic()
    log = out / "logs" / f"build-{side.name}.log"
    log.unlink(missing_ok=True)
    for step in side.policy.build:
        before = _size(log)
        try:
            ended = parent.execute(
                ["/bin/sh", "-euc", step],
                env=environment(side, side.policy.threads, 0, build=True),
                cwd=side.tree,
                log=log,
                timeout=side.policy.build_timeout,
            )
            problem = None if ended.code == 0 else ended.words()
        except Died as died:
            problem = died.reason.text
        if problem:
            text = f"{side.name} does not build: `{step}` {problem}; {_told(log, before)}"
            side.failure = Reason(kind="build", text=text[:1000], log=f"logs/{log.name}")
            break
    side.info.build_seconds = time.monotonic() - start


LOG_END = 200_000
"""Bytes of a build's log: compilers and pip print much behind an error."""
_ERROR = re.compile(
    r"(?:^|[\s:(])(?:fatal error|error|[a-z]\w*error)(?:\[\w+\]|\s+\w+)?\s*:"
    r"|undefined reference to|ptxas fatal|CMake Error",
    re.IGNORECASE,
)
"""`f.cu(3): error: …`, `undefined reference to`."""
_SUMMARY = re.compile(
    r"^error: (?:subprocess-exited|metadata-generation|failed |could not build|command )", re.IGNORECASE
)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _told(log: Path, before: int) -> str:
    """`before`: bytes of the log before the step."""
    size = min(LOG_END, _size(log) - before)
    told = end_of(log, size).decode(errors="replace") if size > 0 else ""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    if not lines:
        return "it printed nothing"
    named = [line for line in lines if _ERROR.search(line)]
    error = next((line for line in named if not _SUMMARY.match(line)), "")
    return f"its first error: {error[:200]}" if error else f"its last line: {lines[-1][:200]}"


def require_inside(side: SideWork, foreign: list[list[str]]) -> None:
    """Raise MachineError where the side imported the repository's code from elsewhere."""
    if foreign:
        module, file = foreign[0]
        raise MachineError(
            f"{side.name} imports {module!r} from {file}, outside its own tree, so that both sides would measure the "
            f"same code: build it into each side with `build: pip install --no-deps --no-build-isolation --target "
            f'"$PERFCI_SITE" .` in {FILE}'
        )
