"""Sides built before, and what must be the same to measure them."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import perfci
from perfci.measure.prepare import SideWork, Sources, choose_python, find_sources, take_snapshot
from perfci.measure.request import Request
from perfci.measure.sides.untouched import cache_digests
from perfci.model.base import Document, Side, UsageError
from perfci.model.comparison import marks, require_same
from perfci.model.policy_text import FILE, parse_policy
from perfci.model.results import Reason, SideCode
from perfci.model.text import escaped
from perfci.sources.git import NamedCommit, Repository
from perfci.sources.snapshot import file_digests
from perfci.system.files import write_atomic


class PreparedSide(Document):
    """One side, in `base/` or `head/` beside the document."""

    info: SideCode
    policy: str
    python: str
    """Interpreter that it was built with."""
    files: dict[str, str]
    """Path below the side's folder → digest, of its tree, builds and caches."""
    failure: Reason | None = None


class Prepared(Document):
    """The prepared sides, their sources, and the call that made them."""

    asked: dict[str, str]
    """Claims of the call."""
    root: str
    policy_from: Side
    notes: list[str]
    changed: str
    begun: float
    sides: dict[Side, PreparedSide]


MANIFEST = "prepared.json"
_AGAIN = "prepare it again"


def write(request: Request, sources: Sources, sides: Mapping[Side, SideWork], begun: float, folder: Path) -> None:
    """Write the document of `folder`. Raises MachineError."""
    made = Prepared(
        asked=marks(_asked(request, folder)),
        root=str(sources.root),
        policy_from=sources.policy_from,
        notes=sources.notes,
        changed=sources.changed,
        begun=begun,
        sides={
            name: PreparedSide(
                info=side.info, policy=sources.texts[name], python=side.python, files=_files(side), failure=side.failure
            )
            for name, side in sides.items()
        },
    )
    write_atomic(folder / MANIFEST, made.model_dump_json(indent=1) + "\n")


def _asked(request: Request, folder: Path) -> dict[str, Any]:
    return {
        "perfci's version": perfci.__version__,
        "its folder": str(folder),  # paths below it are in what was built
        "the command (run or compare)": request.what.mode,
        "BASE": request.what.base,
        "HEAD": request.what.head,
        "the set of --env": request.what.env,
        "--committed": request.what.committed,
        "the pull request": request.what.pull_request,
        "the set of --only": request.what.only,
    }


def _files(side: SideWork) -> dict[str, str]:
    digests = {folder: file_digests(folder) for folder in (side.tree, side.site)} | {
        side.cache: cache_digests(side.cache)
    }
    return {f"{folder.name}/{path}": digest for folder, found in digests.items() for path, digest in found.items()}


def load(request: Request, folder: Path, scratch: Path) -> tuple[Sources, dict[Side, SideWork], float]:
    """Return the sides of `folder`, and when they were begun. Raises UsageError unless they are what `request` asks
    for."""
    made = _read(folder / MANIFEST)
    names = ["base", "head"] if request.what.mode == "compare" else ["head"]
    then = made.asked | marks({"the set of sides": sorted(made.sides)})
    _require(folder, then, _asked(request, folder) | {"the set of sides": names})
    sources = Sources(
        repo=None,
        root=Path(made.root),
        base=_commit(made.sides["base"].info) if "base" in made.sides else None,
        head=_commit(made.sides["head"].info),
        policies={name: parse_policy(side.policy) for name, side in made.sides.items()},
        policy_from=made.policy_from,
        notes=list(made.notes),
        texts={name: side.policy for name, side in made.sides.items()},
        changed=made.changed,
    )
    sides: dict[Side, SideWork] = {}
    for name, one in made.sides.items():
        side = SideWork(
            name, one.info, sources.policies[name], folder / name, one.python, request.what.env.get(name, {}),
            failure=one.failure,
        )  # fmt: skip
        python = choose_python(request.what.python_of(name), side.policy, sources.root, request.where.own_python)
        found = _files(side)  # what is new came as the side was measured before
        interpreter, known = f"the interpreter of {name}", found.keys() & one.files.keys()
        then = marks({interpreter: one.python} | {f"{name}/{path}": each for path, each in one.files.items()})
        _require(folder, then, {interpreter: python} | {f"{name}/{path}": found[path] for path in known})
        side.close(one.files.keys())
        sides[name] = side
    _require_sources(request, made, folder, scratch)
    return sources, sides, made.begun


def _read(path: Path) -> Prepared:
    """Raises UsageError for a document that another user could have written."""
    try:
        info = path.lstat()
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{escaped(path)}: cannot be read ({error.strerror}): prepare with --prepare first") from None
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise UsageError(f"{escaped(path)}: others than this user may have written it: {_AGAIN}, as the same user")
    try:
        return Prepared.model_validate_json(text)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"])) or "its text"
        raise UsageError(f"{escaped(path)}: is not of this perfci ({field}): {_AGAIN}") from None


def _require_sources(request: Request, made: Prepared, folder: Path, scratch: Path) -> None:
    """Raise UsageError where a present repository holds other commits, policies or files than were prepared."""
    repo = Repository.find(request.where.repository)
    if repo is None and (made.sides["head"].info.commit or not (request.where.repository / FILE).is_file()):
        return  # it is not here: what was prepared is all there is
    sources = find_sources(request)
    for name, side in made.sides.items():
        commit, policy = f"the commit of {name}", f"the policy of {name}"
        one = sources.base if name == "base" else sources.head
        then = marks({commit: side.info.commit, policy: side.policy})
        _require(folder, then, {commit: one and one.sha, policy: sources.texts.get(name)})
    if not request.what.committed:
        tree = take_snapshot("head", request, sources, scratch / "now").tree
        _require(folder, marks({"the working tree": made.sides["head"].info.tree}), {"the working tree": tree})


def _commit(info: SideCode) -> NamedCommit | None:
    return NamedCommit(info.ref, info.commit, info.subject) if info.commit else None


def _require(folder: Path, then: Mapping[str, str], now: Mapping[str, Any]) -> None:
    require_same(then, marks(now), folder, "has changed since it was prepared", _AGAIN)
