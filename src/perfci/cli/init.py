"""`perfci init`: a policy, a first case and a workflow."""

from importlib import resources
from pathlib import Path

import typer

from perfci.model.base import UsageError
from perfci.system.files import write_atomic

FILES = {
    "perfci.yaml": "perfci.yaml",
    "kernels/example.py": "example.py",
    ".github/workflows/perf.yml": "perf.yml",
}


def write_first_files(where: Path) -> None:
    """Write what is not there yet; never overwrites. Raises UsageError, MachineError."""
    if not where.is_dir():
        raise UsageError(f"{where}: is no folder: make it first")
    templates = resources.files("perfci.cli") / "templates"
    if (where / "perfci.yaml").exists():
        raise UsageError(f"{where / 'perfci.yaml'}: is there already: edit it, or remove it first")
    for name, template in FILES.items():
        path = where / name
        if path.exists():
            typer.echo(f"kept   {name}")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path.parent}: cannot be made ({error.strerror})") from None
        write_atomic(path, (templates / template).read_text(encoding="utf-8"))
        typer.echo(f"wrote  {name}")
    typer.echo("\nNow: `git add -A && git commit`, then `perfci compare --base HEAD` measures the tree against itself.")
    typer.echo("Change kernels/example.py, and `perfci compare --base HEAD` judges your change.")
