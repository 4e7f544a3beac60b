"""A runner of GitHub Actions on this machine: workflows and composite actions as they stand, in real processes.

What is not known raises, so that no workflow here says what only this runner takes. Third-party actions are doubles that
do what those do (DOUBLES).
"""

import io
import json
import os
import re
import shutil
import subprocess
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.github.expressions import STATUS, condition, template, text
from tests.github.server import REPOSITORY, GitHub, Pull, Run

TOKEN = "t0ken"
OWN = "org/perfci"
"""How workflows for users name the repository of the actions."""
LARGEST_FILE = 1 << 20
"""Of GITHUB_STEP_SUMMARY and GITHUB_OUTPUT (actions/runner, FileCommandManager.cs; GitHub's documentation, "Usage limits")."""
_COMMAND = re.compile(r"::(?P<name>[\w-]+)(?: (?P<properties>.*?))?::(?P<data>.*)", re.DOTALL)
_OLD_COMMAND = re.compile(r"##\[(?P<name>[\w-]+)(?: (?P<properties>[^\]]*))?\](?P<data>.*)", re.DOTALL)
_COMMANDS = ("error", "warning", "notice", "debug", "group", "endgroup", "add-mask", "set-output", "stop-commands")
_STEP = {"name", "id", "if", "uses", "run", "with", "env", "shell", "continue-on-error", "working-directory"}
_JOB = {"name", "needs", "if", "runs-on", "timeout-minutes", "permissions", "steps", "env", "concurrency"}
_WORKFLOW = {"name", "on", True, "permissions", "concurrency", "jobs", "env"}
_SHELLS = {None: ["bash", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}


class NotKnown(Exception):
    """Something in a workflow or an action that this runner does not do."""


@dataclass
class Step:
    """What became of a step."""

    name: str
    outcome: str
    """`success`, `failure` or `skipped`."""
    conclusion: str
    """The same after `continue-on-error`."""
    outputs: dict[str, str]


@dataclass
class Command:
    """A workflow command that the runner took from a step's log."""

    name: str
    properties: dict[str, str]
    data: str


@dataclass
class Job:
    """What became of a job, and what it left."""

    name: str
    result: str = "success"
    steps: list[Step] = field(default_factory=list)
    log: str = ""
    """All that its steps printed, with nothing masked."""
    commands: list[Command] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    workspace: Path = Path()

    def outputs(self, name: str) -> dict[str, str]:
        """Of the step that has this name."""
        [step] = [one for one in self.steps if one.name == name]
        return step.outputs

    def said(self, *names: str) -> list[Command]:
        return [one for one in self.commands if one.name in names]


@dataclass
class Machine:
    """The account, its remote repository and the runners' disk."""

    hub: GitHub
    remote: Path
    """What actions/checkout fetches from."""
    folder: Path
    actions: Path
    """The repository of the actions, as the runner has downloaded it."""
    env: Mapping[str, str]
    """What any process on the runner finds set."""
    called: dict[str, str] = field(default_factory=dict)
    """Path in the repository → workflow on its default branch that others call."""
    prepare: Callable[[Path], None] | None = None
    """Called with the workspace after each checkout."""
    runs: int = 100

    def deliver(self, workflow: str, event: str, payload: dict[str, Any], pull: Pull | None = None) -> dict[str, Job]:
        """Run the jobs of a workflow for an event, as a new run of it. By the job's id."""
        flow = yaml.safe_load(workflow)
        _only(flow, _WORKFLOW, "workflow")
        trigger = _triggers(flow).get(event, NotKnown)
        if trigger is NotKnown or payload.get("action") not in (trigger or {}).get("types", [payload.get("action")]):
            raise NotKnown(f"the workflow does not run on {event} {payload.get('action')}")
        specs = list(self.jobs(flow))
        self.runs += 1
        main = self.git("rev-parse", "main")
        at_head = pull is not None and event == "pull_request"
        known = pull if at_head and pull is not None else Pull(0, main, head_ref="main")
        run = self.hub.run(
            self.runs, known.head, branch=known.head_ref, event=event, head_repository=known.head_repository,
            conclusion=None, jobs={name: None for name, _, _ in specs},
        )  # fmt: skip
        names = {
            "repository": REPOSITORY, "repository_owner": REPOSITORY.split("/")[0], "event_name": event, "run_id": str(run.id),
            "run_attempt": "1", "server_url": "https://github.com", "api_url": self.hub.api, "workflow": flow["name"],
            "sha": self.git("rev-parse", f"refs/pull/{known.number}/merge") if at_head else main,
            "ref": f"refs/pull/{known.number}/merge" if at_head else "refs/heads/main",
            "head_ref": known.head_ref if at_head else "", "base_ref": known.base_ref if at_head else "",
        }  # fmt: skip
        github = names | {"event": payload, "token": TOKEN}
        template([flow.get("concurrency"), flow.get("permissions")], {"github": github})
        jobs: dict[str, Job] = {}
        for name, ident, spec in specs:
            needs = [spec["needs"]] if isinstance(spec.get("needs"), str) else spec.get("needs", [])
            results = [jobs[one].result for one in needs]  # raises where a job stands before one that it needs
            status = _status("failure" if "failure" in results else "success")
            if "skipped" in results:
                status["success"] = lambda: False
            job = jobs[ident] = Job(name)
            contexts = {"github": github, "needs": {one: {"result": jobs[one].result} for one in needs}}
            if condition(spec.get("if"), contexts, status):
                rights = spec.get("permissions", flow.get("permissions"))
                if not isinstance(rights, dict):
                    raise NotKnown(f"job {name}: says not which permissions it has")
                fork = at_head and known.head_repository != REPOSITORY
                self.hub.granted = {one: "read" if fork else right for one, right in rights.items()}
                _JobRunner(self, run, job, ident, names, contexts).run(spec)
                self.hub.granted = None
            else:
                job.result = "skipped"
            run.jobs[name] = job.result
        results = [job.result for job in jobs.values()]
        run.conclusion = next((one for one in ("failure", "success") if one in results), "skipped")
        return jobs

    def jobs(self, flow: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The name, the id and the text of each job; of one in a workflow that this one calls, its caller's name first."""
        for ident, spec in flow["jobs"].items():
            if "uses" not in spec:
                _only(spec, _JOB, f"job {ident}")
                yield spec.get("name", ident), ident, spec
                continue
            _only(spec, {"name", "uses", "if", "needs", "permissions"}, f"job {ident}")
            owner, name, path = spec["uses"].split("@")[0].split("/", 2)
            inner = yaml.safe_load(self.called[path])
            _only(inner, _WORKFLOW, path)
            if "workflow_call" not in _triggers(inner):
                raise NotKnown(f"{owner}/{name}: {path} is not to be called")
            for one, job in inner["jobs"].items():
                _only(job, _JOB - {"if", "needs"}, f"job {one} of {path}")
                if not job["permissions"].items() <= spec["permissions"].items():
                    raise NotKnown(f"job {one} of {path}: asks for more than its caller may")
                shown = f"{spec.get('name', ident)} / {job.get('name', one)}"
                yield shown, one, job | {key: spec[key] for key in ("if", "needs") if key in spec}

    def git(self, *args: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *args],
            cwd=cwd or self.remote, env={**self.env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"git {args}: {done.stderr}"
        return done.stdout.strip()


class _JobRunner:
    """One job on a fresh runner."""

    def __init__(
        self, machine: Machine, run: Run, job: Job, ident: str, names: dict[str, str], contexts: dict[str, Any]
    ) -> None:
        self.machine, self.run_, self.job = machine, run, job
        self.folder = machine.folder / f"{run.id}-{ident}"
        job.workspace = self.folder / "work" / "kernels"
        self.temp = self.folder / "temp"
        for folder in (job.workspace, self.temp, self.folder / "home"):
            folder.mkdir(parents=True)
        event = self.folder / "event.json"
        event.write_text(json.dumps(contexts["github"]["event"]))
        self.base = {
            **machine.env, "HOME": str(self.folder / "home"), "TMPDIR": str(self.temp), "CI": "true", "GITHUB_ACTIONS": "true",
            "RUNNER_TEMP": str(self.temp), "RUNNER_OS": "Linux", "GITHUB_WORKSPACE": str(job.workspace), "GITHUB_JOB": ident,
            "GITHUB_EVENT_PATH": str(event), **{f"GITHUB_{name.upper()}": value for name, value in names.items()},
        }  # fmt: skip
        self.github = contexts["github"] | {"workspace": str(job.workspace), "job": ident}
        self.contexts = contexts | {
            "github": self.github, "matrix": None, "strategy": {"job-index": 0, "job-total": 1, "fail-fast": True},
            "runner": {"temp": str(self.temp), "os": "Linux"}, "job": {"status": "success"}, "inputs": {},
        }  # fmt: skip
        self.more: dict[str, str] = {}
        """The job's `env`, and what steps wrote into GITHUB_ENV."""
        self.paths: list[str] = []

    def run(self, spec: dict[str, Any]) -> None:
        self.more = template(spec.get("env", {}), self.contexts)
        template([spec["runs-on"], spec.get("timeout-minutes"), spec.get("concurrency")], self.contexts)
        self.job.result, _ = self.steps(spec["steps"], self.contexts, {}, self.job.steps, composite=None)

    def steps(
        self, specs: list[dict[str, Any]], contexts: dict[str, Any], env: Mapping[str, str], done: list[Step],
        composite: Path | None,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        """The steps of a job, or of a composite action that lies in a folder. Their conclusion and the context `steps`."""
        result, steps = "success", {}
        for spec in specs:
            _only(spec, _STEP, "step")
            contexts = contexts | {"steps": steps, "env": {**self.more, **env}}
            step = Step(spec.get("name") or spec.get("uses") or "run", "skipped", "skipped", {})
            done.append(step)
            if condition(spec.get("if"), contexts, _status(result)):
                own = {**env, **{name: text(one) for name, one in template(spec.get("env", {}), contexts).items()}}
                runs = self.shell if "run" in spec else self.action
                fine, outputs = runs(spec, contexts, own, composite, done)
                step.outputs = outputs
                step.outcome = step.conclusion = "success" if fine else "failure"
                if not fine and template(spec.get("continue-on-error", False), contexts) is True:
                    step.conclusion = "success"
            if "id" in spec:
                steps[spec["id"]] = {
                    "outputs": step.outputs, "outcome": step.outcome, "conclusion": step.conclusion,
                }  # fmt: skip
            if step.conclusion == "failure":
                result = "failure"
        return result, steps

    def shell(
        self, spec: dict[str, Any], contexts: dict[str, Any], env: Mapping[str, str], composite: Path | None, _: Any
    ) -> tuple[bool, dict[str, str]]:
        """A step that is a script."""
        shell = spec.get("shell")
        if composite is not None and shell is None:
            raise NotKnown("a script of a composite action must name its shell")
        script = self.temp / f"{uuid.uuid4()}.sh"
        script.write_text(template(spec["run"], contexts))
        files = {name: self.temp / f"{name}_{uuid.uuid4()}" for name in ("OUTPUT", "ENV", "PATH", "STATE", "STEP_SUMMARY")}  # fmt: skip
        for file in files.values():
            file.touch()
        whole = {**self.base, **self.more, **env, **{f"GITHUB_{name}": str(file) for name, file in files.items()}}
        if composite is not None:
            whole |= {"GITHUB_ACTION_PATH": str(composite)}
        whole["PATH"] = os.pathsep.join([*reversed(self.paths), whole["PATH"]])
        process = subprocess.run(
            [*_SHELLS[shell], str(script)], cwd=self.job.workspace / template(spec.get("working-directory", "."), contexts),
            env=whole, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False,
        )  # fmt: skip
        log = process.stdout.decode(errors="replace")
        self.job.log += log
        outputs = dict(_pairs(files["OUTPUT"]))
        for command in _commands(log):
            if command.name == "set-output":
                outputs[command.properties["name"]] = command.data
            self.job.commands.append(command)
        self.more |= dict(_pairs(files["ENV"]))
        self.paths += files["PATH"].read_text().splitlines()
        assert files["OUTPUT"].stat().st_size <= LARGEST_FILE
        if files["STEP_SUMMARY"].stat().st_size > LARGEST_FILE:
            self.job.commands.append(Command("error", {}, "summary: more than 1 MiB"))
        elif summary := files["STEP_SUMMARY"].read_text():
            self.job.summaries.append(summary)
        return process.returncode == 0, outputs

    def action(
        self, spec: dict[str, Any], contexts: dict[str, Any], env: Mapping[str, str], _: Path | None, done: list[Step]
    ) -> tuple[bool, dict[str, str]]:
        """A step that uses an action: a composite one of the repository under test, or a double."""
        name, _, version = spec["uses"].partition("@")
        given = {key: text(one) for key, one in template(spec.get("with", {}), contexts).items()}
        if name in DOUBLES and re.fullmatch(r"[0-9a-f]{40}", version):
            try:
                return True, DOUBLES[name](self, given)
            except Failed as error:
                self.job.log += f"##[error]{error}\n"
                return False, {}
        if name != OWN and not name.startswith(f"{OWN}/"):
            raise NotKnown(f"uses {spec['uses']}: there is no double of it at that version")
        folder = self.machine.actions / name.removeprefix(OWN).strip("/")
        action = yaml.safe_load((folder / "action.yml").read_text())
        known = action.get("inputs", {})
        if set(given) - set(known):
            raise NotKnown(f"{name} has no input {', '.join(set(given) - set(known))}")
        if action["runs"]["using"] != "composite":
            raise NotKnown(f"{name} is no composite action")
        caller = contexts | {"inputs": {}}
        inputs = {key: given.get(key, text(template(one.get("default", ""), caller))) for key, one in known.items()}
        inner = {key: contexts[key] for key in ("github", "matrix", "strategy", "runner", "job")} | {
            "inputs": inputs, "github": contexts["github"] | {"action_path": str(folder)},
        }  # fmt: skip
        result, steps = self.steps(action["runs"]["steps"], inner, env, done, folder)
        outputs = {
            key: text(template(one["value"], inner | {"steps": steps})) for key, one in action.get("outputs", {}).items()
        }  # fmt: skip
        return result == "success", outputs


class Failed(Exception):
    """What a double says as it fails."""


def _checkout(job: _JobRunner, given: dict[str, str]) -> dict[str, str]:
    """As actions/checkout leaves it: a detached commit with so much history, and a token only where it is asked to."""
    _only(given, {"fetch-depth", "persist-credentials", "submodules"}, "actions/checkout")
    machine, where = job.machine, job.job.workspace
    sha, ref = job.github["sha"], job.github["ref"]
    known = ref.replace("refs/pull/", "refs/remotes/pull/").replace("refs/heads/", "refs/remotes/origin/")
    depth = given.get("fetch-depth", "1")
    machine.git("init", "-q", str(where))
    machine.git("remote", "add", "origin", f"file://{machine.remote}", cwd=where)
    some = [] if depth == "0" else [f"--depth={depth}"]
    what = ["+refs/heads/*:refs/remotes/origin/*"] if depth == "0" else []
    machine.git("fetch", "-q", "--no-tags", "--prune", "--no-recurse-submodules", *some, "origin", *what, f"+{sha}:{known}", cwd=where)  # fmt: skip
    machine.git("checkout", "-q", "--force", "--detach", known, cwd=where)
    if given.get("submodules", "false") != "false":
        machine.git("submodule", "update", "--init", "--recursive", cwd=where)
    if given.get("persist-credentials", "true") == "true":
        # Since v6 in a file of its own, which a condition includes.
        secret = job.temp / f"git-credentials-{uuid.uuid4()}.config"
        secret.write_text(f'[http "https://github.com/"]\n\textraheader = AUTHORIZATION: basic {TOKEN}\n')
        machine.git("config", "--local", f"includeIf.gitdir:{where}/.git.path", str(secret), cwd=where)
    if machine.prepare is not None:
        machine.prepare(where)
    return {"ref": ref, "commit": sha}


def _upload(job: _JobRunner, given: dict[str, str]) -> dict[str, str]:
    """As actions/upload-artifact does: an archive whose top is the folder, without what is hidden, under a new name."""
    _only(given, {"name", "path", "retention-days", "if-no-files-found"}, "actions/upload-artifact")
    hub, run = job.machine.hub, job.run_
    name, folder = given["name"], job.job.workspace / given["path"]
    if re.search(r'["\r\n:<>|*?\\/]', name) or not name:
        raise Failed(f"The artifact name is not valid: {name}")
    if any(one.run == run.id and one.name == name for one in hub.artifacts):
        raise Failed(f"an artifact with this name already exists: {name}")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    shown = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not shown:
        if given.get("if-no-files-found") == "error":
            raise Failed(f"No files were found with the provided path: {folder}")
        return {}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in shown:
            archive.write(path, path.relative_to(folder))
    stored = hub.upload(run, buffer.getvalue(), name)
    url = f"https://github.com/{REPOSITORY}/actions/runs/{run.id}/artifacts/{stored.id}"
    return {"artifact-id": str(stored.id), "artifact-url": url}


DOUBLES: dict[str, Callable[[_JobRunner, dict[str, str]], dict[str, str]]] = {
    "actions/checkout": _checkout,
    "actions/upload-artifact": _upload,
}


def _triggers(flow: dict[Any, Any]) -> dict[str, Any]:
    return flow["on"] if "on" in flow else flow[True]  # in YAML 1.1 `on` is true


def _only(given: Mapping[Any, Any], known: set[Any], what: str) -> None:
    if unknown := set(given) - known:
        raise NotKnown(f"{what}: {', '.join(map(str, unknown))} is not known here")


def _status(result: str) -> dict[str, Callable[[], bool]]:
    holds = {"always": True, "cancelled": False, "failure": result == "failure", "success": result == "success"}
    return {name: (lambda value=holds[name]: value) for name in STATUS}


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    """`name=value` and `name<<word` … `word`, as the runner reads them."""
    lines = iter(file.read_text().splitlines())
    for line in lines:
        name, sign, value = re.match(r"(.*?)(<<|=)(.*)", line).groups()
        if sign == "<<":
            content = []
            while (inner := next(lines)) != value:  # StopIteration: the runner refuses the file
                content.append(inner)
            value = "\n".join(content)
        yield name, value


def _commands(log: str) -> Iterator[Command]:
    """What the runner takes for its commands; between `stop-commands` and its word, nothing."""
    word = ""
    for line in log.splitlines():
        found = _COMMAND.fullmatch(line.lstrip()) or _OLD_COMMAND.search(line)
        if found is None or (found["name"] not in _COMMANDS and found["name"] != word):
            continue
        if word:
            word = "" if found["name"] == word else word
            continue
        properties = dict(one.split("=", 1) for one in re.split("[,;]", found["properties"] or "") if "=" in one)
        command = Command(
            found["name"], {key: _plain(value) for key, value in properties.items()}, _plain(found["data"])
        )
        word = command.data if command.name == "stop-commands" else ""
        yield command


def _plain(value: str) -> str:
    for escaped, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        value = value.replace(escaped, character)
    return value


def copy_actions(folder: Path, root: Path, start: str = "") -> Path:
    """The repository of the actions as the runner downloads it; `start` takes the place of the script that installs."""
    for name in ("action.yml", "publish/action.yml", "action/start", "action/requirements.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / name)
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    if start:
        (folder / "action" / "start").write_text(start)
    return folder
