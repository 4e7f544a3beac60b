"""Work lists as files, of processes that ran code under test: bounded, and never taken for more than they are."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from perfci.system.bounded import MIB, Bounds, call, desk
from perfci.work import files
from perfci.work.files import FILE, compare

from .recorded import case, documents

LIST = FILE.format(0)
"""Of the first draw."""


def written(folder: Path, document: dict) -> Path:
    """A folder as a worker leaves it, with the images that are at hand and stand-ins for the others."""
    folder.mkdir(parents=True)
    text = json.dumps(document)
    for node in document["nodes"]:
        if digest := node.get("image"):
            image = bytes.fromhex(documents()["images"].get(digest, ""))
            known = hashlib.sha256(image).hexdigest()
            text = text.replace(digest, known)
            (folder / known).write_bytes(image)
    (folder / LIST).write_text(text)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> dict:
    """Of a case whose work is the same."""
    lists = case("rebuilt")
    return {
        side: [written(tmp_path / f"{side}-{number}", one) for number, one in enumerate(lists[side])] for side in lists
    }


def test_folders_are_compared_and_shown(folders: dict) -> None:
    (found,) = compare({"rebuilt": folders}, 1).values()
    assert found.why_not == ""
    assert found.work["base"] == ["kernel `_Z12work_rebuiltPKfPfif` 256 × 1 × 1 blocks of 128 × 1 × 1"]


def test_what_differs_in_a_later_draw_is_not_the_same(folders: dict) -> None:
    for side, places in folders.items():
        for place in places:
            document = json.loads((place / LIST).read_text())
            document["nodes"][0]["grid"][0] += side == "head"
            (place / FILE.format(1)).write_text(json.dumps(document))
    assert compare({"case": folders}, 1)["case"].why_not == ""
    assert compare({"case": folders}, 2)["case"].why_not.endswith(", in draw 2")
    (folders["base"][0] / FILE.format(1)).unlink()
    assert "cannot be read" in compare({"case": folders}, 2)["case"].why_not


def test_they_are_read_in_a_process_of_its_own(folders: dict) -> None:
    with desk() as folder:
        found = call(compare, Bounds(seconds=60, memory=1024 * MIB), folder, cases={"rebuilt": folders}, draws=1)
    assert found["rebuilt"].why_not == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read (No such file"),
        ("", "is none (json_invalid)"),
        ("[" * 100_000, "is none (json_invalid)"),
        ("{}", "is none (missing)"),
        ('{"nodes": NaN}', "is none"),
    ],
)
def test_what_is_no_work_list_is_not_compared(folders: dict, text: str | None, words: str) -> None:
    path = folders["head"][1] / LIST
    path.unlink()
    if text is not None:
        path.write_text(text)
    (found,) = compare({"case": folders}, 1).values()
    assert words in found.why_not
    assert found.why_not.startswith("head: ")
    assert found.work == {}


def test_machine_code_that_is_another_than_was_recorded_is_not_compared(folders: dict) -> None:
    image = next(path for path in folders["base"][0].iterdir() if path.name != LIST)
    image.write_bytes(image.read_bytes() + b"x")
    assert "is not what it was recorded as" in compare({"case": folders}, 1)["case"].why_not


def test_names_of_images_lead_nowhere_else(folders: dict) -> None:
    path = folders["base"][0] / LIST
    document = json.loads(path.read_text())
    document["nodes"][0]["image"] = "../../etc/passwd"
    path.write_text(json.dumps(document))
    assert "is none (string_pattern_mismatch)" in compare({"case": folders}, 1)["case"].why_not


def test_files_are_bounded(folders: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 1000)
    assert "no ordinary file of up to" in compare({"case": folders}, 1)["case"].why_not


def test_one_case_that_cannot_be_read_leaves_the_others(folders: dict) -> None:
    broken = {side: list(paths) for side, paths in folders.items()}
    broken["base"] = [broken["base"][0].parent / "nowhere", broken["base"][1]]
    found = compare({"one": folders, "two": broken}, 1)
    assert found["one"].why_not == ""
    assert found["two"].why_not


def test_a_pipe_is_not_waited_for(folders: dict) -> None:
    path = folders["base"][0] / LIST
    path.unlink()
    os.mkfifo(path)
    assert compare({"case": folders}, 1)["case"].why_not
