"""Another user for the code under test: what it can do, and what of what it leaves behind is believed."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.profilers.nsys.privacy import isolation
from perfci.system import users
from perfci.system.users import CAP_PERFMON, CAP_SYS_ADMIN, SAME, Account, find_account, held, keep_outputs
from tests.e2e.conftest import ROOT
from tests.system import hydra

UID, GID = 12345, 12346
# Only root may run code as another user; CI runs these tests as root, in the image.
as_root = pytest.mark.skipif(not ROOT, reason="needs root with its capabilities, and setpriv")


@pytest.fixture
def open_path():
    """A folder that other users reach: pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="users-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def account() -> Account:
    return find_account({"PERFCI_WORKER": f"{UID}:{GID}"})


def run_as(account: Account, script: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*account.prefix(), "/bin/sh", "-c", script], capture_output=True, text=True, check=False, **kwargs
    )


def does(account: Account, script: str, **kwargs) -> str:
    done = run_as(account, script, **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout


def may_not(account: Account, attempts: tuple[str, ...], folder: Path) -> None:
    for attempt in attempts:
        assert run_as(account, attempt, cwd=folder).returncode != 0, attempt


def run_script(script: str) -> list[str]:
    """Lines of a process that adopts what the user's processes leave behind, as `account`."""
    begin = "import psutil, subprocess, time\nfrom perfci.system.users import find_account\n"
    env = {**os.environ, "PERFCI_WORKER": f"{UID}:{GID}", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    script = f"{begin}account = find_account()\naccount.adopt()\n{script}"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def caps(text: str) -> dict[str, int]:
    lines = (line.split(":") for line in text.splitlines() if line.startswith("Cap"))
    return {name: int(value, 16) for name, value in lines}


@pytest.mark.parametrize("text", ["", "0:0", "0:5", "user", "1000", "1:2:3", "-1:5", "5:-1", "4294967295:1", "1:٣"])
def test_what_is_no_user_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="write UID:GID") as caught:
        find_account({"PERFCI_WORKER": text})
    assert "\n" not in str(caught.value)


def test_nobody_named_is_the_user_of_this_process_and_touches_nothing(tmp_path: Path) -> None:
    assert find_account({}) is SAME
    assert SAME.prefix([CAP_PERFMON]) == ()
    (tmp_path / "file").symlink_to("/etc/hostname")
    before = tmp_path.lstat(), (tmp_path / "file").lstat()
    for method in (SAME.give, SAME.seal, SAME.reclaim, SAME.show):
        method(tmp_path)
    assert (tmp_path.lstat(), (tmp_path / "file").lstat()) == before
    with keep_outputs(tmp_path / "out", tmp_path, SAME):
        assert not (tmp_path / "out").exists()


def test_who_may_not_switch_users_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"PERFCI_WORKER": "1000:1000"}
    monkeypatch.setattr(users, "held", lambda numbers: [n for n in numbers if n != 7])
    with pytest.raises(MachineError, match=r"may not run code as another user.* SETUID"):
        find_account(asked)
    monkeypatch.setattr(users, "held", list)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MachineError, match="setpriv is not on PATH"):
        find_account(asked)


@as_root
def test_the_user_has_no_capability_and_cannot_gain_one(account: Account) -> None:
    said = does(account, "id -u; id -g; id -G; cat /proc/self/status")
    assert said.split()[:3] == [str(UID), str(GID), str(GID)]
    assert set(caps(said).values()) == {0} and "NoNewPrivs:\t1" in said


