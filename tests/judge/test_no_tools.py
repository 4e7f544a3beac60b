"""The judge knows parts of a profile, and no profiler by its name."""

import re
from pathlib import Path

import perfci.judge
from perfci.profilers.registry import registered

JUDGE = Path(perfci.judge.__file__).parent


def test_no_file_of_the_judge_names_a_profiler():
    names = {kind.name for kind in registered()} | {kind.__name__ for kind in registered()} | {"nsight", "cupti"}
    pattern = re.compile("|".join(rf"(?<![a-z]){re.escape(name)}(?![a-z])" for name in names), re.IGNORECASE)
    files = sorted(JUDGE.rglob("*.py"))
    assert len(files) > 20
    named = [
        f"{path.relative_to(JUDGE)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert named == []
