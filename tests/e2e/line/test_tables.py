"""A program that only prints a table: its rows are cases, and none of them vanishes."""

from textwrap import dedent

import pytest

from tests.e2e.conftest import PLAIN_PYTHON, Repo, Run

BENCH = """
    import random
    print("device: a CPU")
    print("N,provider,ms,GB/s")
    for n in {sizes}:
        print(f"{{n}},mine,{{n * {factor} * random.uniform(0.999, 1.001)}},1.0")
    {more}
"""


def compared(repo: Repo, head: str, factor: float = 1.0, more: str = "", unit: str = "ms") -> Run:
    """Base's three rows against those of `head`."""
    written(repo, "[1, 2, 4]")
    repo.commit()
    written(repo, head, factor, more, unit)
    return repo.perfci("compare", "--base", "HEAD", "--quick")


def written(repo: Repo, sizes: str, factor: float = 1.0, more: str = "", unit: str = "ms") -> None:
    repo.write("b.py", dedent(BENCH).format(sizes=sizes, factor=factor, more=more))
    run = f"run: {PLAIN_PYTHON} b.py, reads: csv, case: [provider, N], value: ms, unit: {unit}"
    repo.write(
        "perfci.yaml",
        f"version: 1\npython: {PLAIN_PYTHON}\ndevices: [cpu]\nbudget: 60s\ncommands: [{{name: sweep, {run}}}]\n"
        "limits: [{cases: '*', regression: 10%}]\n",
    )


def test_rows_are_cases_in_pairs(repo: Repo) -> None:
    run = compared(repo, "[1, 2, 4]", 1.3)
    assert run.code == 1, run.out + run.err
    assert run.classes() == dict.fromkeys([f"sweep/provider=mine/N={n}" for n in (1, 2, 4)], "regression")
    first = run.results["cases"][0]["sides"]["head"]
    assert first["timing"]["reads"] == "csv" and first["params"]["value"] == "ms"


@pytest.mark.slow
def test_a_row_that_went_is_missing(repo: Repo) -> None:
    run = compared(repo, "[1, 4]")
    assert run.code == 1, run.out + run.err
    assert run.classes()["sweep/provider=mine/N=2"] == "missing"
    assert run.classes()["sweep/provider=mine/N=4"] == "unchanged"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("print('N,provider,ms,GB/s')", "a second header"),
        ("print('1,mine,1.0,2.0')", "rows of an earlier run"),
        ("raise SystemExit(3)", "exited with status 3"),
    ],
)
def test_what_cannot_be_read_fails_with_its_line(repo: Repo, more: str, said: str) -> None:
    run = compared(repo, "[1, 2, 4]", more=more)
    assert run.code == 1, run.out + run.err
    assert said in run.out


@pytest.mark.slow
def test_another_column_or_unit_is_another_question(repo: Repo) -> None:
    run = compared(repo, "[1, 2, 4]", unit="us")
    assert set(run.classes().values()) == {"changed"}, run.out
