"""Checks that cannot be argued with, from the command line to the exit code; the attacks proper: tests/attacks."""

from textwrap import dedent

import pytest

from tests.e2e.conftest import Repo, adding

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


def suite(repo: Repo, name: str, trouble: str = "pass") -> None:
    repo.write(f"kernels/{name}.py", dedent(CASE).format(name=name, trouble=trouble))


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
    assert len(notes) == 1 and "opaque (it keeps a list_iterator, which cannot be read)" in notes[0]
    assert "honest" not in notes[0] and "adding" not in notes[0], "which draws nothing"
