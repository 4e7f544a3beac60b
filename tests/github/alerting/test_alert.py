"""The issue of a device's alerts against a GitHub on loopback: one, true, and nobody else's."""

import re
from collections.abc import Sequence

import pytest

from perfci.github.alert import Marker, Settled, settle
from perfci.github.api import ApiError, Forbidden, NotFound
from perfci.history.alert import find_alerts
from perfci.history.document import Compared, Night
from perfci.history.series import collect
from tests.github.loopback.scene import api_of
from tests.github.loopback.server import BOT, REPOSITORY, Answer, GitHub, example
from tests.history.nights import commit, point
from tests.history.test_alert import walk

HERE = f"https://github.com/{REPOSITORY}"
SLIPS = walk([1.0, 1.07, 1.07, 1.08, 1.0, 1.0, 1.0, 1.09, 1.09], creep=0.05)
"""Over from the second night on, for three nights; within for three; over for two."""
UNDECIDED = Compared(class_="inconclusive", limit=0.02)


def told(hub: GitHub, nights: Sequence[Night], suite: str = "perfci") -> Settled:
    [found] = find_alerts(collect(nights))
    return settle(found, suite, HERE, api_of(hub))


def states(hub: GitHub) -> list[str]:
    return [one["state"] for one in hub.issues]


def writes(hub: GitHub) -> list[tuple[str, str]]:
    return [
        (method, path.rpartition(REPOSITORY)[2])
        for method, path in hub.requests
        if method not in ("GET",) and path != "/graphql"
    ]


def undecided(night: Night) -> Night:
    return night.model_copy(
        update={"points": [point(one.case, last=UNDECIDED, reference=UNDECIDED) for one in night.points]}
    )


def test_the_first_night_over_is_no_issue_the_second_is_one_and_the_third_updates_it(hub: GitHub) -> None:
    assert told(hub, SLIPS[:1]).state == "none"
    assert told(hub, SLIPS[:2]).state == "none"
    assert hub.issues == []
    opened = told(hub, SLIPS[:3])
    [issue] = hub.issues
    assert (opened.state, opened.url) == ("opened", issue["html_url"])
    assert issue["title"] == "perfci: main is over a limit on AMD EPYC 9654"
    assert "sdpa/n=128" in issue["body"] and "+7.00 %" in issue["body"]
    assert f"{HERE}/compare/{commit(0).sha}...{commit(1).sha}" in issue["body"]
    assert f"perfci bisect {commit(0).sha} {commit(1).sha} -k sdpa/n=128 --device cpu" in issue["body"]
    assert told(hub, SLIPS[:3]).state == "unchanged"
    issue["title"] = "A better title"
    assert told(hub, SLIPS[:4]).state == "updated"
    assert issue["title"] == "A better title", "which a person gave it"
    assert "+8.00 %" in issue["body"] and "+7.00 %" not in issue["body"]
    assert writes(hub) == [("POST", "/issues"), ("PATCH", "/issues/500")]
    assert hub.comments == []


def test_undecided_and_missing_nights_change_nothing(hub: GitHub) -> None:
    assert told(hub, [*SLIPS[:2], undecided(SLIPS[2])]).state == "none"
    told(hub, [*SLIPS[:2], undecided(SLIPS[2]), SLIPS[3]])
    assert states(hub) == ["open"], "the second night over, with one between that knows nothing"
    before = dict(hub.issues[0])
    nights = [*SLIPS[:2], undecided(SLIPS[2]), SLIPS[3]]
    for nothing in (
        undecided(SLIPS[4]),
        SLIPS[4].model_copy(update={"points": []}),
        SLIPS[4].model_copy(update={"error": "no GPU", "points": []}),
    ):
        nights.append(nothing)
        assert told(hub, nights).state == "unchanged"
    assert hub.issues == [before]


