"""Running Nsight Systems: which nsys, its command lines, what it may see of this machine, what went wrong.

nsys stores the environment of every process that it can see in its report, in four places of the SQLite export:
META_DATA_CAPTURE and TARGET_INFO_SYSTEM_ENV (its own and the program's), StringIds and with it ProcessStreams (every
process's on the machine, where it runs as root, and the program's output). Hence a PID namespace of its own, an
environment by allow-list, and a scrub and a scan of what is to be kept.
"""

import bz2
import functools
import gzip
import lzma
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from perfci.arms.environment import passes
from perfci.evidence.nsys_events import LOSSES
from perfci.model.base import MachineError
from perfci.model.evidence import Fault, FaultKind
from perfci.system.files import disk_error, one_line
from perfci.system.gpu import INITIAL_PID_NAMESPACE

DURATION = 60
"""Seconds of a command that are recorded: without a capture range the whole process is."""
SIZE = 2**30
"""Bytes of a report from which on it is not exported: the export is four to eight times as large."""
PROBE_TIMEOUT = 60.0
"""Seconds for `nsys --version` and `--help`; the first start from a cold disk takes seconds."""

_PLACES = (
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "/usr/local/cuda/bin/nsys",
    "/usr/local/cuda-*/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
    "/usr/lib/nsight-systems/target-linux-*/nsys",
)
_VERSION = re.compile(r"version (\d+(?:\.\d+){2,})")
_FLAG = re.compile(r"^\s+(?:\([A-Za-z]+\) )?(?:-\w, )?--([a-z][a-z0-9-]*)", re.MULTILINE)
_INSTALL = (
    "install nsight-systems-cli from NVIDIA's devtools repository; without it torch.profiler gives kernels and copies"
)
_REPORT = b"NVIDIA Tegra Profiler Report"
_WINDOW = 8
"""Bytes of a secret that are looked for in a compressed report: LZ4 cuts text where a part of it occurred before."""


@dataclass(frozen=True, slots=True)
class Nsys:
    """An nsys that runs."""

    path: Path
    version: str
    """Such as `2023.4.4.54`."""
    flags: frozenset[str]
    """Long options of `nsys profile`, without dashes."""
    traces: frozenset[str]
    """What `--trace` takes, such as `cuda` and, from 2025 on, `cuda-sw`."""


# ---------------------------------------------------------------- which nsys


def candidates(environ: Mapping[str, str]) -> list[Path]:
    """Where an nsys may be, best first: `PATH`, then NVIDIA's own folders with the newest version first."""
    found = [Path(path)] if (path := shutil.which("nsys", path=environ.get("PATH", os.defpath))) else []
    for place in _PLACES:
        found += sorted((p for p in Path("/").glob(place[1:]) if os.access(p, os.X_OK)), key=_natural, reverse=True)
    return list(dict.fromkeys(found))


def find(environ: Mapping[str, str] | None = None) -> Nsys | Fault:
    """The first nsys that runs; else the fault of the first that does not, or that there is none."""
    environ = os.environ if environ is None else environ
    faults = []
    for path in candidates(environ):
        answer = probe(path, environ)
        if isinstance(answer, Nsys):
            return answer
        faults.append(answer)
    return faults[0] if faults else _fault("absent", "nsys is not installed", _INSTALL)


def probe(path: Path, environ: Mapping[str, str]) -> Nsys | Fault:
    """The nsys at `path`, asked for its version and its options; a fault where it does not answer."""
    env = environment(environ)
    answers = []
    for arguments in (["--version"], ["profile", "--help"]):
        try:
            done = subprocess.run(
                [str(path), *arguments], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=PROBE_TIMEOUT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            text = f"{path} {' '.join(arguments)}: no answer within {PROBE_TIMEOUT:g} s"
            return _fault("timeout", text, "see whether another nsys hangs, and end it")
        except OSError as error:
            return _fault("crash", f"{path}: cannot be started ({error.strerror})", _INSTALL)
        answers.append((done.returncode, done.stdout.decode(errors="replace")))
    (_, said), (code, usage) = answers
    version = _VERSION.search(said)
    if version is None:
        # CUDA toolkits put a script of this name in their bin folder that only says that nsys is not installed.
        return _fault("absent", f"{path}: tells no version, but {_last(said)}", _INSTALL)
    flags = frozenset(_FLAG.findall(usage))
    if not {"trace", "output"} <= flags:
        return _fault("incompatible", f"{path} profile --help: lists no options (status {code})", _INSTALL)
    possible = re.search(r"--trace=\s+(Possible values are .*?)\n\s*\n?\s*Select", usage, re.DOTALL)
    traces = frozenset(re.findall(r"'([a-z-]+)'", possible[1])) if possible else frozenset({"cuda", "nvtx"})
    return Nsys(path, version[1], flags, traces)


def _natural(path: Path) -> list[tuple[int, int | str]]:
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(path))]


