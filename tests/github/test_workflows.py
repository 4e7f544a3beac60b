"""Faults of workflows that linters do not see: in this repository's, in `perfci init`'s, and in the examples'."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfci.model.publication import ACCEPT_LABEL
from perfci.system import pins
from tests.github.loopback.expressions import condition, text, value

pytestmark = pytest.mark.node  # expressions are evaluated by GitHub's own

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "src/perfci/cli/templates/perf.yml"
NIGHTLY = ROOT / "src/perfci/cli/templates/nightly.yml"
FILES = [
    TEMPLATE,
    NIGHTLY,
    *sorted([*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("examples/**/.github/workflows/*.yml")]),
]
ACTIONS = {
    "measure": (ROOT / "action.yml", re.compile(r"\./|org/perfci@\S+")),
    "publish": (ROOT / "publish/action.yml", re.compile(r"\./publish|org/perfci/publish@\S+")),
}
RELEASE = ".github/workflows/release.yml"
RELEASE_RIGHTS = {
    "image": {"attestations": "write", "contents": "read", "id-token": "write", "packages": "write"},
    "prove": {"contents": "read", "packages": "read"},
    "release": {"attestations": "write", "contents": "write", "id-token": "write", "packages": "write"},
}
NIGHTLY_RIGHTS = {"record": {"contents": "write"}, "alert": {"contents": "read", "issues": "write"}}
"""Of jobs of the nightly that run perfci alone."""
EVENTS = {
    "opened": {"pull_request": {"number": 5}, "action": "opened"},
    "accepted": {"pull_request": {"number": 5}, "action": "labeled", "label": {"name": ACCEPT_LABEL}},
    "accepted no more": {"pull_request": {"number": 5}, "action": "unlabeled", "label": {"name": ACCEPT_LABEL}},
    "labelled": {"pull_request": {"number": 5}, "action": "labeled", "label": {"name": "documentation"}},
    "retargeted": {"pull_request": {"number": 5}, "action": "edited", "changes": {"base": {"ref": {"from": "main"}}}},
    "edited": {"pull_request": {"number": 5}, "action": "edited", "changes": {"title": {"from": "A"}}},
    "closed": {"pull_request": {"number": 5}, "action": "closed"},
}


def load(path: Path) -> dict[str, Any]:
    """A document with all scalars as text: `on` is a word."""
    return yaml.load(path.read_text(), yaml.BaseLoader)


WORKFLOWS = {str(path.relative_to(ROOT)): load(path) for path in FILES}
each_workflow = pytest.mark.parametrize("name", WORKFLOWS)


def jobs(name: str) -> dict[str, dict[str, Any]]:
    return WORKFLOWS[name]["jobs"]


def events(name: str) -> dict[str, dict[str, Any]]:
    """Return the events that start a workflow, and what it says of them."""
    on = WORKFLOWS[name]["on"]
    return {event: found or {} for event, found in on.items()} if isinstance(on, dict) else {on: {}}


def steps(job: dict[str, Any], what: str = "") -> list[dict[str, Any]]:
    """A job's steps; of those only the ones that use our action `what`."""
    found = job.get("steps", [])
    return [step for step in found if ACTIONS[what][1].fullmatch(step.get("uses", ""))] if what else found


