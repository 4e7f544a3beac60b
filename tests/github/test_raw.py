"""The profilers' own reports, out of a run's output and into an artifact of their own: what is taken, what is left."""

import gzip
import lzma
import os
from pathlib import Path

import pytest

from perfci.github import raw
from perfci.github.raw import clear, collect, sift
from perfci.measure.request import RAW
from perfci.model.base import MachineError, UsageError

REAL = lzma.decompress((Path(__file__).parents[1] / "data" / "ncu" / "ncu_base.ncu-rep.xz").read_bytes())
TOKEN = "hf_Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run's output, with two reports in it."""
    folder = tmp_path / "perfci-out"
    (folder / RAW).mkdir(parents=True)
    (folder / "results.json").write_text("{}")
    (folder / RAW / "ncu-head-0.ncu-rep").write_bytes(REAL)
    (folder / RAW / "nsys-head-0.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 2023" + os.urandom(99))
    (tmp_path / "temp").mkdir()
    return folder


def names(folder: Path | None) -> list[str]:
    assert folder is not None
    return sorted(path.name for path in folder.iterdir())


def test_reports_are_moved_away_from_what_is_uploaded_as_it_is(out: Path, tmp_path: Path) -> None:
    found = collect(out, tmp_path / "temp")
    assert found.names == names(found.folder) == ["ncu-head-0.ncu-rep", "nsys-head-0.nsys-rep"]
    assert found.folder is not None and found.folder.parent == tmp_path / "temp"
    assert found.folder.stat().st_mode & 0o777 == 0o700
    assert (found.folder / "ncu-head-0.ncu-rep").read_bytes() == REAL
    assert names(out) == ["results.json"]
    (out / RAW).mkdir()
    (out / RAW / "stale.ncu-rep").write_bytes(REAL)
    clear(out)
    again = collect(out, tmp_path / "temp")
    assert (again.folder, again.names, again.left) == (None, [], [])


def test_only_ordinary_files_of_their_names_are_taken(out: Path, tmp_path: Path) -> None:
    """Links above all: the one who uploads follows them."""
    secret, folder = tmp_path / "id_ed25519", out / RAW
    secret.write_text("a private key\n")
    (folder / "x.ncu-rep").symlink_to(secret)
    (folder / "deep.ncu-rep").mkdir()
    os.mkfifo(folder / "pipe.nsys-rep")
    for name in ("export.sqlite", ".hidden.ncu-rep", "a\n::error::b.ncu-rep", "x.ncu-rep.gz", "-o.nsys-rep"):
        (folder / name).write_bytes(REAL)
    found = collect(out, tmp_path / "temp")
    assert found.names == names(found.folder) == ["ncu-head-0.ncu-rep", "nsys-head-0.nsys-rep"]
    assert len(found.left) == 8
    assert "x.ncu-rep: is no ordinary file" in found.left
    assert "export.sqlite: is no name of a profiler's report" in found.left
    assert not [line for line in found.left if "\n" in line]
    assert names(out) == ["results.json"] and secret.exists()


