"""Kernels' machine code, read where counters are forbidden: tensor cores, local memory, registers.

`cuobjdump -sass -res-usage` reads it from a side's own libraries, programs and caches (opcodes: CUDA Binary Utilities,
"Instruction Set Reference").
"""

import contextlib
import functools
import json
import mmap
import os
import re
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perfci.model.profile import KernelCode, KernelUse
from perfci.system.bounded import Said, Unread, hollow, run, unbind
from perfci.worker.work.elf import demangled

TOOL, DISASSEMBLER = "cuobjdump", "nvdisasm"
HOMES = ("triton/backends/nvidia/bin", "triton/third_party/cuda/bin", "nvidia/cu13/bin", "nvidia/cuda_nvcc/bin")
"""In wheels."""
PLACE = "usr/local/cuda/bin"
ABSENT = f"there is no {TOOL} with its {DISASSEMBLER}"
REMEDY = f"-m pip install nvidia-cuda-{TOOL} nvidia-cuda-{DISASSEMBLER}"
SEARCH = "import json, sys; print(json.dumps(sys.path))"
LARGEST = 2**30
"""Bytes: torch's own libraries are larger, and take tens of minutes."""
MOST_FILES = 2000
MEMORY, LEAST_MEMORY, MEMORY_OF = 8 * 2**30, 512 * 2**20, 32
"""Bytes of the tool: at most, always, and for each byte of the file."""
LARGEST_TEXT, LONGEST_LINE = 2**31, 2**20
"""Bytes that the tool prints of a file, and of a line."""
SEARCH_TIME, INSPECTION_TIME = 60.0, 300.0
"""Seconds to find files, and to read them."""

TENSOR = re.compile(r"UTC[A-Z0-9]*MMA|[A-Z]G?MMA")
"""HMMA, IMMA, DMMA, BMMA, QMMA, OMMA; of a warp group (9.0) HGMMA, IGMMA, QGMMA, BGMMA; of tensor memory (10.x, 11.0)
UTCHMMA, UTCIMMA, UTCQMMA, UTCOMMA, UTCMXQMMA."""
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_FUNCTION = re.compile(r"\s+Function : (\S+)")
_USED = re.compile(r" Function (\S+):$")
_USE = re.compile(r"\b(REG|STACK|SHARED):(\d+)")
_ARCH = re.compile(r"\s*(?:arch = |code for )sm_(\d+)(\d)([af]?)$")


@dataclass(slots=True)
class Inspected:
    """What the files hold."""

    kernels: dict[str, list[KernelCode]] = field(default_factory=dict)
    """By the name in the code, mangled for C++: a cache holds many of one name."""
    left: list[str] = field(default_factory=list)
    """Files not read to their end, and why."""


Runner = Callable[[Path], Iterator[str]]
"""Lines that the tool prints of a file. Raises Unread behind them where it did not finish."""


def wheels(told: str) -> list[Path]:
    """Return the folders that an interpreter printed for SEARCH."""
    try:
        found = json.loads(told)
    except ValueError:
        return []
    return [Path(one) for one in found if isinstance(one, str) and one] if isinstance(found, list) else []


def find(folders: Iterable[Path] = (), path: str | None = None, root: Path = Path("/")) -> Path | None:
    """Return cuobjdump with its nvdisasm: on PATH, in /usr/local/cuda, or in a wheel."""
    on_path = shutil.which(TOOL, path=path)
    tools = [Path(on_path)] if on_path else []
    tools += [home / TOOL for home in (root / PLACE, *(folder / home for folder in folders for home in HOMES))]
    disassembler = shutil.which(DISASSEMBLER, path=path)
    return next(
        (
            tool
            for tool in tools
            if os.access(tool, os.X_OK) and (disassembler or os.access(tool.with_name(DISASSEMBLER), os.X_OK))
        ),
        None,
    )


