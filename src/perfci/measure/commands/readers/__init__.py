"""Readers of commands' reports: perfci's JSON lines, other benchmarking tools' JSON, and printed tables."""

from pathlib import Path
from typing import NamedTuple

from perfci.measure.commands.readers.base import About, Format, read_json, read_text
from perfci.measure.commands.readers.google_benchmark import GOOGLE_BENCHMARK
from perfci.measure.commands.readers.hyperfine import HYPERFINE
from perfci.measure.commands.readers.lines import LINES
from perfci.measure.commands.readers.nvbench import NVBENCH
from perfci.measure.commands.readers.pytest_benchmark import PYTEST_BENCHMARK
from perfci.measure.commands.readers.table import CSV, JSONL

FORMATS = {one.tool: one for one in (LINES, NVBENCH, GOOGLE_BENCHMARK, PYTEST_BENCHMARK, HYPERFINE, CSV, JSONL)}
"""`reads:` of a command → its format; `wall` reads no file."""


class Recognised(NamedTuple):
    """The tool that wrote a file, and the file's account of itself."""

    format: Format
    about: About


def recognise(path: Path) -> Recognised:
    """Recognise another tool's JSON. Raises ValueError, one line."""
    text = read_text(path)
    known = ", ".join(one.tool for one in FORMATS.values() if one.fits is not None)
    remedy = f"give JSON of {known}, or a capture of nsys, ncu or torch.profiler"
    try:
        root = read_json(text, path)
    except ValueError as error:
        raise ValueError(f"{error}: {remedy}") from None
    for one in FORMATS.values():
        if one.fits is not None and one.fits(root):
            return Recognised(one, one.about(root))
    raise ValueError(f"{path}: is no result of a tool that perfci reads: {remedy}")