def test_a_giant_report_costs_itself_alone(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (out / RAW / "holes.ncu-rep").open("wb") as file:
        file.truncate(raw.LARGEST)
    with (out / RAW / "giant.ncu-rep").open("wb") as file:
        file.truncate(raw.LARGEST + 1)
    found = collect(out, tmp_path / "temp")
    assert found.names == ["ncu-head-0.ncu-rep", "nsys-head-0.nsys-rep"]
    assert found.left == [
        "holes.ncu-rep: has 512 MiB, of which 0 are on the disk",
        "giant.ncu-rep: has 512 MiB, more than the 512 MiB that are read",
    ]
    monkeypatch.setattr(raw, "LARGEST", len(REAL) + 1)
    for name in ("a.ncu-rep", "b.ncu-rep"):
        (out / RAW).mkdir(exist_ok=True)
        (out / RAW / name).write_bytes(REAL)
    (out / RAW / "c.ncu-rep").write_bytes(b"NVR\0")
    found = collect(out, tmp_path / "temp")
    assert found.names == ["c.ncu-rep"], "with one more they would be too large by three bytes"
    assert found.left == [f"{one}.ncu-rep: would take all reports over 0 MiB" for one in "ab"]


def test_a_folder_of_countless_files_is_left(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "MOST", 1)
    found = collect(out, tmp_path / "temp")
    assert (found.folder, found.left) == (None, ["raw: has 2 files, and at most 1 are kept"])
    assert names(out) == ["results.json"]


def test_a_link_in_the_place_of_the_folder_leads_nowhere(out: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (out / RAW).rename(elsewhere)
    (out / RAW).symlink_to(elsewhere)
    found = collect(out, tmp_path / "temp")
    assert (found.folder, found.left) == (None, ["raw: is a link"])
    assert names(out) == ["results.json"] and len(names(elsewhere)) == 2
    elsewhere.rename(out / RAW)
    out.rename(elsewhere)
    out.symlink_to(elsewhere)
    for action in (clear, lambda folder: collect(folder, tmp_path / "temp")):
        with pytest.raises(UsageError, match="is a link: remove it"):
            action(out)
    assert names(elsewhere / RAW) == ["ncu-head-0.ncu-rep", "nsys-head-0.nsys-rep"]


def test_reports_that_cannot_be_copied_cost_no_verdict(out: Path, tmp_path: Path) -> None:
    found = collect(out, tmp_path / "gone")
    assert found.folder is None and "cannot be kept: " in found.left[0]
    assert names(out) == ["results.json"]


def test_reports_that_cannot_be_removed_stop_the_upload(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(raw, "remove", refuse)
    with pytest.raises(MachineError, match="raw: cannot be removed: Permission denied"):
        collect(out, tmp_path / "temp")


@pytest.mark.parametrize(
    ("planted", "held"),
    [
        (b"", False),
        (TOKEN.encode(), True),
        (TOKEN.encode("utf-16-le"), True),
        (b"argv: --password=hunter22", True),
        (b"a1b2c3d4e5f6a7b8c9d0e1f2", False),  # a commit, say: what the measurement could see is searched for there
    ],
)
def test_a_report_with_a_secret_of_the_job_is_not_handed_on(
    out: Path, tmp_path: Path, planted: bytes, held: bool
) -> None:
    taken = collect(out, tmp_path / "temp").folder
    assert taken is not None
    report = taken / "ncu-head-0.ncu-rep"
    report.write_bytes(REAL[:5000] + planted + REAL[5000:])
    env = {"HF_TOKEN": TOKEN, "DB_PASSWORD": "hunter22", "GITHUB_SHA": "a1b2c3d4e5f6a7b8c9d0e1f2", "HOME": "/root"}
    found = sift(taken, env)
    assert report.exists() is not held
    assert found.names == names(found.folder) == ["ncu-head-0.ncu-rep"] * (not held) + ["nsys-head-0.nsys-rep"]
    which = "DB_PASSWORD" if b"hunter22" in planted else "HF_TOKEN"
    assert found.left == [f"ncu-head-0.ncu-rep: holds values of {which}"] * held


def test_what_nothing_is_known_of_is_not_handed_on(out: Path, tmp_path: Path) -> None:
    taken = collect(out, tmp_path / "temp").folder
    assert taken is not None
    (taken / "nsys-head-0.nsys-rep").unlink()
    (taken / "ncu-head-0.ncu-rep").write_bytes(gzip.compress(b"nothing" * 1000)[:-20])
    found = sift(taken, {"HF_TOKEN": TOKEN})
    assert (found.folder, found.names, names(taken)) == (None, [], [])
    [line] = found.left
    assert line.startswith("ncu-head-0.ncu-rep: ") and line.endswith(": whether it holds secrets is not known")


def test_a_folder_that_holds_something_else_is_neither_handed_on_nor_touched(tmp_path: Path) -> None:
    """One that a forged output names."""
    (tmp_path / "id_ed25519").write_text(TOKEN)
    (tmp_path / "x.ncu-rep").write_text(TOKEN)
    found = sift(tmp_path, {"HF_TOKEN": TOKEN})
    assert (found.folder, found.left) == (None, ["id_ed25519: is no name of a profiler's report"])
    assert names(tmp_path) == ["id_ed25519", "x.ncu-rep"]
