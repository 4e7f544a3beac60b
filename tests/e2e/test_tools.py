"""Other benchmarking tools, really run: their programs as commands, and their files judged from files alone."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .conftest import Repo

pytestmark = [pytest.mark.tools, pytest.mark.slow]  # the tools start dozens of times
DATA = Path(__file__).parents[1] / "data" / "import"
HYPERFINE = "hyperfine -N --runs 4 --command-name nap './nap'"


def needs(tool: str) -> None:
    """Skips, visibly: none of the tools is a dependency of perfci, and CI runs these tests with all of them."""
    if tool == "hyperfine" and not shutil.which("hyperfine"):
        pytest.skip("needs hyperfine (apt-get install hyperfine)")  # a Debian package, no Python one
    if tool == "pytest-benchmark" and not find_spec("pytest_benchmark"):
        pytest.skip("needs pytest-benchmark")  # of the dev extra, which a user may lack
    if tool == "google-benchmark":
        probe = ["g++", "-E", "-x", "c++", "-include", "benchmark/benchmark.h", "/dev/null", "-o", "/dev/null"]
        if not shutil.which("g++") or subprocess.run(probe, capture_output=True, check=False).returncode:
            pytest.skip("needs google-benchmark and g++ (apt-get install libbenchmark-dev g++)")  # a C++ library


def programs(repo: Repo, tool: str, spin: int) -> str:
    """Write the tool's benchmark, which does its work `spin` times; how it is run."""
    if tool == "hyperfine":
        repo.write("nap", f"#!/bin/sh\nexec sleep 0.0{spin}\n")
        (repo.root / "nap").chmod(0o755)
        return HYPERFINE
    if tool == "pytest-benchmark":
        text = (DATA / "bench_sort.py").read_text().replace('os.environ.get("SPIN", "1")', f'"{spin}"')
        repo.write("bench_sort.py", text)
        options = "--benchmark-max-time=0.01 --benchmark-min-rounds=20 -p no:cacheprovider"
        alone = "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"  # no other plugin, which takes seconds to import
        return f"{alone} {sys.executable} -m pytest -p pytest_benchmark.plugin -q bench_sort.py {options}"
    source = (DATA / "bench.cpp").read_text()
    repo.write("bench.cpp", source.replace('std::getenv("SPIN") ? std::atoi(std::getenv("SPIN")) : 1', str(spin)))
    return "./bench --benchmark_filter=sum --benchmark_min_time=0.02"


CASES = {
    "google-benchmark": ["sum/n=1024", "sum/n=16384"],
    "pytest-benchmark": ["bench_sort.py/test_sort/100", "bench_sort.py/test_sort/2000"],
    "hyperfine": ["nap"],
}
SLOWER = {"google-benchmark": 50, "pytest-benchmark": 50, "hyperfine": 5}  # far above what a busy machine adds
TOOLS = pytest.mark.parametrize("tool", list(CASES))
BUILD = "build: g++ -O1 bench.cpp -lbenchmark -lpthread -o bench\n"


@TOOLS
def test_a_tool_as_a_command_passes_and_fails(repo: Repo, tool: str) -> None:
    needs(tool)
    run = programs(repo, tool, 1)
    policy = (
        f'version: 1\ndevices: [cpu]\ncommands:\n  - {{name: b, run: "{run}", reads: {tool}}}\n'
        + BUILD * (tool == "google-benchmark")
        + "limits:\n"
        + "".join(f"  - {{cases: b/{case}, regression: 40%}}\n" for case in CASES[tool])
    )
    repo.write("perfci.yaml", policy)
    repo.commit()
    same = repo.perfci("compare", "--base", "HEAD", "--quick", "--budget", "5m")
    assert same.code == 0, same.out + same.err
    programs(repo, tool, SLOWER[tool])
    slower = repo.perfci("compare", "--base", "HEAD", "--quick", "--budget", "5m")
    assert slower.code == 1, slower.out + slower.err
    assert {f"b/{case}" for case in CASES[tool]} <= slower.classes().keys()
    assert all(slower.classes()[f"b/{case}"] == "regression" for case in CASES[tool])
    case = next(one for one in slower.results["cases"] if one["id"] == f"b/{CASES[tool][0]}")
    assert len(case["pairs"]) >= 8 and case["sides"]["head"]["timing"]["reads"] == tool


@TOOLS
def test_a_tool_s_files_pass_and_fail(repo: Repo, tool: str) -> None:
    """Ten files each of base and head, written in turns by the tool itself."""
    needs(tool)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # ours, not the tool's
    folder = repo.root / "files"
    folder.mkdir()
    option = {
        "google-benchmark": "--benchmark_out={} --benchmark_out_format=json",
        "pytest-benchmark": "--benchmark-json={}",
        "hyperfine": "--export-json {}",
    }[tool]
    for index in range(10):
        for name, spin in (("base", 1), ("head", SLOWER[tool]), ("again", 1)):
            run = programs(repo, tool, spin)
            if tool == "google-benchmark":
                program = f"bench-{name}"
                if not index:
                    build = f"g++ -O1 bench.cpp -lbenchmark -lpthread -o {program}"
                    subprocess.run(build, shell=True, cwd=repo.root, check=True)
                run = run.replace("./bench", f"./{program}")
            line = f"{run} {option.format(f'files/{name}-{index}.json')}"
            subprocess.run(line, shell=True, cwd=repo.root, env=env, check=True, capture_output=True)
    repo.write("limits.yaml", "version: 1\nlimits: [{regression: 40%}]\n")
    asked = ("--base", "files/base-*.json", "--policy", "limits.yaml")
    slower = repo.perfci("import", "--head", "files/head-*.json", *asked, "--out", "perfci-out")
    assert slower.code == 1, slower.out + slower.err
    assert {slower.classes()[case] for case in CASES[tool]} == {"regression"}, slower.out
    assert slower.report["sides"]["base"]["ref"] == "base-0.json … base-9.json"
    same = repo.perfci("import", "--head", "files/again-*.json", *asked, "--out", "same")
    assert same.code == 0, same.out + same.err
    assert "REGRESSION" not in same.out.upper().replace("NO REGRESSION", "")
    one = repo.perfci("import", "--head", "files/head-0.json", "--policy", "limits.yaml", "--out", "one", "--json")
    assert one.code == 0 and '"mode": "run"' in one.out
