"""Things that must stay light: importing perfci, and `perfci --help`."""

import subprocess
import sys

HEAVY = {"torch", "docker", "github", "scipy", "numpy", "pydantic", "requests", "rich", "typer"}


def loaded(code: str) -> set[str]:
    """The modules that are loaded once `code` has run, which may print."""
    lines = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], check=True, capture_output=True, text=True
    ).stdout
    return set(lines.splitlines()[-1].split())


def test_import_is_light() -> None:
    """The code under test imports it in every process that is measured."""
    assert not HEAVY & loaded("import perfci")


def test_help_is_light() -> None:
    """`perfci --help` loads none of the libraries that measuring needs."""
    show = (
        "import sys; sys.argv = ['perfci', '--help']; from perfci.cli import main\ntry: main()\nexcept SystemExit: pass"
    )
    modules = loaded(show)
    assert "typer" in modules
    assert not (HEAVY - {"typer", "rich", "pydantic"}) & modules
