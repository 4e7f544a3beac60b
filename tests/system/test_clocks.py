"""A locked clock is released however perfci ends: with real processes, and a driver that writes down what it is told."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfci.model.base import MachineError, UsageError
from perfci.system import clocks
from perfci.system.clocks import Locked, locked, parse
from tests.system.test_gpu import Board, NVMLError

RECORDER = """
import json, os
from perfci.system.clocks import Locked

class Recorder:
    def _note(self, *what):
        with open(os.environ["RECORD"], "a") as file:
            file.write(json.dumps(what) + "\\n")

    def lock(self, uuid, mhz):
        self._note("lock", uuid, mhz)
        return None if mhz == "base" else 1980 if mhz == "max" else mhz

    def reset(self, uuid):
        self._note("reset", uuid)
        if os.environ.get("STUCK"):
            raise Locked("it is stuck")

class Refusing(Recorder):
    def lock(self, uuid, mhz):
        raise Locked("this needs root: run perfci under sudo, or leave PERFCI_LOCK_CLOCKS out")
"""
OWNER = """
import sys, time
from perfci.system.clocks import locked
with locked("GPU-1", 1500, "recorder:Recorder") as lock:
    print(lock.guardian.pid, flush=True)
    {then}
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "recorder.py").write_text(RECORDER)
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "record"


def noted(record: Path) -> list:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def wait_for(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_locked_within_the_block_and_reset_behind_it(record):
    with locked("GPU-1", "max", "recorder:Recorder") as lock:
        assert noted(record) == [["lock", "GPU-1", "max"]]
        assert (lock.mhz, lock.words()) == (1980, "locked at 1980 MHz")
        lock.require()
        assert os.getsid(lock.guardian.pid) == lock.guardian.pid, "a signal to perfci's terminal must not reach it"
    assert noted(record) == [["lock", "GPU-1", "max"], ["reset", "GPU-1"]]
    assert lock.guardian.returncode == 0


def test_reset_after_an_exception(record):
    with pytest.raises(ZeroDivisionError), locked("GPU-1", "base", "recorder:Recorder") as lock:
        assert lock.words() == "locked at base"
        raise ZeroDivisionError
    assert noted(record)[-1] == ["reset", "GPU-1"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_reset_when_the_owner_is_killed(record, number):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then="time.sleep(60)")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None,
    )  # fmt: skip  # a test that runs in the background of a shell inherits SIGINT ignored
    guardian = int(owner.stdout.readline())
    assert noted(record) == [["lock", "GPU-1", 1500]]
    os.killpg(owner.pid, number)
    owner.wait(20)
    owner.stdout.close()
    wait_for(lambda: noted(record)[-1] == ["reset", "GPU-1"])
    wait_for(lambda: gone(guardian))
    assert noted(record) == [["lock", "GPU-1", 1500], ["reset", "GPU-1"]]


def test_reset_although_children_of_the_owner_live_on(record):
    """Only perfci holds the pipe: what it started does not keep the clock locked."""
    then = "import subprocess; subprocess.Popen(['sleep', '30']); import os; os.kill(os.getpid(), 9)"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        owner.wait(20)
        wait_for(lambda: noted(record)[-1:] == [["reset", "GPU-1"]])
    finally:
        os.killpg(owner.pid, signal.SIGKILL)


def test_a_guardian_that_is_killed_is_noticed_and_its_lock_reset(record):
    with (
        pytest.raises(MachineError, match="was ended from outside"),
        locked("GPU-1", 1500, "recorder:Recorder") as lock,
    ):
        os.kill(lock.guardian.pid, signal.SIGKILL)
        wait_for(lambda: lock.guardian.poll() is not None)
        lock.require()
    assert noted(record) == [["lock", "GPU-1", 1500], ["reset", "GPU-1"]]


def test_a_guardian_that_is_asked_to_end_releases_first(record):
    with locked("GPU-1", 1500, "recorder:Recorder") as lock:
        os.kill(lock.guardian.pid, signal.SIGTERM)
        wait_for(lambda: lock.guardian.poll() is not None)
        assert noted(record)[-1] == ["reset", "GPU-1"]
        with pytest.raises(MachineError):
            lock.require()


def test_what_cannot_be_locked_is_one_line_and_runs_nothing(record):
    with pytest.raises(MachineError) as error, locked("GPU-1", 1500, "recorder:Refusing"):
        pytest.fail("the block must not run")
    assert str(error.value) == (
        "PERFCI_LOCK_CLOCKS: cannot lock the clock of GPU GPU-1: this needs root: run perfci under sudo, "
        "or leave PERFCI_LOCK_CLOCKS out"
    )
    assert noted(record) == [], "what was not locked by us is not ours to reset"


def test_a_clock_that_stays_locked_is_said(record, monkeypatch):
    monkeypatch.setenv("STUCK", "1")
    said = r"still locked at 1500 .* run nvidia-smi --reset-gpu-clocks as root"
    with pytest.raises(MachineError, match=said), locked("GPU-1", 1500, "recorder:Recorder"):
        pass


def test_a_guardian_that_does_not_start_is_one_line(record):
    with pytest.raises(MachineError, match="the process that should lock it ended"), locked("GPU-1", 1, "nowhere:X"):
        pytest.fail("the block must not run")


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Locked, match="nvidia-ml-py is not installed"):
        clocks.Nvml()


class Lockable(Board):
    NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_INVALID_ARGUMENT = 4, 3, 2

    def __init__(self, code=None):
        super().__init__(uuids=("GPU-1",), nvmlDeviceResetGpuLockedClocks=lambda: self.calls.append("reset"))
        self.code, self.calls = code, []

    def nvmlDeviceSetGpuLockedClocks(self, handle, low, high):
        if self.code:
            error = NVMLError("Some Error")
            error.value = self.code
            raise error
        self.calls.append((low, high))


def test_what_the_driver_is_told(monkeypatch):
    board = Lockable()
    monkeypatch.setitem(sys.modules, "pynvml", board)
    driver = clocks.Nvml()
    assert [driver.lock("1", frequency) for frequency in (1500, "max", "base")] == [1500, 1980, None]
    driver.reset("GPU-1")
    assert board.calls == [(1500, 1500), (1980, 1980), (0xFFFFFF01, 0xFFFFFF01), "reset"]


@pytest.mark.parametrize(
    ("code", "words"), [(4, "needs root"), (3, "cannot be locked"), (2, "no such frequency"), (9, "NVML says")]
)
def test_why_the_driver_refuses(monkeypatch, code, words):
    monkeypatch.setitem(sys.modules, "pynvml", Lockable(code))
    with pytest.raises(Locked, match=words) as refused:
        clocks.Nvml().lock("GPU-1", 1500)
    assert "leave PERFCI_LOCK_CLOCKS out" in str(refused.value) or "base or max" in str(refused.value)


def test_frequencies_as_people_write_them():
    assert [parse(text) for text in ("base", "max", "1500", "1500MHz", "1500 mhz")] == ["base", "max", 1500, 1500, 1500]
    for text in ("", "fast", "15", "-1500", "1.5GHz", "1500\n1500"):
        with pytest.raises(UsageError, match="write base, max or a frequency"):
            parse(text)
