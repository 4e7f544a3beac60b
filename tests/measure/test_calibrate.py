"""What `calibrate` concludes from recorded H200 pairs, keeps, proposes, and what `compare` and `list --plan` make of it."""

import json
import math

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci import schemas
from perfci.measure.calibrate.forecast import forecast
from perfci.measure.calibrate.trials import conclude, proposed
from perfci.model.base import MachineError, matches
from perfci.model.calibration import Calibration
from perfci.model.limits import Subject, criteria
from perfci.model.plan import Looks
from perfci.model.policy import Policy
from perfci.model.results import Work
from perfci.stats.decide import decide, margin
from perfci.stats.equal_clock import log_ratios
from tests.measure.recorded import IDS, RATIOS, STATES, calibrations, case, criterion, recorded, results

# What it concludes


@pytest.mark.slow
def test_recorded_pairs_of_a_quiet_gpu_hold_a_limit_of_1_percent():
    found = calibrations()["quiet"]
    assert found.exit_code == 0
    assert found.warnings == []
    assert len(found.cases) == 6
    assert found.failing.failing == 0
    assert found.failing.high < 0.01
    for one in found.cases:
        assert one.replayed.unchanged == 1
        assert one.replayed.pairs == 8
        assert one.smallest < margin(0.005, "lower")
        assert one.seconds == pytest.approx(150 / (6 * 32)), "all wall time is shared out"


def test_a_planted_effect_of_3_in_1000_is_named_first_and_ends_in_1():
    found = calibrations()["planted"]
    assert found.exit_code == 1
    assert [one.case for one in found.cases[:2]] == ["matmul/n=8192", "sdpa/seq=512"], "limit broken first"
    assert [one.differs for one in found.cases] == [True] * 2 + [False] * 4
    assert any("`sdpa/seq=512`: head is 0.3" in text and "slower than base" in text for text in found.warnings)
    assert any("`matmul/n=8192`: head is 1.2 % faster than base" in text for text in found.warnings)


@pytest.mark.parametrize(
    "kernel", [kernel if kernel == "mm1024" else pytest.param(kernel, marks=pytest.mark.slow) for kernel in IDS]
)
def test_3_in_1000_is_caught_on_every_recorded_kernel(kernel):
    measured = recorded({kernel: 0.003})
    found = conclude(measured)
    assert [one.case for one in found.cases if one.differs] == [IDS[kernel]]
    assert found.exit_code == 1


def test_an_effect_that_makes_runs_fail_is_told_apart_from_noise():
    measured = recorded({"mm1024": 0.012})
    found = conclude(measured)
    assert found.failing.low > 0.9
    assert any("fix what differs between the sides" in text for text in found.warnings)


def test_an_effect_that_does_not_matter_is_told_and_fails_nothing():
    x = np.random.default_rng(1).normal(2e-5, 1e-5, 32)
    found = conclude(results([case("still", x)]))
    assert found.cases[0].differs
    assert found.exit_code == 0
    assert len(found.warnings) == 1


@pytest.mark.slow
def test_the_fail_rate_is_that_of_the_decision():
    """Whole runs of three loud cases with biases, drawn anew and decided one by one."""
    rng = np.random.default_rng(2)
    series = [rng.normal(0.006, 0.004, 32) for _ in range(3)]
    found = conclude(results([case(f"c{i}", x) for i, x in enumerate(series)]))
    assert 0.05 < found.failing.failing / found.failing.runs < 0.95

    def is_red() -> bool:
        at = rng.integers(0, 32, 64)
        return any(decide(x[at], margin(0.01, "lower"), Looks(), 3, ended=True).status == "regression" for x in series)

    rate = np.mean([is_red() for _ in range(600)])
    assert abs(rate - found.failing.failing / found.failing.runs) < 0.08


def test_only_criteria_that_can_fail_the_run_make_it_fail():
    x = np.full(32, 0.05) + np.random.default_rng(3).normal(0, 0.001, 32)
    measured = results([case("c", x)], [criterion("c", fail_on=["missing"])])
    assert conclude(measured).failing is None


