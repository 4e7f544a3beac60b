"""A claim of a pull request's description: measured, answered in the comment, and never the check's."""

from typing import Any

import pytest

from perfci.github import artifact, thin
from perfci.github.event import context
from perfci.judge.judge import judge
from perfci.measure.claims import fit_claims, plan_claims
from perfci.measure.request import What
from perfci.model.claims import Claim, described
from perfci.model.plan import Looks
from perfci.model.results import ClaimPairs, Results
from tests.github.loopback.scene import environment, measured, packed, proposed, published, refused, scene
from tests.github.loopback.server import GitHub
from tests.judge.build import pairs, values

LINE = "matmul/n=0: 10%"


def claiming(ratio: float, line: str = LINE, **plan: Any) -> Results:
    """Results of an unchanged case, whose pairs for the claim have `ratio` in time."""
    made = measured(1.0)
    claims = plan_claims(What(mode="compare", claims=[Claim.parse(line)], described=line), made.cases)
    assert claims is not None
    fit_claims(What(mode="compare"), claims, made.cases)
    made.cases[0].claimed = ClaimPairs(pairs=pairs(*values(ratio, n=16, seed=1)))
    claims = claims.model_copy(update=plan)
    return made.model_copy(update={"plan": made.plan.model_copy(update={"claims": claims})})


def answered(hub: GitHub, made: Results, body: str) -> tuple[str, str]:
    """The check's conclusion, and the comment; empty without one."""
    pull, run = scene(hub)
    pull.body = body
    hub.upload(run, packed(made))
    published(hub, run)
    return hub.checks[-1]["conclusion"], "\n".join(hub.own_comments())


@pytest.mark.parametrize(("ratio", "answer"), [(0.8, "shown"), (1.0, "not shown"), (0.9, "undecided")])
def test_what_is_claimed_is_answered_and_changes_no_check(hub: GitHub, ratio: float, answer: str) -> None:
    conclusion, comment = answered(hub, claiming(ratio), f"Faster.\r\n\r\nPerfci-Claim: {LINE}\r\n")
    assert conclusion == "success"
    assert f"claim {answer}: matmul/n=0 10 % faster: " in comment.replace("\\", "")
    assert "No regression: 1 case unchanged" in comment
    assert "own numbers" not in comment
    claimed = judge(claiming(ratio))
    plain = judge(measured(1.0))
    assert (claimed.rows, claimed.sentence, claimed.pairs) == (plain.rows, plain.sentence, plain.pairs)


@pytest.mark.parametrize(
    "body", ["perfci-claim: matmul/n=0: 5%", "nothing", f"perfci-claim: {LINE}\nperfci-claim: {LINE}"]
)
def test_another_description_than_was_measured_is_not_answered(hub: GitHub, body: str) -> None:
    conclusion, comment = answered(hub, claiming(0.8), body)
    assert conclusion == "success"
    assert "claim shown" not in comment


def test_a_claim_that_came_later_is_said_to_be_not_measured(hub: GitHub) -> None:
    made = published_notes(hub, measured(1.0), f"perfci-claim: {LINE}")
    assert made == [f"claimed, and not measured: {LINE}"]


@pytest.mark.parametrize(
    "body", [f"perfci-claim: {LINE}\nperfci-claim: {LINE}", "Perfci-Claim: söftmax 10%", "perfci-claim:"]
)
def test_a_claim_that_is_not_read_is_said_to_be_none(hub: GitHub, body: str) -> None:
    made = published_notes(hub, measured(1.0), body)
    assert made == ["the description claims nothing that is read: give one line, `perfci-claim: softmax* 10%`"]


def published_notes(hub: GitHub, made: Results, body: str) -> list[str]:
    pull, run = scene(hub)
    pull.body = body
    hub.upload(run, packed(made))
    return [note for shard in published(hub, run).publication.shards for note in shard.report.notes if "claim" in note]


def test_a_fork_answers_by_its_own_numbers(hub: GitHub) -> None:
    pull, run = scene(hub)
    pull.body = f"perfci-claim: {LINE}"
    pull.head_repository = run.head_repository = "stranger/repo"
    hub.upload(run, packed(claiming(0.8)))
    rows = published(hub, run).publication.shards[0].report.claims
    assert [row.reason.endswith(", by its own numbers") for row in rows] == [True]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"described": ""}, "claims what no description can have claimed"),
        ({"described": "matmul*: 9%"}, "claims something else than the description"),
        ({"looks": Looks(alpha=0.5)}, "error rates that are not perfci's"),
        ({"m": 2, "looks": Looks.fitted(2)}, "error rates that are not perfci's"),
        (
            {"criteria": [Claim(cases="*", fall=0.1).criterion("gone", "cuda")]},
            "claims something else than the description",
        ),
        ({"criteria": claiming(1.0).plan.criteria}, "claims something else than the description"),
        ({"criteria": []}, "claims something else than the description"),
        ({"described": "gone* 10%"}, "claims something else than the description"),
    ],
)
def test_an_artifact_that_claims_by_its_own_rules_is_refused(hub: GitHub, plan: dict[str, Any], words: str) -> None:
    _, run = scene(hub)
    hub.upload(run, packed(claiming(0.8, **plan)))
    assert words in refused(hub, run)


@pytest.mark.parametrize(
    ("body", "claim"),
    [
        ("perfci-claim: softmax* 10%", "softmax* 10%"),
        ("text\n  Perfci-Claim:softmax*: 10% \nmore", "softmax*: 10%"),
        ("perfci-claim: a 1%\nperfci-claim: b 2%", ""),
        ("perfci-claim: söftmax 10%", ""),
        ("perfci-claim: \x1b[31m 10%", ""),
        (f"perfci-claim: {'a' * 300} 10%", ""),
        ("", ""),
    ],
)
def test_a_description_claims_in_one_line_of_ascii(hub: GitHub, body: str, claim: str) -> None:
    assert described(body) == claim
    sent = proposed(hub.pull(7, "a" * 40))
    sent["pull_request"]["body"] = body or None
    assert context("pull_request", sent, environment(1)).claim == claim


def test_one_pair_told_many_times_is_refused(hub: GitHub) -> None:
    _, run = scene(hub)
    made = claiming(0.8)
    made.cases[0].claimed.pairs = made.cases[0].claimed.pairs[:1] * 16
    hub.upload(run, packed(made))
    assert "cases.0.claimed.pairs" in refused(hub, run)


def test_a_claim_is_left_out_where_it_is_too_much_to_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = claiming(0.8)
    plain = measured(1.0)
    content = made.model_dump_json().encode()
    thin._leave_out(made)
    bound = len(thin._dumped(made)) - 500
    assert len(thin._dumped(plain)) < bound
    monkeypatch.setattr(artifact, "MEMBER_BYTES", bound)
    fitted, _ = thin.fit(content)
    kept = Results.model_validate_json(fitted)
    assert (kept.plan.claims, kept.cases[0].claimed) == (None, None)
    assert "What the description claims was too much to hand over." in kept.notes
    assert [row.class_ for row in judge(kept).rows] == ["unchanged"]
