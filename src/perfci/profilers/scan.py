"""The search of profilers' reports for secrets."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from perfci.model.profile import Fault
from perfci.profilers.base import grown, trimmed
from perfci.sources.environment import is_secret
from perfci.system.bounded import MIB, Unread, call, desk, regular, take
from perfci.system.files import unused

_NSYS = ".nsys-rep"
_PACKED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh")
"""How gzip, xz and bzip2 begin."""
_REPORT = b"NVIDIA Tegra Profiler Report"
_WINDOW = 8
"""Bytes of a secret to search for: LZ4 cuts text where a part of it occurred before."""
_WIDE = ("utf-16-le", "utf-16-be", "utf-32-le")
"""Encodings of `wchar_t`, which NVTX names may have, and of Windows."""
_TOKEN = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9+/_=.:~%-]{20,}")
_TOLD = frozenset({"HOSTNAME"})
"""In every report."""


def keep_report(
    report: Path, searched: Path, folder: Path, most: tuple[int, int], fault: Callable[..., Fault]
) -> list[Fault]:
    """Copy `report` into `folder` where `searched`, itself or its export, holds no secret of this environment; else
    return why, as a `fault` that costs no value.

    `most`: bytes of `report` and of `searched`.
    """
    try:
        held = held_secrets(searched, secrets(dict(os.environ)), most[1])
    except (Unread, OSError) as why:
        text = f"{searched.name}: {why}: whether it holds secrets is not known, and {report.name} was not kept"
        return [fault("forbidden", text, "profile again, or keep no reports", aside=True)]
    if held:
        text = f"{report.name} holds values of {', '.join(sorted(held))}: it was not kept"
        return [fault("forbidden", text, "unset them, or keep no reports", aside=True)]
    try:
        take(report, unused(folder, report.name), most[0])  # sessions of two devices have one name
    except Unread as why:
        return [fault("crash", f"{report.name}: {why}: it was not kept", "profile again", aside=True)]
    except OSError as error:
        text = f"{report.name} was not kept: {error.strerror}"
        return [fault("crash", text, "free space, or fix the output folder", aside=True)]
    return []


def held_secrets(path: Path, secrets: Mapping[str, str], largest: int) -> list[str]:
    """Call `contains` in a process of this user, whose secrets they are. Raises Unread."""
    size = regular(path, largest)
    with desk() as place:
        return call(contains, grown(size, 4 * MIB, 600), place, path=path.absolute(), secrets=dict(secrets))


def secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables whose values must not be published: likely secrets, and long values of letters and digits that
    profiled processes do not get. Values under 6 characters are found everywhere."""
    allowed = trimmed(environ)
    found = {}
    for name, value in environ.items():
        if len(value) < 6:
            continue
        unknown = name not in allowed and name not in _TOLD
        random = unknown and _TOKEN.fullmatch(value) and not value.startswith(("/", "./"))
        if is_secret(name, value) or random:
            found[name] = value
    return found


def contains(path: Path, secrets: Mapping[str, str]) -> list[str]:
    """Return the names of those `secrets` whose values the file holds as UTF-8, UTF-16 or UTF-32, in constant memory.

    NVIDIA's LZ4 framing of a `.nsys-rep` cuts strings: any 8 successive bytes with a letter and a digit count (any 8 of
    a value that has none); only a scan of its export is sure. Not found: base64, what is compressed, values in pieces.
    Raises OSError, for a packed file too.
    """
    with path.open("rb") as handle:
        head = handle.read(len(_REPORT))
    if head.startswith(_PACKED):
        raise OSError("is packed as no profiler's report is, so nothing is known of it")
    cut = head == _REPORT or path.suffix == _NSYS
    needles = {name: [*(_windows if cut else _whole)(value), *_wide(value)] for name, value in secrets.items()}
    with path.open("rb") as handle:
        return sorted(_search(handle, needles))


def _whole(value: str) -> list[bytes]:
    return [value.encode("utf-8", "surrogateescape")]


def _wide(value: str) -> list[bytes]:
    return [value.encode(encoding, "surrogatepass") for encoding in _WIDE]


def _windows(value: str) -> list[bytes]:
    [whole] = _whole(value)
    last = max(0, len(whole) - _WINDOW)
    found = {whole[at : at + _WINDOW] for at in (*range(0, last, 3), last)}
    # Else the `https://` of an address, or a word, would be found in every report.
    telling = {one for one in found if re.search(rb"[A-Za-z]", one) and re.search(rb"[0-9]", one)}
    return list(telling or found)


def _search(stream: IO[bytes], needles: Mapping[str, Sequence[bytes]]) -> set[str]:
    longest = max((len(value) for values in needles.values() for value in values), default=1)
    found: set[str] = set()
    for window in _pieces(stream, longest - 1):
        found |= {n for n, values in needles.items() if n not in found and any(value in window for value in values)}
    return found


def _pieces(stream: IO[bytes], overlap: int) -> Iterator[bytes]:
    tail = b""
    while piece := stream.read(2**20):
        yield tail + piece
        tail = (tail + piece)[-overlap:] if overlap else b""
