"""Traces: what processes really named comes out of what strace really wrote; whatever is odd makes them unsure."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.measure.proof.trace import Surroundings, TracedNames, read
from perfci.system import strace

STRACE = strace.find()


def real(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.tools(pytest.mark.skipif(STRACE is None, reason="needs strace")(test))


MARK = sys._base_executable
"""What is executed is named first."""


def around(side: Path) -> Surroundings:
    return Surroundings(str(side), str(side.parent / "other"), "prove-1", str(side / "tree"), MARK, "/scratch/s")


def traced(tmp_path: Path, code: str, *args: str) -> TracedNames:
    """What a Python script in `tree` names, under the real tool."""
    side = tmp_path.resolve() / "side"
    (side / "tree").mkdir(parents=True, exist_ok=True)
    output = tmp_path / "trace"
    argv = [*strace.command(STRACE or "", output), "--", MARK, "-I", "-S", "-c", code, *args]
    subprocess.run(argv, cwd=side / "tree", check=True)
    return read(output, around(side))


def parsed(tmp_path: Path, text: str | bytes) -> TracedNames:
    file = tmp_path / "written"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(file, around(tmp_path.resolve() / "side"))


def named(found: TracedNames) -> set[str]:
    return set().union(*(part.named for part in found.parts))


def hexed(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


BEGIN = f'7  access("{hexed(MARK)}", F_OK) = 0\n'


def call(text: str, *names: str) -> str:
    """A trace of one process with one call, whose `{}` are names."""
    return f"{BEGIN}7  {text.format(*map(hexed, names))}\n7  +++ exited with 0 +++\n"


NAMES = st.lists(
    st.binary(min_size=1, max_size=12).filter(lambda one: not {0, 47} & {*one} and one not in (b".", b"..")),
    min_size=1, max_size=6, unique=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    place = tmp_path_factory.mktemp("recorded")
    traced(place, "import os, tempfile\nos.listdir('.')\nwith tempfile.TemporaryDirectory() as one: os.chdir(one)")
    return place, (place / "trace").read_bytes()


@real
@given(names=NAMES)
@settings(max_examples=20)
def test_every_name_comes_out_as_it_was_asked_for(tmp_path_factory: pytest.TempPathFactory, names: list[bytes]) -> None:
    tmp_path = tmp_path_factory.mktemp("names")
    code = "import os, sys, json\nfor one in json.loads(sys.argv[1]):\n    os.path.exists(bytes.fromhex(one))"
    found = traced(tmp_path, code, json.dumps([name.hex() for name in names]))
    assert found.unsure == ""
    assert {f"tree/{name.decode(errors='backslashreplace')}" for name in names} <= named(found)


@real
def test_names_are_resolved_as_the_kernel_did(tmp_path: Path) -> None:
    tree = tmp_path / "side" / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "in").symlink_to("deep/er")
    (tree / "up").symlink_to(tree)
    found = traced(tmp_path, "import os\nfor one in ('in/../a', 'up/b', 'gone/d', './/e/'): os.path.exists(one)")
    assert found.unsure == ""
    assert {"tree/in", "tree/deep/er", "tree/deep/a", "tree/up", "tree/b", "tree/gone/d", "tree/e"} <= named(found)
    assert "tree/a" not in named(found)
    odd = os.fsencode(tree) + b"/odd\xff"
    os.symlink(b"deep/er", odd)  # noqa: PTH211  # Path takes no bytes
    found = traced(tmp_path, "import os; os.path.exists(b'odd\\xff/z')")
    assert {"tree/odd\\xff", "tree/deep/er/z"} <= named(found)
    (tree / "here").symlink_to("/proc/self/cwd")
    assert "through /proc" in traced(tmp_path, "import os; os.path.exists('here/z')").unsure
    (tree / "round").symlink_to("round")
    assert "too many links" in traced(tmp_path, "import os; os.path.exists('round/c')").unsure


@real
def test_the_program_that_the_kernel_starts_a_script_with_counts(tmp_path: Path) -> None:
    tree = tmp_path / "side" / "tree"
    (tree / "bin").mkdir(parents=True)
    for name, text in {"run": "#!bin/sh -e\ntrue\n", "bin/sh": ""}.items():
        (tree / name).write_text(text)
        (tree / name).chmod(0o755)
    shutil.copy("/bin/sh", tree / "bin" / "sh")
    found = traced(tmp_path, "import os; os.spawnl(os.P_WAIT, './run', 'run')")
    assert found.unsure == "" and {"tree/run", "tree/bin/sh"} <= named(found)
    (tree / "run").write_text("#!bin/middle\n")
    (tree / "bin/middle").write_text("#!bin/sh\n")
    (tree / "bin/middle").chmod(0o755)
    found = traced(tmp_path, "import os; os.spawnl(os.P_WAIT, './run', 'run')")
    assert found.unsure == "" and {"tree/run", "tree/bin/middle", "tree/bin/sh"} <= named(found)
    gone = "import os; os.link('run', 'r'); os.spawnl(os.P_WAIT, './r', 'r'); os.unlink('r')"
    assert traced(tmp_path, gone).unsure == "it executed a file that is gone, or has no name"


@real
def test_threads_and_children_are_told_apart_and_all_count(tmp_path: Path) -> None:
    code = """
