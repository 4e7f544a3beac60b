"""What is measured where actions run: commands that say how long they took, and a suite that tries to be commands."""

import json
from typing import Any

from tests.e2e.conftest import Repo, adding

LIMIT = "limits: [{cases: '*', metric: time, regression: 20%}]\n"
AT_MOST = "limits: [{cases: '*', metric: time, max: 2s}]\n"
HOSTILE = "a%0A::error::b,c=d|@everyone<img src=x>`$(id)"
PRINTED = "print('::error::printed')\nprint('##[error]printed')\nprint('::add-mask::a')\n"


def applications(*names: str) -> str:
    """Commands of a policy, each of which says what a file of its name holds."""
    each = (f"{{name: {name}, run: cat {name} >$PERFCI_METRICS, reads: perfci, device: cpu}}" for name in names)
    return f"commands: [{', '.join(each)}]\n"


def took(repo: Repo, seconds: float, *names: str, **fields: Any) -> None:
    for name in names:
        repo.write(name, json.dumps({"metric": "time", "value": seconds, "unit": "s", **fields}))


def hostile(repo: Repo, policy: str, spins: int = 0) -> str:
    """A case that `spins` make slow, an application that then names a case, and a log. Returns the suite's text."""
    repo.policy(policy + applications("app"))
    took(repo, 2, "app", **({"case": HOSTILE} if spins else {}))
    kernel = adding(spin=spins).replace('devices=["cpu"]', 'devices=["cpu"], params={"x": [HOSTILE]}')
    text = f"HOSTILE = {HOSTILE!r}\n{PRINTED}{kernel.replace('(bench)', '(bench, x)')}"
    repo.write("kernels/adding.py", text)
    return text
