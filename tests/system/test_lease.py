"""One measuring perfci per device: it waits, tells why, gives up in time, and never blocks for ever after a kill."""

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfci.model.base import MachineError
from perfci.system.lease import Lease
from tests.errors import refused

GPU = "GPU-3f2a"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "perfci-leases"


def never(line: str) -> None:
    raise AssertionError(f"waited: {line}")


HOLD = """
import sys, time
from perfci.system.lease import Lease
with Lease(sys.argv[1], 0, print):
    print("held", flush=True)
    if sys.argv[2:]:
        import subprocess
        print(subprocess.Popen(["sleep", "30"], close_fds=False).pid, flush=True)
    time.sleep(float(sys.stdin.readline()))
"""


def held(*more: str) -> subprocess.Popen:
    """A real process that holds the lease; it releases it so many seconds after it is told."""
    command = [sys.executable, "-c", HOLD, GPU, *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def holder() -> Iterator[subprocess.Popen]:
    process = held()
    yield process
    process.kill()
    process.wait()


def test_a_held_device_is_refused_in_one_line_that_names_the_holder(holder: subprocess.Popen):
    with refused(f"{GPU}: another perfci (pid {holder.pid}, since 20", by=MachineError), Lease(GPU, 0, never):
        pass


def test_it_waits_tells_once_and_gets_the_device_when_the_holder_ends(holder: subprocess.Popen):
    told: list[str] = []
    holder.stdin.write("0.5\n")
    holder.stdin.flush()
    with Lease(GPU, 20, told.append) as lease:
        assert json.loads(lease.path.read_text())["pid"] == os.getpid()
    assert len(told) == 1
    assert f"another perfci (pid {holder.pid}, since " in told[0]
    assert f"measures on {GPU}; waiting up to 20 s" in told[0]


def test_it_gives_up_when_the_time_is_over(holder: subprocess.Popen):
    start = time.monotonic()
    told: list[str] = []
    with pytest.raises(MachineError, match=r"after 0\.5 s"), Lease(GPU, 0.5, told.append):
        pass
    assert time.monotonic() - start >= 0.5  # no sooner than asked; how much later is the machine's to say
    assert len(told) == 1


def test_other_devices_are_free(holder: subprocess.Popen):
    with Lease("GPU-other", 0, never), Lease("cpu", 0, never):
        pass


def test_programs_that_the_holder_started_do_not_keep_the_lease():
    process = held("child")
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # still alive
        with Lease(GPU, 0, never):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_folder_and_file_are_for_every_user_whatever_the_umask(own_folder: Path):
    old = os.umask(0o077)
    try:
        with Lease(GPU, 0, never) as lease:
            assert stat.S_IMODE(own_folder.stat().st_mode) == 0o1777
            assert stat.S_IMODE(lease.path.stat().st_mode) == 0o666
    finally:
        os.umask(old)


def test_two_users_share_a_device(own_folder: Path):
    """The file of one user is opened, not created, by the other: in a sticky folder the kernel may insist."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    own_folder.parent.chmod(0o777)
    for folder in own_folder.parent.parents:
        if stat.S_IMODE(folder.stat().st_mode) == 0o700:  # pytest's own
            folder.chmod(0o755)
    with Lease(GPU, 0, never):
        pass
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(54321)
            with Lease(GPU, 0, never):
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_leftovers_do_no_harm(own_folder: Path):
    own_folder.mkdir()
    (own_folder / f"{GPU}.lock").write_text("not json \x1b[31m")
    with Lease(GPU, 0, never):
        pass


def test_a_lock_file_that_is_swept_away_between_opening_and_locking_is_not_taken_for_the_lease(monkeypatch):
    """Otherwise the next process would make a file of its own, and both would measure."""
    real = fcntl.flock
    calls: list[int] = []

    def racing(fd: int, operation: int) -> None:
        if not calls:
            lease.path.unlink()
        calls.append(fd)
        real(fd, operation)

    lease = Lease(GPU, 0, never)
    monkeypatch.setattr(fcntl, "flock", racing)
    with lease:
        assert len(calls) == 2
        with pytest.raises(MachineError), Lease(GPU, 0, never):
            pass


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_stands_in_the_way_is_named_not_followed(own_folder: Path, tmp_path: Path, kind: str):
    own_folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = own_folder / f"{GPU}.lock"
    match kind:
        case "link":
            path.symlink_to(victim)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    with refused(str(path), by=MachineError), Lease(GPU, 0, never):
        pass
    assert victim.read_text() == "precious"


def test_the_lease_folder_may_not_be_a_link(own_folder: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    own_folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MachineError, match="remove it"), Lease(GPU, 0, never):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_device_key_stays_inside_the_folder(own_folder: Path):
    with Lease("../../GPU/\n0", 0, never) as lease:
        assert lease.path.parent == own_folder
        assert lease.path.exists()


def test_the_lease_ends_when_the_work_raises():
    with pytest.raises(RuntimeError), Lease(GPU, 0, never):
        raise RuntimeError
    with Lease(GPU, 0, never) as lease:
        pass
    assert lease.path.read_text() == ""
