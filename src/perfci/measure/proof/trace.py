"""The names that a process and its children handed to the kernel, from strace (`system.strace.command`).

What is not understood, or could bring contents into a process without a name, makes the trace unsure: it then proves
nothing. Names are resolved as the kernel does; missing names count, and so does each link on the way.
"""

import itertools
import math
import os
import posixpath
import re
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from perfci.model.text import escaped
from perfci.system.strace import ESCAPES, SENDS

MOST_FOLDERS = 64
"""A relative name counts in each folder that any process worked in."""
MOST_LINKS = 40
"""On the way of one name (path_resolution(7))."""
MOST_SCRIPTS = 5
"""That interpret one another (execve(2))."""
LARGEST = 512 * 2**20
"""Importing torch takes some 10 MB."""
_HEX = r"(?:\\x[0-9a-f]{2})*"
_LINE = re.compile(r"(\d+) +(?:<\.\.\. \w+ resumed>(?P<rest>.*)|(?P<call>\w+\(.*)|\+\+\+ (?P<end>.+) \+\+\+)")
_CALL = re.compile(r"(\w+)\((.*?)\)? += (-?\d+|0x[0-9a-f]+|\?)" + rf"(?:<({_HEX})>(?:\(deleted\))?)?(?: .*)?")
_NAME = re.compile(rf'(?:(AT_FDCWD|-?\d+)(?:<({_HEX})>(?:\(deleted\))?)?, )?"({_HEX})"(\.\.\.)?')
_DESCRIPTOR = re.compile(rf"\d+<({_HEX})>")
_SOCKET = re.compile(rf'sun_path="({_HEX})"')
_ELSEWHERE = re.compile(r"/proc/[^/]+(/task/[^/]+)?/(cwd|root|fd/[^/]+|map_files/[^/]+)")
"""Links of proc(5) that lead elsewhere without a name."""
_CHANGES = {
    "mkdir", "mkdirat", "mknod", "mknodat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
    "unlink", "unlinkat", "rmdir", "truncate", "creat",
}  # fmt: skip
_HARMLESS = re.compile(
    r"""/dev/(null|zero|full|tty|ptmx|pts/.*|nvidia.*|shm/cuda_injection_path_shm) | /proc/.*
      | .*/__pycache__(/[^/]+\.pyc(\.\d+)?)?""",
    re.VERBOSE | re.DOTALL,
)
"""Devices, the driver's switch for injection, and bytecode: nobody reads these as data."""


@dataclass
class Part:
    """Names in their first part, below the side's folder."""

    named: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)
    """Files and listed folders elsewhere."""
    late: str = ""
    """One of those, written since the run began."""


@dataclass
class TracedNames:
    """Names of processes, in parts that begin at the mark."""

    parts: list[Part] = field(default_factory=list)
    unsure: str = ""
    """Why it proves nothing, as a clause, or empty."""
    at: int = 0
    """The part that shows this."""


@dataclass(frozen=True)
class Surroundings:
    """Places of the traced process, real paths."""

    side: str
    other: str
    """The other side's folder."""
    cache: str
    """What replaced `cache` below `side` for this process."""
    start: str
    mark: str
    """The name that begins a part."""
    socket: str
    """Address of the run's socket."""
    begun: float = math.inf
    """Begin of the run, in seconds since the epoch."""
    parts: int = sys.maxsize
    """Later ones are not read."""


def read(file: Path, around: Surroundings) -> TracedNames:
    """Read the trace of ended processes."""
    reader = _Reader(around)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, encoding="ascii", newline="\n") as lines:
            if os.fstat(descriptor).st_size > LARGEST:
                return TracedNames(unsure=f"its trace has more than {LARGEST >> 20} MiB")
            return reader.trace(lines)
    except (OSError, UnicodeDecodeError) as error:
        return TracedNames(unsure=f"its trace cannot be read ({type(error).__name__})")


def _text(hexadecimal: str) -> str:
    return os.fsdecode(bytes.fromhex(hexadecimal.replace("\\x", "")))


class _Unsure(Exception):
    """Why a trace proves nothing, and in which part, unless the one being read."""