def test_two_nights_within_close_it_and_two_over_open_it_again(hub: GitHub) -> None:
    told(hub, SLIPS[:4])
    assert told(hub, SLIPS[:5]).state == "updated"
    assert states(hub) == ["open"] and "within on 2026-11-05" in hub.issues[0]["body"]
    assert told(hub, SLIPS[:6]).state == "closed"
    [issue] = hub.issues
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")
    assert "### Main is within its limits on `AMD EPYC 9654` again" in issue["body"]
    assert [one["body"].splitlines()[0] for one in hub.comments] == [
        "Closed: every limit held on two nights in a row, the last one on 2026-11-06."
    ]
    assert told(hub, SLIPS[:7]).state == told(hub, SLIPS[:8]).state == "none"
    assert told(hub, SLIPS).state == "opened again"
    assert states(hub) == ["open"]
    assert "since 2026-11-08" in hub.comments[1]["body"]
    assert len(hub.comments) == 2
    assert told(hub, SLIPS).state == "unchanged"


def test_a_night_after_night_view_is_that_of_the_last_one_alone(hub: GitHub) -> None:
    """Jobs that failed, or were never started, leave nothing behind: the nights tell all."""
    assert told(hub, SLIPS).state == "opened"
    assert len(hub.issues) == 1 and hub.comments == []


def test_of_two_with_one_marker_the_higher_is_closed(hub: GitHub) -> None:
    told(hub, SLIPS[:3])
    body = hub.issues[0]["body"]
    for _ in range(2):
        hub.issue(BOT, "the same", body)
    again = told(hub, SLIPS[:3])
    assert (again.state, sorted(again.retired)) == ("unchanged", [501, 502])
    assert states(hub) == ["open", "closed", "closed"]
    assert hub.issues[1]["body"].startswith("Closed as a duplicate of #500")
    assert Marker.read(hub.issues[1]["body"]) is None
    assert told(hub, SLIPS[:3]).retired == ()


def test_each_device_and_each_suite_has_its_own(hub: GitHub) -> None:
    told(hub, SLIPS[:3])
    told(hub, SLIPS[:3], "kernels")
    told(hub, [one.model_copy(update={"devices": {"cpu": "AMD Ryzen"}}) for one in SLIPS[:3]])
    assert [one["title"].removeprefix("perfci: main is over a limit on ") for one in hub.issues] == [
        "AMD EPYC 9654", "AMD EPYC 9654 (kernels)", "AMD Ryzen",
    ]  # fmt: skip
    assert told(hub, SLIPS[:3], "kernels").state == "unchanged"


def test_what_others_wrote_is_left_alone(hub: GitHub) -> None:
    """A stranger's issue with our marker, our own text in a pull request, and our marker quoted."""
    told(hub, SLIPS[:3])
    body = hub.issues.pop()["body"]
    hub.issue("stranger", "perfci", body)
    pull = hub.issue(BOT, "a pull request of the bot", body)
    pull |= {"pull_request": example("issue")["pull_request"], "html_url": f"{HERE}/pull/501"}
    hub.issue(BOT, "quoted", f"Somebody said: {body}\n> so")
    before = [dict(one) for one in hub.issues]
    assert told(hub, SLIPS[:3]).state == "opened"
    assert hub.issues[:3] == before
    assert told(hub, SLIPS[:6]).state == "closed"
    assert hub.issues[:3] == before


def test_a_filter_that_github_overlooks_makes_nobody_elses_issue_ours(hub: GitHub) -> None:
    told(hub, SLIPS[:3])
    theirs = hub.issues.pop()
    hub.fail("GET", "/issues$", Answer(200, [theirs | {"user": theirs["user"] | {"login": "stranger"}}]))
    assert told(hub, SLIPS[:3]).state == "opened"


def test_what_a_person_closed_stays_closed_until_something_new_is_over(hub: GitHub) -> None:
    told(hub, SLIPS[:3])
    hub.issues[0]["state"] = "closed"
    before = dict(hub.issues[0])
    assert told(hub, SLIPS[:4]).state == "left closed"
    assert hub.issues == [before]
    assert told(hub, SLIPS[:6]).state == "none"
    assert told(hub, SLIPS).state == "opened again"
    assert states(hub) == ["open"]


