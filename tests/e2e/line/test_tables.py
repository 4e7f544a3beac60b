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


def written(repo: Repo, sizes: str, factor: float = 1.0, unit: str = "ms", **more: str) -> None:
    """A sweep over `sizes`, and further ones of the same that do something `more`."""
    lines = []
    for name, text in {"sweep": "", **more}.items():
        repo.write(f"{name}.py", dedent(BENCH).format(sizes=sizes, factor=factor, more=text))
        run = f"run: {PLAIN_PYTHON} {name}.py, reads: csv, case: [provider, N], value: ms, unit: {unit}"
        lines.append(f"  - {{name: {name}, {run}}}\n")
    head = f"version: 1\npython: {PLAIN_PYTHON}\ndevices: [cpu]\nbudget: 60s\ncommands:\n"
    repo.write("perfci.yaml", head + "".join(lines) + "limits: [{cases: '*', regression: 10%}]\n")


def compared(repo: Repo) -> Run:
    return repo.perfci("compare", "--base", "HEAD", "--quick")


def test_rows_are_cases_in_pairs_and_one_that_went_is_missing(repo: Repo) -> None:
    written(repo, "[1, 2, 4]")
    repo.commit()
    written(repo, "[1, 4]", 1.3)
    run = compared(repo)
    assert run.code == 1, run.out + run.err
    classes = {"N=1": "regression", "N=2": "missing", "N=4": "regression"}
    assert run.classes() == {f"sweep/provider=mine/{name}": class_ for name, class_ in classes.items()}
    first = run.results["cases"][0]["sides"]["head"]
    assert first["timing"]["reads"] == "csv" and first["params"]["value"] == "ms"


UNREADABLE = {
    "headed": ("print('N,provider,ms,GB/s')", "a second header"),
    "older": ("print('1,mine,1.0,2.0')", "rows of an earlier run"),
    "failing": ("raise SystemExit(3)", "exited with status 3"),
}


@pytest.mark.slow
def test_what_cannot_be_read_fails_with_its_line(repo: Repo) -> None:
    written(repo, "[1, 2]", **dict.fromkeys(UNREADABLE, ""))
    repo.commit()
    written(repo, "[1, 2]", **{name: more for name, (more, _) in UNREADABLE.items()})
    run = compared(repo)
    assert run.code == 1, run.out + run.err
    for name, (_, said) in UNREADABLE.items():
        told = [reason for case, reason in run.reasons().items() if case.startswith(name)]
        assert any(said in reason for reason in told), told


@pytest.mark.slow
def test_another_column_or_unit_is_another_question(repo: Repo) -> None:
    written(repo, "[1, 2, 4]")
    repo.commit()
    written(repo, "[1, 2, 4]", unit="us")
    run = compared(repo)
    assert set(run.classes().values()) == {"changed"}, run.out
