"""Cubins of tests/data/cubins, and damage done to them."""

import struct
import tarfile
from functools import cache
from pathlib import Path

from perfci.worker.work.elf import Image as Unnamed

DATA = Path(__file__).parents[1] / "data" / "cubins"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
HEADER = {"type": (16, "<H"), "machine": (18, "<H"), "flags": (48, "<I"), "table": (40, "<Q"), "count": (60, "<H")}
SECTION = struct.Struct("<IIQQQQIIQQ")
FIELDS = ("name", "kind", "flags", "address", "offset", "size", "link", "info", "alignment", "entry_size")


class Image(Unnamed):
    @property
    def named(self) -> dict[str, int]:
        """Index of each section by its name."""
        return {section.name: number for number, section in enumerate(self.sections)}


@cache
def cubins(architecture: str) -> dict[str, bytes]:
    """By name of the build in tests/data/cubins/build.py."""
    with tarfile.open(DATA / f"{architecture}.tar.xz") as archive:
        return {
            member.name.removesuffix(".cubin"): file.read()
            for member in archive
            if (file := archive.extractfile(member))
        }


@cache
def cubin(architecture: str, name: str) -> bytes:
    return cubins(architecture)[name]


@cache
def image(architecture: str, name: str) -> Image:
    return Image(cubin(architecture, name))


def with_header(data: bytes, **fields: int) -> bytes:
    """The image with other fields in its header."""
    changed = bytearray(data)
    for field, value in fields.items():
        offset, form = HEADER[field]
        struct.pack_into(form, changed, offset, value)
    return bytes(changed)


def with_section(data: bytes, section: str, **fields: int) -> bytes:
    """The image with other fields in the header of a section."""
    found = Image(data)
    at = struct.unpack_from("<Q", data, HEADER["table"][0])[0] + SECTION.size * found.named[section]
    values = dict(zip(FIELDS, SECTION.unpack_from(data, at), strict=True)) | fields
    return data[:at] + SECTION.pack(*values.values()) + data[at + SECTION.size :]


def with_bytes(data: bytes, section: str, offset: int, new: bytes) -> bytes:
    """The image with other bytes in a section."""
    at = Image(data).sections[Image(data).named[section]].offset + offset
    return data[:at] + new + data[at + len(new) :]
