"""Readers of what commands report: perfci's own JSON lines, and the JSON of other benchmarking tools."""

from pathlib import Path
from typing import NamedTuple

from perfci.measure.commands.readers.base import About, Format, Reported, read_json, read_text
from perfci.measure.commands.readers.google_benchmark import GOOGLE_BENCHMARK, read_google_benchmark
from perfci.measure.commands.readers.hyperfine import HYPERFINE, read_hyperfine
from perfci.measure.commands.readers.lines import LINES, read_perfci_lines
from perfci.measure.commands.readers.nvbench import NVBENCH, read_nvbench
from perfci.measure.commands.readers.pytest_benchmark import PYTEST_BENCHMARK, read_pytest_benchmark

__all__ = [
    "FORMATS",
    "About",
    "Format",
    "Recognised",
    "Reported",
    "read_google_benchmark",
    "read_hyperfine",
    "read_nvbench",
    "read_perfci_lines",
    "read_pytest_benchmark",
    "recognise",
]

FORMATS = {one.tool: one for one in (LINES, NVBENCH, GOOGLE_BENCHMARK, PYTEST_BENCHMARK, HYPERFINE)}
"""`reads:` of a command → its format; `wall` reads no file."""


class Recognised(NamedTuple):
    """The tool that wrote a file, and what the file tells of itself."""

    format: Format
    about: About


def recognise(path: Path) -> Recognised:
    """Recognise the format of another tool's JSON, by its content. Raises ValueError, one line."""
    root = read_json(read_text(path), path)
    for one in FORMATS.values():
        if one.fits is not None and one.fits(root):
            return Recognised(one, one.about(root))
    known = ", ".join(one.tool for one in FORMATS.values() if one.fits is not None)
    raise ValueError(f"{path}: is no result of a tool that perfci reads ({known})")
