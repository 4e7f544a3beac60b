"""Files that users copy: policies, workflows, and the commands that the READMEs say."""

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perfci.model.policy_text import parse_policy
from tests.e2e.conftest import Repo, adding

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TEMPLATE = (ROOT / "src/perfci/cli/templates/perf.yml").read_text().splitlines()
BIN = Path(sys.executable).parent
DEVICE, RUNNER = "          device: cuda # a runner that has lost its GPU fails", "    runs-on: [self-hosted, gpu]"
MEASURE = "  measure: # runs the pull request's code, without rights"
VARIANTS: dict[str, tuple[int, list[str]]] = {
    "triton": (0, []),
    "extension": (2, [DEVICE, "          device: cuda # as above"]),
    "kubernetes": (6, [RUNNER, DEVICE]),
    "matrix": (6, ["    name: measure", RUNNER]),
    "shards": (38, [*TEMPLATE[:2], MEASURE, "    name: measure", "    needs: measure"]),
}
"""How many lines of an example's workflow that of `perfci init` has not, and which of its lines the example has not."""


def reader(tmp_path: Path, folder: str = "repo") -> Repo:
    """An empty repository where `python3`, `pip` and `perfci` are what a reader has."""
    (tmp_path / "t").mkdir()
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path / "t"), "COLUMNS": "160", "NO_COLOR": "1"}
    return Repo(tmp_path / folder, env)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return reader(tmp_path)


def copied(repo: Repo, name: str, *, init: bool = False) -> Repo:
    """The folder of an example as a repository of its own; `init`: over what `perfci init` writes, as its README says."""
    if init:
        assert repo.perfci("init").code == 0
    built = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(EXAMPLES / name, repo.root, dirs_exist_ok=True, ignore=built)
    repo.commit()
    return repo


@pytest.mark.parametrize("name", VARIANTS)
def test_a_workflow_is_that_of_init_but_for_what_it_shows(name: str) -> None:
    """What the lines say that it has of its own, test_workflows.py checks."""
    lines = (EXAMPLES / name / ".github/workflows/perf.yml").read_text().splitlines()
    compared = [*difflib.ndiff(TEMPLATE, lines)]
    left_out = [line[2:] for line in compared if line.startswith("- ")]
    assert (sum(line.startswith("+ ") for line in compared), left_out) == VARIANTS[name]


