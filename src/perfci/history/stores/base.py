"""A store of nights that never change, read as the data of strangers.

A document is named by its start, run and attempt: a listing is in the order of time. Nothing of its content ever names
a path. What cannot be read is a fault, named and left out; what cannot be reached is an error.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from perfci.history.document import Night
from perfci.model.base import MachineError, UsageError
from perfci.model.text import count, escaped, one_line
from perfci.system.files import disk_errors

LARGEST = 8 * 2**20
"""Bytes: some eighty times those of 200 cases."""
MOST_NIGHTS = 100_000
"""Documents that are read, the last ones."""
MOST_LISTED = 2 * MOST_NIGHTS
"""Names, foreign ones among them."""
MOST_FAULTS = 1000
"""Faults named one by one."""
TOP = "nights"
_BATCH = 64
"""Documents that are asked for at once."""
_BATCH_BYTES = 64 * 2**20
_NAME = re.compile(
    TOP + r"/(?P<year>[0-9]{4})/(?P<month>[0-9]{2})/(?P<started>(?P=year)(?P=month)[0-9]{2}T[0-9]{6}Z)"
    r"-(?P<run>[A-Za-z0-9][A-Za-z0-9._-]{0,99})-(?P<attempt>[1-9][0-9]{0,4})\.json",
    re.ASCII,
)


@dataclass(frozen=True)
class Fault:
    """A document not read."""

    name: str
    """As the store has it, what does not print escaped."""
    reason: str


@dataclass(frozen=True)
class Listed:
    """A document as a listing has it."""

    name: str
    """Relative to the store, with `/`."""
    size: int
    """Bytes."""


class BadNight(Exception):
    """Why a document is left out, as a clause."""


def name_of(night: Night) -> str:
    """Return `nights/2026/11/20261118T031500Z-RUN-ATTEMPT.json`."""
    at = datetime.fromisoformat(night.started)
    return f"{TOP}/{at:%Y/%m}/{_instant(at)}-{night.run}-{night.attempt}.json"


def content_of(night: Night) -> bytes:
    """Return a night's document, the same bytes each time. Raises UsageError for more than LARGEST."""
    content = night.model_dump_json().encode() + b"\n"
    if len(content) > LARGEST:
        raise UsageError(
            f"{night.run}: its night takes {len(content) >> 20} MiB, more than the {LARGEST >> 20} that are read: "
            "record fewer cases, or metrics"
        )
    return content


def parse_night(name: str, content: bytes) -> Night:
    """Return the night of a document. Raises BadNight."""
    if len(content) > LARGEST:
        raise BadNight(f"has more than the {LARGEST >> 20} MiB that are read")
    try:
        night = Night.model_validate_json(content)
    except ValidationError as error:
        raise BadNight(_why(content, error)) from None
    if name_of(night) != name:
        raise BadNight(f"is of another name than its content, which is {name_of(night)}")
    return night


def _why(content: bytes, error: ValidationError) -> str:
    try:
        found = from_json(content, allow_inf_nan=False)
    except ValueError as damaged:
        return f"is damaged ({one_line(damaged, 100)})"
    if not isinstance(found, dict) or found.get("kind") != "perfci-night":
        return "is no night that perfci recorded"
    version = found.get("version")
    if isinstance(version, int) and version > 1:
        return f"is of version {version}, which a newer perfci wrote: update perfci"
    if error.error_count() > MOST_FAULTS:  # each is told at a price
        return f"is no night of this version ({error.error_count()} errors)"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = escaped(".".join(map(str, first["loc"])), 100)
    return f"is no night of this version ({place or 'the whole'}: {one_line(escaped(first['msg']), 120)})"


