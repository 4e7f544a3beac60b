"""Profilers' own reports: what is a secret, what a scan finds of one, what it cannot see, and what is kept."""

import base64
import bz2
import gzip
import lzma
import os
import secrets as randomness
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.profilers.base import Keep, ProfilerRequest
from perfci.profilers.ncu.command import InstalledNcu
from perfci.profilers.ncu.profiler import Ncu
from perfci.profilers.nsys import privacy as nsys_privacy
from perfci.profilers.nsys.command import InstalledNsys
from perfci.profilers.nsys.profiler import Nsys
from perfci.profilers.scan import contains, secrets
from perfci.system.child import Exit
from tests.system.machines import program

DATA = Path(__file__).parents[1] / "data"
REAL = lzma.decompress((DATA / "ncu" / "ncu_base.ncu-rep.xz").read_bytes())
"""A report of ncu 2025.3, which names the program that it profiled."""
PROGRAM = b"/usr/bin/python3.12"
SECRET = "hf_Ab1Cd2Ef3Gh4Ij5K"
"""As long as the program's name."""


def test_which_variables_are_secret():
    told = secrets({
        "GITHUB_TOKEN": "ghs_16C7e42F292c6912E7710c838347Ae178B4a", "DB_PASSWORD": "hunter22", "PIN_TOKEN": "123",
        "PIP_INDEX_URL": "https://user:pass@host/simple", "BUILD_ID": "a1b2c3d4e5f6a7b8c9d0e1f2",
        "PATH": "/usr/local/cuda-13.0/bin:/usr/bin", "LANG": "C.UTF-8", "EDITOR": "/usr/bin/vim",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates1.crt", "MESSAGE": "a long value of words and 1 number",
        "HOSTNAME": "arc-runner-set-x7k2p-runner-9fzq4",
    })  # fmt: skip
    assert sorted(told) == ["BUILD_ID", "DB_PASSWORD", "GITHUB_TOKEN", "PIP_INDEX_URL"]


def test_a_scan_finds_values_across_pieces_and_refuses_packed_files(tmp_path):
    value = "canary-" + randomness.token_hex(12)
    path = tmp_path / "artifact"
    for size in (0, 2**20 - 10, 2**20, 3 * 2**20 + 5):
        plain = os.urandom(size) + value.encode() + os.urandom(100)
        path.write_bytes(plain)
        assert contains(path, {"CANARY": value, "OTHER": value[::-1]}) == ["CANARY"]
    for packed in (gzip.compress(plain, 1), lzma.compress(plain, preset=0), bz2.compress(plain, 1)):
        path.write_bytes(packed)
        with pytest.raises(OSError, match="nothing is known of it"):
            contains(path, {"CANARY": value})


def test_a_scan_of_a_report_finds_a_value_that_compression_cut(tmp_path):
    """LZ4 writes what occurred before as a reference: 22 of a canary's 23 bytes stood together in a real report."""
    value = "canary-9f8e7d6c5b4a3210"
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 2023" + os.urandom(1000) + value[:-1].encode() + bytes(99))
    assert contains(path, {"CANARY": value, "OTHER": "0123abcd4567efab"}) == ["CANARY"]
    path.rename(tmp_path / "x.bin")
    (tmp_path / "x.bin").write_bytes((tmp_path / "x.bin").read_bytes()[7:])
    assert contains(tmp_path / "x.bin", {"CANARY": value}) == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le"])
def test_a_scan_of_a_real_report_of_ncu(tmp_path: Path, encoding: str) -> None:
    """In the place of what it tells of the program, and as wide text anywhere in it."""
    path = tmp_path / "ncu-head-0.ncu-rep"
    asked = {"HF_TOKEN": SECRET, "OTHER": SECRET[::-1]}
    path.write_bytes(REAL)
    assert contains(path, asked) == []
    assert contains(path, {"PROGRAM": PROGRAM.decode()}) == ["PROGRAM"]
    wide = SECRET.encode(encoding)
    planted = REAL.replace(PROGRAM, wide) if len(wide) == len(PROGRAM) else REAL[:99_999] + wide + REAL[99_999:]
    path.write_bytes(planted)
    assert contains(path, asked) == ["HF_TOKEN"]


def test_what_a_scan_cannot_see(tmp_path: Path) -> None:
    """docs/security.md says so: one that is encoded, packed in a part of the file, or in pieces."""
    path = tmp_path / "x.ncu-rep"
    value = SECRET.encode()
    for hidden in (base64.b64encode(value), zlib.compress(value * 3), value[:10] + b"\0" + value[10:]):
        path.write_bytes(REAL + hidden)
        assert contains(path, {"HF_TOKEN": SECRET}) == []


def test_an_address_or_a_word_is_not_in_every_report_of_nsys(tmp_path: Path) -> None:
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(b"no header that is known, https://docs.nvidia.com and libcublasLt.so.12")
    told = {"URL_TOKEN": "https://tokens.example/of/4711abcd", "NV_SECRET": "libcublas-12-4=12.4.5.8-1"}
    assert contains(path, told) == []
    path.write_bytes(b"... tokens.example/of/4711abcd"[:-1])
    assert contains(path, told) == ["URL_TOKEN"]
    path.write_bytes(b"correct-horse")
    assert contains(path, {"PASSWORD": "correcthorse-battery"}) == []
    path.write_bytes(b"correcthorse")
    assert contains(path, {"PASSWORD": "correcthorse-battery"}) == ["PASSWORD"]


