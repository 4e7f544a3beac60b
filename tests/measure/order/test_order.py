"""When the budget will not do for all, it goes to those that it can still decide."""

from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfci.measure.budget import Budget
from perfci.measure.costs import Costs
from perfci.measure.loop import Loop
from perfci.measure.request import PairProgress
from perfci.measure.sampling import next_batch, pair_cost, pairs_left
from perfci.measure.timing import Setup
from perfci.model.plan import Looks, Plan
from perfci.model.results import Case, CaseSide, Moments, Pair, Scatter
from perfci.stats.answer import hopeless
from tests.judge.build import limit, pairs


def case(name: str, pairs: int, scatter: float, seconds: float = 1.0, centre: float = 0.0) -> Case:
    rng = np.random.default_rng(sum(map(ord, name)))
    ratios = np.exp(centre + scatter * rng.standard_normal(pairs))
    made = [
        Pair(index=i, values={"base": {"time": 1.0}, "head": {"time": float(x)}}, seconds={"block": seconds})
        for i, x in enumerate(ratios)
    ]
    return Case(id=name, kernel=name, device="cpu", sides={"base": CaseSide(), "head": CaseSide()}, pairs=made)


def plan(*names: str, exact: int | None = None) -> Plan:
    asked = [limit(name, device="cpu") for name in names]
    return Plan(seed=0, sides=["base", "head"], criteria=asked, m=len(names), exact_pairs=exact)


def ids(cases: list[Case]) -> list[str]:
    return [one.id for one in cases]


@pytest.mark.parametrize("pairs", [3, 15])
def test_up_to_the_first_look_that_can_convict_all_go_on_alike(pairs: int) -> None:
    cases = [case("behind", pairs, 0.5), case("ahead", pairs + 1, 0.001)]
    assert plan("behind", "ahead").first_to_show == 16
    assert ids(next_batch(cases, plan("behind", "ahead"), left=0.1)) == ["behind"]


def test_a_tight_budget_goes_to_the_nearest_decision_and_never_waits_for_the_hopeless() -> None:
    cases = [case("hopeless", 16, 0.2), case("louder", 16, 0.009), case("calm", 16, 0.005)]
    asked = plan("hopeless", "louder", "calm")
    assert ids(next_batch(cases, asked, left=10)) == ["calm"]
    assert ids(next_batch(cases, asked, left=1000)) == ["calm", "louder"]
    assert ids(next_batch(cases[1:], asked, left=1000)) == ["louder", "calm"], "with time enough nobody waits"
    assert ids(next_batch(cases[:1], asked, left=10)) == ["hopeless"], "when nothing else is open it may try"


@pytest.mark.parametrize("centre", [1.5, -1.5])
def test_a_large_change_is_not_hopeless_however_its_pairs_scatter(centre: float) -> None:
    cases = [case("hopeless", 16, 0.2), case("plain", 16, 0.2, centre=centre)]
    assert ids(next_batch(cases, plan("hopeless", "plain"), left=10)) == ["plain"]


def test_calibration_takes_pairs_of_all() -> None:
    cases = [case("hopeless", 16, 0.2), case("calm", 16, 0.001)]
    assert ids(next_batch(cases, plan("hopeless", "calm", exact=32), left=1)) == ["hopeless", "calm"]


def test_the_hopeless_share_what_is_left_by_the_time_they_have_had() -> None:
    cases = [case("a dear one", 16, 0.2, seconds=2.5), case("cheap", 40, 0.2, seconds=0.1)]
    asked = plan("a dear one", "cheap")
    assert ids(next_batch(cases, asked, left=100)) == ["cheap"]
    assert ids(next_batch([cases[0], case("cheap", 420, 0.2, seconds=0.1)], asked, left=100)) == ["a dear one"]


def test_one_pair_far_off_makes_no_case_hopeless() -> None:
    calm = case("calm", 16, 0.001)
    calm.pairs[6].values["head"]["time"] = 1.042
    cases = [case("a hopeless one", 16, 0.2), calm]
    assert ids(next_batch(cases, plan("a hopeless one", "calm"), left=100)) == ["calm"]


