"""`publish: here`: the measuring job writes the comment itself, and no check.

For repositories without forks: measured code ran in a job whose token may write. What it left is read as strictly as an
artifact.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from perfci.github import artifact, sticky
from perfci.github.api import Api, ApiError, Forbidden
from perfci.github.event import Context, require_own
from perfci.github.publish import worth_telling
from perfci.github.settings import Publishing
from perfci.judge.judge import judge
from perfci.model.publication import Artifact, Publication, Shard
from perfci.model.results import UNMEASURED
from perfci.render import comment
from perfci.system.bounded import Unread, regular

LARGEST = 4096
"""Bytes of UNMEASURED."""
_RIGHTS = "give the job `permissions: {contents: read, pull-requests: write}`"


def write_comment(
    context: Context, folder: Path, artifacts: Sequence[Artifact], inputs: Publishing, api: Api
) -> sticky.Posted | None:
    """Write what `folder` holds into the pull request's one comment; None without a pull request.

    Raises UsageError where the code is not known to be the repository's own, ApiError.
    """
    require_own(context)
    number = context.origin.pull_request
    if number is None:
        return None
    publication = read_publication(context, folder, artifacts, inputs)
    try:
        pull = api.call(f"pull request #{number}", lambda: api.repository.get_pull(number).complete())
        marker = sticky.Marker.of(inputs.suite, context.origin)
        create = worth_telling(publication, inputs.comment)
        return sticky.post(pull, marker, lambda limit: comment.render(publication, limit), create, api)
    except Forbidden as error:
        raise ApiError(f"{error}: {_RIGHTS}", error.status) from None


def read_publication(context: Context, folder: Path, artifacts: Sequence[Artifact], inputs: Publishing) -> Publication:
    """Return the publication of `folder`, judged by the planned limits."""
    made = Publication(suite=inputs.suite, origin=context.origin, jobs=1, checked=False)
    file = folder / artifact.MEMBER
    try:
        if file.exists():
            regular(file, artifact.MEMBER_BYTES)
            report = judge(artifact.parse(file.read_bytes()))
            made.shards = [Shard(report=report, artifacts=[*artifacts])]
        elif (idle := folder / UNMEASURED).exists():
            regular(idle, LARGEST)
            if json.loads(idle.read_bytes())["verdict"] == "pass":
                made.unmeasured = "base's `ignore` names every changed file"
            else:
                made.nothing = "base holds every commit of the head"
        else:
            made.missing = ["nothing was measured: see the job's log"]
    except (Unread, artifact.Unfit) as why:
        made.missing = [f"what was measured {why}"]
    except (OSError, ValueError, KeyError, TypeError):
        made.missing = ["what was measured cannot be read: see the job's log"]
    return made