@given(before=st.binary(max_size=300), value=st.text(min_size=6, max_size=60), after=st.binary(max_size=300))
def test_any_value_that_stands_there_whole_is_found(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, value: str, after: bytes
) -> None:
    folder = tmp_path_factory.mktemp("scan")
    for name in ("x.ncu-rep", "x.nsys-rep"):
        (folder / name).write_bytes(b"NVR\0" + before + value.encode("utf-8", "surrogatepass") + after)
        assert contains(folder / name, {"A": value}) == ["A"]


# ---------------------------------------------------------------- what is kept


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> str:
    value = "canary-" + randomness.token_hex(12)
    monkeypatch.setenv("CANARY_TOKEN", value)
    return value


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


def ncu(raw: Path) -> Ncu:
    return Ncu(
        InstalledNcu(Path("/bin/false"), "2025.3.1"), ProfilerRequest(60.0, keep=Keep(raw=raw)), "gh100", (), (), 60.0
    )


def told(folder: Path, profiler: Ncu | Nsys, suffix: str) -> list[tuple[str, str, bool]]:
    """The faults of not keeping, once the report in `folder` was read: kind, text, and that they cost no value."""
    log = folder / "log"
    log.touch()
    read = profiler.read(folder / f"r{suffix}", [], Exit(0, None, 1.0), log)
    return [(one.kind, one.text, one.aside) for one in read.general if "not kept" in one.text]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("clean", None),
        ("secret", "r.ncu-rep holds values of CANARY_TOKEN: it was not kept"),
        ("link", "r.ncu-rep: is no ordinary file: whether it holds secrets is not known, and r.ncu-rep was not kept"),
        ("pipe", ""),
        ("large", "more than the 0 MiB that are read"),
    ],
)
def test_a_report_of_ncu_is_kept_where_it_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: Path, canary: str, case: str, says: str | None
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    report = work / "r.ncu-rep"
    if case == "link":
        (tmp_path / "secret").write_bytes(REAL)
        report.symlink_to(tmp_path / "secret")
    elif case == "pipe":
        os.mkfifo(report)
    else:
        report.write_bytes(REAL + (canary.encode() if case == "secret" else b""))
    if case == "large":
        monkeypatch.setattr("perfci.profilers.ncu.file.LARGEST", 1000)
    found = told(work, ncu(raw), ".ncu-rep")
    assert [path.read_bytes() for path in raw.iterdir()] == ([REAL] if case == "clean" else [])
    assert [(kind, aside) for kind, _, aside in found] == ([("forbidden", True)] if says else [])
    assert all(str(says) in text for _, text, _ in found)
    assert case == "pipe" or not report.exists()


def test_a_report_replaces_none_and_a_folder_that_refuses_costs_the_report_alone(tmp_path: Path, raw: Path) -> None:
    for _ in range(2):  # the GPU's cases, and the CPU's
        (tmp_path / "r.ncu-rep").write_bytes(REAL)
        assert told(tmp_path, ncu(raw), ".ncu-rep") == []
    assert sorted(path.name for path in raw.iterdir()) == ["r-2.ncu-rep", "r.ncu-rep"]
    (tmp_path / "r.ncu-rep").write_bytes(REAL)
    found = told(tmp_path, ncu(tmp_path / "gone"), ".ncu-rep")
    assert found == [("crash", "r.ncu-rep was not kept: No such file or directory", True)]


def nsys(folder: Path, raw: Path, export: bytes, handed_on: bool) -> Nsys:
    """An nsys that exports these bytes, and a report for it."""
    (folder / "r.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 2023" + os.urandom(99))
    (folder / "made").write_bytes(export)
    made = program(folder, "nsys", f"cp {folder}/made {folder}/r.sqlite")
    request = ProfilerRequest(60.0, keep=Keep(raw=raw, handed_on=handed_on))
    return Nsys(InstalledNsys(Path(made), "2023.4.4", frozenset()), request, 60.0)


@pytest.mark.parametrize(
    ("holds", "handed_on", "secret", "kept"),
    [(True, True, False, True), (False, True, False, False), (False, False, False, True), (True, True, True, False)],
)
def test_a_report_of_nsys_leaves_the_machine_where_it_saw_no_other_process(
    tmp_path, monkeypatch, raw, whole, canary, holds, handed_on, secret, kept
):
    """A scan knows this environment's secrets, and not those of other processes: the runner's registration, say."""
    text = "this user may not open a PID namespace: nsys sees the environments of all processes"
    monkeypatch.setattr(nsys_privacy, "isolation", lambda user=(): nsys_privacy.Isolation((), holds, text))
    export = whole.read_bytes() + (canary.encode() if secret else b"")
    found = told(tmp_path, nsys(tmp_path, raw, export, handed_on), ".nsys-rep")
    assert [path.name for path in raw.iterdir()] == (["r.nsys-rep"] if kept else [])
    why = "r.nsys-rep holds values of CANARY_TOKEN: it was not kept" if secret else f"r.nsys-rep was not kept: {text}"
    assert found == ([] if kept else [("forbidden", why, True)])


def test_a_report_of_nsys_without_an_export_is_not_kept(tmp_path: Path, raw: Path) -> None:
    """In its own bytes, which are compressed, a scan would overlook too much."""
    profiler = nsys(tmp_path, raw, b"", False)
    program(tmp_path, "nsys", "exit 1")
    [(kind, text, aside)] = told(tmp_path, profiler, ".nsys-rep")
    assert (kind, aside) == ("forbidden", True)
    assert text.startswith("r.sqlite: there is no such file: whether it holds secrets is not known")
    assert list(raw.iterdir()) == []
