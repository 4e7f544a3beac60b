"""`perfci publish` as the action starts it: environment in; exit code, outputs, summary and log out."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.warm import Warm
from tests.github.loopback.scene import HEAD, completed, environment, measured, packed, scene
from tests.github.loopback.server import Answer, GitHub, Run


def start(
    hub: GitHub, folder: Path, warm: Warm | None = None, payload: dict[str, Any] | None = None, **env: str
) -> tuple[subprocess.CompletedProcess[str], str, str]:
    """The process, what it gave to GITHUB_OUTPUT and to GITHUB_STEP_SUMMARY."""
    (folder / "event.json").write_text(json.dumps(payload or completed(Run(100, HEAD))))
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
    whole = {
        "PATH": os.environ["PATH"], "GITHUB_EVENT_NAME": "workflow_run", "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GITHUB_TOKEN": "t0ken", "GITHUB_API_URL": hub.api, **{name: str(file) for name, file in files.items()},
        **environment(999), **env,
    }  # fmt: skip
    command = [sys.executable, "-m", "perfci", "publish"]
    if warm:
        code, out, err = warm.run(("publish",), folder, whole, 60)
        assert code is not None, out + err
        done = subprocess.CompletedProcess(command, code, out, err)
    else:
        done = subprocess.run(command, env=whole, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    output, summary = (file.read_text() for file in files.values())
    return done, output, summary


def outputs(text: str) -> dict[str, str]:
    lines = text.splitlines()
    return {line.partition("<<")[0]: lines[i + 1] for i, line in enumerate(lines) if "<<ghadelimiter_" in line}


def test_a_regression(hub: GitHub, tmp_path: Path) -> None:
    scene(hub, 1.0, 1.1)
    done, output, summary = start(hub, tmp_path, PERFCI_INPUT_MODELS="")  # an input that is not given
    assert (done.returncode, done.stderr) == (1, "")
    found = outputs(output)
    assert found["verdict"] == "fail"
    assert found["comment-url"] == hub.comments[0]["html_url"]
    assert found["check-url"] == hub.checks[0]["html_url"]
    assert "matmul/n=1" in summary


def test_nothing_that_is_posted_or_printed_is_a_command(hub: GitHub, run: Run, tmp_path: Path, warm: Warm) -> None:
    hub.upload(run, packed(measured(1.2, names=["evil/\n::error::injected\n##[error]injected"])))
    hub.upload(run, b"no zip", name="perfci--x--0--1")
    hub.readonly = {"comments"}
    done, _, summary = start(hub, tmp_path, warm)
    assert done.returncode == 3
    assert "injected" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.lstrip().startswith(("::", "##["))]
    assert "pull-requests: write" in done.stdout
    assert "pull-requests: write" in summary
    assert "t0ken" not in done.stdout + done.stderr + summary


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"GITHUB_TOKEN": ""}, "GITHUB_TOKEN: is not set"),
        ({"PERFCI_INPUT_COMMENT": "sometimes"}, "input comment: 'sometimes' is not allowed: write"),
        ({"PERFCI_INPUT_SUITE": "##[error]x"}, "## [error]x"),
        ({"PERFCI_INPUT_POLICY": "x.yaml"}, "input policy: is not known"),
        ({"PERFCI_INPUT_MODELS": "17"}, "input models: '17' does not fit: "),
        ({"GITHUB_EVENT_PATH": "/nowhere"}, "GITHUB_EVENT_PATH"),
        ({"GITHUB_EVENT_NAME": "issue_comment"}, "issue_comment"),
    ],
)
def test_what_is_wrong_is_one_line(hub: GitHub, tmp_path: Path, warm: Warm, env: dict[str, str], said: str) -> None:
    scene(hub, 1.0)
    done, _, _ = start(hub, tmp_path, warm, **env)
    assert done.returncode == 2 and said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_that_cannot_be_found_is_one_line(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    done, _, _ = start(hub, tmp_path, warm)
    assert done.returncode == 3
    assert done.stderr.splitlines() == ["perfci: run 100: HTTP 404: Not Found"]


def test_a_token_that_may_not_read_is_told_what_it_needs(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    scene(hub, 1.0)
    hub.fail("GET", "/actions/runs/100$", Answer(403, {"message": "Resource not accessible by integration"}))
    done, _, _ = start(hub, tmp_path, warm)
    assert done.returncode == 3
    assert "permissions: {actions: read" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_broken_policy_on_base_is_named(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    scene(hub, 1.0)
    hub.files["b" * 40, "perfci.yaml"] = b"version: 1\nsuit: x\n"
    done, output, summary = start(hub, tmp_path, warm)
    assert (done.returncode, outputs(output)["verdict"]) == (2, "error")
    assert [(check["status"], check["conclusion"]) for check in hub.checks] == [("completed", "action_required")]
    assert "- main:perfci.yaml:2: suit: unknown field" in done.stdout and "suit: unknown field" in summary
