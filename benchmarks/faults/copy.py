"""A copy in which faults are planted and tests run, and which test runs which line of it."""

import hashlib
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import coverage

from .draw import module

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("--numprocesses", "logical", "--maxprocesses", "8", "--dist", "loadgroup")
RC = """[run]
data_file = {lines}/lines
parallel = True
source = {source}
core = ctrace
patch = _exit
plugins = faults_hook
"""


@dataclass
class Tested:
    """How tests ended: the seconds of those that passed, and those that failed. `code` None: it took too long."""

    seconds: dict[str, float]
    failed: list[str]
    code: int | None
    log: str


class Copy:
    """A clone of HEAD with an environment in which each process finds its perfci, and all else where ours does."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "copy"
        self.source = self.root / "src" / "perfci"
        folder.chmod(0o755)  # for tests with a second user
        subprocess.run(["git", "clone", "-q", "--shared", ROOT, self.root], check=True)
        if (ROOT / "node_modules").exists():
            (self.root / "node_modules").symlink_to(ROOT / "node_modules")
        venv.create(self.root / ".venv", symlinks=True)
        self.python = self.root / ".venv/bin/python"
        for script in Path(sys.prefix, "bin").iterdir():
            ours = self.python.with_name(script.name)
            if ours.exists() or script.is_dir():
                continue
            ours.symlink_to(script)
            if (content := script.read_bytes()).startswith(b"#!"):
                ours.unlink()
                ours.write_bytes(content.replace(sys.prefix.encode(), str(self.root / ".venv").encode()))
                ours.chmod(0o755)
        self.site = next((self.root / ".venv/lib").glob("python*/site-packages"))
        shutil.copy(Path(__file__).with_name("hook.py"), self.site / "faults_hook.py")
        (self.site / "faults.now").mkdir()
        self.watch(None)

    def watch(self, lines: Path | None) -> None:
        """Have each process write the lines that it runs into a folder, or none."""
        (self.site / "faults.coveragerc").write_text(RC.format(lines=lines, source=self.source))
        paths = [str(self.root / "src"), *site.getsitepackages()]
        starts = ["import faults_hook; faults_hook.start()"] if lines else []
        (self.site / "faults.pth").write_text("\n".join([*paths, *starts, ""]))

    def test(self, tests: Collection[str], *options: str, limit: float | None = None) -> Tested:
        """Run tests, or all of some folders."""
        outcomes, chosen, log = (self.site / f"faults.{name}" for name in ("outcomes", "chosen", "log"))
        outcomes.write_text("")
        chosen.write_text("\n".join(test for test in tests if "::" in test))
        command = [
            str(self.root / ".ci/bare"), str(self.python), "-m", "pytest", "-q", "-p", "faults_hook", "-p",
            "no:cacheprovider", "-m", "not slow and not alone", "--hypothesis-profile=ci", *options,
            *dict.fromkeys(test.partition("::")[0] for test in tests),
        ]  # fmt: skip
        with log.open("w") as out:
            process = subprocess.Popen(command, cwd=self.root, stdout=out, stderr=out, start_new_session=True)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        seconds: dict[str, float] = {}
        failed: dict[str, None] = {}
        for test, outcome, taken in map(json.loads, outcomes.read_text().splitlines()):
            if outcome == "failed":
                failed[test] = None
            elif outcome == "passed":  # it, what it is given, and what is cleared away
                seconds[test] = seconds.get(test, 0.0) + taken
        passed = {test: taken for test, taken in seconds.items() if test not in failed}
        return Tested(passed, list(failed), code, log.read_text()[-3000:])


class Witnesses:
    """Which tests may see a line. `blind`: those that pass only where nobody watches what they run."""

    def __init__(self, copy: Copy, where: list[str], out: Path) -> None:
        trees = ["git", "rev-parse", "HEAD:src", "HEAD:tests"]
        key = subprocess.run(trees, cwd=copy.root, capture_output=True, text=True, check=True).stdout + " ".join(where)
        self.key = hashlib.sha256(key.encode()).hexdigest()[:12]
        kept, lines = (out / f"tests-{self.key}.{ending}" for ending in ("json", "coverage"))
        self.copy = copy
        if not kept.exists():
            kept.write_text(json.dumps(self._watch(where, lines)))
        noted = json.loads(kept.read_text())
        self.seconds: dict[str, float] = noted["seconds"]
        self.blind = set(noted["blind"])
        self.data = coverage.CoverageData(str(lines))
        self.data.read()

    def _watch(self, where: list[str], lines: Path) -> dict[str, object]:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            self.copy.watch(Path(folder))
            seen = self.copy.test(where, *BESIDE, "--timeout=600")
            self.copy.watch(None)
            if not seen.seconds:
                raise SystemExit(f"no test passes:\n{seen.log}")
            together = coverage.Coverage(data_file=str(lines), config_file=False)
            together.combine([str(path) for path in Path(folder).iterdir()], strict=True)
            together.save()
        blind = self.copy.test(seen.failed, *BESIDE).seconds if seen.failed else {}
        fail = [test for test in seen.failed if test not in blind]
        print(f"{len(seen.seconds)} tests pass, {len(blind)} only unwatched; these fail: {fail}", flush=True)
        return {"seconds": seen.seconds | blind, "blind": [*blind]}

    def of(self, file: str, number: int) -> list[str]:
        """Return the tests that may see a line: those of its own room first, of these and the others the quick ones."""
        room = file.partition("/")[0]
        folder = f"tests/{room}/" if (self.copy.root / "tests" / room).exists() else "tests/e2e/"
        ours = {test for test in self.seconds if test.startswith(folder)}
        named = next((name for name in self.data.measured_files() if name.endswith(f"/src/perfci/{file}")), "")
        lines = {line: set(tests) - {""} for line, tests in self.data.contexts_by_lineno(named).items()}
        code = module(self.copy.source / file)
        of_line = lines.get(number) or lines.get(code.statements[number]) if code.called[number] else None
        tests = of_line or ours.union(*lines.values())  # who imports it first is no witness
        tests |= {test for test in self.seconds if test.partition("::")[0] in tests} | ours & self.blind
        return sorted(tests & self.seconds.keys(), key=lambda test: (test not in ours, self.seconds[test]))
