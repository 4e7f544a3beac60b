"""Comparisons of a bisect: what is measured, what is known already, and what becomes of failures."""

import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import perfci
from perfci.bisect.compare import JOURNAL, Bisecting, Comparisons
from perfci.bisect.run import bisect
from perfci.bisect.search import Trial
from perfci.measure.request import Request
from perfci.model.base import MachineError, UsageError
from perfci.model.comparison import marks
from perfci.model.results import Reason, Results
from perfci.sources.git import Repository
from tests.bisect.test_search import Made
from tests.measure import recorded

IDENTITY = {"the good commit": "x", "the case": ["adding"]}


@dataclass
class Measured:
    """Stands in for measuring: results with a log ratio, or what is to be raised."""

    log: float = 0.0
    fails: Exception | None = None
    calls: list[Request] = field(default_factory=list)
    change: dict = field(default_factory=dict)

    def __call__(self, request: Request) -> Results:
        self.calls.append(request)
        if self.fails is not None:
            raise self.fails
        assert request.what.question is not None
        case = recorded.case("adding", self.log + np.linspace(-0.002, 0.002, 64), **self.change)
        bound = request.what.question.bound or 0.02
        asked = recorded.criterion("adding", bound, threshold=request.what.question.threshold)
        request.where.out.mkdir(parents=True, exist_ok=True)
        return recorded.results([case], [asked])


@pytest.fixture
def made(tmp_path: Path) -> Made:
    one = Made(tmp_path / "repo")
    for name in ("good", "middle", "bad"):
        one.commit(name)
    return one


def opened(made: Made, measure: Measured, *, restart: bool = False, deeper: bool = False, **identity) -> Comparisons:
    repo = Repository.find(made.folder)
    assert repo is not None
    out = made.folder.parent / "out"
    out.mkdir(exist_ok=True)
    request = Request.of("compare", made.folder, out, cases=["adding"])
    bisecting = Bisecting(request, "", "", restart=restart, deeper=deeper)
    said = {f"the {name}": value for name, value in identity.items()}
    return Comparisons(repo, bisecting, IDENTITY | said, measure)


def step(made: Made, bound: float = 0.05) -> Trial:
    return Trial("step", made.commits["good"], made.commits["middle"], "lower", bound, 2)


def asked(made: Made, measure: Measured, *, ended: bool = False) -> None:
    """A bisect of one comparison, which was left, or ended."""
    with closing(opened(made, measure)) as comparisons:
        comparisons.ask(step(made))
        if ended:
            comparisons.end()


def test_what_is_known_is_not_measured_again_and_another_bound_is(made: Made) -> None:
    measure = Measured(log=0.06)
    comparisons = opened(made, measure)
    assert comparisons.ask(step(made)).answer == "yes"
    assert comparisons.ask(step(made)).answer == "yes"
    assert comparisons.ask(step(made, 0.2)).answer == "no"
    comparisons.close()
    assert len(measure.calls) == 2
    assert len({request.where.out for request in measure.calls}) == 2

    again = opened(made, measure)
    assert again.resumed and again.ask(step(made)).answer == "yes"
    again.end()
    again.close()
    assert len(measure.calls) == 2
    assert not opened(made, measure).resumed, "what has ended begins anew"


def test_what_has_ended_goes_on_for_what_is_left(made: Made) -> None:
    asked(made, Measured(log=0.06), ended=True)
    deeper = opened(made, Measured(), deeper=True)
    assert deeper.resumed and deeper.ask(step(made)).answer == "yes"


