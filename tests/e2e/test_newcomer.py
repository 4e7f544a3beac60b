"""What somebody meets who writes a first policy: each mistake is told with its remedy, and nothing else is."""

from io import StringIO

from rich.console import Console

from perfci.cli.progress import Teller

from .conftest import Repo


def test_a_message_is_one_line_where_no_terminal_folds_it() -> None:
    """CI's logs, and scripts that read them, know lines only."""
    said = StringIO()
    teller = Teller(Console(file=said, width=80))
    teller.stage("taking " + "base " * 30)
    teller.note("a note " * 30)
    teller.pair(1, 0, 1, 2.0, 900.0)
    assert [line.split(" ")[1] for line in said.getvalue().splitlines()] == ["taking", "a", "pair"]


def test_a_suite_that_declares_nothing(repo: Repo) -> None:
    repo.policy("limits: [{cases: '*', metric: time, regression: 5%}]\n")
    repo.write("kernels/example.py", "")
    run = repo.perfci("list")
    assert run.code == 2
    assert run.err.splitlines()[-1] == (
        "perfci.yaml:5: limits[0].cases: '*' matches no case: no kernel or command is declared: "
        "see `suite` and `commands`"
    )
