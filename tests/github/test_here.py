"""`publish: here`: what the job that measured says in its own comment. test_actions.py runs it whole."""

import json
from pathlib import Path

import pytest

from perfci.github.api import ApiError
from perfci.github.event import Context
from perfci.github.here import read_publication, write_comment
from perfci.github.settings import Publishing
from perfci.model.base import UsageError
from perfci.model.publication import Artifact
from perfci.model.results import UNMEASURED
from tests.github.loopback.scene import HEAD, api_of, beside, measured, scene
from tests.github.loopback.server import GitHub


def context_of(hub: GitHub, run: int = 100, **origin: object) -> Context:
    found = beside(hub.pulls[7], run)
    return Context(found.origin.model_copy(update=origin), found.base, None, True, False)


def left(folder: Path, *ratios: float) -> Path:
    """The output of a job that measured these ratios."""
    (folder / "results.json").write_text(measured(*ratios).model_dump_json())
    return folder


def said(hub: GitHub, folder: Path, run: int = 100) -> str:
    posted = write_comment(context_of(hub, run), folder, [], Publishing(), api_of(hub))
    assert posted is not None
    return posted.state


def test_a_comment_is_begun_where_something_changed_and_then_kept_true(hub: GitHub, tmp_path: Path) -> None:
    scene(hub)
    assert said(hub, left(tmp_path, 1.0)) == "not wanted"
    assert hub.comments == []
    assert said(hub, left(tmp_path, 1.3), 101) == "written"
    assert "### ❌ " in hub.own_comments()[0]
    assert said(hub, left(tmp_path, 1.0), 102) == "written"
    [body] = hub.own_comments()
    assert body.startswith("### ✅ ") and "run=102" in body
    assert said(hub, left(tmp_path, 1.3), 101) == "superseded", "an older run overwrites nothing"
    (tmp_path / "results.json").unlink()
    (tmp_path / UNMEASURED).write_text(json.dumps({"version": 1, "verdict": "pass"}))
    assert said(hub, tmp_path, 103) == "written"
    assert "Passed without measuring" in hub.own_comments()[0]
    assert (hub.checks, hub.misfits) == ([], [])


@pytest.mark.parametrize(
    ("name", "text", "missing"),
    [
        ("", "", "nothing was measured: see the job's log"),
        ("results.json", "{", "what was measured has a results.json that is no strict JSON (not valid)"),
        ("results.json", '{"version": NaN}', "what was measured has a results.json that is no strict JSON"),
        (UNMEASURED, "[]", "what was measured cannot be read: see the job's log"),
        (UNMEASURED, " " * 5000, "what was measured "),
    ],
)
def test_what_cannot_be_read_is_no_pass(hub: GitHub, tmp_path: Path, name: str, text: str, missing: str) -> None:
    scene(hub)
    if name:
        (tmp_path / name).write_text(text)
    found = read_publication(context_of(hub), tmp_path, [], Publishing())
    assert found.exit_code == 3
    assert found.missing[0].startswith(missing)


def test_a_link_is_not_followed(hub: GitHub, tmp_path: Path) -> None:
    scene(hub)
    (tmp_path / "elsewhere").mkdir()
    left(tmp_path / "elsewhere", 1.0)
    (tmp_path / "results.json").symlink_to(tmp_path / "elsewhere" / "results.json")
    assert read_publication(context_of(hub), tmp_path, [], Publishing()).exit_code == 3


def test_nothing_can_be_accepted_and_the_artifact_is_named(hub: GitHub, tmp_path: Path) -> None:
    scene(hub)
    artifact = Artifact(name="perfci--a--0--1", url="https://github.com/octo/kernels/actions/runs/100/artifacts/1")
    write_comment(context_of(hub), left(tmp_path, 1.3), [artifact], Publishing(), api_of(hub))
    [body] = hub.own_comments()
    assert "--add-label" not in body and "perfci--a--0--1" in body
    assert HEAD[:10] in body


def test_a_fork_is_refused_here_too_and_a_missing_right_is_named(hub: GitHub, tmp_path: Path) -> None:
    scene(hub)
    with pytest.raises(UsageError, match="is of a fork"):
        write_comment(context_of(hub, fork=True), left(tmp_path, 1.3), [], Publishing(), api_of(hub))
    hub.granted = {"contents": "read"}
    with pytest.raises(ApiError, match="pull-requests: write"):
        write_comment(context_of(hub), tmp_path, [], Publishing(), api_of(hub))
    assert hub.comments == []