def test_interrupted_before_the_first_answer_its_pairs_are_kept(made: Made) -> None:
    measure = Measured(fails=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        asked(made, measure)
    folder = measure.calls[0].where.out
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("{}\n")
    measure.fails = None
    opened(made, measure).ask(step(made))
    assert (measure.calls[1].where.out, measure.calls[1].how.resume) == (folder, True)


def test_restart_forgets(made: Made) -> None:
    asked(made, Measured(log=0.06))
    measure = Measured()
    assert opened(made, measure, restart=True).ask(step(made)).answer == "no"


@pytest.mark.parametrize(
    "text",
    ["[]\n", "{}\n", '{"kind": "header"}\n{}\n', '{"kind": "header", "identity": 3}\n{}\n',
     json.dumps({"kind": "header", "identity": marks(IDENTITY)}) + '\n{"kind": "compared", "bound": 1, "compared": {}}\n',
     json.dumps({"kind": "header", "identity": marks(IDENTITY)}) + "\n{}\n", "garbage\n"],
)  # fmt: skip
def test_a_damaged_journal_is_one_line(made: Made, text: str) -> None:
    (made.folder.parent / "out").mkdir()
    (made.folder.parent / "out" / JOURNAL).write_text(text)
    with pytest.raises((UsageError, MachineError)) as error:
        opened(made, Measured())
    assert "\n" not in str(error.value) and JOURNAL in str(error.value)


def test_a_mistake_before_anything_was_measured_stands_in_nobodys_way(made: Made) -> None:
    opened(made, Measured()).close()
    assert not opened(made, Measured(), case=["other"]).resumed


def test_a_mistake_loses_nothing_of_the_bisect_before(made: Made) -> None:
    asked(made, Measured(log=0.06), ended=True)
    out = made.folder.parent / "out"
    (out / "bisect.md").write_text("found")
    for name in ("mistyped", "mistyped again"):
        with pytest.raises(UsageError):
            opened(made, Measured(fails=UsageError("no such case")), case=[name]).ask(
                Trial("whole", made.commits["good"], made.commits["bad"])
            )
        (out / "comparisons" / "01-whole-x-y" / "logs").mkdir(parents=True)  # which a build leaves
        previous = out / "previous"
        assert (previous / "bisect.md").read_text() == "found" and not (out / "bisect.md").exists()
        assert len(list((previous / "comparisons").iterdir())) == 1 and (previous / JOURNAL).exists()


def test_on_another_machine_it_refuses(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = opened(made, Measured())
    comparisons.ask(step(made))
    plain = recorded.results

    def elsewhere(*args, **more):
        found = plain(*args, **more)
        found.fingerprint.driver = "999.1"
        return found

    monkeypatch.setattr(recorded, "results", elsewhere)
    with pytest.raises(
        UsageError,
        match=r"the machine.s driver has changed since \(580\.159, here 999\.1\): give --restart to begin anew",
    ):
        comparisons.ask(step(made, 0.2))


def test_a_candidates_mistake_is_skipped_and_a_machines_failure_is_not(made: Made) -> None:
    comparisons = opened(made, Measured(fails=UsageError("perfci.yaml:3: suite: no")))
    found = comparisons.ask(step(made))
    assert (found.answer, found.reason) == ("unknown", "perfci.yaml:3: suite: no")
    failing = opened(made, Measured(fails=MachineError("GPU 0 is lost")), restart=True)
    with pytest.raises(MachineError, match=rf"GPU 0 is lost \(--skip {made.commits['middle'][:10]} leaves"):
        failing.ask(step(made))
    with pytest.raises(UsageError):
        opened(made, Measured(fails=UsageError("no")), restart=True).ask(
            Trial("whole", *list(made.commits.values())[1:3])
        )


def test_a_case_that_fails_or_asks_something_else_is_skipped(made: Made) -> None:
    measure = Measured(log=0.06)
    side = recorded.case("adding", [0.0]).sides["base"]
    wrong = side.model_copy(update={"status": "failed", "reason": Reason(kind="wrong", text="is wrong by 3×")})
    other = side.model_copy(update={"inputs": "else"})
    for head, said in ((wrong, "is wrong by 3×"), (other, "asks something else: the inputs' digest")):
        measure.change = {"sides": {"base": side, "head": head}}
        found = opened(made, measure, restart=True).ask(step(made))
        assert (found.answer, found.change) == ("unknown", None)
        assert found.reason.startswith(said)


def test_what_the_budget_leaves_undecided_goes_on_once(made: Made) -> None:
    measure = Measured(change={"stopped": "budget"})
    opened(made, measure).ask(step(made))
    first, second = measure.calls
    assert (first.how.budget, second.how.budget, second.how.resume) == (None, 3 * 600, True)


def test_the_same_files_are_the_same_answer(made: Made) -> None:
    measure = Measured(log=0.06)
    comparisons = opened(made, measure)
    made.commit("good again", at="middle")
    made._git("rm", "-q", "good again")
    made._git("commit", "-q", "-m", "as the middle")
    twin = made._git("rev-parse", "HEAD")
    found = comparisons.ask(Trial("confirm", made.commits["middle"], twin))
    assert (found.answer, measure.calls) == ("no", [])
    assert found.reason == f"the files are those of {made.commits['middle'][:10]}"


OF_BISECT: dict[str, dict] = {
    "perfci's version": {},
    "the good commit": {"good": "main~1"},
    "the bad commit": {"bad": "main~1"},
    "the case": {"cases": ["other"]},
    "the metric": {"metric": "cycles"},
    "the limit": {"limit": 0.5},
    "the device": {"devices": ["cpu"]},
    "the interpreter": {"python": "/bin/sh"},
    "the seed": {"seed": 9},
    "the suite": {"suite": "main"},
    "the history (--first-parent)": {"first_parent": True},
}
"""Each fact of a bisect → what differs in it alone."""


@pytest.mark.parametrize("name", OF_BISECT)
def test_an_unfinished_one_of_which_one_fact_differs_is_refused_by_its_name(name, made, tmp_path, monkeypatch):
    measure = Measured(fails=MachineError("the GPU is lost"))

    def ask(good: str = "main~2", bad: str = "main", **more) -> None:
        own = {key: more.pop(key) for key in ("metric", "limit", "first_parent", "suite") if key in more}
        request = Request.of("compare", made.folder, tmp_path / "out", **({"cases": ["adding"]} | more))
        bisect(Bisecting(request, good, bad, **own), measure, lambda line: None, lambda *told: None)

    with pytest.raises(MachineError, match="is lost"):
        ask()
    header = json.loads((tmp_path / "out" / JOURNAL).read_text())
    assert header["identity"].keys() == OF_BISECT.keys()
    pairs = tmp_path / "out" / "comparisons" / "01" / "journal.jsonl"
    pairs.parent.mkdir(parents=True)
    pairs.write_text("")
    with pytest.raises(MachineError, match="is lost"):
        ask()
    if name == "perfci's version":
        monkeypatch.setattr(perfci, "__version__", "0.0.1")
    with pytest.raises(UsageError) as error:
        ask(**OF_BISECT[name])
    said = str(error.value)
    assert said.startswith(f"{tmp_path}/out/{JOURNAL}: {name} is not that of the unfinished bisect"), said
    assert said.endswith(": give --restart to begin anew, or another --out")
