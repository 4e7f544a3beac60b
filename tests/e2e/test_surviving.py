"""What misbehaves costs itself and nothing else."""

import contextlib
import os
import signal
import time
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from .conftest import PLAIN_PYTHON, Repo, adding, pairs, until

GOOD = """
    import perfci

    def work():
        return sum(range(20_000))

    @perfci.kernel(devices=["cpu"])
    def {name}(bench):
        bench.reference(lambda: 199990000, rtol=0, atol=0)
        return work
"""

HEAD = {
    "segfault": "import ctypes\n    ctypes.string_at(0)",
    "hangs": "import time\n    time.sleep(1000)",
    "exits": "import os\n    os._exit(0)",
    "raises": "raise ValueError('no such thing')",
    "allocates": "hold = []\n    while True:\n        hold.append(bytearray(b'x' * (1 << 24)))",
    "wrong": "return 199990001",
    "not_a_number": "return float('nan')",
    # After the checks, in the middle of timing:
    "late_segfault": "calls.append(0)\n    if len(calls) > 40:\n        import ctypes\n        ctypes.string_at(0)\n    return sum(range(20_000))",
    "late_raise": "calls.append(0)\n    if len(calls) > 40:\n        raise OSError('late')\n    return sum(range(20_000))",
    "late_wrong": "calls.append(0)\n    return sum(range(20_000)) + (len(calls) > 40)",
    # Misbehaves, and yet answers rightly: measured like any other.
    "prints": 'print(\'{"op": "garbage"}\\n\\x00\\xff\' * 100)\n    return sum(range(20_000))',
    "forks": "import os\n    if not forked:\n        forked.append(os.fork())\n    return sum(range(20_000))",
}
EXPECTED = {
    "dies": ("failed", "importing it ended the process: killed by SIGABRT"),
    "segfault": ("failed", "SIGSEGV"),
    "hangs": ("failed", "no answer within 4 s"),
    "exits": ("failed", "exited with status 0"),
    "raises": ("failed", "ValueError: no such thing"),
    "allocates": ("failed", "GiB of memory"),
    "wrong": ("failed", "199990001"),
    "not_a_number": ("failed", "NaN"),
    "late_segfault": ("failed", "SIGSEGV"),
    "late_raise": ("failed", "OSError: late"),
    "late_wrong": ("failed", "after timing"),
    "prints": ("unchanged", ""),
    "forks": ("unchanged", ""),
    "good": ("unchanged", ""),
}


def below(folder: Path) -> list[psutil.Process]:
    """Processes that live in or were started with something in `folder`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                str(folder) in " ".join(process.cmdline())
                or str(folder) in process.cwd()
                or str(folder) in process.environ().get("TMPDIR", "")
            ):
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def gone(folder: Path, seconds: float = 10) -> list[psutil.Process]:
    """What is still there after waiting for it to end."""
    deadline = time.monotonic() + seconds
    while below(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return below(folder)


@pytest.mark.slow
def test_each_misbehaving_case_costs_itself(repo: Repo, tmp_path: Path) -> None:
    repo.policy(
        """
        timeout: 4s
        memory: 400MiB
        limits: [{cases: '*', metric: time, regression: 100%}]
        """
    )
    for name in [*HEAD, "dies", "good"]:
        repo.write(f"kernels/{name}.py", GOOD.format(name=name))
    repo.commit("base")
    repo.write("kernels/dies.py", dedent(GOOD.format(name="dies")) + "\nimport os\nos.abort()\n")
    for name, body in HEAD.items():
        text = dedent(GOOD.format(name=name)).replace("def work", "calls, forked = [], []\n\ndef work")
        repo.write(f"kernels/{name}.py", text.replace("return sum(range(20_000))", body))
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    classes, reasons = run.classes(), run.reasons()
    assert classes == {name: expected for name, (expected, _) in EXPECTED.items()}, reasons
    for name, (_, text) in EXPECTED.items():
        assert text in reasons[name], (name, reasons[name])
    assert gone(tmp_path) == []
    assert list((tmp_path / "t").glob("perfci-[0-9]*")) == []


FORGED = """
import gc, perfci

@perfci.kernel(devices=["cpu"])
def {name}(bench):
    bench.reference(lambda: 199990000)
    return lambda: sum(range(20_000))

(channel,) = (one.channel for one in gc.get_objects() if type(one).__name__ == "Server")
receive, send, asked = channel.receive, channel.send, {{}}

def received(*args):
    message = receive(*args)
    asked.update(message or {{}})
    return message

def sent(reply):
    own = (asked.get("op"), asked.get("kernel")) == ("{op}", "{name}")
    send({forge} if own else reply)

