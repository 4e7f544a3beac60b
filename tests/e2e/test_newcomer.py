"""What somebody meets who writes a first policy: each mistake is told with its remedy, and nothing else is."""

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from perfci.cli.progress import Teller
from perfci.measure.request import PairProgress
from perfci.system.lease import Lease

from .conftest import Repo, adding


def test_a_message_is_one_line_where_no_terminal_folds_it() -> None:
    """CI's logs, and scripts that read them, know lines only."""
    said = StringIO()
    teller = Teller(Console(file=said, width=80))
    teller.stage("taking " + "base " * 30)
    teller.note("a note " * 30)
    teller.pair(PairProgress(pairs=1, open=0, decided=1, cases=1, seconds=2.0, budget=900.0, expected=0.0))
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


def test_init_in_a_subfolder_writes_into_the_root(repo: Repo) -> None:
    """Where every verb reads the policy, and GitHub the workflows."""
    below = repo.root / "src" / "deep"
    below.mkdir(parents=True)
    run = repo.perfci("init", "src/deep")
    assert run.code == 0
    assert run.out.splitlines()[0] == f"into   {repo.root}, the root of the repository"
    assert (repo.root / "perfci.yaml").is_file() and (repo.root / ".github/workflows/perf.yml").is_file()
    assert not any(below.iterdir())


