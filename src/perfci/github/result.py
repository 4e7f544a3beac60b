"""The results of runs at a commit, and what its checks say. Pure.

Every check of ours on a commit says the worst of the newest results of all that ask for it: a rule asks for a commit's
check, whichever pull request it is the head of. What asks and has no result yet passes nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, cast

from perfci.model.publication import Origin, Publication
from perfci.model.text import listed

Conclusion = Literal["success", "failure", "neutral", "action_required"]
Own = Literal["success", "failure", "neutral", "action_required", "accepted"]
"""A run's result: `accepted` is a failure that somebody accepted, and passes."""
VERDICTS: dict[Conclusion, str] = {
    "success": "pass",
    "neutral": "undecided",
    "failure": "fail",
    "action_required": "error",
}
"""For workflows that go on by it."""
QUEUE = "queue"
"""In place of a pull request's number: a merge queue's group."""
NONE = "0"
"""In place of the number: no pull request."""
FAILED = frozenset({"failure", "accepted"})
"""Their verdict can be accepted, or was."""
FAULTY = frozenset({"action_required", "accepted"})
"""As FAILED, where base's policy is at fault and nothing could be judged: a job without numbers is that, too."""
PASSING = frozenset({"success", "neutral"})
"""They satisfy a rule which requires the check."""
_TWIN = "this commit is its head, too, and a branch rule cannot tell the two apart"
_WORST_FIRST: tuple[Conclusion, ...] = ("action_required", "failure", "neutral", "success")
_ID = re.compile(
    r"perfci/(?P<suite>[a-z0-9-]{1,60})/(?P<of>[0-9]{1,10}|queue)/(?P<base>[0-9a-f]{64})/(?P<run>[0-9]{1,18})"
    r"/(?P<attempt>[0-9]{1,9})/(?P<own>success|failure|neutral|action_required|accepted)"
)


@dataclass(frozen=True)
class MergeQuestion:
    """May a change go into a branch?"""

    of: str
    """Number of the pull request, QUEUE, or NONE."""
    base: str
    """SHA-256 of the branch's name, which may be longer than what GitHub keeps."""

    @classmethod
    def of_pull(cls, number: int, base: str) -> "MergeQuestion":
        """Return a pull request's question."""
        return cls(str(number), sha256(base.encode()).hexdigest())

    @classmethod
    def of_queue(cls, base: str) -> "MergeQuestion":
        """Return the question of a group in `base`'s merge queue."""
        return cls(QUEUE, cls.of_pull(0, base).base)

    @classmethod
    def of_run(cls, origin: Origin) -> "MergeQuestion":
        """Return the question that a run answers."""
        queued = origin.event == "merge_group"
        return cls.of_queue(origin.base_ref) if queued else cls.of_pull(origin.pull_request or 0, origin.base_ref)


@dataclass(frozen=True)
class Result:
    """A run's result, as its check's `external_id` keeps it."""

    suite: str
    question: MergeQuestion
    run: int
    attempt: int
    own: Own

    @classmethod
    def made(cls, publication: Publication) -> "Result":
        """Return the result of a publication."""
        origin = publication.origin
        accepted = publication.acceptance is not None and publication.exit_code == 0
        own: Own = "accepted" if accepted else conclusion(publication)
        return cls(publication.suite, MergeQuestion.of_run(origin), origin.run_id, origin.attempt, own)

    @classmethod
    def read(cls, text: str) -> "Result | None":
        """Read an `external_id`; None of other text."""
        read = _ID.fullmatch(text)
        if read is None:
            return None
        question = MergeQuestion(read["of"], read["base"])
        return cls(read["suite"], question, int(read["run"]), int(read["attempt"]), cast(Own, read["own"]))

    def __str__(self) -> str:
        asked = self.question
        return f"perfci/{self.suite}/{asked.of}/{asked.base}/{self.run}/{self.attempt}/{self.own}"

    @property
    def age(self) -> tuple[int, int]:
        """The newer of two results has the larger."""
        return self.run, self.attempt

    @property
    def concluded(self) -> Conclusion:
        """Its own conclusion, for GitHub."""
        return "success" if self.own == "accepted" else self.own


@dataclass(frozen=True)
class Open:
    """An open pull request with the commit as its head."""

    number: int
    base: str

    @property
    def question(self) -> MergeQuestion:
        """The question before its merge."""
        return MergeQuestion.of_pull(self.number, self.base)


@dataclass(frozen=True)
class Decided:
    """What all checks of a commit say."""

    conclusion: Conclusion
    by: Result | None
    """The result that decides; None where one is missing."""
    waits: str
    """What asks and has no result yet; empty with `by`."""
    asking: Mapping[MergeQuestion, str]
    newest: Mapping[MergeQuestion, Result]

    def lead(self, result: Result) -> tuple[str, str]:
        """Return how a check's title begins, and why; empty where its own run decides."""
        newest = self.newest[result.question]
        if result.age < newest.age:
            return f"Superseded by run {newest.run}, attempt {newest.attempt}", ""
        if self.by is None:
            return (
                f"Waits for {self.waits}",
                f"the check waits for {self.waits}: {_TWIN}: close it, or have it measured",
            )
        if self.by.question == result.question or self.conclusion == result.concluded:
            return "", ""
        who = self.asking.get(self.by.question) or f"run {self.by.run}"
        return f"Held by {who}", f"the check says what {who} came to: {_TWIN}"


def conclusion(publication: Publication) -> Conclusion:
    """Return the conclusion of a publication.

    Only `success`, `neutral` and `skipped` satisfy a rule that requires the check. A fault is `action_required`: it
    does not read as a regression.
    """
    code = publication.exit_code
    if code:
        return "failure" if code == 1 else "action_required"
    return "neutral" if publication.undecided else "success"


def decide(results: Iterable[Result], pulls: Iterable[Open], queued: Iterable[str] = ()) -> Decided | None:
    """Return what a commit's checks say; None without a result.

    `pulls` ask, each for its branch, and merge queues (`queued`: their branches) for their commits: for such a branch
    the queue alone, so that whoever opens a pull request of it can neither pass nor stop it. Without either the
    repository's own branches' runs count, else all known.
    """
    newest = {result.question: result for result in sorted(results, key=lambda result: result.age)}
    into = sorted(set(queued))
    asking = {MergeQuestion.of_queue(base): f"the merge queue's own run (into {base})" for base in into} | {
        pull.question: f"#{pull.number} (into {pull.base})"
        for pull in sorted(pulls, key=lambda pull: pull.number)
        if pull.base not in into
    }
    own = [result for question, result in newest.items() if question.of in (QUEUE, NONE)]
    counted = [newest[question] for question in asking if question in newest] if asking else own or newest.values()
    worst = min(counted, key=_worst_and_newest_first, default=None)
    waits = listed([name for question, name in asking.items() if question not in newest])
    if newest and waits and (worst is None or worst.concluded in PASSING):
        return Decided("action_required", None, waits, asking, newest)
    return None if worst is None else Decided(worst.concluded, worst, "", asking, newest)


def _worst_and_newest_first(result: Result) -> tuple[int, int, int, str, str]:
    # In full, so that whoever asks gets the same.
    return _WORST_FIRST.index(result.concluded), -result.run, -result.attempt, result.question.of, result.question.base