# ---------------------------------------------------------------- command lines


def profile_command(
    nsys: Nsys,
    output: Path,
    argv: Sequence[str],
    *,
    cuda: bool,
    capture_range: bool,
    duration: int | None = None,
    software: bool = False,
) -> list[str]:
    """The command line that records `argv` into `output` (`.nsys-rep`); options this nsys does not know are left out.

    `cuda`: whether there is a GPU to trace. `capture_range`: record between cudaProfilerStart and cudaProfilerStop
    only; without CUDA that range never opens, so it is ignored there. `duration`: seconds after which recording ends,
    the program running on. `software`: trace CUDA without the hardware's help, where this nsys can, for stacks on
    which `cuda` crashes. Raises ValueError for an empty `argv`.
    """
    if not argv:
        raise ValueError("nothing to profile")
    kind = "cuda-sw" if software and "cuda-sw" in nsys.traces else "cuda"
    ranged = cuda and capture_range
    wanted = {
        "trace": f"{kind},nvtx" if cuda else "nvtx",
        "sample": "none",
        "cpuctxsw": "none",
        "backtrace": "none",
        "cuda-graph-trace": "node" if cuda else None,
        "cuda-event-trace": "false" if cuda else None,
        # Else what the GPU told last may be lost: seen on an H200 with 2023.4.
        "cuda-flush-interval": "100" if cuda else None,
        # The default names sessions by process number: every PID namespace has a small one, and names must differ.
        "session-new": f"perfci-{uuid.uuid4().hex[:12]}",
        "capture-range": "cudaProfilerApi" if ranged else None,
        "capture-range-end": "stop" if ranged else None,
        "duration": str(duration) if duration else None,
        "kill": "none" if ranged or duration else None,
        "wait": "primary",
        "resolve-symbols": "false",
        "discard-environment": "true",
        "stats": "false",
        "force-overwrite": "true",
        "output": str(output),
    }
    options = [f"--{name}={value}" for name, value in wanted.items() if value is not None and name in nsys.flags]
    return [str(nsys.path), "profile", *options, *argv]


def export_command(nsys: Nsys, report: Path, output: Path) -> list[str]:
    """The command line that writes the SQLite export `output` of `report`."""
    options = ["--type=sqlite", "--force-overwrite=true", f"--output={output}"]
    return [str(nsys.path), "export", *options, str(report)]


def used(folder: Path) -> int:
    """Bytes below `folder`: give nsys a TMPDIR of its own there and end it where this passes SIZE."""
    total = 0
    for top, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(top) / name).lstat().st_size
            except FileNotFoundError:  # nsys renames while it works
                continue
    return total


# ---------------------------------------------------------------- what nsys may see

