"""`perfci report`: judge and render again, from files alone."""

from pathlib import Path

import typer
from pydantic import ValidationError

from perfci.cli.output import tell, write_all
from perfci.judge.judge import judge
from perfci.judge.replan import judge_by
from perfci.model.base import UsageError
from perfci.model.policy import Policy
from perfci.model.policy_text import parse_policy
from perfci.model.results import Results


def judge_files(results: Path, *, policy: Path | None, strict: bool, out: Path | None, json: bool) -> None:
    """Judge `results` (a file, or the folder that holds results.json). Ends the process with the exit code."""
    path = results / "results.json" if results.is_dir() else results
    measured = read_results(path)
    if policy is None:
        report = judge(measured, strict=strict)
    else:
        report = judge_by(_read_policy(policy), measured, strict=strict)
    folder = out or path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be made ({error.strerror})") from None
    write_all(folder, report)
    tell(report, folder, json)
    raise typer.Exit(report.exit_code)


def read_results(path: Path) -> Results:
    """Read a results document. Raises UsageError for anything else."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}): name a results.json, or measure first") from None
    try:
        return Results.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{path}: is no results document of this version ({field or 'JSON'}: {first['msg']})"
        ) from None


def _read_policy(policy: Path) -> Policy:
    try:
        text = policy.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--policy {policy}: cannot be read ({error})") from None
    return parse_policy(text, str(policy))
