"""The bisect, from names of commits to a document."""

from collections.abc import Callable
from dataclasses import replace

import perfci
from perfci.bisect.compare import ANSWERS, Bisecting, Comparisons, Measure
from perfci.bisect.document import Bisect, BisectStep, CommitFacts
from perfci.bisect.search import Trial, search_all
from perfci.bisect.walk import GitHistory, ends
from perfci.bisect.words import answer
from perfci.model.base import UsageError
from perfci.model.text import count
from perfci.sources.git import Repository
from perfci.system.files import make_scratch, write_atomic

LOG = ANSWERS[2]


Tell = Callable[[BisectStep, CommitFacts, bool], None]
"""Say what became of a comparison; True where it was known."""


def bisect(asked: Bisecting, measure: Measure, note: Callable[[str], None], tell: Tell) -> Bisect:
    """Find the commits that changed the metric, and write `bisect.log`.

    Raises PerfciError, KeyboardInterrupt: the same call goes on.
    """
    where = asked.request.where
    repo = Repository.find(where.repository)
    if repo is None:
        raise UsageError(f"{where.repository}: not a git repository: a bisect needs its commits")
    good, bad, notes = ends(repo, asked.good, asked.bad)
    if asked.suite is not None:
        asked = replace(asked, request=asked.request.but(suite=repo.commit(asked.suite).sha))
    what = asked.request.what
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
    comparisons = Comparisons(repo, asked, identity, measure)
    try:
        for line in notes:
            note(line)
        if comparisons.resumed:
            note(f"going on behind {count(len(comparisons.known), 'comparison')} (--restart begins anew)")
        with make_scratch() as scratch:
            history = GitHistory(repo, scratch, asked.first_parent)

            def ask(question: Trial) -> BisectStep:
                known = comparisons.knows(question)
                found = comparisons.ask(question)
                tell(found, history.facts(found.head), known)
                return found

            try:
                ranges = search_all(history, ask, good, bad, asked.metric, deeper=asked.deeper)
            finally:
                if history.logs and history.logs[0]:
                    write_atomic(where.out / LOG, history.logs[0])
        comparisons.end()
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
        command=asked.request.how.command,
        sentence=answer(ranges, asked.metric),
        ranges=ranges,
        names=history.known,
        seconds=sum(one.seconds for one in comparisons.known.values()),
    )
