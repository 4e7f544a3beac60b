"""Other tools' files as workers of base and head: what they can show, and what they cannot."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfci.judge.judge import judge
from perfci.judge.replan import judge_by
from perfci.measure.imported.files import import_files
from perfci.model.base import UsageError
from perfci.model.limits import DEFAULT_LIMITS
from perfci.model.metrics import CustomMetric
from perfci.model.policy import Limit, Policy
from perfci.model.report import Report
from perfci.model.results import Results

DATA = Path(__file__).parents[2] / "data" / "import"


def scaled(tool: str, factor: float, change: Any = None) -> Any:
    """The recorded file of a tool with every time multiplied."""
    root = json.loads((DATA / f"{tool}.json").read_text(encoding="utf-8"))
    for one in root.get("benchmarks", root.get("results", [])):
        stats = one.get("stats", one)
        for name in ("mean", "real_time"):
            if name in stats:
                stats[name] *= factor
        for name in ("data", "times"):
            if name in stats:
                stats[name] = [value * factor for value in stats[name]]
    if change:
        change(root)
    return root


def written(folder: Path, tool: str, name: str, factors: Sequence[float], change: Any = None) -> list[Path]:
    paths = []
    for index, factor in enumerate(factors):
        paths.append(folder / f"{name}-{index}.json")
        paths[-1].write_text(json.dumps(scaled(tool, factor, change)), encoding="utf-8")
    return paths


def noise(n: int, seed: int, centre: float = 1.0) -> list[float]:
    drawn = random.Random(seed)
    return [centre * drawn.gauss(1, 0.003) for _ in range(n)]


def sides(
    folder: Path, tool: str = "hyperfine", n: int = 8, slower: float = 1.0, *, base: Any = None, head: Any = None
) -> dict[Any, list[Path]]:
    """So many files of each side. `base`, `head`: what is changed in all of that side."""
    return {
        "base": written(folder, tool, "base", noise(n, 1), base),
        "head": written(folder, tool, "head", noise(n, 2, slower), head),
    }


def compared(folder: Path, tool: str, n: int, slower: float, policy: Policy | None = None) -> tuple[Results, Report]:
    imported = import_files(sides(folder, tool, n, slower), policy or Policy(version=1))
    results = Results.model_validate_json(imported.model_dump_json())
    return results, judge(results)


def classes(report: Report) -> dict[str, str]:
    return {row.case: row.class_ for row in reversed(report.rows)}


@pytest.mark.parametrize("tool", ["pytest-benchmark", "hyperfine"])
def test_ten_files_of_each_side_convict_and_acquit(tool, tmp_path):
    _, worse = compared(tmp_path, tool, 10, 1.2)
    assert worse.exit_code == 1 and set(classes(worse).values()) == {"regression"}
    _, same = compared(tmp_path, tool, 10, 1.0)
    assert same.exit_code == 0 and set(classes(same).values()) == {"unchanged"}


def test_commands_of_two_names_are_no_pair_and_the_note_says_how_they_are(tmp_path):
    def renamed(root):
        for number, one in enumerate(root["results"]):
            one["command"] = f"other {number}"

    made = import_files(sides(tmp_path, "hyperfine", 8, head=renamed), Policy(version=1))
    assert "no command is in both: hyperfine names cases by command: give both one --command-name NAME" in made.notes
    told = import_files(sides(tmp_path, "hyperfine", 8), Policy(version=1)).notes
    assert not any("command-name" in note for note in told)


def test_google_benchmark_that_fails_in_both_sides_says_so_beside_what_it_measured(tmp_path):
    _, report = compared(tmp_path, "google-benchmark", 10, 1.2)
    found = classes(report)
    assert found.pop("broken") == "failed" and set(found.values()) == {"regression"}
    assert report.exit_code == 3  # as of a run: nothing can be said of what fails in base


@pytest.mark.parametrize("n", [1, 6])
def test_fewer_files_than_can_show_anything_show_nothing(tmp_path, n):
    results, report = compared(tmp_path, "hyperfine", n, 3.0)
    assert report.exit_code == 0 and set(classes(report).values()) == {"inconclusive"}
    assert report.rows[0].reason == f"{n} of the 8 files each of base and head that it takes to show a regression"
    assert any("run base and head in turns" in note for note in report.notes)
    assert ("more files" if n == 1 else "more pairs") in report.advice
    assert judge(results, strict=True).exit_code == 1


def test_what_is_needed_is_enough(tmp_path):
    """A slow-down plain in every pair is a regression with as many files as reports ask for, and not with one less."""
    policy = Policy(version=1, limits=[*DEFAULT_LIMITS, Limit(metric="time", max="9s")])
    for n, expected in ((8, "inconclusive"), (9, "regression")):
        results, report = compared(tmp_path, "hyperfine", n, 2.0, policy)
        assert results.plan.m == 4  # of two cases, a relative and an absolute limit each
        assert results.plan.looks.fewest_to_show(results.plan.m) == 9
        assert {row.class_ for row in report.rows if row.kind == "regression"} == {expected}


def test_an_absolute_limit_holds_for_a_single_file(tmp_path):
    def judged(limit: str) -> Report:
        policy = Policy(version=1, limits=[Limit(cases="nap/t=0.01", max=limit)])  # type: ignore[arg-type]
        (file,) = written(tmp_path, "hyperfine", "head", [1.0])
        return judge(import_files({"head": [file]}, policy))

    within, broken = judged("12ms"), judged("11ms")
    assert (within.exit_code, classes(within)) == (0, {"nap/t=0.01": "unchanged"})
    assert (broken.exit_code, classes(broken)) == (1, {"nap/t=0.01": "violation"})
    assert broken.rows[0].reason == "11.2 ms is above the limit of 11.0 ms"


def test_other_limits_judge_the_same_files(tmp_path):
    results, report = compared(tmp_path, "hyperfine", 10, 1.2)
    assert report.exit_code == 1
    loose = judge_by(Policy(version=1, limits=[Limit(regression="50%")]), results)  # type: ignore[arg-type]
    assert loose.exit_code == 0 and loose.exploratory
    bound = judge_by(Policy(version=1, limits=[Limit(max="1ms")]), results)
    assert {row.class_ for row in bound.rows} == {"violation"}  # without statistics here, too


def test_one_worker_is_not_two(tmp_path):
    """The same file in base and head would be compared with itself, and twice in one it would count twice."""
    base, head = sides(tmp_path).values()
    copy = tmp_path / "copy.json"
    copy.write_bytes(base[0].read_bytes())
    for files, said in (
        ({"base": base, "head": base}, r"base-0\.json is given twice"),
        ({"base": base, "head": [head[0]] * 8}, r"head-0\.json is given twice"),
        ({"base": base, "head": [*head[1:], copy]}, r"base-0\.json and .*copy\.json hold the same"),
    ):
        with pytest.raises(UsageError, match=rf"^import: .*{said}: each file is a worker of its own"):
            import_files(files, Policy(version=1))


def test_cases_of_one_side_alone(tmp_path):
    def dropped(root: Any) -> None:
        del root["results"][0]

    files = sides(tmp_path, head=dropped)
    assert classes(judge(import_files(files, Policy(version=1)))) == {
        "nap/t=0.01": "missing",
        "nap/t=0.02": "unchanged",
    }
    files["base"], files["head"] = files["head"], files["base"]
    assert classes(judge(import_files(files, Policy(version=1)))) == {"nap/t=0.01": "added", "nap/t=0.02": "unchanged"}
    files["head"] = [*written(tmp_path, "hyperfine", "bare", [1.0], dropped), *files["head"][1:]]
    (row,) = (row for row in judge(import_files(files, Policy(version=1))).rows if row.case == "nap/t=0.01")
    assert row.class_ == "failed" and "bare-0.json does not report it" in row.reason


def test_samples_are_not_compared_with_a_mean(tmp_path):
    def bare(root: Any) -> None:
        for one in root["results"]:
            del one["times"]

    report = judge(import_files(sides(tmp_path, base=bare), Policy(version=1)))
    assert set(classes(report).values()) == {"changed"}
    assert report.rows[0].reason == "timing time is mean in base, samples in head"


def test_another_machine_is_another_question(tmp_path):
    def moved(root: Any) -> None:
        root["machine_info"] |= {"node": "elsewhere", "cpu": {"count": 64, "brand_raw": "Xeon"}}

    report = judge(import_files(sides(tmp_path, "pytest-benchmark", base=moved), Policy(version=1)))
    assert set(classes(report).values()) == {"changed"}
    assert report.rows[0].reason == "timing machine is 64 cores, Xeon in base, 2 cores, AMD EPYC in head"
    assert any("base was measured on elsewhere, head on host" in note for note in report.notes)


def dated(day: int, start: int) -> Any:
    minutes = iter(range(start, 60, 2))

    def change(root: Any) -> None:
        root["datetime"] = f"2026-01-{day:02}T00:{next(minutes):02}:00+00:00"

    return change


@pytest.mark.parametrize(("day", "told"), [(1, False), (2, True)])
def test_sides_that_were_not_measured_in_turns_are_told(tmp_path, day, told):
    files = sides(tmp_path, "pytest-benchmark", base=dated(1, 0), head=dated(day, 1))
    results = import_files(files, Policy(version=1))
    assert any("not in turns" in note for note in results.notes) == told
    assert results.started == "2026-01-01T00:00:00+00:00"


def test_what_the_files_tell_of_their_origin_is_told(tmp_path):
    results, _ = compared(tmp_path, "pytest-benchmark", 8, 1.0)
    facts = results.fingerprint
    assert (facts.host, facts.cpu, facts.cores, facts.python) == ("host", "AMD EPYC", 2, "3.11.7")
    assert facts.imported == {"imported from": "pytest-benchmark"}
    assert results.sides["head"].commit == "0123456789abcdef" * 2 + "01234567" and results.sides["head"].dirty
    assert results.sides["base"].ref == "base-0.json … base-7.json"
    assert results.notes[0].startswith("measured by pytest-benchmark: perfci built nothing")


def test_nvbench_files_are_of_the_gpu_that_they_name(tmp_path):
    recorded = DATA.parent / "nvbench" / "matmul.json"
    limits = [
        Limit(cases="mm/*", devices=["*H200*"], max="1ms"),
        Limit(cases="mm/N=1024", devices=["*H100*"], max="1ns"),
        Limit(cases="mm/N=4096", metric="throughput", min="1000000 G/s"),
    ]  # fmt: skip
    results = import_files({"head": [recorded]}, Policy(version=1, limits=limits))
    assert results.fingerprint.devices == {"cuda": "NVIDIA H200"}
    report = judge(results)
    found = {(row.case, row.metric): row.class_ for row in report.rows}
    assert found == {
        ("mm/N=1024", "time"): "unchanged", ("mm/N=4096", "time"): "unchanged", ("mm/N=8192", "time"): "violation",
        ("mm/N=4096", "throughput"): "violation",
    }  # fmt: skip


def test_files_that_do_not_fit_together(tmp_path):
    base = written(tmp_path, "hyperfine", "base", [1.0] * 2)
    more, other = (written(tmp_path, tool, tool, [1.0] * n) for tool, n in (("hyperfine", 3), ("pytest-benchmark", 1)))
    for head, says in ((more, "2 of base and 3 of head: files pair up in order"), (other, "import one tool at a time")):
        with pytest.raises(UsageError, match=says):
            import_files({"base": base[: len(head)], "head": head}, Policy(version=1))


def test_a_bound_holds_for_a_metric_that_heads_files_alone_have(tmp_path):
    def grown(root: Any) -> None:
        for one in root["benchmarks"]:
            one["p99"] = 1.0

    policy = Policy(
        version=1, metrics={"p99": CustomMetric(unit="s")}, limits=[*DEFAULT_LIMITS, Limit(metric="p99", max="20ms")]
    )
    results = import_files(sides(tmp_path, "google-benchmark", 10, head=grown), policy)
    for report in (judge(results), judge_by(policy, results)):
        found = {row.class_ for row in report.rows if row.metric == "p99" and row.kind == "max"}
        assert found == {"violation"} and not report.exploratory