import os, subprocess, threading
def ask(where):
    for n in range(200): os.path.exists(f"{where}{n}")
threads = [threading.Thread(target=ask, args=(f"thread{i}-",)) for i in range(4)]
for one in threads: one.start()
children = [subprocess.Popen(["sh", "-c", f"for n in 0 1 2; do test -e child{i}-$n; done"]) for i in range(4)]
for one in [*threads]: one.join()
for one in children: one.wait()
"""
    found = traced(tmp_path, code)
    assert found.unsure == ""
    assert {f"tree/thread{i}-{n}" for i in range(4) for n in range(200)} <= named(found)
    assert {f"tree/child{i}-{n}" for i in range(4) for n in range(3)} <= named(found)


@real
def test_a_trace_that_is_cut_anywhere_proves_nothing(tmp_path: Path) -> None:
    traced(tmp_path, "import os; os.path.exists('x')")
    whole = (tmp_path / "trace").read_bytes()
    assert parsed(tmp_path, whole).unsure == ""
    end = whole.rstrip(b"\n")
    for cut in {0, 1, *range(1, len(end), max(1, len(end) // 97)), len(end) - 1}:
        assert parsed(tmp_path, end[:cut]).unsure, cut


@real
@given(data=st.data())
def test_a_trace_with_pieces_lost_or_moved_never_raises(recorded: tuple[Path, bytes], data: st.DataObject) -> None:
    place, text = recorded
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    at = data.draw(st.integers(0, len(text)))
    piece = text[start : min(end, start + 60)]
    changed = text[:start] + text[start + len(piece) :]
    assert isinstance(
        parsed(place, changed[:at] + data.draw(st.sampled_from([b"", piece])) + changed[at:]), TracedNames
    )


@given(text=st.text(alphabet=st.sampled_from('7 open(at)"\\x2f<>{}=,-+?.O_RDONLY\n\0é')))
def test_no_text_is_taken_for_a_trace_or_raises(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    assert parsed(tmp_path_factory.getbasetemp(), text).unsure


@given(
    names=st.lists(st.sampled_from(["a", "b/c", "d"]), min_size=2, max_size=2),
    order=st.permutations([0, 1, 2, 3]),
)
def test_calls_that_interrupt_each_other_are_put_together(tmp_path_factory, names, order):
    tmp_path = tmp_path_factory.getbasetemp()
    halves = [
        (f'{7 + i}  access("{hexed(name)}", F_OK <unfinished ...>\n', f"{7 + i}  <... access resumed>) = 0\n")
        for i, name in enumerate(names)
    ]
    lines, begun = [], set()
    for one in order:
        lines.append(halves[one % 2][one % 2 in begun])
        begun.add(one % 2)
    first = lines[0].split()[0]
    found = parsed(tmp_path, "".join([BEGIN.replace("7", first, 1), *lines, f"{first}  +++ exited with 0 +++\n"]))
    assert found.unsure == "" and {f"tree/{name}" for name in names} <= named(found)


HARMLESS = [
    call('openat(AT_FDCWD<{}>, "{}", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 3<{}>', "/", "/dev/shm/cuda_injection_path_shm", "/dev/shm/cuda_injection_path_shm"),
    call('openat(AT_FDCWD, "{}", O_RDWR|O_CLOEXEC) = 3<{}>', "/dev/nvidia0", "/dev/nvidia0"),
    call('openat(AT_FDCWD, "{}", O_RDWR|O_EXCL|O_TMPFILE, 0600) = 3<{}>', "/tmp", "/tmp/#12"),
    call('openat(AT_FDCWD, "{}", O_RDWR|O_CREAT|O_EXCL, 0600) = 3<{}>', "/tmp/none-such", "/tmp/none-such"),
    call('rename("{}", "{}") = 0', "/usr/lib/__pycache__/a.cpython-311.pyc.123", "/usr/lib/__pycache__/a.cpython-311.pyc"),
    call('connect(3<{}>, {{sa_family=AF_UNIX, sun_path="{}"}}, 110) = 0', "socket:[1]", "/scratch/s"),
    call('connect(3<{}>, {{sa_family=AF_UNIX, sun_path="{}"}}, 110) = -1 ENOENT (No such file or directory)', "socket:[1]", "/run/nscd"),
    call('sendto(3<{}>, ""..., 30, 0, NULL, 0) = 30', "socket:[1]"),
    call("sendto(3<{}>, [{{nlmsg_len=20}}], 20, 0, {{sa_family=AF_NETLINK, nl_pid=0}}, 12) = 20", "socket:[1]"),
    call("sendmsg(3<{}>, {{msg_name=NULL, msg_namelen=0}}, 0) = 5", "socket:[1]"),
    call("shmget(IPC_PRIVATE, 4096, IPC_CREAT|0600) = 3"),
    call("io_uring_setup(8, 0x7ffc) = -1 ENOSYS (Function not implemented)"),
    call('execve("{}", [""..., ""...], 0x7ffc /* 3 vars */) = 0', "/bin/sh"),
]  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS)
def test_what_drivers_and_libraries_do_is_let_pass(tmp_path: Path, text: str) -> None:
    assert parsed(tmp_path, text).unsure == ""


DOUBTFUL = [
    (call("io_uring_setup(8, 0x7ffc) = 3<{}>", "anon_inode:[io_uring]"), "io_uring_setup"),
    (call("shmget(0x1234, 4096, IPC_CREAT|0600) = 3"), "shmget"),
    (call("accept4(3<{}>, NULL, NULL, 0) = 4<{}>", "socket:[1]", "socket:[2]"), "accept4"),
    (call('connect(3<{}>, {{sa_family=AF_INET, sin_port=htons(1), sin_addr=inet_addr("0.0.0.0")}}, 16) = -1 EINPROGRESS (Operation now in progress)', "socket:[1]"), "socket"),
    (call("sendto(3<{}>, \"\"..., 30, 0, {{sa_family=AF_INET}}, 16) = 30", "socket:[1]"), "socket"),
    (call("sendmsg(3<{}>, {{msg_name={{sa_family=AF_UNIX}}, msg_namelen=3}}, 0) = 5", "socket:[1]"), "socket"),
    (call('openat(AT_FDCWD, "{}", O_WRONLY|O_CREAT, 0600) = 3<{}>', "/tmp/lock", "/tmp/lock"), "/tmp/lock"),
    (call('openat(AT_FDCWD, "{}", O_WRONLY|O_CREAT|O_EXCL, 0600) = 3<{}>', "/etc/passwd", "/etc/passwd"), "left it there"),
    (call('unlink("{}") = 0', "/tmp/theirs"), "/tmp/theirs"),
    (call('openat(4, "{}", O_RDONLY) = 3', "x"), "in which folder"),
    (call('openat(AT_FDCWD, "{}", O_RDONLY) = 3', "/proc/self/cwd/data"), "/proc"),
    (call('openat(AT_FDCWD, "{}", O_RDONLY) = 3', "/proc/self/fd/3/../data"), "/proc"),
    (call('openat(AT_FDCWD, "{}", O_RDONLY) = 3', "/proc/12/root/tmp/x"), "/proc"),
    (call("getdents64(3, 0x55, 32768) = 48"), "which folder"),
    ("7  [ Process PID=7 runs in 32 bit mode. ]\n7  +++ exited with 0 +++\n", "no call"),
    ("7  getcwd(\"\", 9) = 1\n7  +++ killed by SIGKILL +++\n", "cut short"),
    ("", "cut short"),
]  # fmt: skip


@pytest.mark.parametrize("text, why", DOUBTFUL)
def test_what_brings_contents_without_a_name_is_not_vouched_for(tmp_path: Path, text: str, why: str) -> None:
    assert why in parsed(tmp_path, BEGIN + text.removeprefix(BEGIN)).unsure


def test_a_trace_that_lacks_its_beginning_proves_nothing(tmp_path: Path) -> None:
    whole = call('access("{}", F_OK) = 0', "/x")
    assert parsed(tmp_path, whole).unsure == ""
    assert parsed(tmp_path, whole.removeprefix(BEGIN)).unsure == "its trace lacks its beginning"


def test_files_of_the_side_may_not_be_moved_or_linked_from_elsewhere(tmp_path: Path) -> None:
    tree = tmp_path.resolve() / "side" / "tree"
    tree.mkdir(parents=True)
    moved = call('rename("{}", "{}") = 0', str(tree / "data"), "/tmp/none-such")
    assert "others may read" in parsed(tmp_path, moved).unsure
    linked = call('symlink("{}", "{}") = 0', str(tree), "/tmp/none-such")
    assert "links to files of its side" in parsed(tmp_path, linked).unsure


def test_a_trace_is_read_from_a_file_alone(tmp_path: Path) -> None:
    (tmp_path / "written").symlink_to("/etc/passwd")
    assert "cannot be read" in read(tmp_path / "written", around(tmp_path / "side")).unsure
    assert "cannot be read" in read(tmp_path / "none", around(tmp_path / "side")).unsure


def test_the_list_of_a_folder_outside_is_late_by_all_but_bytecode(tmp_path: Path) -> None:
    listed = tmp_path.resolve() / "listed"
    (listed / "__pycache__").mkdir(parents=True)
    text = f"{BEGIN}7  getdents64(3<{hexed(str(listed))}>, 0x7f, 32768) = 0\n7  +++ exited with 0 +++\n"
    (tmp_path / "written").write_text(text)
    since = replace(around(tmp_path.resolve() / "side"), begun=listed.stat().st_mtime - 1)

    def late() -> list[str]:
        return [part.late for part in read(tmp_path / "written", since).parts]

    (listed / "package/__pycache__").mkdir(parents=True)
    assert late() == [""]
    (listed / "size").write_text("")
    assert late() == [f"{listed}/"]
    (listed / "size").unlink()
    shutil.rmtree(listed / "__pycache__")
    shutil.rmtree(listed / "package")
    assert late() == [f"{listed}/"], "what was taken away"


@real
def test_strace_says_when_it_is_too_old_or_may_not_trace(tmp_path: Path) -> None:
    assert strace.refusal(STRACE or "") == ""
    for text, why in (
        ("echo strace -- version 4.9", "older"),
        ("[ $1 = --version ] && echo version 6.1 && exit; echo No. >&2; exit 1", ": No."),
    ):
        fake = tmp_path / "strace"
        fake.write_text(f"#!/bin/sh\n{text}\n")
        fake.chmod(0o755)
        assert why in strace.refusal(str(fake))
    assert "does not run" in strace.refusal(str(tmp_path / "none"))
    assert strace.refusal(STRACE or "", python="/bin/true").endswith("neither it nor /bin/true says anything")
