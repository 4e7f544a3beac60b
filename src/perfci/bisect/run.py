"""The bisect, from two names of commits to a document."""

from collections.abc import Callable
from dataclasses import dataclass

import perfci
from perfci.bisect.compare import ANSWERS, Comparisons, Measure, Subject
from perfci.bisect.document import Bisect, CommitFacts, Compared
from perfci.bisect.search import Asked, search_all
from perfci.bisect.walk import GitHistory, ends
from perfci.bisect.words import answer
from perfci.measure.request import Request
from perfci.model.base import UsageError
from perfci.model.text import count
from perfci.sources.git import Repository
from perfci.system.files import make_scratch, write_atomic

LOG = ANSWERS[2]


@dataclass(frozen=True)
class Bisecting:
    """One call of `perfci bisect`."""

    request: Request
    """Of its comparisons; `out` is its own folder, `cases` the one case."""
    good: str
    bad: str
    metric: str = "time"
    limit: float | None = None
    """From which on the ends differ; None takes the policy's."""
    first_parent: bool = False
    deeper: bool = False
    """Search what an accused commit leaves of the change."""
    suite: str | None = None
    """A commit whose policy and suite all have."""
    restart: bool = False
    skip: tuple[str, ...] = ()


Tell = Callable[[Compared, CommitFacts, bool], None]
"""Say what became of a comparison, with the facts of its head; True where it was known."""


def bisect(asked: Bisecting, measure: Measure, note: Callable[[str], None], tell: Tell) -> Bisect:
    """Find the commits that changed the metric, and write `bisect.log`. Raises PerfciError, KeyboardInterrupt: what was
    compared is kept, and the same call goes on."""
    request, where = asked.request, asked.request.where
    repo = Repository.find(where.repository)
    if repo is None:
        raise UsageError(f"{where.repository}: not a git repository: a bisect needs its commits")
    good, bad, notes = ends(repo, asked.good, asked.bad)
    if asked.suite is not None:
        request = request.but(suite=repo.commit(asked.suite).sha)
    subject = Subject(repo, request, asked.metric, asked.limit, frozenset(repo.commit(name).sha for name in asked.skip))
    what = request.what
    identity = {
        "perfci's version": perfci.__version__,
        "the good commit": good,
        "the bad commit": bad,
        "the case": what.cases,
        "the metric": asked.metric,
        "the limit": asked.limit,
        "the device": what.devices,
        "the interpreter": what.python,
        "the seed": what.seed,
        "the suite": what.suite,
        "the history (--first-parent)": asked.first_parent,
    }
    where.out.mkdir(parents=True, exist_ok=True)
    write_atomic(where.out / ".gitignore", "*\n")
    comparisons = Comparisons(subject, identity, measure, restart=asked.restart, deeper=asked.deeper)
    try:
        for line in notes:
            note(line)
        if comparisons.resumed:
            note(f"going on behind {count(len(comparisons.known), 'comparison')} (--restart begins anew)")
        with make_scratch() as scratch:
            history = GitHistory(repo, scratch, asked.first_parent)

            def ask(question: Asked) -> Compared:
                known = comparisons.knows(question)
                found = comparisons.ask(question)
                tell(found, history.facts(found.head), known)
                return found

            try:
                ranges = search_all(history, ask, good, bad, asked.metric, deeper=asked.deeper)
            finally:
                if history.logs and history.logs[0]:
                    write_atomic(where.out / LOG, history.logs[0])
        comparisons.end(deeper=asked.deeper)
    finally:
        comparisons.close()
    about = comparisons.about
    for one in comparisons.known.values():
        history.facts(one.base), history.facts(one.head)
    return Bisect(
        repository=repo.root.name,
        case=about.case if about else " ".join(what.cases),
        device=about.device if about else None,
        device_name=about.device_name if about else "",
        metric=asked.metric,
        better=about.better if about else "lower",
        limit=about.limit if about else asked.limit,
        command=request.how.command,
        sentence=answer(ranges, asked.metric),
        ranges=ranges,
        names=history.known,
        seconds=sum(one.seconds for one in comparisons.known.values()),
    )
