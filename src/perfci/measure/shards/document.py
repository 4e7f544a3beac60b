"""The plan of a comparison that several machines share, fixed before the first sample and written to `plan.json`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

import perfci
from perfci.measure.request import ANEW, What
from perfci.model.base import Amount, Document, Items, Side, UsageError
from perfci.model.comparison import digest
from perfci.model.plan import Plan
from perfci.model.results import MOST_SHARDS, Proof, SideCode
from perfci.model.text import escaped
from perfci.system.bounded import read_document

PLAN = "plan.json"
"""Its name in an artifact."""
LARGEST = 64 * 2**20
"""Bytes of a plan at most."""


class PlannedCase(Document):
    """A case of the plan."""

    key: str
    """`id@device`."""
    command: str = ""
    """The command that it is of; empty for a kernel's."""
    seconds: Amount
    """Expected for its pairs; 0 for what is proved."""
    shard: Annotated[int, Field(ge=1)]
    proof: Proof | None = None


class SharedPlan(Document):
    """`plan.json`."""

    version: Literal[1] = 1
    run: str = Field(max_length=100)
    """Identifier of the run that all shards are."""
    perfci: str
    """Version of perfci."""
    made: str
    """UTC, ISO 8601."""
    command: list[str]
    what: What
    sources: dict[str, str]
    machine: dict[str, str]
    """Claims of what a shard must find to be the same."""
    sides: dict[Side, SideCode]
    plan: Plan
    """With the criteria of all shards, which share α."""
    shards: int = Field(ge=1, le=MOST_SHARDS)
    cases: Items[PlannedCase]
    """In the order in which one run would hold them."""
    digest: str = ""
    """SHA-256 of all else."""

    @model_validator(mode="after")
    def _deals_each_case_once(self) -> "SharedPlan":
        if len({case.key for case in self.cases}) != len(self.cases):
            raise ValueError("two cases have the same key")
        if {case.shard for case in self.cases} != set(range(1, self.shards + 1)):
            raise ValueError("each shard needs a case")
        return self

    @property
    def base(self) -> str | None:
        """The commit of base."""
        return self.sides["base"].commit if "base" in self.sides else None

    def sealed(self) -> "SharedPlan":
        """Return the plan with its digest."""
        return self.model_copy(update={"digest": self._digest()})

    def _digest(self) -> str:
        return digest(self.model_dump(mode="json", exclude={"digest"}))


def read_plan(path: Path) -> SharedPlan:
    """Read a plan. Raises UsageError for anything else: of another perfci, or changed since it was made."""
    plan = read_document(path, SharedPlan, LARGEST, "plan", ANEW, f"--shard {path}")
    if plan.digest != plan._digest():
        raise UsageError(f"--shard {path}: was changed since it was made (its digest is another): {ANEW}")
    if plan.perfci != perfci.__version__:
        told = f"made by perfci {escaped(plan.perfci, 40)}, and this is {perfci.__version__}"
        raise UsageError(f"--shard {path}: {told}: install that version, or {ANEW}")
    return plan


@dataclass(frozen=True)
class Shard:
    """One part of a plan, which one machine measures."""

    plan: SharedPlan
    number: int

    @classmethod
    def parse(cls, plan: SharedPlan, text: str) -> "Shard":
        """Return the shard that `K/N` names. Raises UsageError."""
        found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
        if found is None:
            raise UsageError(f"--shard {text}: write its number and how many there are, such as 1/{plan.shards}")
        number, count = map(int, found.groups())
        if count != plan.shards:
            raise UsageError(f"--shard {text}: the plan has {plan.shards} shards")
        if not 1 <= number <= count:
            raise UsageError(f"--shard {text}: they are numbered from 1 to {count}")
        return cls(plan, number)

    @property
    def name(self) -> str:
        """The plan's digest and the number: of this shard alone."""
        return f"{self.plan.digest}/{self.number}"

    @property
    def words(self) -> str:
        """Return `shard 2/4`."""
        return f"shard {self.number}/{self.plan.shards}"

    @property
    def cases(self) -> list[PlannedCase]:
        """Its cases."""
        return [case for case in self.plan.cases if case.shard == self.number]