def test_a_runner_that_has_lost_its_gpu_fails() -> None:
    """Every measuring job asks for the GPU by name: cases that are merely skipped pass."""
    asked, typed_devices = [], []
    for path in EXAMPLES.glob("*/.github/workflows/*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            lines = [line for step in job.get("steps", []) for line in step.get("run", "").splitlines()]
            measuring = re.compile(r"bin/perfci\"? (history measure|calibrate|compare|run)\b")
            typed_devices += [re.findall(r"--device (\S+)", line) for line in lines if measuring.search(line)]
            asked += [
                step["with"]["device"]
                for step in job.get("steps", [])
                if step.get("uses", "").startswith("org/perfci@") and "plan" not in step["with"]  # which asked for it
            ]
    assert len(asked) == 6 and all("cuda" in devices.split() for devices in asked)
    assert len(typed_devices) >= 2 and all(devices == ["cuda"] for devices in typed_devices)


def test_the_runner_group_of_the_public_project_gets_the_reusable_workflow() -> None:
    folder = EXAMPLES / "public/.github/workflows"
    called = yaml.safe_load((folder / "perf.yml").read_text())["jobs"]["measure"]["uses"]
    file = re.fullmatch(r"acme/kernels/.github/workflows/([a-z-]+\.yml)@main", called)[1]
    workflow = yaml.safe_load((folder / file).read_text())
    assert list(workflow[True]) == ["workflow_call"]  # `on` is a boolean
    assert f"acme/kernels/.github/workflows/{file}@refs/heads/main" in (EXAMPLES / "public/README.md").read_text()
    assert workflow["jobs"]["measure"]["runs-on"]["group"] == "perf"


def test_the_pod_of_a_job_has_the_gpu_and_the_runner_finds_it() -> None:
    folder = EXAMPLES / "kubernetes"
    made = yaml.safe_load((folder / "job-pod.yaml").read_text())
    ((file, text),) = made["data"].items()
    (job,) = yaml.safe_load(text)["spec"]["containers"]
    assert (job["name"], job["resources"]["limits"]["nvidia.com/gpu"]) == ("$job", 1)
    assert job["resources"]["requests"]["cpu"] == job["resources"]["limits"]["cpu"]
    values = yaml.safe_load((folder / "runner-values.yaml").read_text())
    spec = values["template"]["spec"]
    (runner,) = spec["containers"]
    assert spec["volumes"][0]["configMap"]["name"] == made["metadata"]["name"]
    assert runner["env"][0]["value"] == f"{runner['volumeMounts'][0]['mountPath']}/{file}"
    workflow = yaml.safe_load((folder / ".github/workflows/perf.yml").read_text())
    assert workflow["jobs"]["measure"]["runs-on"] == values["runnerScaleSetName"]
    # With the lines about counters in force it is still sound.
    allowed = yaml.safe_load(
        re.sub(r"^( +)# ((?:securityContext|  capabilities|    add):)", r"\1\2", text, flags=re.MULTILINE)
    )
    assert allowed["spec"]["containers"][0]["securityContext"] == {"capabilities": {"add": ["PERFMON"]}}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/perfci.yaml")), ids=lambda path: path.parent.name)
def test_policies_are_valid(path: Path) -> None:
    assert parse_policy(path.read_text()).limits


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/README.md")), ids=lambda path: path.parent.name)
def test_what_a_readme_replaces_is_there(path: Path) -> None:
    found = re.findall(r"sed -i 's/(.*)/(.*)/' (\S+)", path.read_text())
    assert all((path.parent / file).read_text().count(old) == 1 and old != new for old, new, file in found)
    assert bool(found) == (path.parent.name in {"triton", "extension", "nvbench", "benchmarks"})


@pytest.mark.slow
def test_triton_without_a_gpu_says_what_it_needs(repo: Repo) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a GPU")  # the test is of machines without one
    listed = copied(repo, "triton").perfci("list")
    assert listed.code == 0
    assert listed.out.count("skipped: needs cuda") == 2
    demanded = repo.perfci("compare", "--base", "HEAD")
    assert demanded.code == 3
    assert ":perfci.yaml: devices: [cuda]: there is no GPU that torch can use here" in demanded.err.splitlines()[-1]


def limits(repo: Repo) -> str:
    """What is asked of a case of `perfci init`."""
    listed = repo.perfci("list")
    assert listed.code == 0, listed.err
    return re.findall(r"^smoothing/rounds=8\tcpu\t(.*)\tkernels/example\.py", listed.out, re.MULTILINE)[0]


@pytest.mark.slow
def test_the_policy_of_the_matrix_over_that_of_init(repo: Repo) -> None:
    assert limits(copied(repo, "matrix", init=True)) == "time within 10 %"


def lines(name: str) -> list[str]:
    """The command lines of a README, without their remarks."""
    found = [line[4:] for line in (EXAMPLES / name / "README.md").read_text().splitlines() if line.startswith("    ")]
    return [re.split(r"\s+#", line)[0] for line in found]


def typed(repo: Repo, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], cwd=repo.root, env=repo.env, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_the_readme_of_the_extension_typed(repo: Repo) -> None:
    """As far as the tree against itself; tests/e2e/test_sides.py takes the blocking out, as the README goes on to."""
    copied(repo, "extension")
    _, listing, worse, compare, *_ = lines("extension")
    listed = typed(repo, listing)
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.count("transpose/rows=512/columns=5") == 2
    assert listed.stdout.count("transpose_cuda/rows=8192/columns=8") == 2
    done = typed(repo, f"{compare} --quick --budget 5m")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cases skipped: needs cuda (transpose_cuda)" in done.stdout or shutil.which("nvidia-smi")
    assert typed(repo, worse).returncode == 0 and repo.git("diff", "--stat")


@pytest.mark.slow
def test_the_readme_of_the_nightly_typed(repo: Repo) -> None:
    copied(repo, "nightly", init=True)
    assert limits(repo) == "bandwidth min 10.0 MB/s; time within 10 %; time within 25 % of the reference"
    _, _, measure, record, calibrate = lines("nightly")
    done = typed(repo, measure)
    assert done.returncode == 0 and "bandwidth" in done.stdout, done.stdout + done.stderr
    done = typed(repo, record)
    assert done.returncode == 0 and list((repo.root / "store/nights").glob("*/*/*.json")), done.stdout + done.stderr
    done = typed(repo, f"{calibrate} --pairs 8")
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: more than one run in a hundred would fail here
    assert (repo.root / "perfci-out/calibration/calibration.md").is_file()  # what the workflow shows and uploads


@pytest.mark.slow
def test_the_bisect_by_hand_writes_its_summary(repo: Repo, tmp_path: Path) -> None:
    """The steps of the workflow as its runner takes them, on the CPU."""
    (job,) = yaml.safe_load((EXAMPLES / "bisect/.github/workflows/perf-bisect.yml").read_text())["jobs"].values()
    steps = {step.get("name", step.get("uses", "").partition("@")[0]): step for step in job["steps"]}
    policy = "version: 1\nsuite: kernels/*.py\ndevices: [cpu]\nlimits: [{regression: 25%}]\n"
    repo.write("perfci.yaml", policy)
    repo.write(".gitignore", "perfci-out/\n")
    repo.write("kernels/adding.py", adding())
    repo.git("checkout", "-q", "-b", "good$(touch${IFS}broken)")  # a name that a shell must not read
    repo.commit("good")
    repo.git("checkout", "-q", "-b", "bad")
    repo.write("kernels/adding.py", adding(spin=20_000))
    culprit = repo.commit("adds with care")
    repo.commit("plain")
    bin_folder = tmp_path / "runner" / "perfci" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "perfci").symlink_to(BIN / "perfci")
    summary = tmp_path / "summary.md"
    given = {"inputs.good": "good$(touch${IFS}broken)", "inputs.bad": "bad", "inputs.case": "adding"}
    env = repo.env | {"RUNNER_TEMP": str(tmp_path / "runner"), "GITHUB_STEP_SUMMARY": str(summary)}
    env |= {name: given[text.strip("${} ")] for name, text in steps["Bisect"]["env"].items()}
    for name in ("Bisect", "Say what was found"):
        text = steps[name]["run"].replace("--device cuda", "--device cpu")
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=repo.root, env=env, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert summary.read_text().startswith(f"### `{culprit[:10]}` 'adds with care' (")
    assert not (repo.root / "broken").exists()
    assert (repo.root / steps["actions/upload-artifact"]["with"]["path"] / "bisect.json").is_file()


@pytest.mark.slow
def test_the_readme_of_the_cases_typed(repo: Repo) -> None:
    """Each is right by its reference, redrawn in place too, and so a model to copy."""
    pytest.importorskip("torch")
    copied(repo, "cases")
    _, listing, run = lines("cases")
    listed = typed(repo, listing)
    assert listed.returncode == 0, listed.stderr
    done = typed(repo, f"{run} --device cpu --budget 5m")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((repo.root / "perfci-out/results.json").read_text())["cases"]
    assert len(cases) == 6
    for case in cases:
        side = case["sides"]["head"]
        assert (side["status"], side["check"]["compared"], side["check"]["unredrawn"]) == ("ok", 1, ""), case["id"]
    rows = json.loads((repo.root / "perfci-out/report.json").read_text())["rows"]
    [row] = [row for row in rows if row["metric"] == "speedup"]
    assert (row["case"], row["effect"]) == ("largest", "pass") and row["head"] > 1.1, row
