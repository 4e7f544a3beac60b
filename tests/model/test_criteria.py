"""What a criterion knows of its kind: what breaks it, which of two is stricter, how it is decided."""

import math
from typing import get_args

import pytest
from pydantic import ValidationError

from perfci.model.criteria import Criterion, Kind, LimitSource
from tests.judge.build import limit

OWN = LimitSource(origin="kernel", index=1, where="k.py:3")


@pytest.mark.parametrize(
    ("asked", "within", "beyond"),
    [
        (limit(kind="max", bound=5.0), 5.0, 5.1),
        (limit(kind="min", bound=5.0), 5.0, 4.9),
        (limit(kind="min", bound=0.0), 0.0, -0.1),
        (limit(bound=0.5), 1.5, 1.6),
        (limit(metric="tflops", bound=0.5), 0.5, 0.4),
    ],
)
def test_a_value_on_its_limit_is_within_and_no_number_is_beyond(asked: Criterion, within: float, beyond: float) -> None:
    assert not asked.broken_by(within)
    assert asked.broken_by(beyond)
    assert asked.worse(beyond, within) and not asked.worse(within, beyond) and not asked.worse(within, within)
    assert asked.broken_by(math.nan)


@pytest.mark.parametrize(("kind", "stricter"), [("regression", 1.0), ("creep", 1.0), ("max", 1.0), ("min", 3.0)])
def test_a_kernels_own_limit_tightens_its_policys_and_never_loosens_it(kind: str, stricter: float) -> None:
    ours = limit(kind=kind, bound=2.0, fail_on=["missing"])
    tight = ours.tightened(limit(kind=kind, bound=stricter, source=OWN))
    assert (tight.bound, str(tight.source), tight.fail_on) == (stricter, "k.py:3: limits[1]", ["broken", "missing"])
    loose = ours.tightened(limit(kind=kind, bound=4.0 - stricter, fail_on=["broken", "undecided"], source=OWN))
    assert (loose.bound, str(loose.source), loose.fail_on) == (2.0, "limits[0]", ["broken", "missing", "undecided"])


def test_every_kind_reads_as_people_are_told_it() -> None:
    told = [limit("k", "kernels" if kind == "kernels" else "time", kind, 0.02, tier="trace") for kind in get_args(Kind)]
    assert [one.words() for one in told] == [
        "time within 2 %", "time within 2 % of the reference", "time min 20.0 ms", "time max 20.0 ms", "a kernel matches ",
    ]  # fmt: skip


def test_the_metrics_tier_says_how_it_is_decided() -> None:
    timed, observed = limit(), limit(metric="registers")
    assert (timed.timed, timed.observed, timed.shares_alpha) == (True, False, True)
    assert (observed.timed, observed.observed, observed.shares_alpha) == (False, True, False)
    for change in ({"waits": "it is for cpu"}, {"fail_on": ["missing"]}):
        assert not timed.model_copy(update=change).shares_alpha
    waiting = timed.model_copy(update={"waits": "it is for cpu"})
    assert not waiting.timed and not waiting.observed


def test_names_have_no_order_and_no_pairs() -> None:
    names = limit(metric="kernels", kind="kernels", tier="trace", pattern="flash")
    with pytest.raises(ValueError, match="neither above nor below"):
        names.broken_by(1.0)
    with pytest.raises(ValidationError, match="names of kernels are observed"):
        Criterion.model_validate(names.model_dump() | {"tier": "timing"})