class _Reader:
    def __init__(self, around: Surroundings) -> None:
        self.around, self.found = around, TracedNames()
        self.folders = {around.start: None}
        """Working folders of any process, in order."""
        self.made: dict[str, int] = {}
        """Real paths that the processes made → part."""
        self.real: dict[str, str] = {"/": "/"}

    def trace(self, lines: Iterable[str]) -> TracedNames:
        waiting: dict[str, str] = {}
        first, ended, behind, mark = "", "", False, "".join(f"\\x{byte:02x}" for byte in os.fsencode(self.around.mark))
        try:
            for line in lines:
                if not (match := _LINE.fullmatch(line.removesuffix("\n"))):
                    raise _Unsure(f"its trace has a line that is no call: {escaped(line.strip(), 80)}")
                if not first and f'"{mark}"' not in line:
                    raise _Unsure("its trace lacks its beginning")
                process, first = match[1], first or match[1]
                if match["end"] is not None:
                    ended = match["end"] if process == first else ended
                    continue
                if match["call"] and f'"{mark}"' in line:
                    behind = len(self.found.parts) == self.around.parts
                    if not behind:
                        self.found.parts.append(Part())
                if behind:
                    continue
                text = match["call"] if match["rest"] is None else waiting.pop(process, "") + match["rest"]
                if text.endswith(" <unfinished ...>"):
                    waiting[process] = text.removesuffix(" <unfinished ...>")
                else:
                    self.call(text)
            for text in waiting.values():  # of processes that ended meanwhile
                self.call(f"{text}) = ?")
            if ended != "exited with 0":
                raise _Unsure(f"its trace is cut short: the process {ended or 'did not end'}")
            if left := next((one for one in sorted(self.made) if os.path.lexists(one)), None):
                raise _Unsure(f"it wrote {escaped(left, 200)}, and left it there", self.made[left])
            for part in self.found.parts:
                part.late = next((path for path in sorted(part.outside) if _is_late(path, self.around.begun)), "")
        except RecursionError:
            self.found.unsure, self.found.at = "it names files too deep below folders", len(self.found.parts) - 1
        except _Unsure as error:
            self.found.unsure, self.found.at = [*error.args, len(self.found.parts) - 1][:2]
        return self.found

    def call(self, text: str) -> None:
        match = _CALL.fullmatch(text)
        if match is None:
            raise _Unsure(f"its trace has a call that cannot be read: {escaped(text, 80)}")
        call, arguments, result, opened = match.groups()
        done = not result.startswith("-")
        if call in ESCAPES:
            if done and result != "?" and "IPC_PRIVATE" not in arguments:
                raise _Unsure(f"it called {call}()")
        elif call == "connect" or call in SENDS:
            self.speak(call, arguments, done or "EINPROGRESS" in text)
        elif call.startswith("getdents") or call == "fchdir":
            folder = _DESCRIPTOR.match(arguments)
            if folder is None:
                raise _Unsure(f"its trace does not say which folder {call}() read")
            if call == "fchdir":
                self.enter(_text(folder[1]))
            elif (below := self.below(_text(folder[1]))) is not None:
                self.found.parts[-1].listed.add(below)
            else:
                self.found.parts[-1].outside.add(f"{_text(folder[1])}/")
        else:
            # Names of files are never cut; what is empty names its descriptor, which was named before.
            names = [self.absolute(one) for one in _NAME.finditer(arguments) if one[3] and not one[4]]
            for name in itertools.chain(*names):
                self.resolve(name)
            if opened:
                self.note(_text(opened))
            if done and not re.search('"|NULL', arguments):
                raise _Unsure(f"its trace does not say what {call}() was given")
            if done and call.startswith("execve"):
                self.interpreter(names)
            if done and (call == "chdir" or call.startswith("open") or call in _CHANGES):
                if not names:
                    raise _Unsure(f"its trace has a {call}() without a name")
                self.change(call, arguments, names)

    def interpreter(self, names: list[list[str]]) -> None:
        """The kernel reads the program behind `#!`, perhaps a script, too (execve(2))."""
        left = [Path(self.resolve(name)) for name in itertools.chain(*names)]
        if not any(map(Path.is_file, left)):
            raise _Unsure("it executed a file that is gone, or has no name")
        for _ in range(MOST_SCRIPTS):
            scripts, left = [one for one in left if one.is_file()], []
            for script in scripts:
                with script.open("rb") as file:
                    begin = file.read(256).split(b"\n")[0]
                if begin.startswith(b"#!") and (words := begin[2:].split()):
                    places = [posixpath.join(folder, os.fsdecode(words[0])) for folder in list(self.folders)]
                    left += [Path(self.resolve(place)) for place in places]

    def absolute(self, one: "re.Match[str]") -> list[str]:
        """A relative name is one for each working folder."""
        base, known, name, _ = one.groups()
        text = _text(name)
        if text.startswith("/"):
            return [text]
        if base not in (None, "AT_FDCWD") and known is None:
            raise _Unsure("its trace does not say in which folder a name was")
        return [f"{folder}/{text}" for folder in ([_text(known)] if known is not None else self.folders)]

    def enter(self, folder: str) -> None:
        self.folders[folder] = None
        if len(self.folders) > MOST_FOLDERS:
            raise _Unsure(f"its processes had more than {MOST_FOLDERS} working folders")

    def resolve(self, name: str, links: int = 0) -> str:
        """All on the way to the real path counts as named."""
        name = re.sub("/+", "/", name)
        if name not in self.real:
            folder, last = posixpath.split(name)
            parent = self.resolve(folder, links)
            if _ELSEWHERE.fullmatch(parent) and last not in ("", "."):
                raise _Unsure("it names files through /proc")
            if last in ("", "."):
                found = parent
            elif last == "..":
                found = posixpath.dirname(parent)
            else:
                found = posixpath.join(parent, last)
                self.note(found)
                if (target := _link(found)) is not None:
                    if links >= MOST_LINKS:
                        raise _Unsure("its names lead through too many links")
                    found = self.resolve(posixpath.join(parent, target), links + 1)
            self.real[name] = found
        return self.real[name]

    def place(self, name: str) -> str:
        """Where a name stands, even a link's."""
        folder, last = posixpath.split(name.rstrip("/"))
        return self.resolve(name) if last in ("", ".", "..") else posixpath.join(self.resolve(folder or "/"), last)

    def note(self, path: str) -> None:
        below = self.below(path)
        if below is not None:
            self.found.parts[-1].named.add(below)
        elif not _HARMLESS.fullmatch(path):
            self.found.parts[-1].outside.add(path)

    def below(self, path: str) -> str | None:
        """As `Differing` has it, or None."""
        if path == self.around.other or path.startswith(f"{self.around.other}/"):
            raise _Unsure("it names files of the other side")
        if not path.startswith(f"{self.around.side}/"):
            return None
        top, _, rest = path[len(self.around.side) + 1 :].partition("/")
        top = "cache" if top == self.around.cache else top
        return os.fsencode(f"{top}/{rest}" if rest else top).decode(errors="backslashreplace")

    def speak(self, call: str, arguments: str, done: bool) -> None:
        """Only this run and the kernel may get messages."""
        if call == "sendto":
            done = done and not arguments.endswith("NULL, 0")
        elif call != "connect":
            done = done and arguments.count("msg_name=NULL") != arguments.count("msg_name=")
        address = _SOCKET.search(arguments)
        ours = call == "connect" and address is not None and self.is_ours(_text(address[1]))
        if done and not ours and "sa_family=AF_NETLINK" not in arguments:
            raise _Unsure("it speaks to another process through a socket")

    def is_ours(self, address: str) -> bool:
        """Also by `worker.channel.reachable`'s name."""
        short = rf"/proc/self/fd/\d+/{re.escape(posixpath.basename(self.around.socket))}"
        return address == self.around.socket or re.fullmatch(short, address) is not None

    def change(self, call: str, arguments: str, names: list[list[str]]) -> None:
        """Writes go only to own places, gone in the end."""
        if call == "chdir":
            for folder in names[0]:
                self.enter(folder)
            return
        if call.startswith("open"):
            flags = arguments.rpartition('"')[2]
            if not re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC)", flags) or "O_TMPFILE" in flags:
                return
            fresh = "O_EXCL" in flags or ("O_CREAT" in flags and "O_TRUNC" in flags)
            places = [self.resolve(name) for name in names[-1]]
        else:
            fresh = call.startswith(("mk", "creat", "link", "symlink"))
            places = [self.place(name) for name in names[-1]]
        if call.startswith("rename"):
            fresh = all(self.is_own(self.place(name)) for name in names[0])
        if call.startswith("symlink"):
            target = _text(_NAME.findall(arguments)[0][2])
            ends = [self.resolve(posixpath.join(posixpath.dirname(place), target)) for place in places]
            if any(self.below(end) is not None for end in ends):
                raise _Unsure("it makes links to files of its side")
        foreign = [place for place in places if not self.is_own(place)]
        if foreign and not fresh:
            raise _Unsure(f"it changes {escaped(foreign[0], 200)}, which others may read")
        self.made.update(dict.fromkeys(foreign, len(self.found.parts) - 1))

    def is_own(self, path: str) -> bool:
        """Nobody else reads what the processes made, or what is harmless."""
        if path.startswith(f"{self.around.side}/{self.around.cache}/") or _HARMLESS.fullmatch(path):
            return True
        while path not in self.made and path != "/":
            path = posixpath.dirname(path)
        return path != "/"


def _link(path: str) -> str | None:
    """Those of /proc are each process's own."""
    if path.startswith("/proc/"):
        return None
    try:
        return os.readlink(path)  # noqa: PTH115  # names need not be valid paths
    except (OSError, ValueError):
        return None


def _is_late(path: str, begun: float) -> bool:
    """A folder's list has a final slash."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return False
    if path.startswith("/sys/"):
        return False
    if max(found.st_mtime, found.st_ctime) <= begun:
        return False
    if path.endswith("/"):
        return not _has_new_bytecode_alone(path, begun)
    return stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)


def _has_new_bytecode_alone(folder: str, begun: float) -> bool:
    """Bytecode is written by the first import."""
    try:
        with os.scandir(folder) as entries:
            new = [entry for entry in entries if entry.stat(follow_symlinks=False).st_ctime > begun]
    except OSError:
        return False
    return bool(new) and all(
        entry.name == "__pycache__"
        or (entry.is_dir(follow_symlinks=False) and _has_new_bytecode_alone(entry.path, begun))
        for entry in new
    )
