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


FIGURE = r"[+−±-]?\d+([.,]\d+)*(e[+-]\d+)?( ?(%|×|(ns|µs|ms|s|min|h)\b))?"


def masked(line: str) -> str:
    """Return what is the same in every run on every machine without a GPU: `#` stands for hashes, figures and times."""
    line = re.sub(r"\b(base|head) [0-9a-f]{7}\b", r"\1 #", line)
    line = re.sub(rf"{FIGURE}( {FIGURE})*", "#", line)
    line = re.sub(r"^.+( · base # → head #)", r"MACHINE\1", line)
    line = re.sub(r"^#: (# [a-z-]+, )+# [a-z -]+(; `.*)?$", "#: SHARES", line)  # of the phases that took most of it
    line = re.sub(r"\(#\) (slower|faster)", "(#)", line)  # unchanged is neither for sure, and may seem either
    return " ".join(line.split())


def shown(said: list[str], came_back: list[str]) -> tuple[list[str], list[str]]:
    """Return the masked lines of the tour and those that came back, these cut off where the tour cuts off its own."""
    ours, theirs = list(map(masked, said)), list(map(masked, came_back))
    cut = [line.endswith("…") and len(line) - 1 for line in ours] + [False] * len(theirs)
    return ours, [line[:at] + "…" if at else line for line, at in zip(theirs, cut, strict=False)]


def newcomer(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has perfci installed, which is `make`'s here."""
    (tmp_path / "tmp").mkdir()
    return {name: value for name, value in os.environ.items() if name != "PERFCI_MEASURE_ALL"} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "120",
        "TMPDIR": str(tmp_path / "tmp"), "CUDA_VISIBLE_DEVICES": "",
        "HOME": str(tmp_path),
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
        text = re.sub(r"^note: Pairs resemble .*\n\n", "", "\n".join(lines), flags=re.MULTILINE)  # of a busy machine
        ours, theirs = shown(
            said, [line for line in text.splitlines() if not line.startswith("perfci: ")]
        )  # its progress
        if ours[:1] == ["PASS: No regression: # cases unchanged"] and theirs[0].startswith("UNDECIDED: "):
            # The machine was too busy to exclude so little: what follows from that is another page's.
            ours = [line for line in ours if line and "unchanged" not in line]
            theirs = [line for line in theirs if line in ours]
        assert theirs == ours, f"{command}\n{done.stdout}"


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(# perfci\.yaml.*?)```", SUITE, re.DOTALL))
def test_the_policies_of_the_reference_are_valid(text: str) -> None:
    assert parse_policy(text, "perfci.yaml").limits


def test_the_reference_has_every_key() -> None:
    keys = set(re.findall(r"`([a-z_]+)`", SUITE)) | set(re.findall(r"^([a-z_]+):", SUITE, re.MULTILINE))
    assert set(Policy.model_fields) - keys == set()