def test_init_outside_of_git_says_how_to_begin(repo: Repo, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    run = repo.perfci("init", str(alone))
    assert run.code == 0 and (alone / "perfci.yaml").is_file()
    assert "Now: `git init && git add -A && git commit" in run.out


def test_init_says_what_git_wants_before_a_first_commit(repo: Repo, tmp_path: Path) -> None:
    """As on a fresh machine. `useConfigOnly` keeps git from making a name of the machine's, where that has one."""
    new, config = tmp_path / "new", tmp_path / "gitconfig"
    new.mkdir()
    said = "git does not know yet who commits here: first `git config --global user.name NAME`, and "
    for name in [name for name in repo.env if name.startswith(("GIT_AUTHOR_", "GIT_COMMITTER_", "EMAIL"))]:
        del repo.env[name]
    repo.env |= {"GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_NOSYSTEM": "1"}
    config.write_text("[user]\nuseConfigOnly = true\n")
    told = repo.perfci("init", str(new)).out
    assert told.index(said) < told.index("Now: ")
    (new / "perfci.yaml").unlink()
    config.write_text("[user]\nname = t\nemail = t@example.com\n")
    assert said not in repo.perfci("init", str(new)).out


def test_a_command_line_without_a_verb_gets_the_help(repo: Repo) -> None:
    run = repo.perfci("history", fresh=True)
    assert (run.code, run.out) == (0, repo.perfci("history", "--help", fresh=True).out)
    assert run.out.startswith("Usage: perfci history")


@pytest.mark.slow
def test_a_failure_names_the_log_of_its_own_run(repo: Repo) -> None:
    """From where one stands, and only where something is written into it."""
    log = "perfci-out/logs/head.log"
    repo.policy()
    for mark in ("first", "second"):
        repo.write("kernels/adding.py", adding().replace("total = 0.0", f"raise ValueError('{mark}')"))
        run = repo.perfci("run")
        assert f"ValueError: {mark} · kernels/adding.py:11 · log {log}" in run.out, run.out + run.err
        told = (repo.root / log).read_text()
        assert f"ValueError: {mark}" in told
    assert "ValueError: first" not in told
    repo.write("kernels/adding.py", adding().replace("total += i * 0.5", "total += i * 0.501"))
    run = repo.perfci("run")
    assert "fails: result is" in run.out and "log" not in run.out.partition("Files in")[0], run.out + run.err


def test_the_help_cuts_no_sentence(repo: Repo) -> None:
    repo.env["COLUMNS"] = "80"
    listed = repo.perfci("--help", fresh=True).out.partition("Commands:")[2]
    assert "..." not in listed and "…" not in listed
    text = " ".join(listed.split())
    assert "doctor Say what this machine can give and what stands in the way, with the command that fixes it." in text
    assert [line.split()[0] for line in listed.partition("Exit codes")[0].splitlines() if line[2:3].strip()] == [
        "init", "doctor", "list", "run", "compare", "profile", "bisect", "calibrate", "report", "history",
    ]  # fmt: skip
    assert text.endswith("More verbs, each with --help: explain, plan, merge, import, docker.")
    assert max(map(len, listed.splitlines())) <= 80


def test_without_a_verb_the_help_says_what_comes_first_where_no_policy_is(repo: Repo) -> None:
    first = "There is no perfci.yaml here yet. First: perfci init"
    bare = repo.perfci(fresh=True)
    assert bare.code == 0 and first in " ".join(bare.out.split()) and "compare" in bare.out
    repo.policy()
    assert first not in " ".join(repo.perfci(fresh=True).out.split())


def test_run_offers_nothing_that_does_nothing_there(repo: Repo) -> None:
    """It measures everything anyway."""
    run = repo.perfci("run", "--measure-all", fresh=True)
    assert run.code == 2 and "No such option: --measure-all" in run.err


MET = """
    import torch

    import perfci


    @perfci.kernel(devices=["cpu"])
    def halving(bench):
        x = bench.randn(64, 64)
        wanted = x.double() * 0.5
        bench.reference(lambda: wanted, rtol=1e-6, atol=1e-6)
        return lambda: x.mul_(0.5)


    @perfci.kernel(devices=["cpu"])
    def doubling(bench):
        x = bench.randn(64, 64)
        bench.reference(lambda: (x.double() * 2).sum(0), rtol=1e-3, atol=1e-3)
        return lambda: x.mul_(2).sum(0)


    @perfci.kernel(devices=["cpu"])
    def accumulated(bench):
        x = bench.randn(64, 64).requires_grad_()
        bench.reference(lambda: 2 * x.detach().double(), rtol=1e-6)

        def run():
            x.square().sum().backward()
            return x.grad.clone()

        return run


    @perfci.kernel(devices=["cpu"])
    def graph_gone(bench):
        x = bench.randn(64, 64).requires_grad_()
        y = x.square().sum()
        bench.reference(lambda: [2 * x.detach().double()], rtol=1e-6)
        return lambda: torch.autograd.grad(y, [x])


    @perfci.kernel(devices=["cpu"])
    def no_graph(bench):
        x = bench.randn(64, 64)
        return lambda: torch.autograd.grad(x.square().sum(), [x])
"""


@pytest.mark.slow
@pytest.mark.torch
def test_what_real_suites_meet_is_told_with_what_to_do(repo: Repo) -> None:
    """Each in the row of its case, which is all that many will read."""
    pytest.importorskip("torch")
    limits = "limits: [{cases: '*', metric: time, max: 10s}]"
    repo.write("perfci.yaml", f"version: 1\nsuite: [kernels/*.py]\npython: {sys.executable}\n{limits}\n")
    repo.write("kernels/met.py", MET)
    run = repo.perfci("run", "--quick")
    assert run.code == 1, run.out + run.err
    reasons = {row["case"]: row["reason"] for row in run.report["rows"]}
    place, back = " (docs/suite.md#a-kernel-that-works-in-place)", " (docs/suite.md#a-backward-pass)"
    assert "; an execution overwrites what the case has drawn (randn float32[64, 64]); with " in reasons["halving"]
    assert reasons["halving"].endswith(f"needs a reference that reads the same memory when it is called{place}")
    assert "after timing: " in reasons["doubling"] and "infinities or NaN by now: the state of" in reasons["doubling"]
    assert reasons["doubling"].endswith(place)
    assert reasons["accumulated"].endswith(f"ask for gradients with torch.autograd.grad, which adds to none{back}")
    assert "RuntimeError: Trying to backward through the graph a second time" in reasons["graph_gone"]
    assert reasons["graph_gone"].endswith(f"is kept by retain_graph=True{back}")
    assert reasons["no_graph"].endswith(f"before the forward pass{back}")


def test_it_says_that_it_waits_for_another(repo: Repo, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", repo.env["TMPDIR"])  # whose folder of leases is the test's own
    repo.policy()
    repo.write("kernels/adding.py", adding())
    with Lease("cpu", 0, print):
        run = repo.perfci("PERFCI_WAIT=1s", "run")
    assert run.code == 3
    *_, waits, ends = run.err.splitlines()
    assert waits.startswith(f"perfci: another perfci (pid {os.getpid()}, since ")
    assert waits.endswith("measures on cpu; waiting up to 1 s")
    assert "still measures on it after 1 s: wait for it to end" in ends


def _completed(repo: Repo, line: str) -> list[str]:
    """What bash is offered behind `line`."""
    words = line.split(" ")
    asked = {"_PERFCI_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return subprocess.run(
        [sys.executable, "-c", "from perfci.cli import main; main()"],
        cwd=repo.root, env={**repo.env, **asked}, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip


def test_the_shell_completes_verbs_options_and_cases(repo: Repo) -> None:
    assert _completed(repo, "perfci co") == ["compare"]
    assert _completed(repo, "perfci compare --measure") == ["--measure-all"]
    assert _completed(repo, "perfci compare -k sd") == []  # nothing was measured here yet
    out = repo.root / "perfci-out"
    out.mkdir()
    hostile = '{"id": "sdpa/$(touch x)"}'
    cases = f'{{"cases": [{{"id": "sdpa/n=1"}}, {{"id": "sdpa/n=2"}}, {{"id": "matmul"}}, {hostile}]}}'
    (out / "results.json").write_text(cases)
    assert _completed(repo, "perfci compare -k sd") == ["sdpa/*", "sdpa/n=1", "sdpa/n=2"]
    assert _completed(repo, "perfci profile -k ma") == ["matmul"]
    (out / "results.json").write_text("[1")
    assert _completed(repo, "perfci compare -k sd") == []


def test_the_shell_takes_what_install_completion_writes(repo: Repo, tmp_path: Path) -> None:
    """The shell is the one that perfci is called from, whatever these tests are started by."""
    home = tmp_path / "home"
    home.mkdir()
    script = (
        'set -e; "$0" -c "from perfci.cli import main; main()" --install-completion >&2\n'
        '. "$HOME/.bashrc"; complete -p perfci'
    )
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        env={**repo.env, "HOME": str(home)}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert re.search(r"-F \w+ perfci", done.stdout), done.stderr


def test_explain_without_a_gpu_says_that_nothing_is_known(repo: Repo) -> None:
    repo.write("perfci.yaml", "version: 1\nsuite: [k.py]\n")
    repo.write("k.py", adding())
    repo.commit()
    repo.write("k.py", adding() + "\n# a line\n")
    run = repo.perfci("explain", "-k", "*", "--base", "HEAD")
    assert run.code == 3, run.out + run.err
    assert run.err.splitlines()[-1] == (
        "perfci: explain: torch uses no GPU here, and without one no work can be recorded: see perfci doctor"
    )