def test_what_the_store_does_not_tell_of_stays_open(hub: GitHub) -> None:
    """A new branch of the store, begun since."""
    told(hub, SLIPS[:3])
    before = dict(hub.issues[0])
    assert told(hub, SLIPS[5:6]).state == "left open"
    assert hub.issues == [before]
    hub.issues.clear()
    told(hub, SLIPS)
    before = dict(hub.issues[0])
    other = walk([1.0] + [1.07] * 9 + [1.0] * 2, creep=0.05)
    assert told(hub, other).state == "left open", "of its alert, which began later, this store knows nothing"
    assert hub.issues == [before]


def test_a_job_that_comes_late_overwrites_nothing(hub: GitHub) -> None:
    told(hub, SLIPS[:4])
    before = dict(hub.issues[0])
    assert told(hub, SLIPS[:3]).state == "superseded"
    assert hub.issues == [before]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(502, {"message": "Bad Gateway"}, late=True),
        Answer(403, {"message": "You have exceeded a secondary rate limit"}, {"Retry-After": "7"}),
    ],
    ids=["lost", "secondary"],
)
@pytest.mark.parametrize(
    "request_", ["POST /issues$", "PATCH /issues/500$", "POST /issues/500/comments$", "GET /issues$"]
)
def test_what_fails_meanwhile_is_done_once(hub: GitHub, answer: Answer, request_: str) -> None:
    """Whatever is asked for, at each of the steps from opening to closing and opening again."""
    method, _, path = request_.partition(" ")
    answers = []
    for number in (3, 4, 6, 9):
        answers.append(Answer(answer.status, answer.body, answer.headers, answer.times, late=answer.late))
        hub.fail(method, path, answers[-1])
        told(hub, SLIPS[:number])
        hub.faults.clear()
        assert states(hub) == (["closed"] if number == 6 else ["open"])
    assert len(hub.comments) == 2
    assert any(not one.times for one in answers), "the failure was met"


def test_an_answer_that_never_comes_makes_no_second_issue(hub: GitHub) -> None:
    [found] = find_alerts(collect(SLIPS[:3]))
    hub.fail("POST", "/issues$", Answer(201, {}, delay=2.0, late=True))
    assert settle(found, "perfci", HERE, api_of(hub, timeout=1)).state == "unchanged"
    assert len(hub.issues) == 1


def test_what_is_not_allowed_is_said(hub: GitHub) -> None:
    hub.readonly = {"issues"}
    with pytest.raises(Forbidden, match=r"^the issue of AMD EPYC 9654: the token may not \(HTTP 403"):
        told(hub, SLIPS[:3])
    hub.readonly.clear()
    hub.fail("GET", "/issues$", Answer(410, {"message": "Issues has been disabled in this repository."}))
    with pytest.raises(NotFound, match="Issues has been disabled"):
        told(hub, SLIPS[:3])
    hub.fail("GET", "/issues$", Answer(503, {"message": "down"}, times=99))
    with pytest.raises(ApiError, match="run the job again later"):
        told(hub, SLIPS[:3])
    assert hub.issues == []


def test_issues_write_is_all_that_is_needed(hub: GitHub) -> None:
    hub.granted = {"issues": "write"}
    for number in range(1, len(SLIPS) + 1):
        told(hub, SLIPS[:number])
    assert states(hub) == ["open"] and len(hub.comments) == 2
    hub.granted = {"issues": "read", "contents": "write", "pull-requests": "write"}
    hub.issues.clear()
    with pytest.raises(Forbidden):
        told(hub, SLIPS)


def test_issues_beyond_the_first_page_are_found(hub: GitHub) -> None:
    told(hub, SLIPS[:3])
    for number in range(130):
        hub.issue(BOT, f"another {number}", "of another workflow")
    assert told(hub, SLIPS[:4]).state == "updated"


def test_the_marker_is_what_it_says() -> None:
    [found] = find_alerts(collect(SLIPS[:3]))
    marker = Marker.of("perfci", found)
    assert Marker.read(f"text\n{marker}\r\n") == marker
    assert re.fullmatch(
        r"<!-- perfci alert suite=perfci device=cpu-[0-9a-f]{16} begun=\S{20} told=\S{20} -->", str(marker)
    )
    assert Marker.read(f"{marker} and more") is None
