"""The judge and the profiling pass know parts of a profile, and no profiler by its name."""

import re
from pathlib import Path

import pytest

import perfci
from perfci.profilers.registry import KINDS

SOURCE = Path(perfci.__file__).parent


@pytest.mark.parametrize(("folder", "least"), [("judge", 20), ("measure/profiling", 3)])
def test_no_file_names_a_profiler(folder: str, least: int) -> None:
    names = {kind.name for kind in KINDS} | {kind.__name__ for kind in KINDS} | {"nsight", "cupti"}
    pattern = re.compile("|".join(rf"(?<![a-z]){re.escape(name)}(?![a-z])" for name in names), re.IGNORECASE)
    files = sorted((SOURCE / folder).rglob("*.py"))
    assert len(files) > least
    named = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert named == []