channel.receive, channel.send = received, sent
"""


FORGERIES = [
    ("check", "{key: reply[key] for key in reply if key != 'shapes'}", "'check' with what does not fit: shapes: "),
    ("check", "dict(reply, ok=False, kind='fine')", "'check' with what does not fit: kind: "),
    ("open", "{}", "'open' with what does not fit: warm: "),
    ("describe", "{}", "'describe' with what does not fit: digest: "),
    ("block", "{}", "'block' with what does not fit: times: "),
    ("close", "dict(reply, chosen=[1])", "'close' with what does not fit: chosen.0: "),
]


@pytest.mark.slow
def test_an_answer_that_does_not_fit_costs_its_case(repo: Repo) -> None:
    repo.policy("limits: [{cases: '*', metric: time, regression: 100%}]\n")
    forged = {f"forged{number}": forgery for number, forgery in enumerate(FORGERIES)}
    for name in ("good", *forged):
        repo.write(f"kernels/{name}.py", GOOD.format(name=name))
    repo.commit("base")
    for name, (op, forge, _) in forged.items():
        repo.write(f"kernels/{name}.py", FORGED.format(name=name, op=op, forge=forge))
    run = repo.perfci("compare", "--base", "HEAD", "--quick")
    assert run.code == 1, run.out + run.err
    assert run.classes() == dict.fromkeys(forged, "failed") | {"good": "unchanged"}, run.reasons()
    for name, (_, _, said) in forged.items():
        assert said in run.reasons()[name]


def test_the_same_failure_in_both_sides_is_an_error_not_a_verdict(repo: Repo) -> None:
    repo.policy()
    repo.write(
        "kernels/a.py",
        GOOD.format(name="fails").replace("return sum(range(20_000))", "raise ValueError('both')"),
    )
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 3, run.out + run.err
    assert run.classes() == {"fails": "failed"}


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.slow
def test_killed_run_loses_no_pair_and_leaves_no_process(repo: Repo, tmp_path: Path, first: int) -> None:
    """kill -9 in the middle, then --resume: the finished pairs are kept and nothing runs on."""
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    for name in ("one", "two"):
        repo.write(f"kernels/{name}.py", adding(name=name))
    repo.commit()
    journal = repo.root / "perfci-out" / "journal.jsonl"
    process = repo.start("compare", "--base", "HEAD", start_new_session=True)
    until(process, lambda: journal.exists() and len(pairs(journal)) >= first)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert gone(tmp_path) == []
    before = pairs(journal)
    run = repo.perfci("compare", "--base", "HEAD", "--resume")
    assert run.code == 0, run.out + run.err
    after = pairs(journal)
    assert after[: len(before)] == before
    assert len(after) == 16
    assert run.classes() == {"one": "unchanged", "two": "unchanged"}
    assert list((tmp_path / "t").glob("perfci-[0-9]*")) == []


def test_an_interrupt_ends_an_import_without_asking_it(repo: Repo, tmp_path: Path) -> None:
    imports, asked = tmp_path / "imports", tmp_path / "asked"
    repo.policy()
    body = f"""
        import gc, select
        from pathlib import Path

        (server,) = (each for each in gc.get_objects() if type(each).__name__ == "Server")
        Path({str(imports)!r}).touch()
        select.select([server.channel], [], [])
        Path({str(asked)!r}).touch()
    """
    repo.write("kernels/imports.py", body)
    process = repo.start("run", start_new_session=True)
    until(process, imports.exists)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3 and "interrupted" in err, out + err
    assert not asked.exists()
    assert gone(tmp_path) == []


@pytest.mark.slow
def test_daemon_of_a_case_does_not_outlive_the_run(repo: Repo, tmp_path: Path) -> None:
    """A case that leaves a daemon with a session and environment of its own behind: it goes with the run."""
    repo.policy()
    body = f"""
        import subprocess, sys
        import perfci

        @perfci.kernel(devices=["cpu"])
        def daemon(bench):
            subprocess.Popen([{PLAIN_PYTHON!r}, "-c", "import os, time; os.setsid(); time.sleep(600)", {str(tmp_path)!r}], env={{}}, cwd="/")
            return lambda: sum(range(20_000))
    """
    repo.write("kernels/daemon.py", body)
    run = repo.perfci("run")
    assert run.code == 0, run.out + run.err
    assert gone(tmp_path) == []


@pytest.mark.slow
def test_full_disk_is_one_line(repo: Repo, tmp_path: Path) -> None:
    """Results that cannot be written end the run with one line; here the disk is a file size limit of the process."""
    repo.policy()
    repo.write("kernels/adding.py", adding())
    import resource

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    process = repo.start("run", preexec_fn=small_files)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 3, err
    assert err.strip().splitlines()[-1].startswith("perfci: ")
    assert "Traceback" not in err
