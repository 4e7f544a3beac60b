"""The HTML report: its contents, and that nothing that it is given becomes more than text and numbers."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.cli.output import read_recorded
from perfci.judge.judge import judge
from perfci.model.report import Report
from perfci.render import html, render_all
from perfci.render.html import plots
from perfci.render.html.recorded import Recorded
from perfci.render.view import View
from tests.render import generated
from tests.render.build import HOSTILE, reports, row, unchanged
from tests.render.build import report as build
from tests.render.shown import golden

GOLDEN = Path(__file__).with_name("golden")
ASSETS = Path(html.__file__).parent
REPORTS = reports()
NOTATION = {"wbr", "code"}
"""Elements that names have where they may be broken, and where they stand between backticks."""


class Page(HTMLParser):
    """A page taken apart: elements with their attributes, and the text of some."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.raw: dict[str, list[str]] = {"style": [], "script": [], "title": []}
        self._texts: list[str] = []
        self._open = ""
        self.feed(text)
        self.close()
        self.text = "".join(self._texts)  # joined once: a large report has a hundred thousand

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._open = tag
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in self.raw:
            self.raw[self._open][-1] += data
        else:
            self._texts.append(data)

    @property
    def data(self) -> dict:
        return json.loads(self.raw["script"][0])

    @property
    def structure(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attributes)) for tag, attributes in self.elements if tag not in NOTATION]


def run(**fields) -> tuple[Report, Recorded]:
    recorded = generated.recorded(**fields)
    assert recorded.results is not None
    return judge(recorded.results), recorded


@pytest.fixture(scope="module")
def small() -> tuple[Report, Recorded]:
    return run()


@pytest.mark.parametrize("state", ["mixed", "profile", "traced", "run", "error"])
def test_golden(state):
    text = html.render(REPORTS[state])
    text = re.sub(r"<(style|script)>.*?</\1>|<meta http-equiv.*?>", r"<\1>", text, flags=re.DOTALL)
    assert text == golden(GOLDEN / f"{state}.html", text)


@pytest.mark.parametrize("state", REPORTS)
def test_the_sentence_is_the_verdicts_own(state):
    report = REPORTS[state]
    page = Page(html.render(report))
    sentence = View(report).headline.replace("`", "")
    if state != "hostile":
        assert page.raw["title"][0].endswith(sentence)
        assert sentence in page.text and report.advice.replace("`", "") in page.text


def test_same_input_same_bytes(small):
    report, recorded = small
    again = Report.model_validate_json(report.model_dump_json())
    assert html.render(report, recorded) == html.render(again, recorded)


def test_nothing_is_loaded_and_only_hashed_code_runs(small):
    page = Page(html.render(*small))
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    told = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert told["default-src"] == told["base-uri"] == told["form-action"] == "'none'"
    code = page.raw["script"][1:]
    for directive, texts in (("script-src", code), ("style-src", page.raw["style"])):
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert told[directive].split() == [f"'sha256-{digest}'" for digest in digests]
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), tag
        assert not {"src", "style", "srcset", "action"} & set(attributes), tag
        assert attributes.get("href", "#").startswith("#") or attributes["href"] == "data:,"
    assert not re.search(r"\beval\b|new Function|innerHTML|insertAdjacentHTML|document\.write", code[-1])


def test_libraries_of_others_are_as_they_were_published():
    notice = (ASSETS / "NOTICE").read_text()
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() in notice
    assert "MIT License" in (ASSETS / "uPlot.LICENSE").read_text()


@pytest.mark.parametrize(("cases", "pairs"), [(30, 16), pytest.param(200, 64, marks=pytest.mark.slow)])
def test_two_hundred_cases_fit_in_five_megabytes(cases, pairs):
    text = html.render(*run(cases=cases, pairs=pairs))
    assert len(text.encode()) <= 25_000 * cases
    page = Page(text)
    assert len(page.data["cases"]) == cases
    assert sum(tag == "template" for tag, _ in page.elements) == cases


def test_every_plot_has_what_was_recorded(small):
    report, recorded = small
    page = Page(html.render(report, recorded))
    cases = [(row.case, row.device) for row in report.rows]
    place = cases.index(("matmul/m=448/n=64", "cuda"))
    drawn = page.data["cases"][place]
    assert set(drawn) == {"workers", "clock", "ratios", "roof", "timeline"}
    case = next(case for case in recorded.results.cases if case.id == cases[place][0])
    scale = {"ms": 1e-3, "µs": 1e-6}[drawn["workers"]["unit"]]
    for side in ("base", "head"):
        values = [pair.values[side]["time"] for pair in case.pairs]
        assert drawn["workers"]["values"][side] == pytest.approx([value / scale for value in values], rel=1e-5)
        placements = drawn["workers"]["samples"][side][3]
        raw = recorded.samples[case.key][3][side]
        assert [one[0] * scale for one in placements] == pytest.approx([min(one) for one in raw], rel=1e-4)
        assert [one[-1] * scale for one in placements] == pytest.approx([max(one) for one in raw], rel=1e-4)
    trail = next(one for one in report.trails if one.case == case.id)
    assert drawn["ratios"]["ratios"] == pytest.approx([(ratio - 1) * 100 for ratio in trail.ratios], rel=1e-5)
    assert drawn["ratios"]["limit"] == pytest.approx(1.0)
    assert drawn["roof"]["compute"] == pytest.approx(773)
    assert drawn["roof"]["sides"]["base"]["rate"] > drawn["roof"]["sides"]["head"]["rate"]
    assert len(drawn["timeline"]["sides"]["base"]) < len(drawn["timeline"]["sides"]["head"])
    assert drawn["timeline"]["sides"]["head"][0][2] == 0.0
    assert page.data["moments"][0] == [0.0, 38.0]
    assert [one["case"] for one in page.data["overview"]] == list(range(8))