def beside(name: str, what: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, job and step of every use of our action `what` in the workflows of the same folder."""
    for other in WORKFLOWS:
        if Path(other).parent == Path(name).parent:
            for ident, job in jobs(other).items():
                for step in steps(job, what):
                    yield job.get("name", ident), job, step


def contexts(event: dict[str, Any], name: str = "pull_request", **variables: str) -> dict[str, Any]:
    github = {"event_name": name, "event": event, "repository": "org/perfci", "ref": "refs/heads/main"}
    return {"github": github, "vars": variables, "needs": {}}


NEEDED = {"outputs": {"shards": '["1/1"]'}}
"""Of a job that others need, what it leaves them."""


def runs(job: dict[str, Any], known: dict[str, Any], name: str = "") -> bool:
    """Tell whether a job runs where those of the workflow `name` that it needs passed or were skipped by their `if`."""
    needs = job.get("needs", [])
    needed = [needs] if isinstance(needs, str) else needs if name else []
    skipped = [one for one in needed if name and not runs(jobs(name)[one], known, name)]
    if skipped and not re.search(r"(always|cancelled|failure)\(\)", job.get("if", "")):
        return False
    return condition(job.get("if"), known | {"needs": {one: NEEDED for one in needed if one not in skipped}})


def documented(what: str) -> dict[str, str]:
    """The permissions that the head of our action `what` asks for."""
    found = re.search(r"permissions: (\{.*?\})", ACTIONS[what][0].read_text())
    assert found, "the action says what it needs"
    return yaml.safe_load(found[1])


def own_code(step: dict[str, Any]) -> bool:
    """Tell whether a step checks out what this run's workflow is of: on `workflow_run` the default branch."""
    return step.get("uses", "").startswith("actions/checkout@") and step["with"] == {"persist-credentials": "false"}


@each_workflow
def test_jobs_have_the_rights_that_the_actions_ask_for_and_no_others(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {}
    for ident, job in jobs(name).items():
        allowed = documented("publish" if steps(job, "publish") else "measure")
        if name == RELEASE:
            allowed = RELEASE_RIGHTS.get(ident, allowed)
        if WORKFLOWS[name]["name"] == "perf-nightly":
            allowed = NIGHTLY_RIGHTS.get(ident, allowed)
        assert job["permissions"] == allowed, ident


@each_workflow
def test_code_of_a_pull_request_meets_no_rights(name: str) -> None:
    """A job that may write, or that starts with the rights of the base repository, runs no code but perfci's own."""
    for job in jobs(name).values():
        if steps(job, "publish") or events(name).keys() & {"workflow_run", "pull_request_target"}:
            done = [step for step in steps(job) if not own_code(step)]
            assert done == steps(job, "publish"), "a publishing job does nothing else"


@each_workflow
def test_jobs_end_and_shells_get_no_expression(name: str) -> None:
    for job in jobs(name).values():
        assert "timeout-minutes" in job or "uses" in job
        assert not [step["run"] for step in steps(job) if "${{" in step.get("run", "")]
    for path, _ in ACTIONS.values():
        assert not [step["run"] for step in load(path)["runs"]["steps"] if "${{" in step.get("run", "")]


def test_every_action_of_others_has_one_pin_everywhere() -> None:
    """A full commit, and the version that it is: `actions/checkout@<40 hex digits> # v1.2.3`."""
    pins = defaultdict(set)
    for path in [*FILES, *(path for path, _ in ACTIONS.values())]:
        for whole, used in re.findall(r"^\s*(?:- )?uses: ((\S+).*)$", path.read_text(), re.MULTILINE):
            if not used.startswith(("./", "org/perfci", "acme/")):  # ours, and the reader's own in examples
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", whole), f"{path}: {whole}"
                pins[used.partition("@")[0]].add(whole)
    assert "actions/checkout" in pins
    assert {action: found for action, found in pins.items() if len(found) > 1} == {}


@each_workflow
def test_our_actions_are_given_inputs_that_they_have(name: str) -> None:
    for what, (path, _) in ACTIONS.items():
        for job in jobs(name).values():
            for step in steps(job, what):
                assert set(step.get("with", {})) <= set(load(path)["inputs"])


@each_workflow
def test_the_workflow_that_is_waited_for_exists(name: str) -> None:
    waited = events(name).get("workflow_run", {})
    names = {found["name"] for other, found in WORKFLOWS.items() if Path(other).parent == Path(name).parent}
    assert set(waited.get("workflows", [])) <= names
    assert not waited or list(beside(name, "publish"))


@each_workflow
def test_who_measures_leaves_the_verdict_to_who_publishes(name: str) -> None:
    """And who publishes hears of every job that measures, and of no other."""
    measuring, publishing = list(beside(name, "measure")), list(beside(name, "publish"))
    for _, _, step in measuring:
        assert step.get("with", {}).get("publish", "false") == ("true" if publishing else "false")
    for own, _, step in publishing:
        heard = step["with"]["jobs"]
        assert measuring and all(fnmatchcase(other, heard) for other, _, _ in measuring)
        assert not fnmatchcase(own, heard)


@each_workflow
def test_what_is_measured_is_checked_out_without_a_token_and_with_its_base(name: str) -> None:
    depths = {"pull_request": "2", "push": "0", "schedule": "0", "workflow_dispatch": "0"}
    started = [event for event in depths if event in events(name)] or ["pull_request"]  # who calls is not known here
    for job in jobs(name).values():
        if steps(job, "measure"):
            [checkout] = [step for step in steps(job) if step.get("uses", "").startswith("actions/checkout@")]
            assert checkout["with"]["persist-credentials"] == "false"
            for event in started:
                assert text(checkout["with"]["fetch-depth"], contexts({}, event)) == depths[event], event


@each_workflow
def test_what_leaves_the_code_as_it_is_measures_nothing_and_ends_no_measurement(name: str) -> None:
    """Events that accept a regression, and the end, are published; a workflow_run of its own does that where there is
    no such job."""
    unpublished = {"labelled", "edited"}
    for started in events(name).keys() & {"pull_request", "pull_request_target"}:
        heard = {said: contexts(event, started) for said, event in EVENTS.items() if of(event, events(name)[started])}
        for job in jobs(name).values():
            for said, known in heard.items() if steps(job, "measure") or steps(job, "publish") or "uses" in job else ():
                wanted = said not in unpublished if steps(job, "publish") else said in ("opened", "retargeted")
                assert runs(job, known, name) == wanted, said
        if started == "pull_request" and "edited" in heard:
            groups = {said: text(WORKFLOWS[name]["concurrency"]["group"], known) for said, known in heard.items()}
            ending = {"opened", "retargeted", "closed"} & set(groups)
            assert len({groups[said] for said in ending}) == 1, "these end what is measured"
            assert not [said for said in groups if said not in ending and groups[said] == groups["opened"]]


def of(event: dict[str, Any], started: dict[str, Any]) -> bool:
    """Tell whether a workflow that says this of an event starts on it."""
    return event["action"] in started.get("types", ["opened", "synchronize", "reopened"])


@each_workflow
def test_who_publishes_waits_for_who_publishes_of_the_same_head(name: str) -> None:
    """A job that waits ends one that waited before: never one that judges for one that holds up, or does nothing."""
    if "workflow_run" not in events(name):
        return
    assert "concurrency" not in WORKFLOWS[name], "of a job that is skipped it does not count"
    run = {"action": "completed", "workflow_run": {"head_branch": "a", "head_repository": {"full_name": "b/c"}}}
    head = {"head": {"ref": "a", "repo": {"full_name": "b/c"}}, "number": 5}
    twins = [{"head": {"ref": ref, "repo": {"full_name": of}}} for of, ref in (("s/k-a", "b"), ("s/k", "a-b"))]
    for job in jobs(name).values():
        opened = [EVENTS["opened"] | {"pull_request": one} for one in twins]
        groups = [text(job["concurrency"]["group"], contexts(one, "pull_request_target")) for one in opened]
        assert groups[0] != groups[1]
        published = text(job["concurrency"]["group"], contexts(run, "workflow_run"))
        for said, event in EVENTS.items():
            known = contexts(event | {"pull_request": head}, "pull_request_target")
            if runs(job, known):
                same = text(job["concurrency"]["group"], known) == published
                assert same == (said in ("accepted", "accepted no more")), said


def test_make_has_what_workflows_and_scripts_ask_for() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    scripts = [step.get("run", "") for name in WORKFLOWS for job in jobs(name).values() for step in steps(job)]
    scripts.append((ROOT / ".ci/run").read_text())
    asked = set(re.findall(r"(?:^|&& |\.ci/bare )make (?:-C \S+ )?([a-z-]+)", "\n".join(scripts), re.MULTILINE))
    assert {"check", "test", "test-all", "test-docker", "test-gpu", "dist", "image"} <= asked <= targets


def test_a_fork_gets_no_runner_of_ours() -> None:
    job = jobs(".github/workflows/perf.yml")["measure"]
    for head, runner in (("org/perfci", ["self-hosted", "gpu"]), ("fork/perfci", "ubuntu-latest")):
        event = {"pull_request": {"head": {"repo": {"full_name": head}}}}
        known = contexts(event, PERFCI_GPU_RUNNER='["self-hosted", "gpu"]')
        assert value(job["runs-on"], known) == runner
    assert value(job["runs-on"], contexts({}, "push")) == "ubuntu-latest"  # no variable, no runner


def test_a_release_was_seen_to_work_on_a_gpu() -> None:
    """Neither a runner that is not there nor a condition skips the test: a release without it fails."""
    release = jobs(RELEASE)
    assert set(release["release"]["needs"]) == {"build", "gpu-selftest", "image", "prove"}
    assert set(release["image"]["needs"]) == {"build", "gpu-selftest"} and release["prove"]["needs"] == "image"
    assert release["gpu-selftest"]["uses"] == "./.github/workflows/gpu-selftest.yml"
    assert not any("if" in job for job in release.values())
    selftest = jobs(".github/workflows/gpu-selftest.yml")
    assert "workflow_call" in WORKFLOWS[".github/workflows/gpu-selftest.yml"]["on"]
    assert all(runs(job, contexts({}, "push")) for job in selftest.values())
    assert not runs(selftest["runner"], contexts({}, "schedule"))
    tests = [step for job in selftest.values() for step in steps(job) if "make " in step.get("run", "")]
    assert len(tests) == len(selftest) and all(step["env"]["PYTEST_ADDOPTS"] == "--must-run=gpu" for step in tests)


def test_the_docker_tests_of_ci_may_not_skip() -> None:
    """The other jobs of it have no Docker Engine."""
    job = jobs(".github/workflows/ci.yml")["docker"]
    engine, tests = [step for step in steps(job) if "run" in step]
    assert engine["run"] == "sudo .ci/docker" and tests["run"] == "make test-docker"
    assert tests["env"]["PYTEST_ADDOPTS"] == "--must-run=docker"


IMAGE = "ghcr.io/org/perfci@sha256:" + "5" * 64
DOCKER = """#!/bin/sh
printf '%s\\n' "docker $*" >>"$RUNNER_TEMP/asked"
[ "$1" != login ] || cat >"$RUNNER_TEMP/token"
while [ $# -gt 1 ]; do
    [ "$1" != --metadata-file ] || echo '{"containerimage.digest": "sha256:DIGEST"}' >"$2"
    shift
done
""".replace("DIGEST", "5" * 64)


def played(job: str, variant: str, publish: str, folder: Path) -> str:
    """Return what a job of the release asks of Docker, with `org/Perfci` as the repository; its steps run in `folder`.

    Docker, make, and what proves an image, stand in for themselves: only who they are called by is checked.
    """
    known = contexts({}, "push", PERFCI_PUBLISH_IMAGES=publish) | {"matrix": {"variant": variant}}
    known["github"]["token"] = "t0ken"
    programs = folder / "bin"
    for path, text_ in (
        (programs / "docker", DOCKER),
        (programs / "make", '#!/bin/sh\necho "make $*" >>"$RUNNER_TEMP/asked"\n'),
        (programs / "sudo", "#!/bin/sh\n"),
        (folder / ".ci/prove-image", '#!/bin/sh\necho "prove-image $*" >>"$RUNNER_TEMP/asked"\n'),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_)
        path.chmod(0o755)
    env = os.environ | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(folder / "output"), "GITHUB_REPOSITORY": "org/Perfci",
        "GITHUB_SHA": "a" * 40, "GITHUB_REF_NAME": "v1.2.3", "GITHUB_ACTOR": "somebody",
    }  # fmt: skip
    for step in steps(jobs(RELEASE)[job]):
        if "pip install" in step.get("run", "") or "gh release" in step.get("run", ""):
            continue  # perfci is here, and GitHub is not
        if "run" in step and condition(step.get("if"), known):
            given = {key: text(one, known) for key, one in step.get("env", {}).items()}
            subprocess.run(["bash", "-e", "-c", step["run"]], cwd=folder, env=env | given, check=True)
    return (folder / "asked").read_text() if (folder / "asked").exists() else ""


NVIDIA = [name for name, one in pins.variants().items() if one.base.startswith("nvidia/")]


@pytest.mark.parametrize(("publish", "variant"), [*zip(["true", "True", "", "false"], cycle(NVIDIA), strict=False)])
def test_an_image_is_built_from_the_pins_and_pushed_only_where_the_variable_says_so(
    variant: str, publish: str, tmp_path: Path
) -> None:
    job = jobs(RELEASE)["image"]
    assert variant in job["strategy"]["matrix"]["variant"]
    asked = played("image", variant, publish, tmp_path)
    [built] = [line for line in asked.splitlines() if line.startswith("docker buildx build")]
    for key, one in pins.variant(variant).arguments(variant).items():
        assert f" --build-arg {key}={one} " in f"{built} "
    assert f"REVISION={'a' * 40} --provenance=mode=max --sbom=true" in built
    others = [step for step in steps(job) if "docker login" in str(step) or "actions/attest" in str(step)]
    assert len(others) == 2 and all(step["if"] == "vars.PERFCI_PUBLISH_IMAGES == 'true'" for step in others)
    if publish.lower() == "true":  # as GitHub compares
        assert "push=true" in built and (tmp_path / "token").read_text() == "t0ken\n"
        assert "--output type=image,name=ghcr.io/org/perfci,push-by-digest=true" in built
        assert (tmp_path / f"{variant}.txt").read_text() == f"{variant} {IMAGE}\n"
        outputs = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
        assert f"{outputs['name']}@{outputs['digest']}" == IMAGE
    else:
        assert "push" not in asked and "login" not in asked and "--output type=cacheonly" in built
        assert not (tmp_path / f"{variant}.txt").exists() and not (tmp_path / "output").exists()


def test_an_image_that_did_not_build_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DOCKER", "#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        played("image", "cuda13", "", tmp_path)


def test_what_was_pushed_is_what_is_proven_and_named(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    for variant in ("cuda12", "cuda13"):
        (tmp_path / f"{variant}.txt").write_text(f"{variant} {IMAGE}\n")
    assert played("prove", "cuda12", "true", tmp_path).splitlines() == [
        "docker login ghcr.io --username somebody --password-stdin",
        f"docker pull --quiet {IMAGE}",
        f"docker tag {IMAGE} perfci:cuda12",
        "prove-image cuda12",
    ]
    (tmp_path / "asked").unlink()
    assert played("release", "", "true", tmp_path).splitlines()[1:] == [
        f"docker buildx imagetools create --tag ghcr.io/org/perfci:1.2.3-{variant} --tag ghcr.io/org/perfci:{variant} {IMAGE}"
        for variant in ("cuda12", "cuda13")
    ]
    assert (tmp_path / "dist/images.txt").read_text() == f"cuda12 {IMAGE}\ncuda13 {IMAGE}\n"


def test_what_was_not_pushed_is_proven_where_it_is_built(tmp_path: Path) -> None:
    assert played("prove", "cuda13", "", tmp_path) == "make image VARIANT=cuda13\nprove-image cuda13\n"
    assert played("release", "", "", tmp_path / "release") == ""


CHANGELOG = "# Changelog\n\n## Unreleased\n\n- Later.\n\n## 1.2.3 (2026-01-02)\n\n- This.\n\n## 1.2.2\n\n- Before.\n"


@pytest.mark.parametrize(
    ("tag", "said"),
    [("v1.2.3", ""), ("v1.2.2", "its version is not 1.2.2"), ("v1.2.4", "has nothing under '## 1.2.4'")],
)
def test_a_release_has_the_version_of_its_tag_and_notes(tag: str, said: str, tmp_path: Path) -> None:
    [script] = [step["run"] for step in steps(jobs(RELEASE)["build"]) if "awk" in step.get("run", "")]
    (tmp_path / "dist").mkdir()
    for version in ("1.2.3", "1.2.4"):
        (tmp_path / f"dist/perfci-{version}.tar.gz").touch()
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    env = os.environ | {"GITHUB_REF_NAME": tag}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=env, check=False, stdout=subprocess.PIPE, text=True
    )
    assert (done.returncode != 0) == bool(said) and said in done.stdout
    assert said or (tmp_path / "notes.md").read_text().strip() == "- This."


# The machine at hand may have none; CI does, and passes --must-run=node.
@pytest.mark.skipif(not (ROOT / "node_modules").is_dir(), reason="no node_modules here: install Node.js with npm")
@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("perf.yml", " github.event.", " githob.event.", "Unrecognized named-value: 'githob'"),
        pytest.param("perf.yml", "runs-on:", "run-on:", "Unexpected value 'run-on'", marks=pytest.mark.slow),
        ("action.yml", "using: composite", "using: composit", "composit"),
    ],
)
def test_check_says_what_github_refuses(name: str, before: str, after: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    source = TEMPLATE if name == TEMPLATE.name else ROOT / name
    faulty = source.read_text().replace(before, after, 1)
    assert faulty != source.read_text()
    path.write_text(faulty)
    scripts = ROOT / "tests/github"
    command = ["node", "--import", str(scripts / "json.mjs"), str(scripts / "workflows.mjs"), str(source), str(path)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 1 and said in done.stdout and str(source) not in done.stdout


def test_the_example_of_a_nightly_is_what_init_writes() -> None:
    assert (ROOT / "examples/nightly/.github/workflows/perf-nightly.yml").read_text() == NIGHTLY.read_text()


def test_what_runs_main_in_a_night_meets_no_store_and_what_meets_it_runs_perfci_alone() -> None:
    text = NIGHTLY.read_text()
    for ident, job in load(NIGHTLY)["jobs"].items():
        [checkout] = [step for step in steps(job) if step.get("uses", "").startswith("actions/checkout@")]
        commands = "".join(step.get("run", "") for step in steps(job))
        if "self-hosted" in job["runs-on"]:
            assert job["permissions"] == {"contents": "read"} and checkout["with"]["persist-credentials"] == "false"
            assert "$STORE" not in commands and "secrets." not in text
        else:
            assert not re.search(r"history measure|calibrate|make |python3? (?!-I -m venv)", commands), ident
