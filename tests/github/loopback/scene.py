"""A pull request whose run has measured: what most tests of publishing begin with."""

from collections.abc import Sequence
from typing import Any

from perfci.github.api import Api
from perfci.github.event import Context, context
from perfci.github.publish import Published, publish
from perfci.github.settings import Publishing
from perfci.model.limits import Subject, criteria
from perfci.model.plan import Declared
from perfci.model.policy_text import parse_policy
from perfci.model.results import Results, SideCode
from tests.github.loopback.server import REPOSITORY, ROOT, GitHub, Pull, Run, archive
from tests.judge.build import case
from tests.judge.build import results as build_results

HEAD, BASE, SIDE = "a" * 40, "b" * 40, "9" * 40
POLICY = "version: 1\nsuite: [kernels/*.py]\nlimits:\n  - {cases: '*', metric: time, regression: 2%}\n"
LOOSE = POLICY.replace("2%", "900%")
SLOWER = (1.0, 1.10)
"""Of two cases the second one's regression."""


def measured(
    *ratios: float, policy: str = POLICY, head: str = HEAD, base: str | None = BASE, names: Sequence[str] = (),
    declared: Sequence[str] = (), **fields: Any,
) -> Results:  # fmt: skip
    """Results of cases `matmul/n=0`, …, whose times changed by these ratios, planned by `policy`."""
    cases = [case(names[i] if names else f"matmul/n={i}", ratio) for i, ratio in enumerate(ratios)]
    asked = criteria(parse_policy(policy), [Subject(c.id, c.device, reports=frozenset({"time"})) for c in cases])
    sides = {"base": SideCode(ref="main", commit=base), "head": SideCode(ref="HEAD", commit=head)}
    made = build_results(cases, asked)
    made = replanned(made, declared=Declared(kernels=[*declared] or [case.id for case in cases]))
    return made.model_copy(update={"sides": sides, "policy_from": "base", **fields})


def replanned(results: Results, **fields: Any) -> Results:
    return results.model_copy(update={"plan": results.plan.model_copy(update=fields)})


def packed(results: Results) -> bytes:
    return archive({"results.json": results.model_dump_json(), "report.md": "# @everyone: not to be read"})


def scene(hub: GitHub, *ratios: float, **fields: Any) -> tuple[Pull, Run]:
    """Pull request 7 with run 100, which measured; base's policy stands on main."""
    hub.files[BASE, "perfci.yaml"] = POLICY.encode()
    pull = hub.pulls.get(7) or hub.pull(7, HEAD)
    run = hub.run(100, HEAD)
    if ratios:
        hub.upload(run, packed(measured(*ratios, **fields)))
    return pull, run


def protect_side(hub: GitHub) -> None:
    """A second protected branch, `side`, that has left main."""
    hub.branches["side"] = SIDE
    hub.protected.add("side")
    hub.commits[SIDE] = [ROOT]


def api_of(hub: GitHub, **options: Any) -> Api:
    slept: list[float] = []
    made = Api("t0ken", REPOSITORY, hub.api, sleep=slept.append, **options)
    made.slept = slept  # type: ignore[attr-defined]
    return made


def completed(run: Run) -> dict[str, Any]:
    """What GitHub sends at the end of a run."""
    return {
        "action": "completed",
        "repository": {"full_name": REPOSITORY, "default_branch": "main"},
        "workflow_run": {
            "id": run.id, "run_attempt": run.attempt, "event": run.event, "head_sha": run.head, "head_branch": run.branch,
            "head_repository": {"full_name": run.head_repository}, "pull_requests": [], "conclusion": run.conclusion,
        },
    }  # fmt: skip


def proposed(pull: Pull, base: str = BASE, **fields: Any) -> dict[str, Any]:
    """What GitHub sends of a pull request."""
    return {
        **fields,
        "repository": {"full_name": REPOSITORY, "default_branch": "main"},
        "pull_request": {
            "number": pull.number,
            "head": {"ref": pull.head_ref, "sha": pull.head, "repo": {"full_name": pull.head_repository}},
            "base": {"ref": pull.base_ref, "sha": base, "repo": {"full_name": REPOSITORY}},
        },
    }


def after(run: Run) -> Context:
    """The context of a publisher that the end of `run` started."""
    return context("workflow_run", completed(run), environment(999))


def beside(pull: Pull, run: int, event: str = "pull_request", **fields: str) -> Context:
    """The context of a publisher that is a job of the pull request's own run, or of another that it starts."""
    return context(event, proposed(pull, **fields), environment(run))


def environment(run: int) -> dict[str, str]:
    return {
        "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_SHA": "c" * 40, "GITHUB_REF": "refs/heads/main",
        "GITHUB_RUN_ID": str(run), "GITHUB_RUN_ATTEMPT": "1",
    }  # fmt: skip


def published(
    hub: GitHub, run: Run, api: Api | None = None, action: str = "completed", history: Any = None, **inputs: Any
) -> Published:
    return publish(after(run), action, Publishing(**inputs), api or api_of(hub), history)


def refused(hub: GitHub, run: Run, **inputs: Any) -> str:
    """Publish what is no answer. Returns the first line of what is missing."""
    made = published(hub, run, **inputs)
    assert (made.exit_code, hub.checks[-1]["conclusion"]) == (3, "action_required")
    return made.publication.missing[0]
