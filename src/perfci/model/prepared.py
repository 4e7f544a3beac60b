"""prepared.json: arms that were built to be measured later, elsewhere: in a container without a network."""

from typing import Literal

from perfci.model.base import ArmName, Document
from perfci.model.results import Arm, Reason


class PreparedArm(Document):
    """One arm in a folder `base/` or `head/` beside the document."""

    info: Arm
    policy: str
    """Text of its policy."""
    python: str
    """Interpreter that it was built with."""
    files: dict[str, str]
    """Path below the arm's folder → digest, for its tree and what it built."""
    failure: Reason | None = None
    """Why it does not build."""


class Prepared(Document):
    """What was prepared, of what, and as the answer to which call."""

    perfci: str
    """Version of perfci."""
    folder: str
    """Where it lies: paths below it are in what was built."""
    root: str
    """Folder of the repository."""
    mode: Literal["run", "compare"]
    ref: str | None
    """Base as it was asked for."""
    committed: bool
    pull_request: bool
    policy_from: ArmName
    notes: list[str]
    arms: dict[ArmName, PreparedArm]
