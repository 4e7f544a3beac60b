"""Workflows and actions as they stand, on a runner that nobody here wrote: act, without Docker, against the test GitHub.

Others' actions have stand-ins at their pinned commit, which do what those do as far as our workflows use them. Of what
act does not know (conditions on activity types, rights of a token) as little as there is to know is here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml

from tests.github.loopback.server import REPOSITORY, GitHub, Pull, Run

TOKEN = "t0ken"
OWN = "org/perfci@v1"
"""How workflows for users name the repository of the actions."""
RUNNERS = ("ubuntu-latest", "self-hosted", "gpu", "h100", "a100", "perf-gpu")
ACT = Path(sys.executable).parent / "act"
CHECKOUT = """
    name: checkout
    inputs:
      fetch-depth: {default: "1"}
      persist-credentials: {default: "true"}
      submodules: {default: "false"}
    runs:
      using: composite
      steps:
        - shell: bash
          env:
            DEPTH: ${{ inputs.fetch-depth }}
            PERSIST: ${{ inputs.persist-credentials }}
            SUBMODULES: ${{ inputs.submodules }}
          run: |
            known=${GITHUB_REF/refs\\/pull/refs\\/remotes\\/pull}; known=${known/refs\\/heads/refs\\/remotes\\/origin}
            what=("+$GITHUB_SHA:$known"); some=("--depth=$DEPTH")
            if [[ $DEPTH == 0 ]]; then some=(); what+=("+refs/tags/*:refs/tags/*"); fi
            [[ $DEPTH != 0 || $GITHUB_REF == refs/heads/* ]] || what+=("+refs/heads/*:refs/remotes/origin/*")
            git init -q . && git remote add origin "file://$STANDIN_REMOTE"
            git -c protocol.file.allow=always fetch -q --no-tags --prune --no-recurse-submodules "${some[@]}" origin \\
              "${what[@]}"
            git checkout -q --force --detach "$known"
            [[ $SUBMODULES == false ]] || git -c protocol.file.allow=always submodule update --init --recursive
            if [[ $PERSIST == true ]]; then # since v6 in a file of its own, which a condition includes
              secret="$RUNNER_TEMP/git-credentials-1.config"
              printf '[http "https://github.com/"]\\n\\textraheader = AUTHORIZATION: basic %s\\n' "$STANDIN_SECRET" >"$secret"
              git config --local "includeIf.gitdir:$PWD/.git.path" "$secret"
            fi
            [[ ! $STANDIN_PREPARE ]] || bash -c "$STANDIN_PREPARE"
"""
UPLOAD = """
    name: upload
    inputs: {name: {}, path: {}, retention-days: {}, if-no-files-found: {}}
    outputs:
      artifact-url: {value: "${{ steps.put.outputs.url }}"}
    runs:
      using: composite
      steps:
        - id: put
          shell: bash
          env: {NAME: "${{ inputs.name }}", FOLDER: "${{ inputs.path }}", MISSING: "${{ inputs.if-no-files-found }}"}
          run: |
            [[ $NAME && ! $NAME =~ [\\"$'\\r'$'\\n':\\<\\>\\|*?\\\\/] ]] || { echo "::error::The artifact name is not valid: $NAME"; exit 1; }
            to="$STANDIN_INBOX/$GITHUB_RUN_ID--$NAME.zip"
            [[ ! -e $to ]] || { echo "::error::an artifact with this name already exists: $NAME"; exit 1; }
            cd "$FOLDER"
            if [[ ! $(find . -type f -not -path '*/.*' -print -quit) ]]; then
              [[ $MISSING != error ]] || { echo "::error::No files were found with the provided path: $FOLDER"; exit 1; }
              exit 0
            fi
            find . -type f -not -path '*/.*' -printf '%P\\n' | "$STANDIN_PYTHON" -c '
            import sys, zipfile
            with zipfile.ZipFile(sys.argv[1] + ".part", "w", zipfile.ZIP_DEFLATED) as archive:
                for line in sys.stdin:
                    archive.write(line.rstrip("\\n"))
            ' "$to"
            mv "$to.part" "$to"
            echo "url=https://github.com/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID/artifacts/1" >>"$GITHUB_OUTPUT"
"""
DOWNLOAD = """
    name: download
    inputs: {name: {}, pattern: {}, path: {}}
    runs:
      using: composite
      steps:
        - shell: bash
          env: {NAME: "${{ inputs.name }}", PATTERN: "${{ inputs.pattern }}", FOLDER: "${{ inputs.path }}"}
          run: |
            [[ ! $NAME || -e $STANDIN_INBOX/$GITHUB_RUN_ID--$NAME.zip ]] || { echo "::error::Artifact not found for name: $NAME"; exit 1; }
            mkdir -p "$FOLDER"
            for file in "$STANDIN_INBOX/$GITHUB_RUN_ID--"*.zip; do
              name=${file##*/$GITHUB_RUN_ID--}; name=${name%.zip}
              if [[ $NAME ]]; then [[ $name == "$NAME" ]] || continue; to=$FOLDER # of one name into the folder itself
              else [[ $name == $PATTERN ]] || continue; to=$FOLDER/$name; fi
              "$STANDIN_PYTHON" -m zipfile -e "$file" "$to"
            done
"""


class NotKnown(Exception):
    """The workflow does not run on the event."""


@dataclass
class Command:
    """A workflow command that the runner took from a step's log."""

    name: str
    properties: dict[str, str]
    data: str


@dataclass
class Job:
    """A job's outcome, and what it left."""

    name: str
    result: str = "skipped"
    log: str = ""
    """All that its steps printed."""
    commands: list[Command] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name of a step of the workflow → its outputs."""
    expanded: bool = False
    """It is the matrix of other jobs, and none itself."""

    def said(self, *names: str) -> list[Command]:
        return [one for one in self.commands if one.name in names]


@dataclass
class Machine:
    """The account, its remote repository and the runners' disk."""

    hub: GitHub
    remote: Path
    """The repository that actions/checkout fetches from."""
    folder: Path
    actions: Path
    """The repository of the actions, as the runner has downloaded it."""
    env: Mapping[str, str]
    """The environment of any process on the runner."""
    called: dict[str, str] = field(default_factory=dict)
    """Path in the repository → workflow on its default branch that others call."""
    prepare: str = ""
    """A script that runs in the workspace after each checkout."""
    runs: int = 100

    def deliver(
        self, workflow: str, event: str, payload: dict[str, Any], pull: Pull | None = None, attempt: int = 1
    ) -> dict[str, Job]:
        """Run the jobs of a workflow for an event, as a new run of it, or as another `attempt` at the last one. By the
        job's id, of a matrix with its values behind it."""
        flow = yaml.safe_load(workflow)
        trigger = flow.get("on", flow.get(True)).get(event, NotKnown)  # in YAML 1.1 `on` is true
        if trigger is NotKnown or payload.get("action") not in (trigger or {}).get("types", [payload.get("action")]):
            raise NotKnown(f"the workflow does not run on {event} {payload.get('action')}")
        self.runs += attempt == 1
        at_head = pull is not None and event == "pull_request"
        known = pull if at_head and pull is not None else Pull(0, self.git("rev-parse", "main"), head_ref="main")
        jobs = {ident: Job(self._shown(ident, spec)) for ident, spec in flow["jobs"].items()}
        run = self.hub.run(
            self.runs, known.head, branch=known.head_ref, event=event, head_repository=known.head_repository,
            attempt=attempt, conclusion=None, jobs={job.name: None for job in jobs.values()},
        )  # fmt: skip
        # One token for a whole run, as far as act goes: what measures asks the API for nothing.
        rights = next((job.get("permissions") for job in flow["jobs"].values() if _publishes(job)), {})
        fork = at_head and known.head_repository != REPOSITORY
        self.hub.granted = {one: "read" if fork else right for one, right in rights.items()}
        where = self.folder / f"{self.runs}-{attempt}"
        self._check_out(where, f"refs/pull/{known.number}/merge" if at_head else "main", workflow)
        self._run(where, event, payload, jobs, run)
        self.hub.granted = None
        results = [job.result for job in jobs.values()]
        run.conclusion = next((one for one in ("failure", "success") if one in results), "skipped")
        return jobs

    def _shown(self, ident: str, spec: dict[str, Any]) -> str:
        """A job's name as GitHub lists it."""
        name = str(spec.get("name", ident))
        if "uses" not in spec:
            return name
        path = spec["uses"].split("@")[0].split("/", 2)[2]
        [(inner, job)] = yaml.safe_load(self.called[path])["jobs"].items()
        return f"{name} / {job.get('name', inner)}"

    def _check_out(self, where: Path, ref: str, workflow: str) -> None:
        """Make a repository whose HEAD is what the run is of, with the workflow: act reads both there."""
        self.git("init", "-q", str(where))
        self.git("fetch", "-q", f"file://{self.remote}", ref, cwd=where)
        self.git("update-ref", "--no-deref", "HEAD", "FETCH_HEAD", cwd=where)
        self.git("remote", "add", "origin", f"https://github.com/{REPOSITORY}", cwd=where)
        file = where / ".github" / "workflows" / "flow.yml"
        file.parent.mkdir(parents=True)
        file.write_text(workflow)

    def _run(self, where: Path, event: str, payload: dict[str, Any], jobs: dict[str, Job], run: Run) -> None:
        inbox, cache, home = (self.folder / name for name in ("inbox", "cache", "home"))
        for folder in (inbox, cache, home):
            folder.mkdir(exist_ok=True)
        self.hub.inbox = inbox
        file = where.with_suffix(".json")
        file.write_text(json.dumps({"number": payload.get("pull_request", {}).get("number"), **payload}))
        given = {
            **self.env, "CI": "true", "HOME": str(home), "GITHUB_RUN_ID": str(run.id), "GITHUB_API_URL": self.hub.api,
            "STANDIN_REMOTE": str(self.remote), "STANDIN_INBOX": str(inbox), "STANDIN_PYTHON": sys.executable,
            "STANDIN_SECRET": TOKEN, "STANDIN_PREPARE": self.prepare, "GITHUB_RUN_ATTEMPT": str(run.attempt),
        }  # fmt: skip
        words = [str(ACT), event, "--json", f"--eventpath={file}", "--no-skip-checkout", f"--action-cache-path={cache}"]
        words += [f"--platform={one}=-self-hosted" for one in RUNNERS] + [f"--secret=GITHUB_TOKEN={TOKEN}"]
        words += [f"--env={name}={value}" for name, value in given.items()]
        words += [f"--local-repository={one}" for one in (f"{OWN}={self.actions}", *self._stand_ins())]
        process = subprocess.Popen(
            words, cwd=where, env={**os.environ, **given}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if line.startswith("{"):
                _heard(json.loads(line), jobs, run.jobs)
        process.wait()
        for ident in [ident for ident, job in jobs.items() if job.expanded]:
            del jobs[ident]
        for job in jobs.values():
            run.jobs[job.name] = job.result
        assert any(job.result != "skipped" for job in jobs.values()) or not process.returncode, "".join(seen)

    def _stand_ins(self) -> list[str]:
        """Others' actions, each by name, pinned commit and folder; and the reader's own workflows."""
        made = []
        others = {"checkout": CHECKOUT, "upload-artifact": UPLOAD, "download-artifact": DOWNLOAD}
        for name, text in ((f"actions/{name}", text) for name, text in others.items()):
            folder = self.folder / "actions" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "action.yml").write_text(dedent(text))
            pins = set(re.findall(rf"uses: {name}@([0-9a-f]{{40}})", PINNED))
            made += [f"{name}@{pin}={folder}" for pin in pins]
        own = self.folder / "own"
        for path, text in self.called.items():
            (own / path).parent.mkdir(parents=True, exist_ok=True)
            (own / path).write_text(text)
        return [*made, f"acme/kernels@main={own}"] if self.called else made

    def git(self, *args: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *args],
            cwd=cwd or self.remote, env={**self.env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"git {args}: {done.stderr}"
        return done.stdout.strip()


ROOT = Path(__file__).parents[3]
PINNED = "".join(path.read_text() for path in [ROOT / "action.yml", *ROOT.glob("src/perfci/cli/templates/*.yml")])
"""Where actions of others are named: the same commit everywhere."""


def _publishes(job: dict[str, Any]) -> bool:
    """Tell whether a job asks the API for anything: with the publishing action, with `publish: here`, or for issues."""
    steps = job.get("steps", [])
    issues = any("history alert" in step.get("run", "") for step in steps)
    return issues or any(
        "/publish@" in step.get("uses", "") or step.get("with", {}).get("publish") == "here" for step in steps
    )


def _heard(line: dict[str, Any], jobs: dict[str, Job], told: dict[str, str | None]) -> None:
    """One line of act's log."""
    ident, values = line.get("jobID", ""), line.get("matrix") or {}
    of = " ".join([ident, *map(str, values.values())])
    if of not in jobs and ident in jobs:  # the first that is heard of a job in a matrix
        shown = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: str(values[found[1]]), jobs[ident].name)
        jobs[of] = Job(shown)
        jobs[ident].expanded = True
        told.pop(jobs[ident].name, None)
        told[shown] = None
    job = jobs.get(of)
    if job is None:
        return
    if line.get("raw_output"):
        job.log += line["msg"]
    elif line.get("command") == "set-output" and len(line["stepID"]) == 1:
        job.outputs.setdefault(line["step"], {})[line["name"]] = line["arg"]
    elif line.get("command") == "summary":
        if line["content"] not in job.summaries:  # of a composite action it is told twice
            job.summaries.append(line["content"])
    elif "command" in line and "raw" in line:
        job.log += line["raw"]
        job.commands.append(Command(line["command"], line.get("kvPairs") or {}, line.get("arg", "")))
    if "jobResult" in line:
        job.result = line["jobResult"]
        told[job.name] = job.result


def copy_actions(folder: Path, root: Path, start: str = "") -> Path:
    """The repository of the actions as the runner downloads it; `start` takes the place of the script that installs."""
    for name in ("action.yml", "publish/action.yml", "action/start", "action/requirements.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / name)
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    if start:
        (folder / "action" / "start").write_text(start)
    return folder
