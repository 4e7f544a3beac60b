"""The comment of a pull request: one golden file per state, and what must hold for every publication."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.judge import judge
from perfci.model.base import matches
from perfci.model.publication import Acceptance, Artifact, Attempt, Publication, Shard
from perfci.model.results import FileFailure, SideCode
from perfci.render import comment, docs
from perfci.render.escape import NOTHING
from perfci.render.fit import LIMIT
from perfci.render.terminal import print_report
from perfci.render.verdict import PublicationVerdict
from perfci.render.view import NEEDS_REVIEW
from tests.judge.build import case, results, side
from tests.render.build import HOSTILE, presence, row, unchanged
from tests.render.build import report as build
from tests.render.publications import ORIGIN, RUN, publication, publications
from tests.render.shown import golden, printed
from tests.sources.repo import ENV, commit, find, git, init

GOLDEN = Path(__file__).with_name("golden")
DOCS = docs.link("undecided.md")
STATES = publications()
TAGS = {
    "h3", "h4", "p", "strong", "code", "br", "wbr", "pre", "ul", "li", "a", "details", "summary",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip


class Seen(HTMLParser):
    """Markdown as a reader's browser gets it from GitHub's own parser."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.plain = ""
        self.code: list[str] = []
        self.open: list[str] = []
        self.rows: list[int] = []
        # Raw HTML is let through: what GitHub's sanitizer would fix counts as a fault here.
        self.feed(cmarkgfm.github_flavored_markdown_to_html(markdown, options=Options.CMARK_OPT_UNSAFE))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "br":
            assert self.open[-1] == "td" and not attrs, "within a row alone"
            self.plain += "\n"
            return
        if tag == "wbr":
            assert self.open[-1] == "code" and not attrs, "within a name alone"
            return
        self.open.append(tag)
        if tag == "a":
            self.links.append(dict(attrs)["href"])
        else:
            assert {name for name, _ in attrs} <= {"align", "lang"}, (tag, attrs)
        if tag == "table":
            self.rows.append(0)
        elif tag == "th":
            self.rows[-1] += 1
        elif tag == "code":
            self.code.append("")
            self.plain += "`"  # what stands before code and what stands behind it are no one text

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "code" in self.open:
            self.code[-1] += data
        elif "a" not in self.open:
            self.plain += data

    def handle_comment(self, data):
        assert f"<!--{data}-->" == NOTHING, f"a hidden comment: {data}"


# Text that GitHub turns into a link or a mention: https://docs.github.com/get-started/writing-on-github
ACTIVE = re.compile(
    r"@[a-z0-9]|(?<![\w&])#\d|\bgh-\d|https?://|ftp://|www\.|mailto:\S|(?<![0-9a-z])[0-9a-f]{7,40}(?![0-9a-z])", re.I
)


OURS = rf"{re.escape(RUN[:-4])}[0-9]+[a-z0-9/]*|{re.escape(DOCS)}#[a-z]+"


def harmless(markdown: str, headings: list[str] | None = None, ours: str = OURS) -> Seen:
    """Assert that nothing is active but what perfci wrote, and that tables and folds are whole. `ours`: its links."""
    seen = Seen(markdown)
    assert seen.open == []
    assert set(seen.tags) <= TAGS, set(seen.tags) - TAGS
    assert [tag for tag in seen.tags if tag == "h3"] == (headings if headings is not None else ["h3"])
    assert all(re.fullmatch(ours, link) for link in seen.links), seen.links
    assert not ACTIVE.search(seen.plain), ACTIVE.search(seen.plain)
    columns = 0
    for line in markdown.splitlines():  # cmark drops cells that are too many: the source must not have any
        bars = line.count("|") if line.startswith("|") else 0
        assert not (columns and bars) or bars == columns, line
        columns = bars
    return seen


@pytest.mark.parametrize("state", STATES)
def test_golden(state):
    text = comment.render(STATES[state], 12_000 if state == "truncated" else LIMIT)
    assert text == golden(GOLDEN / f"comment-{state}.md", text)


def test_no_golden_file_without_a_state():
    assert {file.stem.removeprefix("comment-") for file in GOLDEN.glob("comment-*.md")} == set(STATES)


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_harmless_and_within_its_limit(state):
    for limit in (12_000, 20_000, 60_000):
        text = comment.render(STATES[state], limit)
        harmless(text)
        assert len(text) <= limit
    assert len(comment.render_summary(STATES[state]).encode()) <= 2**20