def test_what_derives_from_time_is_judged_by_the_noise_of_time():
    found = {}
    for planted in (0.03, -0.03):
        measured = recorded({"mm1024": planted})
        measured.plan.criteria = [criterion("matmul/n=1024", metric="tflops", unit="TFLOP/s", better="higher")]
        for side in next(one for one in measured.cases if one.id == "matmul/n=1024").sides.values():
            side.work = Work(flops=2e9)
        found[planted] = conclude(measured)
        assert {one.metric for one in found[planted].cases} == {"time"}
    assert found[0.03].failing.failing == found[0.03].failing.runs, "a rise of the time is a fall of the rate"
    assert found[-0.03].failing.failing == 0


def test_a_least_change_loosens_the_limit_that_is_replayed():
    measured = results([case("tiny", np.zeros(32), seconds=1e-6)], [criterion("tiny", min_change=32e-9)])
    assert conclude(measured).cases[0].asked == pytest.approx(0.032)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_values_that_are_no_numbers_calibrate_nothing(bad):
    broken = case("broken", np.zeros(32))
    broken.pairs[3].values["head"]["time"] = bad
    found = conclude(results([broken, case("fine", np.zeros(32))]))
    assert [one.case for one in found.cases] == ["fine"]
    assert any("broken: not calibrated" in text for text in found.warnings)
    with pytest.raises(MachineError, match="nothing was calibrated: broken"):
        conclude(results([broken]))


def test_sides_of_the_same_code_that_ask_differently_end_in_1():
    odd = case("odd", np.zeros(32))
    odd.sides["head"].timing.settings["tf32"] = True
    found = conclude(results([odd]))
    assert found.exit_code == 1
    assert "base and head are the same code, and yet timing tf32" in found.warnings[0]


def test_the_document_fits_its_schema_and_comes_back():
    schema = jsonschema.Draft202012Validator(schemas.schemas()["calibration"])
    for state, found in calibrations().items():
        text = found.model_dump_json()
        schema.validate(json.loads(text))
        assert Calibration.model_validate_json(text) == found, state


def test_where_the_noise_comes_from_is_told():
    found = next(one for one in calibrations()["quiet"].cases if one.case == "sdpa/seq=512")
    assert set(found.components) == {"worker", "placement", "block"}
    assert found.components["block"] == pytest.approx(math.sqrt(5e-5 / 24))


def test_calibrating_twice_from_the_same_results_gives_the_same_bytes():
    assert calibrations()["quiet"].model_dump_json() == conclude(recorded()).model_dump_json()


# What it proposes


@pytest.mark.parametrize("state", STATES)
def test_the_proposed_policy_parses_and_its_limits_can_be_held(state):
    found = calibrations()[state]
    limits = [limit for line in found.limits for limit in yaml.safe_load(line) or ()]
    policy = Policy.model_validate({"version": 1, "suite": "kernels/*.py", "limits": limits})
    asked = criteria(policy, [Subject(one.case, one.device) for one in found.cases])
    for one in found.cases:
        mine = [j for j in asked if (j.case, j.device, j.metric) == (one.case, one.device, one.metric)]
        if not any(line.startswith("#") and one.case in line for line in found.limits):
            assert len(mine) == 1
            assert margin(mine[0].bound, "lower") >= one.smallest


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12),
            st.one_of(st.none(), st.floats(0, 0.4)),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda pair: pair[0],
    )
)
def test_proposals_are_yaml_that_names_exactly_the_cases(names):
    """Ids with globs, quotes, colons and other alphabets."""
    template = calibrations()["quiet"].cases[0]
    cases = [
        template.model_copy(update={"case": name, "reach": {} if smallest is None else {64: smallest}})
        for name, smallest in names
    ]
    lines = proposed(cases)
    limits = yaml.safe_load("\n".join(lines)) or []
    for one in cases:
        mine = [limit for limit in limits if any(matches(pattern, one.case) for pattern in limit["cases"])]
        if one.smallest is None or math.expm1(one.smallest) > 0.2001:
            assert mine == []
        elif math.expm1(one.smallest) < 0.1999:
            assert len(mine) == 1
            assert float(mine[0]["regression"].rstrip("%")) / 100 >= math.expm1(one.smallest) * (1 - 1e-6)


# The plan


def planned(measured, tmp_path, **update):
    plan = measured.plan.model_copy(update={"exact_pairs": None} | update)
    return forecast(measured.cases, plan, measured.fingerprint, tmp_path)


