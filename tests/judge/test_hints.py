"""What a suite meets is told with what to do, and with the place in docs/suite.md that says more."""

import re
from pathlib import Path

import pytest

from perfci.judge.hints import HINTS, IMPORTS, LONGEST, Hint, hinted
from perfci.model.text import one_line

SUITE = (Path(__file__).parents[2] / "docs/suite.md").read_text()


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("hint", [*HINTS, IMPORTS], ids=lambda hint: hint.seen)
def test_a_hint_leads_to_its_heading_and_fits_beside_what_it_is_for(hint: Hint) -> None:
    assert hint.heading in anchors(SUITE)
    assert len(hint.text) < LONGEST / 2


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint.seen)
def test_a_long_reason_keeps_its_hint(hint: Hint) -> None:
    told = hinted("RuntimeError: " + "long " * 30 + hint.seen + " and so on" * 50)
    assert len(told) <= LONGEST and told.startswith("RuntimeError: ") and told.endswith(hint.text)


def test_a_reason_that_no_hint_is_for_stays_as_it_is() -> None:
    reason = "result[0] is 1.0, the reference has 2.0; 1 of 1 elements differ" * 20
    assert hinted(reason) == one_line(reason, LONGEST)
