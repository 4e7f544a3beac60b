"""Where reports say that a page is: where this perfci came from, wherever that is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfci.render import docs

ROOT = Path(__file__).parents[2]
SAY = "from perfci.render import docs; print(docs.page('undecided.md'), docs.link('undecided.md#clock'), sep='|')"


def installed(folder: Path, came: str = "") -> list[str]:
    """What an interpreter says that finds this perfci, installed with such facts."""
    info = folder / "perfci-9.8.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: perfci\nVersion: 9.8\n")
    if came:
        (info / "direct_url.json").write_text(came)
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}"}
    del env[docs.VARIABLE]
    said = subprocess.run([sys.executable, "-c", SAY], env=env, capture_output=True, text=True, check=True).stdout
    return said.strip().split("|")


HERE = [str(ROOT / "docs" / "undecided.md"), ""]


def at(place: str) -> list[str]:
    return [f"{place}/docs/undecided.md", f"{place}/docs/undecided.md#clock"]


def cloned(url: str) -> str:
    return json.dumps({"url": url, "vcs_info": {"vcs": "git", "commit_id": "5a5a"}})


CODE = "https://code.example/gpu/perfci"


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ("", HERE),
        ('{"url": "file:///src/perfci", "dir_info": {"editable": true}}', HERE),
        (cloned("https://me:token@code.example/gpu/perfci.git"), at(f"{CODE}/blob/5a5a")),
        (cloned("ssh://git@code.example/gpu/perfci"), at(f"{CODE}/blob/5a5a")),
        (cloned("file:///mirror/perfci"), HERE),
    ],
    ids=["unknown", "editable", "git, with a token", "git by ssh", "git here"],
)
def test_the_place_is_that_which_the_package_came_from(tmp_path: Path, came: str, expected: list[str]) -> None:
    assert installed(tmp_path, came) == expected


def test_an_action_tells_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(docs.VARIABLE, "https://github.example/gpu/perfci/blob/a) [b/docs")
    assert docs.link("undecided.md") == "https://github.example/gpu/perfci/blob/a%29%20%5Bb/docs/undecided.md"
    monkeypatch.setenv(docs.VARIABLE, "/opt/perfci/docs")
    assert (docs.page("undecided.md"), docs.link("undecided.md")) == ("/opt/perfci/docs/undecided.md", "")


SERVER = {"GITHUB_SERVER_URL": "https://github.example"}
ACTION = SERVER | {"GITHUB_ACTION_REPOSITORY": "gpu/perfci", "GITHUB_ACTION_REF": "v1"}


@pytest.mark.parametrize(
    ("env", "expected"), [(ACTION, "https://github.example/gpu/perfci/blob/v1/docs"), (SERVER, "")]
)
def test_the_actions_tell_the_place_that_the_workflow_names(env: dict[str, str], expected: str) -> None:
    (line,) = [line for line in (ROOT / "action" / "start").read_text().splitlines() if docs.VARIABLE in line]
    script = f"set -euo pipefail\n{line}\necho ${{{docs.VARIABLE}:-}}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
