"""The files of `perfci init`: a policy, a first case and a workflow, or what a cluster or the nightly is given."""

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from perfci.cli.proposal import Proposal, propose
from perfci.model.base import UsageError
from perfci.sources.git import Repository, lacks_a_name
from perfci.system.files import write_atomic
from perfci.worker.scripts.script import kernel_names

EXAMPLE = "kernels/example.py"
WORKFLOW = ".github/workflows/perf.yml"
FIRST_FILES = {"perfci.yaml": "perfci.yaml", EXAMPLE: "example.py", WORKFLOW: "perf.yml"}
"""File → template."""
SLURM, KUBERNETES, NIGHTLY = "perf.slurm.sh", "perf-job.yaml", ".github/workflows/perf-nightly.yml"
"""Files that it writes on demand, beside a policy."""
ON_CPU = {
    "runs-on: [self-hosted, gpu]": "runs-on: [self-hosted] # where nothing else runs",
    "device: cuda # a runner that has lost its GPU fails": "device: cpu",
    "device: cuda # as above": "device: cpu",
}
"""What a workflow says in place of the template's for a GPU."""


def write_first(where: Path, repo: Repository | None) -> None:
    """Write the first files into `where`, keep what is there, and say what to do next.

    Raises `UsageError` where a policy is there.
    """
    if (where / "perfci.yaml").exists():
        raise UsageError(f"{where / 'perfci.yaml'}: is there already: edit it, or remove it first")
    proposal = propose(where, [] if repo is None else repo.files())
    for name, template in FIRST_FILES.items():
        path = where / name
        if name == EXAMPLE and proposal.scripts:
            continue
        if path.exists():
            typer.echo(f"kept   {name}")
            continue
        text = proposal.policy if name == "perfci.yaml" else ""
        text = text or _template(template)
        _write(path, _on_cpu(text) if name == WORKFLOW and proposal.scripts and proposal.cpu else text)
        typer.echo(f"wrote  {name}")
    for line in proposal.said:
        typer.echo(f"note   {line}")
    typer.echo("")
    if lacks_a_name(where):
        typer.echo(
            "git does not know yet who commits here: first `git config --global user.name NAME`, "
            "and `git config --global user.email ADDRESS`."
        )
    commit = f"Now: `{'git init && ' * (repo is None)}git add -A && git commit -m 'Add perfci'`, then"
    if proposal.scripts:
        _say_scripts(commit, proposal)
    else:
        typer.echo(f"{commit} `perfci compare HEAD --measure-all` measures the tree against itself.")
        typer.echo(f"Change {EXAMPLE}, and `perfci compare HEAD` judges your change.")


def _say_scripts(commit: str, proposal: Proposal) -> None:
    name, of = kernel_names(proposal.scripts, {})[proposal.first], len(proposal.scripts)
    typer.echo(
        f"{commit} `perfci compare HEAD --measure-all -k '{name}/*'` measures the tree against itself by what the "
        f"timers of {proposal.first} call: its cases. `perfci list` runs "
        f"{'it to show them' if of == 1 else f'all {of} benchmark files to show theirs'}."
    )
    typer.echo(
        "Change your code, and `perfci compare HEAD` judges the change by all that `budget:` has time for. "
        "How to keep some of them, and to say which results are right, stands at the head of perfci.yaml."
    )


def write_beside(where: Path, names: Sequence[str]) -> None:
    """Write these of `SLURM`, `KUBERNETES` and `NIGHTLY` beside the policy in `where`, and say what to do next.

    Raises `UsageError` where no policy or one of the files is there.
    """
    if not (where / "perfci.yaml").exists():
        raise UsageError(f"{where / 'perfci.yaml'}: is missing: `perfci init` writes one")
    for name in names:
        if os.path.lexists(where / name):
            raise UsageError(f"{where / name}: is there already: edit it, or remove it first")
    for name in names:
        _write(where / name, _template("nightly.yml" if name == NIGHTLY else name))
        typer.echo(f"wrote  {name}")
    if SLURM in names:
        (where / SLURM).chmod(0o755)
        typer.echo(f"\nNow: see what to change at its head, commit, and call `./{SLURM}` where sbatch is.")
    if NIGHTLY in names:
        typer.echo(
            f"\nNow: see what to change in {NIGHTLY}: PERFCI, STORE, runs-on and device. Give limits creep: 5%, and "
            "tag releases such as v1.2."
        )
    if KUBERNETES in names:
        typer.echo(f"\nNow: see what to change in {KUBERNETES}, and apply it step by step, as its head says.")


def _on_cpu(workflow: str) -> str:
    for gpu, cpu in ON_CPU.items():
        workflow = workflow.replace(gpu, cpu)
    return workflow


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot be made ({error.strerror})") from None
    write_atomic(path, text)
