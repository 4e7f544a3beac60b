"""`creep:` on real repositories: what a reference is held to, by whose limits, and what no pull request is asked."""

import pytest

from tests.e2e.conftest import Repo, adding

LIMITS = """
    limits:
      - {cases: "slower", regression: 1000%, creep: 20%}
"""


@pytest.mark.slow
def test_main_is_held_to_the_reference_by_its_own_limits(repo: Repo) -> None:
    """The reference knows no creep, has a case that main gave up, and lacks one of main's."""
    repo.policy("limits: [{cases: '*', regression: 1%}]\n")
    for name in ("slower", "alike", "gone"):
        repo.write(f"kernels/{name}.py", adding(name=name))
    repo.commit("release")
    repo.git("tag", "v1.2")
    (repo.root / "kernels/gone.py").unlink()
    repo.write("kernels/slower.py", adding(spin=10_000, name="slower"))
    repo.write("kernels/alike.py", adding(name="alike") + "# another file\n")
    repo.write("kernels/new.py", adding(name="new"))
    repo.policy(LIMITS)
    repo.commit("many small steps")

    run = repo.perfci("compare", "--base", "v1.2", "--creep", "--committed")
    assert run.code == 1, run.out + run.err
    rows = {row["case"]: row for row in run.report["rows"]}
    assert {name: (row["kind"], row["class"]) for name, row in rows.items()} == {
        "slower": ("creep", "regression"),
        "new": ("presence", "added"),
    }
    assert rows["slower"]["limit"] == 0.2
    assert run.results["policy_from"] == "head"
    assert (
        "`creep` limits stand in the place of `regression`"
        in run.out + (repo.root / "perfci-out/report.md").read_text()
    )
    pairs = {case["id"]: len(case["pairs"]) for case in run.results["cases"]}
    assert pairs.keys() == {"slower", "alike", "new"}
    [alike] = [case for case in run.results["cases"] if case["id"] == "alike"]
    unasked = {trail["case"]: len(trail["ratios"]) for trail in run.report["unasked"]}
    if alike["proof"] and alike["proof"]["by"]:
        assert unasked == {}
    else:
        assert unasked == {"alike": pairs["alike"]}, "it is recorded"
        assert pairs["alike"] == run.results["plan"]["looks"]["pairs"][0]

    as_change = repo.perfci("report", "--policy", "perfci.yaml")
    assert as_change.code == 1, "judged again, it is still asked for creep"
    listed = repo.perfci("list")
    assert "time within 20 % of the reference" in listed.out, listed.err
