"""Cut GitHub's OpenAPI description down to the operations that perfci uses.

npm pack @octokit/openapi@23.0.2 && tar xzf octokit-openapi-23.0.2.tgz
python tests/github/trim_openapi.py package/generated/api.github.com.json > tests/github/loopback/openapi.json
"""

import json
import sys
from pathlib import Path
from typing import Any

REPO = "/repos/{owner}/{repo}"
OPERATIONS = {
    REPO: ["get"],
    f"{REPO}/actions/runs": ["get"],
    f"{REPO}/actions/runs/{{run_id}}": ["get"],
    f"{REPO}/actions/runs/{{run_id}}/artifacts": ["get"],
    f"{REPO}/actions/runs/{{run_id}}/jobs": ["get"],
    f"{REPO}/actions/artifacts/{{artifact_id}}/{{archive_format}}": ["get"],
    f"{REPO}/activity": ["get"],
    f"{REPO}/branches/{{branch}}": ["get"],
    f"{REPO}/check-runs": ["post"],
    f"{REPO}/check-runs/{{check_run_id}}": ["patch"],
    f"{REPO}/collaborators/{{username}}/permission": ["get"],
    f"{REPO}/commits/{{ref}}/check-runs": ["get"],
    f"{REPO}/compare/{{basehead}}": ["get"],
    f"{REPO}/contents/{{path}}": ["get"],
    f"{REPO}/git/commits/{{commit_sha}}": ["get"],
    f"{REPO}/git/matching-refs/{{ref}}": ["get"],
    f"{REPO}/issues": ["get", "post"],
    f"{REPO}/issues/{{issue_number}}": ["patch"],
    f"{REPO}/issues/{{issue_number}}/comments": ["get", "post"],
    f"{REPO}/issues/{{issue_number}}/events": ["get"],
    f"{REPO}/issues/comments/{{comment_id}}": ["patch", "delete"],
    f"{REPO}/pulls": ["get"],
    f"{REPO}/pulls/{{pull_number}}": ["get"],
    f"{REPO}/pulls/{{pull_number}}/files": ["get"],  # whose rows are those of a comparison
    f"{REPO}/rules/branches/{{branch}}": ["get"],
}
UNREAD = {"description", "summary", "externalDocs", "tags", "x-octokit", "x-github", "headers"}
"""Keys that say nothing about what fits."""


def trimmed(whole: dict[str, Any]) -> dict[str, Any]:
    """The operations with every component that they reach."""
    paths = {
        path: {method: _without(whole["paths"][path][method]) for method in methods}
        for path, methods in OPERATIONS.items()
    }
    components: dict[str, dict[str, Any]] = {}
    waiting = _references(paths)
    while waiting:
        _, _, kind, name = waiting.pop().split("/")
        if name not in components.setdefault(kind, {}):
            found = whole["components"][kind][name]
            components[kind][name] = found if kind == "examples" else _without(found)
            waiting |= _references(components[kind][name])
    return {"openapi": whole["openapi"], "info": whole["info"], "paths": paths, "components": components}


def _without(node: Any, names: bool = False) -> Any:
    """`node` without what is not read. `names`: its keys are names that an author chose, none of the format's."""
    if isinstance(node, list):
        return [_without(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without(value, names=key == "properties" and not names)
        for key, value in node.items()
        if names or (key not in UNREAD and not (key in ("example", "examples") and "type" in node))
    }


def _references(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_references, node))
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
    return own.union(*map(_references, node.values()))


if __name__ == "__main__":
    json.dump(trimmed(json.loads(Path(sys.argv[1]).read_text())), sys.stdout, sort_keys=True, separators=(",", ":"))