@as_root
@pytest.mark.parametrize("more", ["", ",+cap_38"])
def test_the_capabilities_of_a_container_are_enough(more: str) -> None:
    """Those that are needed and no others, without the right to gain any: as `docker run --cap-drop` leaves it."""
    kept = "-all," + ",".join(f"+cap_{number}" for number in users.NEEDED) + more
    script = (
        "import subprocess; from perfci.system.users import *; found = held([CAP_PERFMON, CAP_SYS_ADMIN]); "
        "print(found); subprocess.run([*find_account().prefix(found), 'cat', '/proc/self/status'], check=True)"
    )
    done = subprocess.run(
        ["setpriv", "--bounding-set", kept, "--inh-caps=-all", "--no-new-privs", "--", sys.executable, "-c", script],
        env={**os.environ, "PERFCI_WORKER": f"{UID}:{GID}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    handed = 1 << CAP_PERFMON if more and held([CAP_PERFMON]) else 0
    assert set(caps(done.stdout).values()) == {handed}


@as_root
@pytest.mark.parametrize("kept", [[CAP_PERFMON], [CAP_PERFMON, CAP_SYS_ADMIN]])
def test_the_pass_that_counts_has_what_it_is_given_and_no_more(account: Account, kept: list[int]) -> None:
    if held(kept) != kept:
        pytest.skip("this root has not the capabilities that are handed on")  # as in most containers
    done = subprocess.run(
        [*account.prefix(kept), "/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True
    )
    assert set(caps(done.stdout).values()) == {sum(1 << bit for bit in kept)}


@as_root
def test_the_run_is_closed_to_the_user(account: Account) -> None:
    pid = os.getpid()
    for file in ("environ", "mem", "maps"):
        assert "Permission denied" in run_as(account, f"cat /proc/{pid}/{file}").stderr
    assert "Permission denied" in run_as(account, f"ls /proc/{pid}/fd/").stderr
    assert run_as(account, f"kill -9 {pid}").returncode != 0


@as_root
def test_isolation_of_nsys_is_tried_as_the_user(account: Account) -> None:
    found = isolation(account.prefix())
    if not found.holds:
        pytest.skip(f"needs a user namespace: {found.text}")  # forbidden in most containers
    assert "--user" in found.prefix
    done = subprocess.run(
        [*account.prefix(), *found.prefix, "/bin/sh", "-c", "echo $$"], capture_output=True, check=True
    )
    assert done.stdout == b"1\n"


@as_root
def test_what_is_sealed_can_be_read_and_added_to_and_not_changed(account: Account, open_path: Path) -> None:
    tree, other = open_path / "tree", open_path / "other"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "lib.so").write_text("built")
    account.give(tree)
    other.mkdir(mode=0o777)
    other.chmod(0o777)
    does(
        account,
        "umask 0; cd inner && echo x > tool && chmod 6777 tool && echo y > private && chmod 600 private"
        f" && ln -s /etc/shadow link && mkfifo pipe && echo z > {other}/shared && ln {other}/shared shared",
        cwd=tree,
    )
    account.seal(tree)
    inner = tree / "inner"
    assert stat.S_IMODE((inner / "tool").stat().st_mode) == 0o755
    assert (other / "shared").stat().st_uid == UID, "its other name is not the side's"
    assert (inner / "shared").read_text() == "z\n"
    assert stat.S_IMODE(Path("/etc/shadow").stat().st_mode) & 0o007 == 0
    attempts = (
        "echo bad > inner/lib.so", "echo bad >> inner/tool", "echo bad > inner/shared", "rm inner/lib.so",
        "mv inner elsewhere", "mv inner/lib.so inner/old", "rm inner/link", "ln -sf /bin/true inner/lib.so",
        "chmod 777 inner", "cp inner/tool inner/new && mv inner/new inner/tool",
    )  # fmt: skip
    may_not(account, attempts, tree)
    script = "cat inner/lib.so inner/private && mkdir inner/__pycache__ && echo new > inner/new"
    assert does(account, script, cwd=tree) == "builty\n"


@as_root
def test_what_is_reclaimed_holds_ordinary_files_only(account: Account, open_path: Path) -> None:
    secret, report, other = open_path / "secret", open_path / "report", open_path / "other"
    secret.write_text("canary")
    secret.chmod(0o600)
    report.mkdir()
    other.mkdir()
    account.give(report)
    account.give(other)
    does(
        account,
        f"ln -s {secret} a.sqlite && ln -s {open_path} folder && mkfifo pipe && mkdir -p bin && echo 1 > bin/0.bin"
        f" && echo 2 > {other}/twice && ln {other}/twice twice && ln -s {secret} bin/1.bin && chmod 0 bin/0.bin && mkdir shut"
        " && chmod 0 shut",
        cwd=report,
    )
    account.reclaim(report)
    assert sorted(str(path.relative_to(report)) for path in report.rglob("*")) == ["bin", "bin/0.bin", "shut"]
    assert (report / "bin" / "0.bin").read_text() == "1\n"
    may_not(account, ("ln -s x y", "rm -f bin/0.bin", "echo 3 > bin/0.bin"), report)
    assert secret.read_text() == "canary"


DAEMON = """
import ctypes, os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: no longer
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
os._exit(0)
"""


@as_root
def test_no_process_of_the_user_gets_away(account: Account) -> None:
    script = f"""
subprocess.run([*account.prefix(), "/usr/bin/env", "python3", "-c", {DAEMON!r}], check=True)
keeps = subprocess.Popen(["sleep", "60"])
time.sleep(0.5)
print([one.uids().real for one in psutil.Process().children(recursive=True)])
account.sweep()
print(len(psutil.Process().children(recursive=True)), keeps.poll())
keeps.kill()
"""
    before, after = run_script(script)
    assert str(UID) in before
    assert after == "1 None"


@as_root
def test_processes_that_start_each_other_again_are_ended_and_a_neighbour_s_are_not(
    account: Account, open_path: Path
) -> None:
    """None is started again: all of them stand still before the first ends."""
    counted = open_path / "forks"
    counted.write_bytes(bytes(8))
    account.give(counted)
    shutil.copy(hydra.__file__, open_path / "hydra.py")
    script = f"""
command = ["/usr/bin/env", "python3", {str(open_path / "hydra.py")!r}, {str(counted)!r}]
subprocess.run([*account.prefix(), *command], check=True)
print(len(psutil.Process().children(recursive=True)))
account.sweep()
print(psutil.Process().children(recursive=True))
"""
    with subprocess.Popen([*account.prefix(), "sleep", "600"]) as neighbour:
        assert run_script(script) == [str(1 + hydra.HEADS), "[]"]
        assert hydra.count(str(counted)) == hydra.HEADS
        assert neighbour.poll() is None
        neighbour.kill()


@as_root
@pytest.mark.parametrize("ends", [None, KeyboardInterrupt, MachineError])
def test_outputs_belong_to_the_owner_of_the_sources_however_it_ends(
    account: Account, open_path: Path, ends: type[BaseException] | None
) -> None:
    sources, out = open_path / "sources", open_path / "sources" / "made" / "out"
    sources.mkdir()
    os.chown(sources, 4321, 4322)
    outside = open_path / "outside"
    outside.write_text("mine")

    with pytest.raises(ends) if ends else nullcontext(), keep_outputs(out, sources, account):
        (out / "logs").mkdir()
        (out / "journal.jsonl").write_text("{}\n")
        (out / "logs" / "link").symlink_to(outside)
        os.link(outside, out / "logs" / "hard")
        may_not(account, ("echo bad >> journal.jsonl",), out)
        if ends is not None:
            raise ends
    for path in (out.parent, out, out / "logs", out / "journal.jsonl"):
        assert (path.stat().st_uid, path.stat().st_gid) == (4321, 4322), path
    assert (outside.stat().st_uid, sources.stat().st_uid) == (0, 4321)


@as_root
def test_outputs_of_an_earlier_run_are_taken_from_the_user(account: Account, open_path: Path) -> None:
    sources = open_path / "sources"
    out = sources / "out"
    (out / "logs").mkdir(parents=True)
    (out / "journal.jsonl").write_text("{}\n")
    (out / "logs").chmod(0o777)
    account.give(sources)
    with keep_outputs(out, sources, account):
        may_not(
            account, ("echo bad >> journal.jsonl", "rm journal.jsonl", "ln -s x logs/head.log", "mv logs gone"), out
        )
    assert (out / "journal.jsonl").stat().st_uid == UID


@as_root
def test_outputs_that_were_replaced_are_found_out(account: Account, open_path: Path) -> None:
    """Where the sources belong to the user, it may rename the folder, and nothing is then written or given away."""
    sources, elsewhere = open_path / "sources", open_path / "elsewhere"
    sources.mkdir()
    elsewhere.mkdir()
    account.give(sources)
    with (
        pytest.raises(PerfciError, match="something else in its place"),
        keep_outputs(sources / "out", sources, account) as outputs,
    ):
        assert account.may_replace(sources / "out") == sources
        does(account, f"mv out gone && ln -s {elsewhere} out", cwd=sources)
        with pytest.raises(PerfciError, match="something else in its place"):
            outputs.require()
    assert elsewhere.stat().st_uid == 0


@as_root
def test_who_can_replace_the_outputs(account: Account, open_path: Path) -> None:
    out = open_path / "out"
    out.mkdir()
    assert account.may_replace(out) is None
    open_path.chmod(0o777)
    assert account.may_replace(out) == open_path
    open_path.chmod(0o1777)
    assert account.may_replace(out) is None, "as in /tmp"
    open_path.chmod(0o755)
    os.chown(open_path, 0, GID)
    assert account.may_replace(out) is None
    open_path.chmod(0o775)
    assert account.may_replace(out) == open_path


@as_root
def test_what_the_user_can_change_and_read(account: Account, open_path: Path) -> None:
    folder, elsewhere = open_path / "tools", open_path / "elsewhere"
    tool, other = folder / "bin" / "cc", elsewhere / "cc"
    for file in (tool, other):
        file.parent.mkdir(parents=True)
        file.write_text("")
    assert account.may_change(folder) is None and account.may_change(open_path / "nothing") is None
    assert account.may_read(tool) and SAME.may_read(tool) and SAME.may_change(tool) is None
    tool.chmod(0o600)
    assert not account.may_read(tool)
    folder.chmod(0o700)
    tool.chmod(0o644)
    assert not account.may_read(tool), "it cannot get there"
    os.chown(tool, UID, 0)
    assert account.may_change(folder) == account.may_change(tool) == tool
    tool.unlink()
    tool.symlink_to(other)
    assert account.may_change(folder) is None
    elsewhere.chmod(0o777)
    assert account.may_change(folder) == elsewhere, "where another may take the place of what is linked to"
    other.unlink()
    assert account.may_change(folder) == tool, "or begin it"
    elsewhere.chmod(0o755)
    assert account.may_change(folder) is None
    open_path.chmod(0o777)
    assert account.may_change(folder) == open_path


@as_root
def test_a_lease_of_root_can_be_held_by_others(account: Account, open_path: Path, monkeypatch) -> None:
    from perfci.system.lease import Lease

    monkeypatch.setattr(tempfile, "tempdir", str(open_path))
    open_path.chmod(0o1777)
    with Lease("cpu", 0, print):
        assert run_as(account, f"flock -n -E 9 {open_path}/perfci-leases/cpu.lock true").returncode == 9
    assert run_as(account, f"flock -n {open_path}/perfci-leases/cpu.lock true").returncode == 0


def test_nothing_is_swept_where_there_is_no_other_user() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        SAME.sweep()
        assert child.poll() is None
        child.kill()
