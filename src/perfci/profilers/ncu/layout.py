"""The layout of ncu's report: a magic, then protobuf headers with payloads behind them
(extras/FileFormat/ProfilerReport.proto of Nsight Compute)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from perfci.system.bounded import Unread

MAGIC = b"NVR\0"
LAYOUT = 7
"""Version of the format, as of ncu 2025.3."""
RESULTS, PAYLOAD = (2, 7, 8, 9), 5
"""Fields of BlockHeader: results of kernels, ranges, command lines and graphs; bytes of payload."""
MOST_BLOCKS = 200_000
"""A launch has one; there are some dozen more."""
LONGEST_HEADER = 2**24
"""Bytes: some hundred, but 130 kB for all texts with `--set full`."""
SEARCHED = 8 * 2**20
"""Bytes searched for the version, which stands behind the first launches."""
_WRITTEN_BY = re.compile(rb"(20\d\d\.\d{1,2}(?:\.\d{1,3}){1,2}) \(build \d+\)")


@dataclass(frozen=True)
class Block:
    """A header and its payload, from byte `begin` up to `end`."""

    begin: int
    end: int
    header: Mapping[int, int]
    """Field → number."""


def blocks(file: BinaryIO, size: int) -> list[Block] | None:
    """Return the file header and the blocks of a report of `size` bytes; None where it was cut.

    A header has its size in 4 bytes before it. Of an unknown layout only the file header is read. Raises Unread for too
    many blocks.
    """
    found: list[Block] = []
    at = len(MAGIC)
    while at < size:
        file.seek(at)
        length = int.from_bytes(file.read(4), "little")
        end = at + 4 + length
        header = _fields(file.read(length)) if 0 < length <= LONGEST_HEADER and end <= size else None
        if header is None:
            return None
        if found:
            end += header.get(PAYLOAD, 0)
        if len(found) == MOST_BLOCKS:
            raise Unread(f"has more than {MOST_BLOCKS} blocks")
        found.append(Block(at, end, header))
        if found[0].header.get(1) != LAYOUT:
            return found
        at = end
    return found if found and at == size else None


def written_by(file: BinaryIO) -> str:
    """Return the version of the ncu that wrote the report; empty where its first part does not tell."""
    file.seek(0)
    match = _WRITTEN_BY.search(file.read(SEARCHED))
    return "" if match is None else ".".join(match[1].decode().split(".")[:3])


def _fields(message: bytes) -> dict[int, int] | None:
    """A protobuf message's numbers (protobuf.dev/programming-guides/encoding)."""
    found: dict[int, int] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while shift < 70 and at < len(message):
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError

    try:
        while at < len(message):
            key = varint()
            kind = key & 7
            if kind == 0:
                found[key >> 3] = varint()
            elif kind in (1, 2, 5):
                length = varint() if kind == 2 else {1: 8, 5: 4}[kind]
                at += length
            else:
                return None
    except ValueError:
        return None
    return found if at == len(message) else None
