"""Claims: the time of a case is said to fall by a share at least."""

import re
from collections.abc import Iterable

from pydantic import Field

from perfci.model.base import DeviceKind, Document, matches
from perfci.model.criteria import Criterion, LimitSource
from perfci.model.metrics import CATALOGUE
from perfci.model.text import escaped
from perfci.model.units import parse_percent

CLAIM_LINE = "perfci-claim:"
"""Of a pull request's description: claims as `--claim` does, and changes no check."""
_LONGEST = 200
LEAST = 1e-3
"""The smallest share, and what the largest leaves: sentences show as much."""
_CLAIM = re.compile(r"(?P<cases>\S+?):?\s+(?P<fall>\S+)", re.ASCII)


class Claim(Document, frozen=True):
    """The time of each case that a glob matches falls by a share at least."""

    cases: str
    fall: float = Field(ge=LEAST, le=1 - LEAST)

    @classmethod
    def parse(cls, text: str) -> "Claim":
        """Read `softmax*: 10%`. Raises ValueError."""
        found = _CLAIM.fullmatch(text.strip())
        try:
            fall = 0.0 if found is None else round(parse_percent(found["fall"]), 9)
        except ValueError:
            fall = 0.0
        if found is None or not LEAST <= fall <= 1 - LEAST:
            raise ValueError(f"'{escaped(text, 80)}': write cases and by how much their time falls: 'softmax*: 10%'")
        return cls(cases=found["cases"], fall=fall)

    def criterion(self, case: str, device: DeviceKind) -> Criterion:
        """Return whether the time of a case falls by as much, as a limit mirrored: `regression` is yes."""
        time = CATALOGUE["time"]
        return Criterion(
            case=case,
            device=device,
            metric=time.name,
            unit=time.unit,
            tier=time.tier,
            better="higher",
            kind="regression",
            bound=self.fall,
            source=LimitSource(origin="default"),
            threshold=True,
        )


def claimed_of(claims: Iterable[Claim], cases: Iterable[tuple[str, DeviceKind]]) -> list[Criterion]:
    """Return what is claimed of `cases`, ids with devices: the same share of the same case once."""
    found = {
        (ident, device, claim.fall): claim.criterion(ident, device)
        for ident, device in cases
        for claim in claims
        if matches(claim.cases, ident)
    }
    return [found[key] for key in sorted(found)]


def sharing(asked: int, attempt: int | None) -> int:
    """Return by how much α of claims is divided: by those `asked`, and for the K-th attempt by K (K + 1).

    The shares of all attempts sum to 1: however long a program searches, what it claims is wrong with a chance of α.
    """
    return max(1, asked) * (1 if attempt is None else attempt * (attempt + 1))


def described(text: str) -> str:
    """Return what a description claims; empty where it has no such line, several, or one that is long or not ASCII."""
    lines = [line.strip() for line in text.splitlines() if line.strip().lower().startswith(CLAIM_LINE)]
    found = lines[0][len(CLAIM_LINE) :].strip() if len(lines) == 1 else ""
    return found if len(found) <= _LONGEST and found.isascii() and found.isprintable() else ""
