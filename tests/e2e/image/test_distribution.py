"""What a release holds: sdist and wheel build, and the wheel gates by itself."""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def call(*command: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_of_the_sdist_gates_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """As a user meets it: no checkout of perfci on any path; torch is the code's, in another environment."""
    dist, fresh, repo = tmp_path / "dist", tmp_path / "fresh", tmp_path / "repo"
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT, cwd=tmp_path)
    [sdist] = dist.glob("*.tar.gz")
    [wheel] = dist.glob("*.whl")
    assert (sdist.name, wheel.name) == (f"perfci-{VERSION}.tar.gz", f"perfci-{VERSION}-py3-none-any.whl")
    with tarfile.open(sdist) as archive:
        held = {Path(name).parts[1] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "kernels", "schemas", "src", "tests"} <= held
    assert not any(name.startswith(".") and name != ".gitignore" for name in held), held

    venv.create(fresh, with_pip=True)
    pip = (fresh / "bin" / "python", "-I", "-m", "pip", "--quiet", "--disable-pip-version-check")
    call(*pip, "install", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PERFCI"))}
    env = kept | {"VIRTUAL_ENV": sys.prefix, "PATH": f"{fresh / 'bin'}:{os.environ['PATH']}"}
    assert VERSION in call("perfci", "--version", cwd=tmp_path, env=env)
    say = "from perfci.render.docs import page; print(page('undecided.md'))"
    page = fresh / "share" / "doc" / "perfci" / "undecided.md"  # no address is known of where a file came from
    assert call(fresh / "bin" / "python", "-c", say, cwd=tmp_path, env=env).strip() == str(page)
    assert page.read_text() == (ROOT / "docs" / "undecided.md").read_text()
    repo.mkdir()
    call("perfci", "init", cwd=repo, env=env)
    call("git", "init", "--quiet", cwd=repo)
    call("git", "add", "--all", cwd=repo)
    call("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "-m", "perfci", cwd=repo)
    call("perfci", "compare", "--base", "HEAD", "--measure-all", "--device", "cpu", "--budget", "1m", cwd=repo, env=env)
    report = (repo / "perfci-out" / "report.md").read_text()
    assert "smoothing/rounds=4" in report and "smoothing/rounds=8" in report
