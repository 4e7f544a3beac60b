"""`perfci init` in a repository that has benchmark scripts: their calls are the first cases."""

from perfci.model.policy_text import parse_policy
from tests.e2e.conftest import Repo

DIRECT = "from triton.testing import do_bench\nfor n in (1, 2):\n    do_bench(lambda: n)\n"
HELPER = "import triton\n\ndef run(fn):\n    return triton.testing.do_bench(fn)\n"
THROUGH = "from helper import run\n\nif __name__ == '__main__':\n    run(lambda: 1)\n"
OWN = "import torch\nprint('bench', torch.cuda.Event().elapsed_time(torch.cuda.Event()))\n"
FIXTURE = "def test_sum(benchmark):\n    benchmark(sum, [1, 2])\n"
TESTED = "from benchmarks.helper import run\n\ndef test_speed():\n    run(lambda: 1)\n"
LIBRARY = "from triton.testing import do_bench\n\nif True:\n    print('library code')\n\ndef tune(fn):\n    return do_bench(fn)\n"


def test_scripts_are_proposed_and_what_is_left_out_is_said(repo: Repo) -> None:
    for name, text in {
        "benchmarks/bench_direct.py": DIRECT, "benchmarks/bench_through.py": THROUGH, "benchmarks/helper.py": HELPER,
        "benchmarks/events.py": OWN, "benchmarks/test_perf.py": TESTED, "lib/tuned.py": LIBRARY,
        "benchmarks/broken.py": "bench = (", "more/benchmark.py": DIRECT, "tests/test_bench.py": FIXTURE,
        "tests/test_right.py": "def test_bench():\n    assert True\n",
    }.items():  # fmt: skip
        repo.write(name, text)
    (repo.root / "perfci.yaml").unlink(missing_ok=True)
    run = repo.perfci("init")
    assert run.code == 0, run.err
    policy = (repo.root / "perfci.yaml").read_text()
    assert len(policy.splitlines()) <= 10
    parse_policy(policy)
    assert policy.partition("suite:\n")[2].startswith(
        "  - script: benchmarks/bench_*.py\n  - script: more/benchmark.py\n"
        "  - {pytest: tests/test_bench.py, device: cpu}\n  - {pytest: benchmarks/test_perf.py, device: cpu}\nlimits:"
    )
    assert not (repo.root / "kernels/example.py").exists()
    lines = run.out.splitlines()
    assert (
        "note   left out, as they time by themselves: benchmarks/events.py: see `timers:` in docs/scripts.md" in lines
    )
    assert "runs-on: [self-hosted, gpu]" in (repo.root / ".github/workflows/perf.yml").read_text()
    assert "`perfci compare HEAD --measure-all -k 'test_bench/*'` measures" in lines[-2], "it needs no Triton"
    assert "`perfci list` runs all 5 benchmark files to show theirs." in lines[-2]


def test_what_runs_is_no_glob_over_tests_and_the_shortest_with_all_imports_is_first(repo: Repo) -> None:
    ours = DIRECT.replace("triton.testing", "bench.lib")
    for name, text in {
        "bench/a.py": "import nothing_of_this_name\n" + ours, "bench/b.py": ours.replace("for n in (1, 2):\n    do_bench(lambda: n)", "do_bench(sum)"),
        "bench/lib.py": HELPER, "bench/conftest.py": "", "bench/a_test.py": TESTED.replace("helper", "lib"),
        "bench/deep/b.py": ours, "bench/deep/c_test.py": "import torch\n" + FIXTURE,
    }.items():  # fmt: skip
        repo.write(name, text)
    (repo.root / "perfci.yaml").unlink(missing_ok=True)
    run = repo.perfci("init")
    policy = (repo.root / "perfci.yaml").read_text()
    assert policy.partition("suite:\n")[2].splitlines()[:4] == [
        "  - {script: [bench/a.py, bench/b.py], device: cpu}", "  - {script: bench/deep/b.py, device: cpu}",
        "  - {pytest: bench/deep/c_test.py, device: cpu}", "  - {pytest: bench/a_test.py, device: cpu}",
    ]  # fmt: skip
    assert "`perfci compare HEAD --measure-all -k 'bench_b/*'` measures" in run.out


def test_a_build_is_proposed_where_the_scripts_need_one(repo: Repo) -> None:
    repo.write("bench/bench_it.py", "from importlib.metadata import version\nversion('my-lib')\n" + DIRECT)
    repo.write("pyproject.toml", "[project]\nname = 'my_lib'\n")
    (repo.root / "perfci.yaml").unlink(missing_ok=True)
    run = repo.perfci("init")
    assert 'build: pip install --no-deps --target "$PERFCI_SITE" .' in (repo.root / "perfci.yaml").read_text()
    assert "note   build: a script asks for the installed version of my_lib" in run.out
    (repo.root / "perfci.yaml").unlink()
    repo.write("src/my_lib/a.py", "")
    repo.perfci("init")
    editable = 'build: pip install --no-deps --target "$PERFCI_SITE" --editable .\n'
    assert editable in (repo.root / "perfci.yaml").read_text(), "with what no wheel of it holds"
    (repo.root / "perfci.yaml").unlink()
    repo.write("setup.py", "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('x', [])\n")
    repo.write("pyproject.toml", "[build-system]\nrequires = ['setuptools-that-nobody-has>=1']\n")
    run = repo.perfci("init")
    assert "--no-build-isolation" in (repo.root / "perfci.yaml").read_text()
    assert "note   build: needs setuptools-that-nobody-has>=1 here" in run.out
    (repo.root / "perfci.yaml").unlink()
    (repo.root / "setup.py").unlink()
    scm = "[build-system]\nrequires = ['setuptools_scm>=8']\n[tool.setuptools_scm]\nversion_file = 'lib/_version.py'\n"
    repo.write("pyproject.toml", scm)
    run = repo.perfci("init")
    written = 'build: SETUPTOOLS_SCM_PRETEND_VERSION=0 pip install --no-deps --target "$PERFCI_SITE" .'
    assert written in (repo.root / "perfci.yaml").read_text()
    assert "note   build: lib/_version.py is not in the repository: the package's build writes it" in run.out
    (repo.root / "perfci.yaml").unlink()
    repo.write("pyproject.toml", "[project\n")
    assert "note   pyproject.toml: " in repo.perfci("init").out


def test_benchmarks_without_a_gpu_get_a_policy_and_a_workflow_without_one(repo: Repo) -> None:
    repo.write("tests/test_bench.py", FIXTURE)
    (repo.root / "perfci.yaml").unlink(missing_ok=True)
    run = repo.perfci("init")
    assert run.code == 0, run.err
    policy = parse_policy((repo.root / "perfci.yaml").read_text())
    assert [(limit.regression, limit.devices) for limit in policy.limits] == [(0.1, ["cpu"])]
    workflow = (repo.root / ".github/workflows/perf.yml").read_text()
    assert "cuda" not in workflow
    assert "gpu" not in workflow
    assert workflow.count("device: cpu") == 2