def test_what_a_pair_costs_is_told_by_samples_by_a_command_s_executions_and_by_the_last_pair() -> None:
    setup = Setup("cpu", batch=1, samples=5, placements=3, blocks=6, seconds=0.1)
    benches: Any = {"cpu": SimpleNamespace(setups={"fresh@cpu": setup, "taken@cpu": setup})}
    runner: Any = SimpleNamespace(once=lambda command: {"app": 8.0}[command])

    def cost(one: Case, beside: float = 0.0) -> tuple[float, ...]:
        return pair_cost(one, benches, runner, beside)

    assert cost(case("fresh", 0, 0.0)) == pytest.approx((3.6, 0.4, 0.0)), "twice what samples take"
    assert cost(case("fresh", 0, 0.0), 5.0) == pytest.approx((6.8, 5.2, 0.0)), "or what others take besides theirs"
    app = case("app", 0, 0.0).model_copy(update={"origin": "command"})
    assert cost(app) == (8.0, 8.0, 0.0)
    taken = case("taken", 1, 0.0)
    taken.pairs[0].blocks = 18
    taken.pairs[0].seconds = {"first": 1.0, "open": 2.0, "block": 9.0, "close": 3.0}
    assert cost(taken) == pytest.approx((15.0, 2.0, 1.0)), "what a smaller pair cannot save stays"
    none = Moments(time=0.0, cross=0.0, clock=0.0)
    taken.pairs[0].scatter = Scatter(placements=3, blocks=6, placement=none, block=none)
    taken.pairs *= 2
    assert cost(taken) == pytest.approx((15.0, 15.0, 0.0)), "then it is as large as it is to be"
    benches["cpu"].setups["taken@cpu"] = replace(setup, placements=2, blocks=3)
    assert cost(taken) == pytest.approx((15.0, 15.0 - 9.0 * 2 / 3 - 5.0 / 2, 0.0))


def test_pairs_that_are_left_are_those_to_the_look_that_decides() -> None:
    """A hopeless case may be left at its next look; a limit that has no pairs to go by may be answered there."""
    asked = plan("calm", "louder", "hopeless")

    def left(one: Case, asked: Plan = asked) -> int:
        return pairs_left(one, [limit for limit in asked.criteria if limit.case_key == one.key], asked)

    calm, louder, hopeless = case("calm", 3, 0.001), case("louder", 12, 0.02), case("hopeless", 12, 0.3)
    assert left(calm) == 8 - 3
    assert 16 - 12 < left(louder) < 64 - 12
    assert left(hopeless) == 16 - 12
    assert left(case("calm", 3, 0.001, centre=0.2)) == 16 - 3, "no look before may call it a regression"
    assert left(case("no limit", 1, 0.0)) == 8 - 1
    assert left(calm, plan("calm", exact=32)) == 32 - 3
    assert left(louder, asked.model_copy(update={"max_pairs": 14})) == 14 - 12


def test_the_time_that_is_expected_is_that_of_the_open_cases_and_never_beyond_the_budget() -> None:
    asked = plan("dear", "cheap", "done")
    cases = [case("dear", 3, 0.001, seconds=2.0), case("cheap", 4, 0.001, seconds=0.5), case("done", 8, 0.001)]

    def standing(budget: float, open_cases: list[Case]) -> PairProgress:
        parts: Any = [None] * 4
        loop = Loop(asked, {}, *parts, Costs(), Budget(budget, 0.0))
        return loop._standing(cases, open_cases)

    told = standing(1e9, cases[:2])
    assert told.expected == 5 * 2.0 + 4 * 0.5
    assert (told.pairs, told.open, told.decided, told.cases) == (8, 2, 1, 3)
    assert standing(0.0, cases[:2]).expected == 0.0, "the budget has ended"
    assert standing(1e9, []).expected == 0.0
    assert standing(1e9, [*cases[:2], case("no pair yet", 0, 0.0)]).expected is None
    cases[2].stopped = "hopeless"
    assert standing(1e9, cases[:2]).decided == 0


def quantiles(n: int) -> np.ndarray:
    """Values of a normal distribution that lie as they should, in random order."""
    found = [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]
    return np.random.default_rng(0).permutation(found)


@pytest.mark.parametrize("metric", ["time", "p99"])
@pytest.mark.parametrize(
    ("n", "sd", "change", "lost"),
    [(32, 0.002, 0.03, False), (32, 0.03, 0.01, False), (32, 0.3, 0.003, True), (24, 0.3, 0.003, True)],
)
def test_a_case_is_hopeless_where_hardly_any_continuation_decides_it(n, sd, change, lost, metric):
    """Whatever the metric."""
    x = change + sd * quantiles(n)
    made = case("noisy", 1, 0.0).model_copy(update={"pairs": pairs(np.ones(n), np.exp(x), metric)})
    criterion = limit("noisy", metric=metric, device="cpu")
    assert hopeless(made, [criterion], Looks.fitted(7), 7) == lost


def test_a_case_with_a_criterion_that_pairs_may_decide_is_not_hopeless():
    time, p99 = ((np.ones(32), np.exp(0.01 + sd * quantiles(32))) for sd in (0.3, 0.03))
    made = case("noisy", 1, 0.0).model_copy(update={"pairs": pairs(*time, p99=p99)})
    asked = [limit("noisy", metric=metric, device="cpu") for metric in ("time", "p99")]
    assert [hopeless(made, some, Looks.fitted(7), 7) for some in (asked[:1], asked[1:], asked)] == [True, False, False]
