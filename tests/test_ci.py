"""What CI runs: the tests as on a bare machine, with the same examples each time; others are drawn by night."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SEEN = f"{sys.executable} -c 'import json, os; print(json.dumps([dict(os.environ), os.listdir(os.environ[\"HOME\"])]))'"


KEPT = {"PIP_CERT": "/c.pem", "npm_config_cafile": "/c.pem", "HTTPS_PROXY": "http://a.example", "PERFCI_TEST_NSYS": "n"}


@pytest.fixture
def caller(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody whose home, identity, language and tools' files might help a test on."""
    home = tmp_path / "caller"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://index.example/simple\n")
    (home / ".npmrc").write_text("registry=https://registry.example/\n")
    (home / ".gitconfig").write_text("[user]\nname = c\nemail = c@example.com\n")
    who = {f"GIT_{who}_NAME": "c" for who in ("AUTHOR", "COMMITTER")}
    given = {
        "LANG": "de_DE.UTF-8",
        "TERM": "xterm",
        "USER": "c",
        "COLUMNS": "400",
        "XDG_CACHE_HOME": str(home),
        "CI": "1",
    }
    return {"PATH": os.environ["PATH"], "HOME": str(home), **who, **given, **KEPT}


def bare(command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci/bare", "bash", "-c", command], env=env, capture_output=True, text=True, check=False
    )


def test_a_bare_machine_has_nothing_of_the_callers_but_where_packages_are(caller: dict[str, str]) -> None:
    env, files = json.loads(bare(SEEN, caller).stdout)
    assert not files and not Path(env["HOME"]).exists()  # it is gone by now
    kept = {"PATH", *KEPT}
    assert kept <= env.keys() and {name: env[name] for name in kept} == {name: caller[name] for name in kept}
    of_bash = {"PWD", "SHLVL", "_", "LC_CTYPE"}  # the last is Python's own
    assert env.keys() - kept - of_bash == {"HOME", "PIP_CONFIG_FILE", "NPM_CONFIG_USERCONFIG"}
    config = {"PIP_CONFIG_FILE": "/dev/null", "npm_config_userconfig": "/dev/null"}
    env, _ = json.loads(bare(SEEN, caller | config).stdout)
    assert {name: env[name] for name in config} == config and "NPM_CONFIG_USERCONFIG" not in env
    assert bare("git config user.name || exit 7", caller).returncode == 7


def test_pip_and_npm_look_where_the_caller_does(caller: dict[str, str]) -> None:
    told = bare(f"{sys.executable} -m pip config list", caller)
    assert "global.index-url='https://index.example/simple'" in told.stdout.splitlines(), told.stderr
    if shutil.which("npm"):
        told = bare("npm config get registry", caller)
        assert told.stdout == "https://registry.example/\n", told.stderr


def scripts(folder: Path, **stubs: str) -> Path:
    """A checkout with scripts of .ci alone, some of them stubs, on whose PATH is a `make` that writes what it is asked."""
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    (folder / "bin").mkdir()
    stubs["bin/make"] = f'echo "make $* $(pwd)" >>{folder}/asked; {SEEN} >>{folder}/asked'
    for name, text in stubs.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def test_ci_tests_on_a_bare_machine_with_the_same_examples_each_time(tmp_path: Path, caller: dict[str, str]) -> None:
    nothing = dict.fromkeys((".ci/nsys", ".ci/tools", ".ci/docker"), "exit 0") | {".ci/slurm": "exit 4"}
    folder = scripts(tmp_path / "checkout", **nothing)
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(shutil.which("true") or "")
    env = caller | {"PATH": f"{folder / 'bin'}:{caller['PATH']}", "PYTEST_ADDOPTS": "--maxfail=3"}
    done = subprocess.run([folder / ".ci/run"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check, checked, tests, tested = (folder / "asked").read_text().splitlines()
    assert (check, tests) == (f"make check {folder}", f"make test-all {folder}")
    assert json.loads(checked)[0]["HOME"] == caller["HOME"]  # it installs
    seen, files = json.loads(tested)
    assert seen["HOME"] != caller["HOME"] and files == [] and "LANG" not in seen
    options = seen["PYTEST_ADDOPTS"].split()
    assert options[0] == "--maxfail=3" and options[-1] == "--hypothesis-profile=ci"
    assert "--must-run=docker" in options and "--must-run=slurm" not in options


DRAWN = """
import os

from hypothesis import given, settings, strategies as st


@settings(max_examples=20)
@given(st.integers(0, 10**9))
def test_drawn(number):
    with open("drawn", "a") as file:
        print(number, file=file)
    assert number <= 10**9 - int(os.environ["PERFCI_TEST_MARGIN"])


def test_fails_but_draws_nothing():
    assert False
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_by_night_other_examples_are_drawn_and_all_of_them(tmp_path: Path, caller: dict[str, str]) -> None:
    folder = scripts(tmp_path / "checkout")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "tests/conftest.py", folder / "tests")
    (folder / "tests/test_drawn.py").write_text(DRAWN)
    env = caller | {"PATH": f"{folder / 'bin'}:{caller['PATH']}", "PERFCI_TEST_MARGIN": "0"}

    def night(*seed: str) -> tuple[int, str, str, set[str]]:
        shutil.rmtree(folder / ".hypothesis", ignore_errors=True)
        (folder / "drawn").unlink(missing_ok=True)
        done = subprocess.run([folder / ".ci/nightly", *seed], env=env, capture_output=True, text=True, check=False)
        told = re.search(r"^seed (\d+)$", done.stdout, re.MULTILINE)
        assert told, done.stdout + done.stderr
        return done.returncode, told[1], done.stderr, set((folder / "drawn").read_text().split())

    code, first, _, drawn = night()
    assert code == 0 and len(drawn) > 15
    _, second, _, others = night()
    assert first != second and len(drawn & others) < 5  # it tries some numbers each time, as 0
    assert night(first)[3] == drawn
    env["PERFCI_TEST_MARGIN"] = "999999999"
    code, seed, said, _ = night()
    assert code == 1 and f".ci/nightly {seed}, or pytest TEST --hypothesis-seed={seed}\n" in said
