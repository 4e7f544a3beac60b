"""Comparisons of a bisect, each measured once, also after an interruption.

Each is an ordinary one, with one question in place of the policy's limits. `journal.jsonl` in the bisect's folder holds
the answers.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfci.bisect.document import Answer, BisectStep, StepPurpose
from perfci.bisect.search import Trial
from perfci.bisect.walk import tree
from perfci.judge.judge import judge
from perfci.judge.timed import ratio
from perfci.measure.journal import JOURNAL as PAIRS
from perfci.measure.journal import plain
from perfci.measure.request import Question, Request
from perfci.model.base import DeviceKind, Document, MachineError, UsageError
from perfci.model.comparison import differences, marks, require_same
from perfci.model.metrics import Direction
from perfci.model.results import Results
from perfci.model.text import one_line, short
from perfci.sources.git import Repository
from perfci.stats.equal_clock import log_ratios
from perfci.system.files import Appender, disk_errors, read_lines, remove_tree

JOURNAL = "journal.jsonl"
COMPARISONS = "comparisons"
ANSWERS = ("bisect.md", "bisect.json", "bisect.log")
"""Left for people and programs, beside the comparisons."""
PREVIOUS = "previous"
"""Folder of the bisect before."""
MORE_BUDGET = 3.0
"""Times the budget with which an undecided comparison goes on, once."""
_EXPLAINED = 5
"""Sentences kept of an explanation."""

_Key = tuple[StepPurpose, str, str, float | None]
Measure = Callable[[Request], Results]
"""Measure and write down. Raises PerfciError, KeyboardInterrupt."""


def _key(asked: Trial) -> _Key:
    return asked.purpose, asked.base, asked.head, asked.bound


class About(Document):
    """The case that is measured, and where."""

    case: str
    device: DeviceKind
    device_name: str
    better: Direction
    limit: float
    machine: dict[str, str]


@dataclass(frozen=True)
class Bisecting:
    """One call of `perfci bisect`."""

    request: Request
    """Of its comparisons; `out` is its own folder, and `cases` hold the one case."""
    good: str
    bad: str
    metric: str = "time"
    limit: float | None = None
    """Relative change from which the ends differ; None takes the policy's."""
    first_parent: bool = False
    deeper: bool = False
    """Search what an accused commit leaves of the change, too."""
    suite: str | None = None
    """A commit whose policy and suite are those of all."""
    restart: bool = False
    skip: tuple[str, ...] = ()


class Comparisons:
    """The comparisons of the journal, and those measured now."""

    def __init__(self, repo: Repository, asked: Bisecting, identity: Mapping[str, Any], measure: Measure) -> None:
        """`identity`: what must be the same for the journal to go on. Raises UsageError, MachineError."""
        self.repo, self.asked, self.measure, self.out = repo, asked, measure, asked.request.where.out
        self.skip = {repo.commit(name).sha for name in asked.skip}
        self.known: dict[_Key, BisectStep] = {}
        self.about: About | None = None
        path = self.out / JOURNAL
        self.resumed = path.exists() and not asked.restart and self._load(path, identity)
        """An unfinished bisect is gone on with."""
        if not self.resumed:
            _put_away(self.out)
        self._file = Appender(path)
        if not self.resumed:
            self._file.append({"kind": "header", "identity": marks(identity)}, sync=True)

    def _load(self, path: Path, identity: Mapping[str, Any]) -> bool:
        """A bisect that ended is done, unless what it leaves is searched, too."""
        records = read_lines(path)
        if not records:
            return False  # it was killed before it wrote anything
        try:
            if records[0]["kind"] != "header":
                raise ValueError
            if any(record["kind"] == "ended" and record["deeper"] >= self.asked.deeper for record in records):
                return False
            if len(records) == 1 and not any((path.parent / COMPARISONS).glob(f"*/{PAIRS}")):
                return False  # a mistake ended it before anything was measured
            todo = "give --restart to begin anew, or another --out"
            then, now = records[0]["identity"], marks(identity)
            require_same(then, now, path, "is not that of the unfinished bisect", todo)
            for record in records[1:]:
                if record["kind"] == "about":
                    self.about = About.model_validate(record["about"])
                elif record["kind"] == "compared":
                    one = BisectStep.model_validate(record["compared"])
                    self.known[one.purpose, one.base, one.head, record["bound"]] = one
        except (KeyError, TypeError, AttributeError, ValueError):  # ValidationError is a ValueError
            raise UsageError(f"{path}: is no journal of a bisect: give --restart, or another --out") from None
        return True

    def ask(self, asked: Trial) -> BisectStep:
        """Return the answer, from the journal if there. Raises PerfciError, KeyboardInterrupt."""
        if not self.knows(asked):
            one = self._told(asked) or self._measured(asked)
            self.known[_key(asked)] = one
            self._file.append({"kind": "compared", "bound": asked.bound, "compared": plain(one)}, sync=True)
        return self.known[_key(asked)]

    def knows(self, asked: Trial) -> bool:
        """Tell whether the answer is there."""
        return _key(asked) in self.known

    def end(self) -> None:
        """The bisect is done: the same command begins a new one."""
        self._file.append({"kind": "ended", "deeper": self.asked.deeper}, sync=True)

    def close(self) -> None:
        """Close the journal."""
        self._file.close()

    def _told(self, asked: Trial) -> BisectStep | None:
        def answer(answer: Answer, reason: str) -> BisectStep:
            return BisectStep(purpose=asked.purpose, base=asked.base, head=asked.head, answer=answer, reason=reason)

        if asked.purpose != "whole" and asked.head in self.skip:
            return answer("unknown", "left out by --skip")
        if tree(self.repo, asked.head) == tree(self.repo, asked.base):
            return answer("no", f"the files are those of {short(asked.base)}")
        return None

    def _measured(self, asked: Trial) -> BisectStep:
        name = f"{len(self.known) + 1:02}-{asked.purpose}-{short(asked.base)}-{short(asked.head)}"
        out = self.out / COMPARISONS / name
        question = Question(
            metric=self.asked.metric,
            bound=asked.bound if asked.bound is not None else self.asked.limit,
            better=asked.better,
            threshold=asked.purpose == "step",
            sharing=asked.sharing,
            explained=asked.purpose == "confirm",
            precise=asked.purpose == "whole",
        )
        request = self.asked.request.but(
            out=out,
            commits=(asked.base, asked.head),
            committed=True,
            question=question,
            keep=self.asked.request.where.keep if asked.purpose == "whole" else None,
            resume=(out / PAIRS).exists(),
        )
        start = time.monotonic()
        try:
            results = self._results(request)
            if (budget := _larger_budget(results)) is not None:
                results = self._results(request.but(budget=budget, resume=True))
        except UsageError as error:
            if asked.purpose != "step":
                raise
            reason = one_line(error, 1000)
            return BisectStep(purpose=asked.purpose, base=asked.base, head=asked.head, answer="unknown", reason=reason)
        except MachineError as error:
            if asked.purpose != "step":
                raise
            raise MachineError(f"{error} (--skip {short(asked.head)} leaves this commit out)") from None
        self._require_machine(results)
        found = _read(asked, results)
        found.seconds = time.monotonic() - start
        found.folder = str(out.relative_to(self.out))
        return found

    def _require_machine(self, results: Results) -> None:
        about = _about(results)
        if self.about is None:
            self.about = about
            self._file.append({"kind": "about", "about": plain(about)}, sync=True)
        path, todo = self.out / JOURNAL, "give --restart to begin anew"
        require_same(self.about.machine, about.machine, path, "has changed since", todo)

    def _results(self, request: Request) -> Results:
        try:
            return self.measure(request)
        except UsageError:
            if not request.how.resume:
                raise
            remove_tree(request.where.out)  # it was begun with other files, or on another machine
            return self.measure(request.but(resume=False))


