"""One order everywhere, wrong results first, and counts that are those of the rows."""

import csv
import io
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.judge import judge
from perfci.model.report import CLASSES
from perfci.render import comment, html, junit, markdown
from perfci.render import csv as csv_renderer
from perfci.render.view import View
from tests.judge.build import case, limit, results, side
from tests.render import h200
from tests.render.build import presence, report, row
from tests.render.publications import publication
from tests.render.test_terminal import printed

RATIOS = (1.0, 1.5, 3.0, 0.6, 1.2)


@pytest.fixture(scope="module")
def wrong_and_slow():
    """One case that is wrong, one slower than another, one faster, one gone, one undecided, in no order."""
    made = [case("k5", values={"sd": 0.2}), case("k6", head=side("absent"))]
    made += [case(f"k{at}", ratio) for at, ratio in enumerate(RATIOS)]
    made.append(case("z_wrong", 5.0, head=side("failed", "wrong", "12 of 16 differ")))
    return judge(results(made, [limit(one.id) for one in made]))


EXPECTED = ["z_wrong", "k2", "k1", "k4", "k6", "k5", "k3", "k0"]


def listed(text: str, names: list[str]) -> list[str]:
    found = re.findall(rf"\b({'|'.join(map(re.escape, names))})\b", text)
    return list(dict.fromkeys(found))


def test_wrong_results_come_first_then_the_slowest_everywhere(wrong_and_slow):
    shown = wrong_and_slow
    assert [one.case for one in shown.rows] == EXPECTED
    assert shown.sentence.startswith("`z_wrong`")
    for width in (0, 80, 200):
        assert listed(printed(shown, width).split("change", 1)[1], EXPECTED) == EXPECTED
    page = html.render(shown)
    assert listed(page[page.index("<tbody") : page.index("</tbody")], EXPECTED) == EXPECTED
    measured = list(dict.fromkeys(line["case"] for line in csv.DictReader(io.StringIO(csv_renderer.render(shown)))))
    assert measured == [name for name in EXPECTED if name in measured] and len(measured) >= 5
    tests = [one.get("classname") for one in ET.fromstring(junit.render(shown).encode()).iter("testcase")]
    assert [name for name in tests if name in EXPECTED] == EXPECTED
    failing = [one.case for one in shown.rows if one.effect == "fail"]
    for text in (markdown.render(shown), comment.render(publication(shown))):
        assert listed(text[text.index("\n| ❌") :], failing) == failing


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_device_of_the_worst_row_is_the_first_suite_of_junit(device):
    other = {"cpu": "cuda", "cuda": "cpu"}[device]
    shown = report([presence("k", "failed", "wrong result", device=device), row("k", "regression", device=other)], "x")
    suites = [one.get("name") for one in ET.fromstring(junit.render(shown).encode())]
    assert suites == ["perfci", device, other]


some_rows = st.lists(
    st.builds(
        lambda name, cls, metric, device: row(name, cls, metric=metric, device=device),
        st.sampled_from(["a/n=1", "b/n=2", "c"]), st.sampled_from(CLASSES), st.sampled_from(["time", "registers"]),
        st.sampled_from(["cpu", "cuda"]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(some_rows)
def test_counts_are_those_of_the_rows(rows):
    shown = report(rows, "x")
    view = View(shown)
    assert sum(number for _, number in view.counts) == len(rows)
    assert dict(view.counts) == {one.class_: sum(other.class_ == one.class_ for other in rows) for one in rows}
    line = printed(shown).split("\n\n")[0].splitlines()[-1]
    assert sum(map(int, re.findall(r"(\d+) (?!cases? in all)", line))) == len(rows)
    cases = len({(one.case, one.device) for one in rows})
    assert (f"{cases} case" in line) is (cases != len(rows))
    chips = re.findall(r'data-filter="(\w+)"[^>]*>(\d+) ', html.render(shown))
    body = re.findall(r'data-class="(\w+)"', html.render(shown).split("<template")[0])
    assert {name: int(number) for name, number in chips} == {name: body.count(name) for name in body}


def test_a_recorded_run_counts_its_rows():
    shown = judge(h200.results())
    assert sum(number for _, number in View(shown).counts) == len(shown.rows) == 20
    assert "3 violations · 7 regressions · 10 unchanged · 10 cases in all" in printed(shown)
