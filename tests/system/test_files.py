"""Files on real, full and forbidden disks, and scratch folders of processes that were killed."""

import contextlib
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfci.model.base import MachineError
from perfci.system.files import Appender, make_scratch, read_lines, remove_tree, sweep_scratch, unused, write_atomic
from tests.errors import refused


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writes beyond `size` bytes really fail (EFBIG), as on a full disk."""
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old_limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_handler)


def started(code: str, *args: str, **env: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-c", code, *args], subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | env, stdin=pipe, stdout=pipe, text=True)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Outside of pytest's folders, which it could not remove where a killed run has left it mounted."""
    folder = Path(tempfile.mkdtemp(prefix="small disk "))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("mounting is not allowed here; the tests with a file size limit cover failing writes")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def test_a_document_is_replaced_whole_with_the_usual_mode(tmp_path: Path):
    path = tmp_path / "report ü.json"
    old = os.umask(0o027)
    try:
        write_atomic(path, "one µs")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        os.umask(0o022)
        write_atomic(path, b"\0two")
    finally:
        os.umask(old)
    assert path.read_bytes() == b"\0two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert names(tmp_path) == [path.name]


def test_text_that_is_not_utf8_does_not_lose_a_report(tmp_path: Path):
    write_atomic(tmp_path / "r", "a\udce9b")
    assert (tmp_path / "r").read_text() == "a\\udce9b"


def test_a_write_that_fails_halfway_leaves_the_old_document(tmp_path: Path):
    path = tmp_path / "results.json"
    write_atomic(path, "old")
    with file_size_limit(4096), refused("File too large", "ulimit -f", by=MachineError):
        write_atomic(path, b"x" * 100_000)
    assert (path.read_text(), names(tmp_path)) == ("old", ["results.json"])


def test_what_cannot_be_written_says_what_to_do(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    cases = {
        tmp_path / "folder": "name a file",
        tmp_path / "gone" / "x": "create the folder",
        tmp_path / "file" / "x": "a part of this path is a file",
        tmp_path / ("n" * 300): "shorter name",
        tmp_path / "gone\nnewline" / "x": "create the folder",
        Path("/proc/perfci"): "/proc/perfci",
    }
    for path, words in cases.items():
        with refused(words, by=MachineError):
            write_atomic(path, "x")
        with refused(by=MachineError):
            Appender(path)
    assert names(tmp_path) == ["file", "folder"]


def test_a_full_disk_and_a_read_only_one_are_named(small_disk: Path):
    with closing(Appender(small_disk / "j")) as journal, refused("No space left on device", by=MachineError):
        for number in range(100):
            journal.append({"n": number, "x": "x" * 1000})
    kept = [record["n"] for record in read_lines(small_disk / "j")]
    assert len(kept) > 30 and kept == list(range(len(kept)))
    with refused(f"{small_disk / 'j'}: cannot be written: No space left on device: free space", by=MachineError):
        write_atomic(small_disk / "j", b"x" * 1_000_000)
    assert [record["n"] for record in read_lines(small_disk / "j")] == kept
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for write in (lambda: write_atomic(small_disk / "x", "x"), lambda: Appender(small_disk / "j")):
        with refused("Read-only file system", by=MachineError):
            write()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
records_of = st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=records_of, more=records_of, cut=st.integers(0, 40))
def test_a_journal_torn_anywhere_reads_and_resumes(tmp_path: Path, records: list, more: list, cut: int):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    with closing(Appender(path)) as journal:
        for record in records:
            journal.append(record)
    assert read_lines(path) == records
    content = path.read_bytes()
    torn = content[: max(0, len(content) - cut)]
    path.write_bytes(torn)
    survivors = records[: torn.count(b"\n")]
    assert read_lines(path) == survivors
    with closing(Appender(path)) as journal:
        for record in more:
            journal.append(record, sync=True)
    assert read_lines(path) == survivors + more


def test_a_torn_line_longer_than_the_buffer_is_dropped(tmp_path: Path):
    path = tmp_path / "journal"
    path.write_bytes(b'{"a":1}\n' + b'{"b":"' + b"x" * 300_000)
    assert read_lines(path) == [{"a": 1}]
    with closing(Appender(path)) as journal:
        journal.append({"c": 2})
    assert read_lines(path) == [{"a": 1}, {"c": 2}]


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"null", b'{"a":NaN}', b'{"a":Infinity}', b"\xff", b"[" * 100_000])
def test_a_broken_line_before_the_last_is_named_with_its_number(tmp_path: Path, line: bytes):
    path = tmp_path / "journal"
    path.write_bytes(b'{"a":1}\n' + line + b'\n{"b":2}\n')
    with refused(f"{path}:2: ", by=MachineError):
        read_lines(path)


def test_a_journal_that_is_not_there_is_an_error(tmp_path: Path):
    with refused("cannot be read", by=MachineError):
        read_lines(tmp_path / "gone")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_never_recorded(tmp_path: Path, value: float):
    with closing(Appender(tmp_path / "j")) as journal, pytest.raises(ValueError):
        journal.append({"a": value})
    assert read_lines(tmp_path / "j") == []


