"""Cut GitHub's OpenAPI description down to the operations that the test GitHub answers.

npm pack @octokit/openapi@23.0.2 && tar xzf octokit-openapi-23.0.2.tgz
python -m tests.github.loopback.trim_openapi package/generated/api.github.com.json > tests/github/loopback/openapi.json
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.github.loopback.server import ROUTES

UNREAD = {"description", "summary", "externalDocs", "tags", "x-octokit", "x-github", "headers"}
"""Keys that say nothing about what fits."""


def trimmed(whole: dict[str, Any]) -> dict[str, Any]:
    """The operations with every component that they reach."""
    paths: dict[str, dict[str, Any]] = {}
    for path, methods in whole["paths"].items():
        for method in [one for one in methods if _answered(one.upper(), path)]:
            paths.setdefault(path, {})[method] = _without(methods[method])
    components: dict[str, dict[str, Any]] = {}
    waiting = _references(paths)
    while waiting:
        _, _, kind, name = waiting.pop().split("/")
        if name not in components.setdefault(kind, {}):
            found = whole["components"][kind][name]
            components[kind][name] = found if kind == "examples" else _without(found)
            waiting |= _references(components[kind][name])
    return {"openapi": whole["openapi"], "info": whole["info"], "paths": paths, "components": components}


def _answered(method: str, path: str) -> bool:
    """Tell whether a route stands for this operation; `{…}` are as many in both."""
    found = [re.fullmatch(pattern, path) for pattern, known, _ in ROUTES if known == method]
    rows = path.endswith("/pulls/{pull_number}/files")  # its example has those of a comparison
    return rows or any(one is not None and len(one.groupdict()) == path.count("{") for one in found)


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
