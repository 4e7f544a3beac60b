"""The run that README.md shows pictures of, and the pictures."""

import re
import struct
from pathlib import Path

import pytest

from perfci.judge.judge import judge
from perfci.render import comment
from tests.render import h200

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture(scope="module")
def report():
    return judge(h200.results())


def test_the_recorded_run_is_judged_as_it_was_on_the_gpu(report):
    """The five faults of `tests/e2e/gpu/test_gpu_profiles.py`, and the five cases that have none."""
    assert report.verdict == "fail"
    assert report.counts == {"regression": 5, "unchanged": 5}
    first = {one.case: one.sentences[0] for one in report.profiles if one.sentences}
    for case, words in {
        "attention": "left cuDNN attention: 1 kernel → 14, 59.0 MB → 5.06 GB of DRAM traffic",
        "scale": "`_scale`: registers 25 → 45",
        "upload": "the upload is pageable now: 55.4 → 14.7 GB/s",
        "loop": "synchronises inside the loop now: `cudaDeviceSynchronize` 0 → 20",
        "chain": "casts through float32: 0 → 6 casts",
    }.items():
        assert first[case].startswith(words), first[case]
    rows = {row.case: row for row in report.rows if row.metric == "time"}
    assert rows["scale"].class_ == "regression" and 1.035 < rows["scale"].change < 1.042
    assert {row.case for row in rows.values() if row.class_ == "unchanged"} == {
        "backward", "layernorm", "matmul", "ranged", "replayed"
    }  # fmt: skip


def test_what_the_tour_quotes_is_what_the_comment_says():
    said = comment.render(h200.publication(judge(h200.results(h200.PICTURED))))
    quoted = [line[2:] for line in (ROOT / "docs/tour.md").read_text().splitlines() if line.startswith("> ")]
    assert len(quoted) >= 3
    assert [line for line in quoted if line and line not in said] == []


@pytest.mark.parametrize("document", ["README.md", "docs/tour.md"])
def test_pictures_are_there_in_both_schemes_and_soon_loaded(document):
    text = (ROOT / document).read_text()
    shown = re.findall(
        r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(.*?)-dark\.png">\s*<img src="(.*?)-light\.png" alt="(.*?)"',
        text,
    )
    assert shown and len(shown) == text.count("<picture>")
    for dark, light, alt in shown:
        assert dark == light and len(alt) > 20
        for scheme in ("light", "dark"):
            path = (ROOT / document).parent / f"{light}-{scheme}.png"
            data = path.read_bytes()
            assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) < 300 * 1024
            assert struct.unpack(">II", data[16:24])[0] > 1000, "sharp on a dense screen"


def test_no_picture_is_left_over():
    shown = "".join((ROOT / name).read_text() for name in ("README.md", "docs/tour.md"))
    assert [path.name for path in PICTURES.glob("*.png") if path.name not in shown] == []
