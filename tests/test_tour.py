"""The commands of docs/tour.md give what it says, and docs/suite.md has every key of the policy."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfci.model.policy import Policy
from perfci.model.policy_text import parse_policy

ROOT = Path(__file__).parents[1]
TOUR = (ROOT / "docs/tour.md").read_text()
SUITE = (ROOT / "docs/suite.md").read_text()


def typed() -> list[tuple[str, list[str]]]:
    """Each command of the tour, and the lines that come back."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```\n(\$ .*?)^```$", TOUR, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def told(lines: list[str]) -> list[str]:
    """Return what is the same in every run: files that are written, verdicts, exit codes."""
    found = [re.match(r"wrote .*|PASS|FAIL|\d$", line) for line in lines]
    return [match[0] for match in found if match]


def newcomer(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has perfci installed, which is `make`'s here."""
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "120",
        "PERFCI_CALIBRATION": str(tmp_path / "calibration"), "HOME": str(tmp_path),
        "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.com",
        "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.com",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_five_minutes_typed(tmp_path: Path) -> None:
    """Every line of README as it stands, from the installation on, in a clone beside which there is nothing yet."""
    block = (ROOT / "README.md").read_text().partition("## Five minutes")[2].split("```\n")[1]
    installed, _, rest = block.partition('pip install ".[torch]"')
    assert len(installed.splitlines()) == 2 and "perfci compare" in rest
    (tmp_path / "clone").mkdir()
    done = subprocess.run(
        ["bash", "-e", "-c", rest.partition("\n")[2]], cwd=tmp_path / "clone", env=newcomer(tmp_path),
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert re.search("^(PASS|UNDECIDED): ", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert done.returncode == 0
    assert (tmp_path / "my-repository/perfci-out/report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tour_typed(tmp_path: Path) -> None:
    """In one shell, where perfci is installed; the tour's own installation is `make`'s."""
    env = newcomer(tmp_path)
    commands = typed()
    assert sum(command.startswith("perfci compare") for command, _ in commands) >= 3
    assert sum(command == "echo $?" for command, _ in commands) >= 2
    mark = "-- typed --"
    script = "\n".join(f"echo '{mark}'; (exit $code)\n{command}\ncode=$?" for command, _ in commands)
    done = subprocess.run(
        ["bash", "-c", f"code=0\n{script}"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=880, check=False,
    )  # fmt: skip
    came_back = [part.strip("\n").splitlines() for part in done.stdout.split(mark + "\n")[1:]]
    assert len(came_back) == len(commands)
    for (command, said), lines in zip(commands, came_back, strict=True):
        assert told(lines) == told(said), f"{command}\n{done.stdout}"


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(# perfci\.yaml.*?)```", SUITE, re.DOTALL))
def test_the_policies_of_the_reference_are_valid(text: str) -> None:
    assert parse_policy(text, "perfci.yaml").limits


def test_the_reference_has_every_key() -> None:
    keys = set(re.findall(r"`([a-z_]+)`", SUITE)) | set(re.findall(r"^([a-z_]+):", SUITE, re.MULTILINE))
    assert set(Policy.model_fields) - keys == set()
