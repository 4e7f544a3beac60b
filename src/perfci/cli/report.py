"""`perfci report` and `perfci import`: judge and render files."""

import glob
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from perfci.cli.output import LARGEST, made, tell, write_all
from perfci.cli.progress import Console
from perfci.judge.judge import judge
from perfci.judge.replan import judge_by
from perfci.measure.imported.capture import By
from perfci.measure.imported.files import import_files
from perfci.model.base import DeviceKind, Side, UsageError
from perfci.model.policy import Policy
from perfci.model.policy_text import FILE, parse_policy
from perfci.model.report import Report
from perfci.model.results import Results, Work
from perfci.model.units import COUNTED, split
from perfci.render.terminal import print_costs
from perfci.system.bounded import read_document


def judge_files(
    results: Path,
    *,
    policy: Path | None,
    costs: bool,
    strict: bool,
    out: Path | None,
    json: bool,
) -> NoReturn:
    """Judge `results`, a file or its folder.

    `costs`: say where the time went instead.
    """
    path = results / "results.json" if results.is_dir() else results
    measured = read_results(path)
    if costs and not measured.costs:
        raise UsageError(f"{path}: does not tell where the time went: --costs is for what perfci measured to its end")
    report = judged(measured, policy, strict=strict)
    folder = made(out or path.parent)
    files = write_all(folder, report, measured=(measured, path.parent))
    if costs and not json:
        print_costs(report, Console())
        raise typer.Exit
    tell(report, folder, files, json=json)
    raise typer.Exit(report.exit_code)


def judged(measured: Results, policy: Path | None, *, strict: bool) -> Report:
    """Return the report by `policy`'s limits, if given. Raises UsageError."""
    if policy is None:
        return judge(measured, strict=strict)
    return judge_by(_read_policy(policy), measured, strict=strict, where=str(policy))


def judge_imported(
    head: Sequence[str],
    base: Sequence[str],
    *,
    device: DeviceKind | None,
    by: By | None,
    items: Sequence[str],
    policy: Path | None,
    strict: bool,
    out: Path,
    json: bool,
) -> NoReturn:
    """Judge another tool's files of head, against base's if any.

    `head`, `base`: files, folders, patterns.
    """
    files: dict[Side, Sequence[Path]] = {"base": found_files(base)} if base else {}
    files["head"] = found_files(head)
    own = policy or (Path(FILE) if Path(FILE).is_file() else None)
    results = import_files(
        files,
        Policy(version=1) if own is None else _read_policy(own),
        device=device,
        by=by,
        items=_items(items),
        command=["perfci", *sys.argv[1:]],
        where=str(own or FILE),
        whole=policy is not None,
    )
    if own or results.plan.criteria:
        results.notes.append(f"judged by the limits of {own}" if own else "judged by perfci's default limits")
    report = judge(results, strict=strict)
    folder = made(out)
    tell(report, folder, write_all(folder, report, results), json=json)
    raise typer.Exit(report.exit_code)


def _items(texts: Sequence[str]) -> dict[str, Work]:
    found = {}
    for text in texts:
        pattern, _, told = (part.strip() for part in text.rpartition("="))
        try:
            number, unit = split(told)
        except ValueError:
            number, unit = 0.0, ""
        if not pattern or number <= 0 or unit not in COUNTED:
            known = ", ".join(filter(None, COUNTED))
            what = f"a pattern of ids and a number, such as 'train=640 samples' ({known})"
            raise UsageError(f"--items {text}: write {what}")
        found[pattern] = Work(items=number, item=unit or "items")
    return found


def found_files(patterns: Sequence[str]) -> list[Path]:
    """Return the files of paths, folders (their *.json) and patterns, `run-2` before `run-10`. Raises UsageError."""
    found: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            some = sorted(path.glob("*.json"), key=_natural)
        elif path.is_file():
            some = [path]
        else:
            some = sorted((Path(name) for name in glob.glob(pattern)), key=_natural)  # noqa: PTH207 - it may be absolute
        if not some:
            what = "a folder stands for its *.json, so name others, as in" if path.is_dir() else ""
            raise UsageError(f"{pattern}: names no file" + (f": {what} '{pattern}/*.sqlite'" if what else ""))
        found += some
    return found


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", str(path)) if part]


def read_results(path: Path) -> Results:
    """Read a results document. Raises UsageError."""
    return read_document(path, Results, LARGEST, "results document", "name a results.json, or measure first")


def read_report(path: Path) -> Report:
    """Read a report. Raises UsageError."""
    return read_document(path, Report, LARGEST, "report document", "name a report.json, or measure first")


def _read_policy(policy: Path) -> Policy:
    try:
        text = policy.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--policy {policy}: cannot be read ({error})") from None
    return parse_policy(text, str(policy))
