"""The site of a history: every name as text, every page in its folder, links only where they lead to a run."""

import html
import json
import math
import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.history.check import check
from perfci.history.series import collect
from perfci.history.store import Fault
from perfci.render.html.history import page_name, site
from tests.history.nights import compared, night, point

HOSTILE = [
    "x/</script><script>window.hit=1</script>",
    "x/<img src=x onerror=window.hit=1>",
    'x/" onmouseover="window.hit=1" autofocus onfocus="window.hit=1',
    "../../../etc/passwd",
    "..",
    "/absolute",
    "x/\u202egnp.exe",
    "x/{{ 7 * 7 }}",
    "x/__proto__",
    "CON",
]
RUN = "https://github.com/org/lib/actions/runs/77"


def history(cases, nights=40, **also):
    """A store of these cases, all of which step after two thirds of the nights."""
    return [
        night(
            day,
            points=[
                point(name, value, reference=compared(value, limit=0.02))
                for name in cases
                for value in [(1.03 if day >= nights * 2 // 3 else 1.0) * (1 + 0.001 * math.sin(7 * day))]
            ],
            **also,
        )
        for day in range(nights)
    ]


def pages(nights):
    devices = collect(nights)
    return dict(site(devices, check(devices, [Fault("nights/<b>.json", "is <i>damaged</i>")], last=len(nights))))


def data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_an_overview_and_a_page_of_each_case():
    found = pages(history(["sdpa/n=128", "softmax"]))
    assert sorted(found) == ["cases/" + page_name("sdpa/n=128"), "cases/" + page_name("softmax"), "index.html"]
    for name in found.keys() - {"index.html"}:
        assert f'href="{name}"' in found["index.html"]
    page = found["cases/" + page_name("softmax")]
    assert "perfci bisect" in page
    (series,) = data(page)["series"]
    assert len(series["night"]) == len(series["ratio"]) == 40
    assert series["ratio"][-1] == pytest.approx(3.0, abs=0.15)
    ((good, bad, drift),) = series["changes"]
    assert (good, bad, drift) == (25, 26, False)


def test_no_name_is_markup_and_none_leads_out_of_the_folder():
    found = pages(history(HOSTILE))
    assert len(found) == len(HOSTILE) + 1
    for name, page in found.items():
        assert PurePosixPath(name).parts in {("index.html",), ("cases", PurePosixPath(name).name)}
        assert "<script>window" not in page
        assert "<img" not in page
        assert 'onmouseover="' not in page
        assert "\u202e" not in page
        assert "<b>" not in page
        assert "<i>damaged" not in page
        assert page.count("<script") == 4
        assert "default-src 'none'" in html.unescape(page)


@given(st.text())
def test_a_page_has_a_plain_name(case):
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{12}\.html", page_name(case))


@given(st.lists(st.text(min_size=1), unique=True))
def test_pages_of_two_cases_have_two_names(cases):
    assert len({page_name(case) for case in cases}) == len(cases)


@pytest.mark.parametrize(
    ("url", "linked"),
    [
        (RUN, True),
        ("", False),
        ("https://evil.example/@github.com/a/b/actions/runs/7?x=javascript:1", False),
        ("https://user@github.com/org/lib/actions/runs/7", False),
        ("https://github.com/org/lib/actions/runs/7#x", False),
    ],
)
def test_a_point_leads_to_its_commit_and_run_of_github_alone(url, linked):
    found = pages(history(["softmax"], url=url))
    (nights,) = data(found["cases/" + page_name("softmax")])["nights"]
    assert nights["commits"] == (["https://github.com/org/lib/commit"] if linked else [])
    assert set(nights["place"]) == ({0} if linked else {-1})


def test_a_seam_stands_where_an_epoch_begins():
    nights = [
        one.model_copy(update={"epoch": "f" * 16}) if day >= 30 else one for day, one in enumerate(history(["softmax"]))
    ]
    found = pages(nights)
    assert data(found["cases/" + page_name("softmax")])["nights"][0]["seams"] == [[30, "v1.2"]]
    assert found["index.html"].count("<polyline") == 2


def test_nights_without_an_answer_are_no_points():
    nights = [*history(["softmax"]), *[night(day, points=[point("softmax", reference=None)]) for day in (40, 41)]]
    (series,) = data(pages(nights)["cases/" + page_name("softmax")])["series"]
    assert series["night"][-1] == 39