def test_figures_stand_where_there_is_something_to_draw(small):
    report, recorded = small

    def figures(text: str) -> set[str]:
        return {attributes["data-plot"] for tag, attributes in Page(text).elements if tag == "figure"}

    assert figures(html.render(report, recorded)) == {"overview", "workers", "ratios", "timeline", "roof", "clock"}
    assert figures(html.render(report)) == {"overview", "ratios", "roof"}
    assert figures(html.render(REPORTS["error"])) == set()


def test_values_that_are_no_numbers_are_left_out(small):
    _, recorded = small
    results = recorded.results.model_copy(deep=True)
    pair = results.cases[0].pairs[0]
    pair.values["head"]["time"], pair.at, results.moments[0].temperature = math.nan, math.inf, math.nan
    report = judge(results)
    page = Page(html.render(report, Recorded(results, recorded.samples)))
    drawn = page.data["cases"][[row.case for row in report.rows].index(results.cases[0].id)]
    assert drawn["workers"]["values"]["head"][0] is None
    assert drawn["clock"]["seconds"] == []
    assert page.data["moments"][0][1] is None


ENDINGS = ["</script><script>alert(1)</script>", "</template><img src=x onerror=alert(1)>", "{{7*7}}", "<!--", "]]>"]
nasty = st.text(st.sampled_from("<>&\"'`/=!-;:(){}\\ \n\t@#aµ\u202e\x00\ud800"), max_size=40) | st.sampled_from(
    [*HOSTILE, *ENDINGS]
)


def named(case: str, reason: str, other: str) -> Report:
    slower = row(f"k{case}", "regression", ratio=2.0, reason=reason, file=f"f{other}", metric=f"m{other}")
    told = {"notes": [f"n{other}"], "command": ["perfci", case, other], "repository": f"r{case}"}
    made = build([slower, *unchanged(2)], f"x {case}", f"y {reason}", **told)
    made.sides["head"].subject, made.sides["base"].ref = f"s{case}", f"b{other}"
    made.fingerprint.devices["cuda"] = f"d{reason}"
    made.facts[0].timing.settings["z"] = f"v{other}"
    return made


PLAIN = Page(html.render(named("c", "because", "o")))


@settings(max_examples=40)
@given(nasty, nasty, nasty)
def test_no_text_changes_the_structure_of_the_page(case, reason, other):
    page = Page(html.render(named(case, reason, other)))
    assert page.structure == PLAIN.structure
    assert page.raw["script"][1:] == PLAIN.raw["script"][1:]


@given(st.recursive(st.text() | nasty, lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_embedded_data_reads_back_and_cannot_end_its_element(data):
    text = plots.embed(data)
    assert json.loads(text) == data
    assert not set(text) & set("<>&\u2028\u2029")


def test_the_html_report_is_among_the_files(small):
    report, recorded = small
    assert render_all(report, recorded)["report.html"] == html.render(report, recorded)


def written(folder: Path, recorded: Recorded) -> Path:
    lines = [
        json.dumps({"key": key, "pair": index, "samples": samples})
        for key, pairs in recorded.samples.items()
        for index, samples in pairs.items()
    ]
    path = folder / "samples.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_samples_are_read_from_the_run_folder(tmp_path, small):
    _, recorded = small
    written(tmp_path, recorded)
    found = read_recorded(recorded.results, tmp_path)
    assert found == recorded


def test_samples_of_another_run_are_not_drawn(tmp_path, small):
    """They lie in the folder where one tool's files are judged after a run of perfci."""
    _, recorded = small
    written(tmp_path, generated.recorded(samples=7))
    assert read_recorded(recorded.results, tmp_path).samples == {}


def test_damaged_samples_cost_no_more_than_themselves(tmp_path, small):
    report, recorded = small
    path = written(tmp_path, recorded)
    path.write_text(path.read_text().replace('"samples"', '"samples', 1))
    found = read_recorded(recorded.results, tmp_path)
    assert found.samples == {} and "samples.jsonl:1: is no JSON object" in found.missing
    assert "samples are not drawn" in Page(html.render(report, found)).text
    path.unlink()
    assert read_recorded(recorded.results, tmp_path) == Recorded(recorded.results)


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_of_a_timeline_stand_out_and_bear_their_labels(scheme):
    """Labels are drawn in the colour of the card, so that one contrast is that of bar and of label: 4.5 is WCAG's AA."""
    style = (Path(html.__file__).parent / "style.css").read_text()
    named = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", style.split("@media (prefers-color-scheme: dark)")[scheme]))
    kinds = [value for name, value in named.items() if name.startswith("kind-")]
    script = (Path(html.__file__).parent / "report.js").read_text()
    assert f"const KINDS = {len(set(kinds))};" in script
    for kind in kinds:
        light, dark = sorted((_luminance(kind), _luminance(named["card"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, kind
