"""Output for the runner: commands on stdout, outputs and summary in files.

Text from code under test is escaped, and between `quiet` no line of stdout is a command.
"""

import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

from perfci.model.base import MachineError
from perfci.model.report import Report, Row
from perfci.model.text import shorten
from perfci.render.escape import visible
from perfci.system.files import disk_errors

Level = Literal["error", "warning", "notice"]
MOST_ANNOTATIONS = 10
"""Of a level; the runner drops further ones of a step (GitHub's documentation, "Annotations")."""
SUMMARY_BYTES = 1 << 20
"""A larger summary of a step is refused whole (actions/runner, FileCommandManager.cs, AttachmentSizeLimit)."""
_POISONED = ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")
"""Files by which a step changes later ones."""


def escape_data(text: str) -> str:
    """Return the message of a workflow command (actions/toolkit, command.ts, escapeData)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Return a property of a workflow command (actions/toolkit, command.ts, escapeProperty)."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def annotation(level: Level, text: str, *, file: str = "", line: int = 0, title: str = "") -> str:
    """Return the command that annotates `line` of `file`, or the run."""
    properties = {"file": visible(file), "line": str(line) if line > 0 and file else "", "title": visible(title)}
    said = ",".join(f"{name}={escape_property(shorten(value, 300))}" for name, value in properties.items() if value)
    return f"::{level}{' ' + said if said else ''}::{escape_data(shorten(visible(text), 1000))}"


def annotations(report: Report) -> list[str]:
    """Return the report's rows as annotations, worst first, ten of each level at most."""
    levels: dict[Level, list[Row]] = {"error": [], "warning": []}
    for row in report.rows:
        if row.effect != "pass":
            levels["error" if row.effect == "fail" else "warning"].append(row)
    commands = []
    for level, rows in levels.items():
        shown = rows if len(rows) <= MOST_ANNOTATIONS else rows[: MOST_ANNOTATIONS - 1]
        commands += [_of_row(level, row) for row in shown]
        if len(shown) < len(rows):
            commands.append(annotation(level, f"{len(rows) - len(shown)} more: the summary has them", title="perfci"))
    return commands


def _of_row(level: Level, row: Row) -> str:
    text = ". ".join(part for part in (row.reason or row.class_, row.cause) if part)
    title = " · ".join(filter(None, (row.case, row.metric)))
    return annotation(level, text, file=row.file, line=row.line, title=title)


@contextmanager
def quiet(stream: TextIO) -> Iterator[None]:
    """Keep what is written to `stream` meanwhile from being a command, by an unguessable stop word."""
    word = f"perfci-{secrets.token_hex(16)}"
    tell(f"::stop-commands::{word}", stream)
    try:
        yield
    finally:
        tell(f"\n::{word}::", stream)


def tell(command: str, stream: TextIO) -> None:
    """Give the runner a command."""
    stream.write(f"{command}\n")
    stream.flush()


def output_text(values: Mapping[str, str]) -> str:
    """Return a step's outputs, between unguessable delimiters."""
    lines = []
    for name, value in values.items():
        delimiter = f"ghadelimiter_{secrets.token_hex(16)}"
        lines.append(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")
    return "".join(lines)


class Files:
    """The runner's files of this step. What code under test writes into them is undone."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._paths = {name: Path(env[name]) for name in _POISONED if env.get(name)}
        self._held = {name: _read(path) or b"" for name, path in self._paths.items()}

    def restore(self) -> list[str]:
        """Undo every later change of the files. Return the changed.

        Raises MachineError of the first failure, after all the others are undone.
        """
        changed, failed = [], list[MachineError]()
        for name, path in self._paths.items():
            try:
                if _read(path) != self._held[name]:
                    changed.append(name)
                    _write(path, self._held[name])
            except MachineError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return changed

    def outputs(self, values: Mapping[str, str]) -> None:
        """Set the step's outputs. Raises MachineError."""
        self._append("GITHUB_OUTPUT", output_text(values))

    def summary(self, stages: Iterable[str]) -> bool:
        """Append the first of `stages` that the runner takes. Raises MachineError."""
        room = SUMMARY_BYTES - len(self._held.get("GITHUB_STEP_SUMMARY", b""))
        for text in stages:
            if len(text.encode(errors="replace")) <= room:
                self._append("GITHUB_STEP_SUMMARY", text)
                return True
        return False

    def _append(self, name: str, text: str) -> None:
        if name in self._paths:  # none: the runner does not take it
            self._held[name] += text.encode(errors="replace")
            _write(self._paths[name], self._held[name])


def _read(path: Path) -> bytes | None:
    """Or None: reading a pipe that was put there would never end."""
    with disk_errors("read", path):
        return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _write(path: Path, data: bytes) -> None:
    with disk_errors("written", path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
