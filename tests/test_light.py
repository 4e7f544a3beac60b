"""What must stay light: importing perfci, and `perfci --help`."""

import subprocess
import sys
import time

HEAVY = {"torch", "docker", "github", "scipy", "numpy", "pydantic", "requests", "rich", "typer"}


def best_of(code: str, runs: int = 5) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def test_import_is_light() -> None:
    """`import perfci` adds at most 0.15 s and loads nothing heavy."""
    assert best_of("import perfci") - best_of("pass") <= 0.15
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, perfci; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert not HEAVY & set(loaded)


def test_help_is_quick() -> None:
    """`perfci --help` takes at most 0.4 s and loads none of the libraries that measuring needs."""
    code = "import sys; sys.argv = ['perfci', '--help']; from perfci.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    assert best_of(code) <= 0.4
    loaded = (
        subprocess.run([sys.executable, "-c", code + "print(*sys.modules)"], check=True, capture_output=True, text=True)
        .stdout.splitlines()[-1]
        .split()
    )  # above it stands the help, which names `docker`
    assert "typer" in loaded
    assert not {"torch", "docker", "github", "scipy", "numpy", "requests"} & set(loaded)
