"""Checks that cannot be argued with, from the command line to the exit code; the attacks proper: tests/attacks."""

import sys
from textwrap import dedent

import pytest

from tests.e2e.conftest import Repo, adding

POLICY = "budget: 8s\nlimits: [{cases: '*', metric: time, regression: 50%}]\n"
CASE = """
    import os

    import perfci

    calls = []

    def work(data):
        calls.append(1)
        {trouble}
        return sorted(data)

    @perfci.kernel(devices=["cpu"])
    def {name}(bench):
        data = [bench.random.random() for _ in range(3000)]
        bench.reference(lambda: sorted(data))
        calls.clear()
        return lambda: work(data)
"""
# Ends its process once so many cases have been checked, which the journal says; rounds come after them.
DIES = 'len(calls) > 2 and open({journal!r}).read().count(\'"kind":"probe"\') >= {checked} and os.kill(os.getpid(), 11)'


def suite(repo: Repo, name: str, trouble: str = "pass") -> None:
    repo.write(f"kernels/{name}.py", dedent(CASE).format(name=name, trouble=trouble))


def dying(repo: Repo, checked: int) -> None:
    journal = str(repo.root / "perfci-out" / "journal.jsonl")
    suite(repo, "dies", DIES.format(journal=journal, checked=checked))


@pytest.mark.slow
def test_base_that_was_right_and_dies_while_it_is_measured_is_an_error(repo: Repo) -> None:
    repo.policy(POLICY)
    dying(repo, checked=2)
    repo.commit("base")
    suite(repo, "dies")
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 3, run.out + run.err
    assert run.report["verdict"] == "error" and "PASS" not in run.out
    assert "dies: base failed while it was measured, although it was right before: killed by SIGSEGV" in run.out
    assert "see perfci-out/logs/base.log" in run.out
    assert run.results["cases"][0]["sides"]["base"]["reason"]["during"] == "round"


@pytest.mark.slow
def test_what_fails_comes_before_a_base_that_has_died(repo: Repo) -> None:
    repo.policy(POLICY)
    dying(repo, checked=3)
    suite(repo, "wrong")
    repo.commit("base")
    suite(repo, "dies")
    suite(repo, "wrong", "data = data[1:]")
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    assert run.report["verdict"] == "fail"
    assert run.classes() == {"dies": "invalid", "wrong": "failed"}
    assert "base failed while it was measured: killed by SIGSEGV" in run.reasons()["dies"]


@pytest.mark.slow
@pytest.mark.torch
def test_an_error_over_nan_says_what_to_give_a_kernel_that_reads_its_output(repo: Repo) -> None:
    """As GEMMs do with beta = 0 written as a product."""
    repo.write(
        "perfci.yaml", f"version: 1\nsuite: [kernels/*.py]\npython: {sys.executable}\ndevices: [cpu]\nbudget: 20s\n"
    )
    for name, output in (("reads_empty", "empty"), ("reads_zeros", "zeros")):
        repo.write(
            f"kernels/{name}.py",
            f"""
            import perfci

            @perfci.kernel(devices=["cpu"])
            def {name}(bench):
                a, b, c = bench.randn(64, 64), bench.randn(64, 64), bench.{output}(64, 64)
                bench.reference(lambda: a.double() @ b.double(), rtol=1e-4, atol=1e-4)
                return lambda: a @ b + 0.0 * c
            """,
        )
    run = repo.perfci("run")
    assert run.code == 1, run.out + run.err
    assert run.classes().get("reads_empty") == "failed" and "reads_zeros" not in run.classes()
    reason = run.reasons()["reads_empty"]
    assert "memory that was not written holds NaN while results are checked" in reason
    assert "as beta * C does, must be given one of bench.zeros(), not of bench.empty()" in reason


def test_a_case_that_writes_into_its_own_files_is_told_where_to_write(repo: Repo) -> None:
    """Not only base's files count, and not only what an attacker does."""
    repo.policy("budget: 20s\n")
    repo.write("state.json", "{}\n")
    suite(repo, "writes", "open('state.json', 'w').write(str(len(calls)))")
    run = repo.perfci("run")
    assert run.code == 3, run.out + run.err
    last = run.err.strip().splitlines()[-1]
    assert last.startswith("perfci: head's files were changed while it was measured: tree/state.json was changed: ")
    assert "let cases write below $TMPDIR" in last
    assert run.results["cases"][0]["pairs"], "what was measured is kept"


@pytest.mark.slow
def test_new_files_that_nobody_imports_are_no_matter(repo: Repo) -> None:
    repo.policy("budget: 20s\n")
    suite(repo, "writes", "open('new.json', 'w').write(str(len(calls)))")
    run = repo.perfci("run")
    assert run.code == 0, run.out + run.err


@pytest.mark.slow
def test_inputs_that_cannot_be_redrawn_are_told(repo: Repo) -> None:
    repo.policy("budget: 20s\n")
    suite(repo, "honest")
    repo.write("kernels/adding.py", adding())
    suite(repo, "opaque")
    path = repo.root / "kernels" / "opaque.py"
    path.write_text(
        path.read_text().replace("return lambda: work(data)", "it = iter(data)\n    return lambda: (it, work(data))[1]")
    )
    run = repo.perfci("run")
    assert run.code == 0, run.out + run.err
    notes = [note for note in run.report["notes"] if "redrawn in place" in note]
    assert len(notes) == 1 and "opaque: it keeps a list_iterator, which cannot be read" in notes[0]
    assert "honest" not in notes[0] and "adding" not in notes[0], "which draws nothing"
