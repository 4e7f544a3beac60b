"""Where main stood before a pull request."""

import base64
import math
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from perfci.history.document import Night
from perfci.history.series import ratio_or_why
from perfci.history.store import Store, open_store
from perfci.history.stores.branch import open_branch
from perfci.model.base import DeviceKind, PerfciError
from perfci.model.publication import MainStanding, Publication
from perfci.model.text import one_line

MOST_CASES = 3
NIGHTS = 60
PATIENCE = 60.0


class Moved(NamedTuple):
    """A metric of a case that a change moves."""

    case: str
    metric: str
    device: DeviceKind
    name: str
    """Another model's night says nothing of it."""
    size: float
    """Absolute logarithm of the ratio head/base."""


def open_history(text: str, repository: str, server: str, token: str) -> Store:
    """Return the store of this name; `git:BRANCH` of `repository` (`owner/name`) is fetched with the job's token.
    Raises UsageError, MachineError."""
    if not text.startswith("git:") or "#" in text:
        return open_store(text)
    known = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    settings = [(f"http.{server}/.extraheader", f"AUTHORIZATION: basic {known}")]
    return open_branch(f"{server}/{repository}#{text.removeprefix('git:')}", Path.cwd(), settings)


def moved(publication: Publication) -> list[Moved]:
    """Return the metrics that the change moves, limits aside, largest first."""
    found = {
        Moved(row.case, row.metric, row.device, names.get(row.device, ""), abs(math.log(row.change)))
        for shard in publication.shards
        for names in [shard.report.fingerprint.devices]
        for row in shard.report.rows
        if row.against == "base" and row.change is not None and 0 < row.change < math.inf
        and row.interval is not None and not row.interval.low <= 1 <= row.interval.high
    }  # fmt: skip
    return sorted(found, key=lambda one: (-one.size, one))[:MOST_CASES]


def standings(
    publication: Publication, opened: Callable[[], Store], patience: float = PATIENCE
) -> tuple[list[MainStanding], str]:
    """Return where main stood in what the change moves most, and why the history does not tell.

    Never raises, and leaves the store alone after `patience` seconds.
    """
    wanted = moved(publication)
    if not wanted:
        return [], ""
    found: list[MainStanding] = []
    said = [f"the history did not answer within {patience:g} s"]

    def read() -> None:
        try:
            store = opened()
            nights = (night for _, night in store.read(islice(reversed(store.names()), NIGHTS)))
            answers = search(nights, wanted)
            said[0] = "" if answers else "the history has no ratio to a reference of what this change moves most"
            found.extend(answers)
        except PerfciError as error:
            said[0] = f"the history cannot be read: {error}"
        except Exception as error:  # noqa: BLE001  # a verdict must not hang on what others wrote there
            said[0] = f"the history cannot be read ({type(error).__name__})"

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(patience)
    return ([], said[0]) if reader.is_alive() else (found, said[0])


def search(nights: Iterable[Night], wanted: Iterable[Moved]) -> list[MainStanding]:
    """Return where main stood, in order of `wanted`. `nights`: the last one first."""
    asked = list(wanted)
    found: dict[Moved, MainStanding] = {}
    for night in nights:
        known = {(point.case, point.metric, point.device): point for point in night.points}
        for one in asked:
            point = known.get((one.case, one.metric, one.device))
            # The record keeps a device's name on one line, and so many characters of it.
            same = night.devices.get(one.device) == one_line(one.name, 400)
            if one in found or point is None or not same or night.reference is None:
                continue
            if point.reference is not None and not isinstance(ratio_or_why(point.reference), str):
                ratio = point.reference.ratio
                assert ratio is not None
                found[one] = MainStanding(
                    case=one.case,
                    metric=one.metric,
                    ratio=ratio.ratio,
                    low=ratio.low,
                    high=ratio.high,
                    reference=night.reference.name,
                    commit=night.commit.sha,
                    day=datetime.fromisoformat(night.started).date(),
                )
        if len(found) == len(asked):
            break
    return [found[one] for one in asked if one in found]
