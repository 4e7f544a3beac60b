"""The profilers' own reports on their way into an artifact.

Code under test can write there too.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from perfci.measure.request import RAW
from perfci.model.base import UsageError
from perfci.model.text import count, escaped
from perfci.profilers.scan import held_secrets, secrets
from perfci.sources.environment import is_secret
from perfci.system.bounded import MIB, Unread, regular, take
from perfci.system.files import disk_error, disk_errors, remove

LARGEST = 512 * MIB
"""Bytes of all reports."""
MOST = 1000
"""There is a handful for every profiler, side and command."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.(ncu|nsys)-rep")


class Reports(NamedTuple):
    """Reports that may be handed on."""

    folder: Path | None
    """It holds nothing else; None without reports."""
    names: list[str]
    left: list[str]


def clear(out: Path) -> None:
    """Remove the reports in a run's folder, which is uploaded.

    Raises UsageError for a link, MachineError where the disk refuses.
    """
    if out.is_symlink():
        raise UsageError(f"{escaped(out)}: is a link: remove it")
    folder = out / RAW
    with disk_errors("removed", folder):
        remove(folder)


def collect(out: Path, temporary: Path) -> Reports:
    """Move reports out of `out` into a new folder below `temporary`, smallest first, up to LARGEST.

    Raises what `clear` raises, which has to stop the upload.
    """
    if out.is_symlink():
        clear(out)
    source = out / RAW
    try:
        return _copied(source, temporary)
    except OSError as error:
        return Reports(None, [], [str(disk_error("kept", source, error))])
    finally:
        clear(out)


def _copied(source: Path, temporary: Path) -> Reports:
    if source.is_symlink():
        return Reports(None, [], [f"{RAW}: is a link"])
    files = sorted(source.iterdir()) if source.is_dir() else []
    if len(files) > MOST:
        return Reports(None, [], [f"{RAW}: has {count(len(files), 'file')}, and at most {MOST} are kept"])
    folder = Path(tempfile.mkdtemp(prefix="perfci-raw-", dir=temporary))
    names, left, used = list[str](), list[str](), 0
    for path in sorted(files, key=lambda file: file.lstat().st_size):
        try:
            if not _NAME.fullmatch(path.name):
                raise Unread("is no name of a profiler's report")
            size = regular(path, LARGEST)
            if used + size > LARGEST:
                raise Unread(f"would take all reports over {LARGEST >> 20} MiB")
            take(path, folder / path.name, size)
        except Unread as why:
            left.append(f"{escaped(path.name)[:100]}: {why}")
        else:
            names.append(path.name)
            used += size
    return Reports(folder if names else None, sorted(names), left)


def sift(folder: Path, env: Mapping[str, str]) -> Reports:
    """Remove the reports in `folder` that hold a secret of this job. Raises MachineError.

    For secrets taken out of the measuring environment before any code ran: here none runs.
    """
    withheld = secrets({name: value for name, value in env.items() if is_secret(name)})
    names, left = list[str](), list[str]()
    with disk_errors("read", folder):
        files = sorted(folder.iterdir())
    if strange := [path.name for path in files if not _NAME.fullmatch(path.name)]:  # no folder that `collect` made
        return Reports(None, [], [f"{escaped(strange[0])[:100]}: is no name of a profiler's report"])
    for path in files:
        try:
            held = held_secrets(path, withheld, LARGEST)
            why = f"holds values of {', '.join(held)}" if held else ""
        except Unread as error:
            why = f"{error}: whether it holds secrets is not known"
        if why:
            left.append(f"{path.name}: {why}")
            with disk_errors("removed", path):
                path.unlink()
        else:
            names.append(path.name)
    return Reports(folder if names else None, names, left)
