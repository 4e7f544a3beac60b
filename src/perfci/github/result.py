"""Results of runs at one commit, and what they come to together.

A branch rule asks for the check of a commit, whichever pull request that commit is the head of: green for one of them
is green for all. So every check of ours on a commit carries the worst of what its open pull requests came to.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, cast

from perfci.model.publication import Origin, Publication
from perfci.model.text import listed

Conclusion = Literal["success", "failure", "neutral", "action_required"]
Own = Literal["success", "failure", "neutral", "action_required", "accepted"]
"""The result of one run: `accepted` is a failure that somebody took upon themselves, and passes."""
QUEUE = "queue"
"""In the place of a pull request's number: a merge queue's group of them."""
NONE = "0"
"""The same of a run without a pull request."""
FAILED = frozenset({"failure", "accepted"})
"""Results that stand for a verdict that can be accepted, or was."""
FAULTY = frozenset({"action_required", "accepted"})
"""The same where base's policy is at fault, and nothing could be judged."""
_WORST_FIRST: tuple[Conclusion, ...] = ("action_required", "failure", "neutral", "success")
_ID = re.compile(
    r"perfci/(?P<suite>[a-z0-9-]{1,60})/(?P<of>[0-9]{1,10}|queue)/(?P<base>[0-9a-f]{64})/(?P<run>[0-9]{1,18})"
    r"/(?P<attempt>[0-9]{1,9})/(?P<own>success|failure|neutral|action_required|accepted)"
)


@dataclass(frozen=True)
class Question:
    """A change against the branch that it goes into."""

    of: str
    """Number of the pull request, QUEUE, or NONE."""
    base: str
    """Stands for the branch's name, which may be longer than what GitHub keeps: its SHA-256."""

    @classmethod
    def of_pull(cls, number: int, base: str) -> "Question":
        """Return the question of a pull request: may it go into the branch `base`?"""
        return cls(str(number), sha256(base.encode()).hexdigest())

    @classmethod
    def of_queue(cls, base: str) -> "Question":
        """Return the question of a group of the merge queue of `base`: may it go into that?"""
        return cls(QUEUE, cls.of_pull(0, base).base)

    @classmethod
    def of_run(cls, origin: Origin) -> "Question":
        """Return the question that a run answers."""
        queued = origin.event == "merge_group"
        return cls.of_queue(origin.base_ref) if queued else cls.of_pull(origin.pull_request or 0, origin.base_ref)


@dataclass(frozen=True)
class Result:
    """The result of one run, as the `external_id` of its check keeps it."""

    suite: str
    question: Question
    run: int
    attempt: int
    own: Own

    @classmethod
    def made(cls, publication: Publication) -> "Result":
        """Of what is to be published."""
        origin = publication.origin
        accepted = publication.acceptance is not None and publication.exit_code == 0
        own: Own = "accepted" if accepted else conclusion(publication)
        return cls(publication.suite, Question.of_run(origin), origin.run_id, origin.attempt, own)

    @classmethod
    def read(cls, text: str) -> "Result | None":
        """Read an `external_id`; None of any other text."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        question = Question(found["of"], found["base"])
        return cls(found["suite"], question, int(found["run"]), int(found["attempt"]), cast(Own, found["own"]))

    def __str__(self) -> str:
        asked = self.question
        return f"perfci/{self.suite}/{asked.of}/{asked.base}/{self.run}/{self.attempt}/{self.own}"

    @property
    def age(self) -> tuple[int, int]:
        """Of two results the newer has the larger."""
        return self.run, self.attempt

    @property
    def concluded(self) -> Conclusion:
        """The conclusion of it alone, for GitHub."""
        return "success" if self.own == "accepted" else self.own


@dataclass(frozen=True)
class Open:
    """An open pull request with the commit as its head."""

    number: int
    base: str
    """Name of the branch that it goes into."""

    @property
    def question(self) -> Question:
        """The question that is to be answered before it may be merged."""
        return Question.of_pull(self.number, self.base)


@dataclass(frozen=True)
class Decided:
    """The result of a commit, over all results at it."""

    conclusion: Conclusion
    by: Result | None = None
    """The result that decides; None where one is waited for."""
    waits: str = ""
    """The runs that have no result yet, for people."""


def conclusion(publication: Publication) -> Conclusion:
    """Return the result of one publication.

    Only `success`, `neutral` and `skipped` satisfy a rule that requires the check. So a fault is `action_required`: it
    holds the merge up, and does not read as a regression. `neutral` is what is undecided, as where there was nothing
    to compare, or where the limits are only observed and do not hold.
    """
    code = publication.exit_code
    if code:
        return "failure" if code == 1 else "action_required"
    return "neutral" if publication.undecided else "success"


def newest(results: Iterable[Result]) -> dict[Question, Result]:
    """Return, for each question, the newest of the results that answer it."""
    return {one.question: one for one in sorted(results, key=lambda one: one.age)}


def decide(results: Iterable[Result], pulls: Iterable[Open], queued: Iterable[str] = ()) -> Decided | None:
    """Return the result of a commit's checks; None where there is no result at all. Pure.

    The worst of its open pull requests, each by its newest result against the branch that it goes into now: one without
    a result is waited for. `queued`: branches whose merge queue has the commit as a group's. Into these it is concluded
    by the queue's own run alone: whoever opens a pull request of it can neither pass nor stop it. With neither, the
    worst of what runs of the repository's own branches came to, or else of all that is known.
    """
    known = newest(results)
    pulls, into = list(pulls), sorted(set(queued))
    asked = {Question.of_queue(base): f"the merge queue's own run (into {base})" for base in into} | {
        one.question: f"#{one.number} (into {one.base})"
        for one in sorted(pulls, key=lambda one: one.number)
        if one.base not in into
    }
    own = [one for one in known.values() if one.question.of in (QUEUE, NONE)]
    counted = [known[one] for one in asked if one in known] if asked else own or list(known.values())
    worst = min(counted, key=_severity, default=None)
    silent = [named for one, named in asked.items() if one not in known]
    if known and silent and (worst is None or worst.concluded in ("success", "neutral")):
        return Decided("action_required", waits=listed(silent))
    return None if worst is None else Decided(worst.concluded, worst)


def _severity(one: Result) -> tuple[int, int, int, str, str]:
    """Return the worst first, of equal ones the newest; whoever asks gets the same."""
    return _WORST_FIRST.index(one.concluded), -one.run, -one.attempt, one.question.of, one.question.base
