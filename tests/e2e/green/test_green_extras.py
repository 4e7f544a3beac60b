"""Without a package of an extra: one line that says which, and how to get it. Processes that cannot import it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Repo, adding

WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
"""
"""As `sitecustomize`, what an interpreter does before anything else."""


def run(tmp_path: Path, names: set[str], cwd: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """perfci in an interpreter that lacks the modules `names`."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT.format(names=names))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    return subprocess.run(
        [sys.executable, "-m", "perfci", *args], cwd=cwd, env=kept | {"PYTHONPATH": str(folder)} | env,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_publish_without_its_extra(tmp_path: Path) -> None:
    done = run(tmp_path, {"github"}, tmp_path, "publish", GITHUB_TOKEN="t0ken")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'perfci: publish: PyGithub is not installed here: pip install "perfci[github]"\n'


def test_docker_without_its_extra(tmp_path: Path, repo: Repo) -> None:
    repo.policy()
    repo.write("kernels/adding.py", adding())
    done = run(tmp_path, {"docker"}, repo.root, "docker", "--gpus", "none", "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'perfci: Docker\'s SDK for Python is not installed here: pip install "perfci[docker]"\n'


@pytest.mark.slow
def test_ci_and_all_that_measures_need_no_extra(tmp_path: Path, repo: Repo) -> None:
    """`perfci ci` gets as far as its event; what else is asked for runs."""
    without = {"github", "requests", "docker", "ncu_report", "torch"}
    code = WITHOUT.format(names=without) + "sys.argv = ['perfci', 'ci']\nfrom perfci.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "perfci: GITHUB_EVENT_NAME: is not set: this runs in GitHub Actions" in done.stdout
    assert "internal error" not in done.stdout + done.stderr
    repo.policy()
    repo.write("kernels/adding.py", adding())
    done = run(tmp_path, without, repo.root, "list")
    assert (done.returncode, done.stdout.split("\t")[0]) == (0, "adding"), done.stderr
