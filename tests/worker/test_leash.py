"""The core that a thread stays on: the same for the same seed, for a while, and that thread's alone. And the end of all
that a command has started."""

import os
import sys
import threading
from pathlib import Path

import psutil
import pytest

from perfci.system.process import Parent
from perfci.worker.leash import children, descendants, drawn_core, on_core
from tests.system import hydra


@pytest.fixture(autouse=True)
def cores():
    """All cores that this process may use, beside others' tests too; they are the same afterwards."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # as far as the container allows
    wide = os.sched_getaffinity(0)
    try:
        yield wide
        assert os.sched_getaffinity(0) == wide
    finally:
        os.sched_setaffinity(0, before)


def test_the_core_follows_from_the_seed_and_is_one_that_may_be_used(cores):
    drawn = [drawn_core(seed) for seed in range(200)]
    assert drawn == [drawn_core(seed) for seed in range(200)]
    assert set(drawn) == cores, "all of them are drawn"
    with on_core(min(cores)):
        assert drawn_core(1) == min(cores)


def test_the_calling_thread_stays_on_its_core_for_a_while(cores):
    if len(cores) < 2:
        pytest.skip("needs two cores")  # with one, a thread is never anywhere else
    ask, tell = threading.Event(), threading.Event()
    seen = []

    def other():
        ask.wait()
        seen.append(os.sched_getaffinity(0))
        tell.set()

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(ValueError, match="its own"), on_core(max(cores)):
        assert os.sched_getaffinity(0) == {max(cores)}
        ask.set()
        tell.wait()
        raise ValueError("its own")
    thread.join()
    assert seen == [cores]
    assert os.sched_getaffinity(0) == cores


def test_where_there_is_no_such_core_the_thread_stays_free(cores):
    with on_core(max(cores) + 1000):
        assert os.sched_getaffinity(0) == cores
    with on_core(None):
        assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize("then", ["exits", "runs on", "perfci ends"])
def test_processes_that_start_each_other_again_end_with_what_started_them(tmp_path: Path, then: str) -> None:
    """None is started again: all of them stand still before the first ends."""
    counted, log = tmp_path / "forks", tmp_path / "log"
    counted.write_bytes(bytes(8))
    parent = Parent(sys.executable, tmp_path, dict(os.environ))
    try:
        (top,) = (one for one in psutil.Process().children() if str(tmp_path) in " ".join(one.cmdline()))
        line = f"{sys.executable} {hydra.__file__} {counted}; {'exit' if then == 'exits' else 'echo ready; sleep 600'}"
        command = ["/bin/sh", "-c", line]
        if then == "exits":
            parent.execute(command, env={}, cwd=tmp_path, log=log, timeout=60.0)
        else:
            ident = parent.start(command, env={}, cwd=tmp_path, log=log)
            while "ready" not in log.read_text():
                assert parent.wait_exit(ident, 0.05) is None, log.read_text()
            assert len(top.children(recursive=True)) > hydra.HEADS
            if then == "runs on":
                parent.kill(ident)
                # What has left its session is nobody's by now, until no other process of this parent runs.
                parent.execute(["/bin/true"], env={}, cwd=tmp_path, log=log, timeout=60.0)
        if then != "perfci ends":
            assert descendants(top.pid, children()) == []
    finally:
        parent.close()
    assert not top.is_running() and hydra.count(str(counted)) == hydra.HEADS
    assert [pid for pid in psutil.pids() if str(counted) in _line(pid)] == []


def _line(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""
