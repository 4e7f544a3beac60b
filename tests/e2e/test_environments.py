"""The same code in two environments: interpreters with other packages, and other variables."""

import subprocess
from pathlib import Path

import pytest

from .conftest import PLAIN_PYTHON, Repo

LIMITS = "limits: [{cases: '*', metric: time, regression: 100%}]\n"
PACED = """
    import os
    import perfci
    import pace

    @perfci.kernel(devices=["cpu"])
    def paced(bench):
        bench.reference(lambda: 7, rtol=0, atol=0)
        return pace.work
"""
CHOOSING = """
    import os
    import perfci

    ROUNDS = 40_000 if os.environ.get("PACE") == "slow" else 2_000

    @perfci.kernel(devices=["cpu"])
    def choosing(bench):
        bench.reference(lambda: 7, rtol=0, atol=0)
        return lambda: (sum(range(ROUNDS)), 7)[1]
"""


def interpreter(folder: Path, version: str, rounds: int) -> str:
    """A virtual environment that holds the package `pace` and nothing else."""
    subprocess.run([PLAIN_PYTHON, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "pace.py").write_text(f"def work():\n    sum(range({rounds}))\n    return 7\n")
    notes = site / f"pace-{version}.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pace\nVersion: {version}\n")
    return str(folder / "bin" / "python")


@pytest.fixture
def paced(repo: Repo) -> Repo:
    repo.policy(LIMITS)
    repo.write("kernels/a.py", PACED)
    repo.commit()
    return repo


@pytest.mark.slow
def test_a_slower_package_in_heads_interpreter_is_a_regression(paced: Repo, tmp_path: Path) -> None:
    """No --base: the tree, with what is not committed, is compared with itself."""
    old, new = interpreter(tmp_path / "old", "1.0", 2_000), interpreter(tmp_path / "new", "2.0", 40_000)
    paced.write("kernels/a.py", PACED.replace("7", "7 + 0"))
    run = paced.perfci("compare", "--python", f"base:{old}", "--python", new, "--quick", "--budget", "3m")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"paced": "regression"}
    assert f"interpreter {old} → {new}" in run.out.replace("`", "")
    assert "1 package: pace 1.0 → 2.0" in run.out.replace("`", "")
    assert "no fork of a common one" in run.out
    assert run.report["environments"]["packages"] == [{"name": "pace", "base": "1.0", "head": "2.0"}]
    sides = run.results["sides"]
    assert sides["base"]["tree"] == sides["head"]["tree"]
    assert sides["base"]["dirty"] and sides["head"]["dirty"]
    assert "--base" not in run.report["command"]
    for name in ("report.md", "report.html"):
        page = (paced.root / "perfci-out" / name).read_text()
        assert "pace" in page and "1.0 → 2.0" in page


@pytest.mark.slow
def test_like_interpreters_are_unchanged_and_measured(paced: Repo, tmp_path: Path) -> None:
    """Another interpreter may differ in what is not seen: nothing is proved by equal files."""
    one, two = interpreter(tmp_path / "one", "1.0", 2_000), interpreter(tmp_path / "two", "1.0", 2_000)
    run = paced.perfci("compare", "--python", f"base:{one}", "--python", two, "--quick", "--budget", "3m")
    assert run.code == 0, run.out + run.err
    assert run.classes().get("paced") in ("unchanged", "inconclusive")  # the latter on a busy machine
    assert run.report["pairs"] > 0
    assert "packages: the same versions in both" in run.out


def test_one_interpreter_for_both_leaves_nothing_to_compare(paced: Repo, tmp_path: Path) -> None:
    """Then all is one environment, and the same files prove it."""
    one = interpreter(tmp_path / "one", "1.0", 2_000)
    paced.env["PERFCI_MEASURE_ALL"] = "0"
    run = paced.perfci("compare", "--python", f"base:{one}", "--python", one)
    assert run.code == 0, run.out + run.err
    assert run.report["environments"] is None
    assert [case["proof"]["by"] for case in run.results["cases"]] == ["files"]  # it may be audited


@pytest.mark.slow
def test_a_variable_that_slows_head_is_a_regression(repo: Repo) -> None:
    repo.policy(LIMITS)
    repo.write("kernels/a.py", CHOOSING)
    commit = repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--env", "PACE=slow", "--quick", "--budget", "3m")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"choosing": "regression"}
    assert "1 variable: PACE not set → slow" in run.out.replace("`", "")
    assert run.report["command"][-2:] != ["--base", "HEAD"]
    assert commit in run.report["command"]


@pytest.mark.slow
def test_a_variable_that_does_nothing_is_measured(repo: Repo) -> None:
    repo.policy(LIMITS)
    repo.write("kernels/a.py", CHOOSING)
    repo.commit()
    repo.env["PERFCI_MEASURE_ALL"] = "0"
    run = repo.perfci("compare", "--env", "base:PACE=fast", "--quick", "--budget", "3m")
    assert run.code == 0, run.out + run.err
    assert run.classes() == {"choosing": "unchanged"}
    assert run.report["pairs"] > 0
    assert "nothing was proved unchanged by its code: the environments of base and head differ in PACE" in run.out


@pytest.mark.slow
def test_policies_whose_variables_differ_are_told(repo: Repo) -> None:
    """A change to env: in perfci.yaml is a difference like one of the command line; secrets stay where they are."""
    repo.policy(LIMITS + "pass_env: [QUIET]\n")
    repo.write("kernels/a.py", CHOOSING)
    repo.commit()
    repo.policy(LIMITS + "env: {PACE: slow, API_TOKEN: hush-hush}\n")
    repo.env["QUIET"] = "not-to-be-told"
    run = repo.perfci("compare", "--base", "HEAD", "--quick", "--budget", "3m")
    assert run.code == 1, run.out + run.err
    assert "3 variables: API_TOKEN differs, and may be a secret, PACE not set → slow, QUIET differs" in run.out.replace(
        "`", ""
    )
    assert not run.report["environments"]["asked"]
    for path in (repo.root / "perfci-out").glob("*"):
        if path.is_file():
            assert "not-to-be-told" not in path.read_text(), path
            assert "hush-hush" not in path.read_text(), path


@pytest.mark.slow
def test_what_was_prepared_is_measured_with_the_variables_that_it_was_built_with(repo: Repo, tmp_path: Path) -> None:
    repo.policy(LIMITS + "build: 'echo \"ROUNDS = ${PACE:-20000}\" > chosen.py'\n")
    repo.write("kernels/a.py", CHOOSING.replace("import os", "import os\n    import chosen"))
    repo.commit()
    folder = str(tmp_path / "prepared")
    made = repo.perfci("compare", "--env", "PACE=40000", "--prepare", folder)
    assert made.code == 0, made.out + made.err
    sides = {side: (tmp_path / "prepared" / side / "tree/chosen.py").read_text() for side in ("base", "head")}
    assert sides == {"base": "ROUNDS = 20000\n", "head": "ROUNDS = 40000\n"}
    refused = repo.perfci("compare", "--env", "PACE=1", "--prepared", folder)
    assert refused.code == 2, refused.out + refused.err
    assert "the set of --env has changed since it was prepared" in refused.err
    run = repo.perfci("compare", "--env", "PACE=40000", "--prepared", folder, "--quick", "--budget", "3m")
    assert run.code in (0, 1), run.out + run.err
    assert run.report["environments"]["variables"][0]["name"] == "PACE"