class Store(ABC):
    """The nights of one place."""

    def __init__(self, text: str) -> None:
        self.text = text
        """As it was named, without secrets."""
        self.faults: list[Fault] = []
        """Left out since names() or runs() was called last."""
        self.warnings: list[str] = []
        """Notes for its owner, one line each."""
        self._unnamed = 0

    @abstractmethod
    def _list(self) -> Iterable[Listed]:
        """Yield all documents, foreign ones among them. Names what is none by fault()."""

    @abstractmethod
    def _fetch(self, names: Sequence[str]) -> Iterator[bytes | BadNight]:
        """Contents of listed documents, in this order, none over LARGEST bytes and one."""

    @abstractmethod
    def _create(self, name: str, content: bytes) -> bool:
        """Create a document whole or not at all; False where there is one of this name."""

    @abstractmethod
    def _content(self, name: str) -> bytes:
        """Raises BadNight."""

    def fault(self, name: str, reason: str) -> None:
        """Name a document left out."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(Fault(escaped(name, 200), reason))
            return
        self._unnamed += 1
        self.faults[MOST_FAULTS:] = [Fault("…", f"and {count(self._unnamed, 'document')} more")]

    def names(self) -> list[Listed]:
        """Return the documents in the order of their start. Raises MachineError."""
        self.faults, self._unnamed = [], 0
        found: dict[tuple[str, str], Listed] = {}
        for listed in sorted(self._list(), key=_order):
            match = _NAME.fullmatch(listed.name)
            if match is None:
                self.fault(listed.name, "is no document of a history")
            elif listed.size > LARGEST:
                self.fault(listed.name, f"has {listed.size >> 20} MiB, more than the {LARGEST >> 20} that are read")
            elif (run := (match["run"], match["attempt"])) in found:
                self.fault(listed.name, f"is of the same run and attempt as {found[run].name}")
            else:
                found[run] = listed
        names = list(found.values())
        if len(names) > MOST_NIGHTS:
            self.fault(
                names[0].name,
                f"and {len(names) - MOST_NIGHTS - 1} more: only the last {MOST_NIGHTS} documents are read",
            )
        return names[-MOST_NIGHTS:]

    def read(self, names: Iterable[Listed]) -> Iterator[tuple[Listed, Night]]:
        """Yield listed documents with their nights; what cannot be read becomes a fault. Raises MachineError."""
        for batch in _batches(names):
            for listed, content in zip(batch, self._fetch([one.name for one in batch]), strict=True):
                try:
                    if isinstance(content, BadNight):
                        raise content
                    yield listed, parse_night(listed.name, content)
                except BadNight as why:
                    self.fault(listed.name, str(why))

    def runs(self) -> Iterator[Night]:
        """Yield the nights in the order of their start, of each run the last attempt with the best answers.

        Raises MachineError.
        """
        runs: dict[str, list[Listed]] = {}
        for listed in self.names():
            runs.setdefault(_run(listed), []).append(listed)
        chosen = {run: attempts[0] for run, attempts in runs.items() if len(attempts) == 1}
        best: dict[str, tuple[tuple[bool, bool, bool], int]] = {}
        for listed, night in self.read([one for attempts in runs.values() if len(attempts) > 1 for one in attempts]):
            worth = (night.answers, night.attempt)
            if night.run not in best or worth > best[night.run]:
                best[night.run], chosen[night.run] = worth, listed
        for _, night in self.read(sorted(chosen.values(), key=_order)):
            yield night

    def add(self, night: Night) -> bool:
        """Keep a night for good; return False where it is there already, to the byte.

        `warnings` tell of one that starts before the newest. Raises UsageError where its name holds something else, or
        its run and attempt another document; MachineError where the store cannot be reached or written.
        """
        name, content = name_of(night), content_of(night)
        newest = ""
        for listed in self._list():
            match = _NAME.fullmatch(listed.name)
            newest = max(newest, match["started"] if match else "")
            if match and listed.name != name and (match["run"], match["attempt"]) == (night.run, str(night.attempt)):
                raise UsageError(
                    f"{escaped(self.text)}: run {night.run}, attempt {night.attempt}, is there as {listed.name}: "
                    "a run is recorded once; give another --attempt, or --run"
                )
        if self._create(name, content):
            if (started := _instant(datetime.fromisoformat(night.started))) < newest:
                self.warnings.append(
                    f"{escaped(self.text)}: {night.run} started at {started}, before the newest night there, of "
                    f"{newest}: it takes its place in time, not the last one"
                )
            return True
        try:
            there = self._content(name)
        except BadNight as why:
            raise MachineError(f"{escaped(self.text)}: {name} {why}: see what holds that name") from None
        if there != content:
            raise UsageError(
                f"{escaped(self.text)}: {name} is there with other content, and what is recorded is never changed: "
                "give another --attempt, or --run"
            )
        return False


def _instant(at: datetime) -> str:
    utc = at.astimezone(UTC) if at.tzinfo else at
    return f"{utc:%Y%m%dT%H%M%SZ}"


def _run(listed: Listed) -> str:
    match = _NAME.fullmatch(listed.name)
    assert match is not None  # names() leaves others out
    return match["run"]


def _order(listed: Listed) -> str:
    return listed.name.rpartition("/")[2]


def _batches(names: Iterable[Listed]) -> Iterator[list[Listed]]:
    batch: list[Listed] = []
    size = 0
    for listed in names:
        if batch and (len(batch) == _BATCH or size + listed.size > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(listed)
        size += listed.size
    if batch:
        yield batch


def cache_folder() -> Path:
    """Return this user's `$XDG_CACHE_HOME/perfci/history`. Raises UsageError without a home, MachineError."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(named) if named.startswith("/") else Path.home() / ".cache"
    except RuntimeError:
        raise UsageError("no home folder: set XDG_CACHE_HOME to a folder for what can be deleted") from None
    return made(root / "perfci" / "history", private=True)


def made(folder: Path, *, private: bool = False) -> Path:
    """Make a folder, for this user alone where `private`. Raises MachineError."""
    with disk_errors("made", folder):
        folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    return folder