def test_same_publication_same_bytes():
    for one in STATES.values():
        again = Publication.model_validate_json(one.model_dump_json())
        assert comment.render(one) == comment.render(again)


def test_the_comment_leaves_out_what_only_the_summary_has_room_for():
    assert "<summary>500 measured cases</summary>" in comment.render_summary(STATES["many"])
    assert "measured cases" not in comment.render(STATES["many"])


def test_failing_rows_of_several_jobs_are_the_worst_over_all():
    def job(first: float) -> list:
        return [row(f"k/n={i}", "regression", ratio=first - i * 1e-3) for i in range(20)]

    worse, better = build(job(3.0), "worse"), build(job(1.5), "better")
    text = comment.render(publication(better, worse, names=("b", "a")))
    assert text.count("| ❌ `") == 20
    assert text.startswith("### ❌ a: worse; 2 of 2 jobs fail\n")
    assert text.index("#### ❌ a") < text.index("| ❌ `") < text.index("#### ❌ b")
    assert "… and 20 more rows that fail" in text[text.index("#### ❌ b") :]


@pytest.mark.parametrize(
    ("state", "icon", "code"),
    [
        ("pass", "✅", 0), ("regression", "❌", 1), ("inconclusive", "🟡", 0), ("accepted", "☑️", 0),
        ("error", "⛔", 3), ("no-results", "⛔", 3), ("shard-missing", "⛔", 3), ("shard-missing-and-regression", "⛔", 3),
    ],
)  # fmt: skip
def test_the_sign_is_that_of_the_exit_code(state, icon, code):
    assert STATES[state].exit_code == code
    assert comment.render(STATES[state]).startswith(f"### {icon} ")


def test_an_acceptance_of_what_passes_is_not_told():
    one = STATES["pass"].model_copy(update={"acceptance": Acceptance(by="alice", at="2026-01-05T12:00:00Z")})
    assert "ccepted" not in comment.render(one)


def test_an_acceptance_without_a_reason_says_so():
    one = STATES["regression"].model_copy(update={"acceptance": Acceptance(by="al`ice", at="noon <b>")})
    assert "Accepted by ``al`ice`` on noon &lt;b&gt;, without a reason" in comment.render(one)


def test_cost_is_told_where_the_policy_names_a_price():
    free = STATES["regression"].model_copy(deep=True)
    free.shards[0].report.gpu_hour = None
    assert "USD" not in comment.render(free)
    cpu = publication(build([row("a/n=1", device="cpu")], "x"))
    assert "USD" not in comment.render(cpu) and "of\u00a0GPU" not in comment.render(cpu)


def test_links_lead_to_the_site_of_the_run_and_to_our_own_page_alone():
    def links(one: Publication) -> list[str]:
        return [link for link in harmless(comment.render(one)).links if not link.startswith(DOCS)]

    assert links(STATES["hostile"]) == [f"{RUN[:-4]}1042/artifacts/81", RUN]
    assert links(STATES["regression"].model_copy(update={"origin": ORIGIN.model_copy(update={"run_url": ""})})) == []


def test_check_run_has_the_verdict_as_its_title():
    for state, one in STATES.items():
        check = comment.render_check(one)
        assert len(check.title) <= 255 and check.title.isprintable() and "`" not in check.title
        assert len(check.summary) <= 65_535
        harmless(check.summary, headings=[])
        assert PublicationVerdict(one).sentence.replace("`", "")[:40] in check.title, state
    long = publication(build([row("k" * 9000, "regression", ratio=2.0)], f"`{'k' * 9000}` is 2× slower"))
    assert len(comment.render_check(long).title) == 255


def test_hostile_names_reach_the_reader_as_text():
    seen = harmless(comment.render(STATES["hostile"]))
    for name in HOSTILE[:4]:
        assert name in [text.replace("\u200b", "") for text in seen.code]