def _put_away(out: Path) -> None:
    """To PREVIOUS; forget one that measured nothing."""
    previous, everything = out / PREVIOUS, (JOURNAL, COMPARISONS, *ANSWERS)
    with disk_errors("moved", out):
        if any((out / name).exists() for name in ANSWERS) or any((out / COMPARISONS).glob(f"*/{PAIRS}")):
            remove_tree(previous)
            previous.mkdir()
            for name in everything:
                if (out / name).exists():
                    (out / name).rename(previous / name)
        (out / JOURNAL).unlink(missing_ok=True)
        remove_tree(out / COMPARISONS)


def _about(results: Results) -> About:
    (case,) = results.cases
    (asked,) = results.plan.criteria
    facts = results.fingerprint
    return About(
        case=case.id,
        device=case.device,
        device_name=facts.devices.get(case.device, case.device),
        better=asked.better,
        limit=asked.bound,
        machine=marks(facts.lasting()),
    )


def _larger_budget(results: Results) -> float | None:
    ended = any(case.stopped == "budget" for case in results.cases)
    return max(MORE_BUDGET * results.plan.budget, results.budget_needed) if ended else None


def _read(asked: Trial, results: Results) -> BisectStep:
    found = BisectStep(purpose=asked.purpose, base=asked.base, head=asked.head, answer="unknown")
    (case,) = results.cases
    base, head = case.sides["base"], case.sides["head"]
    for side, commit in ((base, asked.base), (head, asked.head)):
        if side.status != "ok":
            text = side.reason.text if side.reason is not None else side.status
            found.reason = one_line(text if asked.purpose == "step" else f"{short(commit)}: {text}", 1000)
            return found
    if different := differences(base, head):
        found.reason = one_line(f"asks something else: {'; '.join(different)}", 1000)
        return found
    report = judge(results)
    row = next(row for row in report.rows if row.kind == "regression")
    found.limit, found.pairs, found.reason = row.limit, row.pairs, one_line(row.reason, 1000)
    found.change, found.interval = row.change, row.interval
    if case.proof is not None and case.answered(row.metric):
        found.answer, found.reason = "no", case.proof.reason
    elif row.class_ == "regression" or (asked.purpose == "whole" and row.class_ == "improvement"):
        found.answer = "yes"
    elif row.class_ in ("unchanged", "improvement"):
        found.answer = "no"
    if asked.purpose == "whole" and found.answer == "yes":  # by all pairs: steps are held against half of it
        pairs = log_ratios(case, row.metric, results.plan.looks.first)
        found.pairs, (found.change, found.interval) = pairs.x.size, ratio(pairs.x)
    if asked.purpose == "confirm":
        found.explained = [text for one in report.profiles for text in one.sentences][:_EXPLAINED]
    return found
