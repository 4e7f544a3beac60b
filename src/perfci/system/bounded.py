"""Reads files that code under test or a stranger wrote in a process of its own, with bounds on time, memory and size.

Damage can have taken that process over: its JSON is held to the reader's return type.
"""

import codecs
import contextlib
import importlib
import json
import math
import os
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import psutil
from pydantic import BaseModel, TypeAdapter, ValidationError, validate_call
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perfci.model.base import UsageError
from perfci.model.text import escaped, one_line
from perfci.system.users import SAME, Account
from perfci.worker.leash import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

MIB = 2**20
SPARSE = 16
"""A large file with fewer than one in this many bytes on the disk was made, not written."""
_LARGE = 16 * MIB
_NO_MEMORY = 77
_SAID = 4000
_MOST_ERRORS = 1000
"""Errors of a document, which take memory; the first is told."""
_BOOT = (
    "import json, sys; sys.path += [one for one in json.loads(sys.argv.pop(1)) if one not in sys.path]; "
    "from perfci.system.bounded import serve; sys.exit(serve())"
)
"""-I leaves out PYTHONPATH and the user's packages, which may hold perfci: they come last."""


class Unread(Exception):
    """Why a file was not read: a clause for people."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a reader."""

    seconds: float = 10.0
    """Of processor time."""
    memory: int = 384 * MIB
    """Bytes beside the interpreter and its modules."""
    answer: int = 32 * MIB
    """Bytes of JSON."""
    written: int = 256 * MIB
    """Bytes of its largest file."""
    program: int = 0

    @property
    def wall(self) -> float:
        """Seconds by the clock, since the machine may be busy."""
        return 6 * self.seconds + 60


def regular(path: Path, largest: int) -> int:
    """Return a file's bytes. Raises Unread: none there, a link, pipe or device, over `largest`, or mostly holes."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise Unread("is no ordinary file")
        check_size(status, largest)
        if hollow(path, status):
            raise Unread(f"has {status.st_size >> 20} MiB, of which {status.st_blocks * 512 >> 20} are on the disk")
    except FileNotFoundError:
        raise Unread("there is no such file") from None
    except OSError as error:
        raise Unread(f"cannot be read ({error.strerror})") from None
    return status.st_size


def hollow(path: Path, status: os.stat_result) -> bool:
    """Tell whether a large file has hardly a byte on the disk. Raises OSError."""
    few = status.st_size >= _LARGE and status.st_blocks * 512 * SPARSE < status.st_size
    return few and _has_hole(path)


def check_size(status: os.stat_result, largest: int) -> None:
    """Raise Unread for a file over `largest` bytes."""
    if status.st_size > largest:
        raise Unread(f"has {status.st_size >> 20} MiB, more than the {largest >> 20} MiB that are read")


def read_document(path: Path, kind: type[M], largest: int, what: str, todo: str, shown: str = "") -> M:
    """Return the document in a file that links may lead to. Raises UsageError.

    `what`: it is called; `todo`: remedy; `shown`: the file, as it was asked for.
    """
    shown = shown or str(path)
    try:
        regular(Path(os.path.realpath(path)), largest)
        return kind.model_validate_json(path.read_bytes())
    except (Unread, OSError) as error:
        why = f"cannot be read ({error.strerror if isinstance(error, OSError) else error})"
    except ValidationError as error:
        why = f"{error.error_count()} errors"
        if error.error_count() <= _MOST_ERRORS:
            first = error.errors(include_url=False)[0]
            field = escaped(".".join(map(str, first["loc"])), 100)
            why = f"{field or 'JSON'}: {first['msg']}"
        why = f"is no {what} of this version ({why})"
    raise UsageError(f"{shown}: {why}: {todo}")


def _has_hole(path: Path) -> bool:
    """Counts of blocks lie on file systems that compress, or write late."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return os.lseek(descriptor, 0, os.SEEK_HOLE) < os.fstat(descriptor).st_size
    except (OSError, AttributeError):
        return True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def desk(account: Account = SAME) -> Iterator[Path]:
    """Yield a temporary folder for a reader to work in."""
    with tempfile.TemporaryDirectory(prefix="perfci-read-") as folder:
        path = Path(folder).resolve()
        account.give(path)
        yield path


