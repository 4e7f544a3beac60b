"""`perfci history alert` as a job starts it: a store and a token in; issues, lines and an exit code out."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from perfci.history.document import Night
from perfci.history.store import open_store
from tests.e2e.warm import Warm
from tests.github.loopback.server import REPOSITORY, GitHub
from tests.history.test_alert import CASE, walk

SLIPS = walk([1.0, 1.07, 1.07], creep=0.05)


class Done(NamedTuple):
    code: int
    out: str
    err: str


def start(hub: GitHub, folder: Path, warm: Warm, *args: str, nights: list[Night] = SLIPS, **env: str) -> Done:
    store = open_store(str(folder / "store"))
    for night in nights:
        store.add(night)
    whole = {
        "PATH": os.environ["PATH"], "GITHUB_TOKEN": "t0ken", "GITHUB_API_URL": hub.api, "GITHUB_REPOSITORY": REPOSITORY,
        **env,
    }  # fmt: skip
    code, out, err = warm.run(("history", "alert", "--store", "store", *args), folder, whole, 60)
    assert code is not None, out + err
    assert "t0ken" not in out + err
    return Done(code, out, err)


def test_an_issue_is_opened_and_told(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    hub.granted = {"issues": "write"}
    done = start(hub, tmp_path, warm)
    [issue] = hub.issues
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f" AMD EPYC 9654: opened {issue['html_url']}",
        f"   {CASE} time +7.00 % (±0.3) over b6589fc6ab, since 2026-11-02",
        f"   {CASE} time +7.00 % (±0.2) over v1.2, since 2026-11-02",
    ]
    assert start(hub, tmp_path, warm).out.splitlines()[0].startswith(" AMD EPYC 9654: unchanged ")


def test_a_step_on_one_night_is_told_and_no_issue(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    done = start(hub, tmp_path, warm, nights=SLIPS[:2])
    assert (done.code, hub.issues) == (0, [])
    assert done.out.splitlines() == [
        " AMD EPYC 9654: no issue",
        f"   {CASE} time +7.00 % (±0.2) over b6589fc6ab: on one night so far, 2026-11-02",
        f"   {CASE} time +7.00 % (±0.2) over v1.2: on one night so far, 2026-11-02",
    ]


def test_a_damaged_night_is_named_and_a_store_without_nights_is_an_error(
    hub: GitHub, tmp_path: Path, warm: Warm
) -> None:
    done = start(hub, tmp_path, warm, nights=[])
    assert (done.code, hub.issues) == (3, []), "it may be another one than was meant"
    assert "has no night (it is empty): see how the store is called" in done.err
    start(hub, tmp_path, warm, nights=SLIPS[:2])
    [*_, newest] = sorted((tmp_path / "store").rglob("*.json"))
    newest.write_text("::error::{")
    done = start(hub, tmp_path, warm, nights=[])
    assert (done.code, hub.issues) == (0, []), "a night that is missing opens nothing"
    assert any(
        line.startswith(f" left out: {newest.relative_to(tmp_path / 'store')} is damaged")
        for line in done.out.splitlines()
    )


def test_a_store_of_many_devices_floods_nobody(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    nights = [
        one.model_copy(update={"devices": {"cpu": f"made up {number}"}, "run": f"{one.run}.{number}"})
        for one in SLIPS
        for number in range(17)
    ]
    done = start(hub, tmp_path, warm, nights=nights)
    assert (done.code, hub.requests) == (3, [])
    assert "names 17 devices with alerts, more than 16" in done.err


def test_nothing_that_is_printed_is_a_command(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    nights = [one.model_copy(deep=True, update={"devices": {"cpu": "evil\n::error::x ##[error]x"}}) for one in SLIPS]
    for one in nights:
        one.points[0].case = "evil\n::error::injected ##[error]injected"
    done = start(hub, tmp_path, warm, nights=nights)
    assert done.code == 0 and "injected" in done.out
    assert "##[" not in done.out
    assert not [line for line in done.out.splitlines() if line.lstrip().startswith("::")]


@pytest.mark.parametrize(
    ("args", "env", "code", "said"),
    [
        ((), {"GITHUB_TOKEN": ""}, 2, "GITHUB_TOKEN: is not set"),
        ((), {"GITHUB_REPOSITORY": ""}, 2, "--repository"),
        (("--repository", "kernels"), {}, 2, "--repository 'kernels': write owner/name"),
        (("--repository", "a/../b"), {}, 2, "write owner/name"),
        (("--suite", "Bad Suite"), {}, 2, "--suite 'Bad Suite'"),
        (("--store", "ftp://x"), {}, 2, "is no store"),
    ],
)
def test_what_is_wrong_is_one_line(
    hub: GitHub, tmp_path: Path, warm: Warm, args: tuple[str, ...], env: dict[str, str], code: int, said: str
) -> None:
    done = start(hub, tmp_path, warm, *args, **env)
    assert (done.code, done.out) == (code, "")
    assert said in done.err and len(done.err.splitlines()) == 1
    assert hub.requests == []


def test_what_the_token_lacks_is_named(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    hub.granted = {"issues": "read"}
    done = start(hub, tmp_path, warm)
    assert done.code == 3
    assert "give the job `permissions: {issues: write}`" in done.err and len(done.err.splitlines()) == 1