_PERFCI = re.compile(
    r"PERFCI_(?!.*(TOKEN|SECRET|KEY)).* | PYTHON(PATH|UNBUFFERED|NOUSERSITE|HASHSEED|DONTWRITEBYTECODE|FAULTHANDLER)"
    r"| OMP_WAIT_POLICY | NUMEXPR_NUM_THREADS | VECLIB_MAXIMUM_THREADS | XDG_CACHE_HOME | TORCH_EXTENSIONS_DIR"
    r"| (TRITON|TORCHINDUCTOR|CUPY|NUMBA)_CACHE_DIR | CUDA_CACHE_PATH | CUDA_VISIBLE_DEVICES",
    re.VERBOSE,
)
_CREDENTIALS = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|(API|ACCESS|ENCRYPTION|SSH)_?KEY|(^|_)(KEY|PAT|PWD_?HASH)$",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9+/_=.:~%-]{20,}")


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """What of `base` a profiled process gets: what a launch gets without being named in the policy, and caches.

    Compiled kernels must be found again, or the profile is one of compilation. A variable with credentials in its
    value is left out whatever its name.
    """
    kept = {
        name: value
        for name, value in base.items()
        if (passes(name, build=False) or _PERFCI.fullmatch(name)) and not _CREDENTIALS.search(value)
    }
    # Else nsys takes only registered strings for the names of ranges that open a capture.
    return kept | {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


@dataclass(frozen=True, slots=True)
class Isolation:
    """How nsys is kept from the environments of other processes."""

    prefix: tuple[str, ...]
    """What to put before its command line; empty where nothing can be done."""
    holds: bool
    """Whether it sees no process but its own."""
    text: str
    """One line for people."""


@functools.cache
def isolation() -> Isolation:
    """The way that works here, tried once: a PID namespace, as root or in a user namespace.

    The namespace dies with the process that opened it, and everything in it, daemons too.
    """
    unshare = shutil.which("unshare")
    ways = [
        ["--kill-child"],
        ["--kill-child", "--user", "--map-current-user"],
        ["--kill-child", "--user", "--map-root-user"],
    ]
    if unshare is not None:
        for way in ways:
            prefix = (unshare, *way, "--pid", "--fork", "--mount-proc")
            if _alone(prefix):
                how = "in a user namespace" if "--user" in way else "as root"
                return Isolation(prefix, True, f"nsys runs in a PID namespace of its own, opened {how}")
    why = "unshare is not installed" if unshare is None else "this user may not open a PID namespace"
    if _contained():
        text = f"{why}: nsys sees the environments of this container's processes"
    elif os.geteuid() == 0:
        text = f"{why}: nsys, as root, sees the environments of all processes of this machine"
    else:
        text = f"{why}: nsys sees the environments of this user's processes"
    return Isolation((), False, text)


def isolate(argv: Sequence[str]) -> list[str]:
    """`argv` in a PID namespace of its own, where that can be had here: see `isolation`, which says what holds."""
    return [*isolation().prefix, *argv]


def _alone(prefix: Sequence[str]) -> bool:
    """Whether what runs behind `prefix` is process 1 of a /proc of its own."""
    script = 'read -r name </proc/1/comm && [ "$$" = 1 ] && [ "$name" = sh ]'
    try:
        done = subprocess.run(
            [*prefix, "/bin/sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _contained() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE
    except OSError:
        return False


# ---------------------------------------------------------------- what may be kept


def scrub(sqlite: Path) -> None:
    """Remove from an export what it tells of the machine beyond the trace: all or nothing, in place.

    Environment, arguments, user, host and paths; the program's output; strings that no event refers to; names of
    processes and threads that were not traced. Raises MachineError where that fails: then the file is as it was, and
    must not be published.
    """
    try:
        fd, name = tempfile.mkstemp(dir=sqlite.parent, prefix=".scrub-", suffix=".sqlite")
        os.close(fd)
        copy = Path(name)
        try:
            shutil.copyfile(sqlite, copy)
            _scrub(copy)
            copy.chmod(sqlite.stat().st_mode & 0o777)
            copy.replace(sqlite)
        finally:
            copy.unlink(missing_ok=True)
    except OSError as error:
        raise disk_error("scrubbed", sqlite, error) from None
    except (sqlite3.Error, UnicodeDecodeError) as error:
        text = f"{one_line(sqlite)}: cannot be scrubbed ({one_line(error)}): do not publish it; export it again"
        raise MachineError(text) from None


_CAPTURE = ("ENVIRONMENT", "ARGUMENT", "COMMAND", "USER_NAME", "WORKING_DIR", "DISPLAY_NAME")
_EXPORT = ("PATH", "HOST", "USER", "FILE")
_SYSTEM = ("Environment", "Hostname", "Path", "InstallDir")
_REFERENCE = re.compile(r'^\s*"?(\w+)"?\s[^\n]*--[^\n]*REFERENCES StringIds', re.MULTILINE)
_REFERENCES = {"nameId", "textId", "demangledName", "shortName", "mangledName", "jsonTextId"}


def _scrub(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE", "trusted_schema = OFF"):
            db.execute(f"PRAGMA {pragma}").fetchall()
        tables: dict[str, str] = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        columns = {table: {row[1] for row in db.execute(f'PRAGMA table_info("{table}")')} for table in tables}
        for table, words in (
            ("META_DATA_CAPTURE", _CAPTURE), ("META_DATA_EXPORT", _EXPORT), ("EXPORT_META_DATA", _EXPORT),
            ("TARGET_INFO_SYSTEM_ENV", _SYSTEM),
        ):  # fmt: skip
            for word in words if "name" in columns.get(table, ()) else ():
                db.execute(f"DELETE FROM {table} WHERE name LIKE ?", (f"%{word}%",))
        for table in tables:
            if table == "ProcessStreams" or "ENVIRON" in table.upper():
                db.execute(f'DELETE FROM "{table}"')
        _scrub_processes(db, columns)
        if {"id", "value"} <= columns.get("StringIds", set()):
            _scrub_strings(db, tables, columns)
        db.execute("VACUUM")
    finally:
        db.close()


def _scrub_processes(db: sqlite3.Connection, columns: Mapping[str, set[str]]) -> None:
    """Keep names of processes and threads with events only."""
    db.execute("CREATE TEMP TABLE traced (pid INTEGER PRIMARY KEY)")
    for table, has in columns.items():
        if table.startswith(("CUPTI_", "NVTX_")):
            for column in {"globalPid", "globalTid"} & has:
                db.execute(
                    f'INSERT OR IGNORE INTO traced SELECT DISTINCT {column} & -16777216 FROM "{table}" '
                    f"WHERE typeof({column}) = 'integer'"
                )
    for table, column in (("PROCESSES", "globalPid"), ("ThreadNames", "globalTid")):
        if column in columns.get(table, ()):
            db.execute(
                f"DELETE FROM {table} WHERE {column} IS NULL OR ({column} & -16777216) NOT IN (SELECT pid FROM traced)"
            )


def _scrub_strings(db: sqlite3.Connection, tables: Mapping[str, str], columns: Mapping[str, set[str]]) -> None:
    """Delete the strings that no event refers to, but for what nsys says of lost events."""
    db.execute("CREATE TEMP TABLE kept (id INTEGER PRIMARY KEY)")
    for table, sql in tables.items():
        if table == "StringIds":
            continue
        for column in (set(_REFERENCE.findall(sql or "")) | _REFERENCES) & columns[table]:
            db.execute(
                f'INSERT OR IGNORE INTO kept SELECT DISTINCT "{column}" FROM "{table}" '
                f"WHERE typeof(\"{column}\") = 'integer'"
            )
    said = " OR ".join(["value LIKE ?"] * len(LOSSES))
    db.execute(f"DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM kept) AND NOT ({said})", LOSSES)
    # An environment is NAME=value, each ended by a NUL: no name of an event has one.
    db.execute("UPDATE StringIds SET value = '(removed)' WHERE instr(CAST(value AS BLOB), x'00') > 0")


def secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables whose values must be in nothing that is published: by name, by credentials in an address, or because a
    variable that profiled processes do not get has a long value of letters and digits.

    Values of fewer than 6 characters are left out: they are found everywhere.
    """
    allowed = environment(environ)
    found = {}
    for name, value in environ.items():
        if len(value) < 6:
            continue
        random = name not in allowed and _TOKEN.fullmatch(value) and not value.startswith(("/", "./"))
        if _SECRET_NAME.search(name) or _CREDENTIALS.search(value) or random:
            found[name] = value
    return found


def contains(path: Path, secrets: Mapping[str, str]) -> list[str]:
    """The names of those `secrets` whose values are in the bytes of the file, in constant memory.

    Files that are gzip, xz or bzip2 as a whole are searched unpacked as well. A `.nsys-rep` is LZ4-compressed in a
    framing of NVIDIA's own, which cuts strings: there any 8 successive bytes count as found, which catches nearly
    every random value and some innocent ones; only a scan of its unscrubbed export says what is in it. Values that are
    encoded (base64, UTF-16) are not found. Raises OSError where the file cannot be read.
    """
    needles = {name: [value.encode("utf-8", "surrogateescape")] for name, value in secrets.items() if value}
    with path.open("rb") as handle:
        head = handle.read(len(_REPORT))
    if head == _REPORT:
        needles = {name: _windows(values[0]) for name, values in needles.items()}
    found: set[str] = set()
    with path.open("rb") as handle:
        found |= _search(handle, needles)
    unpack: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}
    for magic, opener in unpack.items():
        if head.startswith(magic):
            with opener(path, "rb") as stream:
                try:
                    found |= _search(stream, needles)
                except (EOFError, lzma.LZMAError, gzip.BadGzipFile, OSError) as error:
                    raise OSError(f"{path}: cannot be unpacked, so nothing is known of it ({error})") from None
    return sorted(found)


def _windows(value: bytes) -> list[bytes]:
    last = max(0, len(value) - _WINDOW)
    return list({value[at : at + _WINDOW] for at in (*range(0, last, 3), last)})


def _search(stream: IO[bytes], needles: Mapping[str, Sequence[bytes]]) -> set[str]:
    longest = max((len(value) for values in needles.values() for value in values), default=1)
    found: set[str] = set()
    for window in _pieces(stream, longest - 1):
        found |= {n for n, values in needles.items() if n not in found and any(value in window for value in values)}
    return found


def _pieces(stream: IO[bytes], overlap: int) -> Iterator[bytes]:
    tail = b""
    while piece := stream.read(2**20):
        yield tail + piece
        tail = (tail + piece)[-overlap:] if overlap else b""


# ---------------------------------------------------------------- what went wrong

_CLEAR: tuple[tuple[str, FaultKind, str], ...] = (
    (r"unshare(: unshare)? failed|unshare: .*not permitted", "forbidden", "run as a user who may open PID namespaces"),
    (r"unrecognised option|unrecognized option", "incompatible", "update nsys"),
    (r"newer than your current version", "incompatible", "export with the nsys that recorded"),
    (r"Executable not found", "crash", "name a program that can be started"),
    (r"importer version|QdstrmImporter.*(not|No such)", "incompatible",
     "its host folder, which writes reports, is missing: " + _INSTALL),
    (r"temp_directory_path|Cannot create temporary|cannot create directory|Failed to create '", "forbidden",
     "set TMPDIR to a folder that can be written, and name an output folder that exists"),
    (r"No space left on device|Disk quota exceeded", "crash", "free space, or set TMPDIR to a folder on another disk"),
    (r"already subscribed to CUPTI|MULTIPLE_SUBSCRIBERS|HARDWARE_BUSY", "busy",
     "end other profilers (torch.profiler in the case, DCGM, MPS), or trace with cuda-sw"),
    (r"INSUFFICIENT_PRIVILEGES|ERR_NVGPUCTRPERM", "forbidden",
     "allow profiling: NVIDIA's page ERR_NVGPUCTRPERM says how"),
    (r"Exportation error", "unreadable", "capture again"),
    (r"Agent launcher exceeded its timeout", "timeout", "run again on an idle machine"),
)  # fmt: skip


def classify(
    code: int | None, log: str, output: Path, *, signal: int | None = None, timed_out: bool = False
) -> Fault | None:
    """What is wrong after a run of nsys that should have written `output`; None where nothing is.

    `code`: its exit status, None where `signal` ended it; nsys hands on the status of the program it records, 128 + n
    where signal n ended that. `log`: what it printed. A run that left an output and failed is a fault all the same:
    what it recorded is not the whole case.
    """
    written = output.is_file() and output.stat().st_size > 0
    if timed_out:
        return _fault(
            "timeout", f"nsys did not end in time{_saying(log)}", "raise the time-out, or profile fewer executions"
        )
    if signal is None and code == 0 and written:
        return None
    for pattern, kind, remedy in _CLEAR:
        if match := re.search(rf"[^\n\r]*({pattern})[^\n\r]*", log, re.IGNORECASE):
            return _fault(kind, f"nsys says: {match[0].strip()}", remedy)
    if signal is not None or (code is not None and (code < 0 or code > 128)):
        number = signal if signal is not None else abs(code or 0) % 128
        text = f"nsys or the program under it was killed by signal {number}{_saying(log)}"
        return _fault(
            "crash", text, "run the case without a profiler; if only nsys dies, update it or trace with cuda-sw"
        )
    if code:
        text = f"the program under nsys, or nsys itself, exited with status {code}{_saying(log)}"
        return _fault("crash", text, "run the case without a profiler")
    text = f"nsys ended well and wrote no {output.name}{_saying(log)}"
    return _fault("empty", text, "was cudaProfilerStart called? without CUDA ask for no capture range")


def _saying(log: str) -> str:
    last = _last(log)
    return f", saying: {last}" if last else ""


def _last(log: str) -> str:
    """The last line that says something, progress bars left out."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", log)]
    telling = [
        line
        for line in lines
        if line and not re.match(r"\[\d+/\d+\]|Processing|Generat|/\S+\.(nsys-rep|qdstrm)$", line)
    ]
    return one_line(telling[-1])[:300] if telling else ""


def _fault(kind: FaultKind, text: str, remedy: str) -> Fault:
    return Fault(tool="nsys", kind=kind, text=one_line(text)[:1000], remedy=remedy)