def take(made: Path, target: Path, largest: int) -> None:
    """Copy a reader's file to `target`, all or nothing. Raises Unread, and OSError for `target`."""
    regular(made, largest)
    partial = target.with_name(f"{target.name}.partial")
    try:
        shutil.copyfile(made, partial, follow_symlinks=False)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def call(function: Callable[..., T], bounds: Bounds, folder: Path, account: Account = SAME, /, **arguments: Any) -> T:
    """Return what `function` of a perfci module returns in another process, as the user `account` in its desk `folder`;
    arguments and answer go as JSON. Raises Unread."""
    adapter: TypeAdapter[T] = TypeAdapter(get_type_hints(function, include_extras=True)["return"])
    try:
        request = json.dumps(
            {
                "module": function.__module__,
                "function": function.__qualname__,
                "arguments": to_jsonable_python(arguments),
                **asdict(bounds),
                "user": account.ids,
            }
        ).encode()
    except (PydanticSerializationError, UnicodeError):
        raise Unread("has a name that is no text") from None
    answer = _ask(request, bounds, folder)
    try:
        return adapter.validate_json(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise Unread(f"its reader answered nonsense ({first['type']})") from None


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    own = dict.fromkeys(("HOME", "TMPDIR", "SQLITE_TMPDIR"), str(folder))
    # Libraries for numbers reserve memory for each core, and glibc for each thread.
    return {**kept, **own, "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


def _ask(request: bytes, bounds: Bounds, folder: Path) -> bytes:
    here = Path.cwd()
    found = [one for entry in sys.path if entry and (one := Path(entry).absolute()) != here]
    places = json.dumps([str(one) for one in [*found, Path(__file__).parents[2]]])
    said = run(
        [sys.executable, "-I", "-c", _BOOT, places], bounds.wall, env=_environment(folder), cwd=folder, stdin=request,
        largest=bounds.answer,
    )  # fmt: skip
    if said.fine:
        return said.raw
    if said.code is None:
        raise Unread(f"its reader: {said.problem}")
    if said.code == _NO_MEMORY:
        raise Unread(f"reading it takes more than {bounds.memory >> 20} MiB of memory")
    if said.code == -signal.SIGXCPU:
        raise Unread(f"not read within {bounds.seconds:g} s of processor time")
    if said.code < 0:
        raise Unread(f"its reader died ({signal.Signals(-said.code).name})")
    raise Unread(f"its reader failed ({(said.err.strip().splitlines() or ['it said nothing'])[-1][:200]})")


@dataclass(frozen=True, slots=True)
class Said:
    """The output of a program, and how it ended."""

    code: int | None
    """None: not started, or ended by us. Negative: killed by that signal."""
    raw: bytes = b""
    err: str = ""
    problem: str = ""
    """Why it has no exit code: `no such program`, `no answer within 5 s`."""
    late: bool = False
    """Ended for its time."""

    @property
    def fine(self) -> bool:
        """It exited with 0."""
        return self.code == 0

    @property
    def out(self) -> str:
        """Its output as text."""
        return self.raw.decode(errors="replace")

    def why(self) -> str:
        """Return why it is not fine, in one line."""
        if self.problem:
            return self.problem
        words = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        ended = f"killed by signal {-self.code}" if self.code is not None and self.code < 0 else f"exit {self.code}"
        return one_line(escaped(f"{ended}: {words[-1]}" if words else ended), 300)


def run(
    argv: Sequence[str],
    seconds: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    largest: int = MIB,
    prepare: Callable[[], None] | None = None,
) -> Said:
    """Run a program and end it, with what it leaves behind, after `seconds` or `largest` bytes of output. Never raises
    OSError.

    `prepare` runs in the new process first.
    """
    with tempfile.TemporaryFile() as asked:
        asked.write(stdin)
        asked.seek(0)
        try:
            process = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, preexec_fn=prepare,  # noqa: PLW1509 - a reader, which has one thread, asks for it
            )  # fmt: skip
        except FileNotFoundError:
            return Said(None, problem="no such program")
        except OSError as error:
            return Said(None, problem=f"cannot be started: {error.strerror}")
    answer, err, problem, late = bytearray(), "", "", False
    try:
        err = listen(process, answer, seconds, largest)
    except Unread as error:
        problem = str(error)
    except TimeoutError as error:
        late = process.poll() is None
        # A child left behind may hold the pipes open: what an ended program said is all.
        problem = str(error) if late else ""
    finally:
        end(process)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what an ended one has left behind
            os.killpg(process.pid, signal.SIGKILL)
    return Said(None if problem else process.returncode, bytes(answer), err, problem, late)


def listen(process: "subprocess.Popen[bytes]", answer: bytearray, seconds: float, largest: int) -> str:
    """Read a process's output into `answer`, and return the end of its stderr.

    Raises TimeoutError, and Unread over `largest` bytes.
    """
    assert process.stdout is not None and process.stderr is not None
    deadline, late = time.monotonic() + seconds, TimeoutError(f"no answer within {seconds:g} s")
    said = b""
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            ready = selector.select(remaining) if remaining > 0 else []
            if not ready:
                raise late
            for key, _ in ready:
                block = os.read(key.fd, 2**18)
                if not block:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    said = (said + block)[-_SAID:]
                elif len(answer) + len(block) > largest:
                    raise Unread(f"what it says takes more than {largest >> 20} MiB")
                else:
                    answer += block
    try:
        process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise late from None
    return said.decode(errors="replace")


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that still runs, and the programs that it started."""
    if process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


# ---------------------------------------------------------------- in the process of its own


def serve() -> int:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)
    function: Any = importlib.import_module(request["module"])
    for name in request["function"].split("."):
        function = getattr(function, name)
    adapter: TypeAdapter[Any] = TypeAdapter(get_type_hints(function, include_extras=True)["return"])
    checked = validate_call(function)
    for codec in ("ascii", "latin-1", "utf-8-sig"):  # the user need not be able to read what is imported later
        codecs.lookup(codec)
    _bind(request)
    try:
        with os.fdopen(answers, "wb") as file:
            file.write(adapter.dump_json(checked(**request["arguments"])))
    except MemoryError:
        return _NO_MEMORY
    except Exception as error:  # noqa: BLE001 - told in one line to who asked, as a failure
        sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


def unbind(memory: int | None = None) -> None:
    """Let a program of a reader have `Bounds.program` of memory, or less; runs in the new process."""
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        hard = resource.getrlimit(kind)[1]
        if memory is not None:
            hard = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(kind, (hard, hard))


def _bind(request: dict[str, Any]) -> None:
    reached = math.ceil(time.process_time() + request["seconds"])
    limits = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_CPU: (reached, reached + 5),
        resource.RLIMIT_FSIZE: (request["written"], request["written"]),
        resource.RLIMIT_NOFILE: (64, 64),
    }
    with contextlib.suppress(OSError):  # without /proc there is no telling what is taken already
        taken = [int(one) * resource.getpagesize() for one in Path("/proc/self/statm").read_text().split()]
        for kind, used in ((resource.RLIMIT_AS, taken[0]), (resource.RLIMIT_DATA, taken[5])):
            own = used + request["memory"]
            limits[kind] = (own, max(own, request["program"]))
    for kind, (soft, hard) in limits.items():
        most = resource.getrlimit(kind)[1]
        most = sys.maxsize if most == resource.RLIM_INFINITY else most
        resource.setrlimit(kind, (min(soft, most), min(hard, most)))
    if request["user"] is not None:
        user, group = request["user"]
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which takes it away
