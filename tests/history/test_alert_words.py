"""The issue's words: one golden file per state, and what must hold for any names."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.history.alert import Alerts
from perfci.history.document import Compared, Night, Reference
from perfci.render import alert as words
from perfci.render.fit import LIMIT
from tests.history.nights import at, commit, night, point, ratio
from tests.history.test_alert import CASE, OTHER, answer, judged, only, walk
from tests.render.build import HOSTILE
from tests.render.shown import golden
from tests.render.test_comment import harmless

GOLDEN = Path(__file__).with_name("golden")
HERE = "https://github.com/acme/attention"
COMPARE = rf"{re.escape(HERE)}/compare/[0-9a-f]{{40}}\.\.\.[0-9a-f]{{40}}"


def over(names: list[str], **also: Any) -> list[Night]:
    """Three nights of which the last two are over every limit of these cases."""
    found = []
    for day, speed in enumerate([1.0, 1.07, 1.07]):
        points = [
            point(name, last=answer(speed if day == 1 else 1.0) if day else None, reference=answer(speed, 0.05))
            for name in names
        ]
        found.append(night(day, points=points, **also))
    return found


def hostile() -> list[Night]:
    title = "@org closes #1 https://evil.example <b>[x](y)</b> |"
    nights = over(HOSTILE)
    for one in nights:
        one.devices = {"cpu": f"{HOSTILE[0]}|@org"[:500]}
        one.reference = Reference(name=HOSTILE[1][:500], commit=commit(-30))
        one.commit = one.commit.model_copy(update={"title": title})
    for one in nights[1:]:
        one.points.append(point("bound", last=Compared(class_="violation", reason=f"`x` {title}"), reference=None))
    return nights


BOUND = judged("unchanged", "violation", "violation", reason="12.4 ms, over the limit of 10 ms", value=12.4)
SPILLS = judged("unchanged", "regression", "unchanged", limit=0.0, metric="local_memory", unit="B", value=64e3)
STATES: dict[str, Alerts] = {
    "step": only(walk([1.0, 1.05, 1.05])),
    "creep": only(walk([1.0, 1.015, 1.03, 1.045, 1.06, 1.06], creep=0.05)),
    "both": only(over([CASE, "matmul/n=4096,dtype=bf16", "norm[x]/n=1"])),
    "bound": only(BOUND),
    "spills": only(SPILLS),
    "within-once": only(walk([1.0, 1.07, 1.07, 1.0], creep=0.05)),
    "ended": only(walk([1.0, 1.07, 1.07, 1.0, 1.0], creep=0.05)),
    "one-ended": only([*walk([1.0, 1.07, 1.07, 1.03, 1.03], creep=0.05)]),
    "left": only([*walk([1.0, 1.05, 1.05]), night(3, epoch=OTHER, points=[point(CASE, last=answer(1.0), reference=None)])]),
    "many": only(over([f"a_case_of_a_kernel_with_a_long_name/n={number},dtype=bf16" for number in range(40)])),
    "hostile": only(hostile()),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_golden(state: str) -> None:
    found = STATES[state]
    text = f"{words.title(found, 'perfci')}\n\n{words.render(found, HERE)}"
    if found.open:
        text += f"\n---\n\n{words.reopening(found)}"
    elif found.ended:
        text += f"\n---\n\n{words.closing(found)}"
    text += "".join(f"\n- {line}" for line in words.lines(found)) if state not in ("many", "hostile") else ""
    assert text == golden(GOLDEN / f"alert-{state}.md", text)


def test_no_golden_file_without_a_state() -> None:
    assert {path.stem for path in GOLDEN.glob("alert-*.md")} == {f"alert-{state}" for state in STATES}


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_active_but_the_links_of_the_commits(state: str) -> None:
    seen = harmless(words.render(STATES[state], HERE), ours=COMPARE)
    assert seen.links or not STATES[state].open
    for text in (words.reopening(STATES[state]) if STATES[state].open else "", words.closing(STATES["ended"])):
        harmless(text, [])


def test_what_is_left_out_is_counted() -> None:
    text = words.render(STATES["many"], HERE)
    assert "over 80 limits of 40 cases" in text and "… and 55 more" in text
    short = words.render(STATES["many"], HERE, 10_000)
    assert len(short) <= 10_000 < len(text)
    told = re.search(r"… and (\d+) more", short)
    assert int(told[1]) + short.count("<code>a\\_case") == 80


def test_a_title_is_one_short_line_of_plain_text() -> None:
    title = words.title(STATES["hostile"], "kernels")
    assert len(title) <= 256 and title.isprintable() and title.endswith(" (kernels)")


def test_commands_are_for_cases_whose_names_print_and_for_metrics_that_pairs_decide() -> None:
    assert "perfci bisect" not in words.render(STATES["spills"], HERE), "profilers see it, pairs do not decide it"
    assert "perfci compare" in words.render(STATES["spills"], HERE)
    assert "'norm[[]x]/n=1'" in words.render(STATES["both"], HERE), "a glob that matches the name alone"
    text = words.render(STATES["creep"], HERE)
    assert f"perfci bisect --all {commit(-30).sha} {commit(4).sha} -k {CASE} --device cpu" in text
    assert f"perfci compare {commit(-30).sha} --creep --device cpu -k {CASE}" in text
    assert commit(-30).sha not in words.render(STATES["both"], HERE), "the commit before the step is nearer"


_NAMES = st.lists(
    st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=300)), min_size=1, max_size=30, unique=True
)


@settings(max_examples=100)
@given(_NAMES, st.text(max_size=1000), st.text(min_size=1, max_size=500), st.floats(1e-300, 1e300))
def test_whatever_things_are_called_the_text_is_whole_and_harmless(
    names: list[str], title: str, device: str, value: float
) -> None:
    names = [name for name in names if name.encode("utf-8", "ignore").decode() == name] or ["case"]
    device, title = (text.encode("utf-8", "ignore").decode() or "device" for text in (device, title))
    nights = over(names, devices={"cpu": device}, reference=Reference(name=device, commit=commit(-30)))
    for one in nights:
        one.commit = one.commit.model_copy(update={"title": title})
        for told in one.points:
            told.value = value
            if told.reference is not None and one is not nights[0]:
                told.reference.ratio = ratio(max(value, 1.1), 0.0)
    text = words.render(only(nights), HERE)
    assert len(text) <= LIMIT
    harmless(text, ours=COMPARE)
    assert at(1)[:10] in text
