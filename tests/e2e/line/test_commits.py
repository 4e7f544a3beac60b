"""`compare BASE HEAD`: a commit in place of this tree; and benchmarks without a policy."""

from ..conftest import Repo, adding

QUICK = ("--quick", "--budget", "1m", "--device", "cpu")
BENCHMARK = """
    def test_total(benchmark):
        benchmark(lambda: sum(range({})))
"""


def test_another_commit_is_measured_without_switching_to_it(repo: Repo) -> None:
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write("kernels/adding.py", adding())
    repo.commit("base")
    repo.git("switch", "-q", "-c", "slower")
    repo.write("kernels/adding.py", adding(spin=2000))
    repo.commit("slower")
    repo.git("switch", "-q", "main")
    repo.write("kernels/other.py", adding(name="other"))
    repo.commit("main goes on")
    repo.write("kernels/adding.py", "raise SystemExit('is not measured')\n")
    run = repo.perfci("compare", "main", "slower", *QUICK)
    assert (run.code, run.classes()) == (1, {"adding": "regression"}), run.out + run.err
    base, head = repo.git("rev-parse", "main~1"), repo.git("rev-parse", "slower")
    assert {name: side["commit"] for name, side in run.results["sides"].items()} == {"base": base, "head": head}
    assert run.results["command"] == ["perfci", "compare", base, head, *QUICK]
    assert repo.git("branch", "--show-current") == "main" and repo.git("status", "--porcelain")
    again = repo.perfci("compare", "slower", "main", "-k", "nothing")
    assert again.code == 2 and "nothing: matches no case: there are adding, other" in again.err
    same = repo.perfci("compare", "slower", "main~1")
    assert same.code == 2
    assert "main~1 is an ancestor of slower: nothing to compare" in same.err and "perfci compare main~1" in same.err


def test_benchmarks_are_held_to_a_limit_where_no_policy_is(repo: Repo) -> None:
    repo.write("benchmarks/test_bench_total.py", BENCHMARK.format(20_000))
    repo.commit("base")
    repo.write("benchmarks/test_bench_total.py", BENCHMARK.format(80_000))
    run = repo.perfci("compare", "HEAD", "--limit", "20%", *QUICK)
    (case,) = run.classes()
    assert (run.code, run.classes()[case]) == (1, "regression"), run.out + run.err
    assert (
        "total" in case and "there is no perfci.yaml: the benchmarks that perfci finds are held to --limit" in run.out
    )
    assert not (repo.root / "perfci.yaml").exists()
    assert "if it is intended, raise the limit." in run.out
    repo.git("switch", "-q", "-c", "other")
    repo.commit("slower")
    repo.git("switch", "-q", "main")
    repo.policy()
    lacks = repo.perfci("compare", "main", "other")
    assert lacks.code == 2 and "other: has no perfci.yaml: merge a branch that has one, or give --limit" in lacks.err
    assert repo.perfci("compare", "main", "other", "--limit", "20%", *QUICK).classes() == {case: "regression"}
    said = "has a perfci.yaml, whose limits hold: change them there, or leave out --limit"
    both = repo.perfci("compare", "HEAD", "--limit", "20%")
    assert both.code == 2 and "perfci.yaml: change them there, or leave out --limit" in both.err
    repo.commit("policy")
    repo.git("rm", "-q", "perfci.yaml")
    loosened = repo.perfci("compare", "HEAD", "--limit", "90%")
    assert loosened.code == 2 and f"--limit: base {said}" in loosened.err


def test_a_renamed_case_is_told_beside_what_is_missing(repo: Repo) -> None:
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write("kernels/adding.py", adding())
    repo.commit("base")
    repo.write("kernels/adding.py", adding(name="plus"))
    run = repo.perfci("compare", "HEAD", *QUICK)
    assert "adding of base has the code of plus of head: renamed?" in run.out, run.out + run.err
    assert run.classes() == {"adding": "missing", "plus": "added"}


def test_a_benchmark_without_its_plugin_says_what_to_install(repo: Repo) -> None:
    repo.write("benchmarks/test_bench_total.py", BENCHMARK.format(20))
    repo.write("pytest.ini", "[pytest]\naddopts = -p no:benchmark\n")
    repo.commit("base")
    run = repo.perfci("compare", "HEAD", "--limit", "20%", "--measure-all", *QUICK)
    assert run.code == 2 and "needs the fixture `benchmark`: install pytest-benchmark" in run.err + run.out, (
        run.out + run.err
    )