def test_a_line_that_does_not_fit_is_taken_back_and_smaller_ones_still_go_in(tmp_path: Path):
    path = tmp_path / "journal"
    with file_size_limit(4096), closing(Appender(path)) as journal:
        journal.append({"n": 1})
        with refused("File too large", by=MachineError):
            journal.append({"n": "x" * 10_000})
        journal.append({"n": 2})
    assert read_lines(path) == [{"n": 1}, {"n": 2}]


def test_two_appenders_never_mix_their_lines(tmp_path: Path):
    """Once both are open: opening drops what seems torn, and may find another's line half written."""
    path = tmp_path / "journal"
    code = (
        "import sys; from contextlib import closing; from pathlib import Path; from perfci.system.files import Appender\n"
        "with closing(Appender(Path(sys.argv[1]))) as j:\n"
        "    print('open', flush=True); sys.stdin.readline()\n"
        "    for i in range(500): j.append({'who': sys.argv[2], 'i': i, 'pad': 'x' * 500})"
    )
    path.touch()
    both = [started(code, str(path), who) for who in "ab"]
    for process in both:
        assert process.stdout.readline() == "open\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait() for process in both] == [0, 0]
    records = read_lines(path)
    for who in "ab":
        assert [r["i"] for r in records if r["who"] == who] == list(range(500))


@pytest.fixture
def temp(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_a_scratch_folder_is_private_named_after_its_process_and_gone_afterwards(temp: Path):
    with make_scratch() as scratch:
        assert scratch.parent == temp
        assert scratch.name.startswith(f"perfci-{os.getpid()}-")
        assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
        (scratch / "deep/er").mkdir(parents=True)
        (scratch / "deep/er/file").touch()
        assert sweep_scratch() == []
        assert (scratch / "deep/er/file").exists()
    assert names(temp) == []
    with pytest.raises(RuntimeError), make_scratch():
        raise RuntimeError
    assert names(temp) == []


LITTER = """
import os, signal
from perfci.system.files import make_scratch
with make_scratch() as scratch:
    (scratch / "tree").mkdir()
    (scratch / "tree" / "big").write_bytes(b"x" * 1000)
    (scratch / "tree" / "out").symlink_to(os.environ["VICTIM"])
    os.chmod(scratch / "tree", 0o500)
    print(scratch, flush=True)
    if os.environ["DIE"] == "now":
        os.kill(os.getpid(), signal.SIGKILL)
    input()
"""


def test_the_folder_of_a_killed_process_is_swept_a_live_ones_never(temp: Path, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    dead, alive = (started(LITTER, VICTIM=str(victim), DIE=when) for when in ("now", "no"))
    left = Path(dead.communicate()[0].strip())
    assert dead.returncode == -signal.SIGKILL
    live = Path(alive.stdout.readline().strip())
    try:
        assert sweep_scratch() == [left]
        assert live.exists()
        assert (victim / "precious").exists()
    finally:
        alive.communicate("\n")
    assert names(temp) == []


def test_only_what_perfci_made_is_swept(temp: Path, tmp_path: Path):
    name = "perfci-1234-0123abcd"
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "owner").touch()
    (temp / name).symlink_to(victim)
    for other in ("perfci-mine", "perfci-12-xyz", "xperfci-1-0123abcd", "perfci-1-0123abcd-backup"):
        (temp / other).mkdir()
        (temp / other / "owner").touch()
    (temp / "perfci-1-00000000").mkdir()  # no owner file
    (temp / "perfci-1-00000001").write_text("a file")
    (temp / "perfci-1-00000002").mkdir()
    (temp / "perfci-1-00000002/owner").symlink_to(victim / "owner")
    before = names(temp)
    assert sweep_scratch() == []
    assert names(temp) == before
    assert (victim / "owner").exists()


def test_another_users_folder_is_never_swept(temp: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    folder = temp / "perfci-1-0123abcd"
    folder.mkdir()
    (folder / "owner").touch()
    os.chown(folder, 54321, 54321)
    assert sweep_scratch() == []
    os.chown(folder, 0, 0)
    assert sweep_scratch() == [folder]


def test_a_tree_without_permissions_can_be_removed_by_its_user(tmp_path: Path):
    """Build systems leave read-only folders; an ordinary user must get rid of them."""
    if os.geteuid() == 0:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.chdir(tmp_path)
                os.chown(".", 54321, 54321)
                os.setuid(54321)
                locked_tree(Path("locked"))
                remove_tree(Path("locked"))
                status = 0 if names(Path()) == [] else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    else:
        locked_tree(tmp_path / "locked")
        remove_tree(tmp_path / "locked")
        assert names(tmp_path) == []


def locked_tree(top: Path) -> None:
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/c").touch()
    (top / "a/b").chmod(0)
    (top / "a").chmod(0o500)


def test_a_full_or_missing_temporary_folder_is_an_error_of_one_line(temp: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temp / "gone"))
    with refused("cannot be created", by=MachineError), make_scratch():
        pass


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = unused(tmp_path, "ncu-head-0.ncu-rep")
        path.touch()
        names.append(path.name)
    assert names == ["ncu-head-0.ncu-rep", "ncu-head-0-2.ncu-rep", "ncu-head-0-3.ncu-rep"]
