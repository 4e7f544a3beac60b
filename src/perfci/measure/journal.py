"""The journal: every finished check and pair is on disk before the next begins.

`journal.jsonl` holds a header and one record a line; `samples.jsonl` beside it the raw samples, which only people read.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfci.model.base import ArmName, UsageError
from perfci.model.results import CaseArm, Pair, Reason
from perfci.system.files import Appender, read_lines

JOURNAL = "journal.jsonl"
SAMPLES = "samples.jsonl"
PREVIOUS = "journal.previous.jsonl"


class Journal:
    """Append-only record of one run. Raises MachineError when the disk refuses."""

    def __init__(self, out: Path, identity: dict[str, Any], run: str, resume: bool) -> None:
        self.run = run
        self.checked: dict[tuple[str, str], CaseArm] = {}
        self.failed: dict[tuple[str, str], Reason] = {}
        self.pairs: dict[str, list[Pair]] = {}
        self.extra: list[dict[str, Any]] = []
        path = out / JOURNAL
        if resume:
            self._load(path, identity)
        elif path.exists():
            os.replace(path, out / PREVIOUS)
        if not resume:
            (out / SAMPLES).unlink(missing_ok=True)
        self._file = Appender(path)
        self._samples = Appender(out / SAMPLES)
        if not resume:
            self._file.append({"kind": "header", "run": run, "identity": identity})

    def _load(self, path: Path, identity: dict[str, Any]) -> None:
        records = read_lines(path) if path.exists() else []
        if not records or records[0].get("kind") != "header":
            raise UsageError(f"{path}: nothing to resume: leave out --resume")
        for name, value in identity.items():
            if records[0]["identity"].get(name) != value:
                raise UsageError(f"{path}: cannot resume: {name} has changed since: leave out --resume to begin anew")
        self.run = records[0]["run"]
        for record in records[1:]:
            kind, key = record["kind"], record.get("key", "")
            if kind == "checked":
                self.checked[key, record["arm"]] = CaseArm.model_validate(record["case"])
            elif kind == "pair":
                self.pairs.setdefault(key, []).append(Pair.model_validate(record["pair"]))
            elif kind == "failed":
                self.failed[key, record["arm"]] = Reason.model_validate(record["reason"])
            else:
                self.extra.append(record)

    def add_check(self, key: str, arm: str, case: CaseArm, estimate: float | None) -> None:
        """A case was checked in one arm."""
        record = {"kind": "checked", "key": key, "arm": arm, "case": case.model_dump(mode="json")}
        self._file.append(record)
        if estimate is not None:
            self._file.append({"kind": "estimate", "key": key, "arm": arm, "seconds": estimate})

    def estimates(self) -> Iterable[tuple[str, str, float]]:
        """Recorded estimates: (case key, arm, seconds)."""
        return [(r["key"], r["arm"], r["seconds"]) for r in self.extra if r["kind"] == "estimate"]

    def add_pair(self, key: str, pair: Pair, samples: Mapping[ArmName, list[list[float]]]) -> None:
        """A launch pair of one case is finished; `samples` are seconds, per arm and placement."""
        self._samples.append({"key": key, "pair": pair.index, "samples": dict(samples)})
        self._file.append({"kind": "pair", "key": key, "pair": pair.model_dump(mode="json")})

    def add_failure(self, key: str, arm: str, reason: Reason) -> None:
        """A case failed in one arm."""
        self._file.append({"kind": "failed", "key": key, "arm": arm, "reason": reason.model_dump(mode="json")})

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._samples.close()