def test_a_plan_without_a_past_is_unknown_and_marked(tmp_path):
    found = planned(recorded(), tmp_path)
    assert {one.outlook for one in found.cases} == {"unknown"}
    assert found.estimated
    assert found.seconds > 0


def calibrated(measured, tmp_path):
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "results.json").write_text(measured.model_dump_json())
    return conclude(measured)


def test_a_plan_says_what_the_calibration_knows(tmp_path):
    measured = recorded()
    calibration = calibrated(measured, tmp_path)
    found = planned(measured, tmp_path)
    assert {(one.outlook, one.source, one.pairs) for one in found.cases} == {("decided", "calibration", 8)}
    assert found.seconds == pytest.approx(8 * sum(one.seconds for one in calibration.cases))
    assert not found.estimated
    tight = planned(measured, tmp_path, criteria=[criterion(one.id, 0.001) for one in measured.cases])
    outlooks = {one.case: one.outlook for one in tight.cases}
    assert outlooks["add/n=65536"] == outlooks["sdpa/seq=512"] == "noise"
    assert outlooks["copy/bytes=512M"] == outlooks["trajectory_resample"] == "decided"


def test_a_plan_names_what_the_budget_leaves_open(tmp_path):
    loud = case("loud", np.random.default_rng(5).normal(0, 0.006, 32))
    measured = results([loud, case("still", np.zeros(32))])
    calibrated(measured, tmp_path)
    enough = planned(measured, tmp_path)
    assert {one.case: one.outlook for one in enough.cases} == {"loud": "decided", "still": "decided"}
    short = planned(measured, tmp_path, budget=enough.seconds + enough.beside - 0.1)
    assert {one.case: one.outlook for one in short.cases} == {"loud": "budget", "still": "decided"}
    none = planned(measured, tmp_path, budget=0.1)
    assert {one.outlook for one in none.cases} == {"budget"}


def test_a_plan_falls_back_on_the_last_results_of_this_machine(tmp_path):
    measured = recorded({"mm1024": 0.03})  # a true change tells nothing of the noise
    (tmp_path / "results.json").write_text(measured.model_dump_json())
    found = planned(measured, tmp_path)
    assert {(one.outlook, one.source) for one in found.cases} == {("decided", "last results")}
    assert found.seconds == pytest.approx(8 * 6 * 150 / (6 * 32))
    assert (found.rests, found.beside) == ("last results", measured.seconds - measured.measuring_seconds)
    elsewhere = measured.fingerprint.model_copy(update={"devices": {"cuda": "NVIDIA A100"}})
    other = planned(measured.model_copy(update={"fingerprint": elsewhere}), tmp_path)
    assert {one.outlook for one in other.cases} == {"unknown"}


def test_recorded_ratios_are_those_of_the_recording():
    assert np.allclose(log_ratios(recorded().cases[0], "time", Looks().first).x, RATIOS["add64k|rot|cycles"][:32])


def test_a_plan_adds_what_a_run_takes_beside_its_pairs_and_the_first_ones_are_dearer(tmp_path):
    measured = results([case("dear", np.zeros(4)), case("cheap", np.zeros(4))])
    for one, seconds in zip(measured.cases, (2.0, 1.0), strict=True):
        for pair in one.pairs:
            pair.seconds = {"block": seconds * (3 if pair.index < 2 else 1)}
    costs = {"wait": 50.0, "build": 7.0, "check": 2.0, "profile": 40.0, "other": 1.0, "samples": 26.0}
    update = {"measuring_seconds": 24 + 8 * 0.25, "seconds": sum(costs.values()), "costs": costs}
    ran = measured.model_copy(update=update)
    found = planned(measured, tmp_path)
    assert (found.rests, found.beside) == ("", None)
    (tmp_path / "results.json").write_text(ran.model_dump_json())
    first = planned(measured, tmp_path, budget=52.0)
    assert (first.rests, first.beside) == ("last results", 10.0)
    assert first.seconds == pytest.approx((2 + 1) * (2 * 3 + 6) + 16 * 0.25)
    late = planned(measured, tmp_path, budget=first.seconds + 3 - 0.1)
    assert [one.outlook for one in late.cases] == ["unknown", "unknown"]
