"""`perfci init --kubernetes`: valid by the API's own schema, and what its containers run, by hand."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from perfci.system.users import NEEDED
from tests.e2e.conftest import Repo, adding

ROOT = Path(__file__).parents[3]
FILE = "perf-job.yaml"
DOCUMENTS = list(yaml.safe_load_all((ROOT / "src/perfci/cli/templates" / FILE).read_text()))
NAMED = {f"{one['kind']} {one['metadata']['name']}": one for one in DOCUMENTS}
JOBS = {name: NAMED[f"Job perf-{name}"]["spec"] for name in ("plan", "measure", "merge")}
DATA = NAMED["ConfigMap perf"]["data"]
SCHEMA = json.loads((ROOT / "tests/data/kubernetes/v1.34.json").read_text())
KINDS = {
    "Job": "io.k8s.api.batch.v1.Job",
    "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
}


def problems(document: dict) -> list[str]:
    schema = {**SCHEMA, "$ref": f"#/$defs/{KINDS[document['kind']]}"}
    return [one.message for one in Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("name", NAMED)
def test_it_is_valid_by_the_schema_of_the_api(name: str) -> None:
    assert problems(NAMED[name]) == []
    assert problems(NAMED[name] | {"specs": {}})  # which knows what it does not know


def test_its_parts_fit_each_other_and_the_image() -> None:
    measure = JOBS["measure"]
    assert str(measure["completions"]) == str(measure["parallelism"]) == DATA["SHARDS"]
    [entry] = re.findall(r"(?m)^ENTRYPOINT (.*)$", (ROOT / "Dockerfile").read_text())
    assert shlex.split(DATA["PERFCI"]) == json.loads(entry)
    for name, spec in JOBS.items():
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        assert container["name"] == name and pod["restartPolicy"] == "Never" and not pod["automountServiceAccountToken"]
        capabilities = container["securityContext"]["capabilities"]
        assert capabilities["drop"] == ["ALL"] and sorted(capabilities["add"]) == sorted(NEEDED.values())
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (name != "merge")
        assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]} == {"perf"}
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] in [
            one["metadata"]["name"] for one in DOCUMENTS if one["kind"] == "PersistentVolumeClaim"
        ]
    [index] = [one["onExitCodes"] for one in measure["podFailurePolicy"]["rules"] if one["action"] == "FailIndex"]
    assert index["containerName"] == measure["template"]["spec"]["containers"][0]["name"]
    assert {one["metadata"]["labels"]["perf-step"] for one in DOCUMENTS} == {"all", *JOBS}


class Cluster:
    """Runs what containers of the manifest run, on this machine: its volume is a folder, its image perfci here."""

    def __init__(self, repo: Repo, volume: Path, **data: str) -> None:
        self.env = repo.env | DATA | {"REPOSITORY": str(repo.root), "PERFCI": "perfci"} | data
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{repo.env['PATH']}"
        self.volume = volume
        volume.mkdir()

    def run(self, container: dict, **env: str) -> subprocess.CompletedProcess[str]:
        def there(text: str) -> str:
            return text.replace("/perf/", f"{self.volume}/")

        folder = Path(there(container["workingDir"] + "/"))
        folder.mkdir(exist_ok=True)  # as a runtime does
        return subprocess.run(
            [*container["command"], *map(there, container["args"])],
            cwd=folder, env=self.env | env, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip

    def job(self, name: str, **env: str) -> subprocess.CompletedProcess[str]:
        pod = JOBS[name]["template"]["spec"]
        for container in pod.get("initContainers", []):
            done = self.run(container, **env)
            assert done.returncode == 0, done.stderr
        return self.run(pod["containers"][0], **env)

    def shard(self, index: int) -> subprocess.CompletedProcess[str]:
        return self.job("measure", JOB_COMPLETION_INDEX=str(index))


@pytest.fixture
def origin(repo: Repo) -> Repo:
    """`main`, whose last commit is slower in one of its two cases."""
    repo.policy("limits: [{cases: '*', metric: time, regression: 40%}]\n")
    for i in (1, 2):
        repo.write(f"kernels/k{i}.py", adding(name=f"adding{i}"))
    assert repo.perfci("init", "--kubernetes").code == 0
    assert (repo.root / FILE).read_text() == (ROOT / "src/perfci/cli/templates" / FILE).read_text()
    repo.commit()
    repo.write("kernels/k2.py", adding(spin=20_000, name="adding2"))
    repo.commit("slower")
    return repo


def test_a_plan_that_is_refused_leaves_nothing_to_merge(origin: Repo, tmp_path: Path) -> None:
    cluster = Cluster(origin, tmp_path / "volume", BASE="origin/gone")
    plan = cluster.job("plan")
    assert plan.returncode == 2 and "gone" in plan.stderr
    assert cluster.shard(0).returncode == 2  # FailIndex: not tried again
    merge = cluster.job("merge")
    assert merge.returncode == 3 and "none of 4 shards gave results" in merge.stdout


@pytest.mark.slow
def test_what_the_containers_run(origin: Repo, tmp_path: Path) -> None:
    """A volume from an earlier run, two shards, one of which is lost at first, and its pod a second time."""
    cluster = Cluster(origin, tmp_path / "volume", SHARDS="2")
    (cluster.volume / "results/shard-9").mkdir(parents=True)
    (cluster.volume / "repository").mkdir()
    plan = cluster.job("plan")
    assert plan.returncode == 0, plan.stderr
    assert not (cluster.volume / "results/shard-9").exists()

    first = cluster.shard(0)
    assert first.returncode == 0, first.stdout + first.stderr
    merge = cluster.job("merge")
    assert merge.returncode == 3 and "merge: shard 2 of 2" in merge.stderr

    second = cluster.shard(1)
    assert second.returncode == 0, second.stdout + second.stderr
    counted = [pairs(cluster.volume, shard) for shard in (1, 2)]
    again = cluster.shard(1)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [pairs(cluster.volume, shard) for shard in (1, 2)] == counted

    merge = cluster.job("merge")
    assert merge.returncode == 1, merge.stdout + merge.stderr
    report = json.loads((cluster.volume / "results/report/report.json").read_text())
    assert [row["case"] for row in report["rows"] if row["class"] == "regression"] == ["adding2"]
    assert len({row["case"] for row in report["rows"]}) == 2
    shutil.rmtree(cluster.volume / "repository")


def pairs(volume: Path, shard: int) -> list[dict]:
    cases = json.loads((volume / f"results/shard-{shard}/results.json").read_text())["cases"]
    return [pair for case in cases for pair in case["pairs"]]
