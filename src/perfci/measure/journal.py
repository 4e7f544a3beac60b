"""The journal: every finished pair is on disk before the next begins.

`journal.jsonl` holds a header and one record a line; `samples.jsonl` raw samples for people.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perfci.measure.request import WRITTEN, How, Request, What
from perfci.model.base import Document, Side, UsageError
from perfci.model.comparison import require_same
from perfci.model.results import Case, CaseSide, ClaimPairs, Pair, Proof, Reason
from perfci.sources.git import NamedCommit, Repository
from perfci.system.files import Appender, disk_errors, read_lines

JOURNAL = "journal.jsonl"
SAMPLES = "samples.jsonl"
PREVIOUS = "journal.previous.jsonl"


def plain(document: Document) -> Any:
    """Return a document as JSON values, NaN and infinity as text."""
    return json.loads(document.model_dump_json())


def earlier(out: Path) -> dict[str, Proof] | None:
    """Return the journal's proofs by case key, or None. Raises MachineError."""
    records = read_lines(out / JOURNAL) if (out / JOURNAL).exists() else []
    if not records or records[0].get("kind") != "header":
        return None
    return {key: Proof.model_validate(one) for key, one in records[0].get("proofs", {}).items()}


def begun_with(request: Request, base: NamedCommit | None, cases: Iterable[Case] = ()) -> dict[str, Any]:
    """Return a journal's record of the request, with base's commit and proofs of `cases`."""
    what = request.what.model_copy(update={"base": None if base is None or request.what.itself else base.sha})
    proofs = {case.key: plain(case.proof) for case in cases if case.proof is not None}
    return {"what": plain(what), "how": plain(request.how), "proofs": proofs}


def gone_on(request: Request, folder: Path | None = None) -> Request:
    """Return the request that `--resume` continues, from the journal in `folder`, by default `out`, but for what the
    command line repeats.

    Raises UsageError without such a run or where it began with something else; MachineError.
    """
    if not request.how.resume:
        return request
    path = (folder or request.where.out) / JOURNAL
    if not path.exists():
        raise UsageError(f"{path}: nothing to resume: leave out --resume")
    records = read_lines(path)
    if not records or "what" not in records[0]:
        return request  # it was killed before it wrote anything, or is of another version, which the journal tells
    what, how = What.model_validate(records[0]["what"]), How.model_validate(records[0]["how"])
    if what.mode != request.what.mode:
        raise UsageError(f"{path}: cannot resume: is of `perfci {what.mode}`: leave out --resume to begin anew")
    request = request.but(command=how.command)  # with --resume it would repeat nothing
    taken = {name: was for name, was in how if name in WRITTEN and getattr(request.how, name) == getattr(How(), name)}
    unsaid = What(mode=what.mode)
    for name, was in what:
        if getattr(request.what, name) == getattr(unsaid, name):
            taken |= {name: was} if name in WRITTEN else {}
        elif name in WRITTEN and not _same(request, name, was):
            other = f"another {WRITTEN[name]}: leave it out, or --resume to begin anew"
            raise UsageError(f"{path}: cannot resume: was begun with {other}")
    return request.but(**taken)


def _same(request: Request, name: str, was: object) -> bool:
    if name == "base" and (repo := Repository.find(request.where.repository)):
        return repo.resolve_base(request.what.base, request.what.pull_request, request.what.head).sha == was
    return bool(getattr(request.what, name) == was)


def begun(path: Path) -> set[str]:
    """Return a journal's cases with a pair or failure. Raises MachineError."""
    records = read_lines(path) if path.exists() else []
    return {str(record.get("key")) for record in records if record.get("kind") in ("pair", "failed")}


def put_away(out: Path) -> None:
    """Move an earlier journal away, lest it pass for this run's. Raises MachineError."""
    with disk_errors("moved", out):
        if (out / JOURNAL).exists():
            (out / JOURNAL).replace(out / PREVIOUS)
        (out / SAMPLES).unlink(missing_ok=True)


class PairJournal(Protocol):
    """Record of pairs and of cases that fail in them."""

    def add_pair(self, key: str, pair: Pair, samples: Mapping[Side, list[list[float]]]) -> None:
        """As of `Journal`."""

    def add_failure(self, key: str, side: str, reason: Reason) -> None:
        """As of `Journal`."""