NASTY = st.lists(
    st.sampled_from([
        "|", "`", "``", "<b>", "</details>", "<!--", "-->", "@everyone", "@", "#1", "GH-1", "a/b#2", "*", "__", "~~", "[x](http://e.example)",
        "![i](x)", "]", "\n", "\n\n", "# ", "- ", "> ", "```", "\\", "&amp;", "https://e.example", "www.e.example", "a@b.example", "$x$",
        "\x00", "\x1b[31m", "\u202e", "\u200b", "4d5993f0", "deadbeef" * 5, "aaaaaa" + "deadbeef" * 4, "1234567", "é", " ", "a", "x" * 300, "<" * 300,
    ]),
    max_size=8,
).map("".join)  # fmt: skip


@st.composite
def hostile_publications(draw) -> Publication:
    def job(index: int) -> Shard:
        cases = [f"k{index}{draw(NASTY)}" for _ in range(draw(st.integers(0, 3)))] * draw(st.sampled_from([1, 1, 30]))
        rows = [
            row(f"{case}{number}", draw(st.sampled_from(["regression", "inconclusive", "improvement"])), ratio=2.0, reason=draw(NASTY), file=case, metric=draw(NASTY))
            for number, case in enumerate(cases)
        ] + [presence("x" + draw(NASTY), "added", draw(NASTY)), *unchanged(1)]  # fmt: skip
        verdict = draw(st.sampled_from([{}, {}, {"verdict": "error"}]))
        report = build(
            rows, draw(NASTY) or "x", draw(NASTY), notes=[draw(NASTY)] * draw(st.sampled_from([1, 40])), **verdict
        )
        report.sides["head"].subject, report.sides["base"] = draw(NASTY), SideCode(ref=draw(NASTY))
        report.fingerprint.devices["cuda"] = draw(NASTY)
        report.fingerprint.imported[draw(NASTY)] = draw(NASTY)
        url = draw(st.sampled_from([RUN, f"{RUN})[x](y", "http://e.example/", ""]))
        artifacts = [Artifact(name=draw(NASTY), url=url, expires=draw(NASTY))] * draw(st.sampled_from([1, 30]))
        return Shard(name=draw(NASTY), report=report, artifacts=artifacts)

    refs = {"fork": draw(st.booleans()), "head_ref": draw(NASTY), "base_ref": draw(NASTY)}
    return Publication(
        origin=ORIGIN.model_copy(update=refs),
        shards=[job(index) for index in range(draw(st.integers(0, 3)))] * draw(st.sampled_from([1, 1, 1, 20])),
        missing=[draw(NASTY)] * draw(st.sampled_from([0, 1, 40])),
        acceptance=draw(st.none() | st.builds(Acceptance, by=NASTY, at=NASTY, reason=NASTY)),
        attempts=[Attempt(run_id=1, attempt=1, sentence=draw(NASTY), url=draw(NASTY))]
        * draw(st.sampled_from([0, 1, 40])),
    )


@settings(max_examples=40, deadline=None)
@given(hostile_publications(), st.sampled_from([12_000, 20_000, LIMIT]))
def test_any_text_anywhere_is_harmless_and_within_the_limit(one, limit):
    text = comment.render(one, limit)
    assert len(text) <= limit
    harmless(text)
    harmless(comment.render_check(one).summary, headings=[])


def test_no_page_is_one_character_longer_than_its_limit():
    """Asked for one less than the page before has, from page to page; an empty note is a line that ends in a space."""
    rows = [row("k/n=1", "regression", ratio=2.0), *(row(f"k/n={i}", "improvement", ratio=0.5) for i in range(2, 9))]
    jobs = publication(*[build(rows, "x", notes=[""])] * 12, names=tuple("abcdefghijkl"))
    text = comment.render(jobs)
    folds = {text.count("<details>")}
    while len(text) > 10_000:
        limit = len(text) - 1
        text = comment.render(jobs, limit)
        assert len(text) <= limit
        folds.add(text.count("<details>"))
    assert len(folds) > 10


