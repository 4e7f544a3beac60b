"""ncu's own metrics, sets and sections on a GPU: what is asked of it for whom, and what it says of what it has not."""

import json

import pytest

from tests.e2e.conftest import Repo, Run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1500), pytest.mark.usefixtures("gpu")]

INSTRUCTIONS, UNKNOWN = "smsp__inst_executed.sum", "smsp__no_such_thing.sum"
KERNELS = """
    import perfci
    import torch

    @perfci.kernel(devices=["cuda"])
    def scale(bench):
        x = bench.randn(1 << 24)
        return lambda: x * 3

    @perfci.kernel(devices=["cuda"])
    def chain(bench):
        x = bench.randn(1 << 20)
        return lambda: torch.cos(torch.sin(x)) + 1

    @perfci.kernel(devices=["cuda"])
    def plain(bench):
        x = bench.randn(1 << 20)
        return lambda: x + 1
"""
POLICY = """
    version: 1
    suite: [kernels/*.py]
    budget: 300s
    profile: never
    counters: {counters}
    limits:
      - {{cases: "*", metric: time, max: 1s}}
      - {{cases: scale, metric: instructions, max: 1e12}}
      - {{cases: [scale, chain], metric: smsp__inst_executed.sum, max: 1e12}}
      - {{cases: scale, metric: smsp__inst_executed.sum, min: 1e12}}
      - {{cases: scale, metric: gpu__time_duration.sum, max: 10ms}}
      - {{cases: scale, metric: gpc__cycles_elapsed.avg.per_second, min: 100MHz}}
      - {{cases: scale, metric: dram__throughput.max.pct_of_peak_sustained_elapsed, min: 1%}}
      - {{cases: chain, metric: sm__cycles_active.avg, min: 1}}
      - {{cases: scale, metric: launch__waves_per_multiprocessor, min: 0.1}}
"""
REFUSED = """
      - {cases: plain, metric: instructions, max: 1e12}
      - {cases: plain, metric: smsp__no_such_thing.sum, max: 1}
"""


def written(repo: Repo, counters: str = "default", more: str = "") -> None:
    repo.write("perfci.yaml", POLICY.format(counters=counters) + more)
    repo.write("kernels/k.py", KERNELS)
    repo.commit("head")


def rows(run: Run) -> dict[tuple[str, str, str], dict]:
    return {(row["case"], row["metric"], row["kind"]): row for row in run.report["rows"]}


def profiles(run: Run) -> dict[str, dict]:
    return {case["id"]: case["sides"]["head"]["profile"] for case in run.results["cases"]}


def told(run: Run) -> str:
    """For a failed assertion: all that a reader would want to see."""
    found = {name: (one or {}).get("faults") for name, one in profiles(run).items()}
    reasons = [(row["case"], row["metric"], row["class"], row["reason"]) for row in run.report["rows"]]
    return f"{json.dumps(reasons, indent=1)}\n{json.dumps(found, indent=1)}\n{run.out}\n{run.err}"


def test_limits_on_ncus_own_metrics_are_judged_and_asked_for_their_cases_alone(repo: Repo) -> None:
    written(repo)
    run = repo.perfci("run", "--committed", timeout=600)
    assert run.code == 1, told(run)
    found = rows(run)
    assert found["scale", INSTRUCTIONS, "min"]["class"] == "violation", told(run)
    rest = {key: row["class"] for key, row in found.items() if key != ("scale", INSTRUCTIONS, "min")}
    assert {*rest.values()} == {"unchanged"}, told(run)
    assert found["scale", INSTRUCTIONS, "max"]["head"] == found["scale", "instructions", "max"]["head"] > 1e5
    seen = profiles(run)
    # Each has the time of a kernel under ncu, which is near the one of the timeline.
    under_ncu, traced = found["scale", "gpu__time_duration.sum", "max"]["head"], seen["scale"]["metrics"]["device_time"]
    assert under_ncu == pytest.approx(traced, rel=0.5), told(run)
    assert 2e8 < found["scale", "gpc__cycles_elapsed.avg.per_second", "min"]["head"] < 4e9, told(run)
    assert (
        "sm__cycles_active.avg" in seen["chain"]["metrics"] and "sm__cycles_active.avg" not in seen["scale"]["metrics"]
    )
    assert seen["plain"] is None or seen["plain"]["counters"] is None, "no limit asks for it"


def test_a_metric_that_ncu_has_not_is_invalid_in_its_own_words_and_costs_nothing_else(repo: Repo) -> None:
    written(repo, more=REFUSED)
    run = repo.perfci("run", "--committed", timeout=600)
    found = rows(run)
    row = found["plain", UNKNOWN, "max"]
    print(row["reason"])
    assert row["class"] == "invalid" and UNKNOWN in row["reason"] and "--query-metrics" in row["reason"], told(run)
    for key in (("plain", "instructions", "max"), ("chain", INSTRUCTIONS, "max"), ("scale", INSTRUCTIONS, "max")):
        assert found[key]["class"] == "unchanged", told(run)


@pytest.mark.parametrize(("counters", "least"), [("full", 20), ("[MemoryWorkloadAnalysis, WarpStateStats]", 3)])
def test_ncus_full_set_and_its_sections(repo: Repo, counters: str, least: int) -> None:
    """More replays, the rules of their sections, and the report of ncu itself."""
    written(repo, counters=counters)
    run = repo.perfci("profile", "-k", "scale", "--raw", timeout=600)
    assert run.code == 0, run.out + run.err
    counted = profiles(run)["scale"]["counters"]
    print(counters, counted["passes"], [rule["name"] for one in counted["kernels"] for rule in one["rules"]])
    assert counted["passes"] >= least, counted
    assert any(path.suffix == ".ncu-rep" for path in (repo.root / "perfci-out" / "raw").iterdir())
    values = counted["kernels"][0]["values"]
    assert "stall_long_scoreboard" in values or "memory_throughput" in values, values
    assert not [fault for fault in profiles(run)["scale"]["faults"] if fault["tool"] == "ncu"], told(run)
    if counters == "full":
        run = repo.perfci("run", "--committed", timeout=600)
        assert rows(run)["scale", INSTRUCTIONS, "max"]["class"] == "unchanged", told(run)