class Journal:
    """Record of one run. Raises MachineError."""

    def __init__(
        self, out: Path, identity: Mapping[str, str], run: str, resume: bool, begun: Mapping[str, Any] | None = None
    ) -> None:
        """`identity`: marks. `begun`: of `begun_with`."""
        self.run = run
        self.checked: dict[tuple[str, str], CaseSide] = {}
        self.failed: dict[tuple[str, str], Reason] = {}
        self.pairs: dict[str, list[Pair]] = {}
        self.claimed: dict[str, ClaimPairs] = {}
        self.probes: list[tuple[str, str, dict[str, Any]]] = []
        self.worked: dict[str, Proof] | None = None
        """None before work is compared."""
        path = out / JOURNAL
        resumed = resume and self._load(path, identity)
        if not resumed:
            put_away(out)
        self._file = Appender(path)
        self._samples = Appender(out / SAMPLES)
        if not resumed:
            self._file.append({"kind": "header", "run": run, "identity": dict(identity), **(begun or {})})

    def _load(self, path: Path, identity: Mapping[str, str]) -> bool:
        """False where the earlier run wrote nothing."""
        records = read_lines(path)
        if not records:
            return False
        if records[0].get("kind") != "header":
            raise UsageError(f"{path}:1: is no journal of perfci: leave out --resume")
        todo = "leave out --resume to begin anew"
        require_same(records[0]["identity"], identity, f"{path}: cannot resume", "has changed since", todo)
        self.run = records[0]["run"]
        for record in records[1:]:
            kind, key = record["kind"], record.get("key", "")
            if kind == "checked":
                self.checked[key, record["side"]] = CaseSide.model_validate(record["case"])
                self.probes += [(key, record["side"], record["probe"])] if record["probe"] else []
            elif kind == "pair":
                self.pairs.setdefault(key, []).append(Pair.model_validate(record["pair"]))
            elif kind == "claim pair":
                self.claimed.setdefault(key, ClaimPairs()).pairs.append(Pair.model_validate(record["pair"]))
            elif kind == "claim failed":
                failures = self.claimed.setdefault(key, ClaimPairs()).failures
                failures[record["side"]] = Reason.model_validate(record["reason"])
            elif kind == "failed":
                self.failed[key, record["side"]] = Reason.model_validate(record["reason"])
            elif kind == "voided":
                self._void()
            elif kind == "worked":
                self.worked = {name: Proof.model_validate(one) for name, one in record["proofs"].items()}
        return True

    def restore(self, cases: Iterable[Case]) -> None:
        """Give the cases their pairs and failures."""
        for case in cases:
            case.pairs = sorted(self.pairs.get(case.key, []), key=lambda pair: pair.index)
            for name, side in case.sides.items():
                if (case.key, name) in self.failed:
                    side.status, side.reason = "failed", self.failed[case.key, name]

    def add_check(self, key: str, side: str, case: CaseSide, probe: Mapping[str, Any] | None) -> None:
        """Record a check of one side."""
        told = None if probe is None else dict(probe)
        self._file.append({"kind": "checked", "key": key, "side": side, "case": plain(case), "probe": told})

    def void_checks(self) -> None:
        """Void all checks so far."""
        self._file.append({"kind": "voided"})
        self._void()

    def _void(self) -> None:
        self.checked, self.probes = {}, []

    def add_worked(self, cases: Iterable[Case]) -> None:
        """Record compared cases' proofs."""
        proofs = {case.key: plain(case.proof) for case in cases if case.proof is not None}
        self._file.append({"kind": "worked", "proofs": proofs}, sync=True)

    def add_pair(self, key: str, pair: Pair, samples: Mapping[Side, list[list[float]]]) -> None:
        """Record a pair; `samples` in seconds, per side and placement."""
        self._add_pair("pair", key, pair, samples)

    def add_failure(self, key: str, side: str, reason: Reason) -> None:
        """Record a case's failure in one side."""
        self._add_failure("failed", key, side, reason)

    def of_claims(self) -> PairJournal:
        """Return the record of pairs and failures of claims."""
        return _ClaimJournal(self)

    def _add_pair(self, kind: str, key: str, pair: Pair, samples: Mapping[Side, list[list[float]]]) -> None:
        self._samples.append({"key": key, kind: pair.index, "samples": dict(samples)})
        self._file.append({"kind": kind, "key": key, "pair": plain(pair)})

    def _add_failure(self, kind: str, key: str, side: str, reason: Reason) -> None:
        self._file.append({"kind": kind, "key": key, "side": side, "reason": plain(reason)})

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._samples.close()


@dataclass(frozen=True)
class _ClaimJournal:
    journal: Journal

    def add_pair(self, key: str, pair: Pair, samples: Mapping[Side, list[list[float]]]) -> None:
        self.journal._add_pair("claim pair", key, pair, samples)

    def add_failure(self, key: str, side: str, reason: Reason) -> None:
        self.journal._add_failure("claim failed", key, side, reason)
