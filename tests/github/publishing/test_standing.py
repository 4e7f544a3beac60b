"""The line on where main stood: from real stores, against the test GitHub; nothing fails for want of it."""

import base64
import math
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.github.standing import MOST_CASES, Moved, search, standings
from perfci.history.document import Compared, Night
from perfci.history.store import Store, open_store
from perfci.model.fingerprint import Fingerprint
from tests.github.loopback.scene import published, scene
from tests.github.loopback.server import GitHub
from tests.github.publishing.test_publish_command import start
from tests.history.nights import commit, night, point, ratio
from tests.history.test_branch import Asked
from tests.render.build import report, row
from tests.render.publications import publication
from tests.sources.repo import git

DEVICE = "NVIDIA H200"
HERE = Fingerprint(devices={"cuda": DEVICE})


def stood(day: int, value: float | None = 1.031, case: str = "matmul/n=0", device: str = DEVICE) -> Night:
    """A night of November, after which main took so many times what it took in v1.2."""
    against = Compared(class_="unchanged", ratio=None if value is None else ratio(value, 0.003))
    return night(day - 1, devices={"cuda": device}, points=[point(case, device="cuda", reference=against)])


def comment_of(hub: GitHub) -> str:
    [body] = hub.own_comments()
    return body


def test_the_comment_says_where_main_stood_in_what_the_change_moves_most(hub: GitHub, tmp_path: Path) -> None:
    """From a branch of a bare repository; of the change the second case is none that moves."""
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    store = open_store(f"git:file://{bare}#perfci-history")
    for one in (stood(17, 1.02), stood(18), stood(19, None), stood(20, 1.5, device="NVIDIA H100")):
        store.add(one)
    _, run = scene(hub, 1.1, 1.0, fingerprint=HERE)
    outcome = published(hub, run, history=lambda: store)
    assert outcome.unread == ""
    said = f"main was 3.1 % (±0.3) over `v1.2` on 18 November 2026 (`{commit(17).sha[:7]}`)"
    assert f"Before this change: `matmul/n=0`: {said}." in comment_of(hub).splitlines()
    assert outcome.publication.exit_code == outcome.exit_code == 1, "judged as ever"


def test_a_change_that_moves_nothing_asks_no_store(hub: GitHub) -> None:
    def opened() -> Store:
        pytest.fail("a store was opened")

    _, run = scene(hub, 1.0, fingerprint=HERE)
    assert published(hub, run, history=opened, comment="always").unread == ""


def broken_folder(folder: Path) -> Store:
    (folder / "nights/2026/11").mkdir(parents=True)
    for name in ("20261118T030000Z-r18-1.json", "<b>.json"):
        (folder / "nights/2026/11" / name).write_text("[" * 100_000)
    return open_store(str(folder))


def raising(folder: Path) -> Store:
    raise RecursionError("what a stranger's data may come to")


@pytest.mark.parametrize(
    ("opened", "said"),
    [
        (lambda folder: open_store(str(folder / "none")), "history"),
        (broken_folder, "the history has no ratio to a reference"),
        (lambda folder: open_store(f"git:file://{folder}/none.git#b"), "the history cannot be read: git ls-remote"),
        (lambda folder: open_store("ftp://x"), "the history cannot be read: 'ftp://x': is no store"),
        (raising, "the history cannot be read (RecursionError)"),
    ],
)
def test_a_store_that_cannot_be_read_is_a_line_of_the_log_alone(
    hub: GitHub, tmp_path: Path, opened: Callable[[Path], Store], said: str
) -> None:
    _, run = scene(hub, 1.1, fingerprint=HERE)
    outcome = published(hub, run, history=lambda: opened(tmp_path))
    assert said in outcome.unread
    assert outcome.exit_code == 1 and outcome.notes == []
    assert "Before this change" not in comment_of(hub) and "history" not in comment_of(hub)


def test_a_store_that_does_not_answer_is_left_alone() -> None:
    never = Event()

    def opened() -> Store:
        never.wait()
        raise AssertionError

    made = publication(report([row("a", "regression", ratio=1.2)], "", ""))
    assert standings(made, opened, 0.05) == ([], "the history did not answer within 0.05 s")
    never.set()


@pytest.mark.slow
def test_a_branch_is_fetched_with_the_jobs_token_and_a_failure_is_only_logged(hub: GitHub, tmp_path: Path) -> None:
    """As the action starts it, without a checkout; the server has no such repository."""
    Asked.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        scene(hub, 1.1, fingerprint=HERE)
        done, _, summary = start(
            hub, tmp_path, PERFCI_INPUT_STORE="git:perfci-history", XDG_CACHE_HOME=str(tmp_path / "cache"),
            GITHUB_SERVER_URL=f"http://127.0.0.1:{server.server_port}", HOME=str(tmp_path),
        )  # fmt: skip
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 1, done.stderr
    known = base64.b64encode(b"x-access-token:t0ken").decode()
    assert Asked.seen[0] == ("/octo/kernels/info/refs?service=git-upload-pack", [f"basic {known}"])
    [line] = [line for line in done.stdout.splitlines() if "history" in line]
    assert line.startswith(" - the history cannot be read: git ls-remote") and known not in line and "t0ken" not in line
    assert "history" not in summary and len(hub.own_comments()) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([DEVICE, "NVIDIA H100"]), st.none() | st.floats(0.5, 2)),
        max_size=12,
    )
)
def test_the_last_night_that_tells_of_this_device_is_taken(told: list[tuple[str, str, float | None]]) -> None:
    nights = [stood(28 - i, value, case, device) for i, (case, device, value) in enumerate(told)]
    wanted = [Moved(case, "time", "cuda", DEVICE, math.log(1.1)) for case in ("a", "b")]
    found = {one.case: one for one in search(nights, wanted)}
    for case in ("a", "b"):
        expected = [i for i, (own, device, value) in enumerate(told) if (own, device) == (case, DEVICE) and value]
        if expected:
            assert (found[case].ratio, found[case].day.day) == (told[expected[0]][2], 28 - expected[0])
        else:
            assert case not in found
    assert len(found) <= MOST_CASES