@pytest.mark.parametrize("measured", ["head of a fork", "merge"])
def test_the_commands_work_in_a_clone_of_somebody_else(tmp_path, measured):
    """The measured commit lies in no branch of their origin, and the pull request has moved on since."""
    upstream = init(tmp_path / "upstream", {"perfci.yaml": "version: 1"})
    base = git(upstream, "rev-parse", "HEAD")
    git(tmp_path, "clone", "-q", str(upstream), "fork")
    git(tmp_path, "clone", "-q", upstream.as_uri(), "clone")
    fork, clone = tmp_path / "fork", tmp_path / "clone"
    head = commit(fork, {"a.py": "1"})
    if measured == "merge":
        base = commit(upstream, {"b.py": "1"})
        git(upstream, "fetch", "-q", str(fork), "HEAD")
        git(upstream, "merge", "-q", "--no-ff", "FETCH_HEAD", "-m", "Merge")
        head = git(upstream, "rev-parse", "HEAD")
        git(upstream, "update-ref", "refs/pull/7/merge", head)
        git(upstream, "reset", "-q", "--hard", base)
    else:
        commit(fork, {"a.py": "2"}, "later")
        git(fork, "push", "-q", str(upstream), "HEAD:refs/pull/7/head")

    names = ["k/$(touch pwned)", "k/a='b' *[1]", "k/`id`;x"]
    report = build([row(name, "regression", ratio=2.0) for name in [*names, "k/\x1b[31m"]], "x")
    report.sides["base"].commit, report.sides["head"].commit = base, head
    lines = comment.commands(PublicationVerdict(publication(report)))
    stub = tmp_path / "bin" / "perfci"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stub.chmod(0o755)
    env = ENV | {"PATH": f"{stub.parent}:{ENV['PATH']}"}
    done = subprocess.run(
        ["sh", "-ec", "\n".join(lines)], cwd=clone, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert git(clone, "rev-parse", "HEAD") == head
    assert find(clone).resolve_base(base, False).sha == base
    verb, given, *words = done.stdout.splitlines()
    assert (verb, given, {*words[::2]}) == ("compare", base, {"-k"})
    patterns = words[1::2]
    assert [name for name in names for one in patterns if matches(one, name)] == names
    assert not (clone / "pwned").exists()


def test_commands_name_no_commit_that_is_none():
    """Reports come from artifacts: what is no hash stays out of lines that people copy."""
    report = build([row("a/n=1", "regression", ratio=2.0)], "x")
    report.sides["base"].commit, report.sides["head"].commit = "$(id)", "-x; rm"
    assert comment.commands(PublicationVerdict(publication(report))) == [
        f"git fetch origin {ORIGIN.head_sha} && git switch --detach FETCH_HEAD",
        "perfci run -k a/n=1",
    ]


def test_a_matrix_of_jobs_begins_with_cases_against_jobs():
    """A row for each case that moved somewhere, wrong results first; what stayed as it was in all jobs has none."""
    first = build([row("k/n=1", "regression", ratio=2.0), row("k/n=2", "unchanged"), row("k/n=3", "unchanged")], "x")
    second = build([presence("k/n=3", "failed", "wrong result"), row("k/n=1", "improvement", ratio=0.5)], "y")
    text = comment.render(publication(first, second, names=("h100", "b200")))
    table = text[text.index("| case and metric") :].split("\n\n")[0].splitlines()
    assert table[0] == "| case and metric | in each job |"
    rows = [line.replace("\u00a0", " ") for line in table[2:]]
    assert rows == [
        "| `k/n=3` | ❌ failed · b200 |",
        "| `k/n=1` time | ✅ -50.0 % faster · b200<br>❌ +100 % slower · h100 |",
    ]
    assert "k/n=2" not in text


def test_a_table_over_many_jobs_and_cases_is_cut_and_says_so():
    many = build([row(f"k/n={i}", "regression", ratio=2.0) for i in range(30)], "x")
    text = comment.render(publication(*[many] * 12, names=tuple(f"j{i}" for i in range(12))))
    assert "no such row. And 10 more rows, 4 more jobs." in text


def test_a_suite_file_that_does_not_import_is_named_alike_everywhere() -> None:
    """With its line and the error, and not as a change to be reviewed: in the terminal, the comment and the check."""
    broken = side("failed", "import", "SyntaxError: '(' was never closed (kernels/suite.py:7)")
    failure = FileFailure(side="head", file="kernels/suite.py", reason=broken.reason)
    report = judge(results([case("a", None, head=broken), case("b", None, head=broken)], files=[failure]))
    said = "kernels/suite.py does not import in head: SyntaxError: '(' was never closed (kernels/suite.py:7)"
    terminal = printed(print_report, report)
    assert terminal.splitlines()[0] == f"FAIL: {said}"
    assert comment.render_check(publication(report)).title == said
    text = comment.render(publication(report))
    assert text.splitlines()[0].replace("`", "") == f"### ❌ {said}"
    assert NEEDS_REVIEW not in text + terminal
