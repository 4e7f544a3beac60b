"""`perfci doctor`: what this machine can give, and what stands in the way."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import typer

from perfci.cli.progress import Console
from perfci.doctor import Machine, fail, ok, warn
from perfci.doctor.profilers import CHECKS, OFFLINE, diagnose
from perfci.measure.prepare import choose_python
from perfci.model.base import PerfciError, UsageError
from perfci.model.doctor import Finding
from perfci.model.policy import Policy
from perfci.model.policy_text import FILE, parse_policy
from perfci.model.text import escaped
from perfci.render.doctor import print_diagnosis
from perfci.sources.environment import side_environment
from perfci.sources.git import Repository
from perfci.system.files import disk_error, remove_tree


def examine_machine(*, where: Path, out: Path, python: str | None, json: bool, offline: bool) -> None:
    """Check the machine, print what was found, end with 0 or 3. Raises UsageError for a folder that is not there."""
    if not where.is_dir():
        raise UsageError(f"--repo {escaped(where)}: is no folder")
    root, policy, line = _policy(where.resolve())
    lines = [] if offline else [line]
    try:
        chosen = choose_python(python, policy, root)
    except UsageError as error:
        lines.append(fail("interpreter", str(error), f"name one in {FILE} or with --python"))
        chosen = python or policy.python or ""
    caches = Path(tempfile.gettempdir() if _temporary() else "/nonexistent") / f"perfci-doctor-{os.getpid()}"
    env = side_environment(
        caches, caller=os.environ, policy_env=policy.env, pass_env=policy.pass_env, threads=policy.threads, build=False
    )
    checks = OFFLINE if offline else CHECKS
    try:
        found = diagnose(Machine(where=root, out=(root / out), python=chosen, python_env=env), lines, checks)
    finally:
        with suppress(OSError):
            remove_tree(caches)
    if json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_diagnosis(found, Console())
    raise typer.Exit(found.exit_code)


def _temporary() -> bool:
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return False
    return True


def _policy(where: Path) -> tuple[Path, Policy, Finding]:
    """Return the repository's folder, its policy (without one a policy of defaults), and a line about it."""
    root, policy = where, Policy(version=1, suite=["*.py"])
    try:
        repo = Repository.find(where)
        root = repo.root if repo else where
    except PerfciError:
        pass  # git has a line of its own
    file = root / FILE
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return root, policy, warn("policy", f"{file} is not there: nothing to measure yet", "perfci init")
    except UnicodeDecodeError:
        return root, policy, fail("policy", f"{file} is not UTF-8 text", "save it as UTF-8")
    except OSError as error:
        return root, policy, fail("policy", str(disk_error("read", file, error)), "fix its permissions")
    try:
        return root, parse_policy(text), ok("policy", f"{file} can be read")
    except UsageError as error:
        return root, policy, fail("policy", str(error), f"fix {FILE}")