def code_files(folders: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Return files with machine code below `folders`, newest first, and what was left out and why."""
    found: dict[Path, tuple[float, int]] = {}
    left = []
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                path = Path(place, name)
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    if not stat.S_ISREG(status.st_mode) or not _may_hold(name, status.st_mode):
                        continue  # what a link leads to is listed where it is, or is not the side's own
                    if why := _unfit(path, status):
                        left.append(f"{name}: not read, {why}")
                    elif name.endswith(CUBIN) or _holds(path):
                        found[path] = (status.st_mtime, status.st_size)
    newest = sorted(found, key=lambda path: (-found[path][0], str(path)))
    if len(newest) > MOST_FILES:
        left.append(f"{len(newest) - MOST_FILES} of {len(newest)} files: not read, the newest {MOST_FILES} are")
    return newest[:MOST_FILES], left


def _unfit(path: Path, status: os.stat_result) -> str:
    if status.st_size > LARGEST:
        return f"over {LARGEST >> 20} MiB"
    return "mostly holes" if hollow(path, status) else ""


CUBIN = ".cubin"
_ELF, _SECTION = b"\x7fELF", b".nv_fatbin"


def _may_hold(name: str, mode: int) -> bool:
    return name.endswith(CUBIN) or ".so" in name or bool(mode & stat.S_IXUSR)


def _holds(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(4) != _ELF:
            return False
        rest = b""
        while block := file.read(2**20):
            if _SECTION in rest + block:
                return True
            rest = block[1 - len(_SECTION) :]
        return False


def may_name(path: Path, kernels: Iterable[KernelUse]) -> bool:
    """Tell whether a file may hold the code of one of these: a cubin's names stand in it, mangled or not, and a
    library's may be compressed."""
    if path.suffix == CUBIN:
        with (
            contextlib.suppress(OSError, ValueError),
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return not _is_whole(content) or any(content.find(_word(one.name)) >= 0 for one in kernels)
    return True


def _is_whole(content: mmap.mmap) -> bool:
    """By its section headers, with which a cubin ends (elf(5))."""
    at = content.find(_ELF, 0, 128 + len(_ELF))
    header = content[at : at + 64] if at >= 0 else b""
    if len(header) < 64:
        return False
    (offset,), (size, count) = struct.unpack_from("<Q", header, 0x28), struct.unpack_from("<HH", header, 0x3A)
    return bool(0 < offset <= len(content) - at - size * count)


def _word(name: str) -> bytes:
    """A part of a kernel's name in its code under any spelling; empty where none is known."""
    plain = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].strip()
    last = plain.rpartition("::")[2]
    return last.encode() if re.fullmatch(r"[\w:]+", plain) and last != "operator" else b""


def runner(tool: Path, seconds: float = 60.0, largest: int = LARGEST_TEXT) -> Runner:
    """Return a Runner of `tool` with at most `seconds` and `largest` bytes of output a file."""

    def lines(path: Path) -> Iterator[str]:
        try:
            with _bare(path) as bare, tempfile.NamedTemporaryFile() as text:
                said = dump(bare, text.name)
                last = ""
                for line in iter(lambda: text.readline(LONGEST_LINE), b""):
                    if len(line) == LONGEST_LINE:
                        raise Unread("it prints a line that has no end")
                    last = line.decode(errors="replace").strip() or last
                    yield line.decode(errors="replace").rstrip("\n")
                size = text.tell()
        except OSError as error:
            raise Unread(f"cannot be read ({error.strerror})") from None
        if said.late:
            raise Unread(f"not read within {seconds:g} s")
        if size >= largest:
            raise Unread(f"its code is over {largest >> 20} MiB of text: the rest is not read")
        if "does not contain device code" in last:
            if path.suffix == CUBIN:
                raise Unread("no machine code in it: truncated, or for something else")
        elif not said.fine:
            raise Unread(f"{tool.name} exited with status {said.code}: {last[:200]}")

    def dump(path: Path, text: str) -> Said:
        # It starts nvdisasm, which wheels keep beside it.
        env = {"PATH": f"{tool.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}", "LC_ALL": "C"}
        memory = min(MEMORY, LEAST_MEMORY + MEMORY_OF * path.stat().st_size)
        shell = 'ulimit -f "$1" 2>/dev/null; exec >"$2" 2>&1; shift 2; exec "$@"'
        argv = ["/bin/sh", "-c", shell, "sh", str(largest // 512), text, str(tool), "-sass", "-res-usage", str(path)]
        return run(argv, seconds, env=env, prepare=functools.partial(unbind, memory))

    return lines


@contextlib.contextmanager
def _bare(path: Path) -> Iterator[Path]:
    """CuPy's cubins begin with a digest of up to 128 characters."""
    with path.open("rb") as file:
        at = file.read(128 + len(_ELF)).find(_ELF)
        if path.suffix != CUBIN or at <= 0:
            yield path
            return
        with tempfile.NamedTemporaryFile(suffix=CUBIN) as bare:
            file.seek(at)
            shutil.copyfileobj(file, bare)
            bare.flush()
            os.fchmod(bare.fileno(), 0o644)
            yield Path(bare.name)


def _fitness(major: int, minor: int, kind: str, capability: tuple[int, int]) -> tuple[int, int] | None:
    """The larger the better; None where it does not fit.

    Code runs on chips of its major number and an equal or higher minor one; so does a family's (`f`); an architecture's
    (`a`) runs on it alone (CUDA C++ Programming Guide, "Feature Set Compiler Targets").
    """
    if major != capability[0] or minor > capability[1] or (kind == "a" and minor != capability[1]):
        return None
    return minor, {"": 0, "f": 1, "a": 2}[kind]


def parse(lines: Iterable[str], capability: tuple[int, int]) -> dict[str, KernelCode]:
    """Return the kernels in cuobjdump's output by the name in the code, each in the code that best fits the chip. A
    function without its end is left out."""
    best: dict[str, tuple[tuple[int, int], KernelCode]] = {}
    uses: dict[str, dict[str, int]] = {}
    arch, fitness = "", None
    name, told = "", ""
    counts: dict[str, int] = {}

    def end() -> None:
        nonlocal name
        if name and fitness is not None and (name not in best or best[name][0] < fitness):
            use = uses.get(name, {})
            tensor = {opcode: count for opcode, count in sorted(counts.items()) if TENSOR.fullmatch(opcode)}
            best[name] = (
                fitness,
                KernelCode(
                    name="",
                    arch=arch,
                    tensor=tensor,
                    local_loads=counts.get("LDL", 0),
                    local_stores=counts.get("STL", 0),
                    registers=use.get("REG"),
                    stack=use.get("STACK"),
                    shared=use.get("SHARED"),
                ),
            )
        name = ""

    for line in lines:
        if instruction := _INSTRUCTION.match(line):
            opcode = instruction.group(1)
            counts[opcode] = counts.get(opcode, 0) + 1
        elif function := _FUNCTION.match(line):
            name, counts = function.group(1), {}
        elif line.strip() == "..........":
            end()
        elif line.startswith("Fatbin"):
            uses = {}
        elif found := _ARCH.fullmatch(line.rstrip()):
            major, minor, kind = int(found.group(1)), int(found.group(2)), found.group(3)
            arch = f"sm_{major}{minor}{kind}"
            fitness = _fitness(major, minor, kind, capability)
        elif used := _USED.match(line):
            told = used.group(1)
        elif told and "REG:" in line:
            uses[told] = {key: int(value) for key, value in _USE.findall(line)}
            told = ""
    return {kernel: code for kernel, (_, code) in best.items()}


def inspect(
    files: Iterable[Path], run: Runner, capability: tuple[int, int], seconds: float = INSPECTION_TIME
) -> Inspected:
    """Return the kernels in `files` that the chip would run, unfinished files' too."""
    found = Inspected()
    deadline = time.monotonic() + seconds
    late = 0
    for path in files:
        if time.monotonic() >= deadline:
            late += 1
            continue
        for kernel, code in parse(_until(run(path), path, found.left), capability).items():
            known = found.kernels.setdefault(kernel, [])
            if code not in known:
                known.append(code)
    if late:
        found.left.append(f"{late} files: not read, {seconds:g} s were over")
    return found


def _until(lines: Iterator[str], path: Path, left: list[str]) -> Iterator[str]:
    try:
        yield from lines
    except Unread as why:
        left.append(f"{path.name}: {why}")


_CAST = re.compile(r"\((?:bool|char|(?:un)?signed char|(?:unsigned )?(?:short|int|long|long long))\)(?=-?\d)")
_LITERAL = re.compile(r"\b(\d+)u?l?l?\b")
_LAMBDA = re.compile(r"\[lambda(\([^()]*\)) \(instance (\d+)\)\]")


def normal(name: str) -> str:
    """Return a kernel's name in one spelling for nsys (`<(int)4>`, `[lambda() (instance 1)]`), Kineto and C++'s
    demangler, without return type and parameters, which nsys gives as `T2`."""
    if name.startswith("_Z"):
        name = demangled(name)
    name = _LITERAL.sub(r"\1", _CAST.sub("", name))
    name = _LAMBDA.sub(r"{lambda\1#\2}", name).replace("<unnamed>", "(anonymous namespace)")
    name = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", name)).strip()
    if name.endswith(")"):
        depth = 0
        for at in range(len(name) - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(name[at], 0)
            if depth == 0:
                name = name[:at]
                break
    return re.sub(r"\s+", "", name.removeprefix("void "))


def match(kernels: Iterable[KernelUse], inspected: Inspected) -> list[KernelCode | None]:
    """Return the code of each kernel by name, and by registers where both tell them; None where no file holds it, and
    where candidates differ."""
    spelled: dict[str, list[KernelCode]] = {}
    for name, codes in inspected.kernels.items():
        spelled.setdefault(normal(name), []).extend(codes)
    answers: list[KernelCode | None] = []
    for kernel in kernels:
        candidates = inspected.kernels.get(kernel.name) or spelled.get(normal(kernel.name), [])
        fitting = [
            one
            for one in candidates
            if one.registers is None or kernel.registers is None or one.registers == kernel.registers
        ]
        alike = bool(fitting) and all(one == fitting[0] for one in fitting)
        answers.append(fitting[0].model_copy(update={"name": kernel.name}) if alike else None)
    return answers
