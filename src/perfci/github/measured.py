"""Was all of this change measured, against its base? By GitHub's own history.

The measuring workflow may be the change's own: it may have named another base, fewer cases, another device.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from github.Comparison import Comparison
from github.GitCommit import GitCommit

from perfci.github.api import Api, ApiError, NotFound
from perfci.github.artifact import Unfit
from perfci.github.settings import Publishing
from perfci.model.base import DeviceKind, Side, matches
from perfci.model.policy import Policy
from perfci.model.results import Results
from perfci.model.text import listed, short, shorten
from perfci.render.escape import visible

SHOWN = 3
_GITHUBS = "noreply@github.com"
"""Committer of what is committed on GitHub itself."""
_NOT_KNOWN = (
    ", which was measured, is not known to be GitHub's merge of this change, so that its files may be others: push, or "
    "close and reopen the pull request, so that it is measured"
)
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Change:
    """The change that a run is of."""

    head: str
    upstream: str
    """The commit whose history it has to leave; empty without one, as on a schedule."""
    name: str
    """That commit for people."""
    merged: bool
    """GitHub merges head with base for the run, as for a pull request."""
    merge: str = ""
    """GitHub's current merge of head with base; empty without one."""


def confirm(results: Results, change: Change, inputs: Publishing, api: Api) -> str:
    """Raise Unfit unless `change` was measured, against the base that it leaves.

    Returns why a measured merge may differ from GitHub's, or empty.
    """
    commit = _commit(results, "head")
    if commit is None:
        raise Unfit("does not say which commit was measured")
    if results.sides["head"].dirty:
        raise Unfit("measured uncommitted changes")
    merge = commit != change.head
    made = _git_commit(commit, api) if merge else None
    parents = [parent.sha for parent in made.parents] if made is not None else []
    if merge and (change.head not in parents or not change.merged):
        raise Unfit("measured another commit than the run's")
    if merge and (len(parents) != 2 or parents[1] != change.head):
        raise Unfit("measured a commit that is not GitHub's merge of base and head")
    doubt = "" if made is None else _doubt(made, change, api)
    wanted = _wanted(change, inputs, api)
    if results.mode != "compare":
        if wanted:
            raise Unfit(
                f"was compared with nothing, and this change leaves {named(change.name)}: where that is intended, give "
                "the publishing action `base: none`, too"
            )
        return doubt
    base = _commit(results, "base")
    if base is None:
        raise Unfit("does not say which commit it was compared with")
    if not wanted:
        raise Unfit("was compared with a base, and this run has none: give the publishing action the same `base`")
    if merge and not inputs.base:
        # Base stood on the branch when GitHub merged: the branch has only grown since.
        # Not at an older commit than head knows: the branch may have been slower then.
        left = _merge_base(wanted, change.head, api)
        if parents[0] != base or not _holds(wanted, base, api) or not _holds(base, left, api):
            raise Unfit(f"was compared with another commit than {named(change.name)} had")
    elif merge and not _holds(change.upstream, parents[0], api):
        raise Unfit(f"measured a merge with another branch than {named(change.name)}")
    if (not merge or inputs.base) and _merge_base(wanted, commit, api) != base:
        raise Unfit(
            f"was compared with another commit than where it leaves {named(inputs.base or change.name)}: where another "
            "base is intended, give the publishing action the same `base`; else run the measuring job anew"
        )
    if any(case.proof is not None and case.proof.by == "files" for case in results.cases) and (
        _git_commit(base, api).tree.sha != _git_commit(commit, api).tree.sha
    ):
        raise Unfit("calls a case proved by equal files, and the commits differ in theirs")
    return doubt


def left_out(measured: Sequence[Results], policy: Policy | None, inputs: Publishing) -> list[str]:
    """Return what all jobs together should have measured and did not.

    For a demanded device only jobs that have it count.
    """
    lines = []
    declared = [results.plan.declared for results in measured if results.plan.declared is not None]
    if len(declared) < len(measured):
        lines.append("an artifact does not say which cases there are: measure with this version of perfci")
    asked = dict.fromkeys(ident for cases in declared for ident in [*cases.kernels, *cases.commands])
    wanted: Sequence[DeviceKind] = inputs.device or (policy.devices if policy is not None else None) or ()
    for device in wanted or ("",):
        there = [results for results in measured if not device or _ran_on(device, results)]
        if device and not there:
            lines.append(f"nothing was measured on {device}, which is demanded")
            continue
        seen = {case.id for results in there for case in results.cases}
        missing = [ident for ident in asked if ident not in seen and _is_asked(ident, inputs.cases)]
        if missing:
            shown = listed(map(named, missing), SHOWN)
            on = f" on {device}" if device else ""
            lines.append(
                f"{shown} {'was' if len(missing) == 1 else 'were'} not measured{on}: "
                "where fewer cases are intended, give the publishing action the same `cases`"
            )
    return lines


def _ran_on(device: DeviceKind, results: Results) -> bool:
    return any(case.device == device and case.stopped != "skipped" for case in results.cases)


def _is_asked(ident: str, globs: Sequence[str]) -> bool:
    return not globs or any(matches(glob, ident) for glob in globs)


def _wanted(change: Change, inputs: Publishing, api: Api) -> str:
    if inputs.base == "none":
        return ""
    if not inputs.base:
        return change.upstream
    branch = tip(inputs.base.removeprefix("refs/heads/"), api)
    return branch or str(api.call(f"base {inputs.base}", lambda: api.repository.get_commit(inputs.base).sha))


def tip(branch: str, api: Api) -> str | None:
    """Return a branch's commit; None without the branch. Raises ApiError."""
    try:
        return api.call(f"branch {branch}", lambda: api.repository.get_branch(branch).commit.sha)
    except NotFound:
        return None


def _commit(results: Results, side: Side) -> str | None:
    code = results.sides.get(side)
    return code.commit if code is not None and code.commit and _SHA.fullmatch(code.commit) else None


def _git_commit(commit: str, api: Api) -> GitCommit:
    try:
        return api.call("the measured commit", lambda: api.repository.get_git_commit(commit).complete())
    except ApiError as error:
        if error.status in {404, 422}:
            raise Unfit("measured another commit than the run's") from None
        raise


def _doubt(made: GitCommit, change: Change, api: Api) -> str:
    """Why a merge may hold other files than GitHub's of the same parents, or empty.

    Where that is gone, GitHub's signature is believed (docs.github.com, "About commit signature verification").
    """
    now = _git_commit(change.merge, api) if change.merge else None
    if now is not None and [parent.sha for parent in now.parents] == [parent.sha for parent in made.parents]:
        known = now.tree.sha == made.tree.sha
    else:
        known = made.verification.verified and made.committer.email == _GITHUBS
    return "" if known else f"{named(short(made.sha))}{_NOT_KNOWN}"


def _merge_base(first: str, second: str, api: Api) -> str:
    return str(_compared(first, second, api).merge_base_commit.sha)


def _holds(branch: str, commit: str, api: Api) -> bool:
    return bool(commit == branch or _compared(commit, branch, api).behind_by == 0)


def _compared(first: str, second: str, api: Api) -> Comparison:
    try:
        return api.call("the histories", lambda: api.repository.compare(first, second))
    except ApiError as error:
        if error.status in {404, 422}:
            raise Unfit("was compared with a commit that this repository does not have") from None
        raise


def named(text: str) -> str:
    """Return a foreign name for a line with backticks."""
    shown = shorten(visible(text), 100, middle=True).replace("`", "'")
    return f"`{shown}`"
