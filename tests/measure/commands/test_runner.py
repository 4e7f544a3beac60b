"""Executions of commands: in which order, and what they may leave behind."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfci.measure.commands.readers.base import Reported
from perfci.measure.commands.runner import Runner
from perfci.model.base import SIDES, Side
from perfci.model.policy import Command
from perfci.model.results import Case, CaseSide
from perfci.system.child import Died
from perfci.system.process import Parent
from perfci.system.users import find_account
from tests.e2e.conftest import GID, SYSTEM_PYTHON, UID, as_root
from tests.system.test_users import open_path

__all__ = ["open_path"]
TIME = """echo '{"metric": "time", "value": 0.01, "unit": "s"}' > "$PERFCI_METRICS" """


class Told(Runner):
    """Writes down which side is executed, in the place of executing it."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.said, self.seen, self.lasted = seconds, list[Side](), {}, {}
        self.sides: Any = dict.fromkeys(SIDES)

    def command(self, name: Side, command: str) -> Command:
        return Command(name=command, run="true")

    def execute(self, name: Side, command: Command) -> dict[str, Reported]:
        self.said.append(name)
        return {command.name: Reported(command.name, {"time": [self.seconds]}, None, None)}


@pytest.mark.parametrize("repeats", range(1, 9))
def test_a_pair_names_the_side_that_was_started_first(repeats: int) -> None:
    case = Case(
        id="c", kernel="c", device="cpu", origin="command", sides={name: CaseSide(reports=["time"]) for name in SIDES}
    )
    firsts = set()
    for index in range(16):
        runner = Told(0.5 / repeats - 1e-6)
        (outcome,) = runner.run_pair("c", [case], "0", index)
        assert outcome.pair is not None and outcome.pair.samples == dict.fromkeys(SIDES, repeats)
        assert outcome.pair.first == runner.said[0]
        firsts.add(outcome.pair.first)
    assert firsts == set(SIDES)


@pytest.mark.parametrize("env", [{}, pytest.param({"PERFCI_WORKER": f"{UID}:{GID}"}, marks=as_root)])
def test_what_a_command_that_fails_has_made_is_in_nobody_s_way(open_path: Path, env: dict[str, str]) -> None:
    tree, site, logs = open_path / "tree", open_path / "site", open_path / "logs"
    scratch = open_path / "scratch"
    for folder in (tree, site, logs, scratch):
        folder.mkdir()
    python = SYSTEM_PYTHON or sys.executable
    parent = Parent(python, scratch, dict(os.environ), account=find_account(env))
    before = set(scratch.iterdir())
    try:
        side: Any = SimpleNamespace(env=dict(os.environ), path=lambda: [str(site)], tree=tree)
        runner = Runner(parent, {"head": side}, 30.0, [], logs, scratch, {})
        for end in ("exit 3", "kill -9 $$", 'mkdir -p "$PERFCI_METRICS.d/e"; chmod 0 "$PERFCI_METRICS.d"; exit 3'):
            with pytest.raises(Died, match=r"exited with status 3|killed by SIGKILL"):
                runner.execute("head", Command(name="c", run=f"{TIME}; {end}", reads="perfci"))
            assert set(scratch.iterdir()) == before
        found = runner.execute("head", Command(name="c", run=TIME, reads="perfci"))
        assert found["c"].values == {"time": [0.01]}
        assert set(scratch.iterdir()) == before
    finally:
        parent.close()
