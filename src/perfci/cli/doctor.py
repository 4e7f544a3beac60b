"""`perfci doctor`."""

import os
from contextlib import suppress
from pathlib import Path

import typer

from perfci.cli.progress import Console
from perfci.doctor.machine import Machine, fail, warn
from perfci.doctor.survey import CHECKS, OFFLINE, diagnose
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
    """Check the machine; end with 0 or 3. Raises UsageError for a missing folder."""
    if not where.is_dir():
        raise UsageError(f"--repo {escaped(where)}: is no folder")
    root, policy, lines = _policy(where.resolve())
    lines = [] if offline else lines
    try:
        chosen = choose_python(python, policy, root)
    except UsageError as error:
        lines.append(fail("interpreter", str(error), f"name one in {FILE} or with --python"))
        chosen = python or policy.python or ""
    temporary = Path("/nonexistent")  # which a line of its own tells
    with suppress(FileNotFoundError):
        temporary = Machine().temporary()
    caches = temporary / f"perfci-doctor-{os.getpid()}"
    env = side_environment(
        caches, caller=os.environ, policy_env=policy.env, pass_env=policy.pass_env, threads=policy.threads, build=False
    )
    try:
        machine = Machine(where=root, out=(root / out), python=chosen, python_env=env)
        diagnosis = diagnose(machine, lines, OFFLINE if offline else CHECKS)
    finally:
        with suppress(OSError):
            remove_tree(caches)
    if json:
        typer.echo(diagnosis.model_dump_json(indent=1))
    else:
        print_diagnosis(diagnosis, Console())
    raise typer.Exit(diagnosis.exit_code)


def _policy(where: Path) -> tuple[Path, Policy, list[Finding]]:
    root, policy = where, Policy(version=1, suite=["*.py"])
    try:
        repo = Repository.find(where)
        root = repo.root if repo else where
    except PerfciError:
        pass  # git has a line of its own
    file = root / FILE
    try:
        return root, parse_policy(file.read_text(encoding="utf-8")), []
    except FileNotFoundError:
        finding = warn("policy", f"{file} is not there: nothing to measure yet", "perfci init")
    except UnicodeDecodeError:
        finding = fail("policy", f"{file} is not UTF-8 text", "save it as UTF-8")
    except OSError as error:
        finding = fail("policy", str(disk_error("read", file, error)), "fix its permissions")
    except UsageError as error:
        finding = fail("policy", str(error), f"fix {FILE}")
    return root, policy, [finding]
